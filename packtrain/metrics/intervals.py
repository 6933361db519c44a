"""Quantiles of Student's t and intervals of means, with the standard library only: a report must not wait for numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache


@lru_cache
def student_t(degrees: int, confidence: float = 0.95) -> float:
    """Return the t with P(|T| ≤ t) = confidence, for a whole number of degrees of freedom."""
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"degrees {degrees} and confidence {confidence}: need at least 1, and between 0 and 1")
    low, high = 0.0, math.pi / 2  # bounds of the angle atan(t / √degrees), in which the probability is smooth
    for _ in range(80):
        middle = (low + high) / 2
        if _central_probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(degrees)


def _central_probability(angle: float, degrees: int) -> float:
    """Return P(|T| ≤ √degrees · tan(angle)): the sums of Abramowitz and Stegun 26.7.3 (odd) and 26.7.4 (even)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for index in range(degrees // 2):
        total += term
        # odd: 2/3, 4/5, 6/7, …; even: 1/2, 3/4, 5/6, …
        term *= cosine**2 * (2 * index + 1 + odd) / (2 * index + 2 + odd)
    return (angle + sine * total) * 2 / math.pi if odd else sine * total


def mean_interval(values_per_seed: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the mean over seeds and its Student-t interval, (mean, low, high).

        mean ± t(confidence, S−1) · s / √S        s² = Σ (x − mean)² / (S−1)

    For a single seed low and high are NaN.
    """
    count = len(values_per_seed)
    if count == 0:
        raise ValueError("the mean over no seeds is not defined")
    mean = math.fsum(values_per_seed) / count
    if count == 1:
        return mean, math.nan, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values_per_seed) / (count - 1)
    half_width = student_t(count - 1, confidence) * math.sqrt(variance / count)
    return mean, mean - half_width, mean + half_width
