"""A training run: an acting side, a learning side, counters, log, evaluations and checkpoints.

A loop (`runtime/loops`) decides what is due next, and a runtime carries it out by calling `act` and `learn` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from packtrain.accelerate.allocator import keep_large_blocks
from packtrain.accelerate.side_stream import settle_gpu
from packtrain.config import Configuration
from packtrain.envs.stream import Stream
from packtrain.envs.vector_env import VectorEnv
from packtrain.interfaces import Preloads
from packtrain.metrics.console import Console
from packtrain.metrics.sinks import About, Sink
from packtrain.runtime import run_state
from packtrain.runtime.acting import Acting, ActingOptions
from packtrain.runtime.central_acting import central_acting
from packtrain.runtime.divergence import Divergence
from packtrain.runtime.evaluation_scheduler import Evaluations
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.learner_group import LearnerGroup, open_group
from packtrain.runtime.learning import LearningSide, build_learning, nothing_to_learn_from
from packtrain.runtime.local_acting import build_sides
from packtrain.runtime.messages import Remote
from packtrain.runtime.metrics_log import MetricsLog
from packtrain.runtime.order_log import open_order
from packtrain.runtime.pause import ActorPause
from packtrain.runtime.progress import Progress
from packtrain.runtime.regrouping import saved_layout
from packtrain.runtime.remote_setup import remote_acting
from packtrain.runtime.saver import Saver
from packtrain.runtime.train_rows import TrainRows
from packtrain.types import Row, Spec


@dataclass(frozen=True)
class RunSetup:
    """Settings and folder that a run is built from."""

    experiment: Experiment
    spec: Spec  # of its environment
    folder: RunFolder  # where it is written to
    configuration: Configuration  # what the experiment was built from
    device: torch.device  # of policy, networks and memories
    console: Console  # shows rows to a person
    sinks: tuple[Sink, ...] = ()  # receivers of rows besides metrics.jsonl
    exact: bool = False  # a serial run: choose nothing by measured speed, so that the same run gives the same numbers
    remote: Remote | None = None  # the processes that act; None: a thread of this one
    learners: int = 1  # processes among which each batch is divided, this one included
    trace: int = 0  # episodes whose searches are recorded
    demonstrations: tuple[Row, ...] = ()  # of one environment, for the replay of a run that begins


class Training:
    """The components of a run: two sides, counters, rows, evaluations and checkpoints. Loops get those they need."""

    def __init__(self, setup: RunSetup, saved: tuple[int, dict[str, Any]] | None, streams: list[Stream] | None = None):
        """Build all components, and restore a checkpoint if there is one; environments are not stepped.

        Args:
          setup: what to build.
          saved: the step and the state to resume from; None: a new run.
          streams: environments that are open already, in groups of the experiment's sizes; None: open them.
        """
        self.setup, self.experiment = setup, setup.experiment
        self.device, self.folder = setup.device, setup.folder
        # whether acting and learning run at the same time
        self.overlaps = not setup.exact and setup.experiment.can_overlap
        self.gate = ActorPause(setup.experiment.streams.environment.step_deadline_secs + 30)
        torch.set_num_threads(setup.experiment.run.num_threads)
        keep_large_blocks()
        self.acting, self.learning = self._build_sides(saved, streams)
        self.progress = Progress(self.experiment, self.learning.memories)
        self.acting.stopping = lambda: self.progress.stop is not None
        self._group: LearnerGroup | None = None
        try:
            learners, precision = self.learning.learners, self.learning.precision
            self._group = open_group(setup.learners, self.experiment, setup.spec, learners, setup.device, precision)
            self._begin(saved)
        except BaseException:
            self._close_processes()
            raise

    def _build_sides(
        self, saved: tuple[int, dict[str, Any]] | None, streams: list[Stream] | None
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
        parts = (setup.exact, setup.folder.path, again, layout)
        options = ActingOptions(*parts, sizes=sizes, imports=imports, lives=lives, trace=setup.trace)
        if setup.remote is None:
            return build_sides(experiment, setup.spec, setup.device, options, streams)
        acting: Acting
        if setup.remote.inference == "learner":
            acting = central_acting(setup.remote, experiment, setup.spec, setup.device, options)
        else:
            acting = remote_acting(setup.remote, experiment, setup.spec, options, synchronous=not self.overlaps)
        group_sizes, context = acting.group_sizes, acting.context
        own = (experiment, setup.spec, setup.device, group_sizes, context, setup.exact)
        learning = build_learning(*own, acting.build_memory)
        acting.connect(learning.memories, learning.weights if experiment.learners else None)
        return acting, learning

    def _begin(self, saved: tuple[int, dict[str, Any]] | None) -> None:
        """Build the components around the two sides, and restore a checkpoint if there is one."""
        setup, experiment, folder = self.setup, self.experiment, self.folder
        for name, memory in self.learning.memories.items():
            memory.attach(folder.path / "replay" / name)
        every = 1 if experiment.by_epochs else experiment.run.log_every
        self.log = MetricsLog(every, setup.spec.frames_per_step, setup.console)
        played = (experiment, setup.spec, setup.device, self.learning.precision)
        self.evaluations = Evaluations(*played, self.acting.open_player)
        counted = (experiment, self.progress, self.acting, self.learning)
        self.rows = TrainRows(*counted, self.log, self.gate, self._group)
        keep = run_state.restore(self, *saved) if saved else 0
        if saved is None and setup.demonstrations:
            network = next(iter(self.learning.learners.values())).network
            for memory in self.learning.memories.values():
                if isinstance(memory, Preloads):
                    memory.preload(setup.demonstrations, partial(experiment.policy.demonstrated_state, network))
        settle_gpu()  # the actor's stream goes on from what this one has made
        self.order = open_order(self, resumes=saved is not None)
        if self.order is not None:
            self.learning.event = self.order.event
        diverged = folder.path / "diverged"
        self.learning.divergence = Divergence(experiment.run.on_diverged, diverged, self.learning.event)
        settings = dict(setup.configuration.values)
        about = About(str(folder.shown), folder.path, setup.configuration.text(), settings)
        self.log.open(folder.metrics, keep, setup.sinks, about)
        self.saver = Saver(self)
        self.pulse()

    def columns(self) -> list[VectorEnv]:
        """Return all groups of environments, those of evaluations included, for a watchdog."""
        return [*self.acting.columns, *self.evaluations.columns]

    def act(self, patience: float | None = None) -> None:
        """Make an actor step. On a GPU, updates in progress delay it only where it needs their weights.

        Args:
          patience: seconds to wait for a result of other processes; None: until there is one.
        """
        with self.learning.event("act"):
            report = self.acting.act(patience)
        self.rows.note_report(report)

    def learn(self, name: str, count: int = 1) -> bool:
        """Make updates of a learner, at most `max_updates`; return False if there was no batch."""
        result = self.learning.learn(name, count)
        if result is None:
            if self.experiment.by_ratio:
                raise nothing_to_learn_from()
            return False
        if self.learning.alarm is not None:
            self.progress.ended_by_alarm = self.learning.alarm.ended
        self.rows.note_update(name, result)
        return True

    def pulse(self) -> None:
        """Show progress between two rows; rounds of whole episodes have no step count to show."""
        self.saver.report_checkpoints()
        if not self.experiment.by_epochs:
            self.log.console.pulse(self.progress.step, self.log.wall_s(), self._doing)

    def _doing(self) -> str:
        """Return the progress of the current evaluation, or else of the learners."""
        if self.evaluations.running:
            return self.evaluations.progress()
        made = {name: learner.updates for name, learner in self.learning.learners.items()}
        before = {name: self.experiment.pretraining(name) for name in made}
        for name, count in made.items():
            if count < before[name]:
                return f"training the {name} beforehand: {count:,} of {before[name]:,} updates"
        return "updates: " + ", ".join(f"{name} {count:,}" for name, count in made.items())

    def close(self) -> None:
        """Close files and environments."""
        self.saver.join()
        if self.order is not None:
            self.order.close()
        self.log.close()
        self.evaluations.close()
        self._close_processes()

    def _close_processes(self) -> None:
        """Close learner processes and the environments."""
        if self._group is not None:
            self._group.close()
        self.acting.close()
