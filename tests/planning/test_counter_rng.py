"""Random numbers by their place."""

import numpy as np

from packtrain.planning.counter_rng import best, chance


def test_chance_is_uniform_and_independent_of_order() -> None:
    """Every counter matters, order does not, and the numbers spread evenly. Mutation: leave a counter out."""
    columns, counts = np.arange(200)[:, None], np.arange(50)
    numbers = chance(3, columns, counts)
    assert numbers.shape == (200, 50)
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(np.unique(numbers)) == numbers.size
    np.testing.assert_array_equal(chance(3, columns[::-1], counts), numbers[::-1])
    assert not np.isin(chance(4, columns, counts), numbers).any()
    share, _ = np.histogram(numbers, 10, (0, 1))
    assert abs(share / numbers.size - 0.1).max() < 0.01
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.03


def test_best_breaks_ties_with_noise_and_reports_when_nothing_is_left() -> None:
    """NaN and what is not allowed are never chosen."""
    scores = np.array([[1.0, 1.0, 0.0], [np.nan, -5.0, -np.inf], [3.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
    allowed = np.array([[True] * 3, [True] * 3, [False, True, True], [False] * 3])
    noise = np.array([[0.1, 0.2, 0.9], [0.9, 0.1, 0.5], [0.9, 0.1, 0.2], [0.1, 0.2, 0.3]])
    np.testing.assert_array_equal(best(scores, noise, allowed), [1, 1, 1, -1])
    np.testing.assert_array_equal(best(np.array([[-np.inf, -np.inf]]), np.array([[0.3, 0.1]])), [0])
