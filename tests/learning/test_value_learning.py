"""Q-learners learn what they should, through the command line: memory, deep exploration, the better arm; with controls.

Short forms of one seed run with the ordinary tests; whole ones, and three seeds, with `make test-learning`.
"""

import json

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics, series

pytestmark = [pytest.mark.learning, pytest.mark.slow]
SEEDS = [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]


def train(tmp_path, capsys, config, seed, *more, episodes=200):
    """Train, evaluate; the evaluation. Seed 0 runs serially and repeats exactly."""
    runtime = "serial" if seed == 0 else "local"
    argv = ["train", config, "--output_dir", str(tmp_path / "run"), "--seed", str(seed), "--runtime", runtime]
    assert main([*argv, "--eval_every", "0", *more]) == 0
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--num_episodes", str(episodes), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("seed", SEEDS)
def test_r2d2_remembers_where_the_ball_was(tmp_path, capsys, seed):
    """Chance −0.6; the best without memory 0.2; best 1."""
    result = train(tmp_path, capsys, "r2d2/catch", seed, "--total_steps", "80000")
    assert result["return_mean"] >= 0.8


@pytest.mark.parametrize("seed", SEEDS)
def test_dqn_cannot(tmp_path, capsys, seed):
    """The negative control: as many steps and updates, no memory; at most 0.2 (200 episodes: standard error 0.07)."""
    result = train(tmp_path, capsys, "dqn/catch", seed, "--total_steps", "80000")
    assert result["return_mean"] <= 0.4


@pytest.mark.parametrize("seed", SEEDS)
def test_dqn_catches_a_ball_that_it_sees(tmp_path, capsys, seed):
    """The control's control: it is the memory that DQN lacks. Chance −0.6."""
    result = train(tmp_path, capsys, "dqn/catch", seed, "--visible_rows", "10", "--total_steps", "30000")
    assert result["return_mean"] >= 0.8


SMALL_SEA = ("--size", "12", "--total_steps", "40000", "--sequence_length", "12", "--stride", "12")
SMALL_SEA += ("--updates_per_step", "0.05")  # enough at this size


@pytest.mark.parametrize("seed", SEEDS)
def test_novelty_finds_the_treasure(tmp_path, capsys, seed):
    """Random play finds it once in 4,096 episodes, and a run has 3,333; best 0.99."""
    result = train(tmp_path, capsys, "ngu/deep_sea", seed, *SMALL_SEA, episodes=16)
    assert result["return_mean"] >= 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_without_novelty_it_is_not_found(tmp_path, capsys, seed):
    """The negative control: the same arms, all with novelty weight 0."""
    result = train(tmp_path, capsys, "ngu/deep_sea", seed, "--largest_weight", "0", *SMALL_SEA, episodes=16)
    assert result["return_mean"] <= 0.1


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_novelty_finds_the_treasure_of_a_deep_sea(tmp_path, capsys, seed):
    """Random play: once in a million episodes. Known miss: seed 2 finds it and has a greedy return below 0.9."""
    result = train(tmp_path, capsys, "ngu/deep_sea", seed, episodes=16)
    assert max(series(read_metrics(tmp_path / "run"), "train", "solved")[1]) > 0
    assert result["return_mean"] >= 0.9


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_novelty_opens_the_door(tmp_path, capsys, seed):
    """Random play solves one episode in 25,000. All greedy episodes are alike, and go in circles now and then."""
    train(tmp_path, capsys, "ngu/key_door", seed, "--eval_every", "20000", episodes=16)
    rows = read_metrics(tmp_path / "run")
    solved, greedy = series(rows, "train", "solved")[1], series(rows, "eval", "return_mean")[1]
    assert sum(solved[-10:]) / 10 >= 0.8
    assert sum(value >= 0.9 for value in greedy[-5:]) >= 3


@pytest.mark.long
@pytest.mark.parametrize("config", ["r2d2/deep_sea", "r2d2/key_door"])
def test_random_actions_alone_find_neither(tmp_path, capsys, config):
    """The negative control, for as many steps."""
    result = train(tmp_path, capsys, config, 0, episodes=16)
    assert result["return_mean"] <= 0.1
    solved = series(read_metrics(tmp_path / "run"), "train", "solved")[1]
    assert max(solved) <= 0.05
