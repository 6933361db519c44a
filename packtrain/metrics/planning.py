"""Metrics of an epoch of planning, with the names of Alpacka and of the published TBV code."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from packtrain.envs.stream import Finished


class Decisions:
    """Averages statistics of planners' decisions: numbers, and standard deviations of vectors over actions."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._tops: dict[str, float] = {}

    def add(self, extras: dict[str, np.ndarray]) -> None:
        """Add the extras of R decisions, [R] or [R, A]; other extras are ignored."""
        for name, values in extras.items():
            if values.ndim > 2 or values.dtype == object or not values.size:
                continue
            if name.startswith("action_histogram"):
                shares = np.clip(values, 1e-12, None)
                values, name = -(values * np.log(shares)).sum(-1), name.replace("action_histogram", "entropy")
            known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
            if known.size:
                self._sums[name] = self._sums.get(name, 0.0) + float(known.sum())
                self._counts[name] = self._counts.get(name, 0) + known.size
                self._tops[name] = max(self._tops.get(name, -np.inf), float(known.max()))

    def drain(self) -> dict[str, float]:
        """Return the averages since the last call, and the maximum for names that end in _max."""
        row = {}
        for name, total in sorted(self._sums.items()):
            if name.endswith("_max"):
                row[name] = self._tops[name]
            else:
                row[name if name.endswith("_mean") else f"{name}_mean"] = total / self._counts[name]
        self._sums, self._counts, self._tops = {}, {}, {}
        return row

    def state_dict(self) -> dict[str, Any]:
        """Return what has been added since the last `drain`."""
        return {"sums": dict(self._sums), "counts": dict(self._counts), "tops": dict(self._tops)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._sums, self._counts, self._tops = (dict(state[name]) for name in ("sums", "counts", "tops"))


def planning_row(
    epoch: int,
    finished: list[Finished],
    learned: dict[str, dict[str, float]],
    decided: dict[str, float],
    played: bool = True,
) -> dict[str, Any]:
    """Return the metrics of one epoch: episode/*, agent/*, train/* of the agent's learner, and those of other learners.

    Args:
      epoch: its number.
      finished: the episodes that ended in it.
      learned: averages by learner. Those of the model are model_pretrain/*, and then model_fine_tune/*.
      decided: statistics of the planner's decisions.
      played: whether the planner has acted, in this epoch or before.
    """
    episodes = [episode for one in finished for episode in one.episodes()]
    row: dict[str, Any] = {"epoch": epoch, "episode/count": len(episodes)}
    if episodes:
        columns = {
            "return": [episode.returns["train"] for episode in episodes],
            "length": [float(episode.length) for episode in episodes],
        }
        for name, values in columns.items():
            row[f"episode/{name}_mean"] = statistics.fmean(values)
            row[f"episode/{name}_median"] = statistics.median(values)
            row[f"episode/{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        known = [episode.solved for episode in episodes if not np.isnan(episode.solved)]
        if known:  # among the environments that report it
            row["episode/solved_rate"] = statistics.fmean(known)
    row |= {f"agent/{name}": value for name, value in decided.items()}
    for learner, averages in learned.items():
        group = "train" if learner == "agent" else f"{learner}_{'fine_tune' if played else 'pretrain'}"
        row |= {f"{group}/{name}": value for name, value in averages.items()}
    return row
