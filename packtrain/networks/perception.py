"""Perception: modules that turn observations into flat feature vectors.

Settings are values; `build` makes the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from packtrain import check, trees
from packtrain.config import configurable
from packtrain.envs.validation import space_leaves
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.trees import Tree


class Perception(Protocol):
    """Builds a module that maps observations [N, ...] to features [N, width]; the module has `.width`.

    With `frames` above 1 it takes frame stacks: images [N, frames, H, W].
    """

    @property
    def frames(self) -> int:
        """Return the number of stacked frames."""

    def build(self, space: gym.Space) -> nn.Module:
        """Return the module for an observation space."""


@configurable
@dataclass(frozen=True)
class Flatten:
    """Flattens and concatenates all leaves of the observation: vectors, one-hot numbers, small images."""

    frames = 1

    def build(self, space: gym.Space) -> nn.Module:
        """Return a module without parameters."""
        return _Flatten(space)


@configurable
@dataclass(frozen=True)
class Conv:
    """Convolutions over the observation's single image; other leaves are flattened and concatenated to their output.

    With four frames and three layers (32, 64, 64), (8, 4, 3), (4, 2, 1) these are TorchBeast's shallow AtariNet's.
    """

    frames: int = 1  # number of stacked frames; above 1 only for grey images [H, W]
    channels: tuple[int, ...] = (16, 32)
    kernels: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] = (1, 1)

    def __post_init__(self) -> None:
        if not len(self.channels) == len(self.kernels) == len(self.strides) > 0:
            raise ConfigError(
                "Conv.channels, Conv.kernels and Conv.strides need one number per layer, for at least one layer"
            )
        check.each_at_least(self, 1, "channels", "kernels", "strides")
        check.at_least(self, 1, "frames")

    def build(self, space: gym.Space) -> nn.Module:
        """Return the module; EnvSetupError unless the observation has exactly one image."""
        return _Pictures(space, self.frames, "Conv", self._layers)

    def _layers(self, first: type[nn.Conv2d], channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        layers: list[nn.Module] = []
        shape = (channels, height, width)
        for out, kernel, stride in zip(self.channels, self.kernels, self.strides, strict=True):
            kind = nn.Conv2d if layers else first
            layers += [kind(channels, out, kernel, stride), nn.ReLU(inplace=True)]
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if height < 1 or width < 1:
                raise ConfigError(
                    f"Conv.kernels {self.kernels} are too large for an image of shape {shape}; --config "
                    "'QNetwork.perception = @Conv()', for PPO and IMPALA 'ActorCritic.perception = @Conv()', has "
                    "kernels of 3, and Conv.channels, Conv.kernels and Conv.strides set them"
                )
        return nn.Sequential(*layers, nn.Flatten()), channels * height * width


@configurable
@dataclass(frozen=True)
class ResNet:
    """IMPALA's deep network for the observation's image: sections of convolution, max pooling and residual blocks."""

    frames: int = 1  # number of stacked frames; above 1 only for grey images [H, W]
    channels: tuple[int, ...] = (16, 32, 32)  # channels of each section
    blocks: int = 2  # residual blocks per section, two convolutions each

    def __post_init__(self) -> None:
        if not self.channels or min(self.channels) < 1:
            raise ConfigError(f"ResNet.channels = {self.channels} needs one number per section, each at least 1")
        check.at_least(self, 1, "frames", "blocks")

    def build(self, space: gym.Space) -> nn.Module:
        """Return the module; EnvSetupError unless the observation has exactly one image."""
        return _Pictures(space, self.frames, "ResNet", self._layers)

    def _layers(self, first: type[nn.Conv2d], channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        layers: list[nn.Module] = []
        for out in self.channels:
            kind = nn.Conv2d if layers else first
            layers += [kind(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [_Residual(out) for _ in range(self.blocks)]
            channels, height, width = out, (height + 1) // 2, (width + 1) // 2
        return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Flatten()), channels * height * width


class _Flatten(nn.Module):
    def __init__(self, space: gym.Space):
        super().__init__()
        self._spaces = trees.flatten(space_leaves(space))
        self.width = sum(_width(leaf) for leaf in self._spaces)

    def forward(self, obs: Tree) -> Tensor:
        parts = [_flat(leaf, space) for leaf, space in zip(trees.flatten(obs), self._spaces, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class _ByteConv2d(nn.Conv2d):
    """A convolution over bytes that includes the division by 255: the few weights are divided, not the many pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight / 255, self.bias)


class _Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class _Pictures(nn.Module):
    """Layers for the image of an observation, in the memory format that is fastest for convolutions."""

    def __init__(
        self,
        space: gym.Space,
        frames: int,
        name: str,
        layers: Callable[[type[nn.Conv2d], int, int, int], tuple[nn.Module, int]],
    ):
        super().__init__()
        self._spaces = trees.flatten(space_leaves(space))
        pictures = [i for i, leaf in enumerate(self._spaces) if is_picture(leaf)]
        if len(pictures) != 1:
            raise EnvSetupError(
                f"{name} needs exactly one image in the observation, which has {len(pictures)}; try "
                "ActorCritic.perception = @Flatten()"
            )
        self._picture = pictures[0]
        shape = self._spaces[self._picture].shape
        if frames > 1 and len(shape) != 2:
            raise EnvSetupError(f"{name}.frames = {frames} stacks grey images [H, W], and this one has shape {shape}")
        self._channels_last = len(shape) == 3 and shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4)
        channels, height, width = _channel_first(shape, self._channels_last)
        first = _ByteConv2d if self._spaces[self._picture].dtype == np.uint8 else nn.Conv2d
        convolutions, size = layers(first, channels * frames, height, width)
        self.convolutions = convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._others = [i for i in range(len(self._spaces)) if i != self._picture]
        self.width = size + sum(_width(self._spaces[i]) for i in self._others)

    def forward(self, obs: Tree) -> Tensor:
        leaves = trees.flatten(obs)
        picture = leaves[self._picture]
        if picture.ndim == 3:
            picture = picture.unsqueeze(1)  # [N, H, W] → [N, 1, H, W]
        if self._channels_last:
            picture = picture.permute(0, 3, 1, 2)  # [N, H, W, C] → [N, C, H, W]
        kind = picture.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        features = [self.convolutions(picture.contiguous(memory_format=torch.channels_last).to(dtype))]
        features += [_flat(leaves[i], self._spaces[i]) for i in self._others]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


def is_picture(space: gym.Space) -> bool:
    """Return whether a leaf of an observation space is an image, [H, W] or with channels first or last."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) in (2, 3)


def _channel_first(shape: tuple[int, ...], channels_last: bool) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    return (shape[2], shape[0], shape[1]) if channels_last else (shape[0], shape[1], shape[2])


def _scaled(leaf: Tensor) -> Tensor:
    return leaf.float().div_(255) if leaf.dtype == torch.uint8 else leaf.float()


def _width(space: gym.Space) -> int:
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return math.prod(space.shape or (1,))


def _flat(leaf: Tensor, space: gym.Space) -> Tensor:
    """Return [N, ...] as [N, width], discrete numbers one-hot."""
    one_hot = torch.nn.functional.one_hot
    if isinstance(space, gym.spaces.Discrete):
        return one_hot(leaf.long() - int(space.start), int(space.n)).float()
    if isinstance(space, gym.spaces.MultiDiscrete):
        columns = (leaf.long() - torch.as_tensor(space.start, device=leaf.device)).flatten(1)
        sizes = [int(n) for n in space.nvec.flatten()]
        return torch.cat([one_hot(columns[:, i], n) for i, n in enumerate(sizes)], -1).float()
    return _scaled(leaf).reshape(leaf.shape[0], -1)  # a Box may have no axes: [N] → [N, 1]
