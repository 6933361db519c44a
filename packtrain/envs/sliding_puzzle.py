"""The sliding puzzle: 8-puzzle, 15-puzzle and other sizes, with start states that can always be solved."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.trees import Tree

PIXELS_PER_CELL = 16
WAYS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # row and column offsets of the blank: up, down, left, right


class SlidingPuzzle:
    """Tiles 1, 2, … on a square board with one blank: slide them into order, the blank in the last cell.

    Actions move the blank: 0 up, 1 down, 2 left, 3 right; the tile there takes its place. A move off the board changes
    nothing and sets extras["invalid_action"]. When the tiles are in order the episode terminates, solved, with reward
    1. Every other reward is 0. Steps on a solved board change nothing and have reward 0.

    States are boards, row by row, [N, size²], 0 the blank. Half of the size²! boards can be solved; of the 8-puzzle
    181 440, in at most 31 moves. Observations are one-hot, float32 [size⁴]: for each cell, the tile in it.

    Args:
      size: length of the board's side in cells, 2 or more.
      scramble: start this many random legal moves (1 or more) away from the goal; None for starts uniform over all
        solvable boards. In both cases a board that is already solved is sampled again.
      max_steps: steps until truncation, 1 or more; None for no time limit.
    """

    def __init__(self, size: int = 3, scramble: int | None = None, max_steps: int | None = 200):
        self.size = options.whole_number("SlidingPuzzle", "size", size, least=2)
        self.scramble = None if scramble is None else options.whole_number("SlidingPuzzle", "scramble", scramble, 1)
        self.max_steps = None if max_steps is None else options.whole_number("SlidingPuzzle", "max_steps", max_steps, 1)
        cells = self.size**2
        self.goal = np.roll(np.arange(cells), -1).astype(np.min_scalar_type(cells - 1))  # [cells]: 1, 2, …, 0
        place = np.stack(np.divmod(np.arange(cells), self.size), axis=1)  # [cells, 2]
        there = place[:, None] + np.array(WAYS)  # [cells, 4, 2]
        self._legal = ((there >= 0) & (there < self.size)).all(axis=2)  # [cells, 4], for each cell of the blank
        self._reached = np.where(self._legal, there @ (self.size, 1), np.arange(cells)[:, None])  # [cells, 4]
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (cells * cells,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(len(WAYS))

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return boards that can be solved but are not: [N, size²]."""
        draw = self._shuffled if self.scramble is None else self._scrambled
        states = draw(n, rng)
        while (solved := self._solved(states)).any():
            states[solved] = draw(int(solved.sum()), rng)
        return states

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Make one move each; extras["solved"] is true where this step solved, "invalid_action" where illegal."""
        ended, blank = self._solved(states), _blank(states)
        invalid = ~self._legal[blank, actions] & ~ended
        states = _swap(states, blank, np.where(ended, blank, self._reached[blank, actions]))
        terminated = self._solved(states)
        solved = terminated & ~ended
        return states, solved.astype(np.float32), terminated, {"solved": solved, "invalid_action": invalid}

    def legal(self, states: Tree) -> np.ndarray:
        """Return which moves stay on the board, bool [N, 4]; also for a solved board, although it does not change."""
        return self._legal[_blank(states)]

    def observe(self, states: Tree) -> Tree:
        """Return the tile of each cell, one-hot: float32 [N, size⁴]."""
        one_hot = states[:, :, None] == np.arange(self.size**2, dtype=states.dtype)
        return one_hot.astype(np.float32).reshape(len(states), -1)  # [N, cells, tiles] → [N, cells · tiles]

    def render(self, states: Tree, mode: str) -> Any:
        """Render the board of state 0 as text, or as an image in which a tile's colour shows its target cell."""
        options.one_of("SlidingPuzzle", "render_mode", mode, ("rgb_array", "ansi"))
        board = states[0].reshape(self.size, self.size)
        if mode == "ansi":
            width = len(str(self.size**2 - 1))
            return "".join(" ".join(f"{tile or '.':>{width}}" for tile in line) + "\n" for line in board.tolist())
        row, column = np.divmod(board.astype(np.int64) - 1, self.size)  # target cell of each tile
        shade = 80 + np.stack((row, column, np.zeros_like(row)), axis=2) * 175 // (self.size - 1)
        picture = np.where(board[:, :, None] > 0, shade, 0).astype(np.uint8)
        picture = picture.repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)
        picture[PIXELS_PER_CELL - 1 :: PIXELS_PER_CELL] = 0
        picture[:, PIXELS_PER_CELL - 1 :: PIXELS_PER_CELL] = 0
        return picture

    def _shuffled(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return uniformly random solvable boards: of the others, the first two tiles are exchanged.

        A move exchanges the blank with a neighbour, so it changes the parity of the board as a permutation and the
        parity of the blank's distance from its corner. A board is solvable if the two parities agree.
        """
        states = rng.permuted(np.tile(self.goal, (n, 1)), axis=1)
        blank, rows = _blank(states), np.arange(n)
        order = states.astype(np.int64)
        order[rows, blank] = self.size**2  # the goal is 1, 2, …, size²
        later = np.triu(np.ones((self.size**2, self.size**2), bool), k=1)
        inversions = ((order[:, :, None] > order[:, None, :]) & later).sum(axis=(1, 2))
        distance = 2 * (self.size - 1) - sum(np.divmod(blank, self.size))
        wrong = (inversions + distance) % 2 == 1
        first = np.where(blank == 0, 1, 0)  # two cells without the blank
        second = np.where(blank <= 1, 2, 1)
        return _swap(states, first, np.where(wrong, second, first))

    def _scrambled(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return boards after `scramble` random legal moves from the goal."""
        assert self.scramble is not None
        states = np.tile(self.goal, (n, 1))
        for _ in range(self.scramble):
            blank = _blank(states)
            ways = np.where(self._legal[blank], rng.random((n, len(WAYS))), -1).argmax(axis=1)
            states = _swap(states, blank, self._reached[blank, ways])
        return states

    def _solved(self, states: np.ndarray) -> np.ndarray:
        return (states == self.goal).all(axis=1)


def _blank(states: np.ndarray) -> np.ndarray:
    """Return the blank's cell, [N]."""
    return (states == 0).argmax(axis=1)


def _swap(states: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return new boards with the contents of two cells exchanged."""
    rows = np.arange(len(states))
    swapped = states.copy()
    swapped[rows, first], swapped[rows, second] = states[rows, second], states[rows, first]
    return swapped
