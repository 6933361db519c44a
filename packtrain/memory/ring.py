"""A ring buffer of episodes: new rows overwrite the oldest, and storage grows as it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from packtrain import trees
from packtrain.arrays import longer
from packtrain.trees import Tree

_FIRST_ROOM = 1024


class Ring:
    """Rows of episodes with named fields. A row is a step, except the last of an episode, which only follows a step."""

    def __init__(self, capacity: int):
        """Create an empty ring.

        Args:
          capacity: rows there may be, those that are no steps included.
        """
        self._capacity = capacity
        self._room = 0
        self._next = 0
        self._full = False
        self.fields: dict[str, Tree] = {}
        self._is_step = np.zeros(0, bool)
        self.priority = np.zeros(0)
        self._steps = 0

    def __len__(self) -> int:
        """Return the number of steps that can be sampled."""
        return self._steps

    def add(self, obs: Tree, fields: dict[str, Tree]) -> None:
        """Write an episode of L steps, at most the capacity less one.

        Args:
          obs: [L+1, ...].
          fields: {name: [L, ...]}.
        """
        count = len(trees.front(obs))
        self._make_room(count, obs, fields)
        rows = self.wrapped(self._next + np.arange(count))
        self._steps -= int(self._is_step[rows].sum())
        _write(self.fields["obs"], rows, obs)
        for name, values in fields.items():
            _write(self.fields[name], rows[:-1], values)
        self._is_step[rows[:-1]], self._is_step[rows[-1]] = True, False
        self.priority[rows[:-1]] = self.priority.max() or 1.0
        self._steps += count - 1
        self._full |= self._next + count >= self._capacity
        self._next = (self._next + count) % self._capacity

    def draw(self, count: int, rng: np.random.Generator, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        """Sample `count` steps with replacement; return their rows and probabilities.

        Args:
          count: how many.
          rng: draws them.
          exponent: 0: uniformly; else in proportion to priority ** exponent.
        """
        size = self._capacity if self._full else self._next
        if exponent:
            weights = np.cumsum(np.where(self._is_step[:size], self.priority[:size] ** exponent, 0.0))
            rows = np.searchsorted(weights, rng.random(count) * weights[-1], side="right")
            return rows, np.diff(weights, prepend=0.0)[rows] / weights[-1]
        rows = np.empty(0, np.int64)
        while len(rows) < count:  # the last row of an episode is no step, so a few samples are rejected
            drawn = rng.integers(size, size=count + 8)
            rows = np.concatenate([rows, drawn[self._is_step[drawn]]])
        return rows[:count], np.full(count, 1.0 / max(1, self._steps))

    def spread(self, count: int) -> np.ndarray:
        """Return the rows of at most `count` steps, evenly spaced from the first row to the last."""
        rows = np.flatnonzero(self._is_step)
        return rows[np.arange(min(count, len(rows))) * len(rows) // max(1, min(count, len(rows)))]

    def take(self, name: str, rows: np.ndarray, offset: int = 0) -> Tree:
        """Return a field at rows, or `offset` rows after them."""
        where = self.wrapped(rows + offset) if offset else rows
        return trees.map(lambda leaf: leaf[where], self.fields[name])

    def wrapped(self, rows: np.ndarray) -> np.ndarray:
        """Return row numbers modulo the ring's capacity."""
        return rows % self._capacity

    def _make_room(self, count: int, obs: Tree, fields: dict[str, Tree]) -> None:
        if not self.fields:

            def blank(tree: Tree) -> Tree:
                return trees.map(lambda leaf: np.zeros((0, *leaf.shape[1:]), leaf.dtype), tree)

            self.fields = {"obs": blank(obs), **{name: blank(values) for name, values in fields.items()}}
        wanted = min(self._capacity, self._next + count)
        if wanted <= self._room:
            return
        room = min(self._capacity, max(wanted, 2 * self._room, _FIRST_ROOM))
        self.fields = {name: trees.map(lambda leaf: longer(leaf, room), tree) for name, tree in self.fields.items()}
        self._is_step, self.priority = longer(self._is_step, room), longer(self.priority, room)
        self._room = room

    def snapshot(self) -> dict[str, Any]:
        """Return the rows in use, without a copy, since they can be gigabytes. Valid until the next `add`."""
        size = self._capacity if self._full else self._next
        return {
            "fields": {name: trees.map(lambda leaf: leaf[:size], tree) for name, tree in self.fields.items()},
            "is_step": self._is_step[:size],
            "priority": self.priority[:size],
            "next": self._next,
            "full": self._full,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot of a ring of the same capacity."""
        self.fields = trees.map(np.array, snapshot["fields"])
        self._is_step, self.priority = np.array(snapshot["is_step"]), np.array(snapshot["priority"])
        self._room, self._steps = len(self._is_step), int(self._is_step.sum())
        self._next, self._full = int(snapshot["next"]), bool(snapshot["full"])


def _write(field: Tree, rows: np.ndarray, values: Tree) -> None:
    def put(mine: np.ndarray, given: np.ndarray) -> None:
        mine[rows] = given

    trees.map(put, field, values)
