"""The face that all planners show: roots in, actions and what the search found out."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from packtrain.planning.events import Listener
from packtrain.planning.model import Asking, Model
from packtrain.trees import Tree


class Roots(NamedTuple):
    """The R environment columns that want an action, out of B."""

    columns: np.ndarray  # [R] int64, ascending
    states: Tree  # [R, ...]
    obs: Tree  # [R, ...]


class Plan(NamedTuple):
    """What to do in R columns, and what the search knew."""

    action: np.ndarray  # [R] int64, or [R, ...] float32 in [−1, 1], which streams stretch to the bounds of a Box
    extras: dict[str, np.ndarray]  # [R, ...]; "value", "qualities" and the like are what networks learn from


class Planner(Protocol):
    """Plans for some of B columns at once. Its trees are its own: they live from `begin` to the next."""

    decisions: int  # plans made; random choices depend on it, so a run that goes on sets it to where it stood
    rng: np.random.Generator  # for models that draw

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """An episode begins in these columns: forget what is known there."""

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Search, and choose. States and observations of the roots are never changed."""

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """What really came of the last plan's actions in these columns."""


class Agent(Protocol):
    """A planner's numbers, as a configuration gives them."""

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Which networks are asked for what: {network: {head: outputs}}; empty if none is asked."""

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> Planner:
        """The planner for B columns; ConfigError if it cannot plan in this model."""
