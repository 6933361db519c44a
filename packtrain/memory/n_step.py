"""Transitions of several steps: an action, what the steps after it paid, and where the last of them led.

    reward = Σ_{k<m} γ^k r_{t+k},  after = x_{t+m},  discount = γ^m

m is n, or less where an episode ends before: none of its steps is left out, and no transition reaches over its end.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.trees import Tree


class _Open(NamedTuple):
    """An action whose last step is still to come."""

    obs: Tree
    action: Tree
    reward: float  # so far
    discount: float  # of what comes next


class Joiner:
    """Single steps of columns in, transitions of n of them out, n − 1 steps later or when an episode ends."""

    def __init__(self, n_step: int, discount: float):
        """Nothing is open.

        Args:
          n_step: n.
          discount: γ, of one step.
        """
        self._n_step, self._discount = n_step, discount
        self._open: dict[int, collections.deque[_Open]] = {}  # by column, the oldest first

    def add(self, columns: np.ndarray, steps: dict[str, Tree]) -> dict[str, Tree] | None:
        """One step of each of M columns; the transitions that are whole now, None if there are none.

        Args:
          columns: [M], which these are.
          steps: "obs", "action", "reward", "after", "terminated", "truncated", each [M, ...].

        Returns:
          The same fields and "discount", [N, ...].
        """
        whole: list[tuple[_Open, int]] = []  # and where among `steps` it ends
        ends = np.asarray(steps["terminated"]) | np.asarray(steps["truncated"])
        for place, column in enumerate(map(int, columns)):
            reward = float(steps["reward"][place])
            begun = _Open(trees.pick(steps["obs"], place), trees.pick(steps["action"], place), 0.0, 1.0)
            still = collections.deque(
                one._replace(reward=one.reward + one.discount * reward, discount=self._discount * one.discount)
                for one in (*self._open.pop(column, ()), begun)
            )
            while still and (ends[place] or len(still) == self._n_step):
                whole.append((still.popleft(), place))
            self._open[column] = still
        if not whole:
            return None
        opened, places = [one for one, _ in whole], np.array([place for _, place in whole])
        last = {name: trees.pick(steps[name], places) for name in ("after", "terminated", "truncated")}
        return {**_stacked(opened), **last}

    def forget(self, columns: np.ndarray) -> None:
        """Nothing that is open in these columns will end: they were begun anew."""
        for column in map(int, columns):
            self._open.pop(column, None)

    def snapshot(self) -> dict[str, Any]:
        """What is open, with the columns it is open in."""
        pairs = [(column, one) for column, still in self._open.items() for one in still]
        if not pairs:
            return {}
        return {"column": np.array([column for column, _ in pairs]), **_stacked([one for _, one in pairs])}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """The reverse."""
        self._open = {}
        for place, column in enumerate(map(int, snapshot.get("column", ()))):
            obs, action = (trees.pick(snapshot[name], place) for name in ("obs", "action"))
            one = _Open(obs, action, float(snapshot["reward"][place]), float(snapshot["discount"][place]))
            self._open.setdefault(column, collections.deque()).append(one)


def _stacked(opened: list[_Open]) -> dict[str, Tree]:
    """Fields of several, each [N, ...]."""
    obs, action = (
        trees.map(lambda *leaves: np.stack(leaves), *trees_of)
        for trees_of in zip(*(one[:2] for one in opened), strict=True)
    )
    reward, discount = (np.array(numbers) for numbers in zip(*(one[2:] for one in opened), strict=True))
    return {"obs": obs, "action": action, "reward": reward, "discount": discount}
