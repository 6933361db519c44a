"""Shortest distances in growing graphs: breadth-first walks from one node of each of R columns, level by level.

Distances from a node that moves change nearly everywhere with every move, so none are kept from one decision to the
next. A walk goes outward only as far as it is asked to, all columns at once, and may be left and taken up again. Nodes
may be given edges while a walk stands at their level: what they lead to is farther out, so that everything the walk
has said stays true. What is needed of the whole graph is which nodes can be reached at all: that is kept, and a walk
is made only where a way back from a move is not plain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packtrain.planning.nodes import Nodes
from packtrain.planning.table import NOBODY

_DISTANCE = (1 << 32) - 1  # the bits of `seen` that hold a distance; those above number the walk


def graph_fields(actions: int) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
    """The fields that nodes of a `Graph` need, for `Nodes`."""
    return {
        "edges": ((actions,), np.int64, None),  # the node each action leads to; of nodes that were linked
        "ways": (
            (actions,),
            np.int64,
            None,
        ),  # the other nodes it leads to, each once, first actions first; then itself
        "reachable": ((), bool, False),  # from the column's current node
        "seen": ((), np.int64, None),  # number of the last walk that met it · 2^32 + steps from that walk's source
        "predecessor": ((), np.int64, None),  # before it on the first shortest path of that walk; NOBODY: the source
    }


class Graph:
    """Edges between nodes, and walks along them."""

    def __init__(self, nodes: Nodes):
        """Nodes with `graph_fields`, none so far."""
        self.nodes = nodes
        self.width = 1  # the most ways that a node has
        self._walks = 0

    def enter(self, ids: np.ndarray) -> None:
        """New nodes [M]: they lead nowhere."""
        self.nodes.ways[ids] = ids[:, None]

    def link(self, ids: np.ndarray, edges: np.ndarray) -> None:
        """Give nodes [M] their edges [M, A]."""
        nodes = self.nodes
        nodes.edges[ids] = edges
        other = edges != ids[:, None]
        for apart in range(1, edges.shape[1]):
            other[:, apart:] &= edges[:, apart:] != edges[:, :-apart]
        width = other.sum(axis=1)
        place = np.flatnonzero(other)
        row = place // edges.shape[1]
        start = width.cumsum() - width
        ways = np.repeat(ids, edges.shape[1])
        ways[row * edges.shape[1] + np.arange(len(place)) - start.take(row)] = edges.ravel().take(place)
        nodes.ways[ids] = ways.reshape(edges.shape)
        self.width = max(self.width, int(width.max(initial=0)))

    def close(self, ids: np.ndarray) -> None:
        """Nodes [M] lead nowhere, whatever their edges are."""
        self.nodes.ways[ids] = ids[:, None]

    def walk(self, sources: np.ndarray) -> Outward:
        """A walk from the sources [R], one node of each of R columns."""
        self._walks += 1
        return Outward(self, sources, self._walks)

    def reach_on(self, ids: np.ndarray) -> np.ndarray:
        """Mark nodes [M] that may come twice as reachable, and all that they lead to.

        Returns:
          Those that were not, each once, in the order of a queue.
        """
        nodes = self.nodes
        found: list[np.ndarray] = []
        while True:  # `predecessor` can be written: no walk under way has met what could not be reached
            ids = ids.take(np.flatnonzero(~nodes.reachable.take(ids)))
            if not len(ids):
                return np.concatenate(found) if found else ids
            places = np.arange(len(ids))
            nodes.predecessor[ids[::-1]] = places[::-1]  # of several writers the last one stays: the first of the nodes
            ids = ids.take(np.flatnonzero(nodes.predecessor.take(ids) == places))
            nodes.reachable[ids] = True
            found.append(ids)
            ids = self.led(ids)

    def led(self, ids: np.ndarray) -> np.ndarray:
        """Where nodes [M] lead, [M · width]; themselves where they have fewer ways."""
        return self.nodes.ways.take(ids, axis=0)[:, : self.width].ravel()

    def moved(self, current: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where a move has changed what can be reached, and what can be reached there.

        While `before` was a column's current node, `nodes.reachable` was true. If the new current node was reachable
        and leads back to `before`, it still is: both reach the same nodes. Mostly one edge leads back; otherwise a
        walk looks for the way until it has found it or met all there is.

        Args:
          current: [R] the current nodes.
          before: [R] the nodes they moved from; NOBODY where what `nodes.reachable` says cannot be used.

        Returns:
          [M] rows in which other nodes can be reached than before; all nodes that can be, of these rows.
        """
        nodes = self.nodes
        known = (before != NOBODY) & nodes.reachable.take(current)
        back = (nodes.ways.take(current, axis=0) == before[:, None]).any(axis=1)
        unsure = np.flatnonzero(~(known & (back | (current == before))))
        if not len(unsure):
            return unsure, unsure
        walk = self.walk(current[unsure])
        before, known = before[unsure], known[unsure]
        changed = np.ones(len(unsure), bool)
        while len(walk.ids):
            changed &= ~(known & walk.has_met(before))
            walk.only(changed)
            walk.advance()
        ids = walk.everything()
        return unsure[changed], ids[changed[walk.rows(ids)]]


class Outward:
    """A breadth-first walk in R columns. Each column's nodes come in the order in which a queue would have met them.

    That is the order of distances, then of predecessors, then of actions: of the smallest shortest paths, compared
    action by action.
    """

    def __init__(self, graph: Graph, sources: np.ndarray, number: int):
        """Stand at the sources; `Graph.walk` makes walks."""
        self._graph, self._base = graph, number << 32
        nodes = graph.nodes
        nodes.seen[sources], nodes.predecessor[sources] = self._base, NOBODY
        columns = nodes.owner.take(sources)
        self._row_of = np.zeros(columns.max(initial=0) + 1, np.int64)
        self._row_of[columns] = np.arange(len(sources))
        self._distance: int | None = 0  # of the outermost level; None after `resume`, when rows may differ
        self._aside: list[np.ndarray] = []
        self._met = [sources]  # all levels
        self.ids = sources  # the outermost level met

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """The rows [M] of the walk, 0 to R − 1, that nodes [M] belong to."""
        return self._row_of.take(self._graph.nodes.owner.take(ids))

    def only(self, going: np.ndarray) -> None:
        """Go on only in the rows that are `going`, bool [R]; leave the others where they are, for `resume`."""
        if going.all():
            return
        on = going.take(self.rows(self.ids))
        self._aside.append(self.ids.compress(~on))
        self.ids = self.ids.compress(on)

    def resume(self, going: np.ndarray) -> None:
        """Go on in the rows that are `going`, bool [R], each from where it was left."""
        self.ids = np.concatenate([self.ids, *self._aside])
        self._aside = []
        self._distance = None
        self.only(going)

    def advance(self) -> None:
        """Meet the next level: it is empty when all has been met."""
        nodes, width = self._graph.nodes, self._graph.width
        led = self._graph.led(self.ids)
        new = np.flatnonzero(nodes.seen.take(led) < self._base)
        led, predecessor = led.take(new), self.ids.take(new // width)
        nodes.predecessor[led[::-1]] = predecessor[::-1]  # of several writers the last one stays: the first way
        first = np.flatnonzero(nodes.predecessor.take(led) == predecessor)
        self.ids = led.take(first)
        if self._distance is None:
            nodes.seen[self.ids] = nodes.seen.take(predecessor.take(first)) + 1
        else:
            self._distance += 1
            nodes.seen[self.ids] = self._base + self._distance
        self._met.append(self.ids)

    def has_met(self, ids: np.ndarray) -> np.ndarray:
        """Whether nodes [M] were met: bool [M]."""
        return self._graph.nodes.seen.take(ids) >= self._base

    def distances(self, ids: np.ndarray) -> np.ndarray:
        """The distances of nodes [M] that were met."""
        return self._graph.nodes.seen.take(ids) & _DISTANCE

    def level(self, distance: int) -> np.ndarray:
        """The nodes met at a distance, in a walk that has not been resumed."""
        assert self._distance is not None
        return self._met[distance]

    def everything(self) -> np.ndarray:
        """All nodes met so far; of each row the nearest first, its source in front."""
        return np.concatenate(self._met)

    def ways_back(self, targets: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The first shortest paths to nodes [M] that were met; no other walk may have begun since.

        Returns:
          An entry for each step, the last steps first: which of the M paths have it, the nodes it leaves, its actions.
        """
        nodes = self._graph.nodes
        steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        which = np.arange(len(targets))
        while True:
            source = nodes.predecessor.take(targets)
            on = np.flatnonzero(source != NOBODY)
            if len(on) < len(source):
                which, source, targets = which.take(on), source.take(on), targets.take(on)
            if not len(which):
                return steps
            steps.append((which, source, (nodes.edges.take(source, axis=0) == targets[:, None]).argmax(axis=1)))
            targets = source
