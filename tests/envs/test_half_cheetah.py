"""HalfCheetah against Gymnasium's own."""

import sys
import types

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.functional import FunctionalEnv
from packtrain.envs.half_cheetah import HalfCheetah
from packtrain.errors import EnvSetupError, MissingExtraError

pytest.importorskip("mujoco")


@pytest.fixture
def theirs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where MuJoCo leaves its log of Gymnasium's robot
    for renderer in ("imageio", "glfw"):  # Gymnasium imports them even where nothing is drawn
        try:
            __import__(renderer)
        except ImportError:
            monkeypatch.setitem(sys.modules, renderer, types.ModuleType(renderer))
    return gym.make("HalfCheetah-v5").unwrapped


def test_spaces_clock_and_start_are_gymnasiums(theirs):
    ours = HalfCheetah()
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.max_steps == gym.spec("HalfCheetah-v5").max_episode_steps
    assert ours.step_secs == theirs.dt
    observation, _ = theirs.reset(seed=7)
    np.testing.assert_array_equal(FunctionalEnv(ours).reset(seed=7)[0], observation)


def test_two_hundred_random_steps_equal_gymnasium(theirs):
    """Step by step from a common state, since contacts magnify what the solver leaves open.

    Fails for another frame skip, a cost of clipped actions, a reward of the speed at the end of the step, positions
    that include the track. Measured over 1000 steps: observations differ by at most 3e-13 a step.
    """
    core, rng = HalfCheetah(), np.random.default_rng(3)
    observation, _ = theirs.reset(seed=1)
    for _ in range(200):
        states = np.concatenate([theirs.data.qpos, theirs.data.qvel])[None]
        action = rng.uniform(-1.2, 1.2, 6).astype(np.float32)  # beyond the bounds too
        observation, reward, terminated, _, _ = theirs.step(action)
        after, rewards, ended, _ = core.step(states, action[None], rng)
        np.testing.assert_allclose(core.observe(after)[0], observation, atol=1e-9)
        np.testing.assert_allclose(rewards[0], reward, atol=1e-5)
        assert rewards.dtype == np.float32 and not ended[0] and not terminated
    assert abs(theirs.data.qpos[0]) > 0.1, "the cheetah has moved"


def test_a_rollout_is_its_steps_to_the_last_bit_whatever_the_batch():
    """Mutation: leave MuJoCo's warm start on, or cut chunks wrongly."""
    core, rng = HalfCheetah(), np.random.default_rng(0)
    states, actions = core.initial(5, rng), rng.uniform(-1, 1, (5, 12, 6))
    before = states.copy()
    after, rewards, terminated = core.rollout(states, actions)
    assert after.shape == (5, 12, 18) and rewards.shape == (5, 12) and not terminated.any()
    single = states
    for time in range(12):
        single, reward, _, _ = core.step(single, actions[:, time], rng)
        np.testing.assert_array_equal(single, after[:, time])
        np.testing.assert_array_equal(reward, rewards[:, time])
    np.testing.assert_array_equal(core.rollout(states[3:4], actions[3:4])[0], after[3:4])
    np.testing.assert_array_equal(states, before)


def test_chunks_and_threads_change_nothing(monkeypatch):
    core, rng = HalfCheetah(), np.random.default_rng(0)
    states, actions = core.initial(7, rng), rng.uniform(-1, 1, (7, 4, 6))
    after, rewards, _ = core.rollout(states, actions)
    threaded = HalfCheetah(threads=2).rollout(states, actions)
    np.testing.assert_array_equal(threaded[0], after)
    monkeypatch.setattr("packtrain.envs.half_cheetah.CHUNK_BYTES", 8 * 19 * 20 * 3)  # three cheetahs a call
    chunked = core.rollout(states, actions)
    np.testing.assert_array_equal(chunked[0], after)
    np.testing.assert_array_equal(chunked[1], rewards)


def test_it_can_be_looked_at():
    core = HalfCheetah()
    states = core.initial(1, np.random.default_rng(0))
    picture = core.render(states, "rgb_array")
    assert picture.shape == (120, 240, 3) and (picture == (90, 160, 250)).all(axis=2).sum() > 200
    assert core.render(states, "ansi").startswith("x ")


@pytest.mark.parametrize("bad", [{"frame_skip": 0}, {"threads": 0}, {"max_steps": 0}, {"ctrl_cost_weight": "much"}])
def test_bad_options_are_refused(bad):
    with pytest.raises(EnvSetupError, match=next(iter(bad))):
        HalfCheetah(**bad)


def test_a_missing_mujoco_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"packtrain\[mujoco\]"):
        HalfCheetah()


def test_loading_leaves_no_log_behind(monkeypatch, tmp_path, capfd):
    """MuJoCo 4 calls an attribute of the robot's file deprecated, and says so in MUJOCO_LOG.TXT where it stands."""
    monkeypatch.chdir(tmp_path)
    HalfCheetah()
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")
