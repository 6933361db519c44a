"""From updates and episodes to metric rows, written at step counts. Its state is part of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from packtrain.envs.stream import Episode


class Recorder:
    """Averages what happened since the last row; a row is due each time the step count passes a multiple of `every`."""

    def __init__(self, every: int):
        self._every = every
        self._next = every
        self._sums: dict[str, torch.Tensor | float] = {}
        self._updates = 0
        self._lag_max = 0
        self._episodes = 0
        self._episode_sums: dict[str, float] = {}

    def update(self, metrics: dict[str, Any], lag: torch.Tensor | None) -> None:
        """Add one learner step."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        if lag is not None:
            self._sums["policy_lag_mean"] = self._sums.get("policy_lag_mean", 0.0) + lag.float().mean()
            self._lag_max = max(self._lag_max, int(lag.max()))
        self._updates += 1

    def episodes(self, finished: Iterable[Episode]) -> None:
        """Add finished episodes."""
        for episode in finished:
            self._episodes += 1
            values = {"episode_return": episode.returns["train"], "episode_length": float(episode.length)}
            values |= {f"episode_return/{name}": v for name, v in episode.returns.items() if name != "train"}
            if not math.isnan(episode.solved):
                values["solved"] = episode.solved
            for name, value in values.items():
                self._episode_sums[name] = self._episode_sums.get(name, 0.0) + value

    def due(self, step: int) -> bool:
        """Whether a row should be written."""
        return step >= self._next and self._updates > 0

    def row(self, step: int) -> dict[str, Any]:
        """The averages since the last row, which starts a new span."""
        row: dict[str, Any] = {name: float(total) / self._updates for name, total in self._sums.items()}
        row["policy_lag_max"] = self._lag_max
        row["episodes"] = self._episodes
        row["episode_return"] = row["episode_length"] = None
        row |= {name: total / self._episodes for name, total in self._episode_sums.items()}
        self._sums, self._updates, self._lag_max = {}, 0, 0
        self._episodes, self._episode_sums = 0, {}
        self._next = (step // self._every + 1) * self._every
        return row

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to write the same next row."""
        return {
            "next": self._next,
            "sums": {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in self._sums.items()},
            "updates": self._updates,
            "lag_max": self._lag_max,
            "episodes": self._episodes,
            "episode_sums": dict(self._episode_sums),
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Go on from a saved state; a changed `every` counts from the current step."""
        self._next = state["next"] if state["next"] % self._every == 0 else (step // self._every + 1) * self._every
        self._sums = dict(state["sums"])
        self._updates, self._lag_max = state["updates"], state["lag_max"]
        self._episodes, self._episode_sums = state["episodes"], dict(state["episode_sums"])
