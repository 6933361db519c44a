"""Counters of steps, epochs and solved episodes, which survive a resume."""

from __future__ import annotations

from typing import Any

from packtrain.metrics.rolling import Rolling
from packtrain.runtime.messages import Report


class Counters:
    """Steps, epochs and the step of the first solved episode; updated from reports of the acting side only."""

    def __init__(self, stages: int):
        self.step = 0  # decisions learned from; with replay or whole epochs, decisions made
        self.env_steps = 0  # decisions made, as far as reported
        self.random_steps = 0  # number of them that were uniformly random, to collect data
        self.solved_at: int | None = None  # env_steps at which an episode was first solved, not counting random play
        self.repeats = [0] * stages  # number of completed passes through each stage of the schedule
        self.rolling = Rolling()
        self.acts_randomly = False  # whether the latest actor step was random, to collect data

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return sum(self.repeats)

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
