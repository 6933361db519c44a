"""Pendulum against Gymnasium's own, to the last bit, and the proxies by arithmetic and by play."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.functional import FunctionalEnv
from packtrain.envs.pendulum import Pendulum
from packtrain.errors import EnvSetupError


def test_spaces_are_gymnasiums():
    theirs, ours = gym.make("Pendulum-v1").unwrapped, Pendulum()
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.max_steps == gym.spec("Pendulum-v1").max_episode_steps


@pytest.mark.parametrize("columns", [1, 16])
def test_a_thousand_random_steps_equal_gymnasium(columns):
    """Exact. Fails for an explicit integrator, a float32 state, a reward of the state after, or an unclipped torque."""
    core, rng = Pendulum(), np.random.default_rng(5)
    theirs = [gym.make("Pendulum-v1").unwrapped for _ in range(columns)]
    states = core.initial(columns, rng)
    for column, env in enumerate(theirs):
        env.reset(seed=column)
        env.state = states[column].copy()
    drive = rng.choice([-2.5, 2.5], size=(20, columns, 1))  # held for a while, so that the speed limit is reached
    fastest = 0.0
    for t in range(1000):
        actions = (drive[t // 50] if t % 100 < 50 else rng.uniform(-2.5, 2.5, (columns, 1))).astype(np.float32)
        states, rewards, terminated, _ = core.step(states, actions, rng)
        observations = core.observe(states)
        assert observations.dtype == rewards.dtype == np.float32 and not terminated.any()
        for column, env in enumerate(theirs):
            observation, reward, *_ = env.step(actions[column])
            assert np.array_equal(observations[column], observation)
            assert np.array_equal(states[column], env.state)
            assert rewards[column] == np.float32(reward)
        fastest = max(fastest, np.abs(states[:, 1]).max())
    assert fastest == 8 or columns == 1, "the limit has been compared"


def test_the_same_seed_gives_gymnasiums_start():
    for seed in range(3):
        theirs, _ = gym.make("Pendulum-v1").reset(seed=seed)
        ours, _ = FunctionalEnv(Pendulum()).reset(seed=seed)
        np.testing.assert_array_equal(ours, theirs)


def test_proxies_by_arithmetic():
    core = Pendulum()
    states = np.array([[0.0, 8.0], [0.0, 0.0], [np.pi, 1.0]])
    following, _, _, extras = core.step(states, np.array([[2.0], [-1.0], [9.0]], np.float32), np.random.default_rng(0))
    np.testing.assert_allclose(extras["reward/energy"], following[:, 1] ** 2 / 6, rtol=1e-6)
    assert extras["reward/energy"][0] == pytest.approx(64 / 6)
    np.testing.assert_allclose(extras["reward/calm"], [0, 0.75, 0])
    assert all(values.dtype == np.float32 for values in extras.values())
    assert set(extras) == {f"reward/{name}" for name in core.reward_channels}


def swing_up(states):
    angle, speed = (states[:, 0] + np.pi) % (2 * np.pi) - np.pi, states[:, 1]
    energy = speed**2 / 6 + 5 * (np.cos(angle) - 1)  # 0 at rest upright
    pump = 2 * np.sign(speed) * np.where(energy < 0, 1, -np.minimum(1, energy))
    near = (np.abs(angle) < 0.4) & (np.abs(speed) < 3)
    return np.clip(np.where(near, -10 * angle - 2 * speed, pump), -2, 2)[:, None]


@pytest.mark.parametrize(
    ("policy", "want"),
    [
        ("random", (-1225, 426, 133)),
        ("nothing", (-1216, 385, 200)),
        ("spin", (-1618, 1656, 0)),
        ("swing_up", (-149, 79, 179)),
    ],
)
def test_the_docstrings_table(policy, want):
    """Of 1000 episodes; tolerances of four standard errors, and of the rounding."""
    core, rng, count = Pendulum(), np.random.default_rng(1), 1000
    states, totals = core.initial(count, rng), np.zeros((3, count))
    policies = {
        "random": lambda states: rng.uniform(-2, 2, size=(count, 1)),
        "nothing": lambda states: np.zeros((count, 1)),
        "spin": lambda states: np.where(states[:, 1:] >= 0, 2.0, -2.0),
        "swing_up": swing_up,
    }
    for _ in range(200):
        states, true, _, extras = core.step(states, policies[policy](states).astype(np.float32), rng)
        totals += np.stack((true, extras["reward/energy"], extras["reward/calm"]))
    for values, number in zip(totals, want, strict=True):
        assert values.mean() == pytest.approx(number, abs=0.6 + 4 * values.std() / np.sqrt(count))
    assert " | ".join(str(number) for number in want).replace("-", "−") in Pendulum.__doc__


def test_batches_and_arguments_stay_as_they_are():
    core, rng = Pendulum(), np.random.default_rng(2)
    states = core.initial(6, rng)
    actions = rng.uniform(-2, 2, size=(6, 1)).astype(np.float32)
    states.flags.writeable = actions.flags.writeable = False
    following, rewards, _, extras = core.step(states, actions, rng)
    assert not np.shares_memory(following, states)
    for i in range(6):
        alone, reward, _, one = core.step(states[i : i + 1], actions[i : i + 1], rng)
        np.testing.assert_array_equal(alone[0], following[i])
        assert reward[0] == rewards[i]
        assert {name: value[0] for name, value in one.items()} == {k: v[i] for k, v in extras.items()}


def test_render_shows_state_zero():
    core = Pendulum()
    states = np.array([[0.0, 0.0], [np.pi / 2, 0.0]])
    assert core.render(states, "ansi") == "angle +0.00 degrees  speed +0.000\n"
    upright, left = (core.render(states[i:], "rgb_array") for i in range(2))
    assert upright.shape == (128, 128, 3) and upright.dtype == np.uint8
    rod = (204, 77, 77)
    assert (upright[30, 63] == rod).all() and (upright[100, 63] == 255).all()
    assert (left[63, 30] == rod).all() and (left[63, 100] == 255).all(), "a positive angle leans left"
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


def test_max_steps():
    assert Pendulum(max_steps=None).max_steps is None and Pendulum(max_steps=7).max_steps == 7
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(EnvSetupError, match="max_steps must be a whole number"):
            Pendulum(max_steps=wrong)
