"""What all cores promise, and their Gymnasium face: check_env, snapshots, seeds, the clock."""

import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import packtrain.envs.registration  # noqa: F401  (registers)
import packtrain.testing.abilities  # noqa: F401  (registers)
from packtrain import trees
from packtrain.envs.functional import FunctionalEnv, load_core

OURS = ["packtrain/Catch-v0", "packtrain/CartPole-v0", "packtrain/PointMass-v0", "packtrain/BinPacking-v0"]
ABILITIES = [
    "packtrain/Bandit-v0",
    "packtrain/DelayedReward-v0",
    "packtrain/Memory-v0",
    "packtrain/StochasticPolicy-v0",
    "packtrain/Truncation-v0",
    "packtrain/Counting-v0",
]
RANDOM_STARTS = ["packtrain/DelayedReward-v0", "packtrain/Memory-v0", "packtrain/Counting-v0"]
VARIANTS = [(env_id, {}) for env_id in OURS + ABILITIES] + [
    ("packtrain/Catch-v0", {"rows": 4, "columns": 7}),
    ("packtrain/Catch-v0", {"visible_rows": 1}),
    ("packtrain/KeyDoor-v0", {}),
    ("packtrain/KeyDoor-v0", {"size": 5, "layout_seed": 2, "max_steps": 3}),
    ("packtrain/PointMass-v0", {"dimensions": 5, "max_steps": 9}),
    ("packtrain/CartPole-v0", {"max_steps": 13}),
    ("packtrain/Octomaze-v0", {}),
    ("packtrain/Octomaze-v0", {"num_corridors": 2, "corridor_length": 1, "max_steps": 3}),
    ("packtrain/BinPacking-v0", {"time_in_observation": True, "time_horizon": 20}),
    ("packtrain/BinPacking-v0", {"item_sizes": (1, 2, 5), "probabilities": (0.5, 0.25, 0.25), "bag_capacity": 5}),
    ("packtrain/Truncation-v0", {"ends_as": "termination"}),
    ("packtrain/Counting-v0", {"ends_as": "truncation"}),
    ("packtrain/Counting-v0", {"tree": True}),
    ("packtrain/Counting-v0", {"tree": True, "ends_as": "truncation", "length": 3}),
]
every_variant = pytest.mark.parametrize(
    ("env_id", "kwargs"), VARIANTS, ids=lambda value: value.split("/")[1] if isinstance(value, str) else str(value)
)


def make(env_id, kwargs) -> FunctionalEnv:
    env = gym.make(env_id, **kwargs).unwrapped
    assert isinstance(env, FunctionalEnv)
    return env


def core_of(env_id, kwargs):
    return load_core(gym.spec(env_id).kwargs["core"], **kwargs)


def batch_of_actions(core, n, seed):
    core.action_space.seed(seed)
    return np.stack([core.action_space.sample() for _ in range(n)])


def assert_same(left, right):
    """Equal structure, dtypes, shapes and entries."""

    def same(a, b):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)

    trees.map(same, left, right)


def joined(singles):
    """Batches of one as one batch."""
    return trees.map(lambda *leaves: np.concatenate(leaves), *singles)


def record(env, actions):
    """What the environment answers to the actions, resets (without a seed) where an episode ends."""
    answers = []
    for action in actions:
        answers.append(env.step(action))
        if answers[-1][2] or answers[-1][3]:
            answers.append(env.reset())
    return answers


@every_variant
def test_check_env_passes_without_a_warning(env_id, kwargs):
    env = make(env_id, kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Box observation space m.*value is -?infinity")  # CartPole's own
        check_env(env, skip_render_check=env_id in ABILITIES)


@every_variant
def test_snapshot_and_restore_replay_exactly(env_id, kwargs):
    """Fails if a snapshot lacks the clock or the generator, or if a later step writes into its arrays."""
    env = make(env_id, kwargs)
    actions = batch_of_actions(env.core, 60, seed=1)
    env.reset(seed=4)
    record(env, actions[:2])
    snapshot = env.snapshot()
    kept = pickle.loads(pickle.dumps(snapshot))
    first = record(env, actions)
    again = env.restore(snapshot)
    assert_same(again, trees.map(lambda leaf: leaf[0], env.core.observe(kept["states"])))
    assert_same(record(env, actions), first)
    other = make(env_id, kwargs)
    other.reset(seed=99)
    other.restore(kept)
    assert_same(record(other, actions), first)


@every_variant
def test_same_seed_same_episode(env_id, kwargs):
    env, other = make(env_id, kwargs), make(env_id, kwargs)
    actions = batch_of_actions(env.core, 60, seed=2)
    assert_same(env.reset(seed=7), other.reset(seed=7))
    assert_same(record(env, actions), record(other, actions))


@pytest.mark.parametrize("env_id", [*OURS, *RANDOM_STARTS])
def test_seeds_matter(env_id):
    """Fails if `initial` draws from anything but the generator it is given."""
    env = make(env_id, {})
    starts = [np.concatenate([np.ravel(x) for x in trees.flatten(env.reset(seed=seed)[0])]) for seed in range(20)]
    assert len({start.tobytes() for start in starts}) > 1


@every_variant
def test_observations_are_in_the_space_and_fresh(env_id, kwargs):
    """Fails for a wrong dtype, and if an observation is a view of the state that its owner could damage."""
    env = make(env_id, kwargs)
    ended = True
    for action in batch_of_actions(env.core, 40, seed=3):
        if ended:
            observation, _ = env.reset()
        assert env.observation_space.contains(observation)
        leaves, states = trees.flatten(env.core.observe(env._states)), trees.flatten(env._states)
        assert not any(np.shares_memory(leaf, state) for leaf in leaves for state in states)
        observation, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    assert env.observation_space.contains(observation)


@every_variant
def test_only_the_clock_truncates_and_never_with_a_termination(env_id, kwargs):
    env = make(env_id, kwargs)
    env.action_space.seed(5)
    for seed in range(5):
        env.reset(seed=seed)
        steps, terminated, truncated = 0, False, False
        while not (terminated or truncated):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            steps += 1
        assert terminated != truncated
        assert truncated == (not terminated and steps == env.core.max_steps)


def test_truncation_yields_to_a_termination_at_the_same_step():
    """CartPole that falls exactly when the clock ends is terminated only."""
    env = make("packtrain/CartPole-v0", {"max_steps": None})
    env.reset(seed=0)
    fall = 1
    while not env.step(1)[2]:
        fall += 1
    for clock, expected in ((fall, (True, False)), (fall - 1, (False, True)), (fall + 1, (True, False))):
        env = make("packtrain/CartPole-v0", {"max_steps": clock})
        env.reset(seed=0)
        steps = 0
        while True:
            _, _, terminated, truncated, _ = env.step(1)
            steps += 1
            if terminated or truncated:
                break
        assert (terminated, truncated) == expected and steps == min(fall, clock)


@every_variant
def test_purity(env_id, kwargs):
    """Fails if `step` or `observe` writes into a state or the actions, or returns a state that shares memory."""
    core, rng = core_of(env_id, kwargs), np.random.default_rng(0)
    states = core.initial(6, rng)
    for seed in range(12):
        actions = batch_of_actions(core, 6, seed)
        before, actions_before = trees.map(np.copy, states), actions.copy()
        for leaf in [*trees.flatten(states), actions]:
            leaf.flags.writeable = False
        core.observe(states)
        following, *_ = core.step(states, actions, rng)
        assert_same(states, before)
        assert_same(actions, actions_before)
        leaves = trees.flatten(following)
        assert all(leaf.flags.writeable for leaf in leaves)
        assert not any(np.shares_memory(a, b) for a in leaves for b in [*trees.flatten(states), actions])
        states = following


@every_variant
def test_batch_equals_looped(env_id, kwargs):
    """Also past the end, as planners step. Single states draw in order from one generator, as the batch does."""
    n = 9
    core, rng, rng_of_singles = core_of(env_id, kwargs), np.random.default_rng(1), np.random.default_rng(1)
    states = core.initial(n, rng)
    core.initial(n, rng_of_singles)
    singles = [trees.pack(states, [leaf[i : i + 1].copy() for leaf in trees.flatten(states)]) for i in range(n)]
    for seed in range(25):
        actions = batch_of_actions(core, n, seed)
        states, *answer = core.step(states, actions, rng)
        looped = [core.step(single, actions[i : i + 1], rng_of_singles) for i, single in enumerate(singles)]
        singles = [single for single, *_ in looped]

        assert_same(states, joined(singles))
        assert_same(core.observe(states), joined([core.observe(single) for single in singles]))
        assert_same(answer, joined([rest for _, *rest in looped]))
        rewards, terminated, extras = answer
        assert (rewards.shape, rewards.dtype) == ((n,), np.float32)
        assert (terminated.shape, terminated.dtype) == ((n,), bool)
        assert all(value.shape == (n,) for value in extras.values())


@pytest.mark.parametrize("env_id", OURS)
def test_both_render_modes_reach_the_core(env_id):
    for mode, kind in (("ansi", str), ("rgb_array", np.ndarray)):
        env = gym.make(env_id, render_mode=mode).unwrapped
        env.reset(seed=0)
        before = env.render()
        assert isinstance(before, kind)
        for _ in range(3):
            env.step(env.action_space.sample())
        assert np.any(env.render() != before), "the picture follows the state"
