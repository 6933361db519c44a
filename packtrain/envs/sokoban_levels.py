"""Sokoban levels: the XSB text format, and random boards by reverse play.

XSB writes a cell as one character: `#` wall, space floor (`-` and `_` are read as floor too), `.` goal, `$` box,
`*` box on a goal, `@` player, `+` player on a goal. A file has any number of levels. Lines that begin with `;` and
lines that are not board rows are text: the last text before a board is its title, unless a line `Title: ...` near it
gives another; other `Key: value` lines are ignored.

Boards are generated backwards: boxes stand on their goals and a player pulls them away, so every board can be solved.
All positions that pulling reaches are visited breadth first, counted in pulls. A pull is the reverse of a push, so the
depth of a position is the number of pushes of its shortest solution.
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from packtrain.envs import options
from packtrain.errors import EnvSetupError
from packtrain.files import read_bounded

SYMBOLS = "# .*$@+"  # wall, floor, goal, box on goal, box, player, player on goal: the order of Sokoban's planes
FLOOR_ALIASES = str.maketrans("-_", "  ")

# Length of the random walk that carves a room, per row and column of the board; fewer make easy rooms.
CARVING_STEPS = 3.0
TURNING = 0.35  # probability that the walk changes direction
BRUSHES = (  # cells (row, column) around the walk's position that are carved in one step
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
EXHAUSTIVE = 5000  # number of positions up to which reverse play is exhaustive; all 8×8 boards with 2 boxes have fewer
BREADTH = 100  # positions that are followed per depth beyond that
DEPTH = 40  # depth at which a non-exhaustive search stops unless more pushes are required
ROOMS = 5000  # maximum number of rooms tried per board; one 8×8 room in 50 has a two-box board of 15 pushes or more


@dataclasses.dataclass(frozen=True)
class Level:
    """One board as XSB rows. Raises EnvSetupError for rows that are not a playable level.

    Args:
      rows: XSB rows; shorter ones are padded with floor, which is ignored outside the wall.
      title: the title in the file.
      pushes: pushes of the shortest known solution; None if unknown.
      exact: whether no solution has fewer pushes than `pushes`.
    """

    rows: tuple[str, ...]
    title: str = ""
    pushes: int | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        rows = [row.translate(FLOOR_ALIASES).rstrip() for row in self.rows]
        for number, row in enumerate(rows, start=1):
            for column, symbol in enumerate(row, start=1):
                if symbol not in SYMBOLS:
                    raise EnvSetupError(
                        f"unknown character {symbol!r} in row {number}, column {column} of a Sokoban level; XSB has "
                        f"{SYMBOLS!r}"
                    )
        indent = min((len(row) - len(row.lstrip()) for row in rows if row), default=0)
        width = max((len(row) for row in rows), default=0) - indent
        object.__setattr__(self, "rows", tuple(row[indent:].ljust(width) for row in rows))
        self._check()

    def _check(self) -> None:
        players, boxes, goals = self._count("@+"), self._count("$*"), self._count(".*+")
        if players != 1:
            raise EnvSetupError(f"a Sokoban level needs one player ('@' or '+'), but this one has {players or 'none'}")
        if not boxes:
            raise EnvSetupError("a Sokoban level needs a box ('$' or '*'), but this one has none")
        if boxes > goals:
            raise EnvSetupError(
                f"a Sokoban level needs one goal per box, but this one has {goals} goals for {boxes} boxes"
            )
        outside = self._outside()
        for row, symbols in enumerate(self.rows):
            for column, symbol in enumerate(symbols):
                if outside[row, column] and symbol not in "# ":
                    raise EnvSetupError(
                        f"the wall of a Sokoban level must be closed, but {symbol!r} in row {row + 1}, column "
                        f"{column + 1} is connected to the outside"
                    )

    def _count(self, symbols: str) -> int:
        return sum(row.count(symbol) for row in self.rows for symbol in symbols)

    def _symbols(self) -> np.ndarray:
        return np.array([list(row) for row in self.rows])

    def _outside(self) -> np.ndarray:
        """Return the cells [H, W] that are connected to the outside without crossing a wall."""
        open_cells = np.pad(self._symbols() != "#", 1, constant_values=True)
        width = open_cells.shape[1]
        mask = _mask_of(open_cells)
        reached = next(region for region in _regions(mask, width) if region & 1)  # the padded corner is outside
        return _cells_of(reached, open_cells.shape)[1:-1, 1:-1]

    @property
    def height(self) -> int:
        """Return the rows of the board."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """Return the columns of the board."""
        return len(self.rows[0])

    @property
    def num_boxes(self) -> int:
        """Return the number of boxes, including those on goals."""
        return self._count("$*")

    @property
    def solved(self) -> bool:
        """Return whether every box is on a goal."""
        return not self._count("$")

    def planes(self, height: int | None = None, width: int | None = None) -> dict[str, np.ndarray]:
        """Return walls, goals and boxes (uint8 [height, width]) and the index of the player's cell (int32).

        Cells outside the wall, and those that pad a larger board at the bottom and on the right, are wall.
        """
        symbols, height, width = self._symbols(), height or self.height, width or self.width
        margin = ((0, height - self.height), (0, width - self.width))
        wall = np.pad((symbols == "#") | self._outside(), margin, constant_values=True)
        row, column = np.argwhere(np.isin(symbols, list("@+")))[0]
        return {
            "walls": wall.astype(np.uint8),
            "goals": np.pad(np.isin(symbols, list(".*+")), margin).astype(np.uint8),
            "boxes": np.pad(np.isin(symbols, list("$*")), margin).astype(np.uint8),
            "player": np.array(row * width + column, np.int32),
        }

    def __str__(self) -> str:
        return "".join(row.rstrip() + "\n" for row in self.rows)


def read_levels(path: str | os.PathLike) -> list[Level]:
    """Return the levels of an XSB file in order. EnvSetupError with file and line if one cannot be played."""
    try:
        data = read_bounded(Path(path))
        text = io.StringIO(data.decode("utf-8-sig", errors="replace"), newline=None).read()
    except OSError as error:
        raise EnvSetupError(f"cannot read Sokoban levels from {os.fspath(path)!r}: {error.strerror}") from error
    return parse_levels(text, os.fspath(path))


def parse_levels(text: str, source: str = "levels") -> list[Level]:
    """Return the levels of a text in order; `source` is the text's name in errors."""
    levels: list[Level] = []
    said: list[bool] = []  # for each level: whether its title came from a line "Title: ..."
    rows: list[str] = []
    caption, announced = "", ""  # text before a board, and a "Title: ..." before it

    def finish(line_number: int) -> None:
        nonlocal caption, announced
        if not rows:
            return
        try:
            levels.append(Level(tuple(rows), announced or caption))
        except EnvSetupError as error:
            raise EnvSetupError(f"{source}, line {line_number - len(rows)}: {error}") from None
        said.append(bool(announced))
        rows.clear()
        caption, announced = "", ""

    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        bare = line.strip()
        if _is_row(line, inside=bool(rows)):
            rows.append(line)
            continue
        finish(number)
        key, value = _key_and_value(bare)
        if key == "title":
            if levels and not said[-1]:
                levels[-1], said[-1] = dataclasses.replace(levels[-1], title=value), True
            else:
                announced = value
        elif key == "pushes" and levels:
            count = re.fullmatch(r"(at most )?(\d+)", value)
            if count:
                levels[-1] = dataclasses.replace(levels[-1], pushes=int(count[2]), exact=count[1] is None)
        elif bare and key is None:
            caption = bare.lstrip(";").strip()
    finish(len(lines) + 1)
    if not levels:
        raise EnvSetupError(f"{source}: no Sokoban level found; a board needs rows with '#'")
    return levels


def _is_row(line: str, inside: bool) -> bool:
    """Return whether a line is part of a board: XSB with a wall, or intended as a row with unknown characters."""
    bare = line.strip()
    if not bare or bare.startswith(";"):
        return False
    if set(line.translate(FLOOR_ALIASES).rstrip()) <= set(SYMBOLS):
        return inside or "#" in bare
    return bare.startswith("#") or (inside and bare.endswith("#"))


def _key_and_value(line: str) -> tuple[str | None, str]:
    """Return ("title", "X") for "Title: X", and (None, "") for any other text."""
    found = re.match(r"([A-Za-z][\w-]*)\s*:(.*)", line)
    return (found[1].lower(), found[2].strip()) if found else (None, "")


def format_levels(levels: Iterable[Level]) -> str:
    """Return levels as one XSB text, with their titles and pushes, that `parse_levels` can read."""
    blocks = []
    for level in levels:
        block = str(level)
        if level.title:
            block += f"Title: {level.title}\n"
        if level.pushes is not None:
            block += f"Pushes: {'' if level.exact else 'at most '}{level.pushes}\n"
        blocks.append(block)
    return "\n".join(blocks)


def generate_level(
    rng: np.random.Generator,
    height: int = 10,
    width: int = 10,
    num_boxes: int = 4,
    min_pushes: int = 1,
    max_pushes: int | None = None,
) -> Level:
    """Return a random solvable board, with the number of pushes of its solution.

    A random walk carves a room, goals are placed at random with a box on each, and reverse play moves boxes away from
    them. Of the reached depths between `min_pushes` and `max_pushes` one is sampled uniformly, then a position of that
    depth.

    Small boards are searched exhaustively (all of 8×8 with 2 boxes), and then `pushes` is exact. On larger ones reverse
    play follows all positions up to some depth and a random choice of the deeper ones; then `pushes` is an upper bound
    of the shortest solution, and `exact` is false.

    Args:
      rng: source of all randomness.
      height: rows of the board, including the outer wall, 3 or more.
      width: columns of the board, including the outer wall, 3 or more.
      num_boxes: boxes and goals, 1 or more.
      min_pushes: minimum number of pushes, 1 or more.
      max_pushes: maximum number of pushes; None for no limit.
    """
    owner = "generate_level"
    height = options.whole_number(owner, "height", height, least=3)
    width = options.whole_number(owner, "width", width, least=3)
    num_boxes = options.whole_number(owner, "num_boxes", num_boxes, least=1)
    min_pushes = options.whole_number(owner, "min_pushes", min_pushes, least=1)
    if max_pushes is not None:
        max_pushes = options.whole_number(owner, "max_pushes", max_pushes, least=min_pushes)
    for _ in range(ROOMS):
        room = _carve(rng, height, width)
        floor = np.flatnonzero(room)
        if len(floor) < num_boxes + 2:  # the boxes, the player and a free cell
            continue
        goals = sum(1 << int(cell) for cell in rng.choice(floor, num_boxes, replace=False))
        layers, exact_depth = _reverse_play(_mask_of(room), goals, width, min_pushes, max_pushes, rng)
        if len(layers) <= min_pushes:
            continue
        pushes = int(rng.integers(min_pushes, len(layers)))
        boxes, region = layers[pushes][rng.integers(len(layers[pushes]))]
        player = int(rng.choice(np.flatnonzero(_cells_of(region, (height, width)))))
        return Level(_rows(room, goals, boxes, player), pushes=pushes, exact=pushes <= exact_depth)
    raise EnvSetupError(
        f"none of {ROOMS} random {height}×{width} Sokoban boards with {num_boxes} boxes needs {min_pushes} pushes; try "
        "a smaller min_pushes or a larger board"
    )


def _carve(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return the floor [height, width] of a connected room inside a wall, carved by a random walk."""
    steps = int(CARVING_STEPS * (height + width))
    headings = rng.integers(4, size=steps)
    turns = rng.random(steps) < TURNING
    brushes = rng.integers(len(BRUSHES), size=steps)
    row, column = int(rng.integers(1, height - 1)), int(rng.integers(1, width - 1))
    heading = int(headings[0])
    room = np.zeros((height, width), bool)
    for step in range(steps):
        heading = int(headings[step]) if turns[step] else heading
        down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[heading]
        row, column = min(max(row + down, 1), height - 2), min(max(column + right, 1), width - 2)
        for down, right in BRUSHES[brushes[step]]:
            room[row + down, column + right] = True
    room[[0, -1]] = False
    room[:, [0, -1]] = False
    return room


# Sets of cells are bits of a Python int, cell = row · width + column. Moves never wrap around: the border is wall.


def _mask_of(cells: np.ndarray) -> int:
    return sum(1 << int(cell) for cell in np.flatnonzero(cells))


def _cells_of(mask: int, shape: tuple[int, ...]) -> np.ndarray:
    size = shape[0] * shape[1]
    return np.array([mask >> cell & 1 for cell in range(size)], bool).reshape(shape)  # [H * W] → [H, W]


def _regions(free: int, width: int) -> tuple[int, ...]:
    """Return the connected parts of the free cells."""
    parts = []
    while free:
        part, grown = 0, free & -free
        while part != grown:
            part = grown
            grown = (part | part << 1 | part >> 1 | part << width | part >> width) & free
        parts.append(part)
        free &= ~part
    return tuple(parts)


def _reverse_play(
    floor: int, goals: int, width: int, min_pushes: int, max_pushes: int | None, rng: np.random.Generator
) -> tuple[list[list[tuple[int, int]]], int]:
    """Play in reverse from the solved positions.

    Returns:
      For each number of pulls the positions (boxes, cells the player can walk to) that need at least so many, and the
      greatest depth for which that is certain.
    """
    parts: dict[int, tuple[int, ...]] = {goals: _regions(floor & ~goals, width)}
    layers = [[(goals, region) for region in parts[goals]]]
    seen, exact_depth = set(layers[0]), None
    while layers[-1] and len(layers) - 1 != max_pushes:
        if exact_depth is not None and len(layers) > max(DEPTH, min_pushes):
            break
        layer = []
        for boxes, region in layers[-1]:
            for shift in (1, width):
                # A box is pulled onto the player's cell, and the player steps back: both cells are in the player's
                # region.
                forward = boxes & region >> shift & region >> 2 * shift
                backward = boxes & region << shift & region << 2 * shift
                while forward or backward:
                    if forward:
                        box = forward & -forward
                        forward ^= box
                        moved, player = boxes ^ box ^ box << shift, box << 2 * shift
                    else:
                        box = backward & -backward
                        backward ^= box
                        moved, player = boxes ^ box ^ box >> shift, box >> 2 * shift
                    if moved not in parts:
                        parts[moved] = _regions(floor & ~moved, width)
                    position = moved, next(part for part in parts[moved] if part & player)
                    if position not in seen:
                        seen.add(position)
                        layer.append(position)
        # Positions that are left out stay marked as visited, so longer paths to them do not count.
        if len(seen) > EXHAUSTIVE and len(layer) > BREADTH:
            layer = [layer[chosen] for chosen in rng.choice(len(layer), BREADTH, replace=False)]
            exact_depth = len(layers) if exact_depth is None else exact_depth
        layers.append(layer)
    if not layers[-1]:
        layers.pop()
    return layers, len(layers) if exact_depth is None else exact_depth


def _rows(room: np.ndarray, goals: int, boxes: int, player: int) -> tuple[str, ...]:
    """Return the XSB rows of a position."""
    goal, box = _cells_of(goals, room.shape), _cells_of(boxes, room.shape)
    codes = np.where(room, np.where(box, 4 - goal, 1 + goal), 0)
    codes.flat[player] += 4
    return tuple("".join(SYMBOLS[code] for code in row) for row in codes)
