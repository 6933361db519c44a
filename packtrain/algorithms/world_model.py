"""Training of a world model on episodes: every member has its own batches from the same memory.

The model of "Trust, but verify" (openreview DE0MSwKv32y; IJCNN 2021):

    loss = mean (Δ̂ − (s' − s))² + BCE(r̂, r) + BCE(d̂, terminated) + weight_decay · Σ w²        for each member

A model that predicts classes of factors has the mean cross-entropy of its F factors in place of the first term, and one
of boards the sum over cells: each network computes the error of its own predictions, and the rest is the same.

`terminated` is 0 at a time-out, so the model does not learn to predict the time limit as a termination.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.optimisers import check_decay, make_optimiser
from packtrain.config import configurable
from packtrain.equations.schedules import scheduled_rate
from packtrain.errors import ConfigError
from packtrain.networks.world_model import ModelNetwork
from packtrain.types import Trajectory


@configurable
@dataclass(frozen=True)
class WorldModelLearning:
    """Settings of the optimiser; defaults are the published ones."""

    network: str = "model"
    optimiser: Literal["adam", "rmsprop", "rmsprop_tf"] = "rmsprop"
    learning_rate: float = 0.00025
    final_learning_rate: float | None = None  # after `decay_updates` updates, by `decay`; None: constant
    decay_updates: int | None = None
    decay: Literal["linear", "step"] = "linear"  # to the final rate on a straight line, or in one step
    alpha: float = 0.9  # RMSProp's decay
    epsilon: float = 1e-7
    weight_decay: float = 1e-5  # weight of the sum of squares of all weights but biases in the loss

    def __post_init__(self) -> None:
        check.positive(self, "learning_rate", "epsilon")
        check_decay(self)
        check.not_negative(self, "weight_decay")

    def build(self, network: nn.ModuleDict, total_steps: int) -> GradientLearner:
        """Return a learner for the named model among a planner's networks."""
        module = cast(ModelNetwork, network[self.network])
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimiser = make_optimiser(trained, self.optimiser, self.learning_rate, alpha=self.alpha, epsilon=self.epsilon)

        def held_out(_: nn.ModuleDict, trajectory: Trajectory) -> dict[str, Tensor]:
            return validation(module, trajectory)

        schedule = self.learning_rate, self.final_learning_rate, self.decay_updates, self.decay
        learner: GradientLearner = GradientLearner(
            network,
            partial(loss, settings=self),
            optimiser,
            lambda _: scheduled_rate(learner.updates, *schedule),
            float("inf"),
            capture=True,
            validation=held_out,
        )
        return learner


def loss(
    network: nn.ModuleDict, trajectory: Trajectory, settings: WorldModelLearning
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum of the members' losses on their parts of B steps, and averages over members, 0-d and detached.

    Args:
      network: holds the model under `settings.network`.
      trajectory: [1, B] with B a multiple of the members; member k has every step b with b mod K = k.
      settings: names and numbers.
    """
    module = cast(ModelNetwork, network[settings.network])
    members = module.members
    obs, after = (_shares(row, members) for row in trajectory.obs[:2])  # [K, N, D]
    action, reward = _shares(trajectory.action[0], members), _shares(trajectory.reward[0], members)  # [K, N]
    terminated = _shares(trajectory.terminated[0].float(), members)
    guess = module.guess(obs, action)
    bce = nn.functional.binary_cross_entropy_with_logits
    change, right = module.errors(guess, obs, after)  # [K], [K, N]
    paid = bce(guess["reward"][..., 0], reward.clamp(0, 1), reduction="none").mean(1)
    over = bce(guess["terminated"][..., 0], terminated, reduction="none").mean(1)
    trained = [w for name, w in module.named_parameters() if w.requires_grad and name.endswith("weight")]
    squares = torch.stack([w.square().sum() for w in trained]).sum()
    total = (change + paid + over).sum() + settings.weight_decay * squares
    parts = {
        "total_loss": total / members,
        "next_observation_loss": change.mean(),
        "reward_loss": paid.mean(),
        "reward_clipped": (reward != reward.clamp(0, 1)).float().mean(),  # fraction of the steps
        "terminated_loss": over.mean(),
        "perfect_next_observation": right.float().mean(),
    }
    return total, {name: part.detach() for name, part in parts.items()}


@torch.no_grad()
def validation(network: ModelNetwork, trajectory: Trajectory) -> dict[str, Tensor]:
    """Return the accuracy of all members' predictions on all steps, as 0-d tensors: fractions of steps, members pooled.

    perfect_next_observation, reward_accuracy and terminated_accuracy are always there; reward_recall and
    terminated_recall are left out where there was nothing to find, reward_precision and terminated_precision where no
    member claimed to have found any. A reward counts as one from 0.5 on, as the loss clips it to [0, 1].

    Args:
      network: the model.
      trajectory: [T, B] without context rows; filler rows are passed over.
    """
    real = ~trajectory.first[1:]  # [T, B] → [N] whether the next row continues the episode
    obs, after, action = trajectory.obs[:-1][real], trajectory.obs[1:][real], trajectory.action[real]
    guess = network.guess(obs, action)
    _, right = network.errors(guess, obs, after)
    found = {"perfect_next_observation": right.float().mean()}
    for name, truth in (("reward", trajectory.reward[real] >= 0.5), ("terminated", trajectory.terminated[real])):
        claimed = guess[name][..., 0] > 0  # [K, N]
        hits = (claimed & truth).sum()
        found[f"{name}_accuracy"] = (claimed == truth).float().mean()
        if truth.any():
            found[f"{name}_recall"] = hits / (truth.sum() * network.members)
        if claimed.any():
            found[f"{name}_precision"] = hits / claimed.sum()
    return found


def _shares(rows: Tensor, members: int) -> Tensor:
    """Return [K, B / K, ...] of [B, ...]: step b goes to member b mod K, since batches are ordered by replay bucket."""
    if len(rows) % members:
        raise ConfigError(f"a batch of {len(rows)} steps cannot be dealt out to {members} members evenly")
    found: Tensor = rows.unflatten(0, (-1, members)).transpose(0, 1)
    return found
