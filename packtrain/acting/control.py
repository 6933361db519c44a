"""Who acts in continuous control: a policy with noise, at random while data is gathered, greedy in evaluations."""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain.acting.seat import Seat
from packtrain.envs.stream import Stream
from packtrain.interfaces import Policy
from packtrain.networks.control import ControlNetwork
from packtrain.trees import Tree
from packtrain.types import Row


class ActsAtRandom(Policy):
    """Can be told to act uniformly at random; the word lies where a captured decision reads it."""

    def __init__(self, device: torch.device):
        self.device = device
        self._flag = torch.zeros((), dtype=torch.bool, device=device)
        self._is_random = False

    @property
    def random(self) -> bool:
        """Whether actions are uniformly random."""
        return self._is_random

    @random.setter
    def random(self, random: bool) -> None:
        if random != self._is_random:
            self._flag.fill_(random)
            self._is_random = random


class ControlPolicy(ActsAtRandom):
    """Acts for B columns with one forward pass, in [−1, 1] per dimension; streams stretch that to the bounds."""

    context = 0

    def __init__(self, network: ControlNetwork, seed: int, greedy: bool = False):
        super().__init__(network.log_temperature.device)
        self.network = network
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._greedy = greedy

    def seat(self, stream: Stream) -> Seat:
        """The seat of one group."""
        return Seat(self, stream.size)

    def initial_carry(self, batch: int) -> Tree:
        """Nothing is carried."""
        return ()

    @torch.inference_mode()
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Actions [B, A] for the row [1, B, ...]."""
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
            before = network.behaviour(obs)[:, 0]
            noise = sizes.explore_std * noise * (chance < sizes.explore_chance)
            if sizes.explore_in == "pre_tanh":
                action = torch.tanh(before + noise)
            else:
                action = (torch.tanh(before) + noise).clamp(-1, 1)
        return torch.where(self._flag, 2 * chance - 1, action)[0], carry, {}
