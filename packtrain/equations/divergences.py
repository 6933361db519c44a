"""Divergences between the action distributions of two policies, row by row, in nats.

p is the policy that acts, q another. Categorical distributions are given by logits [..., A], normalised or not: the
logarithm of probabilities is one choice of them, and −inf is an action that is never taken. Diagonal Gaussians are
given by means and standard deviations [..., D]. All of these are the same before and after an invertible squashing of
the actions, such as tanh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from packtrain.equations.shapes import assert_equal_shapes

_LEAST_LOG = -1e4  # its exponential is 0, and unlike −inf it can be subtracted from itself


def categorical_kl(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return the Kullback–Leibler divergence of q from p; exchange the arguments for the other direction.

        KL(p ‖ q) = Σ_a p_a log(p_a / q_a)

    Actions with p_a = 0 add nothing; one that p takes and q never does makes it infinite.

    Args:
      p_logits: [..., A] of the policy that acts.
      q_logits: [..., A] of the other.

    Returns:
      [...] at least 0.
    """
    assert_equal_shapes(p_logits.dim(), p_logits=p_logits, q_logits=q_logits)
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    p = log_p.exp()
    # Mask before the multiplication: 0 · (−inf + inf) is NaN.
    ratio = log_p.masked_fill(p == 0, 0.0) - log_q.masked_fill(p == 0, 0.0)
    return (p * ratio).sum(-1).clamp(min=0.0)


def categorical_jensen_shannon(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return the Jensen–Shannon divergence in nats: 0 for equal distributions, log 2 if they share no action.

        JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m),   m = ½ (p + q)

    computed as Σ_a m_a f(d_a) with d = (p − q) / (p + q) and f of `_jensen_shannon_of`, which does not lose the small
    divergence of nearly equal distributions to rounding.

    Args:
      p_logits: [..., A] of the policy that acts.
      q_logits: [..., A] of the other.

    Returns:
      [...] the divergence; `jensen_shannon_distance` is its square root.
    """
    assert_equal_shapes(p_logits.dim(), p_logits=p_logits, q_logits=q_logits)
    log_p = p_logits.log_softmax(-1).clamp(min=_LEAST_LOG)
    log_q = q_logits.log_softmax(-1).clamp(min=_LEAST_LOG)
    mixture = 0.5 * (log_p.exp() + log_q.exp())
    return (mixture * _jensen_shannon_of(log_p - log_q)).sum(-1)


def jensen_shannon_distance(divergence: Tensor) -> Tensor:
    """Return √JS, which satisfies the triangle inequality; from 0 to √(log 2) ≈ 0.833.

    Args:
      divergence: any shape, Jensen–Shannon divergence in nats.

    Returns:
      The distance, same shape. Its gradient is infinite at 0.
    """
    return divergence.clamp(min=0.0).sqrt()


def categorical_hellinger(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return the Hellinger distance, from 0 to 1.

        H(p, q) = √½ ‖√p − √q‖₂,   H² = 1 − Σ_a √(p_a q_a)

    Args:
      p_logits: [..., A] of the policy that acts.
      q_logits: [..., A] of the other.

    Returns:
      [...] the distance; its gradient is 0 where p = q.
    """
    assert_equal_shapes(p_logits.dim(), p_logits=p_logits, q_logits=q_logits)
    roots = (0.5 * p_logits.log_softmax(-1)).exp() - (0.5 * q_logits.log_softmax(-1)).exp()
    found: Tensor = math.sqrt(0.5) * torch.linalg.vector_norm(roots, dim=-1)
    return found


def categorical_total_variation(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return the total variation, from 0 to 1: the largest difference in probability of any set of actions.

        TV(p, q) = ½ Σ_a |p_a − q_a|

    Args:
      p_logits: [..., A] of the policy that acts.
      q_logits: [..., A] of the other.

    Returns:
      [...] the distance.
    """
    assert_equal_shapes(p_logits.dim(), p_logits=p_logits, q_logits=q_logits)
    return 0.5 * (p_logits.softmax(-1) - q_logits.softmax(-1)).abs().sum(-1)


def categorical_bhattacharyya(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return the Bhattacharyya distance: 0 for equal distributions, infinite if they share no action.

        D_B(p, q) = −log Σ_a √(p_a q_a)

    Args:
      p_logits: [..., A] of the policy that acts.
      q_logits: [..., A] of the other.

    Returns:
      [...] at least 0.
    """
    assert_equal_shapes(p_logits.dim(), p_logits=p_logits, q_logits=q_logits)
    return -(0.5 * (p_logits.log_softmax(-1) + q_logits.log_softmax(-1))).logsumexp(-1).clamp(max=0.0)


def categorical_log_chi_square(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return log(1 + χ²(p ‖ q)), the Rényi divergence of order 2: finite wherever q takes what p takes.

        log(1 + χ²) = log Σ_a p_a² / q_a

    Args:
      p_logits: [..., A] of the policy that acts.
      q_logits: [..., A] of the other.

    Returns:
      [...] at least 0, up to rounding.
    """
    assert_equal_shapes(p_logits.dim(), p_logits=p_logits, q_logits=q_logits)
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    never = log_p.isneginf()  # its term is 0, whatever q does
    return (2 * log_p.masked_fill(never, _LEAST_LOG) - log_q.masked_fill(never, 0.0)).logsumexp(-1)


def chi_square_from_log(log_chi_square: Tensor) -> Tensor:
    """Return χ² from log(1 + χ²), and the tangent of the exponential above a third of the largest exponent.

        χ² = e^x − 1 for x ≤ b,   e^b (1 + x − b) − 1 above,   b = ⅓ log(largest number of the dtype)

    So the χ² of nearly disjoint policies, e^100 for instance, is finite in float32, where b = 29.6, and so are sums of
    its squared gradients. It stays monotone, and is at most the true value.

    Args:
      log_chi_square: any shape; independent choices add up.

    Returns:
      The divergence, same shape, at least 0; infinite where the argument is.
    """
    edge = math.log(torch.finfo(log_chi_square.dtype).max) / 3
    beyond = math.exp(edge) * (log_chi_square - edge).clamp(min=0.0)
    return (log_chi_square.clamp(max=edge).expm1() + beyond).clamp(min=0.0)


def categorical_chi_square(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return the χ² divergence of p from q: 0 for equal distributions, infinite if p takes what q never does.

        χ²(p ‖ q) = Σ_a p_a² / q_a − 1 = Σ_a (p_a − q_a)² / q_a

    Above about 7e12 in float32 (5e102 in float64) it is replaced by a finite lower bound: see `chi_square_from_log`.

    Args:
      p_logits: [..., A] of the policy that acts.
      q_logits: [..., A] of the other.

    Returns:
      [...] at least 0.
    """
    return chi_square_from_log(categorical_log_chi_square(p_logits, q_logits))


def gaussian_kl(p_mean: Tensor, p_std: Tensor, q_mean: Tensor, q_std: Tensor) -> Tensor:
    """Return the Kullback–Leibler divergence of q from p; exchange the pairs for the other direction.

        KL(p ‖ q) = Σ_d log(σ_q / σ_p) + (σ_p² + (μ_p − μ_q)²) / (2 σ_q²) − ½

    Args:
      p_mean: [..., D] of the policy that acts.
      p_std: [..., D] standard deviations, more than 0.
      q_mean: [..., D] of the other.
      q_std: [..., D] standard deviations, more than 0.

    Returns:
      [...] at least 0.
    """
    assert_equal_shapes(p_mean.dim(), p_mean=p_mean, p_std=p_std, q_mean=q_mean, q_std=q_std)
    ratio = p_std / q_std
    shift = (p_mean - q_mean) / q_std
    return (0.5 * (ratio.square() + shift.square() - 1) - ratio.log()).sum(-1).clamp(min=0.0)


def gaussian_bhattacharyya(p_mean: Tensor, p_std: Tensor, q_mean: Tensor, q_std: Tensor) -> Tensor:
    """Return the Bhattacharyya distance −log ∫ √(p q), a sum over the dimensions.

        D_B(p, q) = Σ_d ¼ (μ_p − μ_q)² / (σ_p² + σ_q²) + ½ log((σ_p² + σ_q²) / (2 σ_p σ_q))

    Variances stand in the sums, not standard deviations.

    Args:
      p_mean: [..., D] of the policy that acts.
      p_std: [..., D] standard deviations, more than 0.
      q_mean: [..., D] of the other.
      q_std: [..., D] standard deviations, more than 0.

    Returns:
      [...] at least 0.
    """
    assert_equal_shapes(p_mean.dim(), p_mean=p_mean, p_std=p_std, q_mean=q_mean, q_std=q_std)
    variances = p_std.square() + q_std.square()
    # (σ_p² + σ_q²) / (2 σ_p σ_q) = 1 + (σ_p − σ_q)² / (2 σ_p σ_q), exact where the two are nearly equal.
    widths = ((p_std - q_std).square() / (2 * p_std * q_std)).log1p()
    return (0.25 * (p_mean - q_mean).square() / variances + 0.5 * widths).sum(-1)


def gaussian_hellinger(p_mean: Tensor, p_std: Tensor, q_mean: Tensor, q_std: Tensor) -> Tensor:
    """Return the Hellinger distance, from 0 to 1.

        H(p, q) = √(½ ∫ (√p − √q)²) = √(1 − exp(−D_B(p, q)))

    Args:
      p_mean: [..., D] of the policy that acts.
      p_std: [..., D] standard deviations, more than 0.
      q_mean: [..., D] of the other.
      q_std: [..., D] standard deviations, more than 0.

    Returns:
      [...] the distance. Its gradient is infinite where p = q.
    """
    return (-torch.expm1(-gaussian_bhattacharyya(p_mean, p_std, q_mean, q_std))).sqrt()


def gaussian_jensen_shannon(p_mean: Tensor, p_std: Tensor, q_mean: Tensor, q_std: Tensor, noise: Tensor) -> Tensor:
    """Return a sampling estimate of the Jensen–Shannon divergence in nats, which has no closed form.

        JS(p, q) ≈ ½ mean_s f(d(μ_p + σ_p ε_s)) + ½ mean_s f(d(μ_q + σ_q ε_s)),   d(x) = (p(x) − q(x)) / (p(x) + q(x))

    with f of `_jensen_shannon_of`: the expectation of f(d) under the mixture, half the samples from each side. It is
    unbiased, and unlike the mean of log-ratios it lies between 0 and log 2 for any noise.

    Args:
      p_mean: [..., D] of the policy that acts.
      p_std: [..., D] standard deviations, more than 0.
      q_mean: [..., D] of the other.
      q_std: [..., D] standard deviations, more than 0.
      noise: [S, ..., D] standard normal, used for both sides.

    Returns:
      [...] the divergence; `jensen_shannon_distance` is its square root.
    """
    assert_equal_shapes(p_mean.dim(), p_mean=p_mean, p_std=p_std, q_mean=q_mean, q_std=q_std, noise=noise[0])
    total = torch.zeros_like(p_mean[..., 0])
    for mean, std in ((p_mean, p_std), (q_mean, q_std)):
        actions = mean + std * noise  # [S, ..., D]
        p_score, q_score = (actions - p_mean) / p_std, (actions - q_mean) / q_std
        log_ratio = (0.5 * (q_score.square() - p_score.square()) + q_std.log() - p_std.log()).sum(-1)
        total = total + 0.5 * _jensen_shannon_of(log_ratio).mean(0)
    return total


def _jensen_shannon_of(log_ratio: Tensor) -> Tensor:
    """Return one action's contribution to the Jensen–Shannon divergence, given its probability under the mixture.

        f(d) = ½ ((1 + d) log(1 + d) + (1 − d) log(1 − d)),   d = (p − q) / (p + q) = tanh(½ log(p / q))

    since p / m = 1 + d and q / m = 1 − d. f is even, 0 at d = 0 and log 2 at d = ±1.
    """
    # Just inside ±1, where the gradient would be 0 · inf.
    edge = 1 - torch.finfo(log_ratio.dtype).eps
    d = torch.tanh(0.5 * log_ratio).clamp(-edge, edge)
    return 0.5 * ((1 + d) * torch.log1p(d) + (1 - d) * torch.log1p(-d))


def joint_logits(parameters: Tensor, nvec: Sequence[int]) -> Tensor:
    """Return the logits of all combinations of independent choices, [..., Σ n] → [..., Π n]; last varies fastest."""
    parts = [part.log_softmax(-1) for part in parameters.split(list(nvec), dim=-1)]
    joint: Tensor = parts[0]
    for part in parts[1:]:
        joint = (joint.unsqueeze(-1) + part.unsqueeze(-2)).flatten(-2)  # [..., M, n] → [..., M*n]
    return joint


def clipped_gaussian_hellinger(p_mean: Tensor, p_std: Tensor, q_mean: Tensor, q_std: Tensor, bound: Tensor) -> Tensor:
    """Return the Hellinger distance of two diagonal Gaussians with samples clipped to ±bound, in closed form.

        H = √(1 − Π_d C_d),   C = √(p₋ q₋) + √(p₊ q₊) + e^{−D_B} (Φ((b − m) / s) − Φ((−b − m) / s))

    with p₋ and p₊ what p puts beyond −b and b, D_B the Bhattacharyya distance of the two, and √(p q) ∝ N(m, s²) of

        s² = 2 σ_p² σ_q² / (σ_p² + σ_q²),   m = (μ_p σ_q² + μ_q σ_p²) / (σ_p² + σ_q²)

    Args:
      p_mean: [..., D].
      p_std: [..., D] standard deviations, more than 0.
      q_mean: [..., D].
      q_std: [..., D] standard deviations, more than 0.
      bound: [D] above 0; ∞ where nothing is clipped.

    Returns:
      [...] from 0 to 1.
    """
    p_variance, q_variance = p_std.square(), q_std.square()
    total = p_variance + q_variance
    middle = (p_mean * q_variance + q_mean * p_variance) / total
    spread = (2 * p_variance * q_variance / total).sqrt()
    distance = 0.25 * (p_mean - q_mean).square() / total + 0.5 * (total / (2 * p_std * q_std)).log()
    inside = torch.special.ndtr((bound - middle) / spread) - torch.special.ndtr((-bound - middle) / spread)
    common = (-distance).exp() * inside
    for side in (-1.0, 1.0):
        beyond = [torch.special.ndtr((side * mean - bound) / std) for mean, std in ((p_mean, p_std), (q_mean, q_std))]
        common = common + (beyond[0] * beyond[1]).sqrt()
    found: Tensor = (1 - common.clamp(max=1.0).prod(-1)).clamp(min=0.0).sqrt()
    return found


def clipped_gaussian_jensen_shannon(
    p_mean: Tensor, p_std: Tensor, q_mean: Tensor, q_std: Tensor, bound: Tensor, noise: Tensor
) -> Tensor:
    """Return an estimated Jensen–Shannon divergence, in nats, of two diagonal Gaussians with samples clipped to ±bound.

        JS ≈ ½ mean_s log(2 p / (p + q))(x_s) + ½ mean_s log(2 q / (p + q))(y_s),   x ~ p, y ~ q

    Where a draw is clipped, p and q are what they put beyond the bound.

    Args:
      p_mean: [..., D].
      p_std: [..., D] standard deviations, more than 0.
      q_mean: [..., D].
      q_std: [..., D] standard deviations, more than 0.
      bound: [D] above 0; ∞ where nothing is clipped.
      noise: [S, ..., D] standard normal, used for both sides.

    Returns:
      [...] from 0 to log 2.
    """
    total = torch.zeros_like(p_mean[..., 0])
    for mean, std, sign in ((p_mean, p_std, 1.0), (q_mean, q_std, -1.0)):
        actions = mean + std * noise  # [S, ..., D]
        densities = []
        for other_mean, other_std in ((p_mean, p_std), (q_mean, q_std)):
            inside = -0.5 * ((actions - other_mean) / other_std).square() - other_std.log()
            beyond = torch.special.log_ndtr((actions.sign() * other_mean - bound) / other_std)
            densities.append(torch.where(actions.abs() < bound, inside, beyond))
        log_ratio = (densities[0] - densities[1]).sum(-1)
        total = total + 0.5 * (math.log(2) - torch.nn.functional.softplus(-sign * log_ratio)).mean(0)
    return total.clamp(0.0, math.log(2))
