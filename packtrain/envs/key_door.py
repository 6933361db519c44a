"""KeyDoor: a key in a side room, a locked door, a treasure behind it, no intermediate reward. A test of exploration."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.trees import Tree

NORTH, EAST, SOUTH, WEST = range(4)
ROWS, COLUMNS = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # row and column offsets of actions
NOTHING, KEY_HELD, DOOR_OPEN, OVER = range(4)  # the stages of an episode
WALL, FLOOR, START, KEY, DOOR, TREASURE = "#.@KD*"
PLANES = WALL + START + KEY + DOOR + TREASURE  # of an observation; the agent uses the plane of the start
# Last stage in which a thing exists; walking onto it advances the stage.
LAST_STAGE = {KEY: NOTHING, DOOR: KEY_HELD, TREASURE: DOOR_OPEN}

PIXELS_PER_CELL = 16
COLOURS = {
    WALL: (90, 90, 100),
    FLOOR: (20, 20, 24),
    START: (90, 160, 250),
    KEY: (240, 210, 60),
    DOOR: (150, 100, 50),
    TREASURE: (60, 200, 110),
}


class KeyDoor:
    """An agent in four rooms of a square of size × size cells, including the walls around them.

    Actions: 0 north, 1 east, 2 south, 3 west. A wall stops the step. The key is taken by walking onto it; the door
    opens for good when it is walked onto with the key, and is a wall before. Reaching the treasure gives reward 1,
    solves
    the episode and terminates it. Every other reward is 0 (but for `key_reward`), and nothing changes after the end.

    From the first room one gap leads into the side room, where the key lies, and another into the hall; the door is
    between the hall and the treasure room. This is the default, `layout_seed` = None, here of size 9:

        #########
        #@......#
        #...#...#
        #...#...#
        ###.###D#
        #...#...#
        #...#...#
        #K..#*..#
        #########

    Another seed randomises where the walls cross, the gaps and the door in them, start, key and treasure in their
    rooms, and turns or mirrors the layout. Every layout can be solved; `shortest` is the number of steps that takes, 52
    by default, and `best_return` is 1 + key_reward. One core has one layout and one start.

    Uniformly random play takes the key in 21 % of the default episodes, which have 260 steps, and solves 0.004 % of
    them: 78 of 2,000,000 were observed, and the exact probability is 0.00396 %. Random layouts of that size are easier:
    14 to 50 steps (seeds 0 to 1999), and 0.01 % to 1.3 % (seeds 0 to 39).

    States are (row, column, stage), [N, 3]: stage 0 without the key, 1 with it, 2 once the door is open, 3 at the end.
    Observations are planes uint8 [5, size, size], 255 where there is wall, the agent, the key, the closed door
    and the treasure, 0 elsewhere; a taken key and an open door are gone. They determine the state.

    `step` gives the extras "solved", "key_taken" and "door_opened".

    Args:
      size: rows and columns, 5 or more.
      layout_seed: seed of a random layout, 0 or more; None for the one above.
      key_reward: reward for taking the key, 0 to 1.
      max_steps: steps until truncation, 1 or more; "auto" for 20 · size, None for no time limit.
    """

    def __init__(
        self,
        size: int = 13,
        layout_seed: int | None = None,
        key_reward: float = 0.0,
        max_steps: int | str | None = "auto",
    ):
        self.size = options.whole_number("KeyDoor", "size", size, least=5)
        if layout_seed is not None:
            layout_seed = options.whole_number("KeyDoor", "layout_seed", layout_seed, least=0)
        self.key_reward = options.fraction("KeyDoor", "key_reward", key_reward)
        self.max_steps: int | None = None
        if max_steps == "auto":
            self.max_steps = 20 * self.size
        elif max_steps is not None:
            self.max_steps = options.whole_number("KeyDoor", "max_steps", max_steps, least=1)
        self.best_return = 1 + self.key_reward
        self.layout, self.shortest = draw_layout(self.size, layout_seed)

        self._dtype = np.min_scalar_type(self.size)
        self._start = np.argwhere(self.layout == START)[0]
        self._planes = np.zeros((OVER + 1, len(PLANES), self.size, self.size), np.uint8)  # without the agent
        for plane, letter in enumerate(PLANES):
            if letter != START:
                self._planes[: LAST_STAGE.get(letter, OVER) + 1, plane] = 255 * (self.layout == letter)
        shape = (OVER + 1, self.size, self.size)  # by stage
        self._closed = np.broadcast_to(self.layout == WALL, shape).copy()
        self._closed[NOTHING] |= self.layout == DOOR
        self._next_stage = np.broadcast_to(np.arange(OVER + 1)[:, None, None], shape).copy()  # after entering the cell
        for letter, stage in LAST_STAGE.items():
            self._next_stage[stage][self.layout == letter] += 1
        self.observation_space: gym.Space = gym.spaces.Box(0, 255, self._planes.shape[1:], np.uint8)
        self.action_space: gym.Space = gym.spaces.Discrete(4)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return start states without the key: [N, 3]."""
        return np.tile(np.array([*self._start, NOTHING], self._dtype), (n, 1))

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Move one cell if nothing blocks the way; after the end nothing changes and rewards are 0."""
        row, column, stage = states.astype(np.int64).T
        to_row, to_column = row + ROWS[actions], column + COLUMNS[actions]
        moves = (stage < OVER) & ~self._closed[stage, to_row, to_column]
        row, column = np.where(moves, to_row, row), np.where(moves, to_column, column)
        stage_before, stage = stage, self._next_stage[stage, row, column]
        key_taken, door_opened, solved = (
            (stage > stage_before) & (stage == reached) for reached in (KEY_HELD, DOOR_OPEN, OVER)
        )
        rewards = solved.astype(np.float32) + np.float32(self.key_reward) * key_taken
        states = np.stack((row, column, stage), axis=1).astype(self._dtype)  # [N, 3]
        return states, rewards, stage == OVER, {"solved": solved, "key_taken": key_taken, "door_opened": door_opened}

    def observe(self, states: Tree) -> Tree:
        """Return the planes described above: uint8 [N, 5, size, size]."""
        row, column, stage = states.T
        observations = self._planes[stage]
        observations[np.arange(len(states)), PLANES.index(START), row, column] = 255
        return observations

    def landmarks(self, states: Tree) -> dict[str, np.ndarray]:
        """Return progress flags: whether the key is taken and the door open; bool [N, 1]."""
        stage = states[:, 2:]
        return {"keys": stage >= KEY_HELD, "doors": stage >= DOOR_OPEN}

    def chart_shape(self) -> tuple[int, int]:
        """Return the rows and columns of the chart: one pixel per cell."""
        return self.size, self.size

    def chart(self, states: Tree) -> np.ndarray:
        """Return the agent's cell, [N, 2] rows and columns; all stages share it."""
        return states[:, :2].astype(np.int64)

    def render(self, states: Tree, mode: str) -> Any:
        """Render the rooms of state 0 as text, with the agent as @, or as an image."""
        options.one_of("KeyDoor", "render_mode", mode, ("rgb_array", "ansi"))
        text = np.full((self.size, self.size), FLOOR)
        for plane, letter in zip(self.observe(states[:1])[0], PLANES, strict=True):
            text[plane > 0] = letter
        if mode == "ansi":
            return "".join("".join(line) + "\n" for line in text)
        picture = np.zeros((self.size, self.size, 3), np.uint8)
        for letter, colour in COLOURS.items():
            picture[text == letter] = colour
        return picture.repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)


def draw_layout(size: int, seed: int | None) -> tuple[np.ndarray, int]:
    """Return the letters of the cells, [size, size], and the shortest solution's length; seed None: the default."""
    end = size - 1
    if seed is None:
        wall_row = wall_column = size // 2
        gap, passage, door = (wall_row, wall_column - 1), (1, wall_column), (wall_row, end - 1)
        start, key, treasure = (1, 1), (end - 1, 1), (end - 1, wall_column + 1)
    else:
        rng = np.random.default_rng(seed)
        least = 1 + max(1, (size - 3) // 3)  # no room is narrower than a third of the floor

        def within(rows: tuple[int, int], columns: tuple[int, int]) -> tuple[int, int]:
            """Return a random cell of a rectangle, whose end row and column are excluded."""
            return int(rng.integers(*rows)), int(rng.integers(*columns))

        wall_row, wall_column = within((least, size - least), (least, size - least))
        north, south, west, east = (1, wall_row), (wall_row + 1, end), (1, wall_column), (wall_column + 1, end)
        gap, passage = within((wall_row, wall_row + 1), west), within(north, (wall_column, wall_column + 1))
        door = within((wall_row, wall_row + 1), east)
        start, key, treasure = within(north, west), within(south, west), within(south, east)

    letters = np.full((size, size), FLOOR)
    letters[[0, wall_row, end]] = WALL
    letters[:, [0, wall_column, end]] = WALL
    for cell, letter in (
        (gap, FLOOR),
        (passage, FLOOR),
        (door, DOOR),
        (start, START),
        (key, KEY),
        (treasure, TREASURE),
    ):
        letters[cell] = letter
    # Rooms are empty, so within a room the shortest path is the sum of row and column distances.
    way = (start, gap, key, gap, passage, door, treasure)
    shortest = sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise(way))
    if seed is not None:
        letters = np.rot90(letters, int(rng.integers(4)))
        letters = letters.T if rng.integers(2) else letters
    return letters, shortest
