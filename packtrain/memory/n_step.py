"""Transitions of n steps: an action, the return of n steps, and the observation n steps later.

There are n steps, or fewer where an episode ends before: none of its steps is left out, and no transition reaches over
its end. What rewards are worth by then is the learner's business (`equations.value_expansion.joined_rewards`).
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.trees import Tree


class _Open(NamedTuple):
    """An action whose n-th step is still to come."""

    obs: Tree
    action: Tree
    rewards: tuple[float, ...]  # rewards collected so far


class Joiner:
    """Joins single steps into transitions of n steps, complete after n − 1 more steps or at the end of an episode."""

    def __init__(self, n_step: int):
        """Create a joiner without incomplete transitions; n_step: n."""
        self._n_step = n_step
        self._open: dict[int, collections.deque[_Open]] = {}  # unfinished transitions of each environment, oldest first

    def add(self, columns: np.ndarray, steps: dict[str, Tree]) -> dict[str, Tree] | None:
        """Add one step of each of M environments; return the transitions that are complete, None if there are none.

        Args:
          columns: [M], indices of the environments.
          steps: "obs", "action", "reward", "after", "terminated", "truncated", each [M, ...].

        Returns:
          The same fields [N, ...], of the reward [N, n], 0 after the last step; and "steps" [N], how many there were.
        """
        whole: list[tuple[_Open, int]] = []  # complete transitions, and the index in `steps` at which each ends
        ends = np.asarray(steps["terminated"]) | np.asarray(steps["truncated"])
        for place, column in enumerate(map(int, columns)):
            reward = float(steps["reward"][place])
            begun = _Open(trees.pick(steps["obs"], place), trees.pick(steps["action"], place), ())
            before = self._open.pop(column, ())
            still = collections.deque(one._replace(rewards=(*one.rewards, reward)) for one in (*before, begun))
            while still and (ends[place] or len(still) == self._n_step):
                whole.append((still.popleft(), place))
            self._open[column] = still
        if not whole:
            return None
        opened, places = [one for one, _ in whole], np.array([place for _, place in whole])
        last = {name: trees.pick(steps[name], places) for name in ("after", "terminated", "truncated")}
        return {**self._fields(opened), **last}

    def forget(self, columns: np.ndarray) -> None:
        """Drop the incomplete transitions of these environments, which were restarted with new episodes."""
        for column in map(int, columns):
            self._open.pop(column, None)

    def snapshot(self) -> dict[str, Any]:
        """Return the incomplete transitions, with the indices of their environments."""
        pairs = [(column, one) for column, still in self._open.items() for one in still]
        if not pairs:
            return {}
        return {"column": np.array([column for column, _ in pairs]), **self._fields([one for _, one in pairs])}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Load what `snapshot` returned."""
        self._open = {}
        for place, column in enumerate(map(int, snapshot.get("column", ()))):
            obs, action = (trees.pick(snapshot[name], place) for name in ("obs", "action"))
            rewards = snapshot["reward"][place, : snapshot["steps"][place]].tolist()
            self._open.setdefault(column, collections.deque()).append(_Open(obs, action, tuple(rewards)))

    def _fields(self, opened: list[_Open]) -> dict[str, Tree]:
        """Return the fields of several transitions, each [N, ...]."""
        steps = np.array([len(one.rewards) for one in opened])
        reward = np.zeros((len(opened), self._n_step), np.float32)
        for row, one in zip(reward, opened, strict=True):
            row[: len(one.rewards)] = one.rewards
        obs, action = trees.stack(one.obs for one in opened), trees.stack(one.action for one in opened)
        return {"obs": obs, "action": action, "reward": reward, "steps": steps}
