"""Means, interquartile means and intervals over seeds, and the curves of several seeds at common steps.

The interquartile mean with stratified bootstrap intervals, performance profiles and the probability of improvement are
those of Agarwal et al. 2021 (arXiv:2108.13264). Scores of one method are [tasks][seeds].

Only the standard library is used: a report must not wait for numpy.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence

from packtrain.metrics.intervals import mean_interval as mean_interval

Curve = tuple[Sequence[float], Sequence[float]]
"""(steps, values): two sequences of one length, steps strictly increasing."""

Scores = Sequence[Sequence[float]]
"""[tasks][seeds]: one method's final score of every seed in every task."""


def align(curves: Sequence[Curve]) -> tuple[list[float], list[list[float]]]:
    """Return several seeds' curves at common steps: (steps, values of each curve at these steps).

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
    """Return values at increasing steps `at`, all within the curve's range."""
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
    """Return a curve of at most `limit` points: neighbours are replaced by their mean step and mean value."""
    if limit < 1:
        raise ValueError(f"a curve cannot be reduced to {limit} points")
    size = math.ceil(len(steps) / limit)
    if size <= 1:
        return list(steps), list(values)
    return _means(steps, size), _means(values, size)


def _means(values: Sequence[float], size: int) -> list[float]:
    """Return the mean of each group of `size` neighbours."""
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    return [math.fsum(group) / len(group) for group in groups]


# Statistics over methods


def interquartile_mean(scores: Scores) -> float:
    """Return the mean of the middle half of all scores: a quarter, rounded down, is dropped at each end."""
    pooled = sorted(value for task in scores for value in task)
    if not pooled:
        raise ValueError("the interquartile mean of no scores is not defined")
    dropped = len(pooled) // 4
    kept = pooled[dropped : len(pooled) - dropped]
    return math.fsum(kept) / len(kept)


def probability_of_improvement(first: Scores, second: Scores) -> float:
    """Return the probability that a seed of the first method scores higher than one of the second, averaged over tasks.

        P(X > Y) = mean over tasks of  (1 / NM) Σᵢⱼ [xᵢ > yⱼ] + ½ [xᵢ = yⱼ]

    Args:
      first: [tasks][N].
      second: [tasks][M] in the same order of tasks.
    """
    shares = []
    for ours, theirs in zip(first, second, strict=True):
        ranked = sorted(theirs)
        won = sum(bisect.bisect_left(ranked, value) + bisect.bisect_right(ranked, value) for value in ours)
        shares.append(won / (2 * len(ours) * len(theirs)))
    return math.fsum(shares) / len(shares)


def performance_profile(scores: Scores, thresholds: Sequence[float]) -> list[float]:
    """Return the fraction of all scores above each threshold, every task with the same weight."""
    ranked = [sorted(task) for task in scores]
    return [
        math.fsum(1 - bisect.bisect_right(task, threshold) / len(task) for task in ranked) / len(ranked)
        for threshold in thresholds
    ]


def bootstrap_interval(
    statistic: Callable[..., float],
    *methods: Scores,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic by stratified bootstrap: seeds are resampled within every task.

    Args:
      statistic: of as many methods as follow.
      methods: [tasks][seeds] each.
      resamples: number of bootstrap samples.
      confidence: of the interval.
      seed: of the resampling, so that a page is the same each time.
    """
    rng = random.Random(seed)
    values = sorted(
        statistic(*([rng.choices(task, k=len(task)) for task in scores] for scores in methods))
        for _ in range(resamples)
    )
    cut = (1 - confidence) / 2
    return values[math.floor(cut * (resamples - 1))], values[math.ceil((1 - cut) * (resamples - 1))]
