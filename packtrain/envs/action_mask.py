"""Masks of forbidden actions that an environment reports in its info dict, as part of its observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.errors import EnvSetupError

MASK_KEY = "action_mask"


class InfoActionMask(gym.Wrapper):
    """Observations become {"obs": observation, "action_mask": info["action_mask"]}, as networks with masks read them.

    gymnasium's Taxi, for example, reports such a mask. Where info has none, all actions are allowed.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        if not isinstance(env.action_space, gym.spaces.Discrete):
            raise EnvSetupError(f"InfoActionMask masks Discrete actions, not {env.action_space}")
        self._count = int(env.action_space.n)
        self.observation_space = gym.spaces.Dict(
            {"obs": env.observation_space, MASK_KEY: gym.spaces.MultiBinary(self._count)}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = np.asarray(info.get(MASK_KEY, np.ones(self._count)), np.int8)
        if mask.shape != (self._count,):
            raise EnvSetupError(f"info[{MASK_KEY!r}] has shape {mask.shape}, and there are {self._count} actions")
        return {"obs": obs, MASK_KEY: (mask > 0).astype(np.int8)}
