"""A convolutional ensemble that predicts the next board: the class of every cell, the reward and termination.

Boards are one-hot planes [height, width, C], as of Sokoban: each cell is of one of C classes. Convolutions keep the
board's size, so every cell is predicted from its neighbourhood, and what is learned at one place holds at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.config import configurable
from packtrain.envs.categorical_factors import Factors
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.world_model import Predicts, rows_first


@configurable
@dataclass(frozen=True)
class BoardModel:
    """Sizes of a convolutional ensemble over boards."""

    members: int = 4  # K
    channels: int = 48  # of each layer of each member
    layers: int = 3
    kernel_size: int = 3  # odd; cells up to layers · (kernel_size − 1) / 2 away influence a prediction

    def __post_init__(self) -> None:
        check.at_least(self, 1, "members", "channels", "layers", "kernel_size")
        if self.kernel_size % 2 == 0:
            raise ConfigError(
                f"BoardModel.kernel_size = {self.kernel_size} must be odd, so that boards keep their size"
            )

    def build(self, observation_space: gym.Space, action_space: gym.Space, factors: Factors = ()) -> BoardModelNetwork:
        """Return the module; EnvSetupError unless observations are boards and actions are discrete.

        Factors are ignored: each cell is one.
        """
        shape = observation_space.shape
        if not isinstance(observation_space, gym.spaces.Box) or shape is None or len(shape) != 3:
            raise EnvSetupError(f"BoardModel needs boards [height, width, classes], not {observation_space}")
        if not isinstance(action_space, gym.spaces.Discrete):
            raise EnvSetupError(f"BoardModel needs discrete actions, but the action space is {action_space}")
        return BoardModelNetwork(self, shape[2], int(action_space.n))


class BoardModelNetwork(nn.Module):
    """Board and action → {"classes": [N, K, H, W, C], "reward": [N, K], "terminated": [N, K]}, all of them logits.

    The members are groups of one convolution. The classes are added to those of the board before the action, so that
    "nothing changes" is where learning begins. Reward and termination are linear in the mean and in the largest value
    of each channel over the board.
    """

    predicts: Predicts = "cells"

    def __init__(self, sizes: BoardModel, classes: int, actions: int):
        super().__init__()
        self.members, self.actions, self._classes = sizes.members, actions, classes
        k, width, pad = sizes.members, sizes.channels, sizes.kernel_size // 2
        inputs = [classes + actions, *[width] * (sizes.layers - 1)]
        self.layers = nn.ModuleList(
            nn.Conv2d(k * before, k * width, sizes.kernel_size, padding=pad, groups=k) for before in inputs
        )
        self.cells = nn.Conv2d(k * width, k * classes, 1, groups=k)
        self.ends = nn.Conv1d(k * 2 * width, k * 2, 1, groups=k)  # a linear layer of each member
        for module in (*self.layers, self.cells, self.ends):
            assert isinstance(module, nn.Conv1d | nn.Conv2d) and module.bias is not None
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    def guess(self, obs: Tensor, action: Tensor) -> dict[str, Tensor]:
        """Return all members' predictions, members first.

        Args:
          obs: [N, H, W, C], the same for all members, or [K, N, H, W, C].
          action: [N] or [K, N].
        """
        if obs.ndim == 4:
            obs, action = (leaf.expand(self.members, *leaf.shape) for leaf in (obs, action))
        chosen = nn.functional.one_hot(action.long(), self.actions).to(obs.dtype)[:, :, None, None]
        planes = torch.cat([obs, chosen.expand(*obs.shape[:-1], self.actions)], -1)  # [K, N, H, W, C + A]
        x = planes.permute(1, 0, 4, 2, 3).flatten(1, 2)  # [N, K · (C + A), H, W]
        for layer in self.layers:
            x = torch.relu(layer(x))
        cells = self.cells(x).unflatten(1, (self.members, self._classes)).permute(1, 0, 3, 4, 2)  # [K, N, H, W, C]
        by_member = x.unflatten(1, (self.members, -1))  # [N, K, F, H, W]
        pooled = torch.cat([by_member.mean((3, 4)), by_member.amax((3, 4))], 2).flatten(1)  # [N, K · 2F]
        ends = self.ends(pooled[..., None]).unflatten(1, (self.members, 2)).transpose(0, 1)  # [K, N, 2, 1]
        return {"classes": cells + 2.0 * obs, "reward": ends[:, :, 0], "terminated": ends[:, :, 1]}

    def errors(self, guess: dict[str, Tensor], obs: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Return each member's cross-entropy, summed over cells [K], and where all cells are right [K, N].

        The sum, unlike the mean, does not shrink with the size of the board: a step changes two or three cells.
        """
        logits, truth = guess["classes"], after.expand(guess["classes"].shape)
        entropy = -(logits.log_softmax(-1) * truth).sum((2, 3, 4))  # [K, N]
        right = (logits.detach().argmax(-1) == truth.argmax(-1)).all(-1).all(-1)
        return entropy.mean(1), right

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Answer a planner's request; the axis of members follows that of rows."""
        return rows_first(self.guess(inputs["obs"].float(), inputs["action"]), "classes")
