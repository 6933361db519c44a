"""The graph of best-first search: edges between nodes, breadth-first walks along them, and the paths that are followed.

When the current node moves, nearly all distances from it change, so no distance is kept from one decision to the next.
A walk goes outward only as far as it is asked to, in all R environments at once, and can be paused and resumed. Nodes
may be given edges while a walk stands at their level: those edges lead farther out, so everything the walk has found
stays correct. Only one property of the whole graph is kept up to date: which nodes are reachable from the current node.
It needs a walk only where no edge leads back to the previous node.

Start reading with `packtrain/testing/plain_best_first.py`, then `search.py`, which uses this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packtrain.arrays import wider
from packtrain.planning import kernels
from packtrain.planning.nodes import NO_NODE, Nodes

_NODE_BITS = (1 << 32) - 1  # the bits of `mark` that hold a node; those above hold a count
COUNT_LIMIT = 1 << 30  # the counts in `mark` start again from 0 between walks when they reach this


def graph_fields(actions: int) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
    """Return the fields that the nodes of a `Graph` need, for `Nodes`."""
    return {
        "edges": ((actions,), np.int64, None),  # the node each action leads to; defined for nodes that were linked
        # distinct nodes that actions lead to besides itself, padded with the node itself
        "ways": ((1,), np.int32, None),
        "reachable": ((), bool, False),  # whether it can be reached from the environment's current node
        # count · 2^32 + node: how many nodes all walks had met when one met this node, and the node before it
        "mark": ((), np.int64, 0),
    }


class Graph:
    """Edges between nodes, and walks along them."""

    def __init__(self, nodes: Nodes):
        """Use nodes that have `graph_fields`; none exist so far."""
        self.nodes = nodes
        self.width = 1  # the largest number of ways of any node
        self.met = 0  # nodes met in all walks so far
        self._room = np.empty(0, np.int64)
        self._own = np.empty(0, np.int64)

    def enter(self, ids: np.ndarray) -> None:
        """Enter new nodes [M] without outgoing edges."""
        self.nodes.ways[ids] = ids[:, None]

    def link(self, ids: np.ndarray, edges: np.ndarray) -> None:
        """Set the outgoing edges [M, A] of nodes [M]."""
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
            grown = np.arange(len(nodes.ways), dtype=np.int32)[:, None].repeat(width, axis=1)
            grown[:, : self.width] = nodes.ways
            nodes.replace("ways", grown)
            self.width = width
        nodes.ways[ids] = ways[:, : self.width]

    def close(self, ids: np.ndarray) -> None:
        """Let walks end at nodes [M], whatever their edges are: the episode ends there."""
        self.nodes.ways[ids] = ids[:, None]

    def walk(self, sources: np.ndarray) -> BreadthFirstWalk:
        """Start a walk from sources [R], one node of each of R environments."""
        if self.met >= COUNT_LIMIT:
            self.nodes.mark[:] = self.met = 0
        return BreadthFirstWalk(self, sources)

    def room(self) -> np.ndarray:
        """Return a buffer with room for all nodes and one more. Its content is valid until the next call."""
        if len(self._room) <= len(self.nodes):
            self._room = np.empty(2 * len(self.nodes) + 1, np.int64)
        return self._room

    def reach_on(self, ids: np.ndarray) -> np.ndarray:
        """Mark nodes [M], which may repeat, and everything they lead to as reachable.

        Returns:
          The nodes that were not reachable before, each once, in breadth-first order.
        """
        nodes = self.nodes
        found: list[np.ndarray] = []
        while True:  # `mark` may be overwritten, since no walk in progress has met an unreachable node
            ids = ids.compress(~nodes.reachable.take(ids))
            if not len(ids):
                return np.concatenate(found) if found else ids
            places = np.arange(len(ids))
            nodes.mark[ids[::-1]] = places[::-1]  # of several writes the last stays: the first occurrence
            ids = ids.compress(nodes.mark.take(ids) == places)
            nodes.reachable[ids] = True
            found.append(ids)
            ids = self.successors(ids)

    def successors(self, ids: np.ndarray) -> np.ndarray:
        """Return the nodes that nodes [M] lead to, [M · width], padded with the nodes themselves."""
        led: np.ndarray = self.nodes.ways.take(ids, axis=0).astype(np.int64).ravel()
        return led

    def moved(self, current: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the rows in which a move has changed the set of reachable nodes, and the new sets.

        `nodes.reachable` was correct while `before` was the current node. If the new current node was reachable and
        leads back to `before`, both reach the same nodes and nothing has changed. Usually a single edge leads back;
        otherwise a walk searches for the way back.

        Args:
          current: [R] the current nodes.
          before: [R] the nodes they moved from; NO_NODE where `nodes.reachable` is not valid.

        Returns:
          [rows] in which other nodes are reachable than before; all nodes that are reachable in these rows.
        """
        nodes = self.nodes
        known = (before != NO_NODE) & nodes.reachable.take(current)
        back = (nodes.ways.take(current, axis=0) == before[:, None]).any(axis=1)
        unsure = np.flatnonzero(~(known & (back | (current == before))))
        if not len(unsure):
            return unsure, unsure
        walk = self.walk(current[unsure])
        # NO_NODE is no node, so the walk continues until all are met
        wanted = np.where(known[unsure], before[unsure], NO_NODE)
        if len(wanted) == 1:
            wanted = wanted.repeat(2)  # `seek` would apply a single value to all rows; here there is one row
        changed = walk.seek(self._numbers(), wanted) == 0
        ids = walk.everything()
        return unsure[changed], ids[changed[walk.rows(ids)]]

    def _numbers(self) -> np.ndarray:
        """Return each node's own number, as a field for `seek`."""
        if len(self._own) < len(self.nodes.mark):
            self._own = np.arange(len(self.nodes.mark))
        return self._own


class BreadthFirstWalk:
    """A breadth-first walk in R environments. Each row's nodes are met in the order of a queue.

    This is the order of distances, then of predecessors, then of actions. So the path to a node is the first of its
    shortest paths, compared action by action.
    """

    def __init__(self, graph: Graph, sources: np.ndarray):
        """Start a walk at the source nodes; called by `Graph.walk`."""
        self._graph = graph
        nodes = graph.nodes
        graph.met += 1
        self._base = graph.met
        self.floor = self._base << 32  # nodes that this walk has met have at least this mark
        nodes.mark[sources] = self.floor | sources
        owners = nodes.owner.take(sources)
        self._row_of = np.zeros(owners.max(initial=0) + 1, np.int64)
        self._row_of[owners] = np.arange(len(sources))
        self._n_rows = len(sources)
        self._paused: list[np.ndarray] = []
        self._met = [sources]
        self.ids = sources  # nodes of the outermost level of each unfinished row, row after row

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows [M] of the walk, 0 to R − 1, that nodes [M] belong to."""
        return self._row_of.take(self._graph.nodes.owner.take(ids))

    def only(self, going: np.ndarray) -> None:
        """Continue only in the rows selected by `going`, bool [R]; pause the others until `resume`."""
        if going.all():
            return
        on = going.take(self.rows(self.ids))
        self._paused.append(self.ids.compress(~on))
        self.ids = self.ids.compress(on)

    def resume(self, going: np.ndarray) -> None:
        """Continue in the rows where `going`, bool [R], each from its last level."""
        self.ids = np.concatenate([self.ids, *self._paused])
        self._paused = []
        self.only(going)

    def advance(self) -> None:
        """Meet the next level, which is empty when everything has been met."""
        nodes, width = self._graph.nodes, self._graph.width
        led = self._graph.successors(self.ids)
        new = (nodes.mark.take(led) < self.floor).nonzero()[0]
        led = led.take(new)
        mark = np.arange(self._graph.met + 1, self._graph.met + 1 + len(new)) << 32
        mark |= self.ids.take(new // width)
        self._graph.met += len(new)
        nodes.mark[led[::-1]] = mark[::-1]  # of several writes the last stays: the first way
        self.ids = led.compress(nodes.mark.take(led) == mark)
        self._met.append(self.ids)

    def seek(self, field: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Advance each row until a level has a node with the wanted value of a field, or until everything has been met.

        Args:
          field: [N] of all nodes.
          wanted: [R], or [1] for the same value in all rows.

        Returns:
          [R] how many levels each row has advanced; 0 where everything was met without success. `ids` holds the levels
          of the other rows.
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
        """Return whether nodes [M] were met: bool [M]."""
        met: np.ndarray = self._graph.nodes.mark.take(ids) >= self.floor
        return met

    def order(self, ids: np.ndarray) -> np.ndarray:
        """Return numbers of nodes [M] that were met: they rise in the order of a row's queue; the source has 0."""
        numbers: np.ndarray = (self._graph.nodes.mark.take(ids) >> 32) - self._base
        return numbers

    def predecessors(self, ids: np.ndarray) -> np.ndarray:
        """Return the nodes before nodes [M] on the first shortest paths; a source precedes itself."""
        before: np.ndarray = self._graph.nodes.mark.take(ids) & _NODE_BITS
        return before

    def everything(self) -> np.ndarray:
        """Return all nodes met so far; in each row the source comes first and distances rise."""
        return np.concatenate(self._met)

    def ways_back(self, targets: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return the first shortest paths to nodes [M] that were met; no other walk may have started since.

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


class PlanPaths:
    """The path from the current node to the target that each of B environments follows, or none.

    A path is stored with its last step first: place n − 1 is n steps from the target. So the remaining part of a path
    stays in place while it is followed.
    """

    def __init__(self, nodes: Nodes, columns: int, gamma: float):
        """Start without paths.

        Args:
          nodes: have `edges`, `rewards`, `value` and the `mark` of walks.
          columns: B.
          gamma: discount of returns.
        """
        self._nodes, self._gamma = nodes, gamma
        self.targets = np.full(columns, NO_NODE)
        self._steps = np.zeros(columns, np.int64)  # number of steps from the current node to the target; 0: no path
        self._places = np.full((columns, 64), NO_NODE)  # nodes of the paths
        self._actions = np.zeros((columns, 64), np.int64)
        self._values = np.zeros((columns, 64))  # the return along the rest of the path

    def forget(self, columns: np.ndarray) -> None:
        """Remove the targets and paths of these environments."""
        self.targets[columns] = NO_NODE
        self.drop(columns)

    def drop(self, columns: np.ndarray) -> None:
        """Stop following the paths of these environments."""
        self._steps[columns] = 0

    def left(self, columns: np.ndarray, current: np.ndarray) -> np.ndarray:
        """Return the remaining steps [R] after one step of environments [R]; 0 if they have left their path."""
        steps = self._steps[columns] - 1
        return np.where((steps > 0) & (self._places[columns, steps - 1] == current), steps, 0)

    def keep(self, columns: np.ndarray, steps: np.ndarray) -> None:
        """Set the remaining steps [R] of the paths of environments [R]; 0: the path is no longer followed."""
        self._steps[columns] = steps

    def next(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the remaining steps, the next action and its return in environments [R]; 0 without a path."""
        steps = self._steps[columns]
        there = steps > 0
        action, value = self._actions[columns, steps - 1], self._values[columns, steps - 1]
        return steps, np.where(there, action, 0), np.where(there, value, 0.0)

    def route(self, column: int) -> list[tuple[int, int]]:
        """Return the nodes and actions of the path that an environment follows, the next step first."""
        steps = int(self._steps[column])
        places, actions = self._places[column, :steps][::-1], self._actions[column, :steps][::-1]
        return list(zip(places.tolist(), actions.tolist(), strict=True))

    def lead(self, walk: BreadthFirstWalk, columns: np.ndarray, targets: np.ndarray) -> None:
        """Store the first shortest paths to targets [M] that a walk has met, and the returns along them."""
        nodes = self._nodes
        self.targets[columns] = targets
        value = nodes.value.take(targets).astype(np.float64)
        if kernels.compiled:
            arrays = (columns, targets, value, self._gamma, nodes.mark, nodes.edges, nodes.rewards)
            longest = kernels.plan_back(*arrays, self._places, self._actions, self._values, self._steps)
            if longest > self._places.shape[1]:
                self._make_room(longest)
                self.lead(walk, columns, targets)
            return
        steps = walk.ways_back(targets)
        self._make_room(len(steps))
        for place, (which, source, action) in enumerate(steps):
            value[which] = nodes.rewards[source, action] + self._gamma * value[which]
            mine = columns[which]
            self._places[mine, place], self._actions[mine, place] = source, action
            self._values[mine, place], self._steps[mine] = value[which], place + 1

    def _make_room(self, steps: int) -> None:
        """Make room for paths of this many steps."""
        if steps > self._places.shape[1]:
            self._places = wider(self._places, 2 * steps, NO_NODE)
            self._actions = wider(self._actions, 2 * steps, 0)
            self._values = wider(self._values, 2 * steps, 0)
