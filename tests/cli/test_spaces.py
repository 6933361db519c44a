"""Any Gymnasium environment of the supported spaces trains, in this process and in processes."""

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics

SMALL = "--total_steps 600 --num_actors 3 --batch_size 2 --unroll_length 10 --eval_every 0 --log_every 200".split()


@pytest.mark.parametrize(
    "env, spaces",
    [
        ("CartPole-v1", "Box observations, Discrete actions"),
        ("Pendulum-v1", "Box actions"),
        ("FrozenLake-v1", "Discrete observations"),
        ("Blackjack-v1", "Tuple observations"),
        ("CliffWalking-v1", "48 numbered states"),
    ],
)
@pytest.mark.parametrize("lstm", ["false", "true"])
def test_gymnasium_ids(tmp_path, env, spaces, lstm):
    argv = ["train", "impala/gym", "--env", env, "--output_dir", str(tmp_path / "run"), "--use_lstm", lstm, *SMALL]
    assert main(argv) == 0
    rows = read_metrics(tmp_path / "run")
    assert rows[-1]["step"] >= 600 and rows[-1]["grad_norm"] > 0


MIXED = """
import gymnasium as gym
import numpy as np


class Mixed(gym.Env):
    observation_space = gym.spaces.Dict({
        "place": gym.spaces.Discrete(4, start=2),
        "pair": gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,)), gym.spaces.MultiBinary(3))),
    })
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action.shape == (2,) and action[0] < 2 and action[1] < 3
        return self.observation_space.sample(), float(action[1]), bool(self.np_random.random() < 0.2), False, {}


gym.register("mixed/Mixed-v0", "mixed_for_test:Mixed")
"""


def test_dict_and_tuple_observations_and_multi_discrete_actions(tmp_path, monkeypatch):
    (tmp_path / "mixed_for_test.py").write_text(MIXED)
    monkeypatch.syspath_prepend(tmp_path)
    argv = ["train", "abilities/base", "--env", "mixed_for_test:mixed/Mixed-v0", "--output_dir", str(tmp_path / "run")]
    assert main([*argv, *SMALL, "--total_steps", "6000"]) == 0
    assert read_metrics(tmp_path / "run")[-1]["entropy"] < 1.75, (
        "it should have begun to prefer action 2 (log 6 = 1.79)"
    )


@pytest.mark.slow
def test_processes_in_two_groups_that_take_turns(tmp_path):
    argv = ["train", "impala/gym", "--env_processes", "true", "--output_dir", str(tmp_path / "run"), *SMALL]
    assert main(argv) == 0
    assert read_metrics(tmp_path / "run")[-1]["step"] >= 600
