"""BitFlipper: a lock of n bits that random play opens exponentially late and a plan opens in n steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.trees import Tree

PIXELS_PER_BIT = 16
ON_COLOUR, OFF_COLOUR = (255, 255, 255), (60, 60, 60)


class BitFlipper:
    """All bits are off; turn all of them on.

    Action i flips bit i. A bit may always be turned off, but on only while all lower bits are on: otherwise nothing
    changes and extras["invalid_action"] is true. When all bits are on the episode terminates, solved, with reward 1.
    Every other reward is 0. Steps in a solved state change nothing and have reward 0.

    States are the bits, uint8 [N, bits]; observations the same as float32. Since the highest bit only goes on at the
    very end, 2^(bits − 1) + 1 states can be reached. The best policy needs `bits` steps, uniformly random actions 96
    on average for 4 bits and 128 576 for 8.

    Args:
      bits: 1 or more.
      max_steps: steps until truncation, 1 or more; None for no time limit.
    """

    def __init__(self, bits: int = 8, max_steps: int | None = 200):
        self.bits = options.whole_number("BitFlipper", "bits", bits, least=1)
        self.max_steps = None if max_steps is None else options.whole_number("BitFlipper", "max_steps", max_steps, 1)
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (self.bits,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(self.bits)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return states with all bits off."""
        return np.zeros((n, self.bits), np.uint8)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Flip one bit each; extras["solved"] is true where this step solved, "invalid_action" where illegal."""
        rows, ended = np.arange(len(states)), states.all(axis=1)
        legal = self.legal(states)[rows, actions]
        states = states.copy()
        states[rows, actions] ^= legal & ~ended
        terminated = states.all(axis=1)
        solved = terminated & ~ended
        return states, solved.astype(np.float32), terminated, {"solved": solved, "invalid_action": ~legal}

    def legal(self, states: Tree) -> np.ndarray:
        """Return which bits may be flipped, bool [N, bits]; also in a solved state, although it does not change."""
        on = states.astype(bool)
        lower_on = np.ones_like(on)  # whether all lower bits are on
        lower_on[:, 1:] = np.logical_and.accumulate(on[:, :-1], axis=1)
        return on | lower_on

    def observe(self, states: Tree) -> Tree:
        """Return the bits as float32 [N, bits]."""
        return states.astype(np.float32)

    def render(self, states: Tree, mode: str) -> Any:
        """Render the bits of state 0, bit 0 first, as text or as a row of squares."""
        options.one_of("BitFlipper", "render_mode", mode, ("rgb_array", "ansi"))
        if mode == "ansi":
            return "".join(map(str, states[0])) + "\n"
        picture = np.where(states[0][None, :, None] == 1, ON_COLOUR, OFF_COLOUR).astype(np.uint8)  # [1, bits, 3]
        return picture.repeat(PIXELS_PER_BIT, axis=0).repeat(PIXELS_PER_BIT, axis=1)
