"""What best-first search looks up at a glance: boards with a row for each column and a place for each of its nodes.

A node's place in its row is its number within the column, in order of creation. Boards hold what is asked of all nodes
of a column at once: which is the best target, which fringe node comes next. They are kept up to date by whoever changes
a node (`show`), and say nothing of nodes that cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from packtrain.arrays import wider
from packtrain.planning import kernels
from packtrain.planning.distances import Outward
from packtrain.planning.nodes import Nodes
from packtrain.planning.table import NOBODY

_FAR = np.iinfo(np.int64).max


class Boards:
    """The boards of B columns, and how many nodes each has: in all, reachable, and of these in the fringe."""

    def __init__(
        self, nodes: Nodes, columns: int, lists_fringe: bool, score: Callable[[np.ndarray], np.ndarray] | None
    ):
        """Empty.

        Args:
          nodes: have `slot`, `open`, `reachable`, `rank` and a walk's `mark`.
          columns: B.
          lists_fringe: whether somebody asks which nodes are in the fringe.
          score: of nodes [M], float32: what the fringe is ordered by; None: nobody asks.
        """
        self._nodes, self._lists_fringe, self._score = nodes, lists_fringe, score
        self._room = 64
        self.sizes = np.zeros(columns, np.int64)  # nodes of each column
        self.reached = np.zeros(columns, np.int64)  # reachable ones
        self.fringes = np.zeros(columns, np.int64)  # those neither expanded nor terminal among them
        self.members = np.full((columns, self._room), NOBODY)  # the nodes
        self._ranks = np.full((columns, self._room), NOBODY)  # of reachable nodes, else NOBODY
        self.open = np.zeros((columns, self._room if lists_fringe else 0), bool)  # is in the fringe
        self.scores = np.full((columns, self._room if score is not None else 0), -np.inf, np.float32)  # in it

    def forget(self, columns: np.ndarray) -> None:
        """These columns have no nodes any more."""
        self.sizes[columns] = 0
        self.members[columns] = NOBODY
        self.clear(columns)

    def clear(self, columns: np.ndarray) -> None:
        """Nothing can be reached in these columns."""
        self.reached[columns] = self.fringes[columns] = 0
        self._ranks[columns] = NOBODY
        self.open[columns] = False
        self.scores[columns] = -np.inf

    def enter(self, ids: np.ndarray, columns: np.ndarray) -> None:
        """Give new nodes [M], those of a column together, a place in their column."""
        added = np.bincount(columns, minlength=len(self.sizes))
        slots = self.sizes.take(columns) + numbered(columns, len(self.sizes))
        self.sizes += added
        if self.sizes.max() > self._room:
            self._widen()
        self._nodes.slot[ids] = slots
        self.members.ravel()[columns * self._room + slots] = ids

    def show(self, ids: np.ndarray) -> None:
        """Write down what reachable nodes [M] are worth, and whether they are in the fringe."""
        nodes = self._nodes
        places = nodes.owner.take(ids) * self._room + nodes.slot.take(ids)
        self._ranks.ravel()[places] = nodes.rank.take(ids)
        if self._lists_fringe:
            self.open.ravel()[places] = nodes.open.take(ids)
        if self._score is not None:
            lowest = np.finfo(np.float32).min  # a value of -inf is still in the fringe
            score = np.maximum(self._score(ids), lowest)
            self.scores.ravel()[places] = np.where(nodes.open.take(ids), score, -np.inf)

    def count(self, ids: np.ndarray) -> None:
        """Count nodes that have become reachable."""
        owners, n_columns = self._nodes.owner.take(ids), len(self.sizes)
        open_ = self._nodes.open.take(ids)
        self.reached += np.bincount(owners, minlength=n_columns)
        self.fringes += np.bincount(owners.compress(open_), minlength=n_columns)

    def leave_fringe(self, ids: np.ndarray) -> None:
        """Nodes of the fringe [M] are expanded; they counted if they can be reached."""
        owners = self._nodes.owner.take(ids).compress(self._nodes.reachable.take(ids))
        self.fringes -= np.bincount(owners, minlength=len(self.fringes))

    def best_ranks(self, columns: np.ndarray, current: np.ndarray) -> np.ndarray:
        """The best rank in each of columns [R], without the current node's."""
        slots = self._nodes.slot.take(current)
        if kernels.compiled:
            top = np.full(len(columns), NOBODY)
            kernels.best_ranks(self._ranks, self.sizes, columns, slots, top)
            return top
        ranks, places, size = self._ranks.ravel(), columns * self._room + slots, self.sizes.max()
        own = ranks[places]
        ranks[places] = NOBODY
        everyone = len(columns) == len(self.sizes)
        top = (self._ranks[:, :size] if everyone else self._ranks[columns, :size]).max(axis=1)
        ranks[places] = own
        return top

    def first_met(
        self, walk: Outward, columns: np.ndarray, current: np.ndarray, top: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray:
        """The first node with the top rank [R] that a walk has met so far, past its source; NOBODY where there is none.

        Those with that rank are few, so they are looked up here.
        """
        target = np.full(len(columns), NOBODY)
        if kernels.compiled:
            boards = (self._ranks, self.members, self.sizes)
            kernels.first_met(*boards, columns, top, wanted, current, self._nodes.mark, walk.floor, target)
            return target
        size = self.sizes.max()
        ranks = self._ranks[:, :size] if len(columns) == len(self.sizes) else self._ranks[columns, :size]
        place = np.flatnonzero(ranks == top[:, None])
        rows = place // size
        ids = self.members.ravel().take(columns.take(rows) * self._room + place - rows * size)
        met = np.flatnonzero(walk.has_met(ids) & wanted.take(rows) & (ids != current.take(rows)))
        ids, rows = ids.take(met), rows.take(met)
        order, first = walk.order(ids), np.full(len(columns), _FAR)
        np.minimum.at(first, rows, order)
        hits = np.flatnonzero(order == first.take(rows))
        target[rows.take(hits)] = ids.take(hits)
        return target

    def _widen(self) -> None:
        room = self._room
        while room < self.sizes.max():
            room *= 2
        self.members = wider(self.members, room, NOBODY)
        self._ranks = wider(self._ranks, room, NOBODY)
        if self._lists_fringe:
            self.open = wider(self.open, room, False)
        if self._score is not None:
            self.scores = wider(self.scores, room, -np.inf)
        self._room = room


def numbered(rows: np.ndarray, n_rows: int) -> np.ndarray:
    """0, 1, 2, … within each run of equal rows [M]; every row has one run at most."""
    starts = np.empty(n_rows, np.int64)
    mine = np.arange(len(rows))
    starts[rows[::-1]] = mine[::-1]  # the last writer is the first of its run
    return mine - starts.take(rows)
