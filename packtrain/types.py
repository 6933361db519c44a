"""The experience types, and the legend of shapes.

Letters used in every shape: T time, B batch (or environment columns), A actions, N tree nodes, K ensemble members,
H horizon, C context rows. Time comes first, then batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from packtrain import trees
from packtrain.trees import Tree


class Row(NamedTuple):
    """What a policy sees of B environments at one moment: an observation and what led to it.

    Environments and memories hand rows around as NumPy arrays; a policy sees tensors, with context rows in front.
    """

    obs: Tree  # [B, ...]
    first: Tensor  # [B] bool   a reset made this row
    last_action: Tree  # [B, ...]   zeros where first
    last_reward: dict[str, Tensor]  # {channel: [B] float32}   0 where first; "train" is always there
    terminated: Tensor  # [B] bool   the last action ended the task (or cost a life)
    truncated: Tensor  # [B] bool   the clock ended the episode after the last action


class Trajectory(NamedTuple):
    """T steps of B streams, time first, C context rows in front.

    reward[t], terminated[t], truncated[t] and row C+t+1 answer action[t]. A transition is a trajectory with T = 1.
    Where first[C+t+1] is set, action[t] was dropped by a reset: a filler row, not a step.
    """

    obs: Tree  # [C+T+1, B, ...]  obs[C+t+1] answers action[t]; the last row is for bootstrapping
    first: Tensor  # [C+T+1, B] bool  a reset made this row
    action: Tree  # [T, B, ...]
    reward: Tensor  # [T, B] float32  the training channel, as the environment gave it
    terminated: Tensor  # [T, B] bool  the task ended (or a life was lost): discount 0
    truncated: Tensor  # [T, B] bool  the clock ended: discount kept, trace cut
    last_action: Tree  # [C+1, B, ...]  before each context row and row 0
    last_reward: dict[str, Tensor]  # {channel: [C+1, B]}  same rows; "train" is always there
    carry: Tree  # [B, ...]  learned recurrent state before row 0; () if none
    extras: dict[str, Tensor]  # [T, B, ...]  what the actor knew: behaviour_log_prob, weights_version, reward/NAME

    def last_inputs(self) -> tuple[Tree, Tensor]:
        """Last action and last training reward before each row, [C+T+1, B, ...]: what a network saw beside obs."""
        actions = trees.map(lambda before, after: torch.cat([before, after]), self.last_action, self.action)
        return actions, torch.cat([self.last_reward["train"], self.reward])


class Sample(NamedTuple):
    """What a memory hands to a learner: a trajectory, and what is needed to answer for it."""

    trajectory: Trajectory
    steps: int  # decisions in it: T·B less filler rows
    keys: Tensor | None = None  # [B] where new priorities go; None in a queue
    importance_weight: Tensor | None = None  # [B]
    lag: Tensor | None = None  # [B] learner versions since the weights that chose the first action


class Request(NamedTuple):
    """A question to a named network. The answer is {head: array [M, ...]}; M may differ from request to request."""

    network: str
    inputs: Tree  # [M, ...] NumPy arrays


@dataclass(frozen=True)
class Spec:
    """What an environment shows and takes. Networks are built from it, checkpoints carry it."""

    obs: gym.Space
    action: gym.Space
    reward_channels: tuple[str, ...] = ("train",)  # "train" first
    frames_per_step: int = 1  # emulator frames that one decision lasts
    factors: tuple[Any, ...] = ()  # what a vector of observations is made of, where that is known: `envs/factors.py`
