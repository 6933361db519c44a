"""DeepSea: one treasure, and small rewards that lead away from it. A test of deep exploration.

Osband et al. 2020, "Behaviour Suite for Reinforcement Learning" (arXiv:1908.03568), its deterministic form. Rewards,
observations and, for the same seed, the meaning of the actions are bsuite's.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.errors import EnvSetupError
from packtrain.trees import Tree

PIXELS_PER_CELL = 16
DIVER_COLOUR = (255, 255, 255)
TREASURE_COLOUR = (250, 200, 60)
LARGEST_SEED = 2**32 - 1


class DeepSea:
    """A diver sinks one row per step through size × size cells, from the upper left corner, going left or right.

    A step to the right costs move_cost / size; one to the left is free. The walls stop the diver. Going right in every
    row leads to the lower right cell; going right there too gives a reward of 1, and that episode is solved. After
    `size` steps the episode terminates. Steps after the end change nothing and have reward 0.

    The best return is 1 − move_cost (`best_return`). Never going right gives 0, and anything in between gives less than
    0; random actions find the treasure once in 2^size episodes.

    States are (row, column), [N, 2]; row = size is the end. Observations are float32 [size, size], 1 where the diver
    is, and all 0 at the end.

    Args:
      size: rows and columns, 1 or more.
      mapping_seed: seed of the random choice, for each cell, of the action that means right (bsuite's experiments use
        42);
        None for action 1 everywhere.
      move_cost: total cost of going right in every row, 0 to 1.
    """

    def __init__(self, size: int = 10, mapping_seed: int | None = None, move_cost: float = 0.01):
        self.size = options.whole_number("DeepSea", "size", size, least=1)
        self.move_cost = options.fraction("DeepSea", "move_cost", move_cost)
        self.max_steps: int | None = None
        self.best_return = 1 - self.move_cost
        self.right = np.ones((self.size, self.size), np.int64)  # the action that goes right, by row and column
        if mapping_seed is not None:
            mapping_seed = options.whole_number("DeepSea", "mapping_seed", mapping_seed, least=0)
            if mapping_seed > LARGEST_SEED:
                problem = f"mapping_seed must be at most {LARGEST_SEED}"
                raise EnvSetupError(f"DeepSea(mapping_seed={mapping_seed}): {problem}")
            self.right[:] = np.random.RandomState(mapping_seed).binomial(1, 0.5, self.right.shape)
        self._dtype = np.min_scalar_type(self.size)
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (self.size, self.size), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(2)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return divers in the upper left corner: [N, 2]."""
        return np.zeros((n, 2), self._dtype)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Move one row down and one column sideways; extras["solved"] is true where this step finds the treasure."""
        row, column = states.astype(np.int64).T
        under_way = row < self.size
        goes_right = actions == self.right[np.minimum(row, self.size - 1), column]
        solved = under_way & goes_right & (column == self.size - 1)
        rewards = solved - np.where(under_way & goes_right, self.move_cost / self.size, 0.0)
        moved = np.clip(column + np.where(goes_right, 1, -1), 0, self.size - 1)
        states = np.stack((row + under_way, np.where(under_way, moved, column)), axis=1).astype(self._dtype)  # [N, 2]
        return states, rewards.astype(np.float32), states[:, 0] == self.size, {"solved": solved}

    def observe(self, states: Tree) -> Tree:
        """Return 1 where the diver is: float32 [N, size, size]."""
        row, column = states.T
        observations = np.zeros((len(states), self.size, self.size), np.float32)
        under_way = np.flatnonzero(row < self.size)
        observations[under_way, row[under_way], column[under_way]] = 1
        return observations

    def render(self, states: Tree, mode: str) -> Any:
        """Render the sea of state 0 as text or as an image; the diver is absent at the end."""
        options.one_of("DeepSea", "render_mode", mode, ("rgb_array", "ansi"))
        diver = self.observe(states)[0] == 1
        if mode == "ansi":
            text = np.full((self.size, self.size), ".")
            text[-1, -1] = "*"
            text[diver] = "o"
            return "".join("".join(line) + "\n" for line in text)
        picture = np.zeros((self.size, self.size, 3), np.uint8)
        picture[-1, -1] = TREASURE_COLOUR
        picture[diver] = DIVER_COLOUR
        return picture.repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)
