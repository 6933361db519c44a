"""TD3: twin delayed deep deterministic policy gradients (Fujimoto et al. 2018, arXiv:1802.09477).

With a policy π, critics Q_1 … Q_N, slower copies π' and Q', and ε ~ clip(N(0, target_noise), ±target_noise_clip):

    a'   = clip(π'(s') + ε, −1, 1)
    y    = κ r + γ (1 − δ) mean over pairs (p, q) of min(Q'_p(s', a'), Q'_q(s', a'))
    L_Q  = mean_q mean_B ½ (y − Q_q(s, a))²
    L_π  = −mean_B mean_q Q_q(s, π(s)),   a step of the policy every `policy_delay` updates

Deviations from the paper:
 1. With more than two critics each is paired with a random other one, as in REDQ (arXiv:2101.05982), and the policy
    ascends the mean of all critics instead of the first one.
 2. The target networks may be copied periodically instead (`target_period`).
 3. A transition may be several real steps (`Replay.n_step`).
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
    least_of_random_pairs,
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
class TD3(LearnerSettings):
    """Hyper-parameters of TD3, and the functions that make up an update."""

    joins_seeds: ClassVar[bool] = True
    stochastic: ClassVar[bool] = False
    metrics: ClassVar[tuple[str, ...]] = metric_names()

    batch_size: int = 256
    discount: float = 0.99  # γ per step
    reward_scale: float = 1.0  # κ, factor on rewards
    learning_rate: float = 0.0003  # of policy and critics
    target_noise: float = 0.2  # standard deviation of the noise on target actions
    target_noise_clip: float = 0.5  # that noise is clipped to ± this
    rows: Rows = "all"  # use of batch rows: split between critics, one random critic for each, or all for all
    target_period: int | None = None  # updates between copies into the target networks; None: Polyak averaging
    polyak: float = 0.005  # Polyak coefficient τ of the target networks
    publish_period: int | None = None  # updates between copies of the policy that acts; None: after every call
    policy_delay: int = 2  # critic updates per policy update
    compile: bool | None = None  # compile the functions of an update; None: on a GPU

    def __post_init__(self) -> None:
        check.positive(self, "batch_size", "reward_scale", "learning_rate", "policy_delay")
        check.at_least(self, 1, "target_period", "publish_period", end=", or None")
        check.not_negative(self, "target_noise", "target_noise_clip")
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
        """Return the noise of target actions, and the random order that pairs critics.

        All members of a depth get the same noise: what their candidates differ by is what they estimate.
        """
        critics, noise = network.sizes.critics, (count, depths, self.batch_size, network.action_size)
        return {
            "action_noise": torch.randn(noise, generator=generator, device=generator.device),
            "critics": torch.rand(count, critics, generator=generator, device=generator.device).argsort(-1),
        }

    def next_action(self, network: ControlNetwork, batch: Batch, obs: Tensor, depth: int) -> NextAction:
        """Return the target policy's actions with clipped noise in states [R, M, B, D]."""
        greedy = network.act(network.target_policy, obs.flatten(1, 2)).unflatten(1, obs.shape[1:3])
        noise = batch["action_noise"][:, depth].unsqueeze(1)  # [R, 1, B, A]
        clip = self.target_noise_clip
        return NextAction((greedy + (self.target_noise * noise).clamp(-clip, clip)).clamp(-1, 1))

    def next_value(self, network: ControlNetwork, batch: Batch, obs: Tensor, action: Tensor) -> Tensor:
        """Return the smaller Q' of random pairs of critics, [R, N, P], for pairs [R, P, ...]."""
        return least_of_random_pairs(network.value(network.target, obs, action), batch["critics"])

    @torch.no_grad()
    def targets(self, network: ControlNetwork, batch: Batch) -> Targets:
        """Return the targets y of transitions [R, B]."""
        obs = batch["after"]
        action = self.next_action(network, batch, obs.unsqueeze(1), 0).action.squeeze(1)  # [R, B, A]
        value = self.next_value(network, batch, obs, action)  # [R, N, B]
        return one_step_targets(self, batch, value.transpose(1, 2))

    def policy_loss(self, network: ControlNetwork, batch: Batch) -> Tensor:
        """Return −mean Q of the policy's actions, [R]."""
        action = network.act(network.policy, batch["obs"])
        return -mean_value(network, batch["obs"], action).mean(-1)

    def step(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, moves_policy: bool, compiled: Compiler
    ) -> Tensor:
        """Make one update: the critics, the policy when it is due, then the target networks; return metrics [R, M]."""
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
        loss = compiled(self.policy_loss)(network, batch)
        optimisers["policy"].descend(loss.sum())
        return PolicyStep(loss.detach())

    def follow(self, network: ControlNetwork, moved_policy: bool) -> None:
        """Move the target critics, and with the policy the target policy, by Polyak averaging if no period is set."""
        if self.target_period is None:
            average_weights(network.target, network.critic, self.polyak)
            if moved_policy:
                average_weights(network.target_policy, network.policy, self.polyak)

    def temperature_of(self, network: ControlNetwork) -> Tensor:
        """Return temperature 0 [R]: TD3 has no entropy term."""
        return torch.zeros_like(network.log_temperature)
