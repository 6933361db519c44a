"""Handicaps that make agents less capable: noisy or coarse actions, noisy observations; for studies of capability.

The agent does not observe the handicap. Stored actions are the chosen ones; the environment executes and rewards the
changed ones. Reward functions receive what the environment receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain import check, trees
from packtrain.config import configurable
from packtrain.envs.validation import space_leaves
from packtrain.envs.vector_env import Outcome, VectorEnv
from packtrain.errors import ConfigError
from packtrain.trees import Tree


@configurable
@dataclass(frozen=True)
class Handicap:
    """How actions and observations are disturbed."""

    action_noise: float = (
        0.0  # discrete actions: probability of a random replacement; continuous: standard deviation of added noise
    )
    action_levels: int | None = None  # number of values that a continuous action can take between its bounds; None: all
    observation_noise: float = 0.0  # standard deviation of added noise; for images, as a fraction of white

    def __post_init__(self) -> None:
        for name in ("action_noise", "observation_noise"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigError(f"Handicap.{name} = {getattr(self, name)} must be finite and not negative")
        check.at_least(self, 2, "action_levels", end=", or None")

    @property
    def is_none(self) -> bool:
        """Return whether actions and observations are unchanged."""
        return not self.action_noise and self.action_levels is None and not self.observation_noise

    def refuse_unless_it_fits(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Raise a ConfigError if a handicap has no effect on these spaces, or cannot be applied."""
        actions = trees.flatten(space_leaves(action_space))
        choices = [space for space in actions if not isinstance(space, gym.spaces.Box)]
        if choices and self.action_noise > 1:
            raise ConfigError(
                f"Handicap.action_noise = {self.action_noise} must be at most 1 for actions of {choices[0]}"
            )
        if self.action_levels is not None:
            for space in actions:
                if not isinstance(space, gym.spaces.Box) or not space.is_bounded("both"):
                    raise ConfigError(f"Handicap.action_levels needs actions that are bounded numbers, not {space}")
        seen = trees.flatten(space_leaves(observation_space))
        if self.observation_noise and not any(isinstance(space, gym.spaces.Box) for space in seen):
            raise ConfigError(f"Handicap.observation_noise needs observations that are numbers, not {seen[0]}")


class HandicappedVectorEnv:
    """Vector environment whose actions and observations are disturbed."""

    def __init__(self, columns: VectorEnv, handicap: Handicap, seed: int):
        self._columns, self._handicap, self._seed = columns, handicap, seed
        self._actions = space_leaves(columns.action_space)
        self._observations = space_leaves(columns.observation_space)
        self._rng = np.random.default_rng([seed, 1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._columns, name)

    def reset(self) -> Outcome:
        """Return the first rows, and restart the noise."""
        self._rng = np.random.default_rng([self._seed, 1])
        return self._blurred(self._columns.reset())

    def send(self, actions: Tree) -> None:
        """Start one step with the disturbed actions."""
        self._columns.send(trees.map(self._spoilt, actions, self._actions))

    def recv(self) -> Outcome:
        """Wait for that step and return its outcome."""
        return self._blurred(self._columns.recv())

    def _spoilt(self, actions: np.ndarray, space: gym.Space) -> np.ndarray:
        handicap, rng = self._handicap, self._rng
        if isinstance(space, gym.spaces.Box):
            if handicap.action_levels is not None:
                step = (space.high - space.low) / (handicap.action_levels - 1)
                actions = space.low + np.round((np.clip(actions, space.low, space.high) - space.low) / step) * step
            if handicap.action_noise:
                actions = actions + handicap.action_noise * rng.standard_normal(np.shape(actions))
            return np.clip(actions, space.low, space.high).astype(space.dtype)
        if not handicap.action_noise:
            return actions
        given = np.asarray(actions)
        slips = rng.random(given.shape) < handicap.action_noise
        return np.where(slips, _any(space, given.shape, rng), given).astype(given.dtype)

    def _blurred(self, outcome: Outcome) -> Outcome:
        if not self._handicap.observation_noise:
            return outcome
        return outcome._replace(obs=trees.map(self._blur, outcome.obs, self._observations))

    def _blur(self, obs: np.ndarray, space: gym.Space) -> np.ndarray:
        if not isinstance(space, gym.spaces.Box):
            return obs
        noise = self._handicap.observation_noise * self._rng.standard_normal(obs.shape)
        if space.dtype == np.uint8:
            return np.clip(np.round(obs + 255 * noise), 0, 255).astype(np.uint8)
        return np.clip(obs + noise, space.low, space.high).astype(space.dtype)

    def snapshot(self) -> Tree | None:
        """Return the environments' snapshot and the state of the noise."""
        inner = self._columns.snapshot()
        return None if inner is None else {"columns": inner, "noise": self._rng.bit_generator.state}

    def restore(self, snapshot: Tree) -> None:
        """Restore a snapshot."""
        self._columns.restore(snapshot["columns"])
        self._rng.bit_generator.state = snapshot["noise"]


def _any(space: gym.Space, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return uniformly random discrete actions."""
    if isinstance(space, gym.spaces.Discrete):
        return space.start + rng.integers(space.n, size=shape)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start + rng.integers(space.nvec, size=shape)
    return rng.integers(2, size=shape)
