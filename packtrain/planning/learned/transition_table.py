"""A table of real transitions by state and action. A learned model uses it before its predictions.

The table is kept across episodes and shared by all environments. Environments are taken to be deterministic: the latest
transition replaces earlier ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from packtrain.arrays import longer
from packtrain.hashing import observation_keys, state_action_keys
from packtrain.planning.nodes import NO_NODE, HashTable

_FIRST_ROOM = 1024


class Transitions(NamedTuple):
    """M transitions between observations."""

    run: np.ndarray  # [M] int64, the run they belong to where several runs share a process; else 0
    obs: np.ndarray  # [M, ...] float32
    action: np.ndarray  # [M]
    after: np.ndarray  # [M, ...]
    reward: np.ndarray  # [M] float32
    terminated: np.ndarray  # [M] bool

    def pick(self, which: np.ndarray) -> Transitions:
        """Return some of them."""
        return Transitions(*(leaf[which] for leaf in self))


class TransitionTable:
    """Transitions that have been observed, each once."""

    def __init__(self) -> None:
        self._table = HashTable()
        self._count = 0
        self._known: Transitions | None = None
        self.contradicted: dict[int, int] = {}  # per run: how often a transition differed from the stored one

    def __len__(self) -> int:
        return self._count

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the numbers of the transitions with these `state_action_keys` [M], NO_NODE for unknown ones."""
        return self._table.find(keys) if self._count else np.full(len(keys), NO_NODE)

    def take(self, numbers: np.ndarray) -> Transitions:
        """Return the transitions with these numbers."""
        assert self._known is not None
        return self._known.pick(numbers)

    def add(self, transitions: Transitions) -> np.ndarray:
        """Store M transitions, some of which may be equal; return which are new or different, bool [M]."""
        if not len(transitions.action):
            return np.zeros(0, bool)
        keys = state_action_keys(observation_keys(transitions.obs), transitions.action, transitions.run)
        found, places = self._table.enter(keys)
        new = (found < 0).nonzero()[0]
        news = np.zeros(len(keys), bool)
        if len(new):
            first = ~found.take(new)
            made = new.compress(first == new)
            rows = np.arange(self._count, self._count + len(made))
            self._make_room(self._count + len(made), transitions)
            self._count += len(made)
            self._table.give(places.take(made), rows)
            self._write(rows, transitions.pick(made))
            found[made] = rows
            found[new] = found.take(first)
            news[made] = True
        known = (~news).nonzero()[0]
        if len(known):
            known = known[self._differ(found[known], transitions.pick(known))]
            for run, count in zip(*np.unique(transitions.run[known], return_counts=True), strict=True):
                self.contradicted[int(run)] = self.contradicted.get(int(run), 0) + int(count)
            news[known] = True
            self._write(found[known], transitions.pick(known))
        return news

    def _differ(self, numbers: np.ndarray, transitions: Transitions) -> np.ndarray:
        """Return which transitions differ from those stored with these numbers, bool [M]."""
        before = self.take(numbers)
        changed = ~equal_rows(before.after, transitions.after) | (before.reward != transitions.reward)
        different: np.ndarray = changed | (before.terminated != transitions.terminated)
        return different

    def _make_room(self, wanted: int, like: Transitions) -> None:
        room = 0 if self._known is None else len(self._known.action)
        if wanted > room:
            blank = self._known or Transitions(*(np.empty((0, *leaf.shape[1:]), leaf.dtype) for leaf in like))
            self._known = Transitions(*(longer(leaf, max(wanted, 2 * room, _FIRST_ROOM)) for leaf in blank))

    def _write(self, rows: np.ndarray, transitions: Transitions) -> None:
        assert self._known is not None
        for mine, given in zip(self._known, transitions, strict=True):
            mine[rows] = given

    def snapshot(self, run: int = 0) -> dict[str, Any]:
        """Return all transitions of a run, as arrays."""
        edges = {}
        if self._known is not None:
            mine = np.flatnonzero(self._known.run[: self._count] == run)
            edges = {name: leaf[mine] for name, leaf in self._known._asdict().items() if name != "run"}
        return {"edges": edges, "contradicted": self.contradicted.get(run, 0)}

    def restore(self, snapshot: dict[str, Any], run: int = 0) -> None:
        """Replace the transitions of a run by those of a snapshot; other runs keep theirs."""
        known, counts = self._known, self.contradicted
        if known is not None and (known.run[: self._count] == run).any():
            others = known.pick(np.flatnonzero(known.run[: self._count] != run))
            self._table, self._count, self._known = HashTable(), 0, None
            self.add(others)
        if snapshot["edges"]:
            edges = {name: np.asarray(leaf) for name, leaf in snapshot["edges"].items()}
            self.add(Transitions(np.full(len(edges["action"]), run), **edges))
        self.contradicted = counts | {run: int(snapshot["contradicted"])}


def equal_rows(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return which observations [M, ...] are equal, bool [M]."""
    equal: np.ndarray = (one == other).reshape(len(one), -1).all(axis=1)
    return equal


def stored_transitions(memories: dict[str, Any]) -> tuple[TransitionTable, bool]:
    """Return a table of the transitions in the saved states of episode memories, and whether some were overwritten.

    Args:
      memories: their states, by name.
    """
    table, overwritten = TransitionTable(), False
    for memory in memories.values():
        for bucket in [*memory["buckets"], *memory.get("held_out", [])]:
            overwritten |= bucket["ring"]["full"]
            ring = {name: np.asarray(leaf) for name, leaf in bucket["ring"]["fields"].items()}
            rows = np.flatnonzero(np.asarray(bucket["ring"]["is_step"]))
            obs = np.asarray(ring["obs"], np.float32)
            after = obs[(rows + 1) % len(obs)]
            parts = (obs[rows], ring["action"][rows], after, ring["reward"][rows], ring["terminated"][rows])
            table.add(Transitions(np.zeros(len(rows), np.int64), *parts))
    return table, overwritten
