"""Environments as pure functions over arrays of states, and their face as a Gymnasium environment.

A core is written once, for N states at a time. Two faces stand on it: a Gymnasium `Env` (here) and a natively
vectorised stream (`columns.FunctionalColumns`); planners stand on the core itself. A core knows no clock:
`max_steps` is applied by the faces, so that equal states are equal whatever the time.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.trees import Tree


class Core(Protocol):
    """Dynamics for N states at once. Pure: arguments are never changed, randomness comes from `rng` alone.

    A core may also say `legal(states)`, which actions may be taken; `changing`, the leaves that tell the states of an
    episode apart; `factors`, what an observation is made of (`factors.py`); `landmarks(states)`, what is worth counting
    once; `chart(states)` with `chart_shape()`, where states are on a picture (`metrics/heat_map.py`); and
    `render(states, mode)`, state 0 as a picture ("rgb_array", uint8 [H, W, 3]) or as text ("ansi"), with
    `pictures_per_second`, how fast a film of it goes.
    """

    observation_space: gym.Space
    action_space: gym.Space
    max_steps: int | None  # steps until truncation; None for no clock

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """N start states: a tree of arrays [N, ...]."""

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """(states, rewards [N] float32, terminated [N] bool, extras {"reward/NAME" or "solved": [N]})."""

    def observe(self, states: Tree) -> Tree:
        """Observations [N, ...] of the states, in the observation space's dtype."""


def load_core(path: str, **kwargs: Any) -> Core:
    """The core class named "module:Class", built with `kwargs`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)(**kwargs)


def register(env_id: str, core: str) -> None:
    """Register a core ("module:Class") with Gymnasium under `env_id`; keyword arguments of `make` go to the class."""
    if env_id not in gym.registry:
        gym.register(env_id, entry_point="packtrain.envs.functional:FunctionalEnv", kwargs={"core": core})


class FunctionalEnv(gym.Env):
    """One environment over a core, for everyone who expects Gymnasium's interface."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}

    def __init__(self, core: str | Core, render_mode: str | None = None, **kwargs: Any):
        self.core: Core = load_core(core, **kwargs) if isinstance(core, str) else core
        self.observation_space = self.core.observation_space
        self.action_space = self.core.action_space
        self.render_mode = render_mode
        self._states: Tree = None
        self._elapsed = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Tree, dict]:
        """A new start state."""
        super().reset(seed=seed)
        self._states = self.core.initial(1, self.np_random)
        self._elapsed = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict]:
        """One step of the core; extras come back in `info` under their own names."""
        actions = trees.map(lambda leaf: np.asarray(leaf)[None], action)
        self._states, reward, terminated, extras = self.core.step(self._states, actions, self.np_random)
        self._elapsed += 1
        truncated = self.core.max_steps is not None and self._elapsed >= self.core.max_steps and not terminated[0]
        info = {name: value[0] for name, value in extras.items()}
        return self._observation(), float(reward[0]), bool(terminated[0]), bool(truncated), info

    def snapshot(self) -> Tree:
        """The state, the clock and the generator, as arrays and JSON values."""
        return {"states": self._states, "elapsed": self._elapsed, "rng": self.np_random.bit_generator.state}

    def restore(self, snapshot: Tree) -> Tree:
        """Go back to a snapshot; returns the observation there."""
        self._states = trees.map(np.copy, snapshot["states"])
        self._elapsed = int(snapshot["elapsed"])
        self.np_random.bit_generator.state = snapshot["rng"]
        return self._observation()

    def render(self) -> Any:
        """The core's picture of the state ("rgb_array") or its text ("ansi")."""
        if self.render_mode is None:
            return None
        return self.core.render(self._states, self.render_mode)  # type: ignore[attr-defined]

    def _observation(self) -> Tree:
        return trees.map(lambda leaf: leaf[0], self.core.observe(self._states))
