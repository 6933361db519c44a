"""Statistics over epochs: when a run first solved its task, and how reliably it has solved it since."""

from __future__ import annotations

from typing import Any

WINDOW, RATIO = 10, 0.5  # an event is stable if more than RATIO of the last WINDOW epochs show it
EVENTS = {"solved": 0.0, "solved_over_10": 0.1, "solved_over_75": 0.75}  # thresholds of the solved rate
STABLE = {"10": "solved_over_10", "75": "solved_over_75"}


class Rolling:
    """First epochs of events, and fractions of epochs since then with the event. Epochs count from 1."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._stable: dict[str, int] = {}
        self._since: dict[str, int] = {}  # epochs that showed the event since it became stable
        self._recent: list[float] = []

    def add(self, epoch: int, solved_rate: float) -> dict[str, float]:
        """Add one epoch and return the metrics after it. Events that have not occurred are omitted."""
        self._recent = [*self._recent, solved_rate][-WINDOW:]
        row: dict[str, float] = {}
        for name, threshold in EVENTS.items():
            if solved_rate > threshold:
                self._first.setdefault(name, epoch)
        for label, name in STABLE.items():
            holding = sum(rate > EVENTS[name] for rate in self._recent)
            if name not in self._stable and len(self._recent) == WINDOW and holding > RATIO * WINDOW:
                self._stable[name], self._since[name] = epoch, 0
            if name in self._stable:
                self._since[name] += solved_rate > EVENTS[name]
                row[f"first_stable_over_{label}_epoch"] = self._stable[name]
                row[f"stability_at_{label}"] = self._since[name] / (epoch - self._stable[name] + 1)
        return row | {f"first_{name}_epoch": first for name, first in self._first.items()}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"first": self._first, "stable": self._stable, "since": self._since, "recent": self._recent}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._first, self._stable = dict(snapshot["first"]), dict(snapshot["stable"])
        self._since, self._recent = dict(snapshot["since"]), list(snapshot["recent"])
