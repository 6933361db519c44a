"""DQN with double Q-learning, n-step returns and prioritised replay, for networks that are not recurrent.

DQN: Mnih et al. 2015. Double: van Hasselt et al. 2016 (arXiv:1509.06461). Prioritised replay: Schaul et al. 2016
(arXiv:1511.05952). n-step returns and the rest as in Rainbow: Hessel et al. 2018 (arXiv:1710.02298).

    y = Σ_{k<n} γᵏ r_{t+k} + γⁿ Q'(x_{t+n}, argmax_a Q(x_{t+n}, a))
    loss = mean_B w · huber(y − Q(x_t, a_t)),   priority = |y − Q(x_t, a_t)|

Deviations, each by choice (docs/recurrent_replay.md says why):
 1. Returns near the end of an episode or of what is stored are shorter.
 2. Truncations bootstrap; only terminations have discount 0.
 3. Values may be squashed by R2D2's h (`ActionValues.rescaling`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from packtrain import check, trees
from packtrain.algorithms.q_sequences import (
    Reduction,
    RewardClipping,
    burn_in_rows,
    check_ignored_discount,
    check_sequences,
    descend_values,
    episode_ends,
    loss_metrics,
    prepare_priorities,
    value_optimiser,
)
from packtrain.algorithms.target_network import Optimisers, TargetNetworkLearner
from packtrain.config import configurable
from packtrain.equations.priorities import sequence_priority
from packtrain.equations.q_learning import n_step_q_targets, sequence_losses, td_errors
from packtrain.equations.rewards import clip_reward
from packtrain.errors import ConfigError
from packtrain.interfaces import LearnerSettings, MemorySettings, Policy, PolicySettings
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.networks.q_network import QValueNetwork
from packtrain.types import Trajectory


@configurable
@dataclass(frozen=True)
class DQN(LearnerSettings):
    """Hyper-parameters of DQN; defaults are those of configs/dqn/base.gin."""

    splits_batches: ClassVar[bool] = True
    discount: float = 0.99  # γ per step
    n_step: int = 3  # n of the n-step return; the memory's must be the same
    double: bool = True  # the online network chooses the action that the target network values
    reward_clipping: RewardClipping = "abs_one"
    huber: float | None = 1.0  # TD error from which the loss is linear; None: squared loss
    eta: float = 0.9  # η of a sequence's priority; a transition has one error, whatever η is
    learning_rate: float = 0.0001
    adam_epsilon: float = 0.00015
    grad_norm_clipping: float | None = 10.0  # maximum global gradient norm; None: not clipped
    target_period: int = 2500  # updates between copies into the target network
    publish_period: int = 1  # updates between versions of the weights that act
    reduction: Reduction = "mean"  # reduction of the loss over the steps of a sequence, of which there is one

    def __post_init__(self) -> None:
        check.positive(self, "learning_rate", "adam_epsilon")
        check.positive(self, "huber", "grad_norm_clipping", end=", or None")
        check.share(self, "discount", "eta")
        check.at_least(self, 1, "n_step", "target_period", "publish_period")

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError unless the memory yields single transitions and the network is not recurrent."""
        sequences, values = check_sequences(self, memory, policy)
        if sequences.sequence_length > 1 or values.network.recurrent or values.novelty is not None:
            raise ConfigError(
                f"DQN learns from single transitions: Sequences.sequence_length = {sequences.sequence_length} must be "
                "1, and the network neither recurrent nor rewarded for novelty; @R2D2() and @NGU() learn those"
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
            {"values": value_optimiser(network, self)},
            partial(step, settings=self),
            target_period=self.target_period,
            publish_period=self.publish_period,
        )


def step(
    network: ActionValuesNetwork, optimisers: Optimisers, trajectory: Trajectory, weight: Tensor, *, settings: DQN
) -> dict[str, Tensor]:
    """Make one update; return metrics, and "priorities" [B]."""
    total, metrics = loss(network, trajectory, weight, settings)
    return descend_values(optimisers["values"], total, metrics)


def loss(
    network: ActionValuesNetwork, trajectory: Trajectory, weight: Tensor, settings: DQN
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch of transitions; metrics as detached 0-d tensors, and "priorities" [B].

    Args:
      network: values, and their slower copy.
      trajectory: T = n steps, of which the first is learned from; the others are those of its return.
      weight: [B] of each transition in the loss.
      settings: numbers.
    """
    online, target = values_of_transitions(network, trajectory)  # [n+1, B, A] each
    ends = episode_ends(network, trajectory, settings.discount)
    learned = trajectory.extras["weight"]  # [n, B] 1 for the first step
    targets = n_step_q_targets(
        online.detach(),
        target,
        clip_reward(trajectory.reward, settings.reward_clipping),
        ends.discount_t,
        ends.continue_t,
        ends.weight_t,
        n=settings.n_step,
        double=settings.double,
        rescaling=network.sizes.rescaling,
    )
    errors = td_errors(online, trajectory.action, targets, learned)
    losses = sequence_losses(errors, learned, settings.huber, settings.reduction)  # [B]
    priority = sequence_priority(errors.detach(), learned, settings.eta)
    total = (weight * losses).mean()
    return total, loss_metrics(total, online, learned, priority, weight)


def are_transitions(network: ActionValuesNetwork, trajectory: Trajectory, n_step: int) -> bool:
    """Return whether a batch holds single transitions of n steps, for a network that is not recurrent."""
    one = len(trajectory.reward) == n_step and burn_in_rows(network, trajectory) == 0
    return one and not network.sizes.network.recurrent and network.sizes.novelty is None


def values_of_transitions(network: ActionValuesNetwork, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
    """Return the Q values of both networks in the row acted in and the row bootstrapped from, [n+1, B, A]; 0 elsewhere.

    No target of the first step needs another row: the return stops at row n, or where the episode ends before.
    """
    steps, batch = trajectory.reward.shape
    ended = trajectory.terminated | trajectory.truncated
    number = torch.arange(1, steps + 1, device=ended.device).unsqueeze(1)
    last = torch.where(ended, number, steps).amin(0)  # [B]
    column = torch.arange(batch, device=ended.device)
    first = trajectory.first.clone()
    first[network.context + 1 :] = False  # as for sequences
    last_action, last_reward = trajectory.last_inputs()

    def q(values: QValueNetwork, row: Tensor) -> Tensor:
        """Return the Q values of one row of each environment, [1, B, A]."""
        row = network.context + row
        rows = row + torch.arange(-values.context, 1, device=row.device).unsqueeze(1)  # [C+1, B]
        output: Tensor = values(
            trees.map(lambda leaf: leaf[rows, column], trajectory.obs),
            first[rows, column],
            last_action[row, column].unsqueeze(0),
            last_reward[row, column].unsqueeze(0),
            (),
        ).values
        return output

    acted = q(network.acting.values, torch.zeros_like(last))
    with torch.no_grad():
        led_to = [q(values, last) for values in (network.acting.values, network.target)]
    place = (last - 1).view(1, -1, 1).expand_as(acted)
    nothing = acted.new_zeros(steps, *acted.shape[1:])
    online, target = (nothing.scatter(0, place, values) for values in led_to)
    return torch.cat([acted, online]), torch.cat([torch.zeros_like(acted), target])
