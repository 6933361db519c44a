"""Change points on top of a polynomial trend, and correlations of returns.

A smooth curve that is not such a polynomial also has a change point here; `jumps.py` tests for a jump against several
kinds of curves.

The horizontal coordinate should be one in which a smooth trend is about straight: for parameters, steps or action
resolution that is the logarithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packtrain.errors import ConfigError

Array = NDArray[Any]


class ChangePoint(NamedTuple):
    """The best single change, and whether it is larger than a smooth trend with noise would show."""

    split: float  # half way between the last x before the change and the first after it
    effect: float  # response just after the split minus just before it; negative for a fall
    gain: float  # 1 − residual squares with the change / without it
    p: float  # probability of such a gain under the smooth trend


class Correlation(NamedTuple):
    """Two coefficients, each with its bootstrap interval (low, high)."""

    pearson: float
    spearman: float
    pearson_interval: tuple[float, float]
    spearman_interval: tuple[float, float]


def change_point(
    x: ArrayLike,
    y: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    rng: np.random.Generator,
    shape: Literal["level", "linear"] = "level",
    degree: int = 1,
    least: int = 3,
    draws: int = 999,
) -> ChangePoint:
    """Fit one change in the response by least squares over all splits, and test it against a smooth null.

        null        y = a + b₁ x + … + b_d x^d                  d = degree
        "level"     y = null + effect · [x > split]
        "linear"    y = null + (effect + c (x − split)) · [x > split]

        gain = 1 − min_split RSS(split) / RSS(null)

    With degree 1, "level" is one slope and two levels, "linear" two lines. The null is part of both, so that a steep
    trend neither produces nor hides a change.

    p is the fraction of samples from the null that change at least as much as the data. A sample is the null's fit plus
    its residuals in random order (Freedman and Lane 1983), searched for its own best split, which accounts for the
    search. Since one far point at an end looks much like a change of slope, data and samples are compared by their
    gains without the point that is farthest from the trend of the others.

    Points with the same x stay on one side. A straight null takes a strong bend for a change; if the response may
    rise and fall smoothly, use degree 2. The noise should have a constant size: if it grows fourfold from end to end,
    p < 0.05 occurs two to three times as often as it should.

    With groups, each has its own level in every model, and a sample multiplies all residuals of a group by one
    random factor (Webb 2014: ±√½, ±1, ±√1½), which keeps the dependence between its points. p can then not be
    smaller than the number of groups allows: use eight or more.

    Args:
      x: [N] the logarithm of capability, or its index in a list.
      y: [N] response.
      groups: [N] names of groups of dependent points, such as the checkpoints of one run; None for independent runs.
      rng: for the samples.
      shape: what may change at the split: the level, or level and slope.
      degree: of the null.
      least: minimum number of points on each side.
      draws: samples from the null; p is at least 1 / (1 + draws).
    """
    places, response = _numbers(x, "change_point: x"), _numbers(y, "change_point: y")
    if places.shape != response.shape:
        raise ConfigError(f"change_point: x has {len(places)} points, y has {len(response)}")
    if shape not in ("level", "linear"):
        raise ConfigError(f"change_point: shape = {shape!r} must be 'level' or 'linear'")
    for name, value, smallest in (("degree", degree, 1), ("least", least, 2), ("draws", draws, 1)):
        if value < smallest:
            raise ConfigError(f"change_point: {name} = {value} must be at least {smallest}")
    levels, group = _levels(groups, len(places))
    if len(np.unique(places)) < degree + 2:
        raise ConfigError(
            f"change_point: {len(np.unique(places))} different x are too few for a null of degree {degree} and a "
            f"change; at least {degree + 2} are needed"
        )
    middle, width = places.mean(), places.std()
    t = (places - middle) / width  # powers of it are well conditioned

    trend = np.column_stack([levels, *(t**power for power in range(1, degree + 1))])
    null = _basis(trend)
    values = np.unique(t)
    cuts, designs, bases = [], [], []
    for cut in (values[1:] + values[:-1]) / 2:
        after = t > cut
        design = np.column_stack([trend, after, *([(t - cut) * after] if shape == "linear" else [])])
        basis = _basis(design)
        if min(after.sum(), (~after).sum()) >= least and basis.shape[1] == design.shape[1] < len(t) - 1:
            cuts.append(cut)
            designs.append(design)
            bases.append(basis)
    if not cuts:
        raise ConfigError(f"change_point: no split of {len(t)} points leaves {least} to fit on each side")

    residuals = response - null @ (null.T @ response)
    if (residuals**2).sum() <= 1e-20 * (response**2).sum():  # the null fits exactly; the rest is rounding
        residuals = np.zeros_like(residuals)
    # The null's fit is part of every model, so its residuals are sufficient. All rows are searched alike.
    rows = np.vstack([residuals, _redrawn(residuals, group, rng, draws)])  # [1 + draws, N]
    smooth, smooth_without = _squares_beside(null, rows)
    farthest = smooth_without.argmin(axis=1)[:, None]
    rest = np.take_along_axis(smooth_without, farthest, 1)[:, 0]
    squares, rest_changed = [], np.full(len(rows), np.inf)
    for basis in bases:
        changed, changed_without = _squares_beside(basis, rows)
        squares.append(changed[0])
        rest_changed = np.minimum(rest_changed, np.take_along_axis(changed_without, farthest, 1)[:, 0])
    best = int(np.argmin(squares))
    gain, p = 0.0, 1.0
    if residuals.any():
        gain = 1 - squares[best] / smooth[0]
        # Where all but one point lie on the trend, there is nothing to gain.
        gains = 1 - np.divide(rest_changed, rest, out=np.ones_like(rest), where=rest > 1e-12 * smooth)
        p = (1 + (gains[1:] >= gains[0] - 1e-9).sum()) / (1 + draws)
    weights = np.linalg.lstsq(designs[best], response, rcond=None)[0]
    effect = weights[trend.shape[1]]  # of the column after the trend's; the change of slope is measured from the cut
    return ChangePoint(float(cuts[best] * width + middle), float(effect), float(gain), float(p))


def correlation(
    a: ArrayLike, b: ArrayLike, rng: np.random.Generator, draws: int = 2000, confidence: float = 0.95
) -> Correlation:
    """Return Pearson's and Spearman's correlation of pairs, with percentile bootstrap intervals.

    Pairs are resampled with replacement. A sample in which one side is constant has no correlation and is left out.
    """
    first, second = _numbers(a, "correlation: a"), _numbers(b, "correlation: b")
    if first.shape != second.shape:
        raise ConfigError(f"correlation: a has {len(first)} values, b has {len(second)}")
    if len(first) < 3:
        raise ConfigError(f"correlation: {len(first)} pairs are too few; 3 are needed")
    for name, side in (("a", first), ("b", second)):
        if (side == side[0]).all():
            raise ConfigError(f"correlation: {name} is constant, so the correlation is undefined")
    if draws < 1:
        raise ConfigError(f"correlation: draws = {draws} must be at least 1")
    if not 0 < confidence < 1:
        raise ConfigError(f"correlation: confidence = {confidence} must be between 0 and 1")
    chosen = rng.integers(len(first), size=(draws, len(first)))
    varied = [row for row in chosen if np.ptp(first[row]) > 0 and np.ptp(second[row]) > 0]

    def interval(coefficient: Callable[[Array, Array], float]) -> tuple[float, float]:
        drawn = [coefficient(first[row], second[row]) for row in varied]
        low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]) if drawn else (np.nan, np.nan)
        return float(low), float(high)

    return Correlation(pearson(first, second), spearman(first, second), interval(pearson), interval(spearman))


def pearson(a: Array, b: Array) -> float:
    """Return Σ (a − ā)(b − b̄) / √(Σ (a − ā)² Σ (b − b̄)²), for two arrays that are not constant."""
    a, b = a - a.mean(), b - b.mean()
    return float(np.clip((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)), -1, 1))


def spearman(a: Array, b: Array) -> float:
    """Pearson's correlation of the ranks."""
    return pearson(ranks(a), ranks(b))


def ranks(values: Array) -> Array:
    """Return ranks in ascending order, from 1; equal values share their mean rank."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1) / 2


def _numbers(values: ArrayLike, name: str) -> Array:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1:
        raise ConfigError(f"{name} of shape {numbers.shape} must be a list of numbers")
    if not np.isfinite(numbers).all():
        raise ConfigError(f"{name} holds {int((~np.isfinite(numbers)).sum())} values that are not finite")
    return numbers


def _levels(groups: ArrayLike | None, count: int) -> tuple[Array, Array | None]:
    """Return a column of ones, or one column for each group, and the group number of each point."""
    if groups is None:
        return np.ones((count, 1)), None
    names = np.asarray(groups)
    if names.shape != (count,):
        raise ConfigError(f"change_point: groups of shape {names.shape} must name each of the {count} points")
    found, group = np.unique(names, return_inverse=True)
    if len(found) < 2:
        raise ConfigError("change_point: a single group leaves nothing to compare; omit groups for independent runs")
    return np.eye(len(found))[group], group


def _basis(design: Array) -> Array:
    """Return orthonormal columns with the span of the design; fewer if its columns are dependent."""
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    return left[:, singular > 1e-9 * singular[0]]


def _squares_beside(basis: Array, rows: Array) -> tuple[Array, Array]:
    """Return the residual sum of squares of each row, and that of fits without one of the points.

    RSS without point i is RSS − e_i² / (1 − h_i), h_i the leverage. A point that the fit always passes through
    (h_i = 1) changes nothing.

    Args:
      basis: [N, k] orthonormal columns.
      rows: [R, N].

    Returns:
      [R] and [R, N].
    """
    square = (rows - (rows @ basis) @ basis.T) ** 2
    free = 1 - (basis**2).sum(axis=1)
    total = square.sum(axis=1)
    less = total[:, None] - np.divide(square, free, out=np.zeros_like(square), where=free > 1e-9)
    return total, np.maximum(less, 0.0)


def _redrawn(residuals: Array, group: Array | None, rng: np.random.Generator, draws: int) -> Array:
    """Return residuals in random order, or multiplied by a random factor per group: [N] → [draws, N]."""
    if group is None:
        return rng.permuted(np.tile(residuals, (draws, 1)), axis=1)
    factors = np.array([-np.sqrt(1.5), -1.0, -np.sqrt(0.5), np.sqrt(0.5), 1.0, np.sqrt(1.5)])
    return residuals * factors[rng.integers(6, size=(draws, group.max() + 1))][:, group]
