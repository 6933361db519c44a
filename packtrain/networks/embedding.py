"""An embedding of what an agent can control, trained to predict the action between two consecutive observations.

NGU, Badia et al. 2020 (arXiv:2002.06038), section 2: the embedding has no reason to represent what no action changes.

Deviation from the paper: no ReLU after the embedding. At initialisation the features of a game's frames hardly differ
from each other, so a unit has the same sign for nearly all frames, and a ReLU makes a third to most of the units 0 for
every frame: they contribute to no distance and pass no gradient. Without it all units are active, before and after
training.

It computes in float32 whatever `Run.precision` is: novelty is measured by distances between near neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.config import configurable
from packtrain.errors import EnvSetupError
from packtrain.networks.perception import Flatten, Perception
from packtrain.networks.torso import Torso, perception_for
from packtrain.trees import Tree
from packtrain.types import Spec


@configurable
@dataclass(frozen=True)
class ControllableEmbedding:
    """Sizes of the embedding and of the network that predicts actions from it."""

    perception: Perception | None = None  # None: DQN's convolutions for an image, otherwise flattened
    hidden_sizes: tuple[int, ...] | None = None  # between perception and embedding; None: (), or (32, 64) for vectors
    size: int = 32  # dimension of an embedding
    inverse_size: int = 128  # hidden units of the network that predicts actions

    def __post_init__(self) -> None:
        check.each_at_least(self, 1, "hidden_sizes")
        check.at_least(self, 1, "size", "inverse_size")

    def build(self, spec: Spec) -> ControllableEmbeddingNetwork:
        """Return the module; EnvSetupError unless actions are discrete.

        Weights are sampled from torch's global generator.
        """
        return ControllableEmbeddingNetwork(self, spec)


class ControllableEmbeddingNetwork(nn.Module):
    """Rows → embeddings (`embed`); rows → logits of the actions between consecutive rows (`forward`)."""

    def __init__(self, sizes: ControllableEmbedding, spec: Spec):
        super().__init__()
        if not isinstance(spec.action, gym.spaces.Discrete):
            raise EnvSetupError(
                f"ControllableEmbedding predicts discrete actions, but the action space is {spec.action}"
            )
        perception = sizes.perception or perception_for(spec.obs)
        layers = sizes.hidden_sizes
        if layers is None:
            layers = (32, 64) if isinstance(perception, Flatten) else ()
        self.size = sizes.size
        self.torso = Torso(perception, (*layers, sizes.size), spec.obs, linear_output=True)
        self.context = self.torso.context
        self.inverse = nn.Sequential(
            nn.Linear(2 * sizes.size, sizes.inverse_size),
            nn.ReLU(),
            nn.Linear(sizes.inverse_size, int(spec.action.n)),
        )

    @property
    def device(self) -> torch.device:
        """Return the device of the network."""
        return next(self.parameters()).device

    def embed(self, obs: Tree, first: Tensor) -> Tensor:
        """Return embeddings of all rows but the context, in float32.

        Args:
          obs: [C+T, B, ...], C context rows in front.
          first: [C+T, B] bool.

        Returns:
          [T, B, size].
        """
        return self.torso(obs, first)

    def forward(self, obs: Tree, first: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the action between each row and the next.

        If the second of two rows is `first`, there was no action: a loss must ignore these logits.

        Args:
          obs: [C+T+1, B, ...], C context rows in front.
          first: [C+T+1, B] bool.

        Returns:
          logits [T, B, A] of the action between rows t and t+1, and the embeddings [T+1, B, size].
        """
        embeddings = self.embed(obs, first)
        return self.inverse(torch.cat([embeddings[:-1], embeddings[1:]], -1)), embeddings
