"""Toy Montezuma's Revenge: walks by hand, a naive twin, exhaustive search of every map, errors of the parser."""

import pickle
import tomllib
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs import toy_mr_map
from packtrain.envs.functional import FunctionalEnv
from packtrain.envs.state_graph import StateGraph
from packtrain.envs.toy_mr import ToyMR
from packtrain.envs.toy_mr_map import load_map, map_names, parse_map
from packtrain.errors import EnvSetupError

MOVES = {"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}

# A trap east of the key, the goal's door south, and in the second room a door on the cell entered from the first.
SMALL = """; for walks by hand
room 3 5
#######
#.@...#
#.K^...
####D##

room 4 5
#######
#.K...#
D...^.#
#######

goal 3 6
"""

# map → all states, those that are not over, length of the shortest solution; one life and no enter cell. The numbers
# are those of the maps these are modelled on, but for the two that are our own drawings: two_rooms and pyramid_24.
SIZES = {
    "one_room": (193, 192, 17),
    "one_room_no_key": (64, 64, None),
    "two_rooms": (72, 63, 25),
    "four_rooms": (463, 462, 128),
    "hall_way": (975, 974, 47),
    "one_room_20": (973, 972, 64),
    "one_room_20_traps": (1102, 912, 64),
    "one_room_20_dense": (1236, 744, 64),
    "one_room_30": (2353, 2352, 104),
    "one_room_30_traps": (2848, 2121, 104),
    "one_room_30_dense": (2964, 1905, 104),
    "one_room_50": (6913, 6912, 184),
    "one_room_50_traps": (8410, 6150, 184),
    "one_room_50_dense": (8664, 5544, 184),
    "narrow_hall_way_5": (505, 504, 95),
    "narrow_hall_way_7": (709, 708, 135),
    "narrow_hall_way_11": (1117, 1116, 215),
    "narrow_hall_way_9_traps": (997, 768, 255),
    "narrow_hall_way_13_traps": (1447, 1104, 375),
    "traps_slalom": (2536, 1452, 795),
    "pyramid_24": (52_828, 45_598, 232),
}
FULL_DEATHS, FULL_GOALS = 7_221, 9


@pytest.fixture
def small(tmp_path):
    """The path of SMALL."""
    (tmp_path / "small.txt").write_text(SMALL)
    return str(tmp_path / "small.txt")


def rng():
    return np.random.default_rng(0)


def walk(core, way, states=None):
    """Take the steps of a way like "NES", one explorer; everything `step` gave for the last one."""
    states = core.initial(1, rng()) if states is None else states
    for letter in way:
        states, rewards, terminated, extras = core.step(states, np.array(["NESW".index(letter)]), rng())
    return states, rewards[0], terminated[0], {name: value[0] for name, value in extras.items()}


def where(core, states):
    x, y = core.map.places[states["room"][0]]
    return x, y, int(states["column"][0]), int(states["row"][0])


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def explore(core):
    """Search all states by breadth: (all states, not over, dead, at the goal, steps of the shortest solution)."""
    keys, doors = (len(core.map.items(letter)) for letter in "KD")

    def number(states):
        cell = (states["room"].astype(np.int64) * core.map.height + states["row"]) * core.map.width + states["column"]
        return (((cell * 2 + states["over"]) << keys) + states["keys"] << doors) + states["doors"]

    seen = np.zeros(len(core.map.cells) * 2 << keys + doors, bool)
    states, depth, shortest, live, dead, goals = core.initial(1, rng()), 0, None, 1, 0, 0
    seen[number(states)] = True
    while len(states["room"]):
        tried = {name: np.repeat(leaf, 4) for name, leaf in states.items()}
        new, _, terminated, extras = core.step(tried, np.tile(np.arange(4), len(states["room"])), rng())
        depth += 1
        if shortest is None and extras["solved"].any():
            shortest = depth
        numbers, first = np.unique(number(new), return_index=True)
        first = first[~seen[numbers]]
        seen[numbers] = True
        goals += int(extras["solved"][first].sum())
        dead += int((terminated & ~extras["solved"])[first].sum())
        states = {name: leaf[first[~terminated[first]]] for name, leaf in new.items()}
        live += len(states["room"])
    return int(seen.sum()), live, dead, goals, shortest


def naive_step(core, state, action):
    """The rules for one explorer, from the drawing, slowly. State: a dict of Python values."""
    drawn, state = core.map, {**state, "keys": set(state["keys"]), "doors": set(state["doors"])}
    if state["over"]:
        return state, 0.0, False
    dx, dy = MOVES["NESW"[action]]
    (x, y), column, row = state["place"], state["column"] + dx, state["row"] + dy
    if not (0 <= column < drawn.width and 0 <= row < drawn.height):
        x, y, column, row = x + dx, y + dy, column % drawn.width, row % drawn.height
    goal = (x, y) == drawn.places[drawn.goal]
    here = (x, y, column, row)
    letter = drawn.drawings[drawn.places.index((x, y))][row * drawn.width + column]
    if letter == "#":
        return state, 0.0, False
    if letter == "^":
        state["lives"] -= 1
        state["over"] = state["lives"] == 0
        if not state["over"]:
            state["column"], state["row"] = state["enter"]
        return state, core.trap_reward, False
    if here in state["doors"]:
        if not state["held"]:
            return state, 0.0, False
        state["held"] -= 1
        state["doors"].remove(here)
    if here in state["keys"]:
        state["held"] += 1
        state["keys"].remove(here)
    if (x, y) != state["place"]:
        state["enter"] = (column, row)
    state.update(place=(x, y), column=column, row=row, over=goal)
    return state, float(goal), goal


# Walks by hand.


def test_a_wall_stops_the_step(small):
    core = ToyMR(small)
    states, reward, terminated, extras = walk(core, "N")
    same(states, core.initial(1, rng()))
    assert (reward, terminated, extras["solved"]) == (0, False, False)
    for letter, (dx, dy) in MOVES.items():
        if letter != "N":
            assert where(core, walk(core, letter)[0]) == (3, 5, 2 + dx, 1 + dy)


def test_a_key_is_taken_once_and_opens_one_door(small):
    """Fails if a key stays, is not counted, or a door costs none or is closed again."""
    core = ToyMR(small)
    states, reward, terminated, extras = walk(core, "S")
    assert where(core, states) == (3, 5, 2, 2)
    assert (states["keys_held"][0], reward, terminated) == (1, 0, False)
    assert extras["key_taken"] and not extras["door_opened"]
    states, *_, extras = walk(core, "NS", states)
    assert states["keys_held"][0] == 1 and not extras["key_taken"], "there is no second key"
    states, *_, extras = walk(core, "NEESEEE", states)
    assert where(core, states) == (4, 5, 0, 2) and extras["door_opened"], "the next room's door, on its border"
    assert states["keys_held"][0] == 0
    states, *_, extras = walk(core, "WE", states)
    assert where(core, states) == (4, 5, 0, 2) and not extras["door_opened"], "it stays open, at no price"
    states, *_ = walk(core, "WWWS", states)
    assert where(core, states) == (3, 5, 4, 2), "no key is left for the other door"
    states, reward, terminated, _ = walk(core, "EEEENE" + "WSWWWW" + "SS", states)
    assert (where(core, states), reward, terminated) == ((3, 6, 4, 0), 1, True), "with the second key"


def test_a_closed_door_is_a_wall_without_a_key(small):
    core = ToyMR(small)
    for way, letter in (("EES", "S"), ("EESEE", "E")):
        before, *_ = walk(core, way)
        after, *_, extras = walk(core, letter, before)
        same(after, before)
        assert not extras["door_opened"]
        after, *_, extras = walk(core, "SN" + way + letter)
        assert where(core, after) != where(core, before) and extras["door_opened"]


def test_solutions_by_hand():
    for name, way, end in (
        ("one_room", "NNWW" + "SSSSSSEEEEESS", (1, 2, 7, 0)),
        ("two_rooms", "EEEEEEESEEN" + "SWWNWWWWWWWSSS", (1, 2, 3, 0)),
    ):
        core = ToyMR(name)
        for i in range(1, len(way)):
            _, reward, terminated, extras = walk(core, way[:i])
            assert (reward, terminated, extras["solved"]) == (0, False, False), way[:i]
        states, reward, terminated, extras = walk(core, way)
        assert (reward, terminated, extras["solved"]) == (1, True, True)
        assert where(core, states) == end
        assert extras["room"] == core.map.goal


def test_the_last_life_ends_the_episode_where_one_stood(small):
    states, reward, terminated, extras = walk(ToyMR(small, trap_reward=-0.5), "SE")
    assert (reward, terminated, extras["solved"]) == (-0.5, True, False)
    assert where(ToyMR(small), states) == (3, 5, 2, 2) and states["lives"][0] == 0


def test_after_the_end_nothing_changes_and_nothing_is_paid():
    """A planner may step dead states along with live ones; fails if the goal pays twice or a trap kills twice."""
    for core, way in ((ToyMR("one_room"), "NNWWSSSSSSEEEEESS"), (ToyMR("two_rooms", trap_reward=-1), "EEEEEEEE")):
        states, reward, terminated, _ = walk(core, way)
        assert terminated and reward != 0
        for letter in "NESW":
            after, reward, terminated, extras = walk(core, letter, states)
            same(after, states)
            assert (reward, terminated, extras["solved"]) == (0, True, False)


def test_a_trap_sends_back_to_where_the_room_was_entered(small):
    """Fails if one goes back to the start instead, if the cell is not renewed, or if any lost life ends the episode."""
    core = ToyMR(small, max_lives=4, trap_reward=-0.5, save_enter_cell=False)
    states, reward, terminated, _ = walk(core, "SE")
    assert (where(core, states), reward, terminated) == ((3, 5, 2, 1), -0.5, False), "the start"
    states, reward, terminated, _ = walk(core, "EESEEE" + "EEEE", states)
    assert (where(core, states), reward, terminated) == ((4, 5, 0, 2), -0.5, False), "the door"
    states, reward, terminated, _ = walk(core, "W" + "WWW", states)
    assert (where(core, states), reward, terminated) == ((3, 5, 6, 2), -0.5, False), "the opening"
    assert states["lives"][0] == 1
    states, reward, terminated, _ = walk(core, "WWW", states)
    assert (where(core, states), reward, terminated) == ((3, 5, 4, 2), -0.5, True)


# Observations.


def test_observations_by_hand(small):
    #       room   held  cell  doors   entered  keys  lives  over
    start = [3, 5, 0, 2, 1, 1, 1, 2, 1, 1, 1, 1, 0]
    core = ToyMR(small)
    np.testing.assert_array_equal(core.observe(core.initial(2, rng())), [start, start])
    states, *_ = walk(core, "SNEESEEEEEE")
    np.testing.assert_array_equal(core.observe(states), [[4, 5, 0, 3, 2, 1, 0, 0, 2, 0, 1, 1, 0]])
    states, *_ = walk(core, "E", states)
    np.testing.assert_array_equal(core.observe(states), [[4, 5, 0, 3, 2, 1, 0, 0, 2, 0, 1, 0, 1]])
    core = ToyMR(small, absolute_coordinates=True, doors_keys_scale=10, save_enter_cell=False)
    states, *_ = walk(core, "S")
    np.testing.assert_array_equal(core.observe(states), [[3, 5, 1, 3 * 7 + 2, 5 * 4 + 2, 10, 10, 0, 10, 1, 0]])


@pytest.mark.parametrize("name", ["pyramid_24", "hall_way", "one_room_no_key"])
def test_length_of_observations(name):
    """7 + keys + doors, and 2 for the enter cell: 15 and 17 on the full map."""
    keys, doors = {"pyramid_24": (4, 4), "hall_way": (3, 3), "one_room_no_key": (0, 1)}[name]
    for given, length in (({"save_enter_cell": False}, 7), ({}, 9), ({"save_enter_cell": False, "max_lives": 2}, 9)):
        core = ToyMR(name, **given)
        assert core.observation_space.shape == (length + keys + doors,)
        assert core.observe(core.initial(3, rng())).shape == (3, length + keys + doors)


@pytest.mark.parametrize("given", [{}, {"save_enter_cell": False}, {"absolute_coordinates": True, "max_lives": 3}])
def test_random_walks_agree_with_the_naive_twin(small, given):
    """The same rules written for one explorer, from the drawing; also: observations tell all of a state."""
    for name in (small, "two_rooms", "hall_way", "narrow_hall_way_9_traps"):
        core, generator, n = ToyMR(name, doors_keys_scale=3, trap_reward=-0.25, **given), np.random.default_rng(1), 64
        drawn = core.map
        items = {
            letter: [(*drawn.places[room], column, row) for room, column, row in map(drawn.where, drawn.items(letter))]
            for letter in "KD@"
        }
        x, y, column, row = items["@"][0]
        twin = {"place": (x, y), "column": column, "row": row, "enter": (column, row), "held": 0, "over": False}
        twins = [{**twin, "keys": set(items["K"]), "doors": set(items["D"]), "lives": core.max_lives} for _ in range(n)]
        states, over = core.initial(n, rng()), 0
        for _ in range(150):
            actions = generator.integers(4, size=n)
            states, rewards, terminated, extras = core.step(states, actions, generator)
            expected = [naive_step(core, twin, action) for twin, action in zip(twins, actions, strict=True)]
            twins = [twin for twin, _, _ in expected]
            assert rewards.tolist() == [reward for _, reward, _ in expected]
            assert terminated.tolist() == [twin["over"] for twin in twins]
            assert extras["solved"].tolist() == [solved for _, _, solved in expected]
            assert [drawn.places[room] for room in extras["room"]] == [twin["place"] for twin in twins]
            seen = core.observe(states)
            for row, twin in zip(seen, twins, strict=True):
                (x, y), column, line = twin["place"], twin["column"], twin["row"]
                if core.absolute_coordinates:
                    column, line = x * drawn.width + column, y * drawn.height + line
                doors, keys = (
                    [3 * (item in twin[kind]) for item in items[k]] for kind, k in (("doors", "D"), ("keys", "K"))
                )
                enter = twin["enter"] if core.keeps_enter_cell else ()
                assert row.tolist() == [
                    x,
                    y,
                    twin["held"],
                    column,
                    line,
                    *doors,
                    *enter,
                    *keys,
                    twin["lives"],
                    twin["over"],
                ]
            assert all(map(core.observation_space.contains, seen))
            same(core.states_of(seen), states)
            over += terminated.any()
        assert over or name == "hall_way", "the walks met no end"


def test_states_of_an_observation_outside_the_map():
    core = ToyMR("one_room")
    seen = core.observe(core.initial(2, rng()))
    seen[1, 0] = 7
    with pytest.raises(ValueError, match="map one_room has no room"):
        core.states_of(seen)


# The core's contract.


def scattered(core, n, steps=120):
    """States of n explorers after a random walk of up to 120 steps each."""
    generator = np.random.default_rng(2)
    states = core.initial(n, generator)
    for _ in range(steps):
        states, *_ = core.step(states, generator.integers(4, size=n), generator)
    return states


@pytest.mark.parametrize("lives", [1, 3])
def test_batch_is_loop(lives):
    core, n = ToyMR("narrow_hall_way_9_traps", max_lives=lives, trap_reward=-1), 50
    states, actions = scattered(core, n), np.arange(n) % 4
    new, rewards, terminated, extras = core.step(states, actions, rng())
    seen = core.observe(new)
    for i in range(n):
        one = {name: leaf[i : i + 1] for name, leaf in states.items()}
        new_one, reward, over, extra = core.step(one, actions[i : i + 1], rng())
        same(new_one, {name: leaf[i : i + 1] for name, leaf in new.items()})
        assert (reward[0], over[0]) == (rewards[i], terminated[i])
        same(extra, {name: leaf[i : i + 1] for name, leaf in extras.items()})
        np.testing.assert_array_equal(core.observe(new_one)[0], seen[i])


def test_pure():
    """Read-only arguments, and results that share no memory with them or with each other."""
    core = ToyMR("two_rooms", max_lives=2)
    states = scattered(core, 8, steps=5)
    for leaf in states.values():
        leaf.setflags(write=False)
    new, rewards, terminated, extras = core.step(states, np.arange(8) % 4, rng())
    core.observe(states)
    given = [*new.values(), rewards, terminated, *extras.values()]
    for i, leaf in enumerate(given):
        assert leaf.shape == (8,)
        assert not any(np.shares_memory(leaf, other) for other in [*states.values(), *given[:i]])
    again, *_ = core.step(states, np.arange(8) % 4, rng())
    same(again, new)


def test_equal_states_are_equal_bytes():
    """Two ways to one cell. Fails if the enter cell stays in the state when it is not to be saved."""

    def contents(core, way):
        return {name: leaf.tobytes() for name, leaf in walk(core, way)[0].items()}

    core = ToyMR("two_rooms", save_enter_cell=False)
    assert contents(core, "EEE") == contents(core, "EEEEW") == contents(core, "SEENE") != contents(core, "EE")
    core = ToyMR("two_rooms")
    stayed, returned = contents(core, "EEE"), contents(core, "EEEEW")
    assert {name for name in stayed if stayed[name] != returned[name]} == {"enter_column"}
    assert stayed == contents(core, "SEENE")


def test_shapes_and_dtypes():
    core = ToyMR()
    states = core.initial(7, rng())
    assert all(leaf.shape == (7,) and leaf.dtype.itemsize <= 4 for leaf in states.values())
    assert core.observe(states).dtype == np.float32
    assert core.action_space == gym.spaces.Discrete(4)
    new, reward, terminated, extras = core.step(states, np.zeros(7, np.int64), rng())
    assert {name: leaf.dtype for name, leaf in new.items()} == {name: leaf.dtype for name, leaf in states.items()}
    assert (reward.shape, reward.dtype) == ((7,), np.float32)
    assert (terminated.shape, terminated.dtype) == ((7,), bool)
    assert (extras["solved"].shape, extras["solved"].dtype) == ((7,), bool)
    assert core.initial(0, rng())["room"].shape == (0,)
    assert core.observe(core.initial(0, rng())).shape == (0, 17)
    assert pickle.loads(pickle.dumps(core)).map == core.map


def test_as_a_gymnasium_environment():
    env = FunctionalEnv("packtrain.envs.toy_mr:ToyMR", map="one_room", max_steps=3, render_mode="ansi")
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    before = env.snapshot()
    for expected in (False, False, True):
        obs, reward, terminated, truncated, info = env.step(0)
        assert (reward, terminated, truncated, bool(info["solved"])) == (0, False, expected, False)
    assert env.restore(before).tolist() != obs.tolist()
    assert env.render().count("@") == 1
    assert (ToyMR().max_steps, ToyMR(max_steps=None).max_steps) == (600, None)


# Pictures.


def test_render_text(small):
    core = ToyMR(small)
    start = core.initial(1, rng())
    assert core.render(start, "ansi") == "#######\n#.@...#\n#.K^...\n####D##\nroom 3 5  keys 0  lives 1\n"
    states, *_ = walk(core, "S")
    assert core.render(states, "ansi") == "#######\n#.....#\n#.@^...\n####D##\nroom 3 5  keys 1  lives 1\n"
    states, *_ = walk(core, "NEESSN", states)
    assert core.render(states, "ansi") == "#######\n#.....#\n#..^@..\n####.##\nroom 3 5  keys 0  lives 1\n"
    goal, *_ = walk(core, "SS", states)
    assert core.render(goal, "ansi").startswith("GGGG@GG\nGGGGGGG\n")
    dead, *_ = walk(core, "W", states)
    assert core.render(dead, "ansi") == "#######\n#.....#\n#..^x..\n####.##\nroom 3 5  keys 0  lives 0\n"


def test_render_picture(small):
    core = ToyMR(small, max_lives=2)
    states, *_ = walk(core, "S")
    picture = core.render(states, "rgb_array")
    assert picture.shape == (5 * 16, 7 * 16, 3) and picture.dtype == np.uint8
    cells = picture[8::16, 8::16]
    colours = {tuple(colour) for colour in cells[:4].reshape(-1, 3).tolist()}
    assert len(colours) == 5, "wall, floor, explorer, trap, door; the key is taken"
    np.testing.assert_array_equal(picture, cells.repeat(16, axis=0).repeat(16, axis=1))
    assert cells[4].any(axis=1).tolist() == [True] * 3 + [False] * 4, "a key and two lives"
    before = core.render(core.initial(1, rng()), "rgb_array")[8::16, 8::16]
    assert (before[2, 2] == cells[4, 0]).all(), "the key lay there"
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


# Maps.


def test_every_map_has_its_numbers():
    assert sorted(SIZES) == map_names()


@pytest.mark.parametrize("name", sorted(set(SIZES) - {"pyramid_24"}))
def test_states_and_shortest_solution(name):
    """By exhaustive search; fails if a map is edited, or a rule (door price, trap, entry) changes."""
    total, live, dead, goals, shortest = explore(ToyMR(name, save_enter_cell=False))
    assert (total, live, shortest) == SIZES[name]
    assert (total, goals) == (live + dead + goals, 0 if shortest is None else 1)


def test_states_and_shortest_solution_of_the_full_map():
    """52 828 states: our drawing's number. The shortest solution has the length of the original's."""
    total, live, dead, goals, shortest = explore(ToyMR("pyramid_24", save_enter_cell=False))
    assert (total, live, shortest) == SIZES["pyramid_24"]
    assert (dead, goals) == (FULL_DEATHS, FULL_GOALS)


def test_the_old_name_of_the_full_map_is_an_alias_that_says_so(capsys):
    """The interiors are not those of the published map: 45,598 live states for 30,884, 45 % self-loops for 29 %."""
    toy_mr_map._renamed.cache_clear()
    assert load_map("full_mr_map") == load_map("full_mr_map") == load_map("pyramid_24")
    (line,) = capsys.readouterr().err.splitlines()
    assert "'full_mr_map' is now called 'pyramid_24'" in line
    assert "full_mr_map" not in map_names()
    core = ToyMR("pyramid_24", save_enter_cell=False)
    graph = StateGraph(core)
    live = np.flatnonzero(~graph.terminated)
    loops = (graph.edges[live] == live[:, None]).mean()
    assert len(live) == 45_598 and round(float(loops), 2) == 0.45


def test_plan_of_the_full_map():
    """Rooms, links, keys, doors and traps: west, east on row 1, north, south at column 5."""
    drawn = load_map("pyramid_24")
    assert (drawn.width, drawn.height, len(drawn.places)) == (11, 11, 24)
    rows = {1: range(4, 7), 2: range(3, 8), 3: range(2, 9), 4: range(1, 10)}
    assert set(drawn.places) == {(x, y) for y, xs in rows.items() for x in xs}
    assert drawn.places[drawn.goal] == (1, 4)
    at = {
        letter: [(*drawn.places[room], column, row) for room, column, row in map(drawn.where, drawn.items(letter))]
        for letter in "@KD^"
    }
    assert at["@"] == [(5, 1, 5, 1)]
    assert [item[:2] for item in at["K"]] == [(2, 3), (5, 1), (7, 2), (8, 3)]
    assert at["D"] == [(3, 4, 0, 1), (4, 4, 0, 1), (5, 1, 0, 1), (5, 1, 10, 1)]
    assert len(at["^"]) == 100
    links = set()
    for cell, letter in enumerate(drawn.cells):
        room, column, row = drawn.where(cell)
        for action in range(4):
            target = drawn.beyond(cell, action)
            if letter == "#" or room == drawn.goal or drawn.where(target)[0] == room:
                continue
            assert (row == 1) if action in (1, 3) else (column == 5)
            links.add(frozenset((drawn.places[room], drawn.places[drawn.where(target)[0]])))
    plan = (
        "51-41 41-42 42-32 42-43 32-33 33-23 51-61 61-62 62-72 72-73 43-53 53-52 53-63 53-54 63-73 73-83 73-74 83-84 "
        "84-74 84-94 54-44 54-64 44-34 34-24 24-14"
    )
    assert links == {frozenset((int(end[0]), int(end[1])) for end in link.split("-")) for link in plan.split()}


def test_maps_are_installed_with_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "envs/maps/*.txt" in project["tool"]["setuptools"]["package-data"]["packtrain"]


# Errors of the parser.

ROOM = "room 1 1\n#####\n#@K.#\n###D#\n\n"
GOAL = "goal 1 2\n"


def test_a_smallest_map():
    drawn = parse_map(ROOM + GOAL)
    assert (drawn.width, drawn.height, drawn.places, drawn.goal) == (5, 3, ((1, 1), (1, 2)), 1)
    parse_map("; remark\n\n" + GOAL + "\n" + ROOM.replace("\n", "  \n"))  # order, remarks, blanks at line ends


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ROOM.replace("@", ".") + GOAL, r"^map m: no start \(@\) is drawn$"),
        (ROOM.replace("K.", "K@") + GOAL, r"more than one start: column 1, row 1 of room 1 1 and column 3, row 1 of"),
        (ROOM.replace("#@K.#", "#@K.##") + GOAL, r"^map m, line 3: this line has 6 cells, the room's first line 5$"),
        (ROOM.replace("#@K.#", "#@K#") + GOAL, r"line 3: this line has 4 cells"),
        (ROOM.replace("K.", "KX") + GOAL, r"^map m, line 3: unknown letter 'X'; a drawing is made of # \. @ K \^ D$"),
        (
            "room 1 1\n#######\n#@K.#K#\n###D###\n\n" + GOAL,
            r"the key at column 5, row 1 of room 1 1 cannot be reached$",
        ),
        (
            "room 1 1\n#######\n#@K.^K#\n###D###\n\n" + GOAL,
            r"the key at column 5, row 1 of room 1 1 cannot be reached$",
        ),
        ("room 1 1\n######\n#@.D.#\n#..#K#\n####.#\n\n" + GOAL, r"the key at column 4, row 2 of room 1 1 cannot"),
        (ROOM.replace("K", ".") + GOAL, r"there are doors but no key; say 'unsolvable' if this is meant$"),
        (ROOM.replace("K", "^") + "goal 1 2\n", r"there are doors but no key"),
        (ROOM + "goal 1 0\n", r"the opening at column 3, row 2 of room 1 1 leads south to no room$"),
        (ROOM.replace("#@K", ".@K") + GOAL, r"column 0, row 1 of room 1 1 leads west to no room"),
        (ROOM.replace(".#", "..") + "room 2 1\n#####\n#...#\n#####\n" + GOAL, r"leads east onto a wall$"),
        (ROOM.replace(".#", "..") + "room 2 1\n#####\n^...#\n#####\n" + GOAL, r"leads east onto a trap$"),
        (ROOM.replace(".#", "..") + "room 2 1\n#####\nK...#\n#####\n" + GOAL, r"leads east onto a key$"),
        (ROOM, r"a map needs one line 'goal X Y', this one has none$"),
        (ROOM + GOAL + "goal 2 1\n", r"a map needs one line 'goal X Y', this one has 2$"),
        (ROOM.replace("D", "#") + GOAL, r"the goal cannot be reached$"),
        (ROOM + ROOM + GOAL, r"line 6: there is a room at 1 1 already$"),
        (ROOM + "goal 1 1\n", r"line 6: there is a room at 1 1 already$"),
        (ROOM + "room 2 1\n####\n####\n####\n" + GOAL, r"line 9: this room is 4 x 3 cells, the first one 5 x 3$"),
        (ROOM + "room 2 1\n#####\n#####\n" + GOAL, r"line 8: this room is 5 x 2 cells"),
        (ROOM + "room 2 1\n" + GOAL, r"line 6: a room without a drawing$"),
        (ROOM + "room 2 1\n", r"line 6: a room without a drawing$"),
        (ROOM + "room 2\n" + GOAL, r"line 6: expected 'room X Y' with two whole numbers, 0 to 9999, not 'room 2'$"),
        (ROOM + "goal one 2\n", r"line 6: expected 'goal X Y'"),
        (ROOM + "goal -1 2\n", r"line 6: expected 'goal X Y'"),
        (ROOM + "goal 10000 2\n", r"line 6: expected 'goal X Y'"),
        (ROOM + "unsolvable 1 2\n", r"line 6: expected 'room X Y'"),
        (
            ROOM + "#####\n" + GOAL,
            r"line 6: expected 'room X Y', 'goal X Y', 'unsolvable' or a remark \(;\), not '#####'$",
        ),
        ("", r"^map m: no room is drawn$"),
        (GOAL, r"^map m: no room is drawn$"),
        ("room 1 1\n" + "#" * 128 + "\n" + GOAL, r"rooms may have 127 cells along a side, not 128$"),
        ("room 1 1\n@" + "K" * 33 + "\n" + GOAL, r"33 keys are more than the 32 a map may have$"),
        ("room 1 1\n@" + "D" * 33 + "\n" + GOAL, r"33 doors are more than the 32 a map may have$"),
    ],
)
def test_maps_that_cannot_be_played(text, problem):
    with pytest.raises(EnvSetupError, match=problem) as error:
        parse_map(text, "m")
    assert "\n" not in str(error.value)


def test_keys_are_ordered_by_room_column_and_row():
    """Fails if a room's keys are counted line by line."""
    drawn = parse_map("room 1 1\n#####\n#@.K#\n#.K.#\n#.K.#\n###D#\n\n" + GOAL)
    assert [drawn.where(cell) for cell in drawn.items("K")] == [(0, 2, 2), (0, 2, 3), (0, 3, 1)]


def test_a_trap_in_the_border_is_no_opening():
    assert parse_map(ROOM.replace("#@", "^@") + GOAL).items("^") == [5]


def test_unsolvable_on_purpose():
    """Fails if the line silences other errors too."""
    drawn = parse_map("unsolvable\n" + ROOM.replace("K", ".") + GOAL)
    assert not drawn.solvable and not drawn.items("K")
    with pytest.raises(EnvSetupError, match="no start"):
        parse_map("unsolvable\n" + ROOM.replace("@", ".") + GOAL)


def test_thirty_two_keys_and_doors(tmp_path):
    """Fails if the highest bit is lost or read as a sign."""
    text = "room 1 1\n" + "#" * 66 + "\n#@" + "K" * 32 + "D" * 32 + "\n" + "#" * 66 + "\n\ngoal 2 1\n"
    (tmp_path / "long.txt").write_text(text)
    core = ToyMR(str(tmp_path / "long.txt"))
    half, *_ = walk(core, "E" * 32)
    assert (half["keys_held"][0], half["keys"][0], half["doors"][0]) == (32, 0, 2**32 - 1)
    states, reward, terminated, _ = walk(core, "E" * 33, half)
    assert (states["keys_held"][0], states["doors"][0], reward, terminated) == (0, 0, 1, True)
    same(core.states_of(core.observe(half)), half)


# Options.


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"map": "nowhere"}, r"ToyMR\(map='nowhere'\): no such map; .* one_room"),
        ({"map": 3}, r"ToyMR\(map=3\): no such map"),
        ({"map": "no/such/file.txt"}, r"the file cannot be read"),
        ({"max_lives": 0}, r"max_lives must be a whole number, 1 or more"),
        ({"max_lives": 40_000}, r"max_lives must be 32767 or less"),
        ({"absolute_coordinates": 1}, r"absolute_coordinates must be one of True, False"),
        ({"save_enter_cell": "yes"}, r"save_enter_cell must be one of True, False"),
        ({"doors_keys_scale": 0}, r"doors_keys_scale must be more than 0"),
        ({"doors_keys_scale": "1"}, r"doors_keys_scale must be a finite number"),
        ({"trap_reward": float("nan")}, r"trap_reward must be a finite number"),
        ({"max_steps": 0}, r"max_steps must be a whole number, 1 or more"),
    ],
)
def test_options_that_cannot_be_meant(wrong, problem):
    with pytest.raises(EnvSetupError, match=problem) as error:
        ToyMR(**{"map": "one_room", **wrong})
    assert "\n" not in str(error.value)
