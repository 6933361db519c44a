"""PointMass: a controller's score against chance, dynamics by hand, options."""

import numpy as np
import pytest

from packtrain.envs.point_mass import PointMass
from packtrain.errors import EnvSetupError


def play(core, policy, n, seed):
    """Returns [n] of n episodes, as long as the clock lets them be."""
    rng = np.random.default_rng(seed)
    states, total = core.initial(n, rng), np.zeros(n)
    for _ in range(core.max_steps):
        observations = core.observe(states)
        states, rewards, terminated, _ = core.step(states, policy(observations, rng), rng)
        assert not terminated.any()
        total += rewards
    return total


def pd_control(observations, rng):
    position, velocity = np.split(observations, 2, axis=1)
    return -4 * position - 2 * velocity


def do_nothing(observations, rng):
    return np.zeros((len(observations), observations.shape[1] // 2), np.float32)


def at_random(observations, rng):
    return rng.uniform(-1, 1, size=(len(observations), observations.shape[1] // 2)).astype(np.float32)


@pytest.mark.parametrize(("policy", "score"), [(do_nothing, -18.0), (at_random, -31.6), (pd_control, -1.31)])
def test_the_returns_in_the_docstring(policy, score):
    """Fails for any change of a constant that moves scores, and if a docstring number is not the code's."""
    n = 20_000
    total = play(PointMass(), policy, n, seed=2)
    assert total.mean() == pytest.approx(score, abs=0.05 + 4 * total.std() / n**0.5)
    assert f"{score:.3g}".replace("-", "−") in PointMass.__doc__


@pytest.mark.parametrize("dimensions", [1, 3])
def test_control_is_clearly_better_than_chance_in_other_dimensions(dimensions):
    core = PointMass(dimensions=dimensions)
    assert play(core, pd_control, 500, 0).min() > play(core, at_random, 500, 0).mean() + 5
    assert play(core, pd_control, 500, 0).mean() > play(core, do_nothing, 500, 0).mean() + 5


def step_once(position, velocity, action):
    core = PointMass(dimensions=len(position))
    states = {"position": np.array([position], np.float32), "velocity": np.array([velocity], np.float32)}
    states, reward, _, _ = core.step(states, np.array([action], np.float32), np.random.default_rng(0))
    return core.observe(states)[0], reward[0]


def test_a_step_by_hand():
    observation, reward = step_once(position=[1, -1], velocity=[0, 1], action=[0.5, -1])
    # velocity: 0 + 0.1·4·0.5 = 0.2 and 1 − 0.4 = 0.6; position: 1 + 0.02 = 1.02 and −1 + 0.06 = −0.94
    np.testing.assert_allclose(observation, [1.02, -0.94, 0.2, 0.6], rtol=1e-6)
    distance = 1.02**2 + 0.94**2
    assert reward == pytest.approx(-distance / (1 + distance) - 0.01 * (0.25 + 1) / 2, rel=1e-6)


def test_actions_are_clipped_to_the_box():
    """In the motion and in the cost."""
    observation, reward = step_once([0.5], [0], [-7])
    expected, same = step_once([0.5], [0], [-1])
    np.testing.assert_array_equal(observation, expected)
    assert reward == same


def test_speed_limit_and_walls():
    observation, _ = step_once([0], [1.9], [1])
    assert observation[1] == 2.0
    observation, _ = step_once([1.95], [1.9], [1])
    assert observation.tolist() == [2.0, 0.0], "a wall takes the speed"


def test_random_play_stays_inside_the_space():
    core, rng = PointMass(dimensions=3), np.random.default_rng(3)
    states = core.initial(50, rng)
    starts = states["position"]
    assert np.abs(starts).max() <= 1 and starts.min() < -0.9 and starts.max() > 0.9
    low, high = core.observation_space.low, core.observation_space.high
    for _ in range(200):
        states, rewards, _, _ = core.step(states, rng.choice([-1, 1], size=(50, 3)).astype(np.float32), rng)
        observations = core.observe(states)
        assert observations.dtype == np.float32 and rewards.dtype == np.float32
        assert (observations >= low).all() and (observations <= high).all()
        assert (rewards <= 0).all() and (rewards >= -1.01).all()
    assert np.abs(observations[:, :3]).max() == 2.0, "the walls have been reached"


def test_render_shows_state_zero():
    core = PointMass()
    states = {"position": np.array([[1, 1], [0, 0]], np.float32), "velocity": np.zeros((2, 2), np.float32)}
    assert core.render(states, "ansi") == "position +1.000 +1.000  velocity +0.000 +0.000\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (128, 128, 3) and picture.dtype == np.uint8
    row, column = (picture == (90, 160, 250)).all(axis=2).nonzero()
    assert row.max() < 64 < column.min(), "up is up"
    line = PointMass(dimensions=1)
    assert line.render(line.initial(1, np.random.default_rng(0)), "rgb_array").shape == (128, 128, 3)


@pytest.mark.parametrize("wrong", [{"dimensions": 0}, {"max_steps": 0}, {"max_steps": None}, {"dimensions": 1.0}])
def test_options_that_cannot_be_meant(wrong):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"PointMass\({name}=.*\): {name} must be a whole number"):
        PointMass(**wrong)
