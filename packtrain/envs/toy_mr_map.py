"""Maps of Toy Montezuma's Revenge: the text format, its parser, and the maps that come with packtrain.

A map is a text file. The maps in the folder `maps` are known by their names; any other is given by its path, which
ends in `.txt`. This is a complete map:

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

`room X Y` starts a room and is followed by its drawing; X counts rooms eastward and Y southward, from any origin,
0 to 9999. All drawings of a map have the same width and height. `goal X Y` is the goal room, which has no
drawing: entering it solves the task. Lines that start with `;` are comments, and empty lines may stand between rooms.
The line `unsolvable` declares that the map has no solution. The letters of a drawing:

    #  wall       @  start, one in the map       ^  trap
    .  floor      K  key                         D  door, closed

An opening in a room's border leads into the adjacent room, to the cell opposite. The parser requires a room there, and
in it floor, a door or the start at that cell (a key or a trap would have no effect there). It also requires every key
and the goal to be reachable.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from packtrain.errors import EnvSetupError
from packtrain.files import read_text

NORTH, EAST, SOUTH, WEST = range(4)
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # (columns, rows) of an action
DIRECTIONS = ("north", "east", "south", "west")
WALL, FLOOR, START, KEY, TRAP, DOOR = "#.@K^D"
LETTERS = WALL + FLOOR + START + KEY + TRAP + DOOR
MOST_CELLS = 127  # per side of a room: columns and rows are int8
RENAMED = {"full_mr_map": "pyramid_24"}  # old names of maps, for configurations of version 0.1
MOST_ITEMS = 32  # maximum number of keys, and of doors: a bit each in a uint32


@dataclass(frozen=True)
class Map:
    """A parsed map. Rooms are in lexicographic order of (x, y), keys and doors of (x, y, column, row)."""

    name: str
    width: int  # cells of a room, west to east
    height: int  # cells of a room, north to south
    places: tuple[tuple[int, int], ...]  # (x, y) of every room, including the goal
    drawings: tuple[str, ...]  # width * height letters of every room, row by row; the goal room is all floor
    goal: int  # the goal's room number
    solvable: bool  # False if the file says so

    @property
    def cells(self) -> str:
        """Return the letters of all rooms; cell number = (room * height + row) * width + column."""
        return "".join(self.drawings)

    def cell(self, room: int, column: int, row: int) -> int:
        """Return the number of a cell."""
        return (room * self.height + row) * self.width + column

    def where(self, cell: int) -> tuple[int, int, int]:
        """Return (room, column, row) of a cell's number."""
        rest, column = divmod(cell, self.width)
        room, row = divmod(rest, self.height)
        return room, column, row

    def describe(self, cell: int) -> str:
        """Return a description of a cell for error messages."""
        room, column, row = self.where(cell)
        x, y = self.places[room]
        return f"column {column}, row {row} of room {x} {y}"

    def items(self, letter: str) -> list[int]:
        """Return the cells that show a letter, in the order of (room, column, row)."""
        return sorted((i for i, found in enumerate(self.cells) if found == letter), key=self.where)

    def beyond(self, cell: int, action: int) -> int | None:
        """Return the cell an action leads towards, in this room or opposite in the next; None if there is no room."""
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
    """Return the names of the maps that come with packtrain."""
    folder = importlib.resources.files("packtrain.envs") / "maps"
    return sorted(entry.name.removesuffix(".txt") for entry in folder.iterdir() if entry.name.endswith(".txt"))


@functools.cache  # one line per process
def _renamed(name: str) -> str:
    """Return the new name of a map, and print a line about it."""
    new = RENAMED[name]
    print(
        f"ToyMR.map = {name!r} is now called {new!r}: its rooms are not those of the published map of the old name",
        file=sys.stderr,
        flush=True,
    )
    return new


def load_map(name: str) -> Map:
    """Return the map of this name, or of this file if the name ends in ".txt"; EnvSetupError if it is invalid."""
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
    """Return the map of a text; EnvSetupError with name and line if it is invalid."""
    rooms: dict[tuple[int, int], list[str]] = {}
    goals: list[tuple[int, int]] = []
    solvable = True
    drawing: list[str] | None = None  # drawing of the current room
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
    """Report the first fault that makes the map unplayable."""
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
        if letter in WALL + TRAP or room == drawn.goal:  # no moves start there
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
    if any(key in reached for key in keys):  # one key may open any door: with one key all doors count as open
        reached = _within_reach(drawn, starts[0], closed="")
    for key in keys:
        if key not in reached:
            complain(f"the key at {drawn.describe(key)} cannot be reached")
    if not any(drawn.where(cell)[0] == drawn.goal for cell in reached):
        complain("the goal cannot be reached")


def _within_reach(drawn: Map, start: int, closed: str) -> set[int]:
    """Return the cells that can be reached if walls, traps and the letters in `closed` block the way."""
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
