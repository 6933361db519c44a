"""Catch: scores by simulation and by exhaustive search, observations by hand, options."""

from itertools import product

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


def best_without_memory(core):
    """The best score of a policy of the current observation only, by enumeration.

    Where the ball is hidden a policy is a table of the paddle's place; where it is seen, the moves are free for each
    ball. All of it is read from the observations.
    """
    seen = min(core.visible_rows, core.rows - 1)
    tables = np.array(list(product(range(3), repeat=core.columns)))
    moves = np.array(list(product(range(3), repeat=seen)))
    table, ball, move = (axis.ravel() for axis in np.indices((len(tables), core.columns, len(moves))))
    rng = np.random.default_rng(0)
    states = core.initial(len(table), rng)
    states["ball_column"] = ball
    for t in range(core.rows - 1):
        board = core.observe(states)[:, 0]
        assert (board[:, :-1].any(axis=(1, 2)) == (t < seen)).all()
        paddle = board[:, -1].argmax(axis=1)
        states, rewards, *_ = core.step(states, moves[move, t] if t < seen else tables[table, paddle], rng)
    rewards = rewards.reshape(len(tables), core.columns, len(moves))
    return rewards.max(axis=2).mean(axis=1).max()


@pytest.mark.parametrize(
    ("rows", "columns", "visible_rows", "score"),
    [
        (10, 5, 1, 0.2),  # three balls of five
        (10, 5, 2, 1.0),
        (8, 6, 1, 0.0),
        (8, 6, 2, 2 / 3),
        (5, 3, 1, 1.0),
        (4, 4, 1, 0.5),
        (3, 4, 9, 1.0),
    ],
)
def test_what_can_be_reached_without_memory(rows, columns, visible_rows, score):
    """The docstring's formula; fails if the ball is seen a row longer or less long."""
    best = best_without_memory(Catch(rows, columns, visible_rows))
    assert best == pytest.approx(score, abs=1e-6)
    assert score == pytest.approx(2 * min(2 * visible_rows + 1, columns) / columns - 1)


def test_remembering_the_ball_always_scores_one():
    """Fails if hiding the ball changes where it lands."""
    remembered = []

    def policy(observations, rng):
        board = observations[:, 0]
        if not remembered:
            remembered.append(board[:, 0].argmax(axis=1))
        return np.sign(remembered[0] - board[:, -1].argmax(axis=1)) + 1

    total, *_ = play(Catch(visible_rows=1), policy, n=200, seed=0)
    np.testing.assert_array_equal(total, np.ones(200))
    assert set(remembered[0]) == set(range(5))


@pytest.mark.parametrize("visible_rows", [1, 3, 10, 99])
def test_hiding_the_ball_changes_only_what_is_seen(visible_rows):
    """Fails if draws, rewards or the picture depend on it, or if another row is hidden."""
    core, plain = Catch(visible_rows=visible_rows), Catch()
    rng, twin = np.random.default_rng(2), np.random.default_rng(2)
    states, others = core.initial(50, rng), plain.initial(50, twin)
    for t in range(10):
        assert all((states[name] == others[name]).all() for name in others)
        shown = plain.observe(others)
        if t >= visible_rows:
            shown[:, :, :9] = 0
            paddles = states["paddle"][:, None] == np.arange(5)
            shown[:, 0, 9] = 255 * paddles
        np.testing.assert_array_equal(core.observe(states), shown)
        for mode in ("ansi", "rgb_array"):
            assert np.all(core.render(states, mode) == plain.render(others, mode))
        states, rewards, ended, extras = core.step(states, rng.integers(3, size=50), rng)
        others, plain_rewards, plain_ended, plain_extras = plain.step(others, twin.integers(3, size=50), twin)
        np.testing.assert_array_equal(rewards, plain_rewards)
        np.testing.assert_array_equal(ended, plain_ended)
        np.testing.assert_array_equal(extras["solved"], plain_extras["solved"])
    assert rng.integers(2**60) == twin.integers(2**60)


def test_states_of_one_batch_are_hidden_one_by_one():
    states = {"ball_row": np.array([0, 1, 2]), "ball_column": np.array([0, 1, 1]), "paddle": np.array([1, 1, 0])}
    shown = Catch(3, 2, visible_rows=1).observe(states)[:, 0]
    assert (shown == 255).tolist() == [
        [[True, False], [False, False], [False, True]],
        [[False, False], [False, False], [False, True]],
        [[False, False], [False, False], [True, False]],
    ]


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


@pytest.mark.parametrize(
    "wrong", [{"rows": 0}, {"rows": 1}, {"columns": 0}, {"rows": 2.5}, {"columns": "5"}, {"visible_rows": 0}]
)
def test_options_that_cannot_be_meant(wrong):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"Catch\({name}=.*\): {name} must be a whole number") as error:
        Catch(**wrong)
    assert "\n" not in str(error.value)
