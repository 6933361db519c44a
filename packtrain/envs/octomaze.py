"""Octomaze: corridors that require repeating one action.

Random play rarely leaves them, a plan takes the shortest path.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.trees import Tree

PIXELS_PER_CELL = 16
WALKER_COLOUR, CELL_COLOUR, END_COLOUR = (255, 255, 255), (60, 60, 60), (250, 200, 60)


class Octomaze:
    """A hall with corridors on all sides, all of the same length, and an exit at the end of each.

    Action i in the hall enters corridor i, at its first cell. There action i moves on by one cell, and every other
    action does nothing: a corridor cannot be left backwards. The step out of the last cell reaches the end, which is
    the same for all corridors: the episode terminates, solved, with reward 1. Every other reward is 0. Steps after the
    end change nothing and have reward 0.

    States are (corridor, cells entered), [N, 2]: (0, 0) in the hall, (i, 1) … (i, corridor_length) in corridor i and
    (0, corridor_length + 1) at the end. There are num_corridors · corridor_length + 2 of them, and the shortest way
    has corridor_length + 1 steps. Uniformly random actions take 1 + num_corridors · corridor_length steps on average.
    Observations are float32 [num_corridors, corridor_length], 1 at the agent's cell; all 0 in the hall, all 1
    at the end.

    Args:
      num_corridors: 1 or more.
      corridor_length: cells of a corridor, 1 or more.
      max_steps: steps until truncation, 1 or more; None for no time limit.
    """

    def __init__(self, num_corridors: int = 8, corridor_length: int = 10, max_steps: int | None = 200):
        self.num_corridors = options.whole_number("Octomaze", "num_corridors", num_corridors, least=1)
        self.corridor_length = options.whole_number("Octomaze", "corridor_length", corridor_length, least=1)
        self.max_steps = None if max_steps is None else options.whole_number("Octomaze", "max_steps", max_steps, 1)
        self._end = self.corridor_length + 1
        self._dtype = np.min_scalar_type(max(self.num_corridors - 1, self._end))
        shape = (self.num_corridors, self.corridor_length)
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, shape, np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(self.num_corridors)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return states in the hall: [N, 2]."""
        return np.zeros((n, 2), self._dtype)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Enter a corridor, move one cell on, or do nothing; extras["solved"] is true where this step ended it."""
        corridor, entered = states.astype(np.int64).T
        ended = entered == self._end
        entered = entered + (~ended & ((entered == 0) | (corridor == actions)))
        terminated = entered == self._end
        corridor = np.where((entered > 0) & ~terminated, np.where(states[:, 1] == 0, actions, corridor), 0)
        solved = terminated & ~ended
        states = np.stack((corridor, entered), axis=1).astype(self._dtype)  # [N, 2]
        return states, solved.astype(np.float32), terminated, {"solved": solved}

    def observe(self, states: Tree) -> Tree:
        """Return 1 at the agent's cell: float32 [N, num_corridors, corridor_length]."""
        corridor, entered = states.astype(np.int64).T
        observations = np.zeros((len(states), self.num_corridors, self.corridor_length), np.float32)
        inside = np.flatnonzero((entered > 0) & (entered < self._end))
        observations[inside, corridor[inside], entered[inside] - 1] = 1
        observations[entered == self._end] = 1
        return observations

    def render(self, states: Tree, mode: str) -> Any:
        """Render the corridors of state 0, one per line with the exit at the right: as text or as an image."""
        options.one_of("Octomaze", "render_mode", mode, ("rgb_array", "ansi"))
        at_end = states[0, 1] == self._end
        walker = self.observe(states)[0].astype(bool) & ~at_end
        if mode == "ansi":
            text = np.full((self.num_corridors, self.corridor_length + 1), ".")
            text[:, -1] = "o" if at_end else "*"
            text[:, :-1][walker] = "o"
            return "".join("".join(line) + "\n" for line in text)
        picture = np.full((self.num_corridors, self.corridor_length + 1, 3), CELL_COLOUR, np.uint8)
        picture[:, -1] = WALKER_COLOUR if at_end else END_COLOUR
        picture[:, :-1][walker] = WALKER_COLOUR
        return picture.repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)
