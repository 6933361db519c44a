"""The metrics of a planning epoch: names, averages, and what is left out."""

import math

import numpy as np
import pytest

from packtrain.envs.stream import Finished
from packtrain.metrics.planning import Decisions, planning_row


def finished(returns, lengths, solved):
    columns = np.arange(len(returns))
    return Finished({"train": np.array(returns)}, np.array(lengths), np.array(solved, float), columns, np.empty(0))


def test_a_row_has_the_names_of_the_earlier_frameworks():
    """Over the episodes, not over the steps that ended some. Mutations: ddof 0; a mean of means."""
    row = planning_row(
        4,
        [finished([1.0, 2.0, 3.0], [10, 20, 30], [1, 0, 1]), finished([6.0], [80], [1])],
        {"agent": {"total_loss": 0.5}, "model": {"total_loss": 0.25}},
        {"depth_mean": 2.0},
    )
    assert row == {
        "epoch": 4,
        "episode/count": 4,
        "episode/return_mean": 3.0,
        "episode/return_median": 2.5,
        "episode/return_std": pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3)),
        "episode/length_mean": 35.0,
        "episode/length_median": 25.0,
        "episode/length_std": pytest.approx(math.sqrt((25**2 + 15**2 + 5**2 + 45**2) / 3)),
        "episode/solved_rate": 0.75,
        "agent/depth_mean": 2.0,
        "train/total_loss": 0.5,
        "model_fine_tune/total_loss": 0.25,
    }


def test_the_solved_rate_is_over_episodes_that_say():
    """Mutations: unknown counts as unsolved; NaN spoils the mean."""
    nan = math.nan
    row = planning_row(0, [finished([0.0] * 4, [1] * 4, [1, nan, 0, nan]), finished([0.0], [1], [1])], {}, {})
    assert row["episode/count"] == 5 and row["episode/solved_rate"] == pytest.approx(2 / 3)
    assert "episode/solved_rate" not in planning_row(0, [finished([0.0], [1], [nan])], {}, {})


def test_one_environment_has_no_spread():
    """Mutation: the standard deviation of one number, which is an error or NaN."""
    row = planning_row(0, [finished([3.0], [7], [0])], {}, {})
    assert row["episode/return_std"] == 0.0 and row["episode/length_std"] == 0.0
    assert row["episode/return_mean"] == row["episode/return_median"] == 3.0


def test_an_epoch_without_episodes_says_only_that():
    assert planning_row(2, [], {}, {}) == {"epoch": 2, "episode/count": 0}


def test_decisions_are_averaged_over_roots():
    """Plans for different numbers of roots weigh by them. Mutations: a mean of means; no reset."""
    decisions = Decisions()
    decisions.add({"depth_mean": np.array([1.0, 2.0]), "depth_max": np.array([4, 9]), "value": np.array([1.0, 3.0])})
    decisions.add({"depth_mean": np.array([6.0]), "depth_max": np.array([5]), "value": np.array([-1.0])})
    assert decisions.drain() == {"depth_mean": 3.0, "depth_max": 9.0, "value_mean": 1.0}
    decisions.add({"depth_max": np.array([2])})
    assert decisions.drain() == {"depth_max": 2.0}
    assert decisions.drain() == {}


def test_histograms_become_entropies():
    """−Σ p ln p, with 0 ln 0 = 0, in nats."""
    decisions = Decisions()
    decisions.add(
        {
            "action_histogram": np.array([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]),
            "action_histogram_smooth": np.full((2, 4), 0.25),
            "qualities": np.array([[1.0, 2.0], [3.0, 6.0]]),
            "tried": np.array([[True, False], [True, True]]),
        }
    )
    row = decisions.drain()
    assert row == {
        "entropy_mean": pytest.approx(math.log(2) / 2),
        "entropy_smooth_mean": pytest.approx(math.log(4)),
        "qualities_mean": 3.0,
        "tried_mean": 0.75,
    }


def test_what_is_not_known_is_left_out():
    """Mutations: infinity in a mean; 0 for nothing known."""
    decisions = Decisions()
    decisions.add({"value": np.array([np.nan, 2.0, -np.inf]), "nothing": np.array([np.inf]), "empty": np.zeros(0)})
    decisions.add({"states": np.zeros((2, 3, 4)), "things": np.array([None], object)})
    assert decisions.drain() == {"value_mean": 2.0}
