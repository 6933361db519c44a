"""Trust, but verify: follow the plan, but where the model disagrees with itself unusually strongly, go and look.

A planner keeps, for each column and episode, the largest disagreement of every node it expanded. When it is about to
act, the action it is least sure of is taken instead of the planned one, with probability 1 − `rejection_probability`,
if the disagreement about it is above the `quantile` of those. (openreview DE0MSwKv32y; IJCNN 2021.)

Beyond the published rule, trust may grow: the disagreement about steps that came out as predicted is noise, and nothing
at the level of noise (its `noise_quantile`) is verified.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packtrain.planning.chance import chance

_REJECTED, _TIE = 7001, 7002  # what a random number is for
_NOISE_ROOM, _NOISE_LEAST = 4096, 256  # steps that the level of noise is taken over, and before which there is none


class Verification:
    """The rule for B columns."""

    def __init__(
        self,
        columns: int,
        quantile: float | None,
        rejection_probability: float,
        queue_length: int,
        seed: int,
        noise_quantile: float | None = None,
        runs: int = 1,
    ):
        """Nothing has been expanded.

        Args:
          columns: B.
          quantile: of the disagreements of an episode, above which something is worth a look; None: nothing is.
          rejection_probability: chance of trusting all the same.
          queue_length: expansions that the quantile is taken over.
          seed: of what is drawn.
          noise_quantile: of the disagreements about what came out as predicted, up to which there is nothing to look
            at; None: there is no such level.
          runs: the columns belong to so many runs, equally many to each, one run after the other.
        """
        self._quantile, self._reject, self._seed = quantile, rejection_probability, seed
        self._queue = np.zeros((columns, queue_length), np.float32)
        self._seen = np.zeros(columns, np.int64)  # expansions of the episode
        self._noise_quantile = noise_quantile
        self._run = np.arange(columns) * runs // max(columns, 1)  # of each column
        self._confirmed = np.zeros((runs, _NOISE_ROOM), np.float32)
        self._confirmations = np.zeros(runs, np.int64)
        self._noise = np.zeros(columns)  # the level of each column's episode

    def begin(self, columns: np.ndarray) -> None:
        """An episode begins: nothing has been expanded."""
        self._seen[columns] = 0
        if self._noise_quantile is None:
            return
        runs = self._run[columns]
        for run in np.unique(runs):
            if self._confirmations[run] >= _NOISE_LEAST:
                known = self._confirmed[run, : min(self._confirmations[run], _NOISE_ROOM)]
                self._noise[columns[runs == run]] = np.quantile(known, self._noise_quantile)

    def noise(self, columns: np.ndarray) -> np.ndarray:
        """What is not above it is not worth a look, [R]; the same all episode."""
        return self._noise[columns]

    def confirmed(self, columns: np.ndarray, bonus: np.ndarray) -> None:
        """Steps in columns [M] came out as predicted, although there was this disagreement about them [M]."""
        if self._noise_quantile is None or not len(bonus):
            return
        runs = self._run[columns]
        for run in np.unique(runs):
            mine = bonus[runs == run][-_NOISE_ROOM:]
            places = (self._confirmations[run] + np.arange(len(mine))) % _NOISE_ROOM
            self._confirmed[run, places] = mine
            self._confirmations[run] += len(mine)

    def expanded(self, columns: np.ndarray, bonus: np.ndarray) -> None:
        """Nodes were expanded, [M], with the largest disagreement about one of their actions; the oldest are forgotten.

        Columns may come several times, in the order of expansion.
        """
        order = np.argsort(columns, kind="stable")
        owners = columns[order]
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        counts = np.diff(np.append(starts, len(owners)))
        rank = np.arange(len(owners)) - np.repeat(starts, counts)  # how many of the same column come before
        self._queue[owners, (self._seen[owners] + rank) % self._queue.shape[1]] = bonus[order]
        self._seen[owners[starts]] += counts

    def thresholds(self, columns: np.ndarray) -> np.ndarray:
        """The quantile of each column's queue, linearly interpolated; infinity where it is empty."""
        if self._quantile is None:
            return np.full(len(columns), np.inf)
        lengths = np.minimum(self._seen[columns], self._queue.shape[1])
        result = np.full(len(columns), np.inf)
        for length in np.unique(lengths[lengths > 0]):
            which = np.flatnonzero(lengths == length)
            result[which] = np.quantile(self._queue[columns[which], :length], self._quantile, axis=1)
        return result

    def _is_unusual(self, columns: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Whether values [R] are above their columns' thresholds; mostly counting tells, without sorting."""
        if self._quantile is None:
            return np.zeros(len(columns), bool)
        lengths = np.minimum(self._seen[columns], self._queue.shape[1])
        longest = int(lengths.max(initial=0))
        below = self._queue[columns, :longest] < values[:, None]
        counts = (below & (np.arange(longest) < lengths[:, None])).sum(axis=1)
        place = (lengths - 1) * self._quantile  # of the threshold among the sorted queue, from 0
        unusual = counts > np.ceil(place)
        near = np.flatnonzero((counts > np.floor(place)) & ~unusual & (lengths > 0))  # between two entries
        unusual[near] = values[near] > self.thresholds(columns[near])
        return unusual & (lengths > 0)

    def choose(
        self, columns: np.ndarray, bonus: np.ndarray, decision: int, arrived: np.ndarray | bool = False
    ) -> np.ndarray:
        """The action to verify in each column, or −1 to trust the plan.

        Args:
          columns: [R].
          bonus: [R, A] disagreement about the actions of the states in which the columns are.
          decision: a number that is different each time.
          arrived: [R] bool, columns that came here to look, whatever the quantile is.
        """
        noise = chance(self._seed, columns[:, None], decision, _TIE, np.arange(bonus.shape[1]))
        top = bonus.max(axis=1)
        action = np.where(bonus == top[:, None], noise, -1.0).argmax(axis=1)
        unsure = (top > self.noise(columns)) & (arrived | self._is_unusual(columns, top))
        looks = chance(self._seed, columns, decision, _REJECTED) >= self._reject
        return np.where(unsure & looks, action, -1)

    def snapshot(self, run: int = 0) -> dict[str, Any]:
        """What outlives the episodes of a run."""
        count = int(self._confirmations[run])
        known = self._confirmed[run, : min(count, _NOISE_ROOM)].copy()
        return {"confirmed": known, "confirmations": count}

    def restore(self, snapshot: dict[str, Any], run: int = 0) -> None:
        """Go on from a snapshot, with the next episodes."""
        self._confirmed[run, : len(snapshot["confirmed"])] = snapshot["confirmed"]
        self._confirmations[run] = int(snapshot["confirmations"])
