"""DDPG: deep deterministic policy gradients on an ensemble of critics (Lillicrap et al. 2015, arXiv:1509.02971).

With a policy a = tanh u(s), critics Q_1 … Q_N and their target copies Q':

    y    = κ r + γ (1 − δ) mean_q Q'_q(s', tanh u(s'))
    L_Q  = mean_q mean_B ½ (y − Q_q(s, a))²
    L_π  = mean_B [ −mean_q Q_q(s, tanh u(s)) + policy_regulariser · u(s)² ]

Deviations from the paper, as in the released STEVE (Buckman et al. 2018), whose numbers are the defaults:
 1. There may be several critics; their mean is the value of a state. A row may train only some of them (`rows`).
 2. The target critic is copied every `target_period` updates; Polyak averaging is used if that is None.
 3. The policy that computes targets is the newest one.
 4. `policy_regulariser` keeps tanh from saturating.
 5. A transition may be several real steps (`Replay.n_step`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from packtrain import check
from packtrain.accelerate.compilation import Compiler
from packtrain.algorithms.actor_critic import (
    NextAction,
    Optimisers,
    PolicyStep,
    Rows,
    average_weights,
    build_learner,
    check_network,
    check_replay,
    critic_losses,
    mean_value,
    measures,
    metric_names,
    one_step_targets,
)
from packtrain.algorithms.batched_updates import Batch, ReplayLearner
from packtrain.algorithms.optimisers import Adam
from packtrain.config import configurable
from packtrain.equations.value_expansion import Targets
from packtrain.interfaces import LearnerSettings, MemorySettings, PolicySettings
from packtrain.networks.control import ControlNetwork


@configurable
@dataclass(frozen=True)
class DDPG(LearnerSettings):
    """Hyper-parameters of DDPG, and the functions that make up an update."""

    joins_seeds: ClassVar[bool] = True
    stochastic: ClassVar[bool] = False
    metrics: ClassVar[tuple[str, ...]] = metric_names()

    batch_size: int = 512
    discount: float = 0.99  # γ per step
    reward_scale: float = 1.0  # κ, factor on rewards
    learning_rate: float = 0.0003  # learning rate of policy and critics
    policy_regulariser: float = 0.001  # weight of the squared input of the policy's tanh
    rows: Rows = "split"  # use of batch rows: split between critics, one random critic for each, or all for all
    target_period: int | None = 500  # updates between copies into the target networks; None: Polyak averaging
    polyak: float = 0.005  # Polyak coefficient τ of the target critics
    publish_period: int | None = 500  # updates between copies of the policy that acts; None: after every call
    policy_delay: int = 1  # critic updates per policy update
    compile: bool | None = None  # compile the functions of an update; None: on a GPU

    def __post_init__(self) -> None:
        check.positive(self, "batch_size", "reward_scale", "learning_rate", "policy_delay")
        check.at_least(self, 1, "target_period", "publish_period", end=", or None")
        check.not_negative(self, "policy_regulariser")
        check.share(self, "discount", "polyak")

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if the memory does not hold transitions of a `Control` policy."""
        check_replay(self, self, memory, policy)

    def build(self, network: ControlNetwork, total_steps: int) -> ReplayLearner:
        """Return a learner; ConfigError if the network does not fit."""
        check_network(self, self, network)
        return build_learner(network, self, self)

    def optimisers(self, network: ControlNetwork) -> Optimisers:
        """Return the optimisers by name."""
        return {
            "critic": Adam(network.critic.parameters(), self.learning_rate),
            "policy": Adam(network.policy.parameters(), self.learning_rate),
        }

    def draws(self, network: ControlNetwork, count: int, generator: torch.Generator, depths: int = 1) -> Batch:
        """Return no random inputs: DDPG needs none."""
        return {}

    def next_action(self, network: ControlNetwork, batch: Batch, obs: Tensor, depth: int) -> NextAction:
        """Return the target policy's actions tanh u(s') in states [R, M, B, D]."""
        return NextAction(network.act(network.policy, obs.flatten(1, 2)).unflatten(1, obs.shape[1:3]))

    def next_value(self, network: ControlNetwork, batch: Batch, obs: Tensor, action: Tensor) -> Tensor:
        """Return the target critics' values Q' [R, N, P] of pairs [R, P, ...]."""
        return network.value(network.target, obs, action)

    @torch.no_grad()
    def targets(self, network: ControlNetwork, batch: Batch) -> Targets:
        """Return the targets y of transitions [R, B]."""
        obs = batch["after"]
        action = self.next_action(network, batch, obs.unsqueeze(1), 0).action.squeeze(1)  # [R, B, A]
        value = self.next_value(network, batch, obs, action)  # [R, N, B]
        return one_step_targets(self, batch, value.transpose(1, 2))

    def policy_loss(self, network: ControlNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return −mean Q of the policy's actions, and the regulariser; [R] each."""
        before_tanh = network.before_tanh(network.policy, batch["obs"])  # [R, B, A]
        value = mean_value(network, batch["obs"], torch.tanh(before_tanh))
        return -value.mean(-1), self.policy_regulariser * before_tanh.square().mean((1, 2))

    def step(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, moves_policy: bool, compiled: Compiler
    ) -> Tensor:
        """Make one update: the critics, then the policy, then the target critics; return metrics [R, M]."""
        targets = compiled(self.targets)(network, batch)
        critic_loss, value_mean = compiled(critic_losses)(network, self, batch, targets)
        optimisers["critic"].descend(critic_loss.sum())
        policy = self.step_policy(network, optimisers, batch, compiled) if moves_policy else None
        self.follow(network, moves_policy)
        return compiled(measures)(network, self, critic_loss.detach(), policy, value_mean, targets)

    def step_policy(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, compiled: Compiler
    ) -> PolicyStep:
        """Make one optimiser step of the policy."""
        loss, regulariser = compiled(self.policy_loss)(network, batch)
        optimisers["policy"].descend((loss + regulariser).sum())
        return PolicyStep(loss.detach(), regulariser.detach())

    def follow(self, network: ControlNetwork, moved_policy: bool) -> None:
        """Move the target critics towards the critics, where they are not copied periodically."""
        if self.target_period is None:
            average_weights(network.target, network.critic, self.polyak)

    def temperature_of(self, network: ControlNetwork) -> Tensor:
        """Return temperature 0 [R]: DDPG has no entropy term."""
        return torch.zeros_like(network.log_temperature)
