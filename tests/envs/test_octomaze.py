"""Octomaze: states and shortest ways by brute force, steps by hand, options."""

import numpy as np
import pytest

from packtrain.envs.octomaze import Octomaze
from packtrain.errors import EnvSetupError
from packtrain.planning.model import CoreModel

RNG = np.random.default_rng(0)


def layers(core):
    """Sets of states by distance from the start: breadth-first search with steps of the core."""
    frontier, seen, found = core.initial(1, RNG), set(), []
    while len(frontier):
        seen |= (layer := {tuple(state) for state in frontier.tolist()})
        found.append(layer)
        actions = np.tile(np.arange(core.num_corridors), len(frontier))
        following, *_ = core.step(frontier.repeat(core.num_corridors, axis=0), actions, RNG)
        new = sorted({tuple(state) for state in following.tolist()} - seen)
        frontier = np.array(new, following.dtype).reshape(-1, 2)
    return found


@pytest.mark.parametrize(("corridors", "length"), [(8, 10), (1, 1), (2, 3), (5, 1), (3, 300)])
def test_states_and_the_shortest_way(corridors, length):
    """Fails if corridors are left again, if ends are kept apart, or if entering one costs no step."""
    core = Octomaze(corridors, length)
    found = layers(core)
    assert [len(layer) for layer in found] == [1, *[corridors] * length, 1]
    assert found[-1] == {(0, length + 1)}


def test_different_states_are_different():
    """Fails if two states under way count as equal, which made an earlier search merge all of them."""
    core = Octomaze()
    states = np.array(sorted(state for layer in layers(core) for state in layer), np.uint8)
    assert len(states) == 82
    assert len(np.unique(CoreModel(core).keys(states))) == 82
    assert len(np.unique(core.observe(states).reshape(82, -1), axis=0)) == 82


@pytest.mark.parametrize(
    ("state", "action", "following", "reward", "terminated"),
    [
        ((0, 0), 2, (2, 1), 0, False),  # pick
        ((0, 0), 0, (0, 1), 0, False),
        ((2, 1), 2, (2, 2), 0, False),  # advance
        ((2, 1), 1, (2, 1), 0, False),  # no switching
        ((0, 1), 0, (0, 2), 0, False),
        ((2, 2), 0, (2, 2), 0, False),
        ((2, 2), 2, (0, 3), 1, True),  # out
        ((0, 2), 0, (0, 3), 1, True),
        ((0, 3), 0, (0, 3), 0, True),  # the end rests
        ((0, 3), 1, (0, 3), 0, True),
    ],
)
def test_steps_by_hand(state, action, following, reward, terminated):
    core = Octomaze(3, 2)
    states, rewards, ended, extras = core.step(np.array([state], np.uint8), np.array([action]), RNG)
    assert tuple(states[0]) == following
    assert (rewards[0], ended[0], extras["solved"][0]) == (reward, terminated, reward == 1)


def test_random_play_takes_the_time_the_docstring_says():
    core, rng = Octomaze(4, 5, max_steps=None), np.random.default_rng(1)
    states, steps = core.initial(2000, rng), np.zeros(2000)
    for _ in range(200):
        states, _, terminated, _ = core.step(states, rng.integers(4, size=2000), rng)
        steps += ~terminated
    assert terminated.all()
    assert abs(steps.mean() + 1 - (1 + 4 * 5)) < 0.6  # the standard error is 0.17


def test_observations():
    core = Octomaze(3, 2)
    hall, inside, end = core.observe(np.array([[0, 0], [1, 2], [0, 3]], np.uint8))
    assert hall.tolist() == [[0, 0]] * 3
    assert inside.tolist() == [[0, 0], [0, 1], [0, 0]]
    assert end.tolist() == [[1, 1]] * 3


def test_render_shows_state_zero():
    core = Octomaze(3, 2)
    texts = [core.render(np.array([state], np.uint8), "ansi") for state in ((0, 0), (1, 2), (0, 3))]
    assert texts == ["..*\n..*\n..*\n", "..*\n.o*\n..*\n", "..o\n..o\n..o\n"]
    pictures = [core.render(np.array([state], np.uint8), "rgb_array") for state in ((0, 0), (1, 2), (0, 3))]
    assert all(picture.shape == (3 * 16, 3 * 16, 3) and picture.dtype == np.uint8 for picture in pictures)
    assert [(picture == 255).all(axis=2).sum() / 256 for picture in pictures] == [0, 1, 3]
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(core.initial(1, RNG), "human")


@pytest.mark.parametrize(
    "wrong", [{"num_corridors": 0}, {"num_corridors": 2.0}, {"corridor_length": 0}, {"max_steps": 0}]
)
def test_options_that_cannot_be_meant(wrong):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"Octomaze\({name}=.*\): {name} must be a whole number, 1 or more"):
        Octomaze(**wrong)
    assert Octomaze(max_steps=None).max_steps is None
