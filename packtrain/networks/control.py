"""The networks of continuous control: a policy, an ensemble of critics with target copies, optionally a world model."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.errors import EnvSetupError
from packtrain.networks.dynamics import Dynamics, DynamicsNetwork
from packtrain.networks.normaliser import StackedNormaliser
from packtrain.networks.stacked import Initialisation, StackedMlp
from packtrain.types import Spec

_LEAST, _MOST = -5.0, 2.0  # bounds of the log standard deviation of a stochastic policy


@dataclass(frozen=True)
class ControlSizes:
    """Sizes of the networks, and the exploration noise; defaults are STEVE's.

    A deterministic policy's action is the tanh of its output. During exploration, noise is added to each dimension with
    probability `explore_chance`: before the tanh, as in STEVE, or to the action itself, as in TD3.
    """

    hidden_size: int = 128  # units of each hidden layer of policy and critics
    num_layers: int = 3  # hidden layers of each
    critics: int = 4  # N
    layer_norm: bool = False  # layer normalisation in the critics
    stochastic: bool = False  # Gaussian followed by tanh; False: deterministic
    explore_chance: float = 0.05
    explore_std: float = 1.0
    explore_in: Literal["pre_tanh", "action"] = "pre_tanh"
    initialisation: Initialisation = "glorot"
    dynamics: Dynamics | None = None  # None: no world model
    # policy and critics see observations normalised by running mean and deviation; saved with the weights
    normalise_obs: bool = False

    def __post_init__(self) -> None:
        check.at_least(self, 1, "hidden_size", "critics")
        check.not_negative(self, "num_layers", "explore_std")
        check.share(self, "explore_chance")

    def build_network(self, spec: Spec) -> ControlNetwork:
        """Return the module for an environment; weights are sampled from torch's global generator."""
        return ControlNetwork(self, *_sizes(spec))


def _sizes(spec: Spec) -> tuple[int, int]:
    """Return the lengths of observation and action; EnvSetupError unless both spaces are float vectors."""
    if not isinstance(spec.action, gym.spaces.Box) or len(spec.action.shape) != 1:
        raise EnvSetupError(
            f"SAC, TD3, DDPG and STEVE need a bounded vector of continuous actions, not {_line(spec.action)}; PPO, "
            "IMPALA and DQN play discrete ones: ppo/gym, impala/gym, dqn/gym"
        )
    if not (np.isfinite(spec.action.low) & np.isfinite(spec.action.high)).all():
        raise EnvSetupError(
            f"SAC, TD3, DDPG and STEVE need finite action bounds, not {spec.action.low.min():g} to "
            f"{spec.action.high.max():g}; gymnasium.wrappers.TransformAction can change them"
        )
    if not isinstance(spec.obs, gym.spaces.Box) or len(spec.obs.shape) != 1:
        raise EnvSetupError(
            f"SAC, TD3, DDPG and STEVE need vectors as observations, not {_line(spec.obs)}; "
            "gymnasium.wrappers.FlattenObservation makes them"
        )
    return spec.obs.shape[0], spec.action.shape[0]


def _line(space: gym.Space) -> str:
    """Return a space as one line of text."""
    return " ".join(str(space).split())


class ControlNetwork(nn.Module):
    """The networks by name. The axis of runs precedes all others of every parameter: see `networks/stacked.py`.

    `target` is the target copy of the critics, `target_policy` that of the policy; `behaviour` is the policy that acts,
    `frozen` the world model that value targets use. Learners update these copies with periods of their own.
    """

    def __init__(self, sizes: ControlSizes, obs_size: int, action_size: int):
        super().__init__()
        self.sizes, self.action_size = sizes, action_size
        hidden = (sizes.hidden_size,) * sizes.num_layers
        policy = StackedMlp(1, hidden, initialisation=sizes.initialisation)
        critic = StackedMlp(sizes.critics, hidden, layer_norm=sizes.layer_norm, initialisation=sizes.initialisation)
        self.policy = policy.build(obs_size, action_size * (1 + sizes.stochastic))
        self.critic = critic.build(obs_size + action_size, 1)
        self.log_temperature = nn.Parameter(torch.zeros(1))
        self.model: DynamicsNetwork | None = None
        if sizes.dynamics is not None:
            self.model = sizes.dynamics.build(obs_size, action_size)
        self.target, self.target_policy, self.behaviour = (
            copy.deepcopy(part).requires_grad_(False) for part in (self.critic, self.policy, self.policy)
        )
        if sizes.normalise_obs:  # inside the policy that acts, whose weights actors receive
            self.behaviour.add_module("normaliser", StackedNormaliser(obs_size))
        self.frozen: DynamicsNetwork | None = None
        if sizes.dynamics is not None and self.model is not None:
            self.frozen = sizes.dynamics.build_elites(obs_size, action_size).requires_grad_(False)
            self.frozen.take_elites(self.model)

    @property
    def runs(self) -> int:
        """Return R, the number of runs."""
        return len(self.log_temperature)

    @property
    def normaliser(self) -> StackedNormaliser | None:
        """Return what normalises the observations of all policies and critics; None: they see them as they are."""
        return getattr(self.behaviour, "normaliser", None)

    def normalised(self, obs: Tensor) -> Tensor:
        """Return observations [R, ..., D] as policies and critics see them."""
        return obs if self.normaliser is None else self.normaliser(obs)

    def act(self, policy: nn.Module, obs: Tensor) -> Tensor:
        """Return the greedy actions of a policy for observations [R, N, D]: [R, N, A]."""
        return torch.tanh(self.before_tanh(policy, obs))

    def before_tanh(self, policy: nn.Module, obs: Tensor) -> Tensor:
        """Return the inputs of the tanh of a policy's greedy actions, [R, N, A], for observations [R, N, D]."""
        outputs: Tensor = policy(self.normalised(obs)).squeeze(1)
        return outputs[..., : self.action_size]

    def draw(self, policy: nn.Module, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return a stochastic policy's actions [R, N, A] for normal noise, and their log-probabilities [R, N]."""
        mean, spread = policy(self.normalised(obs)).squeeze(1).chunk(2, -1)
        log_std = _LEAST + 0.5 * (_MOST - _LEAST) * (torch.tanh(spread) + 1)
        before = mean + noise * log_std.exp()
        # log(1 − tanh²x) = 2 (log 2 − x − softplus(−2x)), without the difference of nearly equal numbers.
        squash = 2 * (math.log(2) - before - nn.functional.softplus(-2 * before))
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi) - squash
        return torch.tanh(before), density.sum(-1)

    def value(self, critic: nn.Module, obs: Tensor, action: Tensor, learns: bool = True) -> Tensor:
        """Return each critic's values [R, K, N] of the same pairs [R, N, ...], or of its own pairs [R, K, N, ...]."""
        obs = self.normalised(obs)
        given = 0 if obs.requires_grad else obs.shape[-1]  # number of leading inputs without a gradient
        return critic(torch.cat([obs, action], -1), learns, given).squeeze(-1)
