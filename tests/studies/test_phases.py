"""Change points against brute force, their p-values against known truths, and correlations with their intervals."""

import math

import numpy as np
import pytest

from packtrain.errors import ConfigError
from packtrain.studies.phases import change_point, correlation, pearson, ranks, spearman

X = np.log(np.geomspace(16, 4096, 20))
SWEEP = np.repeat(np.log(2.0 ** np.arange(4, 12)), 5)  # eight widths, five seeds each


def rng(seed=0):
    return np.random.default_rng(seed)


def squares(columns, y):
    """The residual sum of squares of a least-squares fit."""
    design = np.column_stack(columns)
    return float(((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2).sum())


def autocorrelated(seed, groups=8, keep=0.8):
    """Runs whose checkpoints resemble the ones before, on a straight trend: (x, y, group)."""
    draws = rng(seed).normal(size=(groups, len(X)))
    noise = draws.copy()
    for t in range(1, len(X)):
        noise[:, t] = keep * noise[:, t - 1] + math.sqrt(1 - keep**2) * draws[:, t]
    return np.tile(X, groups), (noise + 0.5 * X).ravel(), np.repeat(np.arange(groups), len(X))


@pytest.mark.parametrize("shape", ["level", "linear"])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_split_is_that_of_brute_force(shape, seed):
    """Fits each split by itself. Mutations: argmax for argmin; the slope forgotten in a model; least ignored."""
    x = np.sort(rng(seed).integers(0, 9, size=24)).astype(float)  # with ties
    y = rng(seed + 50).normal(size=24) - 1.5 * (x > 5)
    found = []
    for before, after in zip(np.unique(x), np.unique(x)[1:], strict=False):
        cut, right = (before + after) / 2, x >= after
        if min(right.sum(), (~right).sum()) < 4:
            continue
        columns = [np.ones(24), x, right]
        if shape == "level":
            total, effect = squares(columns, y), np.linalg.lstsq(np.column_stack(columns), y, rcond=None)[0][2]
        else:  # two lines that know nothing of each other
            if any(len(np.unique(x[side])) < 2 for side in (right, ~right)):
                continue
            total = sum(squares([np.ones(side.sum()), x[side]], y[side]) for side in (right, ~right))
            left_end, right_end = (np.polyval(np.polyfit(x[side], y[side], 1), cut) for side in (~right, right))
            effect = right_end - left_end
        found.append((total, cut, effect))
    total, cut, effect = min(found)
    got = change_point(x, y, rng=rng(), shape=shape, least=4, draws=9)
    assert got.split == pytest.approx(cut)
    assert got.effect == pytest.approx(effect)
    assert got.gain == pytest.approx(1 - total / squares([np.ones(24), x], y))


def naive_gain_without_farthest(x, y, shape, least):
    """The gain after the point is left out whose absence leaves the smallest squares beside a line; loops, refits."""
    every = np.arange(len(x))
    line = [squares([np.ones(len(x) - 1), x[every != i]], y[every != i]) for i in every]
    keep = every != int(np.argmin(line))
    best = math.inf
    for before, after in zip(np.unique(x), np.unique(x)[1:], strict=False):
        right = x >= after
        if min(right.sum(), (~right).sum()) < least:
            continue
        columns = [np.ones(len(x)), x, right] + ([(x - before) * right] if shape == "linear" else [])
        best = min(best, squares([column[keep] for column in columns], y[keep]))
    return 1 - best / min(line)


@pytest.mark.parametrize(("shape", "least"), [("level", 3), ("linear", 3), ("linear", 2)])
def test_p_is_the_share_of_naive_draws_with_at_least_the_naive_gain(shape, least):
    """Mutations: the farthest point chosen by its residual, without the leverage; draws in the same order.

    A line through two points passes through both: their leverage is 1. Mutation: it is divided by 1 − leverage.
    """
    x = np.arange(12.0)
    y = rng(3).normal(size=12) + 0.5 * x - 2 * (x > 6)
    line = np.polyval(np.polyfit(x, y, 1), x)
    orders = rng(4).permuted(np.tile(y - line, (60, 1)), axis=1)  # as change_point draws them
    own = naive_gain_without_farthest(x, y, shape, least)
    as_large = sum(naive_gain_without_farthest(x, line + order, shape, least) >= own for order in orders)
    assert 0 < as_large < 60
    assert change_point(x, y, rng=rng(4), shape=shape, least=least, draws=60).p == pytest.approx((1 + as_large) / 61)


def test_a_step_by_arithmetic():
    got = change_point(np.arange(8), [5, 5, 5, 5, 2, 2, 2, 2], rng=rng(), draws=199)
    assert (got.split, got.effect, got.gain) == pytest.approx((3.5, -3.0, 1.0))
    assert got.p <= 0.05


@pytest.mark.parametrize("shape", ["level", "linear"])
def test_straight_lines_with_noise_are_found_changed_as_often_as_p_says(shape):
    """Negative control: 400 lines, 20 ± 4.4 of them below 0.05 by chance; 3½ of these deviations are allowed.

    Mutation: draws that are not searched, but keep the split of the data, make it hundreds.
    """
    made = rng(11)
    p = [change_point(X, X + made.normal(size=len(X)), rng=made, shape=shape, draws=99).p for _ in range(400)]
    assert 5 <= sum(value <= 0.05 for value in p) <= 36
    assert 165 <= sum(value <= 0.5 for value in p) <= 235


def test_a_steep_trend_neither_makes_nor_hides_a_change():
    """Mutation: two constants against a line, which the trend decides and not the change."""
    y = rng(9).normal(size=len(X)) - 3 * (X > X[9])
    for shape in ("level", "linear"):
        flat, steep = (change_point(X, y + slope * X, rng=rng(), shape=shape, draws=99) for slope in (0, 100))
        assert steep == pytest.approx(flat)


@pytest.mark.parametrize("shape", ["level", "linear"])
def test_a_clear_drop_is_found_where_it_is(shape):
    """Eight widths, five seeds each, four standard deviations from the fifth width on; in each of eight draws."""
    widths = np.unique(SWEEP)
    for seed in range(8):
        y = rng(seed).normal(size=len(SWEEP)) - 4 * (SWEEP > widths[3])
        got = change_point(SWEEP, y, rng=rng(seed), shape=shape, draws=299)
        assert got.p < 0.01
        assert got.split == pytest.approx((widths[3] + widths[4]) / 2)
        assert got.effect == pytest.approx(-4, abs=2)


def test_one_run_for_each_capability_is_enough_for_a_large_drop():
    for seed in range(5):
        y = rng(seed).normal(size=len(X)) - 8 * (X > X[11])
        got = change_point(X, y, rng=rng(seed), draws=299)
        assert got.p < 0.01 and got.split == pytest.approx((X[11] + X[12]) / 2)


def test_a_rise_that_breaks_off_is_a_change_of_lines():
    """Up to the tenth point the return rises, then it falls by 6 and rises again: the fall is seen past the slopes."""
    y = 1.5 * X - 6 * (X > X[9]) + 0.3 * rng(3).normal(size=len(X))
    got = change_point(X, y, rng=rng(), shape="linear", draws=299)
    assert got.p < 0.01
    assert got.split == pytest.approx((X[9] + X[10]) / 2)
    assert got.effect == pytest.approx(-6, abs=1)


@pytest.mark.parametrize("shape", ["level", "linear"])
@pytest.mark.parametrize("place", [0, 10, 19])
def test_one_outlier_is_no_transition(shape, place):
    """Fifty standard deviations down at one of twenty points, forty times; two are expected below 0.05.

    Mutation: gains of all points make 9 in 10 ends a change of lines.
    """
    p = []
    for seed in range(40):
        y = rng(seed).normal(size=len(X))
        y[place] -= 50
        p.append(change_point(X, y, rng=rng(seed), shape=shape, draws=99).p)
    assert sum(value <= 0.05 for value in p) <= 8
    assert np.median(p) > 0.3


def test_a_fall_at_the_very_end_needs_least_points():
    y = 0.1 * rng(5).normal(size=20) - 5 * (np.arange(20) >= 18)  # two points
    assert change_point(np.arange(20), y, rng=rng(), least=2, draws=99).split == 17.5
    assert change_point(np.arange(20), y, rng=rng(), least=3, draws=99).split <= 16.5


def test_a_smooth_hump_is_a_change_to_a_line_and_none_to_a_parabola():
    t = np.linspace(-1, 1, 30)
    y = -3 * t**2 + 0.3 * rng(4).normal(size=30)
    assert change_point(t, y, rng=rng(), shape="linear", draws=199).p < 0.01
    assert change_point(t, y, rng=rng(), shape="linear", degree=2, draws=199).p > 0.05


def test_checkpoints_of_one_run_are_not_independent():
    """Negative control: with groups about 5 % of straight trends are called changed, without them three times that.

    Mutation: a factor for each point instead of each group.
    """
    with_groups, without = [], []
    for seed in range(80):
        x, y, group = autocorrelated(seed)
        with_groups.append(change_point(x, y, group, rng=rng(seed), shape="linear", draws=59).p <= 0.05)
        without.append(change_point(x, y, rng=rng(seed), shape="linear", draws=59).p <= 0.05)
    assert sum(with_groups) <= 11  # 4 ± 2 expected
    assert sum(without) > sum(with_groups)


def test_a_drop_shared_by_all_groups_is_found_past_their_levels():
    """Levels of the groups lie ten drops apart. Mutation: one level for all."""
    x, y, group = autocorrelated(1, groups=10)
    y = y + 30 * rng(2).normal(size=10)[group] - 3 * (x > X[9])
    got = change_point(x, y, group, rng=rng(), shape="linear", draws=299)
    assert got.p < 0.02
    assert got.split == pytest.approx((X[9] + X[10]) / 2)
    assert got.effect == pytest.approx(-3, abs=0.7)
    assert change_point(x, y, rng=rng(), shape="linear", draws=99).p > 0.05


def test_scale_and_place_of_both_axes_change_nothing():
    y = rng(6).normal(size=20) - (X > X[9])
    one = change_point(X, y, rng=rng(), draws=99)
    other = change_point(1000 * X + 3, 1e-3 * y + 7, rng=rng(), draws=99)
    assert other.p == one.p and other.gain == pytest.approx(one.gain)
    assert other.split == pytest.approx(1000 * one.split + 3)
    assert other.effect == pytest.approx(1e-3 * one.effect)


def test_order_does_not_matter_and_a_seed_is_a_result():
    y = rng(7).normal(size=40) - (SWEEP > SWEEP[19])
    order = rng(8).permutation(40)
    one, other = change_point(SWEEP, y, rng=rng(), draws=99), change_point(SWEEP[order], y[order], rng=rng(), draws=99)
    assert (one.split, one.effect, one.gain) == pytest.approx((other.split, other.effect, other.gain))
    assert change_point(SWEEP, y, rng=rng(), draws=99) == one


@pytest.mark.parametrize("y", [np.zeros(20), 3 * X - 2, np.full(20, 1e6)], ids=["zeros", "line", "constant"])
def test_a_line_without_noise_has_no_change(y):
    """Rounding errors must not be searched for one."""
    got = change_point(X, y, rng=rng(), draws=19)
    assert (got.gain, got.p) == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros(19)}, "x has 20 points, y has 19"),
        ({"x": np.zeros(20)}, "1 different x are too few"),
        ({"x": np.arange(20) % 3, "degree": 2}, "at least 4 are needed"),
        ({"y": np.full(20, np.nan)}, "20 values that are not finite"),
        ({"x": np.zeros((20, 1))}, "must be a list of numbers"),
        ({"shape": "cubic"}, "must be 'level' or 'linear'"),
        ({"least": 11}, "no split of 20 points leaves 11"),
        ({"least": 1}, "least = 1 must be at least 2"),
        ({"draws": 0}, "draws = 0 must be at least 1"),
        ({"degree": 0}, "degree = 0 must be at least 1"),
        ({"groups": np.zeros(20)}, "single group"),
        ({"groups": np.zeros(3)}, "must name each of the 20 points"),
        ({"groups": X}, "no split of 20 points"),
        ({"x": np.arange(5), "y": [1, 0, 2, 1, 5], "shape": "linear", "least": 2}, "no split of 5 points"),
    ],
)
def test_what_has_no_answer_is_refused_in_one_line(change, message):
    given = {"x": X, "y": rng().normal(size=20), "rng": rng(), "draws": 9} | change
    with pytest.raises(ConfigError, match=message) as error:
        change_point(**given)
    assert "\n" not in str(error.value)


def test_a_split_that_no_group_crosses_is_not_considered():
    """What lies between two groups may be their levels. Mutation: one level for all groups."""
    y = rng(2).normal(size=20) - 9 * (X > X[9])
    assert change_point(X, y, rng=rng(), draws=9).split == pytest.approx((X[9] + X[10]) / 2)
    assert change_point(X, y, X > X[9], rng=rng(), draws=9).split != pytest.approx((X[9] + X[10]) / 2)


def test_ranks_are_the_naive_counts():
    for seed in range(5):
        values = rng(seed).integers(0, 6, size=15)
        want = [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]
        np.testing.assert_allclose(ranks(values), want)


def test_coefficients_by_arithmetic_and_against_numpy():
    """Mutation: ranks without ties, or a covariance that is not divided by both spreads."""
    a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
    assert pearson(a, b) == pytest.approx(0.8)
    assert spearman(a, np.exp(5 * a)) == 1 and pearson(a, np.exp(5 * a)) < 0.9
    assert spearman(a, -(a**3)) == -1
    for seed in range(5):
        a, b = rng(seed).normal(size=(2, 30))
        b = b + a
        assert pearson(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
        d = ranks(a) - ranks(b)
        assert spearman(a, b) == pytest.approx(1 - 6 * (d**2).sum() / (30 * (30**2 - 1)))  # without ties


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """100 samples of 40 pairs with correlation 0.6; 95 ± 2 are expected, less a few for a percentile interval."""
    made = rng(12)
    held = 0
    for _ in range(100):
        a, e = made.normal(size=(2, 40))
        got = correlation(a, 0.6 * a + 0.8 * e, made, draws=100)
        assert got.pearson_interval[0] <= got.pearson <= got.pearson_interval[1]
        assert got.spearman_interval[0] < got.spearman_interval[1]
        held += got.pearson_interval[0] <= 0.6 <= got.pearson_interval[1]
    assert 84 <= held <= 99


def test_more_confidence_is_a_wider_interval_around_the_same_values():
    a, e = rng(13).normal(size=(2, 25))
    wide, narrow = (correlation(a, a + e, rng(), draws=400, confidence=c) for c in (0.99, 0.5))
    assert (wide.pearson, wide.spearman) == (narrow.pearson, narrow.spearman)
    for one, other in (
        (wide.pearson_interval, narrow.pearson_interval),
        (wide.spearman_interval, narrow.spearman_interval),
    ):
        assert one[0] < other[0] < other[1] < one[1]


def test_draws_that_do_not_vary_are_left_out():
    """Of three pairs a draw may be one of them three times."""
    got = correlation([1, 2, 3], [2, 4, 7], rng(), draws=200)
    assert all(math.isfinite(end) for end in got.pearson_interval + got.spearman_interval)


@pytest.mark.parametrize(
    ("a", "b", "more", "message"),
    [
        ([1, 2, 3], [1, 2], {}, "a has 3 values, b has 2"),
        ([1, 2], [1, 2], {}, "2 pairs are too few"),
        ([1, 1, 1], [1, 2, 3], {}, "a is constant"),
        ([1, 2, 3], [2, 2, 2], {}, "b is constant"),
        ([1, 2, np.inf], [2, 2, 3], {}, "1 values that are not finite"),
        ([1, 2, 3], [1, 2, 3], {"draws": 0}, "draws = 0 must be at least 1"),
        ([1, 2, 3], [1, 2, 3], {"confidence": 1.0}, "confidence = 1.0 must be between 0 and 1"),
    ],
)
def test_correlations_that_are_none_are_refused(a, b, more, message):
    with pytest.raises(ConfigError, match=message):
        correlation(a, b, rng(), **more)
