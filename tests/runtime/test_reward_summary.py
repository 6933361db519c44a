"""What a run says of its rewards, and which games may have which."""

import pytest

from packtrain import config, knobs
from packtrain.envs.environment import Environment
from packtrain.envs.rewards import Rewards
from packtrain.envs.river_raid import PacifistProxy
from packtrain.errors import ConfigError
from packtrain.runtime.reward_summary import say_rewards


def lines(**values):
    path, _ = knobs.find_config("impala/riverraid")
    return say_rewards(config.build(config.load([path], [], values, True)))


def test_a_run_says_what_its_learner_sees():
    """Mutations: raw values in place of scaled ones; nothing said where a proxy is the true game after clipping."""
    assert lines(proxy="pacifist") == [
        "reward: pacifist: 10 a step, 10 less while a missile is in flight",
        "reward: impala sees under symlog steps pay 0, 0.0953",
    ]
    assert lines(fuel_multiplier=5.0, reward_clipping="abs_one", reward_scale=1.0)[1:] == [
        "reward: impala sees under abs_one the same as training on the score",
        "reward: impala cannot tell this from the true game; --reward_clipping symlog can",
    ]
    assert "constant" in lines(proxy="move", move_penalty=5.0, reward_clipping="abs_one", reward_scale=1.0)[-1]
    assert len(lines()) == 1  # the score: what it can pay is the game's own affair
    path, _ = knobs.find_config("impala/catch")
    assert say_rewards(config.build(config.load([path], [], {}, True))) == []


def test_rewards_that_read_the_memory_of_another_game_are_refused():
    """Mutation: any game played with River Raid's places in the memory."""
    pytest.importorskip("ale_py")
    environment = Environment("PongNoFrameskip-v4", rewards=Rewards("proxy", {"proxy": PacifistProxy()}))
    with pytest.raises(ConfigError, match=r"reads the memory of riverraid, but Environment.id = 'PongNoFrameskip-v4'"):
        environment.probe()
