"""Hanoi: state counts and shortest solutions by brute force, moves by hand, options."""

import numpy as np
import pytest

from packtrain.envs.hanoi import Hanoi
from packtrain.errors import EnvSetupError

RNG = np.random.default_rng(0)


def every_state(disks, pegs):
    """[pegs^disks, disks], counted up in base `pegs`, disk 0 fastest."""
    return (np.arange(pegs**disks)[:, None] // pegs ** np.arange(disks) % pegs).astype(np.uint8)


def layers(core):
    """State numbers by distance from the start: breadth-first search with steps of the core."""
    powers = core.pegs ** np.arange(core.disks)
    states, seen = core.initial(1, RNG), {0}
    found = [seen.copy()]
    while len(states):
        actions = np.tile(np.arange(len(core.moves)), len(states))
        following, *_ = core.step(states.repeat(len(core.moves), axis=0), actions, RNG)
        numbers, where = np.unique(following @ powers, return_index=True)
        new = np.array([number not in seen for number in numbers.tolist()])
        states = following[where[new]]
        found.append(set(numbers[new].tolist()))
        seen |= found[-1]
    return found[:-1]


def solution_length(core):
    goal = core.pegs**core.disks - 1  # every disk on the last peg
    (distance,) = (i for i, layer in enumerate(layers(core)) if goal in layer)
    return distance


@pytest.mark.parametrize("disks", [1, 2, 3, 4, 5, 6])
def test_three_pegs_have_three_to_the_n_states_and_a_shortest_solution_of_two_to_the_n_minus_one(disks):
    """Fails if a disk may lie on a smaller one (shorter), or if a legal move is refused (fewer states)."""
    core = Hanoi(disks)
    found = layers(core)
    assert sum(map(len, found)) == 3**disks
    assert solution_length(core) == len(found) - 1 == 2**disks - 1


@pytest.mark.parametrize(("pegs", "lengths"), [(4, [1, 3, 5, 9, 13, 17]), (5, [1, 3, 5, 7, 11])])
def test_more_pegs_follow_frame_and_stewart(pegs, lengths):
    cores = [Hanoi(disks, pegs) for disks in range(1, len(lengths) + 1)]
    assert [solution_length(core) for core in cores] == lengths
    assert sum(map(len, layers(cores[3]))) == pegs**4


@pytest.mark.parametrize("disks", [1, 2, 3, 4])
def test_half_of_all_actions_are_self_loops(disks):
    """The specification's count of legal pairs, 3^(n+1) − 3 of 6 · 3^n, the goal's two included."""
    states = every_state(disks, 3)
    assert Hanoi(disks).legal(states).shape == (3**disks, 6)
    assert Hanoi(disks).legal(states).sum() == 3 ** (disks + 1) - 3


def test_actions_are_ordered_pairs_of_pegs():
    assert Hanoi().moves == ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))
    assert Hanoi(pegs=4).moves[:4] == ((0, 1), (0, 2), (0, 3), (1, 0))
    assert Hanoi(pegs=4).action_space.n == 12


@pytest.mark.parametrize(
    ("state", "action", "following", "reward", "terminated", "invalid"),
    [
        ([0, 0], 0, [1, 0], 0, False, False),  # the smaller disk goes first
        ([0, 0], 1, [2, 0], 0, False, False),
        ([0, 0], 2, [0, 0], -0.5, False, True),  # peg 1 is empty
        ([1, 0], 0, [1, 0], -0.5, False, True),  # onto a smaller disk
        ([1, 0], 1, [1, 2], 0, False, False),
        ([1, 2], 3, [2, 2], 5, True, False),  # finished
        ([0, 1], 0, [1, 1], 0, False, False),  # all on peg 1 is not the goal
        ([2, 2], 4, [2, 2], 0, True, False),  # a solved tower rests
        ([2, 2], 0, [2, 2], 0, True, False),  # and an illegal move costs nothing there
    ],
)
def test_moves_by_hand(state, action, following, reward, terminated, invalid):
    core = Hanoi(2, reward_for_solved=5, reward_for_invalid_action=-0.5)
    states, rewards, ended, extras = core.step(np.array([state], np.uint8), np.array([action]), RNG)
    assert states.tolist() == [following]
    assert (rewards[0], ended[0]) == (reward, terminated)
    assert (extras["solved"][0], extras["invalid_action"][0]) == (reward == 5, invalid)


def test_default_rewards():
    core = Hanoi(1)
    _, rewards, terminated, extras = core.step(core.initial(3, RNG), np.array([0, 1, 2]), RNG)
    assert rewards.tolist() == [0, 1, 0]
    assert terminated.tolist() == extras["solved"].tolist() == [False, True, False]
    assert extras["invalid_action"].tolist() == [False, False, True]
    assert core.max_steps == 1000


def test_the_goal_is_the_last_peg():
    """Fails if peg 2 is the goal however many pegs there are."""
    core = Hanoi(1, pegs=4)
    _, rewards, terminated, _ = core.step(core.initial(3, RNG), np.array([0, 1, 2]), RNG)
    assert rewards.tolist() == terminated.tolist() == [False, False, True]


def test_observation_is_one_hot_disk_after_disk():
    states = np.array([[0, 2], [1, 1]], np.uint8)
    assert Hanoi(2).observe(states).tolist() == [[1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 1, 0]]
    assert Hanoi(2, pegs=4).observe(states)[0].tolist() == [1, 0, 0, 0, 0, 0, 1, 0]


def test_render_shows_state_zero():
    core, states = Hanoi(3), np.array([[1, 0, 0], [2, 2, 2]], np.uint8)
    lines = [
        "   |       |       |",
        " =====     |       |",
        "=======   ===      |",
        "-----------------------",
    ]
    assert core.render(states, "ansi") == "\n".join(lines) + "\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (4 * 8, 23 * 8, 3) and picture.dtype == np.uint8
    assert (picture == (90, 160, 250)).all(axis=2).sum() == (5 + 7 + 3) * 8 * 8
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


@pytest.mark.parametrize(
    ("wrong", "must"),
    [
        ({"disks": 0}, "a whole number, 1 or more"),
        ({"disks": 2.0}, "a whole number"),
        ({"pegs": 2}, "a whole number, 3 or more"),
        ({"max_steps": 0}, "a whole number, 1 or more"),
        ({"reward_for_solved": float("nan")}, "a finite number"),
        ({"reward_for_solved": "1"}, "a finite number"),
        ({"reward_for_invalid_action": True}, "a finite number"),
    ],
)
def test_options_that_cannot_be_meant(wrong, must):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"Hanoi\({name}=.*\): {name} must be {must}") as error:
        Hanoi(**wrong)
    assert "\n" not in str(error.value)
    assert Hanoi(max_steps=None).max_steps is None
