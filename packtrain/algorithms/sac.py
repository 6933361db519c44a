"""SAC: soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905).

With a stochastic policy π, critics Q_1 … Q_N, their target copies Q', a temperature α and a' ~ π(s'):

    y    = κ r + γ (1 − δ) (mean over pairs (p, q) of min(Q'_p(s', a'), Q'_q(s', a')) − α log π(a'|s'))
    L_Q  = mean_q mean_B ½ (y − Q_q(s, a))²
    L_π  = mean_B [ α log π(ã|s) − mean_q Q_q(s, ã) ],   ã ~ π(s), reparameterised
    L_α  = −log α · (mean_B log π(ã|s) + target_entropy · dim(A))

Deviations from the paper:
 1. With more than two critics each is paired with a random other one, as in REDQ (arXiv:2101.05982), and the policy
    ascends the mean of all critics instead of the minimum of two.
 2. The target critics may be copied periodically instead (`target_period`).
 3. A transition may be several real steps (`Replay.n_step`); entropy counts after the last one.
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
class SAC(LearnerSettings):
    """Hyper-parameters of SAC, and the functions that make up an update."""

    joins_seeds: ClassVar[bool] = True
    stochastic: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = metric_names()

    batch_size: int = 256
    discount: float = 0.99  # γ per step
    reward_scale: float = 1.0  # κ, factor on rewards
    learning_rate: float = 0.0003  # of policy, critics and temperature
    temperature: float | None = None  # α; None: learned, towards an entropy of target_entropy per dimension
    target_entropy: float = -1.0  # nats per dimension of the action
    rows: Rows = "all"  # use of batch rows: split between critics, one random critic for each, or all for all
    target_period: int | None = None  # updates between copies into the target critics; None: Polyak averaging
    polyak: float = 0.005  # Polyak coefficient τ of the target critics
    publish_period: int | None = None  # updates between copies of the policy that acts; None: after every call
    policy_delay: int = 1  # critic updates per policy update
    compile: bool | None = None  # compile the functions of an update; None: on a GPU

    def __post_init__(self) -> None:
        check.positive(self, "batch_size", "reward_scale", "learning_rate", "policy_delay")
        check.at_least(self, 1, "target_period", "publish_period", end=", or None")
        check.not_negative(self, "temperature")
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
        optimisers = {
            "critic": Adam(network.critic.parameters(), self.learning_rate),
            "policy": Adam(network.policy.parameters(), self.learning_rate),
        }
        if self.temperature is None:
            optimisers["temperature"] = Adam([network.log_temperature], self.learning_rate)
        return optimisers

    def draws(self, network: ControlNetwork, count: int, generator: torch.Generator, depths: int = 1) -> Batch:
        """Return the noise of actions in targets and in the policy's loss, and the random order that pairs critics.

        All members of a depth get the same noise: what their candidates differ by is what they estimate.
        """
        device, critics = generator.device, network.sizes.critics
        shape = (self.batch_size, network.action_size)
        return {
            "action_noise": torch.randn(count, depths, *shape, generator=generator, device=device),
            "critics": torch.rand(count, critics, generator=generator, device=device).argsort(-1),
            "policy_noise": torch.randn(count, *shape, generator=generator, device=device),
        }

    def next_action(self, network: ControlNetwork, batch: Batch, obs: Tensor, depth: int) -> NextAction:
        """Return sampled actions in states [R, M, B, D], and their α log π."""
        noise = batch["action_noise"][:, depth].unsqueeze(1).expand(-1, obs.shape[1], -1, -1)  # [R, M, B, A]
        action, log_prob = network.draw(network.policy, obs.flatten(1, 2), noise.flatten(1, 2))
        action, log_prob = (leaf.unflatten(1, obs.shape[1:3]) for leaf in (action, log_prob))
        return NextAction(action, self.temperature_of(network)[:, None, None] * log_prob)

    def next_value(self, network: ControlNetwork, batch: Batch, obs: Tensor, action: Tensor) -> Tensor:
        """Return the smaller Q' of random pairs of critics, [R, N, P], for pairs [R, P, ...]."""
        return least_of_random_pairs(network.value(network.target, obs, action), batch["critics"])

    @torch.no_grad()
    def targets(self, network: ControlNetwork, batch: Batch) -> Targets:
        """Return the targets y of transitions [R, B]."""
        obs = batch["after"]
        action, entropy_cost = self.next_action(network, batch, obs.unsqueeze(1), 0)
        assert entropy_cost is not None
        value = self.next_value(network, batch, obs, action.squeeze(1))  # [R, N, B]
        soft_value = value.transpose(1, 2) - entropy_cost.squeeze(1).unsqueeze(-1)
        return one_step_targets(self, batch, soft_value)

    def policy_loss(self, network: ControlNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return α log π − mean Q of sampled actions, [R], and log π [R, B]."""
        action, log_prob = network.draw(network.policy, batch["obs"], batch["policy_noise"])
        value = mean_value(network, batch["obs"], action)
        return (self.temperature_of(network).unsqueeze(-1) * log_prob - value).mean(-1), log_prob

    def step(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, moves_policy: bool, compiled: Compiler
    ) -> Tensor:
        """Make one update: the critics, the policy, its temperature, then the target critics; return metrics [R, M]."""
        targets = compiled(self.targets)(network, batch)
        critic_loss, value_mean = compiled(critic_losses)(network, self, batch, targets)
        optimisers["critic"].descend(critic_loss.sum())
        policy = self.step_policy(network, optimisers, batch, compiled) if moves_policy else None
        self.follow(network, moves_policy)
        return compiled(measures)(network, self, critic_loss.detach(), policy, value_mean, targets)

    def step_policy(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, compiled: Compiler
    ) -> PolicyStep:
        """Make one optimiser step of the policy, and of the temperature if it is learned."""
        loss, log_prob = compiled(self.policy_loss)(network, batch)
        optimisers["policy"].descend(loss.sum())
        if self.temperature is None:
            surplus = log_prob.detach().mean(-1) + self.target_entropy * network.action_size
            optimisers["temperature"].follow([-surplus])  # the gradient of L_α by log α
        return PolicyStep(loss.detach())

    def follow(self, network: ControlNetwork, moved_policy: bool) -> None:
        """Move the target critics towards the critics, where they are not copied periodically."""
        if self.target_period is None:
            average_weights(network.target, network.critic, self.polyak)

    def temperature_of(self, network: ControlNetwork) -> Tensor:
        """Return the temperature α [R], detached."""
        if self.temperature is not None:
            return torch.full_like(network.log_temperature, self.temperature)
        return network.log_temperature.detach().exp()
