"""Observations to class numbers and back, for every state that small worlds have."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain import trees
from packtrain.envs.bit_flipper import BitFlipper
from packtrain.envs.cartpole import CartPole
from packtrain.envs.catch import Catch
from packtrain.envs.categorical_factors import Factor, decode, encode, factors_of
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.point_mass import PointMass
from packtrain.envs.toy_mr import ToyMR
from packtrain.errors import EnvSetupError


def reachable(core) -> np.ndarray:
    """The observations of all states that actions lead to from the start, breadth first."""
    rng, actions = np.random.default_rng(0), int(core.action_space.n)
    found, states = {}, core.initial(1, rng)
    while True:
        fresh = []
        for i, row in enumerate(core.observe(states)):
            if row.tobytes() not in found:
                found[row.tobytes()] = row
                fresh.append(i)
        if not fresh:
            return np.stack(list(found.values()))
        edge = trees.map(lambda leaf, fresh=fresh: np.repeat(leaf[fresh], actions, axis=0), states)
        states = core.step(edge, np.tile(np.arange(actions), len(fresh)), rng)[0]


@pytest.mark.parametrize(
    ("core", "states"),
    [
        (Hanoi(3), 27),
        (Hanoi(2, pegs=4), 16),
        (ToyMR("two_rooms", save_enter_cell=False), None),
        (ToyMR("one_room", save_enter_cell=True, max_lives=2), None),
        (ToyMR("two_rooms", absolute_coordinates=True, doors_keys_scale=2.0), None),
        (BitFlipper(5), 17),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_reachable_state_comes_back(core, states) -> None:
    """Mutations: `low` forgotten in layout; argmin for argmax in encode."""
    seen, factors = reachable(core), factors_of(core)
    classes = encode(seen, factors)
    assert classes.shape == (len(seen), len(factors)) and len(seen) > 10
    assert states is None or len(seen) == states
    assert (classes >= 0).all() and (classes < [factor.size for factor in factors]).all()
    assert len(np.unique(classes, axis=0)) == len(seen)  # no two states look alike
    back = decode(classes, factors)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, seen)


def test_classes_by_hand() -> None:
    """A peg's number, and a number less its lowest."""
    factors = (Factor.one_hot(0, 3), Factor.whole_number(3, -2, 5), Factor.one_hot(4, 2))
    obs = np.array([[0, 0, 1, -2, 1, 0], [1, 0, 0, 5, 0, 1]], np.float32)
    assert encode(obs, factors).tolist() == [[2, 0, 0], [0, 7, 1]]
    assert decode(np.array([[1, 3, 1]]), factors).tolist() == [[0, 1, 0, 1, 0, 1]]


@pytest.mark.parametrize("strange", [[0, 0, 1], [1, 1, 1], [1, 0, 2], [1, 0, 0.5], [0.5, 0.5, 1]])
def test_what_is_not_made_of_the_factors_is_refused(strange) -> None:
    """No 1, two of them, beyond the bounds, between numbers. Mutation: encode does not look back."""
    with pytest.raises(ValueError, match="does not match the factors"):
        encode(np.array([[1, 0, 1], strange], np.float32), (Factor.one_hot(0, 2), Factor.whole_number(2, 0, 1)))


def test_what_worlds_are_made_of() -> None:
    """Hanoi says so itself; the bounds of ToyMR do: 15 attributes as the configurations have it, 17 with enter cell."""
    assert factors_of(Hanoi(2)) == (Factor(0, 3), Factor(3, 3))
    without, kept = (factors_of(ToyMR(save_enter_cell=kept)) for kept in (False, True))
    assert (len(without), len(kept)) == (15, 17)
    assert without[:5] == tuple(
        Factor.whole_number(i, low, high) for i, (low, high) in enumerate([(1, 9), (1, 4), (0, 4), (0, 10), (0, 10)])
    )
    assert [factor.size for factor in without[5:]] == [2] * 10  # doors, keys, the only life, the end
    assert [factor.size for factor in kept[9:11]] == [11, 11]


class Told:
    """A core that says what its observation of 4 coordinates is made of."""

    observation_space = gym.spaces.Box(0, 1, (4,))

    def __init__(self, *factors: Factor):
        self.factors = factors


@pytest.mark.parametrize(
    ("core", "line"),
    [
        (Catch(), "not vectors"),
        (CartPole(), r"coordinate 0 lies in \[-4.8"),
        (PointMass(), "is not a whole number"),
        (ToyMR("one_room", doors_keys_scale=0.5), r"lies in \[0.0, 0.5\]"),
        (Told(Factor(0, 2)), "cover 2 coordinates, but the observation has 4"),
        (Told(Factor(0, 2), Factor(1, 3)), "begins at coordinate 1, expected 2"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_worlds_without_factors_are_refused(core, line) -> None:
    """With one line."""
    with pytest.raises(EnvSetupError, match=line) as error:
        factors_of(core)
    assert "\n" not in str(error.value)


def test_bounds_that_mean_anything_are_refused() -> None:
    """The largest float is a whole number. Mutation: no limit, and the machine runs out of memory."""
    core = Told()
    core.factors, core.observation_space = None, gym.spaces.Box(-3e38, 3e38, (1,))
    with pytest.raises(EnvSetupError, match="more than 4096"):
        factors_of(core)


def test_a_factor_has_values() -> None:
    """And a place."""
    with pytest.raises(EnvSetupError, match="size=0"):
        Factor.whole_number(0, 3, 2)
