"""`packtrain.compare`: intervals of two methods, what one seed says, and runs that do not belong together."""

import json
import math

import pytest

import packtrain
from packtrain.errors import ConfigError
from packtrain.studies.pairwise import difference_interval


def runs(folder, name, scores, env="CartPole-v1"):
    found = []
    for seed, score in enumerate(scores):
        run = folder / f"{name}_{seed}"
        run.mkdir()
        row = {"step": 100, "wall_s": 1.0, "kind": "eval", "return_mean": score}
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (run / "config.gin").write_text(f"env = '{env}'\nEnvironment.id = %env\n")
        found.append(run)
    return found


def test_one_seed_has_no_interval_and_no_probability(tmp_path):
    """Mutation: the bootstrap of one value, an interval of width 0 and a probability of 1."""
    for left, right in (((5.0,), (3.0,)), ((5.0,), (3.0, 4.0)), ((5.0, 6.0), (3.0,))):
        folder = tmp_path / f"{len(left)}_{len(right)}"
        folder.mkdir()
        found = packtrain.compare(runs(folder, "a", left), runs(folder, "b", right))
        assert found.difference == sum(left) / len(left) - sum(right) / len(right)
        assert math.isnan(found.probability_of_improvement)
        assert all(math.isnan(end) for end in (*found.difference_interval, *found.probability_interval))


def test_the_interval_of_a_difference_is_welchs():
    """By hand: variances 1 and 4 of three values, error √(1/3 + 4/3), ν = (5/3)² / ((1/3)²/2 + (4/3)²/2) = 2.94 → 2."""
    low, high = difference_interval((1, 2, 3), (2, 4, 6))
    half = 4.302653 * math.sqrt(5 / 3)
    assert (low, high) == pytest.approx((-2 - half, -2 + half), rel=1e-5)
    assert difference_interval((1, 1), (2, 2)) == (-1, -1)


def test_two_seeds_are_not_sure(tmp_path):
    found = packtrain.compare(runs(tmp_path, "a", (10.0, 12.0)), runs(tmp_path, "b", (8.0, 9.0)))
    assert found.difference_interval[0] < 0 < found.difference_interval[1]
    assert found.probability_of_improvement == 1.0


def test_runs_of_different_environments_are_refused(tmp_path):
    ours, theirs = runs(tmp_path, "a", (1.0,)), runs(tmp_path, "b", (2.0,), env="Acrobot-v1")
    with pytest.raises(ConfigError, match="'CartPole-v1' and .* on 'Acrobot-v1'"):
        packtrain.compare(ours, theirs)
