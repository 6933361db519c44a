"""Shared by DQN, R2D2, NGU and Agent57: Q values of replayed sequences, targets, and checks of settings.

A sequence has C = context + burn-in rows in front and T steps, those after the ones to learn from included. Where it is
shorter, extras["weight"] [T, B] is 0.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from packtrain import trees
from packtrain.accelerate.side_stream import SideStream
from packtrain.acting.actor_errors import ErrorNumbers
from packtrain.acting.epsilon_greedy import INTRINSIC, ActionValues, EpsilonGreedyPolicy
from packtrain.algorithms.optimisers import Adam
from packtrain.equations.boundaries import Boundaries, boundaries
from packtrain.equations.q_learning import n_step_q_targets, peng_q_targets, retrace_q_targets
from packtrain.errors import ConfigError
from packtrain.interfaces import MemorySettings, Policy, PolicySettings
from packtrain.memory.sequence_settings import Sequences
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.networks.q_network import QOutput, QValueNetwork
from packtrain.trees import Tree
from packtrain.types import Trajectory

Returns = Literal["n_step", "retrace", "peng"]
Reduction = Literal["sum", "mean"]
RewardClipping = Literal["abs_one", "none", "symlog"]


class ValueSettings(Protocol):
    """Settings that every learner of action values has."""

    @property
    def discount(self) -> float | None:
        """Discount factor γ; None: each arm has its own."""

    @property
    def n_step(self) -> int:
        """Number of steps n of the n-step return."""

    @property
    def reward_clipping(self) -> RewardClipping:
        """How rewards are clipped."""

    @property
    def eta(self) -> float:
        """Weight η of the maximum in a sequence's priority."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the Q network."""

    @property
    def adam_epsilon(self) -> float:
        """Adam's ε."""

    @property
    def grad_norm_clipping(self) -> float | None:
        """Maximum global norm of the Q network's gradient."""


class ReturnSettings(ValueSettings, Protocol):
    """Settings of the return in a target."""

    @property
    def returns(self) -> Returns:
        """Name of the return estimator."""

    @property
    def double(self) -> bool:
        """Whether the online network chooses the action that the target network evaluates."""

    @property
    def trace_lambda(self) -> float:
        """Trace decay λ of retrace and peng."""

    @property
    def target_epsilon(self) -> float:
        """ε of the target policy of retrace."""


def value_optimiser(network: ActionValuesNetwork, settings: ValueSettings) -> Adam:
    """Return the optimiser of the online Q network."""
    return Adam(
        network.acting.values.parameters(),
        settings.learning_rate,
        epsilon=settings.adam_epsilon,
        norm=settings.grad_norm_clipping,
    )


def unroll_both(network: ActionValuesNetwork, trajectory: Trajectory, arm: Tensor) -> tuple[QOutput, QOutput]:
    """Return the Q values [T+1, B, A] of the online and the target network on all rows after the burn-in.

    Both begin with the stored recurrent state, and unroll the burn-in without a gradient.

    Args:
      network: values, and their slower copy.
      trajectory: of sequences.
      arm: [B] int64, given to networks that see the arm.
    """
    # an LSTM is a long chain of small steps: run both networks concurrently
    concurrent = SideStream(trajectory.reward.device)
    with concurrent.work():
        target = unroll(network.target, network, trajectory, arm, learns=False)
    online = unroll(network.acting.values, network, trajectory, arm, learns=True)
    concurrent.join()
    return online, target


def burn_in_rows(network: ActionValuesNetwork, trajectory: Trajectory) -> int:
    """Return the number of rows that are used only to compute the recurrent state."""
    return len(trajectory.first) - 1 - len(trajectory.reward) - network.context


def unroll(
    values: QValueNetwork, network: ActionValuesNetwork, trajectory: Trajectory, arm: Tensor, learns: bool
) -> QOutput:
    """Return the Q values [T+1, B, A] of one network on all rows after the burn-in.

    Args:
      values: the online or the target network.
      network: to which it belongs.
      trajectory: of sequences.
      arm: [B] int64.
      learns: with a gradient, which does not reach the burn-in.
    """
    context, own, burn_in = network.context, values.context, burn_in_rows(network, trajectory)
    last_action, last_reward = trajectory.last_inputs()
    first = trajectory.first.clone()
    first[context + burn_in + 1 :] = False  # rows of padding after an end have weight 0, so they need no reset
    intrinsic: Tensor | None = None
    if values.sizes.use_last_intrinsic:
        before, after = trajectory.last_reward[INTRINSIC], trajectory.extras[f"reward/{INTRINSIC}"]
        intrinsic = torch.cat([before, after])
    arms = arm.expand(len(first), -1) if values.sizes.arms else None

    def q(begin: int, end: int, carry: Tree) -> QOutput:
        """Return the Q values of rows begin … end, counted from the first row of the burn-in."""
        rows = slice(context + begin, context + end)
        with_context = slice(context - own + begin, context + end)
        output: QOutput = values(
            trees.map(lambda leaf: leaf[with_context], trajectory.obs),
            first[with_context],
            last_action[rows],
            last_reward[rows],
            carry,
            None if intrinsic is None else intrinsic[rows],
            None if arms is None else arms[rows],
            padded=True,
        )
        return output

    end = len(first) - context
    carry = trajectory.carry
    if not learns:
        with torch.no_grad():
            output = q(0, end, carry)
        intrinsic_values = None if output.intrinsic_values is None else output.intrinsic_values[burn_in:]
        return QOutput(output.values[burn_in:], (), intrinsic_values)
    if burn_in and trees.flatten(carry):
        with torch.no_grad():
            carry = q(0, burn_in, carry).carry
    return q(burn_in, end, carry)


def episode_ends(network: ActionValuesNetwork, trajectory: Trajectory, discount: float | Tensor) -> Boundaries:
    """Return discount, continuation and weight [T, B] of every step after the burn-in.

    Args:
      network: whose context rows lie in front.
      trajectory: of sequences.
      discount: γ, or [B] one for each sequence.
    """
    first = trajectory.first[network.context + burn_in_rows(network, trajectory) :]
    ends = boundaries(first, trajectory.terminated, trajectory.truncated, 1.0)
    return ends._replace(discount_t=ends.discount_t * discount)


def q_targets(
    settings: ReturnSettings,
    trajectory: Trajectory,
    reward: Tensor,
    ends: Boundaries,
    ranks: Tensor,
    target: Tensor,
    rescaling: float | None,
) -> Tensor:
    """Return the targets [T, B] of the actions taken: n-step returns, Retrace(λ) or Peng's Q(λ).

    Args:
      settings: which of the three, and its numbers.
      trajectory: what was done.
      reward: [T, B] that these values estimate the return of.
      ends: of episodes.
      ranks: [T+1, B, A] values whose greedy policy is evaluated.
      target: [T+1, B, A] values of the target network.
      rescaling: ε of h; None: values are in units of rewards.
    """
    rows = (reward, ends.discount_t, ends.continue_t, ends.weight_t)
    double = settings.double
    if settings.returns == "n_step":
        return n_step_q_targets(ranks, target, *rows, n=settings.n_step, double=double, rescaling=rescaling)
    if settings.returns == "peng":
        trace = settings.trace_lambda
        return peng_q_targets(ranks, target, *rows, trace_lambda=trace, double=double, rescaling=rescaling)
    return retrace_q_targets(
        ranks,
        target,
        trajectory.action,
        trajectory.extras["behaviour_prob"],
        *rows,
        trace_lambda=settings.trace_lambda,
        target_epsilon=settings.target_epsilon,
        double=double,
        rescaling=rescaling,
    )


def loss_metrics(total: Tensor, values: Tensor, learned: Tensor, priority: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return the metrics that all losses of action values have, and "priorities" [B].

    Args:
      total: the loss.
      values: [T+1, B, A] of the online network.
      learned: [T, B] 1 for steps that are learned from.
      priority: [B].
      weight: [B] of each sequence in the loss.
    """
    return {
        "total_loss": total.detach(),
        "value_mean": (values[:-1].detach().amax(-1) * learned).sum() / learned.sum().clamp(min=1),
        "td_error": priority.mean(),
        "importance_weight": weight.mean(),
        "priorities": priority,
    }


def descend_values(optimiser: Adam, loss: Tensor, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make one optimiser step of the Q network; add the gradient's norm before clipping to the metrics."""
    norm = optimiser.descend(loss)
    if norm is not None:
        metrics["grad_norm"] = norm
    return metrics


def check_sequences(settings: Any, memory: MemorySettings, policy: PolicySettings) -> tuple[Sequences, ActionValues]:
    """Return memory and policy with their concrete types; ConfigError if settings, memory and policy do not fit.

    Args:
      settings: of a learner of action values; those without `returns` have n-step returns.
      memory: must be `Sequences` with the same n and η.
      policy: must be `ActionValues`.
    """
    name = type(settings).__name__
    if not (isinstance(memory, Sequences) and isinstance(policy, ActionValues)):
        raise ConfigError(f"{name} learns from a Sequences memory, for an ActionValues policy")
    arms, returns = policy.arms, getattr(settings, "returns", "n_step")
    if settings.discount is None and (arms is None or arms.discounts == "one"):
        why = "without arms" if arms is None else "with Arms.discounts = 'one'"
        raise ConfigError(f"{name}.discount = None {why} leaves no discount: set --discount")
    if returns == "n_step" and settings.n_step != max(memory.n_step, 1):
        raise ConfigError(f"{name}.n_step = {settings.n_step} and Sequences.n_step = {memory.n_step} differ")
    if memory.new_priority == "given" and settings.eta != memory.eta:
        raise ConfigError(f"{name}.eta = {settings.eta} and Sequences.eta = {memory.eta} differ")
    if memory.normalise_rewards and settings.discount is None:
        raise ConfigError(f"Sequences.normalise_rewards = True needs {name}.discount: set --discount")
    for wanted, extra in ((returns == "retrace", "behaviour_prob"), (arms is not None, "arm")):
        if wanted and extra not in memory.extras:
            raise ConfigError(f"{name} needs {extra!r} in the memory: add it to Sequences.extras = {memory.extras}")
    return memory, policy


def check_ignored_discount(settings: ValueSettings, policy: PolicySettings) -> None:
    """Raise a ConfigError if a discount is set although each arm has its own."""
    arms = policy.arms if isinstance(policy, ActionValues) else None
    if settings.discount is not None and arms is not None and arms.discounts != "one":
        raise ConfigError(
            f"{type(settings).__name__}.discount = {settings.discount} would be ignored: with Arms.discounts = "
            f"{arms.discounts!r} each arm has its own; leave --discount out, or set --arm_discounts one"
        )


def prepare_priorities(settings: ValueSettings, policy: Policy, memory: MemorySettings) -> None:
    """Let actors compute initial priorities with the learner's settings, if the memory needs them."""
    if isinstance(memory, Sequences) and memory.new_priority == "given":
        assert isinstance(policy, EpsilonGreedyPolicy)
        policy.error_numbers = ErrorNumbers(settings.discount, max(memory.n_step, 1), settings.reward_clipping)
