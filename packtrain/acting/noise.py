"""Policies of continuous control: actions with exploration noise, uniformly random during the warm-up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from packtrain.acting.actor_state import RandomSwitch, RowPolicy
from packtrain.config import configurable
from packtrain.interfaces import ActingPlace, PolicySettings
from packtrain.networks.control import ControlNetwork, ControlSizes
from packtrain.trees import Tree
from packtrain.types import Row


@configurable
@dataclass(frozen=True)
class Control(ControlSizes, PolicySettings):
    """A policy, critics and optionally a world model for continuous control; includes the networks' fields."""

    def acting_network(self, network: ControlNetwork) -> nn.Module:
        """Return the policy that acts."""
        return network.behaviour

    def build_policy(self, network: ControlNetwork, place: ActingPlace) -> NoisePolicy:
        """Return the policy that acts with a network."""
        return NoisePolicy(network, place.seed, place.greedy)


class NoisePolicy(RandomSwitch, RowPolicy):
    """Acts for B environments with one forward pass, in [−1, 1] per dimension; streams scale actions to the bounds."""

    context = 0

    def __init__(self, network: ControlNetwork, seed: int, greedy: bool = False):
        super().__init__(network.log_temperature.device)
        self.network = network
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._greedy = greedy

    @torch.inference_mode()
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Return actions [B, A] for the row [1, B, ...]."""
        network, sizes = self.network, self.network.sizes
        obs = rows.obs.float()
        if self._greedy:
            return network.act(network.behaviour, obs)[0], carry, {}
        shape = (*obs.shape[:2], network.action_size)
        noise = torch.empty(shape, device=self.device).normal_(generator=self.generator)
        chance = torch.empty(shape, device=self.device).uniform_(generator=self.generator)
        if sizes.stochastic:
            action, _ = network.draw(network.behaviour, obs, noise)
        else:
            before = network.before_tanh(network.behaviour, obs)
            noise = sizes.explore_std * noise * (chance < sizes.explore_chance)
            if sizes.explore_in == "pre_tanh":
                action = torch.tanh(before + noise)
            else:
                action = (torch.tanh(before) + noise).clamp(-1, 1)
        return torch.where(self._flag, 2 * chance - 1, action)[0], carry, {}
