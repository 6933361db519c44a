"""Greedy episodes in environments of their own, one step at a time, so that a runtime can fit them in anywhere."""

from __future__ import annotations

import math
import statistics
from typing import Any

from packtrain.envs.stream import Episode, Stream
from packtrain.types import Row


class Evaluator:
    """Plays a fixed number of episodes, each column its share, so that short episodes are not over-counted."""

    def __init__(self, stream: Stream, policy: Any, num_episodes: int):
        self.stream = stream
        self.policy = policy
        self._seat = policy.seat(stream)
        self._share = [num_episodes // stream.size + (c < num_episodes % stream.size) for c in range(stream.size)]
        self._played: list[list[Episode]] = []
        self.active = False

    def begin(self, known: dict[str, Any] | None = None) -> None:
        """Start over with the weights the policy has now, from the same seeds every time.

        Args:
          known: the snapshot of the seat of whoever trains and has found something out while it played. It is copied:
            evaluations teach nobody, themselves included.
        """
        self.stream.restart()
        self._seat.begin()
        self._seat.know(known or {})
        self._row = self.stream.start()
        self._played = [[] for _ in range(self.stream.size)]
        self.active = True

    def tick(self) -> dict[str, Any] | None:
        """One step of every column; the result when the last episode is over."""
        self.stream.send(self._seat.act(self._row).action)
        self._row = self.stream.recv()
        for episode in self.stream.drain_episodes():
            if len(self._played[episode.column]) < self._share[episode.column]:
                self._played[episode.column].append(episode)
        if any(len(played) < share for played, share in zip(self._played, self._share, strict=True)):
            return None
        self.active = False
        return summary([episode for played in self._played for episode in played])

    @property
    def row(self) -> Row:
        """The latest row, NumPy arrays, valid until the next tick."""
        return self._row

    @property
    def episodes(self) -> list[list[Episode]]:
        """Those that count so far, by column."""
        return self._played

    @property
    def played(self) -> int:
        """Episodes that count so far."""
        return sum(len(played) for played in self._played)

    def close(self) -> None:
        """Close the environments."""
        self.stream.columns.close()


def summary(episodes: list[Episode]) -> dict[str, Any]:
    """Mean, spread and interval of the returns of a list of episodes, and the mean of every reward channel."""
    returns = [episode.returns["train"] for episode in episodes]
    deviation = statistics.stdev(returns) if len(returns) > 1 else 0.0
    result = {
        "episodes": len(episodes),
        "return_mean": statistics.fmean(returns),
        "return_std": deviation,
        "return_ci95": 1.96 * deviation / math.sqrt(len(returns)) if len(returns) > 1 else None,
        "length_mean": statistics.fmean(episode.length for episode in episodes),
        "rewards": {
            name: statistics.fmean(episode.returns[name] for episode in episodes) for name in episodes[0].returns
        },
    }
    if not all(math.isnan(episode.solved) for episode in episodes):  # some say it only of those that were
        result["solved"] = statistics.fmean(not math.isnan(e.solved) and e.solved for e in episodes)
    return result
