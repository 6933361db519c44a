"""Greedy episodes in environments of their own, one step at a time, so that a runtime can fit them in anywhere."""

from __future__ import annotations

import math
import statistics
from typing import Any

from packtrain.acting.actor import AnyPolicy
from packtrain.envs.deadline import RunningTime
from packtrain.envs.stream import Episode, Stream
from packtrain.types import Row

LONGEST_TICK_SECS = 60.0  # a longer pause between two steps does not count as time of the evaluation


class Limits:
    """Cuts off episodes that go on too long; each counts as it is, and its column plays no other."""

    def __init__(self, max_steps: int | None = None, deadline_secs: float | None = None):
        """Nothing is cut off yet.

        Args:
          max_steps: of an episode; None: no limit.
          deadline_secs: of an evaluation, after which all episodes under way are cut off; None: no deadline.
        """
        self._max_steps, self._deadline = max_steps, deadline_secs
        self.begin()

    def begin(self) -> None:
        """An evaluation begins."""
        self._time = RunningTime(LONGEST_TICK_SECS)
        self.cut_off = 0  # columns

    def apply(self, stream: Stream, played: list[list[Episode]], wanted: list[int]) -> None:
        """Add the episodes that are cut off now to `played`, and let `wanted` of their columns be what they have."""
        late = self._deadline is not None and self._time.look() > self._deadline
        if not late and (self._max_steps is None or stream.lengths.max() < self._max_steps):
            return
        for column, length in enumerate(stream.lengths.tolist()):
            if len(played[column]) < wanted[column] and (late or length >= (self._max_steps or 0)):
                if length:  # else its next episode has not begun
                    played[column].append(stream.unfinished(column))
                wanted[column] = len(played[column])
                self.cut_off += 1


class Evaluator:
    """Plays a fixed number of episodes, each column its share, so that short episodes are not over-counted."""

    def __init__(self, stream: Stream, policy: AnyPolicy, num_episodes: int, limits: Limits | None = None):
        self.stream = stream
        self._limits = limits or Limits()
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
        self._wanted = list(self._share)
        self._limits.begin()
        self.active = True

    def tick(self) -> dict[str, Any] | None:
        """One step of every column; the result when the last episode is over."""
        self.stream.send(self._seat.act(self._row).action)
        self._row = self.stream.recv()
        for episode in self.stream.drain_episodes():
            if len(self._played[episode.column]) < self._wanted[episode.column]:
                self._played[episode.column].append(episode)
        self._limits.apply(self.stream, self._played, self._wanted)
        if any(len(played) < wanted for played, wanted in zip(self._played, self._wanted, strict=True)):
            return None
        self.active = False
        result = summary([episode for played in self._played for episode in played])
        return {**result, "episodes_truncated": self._limits.cut_off}

    def progress(self) -> str:
        """How far it is, in words."""
        of = sum(self._share)
        return f"evaluating: {self.played} of {of} episodes; the longest under way: {self.stream.lengths.max():,} steps"

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
