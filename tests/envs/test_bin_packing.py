"""BinPacking: steps by hand, the law of the items, waste by counting, the two kinds of horizon, options."""

import gymnasium as gym
import numpy as np
import pytest

import packtrain.envs.registration  # noqa: F401  (registers)
from packtrain.envs.bin_packing import BinPacking
from packtrain.errors import EnvSetupError
from packtrain.planning.model import CoreModel

RNG = np.random.default_rng(0)


def state(item, time=None, capacity=9, **bags):
    """One state from the numbers of bags by level: state(2, l7=1)."""
    counts = [bags.get(f"l{level}", 0) for level in range(capacity)]
    return np.array([[*counts, item, *([] if time is None else [time])]], np.uint32)


@pytest.mark.parametrize(
    ("before", "action", "bags", "reward", "invalid"),
    [
        (state(2), 0, {"l2": 1}, -7, False),  # a new bag wastes what it has left
        (state(3, l2=2), 0, {"l2": 2, "l3": 1}, -6, False),
        (state(3, l2=2), 2, {"l2": 1, "l5": 1}, 3, False),  # an old one wins the item back
        (state(2, l7=1), 7, {}, 2, False),  # full: put away
        (state(3, l7=1), 7, {"l7": 1, "l3": 1}, -6, True),  # does not fit: a new bag
        (state(3, l7=1), 4, {"l7": 1, "l3": 1}, -6, True),  # no such bag: a new bag
        (state(2, l2=1, l8=1), 2, {"l4": 1, "l8": 1}, 2, False),
    ],
)
def test_steps_by_hand(before, action, bags, reward, invalid):
    core = BinPacking()
    states, rewards, terminated, extras = core.step(before, np.array([action]), np.random.default_rng(0))
    assert states[0, :-1].tolist() == state(0, **bags)[0, :-1].tolist()
    assert states[0, -1] in (2, 3)
    assert (rewards[0], terminated[0], extras["invalid_action"][0]) == (reward, False, invalid)
    scaled = BinPacking(reward_scale=0.5).step(before, np.array([action]), np.random.default_rng(0))
    assert scaled[1][0] == reward / 2


def test_the_sum_of_rewards_is_minus_the_waste():
    """Counted another way: what went in, and the space of the bags that were ever opened."""
    core, rng = BinPacking(time_horizon=None), np.random.default_rng(1)
    states = core.initial(50, rng)
    opened, packed, total = np.zeros(50), np.zeros(50), np.zeros(50)
    for _ in range(100):
        actions = rng.integers(9, size=50)
        opened += (actions == 0) | ~core.legal(states)[np.arange(50), actions]
        packed += states[:, 9]
        states, rewards, *_ = core.step(states, actions, rng)
        total += rewards
        open_space = (states[:, :9] * (9 - np.arange(9))).sum(axis=1)
        np.testing.assert_array_equal(total, packed - 9 * opened)
        np.testing.assert_array_equal(-total, open_space)


def test_items_follow_their_probabilities():
    """Fails if sizes and probabilities are paired wrongly; the standard errors are below 0.004."""
    core = BinPacking(item_sizes=(5, 1, 2), probabilities=(0.2, 0.7, 0.1))
    for items in (
        core.initial(20_000, np.random.default_rng(0))[:, -1],
        core.step(core.initial(20_000, RNG), np.zeros(20_000, int), np.random.default_rng(1))[0][:, -1],
    ):
        shares = [np.mean(items == size) for size in (5, 1, 2)]
        np.testing.assert_allclose(shares, (0.2, 0.7, 0.1), atol=0.015)


@pytest.mark.parametrize(("probabilities", "always"), [((1.0, 0.0), 2), ((0.0, 1.0), 3)])
def test_an_item_without_probability_never_comes(probabilities, always):
    """Fails if a draw of exactly 0, or one just below 1, takes a neighbour."""

    class Transitions:
        def random(self, n):
            return np.array([0.0, np.nextafter(1, 0)])

    assert BinPacking(probabilities=probabilities)._items(2, Transitions()).tolist() == [always, always]


def test_without_the_time_the_horizon_is_a_clock():
    core = BinPacking(time_horizon=3)
    assert core.max_steps == 3 and core.initial(1, RNG).shape == (1, 10)
    env = gym.make("packtrain/BinPacking-v0", time_horizon=3)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_with_the_time_the_horizon_is_an_end():
    core = BinPacking(time_horizon=3, time_in_observation=True)
    rng = np.random.default_rng(0)
    states = core.initial(2, rng)
    assert core.max_steps is None and core.observe(states)[:, -1].tolist() == [1, 1]
    for left in (2, 1, 0):
        states, rewards, terminated, _ = core.step(states, np.array([0, 2]), rng)
        assert states[:, -1].tolist() == [left] * 2 and terminated.tolist() == [left == 0] * 2
        np.testing.assert_allclose(core.observe(states)[:, -1], left / 3)
        assert rewards.all()
    assert states[:, -2].tolist() == [0, 0], "no item is left"
    resting, rewards, terminated, extras = core.step(states, np.array([0, 2]), rng)
    np.testing.assert_array_equal(resting, states)
    assert not rewards.any() and terminated.all() and not extras["invalid_action"].any()


def test_observations_scale_the_bags_only():
    core = BinPacking(bin_observation_scale=0.5, time_horizon=10, time_in_observation=True)
    observation = core.observe(state(3, time=5, l2=4, l8=1))[0]
    assert observation.tolist() == [0, 0, 2, 0, 0, 0, 0, 0, 0.5, 3, 0.5]
    assert core.observation_space.contains(observation)


def test_planners_see_that_the_core_is_stochastic():
    assert not CoreModel(BinPacking()).deterministic


def test_legal_levels():
    core = BinPacking()
    assert np.flatnonzero(core.legal(state(3, l2=1, l6=2, l7=1, l8=1))[0]).tolist() == [0, 2, 6]


def test_render_shows_state_zero():
    core, states = BinPacking(), np.concatenate((state(3, l2=4, l8=1), state(2)))
    assert core.render(states, "ansi") == "item 3\n   2 of 9: 4\n   8 of 9: 1\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (9 * 8, 40 * 8, 3) and picture.dtype == np.uint8
    assert picture.any(axis=2).sum() == (3 + 4 + 1) * 64
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"bag_capacity": 1}, "bag_capacity must be a whole number, 2 or more"),
        ({"item_sizes": (0, 3)}, "item_sizes must be a whole number, 1 or more"),
        ({"item_sizes": (2, 2)}, "all different"),
        ({"item_sizes": (2, 10)}, "an item of 10 does not fit into a bag of 9"),
        ({"item_sizes": ()}, "one or more"),
        ({"item_sizes": 2}, "must be a tuple"),
        ({"probabilities": (0.5, 0.4)}, "sum to 1"),
        ({"probabilities": (1.0,)}, "one for each item size"),
        ({"probabilities": (1.5, -0.5)}, "from 0 to 1"),
        ({"time_horizon": 0}, "time_horizon must be a whole number, 1 or more"),
        ({"reward_scale": float("inf")}, "reward_scale must be a finite number"),
        ({"bin_observation_scale": 0.0}, "above 0"),
        ({"time_in_observation": 1}, "one of False, True"),
        ({"time_in_observation": True, "time_horizon": None}, "needs a time_horizon"),
    ],
)
def test_options_that_cannot_be_meant(wrong, what):
    with pytest.raises(EnvSetupError, match=what) as error:
        BinPacking(**wrong)
    assert str(error.value).startswith(f"BinPacking({next(iter(wrong))}=") and "\n" not in str(error.value)
