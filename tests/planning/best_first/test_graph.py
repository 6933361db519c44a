"""Walks and reachability over growing graphs in arrays, against a queue and a dict."""

import numpy as np
import pytest

from packtrain.planning.best_first import graph as graphs
from packtrain.planning.best_first.graph import Graph, graph_fields
from packtrain.planning.nodes import NO_NODE, Nodes

pytestmark = pytest.mark.usefixtures("way")


class PlainGraph:
    """The same edges in a dict."""

    def __init__(self) -> None:
        self.edges: dict[int, list[int]] = {}

    def distances(self, source: int) -> dict[int, tuple[int, int]]:
        """{node: (distance, predecessor)}, in the order of a queue."""
        met, queue = {source: (0, NO_NODE)}, [source]
        for node in queue:
            for child in self.edges.get(node, []):
                if child not in met:
                    met[child] = (met[node][0] + 1, node)
                    queue.append(child)
        return met


def grow(rng: np.random.Generator, nodes: Nodes, graph: Graph, twin: PlainGraph, n_columns: int) -> list[int]:
    """Give a node of each column new edges, to any nodes of the column and sometimes new ones; these nodes."""
    ids, edges = [], []
    for column in range(n_columns):
        mine = nodes.of(column)
        node = int(rng.choice(mine))
        if rng.random() < 0.7:
            graph.enter(nodes.add(np.full(2, column)))
        nearby = nodes.of(column)[-6:] if rng.random() < 0.5 else nodes.of(column)
        ids.append(node)
        edges.append(rng.choice(nearby, nodes.edges.shape[1]))
    graph.link(np.array(ids), np.array(edges))
    twin.edges |= {node: row.tolist() for node, row in zip(ids, edges, strict=True)}
    return ids


def three_graphs(n_columns: int, actions: int) -> tuple[Nodes, Graph, PlainGraph]:
    nodes = Nodes(graph_fields(actions), capacity=4)
    graph = Graph(nodes)
    graph.enter(nodes.add(np.arange(n_columns)))
    return nodes, graph, PlainGraph()


@pytest.mark.parametrize("seed", range(20))
def test_walks_are_breadth_first_searches(seed: int) -> None:
    """1,000 growing graphs: distances, predecessors and order, in columns that are left and taken up again.

    Caught mutations: the last instead of the first way to a node; a walk that forgets rows set aside; ways that keep
    a second edge to a node; edges re-pointed in `edges` alone.
    """
    rng = np.random.default_rng(seed)
    n_columns = 50
    nodes, graph, twin = three_graphs(n_columns, int(rng.integers(1, 5)))
    sources = np.arange(n_columns)
    for _ in range(12):
        for node in grow(rng, nodes, graph, twin, n_columns):
            others = [to for to in dict.fromkeys(twin.edges[node]) if to != node]
            assert nodes.ways[node].tolist() == others + [node] * (graph.width - len(others))
        sources = np.array([rng.choice(nodes.of(column)) for column in range(n_columns)])
        walk = graph.walk(sources)
        for _ in range(2):
            walk.resume(rng.random(n_columns) < 0.5)
            walk.advance()
        walk.resume(going := rng.random(n_columns) < 0.7)
        check_seek(rng, nodes, walk, twin, sources, going)
        walk.resume(np.ones(n_columns, bool))
        while len(walk.ids):
            walk.advance()
        ids = walk.everything()
        rows = walk.rows(ids)
        for column in range(n_columns):
            want = twin.distances(int(sources[column]))
            mine = ids[rows == column]
            assert mine.tolist() == list(want)
            assert (np.diff(walk.order(mine)) > 0).all() and walk.order(mine[:1]) == 0
            before = [predecessor for _, predecessor in want.values()]
            assert walk.predecessors(mine).tolist() == [int(sources[column]), *before[1:]]
        check_way(nodes, walk, twin, sources, rng.choice(ids, 5))


def check_seek(rng, nodes: Nodes, walk, twin: PlainGraph, sources: np.ndarray, going: np.ndarray) -> None:
    """Rows that go on stop at their first level with what they want, and say how far it was."""
    field, wanted = rng.integers(0, 12, len(nodes.owner)), rng.integers(0, 12, len(sources))
    stood = {row: int(walk.order(walk.ids[walk.rows(walk.ids) == row]).max(initial=-1)) for row in range(len(sources))}
    met_before = walk.has_met(np.arange(len(nodes)))
    steps = walk.seek(field, wanted)
    rows = walk.rows(walk.ids)
    for row, source in enumerate(sources.tolist()):
        want = twin.distances(source)
        reached = [want[node][0] for node in want if met_before[node]]
        hits = [d for node, (d, _) in want.items() if field[node] == wanted[row] and not met_before[node]]
        if going[row] and hits and stood[row] >= 0:
            assert steps[row] == min(hits) - max(reached)
            assert walk.ids[rows == row].tolist() == [node for node, (d, _) in want.items() if d == min(hits)]
        else:
            assert steps[row] == 0 and not (rows == row).any()


def test_counts_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caught mutation: marks of earlier walks kept, which a walk with a smaller number takes for its own."""
    monkeypatch.setattr(graphs, "COUNT_LIMIT", 5)
    nodes, graph, _ = three_graphs(1, 1)
    graph.enter(nodes.add(np.zeros(2, np.int64)))
    graph.link(np.arange(3), np.array([[1], [2], [0]]))
    for turn in range(9):
        walk = graph.walk(np.array([turn % 3]))
        while len(walk.ids):
            walk.advance()
        assert walk.everything().tolist() == [turn % 3, (turn + 1) % 3, (turn + 2) % 3]
    assert graph.met < 9


def check_way(nodes: Nodes, walk, twin: PlainGraph, sources: np.ndarray, targets: np.ndarray) -> None:
    steps = walk.ways_back(targets)
    for index, target in enumerate(targets.tolist()):
        at = target
        for which, source, action in steps:
            for path, node, taken in zip(which.tolist(), source.tolist(), action.tolist(), strict=True):
                if path == index:
                    assert twin.edges[node].index(at) == taken  # the first action that leads there
                    at = node
        assert at == sources[nodes.owner[target]]
        assert sum(index in which for which, _, _ in steps) == twin.distances(at)[target][0]


@pytest.mark.parametrize("seed", range(10))
def test_what_can_be_reached_is_known_after_every_move(seed: int) -> None:
    """Moves with and without a way back, new edges to what was lost, and edges that were re-pointed.

    Caught mutations: a way back looked for among edges only; the search for it cut short; marks of lost nodes kept;
    a way back taken to prove something where the new node was out of reach.
    """
    rng = np.random.default_rng(100 + seed)
    n_columns = 20
    nodes, graph, twin = three_graphs(n_columns, 2)
    current = np.arange(n_columns)
    nodes.reachable[current] = True
    lost = kept = 0
    for _ in range(25):
        before = current.copy()
        linked = set(twin.edges)
        ids = grow(rng, nodes, graph, twin, n_columns)
        again = {int(nodes.owner[node]) for node in ids if node in linked}  # these may have lost edges
        new = np.array([node for node in ids if nodes.reachable[node]], np.int64)
        graph.reach_on(nodes.edges[new].ravel())
        known = np.array([NO_NODE if column in again else node for column, node in enumerate(before)])
        for column in range(n_columns):
            if twin.edges.get(int(current[column])) and rng.random() < 0.8:
                current[column] = rng.choice(twin.edges[int(current[column])])
            elif rng.random() < 0.3:  # carried off to where no edge led
                current[column] = rng.choice(nodes.of(column))
        rows, found = graph.moved(current, known)
        kept += n_columns - len(rows)
        nodes.reachable[np.isin(nodes.owner, rows) & (nodes.owner != NO_NODE)] = False
        nodes.reachable[found] = True
        for column in range(n_columns):
            mine = nodes.of(column)
            want = set(twin.distances(int(current[column])))
            assert set(mine[nodes.reachable[mine]].tolist()) == want
            lost += len(mine) - len(want)
    assert lost and kept


def test_a_plain_way_back_costs_no_walk() -> None:
    """Two nodes that lead to each other: what is reachable stays, and nothing is walked.

    Caught mutation: the test of `back` left out, which walks the whole graph at every move.
    """
    nodes, graph, _ = three_graphs(1, 1)
    graph.enter(nodes.add(np.zeros(1, np.int64)))
    graph.link(np.array([0, 1]), np.array([[1], [0]]))
    nodes.reachable[:2] = True
    rows, ids = graph.moved(np.array([1]), np.array([0]))
    assert len(rows) == len(ids) == 0
    assert (nodes.mark[:2] == 0).all() and graph.met == 0
