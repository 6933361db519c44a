"""Agents learn what they should: shipped configurations, through the command line, to a threshold, with controls.

One seed of each runs with the ordinary tests; all three seeds, CartPole and the point mass with `make test-learning`.
"""

import json
import math

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics, series

pytestmark = [pytest.mark.learning, pytest.mark.slow]
SEEDS = [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
LONG = pytest.mark.long


def train(tmp_path, capsys, config, seed, *more):
    """Train, evaluate; returns the evaluation and the metric rows.

    Seed 0 runs serially and so repeats exactly; the other seeds run with acting and learning overlapped.
    """
    runtime = "serial" if seed == 0 else "local"
    argv = ["train", config, "--output_dir", str(tmp_path / "run"), "--seed", str(seed), "--runtime", runtime]
    assert main([*argv, *more]) == 0
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--num_episodes", "200", "--json"]) == 0
    return json.loads(capsys.readouterr().out), read_metrics(tmp_path / "run")


def last(rows, name, count=3):
    values = series(rows, "train", name)[1][-count:]
    return math.fsum(values) / len(values)


@pytest.mark.parametrize("seed", SEEDS)
def test_bandit(tmp_path, capsys, seed):
    """Chance 0.375; always the best arm 0.9."""
    result, _ = train(tmp_path, capsys, "abilities/bandit", seed)
    assert result["return_mean"] >= 0.8


@pytest.mark.parametrize("seed", SEEDS)
def test_delayed_reward(tmp_path, capsys, seed):
    """Chance 0.25; best 1."""
    result, _ = train(tmp_path, capsys, "abilities/delayed_reward", seed)
    assert result["return_mean"] >= 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_with_lstm(tmp_path, capsys, seed):
    """Chance 0; best 1."""
    result, _ = train(tmp_path, capsys, "abilities/memory", seed)
    assert result["return_mean"] >= 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_without_lstm_is_not_solved(tmp_path, capsys, seed):
    """The negative control: without memory nothing beats chance, 0 (200 episodes: standard error 0.07)."""
    result, _ = train(tmp_path, capsys, "abilities/memory", seed, "--use_lstm", "false", "--total_steps", "60000")
    assert result["return_mean"] <= 0.3


@pytest.mark.parametrize("seed", SEEDS)
def test_stochastic_policy(tmp_path, capsys, seed):
    """Uniform −0.00, any deterministic policy ≤ 0; the best memoryless one 0.70. Greedy evaluation must fail: 0."""
    result, rows = train(tmp_path, capsys, "abilities/stochastic_policy", seed)
    assert last(rows, "episode_return") >= 0.6
    assert result["return_greedy_mean"] <= 0.1 and result["return_sampled_mean"] >= 0.6


@pytest.mark.parametrize("seed", SEEDS)
def test_truncation_is_not_termination(tmp_path, capsys, seed):
    """Reward 1 for ever, discount 0.9: the value is 10 although the clock ends every episode after 10 steps."""
    _, rows = train(tmp_path, capsys, "abilities/truncation", seed)
    assert last(rows, "value") == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_truncation_reported_as_termination_is_wrong(tmp_path, capsys, seed):
    """The negative control: the same episodes called terminations have a value near 5, not 10."""
    wrong = ["--config", "Environment.kwargs = {'ends_as': 'termination'}"]
    _, rows = train(tmp_path, capsys, "abilities/truncation", seed, *wrong)
    assert 3.5 < last(rows, "value") < 7


@pytest.mark.parametrize("seed", SEEDS)
def test_catch(tmp_path, capsys, seed):
    """Chance −0.6; best 1."""
    result, _ = train(tmp_path, capsys, "impala/catch", seed)
    assert result["return_mean"] >= 0.9


@LONG
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole(tmp_path, capsys, seed):
    """Chance about 22; solved is 475 of 500."""
    result, _ = train(tmp_path, capsys, "impala/cartpole", seed)
    assert result["return_mean"] >= 475


@LONG
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_point_mass(tmp_path, capsys, seed):
    """Random −31.6, doing nothing −18.0, a hand-written controller −1.3."""
    result, _ = train(tmp_path, capsys, "impala/point_mass", seed)
    assert result["return_mean"] >= -4


@LONG
def test_memory_stays_flat_over_a_cartpole_run(tmp_path, capsys):
    """Resident memory at 20 % and at 100 % of 200 K steps differ by less than 5 %."""
    _, rows = train(tmp_path, capsys, "impala/cartpole", 0, "--total_steps", "200000", "--log_every", "10000")
    steps, megabytes = series(rows, "train", "rss_mb")
    early = next(mb for step, mb in zip(steps, megabytes, strict=True) if step >= 40_000)
    assert abs(megabytes[-1] - early) / early < 0.05, (early, megabytes[-1])


@pytest.mark.parametrize("seed", SEEDS)
def test_steve_swings_a_pendulum_up(tmp_path, capsys, seed):
    """Chance −1,200; standing still at the top from the start about −130 to −190."""
    result, rows = train_control(tmp_path, capsys, "steve/steve_pendulum", seed, "--total_steps", "4000")
    assert result["return_mean"] >= -350
    assert 0.1 < last(rows, "model_use") < 1  # and the model had its part in it


def test_without_a_future_nothing_is_swung_up(tmp_path, capsys):
    """The negative control: with a discount of 0 the torque that pays now is all that counts. Chance −1,200."""
    more = ["--total_steps", "2500", "--discount", "0.0"]
    result, _ = train_control(tmp_path, capsys, "steve/ddpg_pendulum", 0, *more)
    assert result["return_mean"] <= -700


@pytest.mark.parametrize("seed", SEEDS)
def test_planning_in_a_learned_ensemble_swings_a_pendulum_up(tmp_path, capsys, seed):
    """Two random episodes and one of planning: chance −1,200."""
    argv = ["train", "steve/pets_pendulum", "--total_steps", "600", "--seed", str(seed), "--runtime", "serial"]
    assert main([*argv, "--output_dir", str(tmp_path / "run")]) == 0
    returns = series(read_metrics(tmp_path / "run"), "train", "episode_return")[1]
    assert returns[0] <= -700 and returns[-1] >= -500


def train_control(tmp_path, capsys, config, seed, *more):
    """Train serially, play 20 episodes."""
    argv = ["train", config, "--output_dir", str(tmp_path / "run"), "--seed", str(seed), "--runtime", "serial"]
    assert main([*argv, "--eval_every", "0", *more]) == 0
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--num_episodes", "20", "--json"]) == 0
    return json.loads(capsys.readouterr().out), read_metrics(tmp_path / "run")
