"""The frontier of best-first search: heuristics of nodes, an index of the best ones, and the orders of expansion.

The frontier (also called fringe) holds the nodes that are reachable and neither expanded nor terminal. `Heuristics`
scores nodes. `FrontierIndex` stores the scores in one row per environment, so that the best node of each environment is
found in one operation. `nearest_first`, `in_listed_order` and `in_heap_order` are the selection rules of a search.
Start reading with `packtrain/testing/plain_best_first.py`, then `search.py`, which uses this file.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator

import numpy as np

from packtrain.arrays import wider
from packtrain.planning import kernels
from packtrain.planning.best_first.graph import BreadthFirstWalk
from packtrain.planning.counter_rng import chance
from packtrain.planning.learned.verification import Verification
from packtrain.planning.nodes import NO_NODE, Nodes

_FAR = np.iinfo(np.int64).max
_TRUE = np.ones(1, bool)
RANDOM_NODE = 2  # purpose of a random number, see `search.py`

# -- heuristics


class Heuristics:
    """Scores of nodes, as targets and as nodes to expand."""

    def __init__(
        self,
        nodes: Nodes,
        expand_heuristic: str,
        top_level_heuristic: str,
        verification: Verification | None = None,
        octaves: int = 1,
    ):
        """Score nodes by the heuristics that `BestFirstSearchAgent` describes.

        Args:
          nodes: have `value`, `auxiliary`, `open`, `solved`, and `bonus` and `found_bonus` if a heuristic uses them.
          expand_heuristic: order of the frontier.
          top_level_heuristic: order of targets.
          verification: if given, targets are ordered by the model's disagreement and by nothing else.
          octaves: width of a class of equal disagreement in octaves; 0: a single class.
        """
        self._nodes, self._verification, self._octaves = nodes, verification, octaves
        self._expands_by, self._chooses_by = expand_heuristic, top_level_heuristic

    def rank(self, ids: np.ndarray) -> np.ndarray:
        """Return ranks of nodes [M] as targets: int64 numbers that compare as the tuples of the heuristic do."""
        nodes, by = self._nodes, self._chooses_by
        if by == "neg_distance" and self._verification is None:
            return np.zeros(len(ids), np.int64)  # all equal, so that the nearest is chosen
        rank: np.ndarray = nodes.open.take(ids).astype(np.int64)
        if self._verification is not None:
            rank |= ordered(nodes.auxiliary.take(ids)) << 21 | self.disagreement(ids) << 53
        elif by == "solved_then_auxiliary_then_bonus":
            rank |= ordered(nodes.auxiliary.take(ids)) << 30
            rank |= (ordered(self._bonus(ids)) >> 3) << 1  # bonuses lose three bits
        else:
            rank |= ordered(self._score(ids, by.removeprefix("solved_then_"))) << 30
        if by.startswith("solved") or self._verification is not None:
            rank |= nodes.solved.take(ids).astype(np.int64) << 62
        return rank

    @staticmethod
    def disagreement_of(rank: np.ndarray) -> np.ndarray:
        """Extract the class of disagreement from ranks; nodes that solve the task are above every class."""
        return rank >> 53

    def disagreement(self, ids: np.ndarray) -> np.ndarray:
        """Return the class, 0 to 511, of the largest disagreement about an action of nodes [M]; 0 up to the noise."""
        assert self._verification is not None
        bonus, octaves = self._bonus(ids), self._octaves
        noise = self._verification.noise(self._nodes.owner.take(ids))
        level = np.minimum(1 + (ordered(bonus) >> 23) // octaves, 511) if octaves else 1
        return np.where(bonus > noise, level, 0)

    def of_expansion(self, ids: np.ndarray) -> np.ndarray:
        """Return the scores of frontier nodes [M], float32. Their bonus is that of the edge that found them."""
        nodes, by = self._nodes, self._expands_by
        if by == "bonus":
            found: np.ndarray = nodes.found_bonus.take(ids)
            return found
        if by == "value_plus_bonus":
            value: np.ndarray = nodes.value.take(ids)
            return value + nodes.found_bonus.take(ids)
        return self._score(ids, by)

    def _score(self, ids: np.ndarray, heuristic: str) -> np.ndarray:
        """Return a heuristic of nodes [M], float32."""
        nodes = self._nodes
        if heuristic == "bonus":
            return self._bonus(ids)
        value: np.ndarray = nodes.value.take(ids)
        if heuristic == "value_plus_bonus":
            return value + self._bonus(ids)
        return value + nodes.auxiliary.take(ids) if heuristic == "index" else value

    def _bonus(self, ids: np.ndarray) -> np.ndarray:
        """Return the largest bonus of the actions of nodes [M]; 0 for nodes that are not expanded."""
        largest: np.ndarray = self._nodes.bonus.take(ids, axis=0).max(axis=1)
        return largest


def ordered(scores: np.ndarray) -> np.ndarray:
    """Convert float32 scores to int64 numbers in [0, 2^32) that compare as the scores do."""
    bits = (scores + np.float32(0)).view(np.int32)  # −0 becomes 0
    return (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).astype(np.int64) + (1 << 31)


# -- the index


class FrontierIndex:
    """Arrays with a row for each of B environments and a place for each of its nodes, in order of creation.

    They answer questions about all nodes of an environment at once: which is the best target, which frontier node comes
    next. Unreachable nodes have no entry. The code that changes a node updates its entry with `show`.
    """

    def __init__(
        self, nodes: Nodes, columns: int, lists_fringe: bool, score: Callable[[np.ndarray], np.ndarray] | None
    ):
        """Create an empty index.

        Args:
          nodes: have `slot`, `open`, `reachable`, `rank` and the `mark` of walks.
          columns: B.
          lists_fringe: whether to store which nodes are in the frontier.
          score: of nodes [M], float32: the order of the frontier; None: scores are not stored.
        """
        self.nodes, self._lists_fringe, self._score = nodes, lists_fringe, score
        self._room = 64
        self.sizes = np.zeros(columns, np.int64)  # number of nodes
        self.reached = np.zeros(columns, np.int64)  # number of reachable nodes
        self.fringes = np.zeros(columns, np.int64)  # number of frontier nodes
        self.members = np.full((columns, self._room), NO_NODE)  # the nodes
        self._ranks = np.full((columns, self._room), NO_NODE)  # ranks of reachable nodes, else NO_NODE
        self.open = np.zeros((columns, self._room if lists_fringe else 0), bool)  # whether each is in the frontier
        # scores of frontier nodes
        self.scores = np.full((columns, self._room if score is not None else 0), -np.inf, np.float32)

    def forget(self, columns: np.ndarray) -> None:
        """Remove all nodes of these environments."""
        self.sizes[columns] = 0
        self.members[columns] = NO_NODE
        self.clear(columns)

    def clear(self, columns: np.ndarray) -> None:
        """Mark all nodes of these environments as unreachable."""
        self.reached[columns] = self.fringes[columns] = 0
        self._ranks[columns] = NO_NODE
        self.open[columns] = False
        self.scores[columns] = -np.inf

    def enter(self, ids: np.ndarray, columns: np.ndarray) -> None:
        """Give new nodes [M] a place in their environments [M]; nodes of the same environment are adjacent."""
        added = np.bincount(columns, minlength=len(self.sizes))
        slots = self.sizes.take(columns) + numbered(columns, len(self.sizes))
        self.sizes += added
        if self.sizes.max() > self._room:
            self._widen()
        self.nodes.slot[ids] = slots
        self.members.ravel()[columns * self._room + slots] = ids

    def show(self, ids: np.ndarray) -> None:
        """Store the rank of reachable nodes [M], and whether they are in the frontier."""
        nodes = self.nodes
        places = nodes.owner.take(ids) * self._room + nodes.slot.take(ids)
        self._ranks.ravel()[places] = nodes.rank.take(ids)
        if self._lists_fringe:
            self.open.ravel()[places] = nodes.open.take(ids)
        if self._score is not None:
            lowest = np.finfo(np.float32).min  # a node with value -inf is still in the frontier
            score = np.maximum(self._score(ids), lowest)
            self.scores.ravel()[places] = np.where(nodes.open.take(ids), score, -np.inf)

    def count(self, ids: np.ndarray) -> None:
        """Count nodes that have become reachable."""
        owners, n_columns = self.nodes.owner.take(ids), len(self.sizes)
        open_ = self.nodes.open.take(ids)
        self.reached += np.bincount(owners, minlength=n_columns)
        self.fringes += np.bincount(owners.compress(open_), minlength=n_columns)

    def leave_fringe(self, ids: np.ndarray) -> None:
        """Remove expanded nodes [M] from the count of the frontier; it had counted those that are reachable."""
        owners = self.nodes.owner.take(ids).compress(self.nodes.reachable.take(ids))
        self.fringes -= np.bincount(owners, minlength=len(self.fringes))

    def best_ranks(self, columns: np.ndarray, current: np.ndarray) -> np.ndarray:
        """Return the best rank in each of environments [R] without the current node; NO_NODE if there is none."""
        slots = self.nodes.slot.take(current)
        if kernels.compiled:
            top = np.full(len(columns), NO_NODE)
            kernels.best_ranks(self._ranks, self.sizes, columns, slots, top)
            return top
        ranks, places, size = self._ranks.ravel(), columns * self._room + slots, self.sizes.max()
        own = ranks[places]
        ranks[places] = NO_NODE
        everyone = len(columns) == len(self.sizes)
        top = (self._ranks[:, :size] if everyone else self._ranks[columns, :size]).max(axis=1)
        ranks[places] = own
        return top

    def first_met(
        self, walk: BreadthFirstWalk, columns: np.ndarray, current: np.ndarray, top: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray:
        """Return the first node of rank `top` [R] that a walk has met after its source; NO_NODE where there is none.

        Few nodes have that rank, so they are looked up here instead of in the walk.
        """
        target = np.full(len(columns), NO_NODE)
        if kernels.compiled:
            arrays = (self._ranks, self.members, self.sizes)
            kernels.first_met(*arrays, columns, top, wanted, current, self.nodes.mark, walk.floor, target)
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
        self.members = wider(self.members, room, NO_NODE)
        self._ranks = wider(self._ranks, room, NO_NODE)
        if self._lists_fringe:
            self.open = wider(self.open, room, False)
        if self._score is not None:
            self.scores = wider(self.scores, room, -np.inf)
        self._room = room


def numbered(rows: np.ndarray, n_rows: int) -> np.ndarray:
    """Return 0, 1, 2, … within each run of equal rows [M]; every row has at most one run."""
    starts = np.empty(n_rows, np.int64)
    mine = np.arange(len(rows))
    starts[rows[::-1]] = mine[::-1]  # of several writes the last stays: the first entry of the run
    return mine - starts.take(rows)


# -- selection: which frontier nodes are expanded next

Selection = Generator[tuple[np.ndarray, np.ndarray | None], np.ndarray, None]
"""Yields nodes to expand, with their numbers within their environments (None: one node per environment). It is sent the
nodes that became reachable by the expansion."""

Pick = Callable[["FrontierIndex", np.ndarray, np.ndarray], np.ndarray]
"""Picks the places [M] of frontier nodes from an index, environments [M] that have some, and their budgets [M]."""


def nearest_first(
    index: FrontierIndex, walk: BreadthFirstWalk, columns: np.ndarray, budget: np.ndarray, nearest: np.ndarray
) -> Selection:
    """Select the nearest frontier nodes. A row's nodes of equal distance are expanded together: none affects another.

    Args:
      index: of all environments.
      walk: from the current nodes; it is advanced.
      columns: [R] the environments of the walk's rows.
      budget: [R] how many nodes to select; counted down.
      nearest: [R] written: the distance of the first node of each row.
    """
    level = np.zeros(len(columns), np.int64)
    walk.only((budget > 0) & (index.fringes[columns] > 0))
    while len(walk.ids):
        open_ = index.nodes.open
        level += walk.seek(open_, _TRUE)
        ids = walk.ids.compress(open_.take(walk.ids))
        rows = walk.rows(ids)
        number = numbered(rows, len(columns))
        within = np.flatnonzero(number < budget.take(rows))
        if len(within) < len(rows):
            ids, rows, number = ids.take(within), rows.take(within), number.take(within)
        budget -= np.bincount(rows, minlength=len(columns))
        nearest[rows] = np.minimum(nearest.take(rows), level.take(rows))
        yield ids, number
        walk.only((budget > 0) & (index.fringes[columns] > 0))


def in_listed_order(index: FrontierIndex, columns: np.ndarray, budget: np.ndarray, pick: Pick) -> Selection:
    """Select frontier nodes by the index, one per environment at a time.

    Args:
      index: of all environments.
      columns: [R] environments.
      budget: [R] how many nodes to select; counted down.
      pick: the rule.
    """
    while True:
        rows = np.flatnonzero((budget > 0) & (index.fringes[columns] > 0))
        if not len(rows):
            return
        places = pick(index, columns[rows], budget[rows])
        budget[rows] -= 1
        yield index.members[columns[rows], places], None


def best_place(index: FrontierIndex, columns: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Pick the frontier nodes with the largest scores."""
    return index.scores[columns, : index.sizes.max()].argmax(axis=1)


def oldest_place(index: FrontierIndex, columns: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Pick the frontier nodes that were found first."""
    return index.open[columns, : index.sizes.max()].argmax(axis=1)


def newest_place(index: FrontierIndex, columns: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Pick the frontier nodes that were found last."""
    size = index.sizes.max()
    place: np.ndarray = size - 1 - index.open[columns, :size][:, ::-1].argmax(axis=1)
    return place


def random_place(
    index: FrontierIndex, columns: np.ndarray, budget: np.ndarray, *, seed: int, decision: int, most: int
) -> np.ndarray:
    """Pick frontier nodes uniformly at random; `most` is the full budget of a decision."""
    sampled = chance(seed, columns, decision, RANDOM_NODE, most - budget)
    wanted = (sampled * index.fringes[columns]).astype(np.int64)
    place: np.ndarray = (index.open[columns, : index.sizes.max()].cumsum(axis=1) > wanted[:, None]).argmax(axis=1)
    return place


def in_heap_order(index: FrontierIndex, walk: BreadthFirstWalk, columns: np.ndarray, budget: np.ndarray) -> Selection:
    """Select frontier nodes as Python's heap returns entries of equal keys. It loops over environments.

    This rule exists to compare with published runs. The heap is filled breadth-first from the current nodes of `walk`,
    then with the nodes that become reachable.
    """
    nodes = index.nodes
    while len(walk.ids):
        walk.advance()
    heaps: list[list[HeapEntry]] = [[] for _ in columns]
    row_of = dict(zip(columns.tolist(), range(len(columns)), strict=True))
    ids = walk.everything()
    while True:
        open_ = ids[nodes.open[ids]]
        for node, column in zip(open_.tolist(), nodes.owner[open_].tolist(), strict=True):
            heapq.heappush(heaps[row_of[column]], HeapEntry(node))
        chosen = [heapq.heappop(heap).node for heap, left in zip(heaps, budget > 0, strict=True) if left and heap]
        if not chosen:
            return
        budget -= 1
        ids = yield np.array(chosen), None


class HeapEntry:
    """A node in a heap; all entries compare as equal."""

    def __init__(self, node: int):
        self.node = node

    def __lt__(self, other: HeapEntry) -> bool:
        return False
