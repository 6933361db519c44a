"""Trust, but verify: follow the plan, but where the model disagrees with itself unusually strongly, go and look.

A planner keeps, for each column and episode, the largest disagreement of every node it expanded. When it is about to
act, the action it is least sure of is taken instead of the planned one, with probability 1 − `rejection_probability`,
if the disagreement about it is above the `quantile` of those. (openreview DE0MSwKv32y; IJCNN 2021.)
"""

from __future__ import annotations

import numpy as np

from packtrain.planning.chance import chance

_REJECTED, _TIE = 7001, 7002  # what a random number is for


class Verification:
    """The rule for B columns."""

    def __init__(self, columns: int, quantile: float, rejection_probability: float, queue_length: int, seed: int):
        self._quantile, self._reject, self._seed = quantile, rejection_probability, seed
        self._queue = np.zeros((columns, queue_length), np.float32)
        self._seen = np.zeros(columns, np.int64)  # expansions of the episode

    def begin(self, columns: np.ndarray) -> None:
        """An episode begins: nothing has been expanded."""
        self._seen[columns] = 0

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
        lengths = np.minimum(self._seen[columns], self._queue.shape[1])
        result = np.full(len(columns), np.inf)
        for length in np.unique(lengths[lengths > 0]):
            which = np.flatnonzero(lengths == length)
            result[which] = np.quantile(self._queue[columns[which], :length], self._quantile, axis=1)
        return result

    def choose(self, columns: np.ndarray, bonus: np.ndarray, decision: int) -> np.ndarray:
        """The action to verify in each column, or −1 to trust the plan.

        Args:
          columns: [R].
          bonus: [R, A] disagreement about the actions of the states in which the columns are.
          decision: a number that is different each time.
        """
        noise = chance(self._seed, columns[:, None], decision, _TIE, np.arange(bonus.shape[1]))
        top = bonus.max(axis=1)
        action = np.where(bonus == top[:, None], noise, -1.0).argmax(axis=1)
        unsure = top > self.thresholds(columns)
        looks = chance(self._seed, columns, decision, _REJECTED) >= self._reject
        return np.where(unsure & looks, action, -1)
