"""CartPole against Gymnasium's own, to the last bit."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.cartpole import CartPole
from packtrain.envs.functional import FunctionalEnv
from packtrain.errors import EnvSetupError


def test_spaces_are_gymnasiums():
    theirs, ours = gym.make("CartPole-v1").unwrapped, CartPole()
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.max_steps == gym.spec("CartPole-v1").max_episode_steps


@pytest.mark.parametrize("columns", [1, 16])
def test_a_thousand_random_steps_equal_gymnasium(columns):
    """Exact, terminations included. Fails for a semi-implicit integrator, a float32 state or any other constant."""
    core, rng = CartPole(), np.random.default_rng(5)
    theirs = [gym.make("CartPole-v1").unwrapped for _ in range(columns)]
    states = core.initial(columns, rng)
    starts = [np.random.default_rng(100 + column) for column in range(columns)]
    for column, env in enumerate(theirs):
        env.reset(seed=column)
        env.state = states[column].copy()
    ended = 0
    for _ in range(1000):
        actions = rng.integers(2, size=columns)
        states, rewards, terminated, extras = core.step(states, actions, rng)
        observations = core.observe(states)
        assert observations.dtype == np.float32 and rewards.dtype == np.float32
        assert set(extras) == {"reward/upright", "reward/speed"}
        for column, env in enumerate(theirs):
            observation, reward, done, _, _ = env.step(int(actions[column]))
            assert np.array_equal(observations[column], observation)
            assert np.array_equal(states[column], env.state)  # float64, so drift would show at once
            assert (rewards[column], terminated[column]) == (reward, done)
            if done:
                ended += 1
                states[column] = core.initial(1, starts[column])[0]
                env.reset(seed=ended)
                env.state = states[column].copy()
    assert ended > 10 * columns, "terminations have been compared"


def test_a_controller_ends_by_position_and_by_the_clock():
    """The random steps above end by the angle; this drives the cart off the track, and balances to the clock."""

    def run(lean):
        theirs, ours = gym.make("CartPole-v1"), FunctionalEnv(CartPole())
        observation, _ = theirs.reset(seed=0)
        assert np.array_equal(observation, ours.reset(seed=0)[0])
        for step in range(1, 501):
            action = int(observation[2] + 0.3 * observation[3] + lean * (observation[0] + observation[1]) > 0)
            observation, *answer, _ = theirs.step(action)
            ours_observation, *ours_answer, _ = ours.step(action)
            assert np.array_equal(observation, ours_observation)
            assert ours_answer == answer
            if any(answer[1:]):
                return observation, answer[1:], step

    observation, (terminated, truncated), _ = run(lean=-0.05)
    assert terminated and not truncated and abs(observation[0]) > 2.4 and abs(observation[2]) < 0.2
    _, (terminated, truncated), steps = run(lean=0.05)
    assert truncated and not terminated and steps == 500


def test_the_limits_are_gymnasiums():
    """States at rest on both sides of each limit, within 1e-9; fails if a limit is rounded or one-sided."""
    core, theirs = CartPole(), gym.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    limits = np.array([[2.4, 0, 0, 0], [0, 0, 12 * 2 * np.pi / 360, 0]])
    states = np.concatenate([sign * limits * scale for sign in (-1, 1) for scale in (1 - 1e-9, 1, 1 + 1e-9)])
    _, _, terminated, _ = core.step(states, np.zeros(len(states), np.int64), np.random.default_rng(0))
    for state, ended in zip(states, terminated, strict=True):
        theirs.state, theirs.steps_beyond_terminated = state.copy(), None
        assert theirs.step(0)[2] == ended
    assert terminated.sum() == 4


def test_the_same_seed_gives_gymnasiums_start():
    for seed in range(3):
        theirs, _ = gym.make("CartPole-v1").reset(seed=seed)
        ours, _ = FunctionalEnv(CartPole()).reset(seed=seed)
        np.testing.assert_array_equal(ours, theirs)


def test_proxies_by_arithmetic():
    """Of the state after the step; fails if the angle's proxy falls below 0 where the pole has fallen."""
    states = np.array([[0.0, 1.0, 0.05, 0], [2.3, -2.0, 0.3, 0], [0, 0, -0.1, 0]])
    following, _, _, extras = CartPole().step(states, np.array([1, 0, 1]), np.random.default_rng(0))
    angle = np.abs(following[:, 2]) / (12 * 2 * np.pi / 360)
    np.testing.assert_allclose(extras["reward/upright"], [1 - angle[0], 0, 1 - angle[2]], rtol=1e-6)
    np.testing.assert_allclose(extras["reward/speed"], np.abs(following[:, 1]), rtol=1e-6)
    assert all(values.dtype == np.float32 for values in extras.values())


def sway(states, heading):
    """Fast from side to side; turns before the ends of the track."""
    ahead = states[:, 0] + 0.753 * states[:, 1]
    heading[ahead > 1.833], heading[ahead < -1.833] = -1, 1
    return states[:, 2] + 0.3 * states[:, 3] + 0.037 * (states[:, 1] - 3.333 * heading) > 0


@pytest.mark.parametrize(
    ("policy", "want"),
    [
        ("random", ("22.4", "13.9", "10.0")),
        ("right", ("9.4", "5.4", "9.5")),
        ("balance", ("500", "490", "59")),
        ("drift", ("500", "492", "67")),
        ("sway", ("499", "223", "542")),
    ],
)
def test_the_docstrings_table(policy, want):
    """Of 500 episodes; tolerances of four standard errors, and of the rounding."""
    core, rng, count = CartPole(), np.random.default_rng(1), 500
    states, totals = core.initial(count, rng), np.zeros((3, count))
    heading, over = np.ones(count), np.zeros(count, bool)
    lean = {"balance": 0.05, "drift": 0.0}
    for _ in range(500):
        if policy == "random":
            actions = rng.integers(2, size=count)
        elif policy == "right":
            actions = np.ones(count, np.int64)
        elif policy == "sway":
            actions = sway(states, heading).astype(np.int64)
        else:
            position = lean[policy] * (states[:, 0] + states[:, 1])
            actions = (states[:, 2] + 0.3 * states[:, 3] + position > 0).astype(np.int64)
        states, true, ended, extras = core.step(states, actions, rng)
        totals += np.where(over, 0, np.stack((true, extras["reward/upright"], extras["reward/speed"])))
        over |= ended
    for values, number in zip(totals, want, strict=True):
        rounding = 0.6 if "." not in number else 0.06
        assert values.mean() == pytest.approx(float(number), abs=rounding + 4 * values.std() / np.sqrt(count))
    assert f" | {' | '.join(want)} |" in CartPole.__doc__


def test_render_shows_state_zero():
    core = CartPole()
    states = np.array([[0.0, 0, 0, 0], [2.4, 0, 0, 0]])
    left, right = (np.array([[0.0, 0, angle, 0]]) for angle in (-0.2, 0.2))
    text = core.render(states, "ansi")
    assert text.index("#") == 1 + 49 // 2 and "+0.00 degrees" in text and text.endswith("\n")
    assert core.render(states[1:], "ansi").index("#") == 49
    picture = core.render(states, "rgb_array")
    assert picture.shape == (160, 240, 3) and picture.dtype == np.uint8
    pole = (picture == (202, 152, 101)).all(axis=2)
    np.testing.assert_array_equal(pole, pole[:, ::-1])  # upright in the middle
    for state, side in ((left, -1), (right, 1)):
        row, column = (core.render(state, "rgb_array") == (202, 152, 101)).all(axis=2).nonzero()
        tip = row.argmin()
        assert column[tip] - 119.5 == pytest.approx(side * 80 * np.sin(0.2), abs=5), "a positive angle leans right"
        assert np.hypot(125 - row, column - 119.5).max() == pytest.approx(80, abs=1), "the pole keeps its length"
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


def test_max_steps():
    assert CartPole(max_steps=None).max_steps is None
    assert CartPole(max_steps=7).max_steps == 7
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(EnvSetupError, match="max_steps must be a whole number"):
            CartPole(max_steps=wrong)


def test_an_episode_is_solved_from_a_number_of_steps_on():
    """Mutation: the count before the step, or a count in the observation. Without `solved_at` nothing is said."""
    core, rng = CartPole(solved_at=3), np.random.default_rng(0)
    states = core.initial(2, rng)
    plain = CartPole()
    reference = states[:, :4].copy()
    for made in range(1, 5):
        actions = np.array([made % 2, (made + 1) % 2])
        states, _, _, extras = core.step(states, actions, rng)
        reference, _, _, without = plain.step(reference, actions, rng)
        assert extras["solved"].tolist() == [made >= 3] * 2 and "solved" not in without
        np.testing.assert_array_equal(core.observe(states), plain.observe(reference))
    with pytest.raises(EnvSetupError, match="solved_at must be a whole number"):
        CartPole(solved_at=0)


def test_rewards_are_scaled():
    core, rng = CartPole(reward_scale=0.005), np.random.default_rng(0)
    rewards = core.step(core.initial(3, rng), np.zeros(3, int), rng)[1]
    np.testing.assert_array_equal(rewards, np.full(3, 0.005, np.float32))
    with pytest.raises(EnvSetupError, match="reward_scale must be a finite number"):
        CartPole(reward_scale=float("nan"))
