"""Toy Montezuma's Revenge: rooms of cells, keys, doors and traps, one reward at the goal, for N agents at once.

`toy_mr_map.py` describes and reads maps.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.envs.toy_mr_map import DOOR, FLOOR, KEY, START, TRAP, WALL, load_map
from packtrain.errors import EnvSetupError
from packtrain.trees import Tree

PIXELS_PER_CELL = 16
COLOURS = {
    WALL: (90, 90, 100),
    FLOOR: (20, 20, 24),
    KEY: (240, 210, 60),
    TRAP: (200, 50, 50),
    DOOR: (150, 100, 50),
    "G": (60, 160, 90),  # the goal room's cells
    "@": (90, 160, 250),  # the agent
    "x": (120, 40, 60),  # the agent, dead
}

CHART_COLOURS = {  # darker versions, as the background of a chart
    WALL: (24, 24, 28),
    FLOOR: (56, 56, 62),
    KEY: (150, 130, 40),
    TRAP: (92, 32, 36),
    DOOR: (124, 86, 44),
    "G": (34, 78, 50),
    " ": (12, 12, 15),  # no room
}


class ToyMR:
    """An agent that walks through the rooms of a map to the goal, through doors that cost a key each and past traps.

    Actions: 0 north, 1 east, 2 south, 3 west. A wall stops the step. Walking onto a key takes it; walking onto a closed
    door opens it for good at the price of a key; without a key a door is a wall. Walking out of a room leads into the
    next one, to the cell opposite. A trap costs a life and gives `trap_reward`. With no life left the episode
    terminates
    with the agent at its position before the step; otherwise the agent returns to the cell where it entered the room.
    Entering the goal room gives reward 1 and terminates. Every other reward is 0, and nothing changes after the end.

    Observations are float32 vectors, in this order: room x and y; keys held; column and row; for every door 1 while
    closed; the column and row where the room was entered (only if `save_enter_cell` or more than one life); for every
    key 1 while it lies there; lives left; 1 after the end. They determine the state: `states_of` inverts them.

    `step` gives the extras "solved", "room" (the number of the room after the step, an index into `map.places`),
    "key_taken" and "door_opened".

    Args:
      map: name of a map that comes with packtrain, or the path of a .txt file in the format of `toy_mr_map.py`.
      max_lives: lives at the start, 1 or more.
      absolute_coordinates: show column and row counted through all rooms, room · size + cell, instead of inside a room.
      doors_keys_scale: value of a closed door and of a remaining key in observations, instead of 1.
      save_enter_cell: make the cell where the room was entered part of the state even if it has no effect.
      trap_reward: reward for each step into a trap.
      max_steps: steps until truncation, 1 or more; None for no limit. The shortest solution of `traps_slalom` is 795.
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
        # Cell * 4 + action → cell; walls and the edge of the map stop moves.
        target = np.repeat(np.arange(letters.size), 4)
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
        """Return N agents at the start; a map has one start state."""
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
        """Make one step of every agent; after the end nothing changes and rewards are 0."""
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
        """Return the vectors described above: float32 [N, 7 + doors + keys], 2 more with the enter cell."""
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
        """Return the states with these observations [N, attributes]; ValueError if there is no such room."""
        shown = np.asarray(observations)
        found = (shown[:, None, :2] == self._places).all(axis=2)  # [N, rooms]
        if not found.any(axis=1).all():
            raise ValueError(f"map {self.map.name} has no room at {shown[~found.any(axis=1)][0, :2].tolist()}")
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
        """Return progress flags: the current room, keys taken, doors opened; bool [N, number of flags]."""
        keys, doors = np.arange(len(self._keys), dtype=np.uint32), np.arange(len(self._doors), dtype=np.uint32)
        return {
            "rooms": states["room"][:, None] == np.arange(len(self.map.places)),
            "keys": (states["keys"][:, None] >> keys) & np.uint32(1) == 0,
            "doors": (states["doors"][:, None] >> doors) & np.uint32(1) == 0,
        }

    def chart_shape(self) -> tuple[int, int]:
        """Return the rows and columns of the chart: all rooms at their places, one pixel per cell."""
        across, down = self._laid_out().max(axis=0) + 1
        return int(down) * self.map.height, int(across) * self.map.width

    def chart(self, states: Tree) -> np.ndarray:
        """Return the agent's cell, [N, 2] rows and columns; states that differ in keys, doors or lives share it."""
        across, down = self._laid_out()[states["room"]].T
        rows, columns = down * self.map.height + states["row"], across * self.map.width + states["column"]
        return np.stack((rows, columns), axis=1)

    def chart_background(self) -> np.ndarray:
        """Return the map without an agent in dark colours: uint8 [rows, columns, 3]."""
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
        """Return column and row of every room on the chart, [rooms, 2] from 0; wide gaps between rooms are removed."""
        columns = []
        for places in self._places.T:
            known, place = np.unique(places, return_inverse=True)
            columns.append(np.concatenate([[0], np.minimum(np.diff(known), 2).cumsum()])[place])
        return np.stack(columns, axis=1)

    def render(self, states: Tree, mode: str) -> Any:
        """Render the room of state 0, as text or as an image, and below it keys and lives.

        The text shows the agent as @, or x when dead, and the goal room as G.
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
        """Return bits uint32 [N] as float32 [N, items]: the scale where a bit is set, otherwise 0."""
        bits = (flags[:, None] >> np.arange(items, dtype=np.uint32)) & np.uint32(1)
        return bits.astype(np.float32) * np.float32(self.doors_keys_scale)


def _bits(items: list[int], cells: int) -> np.ndarray:
    """Return uint32 [cells]: bit i at the cell of item i, 0 elsewhere."""
    bits = np.zeros(cells, np.uint32)
    bits[items] = np.uint32(1) << np.arange(len(items), dtype=np.uint32)
    return bits


def _packed(flags: np.ndarray) -> np.ndarray:
    """Return flags [N, items] as the bits of a uint32 [N]."""
    weights = np.uint32(1) << np.arange(flags.shape[1], dtype=np.uint32)
    return np.where(flags, weights, np.uint32(0)).sum(axis=1, dtype=np.uint32)
