"""The nodes of many trees or graphs in common arrays: numbers of nodes in, fields of nodes out, all at once.

A node is a number that stays its own while its column's episode lasts. Fields are arrays over all nodes, so that a
search works on the nodes of all its columns in one operation: `nodes.visits[ids] += 1`. Arrays move when they grow:
take them from `nodes` again after `add`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packtrain import trees
from packtrain.arrays import longer
from packtrain.planning.model import GOLDEN, mix
from packtrain.planning.table import NOBODY, Table
from packtrain.trees import Tree


class Nodes:
    """Nodes of B columns with named fields, and optionally states under their keys."""

    def __init__(self, fields: dict[str, tuple[tuple[int, ...], Any, Any]], capacity: int = 1024):
        """Nothing is in it.

        Args:
          fields: {name: (shape of one node's value, dtype, what a new node has)}; they become attributes. Where a new
            node is to have None, it has anything: for fields that are written before they are read.
          capacity: nodes there is room for at first; it doubles when needed.
        """
        self._fills = {name: fill for name, (_, _, fill) in fields.items()}
        self._capacity = capacity
        self.owner = np.full(capacity, NOBODY, np.int64)  # the column of each node
        self._keys = np.zeros(capacity, np.uint64)  # of nodes that have one
        self._keyed = np.zeros(capacity, bool)
        for name, (shape, dtype, _) in fields.items():
            setattr(self, name, np.zeros((capacity, *shape), dtype))
        self.states: Tree = None  # [capacity, ...], of nodes that were given some
        self._free = np.empty(0, np.int64)  # numbers given back
        self._end = 0  # numbers from here on were never given
        self._table = Table(capacity)

    def __len__(self) -> int:
        """How many nodes there are."""
        return self._end - len(self._free)

    def __getattr__(self, name: str) -> Any:  # fields are set in __init__; this tells a type checker so
        raise AttributeError(name)

    def add(self, columns: np.ndarray, states: Tree = None) -> np.ndarray:
        """New nodes [M] for these columns [M], with the given states if there are any."""
        ids = self._take(len(columns))
        self.owner[ids] = columns
        for name, fill in self._fills.items():
            if fill is not None:
                getattr(self, name)[ids] = fill
        if states is not None:
            self._store(ids, states)
        return ids

    def intern(self, columns: np.ndarray, keys: np.ndarray, states: Tree) -> tuple[np.ndarray, np.ndarray]:
        """The node of each state [M] in its column, made where there is none.

        Returns:
          [M] nodes; [M] bool, the node was made now (of equal states only the first says so).
        """
        own = own_keys(columns, keys)
        found, places = self._table.enter(own)
        new = (found < 0).nonzero()[0]
        fresh = np.zeros(len(own), bool)
        if len(new):
            first = ~found.take(new)
            made = new.compress(first == new)
            fresh[made] = True
            ids = self.add(columns.take(made), trees.map(lambda leaf: leaf.take(made, axis=0), states))
            self._keys[ids], self._keyed[ids] = own.take(made), True
            self._table.give(places.take(made), ids)
            found[made] = ids
            found[new] = found.take(first)
        return found, fresh

    def find(self, columns: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The nodes with these keys, NOBODY where there is none."""
        return self._table.find(own_keys(columns, keys))

    def forget(self, columns: np.ndarray) -> None:
        """Give back all nodes of these columns."""
        mine = np.isin(self.owner[: self._end], columns)
        if not mine.any():
            return
        ids = np.flatnonzero(mine)
        self.owner[ids], self._keyed[ids] = NOBODY, False
        if len(ids) == len(self):
            self._free, self._end = self._free[:0], 0
        else:
            self._free = np.concatenate([self._free, ids[::-1]])
        kept = np.flatnonzero(self._keyed[: self._end])
        self._table.rebuild(self._keys[kept], kept)

    def keep(self, ids: np.ndarray) -> None:
        """Give back all nodes but these. Not for nodes that are found by their keys."""
        given = self.owner[: self._end] != NOBODY
        given[ids] = False
        dropped = np.flatnonzero(given)
        assert not self._keyed[dropped].any(), "a node with a key would still be found by it"
        self.owner[dropped] = NOBODY
        self._free = np.concatenate([self._free, dropped[::-1]])

    def replace(self, name: str, values: np.ndarray) -> None:
        """Have other values in a field, of another shape if need be: [as many as there is room for, ...]."""
        assert len(values) == self._capacity
        setattr(self, name, values)

    def of(self, column: int) -> np.ndarray:
        """The nodes of a column."""
        return np.flatnonzero(self.owner[: self._end] == column)

    def _take(self, count: int) -> np.ndarray:
        reused = min(count, len(self._free))
        split = len(self._free) - reused
        old, self._free = self._free[split:][::-1], self._free[:split]
        end = self._end + count - reused
        if end > self._capacity:
            self._grow(end)
        ids = np.concatenate([old, np.arange(self._end, end)])
        self._end = end
        return ids

    def _grow(self, wanted: int) -> None:
        while self._capacity < wanted:
            self._capacity *= 2
        for name in ("owner", "_keys", "_keyed", *self._fills):
            setattr(self, name, longer(getattr(self, name), self._capacity))
        if self.states is not None:
            self.states = trees.map(lambda leaf: longer(leaf, self._capacity), self.states)

    def _store(self, ids: np.ndarray, states: Tree) -> None:
        if self.states is None:
            self.states = trees.map(lambda leaf: np.zeros((self._capacity, *leaf.shape[1:]), leaf.dtype), states)

        def put(mine: np.ndarray, given: np.ndarray) -> None:
            mine[ids] = given

        trees.map(put, self.states, states)


def own_keys(columns: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Keys that differ between columns too."""
    return mix(keys + GOLDEN * (columns.astype(np.uint64) + np.uint64(1)))
