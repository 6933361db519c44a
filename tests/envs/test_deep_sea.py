"""DeepSea: every action sequence enumerated, episodes by hand, the mapping of actions, options."""

import numpy as np
import pytest

from packtrain.envs.deep_sea import DeepSea
from packtrain.errors import EnvSetupError

RNG = np.random.default_rng(0)


def play_every_sequence(core):
    """Returns and solved flags of all 2^size action sequences, and the actions [2^size, size]."""
    actions = np.arange(2**core.size)[:, None] >> np.arange(core.size) & 1
    states = core.initial(len(actions), RNG)
    total, solved = np.zeros(len(actions)), np.zeros(len(actions), bool)
    for t in range(core.size):
        states, rewards, terminated, extras = core.step(states, actions[:, t], RNG)
        total, solved = total + rewards, solved | extras["solved"]
        assert (terminated == (t == core.size - 1)).all()
    return total, solved, actions


@pytest.mark.parametrize("mapping_seed", [None, 0, 42])
@pytest.mark.parametrize(("size", "move_cost"), [(1, 0.01), (2, 0.01), (5, 0.01), (10, 0.01), (6, 0.5), (4, 0)])
def test_best_return_by_enumeration(size, move_cost, mapping_seed):
    """One sequence in 2^size finds the treasure; fails if a mapping makes it easier, or if its last move is free."""
    core = DeepSea(size, mapping_seed, move_cost)
    total, solved, _ = play_every_sequence(core)
    assert core.best_return == 1 - move_cost
    assert total.max() == pytest.approx(core.best_return, abs=1e-6)
    assert solved.sum() == 1 and solved[total.argmax()]
    assert total[~solved].max() == 0, "never going right"
    assert total.min() == pytest.approx(-move_cost * (size - 1) / size, abs=1e-6)


def test_without_a_mapping_action_one_goes_right():
    total, solved, actions = play_every_sequence(DeepSea(4))
    np.testing.assert_array_equal(solved, actions.all(axis=1))
    np.testing.assert_allclose(total, actions.all(axis=1) - actions.sum(axis=1) * 0.0025, atol=1e-6)


def test_the_mapping_is_drawn_for_each_cell_with_its_own_seed():
    """bsuite's draw; fails if it is taken per row or column, or from another generator than the seed's."""
    right = DeepSea(10, mapping_seed=42).right
    np.testing.assert_array_equal(right, np.random.RandomState(42).binomial(1, 0.5, [10, 10]))
    assert right.any(axis=0).all() and not right.all(axis=0).any()
    assert (right != DeepSea(10, mapping_seed=43).right).any()
    core, rng = DeepSea(10, mapping_seed=42), np.random.default_rng(1)
    cells = np.argwhere(np.tri(10, dtype=bool))[:-10].astype(np.uint8)  # those that can be reached, but the last row
    stepped, *_ = core.step(cells, core.right[cells[:, 0], cells[:, 1]], rng)
    np.testing.assert_array_equal(stepped, cells + 1)


@pytest.mark.parametrize(
    ("state", "action", "following", "reward", "terminated", "solved"),
    [
        ([0, 0], 1, [1, 1], -0.1, False, False),
        ([0, 0], 0, [1, 0], 0, False, False),  # the left wall
        ([1, 1], 0, [2, 0], 0, False, False),
        ([1, 1], 1, [2, 2], -0.1, False, False),
        ([2, 2], 1, [3, 2], 0.9, True, True),
        ([2, 2], 0, [3, 1], 0, True, False),  # there, but gone left
        ([2, 1], 1, [3, 2], -0.1, True, False),  # in the last column too late
        ([3, 2], 1, [3, 2], 0, True, False),  # after the end
        ([3, 0], 0, [3, 0], 0, True, False),
    ],
)
def test_steps_by_hand(state, action, following, reward, terminated, solved):
    core = DeepSea(3, move_cost=0.3)
    states, rewards, ended, extras = core.step(np.array([state], np.uint8), np.array([action]), RNG)
    assert states.tolist() == [following]
    assert rewards[0] == pytest.approx(reward)
    assert (ended[0], extras["solved"][0]) == (terminated, solved)


def test_observation_shows_the_diver_until_the_end():
    observations = DeepSea(2).observe(np.array([[0, 0], [1, 1], [1, 0], [2, 1]], np.uint8))
    assert observations.tolist() == [[[1, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 0], [1, 0]], [[0, 0], [0, 0]]]


def test_a_large_sea_can_be_crossed():
    """300 rows need numbers above 255; fails if states are always uint8."""
    core = DeepSea(300)
    states, total = core.initial(1, RNG), 0.0
    for _ in range(300):
        states, rewards, terminated, extras = core.step(states, np.array([1]), RNG)
        total += rewards[0]
    assert terminated[0] and extras["solved"][0]
    assert total == pytest.approx(0.99, abs=1e-5)


def test_render_shows_state_zero():
    core, states = DeepSea(3), np.array([[1, 0], [2, 2], [3, 2]], np.uint8)
    assert core.render(states, "ansi") == "...\no..\n..*\n"
    assert core.render(states[1:], "ansi") == "...\n...\n..o\n"
    assert core.render(states[2:], "ansi") == "...\n...\n..*\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (48, 48, 3) and picture.dtype == np.uint8
    assert picture.any(axis=2).sum() == 2 * 16 * 16
    assert (picture[16:32, :16] == 255).all() and (picture[32:, 32:] == (250, 200, 60)).all()
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


@pytest.mark.parametrize(
    ("wrong", "must"),
    [
        ({"size": 0}, "a whole number, 1 or more"),
        ({"size": 2.5}, "a whole number"),
        ({"mapping_seed": -1}, "a whole number, 0 or more"),
        ({"mapping_seed": 2**32}, "at most 4294967295"),
        ({"move_cost": 2}, "a number from 0 to 1"),
        ({"move_cost": "free"}, "a number from 0 to 1"),
    ],
)
def test_options_that_cannot_be_meant(wrong, must):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"DeepSea\({name}=.*\): {name} must be {must}") as error:
        DeepSea(**wrong)
    assert "\n" not in str(error.value)
