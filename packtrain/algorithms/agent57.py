"""Agent57: NGU with separate Q networks for extrinsic and intrinsic returns (Badia et al. 2020, arXiv:2003.13350).

Both are evaluated under the greedy policy of the combined values of their arm j:

    Q   = h(h⁻¹(Q_e) + β_j h⁻¹(Q_i))
    y_e = h(retrace return of r under greedy Q),   y_i = h(retrace return of r_i under greedy Q)
    loss = mean_B w Σ_t ½ (δ_e² + δ_i²),   priority = priority of δ_e + β_j · priority of δ_i

The bandit that chooses arms is part of the policy (`networks/action_values.py`: `Bandit`). Deviations are NGU's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from packtrain.acting.epsilon_greedy import INTRINSIC
from packtrain.algorithms.ngu import (
    arms_of,
    check_numbers,
    count_observations,
    descend_novelty,
    discount_of,
    inputs_with_exploits,
    mean_novelty,
    novelty_optimisers,
)
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
)
from packtrain.algorithms.target_network import Optimisers, TargetNetworkLearner, averages_over_sequences
from packtrain.config import configurable
from packtrain.equations.priorities import sequence_priority
from packtrain.equations.q_learning import combined_q, sequence_losses, td_errors
from packtrain.equations.rewards import clip_reward
from packtrain.errors import ConfigError
from packtrain.interfaces import LearnerSettings, MemorySettings, Policy, PolicySettings
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.types import Trajectory


@configurable
@dataclass(frozen=True)
class Agent57(LearnerSettings):
    """Hyper-parameters of Agent57; defaults are NGU's. The greedy policy is always that of the online network."""

    splits_batches: ClassVar[bool] = True
    discount: float | None = None  # γ per step; None: each arm has its own
    returns: Returns = "retrace"
    n_step: int = 5  # n of n_step; the memory's must be the same
    trace_lambda: float = 0.95  # λ of retrace and peng
    reward_clipping: RewardClipping = "none"
    huber: float | None = None  # TD error from which the loss is linear; None: squared loss
    exploit_share: float = 0.0  # share of the sequences that are learned as if arm 0 had made them
    eta: float = 0.9  # η of a sequence's priority
    learning_rate: float = 0.0001
    adam_epsilon: float = 0.0001
    grad_norm_clipping: float | None = 40.0  # maximum global gradient norm of the Q networks; None: not clipped
    target_period: int = 1500  # updates between copies into the target networks
    publish_period: int = 1  # updates between versions of the weights that act
    embedding_learning_rate: float = 0.0005
    embedding_decay: float = 1e-5  # weight of the L2 regularisation
    distillation_learning_rate: float = 0.0005
    novelty_steps: int = 5  # last steps of each sequence that embedding and distillation learn from
    target_epsilon: float = 0.0  # ε of the ε-greedy policy that retrace evaluates
    reduction: Reduction = "sum"  # of the loss over the steps of a sequence

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def double(self) -> bool:
        """Whether the online networks choose the action that the target networks evaluate."""
        return True

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError unless the policy has separate networks for the two rewards."""
        _, values = check_sequences(self, memory, policy)
        if not values.network.separate_intrinsic:
            raise ConfigError(
                "Agent57 has separate Q networks for rewards and novelty: set QNetwork.separate_intrinsic = True"
            )

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
            novelty_optimisers(network, self),
            partial(step, settings=self),
            target_period=self.target_period,
            publish_period=self.publish_period,
            inputs=inputs_with_exploits(self.exploit_share),
            prepare=partial(count_observations, novelty_steps=self.novelty_steps),
            averages=averages_over_sequences(self.novelty_steps),
        )


def step(
    network: ActionValuesNetwork,
    optimisers: Optimisers,
    trajectory: Trajectory,
    weight: Tensor,
    exploits: Tensor,
    *,
    settings: Agent57,
) -> dict[str, Tensor]:
    """Make one update of the Q networks, the embedding and the distillation; return metrics, and "priorities" [B]."""
    total, metrics = loss(network, trajectory, weight, exploits, settings)
    metrics = descend_values(optimisers["values"], total, metrics)
    return metrics | descend_novelty(network, optimisers, trajectory, settings)


def loss(
    network: ActionValuesNetwork, trajectory: Trajectory, weight: Tensor, exploits: Tensor, settings: Agent57
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of both Q networks on a batch of sequences; metrics, and "priorities" [B].

    Args:
      network: values, and their slower copies.
      trajectory: C = context + burn-in rows in front, T steps, those after the ones to learn from included.
      weight: [B] of each sequence in the loss.
      exploits: [B] bool, which of them are learned from as if arm 0 had made them.
      settings: numbers.
    """
    # Extrinsic and intrinsic Q values of both networks on every row after the burn-in: [T+1, B, A] each.
    arm = arms_of(network, trajectory, exploits)
    online, target = unroll_both(network, trajectory, arm)
    assert online.intrinsic_values is not None and target.intrinsic_values is not None
    beta, rescaling = network.arm_weights[arm], network.sizes.rescaling

    # Extrinsic and intrinsic targets under the greedy policy of the combined values: [T, B] each.
    intrinsic = trajectory.extras[f"reward/{INTRINSIC}"]
    reward = clip_reward(trajectory.reward, settings.reward_clipping)
    ends = episode_ends(network, trajectory, discount_of(network, arm, settings.discount))
    rows = beta.expand(len(online.values), -1)
    greedy = combined_q(online.values, online.intrinsic_values, rows, rescaling).detach()
    targets = q_targets(settings, trajectory, reward, ends, greedy, target.values, rescaling)
    targets_i = q_targets(settings, trajectory, intrinsic, ends, greedy, target.intrinsic_values, rescaling)

    # TD errors and losses of the steps that are neither padding nor only part of a return.
    learned = trajectory.extras["weight"]  # [T, B]
    errors = td_errors(online.values, trajectory.action, targets, learned)
    errors_i = td_errors(online.intrinsic_values, trajectory.action, targets_i, learned)
    losses = sequence_losses(errors, learned, settings.huber, settings.reduction)  # [B]
    losses_i = sequence_losses(errors_i, learned, settings.huber, settings.reduction)
    total = (weight * (losses + losses_i)).mean()

    priority = sequence_priority(errors.detach(), learned, settings.eta)
    priority = priority + beta * sequence_priority(errors_i.detach(), learned, settings.eta)  # [B]
    metrics = {
        "intrinsic_reward": mean_novelty(intrinsic, learned),
        "intrinsic_value_loss": (weight * losses_i).mean().detach(),
    }
    return total, metrics | loss_metrics(total, online.values, learned, priority, weight)
