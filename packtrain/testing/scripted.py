"""A policy without a network whose outputs are predictable, for tests of data flow."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor

from packtrain import trees
from packtrain.acting.actor_state import RowPolicy
from packtrain.envs.validation import space_leaves
from packtrain.trees import Tree
from packtrain.types import Row


class ScriptedPolicy(RowPolicy):
    """Acts by counting: environment b chooses its action in its row number r (0 for the first) from b and r alone.

    The action is (7·r + 3·b) modulo n for a discrete action, and that number over 10, modulo 2, minus 1, for a
    continuous entry. The carry is the row number, {"rows": int64 [B]}: before row r it is r. It keeps counting across
    resets, so it shows for every stored unroll at which row of its environment it begins.

    Extras: "row", the row number, and "noise", one number of [0, 1) per environment from the generator, which shows
    whether
    a generator was saved and restored.
    """

    context = 0

    def __init__(self, action_space: gym.Space, seed: int = 0):
        self.device = torch.device("cpu")
        self.generator = torch.Generator().manual_seed(seed)
        self._spaces = space_leaves(action_space)

    def initial_carry(self, batch: int) -> Tree:
        """Return counts of 0."""
        return {"rows": torch.zeros(batch, dtype=torch.int64)}

    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Return the script's actions for B environments."""
        seen = carry["rows"]
        number = 7 * seen + 3 * torch.arange(len(seen))
        noise = torch.rand(len(seen), generator=self.generator)
        action = trees.map(lambda space: _choose(space, number), self._spaces)
        return action, {"rows": seen + 1}, {"row": seen.clone(), "noise": noise}


def _choose(space: gym.Space, number: Tensor) -> Tensor:
    """Return [B] as [B, ...], the same number in every entry of the space."""
    wide = number.view(-1, *[1] * len(space.shape or ())).expand(-1, *(space.shape or ()))
    if isinstance(space, gym.spaces.Discrete):
        return wide % int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return wide % torch.as_tensor(space.nvec)
    if isinstance(space, gym.spaces.MultiBinary):
        return wide % 2
    return (wide / 10) % 2 - 1
