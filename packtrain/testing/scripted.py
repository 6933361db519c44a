"""A policy without a network, whose every number can be predicted: for following rows through the machinery."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor

from packtrain import trees
from packtrain.acting.seat import Seat
from packtrain.envs.boundary import space_leaves
from packtrain.envs.stream import Stream
from packtrain.trees import Tree
from packtrain.types import Row


class ScriptedPolicy:
    """Acts by counting: column b chooses its action in its row number r (0 for the first) from b and r alone.

    The action is (7·r + 3·b) modulo n for a choice of n, and that number over 10, modulo 2, less 1, for a continuous
    entry. The carry is the row number, {"rows": int64 [B]}: before row r it is r. It counts on over resets, so it says
    of every stored unroll where in the life of its column it begins.

    Extras: "row", the row number again, and "noise", one number of [0, 1) a column from the generator: whether a
    generator was saved and restored shows there.
    """

    context = 0

    def __init__(self, action_space: gym.Space, seed: int = 0):
        self.device = torch.device("cpu")
        self.generator = torch.Generator().manual_seed(seed)
        self._spaces = space_leaves(action_space)

    def seat(self, stream: Stream) -> Seat:
        """The seat of one group."""
        return Seat(self, stream.size)  # type: ignore[arg-type]

    def initial_carry(self, batch: int) -> Tree:
        """No rows seen."""
        return {"rows": torch.zeros(batch, dtype=torch.int64)}

    def act(self, row: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """The script's actions for B columns."""
        rows = carry["rows"]
        number = 7 * rows + 3 * torch.arange(len(rows))
        noise = torch.rand(len(rows), generator=self.generator)
        action = trees.map(lambda space: _choose(space, number), self._spaces)
        return action, {"rows": rows + 1}, {"row": rows.clone(), "noise": noise}


def _choose(space: gym.Space, number: Tensor) -> Tensor:
    """[B] → [B, ...], the same number in every entry of the space."""
    wide = number.view(-1, *[1] * len(space.shape or ())).expand(-1, *(space.shape or ()))
    if isinstance(space, gym.spaces.Discrete):
        return wide % int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return wide % torch.as_tensor(space.nvec)
    if isinstance(space, gym.spaces.MultiBinary):
        return wide % 2
    return (wide / 10) % 2 - 1
