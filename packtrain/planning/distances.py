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

from packtrain.planning import kernels
from packtrain.planning.nodes import Nodes
from packtrain.planning.table import NOBODY

_NODE = (1 << 32) - 1  # the bits of `mark` that hold a node; those above count
_MANY = 1 << 30  # counts start again, between walks, when they have come so far


def graph_fields(actions: int) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
    """The fields that nodes of a `Graph` need, for `Nodes`."""
    return {
        "edges": ((actions,), np.int64, None),  # the node each action leads to; of nodes that were linked
        "ways": ((1,), np.int32, None),  # the other nodes it leads to, each once, as actions come; then itself
        "reachable": ((), bool, False),  # from the column's current node
        "mark": (
            (),
            np.int64,
            0,
        ),  # how many had been met, in all walks, when one met it last · 2^32 + the node before it
    }


class Graph:
    """Edges between nodes, and walks along them."""

    def __init__(self, nodes: Nodes):
        """Nodes with `graph_fields`, none so far."""
        self.nodes = nodes
        self.width = 1  # the most ways that a node has
        self.met = 0  # nodes, in all walks so far
        self._room = np.empty(0, np.int64)
        self._own = np.empty(0, np.int64)

    def enter(self, ids: np.ndarray) -> None:
        """New nodes [M]: they lead nowhere."""
        self.nodes.ways[ids] = ids[:, None]

    def link(self, ids: np.ndarray, edges: np.ndarray) -> None:
        """Give nodes [M] their edges [M, A]."""
        nodes, actions = self.nodes, edges.shape[1]
        nodes.edges[ids] = edges
        if kernels.compiled:
            ways = np.empty(edges.shape, np.int32)
            width = kernels.ways(ids, edges, ways)
        else:
            other = edges != ids[:, None]
            for apart in range(1, actions):
                other[:, apart:] &= edges[:, apart:] != edges[:, :-apart]
            widths = other.sum(axis=1)
            place = np.flatnonzero(other)
            row = place // actions
            start = widths.cumsum() - widths
            ways = ids.astype(np.int32)[:, None].repeat(actions, axis=1)
            ways.ravel()[row * actions + np.arange(len(place)) - start.take(row)] = edges.ravel().take(place)
            width = int(widths.max(initial=0))
        if width > self.width:
            wider = np.arange(len(nodes.ways), dtype=np.int32)[:, None].repeat(width, axis=1)
            wider[:, : self.width] = nodes.ways
            nodes.replace("ways", wider)
            self.width = width
        nodes.ways[ids] = ways[:, : self.width]

    def close(self, ids: np.ndarray) -> None:
        """Nodes [M] lead nowhere, whatever their edges are."""
        self.nodes.ways[ids] = ids[:, None]

    def walk(self, sources: np.ndarray) -> Outward:
        """A walk from the sources [R], one node of each of R columns."""
        if self.met >= _MANY:
            self.nodes.mark[:] = self.met = 0
        return Outward(self, sources)

    def room(self) -> np.ndarray:
        """A place to write all nodes to, and one more, whose content lasts until the next call."""
        if len(self._room) <= len(self.nodes):
            self._room = np.empty(2 * len(self.nodes) + 1, np.int64)
        return self._room

    def _numbers(self) -> np.ndarray:
        """Each node's own number, as a field to seek by."""
        if len(self._own) < len(self.nodes.mark):
            self._own = np.arange(len(self.nodes.mark))
        return self._own

    def reach_on(self, ids: np.ndarray) -> np.ndarray:
        """Mark nodes [M] that may come twice as reachable, and all that they lead to.

        Returns:
          Those that were not, each once, in the order of a queue.
        """
        nodes = self.nodes
        found: list[np.ndarray] = []
        while True:  # `mark` can be written: no walk under way has met what could not be reached
            ids = ids.compress(~nodes.reachable.take(ids))
            if not len(ids):
                return np.concatenate(found) if found else ids
            places = np.arange(len(ids))
            nodes.mark[ids[::-1]] = places[::-1]  # of several writers the last one stays: the first of the nodes
            ids = ids.compress(nodes.mark.take(ids) == places)
            nodes.reachable[ids] = True
            found.append(ids)
            ids = self.led(ids)

    def led(self, ids: np.ndarray) -> np.ndarray:
        """Where nodes [M] lead, [M · width]; themselves where they have fewer ways."""
        return self.nodes.ways.take(ids, axis=0).astype(np.int64).ravel()

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
        wanted = np.where(known[unsure], before[unsure], NOBODY)  # which no node is: then all there is is met
        if len(wanted) == 1:
            wanted = wanted.repeat(2)  # one is taken to be wanted in all rows, of which there is one
        changed = walk.seek(self._numbers(), wanted) == 0
        ids = walk.everything()
        return unsure[changed], ids[changed[walk.rows(ids)]]


class Outward:
    """A breadth-first walk in R columns. Each column's nodes come in the order in which a queue would have met them.

    That is the order of distances, then of predecessors, then of actions: of the smallest shortest paths, compared
    action by action.
    """

    def __init__(self, graph: Graph, sources: np.ndarray):
        """Stand at the sources; `Graph.walk` makes walks."""
        self._graph = graph
        nodes = graph.nodes
        graph.met += 1
        self._base = graph.met
        self.floor = self._base << 32  # the marks of nodes that were met are at least this
        nodes.mark[sources] = self.floor | sources
        columns = nodes.owner.take(sources)
        self._row_of = np.zeros(columns.max(initial=0) + 1, np.int64)
        self._row_of[columns] = np.arange(len(sources))
        self._n_rows = len(sources)
        self._aside: list[np.ndarray] = []
        self._met = [sources]
        self.ids = sources  # the outermost level met of each row that goes on, row after row

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
        self.only(going)

    def advance(self) -> None:
        """Meet the next level: it is empty when all has been met."""
        nodes, width = self._graph.nodes, self._graph.width
        led = self._graph.led(self.ids)
        new = (nodes.mark.take(led) < self.floor).nonzero()[0]
        led = led.take(new)
        mark = np.arange(self._graph.met + 1, self._graph.met + 1 + len(new)) << 32
        mark |= self.ids.take(new // width)
        self._graph.met += len(new)
        nodes.mark[led[::-1]] = mark[::-1]  # of several writers the last one stays: the first way
        self.ids = led.compress(nodes.mark.take(led) == mark)
        self._met.append(self.ids)

    def seek(self, field: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Go on in each row until a level has a node whose field is what is wanted, or until all has been met.

        Args:
          field: [N] of all nodes.
          wanted: [R], or [1] for all rows alike.

        Returns:
          How many levels each row has advanced, [R]; 0 where all was met in vain. The others' levels are in `ids`.
        """
        nodes, steps = self._graph.nodes, np.zeros(self._n_rows, np.int64)
        if kernels.compiled:
            met, rows = self._graph.room(), self.rows(self.ids)
            arrays = (field, wanted, nodes.ways, nodes.mark, met)
            count, self.ids = kernels.seek(self.ids, rows, *arrays, self.floor, self._graph.met + 1, steps)
            self._graph.met += count
            self._met.append(met[:count].copy())
            return steps
        stopped, step = [], 0
        while len(self.ids):
            self.advance()
            step += 1
            if len(wanted) == 1:
                hits = (field.take(self.ids) == wanted).nonzero()[0]
                if not len(hits):
                    continue
                rows = self.rows(self.ids)
            else:
                rows = self.rows(self.ids)
                hits = (field.take(self.ids) == wanted.take(rows)).nonzero()[0]
            steps[rows.take(hits)] = step
            stops = steps.take(rows) > 0
            stopped.append(self.ids.compress(stops))
            self.ids = self.ids.compress(~stops)
        self.ids = np.concatenate([self.ids, *stopped])
        return steps

    def has_met(self, ids: np.ndarray) -> np.ndarray:
        """Whether nodes [M] were met: bool [M]."""
        return self._graph.nodes.mark.take(ids) >= self.floor

    def order(self, ids: np.ndarray) -> np.ndarray:
        """Numbers of nodes [M] that were met: they rise in the order in which those of a row came; its source has 0."""
        return (self._graph.nodes.mark.take(ids) >> 32) - self._base

    def predecessors(self, ids: np.ndarray) -> np.ndarray:
        """The nodes before nodes [M] that were met, on the first shortest paths; sources are before themselves."""
        return self._graph.nodes.mark.take(ids) & _NODE

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
            source = self.predecessors(targets)
            on = np.flatnonzero(source != targets)
            if len(on) < len(source):
                which, source, targets = which.take(on), source.take(on), targets.take(on)
            if not len(which):
                return steps
            steps.append((which, source, (nodes.edges.take(source, axis=0) == targets[:, None]).argmax(axis=1)))
            targets = source
