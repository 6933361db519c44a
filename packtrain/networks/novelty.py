"""Random network distillation: a network that is never trained, and one that learns to say what it says.

Burda et al. 2018 (arXiv:1810.12894). Where the second has often been shown the like of an observation, it is right.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from packtrain.config import configurable
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.perception import Perception, is_picture
from packtrain.networks.torso import NATURE, initialise_orthogonally


@configurable
@dataclass(frozen=True)
class RandomDistillation:
    """Sizes of the two networks, fully connected with ReLUs; weights are orthogonal with gain √2, biases 0.

    Pictures go through convolutions first. NGU's networks have no hidden layers behind them, and 128 features.
    """

    target_sizes: tuple[int, ...] = (512,)  # hidden layers of the network that stays as it is
    predictor_sizes: tuple[int, ...] = (512, 512)  # and of the one that learns; the paper's is deeper, too
    representation: int = 64  # features to predict
    perception: Perception = NATURE  # of a picture; each network has its own

    def __post_init__(self) -> None:
        for name in ("target_sizes", "predictor_sizes"):
            if any(size < 1 for size in getattr(self, name)):
                raise ConfigError(f"RandomDistillation.{name} = {getattr(self, name)} must be at least 1 each")
        if self.representation < 1:
            raise ConfigError(f"RandomDistillation.representation = {self.representation} must be at least 1")

    def build(self, inputs: int) -> RandomDistillationNetwork:
        """The module for vectors of `inputs` numbers; weights are drawn from torch's global generator."""
        return RandomDistillationNetwork(self, inputs)

    def build_for_pictures(self, shape: tuple[int, ...]) -> RandomDistillationNetwork:
        """The module for pictures [H, W] or with channels, which come to it as floats of about unit scale."""
        space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        if not is_picture(space) or self.perception.frames > 1:
            raise EnvSetupError(f"RandomDistillation looks at one picture at a time, not at {shape}")
        return RandomDistillationNetwork(self, space)


class RandomDistillationNetwork(nn.Module):
    """Vectors [N, inputs] or pictures [N, ...], of about unit scale → what the predictor says and what it should say.

    Both are [N, F].
    """

    def __init__(self, sizes: RandomDistillation, inputs: int | gym.Space):
        super().__init__()
        self.target = _network(sizes, inputs, sizes.target_sizes).requires_grad_(False)
        self.predictor = _network(sizes, inputs, sizes.predictor_sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Prediction and target; no gradient reaches the target."""
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
