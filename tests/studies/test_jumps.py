"""Jumps against smooth curves: fits against brute force, false positives, power, and the shipped sweep."""

import json
from pathlib import Path

import numpy as np
import pytest

from packtrain.errors import ConfigError
from packtrain.studies.jumps import EXPONENTIAL_SCALE, LOGISTIC_SCALE, jump_test

ROOT = Path(__file__).parents[2]
PLACES = np.arange(7.0)
X = np.repeat(PLACES, 5)  # as the shipped sweep: seven values, five seeds
T = X / 3 - 1
CURVES = ("straight", "quadratic", "cubic", "logistic", "exponential")

SMOOTH = {
    "straight": -T,
    "quadratic": -((T + 1) ** 2),
    "cubic": 0.6 * T - T**3,
    "exponential": np.exp(-X / 1.5),
    "logistic": 1 / (1 + np.exp(X - 3)),
}


def found(truth, noise, seed, draws=99):
    rng = np.random.default_rng(seed)
    return jump_test(X, truth + noise * rng.normal(size=len(X)), rng=rng, draws=draws)


def squares(columns, y):
    design = np.column_stack([np.ones(len(y)), *columns])
    return float(((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2).sum())


@pytest.mark.parametrize("noise", [0.05, 0.15])
@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_curve_is_called_a_jump_in_at_most_one_case_of_twenty(name, noise):
    """60 data sets; 3 may be called jumps, and two standard deviations of that more."""
    truth = SMOOTH[name]
    jumps = sum(found(truth, noise * np.ptp(truth), seed).p <= 0.05 for seed in range(60))
    assert jumps <= 6


def test_a_steep_exponential_with_little_noise_is_never_a_jump():
    assert not any(found(np.exp(-X / 1.5), 0.05, seed).p <= 0.05 for seed in range(25))


@pytest.mark.parametrize("gap", [1, 2, 3, 4])
def test_a_jump_of_three_noise_deviations_is_found_between_inner_values(gap):
    """100 data sets; 0.83 to 0.85 are found in the long run, less two standard deviations."""
    results = [found(-3.0 * (X > gap), 1.0, seed) for seed in range(100)]
    assert sum(result.p <= 0.05 for result in results) >= 75
    assert np.median([result.split for result in results]) == gap + 0.5
    assert np.mean([result.effect for result in results]) == pytest.approx(-3, abs=0.3)


def test_the_shipped_counterfeit_jump_is_found_and_its_control_has_none():
    sweep = json.loads((ROOT / "docs/results/counterfeit_sweep.json").read_text())
    results = {}
    for proxy in ("coins", "true"):
        rows = [row for row in sweep["runs"] if row["proxy"] == proxy]
        places = [sweep["values"].index(row["capability"]) for row in rows]
        truth = [row["true_return"] for row in rows]
        results[proxy] = jump_test(places, truth, rng=np.random.default_rng(0), draws=199)
    assert results["coins"].nulls == dict.fromkeys(CURVES, 1 / 200)
    assert (results["coins"].split, results["coins"].effect) == (3.5, pytest.approx(-53.2))
    assert (results["true"].p, results["true"].effect) == (1.0, 0.0)


def test_p_is_the_largest_over_all_smooth_curves():
    result = found(-3.0 * (X > 0), 1.0, 4)
    assert tuple(result.nulls) == CURVES
    assert result.p == max(result.nulls.values()) > min(result.nulls.values())


@pytest.mark.parametrize("seed", range(4))
def test_fits_are_those_of_brute_force_with_unequal_counts(seed):
    """Mutation: means that are not weighted with their counts; a grid that is too coarse or too narrow."""
    rng = np.random.default_rng(seed)
    x = np.sort(np.concatenate([PLACES, rng.integers(0, 7, size=20)])) * 10 + 5  # gaps of 10
    y = -2.0 * (x > 38) + 0.4 * rng.normal(size=len(x))
    result = jump_test(x, y, rng=rng, draws=1)
    at = (x - 5) / 10
    steps = [at > gap for gap in range(6)]
    step = min((squares([after], y), gap, 0) for gap, after in enumerate(steps))
    sloped = min((squares([at, after], y) * len(x) ** (1 / len(x)), gap, 1) for gap, after in enumerate(steps))
    best, gap, _ = min(step, sloped)
    logistic = min(
        squares([1 / (1 + np.exp(-(at - centre) / scale))], y)
        for scale in LOGISTIC_SCALE * np.geomspace(1, 6, 13)
        for centre in np.linspace(-2, 8, 83)
    )
    scales = EXPONENTIAL_SCALE * np.geomspace(1, 10, 37)
    exponential = min(squares([np.exp(sign * at / scale)], y) for scale in scales for sign in (1, -1))
    curves = {
        "straight": squares([at], y),
        "quadratic": squares([at, at**2], y),
        "cubic": squares([at, at**2, at**3], y),
        "logistic": logistic,
        "exponential": exponential,
    }
    assert result.split == gap * 10 + 10
    assert result.closest == min(curves, key=lambda name: curves[name])
    assert result.gain == pytest.approx(1 - best / min(curves.values()), abs=2e-3)


def test_scale_and_place_of_both_axes_change_nothing():
    y = np.random.default_rng(1).normal(size=len(X)) - 3 * (X > 2)
    one, other = (
        jump_test(a * X + b, c * y + d, rng=np.random.default_rng(2), draws=99)
        for a, b, c, d in ((1, 0, 1, 0), (100, 7, 1e-3, -5))
    )
    assert other.nulls == one.nulls and other.closest == one.closest
    assert (other.split, other.effect) == (pytest.approx(100 * one.split + 7), pytest.approx(1e-3 * one.effect))


def test_a_jump_without_noise_or_repeated_values_is_found_and_a_smooth_curve_is_not():
    """Rounding errors and the spacing of the searched curves must not decide."""
    rng = np.random.default_rng(0)
    assert jump_test(X, -1.0 * (X > 3), rng=rng, draws=99).p == 0.01
    for truth in (*SMOOTH.values(), np.zeros(len(X)), 1e6 + T):
        assert jump_test(X, truth, rng=rng, draws=99).p > 0.5
    alone = np.arange(12.0)
    assert jump_test(alone, -5.0 * (alone > 5) + 0.1 * rng.normal(size=12), rng=rng, draws=99).p == 0.01
    assert jump_test(alone, np.exp(-alone / 3) + 0.05 * rng.normal(size=12), rng=rng, draws=99).p > 0.05


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": np.zeros(34)}, r"x of shape \(35,\) and y of shape \(34,\)"),
        ({"y": np.full(35, np.nan)}, "must be finite"),
        ({"x": X > 3}, "35 runs at 2 different x are too few"),
        ({"draws": 0}, "draws = 0 must be at least 1"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_one_line(given, message):
    with pytest.raises(ConfigError, match=message):
        jump_test(**{"x": X, "y": T, "rng": np.random.default_rng(0), "draws": 9} | given)
