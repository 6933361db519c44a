"""Writer of the uniform replay: joins rows into transitions of one or n steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from packtrain import trees
from packtrain.interfaces import Writer
from packtrain.memory.n_step import Joiner
from packtrain.trees import Tree
from packtrain.types import Row

if TYPE_CHECKING:
    from packtrain.memory.replay import ReplayMemory


class TransitionWriter(Writer):
    """Writes the transitions of one group of environments: each a row, its action, and the row n steps later."""

    def __init__(self, memory: ReplayMemory, size: int, n_step: int):
        self._memory, self.size = memory, size
        self._obs: Tree = None  # observation of the previous row
        self._joiner = Joiner(n_step) if n_step > 1 else None
        # running discounted returns, for `RewardScale`
        self._returns = np.zeros(size if memory.reward_scale is not None else 0)

    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """Store one row of all environments. A row that follows a reset completes no transition."""
        before, self._obs = self._obs, trees.map(_on_host, row.obs)
        if before is None:
            return
        if self._memory.reward_scale is not None:
            self._memory.reward_scale.add(self._returns, row.last_reward["train"], row.first)
        real = np.flatnonzero(~np.asarray(row.first))
        if self._joiner is not None:
            self._joiner.forget(np.flatnonzero(row.first))
        if not len(real):
            return

        def pick(tree: Tree) -> Tree:
            return trees.map(lambda leaf: np.asarray(leaf)[real], tree)

        steps = {
            "obs": pick(before),
            "action": pick(row.last_action),
            "reward": pick(row.last_reward["train"]),
            "after": pick(self._obs),
            "terminated": pick(row.terminated),
            "truncated": pick(row.truncated),
        }
        whole = steps if self._joiner is None else self._joiner.add(real, steps)
        if whole is not None:
            self._memory.add(whole)
        self._memory.steps += len(real)  # incremented last: the learner polls it

    def snapshot(self) -> dict[str, Any]:
        """Return the previous row, incomplete n-step transitions, and running returns if rewards are normalised."""
        found: dict[str, Any] = {} if self._obs is None else {"obs": trees.map(np.copy, self._obs)}
        if self._memory.reward_scale is not None:
            found["returns"] = self._returns.copy()
        return found if self._joiner is None else {**found, "open": self._joiner.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Load what `snapshot` returned; empty: the next row begins new episodes."""
        self._obs = trees.map(np.array, snapshot["obs"]) if "obs" in snapshot else None
        if self._memory.reward_scale is not None:
            self._returns[:] = snapshot.get("returns", 0.0)
        if self._joiner is not None:
            self._joiner.restore(snapshot.get("open", {}))


def _on_host(leaf: Any) -> np.ndarray:
    """Return a copy as an array on the host; policies on a GPU pass observations that are there."""
    return leaf.cpu().numpy() if isinstance(leaf, Tensor) and leaf.is_cuda else np.array(leaf)
