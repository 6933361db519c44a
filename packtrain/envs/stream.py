"""Step 1 of the walk: takes actions for B environments and returns one row of experience for each, as NumPy arrays."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.envs.validation import space_leaves
from packtrain.envs.vector_env import Outcome, VectorEnv
from packtrain.trees import Tree
from packtrain.types import Row


class Episode(NamedTuple):
    """A finished episode: its undiscounted return in each reward channel, and its length in steps."""

    returns: dict[str, float]
    length: int
    solved: float  # NaN if the environment does not report it
    column: int


class Finished(NamedTuple):
    """The K episodes that finished in one step of a stream, as arrays, and the L lives that ended in it."""

    returns: dict[str, np.ndarray]  # {channel: [K] float64}
    length: np.ndarray  # [K] int64
    solved: np.ndarray  # [K] float64
    column: np.ndarray  # [K] int64
    life_returns: np.ndarray  # [L] float64, training channel; empty if the environment has no lives

    def episodes(self) -> list[Episode]:
        """Return the episodes one by one."""
        return [
            Episode({n: float(v[k]) for n, v in self.returns.items()}, int(length), float(solved), int(column))
            for k, (length, solved, column) in enumerate(zip(self.length, self.solved, self.column, strict=True))
        ]


class Stream:
    """A group of B environments as a source of rows, with the counters of their episodes."""

    def __init__(self, columns: VectorEnv, size: int):
        self.size = size
        self.columns = columns
        self._actions = [ActionScale(space) for space in trees.flatten(space_leaves(columns.action_space))]
        self._structure = space_leaves(columns.action_space)
        self._row: Row | None = None  # with NumPy arrays in place of tensors
        self._sent: Tree = None
        self._returns = {channel: np.zeros(size, np.float64) for channel in columns.reward_channels}
        self._life_returns = np.zeros(size, np.float64)
        self._lengths = np.zeros(size, np.int64)
        self._finished: list[Finished] = []
        self.steps = 0  # decisions that reached an environment; filler rows are not steps
        self.acted = np.zeros(size, bool)  # [B] whether the latest row is the result of an action
        self.solved: np.ndarray | None = None  # [B] bool, whether the latest row solved its task; None: not reported

    def start(self) -> Row:
        """Reset every environment and return the first row. After `restore`, return the row of the snapshot."""
        if self._row is None:
            outcome = self.columns.reset()
            self._show(outcome, trees.map(lambda s: np.zeros((self.size, *s.shape), _dtype(s)), self._structure))
        assert self._row is not None
        return self._row

    @property
    def started(self) -> bool:
        """Whether there is a row: the environments have been reset, or restored."""
        return self._row is not None

    def restart(self) -> None:
        """Clear all state: the next `start` resets the environments with their original seeds."""
        self._row = None
        self._finished = []
        self._lengths[:] = 0
        for value in (*self._returns.values(), self._life_returns):
            value[:] = 0.0

    def send(self, action: Tree) -> None:
        """Start a step with actions [B, ...] in the policy's format."""
        self._sent = trees.map(np.asarray, action)
        leaves = zip(self._actions, trees.flatten(self._sent), strict=True)
        self.columns.send(trees.pack(self._structure, [scale.to_env(leaf) for scale, leaf in leaves]))

    def recv(self) -> Row:
        """Return the row after that step. Its arrays are valid until the next send."""
        outcome = self.columns.recv()
        self._count(outcome)
        self.solved = outcome.solved
        return self._show(outcome, self._sent)

    @property
    def first(self) -> np.ndarray:
        """Return whether the latest row begins an episode, [B] bool."""
        assert self._row is not None
        return np.asarray(self._row.first)

    @property
    def lengths(self) -> np.ndarray:
        """Return the steps so far of the current episodes, [B] int64."""
        return self._lengths

    def unfinished(self, column: int) -> Episode:
        """Return an environment's current episode so far; whether it will be solved is unknown."""
        returns = {channel: float(value[column]) for channel, value in self._returns.items()}
        return Episode(returns, int(self._lengths[column]), math.nan, column)

    @property
    def sent(self) -> Tree:
        """Return the latest actions, in the policy's format."""
        return self._sent

    def drain_finished(self) -> list[Finished]:
        """Return the episodes that finished since the last call, one entry for each step that ended some."""
        finished, self._finished = self._finished, []
        return finished

    def drain_episodes(self) -> list[Episode]:
        """Return the episodes that finished since the last call, one by one."""
        return [episode for finished in self.drain_finished() for episode in finished.episodes()]

    def snapshot(self) -> dict[str, Any] | None:
        """Return the state for continuing bit-exactly from the current row; None if environments cannot be saved."""
        inner = self.columns.snapshot()
        if inner is None or self._row is None:
            return None
        return {
            "columns": inner,
            "row": trees.map(np.copy, self._row._asdict()),
            "returns": {name: value.copy() for name, value in self._returns.items()},
            "life_returns": self._life_returns.copy(),
            "lengths": self._lengths.copy(),
            "steps": self.steps,
            "finished": [finished._asdict() for finished in self._finished],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self.columns.restore(snapshot["columns"])
        self._row = Row(**trees.map(np.copy, snapshot["row"]))
        self.acted = ~self.first  # environments that wait are only saved before their first row
        self._returns = {name: np.array(value) for name, value in snapshot["returns"].items()}
        self._life_returns = np.array(snapshot["life_returns"])
        self._lengths = np.array(snapshot["lengths"])
        self.steps = int(snapshot["steps"])
        self._finished = [Finished(**finished) for finished in snapshot["finished"]]

    def _count(self, outcome: Outcome) -> None:
        acted = ~outcome.first if outcome.waiting is None else ~(outcome.first | outcome.waiting)
        self.steps += int(acted.sum())
        self.acted = acted
        self._lengths += acted
        for channel, reward in outcome.rewards.items():
            self._returns[channel] += reward
        if outcome.life_over is not None:
            self._life_returns += outcome.rewards["train"]
        over = outcome.terminated | outcome.truncated if outcome.over is None else outcome.over
        ended = over & acted  # an episode that was dropped at its reset does not count
        lives = ended if outcome.life_over is None else outcome.life_over
        if not lives.any():
            return
        columns = np.nonzero(ended if outcome.dropped is None else ended & ~outcome.dropped)[0]
        solved = np.full(len(columns), np.nan) if outcome.solved is None else outcome.solved[columns].astype(np.float64)
        returns = {channel: value[columns] for channel, value in self._returns.items()}
        life_returns = self._life_returns[lives] if outcome.life_over is not None else np.empty(0)
        self._finished.append(Finished(returns, self._lengths[columns], solved, columns, life_returns))
        for value in self._returns.values():
            value[ended] = 0.0
        self._lengths[ended] = 0
        self._life_returns[lives] = 0.0

    def _show(self, outcome: Outcome, action: Tree) -> Row:
        if outcome.first.any():
            kept = ~outcome.first
            action = trees.map(lambda leaf: leaf * kept.reshape(-1, *[1] * (leaf.ndim - 1)), action)
        self._row = Row(outcome.obs, outcome.first, action, outcome.rewards, outcome.terminated, outcome.truncated)  # type: ignore[arg-type]
        return self._row


class ActionScale:
    """Converts the policy's actions to the environment's, for one leaf of the action space.

    Discrete actions count from 0 and are shifted to the space's start. Continuous ones are in [−1, 1] per
    dimension and scaled to finite bounds; for infinite bounds they are unchanged.
    """

    def __init__(self, space: gym.Space):
        self._space = space
        if isinstance(space, gym.spaces.Box):
            self._finite = np.isfinite(space.low) & np.isfinite(space.high)
            low = np.where(self._finite, space.low, -1).astype(np.float64)
            high = np.where(self._finite, space.high, 1).astype(np.float64)
            self._middle, self._half = (high + low) / 2, (high - low) / 2

    def to_env(self, array: np.ndarray) -> np.ndarray:
        """Return actions [B, ...] in the environment's format."""
        if isinstance(self._space, gym.spaces.Box):
            array = np.where(self._finite, np.clip(array, -1, 1), array)
            return (self._middle + self._half * array).astype(self._space.dtype)
        start = getattr(self._space, "start", 0)
        return array + start if np.any(start) else array


def _dtype(space: gym.Space) -> type:
    return np.float32 if isinstance(space, gym.spaces.Box) else np.int64
