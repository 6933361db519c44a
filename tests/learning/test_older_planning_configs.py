"""Configurations of the earlier planning framework: short runs of each, and longer ones to a score."""

import math

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics

SHORT = ["--n_envs", "2", "--n_epochs", "2", "--episode_time_limit", "12"]
HEADS = {  # configuration → heads that learn, and flags that make it shorter
    "stochastic_mcts_random_cartpole": ((), []),
    "stochastic_mcts_value_cartpole": (("value",), ["--n_steps_per_epoch", "5", "--eval_period", "2"]),
    "stochastic_mcts_quality_cartpole": (("quality",), ["--n_steps_per_epoch", "5", "--eval_period", "2"]),
    "shooting_training_cartpole": (("value", "logits"), []),
    "bandit_training_cartpole": (("value", "logits"), []),
    "bandit_random_sokoban": ((), ["--n_rollouts", "20"]),
    "shooting_training_sokoban_short": (("value", "logits"), []),
    "shooting_training_bin_packing": (("value", "logits"), ["--n_steps_per_epoch", "5"]),
}


def planned(folder):
    return [row for row in read_metrics(folder) if row["kind"] == "planning"]


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_each_runs_and_trains_the_heads_that_it_names(name, tmp_path):
    """Two epochs; a configuration that trains nothing has no losses. Traces where they are asked for."""
    heads, more = HEADS[name]
    assert main(["train", f"planning/{name}", "--output_dir", str(tmp_path), "--seed", "0", *SHORT, *more]) == 0
    rows = planned(tmp_path)
    assert len(rows) == 2 and rows[-1]["episode/length_mean"] <= 12
    losses = {key.removeprefix("train/").removesuffix("_loss") for key in rows[-1] if key.startswith("train/")}
    assert losses & {"value", "logits", "quality"} == set(heads)
    assert all(math.isfinite(rows[-1][f"train/{head}_loss"]) for head in heads)
    if name == "bandit_random_sokoban":
        assert len(list((tmp_path / "traces").glob("*.json"))) == 4
    if "stochastic_mcts_" in name and heads:
        kinds = {row["kind"] for row in read_metrics(tmp_path)}
        assert {"eval", "eval/few"} <= kinds


SCORES = {  # measured with seed 0, and what random actions reach
    "stochastic_mcts_random_cartpole": ("episode/length_mean", 150),  # 22
    "shooting_training_cartpole": ("episode/length_mean", 80),  # 22
    "bandit_training_cartpole": ("episode/length_mean", 120),  # 22
    "stochastic_mcts_quality_cartpole": ("episode/length_mean", 60),  # 22
    "shooting_training_sokoban_short": ("episode/solved_rate", 0.2),  # 0.02
    "shooting_training_bin_packing": ("episode/return_mean", -9.5),  # −16
}


@pytest.mark.learning
@pytest.mark.long
@pytest.mark.parametrize("name", SCORES)
def test_each_reaches_a_score_beyond_random_actions(name, tmp_path):
    """The mean of the last five epochs, with the shipped settings."""
    metric, least = SCORES[name]
    assert main(["train", f"planning/{name}", "--output_dir", str(tmp_path), "--seed", "0"]) == 0
    last = [row[metric] for row in planned(tmp_path)][-5:]
    assert sum(last) / len(last) > least
