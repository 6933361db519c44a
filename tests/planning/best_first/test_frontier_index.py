"""FrontierIndex of best-first search against lists: places, counts, the best of a column, what is in the fringe."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.planning.best_first.frontier_index import FrontierIndex, numbered
from packtrain.planning.nodes import NO_NODE, Nodes

FIELDS = {
    "slot": ((), np.int64, None),
    "open": ((), bool, True),
    "reachable": ((), bool, False),
    "rank": ((), np.int64, None),
    "value": ((), np.float32, None),
}


pytestmark = pytest.mark.usefixtures("way")


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), turns=st.integers(1, 8), most=st.integers(1, 60))
def test_they_show_what_lists_of_nodes_say(seed, turns, most) -> None:
    """Nodes come, become reachable, leave the fringe, are forgotten; rows widen beyond 64 places.

    Mutations: a place counted across columns; the current node's own rank; ranks of what cannot be reached; scores of
    what is not in the fringe.
    """
    rng = np.random.default_rng(seed)
    nodes = Nodes(FIELDS)
    boards = FrontierIndex(nodes, 3, True, lambda ids: nodes.value.take(ids))
    known: list[list[int]] = [[], [], []]
    for _ in range(turns):
        columns = np.sort(rng.integers(3, size=rng.integers(1, most + 1)))
        ids = nodes.add(columns)
        nodes.rank[ids], nodes.value[ids] = rng.integers(100, size=len(ids)), rng.normal(size=len(ids))
        nodes.open[ids] = rng.random(len(ids)) < 0.7
        boards.enter(ids, columns)
        for node, column in zip(ids.tolist(), columns.tolist(), strict=True):
            known[column].append(node)
        found = ids[rng.random(len(ids)) < 0.6]
        nodes.reachable[found] = True
        boards.count(found)
        boards.show(found)
        fringe = np.flatnonzero(nodes.open[: len(nodes.open)] & (nodes.owner != NO_NODE))
        expanded = rng.permutation(fringe)[: rng.integers(4)]
        boards.leave_fringe(expanded)
        nodes.open[expanded] = False
        boards.show(expanded[nodes.reachable[expanded]])
        if rng.random() < 0.2:
            gone = np.array([rng.integers(3)])
            nodes.forget(gone)
            boards.forget(gone)
            known[gone[0]] = []
        for column, mine in enumerate(known):
            reached = [node for node in mine if nodes.reachable[node]]
            fringe_of = [node for node in reached if nodes.open[node]]
            assert boards.sizes[column] == len(mine)
            assert boards.reached[column] == len(reached) and boards.fringes[column] == len(fringe_of)
            assert boards.members[column, : len(mine)].tolist() == mine
            assert (boards.members[column, len(mine) :] == NO_NODE).all()
            assert [mine[place] for place in np.flatnonzero(boards.open[column])] == fringe_of
            shown = boards.scores[column, : len(mine)]
            assert [mine[place] for place in np.flatnonzero(shown > -np.inf)] == fringe_of
            if mine:
                current = mine[rng.integers(len(mine))]
                others = [nodes.rank[node] for node in reached if node != current]
                best = boards.best_ranks(np.array([column]), np.array([current]))
                assert best.tolist() == [max(others, default=NO_NODE)]


def test_a_value_of_minus_infinity_is_still_in_the_fringe() -> None:
    """Mutation: it looks like a place without a node."""
    nodes = Nodes(FIELDS)
    boards = FrontierIndex(nodes, 1, False, lambda ids: nodes.value.take(ids))
    ids = nodes.add(np.zeros(2, np.int64))
    nodes.rank[ids], nodes.value[ids], nodes.open[ids] = 0, -np.inf, [False, True]
    boards.enter(ids, np.zeros(2, np.int64))
    boards.show(ids)
    assert boards.scores[0].argmax() == 1 and boards.open.shape == (1, 0)


@pytest.mark.parametrize("rows", [[], [0], [2, 2, 2], [0, 0, 1, 3, 3], [3, 3, 0, 1, 1, 1]])
def test_numbered_counts_within_runs(rows) -> None:
    assert numbered(np.array(rows, np.int64), 4).tolist() == [rows[:place].count(row) for place, row in enumerate(rows)]
