"""Policies that ask a network: sampled while training, greedy while evaluating."""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain.acting.seat import Seat
from packtrain.envs.stream import Stream
from packtrain.interfaces import Policy
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.trees import Tree
from packtrain.types import Row


class NetworkPolicy(Policy):
    """Acts for B columns with one forward pass. One generator serves all columns, so no two share their noise."""

    def __init__(self, network: ActorCriticNetwork, seed: int, greedy: bool = False):
        self.network = network
        self.context = network.context
        self.device = network.value.weight.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._greedy = greedy

    def seat(self, stream: Stream) -> Seat:
        """The seat of one group."""
        return Seat(self, stream.size)

    def initial_carry(self, batch: int) -> Tree:
        """The network's carry before the first row."""
        return self.network.initial_carry(batch)

    @torch.inference_mode()
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Actions, the carry after the last row, and `behaviour_log_prob`, the log-probability of what was chosen.

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
