"""NGU: R2D2 with an intrinsic reward for novelty, weighted per arm (Badia et al. 2020, arXiv:2002.06038).

One Q network sees the arm j and learns the return of r + β_j r_i with the discount γ_j of the arm:

    y_t = h(retrace return of r + β r_i),   δ, loss and priority as R2D2's (`r2d2.py`)

The embedding that measures novelty in the episode learns to predict the action from two observations; the distillation
that measures novelty in life learns to predict a random network.

Deviations, each by choice (docs/recurrent_replay.md says why):
 1. Returns near the end of an episode or of what is stored are shorter; every step of a sequence has a target.
 2. Truncations bootstrap; only terminations have discount 0.
 3. Embedding and distillation learn from the last steps of each sequence, padding left out.
 4. A share of the sequences may be learned as if arm 0, which only exploits, had made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from packtrain import check, trees
from packtrain.acting.epsilon_greedy import INTRINSIC
from packtrain.algorithms.optimisers import Adam
from packtrain.algorithms.q_sequences import (
    Reduction,
    Returns,
    RewardClipping,
    ValueSettings,
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
from packtrain.algorithms.target_network import (
    Inputs,
    Optimisers,
    TargetNetworkLearner,
    averages_over_sequences,
    sample_inputs,
)
from packtrain.config import configurable
from packtrain.equations.priorities import sequence_priority
from packtrain.equations.q_learning import sequence_losses, td_errors
from packtrain.equations.rewards import clip_reward
from packtrain.errors import ConfigError
from packtrain.interfaces import LearnerSettings, MemorySettings, Policy, PolicySettings
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.types import Sample, Trajectory


@configurable
@dataclass(frozen=True)
class NGU(LearnerSettings):
    """Hyper-parameters of NGU; defaults are the paper's, and R2D2's where the paper gives none."""

    splits_batches: ClassVar[bool] = True
    discount: float | None = None  # γ per step; None: each arm has its own
    returns: Returns = "retrace"
    n_step: int = 5  # n of n_step; the memory's must be the same
    trace_lambda: float = 0.95  # λ of retrace and peng
    double: bool = True  # the online network chooses the action that the target network values
    reward_clipping: RewardClipping = "none"
    huber: float | None = None  # TD error from which the loss is linear; None: squared loss
    exploit_share: float = 0.0  # share of the sequences that are learned as if arm 0 had made them
    eta: float = 0.9  # η of a sequence's priority
    learning_rate: float = 0.0001
    adam_epsilon: float = 0.0001
    grad_norm_clipping: float | None = 40.0  # maximum global gradient norm of the Q network; None: not clipped
    target_period: int = 1500  # updates between copies into the target network
    publish_period: int = 1  # updates between versions of the weights that act
    embedding_learning_rate: float = 0.0005
    embedding_decay: float = 1e-5  # weight of the L2 regularisation
    distillation_learning_rate: float = 0.0005
    novelty_steps: int = 5  # last steps of each sequence that embedding and distillation learn from
    target_epsilon: float = 0.0  # ε of the ε-greedy policy that retrace evaluates
    reduction: Reduction = "sum"  # reduction of the loss over the steps of a sequence

    def __post_init__(self) -> None:
        check_numbers(self)

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError unless the policy has an intrinsic reward, and one Q network for the sum of rewards."""
        _, values = check_sequences(self, memory, policy)
        if values.novelty is None or values.network.separate_intrinsic:
            raise ConfigError(
                "NGU has one Q network for the sum of rewards and novelty: set ActionValues.novelty, and leave "
                "QNetwork.separate_intrinsic False; @Agent57() has two"
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


class NoveltySettings(ValueSettings, Protocol):
    """Settings of the networks that measure novelty."""

    @property
    def embedding_learning_rate(self) -> float:
        """Learning rate of the embedding."""

    @property
    def embedding_decay(self) -> float:
        """L2 penalty of the embedding."""

    @property
    def distillation_learning_rate(self) -> float:
        """Learning rate of the distillation."""

    @property
    def novelty_steps(self) -> int:
        """Number of last steps of each sequence that embedding and distillation are trained on."""


def check_numbers(settings: Any) -> None:
    """Raise a ConfigError for a setting of NGU, Agent57 or QLearning that is out of range."""
    check.not_negative(settings, "embedding_learning_rate", "distillation_learning_rate")
    check.positive(settings, "learning_rate", "adam_epsilon")
    check.share(settings, "discount", "trace_lambda", "target_epsilon", "eta", "exploit_share")
    check.at_least(settings, 1, "n_step", "target_period", "publish_period", "novelty_steps")
    check.positive(settings, "huber", "grad_norm_clipping", end=", or None")


def step(
    network: ActionValuesNetwork,
    optimisers: Optimisers,
    trajectory: Trajectory,
    weight: Tensor,
    exploits: Tensor,
    *,
    settings: NGU,
) -> dict[str, Tensor]:
    """Make one update of the Q network, the embedding and the distillation; return metrics, and "priorities" [B]."""
    total, metrics = loss(network, trajectory, weight, exploits, settings)
    metrics = descend_values(optimisers["values"], total, metrics)
    return metrics | descend_novelty(network, optimisers, trajectory, settings)


def loss(
    network: ActionValuesNetwork, trajectory: Trajectory, weight: Tensor, exploits: Tensor, settings: NGU
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the Q network's loss of a batch of sequences; metrics as detached 0-d tensors, and "priorities" [B].

    Args:
      network: values, and their slower copy.
      trajectory: C = context + burn-in rows in front, T steps, those after the ones to learn from included.
      weight: [B] of each sequence in the loss.
      exploits: [B] bool, which of them are learned from as if arm 0 had made them.
      settings: numbers.
    """
    # Q values of both networks on every row after the burn-in, from the stored recurrent state: [T+1, B, A].
    arm = arms_of(network, trajectory, exploits)
    online, target = unroll_both(network, trajectory, arm)

    # Targets: returns of extrinsic and intrinsic rewards with weight and discount of each arm, [T, B].
    intrinsic = trajectory.extras[f"reward/{INTRINSIC}"]
    reward = clip_reward(trajectory.reward, settings.reward_clipping) + network.arm_weights[arm] * intrinsic
    ends = episode_ends(network, trajectory, discount_of(network, arm, settings.discount))
    greedy = online.values.detach()
    targets = q_targets(settings, trajectory, reward, ends, greedy, target.values, network.sizes.rescaling)

    # TD errors and loss of the steps that are neither padding nor only part of a return.
    learned = trajectory.extras["weight"]  # [T, B]
    errors = td_errors(online.values, trajectory.action, targets, learned)
    losses = sequence_losses(errors, learned, settings.huber, settings.reduction)  # [B]
    total = (weight * losses).mean()

    priority = sequence_priority(errors.detach(), learned, settings.eta)  # [B]
    metrics = {"intrinsic_reward": mean_novelty(intrinsic, learned)}
    return total, metrics | loss_metrics(total, online.values, learned, priority, weight)


def arms_of(network: ActionValuesNetwork, trajectory: Trajectory, exploits: Tensor) -> Tensor:
    """Return the arm whose values are trained on each sequence, [B] int64; an episode has one arm."""
    if len(network.arm_weights) == 1:
        return torch.zeros_like(trajectory.reward[0], dtype=torch.int64)
    return trajectory.extras["arm"][0].masked_fill(exploits, 0)


def discount_of(network: ActionValuesNetwork, arm: Tensor, discount: float | None) -> float | Tensor:
    """Return the discount γ of each sequence's arm [B], or the learner's discount if arms have none."""
    if network.arm_discounts is not None:
        return network.arm_discounts[arm]
    assert discount is not None, "neither the learner nor the arms have a discount"
    return discount


def mean_novelty(intrinsic: Tensor, learned: Tensor) -> Tensor:
    """Return the mean intrinsic reward of the steps that are trained on."""
    return (intrinsic * learned).sum() / learned.sum().clamp(min=1)


def inputs_with_exploits(share: float) -> Inputs:
    """Return the trajectory and weight [B] of a sample, and whether each sequence is treated as one of arm 0 [B]."""

    def inputs(sample: Sample, update: int) -> tuple[Any, ...]:
        trajectory, weight = sample_inputs(sample, update)
        exploits = torch.zeros_like(weight, dtype=torch.bool)
        if share:
            exploits = exploiting(update, len(weight), share).to(weight.device)
        return trajectory, weight, exploits

    return inputs


def exploiting(update: int, size: int, share: float) -> Tensor:
    """Return which sequences of a batch are trained on as if arm 0 had made them, [B] bool.

    They are spread evenly over the batch, at other places in each update: a stratified batch has neighbours of the
    memory side by side, and the same places every time would be nearly the same sequences.
    """
    phase = update * 0.6180339887498949 % 1  # multiples of the golden ratio, which are spread evenly
    turn = (torch.arange(size + 1, dtype=torch.float64) * share + phase).floor()
    return turn[1:] > turn[:-1]


def novelty_optimisers(network: ActionValuesNetwork, settings: NoveltySettings) -> Optimisers:
    """Return the optimisers of the Q network, and of the embedding and the distillation if they exist."""
    optimisers = {"values": value_optimiser(network, settings)}
    embedding, distillation = network.acting.embedding, network.acting.distillation
    if embedding is not None:
        rate, decay = settings.embedding_learning_rate, settings.embedding_decay
        optimisers["embedding"] = Adam(embedding.parameters(), rate, decay)
    if distillation is not None:
        optimisers["distillation"] = Adam(distillation.predictor.parameters(), settings.distillation_learning_rate)
    return optimisers


def descend_novelty(
    network: ActionValuesNetwork, optimisers: Optimisers, trajectory: Trajectory, settings: NoveltySettings
) -> dict[str, Tensor]:
    """Make one optimiser step of the embedding and the distillation; return their losses."""
    losses = novelty_losses(network, trajectory, settings.novelty_steps)
    for name, own in losses.items():
        optimisers[name].descend(own)
    return {f"{name}_loss": own.detach() for name, own in losses.items()}


def novelty_losses(network: ActionValuesNetwork, trajectory: Trajectory, novelty_steps: int) -> dict[str, Tensor]:
    """Return the losses of embedding and distillation in the last steps of each sequence, by name."""
    acting = network.acting
    begin = len(trajectory.first) - 1 - len(trajectory.reward)
    losses: dict[str, Tensor] = {}
    column, step, valid = last_steps(trajectory, novelty_steps)
    total = valid.sum().clamp(min=1)
    if acting.embedding is not None:
        own = acting.embedding.context
        offsets = torch.arange(-own, 2, device=step.device).unsqueeze(1)  # rows from each step's own to the next
        rows = begin + step + offsets  # [own + 2, N]
        obs = trees.map(lambda leaf: leaf[rows, column], trajectory.obs)
        first = trajectory.first[rows, column]
        logits = acting.embedding(obs, first)[0][0]  # [N, A]
        missed = nn.functional.cross_entropy(logits, trajectory.action[step, column], reduction="none")
        losses["embedding"] = (missed * valid).sum() / total
    if acting.distillation is not None:
        shown = trajectory.obs[begin + 1 + step, column]
        losses["distillation"] = (acting.distillation_error(shown) * valid).sum() / total
    return losses


def last_steps(trajectory: Trajectory, novelty_steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return sequence [N] and step [N] of the last valid steps of each sequence, and their weight, 1 or 0 [N]."""
    steps = len(trajectory.reward)
    taken = min(novelty_steps, steps)
    counts = trajectory.extras["weight"]
    # Select the last `taken` steps with nonzero weight: those whose number, counted from the end, is at most `taken`.
    left = counts.flip(0).cumsum(0).flip(0)  # [T, B] number of such steps from here on, this one included
    learned = counts * (left <= taken)
    wanted = int(counts.shape[1]) * taken
    chosen = learned.t().reshape(-1).topk(wanted).indices  # [B·taken] of [B·T], selected steps first
    column, step = chosen // steps, chosen % steps
    return column, step, learned[step, column]


def count_observations(network: ActionValuesNetwork, trajectory: Trajectory, *, novelty_steps: int) -> None:
    """Update the distillation's observation moments with the observations of a batch."""
    if network.acting.distillation is not None:
        column, step, valid = last_steps(trajectory, novelty_steps)
        begin = len(trajectory.first) - 1 - len(trajectory.reward)
        network.acting.count_observations(trajectory.obs[begin + 1 + step, column], valid)
