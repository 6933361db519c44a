"""A training run: an acting side, a learning side, counters, log, evaluations and checkpoints.

A loop (`runtime/loops`) decides what is due next, and a runtime carries it out by calling `act` and `learn` here.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Any

import torch

from packtrain.accelerate.allocator import keep_large_blocks
from packtrain.config import Configuration, Travelling
from packtrain.envs.stream import Stream
from packtrain.envs.vector_env import VectorEnv
from packtrain.interfaces import Preloads, UpdateResult
from packtrain.metrics.console import Console
from packtrain.metrics.sinks import About, Sink
from packtrain.runtime import run_state
from packtrain.runtime.acting import Acting, ActingOptions, build_sides, settle_gpu
from packtrain.runtime.central_acting import central_acting
from packtrain.runtime.counters import Counters
from packtrain.runtime.divergence import Divergence
from packtrain.runtime.evaluation_scheduler import Evaluated, Evaluations, Given
from packtrain.runtime.experiment import Experiment, Repeat
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.learner_group import LearnerGroup, open_group
from packtrain.runtime.learning import LearningSide, build_learning, nothing_to_learn_from
from packtrain.runtime.messages import Remote, Report
from packtrain.runtime.metrics_log import MetricsLog
from packtrain.runtime.pause import ActorPause
from packtrain.runtime.regrouping import saved_layout
from packtrain.runtime.remote_setup import remote_acting
from packtrain.runtime.saver import Saver
from packtrain.types import Row, Spec

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


@dataclass(frozen=True)
class RunSetup:
    """Settings and folder that a run is built from."""

    experiment: Experiment
    spec: Spec  # of its environment
    folder: RunFolder  # where it is written to
    configuration: Configuration  # what the experiment was built from
    device: torch.device  # of policy, networks and memories
    console: Console  # shows rows to a person
    sinks: tuple[Sink, ...] = ()  # where rows go beside metrics.jsonl
    exact: bool = False  # a serial run: choose nothing by measured speed, so that the same run gives the same numbers
    remote: Remote | None = None  # the processes that act; None: a thread of this one
    learners: int = 1  # processes among which each batch is divided, this one included
    trace: int = 0  # episodes whose searches are recorded
    demonstrations: tuple[Row, ...] = ()  # of one environment, for the replay of a run that begins


class Training:
    """The components of a run, and operations on several of them: an actor step, an update, a row, an evaluation."""

    def __init__(self, setup: RunSetup, saved: tuple[int, dict[str, Any]] | None, streams: list[Stream] | None = None):
        """Build all components, and restore a checkpoint if there is one; environments are not stepped.

        Args:
          setup: what to build.
          saved: the step and the state to go on from; None: begin.
          streams: environments that are open already, in groups of the experiment's sizes; None: open them.
        """
        self.setup, self.experiment = setup, setup.experiment
        self.device, self.folder = setup.device, setup.folder
        # whether acting and learning run at the same time
        self.overlaps = not setup.exact and setup.experiment.can_overlap
        self.counters = Counters(len(setup.experiment.schedule))
        self.stop: BaseException | None = None  # reason to end the run early
        self.gate = ActorPause()
        # time limit for an actor step to end
        self.patience = setup.experiment.streams.environment.step_deadline_secs + 30
        # State before the current epoch, saved during it because episodes cannot be saved: step, actor and counters.
        self.safe_point: tuple[int, dict[str, Any] | None, dict[str, Any]] | None = None
        # Unfinished updates of an epoch: index of their stage in the epoch, and number made. Between two updates the
        # current state is saved.
        self.epoch_updates: tuple[int, int] | None = None
        torch.set_num_threads(setup.experiment.run.num_threads)
        keep_large_blocks()
        travelling = Travelling.pack(setup.configuration.text())
        self.acting, self.learning = self._build_sides(saved, streams, travelling)
        self._group: LearnerGroup | None = None
        try:
            learners, precision = self.learning.learners, self.learning.precision
            self._group = open_group(setup.learners, self.experiment, setup.spec, learners, setup.device, precision)
            self._begin(saved, travelling)
        except BaseException:
            self._close_processes()
            raise

    def _build_sides(
        self, saved: tuple[int, dict[str, Any]] | None, streams: list[Stream] | None, travelling: Travelling
    ) -> tuple[Acting, LearningSide]:
        """Return the acting side and the learning side, connected."""
        setup, experiment = self.setup, self.experiment
        again: tuple[int, ...] = ()
        if saved is not None and saved[1]["run"]["env_steps"]:
            again = (saved[1]["run"]["env_steps"],)
        # A replay keeps its groups if they contain the same environments.
        kept = saved[1]["run"].get("groups") if saved is not None and experiment.by_ratio else None
        if kept is not None and (sum(kept) != experiment.streams.num_actors or experiment.streams.groups is not None):
            kept = None
        sizes = None if kept is None else tuple(kept)
        layout = None if saved is None else saved_layout(saved[1])
        imports = tuple(setup.configuration.imports)
        lives = () if saved is None else tuple(saved[1]["run"].get("lives", ()))
        parts = (travelling, setup.exact, setup.folder.path, again, layout)
        options = ActingOptions(*parts, sizes=sizes, imports=imports, lives=lives, trace=setup.trace)
        if setup.remote is None:
            return build_sides(experiment, setup.spec, setup.device, options, streams)
        acting: Acting
        if setup.remote.inference == "learner":
            acting = central_acting(setup.remote, experiment, setup.spec, setup.device, options)
        else:
            acting = remote_acting(setup.remote, experiment, setup.spec, options, synchronous=not self.overlaps)
        group_sizes, context = acting.group_sizes, acting.context
        learning = build_learning(experiment, setup.spec, setup.device, group_sizes, context, setup.exact)
        acting.connect(learning.memories, learning.weights if experiment.learners else None)
        acting.stopping = lambda: self.stop is not None
        return acting, learning

    def _begin(self, saved: tuple[int, dict[str, Any]] | None, travelling: Travelling) -> None:
        """Build the components around the two sides, and restore a checkpoint if there is one."""
        setup, experiment, folder = self.setup, self.experiment, self.folder
        for name, memory in self.learning.memories.items():
            memory.attach(folder.path / "replay" / name)
        every = 1 if experiment.by_epochs else experiment.run.log_every
        self.log = MetricsLog(every, setup.spec.frames_per_step, setup.console)
        parts = (experiment, setup.spec, setup.device, travelling, self.learning.precision)
        self.evaluations = Evaluations(*parts, self.acting.open_player)
        keep = run_state.restore(self, *saved) if saved else 0
        if saved is None and setup.demonstrations:
            for memory in self.learning.memories.values():
                if isinstance(memory, Preloads):
                    memory.preload(setup.demonstrations)
        settle_gpu()  # the actor's stream goes on from what this one has made
        self.learning.divergence = Divergence(experiment.run.on_diverged, folder.path / "diverged")
        settings = dict(setup.configuration.values)
        about = About(str(folder.shown), folder.path, setup.configuration.text(), settings)
        self.log.open(folder.metrics, keep, setup.sinks, about)
        self.saver = Saver(self)
        self.pulse()

    def columns(self) -> list[VectorEnv]:
        """Return all groups of environments, those of evaluations included, for a watchdog."""
        return [*self.acting.columns, *self.evaluations.columns]

    # -- acting and learning

    def act(self, patience: float | None = None) -> None:
        """Make an actor step. On a GPU, updates in progress delay it only where it needs their weights.

        Args:
          patience: seconds to wait for a result of other processes; None: until there is one.
        """
        self.note_report(self.acting.act(patience))

    def note_report(self, report: Report) -> None:
        """Count the outcome of an actor step."""
        self.counters.add(report)
        self.log.episodes.extend(report.finished)

    def settle(self) -> None:
        """Wait for pending steps, as the last action of a runtime under its watchdog."""
        self.acting.settle()

    def learn(self, name: str, count: int = 1) -> bool:
        """Make updates of a learner, at most `max_updates`; return False if there was no batch."""
        result = self.learning.learn(name, count)
        if result is None:
            if self.experiment.by_ratio:
                raise nothing_to_learn_from()
            return False
        self.note_update(name, result)
        return True

    def note_update(self, name: str, result: UpdateResult) -> None:
        """Publish an update's weights, count its steps and record its metrics."""
        self.learning.publish_after(name)
        if self.experiment.by_epochs:
            self.log.add_epoch_update(name, result)
            return
        self.log.add_update(result)
        if not self.experiment.by_ratio:  # otherwise steps are counted when they are acted
            self.counters.step += result.steps
            self.write_row_if_due(without_updates=False)
        self.pulse()

    @property
    def acted(self) -> int:
        """Number of steps in the replay memories, without those that arrived since the last actor step."""
        return max(memory.steps for memory in self.learning.memories.values())

    @property
    def step(self) -> int:
        """The run's step count."""
        return self.counters.step

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self.counters.epoch

    @property
    def finished(self) -> bool:
        """Whether all steps or epochs have been made, or a solved task ends the run."""
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
        """Update the step count, and write a metric row if one is due."""
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
        row |= {
            "env_steps": counters.env_steps,
            "env_steps_without_random": counters.env_steps - counters.random_steps,
        }
        if counters.solved_at is not None:
            row["first_solved_step"] = counters.solved_at
            row["first_solved_step_without_random"] = counters.solved_at - counters.random_steps
        dropped = sum(memory.dropped for memory in self.learning.memories.values())
        if not experiment.by_ratio:
            row["episodes_too_long" if experiment.by_epochs else "unrolls_dropped"] = dropped
        with self.gate.held(self.patience) if self.acting.row_needs_hold else contextlib.nullcontext():
            row |= self._update_counts() | self.acting.row()
        if not experiment.by_epochs:
            del row["search_steps_dropped"]  # nothing is searched
        if lost := sum(memory.lost for memory in self.learning.memories.values()):
            row["replay_steps_lost"] = lost
        if any(learner.saves_acting_weights for learner in self.learning.learners.values()):
            row["priorities_late"] = dropped
        if self.learning.divergence.skipped:
            row["updates_skipped"] = self.learning.divergence.skipped
        if self._group is not None:
            row |= self._group.row()
        self.log.train_row(self.step, row)

    def _update_counts(self) -> dict[str, int]:
        """Return how many updates each learner has made, where updates follow steps."""
        learners = self.learning.learners if self.experiment.by_ratio else {}
        return {f"updates/{name}": learner.updates for name, learner in learners.items()}

    def report_checkpoints(self) -> None:
        """Notify the sinks of checkpoints that have been written."""
        while self.saver.written:
            step = self.saver.written.popleft()
            self.log.checkpoint(step, self.folder.checkpoints / str(step))

    def pulse(self) -> None:
        """Show progress between two rows; rounds of whole episodes have no step count to show."""
        self.report_checkpoints()
        if not self.experiment.by_epochs:
            self.log.console.pulse(self.step, self.log.wall_s(), self._doing)

    def _doing(self) -> str:
        """Return the progress of the current evaluation, or else of the learners."""
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
        """Start an evaluation with the current weights if it is due at this step."""
        evaluations = self.evaluations
        if not evaluations.is_due(self.step, planned_epochs(self.experiment, self.counters.repeats), self.finished):
            return False
        with self.gate.held(self.patience):
            # State before the evaluation: a run that resumes from it repeats the evaluation and writes the row.
            state = self.saver.state_to_evaluate()
            epoch = schedule_epoch(self.experiment, self.counters.repeats)
            networks = [learner.network for learner in self.learning.learners.values()]
            known = self.acting.evaluation_state()
            given = Given(networks, known, epoch, self.epoch, self.learning.updates)
            evaluations.begin(Evaluated(self.step, state, self._update_counts()), given)
            settle_gpu()  # the actor's CUDA stream uses tensors prepared on this one
        return True

    def collect_evaluation(self) -> None:
        """Write the row of a finished evaluation; a new best score saves the evaluated state.

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
                self.saver.keep_if_best(state, result["return_mean"], others, self.experiment.evaluation.best)
            self.evaluations.under_way = None

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation has begun and its row is not written yet."""
        return self.evaluations.under_way is not None

    # -- start and end

    def acting_state(self) -> dict[str, Any]:
        """Return the counters of environment steps."""
        return self.counters.acting_state() | self.acting.exploration_state()

    def close(self) -> None:
        """Close files and environments."""
        self.saver.join()
        self.log.close()
        self.evaluations.close()
        self._close_processes()

    def _close_processes(self) -> None:
        """Close learner processes and the environments."""
        if self._group is not None:
            self._group.close()
        self.acting.close()
