"""What really happened, by state and action: a memory of transitions that a learned model answers from first.

It is kept across episodes and shared by all columns. Worlds are taken to be deterministic: the latest word counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from packtrain.arrays import longer
from packtrain.planning.model import GOLDEN, digest, mix
from packtrain.planning.table import NOBODY, Table

_FIRST_ROOM = 1024


class Edges(NamedTuple):
    """M transitions as observations."""

    run: np.ndarray  # [M] int64, whose world it is where several runs share a process; else 0
    obs: np.ndarray  # [M, D] float32
    action: np.ndarray  # [M]
    after: np.ndarray  # [M, D]
    reward: np.ndarray  # [M] float32
    terminated: np.ndarray  # [M] bool

    def pick(self, which: np.ndarray) -> Edges:
        """Some of them."""
        return Edges(*(leaf[which] for leaf in self))


def observation_keys(obs: np.ndarray) -> np.ndarray:
    """A key of each observation, [M] uint64."""
    return digest(obs + np.float32(0))  # −0 is 0


def questions(keys: np.ndarray, action: np.ndarray, run: np.ndarray) -> np.ndarray:
    """A key of each observation, of which the key is given, action and run, [M] uint64."""
    number = np.asarray(action).astype(np.uint64) + np.uint64(1) + (run.astype(np.uint64) << np.uint64(32))
    return mix(keys + GOLDEN * number)


class VerifiedEdges:
    """Transitions that have been seen, each once."""

    def __init__(self) -> None:
        self._table = Table()
        self._count = 0
        self._edges: Edges | None = None
        self.contradicted: dict[int, int] = {}  # transitions of each run that came out differently another time

    def __len__(self) -> int:
        return self._count

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The numbers of questions [M], NOBODY where nobody has tried."""
        return self._table.find(keys) if self._count else np.full(len(keys), NOBODY)

    def take(self, numbers: np.ndarray) -> Edges:
        """The transitions of these numbers."""
        assert self._edges is not None
        return self._edges.pick(numbers)

    def add(self, edges: Edges) -> np.ndarray:
        """Remember M transitions, some of which may be equal; bool [M], those that are news."""
        if not len(edges.action):
            return np.zeros(0, bool)
        keys = questions(observation_keys(edges.obs), edges.action, edges.run)
        found, places = self._table.enter(keys)
        new = (found < 0).nonzero()[0]
        news = np.zeros(len(keys), bool)
        if len(new):
            first = ~found.take(new)
            made = new.compress(first == new)
            rows = np.arange(self._count, self._count + len(made))
            self._make_room(self._count + len(made), edges)
            self._count += len(made)
            self._table.give(places.take(made), rows)
            self._write(rows, edges.pick(made))
            found[made] = rows
            found[new] = found.take(first)
            news[made] = True
        known = (~news).nonzero()[0]
        if len(known):
            before = self.take(found[known])
            changed = (before.after != edges.after[known]).any(axis=1) | (before.reward != edges.reward[known])
            changed |= before.terminated != edges.terminated[known]
            if changed.any():
                known = known[changed]
                for run, count in zip(*np.unique(edges.run[known], return_counts=True), strict=True):
                    self.contradicted[int(run)] = self.contradicted.get(int(run), 0) + int(count)
                news[known] = True
                self._write(found[known], edges.pick(known))
        return news

    def _make_room(self, wanted: int, like: Edges) -> None:
        room = 0 if self._edges is None else len(self._edges.action)
        if wanted > room:
            blank = self._edges or Edges(*(np.empty((0, *leaf.shape[1:]), leaf.dtype) for leaf in like))
            self._edges = Edges(*(longer(leaf, max(wanted, 2 * room, _FIRST_ROOM)) for leaf in blank))

    def _write(self, rows: np.ndarray, edges: Edges) -> None:
        assert self._edges is not None
        for mine, given in zip(self._edges, edges, strict=True):
            mine[rows] = given

    def snapshot(self, run: int = 0) -> dict[str, Any]:
        """All transitions of a run, as arrays."""
        edges = {}
        if self._edges is not None:
            mine = np.flatnonzero(self._edges.run[: self._count] == run)
            edges = {name: leaf[mine] for name, leaf in self._edges._asdict().items() if name != "run"}
        return {"edges": edges, "contradicted": self.contradicted.get(run, 0)}

    def restore(self, snapshot: dict[str, Any], run: int = 0) -> None:
        """Know of a run what a snapshot knew of it, and nothing else; of others what is known."""
        known, counts = self._edges, self.contradicted
        if known is not None and (known.run[: self._count] == run).any():
            others = known.pick(np.flatnonzero(known.run[: self._count] != run))
            self._table, self._count, self._edges = Table(), 0, None
            self.add(others)
        if snapshot["edges"]:
            edges = {name: np.asarray(leaf) for name, leaf in snapshot["edges"].items()}
            self.add(Edges(np.full(len(edges["action"]), run), **edges))
        self.contradicted = counts | {run: int(snapshot["contradicted"])}
