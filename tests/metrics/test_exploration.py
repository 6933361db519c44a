"""Exploration metrics: by hand on a small world, against sets and dictionaries, and through a snapshot."""

from collections import Counter

import numpy as np
import pytest

from packtrain.errors import CheckpointError
from packtrain.metrics.exploration import Exploration

# A way of five states, the goal at its end, and a dead end behind state 1.
TO_GOAL = np.array([4, 3, 2, 1, 0, -1])
FROM_START = np.array([0, 1, 2, 3, 4, 2])
KEYS = np.zeros((6, 2), bool)
KEYS[2:5, 0] = True
KEYS[4, 1] = True


def small():
    return Exploration(6, 2, TO_GOAL, FROM_START, {"keys": KEYS})


def array(*values):
    return np.array(values)


def test_a_walk_by_hand():
    """Fails if a step counts its first state, if epochs are not told apart, or if the dead end has a distance."""
    world = small()
    assert world.row() == {
        "graph/size": 6,
        "exploration/total_experienced_states_in_history": 0,
        "exploration/total_experienced_transitions_in_history": 0,
        "exploration/total_experienced_states_in_epoch": 0,
        "exploration/total_experienced_transitions_in_epoch": 0,
        "env/visited_share": 0.0,
        "env/keys_visited": 0,
    }
    world.visit(array(0, 0))
    world.step(array(0, 0), array(1, 0), array(1, 0), at=2)
    world.step(array(1, 0), array(1, 1), array(2, 1), at=4)
    assert world.row() == {
        "graph/size": 6,
        "graph/min_distance_to_goal_in_history": 2,
        "graph/min_distance_to_goal_in_epoch": 2,
        "graph/max_distance_from_start_in_history": 2,
        "graph/max_distance_from_start_in_epoch": 2,
        "exploration/total_experienced_states_in_history": 3,
        "exploration/total_experienced_states_in_epoch": 3,
        "exploration/total_experienced_transitions_in_history": 3,
        "exploration/total_experienced_transitions_in_epoch": 3,
        "env/visited_share": 0.5,
        "env/keys_visited": 1,
    }
    assert world.visits.tolist() == [3, 2, 1, 0, 0, 0]
    assert world.transitions.tolist() == [[1, 2], [0, 1], [0, 0], [0, 0], [0, 0], [0, 0]]
    world.begin_epoch()
    world.step(array(-1, 1), array(0, 0), array(0, 5), at=6)  # one column was reset, the other meets the dead end
    assert world.row() == {
        "graph/size": 6,
        "graph/min_distance_to_goal_in_history": 2,
        "graph/min_distance_to_goal_in_epoch": 4,
        "graph/max_distance_from_start_in_history": 2,
        "graph/max_distance_from_start_in_epoch": 2,
        "exploration/total_experienced_states_in_history": 4,
        "exploration/total_experienced_states_in_epoch": 2,
        "exploration/total_experienced_transitions_in_history": 4,
        "exploration/total_experienced_transitions_in_epoch": 1,
        "env/visited_share": 4 / 6,
        "env/keys_visited": 1,
    }


def test_only_the_dead_end_has_no_distance_to_the_goal():
    world = small()
    world.visit(array(5))
    assert "graph/min_distance_to_goal_in_history" not in world.row()
    assert world.row()["graph/max_distance_from_start_in_history"] == 2


def test_unknown_states_are_not_counted():
    """Fails if -1 counts as the last state."""
    world = small()
    world.visit(array(-1, 0))
    world.step(array(-1, 0, 0), array(1, 1, 1), array(1, -1, 1))
    assert world.visits.tolist() == [1, 2, 0, 0, 0, 0]
    assert world.transitions.sum() == world.transitions[0, 1] == 2


def test_landmarks_are_met_once():
    """Fails if a later visit, or a new epoch, overwrites the first."""
    world = small()
    assert world.first_visits()["keys"].tolist() == [-1, -1]
    world.visit(array(0, 1), at=0)
    world.step(array(1, 0), array(1, 1), array(2, 1), at=7)
    world.begin_epoch()
    world.step(array(2, 1), array(1, 1), array(3, 2), at=9)
    assert world.first_visits()["keys"].tolist() == [7, -1]
    world.step(array(3, -1), array(1, 1), array(4, 4), at=11)
    assert world.first_visits()["keys"].tolist() == [7, 11]
    assert world.row()["env/keys_visited"] == 2


def test_counts_are_those_of_dictionaries():
    """Random steps of 32 columns, unknown ones among them. Fails if a state that comes twice in a step counts once."""
    rng = np.random.default_rng(0)
    size, actions = 50, 3
    to_goal, from_start = rng.integers(-1, 20, size), rng.integers(0, 20, size)
    shown = rng.random((size, 8)) < 0.02
    world = Exploration(size, actions, to_goal, from_start, {"things": shown})
    visits, pairs, first = Counter(), Counter(), {}
    at = 0
    for _ in range(3):
        world.begin_epoch()
        epoch_visits, epoch_pairs = Counter(), Counter()
        for _ in range(4):
            at += 32
            before, taken, after = (rng.integers(low, high, 32) for low, high in ((-1, size), (0, actions), (-1, size)))
            world.step(before, taken, after, at)
            for old, action, new in zip(before.tolist(), taken.tolist(), after.tolist(), strict=True):
                if old >= 0:
                    epoch_pairs[old, action] += 1
                if new >= 0:
                    epoch_visits[new] += 1
                    for thing in np.flatnonzero(shown[new]).tolist():
                        first.setdefault(thing, at)
        visits += epoch_visits
        pairs += epoch_pairs
        row = world.row()
        for period, states, taken in (("history", visits, pairs), ("epoch", epoch_visits, epoch_pairs)):
            assert row[f"exploration/total_experienced_states_in_{period}"] == len(states)
            assert row[f"exploration/total_experienced_transitions_in_{period}"] == len(taken)
            assert row[f"graph/min_distance_to_goal_in_{period}"] == min(to_goal[s] for s in states if to_goal[s] >= 0)
            assert row[f"graph/max_distance_from_start_in_{period}"] == max(from_start[s] for s in states)
        assert world.visits.tolist() == [visits[s] for s in range(size)]
        assert world.transitions.tolist() == [[pairs[s, a] for a in range(actions)] for s in range(size)]
        assert world.first_visits()["things"].tolist() == [first.get(thing, -1) for thing in range(8)]
        assert row["env/things_visited"] == len(first)
    assert 0 < len(first) <= 8


def test_a_snapshot_goes_on_as_if_nothing_had_happened():
    """Fails if the snapshot shares its arrays, or forgets which landmarks or states were met."""
    ways = [array(0, 1), array(2, 5), array(4, 3), array(1, 0)]

    def go(world, at):
        world.step(ways[at], array(0, 1), ways[at + 1], at)

    straight, broken = small(), small()
    for world in (straight, broken):
        go(world, 0)
        world.begin_epoch()
        go(world, 1)
    kept = broken.snapshot()
    assert all(isinstance(value, np.ndarray) for value in kept.values())
    go(broken, 2)
    again = small()
    again.restore(kept)
    go(straight, 2)
    go(again, 2)
    assert again.row() == straight.row()
    for name, value in straight.snapshot().items():
        np.testing.assert_array_equal(again.snapshot()[name], value, err_msg=name)
    assert again.first_visits()["keys"].tolist() == straight.first_visits()["keys"].tolist() == [0, 1]


def test_what_a_snapshot_had_not_seen_is_met_again():
    """Fails if states met after the snapshot are still held as seen."""
    world = small()
    kept = world.snapshot()
    world.visit(np.arange(6), at=3)
    world.restore(kept)
    assert world.row() == small().row()
    world.visit(array(4), at=8)
    assert world.first_visits()["keys"].tolist() == [8, 8]


def test_a_snapshot_of_another_world_is_refused():
    other = Exploration(5, 2, TO_GOAL[:5], FROM_START[:5], {"keys": KEYS[:5]})
    with pytest.raises(CheckpointError, match="not those of a world of 6 states and 2 actions"):
        small().restore(other.snapshot())
    with pytest.raises(CheckpointError):
        small().restore(Exploration(6, 2, TO_GOAL, FROM_START).snapshot())


def test_arrays_must_speak_of_all_states():
    with pytest.raises(ValueError, match="to_goal has 5 states, but the environment has 6"):
        Exploration(6, 2, TO_GOAL[:5], FROM_START)
    with pytest.raises(ValueError, match="keys has 5 states"):
        Exploration(6, 2, TO_GOAL, FROM_START, {"keys": KEYS[:5]})
