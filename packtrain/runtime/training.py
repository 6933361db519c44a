"""An experiment alive in one process: its parts, its books, and what is saved of it. Runtimes decide the order."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import psutil
import torch

from packtrain.acting.control import ActsAtRandom
from packtrain.acting.planned import PlannedPolicy
from packtrain.acting.policy import NetworkPolicy
from packtrain.acting.values import ValuePolicy
from packtrain.algorithms.launches import ROOM, Batch
from packtrain.config import Configuration, Travelling
from packtrain.devices.allocator import keep_large_blocks
from packtrain.envs.columns import Columns
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.stream import Finished, Stream
from packtrain.errors import DivergedError, FolderLostError, RunFolderError, SaveError
from packtrain.memory.episodes import EpisodeMemory
from packtrain.memory.replay import ReplayMemory
from packtrain.memory.segments import Segments
from packtrain.memory.sequences import SequenceMemory
from packtrain.metrics.console import Console
from packtrain.metrics.planning import planning_row
from packtrain.metrics.recorder import Recorder, means, own_copies
from packtrain.metrics.rolling import Rolling
from packtrain.metrics.writers import JsonlWriter, TensorBoardWriter
from packtrain.planning.traces import TraceWriter
from packtrain.runtime.evaluations import Evaluated, Evaluations
from packtrain.runtime.experiment import Collect, Experiment, Planning, Repeat, Update
from packtrain.runtime.explorer import Explorer
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.gate import Busy, Gate
from packtrain.runtime.parts import REPLAYED, Parts
from packtrain.runtime.saving import Saving
from packtrain.runtime.seeds import seed_for
from packtrain.types import Spec

log = logging.getLogger("packtrain")
VALIDATION_STEPS = 8192  # at most, once an epoch


def planned_epochs(experiment: Experiment, repeats: list[int]) -> int:
    """Return the number of epochs in which the planner played; random data and pre-training do not count."""
    stages = zip(experiment.schedule, repeats, strict=True)
    return sum(count for stage, count in stages if isinstance(stage, Repeat) and stage.plans)


def schedule_epoch(experiment: Experiment, repeats: list[int]) -> int:
    """Return the epoch that parameter schedules see: planned epochs that learned, or all planned where none learn."""
    planned = [(i, stage) for i, stage in enumerate(experiment.schedule) if isinstance(stage, Repeat) and stage.plans]
    learning = [i for i, stage in planned if stage.learns]
    return sum(repeats[i] for i in learning or [i for i, _ in planned])


def _settle_gpu() -> None:
    """Wait until a GPU has nothing left to do: one thread is about to touch what another's stream has worked on."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Training:
    """A run: parts, counters, rows, evaluation, checkpoints."""

    def __init__(
        self,
        experiment: Experiment,
        spec: Spec,
        folder: RunFolder,
        configuration: Configuration,
        device: torch.device,
        console: Console,
        saved: tuple[int, dict[str, Any]] | None,
        tensorboard: bool = False,
        streams: list[Stream] | None = None,
        exact: bool = False,
    ):
        self.experiment, self.folder, self._configuration, self._console = experiment, folder, configuration, console
        torch.set_num_threads(experiment.run.num_threads)
        keep_large_blocks()
        travelling = Travelling.pack(configuration.text())
        traces = None
        if isinstance(experiment.policy, Planning) and experiment.policy.traces is not None:
            where, seed = folder.path / "traces", seed_for(experiment.seed, "traces")
            traces = TraceWriter(experiment.policy.traces, where, experiment.streams.environment.id, seed)
        again: tuple[int, ...] = ()
        if saved is not None and "actor" not in saved[1] and saved[1]["run"]["env_steps"]:  # they could not be saved
            again = (saved[1]["run"]["env_steps"],)
        self.parts = Parts(experiment, spec, device, travelling, streams, exact, traces, again)
        for name, memory in self.parts.memories.items():
            where = folder.path / "replay" / name
            if isinstance(memory, SequenceMemory):
                memory.attach(Segments(where), where)
            elif isinstance(memory, ReplayMemory):
                memory.attach(Segments(where))
        self.explorer: Explorer | None = None
        if experiment.exploration is not None:
            self.explorer = Explorer(experiment.exploration, self.parts.streams, folder.path / "pictures")
        self._rolling = Rolling()
        self.random_steps = 0  # of random play, for data
        self._counted = 0  # steps that the books know of
        self.solved_at: int | None = None  # env_steps when an episode was first solved, other than by random play
        self.repeats = [0] * len(experiment.schedule)  # how often each stage has been gone through: epochs
        self._learned: dict[str, list[dict[str, Any]]] = {}  # what updates of an epoch reported, by learner
        # Step, actor and books when the epoch under way began; None: there is none.
        self._epoch_begin: tuple[int, dict[str, Any] | None, dict[str, Any]] | None = None
        self._updating: int | None = None  # the place in its epoch of the stage whose updates are under way
        self.epoch_updates = 0  # made in that stage
        self.step = 0  # decisions learned from
        self._frames_per_step = spec.frames_per_step
        self.stop: BaseException | None = None  # why the run should end early
        self.gate = Gate()
        self._patience = experiment.streams.environment.step_deadline_secs + 30  # for a turn to end
        self.actor_busy, self.learner_busy = Busy(since=time.perf_counter()), Busy(since=time.perf_counter())
        self._recorder = Recorder(1 if experiment.by_epochs else experiment.run.log_every)
        self._episodes: collections.deque = collections.deque()  # from the actor's thread to the learner's
        self._wall_before, self._begin = 0.0, time.monotonic()
        self._row_step, self._row_time = 0, time.monotonic()
        self.evaluations = Evaluations(experiment, spec, device, travelling, self.parts.precision)
        keep = self._resume(*saved) if saved else 0
        _settle_gpu()  # the actor's stream goes on from what this one has made
        self._writers: list[Any] = [JsonlWriter(folder.metrics, keep, patient=True)]
        if tensorboard:
            self._writers.append(TensorBoardWriter(folder.path / "tensorboard"))
        self._saving = Saving(
            folder, experiment.run.checkpoint_secs, experiment.run.keep_every, self._evaluated_memories
        )
        self.saves_itself = True  # False where runs that learn together are saved at the same update
        self._process = psutil.Process()
        self._pulse()

    def columns(self) -> list[Columns]:
        """All groups of environments, those of evaluations included: what a watchdog watches."""
        return [*(stream.columns for stream in self.parts.streams), *self.evaluations.columns]

    # -- acting

    def act(self) -> None:
        """One turn of the actor. On a GPU, updates that are under way hold it up only where it wants their weights."""
        actor = self.parts.actor
        group = actor.next_group
        with self.parts.acting(), exits_are_faults(stream.columns for stream in self.parts.streams):
            actor.turn()
        self.count_turn(group)

    def count_turn(self, group: int) -> None:
        """Keep the books of a turn that served a group."""
        actor = self.parts.actor
        made, self._counted = actor.steps - self._counted, actor.steps  # saving may have waited for some of them
        finished = actor.drain_finished()
        self._episodes.extend(finished)
        policy = self.parts.policy
        random = not isinstance(policy, NetworkPolicy) and policy.random
        if random:
            self.random_steps += made
        elif self.solved_at is None and any((one.solved > 0).any() for one in finished):
            self.solved_at = actor.steps
        if self.explorer is not None:
            marks = policy.marks if isinstance(policy, PlannedPolicy) else {}
            self.explorer.look(group, self.parts.streams[group], actor.steps, random, marks)

    def settle(self) -> None:
        """Wait for the answers that the next checkpoint would wait for: a runtime's last act under its watchdog."""
        if self.parts.actor.savable:
            self.parts.actor.settle()

    # -- learning

    @property
    def finished(self) -> bool:
        """Whether all steps have been learned from, or all epochs are over."""
        epochs = self.experiment.epochs
        over = self.experiment.by_epochs and epochs is not None and self.epoch >= epochs
        over |= self.experiment.run.until_solved and self.solved_at is not None
        return over or self.step >= self.experiment.total_steps

    # -- epochs

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return sum(self.repeats)

    def repeats_left(self, index: int) -> bool:
        """Whether a stage is to be gone through once more."""
        stage = self.experiment.schedule[index]
        assert isinstance(stage, Repeat)
        return stage.times is None or self.repeats[index] < stage.times

    def begin_epoch(self) -> None:
        """Remember where the environments stand: until the epoch is over, this is what is saved."""
        if isinstance(self.parts.policy, PlannedPolicy):
            self.parts.policy.epoch = schedule_epoch(self.experiment, self.repeats)
            self.parts.policy.trace_epoch = self.epoch
        self._epoch_begin = (self.step, self.parts.actor.snapshot() if self._savable() else None, self._books())

    @property
    def resumed_at(self) -> int:
        """The place in the epoch of the stage whose updates are under way; 0 if there is none."""
        return 0 if self._updating is None else self._updating

    def begin_updates(self, place: int) -> None:
        """Begin or go on with the updates of the stage at this place of the epoch; what is saved includes each."""
        if self._updating != place:
            self._updating, self.epoch_updates = place, 0

    def end_updates(self) -> None:
        """All updates of the stage are made."""
        self._updating = None

    def _savable(self) -> bool:
        return all(stream.columns.savable for stream in self.parts.streams) and self.parts.actor.steps > 0

    def begin_round(self, stage: Collect) -> None:
        """All columns begin an episode with the next turn."""
        self._round_begun = False
        self.parts.collect_into(stage.memories)
        assert isinstance(self.parts.policy, PlannedPolicy)
        self.parts.policy.random = stage.policy == "random"

    def round_is_over(self) -> bool:
        """Whether every column has finished its episode."""
        if not self._round_begun:  # the turn that resets them is still to come
            self._round_begun = True
            return False
        return all(stream.columns.all_ended for stream in self.parts.streams)  # type: ignore[attr-defined]

    def end_epoch(self, index: int) -> None:
        """Count the epoch, and write its rows."""
        self.repeats[index] += 1
        self.step = self.parts.actor.steps
        learned = self._drain_learned()
        stage = self.experiment.schedule[index]
        assert isinstance(stage, Repeat)
        if stage.forget and not self.repeats_left(index):
            for inner in stage.stages:
                if isinstance(inner, Update):
                    memory = self.parts.memories[self.experiment.learners[inner.learner].memory]
                    assert isinstance(memory, EpisodeMemory)
                    memory.clear()
        if not self.repeats_left(index):
            for name in stage.renew:
                self.parts.renew(name, self.epoch)
        self._epoch_begin = None
        assert isinstance(self.parts.policy, PlannedPolicy)
        decided = self.parts.policy.decisions.drain()
        played = self.step > self.random_steps  # by the planner
        row = planning_row(self.epoch, list(self._episodes), learned, decided, played)
        row |= {f"episode_model/{name}": value for name, value in self.parts.policy.quality.drain().items()}
        if "episode/solved_rate" in row and not self.parts.policy.random:
            rolling = self._rolling.add(self.epoch, row["episode/solved_rate"])
            row |= {f"episode_rolling/{name}": value for name, value in rolling.items()}
        while self._episodes:
            self._recorder.episodes(self._episodes.popleft())
        self._write_train_row(next(iter(learned.values()), {}))
        self._write("planning", row)

    def _drain_learned(self) -> dict[str, dict[str, float]]:
        """What the updates of an epoch reported on average, by learner, and how good what they made is."""
        learned = {name: means(updates) for name, updates in self._learned.items()}
        self._learned = {}
        for name, averages in learned.items():
            use = self.experiment.learners[name]
            memory = self.parts.memories[use.memory]
            assert isinstance(memory, EpisodeMemory)
            averages |= memory.bucket_sizes()
            held_out = memory.held_out(VALIDATION_STEPS) if hasattr(use.learner, "validate") else None
            if held_out is not None:
                found = use.learner.validate(self.parts.learners[name].network, held_out)  # type: ignore[attr-defined]
                averages |= {f"validation_{metric}": float(value) for metric, value in found.items()}
        return learned

    def update(self, name: str) -> bool:
        """One step of a learner if its memory has a batch, and the row that may be due; False if there was no batch."""
        use, learner = self.experiment.learners[name], self.parts.learners[name]
        sample = self.parts.memories[use.memory].sample(learner.updates)
        if sample is None:
            return False
        metrics = learner.update(sample)
        self.parts.publish(self.parts.updates)
        memory = self.parts.memories[use.memory]
        if (priorities := metrics.pop("priorities", None)) is not None:
            assert isinstance(memory, EpisodeMemory)
            memory.set_priorities(priorities.cpu().numpy())
        if memory.replays:  # steps are counted where they are made, and rows are written between epochs
            self._learned.setdefault(name, []).append(metrics)
            return True
        self._recorder.update(metrics, sample.lag)
        self.step += sample.steps
        while self._episodes:
            self._recorder.episodes(self._episodes.popleft())
        if self._recorder.due(self.step) or self._is_last_row:
            self._write_train_row()
        self._pulse()
        return True

    # -- replaying

    def begin_stage(self, stage: Collect) -> None:
        """Let the policy that a stage names act from now on."""
        assert isinstance(self.parts.policy, ActsAtRandom)
        self.parts.policy.random = stage.policy == "random"
        _settle_gpu()  # the actor's stream reads it

    @property
    def acted(self) -> int:
        """Steps that can be learned from. What environments have answered since the last turn is not among them."""
        return max(memory.steps for memory in self.parts.memories.values() if isinstance(memory, REPLAYED))

    def due(self, name: str) -> int:
        """How many updates a learner may make before more has been acted."""
        experiment, learner = self.experiment, self.parts.learners[name]
        ratio, memory = experiment.learners[name].ratio, self.parts.memories[experiment.learners[name].memory]
        if isinstance(memory, SequenceMemory) and not memory.ready():
            return 0
        if ratio is None:
            return ROOM
        # Counted in turns of all columns: seeds that learn together have not all acted as often when one of them meets
        # a reset, which is no step.
        columns = experiment.streams.num_actors
        acted = max(0, min(self.acted, experiment.total_steps) - experiment.warm_up) // columns * columns
        return int(ratio * acted) + experiment.pretraining(name) - learner.updates

    @property
    def acting_is_ahead(self) -> bool:
        """Whether acting is to wait for a learner, which is behind by more than its slack; or for the end."""
        if self.acted < self.experiment.warm_up:
            return False  # what is learned before anything is repeated comes after these
        if self.acted >= self.experiment.total_steps:
            return True
        uses = self.experiment.learners.items()
        return any(use.slack is not None and self.due(name) > use.slack for name, use in uses)

    def draw(self, name: str, count: int) -> Batch:
        """What a learner needs for its next updates."""
        memory = self.parts.memories[self.experiment.learners[name].memory]
        assert isinstance(memory, ReplayMemory)
        return self.parts.learners[name].draw(memory, count)

    def learn(self, name: str, count: int) -> None:
        """So many updates of a learner, `ROOM` at most."""
        memory = self.parts.memories[self.experiment.learners[name].memory]
        self.note_learned(name, self.parts.learners[name].learn(memory, count))

    def note_learned(self, name: str, metrics: dict[str, Any]) -> None:
        """Keep what updates reported, and let the actor have their weights."""
        self._recorder.update(metrics, None)
        if self.experiment.learners[name].publishes and self.parts.learners[name].publishes:
            self.parts.publish(self.parts.updates)
        self._pulse()

    def _pulse(self) -> None:
        """Let a person see that something goes on between two rows; rounds of whole episodes have no steps to tell."""
        if not self.experiment.by_epochs:
            self._console.pulse(self.step, self.wall_s(), self._doing)

    def _doing(self) -> str:
        """How far the evaluation under way is, or else the learners."""
        if self.evaluating:
            return self.evaluations.progress()
        made = {name: learner.updates for name, learner in self.parts.learners.items()}
        before = {name: self.experiment.pretraining(name) for name in made}
        for name, count in made.items():
            if count < before[name]:
                return f"training the {name} beforehand: {count:,} of {before[name]:,} updates"
        return "updates: " + ", ".join(f"{name} {count:,}" for name, count in made.items())

    def count_acted(self) -> None:
        """Bring the books up to what has been acted, and write the row that may be due."""
        self.step = self.acted
        while self._episodes:
            self._recorder.episodes(self._episodes.popleft())
        if self._recorder.due(self.step, without_updates=True) or self._is_last_row:
            self._write_train_row()
        self._pulse()

    @property
    def _is_last_row(self) -> bool:
        """Whether the run is over with steps that no row speaks of."""
        return self.finished and self.step > self._row_step

    def _write_train_row(self, learned: dict[str, float] | None = None) -> None:
        row: dict[str, Any] = {"epoch": self.epoch} if self.experiment.by_epochs else {}
        row |= {**(learned or {}), **self._recorder.row(self.step)}
        now = time.monotonic()
        row["env_steps"] = self.parts.actor.steps
        row["env_steps_without_random"] = row["env_steps"] - self.random_steps
        if self.solved_at is not None:
            row["first_solved_step"] = self.solved_at
            row["first_solved_step_without_random"] = self.solved_at - self.random_steps
        if self.explorer is not None:
            row |= self.explorer.row()
        if self._frames_per_step > 1:
            row["frames"] = self.step * self._frames_per_step
        dropped = sum(memory.dropped for memory in self.parts.memories.values())
        if not self.experiment.by_ratio:
            row["episodes_too_long" if self.experiment.by_epochs else "unrolls_dropped"] = dropped
        row |= self._update_counts()
        if lost := sum(memory.lost for memory in self.parts.memories.values() if isinstance(memory, REPLAYED)):
            row["replay_steps_lost"] = lost
        if isinstance(self.parts.policy, ValuePolicy):
            row |= {**self.parts.policy.row(), "priorities_late": dropped}
        row["episodes_dropped"] = sum(stream.columns.boundary.dropped for stream in self.parts.streams)
        if self.experiment.by_epochs:
            row["search_steps_dropped"] = sum(stream.columns.boundary.unforeseen for stream in self.parts.streams)
        row["values_clipped"] = sum(stream.columns.boundary.clipped for stream in self.parts.streams)
        row["steps_per_second"] = (self.step - self._row_step) / max(1e-9, now - self._row_time)
        if self._frames_per_step > 1:
            row["frames_per_second"] = row["steps_per_second"] * self._frames_per_step
        row["actor_busy"], row["learner_busy"] = self.actor_busy.share(), self.learner_busy.share()
        row["rss_mb"] = self._process.memory_info().rss / 2**20
        if torch.cuda.is_initialized():
            row["gpu_mb"] = torch.cuda.memory_reserved() / 2**20
        self._row_step, self._row_time = self.step, now
        self._write("train", row)
        for name in ("total_loss", "grad_norm", "critic_loss", "model/total_loss"):
            if name in row and not math.isfinite(row[name]):
                raise DivergedError(
                    f"{name} is {row[name]} at step {self.step}: learning has diverged; lower the learning rate"
                )

    def _update_counts(self) -> dict[str, int]:
        """How many updates every learner has made, where they are due by steps."""
        learners = self.parts.learners if self.experiment.by_ratio else {}
        return {f"updates/{name}": learner.updates for name, learner in learners.items()}

    def _write(self, kind: str, values: dict[str, Any], step: int | None = None) -> None:
        row = {"step": self.step if step is None else step, "wall_s": round(self.wall_s(), 3), "kind": kind, **values}
        for writer in self._writers:
            writer.write(row)
        self._console.show(row)

    def wall_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._wall_before + time.monotonic() - self._begin

    # -- evaluation

    def begin_evaluation_if_due(self) -> bool:
        """Start an evaluation with the current weights if the step count has come to it."""
        evaluations = self.evaluations
        if not evaluations.is_due(self.step, planned_epochs(self.experiment, self.repeats), self.finished):
            return False
        with self.gate.held(self._patience):
            # Saved as it is before the evaluation: a run that resumes from it evaluates again and writes the row.
            state = None
            with self._rescuing(), self._saving.guarded(self.step):  # the disk may refuse segments: it is evaluated too
                state = self._state(with_actor=True)
            known, policy = None, evaluations.policy
            if isinstance(policy, PlannedPolicy):
                policy.epoch = schedule_epoch(self.experiment, self.repeats)
                policy.version, policy.trace_epoch = self.parts.updates, self.epoch
                known = self.parts.actor.seats[0].snapshot()
            elif isinstance(self.parts.policy, ValuePolicy):
                known = {"own": self.parts.actor.seats[0].lasting()}  # type: ignore[union-attr]
            networks = [learner.network for learner in self.parts.learners.values()]
            evaluations.begin(Evaluated(self.step, state, self._update_counts()), networks, known)
            _settle_gpu()  # the actor's stream plays on with what this one has prepared
        return True

    def collect_evaluation(self) -> None:
        """Write the row of a finished evaluation; a new best score keeps the state that was evaluated.

        Of one that is not finished, a person is told how far it is.
        """
        if self.evaluating:
            self._console.pulse(self.step, self.wall_s(), self._doing)
        while (result := self.evaluations.finished()) is not None:
            assert self.evaluations.under_way is not None
            step, state, updates = self.evaluations.under_way
            rewards = result.pop("rewards")
            result |= {f"reward/{name}": value for name, value in rewards.items() if name != "train"}
            epoch = {"epoch": self.epoch} if self.experiment.by_epochs else {}
            if cut := result["episodes_truncated"]:
                text = "evaluation at step %d: %d of %d episodes cut off by Evaluation.max_steps or deadline_secs"
                log.warning(text, step, cut, result["episodes"])
            name = self.evaluations.name
            self._write(f"eval/{name}" if name else "eval", {**epoch, **result, **updates}, step)
            if state is not None and self.evaluations.decides_the_best:
                others = {name: value for name, value in rewards.items() if name != "train"}
                with self._rescuing():
                    self._saving.keep_if_best(state, result["return_mean"], others, self.experiment.evaluation.best)
            self.evaluations.under_way = None

    def _evaluated_memories(self) -> dict[str, Any]:
        """The memories of the state that is being evaluated."""
        evaluated = self.evaluations.under_way
        return {} if evaluated is None or evaluated.state is None else evaluated.state.get("memories", {})

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation has been begun and its row is not written yet."""
        return self.evaluations.under_way is not None

    # -- saving

    @property
    def save_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._saving.due

    def save_if_due(self, background: bool) -> None:
        """Save when `checkpoint_secs` have passed, unless others decide when."""
        if self.saves_itself and self.save_due:
            self.save(background=background)

    def save(self, background: bool = False, with_actor: bool = True, required: bool = False) -> None:
        """Write a checkpoint of this moment; in the background, only the copying holds up training.

        A disk that refuses is a warning, since the checkpoint before stands.

        Raises:
          FolderLostError: the run folder is no longer where it was; what could be saved was saved elsewhere.
          SaveError: the disk refused, and this checkpoint is `required`.
        """
        with self._rescuing(with_actor):
            self._save(background, with_actor, required)

    @contextlib.contextmanager
    def _rescuing(self, with_actor: bool = True) -> Iterator[None]:
        """If the run folder is lost, save in its new place or in a new folder, and end the run.

        The FolderLostError that is raised then contains the new place.
        """
        try:
            yield
        except FolderLostError as error:
            try:
                happened = self.folder.find_again()
                for name, memory in self.parts.memories.items():
                    if isinstance(memory, REPLAYED):
                        memory.move(self.folder.path / "replay" / name)
                self._writers[0].move(self.folder.metrics)
                self.folder.write_config(self._configuration.text())
                self._save(False, with_actor, required=True)
            except (OSError, RunFolderError, SaveError) as failed:
                raise FolderLostError(f"{error}; nothing could be saved since: {failed}") from error
            place = self.folder.shown
            raise FolderLostError(
                f"{happened}: saved at step {self.step:,} in {place}; the same command with --output_dir {place} goes "
                "on"
            ) from error

    def _save(self, background: bool, with_actor: bool, required: bool) -> None:
        state = None
        with self.gate.held(self._patience) if with_actor else contextlib.nullcontext():
            with self._saving.guarded(self.step, required):  # segments of the replay are written
                state = self._state(with_actor)
        if state is not None:
            self._saving.write(state, background, required)

    def _state(self, with_actor: bool) -> dict[str, Any]:
        """Everything that must survive. The actor is held; what its stream has begun is waited for, and the copies."""
        _settle_gpu()
        # Episodes under way are played again by a run that goes on; updates are gone on with.
        epoch_begin = self._epoch_begin if self._updating is None else None
        step, actor, books = epoch_begin or (self.step, None, self._books())
        state = self.parts.state(with_actor and (actor is not None or epoch_begin is None), actor)
        _settle_gpu()
        state["run"] = {
            "step": step,
            "repeats": list(self.repeats),
            "wall_s": self.wall_s(),
            "metrics_bytes": self._writers[0].bytes,
            **self.evaluations.snapshot(),
            "env_steps": step if epoch_begin else self.parts.actor.settled_steps,
            "random_steps": books["random_steps"],
            "counted": books["counted"],
            "solved_at": books["solved_at"],
            "rolling": books["rolling"],
            "identity": self._configuration.identity(),
            "values": dict(self._configuration.values),
        }
        state["recorder"] = self._recorder.state_dict()
        if "exploration" in books:
            state["exploration"] = books["exploration"]
        if self._updating is not None:
            state["epoch"] = self._epoch_state()
        return state

    def _epoch_state(self) -> dict[str, Any]:
        """What is known of the epoch under way, between two of its updates."""
        assert isinstance(self.parts.policy, PlannedPolicy)
        return {
            "updating": self._updating,
            "updates": self.epoch_updates,
            "learned": {name: own_copies(updates) for name, updates in self._learned.items()},
            "episodes": [finished._asdict() for finished in self._episodes],
            "decisions": self.parts.policy.decisions.state_dict(),
            "quality": self.parts.policy.quality.state_dict(),
        }

    def _resume_epoch(self, state: dict[str, Any]) -> None:
        """Go on between two updates of an epoch."""
        assert isinstance(self.parts.policy, PlannedPolicy)
        self._updating, self.epoch_updates = state["updating"], state["updates"]
        self._learned = {name: list(updates) for name, updates in state["learned"].items()}
        self._episodes.extend(Finished(**finished) for finished in state["episodes"])
        self.parts.policy.decisions.load_state_dict(state["decisions"])
        self.parts.policy.quality.load_state_dict(state["quality"])

    def _books(self) -> dict[str, Any]:
        """What is counted as environments are stepped."""
        explored = {} if self.explorer is None else {"exploration": self.explorer.snapshot()}
        counted = {"random_steps": self.random_steps, "counted": self._counted, "solved_at": self.solved_at}
        return {**counted, "rolling": self._rolling.snapshot(), **explored}

    def _resume(self, step: int, state: dict[str, Any]) -> int:
        """Go on from a checkpoint; returns how many bytes of metrics.jsonl belong to it."""
        exact = self.parts.load_state(state)
        run = state["run"]
        self.step, self._wall_before = run["step"], run["wall_s"]
        self.repeats = list(run.get("repeats", self.repeats))
        self.evaluations.restore(run)
        self.random_steps, self.solved_at = run.get("random_steps", 0), run.get("solved_at")
        self._counted = run.get("counted", run["env_steps"])
        self._rolling.restore(run.get("rolling") or Rolling().snapshot())
        if self.explorer is not None and "exploration" in state:
            self.explorer.restore(state["exploration"])
        self._row_step = self.step
        self._recorder.load_state_dict(state["recorder"], self.step)
        if not exact:
            self.parts.streams[0].steps = run["env_steps"]
        elif "epoch" in state:
            self._resume_epoch(state["epoch"])
        log.info("resumed at step %d%s", step, "" if exact else "; the environments begin new episodes")
        return run["metrics_bytes"]

    def close(self) -> None:
        """End everything that is held."""
        self._saving.join()
        if self.explorer is not None:
            self.explorer.draw()
        for writer in self._writers:
            writer.close()
        self.evaluations.close()
        self.parts.close()
