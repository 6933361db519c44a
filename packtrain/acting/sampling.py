"""Policies with a distribution over actions: they sample during training and take the mode in greedy evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from packtrain.acting.actor_state import RowPolicy
from packtrain.config import configurable
from packtrain.interfaces import ActingPlace, PolicySettings
from packtrain.networks.actor_critic import ActorCriticNetwork, ActorCriticSizes
from packtrain.trees import Tree
from packtrain.types import Row


@configurable
@dataclass(frozen=True)
class ActorCritic(ActorCriticSizes, PolicySettings):
    """A policy and value network whose action distribution is sampled; fields are those of the network."""

    samples: ClassVar[bool] = True
    mixed_precision: ClassVar[bool] = True

    def build_policy(self, network: ActorCriticNetwork, place: ActingPlace) -> SamplingPolicy:
        """Return the policy that acts with a network."""
        return SamplingPolicy(network, place.seed, place.greedy)


class SamplingPolicy(RowPolicy):
    """Acts for B environments with one forward pass. All share one generator, and no two get the same noise."""

    def __init__(self, network: ActorCriticNetwork, seed: int, greedy: bool = False):
        self.network = network
        self.context = network.context
        self.device = network.value.weight.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._greedy = greedy

    def initial_carry(self, batch: int) -> Tree:
        """Return the network's recurrent state before the first row."""
        return self.network.initial_carry(batch)

    @torch.inference_mode()
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Return actions, the next recurrent state and `behaviour_log_prob`, the actions' log-probabilities.

        Args:
          rows: the context and the row to act on, [C+1, B, ...], on the policy's device.
          carry: before the row to act on.
        """
        latest = slice(self.context, None)
        output = self.network(rows.obs, rows.first, rows.last_action[latest], rows.last_reward["train"][latest], carry)
        parameters = output.parameters[0]
        distribution = self.network.distribution
        if self._greedy:
            return distribution.mode(parameters), output.carry, {}
        action = distribution.sample(parameters, self.generator)
        return action, output.carry, {"behaviour_log_prob": distribution.log_prob(parameters, action)}
