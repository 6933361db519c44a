import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain.metrics.intervals import student_t
from packtrain.studies.statistics import (
    align,
    bootstrap_interval,
    interquartile_mean,
    mean_interval,
    performance_profile,
    probability_of_improvement,
    thin,
)


@pytest.mark.parametrize(
    ("degrees", "table"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (29, 2.045), (30, 2.042), (100, 1.984)],
)
def test_student_t_is_the_textbook_table(degrees, table):
    assert student_t(degrees) == pytest.approx(table, abs=5e-4)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 8, 25])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_the_density_between_minus_t_and_t_integrates_to_the_confidence(degrees, confidence):
    """Brute force: Simpson's rule over the density written out. Fails on a wrong factor in either finite sum."""
    t, pieces = student_t(degrees, confidence), 4000
    norm = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    density = [norm * (1 + (t * i / pieces) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(pieces + 1)]
    half = t / pieces / 3 * (density[0] + density[-1] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2]))
    assert 2 * half == pytest.approx(confidence, abs=1e-6)


def test_student_t_refuses_what_has_no_answer():
    for arguments in ((0,), (3, 1.0), (3, 0.0)):
        with pytest.raises(ValueError, match="degrees"):
            student_t(*arguments)


def test_interval_by_arithmetic():
    """1, 2, 6: mean 3, s² = (4 + 1 + 9) / 2. Fails on dividing the variance by S, or on forgetting √S."""
    half = 4.30265 * math.sqrt(7 / 3)
    assert mean_interval([1, 2, 6]) == pytest.approx((3, 3 - half, 3 + half), abs=1e-4)


def test_one_seed_has_a_mean_and_no_interval():
    mean, low, high = mean_interval([4.5])
    assert mean == 4.5
    assert math.isnan(low) and math.isnan(high)
    with pytest.raises(ValueError, match="no seeds"):
        mean_interval([])


def test_the_interval_covers_the_truth_95_times_in_100():
    """Four normal seeds, 4000 times. With the normal's 1.96 in place of t it would cover 85 %."""
    rng = random.Random(0)
    covered = 0
    for _ in range(4000):
        _, low, high = mean_interval([rng.gauss(10, 3) for _ in range(4)])
        covered += low <= 10 <= high
    assert 0.94 < covered / 4000 < 0.96


def test_align_interpolates_within_the_range_of_all_curves():
    """Fails on extrapolating to 0 or 40, and on taking the steps of one curve only."""
    steps, (first, second) = align([([0, 10, 20], [0, 10, 40]), ([5, 15, 40], [1, 3, 8])])
    assert steps == [5, 10, 15, 20]
    assert first == [5, 10, 25, 40]
    assert second == [1, 2, 3, 4]


def test_align_of_curves_without_a_common_range_is_empty():
    assert align([([0, 1], [5, 5]), ([2, 3], [6, 6])]) == ([], [[], []])
    assert align([([0, 1], [5, 5]), ([], [])]) == ([], [[], []])
    assert align([]) == ([], [])


def test_align_refuses_curves_that_are_none():
    with pytest.raises(ValueError, match="increase"):
        align([([0, 0], [1, 2])])
    with pytest.raises(ValueError, match="2 steps but 1 values"):
        align([([0, 1], [1])])


@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=20, unique=True), min_size=1, max_size=4))
def test_align_is_exact_on_lines(all_steps):
    """A straight line stays the same line at any steps; curves keep their order and the result its shape."""
    curves = [(sorted(steps), [3 * step - k for step in sorted(steps)]) for k, steps in enumerate(all_steps)]
    common, columns = align(curves)
    assert common == sorted(set(common)) and len(columns) == len(curves)
    for k, column in enumerate(columns):
        assert column == pytest.approx([3 * step - k for step in common], abs=1e-9)


def test_thin_keeps_short_curves_and_averages_long_ones():
    assert thin([1, 2, 3], [4, 5, 6], limit=3) == ([1, 2, 3], [4, 5, 6])
    assert thin([1, 2, 3, 4, 9], [0, 2, 4, 8, 7], limit=3) == ([1.5, 3.5, 9], [1, 6, 7])
    with pytest.raises(ValueError, match="0 points"):
        thin([1], [1], limit=0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 50))
def test_thin_stays_within_the_limit_and_the_range(values, limit):
    steps, thinned = thin(range(len(values)), values, limit)
    assert len(steps) == len(thinned) <= max(limit, 1)
    assert all(before < after for before, after in zip(steps, steps[1:], strict=False))
    assert min(values) - 1e-6 <= min(thinned) and max(thinned) <= max(values) + 1e-6


def test_the_interquartile_mean_drops_a_quarter_at_each_end():
    """Mutation: a quarter of each task by itself, which would keep the 100."""
    assert interquartile_mean([[1, 2, 3, 100], [4, 5, 6, 7]]) == (3 + 4 + 5 + 6) / 4
    assert interquartile_mean([[1, 5, 9]]) == 5, "of three scores none is dropped"
    with pytest.raises(ValueError, match="no scores"):
        interquartile_mean([[]])


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=6), min_size=1, max_size=3),
    st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=6), min_size=1, max_size=3),
)
def test_the_probability_of_improvement_is_the_share_of_pairs(first, second):
    """Brute force over all pairs; of the same method it is a half, and turned around it is the rest."""
    tasks = min(len(first), len(second))
    first, second = first[:tasks], second[:tasks]
    shares = [
        sum((x > y) + 0.5 * (x == y) for x in a for y in b) / (len(a) * len(b))
        for a, b in zip(first, second, strict=True)
    ]
    assert probability_of_improvement(first, second) == pytest.approx(sum(shares) / tasks)
    assert probability_of_improvement(second, first) == pytest.approx(1 - sum(shares) / tasks)
    assert probability_of_improvement(first, first) == 0.5


def test_a_profile_is_the_share_above_each_threshold_with_equal_tasks():
    """Mutation: all scores in one pot, 4/6 above 0; at least instead of above."""
    assert performance_profile([[1, 2, 3, 4], [0, 0]], [0, 1, 4]) == [0.5, 0.375, 0]


def test_the_bootstrap_resamples_within_tasks():
    """Two tasks of constant scores: any resample within them has the same mean. Mutation: one pot."""
    assert bootstrap_interval(interquartile_mean, [[0, 0, 0], [1, 1, 1]], resamples=50) == (0.5, 0.5)
    low, high = bootstrap_interval(interquartile_mean, [[1, 2, 3, 4, 5, 6, 7, 8]], resamples=500)
    assert 1.5 < low < 4.5 < high < 7.5
    again = bootstrap_interval(interquartile_mean, [[1, 2, 3, 4, 5, 6, 7, 8]], resamples=500)
    assert again == (low, high), "a page is the same each time"


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says():
    """The mean of twenty normal seeds, 300 times."""
    rng, covered = random.Random(1), 0
    for trial in range(300):
        low, high = bootstrap_interval(
            interquartile_mean, [[rng.gauss(5, 2) for _ in range(20)]], resamples=300, seed=trial
        )
        covered += low <= 5 <= high
    assert 0.85 < covered / 300 <= 1
