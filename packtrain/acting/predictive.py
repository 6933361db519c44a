"""Control by planning in a learned world model: what a decision has found is carried to the next, one step on."""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain.acting.control import ActsAtRandom
from packtrain.acting.seat import Seat
from packtrain.envs.stream import Stream
from packtrain.networks.control import ControlNetwork
from packtrain.planning.predictive import Predictive, cross_entropy, path_integral, proper_scores, returns
from packtrain.trees import Tree
from packtrain.types import Row


class PredictivePolicy(ActsAtRandom):
    """Plans for B columns at once, in [−1, 1] per dimension; uniformly random while data is gathered."""

    context = 0

    def __init__(self, settings: Predictive, network: ControlNetwork, seed: int):
        assert network.model is not None
        super().__init__(network.log_temperature.device)
        self._settings, self.network, self._model = settings, network, network.model
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def seat(self, stream: Stream) -> Seat:
        """The seat of one group."""
        return Seat(self, stream.size)

    def initial_carry(self, batch: int) -> Tree:
        """No plan: the mean [B, H, A] is in the middle."""
        return torch.zeros(batch, self._settings.horizon, self.network.action_size, device=self.device)

    @torch.inference_mode()
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Actions [B, A] for the row [1, B, ...], and the plan that is left."""
        settings, model = self._settings, self._model
        obs = rows.obs[0].float()
        if self.random and self.device.type == "cpu":  # where a decision is captured, it plans, and is not listened to
            size = (len(obs), self.network.action_size)
            return 2 * torch.empty(size).uniform_(generator=self.generator) - 1, carry, {}
        mean = carry * ~rows.first[0][:, None, None]
        std = torch.full_like(mean, settings.initial_std)
        shape = (len(obs), settings.candidates, *mean.shape[1:])
        for _ in range(settings.iterations):
            noise = torch.empty(shape, device=self.device).normal_(generator=self.generator)
            tried = (mean.unsqueeze(1) + std.unsqueeze(1) * noise).clamp(-1, 1)  # [B, P, H, A]
            scores = proper_scores(returns(model, obs, tried, settings.discount, self._model_noise(shape)))
            if settings.optimiser == "mppi":
                mean = path_integral(tried, scores, settings.temperature)
            else:
                mean, std = cross_entropy(mean, std, tried, scores, settings)
        action = mean[:, 0]
        chance = torch.empty(action.shape, device=self.device).uniform_(generator=self.generator)
        left = torch.cat([mean[:, 1:], mean[:, -1:]], 1)
        return torch.where(self._flag, 2 * chance - 1, action), left, {}

    def _model_noise(self, shape: tuple[int, ...]) -> Tensor | None:
        """Of H steps of every member and candidate, [H, K, B*P, D]; None where the model is deterministic."""
        if not self._model.sizes.probabilistic:
            return None
        width, members = self._model.obs_mean.shape[-1], self._model.transition.members
        size = (shape[2], members, shape[0] * shape[1], width)
        return torch.empty(size, device=self.device).normal_(generator=self.generator)
