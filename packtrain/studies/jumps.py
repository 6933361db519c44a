"""Test whether a response jumps between two neighbouring values, or follows a smooth curve.

A jump is compared with five smooth curves: straight, quadratic, cubic, logistic and exponential. It counts as found
only if none of them explains the data. A curve that is steep enough is a jump, so "smooth" needs a limit: the central
80 % of a logistic's change takes at least four gaps between values (LOGISTIC_SCALE), and an exponential makes at most
55 % of its remaining change within one gap (EXPONENTIAL_SCALE). Change that is faster than that is called a jump.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packtrain.errors import ConfigError

Array = NDArray[Any]

LOGISTIC_SCALE = 0.9  # smallest scale of a logistic null, in gaps
EXPONENTIAL_SCALE = 1.25  # smallest scale of an exponential null, in gaps
_EXACT = 1e-12  # residual sums of squares below this share of the total are rounding errors
_DRAWS_AT_ONCE = 500  # bounds the memory of a search over thousands of curves


class Jump(NamedTuple):
    """The best-fitting jump, and how well each smooth curve explains the data instead."""

    split: float  # halfway between the last x before the jump and the first after it
    effect: float  # size of the jump; negative for a fall
    gain: float  # 1 − residual squares with the jump / those of the best-fitting smooth curve; 0 if that fits better
    p: float  # the largest of `nulls`
    closest: str  # name of the best-fitting smooth curve
    nulls: dict[str, float]  # {curve: p-value}


def jump_test(x: ArrayLike, y: ArrayLike, *, rng: np.random.Generator, draws: int = 999) -> Jump:
    """Compare the best single jump with each smooth curve.

        jump         y = a + effect · [x > split]     or     y = a + b x + effect · [x > split]
        straight     y = a + b x        quadratic, cubic: further powers of x
        logistic     y = a + b / (1 + exp(−(x − centre) / s))            s ≥ LOGISTIC_SCALE gaps
        exponential  y = a + b exp(±x / s)                               s ≥ EXPONENTIAL_SCALE gaps

        T = N log RSS(curve) − min(N log RSS(step), N log RSS(step on a slope) + log N)

    The slope costs log N as in the Bayesian information criterion. For each curve, the p-value is the share of data
    sets sampled from its fit whose T is at least as large. In each sampled data set, curve, split and slope are fitted
    again. The noise is Gaussian with the variance between runs of one x; without repeated x, with the variance of the
    curve's residuals. A curve that fits no worse than the jump has p = 1.

    A jump is found at level α if `p`, the maximum over all curves, is at most α. If one of the curves is the truth,
    this happens with probability at most about α. The noise should have one size: see the table in
    docs/reward_misspecification.md. With five different x or fewer, a cubic explains nearly everything.

    Args:
      x: [N] capability, on a scale where neighbouring values are about equally far apart.
      y: [N] response of one run each; runs are independent.
      rng: generator of the draws.
      draws: data sets from each curve; a p-value is at least 1 / (1 + draws).
    """
    places, response = (np.asarray(values, np.float64) for values in (x, y))
    if places.ndim != 1 or places.shape != response.shape:
        raise ConfigError(f"jump_test: x of shape {places.shape} and y of shape {response.shape} must be equal lists")
    if not (np.isfinite(places).all() and np.isfinite(response).all()):
        raise ConfigError("jump_test: x and y must be finite numbers")
    if draws < 1:
        raise ConfigError(f"jump_test: draws = {draws} must be at least 1")
    values, cell, counts = np.unique(places, return_inverse=True, return_counts=True)
    if len(values) < 4 or len(response) < 6:
        raise ConfigError(
            f"jump_test: {len(response)} runs at {len(values)} different x are too few; 6 runs at 4 x are needed"
        )
    # Every model depends on x alone. It is fitted to the means of each x, weighted with the square roots of counts.
    gap = (values[-1] - values[0]) / (len(values) - 1)
    at, weight = (values - values[0]) / gap, np.sqrt(counts)
    means = np.bincount(cell, response) / counts
    centred = weight * (means - response.mean())  # [n]
    within = float(((response - means[cell]) ** 2).sum())  # residual squares that no model explains
    runs, spare = len(response), len(response) - len(values)
    curves = _curves(at, weight)
    after = at[:, None] > at[:-1]  # [n, n - 1], a step behind each value but the last
    step = _Model(weight, at[:, None] ** [0], after)
    sloped = _Model(weight, at[:, None] ** [0, 1], after)
    smallest = _EXACT * (within + float((centred**2).sum()))
    if smallest == 0:  # all responses are equal
        return Jump(float(values[:2].mean()), 0.0, 0.0, 1.0, "straight", dict.fromkeys(curves, 1.0))

    def misfit(model: _Model, rows: Array, noise: Array | float) -> Array:
        """N log RSS of the model in every data set, given its weighted means [R, n] and residual squares [R]."""
        return runs * np.log(np.maximum(noise + (rows**2).sum(axis=1) - model.explained(rows), smallest))

    def misfit_of_jump(rows: Array, noise: Array | float) -> Array:
        return np.minimum(misfit(step, rows, noise), misfit(sloped, rows, noise) + np.log(runs))

    abrupt = float(misfit_of_jump(centred[None], within)[0])
    smooth = {name: float(misfit(curve, centred[None], within)[0]) for name, curve in curves.items()}
    p = dict.fromkeys(curves, 1.0)
    for name, curve in curves.items():
        observed = smooth[name] - abrupt
        if observed <= 1e-6:
            continue
        fitted = curve.fit(centred)
        left = within + float(((centred - fitted) ** 2).sum())
        variance = within / spare if spare else left / max(1, runs - curve.parameters)
        as_large = 0
        for begin in range(0, draws, _DRAWS_AT_ONCE):
            count = min(_DRAWS_AT_ONCE, draws - begin)
            rows = fitted + np.sqrt(variance) * rng.normal(size=(count, len(values)))
            noise = variance * rng.chisquare(spare, count) if spare else np.zeros(count)
            as_large += int((misfit(curve, rows, noise) - misfit_of_jump(rows, noise) >= observed - 1e-9).sum())
        p[name] = (1 + as_large) / (1 + draws)

    jump = step if misfit(step, centred[None], within)[0] <= abrupt else sloped
    place = jump.best(centred)
    closest = min(smooth, key=lambda name: smooth[name])
    return Jump(
        split=float(values[place : place + 2].mean()),
        effect=jump.coefficient(centred, place),
        gain=max(0.0, 1 - float(np.exp((abrupt - smooth[closest]) / runs))),
        p=max(p.values()),
        closest=closest,
        nulls=p,
    )


class _Model:
    """Least squares on fixed terms and on the best of several candidates, searched all at once.

    Orthogonal parts of the candidates turn the search into one product of matrices. Rows are weighted means [R, n].
    """

    def __init__(self, weight: Array, terms: Array, candidates: Array | None = None, shape_parameters: int = 0):
        """Prepare the search.

        Args:
          weight: [n] square roots of the counts.
          terms: [n, k] columns that are always fitted.
          candidates: [n, G] columns of which one is added; None: none.
          shape_parameters: numbers that tell one candidate from another.
        """
        self._terms = weight[:, None] * terms
        self._base = np.linalg.qr(self._terms)[0]
        self._candidates = np.zeros((len(weight), 0)) if candidates is None else weight[:, None] * candidates
        parts = self._candidates - self._base @ (self._base.T @ self._candidates)
        sizes = np.linalg.norm(parts, axis=0)
        # What the terms nearly contain adds nothing but rounding errors.
        self._parts = np.where(sizes > 1e-7, parts / np.maximum(sizes, 1e-7), 0.0)
        self.parameters = terms.shape[1] + (candidates is not None) + shape_parameters

    def explained(self, rows: Array) -> Array:
        """Sum of squares that the best fit explains, [R]."""
        by_terms = ((rows @ self._base) ** 2).sum(axis=1)
        return by_terms + ((rows @ self._parts) ** 2).max(axis=1, initial=0.0)

    def best(self, row: Array) -> int:
        """Index of the best candidate for one row [n]."""
        return int(np.argmax((row @ self._parts) ** 2))

    def fit(self, row: Array) -> Array:
        """Return the best fit to one row [n]."""
        fitted = self._base @ (self._base.T @ row)
        if self._parts.shape[1]:
            part = self._parts[:, self.best(row)]
            fitted = fitted + part * (part @ row)
        return fitted

    def coefficient(self, row: Array, candidate: int) -> float:
        """Return the coefficient of a candidate in the fit to one row [n]."""
        design = np.column_stack([self._terms, self._candidates[:, candidate]])
        return float(np.linalg.lstsq(design, row, rcond=None)[0][-1])


def _curves(at: Array, weight: Array) -> dict[str, _Model]:
    """The smooth curves, for places in gaps from 0 to `last`."""
    column, last = at[:, None], at[-1]
    constant = column ** [0]
    scales = LOGISTIC_SCALE * np.geomspace(1, 8, 20)
    centres = np.arange(-last / 2, 1.5 * last + 0.05, 0.1)
    slope = (column[..., None] - centres) / scales[:, None, None, None]  # [scales, n, 1, centres]
    logistic = (1 / (1 + np.exp(-np.clip(slope, -700, 700)))).transpose(1, 0, 2, 3).reshape(len(at), -1)
    rates = 1 / (EXPONENTIAL_SCALE * np.geomspace(1, 16, 60))
    exponential = np.column_stack([np.exp(-column * rates), np.exp((column - last) * rates)])
    return {
        "straight": _Model(weight, column ** [0, 1]),
        "quadratic": _Model(weight, column ** [0, 1, 2]),
        "cubic": _Model(weight, column ** [0, 1, 2, 3]),
        "logistic": _Model(weight, constant, logistic, shape_parameters=2),
        "exponential": _Model(weight, constant, exponential, shape_parameters=1),
    }
