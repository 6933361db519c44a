"""How far a run is: its steps, epochs and solved episodes, and whether it should end. All of it survives a resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packtrain.interfaces import Memory
from packtrain.metrics.rolling import Rolling
from packtrain.runtime.experiment import Experiment, Repeat
from packtrain.runtime.messages import Report


def planned_epochs(experiment: Experiment, repeats: list[int]) -> int:
    """Return the number of epochs in which the planner played; random data and pre-training do not count."""
    stages = zip(experiment.schedule, repeats, strict=True)
    return sum(count for stage, count in stages if isinstance(stage, Repeat) and stage.plans)


def schedule_epoch(experiment: Experiment, repeats: list[int]) -> int:
    """Return the epoch that parameter schedules see: planned epochs that learned, or all planned where none learn."""
    planned = [(i, stage) for i, stage in enumerate(experiment.schedule) if isinstance(stage, Repeat) and stage.plans]
    learning = [i for i, stage in planned if stage.learns]
    return sum(repeats[i] for i in learning or [i for i, _ in planned])


class Progress:
    """Counters of a run, updated from reports of the acting side, and the decision whether it continues."""

    def __init__(self, experiment: Experiment, memories: Mapping[str, Memory]):
        """Begin at step 0.

        Args:
          experiment: names the run's length.
          memories: of the run; those that replay count the steps.
        """
        self._memories = tuple(memories.values())
        self._total_steps, self._until_solved = experiment.total_steps, experiment.run.until_solved
        self._epochs = experiment.epochs if experiment.by_epochs else None
        self.stop: BaseException | None = None  # reason to end the run early
        self.ended_by_alarm = False  # an audit alarm ended the run
        self.step = 0  # decisions learned from; with replay or whole epochs, decisions made
        self.env_steps = 0  # decisions made, as far as reported
        self.random_steps = 0  # number of them that were uniformly random, to collect data
        self.solved_at: int | None = None  # env_steps at which an episode was first solved, not counting random play
        self.repeats = [0] * len(experiment.schedule)  # number of completed passes through each stage of the schedule
        self.rolling = Rolling()
        self.acts_randomly = False  # whether the latest actor step was random, to collect data
        # Number of steps at which the current stage of collecting ends; acting beyond it waits for the next stage.
        self.collect_until: int | None = None
        # State before the current epoch, saved during it because episodes cannot be saved: step, actor and counters.
        self.safe_point: tuple[int, dict[str, Any] | None, dict[str, Any]] | None = None
        # Unfinished updates of an epoch: index of their stage in the epoch, and number made. Between two updates the
        # current state is saved.
        self.epoch_updates: tuple[int, int] | None = None

    @property
    def acted(self) -> int:
        """Number of steps in the replay memories, without those that arrived since the last actor step."""
        return max(memory.steps for memory in self._memories)

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return sum(self.repeats)

    @property
    def finished(self) -> bool:
        """Whether all steps or epochs have been made, or a solved task or an alarm ends the run."""
        over = self._epochs is not None and self.epoch >= self._epochs
        over |= self.ended_by_alarm or (self._until_solved and self.solved_at is not None)
        return over or self.step >= self._total_steps

    @property
    def goes_on(self) -> bool:
        """Whether the run is neither finished nor asked to stop."""
        return self.stop is None and not self.finished

    def add(self, report: Report) -> None:
        """Count one actor step."""
        self.acts_randomly = report.random
        made, self.env_steps = report.env_steps - self.env_steps, report.env_steps
        if report.random:
            self.random_steps += made
        elif self.solved_at is None and any((one.solved > 0).any() for one in report.finished):
            self.solved_at = report.env_steps

    def acting_state(self) -> dict[str, Any]:
        """Return the counters of environment steps as JSON values."""
        return {
            "random_steps": self.random_steps,
            "counted": self.env_steps,
            "solved_at": self.solved_at,
            "rolling": self.rolling.snapshot(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Load a saved run's counters."""
        self.step = state["step"]
        self.repeats = list(state.get("repeats", self.repeats))
        self.random_steps, self.solved_at = state.get("random_steps", 0), state.get("solved_at")
        self.env_steps = state.get("counted", state["env_steps"])
        self.rolling.restore(state.get("rolling") or Rolling().snapshot())
