"""Training rows: counts what actor steps and updates report, and writes a row of metrics whenever one is due."""

from __future__ import annotations

import contextlib
from typing import Any

from packtrain.interfaces import UpdateResult
from packtrain.runtime.acting import Acting
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.learner_group import LearnerGroup
from packtrain.runtime.learning import LearningSide
from packtrain.runtime.messages import Report
from packtrain.runtime.metrics_log import MetricsLog
from packtrain.runtime.pause import ActorPause
from packtrain.runtime.progress import Progress


class TrainRows:
    """Passes reports to the counters and the log of a run, and writes its training rows."""

    def __init__(
        self,
        experiment: Experiment,
        progress: Progress,
        acting: Acting,
        learning: LearningSide,
        log: MetricsLog,
        gate: ActorPause,
        group: LearnerGroup | None,
    ):
        """Store the arguments.

        Args:
          experiment: of the run.
          progress: its counters.
          acting: its acting side, asked for metrics when a row is written.
          learning: its learning side.
          log: where rows are written.
          gate: pauses acting while a row is written, if the acting side needs that.
          group: the processes that learn together; None: this one alone.
        """
        self.log = log
        self._experiment, self._progress = experiment, progress
        self._acting, self._learning, self._gate, self._group = acting, learning, gate, group
        self._by_ratio, self._by_epochs = experiment.by_ratio, experiment.by_epochs

    def note_report(self, report: Report) -> None:
        """Count the outcome of an actor step."""
        self._progress.add(report)
        self.log.episodes.extend(report.finished)

    def note_update(self, name: str, result: UpdateResult) -> None:
        """Count the steps of a learner's update and record its metrics."""
        if self._by_epochs:
            self.log.add_epoch_update(name, result)
            return
        self.log.add_update(result)
        if not self._by_ratio:  # otherwise steps are counted when they are acted
            self._progress.step += result.steps
            self._write_if_due(without_updates=False)

    def count_acted(self) -> None:
        """Update the step count of a run that replays, and write a row if one is due."""
        if self._by_ratio:
            self._progress.step = self._progress.acted
            self._write_if_due(without_updates=True)

    def _write_if_due(self, without_updates: bool) -> None:
        """Write a row at its step, and at the end of the run for the steps that no row has counted."""
        self.log.record_episodes()
        is_last = self._progress.finished and self._progress.step > self.log.row_step
        if is_last or self.log.recorder.due(self._progress.step, without_updates):
            self.write()

    def write(self, learned: dict[str, float] | None = None) -> None:
        """Write the averages since the last row.

        Args:
          learned: metrics of the epoch's updates, for runs in epochs.
        """
        progress, learning = self._progress, self._learning
        first = {"epoch": progress.epoch} if self._by_epochs else {}
        row: dict[str, Any] = {"first": first | (learned or {})}
        row |= {
            "env_steps": progress.env_steps,
            "env_steps_without_random": progress.env_steps - progress.random_steps,
        }
        if progress.solved_at is not None:
            row["first_solved_step"] = progress.solved_at
            row["first_solved_step_without_random"] = progress.solved_at - progress.random_steps
        dropped = sum(memory.dropped for memory in learning.memories.values())
        if not self._by_ratio:
            row["episodes_too_long" if self._by_epochs else "unrolls_dropped"] = dropped
        row |= self.update_counts()
        with self._gate.held() if self._acting.row_needs_hold else contextlib.nullcontext():
            row |= self._acting.row()
        if not self._by_epochs:
            del row["search_steps_dropped"]  # nothing is searched
        if lost := sum(memory.lost for memory in learning.memories.values()):
            row["replay_steps_lost"] = lost
        if any(learner.saves_acting_weights for learner in learning.learners.values()):
            row["priorities_late"] = dropped
        if learning.divergence.skipped:
            row["updates_skipped"] = learning.divergence.skipped
        if learning.alarm is not None:
            row |= learning.alarm.row()
        if self._group is not None:
            row |= self._group.row()
        self.log.train_row(progress.step, row)

    def update_counts(self) -> dict[str, int]:
        """Return how many updates each learner has made, where updates follow steps."""
        learners = self._learning.learners if self._by_ratio else {}
        return {f"updates/{name}": learner.updates for name, learner in learners.items()}
