"""The interface of all planners: roots in, actions and search results out."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from packtrain.planning.events import Listener
from packtrain.planning.model import Asking, Model
from packtrain.trees import Tree


class Roots(NamedTuple):
    """The R environments, out of B, that need an action."""

    columns: np.ndarray  # [R] int64, ascending
    states: Tree  # [R, ...]
    obs: Tree  # [R, ...]


class Plan(NamedTuple):
    """Actions for R environments, and the search results."""

    # [R] int64, or [R, ...] float32 in [−1, 1], which the environment rescales to the bounds of its Box
    action: np.ndarray
    extras: dict[str, np.ndarray]  # [R, ...] training targets such as "value" and "qualities"


class Planner(Protocol):
    """Plans for some of B environments at once. Its search data lasts from `begin` to the next `begin`."""

    decisions: int  # number of plans made: part of the key of random choices, restored on resume
    rng: np.random.Generator  # for models that sample

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Begin an episode in these environments: clear their search data."""

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Search, and choose. States and observations of the roots are never changed."""

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Process the outcomes of the last plan's actions in these environments."""


class Agent(Protocol):
    """The settings of a planner."""

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return the network outputs that are needed, {network: {head: outputs}}; empty if there are none."""

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> Planner:
        """Return the planner for B environments; ConfigError if it cannot plan in this model."""
