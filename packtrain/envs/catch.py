"""Catch: a falling ball, a paddle, and one reward at the end. The smallest task with image observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.trees import Tree

PIXELS_PER_CELL = 16
PADDLE_COLOUR = (90, 160, 250)
BALL_COLOUR = (255, 255, 255)


class Catch:
    """A ball falls one row per step from a random column; a paddle in the bottom row has to be under it.

    Actions: 0 left, 1 stay, 2 right; the paddle starts in the middle and stops at the walls. Both move in the same
    step, and when the ball reaches the bottom row the episode terminates with +1 if it lies on the paddle, else −1.
    Every other reward is 0, also for steps after the end, where the ball stays.

    An episode has rows − 1 steps. The best policy always scores +1 (if rows − 1 ≥ columns // 2, so that the paddle can
    reach every column). On the default board a uniformly random policy scores −0.60, and so does a paddle that never
    moves: without looking at the ball, the paddle catches one ball in `columns`.

    With `visible_rows` = k the ball is hidden below the first k rows, so a policy needs memory. A policy without memory
    can use only the position of the paddle, which depends on the k actions made while the ball was visible. It can
    distinguish at most 2k + 1 positions and catch as many balls. The best policy without memory, including random ones,
    scores 2 · min(2k + 1, columns) / columns − 1: +0.2 on the default board with k = 1, and +1 already with k = 2. A
    frame stack is a form of memory, too.

    Args:
      rows: height of the board in cells, 2 or more.
      columns: width of the board in cells, 1 or more.
      visible_rows: the ball is shown while it is in the first so many rows, 1 or more; None for always.
    """

    def __init__(self, rows: int = 10, columns: int = 5, visible_rows: int | None = None):
        self.rows = options.whole_number("Catch", "rows", rows, least=2)
        self.columns = options.whole_number("Catch", "columns", columns, least=1)
        self.visible_rows = (
            None if visible_rows is None else options.whole_number("Catch", "visible_rows", visible_rows, least=1)
        )
        self.max_steps: int | None = None
        self.observation_space: gym.Space = gym.spaces.Box(0, 255, (1, self.rows, self.columns), np.uint8)
        self.action_space: gym.Space = gym.spaces.Discrete(3)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return balls in random columns of the top row, and paddles in the middle."""
        return {
            "ball_row": np.zeros(n, np.int64),
            "ball_column": rng.integers(self.columns, size=n),
            "paddle": np.full(n, self.columns // 2, np.int64),
        }

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Move ball and paddle; extras["solved"] is true where the ball is caught in this step."""
        bottom = self.rows - 1
        landing = states["ball_row"] == bottom - 1
        ball_row = np.minimum(states["ball_row"] + 1, bottom)
        paddle = np.minimum(np.maximum(states["paddle"] + (actions - 1), 0), self.columns - 1)
        terminated = ball_row == bottom
        caught = landing & (paddle == states["ball_column"])
        rewards = np.subtract(caught, landing ^ caught, dtype=np.float32)  # +1 caught, −1 landed beside it
        states = {"ball_row": ball_row, "ball_column": states["ball_column"].copy(), "paddle": paddle}
        return states, rewards, terminated, {"solved": caught}

    def observe(self, states: Tree) -> Tree:
        """Return 255 where the paddle and the visible ball are, 0 elsewhere: uint8 [N, 1, rows, columns]."""
        n, cells = len(states["paddle"]), self.rows * self.columns
        flat = np.zeros(n * cells, np.uint8)
        first_cell = np.arange(0, n * cells, cells)
        ball = first_cell + (states["ball_row"] * self.columns + states["ball_column"])
        if self.visible_rows is not None:
            ball = ball[states["ball_row"] < self.visible_rows]
        flat[ball] = 255
        flat[first_cell + (states["paddle"] + (cells - self.columns))] = 255
        return flat.reshape(n, 1, self.rows, self.columns)  # [N * rows * columns] → [N, 1, rows, columns]

    def render(self, states: Tree, mode: str) -> Any:
        """Render the board of state 0 as text or as an image; the ball is always shown, and drawn over the paddle."""
        options.one_of("Catch", "render_mode", mode, ("rgb_array", "ansi"))
        ball = int(states["ball_row"][0]), int(states["ball_column"][0])
        paddle = self.rows - 1, int(states["paddle"][0])
        if mode == "ansi":
            text = np.full((self.rows, self.columns), ".")
            text[paddle], text[ball] = "=", "o"
            return "".join("".join(line) + "\n" for line in text)
        picture = np.zeros((self.rows, self.columns, 3), np.uint8)
        picture[paddle], picture[ball] = PADDLE_COLOUR, BALL_COLOUR
        return picture.repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)
