"""Model-predictive control: planning in a learned world model; each decision starts from the previous plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from packtrain.acting.actor_state import RandomSwitch, RowActorState, RowPolicy
from packtrain.acting.mpc_traces import RecordedMpcState, mpc_writer
from packtrain.acting.noise import Control
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.interfaces import ActingPlace, ActorState, PolicySettings
from packtrain.networks.control import ControlNetwork
from packtrain.planning.rollout_records import Iteration
from packtrain.planning.traces import TraceWriter
from packtrain.planning.trajectory_search import (
    Predictive,
    cross_entropy,
    path_integral,
    policy_sequences,
    proper_scores,
    returns,
)
from packtrain.trees import Tree
from packtrain.types import Row, Spec


@configurable
@dataclass(frozen=True)
class PredictiveControl(PolicySettings):
    """A policy that plans in its own world model; only the model is learned."""

    records_searches: ClassVar[bool] = True

    control: Control
    planner: Predictive = Predictive()

    def __post_init__(self) -> None:
        if self.control.dynamics is None:
            raise ConfigError(
                "PredictiveControl plans in a world model, but Control.dynamics is None: set Control.dynamics = "
                "@Dynamics()"
            )
        if self.planner.particles > 1 and not self.control.dynamics.probabilistic:
            raise ConfigError("Predictive.particles above 1 need Dynamics.probabilistic: others would be equal")

    def build_network(self, spec: Spec) -> ControlNetwork:
        """Return the networks; policy and critics are used if the settings of `Predictive` need them."""
        return self.control.build_network(spec)

    def acting_network(self, network: ControlNetwork) -> nn.Module:
        """Return the world model, or all networks if the planner uses policy and critics."""
        assert network.model is not None
        return network if self.planner.asks_networks else network.model

    def build_policy(self, network: ControlNetwork, place: ActingPlace) -> MpcPolicy:
        """Return the policy that acts with a network."""
        policy = MpcPolicy(self.planner, network, place.seed)
        if place.trace_episodes and place.trace_folder is not None:
            policy.writer = mpc_writer(place, policy.device)
        return policy


class MpcPolicy(RandomSwitch, RowPolicy):
    """Plans for B environments at once, in [−1, 1] per dimension; uniformly random during the warm-up."""

    context = 0

    def __init__(self, settings: Predictive, network: ControlNetwork, seed: int):
        assert network.model is not None
        super().__init__(network.log_temperature.device)
        self._settings, self.network, self._model = settings, network, network.model
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.writer: TraceWriter | None = None  # records the first group of environments
        self.tried: list[Iteration] | None = None  # sequences of the current decision, for the writer; None: not kept

    def actor_state(self, stream: Any) -> ActorState:
        """Return the acting state of one group."""
        writer, self.writer = self.writer, None
        return RowActorState(self, stream.size) if writer is None else RecordedMpcState(self, stream.size, writer)

    def initial_carry(self, batch: int) -> Tree:
        """Return an empty plan: means [B, H, A] of 0."""
        return torch.zeros(batch, self._settings.horizon, self.network.action_size, device=self.device)

    @torch.inference_mode()
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Return actions [B, A] for the row [1, B, ...], and the rest of the plan."""
        settings, model = self._settings, self._model
        obs = rows.obs[0].float()
        if (
            self.random and self.device.type == "cpu"
        ):  # a captured decision plans in any case, and its result is discarded
            size = (len(obs), self.network.action_size)
            return 2 * torch.empty(size).uniform_(generator=self.generator) - 1, carry, {}
        proposed = self._proposals(obs)
        value = self._value if settings.terminal_value else None
        mean = carry * ~rows.first[0][:, None, None]
        std = torch.full_like(mean, settings.initial_std)
        shape = (len(obs), settings.candidates, *mean.shape[1:])
        for iteration in range(settings.iterations):
            noise = torch.empty(shape, device=self.device).normal_(generator=self.generator)
            tried = (mean.unsqueeze(1) + std.unsqueeze(1) * noise).clamp(-1, 1)  # [B, P, H, A]
            if iteration == 0 and proposed is not None:
                tried = torch.cat([proposed, tried[:, settings.prior_candidates :]], 1)
            found = returns(model, obs, tried, settings.discount, self._model_noise(shape), value, settings.particles)
            scores = proper_scores(found)
            if self.tried is not None:
                self.tried.append(Iteration(tried.numpy(), scores.numpy()))
            if settings.optimiser == "mppi":
                mean = path_integral(tried, scores, settings.temperature)
            else:
                mean, std = cross_entropy(mean, std, tried, scores, settings)
        action = mean[:, 0]
        if self.tried is not None:
            self.plan = mean.numpy()
        chance = torch.empty(action.shape, device=self.device).uniform_(generator=self.generator)
        left = torch.cat([mean[:, 1:], mean[:, -1:]], 1)
        return torch.where(self._flag, 2 * chance - 1, action), left, {}

    def _proposals(self, obs: Tensor) -> Tensor | None:
        """Return the policy network's sequences [B, prior_candidates, H, A] for observations [B, D]; None: none."""
        settings, network = self._settings, self.network
        if not settings.prior_candidates:
            return None
        shape = (settings.horizon, len(obs), settings.prior_candidates, network.action_size)
        noise = torch.empty(shape, device=self.device).normal_(generator=self.generator) * settings.least_std

        def greedy(places: Tensor) -> Tensor:
            return network.act(network.policy, places)

        return policy_sequences(self._model, obs, greedy, settings.prior_candidates, settings.horizon, noise)

    def _value(self, places: Tensor) -> Tensor:
        """Return the critics' mean value of the policy's action in states [1, N, D], in units of rewards: [N]."""
        network = self.network
        action = network.act(network.policy, places)
        return network.value(network.critic, places, action).mean((0, 1)) / self._settings.value_scale

    def _model_noise(self, shape: tuple[int, ...]) -> Tensor | None:
        """Return noise of H steps of all members and particles, [H, K, B*P*particles, D]; None: not probabilistic."""
        if not self._model.sizes.probabilistic:
            return None
        width, members = self._model.obs_mean.shape[-1], self._model.transition.members
        size = (shape[2], members, shape[0] * shape[1] * self._settings.particles, width)
        return torch.empty(size, device=self.device).normal_(generator=self.generator)
