"""Toy Montezuma's Revenge: rooms of cells, keys, doors and traps, one reward at the goal, for N explorers at once.

A map is a text file, drawn by hand. The maps in the folder `maps` beside this module are known by their names; any
other is given by its path, which ends in `.txt`. This is a whole map:

    ; Two rooms and the goal. The key lies in the eastern room, the door in the western one.
    room 1 1
    #######
    #..@...
    #.....#
    ###D###

    room 2 1
    #######
    ....^K#
    #.....#
    #######

    goal 1 2

`room X Y` starts a room and is followed by its drawing; X counts rooms eastward and Y southward, from wherever you
like, 0 to 9999. All drawings of a map have the same width and height. `goal X Y` is the goal room, which has no
drawing: to enter it is to win. Lines that start with `;` are remarks, and empty lines may stand between rooms. The
line `unsolvable` says that the map is meant to have no solution. The letters of a drawing:

    #  wall       @  start, one in the map       ^  trap
    .  floor      K  key                         D  door, closed

An opening in a room's border leads into the room beyond, to the cell opposite; the parser wants a room there, and in
it floor, a door or the start at that cell (a key or a trap could not be taken or met there). It also wants every key
and the goal to be within reach.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.errors import EnvSetupError
from packtrain.files import read_text
from packtrain.trees import Tree

NORTH, EAST, SOUTH, WEST = range(4)
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # (columns, rows) of an action
DIRECTIONS = ("north", "east", "south", "west")
WALL, FLOOR, START, KEY, TRAP, DOOR = "#.@K^D"
LETTERS = WALL + FLOOR + START + KEY + TRAP + DOOR
MOST_CELLS = 127  # along a side of a room: columns and rows are int8
RENAMED = {"full_mr_map": "pyramid_24"}  # old names of maps, for configurations of version 0.1
MOST_ITEMS = 32  # keys, and doors: a bit each in a uint32

PIXELS_PER_CELL = 16
COLOURS = {
    WALL: (90, 90, 100),
    FLOOR: (20, 20, 24),
    KEY: (240, 210, 60),
    TRAP: (200, 50, 50),
    DOOR: (150, 100, 50),
    "G": (60, 160, 90),  # the goal room's cells
    "@": (90, 160, 250),  # the explorer
    "x": (120, 40, 60),  # the explorer, dead
}

CHART_COLOURS = {  # the same things dimly, behind the counts of a chart
    WALL: (24, 24, 28),
    FLOOR: (56, 56, 62),
    KEY: (150, 130, 40),
    TRAP: (92, 32, 36),
    DOOR: (124, 86, 44),
    "G": (34, 78, 50),
    " ": (12, 12, 15),  # no room
}


@dataclass(frozen=True)
class Map:
    """A map as it was drawn. Rooms are in lexicographic order of (x, y), keys and doors of (x, y, column, row)."""

    name: str
    width: int  # cells of a room, west to east
    height: int  # cells of a room, north to south
    places: tuple[tuple[int, int], ...]  # (x, y) of every room, the goal among them
    drawings: tuple[str, ...]  # width * height letters of every room, row after row; the goal's are all floor
    goal: int  # the goal's room number
    solvable: bool  # False if the file says so

    @property
    def cells(self) -> str:
        """The letters of all rooms; cell number = (room * height + row) * width + column."""
        return "".join(self.drawings)

    def cell(self, room: int, column: int, row: int) -> int:
        """The number of a cell."""
        return (room * self.height + row) * self.width + column

    def where(self, cell: int) -> tuple[int, int, int]:
        """(room, column, row) of a cell's number."""
        rest, column = divmod(cell, self.width)
        room, row = divmod(rest, self.height)
        return room, column, row

    def describe(self, cell: int) -> str:
        """A cell in words, for error messages."""
        room, column, row = self.where(cell)
        x, y = self.places[room]
        return f"column {column}, row {row} of room {x} {y}"

    def items(self, letter: str) -> list[int]:
        """The cells that show a letter, in the order of (room, column, row)."""
        return sorted((i for i, found in enumerate(self.cells) if found == letter), key=self.where)

    def beyond(self, cell: int, action: int) -> int | None:
        """The cell an action leads towards, in this room or opposite in the next; None where there is no room."""
        room, column, row = self.where(cell)
        column, row = column + STEPS[action][0], row + STEPS[action][1]
        if 0 <= column < self.width and 0 <= row < self.height:
            return self.cell(room, column, row)
        x, y = self.places[room]
        place = (x + STEPS[action][0], y + STEPS[action][1])
        if place not in self.places:
            return None
        return self.cell(self.places.index(place), column % self.width, row % self.height)


def map_names() -> list[str]:
    """The names of the maps that come with packtrain."""
    folder = importlib.resources.files("packtrain.envs") / "maps"
    return sorted(entry.name.removesuffix(".txt") for entry in folder.iterdir() if entry.name.endswith(".txt"))


@functools.cache  # one line a process
def _renamed(name: str) -> str:
    """Return the new name of a map, and print a line that says so."""
    new = RENAMED[name]
    print(
        f"ToyMR.map = {name!r} is called {new!r} now: its rooms are not those of the published map of the old name",
        file=sys.stderr,
        flush=True,
    )
    return new


def load_map(name: str) -> Map:
    """The map of this name, or in this file if the name ends in ".txt"; EnvSetupError if it cannot be used."""
    if isinstance(name, str) and name in RENAMED:
        name = _renamed(name)
    if not isinstance(name, str) or not (name.endswith(".txt") or name in map_names()):
        known = ", ".join(map_names())
        raise EnvSetupError(f"ToyMR(map={name!r}): no such map; give the path of a .txt file or one of {known}")
    if not name.endswith(".txt"):
        resource = importlib.resources.files("packtrain.envs") / "maps" / f"{name}.txt"
        return parse_map(resource.read_text(encoding="utf-8"), name)
    try:
        text = read_text(Path(name))
    except (OSError, UnicodeDecodeError) as error:
        raise EnvSetupError(f"ToyMR(map={name!r}): the file cannot be read ({error})") from error
    return parse_map(text, name)


def parse_map(text: str, name: str = "map") -> Map:
    """A map from its text; EnvSetupError, one line that says where, if the text is not a map to be played."""
    rooms: dict[tuple[int, int], list[str]] = {}
    goals: list[tuple[int, int]] = []
    solvable = True
    drawing: list[str] | None = None  # of the room that is being read
    size: tuple[int, int] | None = None  # (width, height) of the first room

    def complain(problem: str, line: int | None = None) -> NoReturn:
        raise EnvSetupError(f"map {name}{'' if line is None else f', line {line}'}: {problem}")

    def close(line: int) -> None:
        nonlocal size, drawing
        if drawing is None:
            return
        if not drawing:
            complain("a room without a drawing", line)
        found = (len(drawing[0]), len(drawing))
        size = size or found
        if found[0] != size[0] or found[1] != size[1]:
            complain(f"this room is {found[0]} x {found[1]} cells, the first one {size[0]} x {size[1]}", line)
        drawing = None

    lines = text.splitlines()
    for number, raw in enumerate(lines, start=1):
        line = raw.rstrip()
        words = line.split()
        if line.startswith(";"):
            continue
        if not words or words[0] in ("room", "goal") or words == ["unsolvable"]:
            if words or drawing:
                close(number - 1)
            if words == ["unsolvable"]:
                solvable = False
            elif words:
                if len(words) != 3 or not all(re.fullmatch("[0-9]{1,4}", word) for word in words[1:]):
                    complain(f"expected '{words[0]} X Y' with two whole numbers, 0 to 9999, not {line!r}", number)
                place = (int(words[1]), int(words[2]))
                if place in rooms or place in goals:
                    complain(f"there is a room at {place[0]} {place[1]} already", number)
                if words[0] == "goal":
                    goals.append(place)
                else:
                    rooms[place] = drawing = []
        elif drawing is None:
            complain(f"expected 'room X Y', 'goal X Y', 'unsolvable' or a remark (;), not {line!r}", number)
        else:
            unknown = [letter for letter in line if letter not in LETTERS]
            if unknown:
                complain(f"unknown letter {unknown[0]!r}; a drawing is made of {' '.join(LETTERS)}", number)
            if drawing and len(line) != len(drawing[0]):
                complain(f"this line has {len(line)} cells, the room's first line {len(drawing[0])}", number)
            drawing.append(line)
    close(len(lines))

    if size is None:
        complain("no room is drawn")
    if max(size) > MOST_CELLS:
        complain(f"rooms may have {MOST_CELLS} cells along a side, not {max(size)}")
    if len(goals) != 1:
        complain(f"a map needs one line 'goal X Y', this one has {len(goals) or 'none'}")
    places = sorted([*rooms, *goals])
    floor = [FLOOR * size[0]] * size[1]
    drawings = tuple("".join(rooms.get(place, floor)) for place in places)
    drawn = Map(name, *size, tuple(places), drawings, places.index(goals[0]), solvable)
    _check(drawn, complain)
    return drawn


def _check(drawn: Map, complain: Callable[[str], NoReturn]) -> None:
    """Complain about the first thing that makes the map unfit to be played."""
    starts, keys, doors = drawn.items(START), drawn.items(KEY), drawn.items(DOOR)
    if not starts:
        complain(f"no start ({START}) is drawn")
    if len(starts) > 1:
        complain(f"more than one start: {' and '.join(map(drawn.describe, starts))}")
    for items, word in ((keys, "keys"), (doors, "doors")):
        if len(items) > MOST_ITEMS:
            complain(f"{len(items)} {word} are more than the {MOST_ITEMS} a map may have")
    cells = drawn.cells
    for cell, letter in enumerate(cells):
        room = drawn.where(cell)[0]
        if letter in WALL + TRAP or room == drawn.goal:  # nobody walks on from there
            continue
        for action, direction in enumerate(DIRECTIONS):
            target = drawn.beyond(cell, action)
            if target is None:
                complain(f"the opening at {drawn.describe(cell)} leads {direction} to no room")
            if drawn.where(target)[0] != room and cells[target] not in FLOOR + START + DOOR:
                thing = {WALL: "wall", KEY: "key", TRAP: "trap"}[cells[target]]
                complain(f"the opening at {drawn.describe(cell)} leads {direction} onto a {thing}")
    if not drawn.solvable:
        return
    if doors and not keys:
        complain("there are doors but no key; say 'unsolvable' if this is meant")
    reached = _within_reach(drawn, starts[0], closed=DOOR)
    if any(key in reached for key in keys):  # one key may open any door: who holds one may get through all of them
        reached = _within_reach(drawn, starts[0], closed="")
    for key in keys:
        if key not in reached:
            complain(f"the key at {drawn.describe(key)} cannot be reached")
    if not any(drawn.where(cell)[0] == drawn.goal for cell in reached):
        complain("the goal cannot be reached")


def _within_reach(drawn: Map, start: int, closed: str) -> set[int]:
    """The cells one can walk to if walls, traps and the letters in `closed` stop one."""
    cells, reached, edge = drawn.cells, {start}, [start]
    while edge:
        cell = edge.pop()
        if drawn.where(cell)[0] == drawn.goal:
            continue
        for action in range(4):
            target = drawn.beyond(cell, action)
            if target is not None and target not in reached and cells[target] not in WALL + TRAP + closed:
                reached.add(target)
                edge.append(target)
    return reached


class ToyMR:
    """An explorer who walks rooms of a map to the goal, through doors that cost a key each and past traps.

    Actions: 0 north, 1 east, 2 south, 3 west. A wall stops the step. A key is taken, a closed door opened for good at
    the price of a key held, by walking onto it; without a key a door is a wall. Walking out of a room leads into the
    next one, to the cell opposite. A trap costs a life and pays `trap_reward`: without a life left the episode
    terminates where the explorer stood before the step, otherwise the explorer is back at the cell where the room was
    entered. Entering the goal room pays 1 and terminates. Every other reward is 0, and nothing changes after the end.

    Observations are float32 vectors, in this order: room x and y; keys held; column and row; for every door 1 while
    closed; the column and row where the room was entered (only if `save_enter_cell` or more than one life); for every
    key 1 while it lies there; lives left; 1 after the end. They tell all of a state: `states_of` goes back.

    `step` gives the extras "solved", "room" (the number of the room after the step, an index into `map.places`),
    "key_taken" and "door_opened".

    Args:
      map: name of a map that comes with packtrain (`map_names()`), or the path of a .txt file as described above.
      max_lives: lives at the start, 1 or more.
      absolute_coordinates: show column and row counted through all rooms, room · size + cell, instead of inside a room.
      doors_keys_scale: what is shown for a closed door and for a key that lies there, instead of 1.
      save_enter_cell: make the cell where the room was entered part of the state even if it has no effect.
      trap_reward: paid for each step into a trap.
      max_steps: steps until truncation, 1 or more; None for no clock. The shortest solution of `traps_slalom` is 795.
    """

    def __init__(
        self,
        map: str = "pyramid_24",
        max_lives: int = 1,
        absolute_coordinates: bool = False,
        doors_keys_scale: float = 1.0,
        save_enter_cell: bool = True,
        trap_reward: float = 0.0,
        max_steps: int | None = 600,
    ):
        self.max_lives = options.whole_number("ToyMR", "max_lives", max_lives, least=1)
        if self.max_lives > np.iinfo(np.int16).max:
            raise EnvSetupError(f"ToyMR(max_lives={max_lives}): max_lives must be {np.iinfo(np.int16).max} or less")
        self.absolute_coordinates = options.one_of("ToyMR", "absolute_coordinates", absolute_coordinates, (True, False))
        save_enter_cell = options.one_of("ToyMR", "save_enter_cell", save_enter_cell, (True, False))
        self.doors_keys_scale = options.number("ToyMR", "doors_keys_scale", doors_keys_scale)
        if self.doors_keys_scale <= 0:
            raise EnvSetupError(f"ToyMR(doors_keys_scale={doors_keys_scale!r}): doors_keys_scale must be more than 0")
        self.trap_reward = options.number("ToyMR", "trap_reward", trap_reward)
        self.max_steps = None if max_steps is None else options.whole_number("ToyMR", "max_steps", max_steps, least=1)
        self.map = load_map(map)
        self.keeps_enter_cell = save_enter_cell or self.max_lives > 1

        drawn, letters = self.map, np.array(list(self.map.cells))
        self._keys, self._doors = drawn.items(KEY), drawn.items(DOOR)
        self._places = np.array(drawn.places, np.int32)  # [rooms, 2]
        self._key_bit = _bits(self._keys, letters.size)
        self._door_bit = _bits(self._doors, letters.size)
        self._trap = letters == TRAP
        target = np.repeat(np.arange(letters.size), 4)  # cell * 4 + action → cell; walls and the world's edge stop one
        for i in range(target.size):
            to = drawn.beyond(i // 4, i % 4)
            if to is not None and letters[to] != WALL:
                target[i] = to
        self._target = target
        cells = np.arange(letters.size)
        self._room_of = (cells // (drawn.width * drawn.height)).astype(np.int16)
        self._row_of = (cells // drawn.width % drawn.height).astype(np.int8)
        self._column_of = (cells % drawn.width).astype(np.int8)
        self._start = drawn.items(START)[0]

        self.action_space: gym.Space = gym.spaces.Discrete(4)
        self.observation_space: gym.Space = self._observation_space()

    def _observation_space(self) -> gym.Space:
        low_place, high_place = self._places.min(axis=0), self._places.max(axis=0)
        size = np.array([self.map.width, self.map.height])
        if self.absolute_coordinates:
            low_cell, high_cell = low_place * size, high_place * size + size - 1
        else:
            low_cell, high_cell = 0 * size, size - 1
        doors, keys = ([self.doors_keys_scale] * len(items) for items in (self._doors, self._keys))
        enter = size - 1 if self.keeps_enter_cell else size[:0]
        high = np.concatenate([high_place, [len(keys)], high_cell, doors, enter, keys, [self.max_lives, 1]])
        low = np.zeros_like(high)
        low[:2], low[3:5] = low_place, low_cell
        return gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """N explorers at the start; a map has one start state."""
        states = {
            "room": np.full(n, self._room_of[self._start]),
            "column": np.full(n, self._column_of[self._start]),
            "row": np.full(n, self._row_of[self._start]),
            "keys_held": np.zeros(n, np.int8),
            "keys": np.full(n, self._key_bit.sum(dtype=np.uint32)),  # bit i: key i lies there
            "doors": np.full(n, self._door_bit.sum(dtype=np.uint32)),  # bit i: door i is closed
            "lives": np.full(n, self.max_lives, np.int16),
            "over": np.zeros(n, bool),
        }
        if self.keeps_enter_cell:
            states["enter_column"], states["enter_row"] = states["column"].copy(), states["row"].copy()
        return states

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """One step of every explorer; where the episode is over nothing changes and nothing is paid."""
        live = ~states["over"]
        cell = self._cell(states["room"], states["column"], states["row"])
        target = self._target[cell * 4 + actions]
        trapped = self._trap[target] & live
        closed = states["doors"] & self._door_bit[target]
        moves = live & ~trapped & ((closed == 0) | (states["keys_held"] > 0))
        opened = np.where(moves, closed, np.uint32(0))
        taken = np.where(moves, states["keys"] & self._key_bit[target], np.uint32(0))
        door_opened, key_taken = opened != 0, taken != 0
        lives = states["lives"] - trapped
        dead = trapped & (lives == 0)
        after = np.where(moves, target, cell)
        if self.keeps_enter_cell:
            back = trapped & ~dead
            if back.any():
                enter = self._cell(states["room"], states["enter_column"], states["enter_row"])
                after = np.where(back, enter, after)
        room, column, row = self._room_of[after], self._column_of[after], self._row_of[after]
        solved = live & (room == self.map.goal)
        new = {
            "room": room,
            "column": column,
            "row": row,
            "keys_held": states["keys_held"] + key_taken - door_opened.astype(np.int8),
            "keys": states["keys"] ^ taken,
            "doors": states["doors"] ^ opened,
            "lives": lives,
            "over": states["over"] | dead | solved,
        }
        if self.keeps_enter_cell:
            entered = room != states["room"]
            new["enter_column"] = np.where(entered, column, states["enter_column"])
            new["enter_row"] = np.where(entered, row, states["enter_row"])
        rewards = solved.astype(np.float32) + np.float32(self.trap_reward) * trapped
        extras = {"solved": solved, "room": room.copy(), "key_taken": key_taken, "door_opened": door_opened}
        return new, rewards, new["over"].copy(), extras

    def observe(self, states: Tree) -> Tree:
        """The vectors described above: float32 [N, 7 + doors + keys], 2 more with the enter cell."""
        place = self._places[states["room"]]
        columns, rows = states["column"].astype(np.int32), states["row"].astype(np.int32)
        if self.absolute_coordinates:
            columns, rows = columns + place[:, 0] * self.map.width, rows + place[:, 1] * self.map.height
        doors_end = 5 + len(self._doors)
        keys_start = doors_end + 2 * self.keeps_enter_cell
        shown = np.empty((len(columns), keys_start + len(self._keys) + 2), np.float32)
        shown[:, :2] = place
        shown[:, 2], shown[:, 3], shown[:, 4] = states["keys_held"], columns, rows
        shown[:, 5:doors_end] = self._shown(states["doors"], len(self._doors))
        if self.keeps_enter_cell:
            shown[:, doors_end], shown[:, doors_end + 1] = states["enter_column"], states["enter_row"]
        shown[:, keys_start:-2] = self._shown(states["keys"], len(self._keys))
        shown[:, -2], shown[:, -1] = states["lives"], states["over"]
        return shown

    def states_of(self, observations: Any) -> Tree:
        """The states that `observe` shows as these observations [N, attributes]; ValueError where there is no room."""
        shown = np.asarray(observations)
        found = (shown[:, None, :2] == self._places).all(axis=2)  # [N, rooms]
        if not found.any(axis=1).all():
            raise ValueError(f"no room of map {self.map.name} is at {shown[~found.any(axis=1)][0, :2].tolist()}")
        columns, rows = shown[:, 3], shown[:, 4]
        if self.absolute_coordinates:
            columns, rows = columns - shown[:, 0] * self.map.width, rows - shown[:, 1] * self.map.height
        doors_end = 5 + len(self._doors)
        keys_start = doors_end + 2 * self.keeps_enter_cell
        states = {
            "room": found.argmax(axis=1).astype(np.int16),
            "column": columns.astype(np.int8),
            "row": rows.astype(np.int8),
            "keys_held": shown[:, 2].astype(np.int8),
            "keys": _packed(shown[:, keys_start:-2] > 0),
            "doors": _packed(shown[:, 5:doors_end] > 0),
            "lives": shown[:, -2].astype(np.int16),
            "over": shown[:, -1] > 0,
        }
        if self.keeps_enter_cell:
            states["enter_column"] = shown[:, doors_end].astype(np.int8)
            states["enter_row"] = shown[:, doors_end + 1].astype(np.int8)
        return states

    def landmarks(self, states: Tree) -> dict[str, np.ndarray]:
        """What the states show of the way: the room one is in, keys taken, doors opened; bool [N, number of them]."""
        keys, doors = np.arange(len(self._keys), dtype=np.uint32), np.arange(len(self._doors), dtype=np.uint32)
        return {
            "rooms": states["room"][:, None] == np.arange(len(self.map.places)),
            "keys": (states["keys"][:, None] >> keys) & np.uint32(1) == 0,
            "doors": (states["doors"][:, None] >> doors) & np.uint32(1) == 0,
        }

    def chart_shape(self) -> tuple[int, int]:
        """Rows and columns of the chart: all rooms at their places, a pixel for a cell."""
        across, down = self._laid_out().max(axis=0) + 1
        return int(down) * self.map.height, int(across) * self.map.width

    def chart(self, states: Tree) -> np.ndarray:
        """The explorer's cell, [N, 2] rows and columns; states that differ in keys, doors or lives share it."""
        across, down = self._laid_out()[states["room"]].T
        rows, columns = down * self.map.height + states["row"], across * self.map.width + states["column"]
        return np.stack((rows, columns), axis=1)

    def chart_background(self) -> np.ndarray:
        """The map without an explorer, dimly: uint8 [rows, columns, 3]."""
        picture = np.empty((*self.chart_shape(), 3), np.uint8)
        picture[:] = CHART_COLOURS[" "]
        shape = (self.map.height, self.map.width)
        for room, (across, down) in enumerate(self._laid_out()):
            letters = np.array(list(self.map.drawings[room].replace(START, FLOOR))).reshape(shape)
            if room == self.map.goal:
                letters[:] = "G"
            top, left = down * shape[0], across * shape[1]
            for letter, colour in CHART_COLOURS.items():
                picture[top : top + shape[0], left : left + shape[1]][letters == letter] = colour
        return picture

    def _laid_out(self) -> np.ndarray:
        """Column and row of every room on the chart, [rooms, 2] from 0; wide gaps between rooms shrink to one."""
        columns = []
        for places in self._places.T:
            known, place = np.unique(places, return_inverse=True)
            columns.append(np.concatenate([[0], np.minimum(np.diff(known), 2).cumsum()])[place])
        return np.stack(columns, axis=1)

    def render(self, states: Tree, mode: str) -> Any:
        """The room of state 0, as text or as a picture, and below it what is held: keys, then lives.

        The text shows the explorer as @, or x when dead, and the goal room as G.
        """
        options.one_of("ToyMR", "render_mode", mode, ("rgb_array", "ansi"))
        first = {name: leaf[0] for name, leaf in states.items()}
        room, keys_held, lives = int(first["room"]), int(first["keys_held"]), int(first["lives"])
        letters = np.array(list(self.map.drawings[room].replace(START, FLOOR)))
        cells = np.arange(letters.size) + room * letters.size
        letters[(self._key_bit[cells] & ~first["keys"]) != 0] = FLOOR
        letters[(self._door_bit[cells] & ~first["doors"]) != 0] = FLOOR
        if room == self.map.goal:
            letters[:] = "G"
        board = letters.reshape(self.map.height, self.map.width)
        board[first["row"], first["column"]] = "x" if lives == 0 else "@"
        if mode == "ansi":
            x, y = self.map.places[room]
            return "\n".join(map("".join, board)) + f"\nroom {x} {y}  keys {keys_held}  lives {lives}\n"
        picture = np.zeros((self.map.height + 1, self.map.width, 3), np.uint8)
        for letter, colour in COLOURS.items():
            picture[:-1][board == letter] = colour
        picture[-1, :keys_held] = COLOURS[KEY]
        picture[-1, keys_held : keys_held + lives] = COLOURS["@"]
        return picture.repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)

    def _cell(self, room: np.ndarray, column: np.ndarray, row: np.ndarray) -> np.ndarray:
        return (room.astype(np.intp) * self.map.height + row) * self.map.width + column

    def _shown(self, flags: np.ndarray, items: int) -> np.ndarray:
        """Bits uint32 [N] as float32 [N, items]: the scale where a bit is set, else 0."""
        bits = (flags[:, None] >> np.arange(items, dtype=np.uint32)) & np.uint32(1)
        return bits.astype(np.float32) * np.float32(self.doors_keys_scale)


def _bits(items: list[int], cells: int) -> np.ndarray:
    """uint32 [cells]: bit i at the cell of item i, 0 elsewhere."""
    bits = np.zeros(cells, np.uint32)
    bits[items] = np.uint32(1) << np.arange(len(items), dtype=np.uint32)
    return bits


def _packed(flags: np.ndarray) -> np.ndarray:
    """Flags [N, items] as the bits of a uint32 [N]."""
    weights = np.uint32(1) << np.arange(flags.shape[1], dtype=np.uint32)
    return np.where(flags, weights, np.uint32(0)).sum(axis=1, dtype=np.uint32)
