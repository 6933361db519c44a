"""Means and intervals over seeds, and bringing the curves of several seeds to common steps.

Only the standard library is used: a report must not wait for numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from packtrain.metrics.intervals import student_t

Curve = tuple[Sequence[float], Sequence[float]]
"""(steps, values): two sequences of one length, steps strictly increasing."""


def mean_interval(values_per_seed: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """The mean over seeds and its Student-t interval, (mean, low, high).

        mean ± t(confidence, S−1) · s / √S        s² = Σ (x − mean)² / (S−1)

    One seed says nothing about the spread: low and high are NaN then.
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


def align(curves: Sequence[Curve]) -> tuple[list[float], list[list[float]]]:
    """Several seeds' curves at common steps: (steps, values of each curve at these steps).

    The common steps are all steps of any curve within the range that every curve covers; values in between are
    interpolated linearly, and nothing is extrapolated. Curves that share no range give no steps.
    """
    for steps, values in curves:
        if len(steps) != len(values):
            raise ValueError(f"a curve has {len(steps)} steps but {len(values)} values")
        if any(after <= before for before, after in zip(steps, steps[1:], strict=False)):
            raise ValueError("the steps of a curve must increase")
    if not curves or not all(steps for steps, _ in curves):
        return [], [[] for _ in curves]
    start = max(steps[0] for steps, _ in curves)
    end = min(steps[-1] for steps, _ in curves)
    common = sorted({step for steps, _ in curves for step in steps if start <= step <= end})
    return common, [_interpolate(steps, values, common) for steps, values in curves]


def _interpolate(steps: Sequence[float], values: Sequence[float], at: Sequence[float]) -> list[float]:
    """Values at increasing steps `at`, all within the curve's range."""
    result = []
    right = 0
    for step in at:
        while steps[right] < step:
            right += 1
        if steps[right] == step:
            result.append(values[right])
        else:
            part = (step - steps[right - 1]) / (steps[right] - steps[right - 1])
            result.append(values[right - 1] * (1 - part) + values[right] * part)
    return result


def thin(steps: Sequence[float], values: Sequence[float], limit: int) -> tuple[list[float], list[float]]:
    """A curve of at most `limit` points: neighbours are replaced by their mean step and mean value."""
    if limit < 1:
        raise ValueError(f"a curve of {limit} points cannot be drawn")
    size = math.ceil(len(steps) / limit)
    if size <= 1:
        return list(steps), list(values)
    groups = [slice(start, start + size) for start in range(0, len(steps), size)]
    return (
        [math.fsum(steps[group]) / len(steps[group]) for group in groups],
        [math.fsum(values[group]) / len(values[group]) for group in groups],
    )
