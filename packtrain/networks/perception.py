"""From observations to a flat vector of features. Descriptions are values; `build` makes the module."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import gymnasium as gym
import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.config import configurable
from packtrain.envs.boundary import space_leaves
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.trees import Tree


class Perception(Protocol):
    """Builds a module that maps observations [N, ...] to features [N, width]; the module has `.width`."""

    def build(self, space: gym.Space) -> nn.Module:
        """The module for an observation space."""


@configurable
@dataclass(frozen=True)
class Flatten:
    """Every leaf of the observation laid flat and put side by side: vectors, one-hot numbers, small pictures."""

    def build(self, space: gym.Space) -> nn.Module:
        """A module without parameters."""
        return _Flatten(space)


@configurable
@dataclass(frozen=True)
class Conv:
    """Convolutions over the one picture of the observation; what else there is, is laid flat beside their output."""

    channels: tuple[int, ...] = (16, 32)
    kernels: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] = (1, 1)

    def __post_init__(self) -> None:
        if not len(self.channels) == len(self.kernels) == len(self.strides) > 0:
            raise ConfigError("Conv.channels, Conv.kernels and Conv.strides need one number a layer, and a layer")
        if min(*self.channels, *self.kernels, *self.strides) < 1:
            raise ConfigError("Conv.channels, Conv.kernels and Conv.strides must be at least 1")

    def build(self, space: gym.Space) -> nn.Module:
        """The module; EnvSetupError if there is not exactly one picture."""
        return _Conv(space, self)


class _Flatten(nn.Module):
    def __init__(self, space: gym.Space):
        super().__init__()
        self._spaces = trees.flatten(space_leaves(space))
        self.width = sum(_width(leaf) for leaf in self._spaces)

    def forward(self, obs: Tree) -> Tensor:
        parts = [_flat(leaf, space) for leaf, space in zip(trees.flatten(obs), self._spaces, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class _Conv(nn.Module):
    def __init__(self, space: gym.Space, description: Conv):
        super().__init__()
        self._spaces = trees.flatten(space_leaves(space))
        pictures = [i for i, leaf in enumerate(self._spaces) if _is_picture(leaf)]
        if len(pictures) != 1:
            raise EnvSetupError(
                f"Conv looks at one picture, and the observation has {len(pictures)}; "
                "try ActorCritic.perception = @Flatten()"
            )
        self._picture = pictures[0]
        shape = self._spaces[self._picture].shape
        self._channels_last = len(shape) == 3 and shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4)
        channels, height, width = _channel_first(shape, self._channels_last)
        layers: list[nn.Module] = []
        for out, kernel, stride in zip(description.channels, description.kernels, description.strides, strict=True):
            layers += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU()]
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if height < 1 or width < 1:
                raise ConfigError(f"Conv.kernels {description.kernels} leave nothing of a picture of shape {shape}")
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self._others = [i for i in range(len(self._spaces)) if i != self._picture]
        self.width = channels * height * width + sum(_width(self._spaces[i]) for i in self._others)

    def forward(self, obs: Tree) -> Tensor:
        leaves = trees.flatten(obs)
        picture = leaves[self._picture]
        if picture.ndim == 3:
            picture = picture.unsqueeze(1)  # [N, H, W] → [N, 1, H, W]
        if self._channels_last:
            picture = picture.permute(0, 3, 1, 2)  # [N, H, W, C] → [N, C, H, W]
        features = [self.convolutions(_scaled(picture))]
        features += [_flat(leaves[i], self._spaces[i]) for i in self._others]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


def _is_picture(space: gym.Space) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) in (2, 3)


def _channel_first(shape: tuple[int, ...], channels_last: bool) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    return (shape[2], shape[0], shape[1]) if channels_last else (shape[0], shape[1], shape[2])


def _scaled(leaf: Tensor) -> Tensor:
    return leaf.float() / 255 if leaf.dtype == torch.uint8 else leaf.float()


def _width(space: gym.Space) -> int:
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return math.prod(space.shape or (1,))


def _flat(leaf: Tensor, space: gym.Space) -> Tensor:
    """[N, ...] → [N, width], numbers one-hot."""
    one_hot = torch.nn.functional.one_hot
    if isinstance(space, gym.spaces.Discrete):
        return one_hot(leaf.long() - int(space.start), int(space.n)).float()
    if isinstance(space, gym.spaces.MultiDiscrete):
        columns = (leaf.long() - torch.as_tensor(space.start, device=leaf.device)).flatten(1)
        sizes = [int(n) for n in space.nvec.flatten()]
        return torch.cat([one_hot(columns[:, i], n) for i, n in enumerate(sizes)], -1).float()
    return _scaled(leaf).reshape(len(leaf), -1)  # a Box may have no axes: [N] → [N, 1]
