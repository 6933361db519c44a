"""What planners need of the cores they search: purity, batches, states to hash, `legal`, rest after the end."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from packtrain.envs.bit_flipper import BitFlipper
from packtrain.envs.deep_sea import DeepSea
from packtrain.envs.functional import FunctionalEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.octomaze import Octomaze
from packtrain.envs.sliding_puzzle import SlidingPuzzle

CORES = [
    Hanoi(3),
    Hanoi(2, pegs=4, reward_for_invalid_action=-1),
    BitFlipper(4),
    SlidingPuzzle(2),
    SlidingPuzzle(3),
    SlidingPuzzle(3, scramble=4),
    DeepSea(4),
    DeepSea(12, mapping_seed=42),
    Octomaze(3, corridor_length=4),
    Octomaze(),
]
HARD = CORES[4]  # random steps hardly ever solve it
every_core = pytest.mark.parametrize("core", CORES, ids=lambda core: type(core).__name__)
with_illegal_actions = pytest.mark.parametrize("core", CORES[:6], ids=lambda core: type(core).__name__)


def wander(core, n, steps, seed):
    """(states, actions, answer) of random steps, ends included and passed."""
    rng = np.random.default_rng(seed)
    states = core.initial(n, rng)
    for _ in range(steps):
        actions = rng.integers(core.action_space.n, size=n)
        answer = core.step(states, actions, rng)
        yield states, actions, answer
        states = answer[0]


@every_core
def test_arguments_stay_as_they_are(core):
    """Fails if a method writes into states or actions, or returns an array that shares their memory."""
    rng = np.random.default_rng(0)
    states = core.initial(8, rng)
    for _ in range(20):
        actions = rng.integers(core.action_space.n, size=8)
        before = states.copy(), actions.copy()
        states.flags.writeable = actions.flags.writeable = False
        results = [core.observe(states), core.step(states, actions, rng)[0]]
        results += [core.legal(states)] if hasattr(core, "legal") else []
        core.render(states, "rgb_array")
        np.testing.assert_array_equal(states, before[0])
        np.testing.assert_array_equal(actions, before[1])
        assert all(result.flags.writeable and not np.shares_memory(result, states) for result in results)
        states = results[1]


@every_core
def test_batch_equals_looped(core):
    rng = np.random.default_rng(0)
    for states, actions, (following, rewards, terminated, extras) in wander(core, n=9, steps=20, seed=1):
        for i in range(9):
            alone, reward, ended, alone_extras = core.step(states[i : i + 1], actions[i : i + 1], rng)
            np.testing.assert_array_equal(alone[0], following[i])
            assert (reward[0], ended[0]) == (rewards[i], terminated[i])
            assert {name: value[0] for name, value in alone_extras.items()} == {k: v[i] for k, v in extras.items()}
            np.testing.assert_array_equal(core.observe(states[i : i + 1])[0], core.observe(states)[i])
            if hasattr(core, "legal"):
                np.testing.assert_array_equal(core.legal(states[i : i + 1])[0], core.legal(states)[i])


@every_core
def test_states_can_be_hashed_by_their_bytes(core):
    """Equal bytes if and only if equal observations (DeepSea's ends look alike): fails for a hidden clock, a dtype
    that changes on the way, or rows that are not contiguous."""
    seen, dtype = {}, core.initial(1, np.random.default_rng(0)).dtype
    for _, _, (states, _, terminated, _) in wander(core, n=50, steps=30, seed=2):
        assert states.dtype == dtype and dtype.kind == "u" and states.flags.c_contiguous
        for state, observation, ended in zip(states, core.observe(states), terminated, strict=True):
            if not (ended and isinstance(core, DeepSea)):
                seen.setdefault(observation.tobytes(), set()).add(state.tobytes())
    assert len(seen) > 5
    assert all(len(different) == 1 for different in seen.values())
    assert len(set.union(*seen.values())) == len(seen)


@every_core
def test_shapes_and_spaces(core):
    for _, _, (states, rewards, terminated, extras) in wander(core, n=7, steps=15, seed=3):
        assert (rewards.shape, rewards.dtype) == ((7,), np.float32)
        assert all((flags.shape, flags.dtype) == ((7,), bool) for flags in (terminated, *extras.values()))
        observations = core.observe(states)
        assert observations.dtype == core.observation_space.dtype
        assert all(core.observation_space.contains(observation) for observation in observations)


@every_core
def test_an_end_is_final_and_pays_nothing_more(core):
    """A planner may step dead states along with live ones; fails if a solved state moves on or is paid again."""
    over = np.zeros(300, bool)
    for states, _, (following, rewards, terminated, extras) in wander(core, n=300, steps=60, seed=4):
        np.testing.assert_array_equal(following[over], states[over])
        assert terminated[over].all() and not rewards[over].any()
        assert not any(flags[over].any() for flags in extras.values())
        over = terminated
    assert over.any() or core is HARD


@with_illegal_actions
def test_legal_tells_which_actions_change_the_state(core):
    """Fails if `legal` and `step` disagree anywhere on the way."""
    for states, actions, (following, _, terminated, extras) in wander(core, n=64, steps=40, seed=5):
        legal = core.legal(states)
        assert (legal.shape, legal.dtype) == ((64, core.action_space.n), bool)
        chosen, moved = legal[np.arange(64), actions], (states != following).any(axis=1)
        alive = moved | ~terminated
        np.testing.assert_array_equal(moved[alive], chosen[alive])
        np.testing.assert_array_equal(extras["invalid_action"], ~chosen & alive)


@every_core
def test_same_seed_same_states(core):
    first, again, other = (core.initial(40, np.random.default_rng(seed)) for seed in (6, 6, 7))
    np.testing.assert_array_equal(first, again)
    if isinstance(core, SlidingPuzzle):
        assert (first != other).any()
        assert len(np.unique(first, axis=0)) > 3
    else:
        assert (first == 0).all() and (other == 0).all()


@every_core
def test_gymnasium_accepts_the_environment(core):
    gym.register("packtrain-test/Planning-v0", entry_point=lambda **kwargs: FunctionalEnv(core, **kwargs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(gym.make("packtrain-test/Planning-v0").unwrapped)
    finally:
        del gym.registry["packtrain-test/Planning-v0"]
