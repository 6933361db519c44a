"""KeyDoor: the shortest way by breadth-first search, a naive twin, random play exactly, layouts, options."""

import warnings
from collections import deque

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import packtrain.envs.registration  # noqa: F401  (registers)
from packtrain.envs.key_door import EAST, NORTH, SOUTH, WEST, KeyDoor
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import EnvSetupError

RNG = np.random.default_rng(0)
LAYOUTS = [(13, None), (5, None), (6, None), (9, None), (5, 3), (6, 1), (9, 7), (13, 0), (13, 1), (13, 2), (20, 5)]
every_layout = pytest.mark.parametrize(("size", "layout_seed"), LAYOUTS)
MOVES = {NORTH: (-1, 0), EAST: (0, 1), SOUTH: (1, 0), WEST: (0, -1)}


class PlainExplorer:
    """The rules once more, for one explorer, on the letters of a start's picture."""

    def __init__(self, text):
        self.letters = [list(line) for line in text.splitlines()]
        self.at = self.find("@")
        self.letters[self.at[0]][self.at[1]] = "."
        self.has_key = self.over = False

    def find(self, letter):
        (found,) = [(r, c) for r, line in enumerate(self.letters) for c, x in enumerate(line) if x == letter]
        return found

    def step(self, action):
        """(key taken, door opened, solved)."""
        row, column = self.at[0] + MOVES[action][0], self.at[1] + MOVES[action][1]
        letter = self.letters[row][column]
        if self.over or letter == "#" or (letter == "D" and not self.has_key):
            return False, False, False
        self.at, self.letters[row][column] = (row, column), "."
        self.has_key, self.over = self.has_key or letter == "K", letter == "*"
        return letter == "K", letter == "D", letter == "*"

    def text(self):
        lines = [list(line) for line in self.letters]
        lines[self.at[0]][self.at[1]] = "@"
        return "".join("".join(line) + "\n" for line in lines)


def search(text):
    """Steps of the shortest solution, by breadth-first search over cells and what is done; None if there is none."""
    letters = text.splitlines()
    cells = {(r, c): x for r, line in enumerate(letters) for c, x in enumerate(line) if x != "#"}
    (start,) = [cell for cell, letter in cells.items() if letter == "@"]
    queue, steps = deque([(start, False)]), {(start, False): 0}
    while queue:
        cell, has_key = queue.popleft()
        if cells[cell] == "*":
            return steps[cell, has_key]
        for down, right in MOVES.values():
            to = (cell[0] + down, cell[1] + right)
            if to in cells and (cells[to] != "D" or has_key):
                following = (to, has_key or cells[to] == "K")
                if following not in steps:
                    steps[following] = steps[cell, has_key] + 1
                    queue.append(following)
    return None


def way(graph):
    """The actions of a shortest solution."""
    at, actions = 0, []
    while graph.to_goal[at] > 0:
        actions.append(int(graph.to_goal[graph.edges[at]].argmin()))
        at = graph.edges[at, actions[-1]]
    return actions


def start_text(core):
    return core.render(core.initial(1, RNG), "ansi")


@every_layout
def test_the_shortest_solution_by_search(size, layout_seed):
    """Fails if `shortest` walks through walls or forgets the way back; by the rules on paper and by those of `step`."""
    core = KeyDoor(size, layout_seed)
    assert core.shortest == search(start_text(core))
    assert core.shortest == StateGraph(core).to_goal[0]
    if layout_seed is None and size == 13:
        assert core.shortest == 52


@pytest.mark.parametrize("key_reward", [0.0, 0.25])
@every_layout
def test_best_return(size, layout_seed, key_reward):
    core = KeyDoor(size, layout_seed, key_reward)
    actions, states, total = way(StateGraph(core)), core.initial(1, RNG), 0.0
    for t, action in enumerate(actions):
        states, rewards, terminated, extras = core.step(states, np.array([action]), RNG)
        total += rewards[0]
        assert terminated[0] == extras["solved"][0] == (t == len(actions) - 1)
        assert rewards[0] == extras["solved"][0] + key_reward * extras["key_taken"][0]
    assert len(actions) == core.shortest
    assert total == core.best_return == 1 + key_reward


def test_every_layout_can_be_solved():
    """Fails if a gap opens onto the other wall, or if things are drawn on top of one another."""
    steps, texts = [], set()
    for size in (5, 6, 7, 10, 13):
        for seed in range(60):
            core = KeyDoor(size, seed)
            text = start_text(core)
            assert all(text.count(letter) == 1 for letter in "@KD*")
            assert core.shortest == search(text)
            assert search(text.replace("K", ".")) is None, "no way around the door"
            steps.append(core.shortest)
            texts.add(text)
    assert min(steps) >= 8
    assert len(texts) > 200
    assert start_text(KeyDoor(13, 4)) == start_text(KeyDoor(13, 4))


def test_layouts_are_turned_and_mirrored():
    """Of the smallest square nothing else is drawn; fails if one of the eight ways to lay it is missing."""
    assert len({start_text(KeyDoor(5, seed)) for seed in range(60)}) == 8
    starts = np.concatenate([KeyDoor(13, seed).initial(1, RNG) for seed in range(40)])[:, :2]
    assert len(np.unique(starts > 8, axis=0)) == 4, "in the north-west alone, if nothing is turned"


@every_layout
def test_random_walks_are_those_of_a_plain_explorer(size, layout_seed):
    """Fails if a rule differs, if an end is not final, or if a batch mixes its explorers up.

    Half of the actions lead on to the treasure, so that ends are met.
    """
    core, rng = KeyDoor(size, layout_seed, key_reward=0.5), np.random.default_rng(1)
    graph = StateGraph(core)
    states, twins = core.initial(6, rng), [PlainExplorer(start_text(core)) for _ in range(6)]
    for _ in range(6 * core.shortest):
        best = graph.to_goal[graph.edges[graph.find(states)]].argmin(axis=1)
        actions = np.where(rng.random(6) < 0.5, best, rng.integers(4, size=6))
        states, rewards, terminated, extras = core.step(states, actions, rng)
        for i, twin in enumerate(twins):
            key_taken, door_opened, solved = twin.step(actions[i])
            assert core.render(states[i:], "ansi") == twin.text()
            assert (extras["key_taken"][i], extras["door_opened"][i]) == (key_taken, door_opened)
            assert (extras["solved"][i], terminated[i]) == (solved, twin.over)
            assert rewards[i] == solved + 0.5 * key_taken
    assert terminated.all()


def test_random_play_solves_practically_never():
    """The docstring's rates, from the Markov chain of uniformly random play; fails if the default gets easier."""
    core = KeyDoor()
    graph = StateGraph(core)
    chance = np.zeros(len(graph))
    chance[0] = 1
    for _ in range(core.max_steps):
        following = np.zeros(len(graph))
        np.add.at(following, graph.edges, chance[:, None] / 4)
        chance = following
    assert chance.sum() == pytest.approx(1)
    assert chance[graph.solved].sum() == pytest.approx(3.96e-5, abs=0.005e-5)
    assert chance[graph.states[:, 2] >= 1].sum() == pytest.approx(0.21, abs=0.005)
    assert (core.max_steps, len(graph)) == (260, 256)


def test_random_play_simulated():
    """Agrees with the chain: the key in 20.8 % of the episodes, standard error 0.6 %; no treasure in 5,000."""
    core, rng = KeyDoor(), np.random.default_rng(3)
    states, solved = core.initial(5000, rng), 0
    for _ in range(core.max_steps):
        states, rewards, _, extras = core.step(states, rng.integers(4, size=5000), rng)
        assert (rewards == extras["solved"]).all()
        solved += extras["solved"].sum()
    assert (states[:, 2] >= 1).mean() == pytest.approx(0.208, abs=0.02)
    assert solved <= 2


@pytest.mark.parametrize(
    ("state", "action", "following", "reward", "extra"),
    [
        ([1, 1, 0], WEST, [1, 1, 0], 0, None),  # the wall
        ([1, 1, 0], NORTH, [1, 1, 0], 0, None),
        ([1, 1, 0], EAST, [1, 2, 0], 0, None),
        ([2, 1, 0], SOUTH, [3, 1, 1], 0.5, "key_taken"),
        ([2, 1, 1], SOUTH, [3, 1, 1], 0, None),  # only once
        ([1, 3, 0], SOUTH, [1, 3, 0], 0, None),  # a door without a key
        ([1, 3, 1], SOUTH, [2, 3, 2], 0, "door_opened"),
        ([1, 3, 2], SOUTH, [2, 3, 2], 0, None),  # open for good
        ([2, 3, 2], SOUTH, [3, 3, 3], 1, "solved"),
        ([3, 3, 3], NORTH, [3, 3, 3], 0, None),  # after the end
        ([3, 3, 3], SOUTH, [3, 3, 3], 0, None),
    ],
)
def test_steps_by_hand(state, action, following, reward, extra):
    core = KeyDoor(5, key_reward=0.5)
    states, rewards, terminated, extras = core.step(np.array([state], np.uint8), np.array([action]), RNG)
    assert states.tolist() == [following]
    assert (rewards[0], terminated[0]) == (reward, following[2] == 3)
    assert [name for name, flags in extras.items() if flags[0]] == ([] if extra is None else [extra])


def test_observations_by_hand():
    """Fails if planes are swapped, or if something stays in the picture after it was taken or opened."""
    core = KeyDoor(5)
    states = np.array([[1, 1, 0], [3, 1, 1], [2, 3, 2], [3, 3, 3]], np.uint8)
    shown = core.observe(states)
    assert (shown.shape, shown.dtype) == ((4, 5, 5, 5), np.uint8)
    assert set(np.unique(shown)) == {0, 255}
    walls = ["#####", "#...#", "#.#.#", "#.#.#", "#####"]
    for i, (row, column, stage) in enumerate(states.tolist()):
        wall, explorer, key, door, treasure = shown[i] == 255
        assert wall.tolist() == [[letter == "#" for letter in line] for line in walls]
        assert np.argwhere(explorer).tolist() == [[row, column]]
        assert np.argwhere(key).tolist() == ([[3, 1]] if stage == 0 else [])
        assert np.argwhere(door).tolist() == ([[2, 3]] if stage <= 1 else [])
        assert np.argwhere(treasure).tolist() == ([[3, 3]] if stage <= 2 else [])


@every_layout
def test_observations_and_bytes_tell_the_states(size, layout_seed):
    """Fails for a dtype that changes on the way, and if two states look alike."""
    core = KeyDoor(size, layout_seed)
    graph = StateGraph(core)
    np.testing.assert_array_equal(graph.from_observations(core.observe(graph.states)), np.arange(len(graph)))
    assert graph.states.dtype == core.initial(1, RNG).dtype == np.uint8
    stepped, *_ = core.step(graph.states, RNG.integers(4, size=len(graph)), RNG)
    assert stepped.dtype == np.uint8 and stepped.flags.c_contiguous


def test_arguments_stay_as_they_are():
    """Fails if a method writes into states or actions, or hands out arrays that share memory with them or the core."""
    core, rng = KeyDoor(6), np.random.default_rng(4)
    states = core.initial(8, rng)
    states[0] = (1, 1, 2)
    for _ in range(20):
        actions = rng.integers(4, size=8)
        before, shown = states.copy(), core.observe(states)
        states.flags.writeable = actions.flags.writeable = False
        following, *_ = core.step(states, actions, rng)
        core.render(states, "rgb_array")
        np.testing.assert_array_equal(states, before)
        again = core.observe(states)
        again[:] = 7
        np.testing.assert_array_equal(core.observe(states), shown)
        assert following.flags.writeable and not np.shares_memory(following, states)
        states = following


def test_shapes_and_spaces():
    core, rng = KeyDoor(), np.random.default_rng(5)
    states = core.initial(7, rng)
    assert core.observation_space.shape == (5, 13, 13)
    for _ in range(15):
        states, rewards, terminated, extras = core.step(states, rng.integers(4, size=7), rng)
        assert (rewards.shape, rewards.dtype) == ((7,), np.float32)
        assert set(extras) == {"solved", "key_taken", "door_opened"}
        assert all((flags.shape, flags.dtype) == ((7,), bool) for flags in (terminated, *extras.values()))
        assert all(core.observation_space.contains(one) for one in core.observe(states))


def test_a_large_square_can_be_crossed():
    """300 cells need numbers above 255; fails if states are always uint8."""
    core = KeyDoor(300)
    states = np.array([[1, 254, 0], [298, 254, 2]], core._dtype)
    for _ in range(10):
        states, *_ = core.step(states, np.array([EAST, EAST]), RNG)
    assert states.tolist() == [[1, 264, 0], [298, 264, 2]]
    assert (np.argwhere(core.observe(states)[:, 1])[:, 1:] == states[:, :2]).all()


def test_landmarks_and_chart():
    core = KeyDoor(5)
    states = np.array([[1, 1, 0], [3, 1, 1], [2, 3, 2], [3, 3, 3]], np.uint8)
    marks = core.landmarks(states)
    assert marks["keys"].tolist() == [[False], [True], [True], [True]]
    assert marks["doors"].tolist() == [[False], [False], [True], [True]]
    assert core.chart(states).tolist() == [[1, 1], [3, 1], [2, 3], [3, 3]]
    assert core.chart_shape() == (5, 5)


def test_render_shows_state_zero():
    core, states = KeyDoor(5), np.array([[1, 2, 0], [2, 3, 2], [3, 3, 3]], np.uint8)
    assert core.render(states, "ansi") == "#####\n#.@.#\n#.#D#\n#K#*#\n#####\n"
    assert core.render(states[1:], "ansi") == "#####\n#...#\n#.#@#\n#.#*#\n#####\n"
    assert core.render(states[2:], "ansi") == "#####\n#...#\n#.#.#\n#.#@#\n#####\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (80, 80, 3) and picture.dtype == np.uint8
    assert (picture[16:32, 32:48] == (90, 160, 250)).all() and (picture[48:64, 16:32] == (240, 210, 60)).all()
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


def test_the_docstring_shows_the_default():
    drawn = start_text(KeyDoor(9)).splitlines()
    assert "\n".join(" " * 8 + line for line in drawn) in KeyDoor.__doc__


def test_the_clock():
    """Fails if the default does not follow the size, or if None or a number is not taken as it is."""
    assert [KeyDoor(size).max_steps for size in (5, 13)] == [100, 260]
    assert (KeyDoor(max_steps=None).max_steps, KeyDoor(max_steps=7).max_steps) == (None, 7)
    env = gym.make("packtrain/KeyDoor-v0", size=5, max_steps=4)
    env.reset(seed=0)
    ends = [env.step(WEST)[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


@pytest.mark.parametrize("kwargs", [{}, {"size": 5, "layout_seed": 2, "key_reward": 0.1}])
def test_gymnasium_accepts_the_environment(kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("packtrain/KeyDoor-v0", **kwargs).unwrapped)


@pytest.mark.parametrize(
    ("wrong", "must"),
    [
        ({"size": 4}, "a whole number, 5 or more"),
        ({"size": 7.5}, "a whole number"),
        ({"layout_seed": -1}, "a whole number, 0 or more"),
        ({"layout_seed": "a"}, "a whole number"),
        ({"key_reward": -0.5}, "a number from 0 to 1"),
        ({"max_steps": 0}, "a whole number, 1 or more"),
        ({"max_steps": "long"}, "a whole number, 1 or more"),
    ],
)
def test_options_that_cannot_be_meant(wrong, must):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"KeyDoor\({name}=.*\): {name} must be {must}") as error:
        KeyDoor(**wrong)
    assert "\n" not in str(error.value)
