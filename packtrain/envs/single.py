"""One environment of a description as a plain Gymnasium environment, for a loop of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.envs.environment import Environment
from packtrain.envs.vector_env import VectorEnv


def make_single(environment: Environment, **kwargs: Any) -> gym.Env:
    """Return one environment: a Gymnasium environment as it is, an Atari game as packtrain plays it."""
    environment = replace(environment, kwargs={**environment.kwargs, **kwargs}) if kwargs else environment
    if environment.is_atari() or environment.is_envpool():
        return NativeEnv(environment)
    return environment.make_one()


class NativeEnv(gym.Env):
    """One column of a native vector environment; a reset in the middle of an episode begins a new group."""

    def __init__(self, environment: Environment):
        self._environment, self._spec = environment, environment.probe()
        self.observation_space, self.action_space = self._spec.obs, self._spec.action
        self._envs: VectorEnv | None = None
        self._over = False

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin an episode."""
        super().reset(seed=seed)
        if self._envs is not None and self._over and seed is None:
            self._envs.send(np.zeros(1, np.int64))
            outcome = self._envs.recv()
        else:
            self.close()
            self._envs = self._environment.open(1, int(self.np_random.integers(2**31)), self._spec)
            outcome = self._envs.reset()
        self._over = False
        return trees.map(lambda leaf: leaf[0].copy(), outcome.obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Make one step; a lost life is in the info, and only the end of the game ends the episode."""
        assert self._envs is not None, "reset comes first"
        self._envs.send(np.asarray([action]))
        outcome = self._envs.recv()
        ends = outcome.terminated | outcome.truncated if outcome.over is None else outcome.over
        self._over = bool(ends[0])
        truncated = bool(outcome.truncated[0])
        obs = trees.map(lambda leaf: leaf[0].copy(), outcome.obs)
        info = {"life_lost": bool(outcome.terminated[0])}
        return obs, float(outcome.rewards["train"][0]), self._over and not truncated, truncated, info

    def close(self) -> None:
        """Close the game."""
        if self._envs is not None:
            self._envs.close()
            self._envs = None
