"""What tree search computes at a node, by arithmetic."""

import math

import numpy as np
import pytest

from packtrain.equations import puct


def test_bonuses_by_arithmetic():
    """Mutation: √(N + 1), or N(a) without the + 1."""
    priors, visits = np.array([[0.5, 0.3, 0.2]]), np.array([[0, 1, 3]])
    np.testing.assert_allclose(
        puct.puct_bonus(priors, visits, np.array([4])), [[0.5 * 2 / 1, 0.3 * 2 / 2, 0.2 * 2 / 4]]
    )
    np.testing.assert_allclose(puct.ucb_bonus(visits, np.array([9])), [[3 / 1, 3 / 2, 3 / 4]])


def test_softmax_leaves_out_what_is_not_allowed():
    got = puct.softmax(np.array([[0, math.log(3), 9e4], [1000, 0, 0]]), np.array([[True, True, False], [True] * 3]))
    np.testing.assert_allclose(got, [[0.25, 0.75, 0], [1, 0, 0]], atol=1e-12)
    assert puct.softmax(np.zeros((1, 4), np.float32)).tolist() == [[0.25] * 4]


def test_histogram_of_nothing_is_the_other_one():
    """Mutation: 0 / 0 gives NaN."""
    visits = np.array([[1, 3], [0, 0]])
    np.testing.assert_array_equal(puct.histogram(visits, np.array([[9, 9], [0.5, 0.5]])), [[0.25, 0.75], [0.5, 0.5]])
    np.testing.assert_array_equal(puct.histogram(visits), [[0.25, 0.75], [0, 0]])


def test_entropy():
    np.testing.assert_allclose(puct.entropy(np.array([[0.5, 0.5], [1, 0]])), [math.log(2), 0], atol=1e-12)


@pytest.mark.parametrize(
    ("considered", "simulations", "want"),
    [
        (4, 8, [0, 0, 0, 0, 1, 1, 2, 2]),  # two rounds of four simulations: 4 · 1 and 2 · 2
        (4, 16, [0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5]),
        (1, 3, [0, 1, 2]),
        (2, 5, [0, 0, 1, 1, 2]),
        (8, 3, [0, 0, 0]),
        (3, 0, []),
    ],
)
def test_sequential_halving_by_hand(considered, simulations, want):
    assert puct.considered_visits(considered, simulations).tolist() == want


def test_sequential_halving_is_always_possible():
    """In every simulation an action with as many visits as wanted exists, and all simulations are given out."""
    for considered in range(1, 18):
        for simulations in (1, 2, 7, 16, 50, 200):
            visits = [0] * considered
            for wanted in puct.considered_visits(considered, simulations):
                visits[visits.index(wanted)] += 1
            assert sum(visits) == simulations
            if simulations >= considered * math.ceil(math.log2(max(considered, 2))) and considered > 2:
                assert max(visits) > min(visits) > 0  # halved


def test_completed_qualities_by_arithmetic():
    """Mutation: leaving the priors of unvisited actions in the sum."""
    got = puct.completed_qualities(
        np.array([[1.0, 3.0, 99.0]]), np.array([[2, 1, 0]]), np.array([[0.2, 0.3, 0.5]]), np.array([4.0])
    )
    mixed = (4 + 3 * (0.2 * 1 + 0.3 * 3) / 0.5) / (1 + 3)
    np.testing.assert_allclose(got, [[1, 3, mixed]])
    untouched = puct.completed_qualities(np.ones((1, 2)), np.zeros((1, 2)), np.full((1, 2), 0.5), np.array([4.0]))
    np.testing.assert_allclose(untouched, [[4, 4]])


def test_scaled_qualities_by_arithmetic():
    """Mutation: a forbidden action widens the range."""
    got = puct.scaled_qualities(
        np.array([[1.0, 2.0, 3.0, -50.0], [7.0, 7.0, 7.0, 7.0]]),
        np.array([10, 0]),
        np.array([[True, True, True, False], [True] * 4]),
        value_scale=0.1,
        visit_offset=50,
    )
    np.testing.assert_allclose(got[0, :3], [0, (50 + 10) * 0.1 * 0.5, (50 + 10) * 0.1])
    np.testing.assert_array_equal(got[1], 0)
