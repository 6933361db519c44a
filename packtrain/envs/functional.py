"""Environments as pure functions over arrays of states, and their adapter to Gymnasium.

A core is written once, for N states at a time. It is used in three ways: as a Gymnasium `Env` (here), as a vector
environment (`FunctionalVectorEnv`), and directly by planners. A core does not count time: `max_steps` is applied by the
adapters, so that states do not depend on time.
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

    Optional attributes: `legal(states)`, the legal actions; `changing`, the leaves that distinguish states within an
    episode; `factors`, the factors of an observation (`categorical_factors.py`); `landmarks(states)`, flags that
    exploration metrics count; `action_names`, shown in traces of searches; `chart(states)` with `chart_shape()`, the
    position of states on a chart (`metrics/heat_map.py`); and `render(states, mode)`, state 0 as an image ("rgb_array",
    uint8 [H, W, 3]) or as text ("ansi"), with `pictures_per_second`, the frame rate of films.
    """

    observation_space: gym.Space
    action_space: gym.Space
    max_steps: int | None  # steps until truncation; None: no time limit

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return N start states: a tree of arrays [N, ...]."""

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Return (states, rewards [N] float32, terminated [N] bool, extras {"reward/NAME" or "solved": [N]})."""

    def observe(self, states: Tree) -> Tree:
        """Return observations [N, ...] of the states, in the observation space's dtype."""


def load_core(path: str, **kwargs: Any) -> Core:
    """Return the core class named "module:Class", constructed with `kwargs`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)(**kwargs)


def register(env_id: str, core: str) -> None:
    """Register a core ("module:Class") with Gymnasium under `env_id`; keyword arguments of `make` go to the class."""
    if env_id not in gym.registry:
        gym.register(env_id, entry_point="packtrain.envs.functional:FunctionalEnv", kwargs={"core": core})


class FunctionalEnv(gym.Env):
    """One environment over a core, with Gymnasium's interface."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}

    def __init__(self, core: str | Core, render_mode: str | None = None, **kwargs: Any):
        self.core: Core = load_core(core, **kwargs) if isinstance(core, str) else core
        self.observation_space = self.core.observation_space
        self.action_space = self.core.action_space
        self.render_mode = render_mode
        self._states: Tree = None
        self._elapsed = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Tree, dict]:
        """Return a new start state's observation."""
        super().reset(seed=seed)
        self._states = self.core.initial(1, self.np_random)
        self._elapsed = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict]:
        """Make one step of the core; extras are returned in `info` under their own names."""
        actions = trees.map(lambda leaf: np.asarray(leaf)[None], action)
        self._states, reward, terminated, extras = self.core.step(self._states, actions, self.np_random)
        self._elapsed += 1
        truncated = self.core.max_steps is not None and self._elapsed >= self.core.max_steps and not terminated[0]
        info = {name: value[0] for name, value in extras.items()}
        return self._observation(), float(reward[0]), bool(terminated[0]), bool(truncated), info

    def snapshot(self) -> Tree:
        """Return the state, the step counter and the generator, as arrays and JSON values."""
        return {"states": self._states, "elapsed": self._elapsed, "rng": self.np_random.bit_generator.state}

    def restore(self, snapshot: Tree) -> Tree:
        """Restore a snapshot, and return the observation."""
        self._states = trees.map(np.copy, snapshot["states"])
        self._elapsed = int(snapshot["elapsed"])
        self.np_random.bit_generator.state = snapshot["rng"]
        return self._observation()

    def render(self) -> Any:
        """Render the state as an image ("rgb_array") or as text ("ansi")."""
        if self.render_mode is None:
            return None
        return self.core.render(self._states, self.render_mode)  # type: ignore[attr-defined]

    def _observation(self) -> Tree:
        return trees.map(lambda leaf: leaf[0], self.core.observe(self._states))
