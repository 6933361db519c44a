"""IMPALA: V-trace actor–critic on unrolls from asynchronous actors (Espeholt et al. 2018, arXiv:1802.01561).

Deviations from the paper and from TorchBeast, each by choice (docs/impala.md says why):
 1. Truncations bootstrap from the value of the final observation; only terminations have discount 0.
 2. Filler rows of an autoreset have weight 0 and are not counted as steps.
 3. Last action and last reward are zero on the first row of an episode.
 4. The learning rate falls to 0 over `total_steps` decisions learned from, filler rows not counted.
 5. Losses may be averaged (`reduction = "mean"`) instead of summed; the paper's numbers are for sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from packtrain import check
from packtrain.algorithms.data_parallel import SUM, Averages
from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.optimisers import make_optimiser
from packtrain.algorithms.trusted_policy import TrustedPolicy, mean_hellinger
from packtrain.config import configurable
from packtrain.equations.boundaries import boundaries
from packtrain.equations.losses import baseline_loss, entropy_loss, policy_gradient_loss
from packtrain.equations.rewards import clip_reward
from packtrain.equations.schedules import linear_decay
from packtrain.equations.vtrace import vtrace
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.types import Trajectory

# metrics that are averages over steps
MEANS = dict.fromkeys(("entropy", "value", "trusted_divergence", "trusted_hellinger"), "steps")


@configurable
@dataclass(frozen=True)
class Impala:
    """Settings of the loss and the optimiser; defaults are TorchBeast's."""

    splits_batches: ClassVar[bool] = True
    discounting: float = 0.99
    entropy_cost: float = 0.0006
    baseline_cost: float = 0.5  # weight of ½ · squared value error
    reward_scale: float = 1.0  # multiplies rewards before clipping, in the learner only
    # transformation of rewards in the learner; logged returns are raw
    reward_clipping: Literal["abs_one", "none", "soft_asymmetric", "symlog"] = "abs_one"
    reduction: Literal["sum", "mean"] = "sum"  # reduction over T and B
    rho_bar: float | None = 1.0  # clips the ratio in the temporal difference; None: not clipped
    c_bar: float = 1.0  # clips the ratio in the trace
    pg_rho_bar: float | None = 1.0  # clips the ratio in the policy gradient
    trace_lambda: float = 1.0
    optimiser: Literal["rmsprop", "rmsprop_tf", "adam"] = "rmsprop"
    learning_rate: float = 0.00048
    lr_schedule: Literal["linear", "constant"] = "linear"  # decay to 0 over total_steps
    alpha: float = 0.99  # decay of RMSProp's running average
    momentum: float = 0.0
    epsilon: float = 0.01  # added inside or outside the square root: see algorithms/optimisers.py
    grad_norm_clipping: float = 40.0  # maximum global gradient norm
    trusted: TrustedPolicy | None = None  # a policy to stay near to; None: no penalty

    def __post_init__(self) -> None:
        check.positive(self, "reward_scale", "learning_rate", "epsilon", "grad_norm_clipping", "c_bar")
        check.positive(self, "rho_bar", "pg_rho_bar", end=", or None")
        check.share(self, "discounting", "trace_lambda", "alpha", "momentum")
        check.not_negative(self, "entropy_cost", "baseline_cost")

    def build(self, network: ActorCriticNetwork, total_steps: int) -> GradientLearner:
        """Return a learner for a network: one gradient step per batch of unrolls, without replay."""
        optimiser = make_optimiser(
            network.parameters(),
            self.optimiser,
            self.learning_rate,
            alpha=self.alpha,
            momentum=self.momentum,
            epsilon=self.epsilon,
        )

        def rate(steps: int) -> float:
            linear = self.lr_schedule == "linear"
            return linear_decay(self.learning_rate, steps, total_steps) if linear else self.learning_rate

        return GradientLearner(
            network,
            partial(loss, settings=self, trusted=None if self.trusted is None else self.trusted.freeze(network)),
            optimiser,
            rate,
            self.grad_norm_clipping,
            capture=network.core is None,  # an LSTM cuts its rows where there were resets, which the host must see
            averages=Averages() if self.reduction == "mean" else Averages(metrics=MEANS, main=SUM),
        )


def loss(
    network: ActorCriticNetwork, trajectory: Trajectory, settings: Impala, trusted: ActorCriticNetwork | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the IMPALA loss of one batch of unrolls, and its parts as detached 0-d tensors.

    Row t of the trajectory pairs V(x_t), π(·|x_t) with the action taken there and its consequence; row T only
    bootstraps. All T+1 rows run through the network once, from the carry stored with the unroll.

    Args:
      network: what is trained.
      trajectory: [T, B].
      settings: the numbers.
      trusted: frozen network to stay near to, with `settings.trusted`; None: no penalty.
    """
    rows = slice(network.context, None)
    last_action, last_reward = trajectory.last_inputs()
    inputs = trajectory.obs, trajectory.first, last_action[rows], last_reward[rows], trajectory.carry
    output = network(*inputs)
    parameters, value = output.parameters[:-1], output.value  # [T, B, P], [T+1, B]

    ends = boundaries(trajectory.first[rows], trajectory.terminated, trajectory.truncated, settings.discounting)
    log_prob = network.distribution.log_prob(parameters, trajectory.action)
    returns = vtrace(
        v_tm1=value[:-1].detach(),
        v_t=value[1:].detach(),
        r_t=clip_reward(settings.reward_scale * trajectory.reward, settings.reward_clipping),
        discount_t=ends.discount_t,
        log_rho_tm1=log_prob.detach() - trajectory.extras["behaviour_log_prob"],
        continue_t=ends.continue_t,
        weight_t=ends.weight_t,
        rho_bar=settings.rho_bar,
        c_bar=settings.c_bar,
        pg_rho_bar=settings.pg_rho_bar,
        trace_lambda=settings.trace_lambda,
    )
    entropy = network.distribution.entropy(parameters)
    pg = policy_gradient_loss(log_prob, returns.advantages, ends.weight_t, settings.reduction)
    baseline = settings.baseline_cost * baseline_loss(returns.targets, value[:-1], ends.weight_t, settings.reduction)
    bonus = settings.entropy_cost * entropy_loss(entropy, ends.weight_t, settings.reduction)
    total = pg + baseline + bonus
    parts = {}
    if trusted is not None and settings.trusted is not None:
        with torch.no_grad():
            wanted = trusted(*inputs).parameters[:-1]
        apart = settings.trusted.mean_divergence(network.distribution, parameters, wanted, ends.weight_t)
        scale = 1.0 if settings.reduction == "mean" else ends.weight_t.sum()
        total = total + settings.trusted.coefficient * scale * apart
        parts["trusted_divergence"] = apart  # mean per decision
        parts["trusted_hellinger"] = mean_hellinger(network.distribution, parameters, wanted, ends.weight_t)
    steps = ends.weight_t.sum().clamp(min=1)
    parts |= {
        "total_loss": total,
        "pg_loss": pg,
        "baseline_loss": baseline,
        "entropy_loss": bonus,
        "entropy": (entropy * ends.weight_t).sum() / steps,  # nats per decision
        "value": (value[:-1] * ends.weight_t).sum() / steps,
    }
    return total, {name: part.detach() for name, part in parts.items()}
