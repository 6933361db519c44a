"""PPO's clipped surrogate objective.

Schulman et al. 2017 (arXiv:1707.06347), equation 7.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from packtrain.equations.shapes import assert_equal_shapes
from packtrain.equations.vtrace import MAX_LOG_RHO


class Surrogate(NamedTuple):
    """The clipped loss, and statistics of the policy change."""

    loss: Tensor  # []
    clip_fraction: Tensor  # [] fraction of rows whose ratio lies outside [1 − clip, 1 + clip]; detached
    # [] nats, KL of the behaviour policy from the learner's, estimated on the actions taken; detached
    approx_kl: Tensor


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, weight_t: Tensor, clip: float) -> Surrogate:
    """Return PPO's clipped surrogate loss, averaged over rows of nonzero weight.

        L = − mean min(ρ A, max(1 − clip, min(1 + clip, ρ)) A),   ρ = exp(log_ratio)

    The Kullback–Leibler divergence is estimated by mean (ρ − 1 − log ρ), which is never negative (Schulman 2020).

    Args:
      log_ratio: [T, B] log π(a_t|x_t) − log μ(a_t|x_t), learner minus behaviour; clamped to ±MAX_LOG_RHO.
      advantages: [T, B] takes no gradient.
      weight_t: [T, B] 0 for filler rows, which may hold anything, else 1.
      clip: how far a ratio pays to move from 1.

    Returns:
      Surrogate; zeros if no row counts.
    """
    assert_equal_shapes(2, log_ratio=log_ratio, advantages=advantages, weight_t=weight_t)
    filler = weight_t == 0
    rows = weight_t.sum().clamp(min=1)
    log_ratio = log_ratio.masked_fill(filler, 0.0).clamp(-MAX_LOG_RHO, MAX_LOG_RHO)
    gain = advantages.detach().masked_fill(filler, 0.0)
    ratio = log_ratio.exp()
    loss = -(ratio * gain).minimum(ratio.clamp(1 - clip, 1 + clip) * gain).sum() / rows
    moved = ratio.detach()
    clipped = ((moved - 1).abs() > clip).sum() / rows
    return Surrogate(loss, clipped, (moved - 1 - log_ratio.detach()).sum() / rows)
