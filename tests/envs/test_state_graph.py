"""State graphs: against plain breadth-first search one state at a time, against known numbers, and what is refused."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain import trees
from packtrain.envs.bin_packing import BinPacking
from packtrain.envs.bit_flipper import BitFlipper
from packtrain.envs.deep_sea import DeepSea
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.key_door import KeyDoor
from packtrain.envs.point_mass import PointMass
from packtrain.envs.sliding_puzzle import SlidingPuzzle
from packtrain.envs.sokoban import Sokoban
from packtrain.envs.state_graph import StateGraph
from packtrain.envs.toy_mr import ToyMR
from packtrain.errors import EnvSetupError
from packtrain.planning.model import CoreModel

BOARD = """
######
#@ $.#
#    #
######
"""


class FixedPuzzle(SlidingPuzzle):
    """The sliding puzzle with one start: the first two tiles of the goal go around the board."""

    def initial(self, n, rng):
        return np.tile(np.array([2, 3, 1, 0], np.uint8), (n, 1))


class Fickle:
    """Two switches; turning the second on ends the episode, but not if the first one is turned on after it."""

    observation_space, action_space, max_steps = gym.spaces.Box(0, 1, (2,), np.uint8), gym.spaces.Discrete(2), None

    def initial(self, n, rng):
        return np.zeros((n, 2), np.uint8)

    def step(self, states, actions, rng):
        states = states.copy()
        states[np.arange(len(states)), actions] = 1
        return states, np.zeros(len(states), np.float32), (actions == 1) & (states[:, 0] == 1), {}

    def observe(self, states):
        return states


class Onward:
    """A way that ends at 3, although a step from there would lead on."""

    observation_space, action_space, max_steps = gym.spaces.Box(0, 9, (1,), np.uint8), gym.spaces.Discrete(2), None

    def initial(self, n, rng):
        return np.zeros((n, 1), np.uint8)

    def step(self, states, actions, rng):
        states = np.minimum(states + actions[:, None], 9).astype(np.uint8)
        ended = states[:, 0] >= 3
        return states, ended.astype(np.float32), ended, {"solved": ended}

    def observe(self, states):
        return states


CORES = {
    "key door": lambda: KeyDoor(6, layout_seed=1),
    "hanoi 1": lambda: Hanoi(1),
    "hanoi 3": lambda: Hanoi(3),
    "hanoi 2, 4 pegs": lambda: Hanoi(2, pegs=4),
    "toy mr": lambda: ToyMR("two_rooms"),
    "toy mr, 2 lives": lambda: ToyMR("two_rooms", max_lives=2),
    "toy mr without a way": lambda: ToyMR("one_room_no_key"),
    "deep sea": lambda: DeepSea(5, mapping_seed=1),
    "bits": lambda: BitFlipper(4),
    "puzzle": lambda: FixedPuzzle(2),
    "onward": Onward,
    "sokoban": lambda: Sokoban(levels=BOARD),
}


def rng():
    return np.random.default_rng(0)


def row(states, index):
    return trees.map(lambda leaf: leaf[index : index + 1], states)


def name_of(state):
    return tuple(leaf.tobytes() for leaf in trees.flatten(state))


def plain_graph(core):
    """States in the order of a queue, edges, terminated, steps from the start, steps to the first solving one."""
    start = core.initial(1, rng())
    known, queue, edges, ended, depth, solves = {name_of(start): 0}, [start], [], [False], [0], []
    for number, state in enumerate(queue):  # grows
        edges.append([number] * int(core.action_space.n))
        solves.append([False] * int(core.action_space.n))
        if ended[number]:
            continue
        for action in range(int(core.action_space.n)):
            after, _, terminated, extras = core.step(state, np.array([action]), rng())
            if name_of(after) not in known:
                known[name_of(after)] = len(queue)
                queue.append(after)
                ended.append(bool(terminated[0]))
                depth.append(depth[number] + 1)
            edges[number][action] = known[name_of(after)]
            solves[number][action] = bool(extras["solved"][0])
    endless = 10**9
    goals = {edges[n][a] for n in range(len(queue)) for a in range(len(edges[0])) if solves[n][a]}
    steps = [0 if n in goals else endless for n in range(len(queue))]
    for _ in queue:  # Bellman and Ford, without hurry
        old = list(steps)
        for n in range(len(queue)):
            for a, to in enumerate(edges[n]):
                if n not in goals:
                    steps[n] = min(steps[n], 1 if solves[n][a] else 1 + (endless if to in goals else steps[to]))
        if old == steps:
            break
    return queue, edges, ended, depth, goals, [-1 if s >= endless else s for s in steps]


@pytest.mark.parametrize("name", CORES)
def test_the_graph_is_that_of_a_plain_search(name):
    """Fails if a level forgets a state, if ended states are expanded, or if distances follow edges forward."""
    core = CORES[name]()
    graph = StateGraph(core)
    queue, edges, ended, depth, goals, to_goal = plain_graph(core)
    assert len(graph) == len(queue) > 2
    for number, state in enumerate(queue):
        assert name_of(row(graph.states, number)) == name_of(state)
    np.testing.assert_array_equal(graph.edges, edges)
    np.testing.assert_array_equal(graph.terminated, ended)
    np.testing.assert_array_equal(graph.from_start, depth)
    np.testing.assert_array_equal(np.flatnonzero(graph.solved), sorted(goals))
    np.testing.assert_array_equal(graph.to_goal, to_goal)
    np.testing.assert_array_equal(graph.keys, CoreModel(core).keys(graph.states))
    assert (graph.edges.dtype, graph.from_start.dtype, graph.to_goal.dtype) == (np.int32, np.int32, np.int32)


def test_the_tower_of_seven_disks():
    """The specification's numbers. Fails if illegal moves are left out, or the goal's rest is expanded."""
    graph = StateGraph(Hanoi(7))
    assert (len(graph), graph.edges.size) == (2187, 13_122)
    assert graph.to_goal[0] == graph.from_start[graph.solved].item() == 127
    moves = graph.edges != np.arange(2187)[:, None]
    assert moves.sum() == 3**8 - 3 - 2, "half of all pairs, without the two that leave the goal"
    assert (graph.to_goal >= 0).all()


def test_the_full_map():
    graph = StateGraph(ToyMR(save_enter_cell=False))
    assert (len(graph), int((~graph.terminated).sum())) == (52_828, 45_598)
    assert graph.to_goal[0] == graph.from_start[graph.solved].min() == 232
    assert int(graph.solved.sum()) == 9
    np.testing.assert_array_equal(graph.to_goal < 0, graph.terminated & ~graph.solved)


def test_the_treasure_is_a_step_and_not_a_place():
    """Two ways lead to the lower right end, and one finds nothing. Fails if distances start from solved states."""
    graph = StateGraph(DeepSea(3))
    at = graph.find(np.array([[3, 2], [2, 2], [2, 1], [0, 0]], np.uint8))
    assert graph.edges[at[1], 1] == graph.edges[at[2], 1] == at[0]
    assert graph.to_goal[at].tolist() == [0, 1, -1, 3]


@pytest.mark.parametrize("name", CORES)
def test_states_are_found_again(name):
    """Fails if a leaf is left out of the fingerprint or the order of the sorted ones is forgotten."""
    graph = StateGraph(CORES[name]())
    asked = rng().integers(len(graph), size=100)
    found = graph.find(trees.map(lambda leaf: leaf[asked], graph.states))
    np.testing.assert_array_equal(found, asked)
    assert found.dtype == np.int64
    assert graph.find(trees.map(lambda leaf: leaf[:0], graph.states)).shape == (0,)


def test_an_unreachable_state_has_no_index():
    core = ToyMR("one_room_no_key")
    graph, states = StateGraph(core), core.initial(2, rng())
    states["keys_held"][1] = 1
    assert graph.find(states).tolist() == [0, -1]
    assert graph.from_observations(core.observe(states)).tolist() == [0, -1]
    assert graph.find(core.initial(0, rng())).shape == (0,)


@pytest.mark.parametrize("name", ["hanoi 3", "toy mr, 2 lives", "bits", "puzzle"])
def test_observations_tell_the_state(name):
    """A model's −0.0 is 0, and float64 is as good. Fails if bytes are compared as they come."""
    graph = StateGraph(CORES[name]())
    asked = rng().integers(len(graph), size=100)
    shown = graph.core.observe(trees.map(lambda leaf: leaf[asked], graph.states))
    np.testing.assert_array_equal(graph.from_observations(shown), asked)
    negative = np.where(shown == 0, -0.0, shown.astype(np.float64))
    np.testing.assert_array_equal(graph.from_observations(negative), asked)
    assert (graph.from_observations(shown + 0.5) == -1).all()


def test_observations_of_another_shape_are_an_error():
    with pytest.raises(ValueError, match=r"shape \(6,\) cannot be found among rows of shape \(9,\)"):
        StateGraph(Hanoi(3)).from_observations(np.zeros((2, 6), np.float32))


@pytest.mark.parametrize(
    ("core", "words"),
    [
        (SlidingPuzzle(2), r"StateGraph\(SlidingPuzzle\): episodes start in different states"),
        (Sokoban(boards=2, num_boxes=1, height=5, width=5), r"StateGraph\(Sokoban\): episodes start in different"),
        (Sokoban(levels=BOARD, action_noise=0.1), r"StateGraph\(Sokoban\): the environment is stochastic"),
        (BinPacking(), r"StateGraph\(BinPacking\): the environment is stochastic"),
        (PointMass(), r"StateGraph\(PointMass\): actions must be Discrete, not Box"),
        (Fickle(), r"StateGraph\(Fickle\): a state is terminal when reached by one path, but not by another"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_worlds_without_a_graph_are_refused(core, words):
    with pytest.raises(EnvSetupError, match=words):
        StateGraph(core)


def test_worlds_that_are_too_large_are_refused():
    assert len(StateGraph(Hanoi(4), most=81)) == 81
    with pytest.raises(EnvSetupError, match=r"StateGraph\(Hanoi\): more than 80 states are reachable"):
        StateGraph(Hanoi(4), most=80)
    with pytest.raises(EnvSetupError, match=r"most must be a whole number, 1 or more"):
        StateGraph(Hanoi(4), most=0)


def test_states_that_look_alike_are_refused():
    """The end of the sea looks the same everywhere; states are found all the same."""
    graph = StateGraph(DeepSea(4))
    with pytest.raises(EnvSetupError, match=r"StateGraph\(DeepSea\): some states have equal observations"):
        graph.from_observations(graph.core.observe(graph.states))
    np.testing.assert_array_equal(graph.find(graph.states), np.arange(len(graph)))


def test_landmarks_of_a_map_by_hand():
    """Key, door and rooms of two_rooms along its solution. Fails if keys count while they lie there."""
    core = ToyMR("two_rooms")
    states = core.initial(1, rng())
    seen = [core.landmarks(states)]
    for letter in "EEEEEEESEEN" + "SWWNWWWWWWWSSS":
        states, *_ = core.step(states, np.array(["NESW".index(letter)]), rng())
        seen.append(core.landmarks(states))
    rooms, keys, doors = (np.concatenate([one[name] for one in seen]) for name in ("rooms", "keys", "doors"))
    assert (rooms.shape, keys.shape, doors.shape) == ((26, 3), (26, 1), (26, 1))
    assert core.map.places == ((1, 1), (1, 2), (2, 1))
    assert rooms.argmax(axis=1).tolist() == [0] * 4 + [2] * 15 + [0] * 6 + [1]
    assert (rooms.sum(axis=1) == 1).all()
    assert keys[:, 0].tolist() == [False] * 11 + [True] * 15
    assert doors[:, 0].tolist() == [False] * 24 + [True] * 2


def test_landmarks_of_the_full_map():
    core = ToyMR()
    landmarks = core.landmarks(StateGraph(core).states)
    assert {name: shown.shape[1] for name, shown in landmarks.items()} == {"rooms": 24, "keys": 4, "doors": 4}
    assert all(shown.any(axis=0).all() for shown in landmarks.values())
    assert not any(shown[0].any() for name, shown in landmarks.items() if name != "rooms")
