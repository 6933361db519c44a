"""Policies that ask a network: sampled while training, greedy while evaluating."""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain import trees
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.trees import Tree
from packtrain.types import Row


class NetworkPolicy:
    """Acts for B columns with one forward pass. One generator serves all columns, so no two share their noise."""

    context = 0

    def __init__(self, network: ActorCriticNetwork, seed: int, greedy: bool = False):
        self.network = network
        self.device = network.value.weight.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._greedy = greedy

    def initial_carry(self, batch: int) -> Tree:
        """The network's carry before the first row."""
        return self.network.initial_carry(batch)

    @torch.inference_mode()
    def act(self, row: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Actions, the carry after the row, and `behaviour_log_prob`, the log-probability of what was chosen."""
        seen = row if self.device.type == "cpu" else trees.map(lambda leaf: leaf.to(self.device), row)
        output = self.network(
            trees.map(lambda leaf: leaf.unsqueeze(0), seen.obs),  # [B, ...] → [1, B, ...]
            seen.first.unsqueeze(0),
            seen.last_action.unsqueeze(0),
            seen.last_reward["train"].unsqueeze(0),
            carry,
        )
        parameters = output.parameters[0]
        distribution = self.network.distribution
        if self._greedy:
            return self._home(distribution.mode(parameters)), output.carry, {}
        action = distribution.sample(parameters, self.generator)
        return self._home(action), output.carry, {"behaviour_log_prob": distribution.log_prob(parameters, action)}

    def _home(self, action: Tensor) -> Tensor:
        return action if self.device.type == "cpu" else action.cpu()
