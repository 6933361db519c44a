"""Catch: scores by simulation, observations by hand, options."""

import numpy as np
import pytest

from packtrain.envs.catch import Catch
from packtrain.errors import EnvSetupError

LEFT, STAY, RIGHT = 0, 1, 2


def play(core, policy, n, seed):
    """Returns, steps taken and solved flags of n episodes, which all end together."""
    rng = np.random.default_rng(seed)
    states, total, steps = core.initial(n, rng), np.zeros(n), 0
    while True:
        states, rewards, terminated, extras = core.step(states, policy(core.observe(states), rng), rng)
        total, steps = total + rewards, steps + 1
        if terminated.any():
            assert terminated.all()
            return total, steps, extras["solved"]
        assert not rewards.any() and not extras["solved"].any(), "nothing is paid or solved before the end"


def follow(observations, rng):
    """Move towards the ball, by what the observation shows."""
    board = observations[:, 0]
    ball = board[:, :-1].any(axis=1).argmax(axis=1)
    paddle = board[:, -1].argmax(axis=1)
    return np.sign(ball - paddle) + 1


@pytest.mark.parametrize(("rows", "columns"), [(10, 5), (4, 6), (2, 3), (2, 1)])
def test_following_the_ball_always_scores_one(rows, columns):
    """Fails if ball or paddle is drawn elsewhere than it is, or if left and right are swapped."""
    total, steps, solved = play(Catch(rows, columns), follow, n=200, seed=0)
    np.testing.assert_array_equal(total, np.ones(200))
    assert solved.all()
    assert steps == rows - 1


@pytest.mark.parametrize("policy", [lambda o, rng: rng.integers(3, size=len(o)), lambda o, rng: np.ones(len(o), int)])
def test_not_looking_scores_minus_three_fifths(policy):
    """The docstring's chance level; fails if the ball's column is not uniform or a miss pays 0."""
    total, _, solved = play(Catch(), policy, n=40_000, seed=1)
    assert set(total) == {-1.0, 1.0}
    np.testing.assert_array_equal(solved, total == 1)
    assert total.mean() == pytest.approx(-0.6, abs=0.02)  # standard error 0.004


def test_an_episode_by_hand():
    core = Catch(rows=3, columns=3)
    states = {"ball_row": np.array([0]), "ball_column": np.array([2]), "paddle": np.array([1])}
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(core.observe(states)[0, 0], [[0, 0, 255], [0, 0, 0], [0, 255, 0]])
    states, reward, terminated, _ = core.step(states, np.array([LEFT]), rng)
    assert (reward[0], terminated[0]) == (0, False)
    np.testing.assert_array_equal(core.observe(states)[0, 0], [[0, 0, 0], [0, 0, 255], [255, 0, 0]])
    states, reward, terminated, extras = core.step(states, np.array([RIGHT]), rng)
    assert (reward[0], terminated[0], extras["solved"][0]) == (-1, True, False)
    np.testing.assert_array_equal(core.observe(states)[0, 0], [[0, 0, 0], [0, 0, 0], [0, 255, 255]])


def test_the_paddle_stops_at_the_walls():
    core, rng = Catch(rows=10, columns=4), np.random.default_rng(0)
    for action, column in ((LEFT, 0), (RIGHT, 3)):
        states = core.initial(1, rng)
        for _ in range(6):
            states, *_ = core.step(states, np.array([action]), rng)
        assert states["paddle"][0] == column


def test_after_the_end_nothing_is_paid():
    """A planner may step dead states along with live ones; fails if the ball leaves the board."""
    core, rng = Catch(rows=2, columns=1), np.random.default_rng(0)
    states, reward, terminated, _ = core.step(core.initial(3, rng), np.full(3, STAY), rng)
    assert reward.tolist() == [1, 1, 1] and terminated.all()
    states, reward, terminated, _ = core.step(states, np.full(3, STAY), rng)
    assert reward.tolist() == [0, 0, 0] and terminated.all()
    assert core.observe(states).shape == (3, 1, 2, 1)


def test_shapes_and_dtypes():
    core, rng = Catch(), np.random.default_rng(0)
    states = core.initial(7, rng)
    assert core.observe(states).shape == (7, 1, 10, 5)
    assert core.observe(states).dtype == np.uint8
    assert set(np.unique(core.observe(states))) == {0, 255}
    _, reward, terminated, extras = core.step(states, np.full(7, STAY), rng)
    assert (reward.shape, reward.dtype) == ((7,), np.float32)
    assert (terminated.shape, terminated.dtype) == ((7,), bool)
    assert (extras["solved"].shape, extras["solved"].dtype) == ((7,), bool)


def test_render_shows_state_zero():
    core = Catch(rows=3, columns=4)
    states = {"ball_row": np.array([1, 0]), "ball_column": np.array([3, 0]), "paddle": np.array([0, 2])}
    assert core.render(states, "ansi") == "....\n...o\n=...\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (48, 64, 3) and picture.dtype == np.uint8
    assert picture.any(axis=2).sum() == 2 * 16 * 16
    assert picture[16:32, 48:].all() and picture[32:, :16].all()
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": 1}, {"columns": 0}, {"rows": 2.5}, {"columns": "5"}])
def test_options_that_cannot_be_meant(wrong):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"Catch\({name}=.*\): {name} must be a whole number") as error:
        Catch(**wrong)
    assert "\n" not in str(error.value)
