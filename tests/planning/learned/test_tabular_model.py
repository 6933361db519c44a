"""A table as a model: known transitions, the default for untried actions, and exploration by optimism."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.config import build, load
from packtrain.envs.bit_flipper import BitFlipper
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.planning.learned import TabularModel
from packtrain.planning.learned.transition_table import Transitions
from packtrain.testing.path_hash import settle

CORE = BitFlipper(bits=3)
RNG = np.random.default_rng(0)


def known(model, obs, action, after, reward=0.0, terminated=False, run=0):
    """Store one transition."""
    row = (np.array([leaf], np.float32) for leaf in (obs, after))
    before, then = row
    ends = (np.array([reward], np.float32), np.array([terminated]))
    model.verified.add(Transitions(np.array([run]), before, np.array([action]), then, *ends))


def test_known_transitions_and_the_default():
    """Mutations: the default everywhere; an imagined end with the key of the state before it."""
    model = TabularModel().build(CORE, 0)
    known(model, [0, 0, 0], 0, [1, 0, 0])
    known(model, [1, 1, 0], 2, [1, 1, 1], 1.0, True)
    obs = np.array([[0, 0, 0], [0, 0, 0], [1, 1, 0]], np.float32)
    states = model.roots(np.zeros(3, np.int64), obs)
    got = settle(model.step(states, np.array([0, 1, 2]), RNG), None)
    np.testing.assert_array_equal(got.states["obs"], [[1, 0, 0], [0, 0, 0], [1, 1, 1]])
    assert got.rewards.tolist() == [0, 1, 1] and got.terminated.tolist() == [False, True, True]
    assert got.solved.tolist() == [False, True, True] and got.bonus.tolist() == [0, 1, 0]
    keys = model.keys(got.states)
    assert keys[0] == model.keys(model.roots(np.zeros(1, np.int64), got.states["obs"][:1]))[0]
    assert keys[1] != model.keys(states)[1], "an end that is imagined is not the state it is imagined in"
    stays = TabularModel("stays").build(CORE, 0)
    got = settle(stays.step(stays.roots(np.zeros(3, np.int64), obs), np.array([0, 1, 2]), RNG), None)
    np.testing.assert_array_equal(got.states["obs"], obs)
    assert not got.rewards.any() and not got.terminated.any()
    np.testing.assert_array_equal(stays.keys(got.states), stays.keys(states))


def test_runs_have_transitions_of_their_own():
    model = TabularModel().build(CORE, 0, runs=2, columns=2)
    known(model, [0, 0, 0], 0, [1, 0, 0], run=1)
    states = model.roots(np.arange(2), np.zeros((2, 3), np.float32))
    assert settle(model.step(states, np.zeros(2, int), RNG), None).terminated.tolist() == [True, False]


TABLE = """
include 'planning/base.gin'
n_envs = 4
n_epochs = 8
Runner.env_class = @BitFlipper
BitFlipper.bits = 6
BitFlipper.max_steps = 40
Runner.agent_class = @BestFirstSearchAgent
BestFirstSearchAgent.use_value = False
BestFirstSearchAgent.n_nodes_per_step = 40
Runner.model_class = @TabularModel
"""


@pytest.mark.parametrize("default, solves", [("solved", True), ("stays", False)])
def test_optimism_explores_and_pessimism_does_not(default, solves, tmp_path, monkeypatch):
    """Six bits in 8 epochs of 160 steps; random actions need thousands of steps.

    The second case is the negative control: a table that takes untried actions for useless never finds the end.
    """
    from packtrain.cli import main
    from packtrain.metrics.reading import read_metrics

    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.gin").write_text(TABLE)
    binding = f"TabularModel.default = '{default}'"
    assert main(["train", "table.gin", "--config", binding, "--output_dir", "run"]) == 0
    rates = [row["episode/solved_rate"] for row in read_metrics(tmp_path / "run") if row["kind"] == "planning"]
    assert (rates[-1] == 1.0) is solves and rates[0] == 0


def test_what_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="TabularModel.default = 'good' is not one of 'solved', 'stays'"):
        TabularModel("good")  # type: ignore[arg-type]

    class Continuous:
        observation_space = action_space = gym.spaces.Box(0, 1, (2,))

    with pytest.raises(EnvSetupError, match="discrete actions"):
        TabularModel().build(Continuous(), 0)  # type: ignore[arg-type]
    path = tmp_path / "bad.gin"
    path.write_text(TABLE + "Runner.model_trainer_class = @WorldModelTrainer\n")
    with pytest.raises(ConfigError, match="model_trainer_class needs a Runner.model_class with networks"):
        build(load([path], [], {}))
