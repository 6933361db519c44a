"""A run that is alive in one process: an acting side, a learning side, and around them counters, log and checkpoints.

A loop (`runtime/loops`) decides what is next, a runtime carries it out by calling `act`, `learn` and `tidy` parts here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch

from packtrain.config import Configuration, Travelling
from packtrain.devices.allocator import keep_large_blocks
from packtrain.envs.columns import Columns
from packtrain.envs.stream import Stream
from packtrain.errors import FolderLostError, RunFolderError, SaveError
from packtrain.interfaces import UpdateResult
from packtrain.metrics.console import Console
from packtrain.runtime.acting import settle_gpu
from packtrain.runtime.counters import Counters
from packtrain.runtime.evaluations import Evaluated, Evaluations
from packtrain.runtime.experiment import Experiment, Repeat
from packtrain.runtime.explorer import Explorer
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.gate import Gate
from packtrain.runtime.learning import nothing_to_learn_from
from packtrain.runtime.messages import Report
from packtrain.runtime.metrics_log import MetricsLog
from packtrain.runtime.parts import build_sides
from packtrain.runtime.saving import Saving
from packtrain.types import Spec

log = logging.getLogger("packtrain")


def planned_epochs(experiment: Experiment, repeats: list[int]) -> int:
    """Return the number of epochs in which the planner played; random data and pre-training do not count."""
    stages = zip(experiment.schedule, repeats, strict=True)
    return sum(count for stage, count in stages if isinstance(stage, Repeat) and stage.plans)


def schedule_epoch(experiment: Experiment, repeats: list[int]) -> int:
    """Return the epoch that parameter schedules see: planned epochs that learned, or all planned where none learn."""
    planned = [(i, stage) for i, stage in enumerate(experiment.schedule) if isinstance(stage, Repeat) and stage.plans]
    learning = [i for i, stage in planned if stage.learns]
    return sum(repeats[i] for i in learning or [i for i, _ in planned])


class Training:
    """The parts of a run, and what needs several of them: one step, one update, one evaluation, one checkpoint."""

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
        self.experiment, self.folder, self._configuration = experiment, folder, configuration
        torch.set_num_threads(experiment.run.num_threads)
        keep_large_blocks()
        travelling = Travelling.pack(configuration.text())
        again: tuple[int, ...] = ()
        if saved is not None and "actor" not in saved[1] and saved[1]["run"]["env_steps"]:  # they could not be saved
            again = (saved[1]["run"]["env_steps"],)
        self.acting, self.learning = build_sides(
            experiment, spec, device, travelling, streams, exact, folder.path / "traces", again
        )
        for name, memory in self.learning.memories.items():
            memory.attach(folder.path / "replay" / name)
        if experiment.exploration is not None:
            self.acting.explorer = Explorer(experiment.exploration, self.acting.streams, folder.path / "pictures")
        self.counters = Counters(len(experiment.schedule))
        self.log = MetricsLog(1 if experiment.by_epochs else experiment.run.log_every, spec.frames_per_step, console)
        self.stop: BaseException | None = None  # why the run should end early
        self.gate = Gate()
        self._patience = experiment.streams.environment.step_deadline_secs + 30  # for an actor step to end
        # What is saved while an epoch is under way, since episodes cannot be saved: step, actor and counters before it.
        self.safe_point: tuple[int, dict[str, Any] | None, dict[str, Any]] | None = None
        # Updates of an epoch that are under way: the place of their stage in the epoch, and how many are made. Between
        # two of them a run is saved as it is.
        self.epoch_updates: tuple[int, int] | None = None
        self.evaluations = Evaluations(experiment, spec, device, travelling, self.learning.precision)
        keep = self._resume(*saved) if saved else 0
        settle_gpu()  # the actor's stream goes on from what this one has made
        self.log.open(folder.metrics, keep, folder.path / "tensorboard" if tensorboard else None)
        self._saving = Saving(
            folder, experiment.run.checkpoint_secs, experiment.run.keep_every, self._evaluated_memories
        )
        self.saves_itself = True  # False where runs that learn together are saved at the same update
        self.pulse()

    def columns(self) -> list[Columns]:
        """Return all groups of environments, those of evaluations included, for a watchdog."""
        return [*self.acting.columns, *self.evaluations.columns]

    # -- acting and learning

    def act(self) -> None:
        """Serve one group of environments. On a GPU, updates in progress delay it only where it needs their weights."""
        self.note_report(self.acting.act())

    def note_report(self, report: Report) -> None:
        """Count what an actor step added."""
        self.counters.add(report)
        self.log.episodes.extend(report.finished)

    def settle(self) -> None:
        """Wait for the answers that the next checkpoint would wait for: a runtime's last act under its watchdog."""
        self.acting.settle()

    def learn(self, name: str, count: int = 1) -> bool:
        """Make updates of a learner, `max_updates` at most; return False if there was no batch."""
        result = self.learning.learn(name, count)
        if result is None:
            if self.experiment.by_ratio:
                raise nothing_to_learn_from()
            return False
        self.note_update(name, result)
        return True

    def note_update(self, name: str, result: UpdateResult) -> None:
        """Publish an update's weights, count its steps and keep its metrics."""
        self.learning.publish_after(name)
        if self.experiment.by_epochs:
            self.log.add_epoch_update(name, result)
            return
        self.log.add_update(result)
        if not self.experiment.by_ratio:  # else steps are counted as they are acted
            self.counters.step += result.steps
            self.write_row_if_due(without_updates=False)
        self.pulse()

    @property
    def acted(self) -> int:
        """Steps in the replay memories. What environments have answered since the last actor step is not among them."""
        return max(memory.steps for memory in self.learning.memories.values())

    @property
    def step(self) -> int:
        """The run's step count."""
        return self.counters.step

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self.counters.epoch

    @property
    def finished(self) -> bool:
        """Whether all steps have been made, all epochs are over, or the task is solved and that ends the run."""
        experiment, epochs = self.experiment, self.experiment.epochs
        over = experiment.by_epochs and epochs is not None and self.epoch >= epochs
        over |= experiment.run.until_solved and self.counters.solved_at is not None
        return over or self.step >= experiment.total_steps

    @property
    def goes_on(self) -> bool:
        """Whether the run is neither finished nor asked to stop."""
        return self.stop is None and not self.finished

    # -- rows

    def count_acted(self) -> None:
        """Bring the step count up to what has been acted, and write the row that may be due."""
        if self.experiment.by_ratio:
            self.counters.step = self.acted
            self.write_row_if_due(without_updates=True)
            self.pulse()

    def write_row_if_due(self, without_updates: bool) -> None:
        """Write a row at its step, and at the end of the run for the steps that no row has counted."""
        self.log.record_episodes()
        is_last = self.finished and self.step > self.log.row_step
        if is_last or self.log.recorder.due(self.step, without_updates):
            self.write_train_row()

    def write_train_row(self, learned: dict[str, float] | None = None) -> None:
        """Write the averages since the last row."""
        counters, experiment = self.counters, self.experiment
        first = {"epoch": self.epoch} if experiment.by_epochs else {}
        row: dict[str, Any] = {"first": first | (learned or {})}
        env_steps = self.acting.actor.steps
        row |= {"env_steps": env_steps, "env_steps_without_random": env_steps - counters.random_steps}
        if counters.solved_at is not None:
            row["first_solved_step"] = counters.solved_at
            row["first_solved_step_without_random"] = counters.solved_at - counters.random_steps
        dropped = sum(memory.dropped for memory in self.learning.memories.values())
        if not experiment.by_ratio:
            row["episodes_too_long" if experiment.by_epochs else "unrolls_dropped"] = dropped
        row |= self._update_counts() | self.acting.row()
        if not experiment.by_epochs:
            del row["search_steps_dropped"]  # nothing is searched
        if lost := sum(memory.lost for memory in self.learning.memories.values()):
            row["replay_steps_lost"] = lost
        if any(learner.saves_acting_weights for learner in self.learning.learners.values()):
            row["priorities_late"] = dropped
        self.log.train_row(self.step, row)

    def _update_counts(self) -> dict[str, int]:
        """Return how many updates each learner has made, where they follow steps."""
        learners = self.learning.learners if self.experiment.by_ratio else {}
        return {f"updates/{name}": learner.updates for name, learner in learners.items()}

    def pulse(self) -> None:
        """Show that the run goes on between two rows; rounds of whole episodes have no steps to show."""
        if not self.experiment.by_epochs:
            self.log.console.pulse(self.step, self.log.wall_s(), self._doing)

    def _doing(self) -> str:
        """Say how far the current evaluation is, or else the learners."""
        if self.evaluating:
            return self.evaluations.progress()
        made = {name: learner.updates for name, learner in self.learning.learners.items()}
        before = {name: self.experiment.pretraining(name) for name in made}
        for name, count in made.items():
            if count < before[name]:
                return f"training the {name} beforehand: {count:,} of {before[name]:,} updates"
        return "updates: " + ", ".join(f"{name} {count:,}" for name, count in made.items())

    # -- evaluation

    def begin_evaluation_if_due(self) -> bool:
        """Start an evaluation with the current weights if the step count has come to it."""
        evaluations = self.evaluations
        if not evaluations.is_due(self.step, planned_epochs(self.experiment, self.counters.repeats), self.finished):
            return False
        with self.gate.held(self._patience):
            # Saved as it is before the evaluation: a run that resumes from it evaluates again and writes the row.
            state = None
            with self._rescuing(), self._saving.guarded(self.step):  # the disk may refuse segments: it is evaluated too
                state = self._state(with_actor=True)
            epoch = schedule_epoch(self.experiment, self.counters.repeats)
            for policy in evaluations.policies:
                policy.begin_epoch(epoch, self.epoch, self.learning.updates)
            known = self.acting.actor.seats[0].knowledge()
            networks = [learner.network for learner in self.learning.learners.values()]
            evaluations.begin(Evaluated(self.step, state, self._update_counts()), networks, known)
            settle_gpu()  # the actor's stream plays on with what this one has prepared
        return True

    def collect_evaluation(self) -> None:
        """Write the row of a finished evaluation; a new best score keeps the state that was evaluated.

        Of one that is not finished, the console shows how far it is.
        """
        if self.evaluating:
            self.log.console.pulse(self.step, self.log.wall_s(), self._doing)
        while (result := self.evaluations.finished()) is not None:
            assert self.evaluations.under_way is not None
            step, state, updates = self.evaluations.under_way
            rewards = result.pop("rewards")
            result |= {f"reward/{name}": value for name, value in rewards.items() if name != "train"}
            epoch = {"epoch": self.epoch} if self.experiment.by_epochs else {}
            if cut := result["episodes_truncated"]:
                text = "evaluation at step %d: %d of %d episodes cut off by Evaluation.max_steps or deadline_secs"
                log.warning(text, step, cut, result["episodes"])
            label = self.evaluations.name
            self.log.write(f"eval/{label}" if label else "eval", {**epoch, **result, **updates}, step)
            if state is not None and self.evaluations.decides_the_best:
                others = {name: value for name, value in rewards.items() if name != "train"}
                with self._rescuing():
                    self._saving.keep_if_best(state, result["return_mean"], others, self.experiment.evaluation.best)
            self.evaluations.under_way = None

    def _evaluated_memories(self) -> dict[str, Any]:
        """Return the memories of the state that is being evaluated."""
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
                for name, memory in self.learning.memories.items():
                    memory.move(self.folder.path / "replay" / name)
                self.log.move(self.folder.metrics)
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
        """Return everything that must survive. The actor is held; its CUDA stream is waited for, and the copies."""
        settle_gpu()
        state = self.learning.state()
        # Episodes in progress are played again after a resume; an epoch's updates go on where they stand.
        safe_point = self.safe_point if self.epoch_updates is None else None
        step, actor, counted = safe_point or (self.step, None, self.acting_state())
        if with_actor and safe_point is None:
            actor = self.acting.actor.snapshot()
        if with_actor and actor is not None:
            state["actor"] = actor
        elif lasting := self.acting.lasting():
            state["seats"] = lasting
        if memories := self.learning.memory_states(with_episodes="actor" in state):
            state["memories"] = memories
        settle_gpu()
        state["run"] = {
            "step": step,
            "repeats": list(self.counters.repeats),
            "wall_s": self.log.wall_s(),
            "metrics_bytes": self.log.bytes,
            **self.evaluations.snapshot(),
            "env_steps": step if safe_point else self.acting.actor.settled_steps,
            "identity": self._configuration.identity(),
            "values": dict(self._configuration.values),
            **{name: value for name, value in counted.items() if name != "exploration"},
        }
        state["recorder"] = self.log.recorder.state_dict()
        if "exploration" in counted:
            state["exploration"] = counted["exploration"]
        if self.epoch_updates is not None:
            place, made = self.epoch_updates
            episodes = [finished._asdict() for finished in self.log.episodes]
            state["epoch"] = {"updating": place, "updates": made, "learned": self.log.epoch_updates()}
            state["epoch"] |= {"episodes": episodes, **self.acting.policy.epoch_state()}
        return state

    def acting_state(self) -> dict[str, Any]:
        """Return what is counted as environments are stepped."""
        explorer = self.acting.explorer
        return self.counters.acting_state() | ({} if explorer is None else {"exploration": explorer.snapshot()})

    def _resume(self, step: int, state: dict[str, Any]) -> int:
        """Go on from a checkpoint; return how many bytes of metrics.jsonl belong to it."""
        self.learning.restore(state, same_episodes="actor" in state)
        exact = self.acting.restore(state)
        run = state["run"]
        self.counters.restore(run)
        self.evaluations.restore(run)
        if self.acting.explorer is not None and "exploration" in state:
            self.acting.explorer.restore(state["exploration"])
        self.log.restore(state["recorder"], self.step, run["wall_s"])
        if not exact:
            self.acting.streams[0].steps = run["env_steps"]
        elif "epoch" in state:
            epoch = state["epoch"]
            self.epoch_updates = epoch["updating"], epoch["updates"]
            self.log.restore_epoch(epoch["learned"], epoch["episodes"])
            self.acting.policy.load_epoch_state(epoch)
        log.info("resumed at step %d%s", step, "" if exact else "; the environments begin new episodes")
        return run["metrics_bytes"]

    def close(self) -> None:
        """Close files and environments, and draw the last picture."""
        self._saving.join()
        if self.acting.explorer is not None:
            self.acting.explorer.draw()
        self.log.close()
        self.evaluations.close()
        self.acting.close()
