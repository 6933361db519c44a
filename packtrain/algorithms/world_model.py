"""Learning a world model from episodes: every member on batches of its own, from the same memory.

The model of "Trust, but verify" (openreview DE0MSwKv32y; IJCNN 2021):

    loss = mean (Δ̂ − (s' − s))² + BCE(r̂, r) + BCE(d̂, terminated) + weight_decay · Σ w²        for each member

A time-out is not an end: `terminated` is 0 there, so the model does not learn that worlds stop after so many steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.optimisers import make_optimiser
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.networks.world_model import WorldModelNetwork
from packtrain.types import Trajectory


@configurable
@dataclass(frozen=True)
class WorldModelLearning:
    """The optimiser's numbers; defaults are the published ones."""

    network: str = "model"
    optimiser: Literal["adam", "rmsprop", "rmsprop_tf"] = "rmsprop"
    learning_rate: float = 0.00025
    alpha: float = 0.9  # RMSProp's decay
    epsilon: float = 1e-7
    weight_decay: float = 1e-5  # times the sum of squares of all weights but biases, added to the loss

    def __post_init__(self) -> None:
        for name in ("learning_rate", "epsilon"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"WorldModelLearning.{name} = {getattr(self, name)} must be above 0")
        if self.weight_decay < 0:
            raise ConfigError(f"WorldModelLearning.weight_decay = {self.weight_decay} must not be negative")

    def build(self, network: nn.ModuleDict, total_steps: int) -> GradientLearner:
        """A learner for the named model among the networks of a planner."""
        module = network[self.network]
        assert isinstance(module, WorldModelNetwork)
        optimiser = make_optimiser(
            module.parameters(), self.optimiser, self.learning_rate, alpha=self.alpha, epsilon=self.epsilon
        )
        rate = self.learning_rate
        return GradientLearner(network, partial(loss, settings=self), optimiser, lambda _: rate, float("inf"))


def loss(
    network: nn.ModuleDict, trajectory: Trajectory, settings: WorldModelLearning
) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum of the members' losses on their shares of B steps, and averages over members as detached 0-d tensors.

    Args:
      network: holds the model under `settings.network`.
      trajectory: [1, B] with B a multiple of the members; member k has every step b with b mod K = k.
      settings: names and numbers.
    """
    module = network[settings.network]
    assert isinstance(module, WorldModelNetwork)
    members = module.members
    obs, after = (_shares(row, members) for row in trajectory.obs[:2])  # [K, N, D]
    action, reward = _shares(trajectory.action[0], members), _shares(trajectory.reward[0], members)  # [K, N]
    terminated = _shares(trajectory.terminated[0].float(), members)
    guess = module.guess(obs, action)
    bce = nn.functional.binary_cross_entropy_with_logits
    change = (guess["delta"] - (after - obs)).square().mean((1, 2))  # [K]
    paid = bce(guess["reward"][..., 0], reward.clamp(0, 1), reduction="none").mean(1)
    over = bce(guess["terminated"][..., 0], terminated, reduction="none").mean(1)
    squares = torch.stack([w.square().sum() for name, w in module.named_parameters() if name.endswith("weight")]).sum()
    total = (change + paid + over).sum() + settings.weight_decay * squares
    with torch.no_grad():
        right = ((obs + guess["delta"]).round() == after).all(-1).float().mean()
        parts = {
            "total_loss": total / members,
            "next_observation_loss": change.mean(),
            "reward_loss": paid.mean(),
            "terminated_loss": over.mean(),
            "perfect_next_observation": right,
        }
    return total, {name: part.detach() for name, part in parts.items()}


def _shares(rows: Tensor, members: int) -> Tensor:
    """[B, ...] → [K, B / K, ...], step b to member b mod K: batches come bucket after bucket, and are dealt out."""
    if len(rows) % members:
        raise ConfigError(f"a batch of {len(rows)} steps cannot be dealt out to {members} members evenly")
    return rows.unflatten(0, (-1, members)).transpose(0, 1)
