"""Every score an ability's docstring names, by simulation; and what each must not give away."""

import numpy as np
import pytest

from packtrain import trees
from packtrain.envs.functional import FunctionalEnv
from packtrain.errors import EnvSetupError
from packtrain.testing.abilities import Bandit, Counting, DelayedReward, Memory, StochasticPolicy, Truncation

N = 20_000


def play(core, policy, n=N, seed=0):
    """Rewards [T, n] and observations [T+1, n, ...] of n episodes, which all end together, at the core's own end."""
    rng = np.random.default_rng(seed)
    states = core.initial(n, rng)
    observations, rewards = [core.observe(states)], []
    while True:
        actions = policy(len(rewards), observations, rng)
        states, reward, terminated, _ = core.step(states, actions, rng)
        observations.append(core.observe(states))
        rewards.append(reward)
        if terminated.any():
            assert terminated.all()
            return np.array(rewards), observations


def score(core, policy, **kwargs):
    return float(play(core, policy, **kwargs)[0].sum(axis=0).mean())


def chance(core):
    return lambda t, observations, rng: rng.integers(core.action_space.n, size=len(observations[0]))


def always(action):
    return lambda t, observations, rng: np.full(len(observations[0]), action)


# Bandit ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arm", "mean"), [(0, 0.1), (1, 0.2), (2, 0.3), (3, 0.9)])
def test_bandit_arms(arm, mean):
    rewards, observations = play(Bandit(), always(arm))
    assert rewards.shape == (1, N), "one step"
    assert set(np.unique(rewards)) == {0, 1}
    assert rewards.mean() == pytest.approx(mean, abs=0.014)  # 4 standard errors
    assert all((observation == np.ones((N, 1), np.float32)).all() for observation in observations)


def test_bandit_chance_is_three_eighths():
    assert score(Bandit(), chance(Bandit())) == pytest.approx(0.375, abs=0.014)


def test_bandit_rewards_differ_between_environments_and_pulls():
    """Fails if one draw is shared by the batch or repeated."""
    core, rng = Bandit(), np.random.default_rng(0)
    pulls = [core.step(core.initial(100, rng), np.full(100, 2), rng)[1] for _ in range(2)]
    assert 0 < pulls[0].mean() < 1
    assert (pulls[0] != pulls[1]).any()


# DelayedReward --------------------------------------------------------------------------------------------------------


def answer_the_cue(t, observations, rng):
    """Right at the first step, anything afterwards."""
    first = observations[0][:, :4].argmax(axis=1)
    return first if t == 0 else rng.integers(4, size=len(first))


@pytest.mark.parametrize("delay", [0, 1, 10])
def test_delayed_reward_best_and_chance(delay):
    core = DelayedReward(delay=delay)
    rewards, _ = play(core, answer_the_cue, n=500)
    assert rewards.shape == (delay + 1, 500)
    assert not rewards[:-1].any(), "nothing is paid before the end"
    np.testing.assert_array_equal(rewards[-1], np.ones(500))
    assert score(core, chance(core)) == pytest.approx(0.25, abs=0.013)
    assert score(core, always(2)) == pytest.approx(0.25, abs=0.013)


def test_delayed_reward_depends_on_the_first_action_only():
    """Fails if the last action is rewarded: it is right here, the first one wrong."""

    def wrong_then_right(t, observations, rng):
        cue = observations[0][:, :4].argmax(axis=1)
        return (cue + 1) % 4 if t == 0 else cue

    assert score(DelayedReward(), wrong_then_right, n=500) == 0


def test_delayed_reward_shows_the_cue_once_and_the_clock_always():
    _, observations = play(DelayedReward(delay=3), answer_the_cue, n=400)
    np.testing.assert_array_equal(observations[0][:, :4].sum(axis=1), np.ones(400))
    assert np.bincount(observations[0][:, :4].argmax(axis=1)).min() > 60, "all four cues come up"
    assert not any(observation[:, :4].any() for observation in observations[1:])
    np.testing.assert_allclose([observation[0, 4] for observation in observations], [0, 0.25, 0.5, 0.75, 1])


# Memory ---------------------------------------------------------------------------------------------------------------


def recall(t, observations, rng):
    """The cue at the question, anything before."""
    cue = observations[0][:, 1].astype(int)
    return np.where(observations[-1][:, 2] == 1, cue, rng.integers(2, size=len(cue)))


@pytest.mark.parametrize("delay", [1, 5])
def test_memory_best_and_chance(delay):
    core = Memory(delay=delay)
    rewards, observations = play(core, recall, n=500)
    assert rewards.shape == (delay + 1, 500)
    assert not rewards[:-1].any()
    np.testing.assert_array_equal(rewards[-1], np.ones(500))
    assert score(core, chance(core)) == pytest.approx(0, abs=0.03)


def test_nothing_beats_zero_without_memory():
    """The observation at the question is the same for both cues, so the two fixed answers are all there is."""
    _, observations = play(Memory(), recall, n=500)
    assert len(np.unique(observations[5], axis=0)) == 1
    both = [score(Memory(), always(answer), seed=3) for answer in (0, 1)]
    assert both[0] == -both[1] == pytest.approx(0, abs=0.03)
    assert {play(Memory(), always(0), n=500)[0][-1, i] for i in range(500)} == {-1.0, 1.0}


def test_memory_observations():
    _, observations = play(Memory(delay=3), recall, n=400)
    np.testing.assert_array_equal(observations[0][:, :2].sum(axis=1), np.ones(400))
    assert 150 < observations[0][:, 0].sum() < 250
    for t, observation in enumerate(observations[1:], start=1):
        expected = [0, 0, 1] if t == 3 else [0, 0, 0]
        np.testing.assert_array_equal(observation, np.tile(expected, (400, 1)))


# StochasticPolicy -----------------------------------------------------------------------------------------------------


def zero_with(probability):
    return lambda t, observations, rng: (rng.random(len(observations[0])) >= probability).astype(int)


@pytest.mark.parametrize(("probability", "value"), [(0.5, -0.0015), (0.75, 0.6965), (0.758, 0.6977), (1, 0), (0, -1)])
def test_stochastic_policy_scores(probability, value):
    core = StochasticPolicy()
    rewards, observations = play(core, zero_with(probability))
    assert rewards.shape == (20, N)
    assert not rewards[:-1].any()
    assert rewards[-1].mean() == pytest.approx(value, abs=1e-6 if probability in (0, 1) else 0.012)
    assert all((observation == 1).all() for observation in observations)


def test_counting_to_fifteen_scores_one():
    assert score(StochasticPolicy(), lambda t, obs, rng: np.full(len(obs[0]), int(t >= 15)), n=3) == 1
    assert score(StochasticPolicy(steps=4, target=0.5), lambda t, obs, rng: np.full(len(obs[0]), t % 2), n=3) == 1


# Truncation -----------------------------------------------------------------------------------------------------------


def episodes(core, count=3):
    env = FunctionalEnv(core)
    rows = []
    for _ in range(count):
        rows.append((env.reset()[0].tolist(),))
        while len(rows[-1]) == 1 or not (rows[-1][2] or rows[-1][3]):
            observation, *answer, _ = env.step(env.action_space.sample())
            rows.append((observation.tolist(), *answer))
    return rows


def test_truncation_and_its_negative_control_differ_in_the_flag_only():
    truncated, terminated = episodes(Truncation()), episodes(Truncation(ends_as="termination"))
    assert [row[:2] for row in truncated] == [row[:2] for row in terminated]
    flags = [[row[2:] for row in rows if len(row) > 1] for rows in (truncated, terminated)]
    assert flags[0] == ([(False, False)] * 9 + [(False, True)]) * 3
    assert flags[1] == ([(False, False)] * 9 + [(True, False)]) * 3
    assert {row[0][0] for row in truncated} == {1.0} and {row[1] for row in truncated if len(row) > 1} == {1.0}


@pytest.mark.parametrize(("ends_as", "bootstrapped"), [("truncation", 10.0), ("termination", 5.263)])
def test_truncation_values_by_iteration(ends_as, bootstrapped):
    """One-step targets averaged over the rows, iterated to the fixed point: the docstring's numbers."""
    rows = [row for row in episodes(Truncation(ends_as=ends_as)) if len(row) > 1]
    value = 0.0
    for _ in range(300):
        value = float(np.mean([reward + 0.9 * (not terminated) * value for _, reward, terminated, _ in rows]))
    assert value == pytest.approx(bootstrapped, abs=1e-3)


def test_monte_carlo_value_of_the_negative_control():
    rewards, _ = play(Truncation(ends_as="termination"), always(0), n=1)
    to_go = [sum(0.9**k * r for k, r in enumerate(rewards[t:, 0])) for t in range(len(rewards))]
    assert np.mean(to_go) == pytest.approx(4.138, abs=1e-3)


# Counting -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends_as", ["termination", "truncation"])
def test_counting_episodes(ends_as):
    env = FunctionalEnv(Counting(length=3, ends_as=ends_as))
    ids = set()
    for _ in range(50):
        observation, _ = env.reset()
        episode = int(observation[0])
        ids.add(episode)
        assert observation.tolist() == [episode, 0]
        for step in (1, 2, 3):
            observation, reward, terminated, truncated, _ = env.step(0)
            assert observation.tolist() == [episode, step]
            assert reward == step
            assert [terminated, truncated] == [step == 3 and ends_as == end for end in ("termination", "truncation")]
    assert len(ids) == 50


def test_counting_scores_fifteen():
    assert score(Counting(), chance(Counting()), n=5) == 15


def test_counting_tree_says_the_same_in_every_leaf():
    core, rng = Counting(length=300, tree=True), np.random.default_rng(0)
    states, actions = core.initial(4, rng), np.zeros((4, 2), np.int64)
    for step in range(300):
        observation = core.observe(states)
        assert [leaf.dtype for leaf in trees.flatten(observation)] == [np.int64, np.int64, np.float32, np.uint8]
        np.testing.assert_array_equal(observation["count"], np.stack([states["episode"], np.full(4, step)], axis=1))
        np.testing.assert_array_equal(observation["last_action"], actions)
        np.testing.assert_array_equal(observation["parts"][0], np.full((4, 3), step))
        np.testing.assert_array_equal(observation["parts"][1], np.full((4, 1, 2, 2), step % 256))
        actions = rng.integers([2, 3], size=(4, 2))
        states, reward, terminated, _ = core.step(states, actions, rng)
        np.testing.assert_array_equal(reward, np.full(4, step + 1))
        assert terminated.all() == terminated.any() == (step == 299)


# After the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", [Bandit(), DelayedReward(delay=2), Memory(delay=2), StochasticPolicy(steps=3)])
def test_after_the_end_nothing_is_paid(core):
    """Planners step dead states along with live ones; fails if a reward comes twice."""
    rng = np.random.default_rng(0)
    states, ended = core.initial(200, rng), np.zeros(200, bool)
    for _ in range(6):
        actions = rng.integers(core.action_space.n, size=200)
        states, rewards, terminated, _ = core.step(states, actions, rng)
        assert not rewards[ended].any() and terminated[ended].all()
        ended = terminated
    assert ended.all()


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("core", "wrong"),
    [
        (DelayedReward, {"delay": -1}),
        (Memory, {"delay": 0}),
        (StochasticPolicy, {"steps": 0}),
        (StochasticPolicy, {"target": 1.5}),
        (StochasticPolicy, {"target": float("nan")}),
        (StochasticPolicy, {"target": "half"}),
        (Truncation, {"ends_as": "truncated"}),
        (Truncation, {"length": 0}),
        (Counting, {"length": 0}),
        (Counting, {"ends_as": None}),
        (Counting, {"tree": 1}),
    ],
)
def test_options_that_cannot_be_meant(core, wrong):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"^{core.__name__}\({name}=.*\): {name} must be") as error:
        core(**wrong)
    assert "\n" not in str(error.value)
