"""The interface of models that planners search in: a simulator or a learned model, stepped for N states at once.

States are trees of arrays [N, ...] that are never changed in place: a planner keeps them, picks among them and passes
them back. `step` is a generator, because a learned model requests predictions from its network:
`stepped = yield from model.step(...)`. A simulator requests nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol, TypeVar

import gymnasium as gym
import numpy as np

from packtrain.envs.functional import Core
from packtrain.hashing import digest
from packtrain.trees import Tree
from packtrain.types import Request

Result = TypeVar("Result")
Asking = Generator[Request, dict[str, np.ndarray], Result]
"""A computation that yields requests for predictions, is sent each answer {head: [M, ...]}, and returns a result."""


class Stepped(NamedTuple):
    """The results of N actions in a model."""

    states: Tree  # [N, ...]
    rewards: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    solved: np.ndarray  # [N] bool; False where an environment does not report it
    bonus: np.ndarray | None = None  # [N] float32, disagreement of an ensemble; None: exact model


class Model(Protocol):
    """Dynamics to plan with.

    Two optional attributes are read with `gives_bonus` and `clears_bonus`.
    """

    action_space: gym.Space[Any]  # Discrete from 0, or Box
    deterministic: bool  # equal states and actions give equal results

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """Take one action in each of N states. A state that has ended stays as it is, with reward 0."""

    def observe(self, states: Tree) -> Tree:
        """Return the network's inputs for the states, [N, ...]."""

    def keys(self, states: Tree) -> np.ndarray:
        """Return uint64 [N], equal for equal states and, for all practical purposes, for no others."""

    def legal(self, states: Tree) -> np.ndarray | None:
        """Return which actions may be taken, bool [N, A]; None: all."""


class FittedModel(Model, Protocol):
    """A model that is made from real transitions of the environments: an ensemble, or a table."""

    verified: Any  # `TransitionTable` of real transitions that replace predictions; None: none do

    def use(self, version: int) -> None:
        """Use the network's weights of this version from now on."""

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Begin new episodes in these environments."""

    def roots(self, columns: np.ndarray, obs: np.ndarray) -> Tree:
        """Return the model's states for the observations of environments."""

    def run_of(self, columns: np.ndarray) -> np.ndarray:
        """Return the run that environments [R] belong to, [R]."""

    def guess(self, states: Tree, actions: Any) -> Asking[Stepped]:
        """Return the prediction for each state and action, even if the real transition is known."""


class FittedModelSettings(Protocol):
    """Settings of such a model."""

    @property
    def members(self) -> int:
        """Return the number of networks that it needs; 0: none, and no trainer."""

    @property
    def verified_edges(self) -> str:
        """Return "run" if real transitions replace predictions in all later episodes."""

    def build(self, core: Core, seed: int, predicts: Any = "changes", runs: int = 1, columns: int = 0) -> Any:
        """Return the `FittedModel` of an environment."""


def gives_bonus(model: Model) -> bool:
    """Return whether the model's `step` fills in `bonus`, how much the members of its ensemble disagree."""
    return bool(getattr(model, "gives_bonus", False))


def clears_bonus(model: Model) -> bool:
    """Return whether a real step removes the bonus of its state and action."""
    return bool(getattr(model, "clears_bonus", False))


class CoreModel:
    """A functional environment core as its own perfect model."""

    def __init__(self, core: Core):
        self.core = core
        self.action_space: gym.Space[Any] = core.action_space
        self.deterministic = not getattr(core, "stochastic", False)
        self._changing = getattr(core, "changing", None)
        self._legal = getattr(core, "legal", None)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """Make one step of the core."""
        states, rewards, terminated, extras = self.core.step(states, actions, rng)
        solved = extras.get("solved")
        return Stepped(states, rewards, terminated, np.zeros(len(rewards), bool) if solved is None else solved)
        yield  # makes this a generator, although it sends no requests

    def observe(self, states: Tree) -> Tree:
        """Return the core's observations."""
        return self.core.observe(states)

    def keys(self, states: Tree) -> np.ndarray:
        """Return digests of all leaves, or of those that the core lists as changing within an episode."""
        return digest(states if self._changing is None else {leaf: states[leaf] for leaf in self._changing})

    def legal(self, states: Tree) -> np.ndarray | None:
        """Return the core's legal actions, if it has such a method."""
        return None if self._legal is None else self._legal(states)
