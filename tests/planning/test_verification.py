"""The trust-but-verify rule, by hand."""

import numpy as np

from packtrain.planning.verification import Verification


def seen(rule: Verification, column: int, values: list[float]) -> None:
    rule.expanded(np.full(len(values), column), np.array(values, np.float32))


def test_thresholds_are_quantiles_of_the_newest() -> None:
    """Linear interpolation, per column, over at most the queue's length, from the episode's beginning.

    Mutation: count a column that comes twice in one call once; the second value is written over the first.
    """
    rule = Verification(3, 0.9, 0.5, 5, seed=0)
    every = np.arange(3)
    assert np.isinf(rule.thresholds(every)).all()
    rule.expanded(np.array([0, 2, 0, 2, 0]), np.array([1, 10, 2, 20, 3], np.float32))
    want = [np.quantile([1, 2, 3], 0.9), np.inf, np.quantile([10, 20], 0.9)]
    np.testing.assert_allclose(rule.thresholds(every), want)
    seen(rule, 0, [4, 5, 6, 7])
    np.testing.assert_allclose(rule.thresholds(every)[0], np.quantile([3, 4, 5, 6, 7], 0.9))
    rule.begin(np.array([0]))
    assert np.isinf(rule.thresholds(every)[0]) and np.isfinite(rule.thresholds(every)[2])


def test_only_more_than_the_threshold_is_verified() -> None:
    """Strictly: a queue of equal disagreements never triggers."""
    rule = Verification(2, 0.9, 0.0, 10, seed=0)
    seen(rule, 0, [0.3] * 10)
    seen(rule, 1, [0.1] * 9 + [0.3])
    bonus = np.array([[0.1, 0.3], [0.3, 0.0]], np.float32)
    np.testing.assert_array_equal(rule.choose(np.arange(2), bonus, 0), [-1, 0])


def test_rejections_have_their_probability_and_differ_between_columns() -> None:
    """p = 0.75 verifies a quarter of the time. Mutation: draw one number for all columns."""
    rule = Verification(500, 0.5, 0.75, 10, seed=0)
    for column in range(500):
        seen(rule, column, [0.0, 0.1])
    bonus = np.tile(np.array([[0.0, 1.0, 0.5]], np.float32), (500, 1))
    chosen = np.stack([rule.choose(np.arange(500), bonus, decision) for decision in range(20)])
    assert set(np.unique(chosen)) == {-1, 1}
    assert abs((chosen == 1).mean() - 0.25) < 0.02
    assert 0.15 < (chosen[0] == 1).mean() < 0.35
    np.testing.assert_array_equal(rule.choose(np.array([7]), bonus[:1], 3), chosen[3, 7:8])
