"""R2D2: recurrent Q-learning from prioritised sequences with stored state and burn-in (Kapturowski et al. 2019).

For every step t of a sequence, with h(x) = sign(x) (√(|x| + 1) − 1) + εx:

    y_t      = h(Σ_{k<n} γᵏ r_{t+k} + γⁿ h⁻¹(Q'(x_{t+n}, argmax_a Q(x_{t+n}, a))))
    δ_t      = y_t − Q(x_t, a_t)
    loss     = mean_B w Σ_t ½ δ_t²
    priority = η max_t |δ_t| + (1 − η) mean_t |δ_t|

The return may be Retrace(λ) or Peng's Q(λ) instead of n steps (`returns`).

Deviations, each by choice (docs/recurrent_replay.md says why):
 1. Returns near the end of an episode or of what is stored are shorter; every step of a sequence has a target.
 2. Truncations bootstrap; only terminations have discount 0.
 3. The network need not be recurrent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from packtrain import check
from packtrain.algorithms.q_sequences import (
    Reduction,
    Returns,
    RewardClipping,
    check_ignored_discount,
    check_sequences,
    descend_values,
    episode_ends,
    loss_metrics,
    prepare_priorities,
    q_targets,
    unroll_both,
    value_optimiser,
)
from packtrain.algorithms.target_network import Optimisers, TargetNetworkLearner
from packtrain.config import configurable
from packtrain.equations.priorities import sequence_priority
from packtrain.equations.q_learning import sequence_losses, td_errors
from packtrain.equations.rewards import clip_reward
from packtrain.errors import ConfigError
from packtrain.interfaces import LearnerSettings, MemorySettings, Policy, PolicySettings
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.types import Trajectory


@configurable
@dataclass(frozen=True)
class R2D2(LearnerSettings):
    """Hyper-parameters of R2D2; defaults are the paper's."""

    splits_batches: ClassVar[bool] = True
    discount: float = 0.997  # γ per step
    returns: Returns = "n_step"
    n_step: int = 5  # n of n_step; the memory's must be the same
    trace_lambda: float = 0.95  # λ of retrace and peng
    double: bool = True  # the online network chooses the action that the target network values
    reward_clipping: RewardClipping = "none"
    huber: float | None = None  # TD error from which the loss is linear; None: squared loss
    eta: float = 0.9  # η of a sequence's priority
    learning_rate: float = 0.0001
    adam_epsilon: float = 0.001
    grad_norm_clipping: float | None = 40.0  # maximum global gradient norm; None: not clipped
    target_period: int = 2500  # updates between copies into the target network
    publish_period: int = 1  # updates between versions of the weights that act
    target_epsilon: float = 0.0  # ε of the ε-greedy policy that retrace evaluates
    reduction: Reduction = "sum"  # of the loss over the steps of a sequence

    def __post_init__(self) -> None:
        check.positive(self, "learning_rate", "adam_epsilon")
        check.positive(self, "huber", "grad_norm_clipping", end=", or None")
        check.share(self, "discount", "trace_lambda", "target_epsilon", "eta")
        check.at_least(self, 1, "n_step", "target_period", "publish_period")

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if the memory lacks required data, or the policy has an intrinsic reward."""
        _, values = check_sequences(self, memory, policy)
        if values.novelty is not None:
            raise ConfigError("R2D2 has no reward for novelty: leave ActionValues.novelty out, or use @NGU()")

    def check_new_run(self, policy: PolicySettings) -> None:
        """Raise a ConfigError if a setting would be ignored."""
        check_ignored_discount(self, policy)

    def prepare_policy(self, policy: Policy, memory: MemorySettings) -> None:
        """Let actors compute initial priorities if the memory requires them."""
        prepare_priorities(self, policy, memory)

    def build(self, network: ActionValuesNetwork, total_steps: int) -> TargetNetworkLearner:
        """Return a learner for a network."""
        return TargetNetworkLearner(
            network,
            {"values": value_optimiser(network, self)},
            partial(step, settings=self),
            target_period=self.target_period,
            publish_period=self.publish_period,
        )


def step(
    network: ActionValuesNetwork, optimisers: Optimisers, trajectory: Trajectory, weight: Tensor, *, settings: R2D2
) -> dict[str, Tensor]:
    """Make one update; return metrics, and "priorities" [B]."""
    total, metrics = loss(network, trajectory, weight, settings)
    return descend_values(optimisers["values"], total, metrics)


def loss(
    network: ActionValuesNetwork, trajectory: Trajectory, weight: Tensor, settings: R2D2
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch of sequences; metrics as detached 0-d tensors, and "priorities" [B].

    Args:
      network: values, and their slower copy.
      trajectory: C = context + burn-in rows in front, T steps, those after the ones to learn from included.
      weight: [B] of each sequence in the loss.
      settings: numbers.
    """
    # Q values of both networks on every row after the burn-in, from the stored recurrent state: [T+1, B, A].
    one_arm = torch.zeros_like(trajectory.reward[0], dtype=torch.int64)
    online, target = unroll_both(network, trajectory, one_arm)

    # Targets y: returns of the greedy policy, [T, B].
    reward = clip_reward(trajectory.reward, settings.reward_clipping)
    ends = episode_ends(network, trajectory, settings.discount)
    greedy = online.values.detach()
    targets = q_targets(settings, trajectory, reward, ends, greedy, target.values, network.sizes.rescaling)

    # TD errors and loss of the steps that are neither padding nor only part of a return.
    learned = trajectory.extras["weight"]  # [T, B]
    errors = td_errors(online.values, trajectory.action, targets, learned)
    losses = sequence_losses(errors, learned, settings.huber, settings.reduction)  # [B]
    total = (weight * losses).mean()

    priority = sequence_priority(errors.detach(), learned, settings.eta)  # [B]
    return total, loss_metrics(total, online.values, learned, priority, weight)
