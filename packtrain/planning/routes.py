"""Paths that best-first search follows: from where a column is to its target, and what they return."""

from __future__ import annotations

import numpy as np

from packtrain.arrays import wider
from packtrain.planning import kernels
from packtrain.planning.distances import Outward
from packtrain.planning.nodes import Nodes
from packtrain.planning.table import NOBODY


class Routes:
    """One path for each of B columns, or none.

    Paths lie with their last steps first: place n − 1 is n steps from the target, so that what is left of a path that
    is followed stays where it is.
    """

    def __init__(self, nodes: Nodes, columns: int, gamma: float):
        """None.

        Args:
          nodes: have `edges`, `rewards`, `value` and a walk's `mark`.
          columns: B.
          gamma: discount of returns.
        """
        self._nodes, self._gamma = nodes, gamma
        self.targets = np.full(columns, NOBODY)
        self._steps = np.zeros(columns, np.int64)  # from the current node to there; 0: there is no path
        self._places = np.full((columns, 64), NOBODY)  # the nodes
        self._actions = np.zeros((columns, 64), np.int64)
        self._values = np.zeros((columns, 64))  # the return along the path from there

    def forget(self, columns: np.ndarray) -> None:
        """These columns follow nothing."""
        self.targets[columns] = NOBODY
        self.drop(columns)

    def drop(self, columns: np.ndarray) -> None:
        """Their paths are followed no further."""
        self._steps[columns] = 0

    def left(self, columns: np.ndarray, current: np.ndarray) -> np.ndarray:
        """How many steps are left of the paths of columns [R] that have made one since; 0 where they are not on it."""
        steps = self._steps[columns] - 1
        return np.where((steps > 0) & (self._places[columns, steps - 1] == current), steps, 0)

    def keep(self, columns: np.ndarray, steps: np.ndarray) -> None:
        """Columns [R] have so many steps left of their paths; 0: they are followed no further."""
        self._steps[columns] = steps

    def next(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How many steps columns [R] have to go, the action to take and the return of taking it; 0 without a path."""
        steps = self._steps[columns]
        there = steps > 0
        action, value = self._actions[columns, steps - 1], self._values[columns, steps - 1]
        return steps, np.where(there, action, 0), np.where(there, value, 0.0)

    def lead(self, walk: Outward, columns: np.ndarray, targets: np.ndarray) -> None:
        """Write down the first shortest paths to targets [M] that a walk has met, and the returns along them."""
        nodes = self._nodes
        self.targets[columns] = targets
        value = nodes.value.take(targets).astype(np.float64)
        if kernels.compiled:
            arrays = (columns, targets, value, self._gamma, nodes.mark, nodes.edges, nodes.rewards)
            longest = kernels.plan_back(*arrays, self._places, self._actions, self._values, self._steps)
            if longest > self._places.shape[1]:
                self._make_room(longest)
                self.lead(walk, columns, targets)
            return
        steps = walk.ways_back(targets)
        self._make_room(len(steps))
        for place, (which, source, action) in enumerate(steps):
            value[which] = nodes.rewards[source, action] + self._gamma * value[which]
            mine = columns[which]
            self._places[mine, place], self._actions[mine, place] = source, action
            self._values[mine, place], self._steps[mine] = value[which], place + 1

    def _make_room(self, steps: int) -> None:
        """For paths of so many steps."""
        if steps > self._places.shape[1]:
            self._places = wider(self._places, 2 * steps, NOBODY)
            self._actions = wider(self._actions, 2 * steps, 0)
            self._values = wider(self._values, 2 * steps, 0)
