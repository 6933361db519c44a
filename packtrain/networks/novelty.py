"""Random network distillation: a predictor network is trained to imitate a fixed random network.

Burda et al. 2018 (arXiv:1810.12894). The prediction error is small for observations similar to many earlier ones.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.config import configurable
from packtrain.errors import EnvSetupError
from packtrain.networks.perception import Perception, is_picture
from packtrain.networks.torso import NATURE, initialise_orthogonally


@configurable
@dataclass(frozen=True)
class RandomDistillation:
    """Sizes of the two networks, fully connected with ReLUs; weights are orthogonal with gain √2, biases 0.

    Images pass through convolutions first. NGU's networks have no hidden layers after these, and 128 outputs.
    """

    target_sizes: tuple[int, ...] = (512,)  # hidden layers of the fixed random network
    # Hidden layers of the predictor; deeper than the target, as in the paper.
    predictor_sizes: tuple[int, ...] = (512, 512)
    representation: int = 64  # number of outputs to predict
    perception: Perception = NATURE  # for images; each network has its own

    def __post_init__(self) -> None:
        check.each_at_least(self, 1, "target_sizes", "predictor_sizes")
        check.at_least(self, 1, "representation")

    def build(self, inputs: int) -> RandomDistillationNetwork:
        """Return the module for vectors of `inputs` numbers; weights are sampled from torch's global generator."""
        return RandomDistillationNetwork(self, inputs)

    def build_for_pictures(self, shape: tuple[int, ...]) -> RandomDistillationNetwork:
        """Return the module for images [H, W] or with channels, given as floats of about unit scale."""
        space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        if not is_picture(space) or self.perception.frames > 1:
            raise EnvSetupError(f"RandomDistillation needs single images, not observations of shape {shape}")
        return RandomDistillationNetwork(self, space)


class RandomDistillationNetwork(nn.Module):
    """Vectors [N, inputs] or images [N, ...], of about unit scale → prediction and target, both [N, F]."""

    def __init__(self, sizes: RandomDistillation, inputs: int | gym.Space):
        super().__init__()
        self.target = _network(sizes, inputs, sizes.target_sizes).requires_grad_(False)
        self.predictor = _network(sizes, inputs, sizes.predictor_sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return prediction and target; no gradient reaches the target."""
        return self.predictor(x), self.target(x)


def _network(sizes: RandomDistillation, inputs: int | gym.Space, hidden: tuple[int, ...]) -> nn.Sequential:
    if isinstance(inputs, int):
        return _layers([inputs, *hidden, sizes.representation])
    perception = sizes.perception.build(inputs)
    initialise_orthogonally(perception)
    width = int(perception.width)  # type: ignore[arg-type]
    return nn.Sequential(perception, *_layers([width, *hidden, sizes.representation]))


def _layers(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layer = nn.Linear(before, after)
        with torch.no_grad():
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
