"""The experience types, and the legend of shapes.

Letters used in every shape: T time, B batch (or environments), A actions, N tree nodes, K ensemble members,
H horizon, C context rows. Time comes first, then batch.

This module does not import torch, so that a process that only steps environments stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.trees import Tree

if TYPE_CHECKING:
    from torch import Tensor

CarryRows = Literal["every", "first", "none"]  # the rows of a chunk that come with their recurrent state


class Row(NamedTuple):
    """Input of a policy for B environments at one timestep: an observation and the results of the last action.

    Environments and memories use NumPy arrays; a policy receives tensors, with context rows in front.
    """

    obs: Tree  # [B, ...]
    first: Tensor  # [B] bool   the row comes from a reset
    last_action: Tree  # [B, ...]   zeros where first
    last_reward: dict[str, Tensor]  # {channel: [B] float32}   0 where first; "train" is always there
    terminated: Tensor  # [B] bool   the last action ended the task (or cost a life)
    truncated: Tensor  # [B] bool   a time limit ended the episode after the last action


class Chunk(NamedTuple):
    """K consecutive rows of one group of B environments as NumPy arrays, for transport from an actor to a memory.

    A chunk may be sent to another process as plain arrays and JSON, see `to_arrays`.
    """

    rows: Row  # [K, B, ...]
    carries: Tree  # [K, B, ...] before each row; [1, B, ...]: only before the first row; (): not sent
    extras: dict[str, np.ndarray]  # [K, B, ...] added to the rows by the policy

    @property
    def length(self) -> int:
        """Return the number of rows K."""
        return len(self.rows.first)

    @property
    def nbytes(self) -> int:
        """Return the size of all arrays in bytes."""
        return sum(leaf.nbytes for leaf in trees.flatten(tuple(self)))

    def carry(self, number: int) -> Tree:
        """Return the carry [B, ...] before row `number`; ValueError if the chunk does not hold it."""
        leaves = trees.flatten(self.carries)
        if leaves and number >= len(leaves[0]):
            raise ValueError(f"the carry before row {number} is needed, but this chunk has only the first")
        return trees.map(lambda leaf: leaf[number], self.carries)

    def row(self, number: int) -> Row:
        """Return row `number` [B, ...] as views."""
        return trees.map(lambda leaf: leaf[number], self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the chunk as a tree of dicts, for a checkpoint."""
        return {"rows": self.rows._asdict(), "carries": self.carries, "extras": self.extras}

    @staticmethod
    def from_dict(tree: dict[str, Any]) -> Chunk:
        """Return the chunk that `as_dict` described."""
        return Chunk(Row(**tree["rows"]), tree["carries"], tree["extras"])

    def part(self, first: int, end: int) -> Chunk:
        """Return rows `first` to `end` − 1 as views."""
        leaves = trees.flatten(self.carries)
        sparse = bool(leaves) and len(leaves[0]) < self.length
        if sparse and first:
            raise ValueError(f"the carry before row {first} is needed, but this chunk has only the first")
        rows, extras = trees.map(lambda leaf: leaf[first:end], (self.rows, self.extras))
        return Chunk(rows, self.carries if sparse else trees.map(lambda leaf: leaf[first:end], self.carries), extras)

    def to_arrays(self) -> tuple[list[np.ndarray], Any]:
        """Return all arrays, and a JSON value from which `from_arrays` restores the structure."""
        tree = {"rows": self.rows._asdict(), "carries": self.carries, "extras": self.extras}
        return trees.flatten(tree), trees.outline(tree)

    @classmethod
    def from_arrays(cls, arrays: Sequence[np.ndarray], outline: Any) -> Chunk:
        """Return the chunk for the output of `to_arrays`; the arrays are not copied."""
        tree = trees.from_outline(outline, arrays)
        return cls(Row(**tree["rows"]), tree["carries"], tree["extras"])


class Trajectory(NamedTuple):
    """T steps of B environments, time first, C context rows in front.

    reward[t], terminated[t], truncated[t] and row C+t+1 are the results of action[t]. A transition is a trajectory with
    T = 1. If first[C+t+1] is set, action[t] was ignored because of a reset: a filler row, not a step.
    """

    obs: Tree  # [C+T+1, B, ...]  obs[C+t+1] follows action[t]; the last row is for bootstrapping
    first: Tensor  # [C+T+1, B] bool  the row comes from a reset
    action: Tree  # [T, B, ...]
    reward: Tensor  # [T, B] float32  training channel, unscaled
    terminated: Tensor  # [T, B] bool  the task ended (or a life was lost): discount 0
    truncated: Tensor  # [T, B] bool  a time limit ended the episode: discount kept, trace cut
    last_action: Tree  # [C+1, B, ...]  before each context row and row 0
    last_reward: dict[str, Tensor]  # {channel: [C+1, B]}  same rows; "train" is always there
    carry: Tree  # [B, ...]  recurrent state before row 0; () if none
    # [T, B, ...]  further data from the actor: behaviour_log_prob, weights_version, reward/NAME.
    extras: dict[str, Tensor]

    def last_inputs(self) -> tuple[Tree, Tensor]:
        """Return last action and last training reward before each row, [C+T+1, B, ...], as network inputs."""
        import torch

        actions = trees.map(lambda before, after: torch.cat([before, after]), self.last_action, self.action)
        return actions, torch.cat([self.last_reward["train"], self.reward])


class Sample(NamedTuple):
    """A batch from a memory for a learner: a trajectory, with keys and weights."""

    trajectory: Trajectory
    steps: int  # environment steps in it: T·B minus filler rows
    keys: Tensor | None = None  # [B] identify items for priority updates; None in a queue
    importance_weight: Tensor | None = None  # [B]
    lag: Tensor | None = None  # [B] policy lag: learner versions since the weights that chose the first action


class Request(NamedTuple):
    """A prediction request to a named network. The answer is {head: array [M, ...]}; M may differ between requests."""

    network: str
    inputs: Tree  # [M, ...] NumPy arrays


@dataclass(frozen=True)
class Spec:
    """Observation space, action space and reward channels of an environment.

    Networks are built from it, checkpoints store it.
    """

    obs: gym.Space
    action: gym.Space
    reward_channels: tuple[str, ...] = ("train",)  # "train" first
    frames_per_step: int = 1  # emulator frames per step
    factors: tuple[Any, ...] = ()  # factors of vector observations, if known: `envs/categorical_factors.py`
