"""The exact graph of a small deterministic environment: all reachable states, transitions and distances.

Exploration metrics (`metrics.exploration`) are relative to it, and heat maps are drawn over it.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.envs import options
from packtrain.envs.deadline import START_SECS, within
from packtrain.envs.functional import Core
from packtrain.errors import EnvSetupError
from packtrain.hashing import digest
from packtrain.planning.model import CoreModel
from packtrain.planning.nodes import NO_NODE, HashTable
from packtrain.trees import Tree

STARTS = 16  # number of start states that are compared
CHUNK = 65_536  # maximum number of states whose observations are in memory at a time
_HALF, _UPPER = np.uint64(32), np.uint64(0xFFFFFFFF00000000)


class StateGraph:
    """All states that are reachable from a core's start, found level by level; finished states have no successors.

    States are numbered in the order of discovery: the start is 0, then come the states one step away, and so on.
    "Solved" is a property of steps: the goal is any state that a solving step leads to, and to_goal counts the steps up
    to and including the first one that solves.

    Fields: `states` is the tree of all states [N, ...]; `keys` [N] uint64 their keys as in `CoreModel.keys`; `edges`
    [N, A] int32 the successor of each action, the state itself if the episode has ended; `terminated` and `solved` [N]
    bool; `from_start` and `to_goal` [N] int32 the length of the shortest path, to_goal NO_NODE if there is none.

    Args:
      core: deterministic, with a Discrete action space and one start state.
      most: maximum number of states; larger environments are rejected.
    """

    def __init__(self, core: Core, most: int = 1_000_000):
        most = options.whole_number("StateGraph", "most", most, least=1)
        self.core = core
        self._name = f"StateGraph({type(getattr(core, 'unwrapped', core)).__name__})"
        if getattr(core, "stochastic", False):
            raise EnvSetupError(
                f"{self._name}: the environment is stochastic, and only a deterministic one has a graph"
            )
        if not isinstance(core.action_space, gym.spaces.Discrete):
            raise EnvSetupError(f"{self._name}: actions must be Discrete, not {type(core.action_space).__name__}")
        draw = partial(core.initial, STARTS, np.random.default_rng(0))
        start = within(START_SECS, draw, f"{self._name}: episodes did not start")
        if len(np.unique(digest(start))) > 1:
            raise EnvSetupError(f"{self._name}: episodes start in different states, but the graph needs a single start")
        self._explore(trees.map(lambda leaf: leaf[:1], start), most)
        self.to_goal = self._distances()

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, states: Tree) -> np.ndarray:
        """Return the numbers of M states, [M] int64; NO_NODE for states that are not in the graph."""
        return self._by_state.find(self._telling(states))

    def from_observations(self, observations: Tree) -> np.ndarray:
        """Return the numbers of the states with these observations, [M] int64; NO_NODE if there is none.

        EnvSetupError if two states of the graph have equal observations.
        """
        return self._by_observation.find(observations)

    @cached_property
    def _by_state(self) -> _Numbers:
        numbers = _Numbers([self._telling(self.states)])
        assert numbers.unique, "two states share a fingerprint, once in 2^64 pairs"
        return numbers

    @cached_property
    def _by_observation(self) -> _Numbers:
        parts = (slice(begin, begin + CHUNK) for begin in range(0, len(self), CHUNK))
        numbers = _Numbers(
            self.core.observe(trees.map(lambda leaf, part=part: leaf[part], self.states)) for part in parts
        )
        if not numbers.unique:
            raise EnvSetupError(
                f"{self._name}: some states have equal observations, so observations do not identify states"
            )
        return numbers

    def _telling(self, states: Tree) -> Tree:
        """Return the leaves that distinguish states, as used by `CoreModel.keys`."""
        leaves = getattr(self.core, "changing", None)
        return states if leaves is None else {leaf: states[leaf] for leaf in leaves}

    def _explore(self, start: Tree, most: int) -> None:
        """Explore breadth first: all actions in all states of a level at once."""
        model, rng, table = CoreModel(self.core), np.random.default_rng(0), HashTable()
        space: Any = self.core.action_space
        actions = int(space.start) + np.arange(int(space.n))
        width, count = len(actions), 1
        keys = model.keys(start)
        table.give(table.enter(keys)[1], np.zeros(1, np.int64))
        level, ended = start, np.zeros(1, bool)
        levels: list[tuple[Tree, np.ndarray, np.ndarray]] = []  # states, keys, terminated
        steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # [n, A]: successor, terminated, solved
        while len(keys):
            levels.append((level, keys, ended))
            to = (count - len(keys) + np.arange(len(keys)))[:, None].repeat(width, axis=1)
            ends = ended[:, None].repeat(width, axis=1)
            solves = np.zeros_like(ends)
            steps.append((to, ends, solves))
            live = np.flatnonzero(~ended)
            if not len(live):
                break
            sources = trees.map(lambda leaf, live=live: leaf[live].repeat(width, axis=0), level)  # [n · A, ...]
            step = partial(self.core.step, sources, np.tile(actions, len(live)), rng)
            level, _, stopped, extras = within(
                START_SECS, step, f"{self._name}: a step from level {len(levels)} did not end"
            )
            keys = model.keys(level)
            found, places = table.enter(keys)
            new = np.flatnonzero(found == ~np.arange(len(keys)))
            numbers = count + np.arange(len(new))
            table.give(places[new], numbers)
            found[new] = numbers
            again = np.flatnonzero(found < 0)  # also new, and found twice in this level
            found[again] = found[~found[again]]
            to[live], ends[live] = found.reshape(-1, width), stopped.reshape(-1, width)
            if "solved" in extras:
                solves[live] = extras["solved"].reshape(-1, width)
            level = trees.map(lambda leaf, new=new: leaf[new], level)
            keys, ended, count = keys[new], stopped[new], count + len(new)
            if count > most:
                raise EnvSetupError(
                    f"{self._name}: more than {most:,} states are reachable; increase most, or use a smaller "
                    "environment"
                )
        self.states = trees.map(lambda *parts: np.concatenate(parts), *(states for states, _, _ in levels))
        self.keys = np.concatenate([keys for _, keys, _ in levels])
        self.terminated = np.concatenate([ended for _, _, ended in levels])
        self.from_start = np.repeat(np.arange(len(levels), dtype=np.int32), [len(keys) for _, keys, _ in levels])
        self.edges = np.concatenate([to for to, _, _ in steps]).astype(np.int32)
        if (np.concatenate([ends for _, ends, _ in steps]) != self.terminated[self.edges]).any():
            raise EnvSetupError(f"{self._name}: a state is terminal when reached by one path, but not by another")
        self._solves = np.concatenate([solves for _, _, solves in steps])
        self.solved = np.zeros(len(self.keys), bool)
        self.solved[self.edges[self._solves]] = True

    def _distances(self) -> np.ndarray:
        """Compute the distances to the first solving step by breadth-first search over reversed edges."""
        width = self.edges.shape[1]
        order = np.argsort(self.edges, axis=None, kind="stable")
        sources = order // width  # of edges, sorted by successor
        begin = np.searchsorted(self.edges.ravel()[order], np.arange(len(self) + 1))
        distances = np.full(len(self), NO_NODE, np.int32)
        distances[self.solved] = 0
        front = np.flatnonzero(self._solves.any(axis=1) & (distances == NO_NODE))
        distance = 1
        while len(front):
            distances[front] = distance
            counts = begin[front + 1] - begin[front]
            skipped = np.repeat(begin[front] - np.cumsum(counts) + counts, counts)
            before = sources[skipped + np.arange(len(skipped))]
            front = np.unique(before[distances[before] == NO_NODE])
            distance += 1
        return distances


class _Numbers:
    """The numbers of known rows of a tree, found by fingerprint: dozens of rows in a few microseconds.

    A fingerprint is two multilinear hashes of a row's 32-bit words, the upper halves of Σ factor_i · word_i mod 2^64
    with random factors. Two different rows share it with probability 2^-64 (Lemire and Kaser 2014, arXiv:1202.4961).
    """

    def __init__(self, parts: Any):
        self._packed: np.dtype | None = None
        prints = np.concatenate([self._prints(part) for part in parts])
        self._order = np.argsort(prints, kind="stable")
        self._sorted = prints[self._order]
        self.unique = not (self._sorted[1:] == self._sorted[:-1]).any()

    def find(self, rows: Tree) -> np.ndarray:
        """Return the numbers of M rows, [M] int64; NO_NODE for unknown rows."""
        prints = self._prints(rows)
        places = self._sorted.searchsorted(prints)
        known = self._sorted.take(places, mode="clip") == prints
        return np.where(known, self._order.take(places, mode="clip"), NO_NODE)

    def _prints(self, rows: Tree) -> np.ndarray:
        leaves = [np.asarray(leaf) for leaf in trees.flatten(rows)]
        if self._packed is None:
            self._lay_out(leaves)
        packed = np.zeros(len(leaves[0]), self._packed)
        for (name, shape, fractional), leaf in zip(self._fields, leaves, strict=True):
            if leaf.shape[1:] != shape:
                raise ValueError(f"rows of shape {leaf.shape[1:]} cannot be found among rows of shape {shape}")
            packed[name] = leaf + 0.0 if fractional else leaf  # −0.0 becomes 0.0
        words = packed.view(np.uint32).reshape(len(packed), len(self._factors))  # [M, words]
        sums = words.astype(np.uint64) @ self._factors  # [M, 2]
        return (sums[:, 0] & _UPPER) | (sums[:, 1] >> _HALF)

    def _lay_out(self, leaves: list[np.ndarray]) -> None:
        """Pack a row of all leaves into one record, padded with zeros to whole words."""
        formats = [(leaf.dtype, leaf.shape[1:]) for leaf in leaves]
        names = [str(number) for number in range(len(leaves))]
        sizes = [np.dtype(form).itemsize for form in formats]
        words = -(-sum(sizes) // 4)
        offsets = [sum(sizes[:number]) for number in range(len(leaves))]
        self._packed = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": 4 * words})
        self._fields = [
            (name, leaf.shape[1:], leaf.dtype.kind == "f") for name, leaf in zip(names, leaves, strict=True)
        ]
        self._factors = np.random.default_rng(0).integers(2**64, size=(words, 2), dtype=np.uint64)
