"""An environment whose steps take time and no processor, to measure how acting scales. Importing it registers it."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np


class Sleeping(gym.Env):
    """Sleep in every step; observations are zeros, rewards 0, and episodes end after `length` steps.

    Args:
      secs: seconds that a step sleeps.
      length: steps of an episode.
      render_mode: accepted as None only.
    """

    metadata = {"render_modes": []}

    def __init__(self, secs: float = 0.0025, length: int = 200, render_mode: str | None = None):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.render_mode = render_mode
        self._secs, self._length, self._steps = secs, length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        time.sleep(self._secs)
        self._steps += 1
        return np.zeros(8, np.float32), 0.0, self._steps >= self._length, False, {}


gym.register("packtrain/Sleeping-v0", lambda **options: Sleeping(**options))
