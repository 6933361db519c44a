"""Collects updates and episodes into metric rows, at fixed step intervals. Its state is part of a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from packtrain.envs.stream import Finished


class Recorder:
    """Averages metrics since the last row; a row is due each time the step count passes a multiple of `every`.

    Metrics of updates are only stored; they are averaged once per row, so that an update costs nothing here.
    """

    def __init__(self, every: int):
        self._every = every
        self._next = every
        self._updates: list[dict[str, Any]] = []
        self._lags = 0
        self._lag_sum, self._lag_max = 0.0, 0
        self._episodes = 0
        self._episode_sums: dict[str, float] = {}
        self._lives, self._life_return_sum = 0, 0.0

    def update(self, metrics: dict[str, Any], lag: torch.Tensor | None) -> None:
        """Add one learner step."""
        self._updates.append(metrics)
        if lag is not None:
            values = lag.numpy()
            self._lags += 1
            self._lag_sum += float(values.mean())
            self._lag_max = max(self._lag_max, int(values.max()))

    def episodes(self, finished: Finished) -> None:
        """Add finished episodes."""
        values = {"episode_return": finished.returns["train"], "episode_length": finished.length}
        values |= {f"episode_return/{name}": v for name, v in finished.returns.items() if name != "train"}
        if len(finished.solved) and not np.isnan(finished.solved[0]):
            values["solved"] = finished.solved
        for name, value in values.items():
            self._episode_sums[name] = self._episode_sums.get(name, 0.0) + float(value.sum())
        self._episodes += len(finished.length)
        self._lives += len(finished.life_returns)
        self._life_return_sum += float(finished.life_returns.sum())

    def due(self, step: int, without_updates: bool = False) -> bool:
        """Return whether a row should be written; before the first update only if `without_updates` is set."""
        return step >= self._next and (without_updates or bool(self._updates))

    def row(self, step: int) -> dict[str, Any]:
        """Return the averages since the last row, and start a new interval."""
        row: dict[str, Any] = {**means(self._updates)}
        if self._lags:
            row["policy_lag_mean"], row["policy_lag_max"] = self._lag_sum / self._lags, self._lag_max
        row["episodes"] = self._episodes
        row["episode_return"] = row["episode_length"] = None
        if self._episodes:
            row |= {name: total / self._episodes for name, total in self._episode_sums.items()}
        if self._lives:
            row["lives"], row["life_return"] = self._lives, self._life_return_sum / self._lives
        self._updates, self._lags, self._lag_sum, self._lag_max = [], 0, 0.0, 0
        self._episodes, self._episode_sums = 0, {}
        self._lives, self._life_return_sum = 0, 0.0
        self._next = (step // self._every + 1) * self._every
        return row

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to write the same next row."""
        return {
            "next": self._next,
            "updates": own_copies(self._updates),
            "lags": self._lags,
            "lag_sum": self._lag_sum,
            "lag_max": self._lag_max,
            "episodes": self._episodes,
            "episode_sums": dict(self._episode_sums),
            "lives": self._lives,
            "life_return_sum": self._life_return_sum,
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Continue from a saved state; a changed `every` counts from the current step."""
        self._next = state["next"] if state["next"] % self._every == 0 else (step // self._every + 1) * self._every
        self._updates = list(state["updates"])
        self._lags = state.get("lags", len(self._updates))
        self._lag_sum, self._lag_max = state["lag_sum"], state["lag_max"]
        self._episodes, self._episode_sums = state["episodes"], dict(state["episode_sums"])
        self._lives, self._life_return_sum = state.get("lives", 0), state.get("life_return_sum", 0.0)


def own_copies(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the metrics of updates in separate tensors, as a checkpoint needs them."""
    return [{name: _own(value) for name, value in update.items()} for update in updates]


def _own(value: Any) -> Any:
    """Return a copy: several updates may have returned the same tensor, which a checkpoint would reject."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def means(updates: list[dict[str, Any]]) -> dict[str, float]:
    """Return the average of each metric over the updates that have it."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: _mean([update[name] for update in updates if name in update]) for name in names}


def _mean(values: list[Any]) -> float:
    if isinstance(values[0], torch.Tensor):
        # Values from a checkpoint are on the CPU, later ones on the learner's device.
        return float(torch.stack([value.to(values[-1].device) for value in values]).double().mean())
    return sum(values) / len(values)
