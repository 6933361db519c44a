"""States as numbered nodes: a hash table from keys to node numbers, and the fields of the nodes.

This is the data of every tree and graph search. A node is an integer. Its fields are rows of arrays that hold the nodes
of all environments, so that a search works on all environments in one operation: `nodes.visits[ids] += 1`. A node keeps
its number until its environment is forgotten. Arrays are replaced when they grow: read them from `nodes` again after
`add`.

Shapes: N nodes there is room for, M of them in a call, A actions, P = M · A pairs of a node and an action.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.arrays import longer
from packtrain.hashing import own_keys
from packtrain.planning import kernels
from packtrain.trees import Tree
from packtrain.types import Request

if TYPE_CHECKING:
    from packtrain.planning.model import Asking, Model, Stepped

NO_NODE = -1  # number that means "no node", also returned for keys that a hash table does not contain
_EMPTY = np.uint64(0)  # the key of an empty place in a hash table


# -- the hash table


class HashTable:
    """A hash table from 64-bit keys to numbers that looks up thousands of keys in one call.

    It uses open addressing with linear probing. Keys should be well mixed (`digest`). Key 0 is stored as another key.
    """

    def __init__(self, capacity: int = 1024):
        self._size = 1 << max(4, (2 * capacity - 1).bit_length())
        self._keys = np.zeros(self._size, np.uint64)
        self._values = np.zeros(self._size, np.int64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the numbers of M keys, NO_NODE for keys that are not in the table."""
        keys = _nonzero(keys)
        found = np.full(len(keys), NO_NODE, np.int64)
        places = self._start(keys)
        seen = self._keys[places]
        hit = seen == keys
        found[hit] = self._values[places[hit]]
        open_ = np.flatnonzero(~hit & (seen != _EMPTY))
        while len(open_):
            places[open_] = (places[open_] + 1) & (self._size - 1)
            seen = self._keys[places[open_]]
            hit = seen == keys[open_]
            found[open_[hit]] = self._values[places[open_[hit]]]
            open_ = open_[~hit & (seen != _EMPTY)]
        return found

    def enter(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look up M keys and enter those that are new. The caller then sets the numbers of new keys with `give`.

        Returns:
          [M] the numbers of known keys. A new key has ~i, which is below 0: i is the index at which this key comes
          first among the M keys.
          [M] the places of the keys in the table, for `give`.
        """
        if 2 * (self._used + len(keys)) > self._size:
            self._grow(self._used + len(keys))
        keys = _nonzero(keys)
        if kernels.compiled:
            found, places = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
            self._used += kernels.enter(self._keys, self._values, keys, found, places)
            return found, places
        places = self._start(keys)
        hit = self._keys.take(places) == keys
        found = self._values.take(places)
        open_ = (~hit).nonzero()[0]
        if not len(open_):
            return found, places
        at, mine = places.take(open_), keys.take(open_)
        while True:
            empty = (self._keys.take(at) == _EMPTY).nonzero()[0][::-1]  # of several keys for one place, the last
            claimed = at.take(empty)  # written one stays: reversed, so that it is the first key
            self._keys[claimed] = mine.take(empty)
            self._values[claimed] = ~open_.take(empty)  # below 0: claimed in this call, not numbered yet
            hit = self._keys.take(at) == mine
            value = self._values.take(at)
            found[open_], places[open_] = value, at  # wrong for misses; a later round of the loop overwrites it
            if hit.all():
                break
            left = (~hit).nonzero()[0]
            open_, at, mine = open_.take(left), (at.take(left) + 1) & (self._size - 1), mine.take(left)
        self._used += int(np.count_nonzero(found == ~np.arange(len(keys))))
        return found, places

    def give(self, places: np.ndarray, values: np.ndarray) -> None:
        """Store the numbers of new keys at the positions that the last `enter` returned; call it once per `enter`."""
        self._values[places] = values

    def rebuild(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Replace the content by these keys, which are all different, and their numbers."""
        self._keys[:] = _EMPTY
        self._used = 0
        self.give(self.enter(keys)[1], values)

    def _start(self, keys: np.ndarray) -> np.ndarray:
        return (keys & np.uint64(self._size - 1)).astype(np.int64)

    def _grow(self, wanted: int) -> None:
        taken = self._keys != _EMPTY
        keys, values = self._keys[taken], self._values[taken]
        self._size = 1 << (4 * wanted - 1).bit_length()
        self._keys, self._values = np.zeros(self._size, np.uint64), np.zeros(self._size, np.int64)
        self._used = 0
        self.give(self.enter(keys)[1], values)


def _nonzero(keys: np.ndarray) -> np.ndarray:
    """Return the keys with 0, which marks an empty place, replaced by 1."""
    result: np.ndarray = np.maximum(keys, np.uint64(1))
    return result


# -- nodes


class Nodes:
    """Nodes of B environments with named fields, and optionally with states that are found by their keys."""

    def __init__(self, fields: dict[str, tuple[tuple[int, ...], Any, Any]], capacity: int = 1024):
        """Create an empty store.

        Args:
          fields: {name: (shape of one node's value, dtype, initial value)}; each becomes an attribute. With the initial
            value None a new node's value is undefined: for fields that are written before they are read.
          capacity: number of nodes there is room for at first; it doubles when needed.
        """
        self._fills = {name: fill for name, (_, _, fill) in fields.items()}
        self._capacity = capacity
        self.owner = np.full(capacity, NO_NODE, np.int64)  # the environment of each node
        self._keys = np.zeros(capacity, np.uint64)  # keys of the nodes that have one
        self._keyed = np.zeros(capacity, bool)
        for name, (shape, dtype, _) in fields.items():
            setattr(self, name, np.zeros((capacity, *shape), dtype))
        self.states: Tree = None  # [capacity, ...], of nodes that were added with states
        self._free = np.empty(0, np.int64)  # free numbers
        self._end = 0  # numbers from here on have never been used
        self._table = HashTable(capacity)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return self._end - len(self._free)

    def __getattr__(self, name: str) -> Any:  # declares the fields set in __init__ to type checkers
        raise AttributeError(name)

    def add(self, columns: np.ndarray, states: Tree = None) -> np.ndarray:
        """Add M nodes for these environments [M], with the given states if there are any; return their numbers."""
        ids = self._take(len(columns))
        self.owner[ids] = columns
        for name, fill in self._fills.items():
            if fill is not None:
                getattr(self, name)[ids] = fill
        if states is not None:
            self._store(ids, states)
        return ids

    def intern(self, columns: np.ndarray, keys: np.ndarray, states: Tree) -> tuple[np.ndarray, np.ndarray]:
        """Return the node of each of M states in its environment; add it where there is none.

        Returns:
          [M] nodes; [M] bool, whether the node was added now (of equal states only the first is marked).
        """
        found, made = self._intern(columns, own_keys(columns, keys), states)
        fresh = np.zeros(len(found), bool)
        fresh[made] = True
        return found, fresh

    def intern_children(
        self, source: np.ndarray, columns: np.ndarray, keys: np.ndarray, states: Tree
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the node of each of P states that steps from nodes [P] led to; add it where there is none.

        Steps that changed nothing need no lookup; often these are half of all steps.

        Returns:
          [P] nodes; the indices of those that were added now.
        """
        own = own_keys(columns, keys)
        moved = np.flatnonzero(self._keys.take(source) != own)
        found, made = self._intern(columns, own.take(moved), states, moved)
        children = source.copy()
        children[moved] = found
        return children, moved.take(made)

    def _intern(
        self, columns: np.ndarray, own: np.ndarray, states: Tree, at: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes [M] by keys [M] that differ between environments, and the indices of those added now.

        `columns` and `states` are those of the keys; if `at` [M] is given, they are rows of longer arrays.
        """
        found, places = self._table.enter(own)
        made = new = (found < 0).nonzero()[0]
        if len(new):
            first = ~found.take(new)
            made = new.compress(first == new)
            rows = made if at is None else at.take(made)
            ids = self.add(columns.take(rows), trees.map(lambda leaf: leaf.take(rows, axis=0), states))
            self._keys[ids], self._keyed[ids] = own.take(made), True
            self._table.give(places.take(made), ids)
            found[made] = ids
            found[new] = found.take(first)
        return found, made

    def find(self, columns: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the nodes with these keys, NO_NODE where there is none."""
        return self._table.find(own_keys(columns, keys))

    def forget(self, columns: np.ndarray) -> None:
        """Remove all nodes of these environments."""
        mine = np.isin(self.owner[: self._end], columns)
        if not mine.any():
            return
        ids = np.flatnonzero(mine)
        self.owner[ids], self._keyed[ids] = NO_NODE, False
        if len(ids) == len(self):
            self._free, self._end = self._free[:0], 0
        else:
            self._free = np.concatenate([self._free, ids[::-1]])
        kept = np.flatnonzero(self._keyed[: self._end])
        self._table.rebuild(self._keys[kept], kept)

    def keep(self, ids: np.ndarray) -> None:
        """Remove all nodes but these. None of the removed nodes may have a key."""
        given = self.owner[: self._end] != NO_NODE
        given[ids] = False
        dropped = np.flatnonzero(given)
        assert not self._keyed[dropped].any(), "a node with a key would still be found by it"
        self.owner[dropped] = NO_NODE
        self._free = np.concatenate([self._free, dropped[::-1]])

    def replace(self, name: str, values: np.ndarray) -> None:
        """Replace the array of a field; the shape of one node's value may change, the capacity may not."""
        assert len(values) == self._capacity
        setattr(self, name, values)

    def sizes(self, columns: np.ndarray) -> np.ndarray:
        """Return the number of nodes of each environment [R]."""
        owner = self.owner[: self._end]
        counts = np.bincount(owner[owner >= 0], minlength=int(columns.max(initial=0)) + 1)
        found: np.ndarray = counts[columns]
        return found

    def of(self, column: int) -> np.ndarray:
        """Return the nodes of an environment."""
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


# -- what graph searches share: best-first search and deterministic MCTS


class Expansion(NamedTuple):
    """All A actions of M nodes, stepped in the model: P = M · A edges."""

    source: np.ndarray  # [P] the expanded nodes, each A times
    owners: np.ndarray  # [P]
    actions: np.ndarray  # [P]
    stepped: Stepped  # [P]
    target: np.ndarray  # [P] nodes
    new: np.ndarray  # indices of the edges whose target is a new node


class RealSteps(NamedTuple):
    """M steps of real environments."""

    columns: np.ndarray  # [M] environments
    before: np.ndarray  # [M] nodes before the steps
    actions: np.ndarray  # [M]
    states: Tree  # [M, ...] states after the steps
    rewards: np.ndarray  # [M]
    terminated: np.ndarray  # [M] bool

    def pick(self, which: np.ndarray) -> RealSteps:
        """Return the steps at these indices."""
        return RealSteps(*(trees.pick(part, which) for part in self))


def step_all_actions(
    nodes: Nodes, ids: np.ndarray, actions: int, model: Model, rng: np.random.Generator
) -> Asking[Expansion]:
    """Step all actions of nodes [M] in the model, and look up or add the nodes they lead to."""
    source, every = ids.repeat(actions), _every_action(len(ids), actions)
    owners = nodes.owner.take(source)
    stepped = yield from model.step(states_of(nodes, source), every, rng)
    target, new = nodes.intern_children(source, owners, model.keys(stepped.states), stepped.states)
    return Expansion(source, owners, every, stepped, target, new)


def predict_values(nodes: Nodes, ids: np.ndarray, model: Model) -> Asking[np.ndarray]:
    """Request the network's values of nodes [M] that have states: [M, outputs]."""
    answer = yield Request("agent", model.observe(states_of(nodes, ids)))
    return answer["value"]


def states_of(nodes: Nodes, ids: np.ndarray) -> Tree:
    """Return the states of nodes [M]."""
    return trees.map(lambda leaf: leaf.take(ids, axis=0), nodes.states)


@functools.lru_cache(maxsize=1024)
def _every_action(count: int, actions: int) -> np.ndarray:
    """Return 0 … A − 1, M times."""
    return np.tile(np.arange(actions), count)
