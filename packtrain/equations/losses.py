"""The three losses of an actor–critic, each a weighted sum or mean over T and B.

"sum" is IMPALA's and TorchBeast's: the gradient grows with T · B, and so learning rate, gradient-norm clip and
RMSProp's ε are tied to T · B. "mean" divides by the number of rows that count. One is the other times Σ weight_t, yet
the learning rates do not convert by that factor: an optimiser that divides by the gradient's size cancels it, except
for ε (and the norm clip), which must be scaled with the gradient.

In all of them rows of weight 0 count for nothing, whatever they hold, in value and in gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain.equations.shapes import assert_equal_shapes

REDUCTIONS = ("sum", "mean")


def policy_gradient_loss(log_prob: Tensor, advantages: Tensor, weight_t: Tensor, reduction: str = "sum") -> Tensor:
    """Return the loss whose gradient is minus the policy gradient.

        L = Σ_{t,b} −weight · log π(a|x) · stopgrad(advantage)

    Args:
      log_prob: [T, B] log π(a_t|x_t) under the learner's policy.
      advantages: [T, B] importance-weighted already; takes no gradient.
      weight_t: [T, B] 0 for filler rows, else 1.
      reduction: "sum" over T and B, or "mean": the sum over Σ weight_t, 0 if every weight is 0.

    Returns:
      0-d loss.
    """
    assert_equal_shapes(2, log_prob=log_prob, advantages=advantages, weight_t=weight_t)
    return _reduce(-log_prob * advantages.detach(), weight_t, reduction)


def baseline_loss(targets: Tensor, values: Tensor, weight_t: Tensor, reduction: str = "sum") -> Tensor:
    """Return half the squared error of the values.

        L = ½ Σ_{t,b} weight · (stopgrad(target) − V(x))²

    Args:
      targets: [T, B] takes no gradient.
      values: [T, B] V(x_t), learner's weights.
      weight_t: [T, B] 0 for filler rows, else 1.
      reduction: see `policy_gradient_loss`.

    Returns:
      0-d loss.
    """
    assert_equal_shapes(2, targets=targets, values=values, weight_t=weight_t)
    return _reduce(0.5 * (targets.detach() - values).square(), weight_t, reduction)


def entropy_loss(entropy: Tensor, weight_t: Tensor, reduction: str = "sum") -> Tensor:
    """Return the negative entropy: minimising it keeps the policy from collapsing.

        L = Σ_{t,b} −weight · H(π(·|x)),   H = −Σ_a π log π

    Args:
      entropy: [T, B] H of the learner's policy in row t.
      weight_t: [T, B] 0 for filler rows, else 1.
      reduction: see `policy_gradient_loss`.

    Returns:
      0-d loss.
    """
    assert_equal_shapes(2, entropy=entropy, weight_t=weight_t)
    return _reduce(-entropy, weight_t, reduction)


def _reduce(loss_t: Tensor, weight_t: Tensor, reduction: str) -> Tensor:
    """Return the weighted sum or mean. Masked entries are zeroed first, since 0 · inf is NaN."""
    total = (loss_t.masked_fill(weight_t == 0, 0.0) * weight_t).sum()
    if reduction == "sum":
        return total
    if reduction == "mean":
        weight = weight_t.sum()
        return total / weight.clamp(min=torch.finfo(weight.dtype).tiny)  # 0 / tiny = 0 if all weights are 0
    raise ValueError(f"reduction is {reduction!r}, expected one of {', '.join(REDUCTIONS)}")


def weighted_mean(x: Tensor, weight: Tensor) -> Tensor:
    """Return the mean over rows of nonzero weight; 0 if there are none.

    Args:
      x: [T, B]
      weight: [T, B] 0 or 1.
    """
    return (x * weight).sum() / weight.sum().clamp(min=1)
