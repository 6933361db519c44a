"""Value rescaling h and its inverse, so that one network can learn returns of very different scales.

Pohlen et al. 2018 (arXiv:1805.11593), used by R2D2 (Kapturowski et al. 2019) in the place of clipped rewards.
"""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-3  # ε of h: bounds its slope from below, so that the inverse is Lipschitz continuous


def rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return the value rescaling h(x) (Pohlen et al. 2018, section 3.2).

        h(x) = sign(x) (√(|x| + 1) − 1) + ε x

    Computed as x / (√(|x| + 1) + 1) + ε x, which is the same and loses nothing where x is small. Odd, strictly
    increasing, slope ½ + ε at 0; differentiable.

    Args:
      x: any shape.
      epsilon: ε, at least 0.

    Returns:
      h(x), same shape.
    """
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def unrescale(y: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return the inverse of `rescale` (Pohlen et al. 2018, appendix A).

        h⁻¹(y) = sign(y) (((√(1 + 4ε (|y| + 1 + ε)) − 1) / 2ε)² − 1)

    As printed it subtracts nearly equal numbers twice: in float32 small values are lost. With u = √(|x| + 1) − 1, h is
    |y| = ε u² + (1 + 2ε) u, whose root needs no difference, and |x| = u (u + 2):

        u = 2|y| / (1 + 2ε + √((1 + 2ε)² + 4ε|y|))

    Exact to a few units in the last place from the smallest to the largest values, and for ε = 0. Differentiable.

    Args:
      y: any shape.
      epsilon: ε of `rescale`.

    Returns:
      h⁻¹(y), same shape.
    """
    slope = 1 + 2 * epsilon
    u = 2 * y / (slope + (slope**2 + 4 * epsilon * y.abs()).sqrt())  # with the sign of y
    return u * (u.abs() + 2)
