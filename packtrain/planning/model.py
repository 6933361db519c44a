"""What planners search in: a simulator or a learned model behind one face, for N states at once.

States are trees of arrays [N, ...] that nobody changes: a planner keeps them, picks among them and hands them back.
`step` is a generator, because a learned model has to ask its network: `answer = yield from model.step(...)`. A
simulator never asks.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol, TypeVar

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.envs.functional import Core
from packtrain.trees import Tree
from packtrain.types import Request

Result = TypeVar("Result")
Asking = Generator[Request, dict[str, np.ndarray], Result]
"""A computation that yields requests for predictions, is sent each answer {head: [M, ...]}, and returns a result."""


class Stepped(NamedTuple):
    """Where N actions lead."""

    states: Tree  # [N, ...]
    rewards: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    solved: np.ndarray  # [N] bool; False where an environment does not say
    bonus: np.ndarray | None = None  # [N] float32, how unsure a learned model is; None: it is sure


class Model(Protocol):
    """Dynamics to plan with."""

    action_space: gym.Space  # Discrete from 0, or Box
    deterministic: bool  # equal states and actions give equal answers

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """One action in each of N states. A state that has ended stays as it is and pays 0."""

    def observe(self, states: Tree) -> Tree:
        """What a network sees of the states, [N, ...]."""

    def keys(self, states: Tree) -> np.ndarray:
        """[N] uint64, equal for equal states and, for all practical purposes, for no others."""

    def legal(self, states: Tree) -> np.ndarray | None:
        """Which actions may be taken, bool [N, A]; None where all may."""


class CoreModel:
    """A functional core as its own perfect model."""

    def __init__(self, core: Core):
        self.core = core
        self.action_space = core.action_space
        self.deterministic = not getattr(core, "stochastic", False)
        self._changing = getattr(core, "changing", None)
        self._legal = getattr(core, "legal", None)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """One step of the core."""
        states, rewards, terminated, extras = self.core.step(states, actions, rng)
        solved = extras.get("solved")
        return Stepped(states, rewards, terminated, np.zeros(len(rewards), bool) if solved is None else solved)
        yield  # a generator, although it never asks

    def observe(self, states: Tree) -> Tree:
        """The core's observations."""
        return self.core.observe(states)

    def keys(self, states: Tree) -> np.ndarray:
        """A digest of all leaves, or of those that the core says tell the states of one episode apart."""
        return digest(states if self._changing is None else {leaf: states[leaf] for leaf in self._changing})

    def legal(self, states: Tree) -> np.ndarray | None:
        """What the core says, if it says."""
        return None if self._legal is None else self._legal(states)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: word i is told from word j by multiples of it


def digest(states: Tree) -> np.ndarray:
    """A 64-bit digest of each of N states: the sum over its 8-byte words of a mix of word and place, [N] uint64.

    Two different states share a digest with a chance of about 2^-64, and a million of them any with 3 · 10^-8.
    """
    leaves = [np.ascontiguousarray(leaf) for leaf in trees.flatten(states)]
    total = np.zeros(len(leaves[0]), np.uint64)
    place = 0
    for leaf in leaves:
        rows = leaf.reshape(len(leaf), -1)  # [N, ...] → [N, size]
        raw = rows.view(np.uint8).reshape(len(leaf), -1) if rows.size else np.zeros((len(leaf), 0), np.uint8)
        words = -(-raw.shape[1] // 8)
        padded = np.zeros((len(leaf), 8 * words), np.uint8) if raw.shape[1] % 8 else raw
        if padded is not raw:
            padded[:, : raw.shape[1]] = raw
        mixed = padded.view(np.uint64) + GOLDEN * np.arange(place + 1, place + words + 1, dtype=np.uint64)
        total += mix(mixed).sum(axis=1, dtype=np.uint64)
        place += words
    return mix(total)


def mix(words: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every bit of the result depends on every bit of the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
