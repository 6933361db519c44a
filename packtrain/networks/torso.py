"""Torso of Q networks and embeddings: T rows of observations → T rows of features, including frame stacks."""

from __future__ import annotations

import contextlib
import itertools

import gymnasium as gym
import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.envs.validation import space_leaves
from packtrain.networks.frames import stack_frames
from packtrain.networks.normaliser import RunningNormaliser
from packtrain.networks.perception import Conv, Flatten, Perception, is_picture
from packtrain.trees import Tree

NATURE = Conv(channels=(32, 64, 64), kernels=(8, 4, 3), strides=(4, 2, 1))
"""The convolutions of Mnih et al. 2015, also used by R2D2, NGU and Agent57, over one frame."""


def perception_for(space: gym.Space) -> Perception:
    """Return convolutions if the observation has an image, otherwise flattening."""
    return NATURE if any(is_picture(leaf) for leaf in trees.flatten(space_leaves(space))) else Flatten()


class Torso(nn.Module):
    """obs [C+T, B, ...] → features [T, B, width]: perception, then fully connected layers, each with a ReLU.

    `context` rows precede row 0 of obs and first, for frame stacks.
    """

    def __init__(
        self,
        perception: Perception,
        layers: tuple[int, ...],
        space: gym.Space,
        linear_output: bool = False,
        normalise: bool = False,
    ):
        """Build the layers.

        Args:
          perception: first stage of the torso.
          layers: widths of the fully connected layers.
          space: of observations.
          linear_output: omit the ReLU after the last fully connected layer.
          normalise: normalise flattened observations by their running mean and deviation.
        """
        super().__init__()
        self.context = perception.frames - 1
        self.perception = perception.build(space)
        self._pictures = trees.map(is_picture, space_leaves(space))
        widths = [int(self.perception.width), *layers]  # type: ignore[arg-type]
        self.normaliser = RunningNormaliser(widths[0]) if normalise else None
        pairs = [[nn.Linear(before, after), nn.ReLU()] for before, after in itertools.pairwise(widths)]
        body = list(itertools.chain.from_iterable(pairs))
        self.body = nn.Sequential(*(body[:-1] if linear_output else body))
        self.width = widths[-1]

    def forward(self, obs: Tree, first: Tensor, precision: torch.dtype | None = None) -> Tensor:
        """Return features, float32, of all rows but the context.

        Args:
          obs: [C+T, B, ...].
          first: [C+T, B] bool.
          precision: dtype to compute in; None: float32.
        """
        if self.context:
            obs = trees.map(lambda leaf, picture: self._rows(leaf, picture, first, precision), obs, self._pictures)
        shape = first[self.context :].shape
        # A cache would outlive a captured launch.
        autocast = torch.autocast(first.device.type, precision, cache_enabled=False) if precision else None
        with autocast or contextlib.nullcontext():
            seen = self.perception(trees.map(lambda leaf: leaf.flatten(0, 1), obs))
            features = self.body(seen if self.normaliser is None else self.normaliser(seen))  # [T*B, F]
        return features.float().unflatten(0, shape)

    def observe(self, obs: Tree, weight: Tensor) -> None:
        """Update the running moments with observations [N, ...] of weight [N]; without a normaliser, do nothing."""
        if self.normaliser is not None:
            self.normaliser.add(self.perception(obs), weight)

    def _rows(self, leaf: Tensor, picture: bool, first: Tensor, precision: torch.dtype | None) -> Tensor:
        """Return the last T rows of a leaf [C+T, B, ...], images as frame stacks."""
        if not picture:
            return leaf[self.context :]
        return stack_frames(leaf, first, self.context + 1, precision or torch.float32)


@torch.no_grad()
def initialise_orthogonally(network: nn.Module, plain: tuple[nn.Module, ...] = ()) -> None:
    """Initialise weights orthogonally: gain √2, as before a ReLU, or 1 for the `plain` ones; biases 0.

    LSTMs are left unchanged.
    """
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            weight = torch.empty(module.weight.shape)  # torch's function refuses weights stored channels last
            module.weight.copy_(nn.init.orthogonal_(weight, 1.0 if module in plain else 2**0.5))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
