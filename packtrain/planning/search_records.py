"""What tree and graph searches report of a finished search; nothing here changes a search.

Each function describes one environment and leaves out nodes beyond a limit. `traces.py` writes the records to files.

Shapes: N nodes, E edges, A actions, M nodes in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.equations import puct
from packtrain.planning.events import SearchRecord
from packtrain.planning.nodes import NO_NODE
from packtrain.trees import Tree

if TYPE_CHECKING:
    from packtrain.planning.best_first.search import KnownGraph
    from packtrain.planning.mcts_graph import MctsGraph
    from packtrain.planning.mcts_tree import Decision, MctsTree
    from packtrain.planning.stochastic_mcts import StochasticMCTSAgent


def tree_record(
    tree: MctsTree, agent: StochasticMCTSAgent, decision: Decision, row: int, action: int, most: int
) -> SearchRecord:
    """Describe a tree of stochastic MCTS, before its root is moved.

    An edge whose only visit is the evaluation leads to a node without a number. The nodes with the most visits are
    kept. Bonuses are those of the exploratory score, weighted; a root's priors include noise.
    """
    nodes = tree.nodes
    ids, places = np.array([decision.ids[row]]), np.zeros(1, np.int64)
    incoming = np.array([float(tree.root_visits[decision.columns[row]])])
    levels: list[dict[str, np.ndarray]] = []
    numbers, visited, total = [ids], [incoming], 1
    while len(ids):
        visits = nodes.visits[ids]
        priors = decision.priors[[row]] if total == 1 else nodes.priors[ids]
        bonus = puct.puct_bonus(priors, visits, incoming) if agent.bonus == "puct" else puct.ucb_bonus(visits, incoming)
        at, actions = np.nonzero(visits > 0)
        children = nodes.children[ids][at, actions]
        sums = nodes.quality_sums[ids][at, actions]
        seen = visits[at, actions]
        level = {
            "from": places[at],
            "to": total + np.arange(len(at)),
            "action": actions,
            "visits": seen.astype(np.int64),
            "value": (sums / seen - agent.leaf_quality_bias) / agent.leaf_quality_dampening,
            "prior": priors[at, actions],
            "bonus": agent.exploration_weight * bonus[at, actions],
        }
        levels.append(level)
        numbers.append(children)
        visited.append(seen)
        inner = children != NO_NODE
        ids, places, incoming = children[inner], level["to"][inner], seen[inner]
        total += len(at)
    edges = {name: np.concatenate([level[name] for level in levels]) for name in levels[0]}
    number, seen = np.concatenate(numbers), np.concatenate(visited)
    field = {"visits": seen.astype(np.int64), "expanded": np.where(number == NO_NODE, False, nodes.expanded[number])}
    kept = most_visited(edges, total, most)
    found = keep(SearchRecord("StochasticMCTS", "tree", field, edges, numbers=number), kept)
    found.path = _descent(found.edges, action)
    return found


def graph_record(graph: MctsGraph, root: int, action: int, most: int) -> SearchRecord:
    """Describe the graph of deterministic MCTS that the root leads to, nearest nodes first."""
    nodes, edges, values = graph.nodes, graph.edges, graph.values

    def successors(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inner = np.flatnonzero(nodes.edge_row[ids] != NO_NODE)
        return inner, edges.children[nodes.edge_row[ids[inner]]]

    found = _reached(root, successors, nodes.states, most)
    ids = found.ids
    known = values.target(graph.get(ids))
    field = {
        "value": known,
        "visits": np.maximum(nodes.count[ids] - 1, 0),
        "index": graph.index(ids),
        "terminal": nodes.terminal[ids],
        "solved": nodes.solved[ids],
        "expanded": nodes.edge_row[ids] != NO_NODE,
    }
    source, target, taken = found.source, found.target, found.action
    row = nodes.edge_row[ids[source]]
    reward = edges.rewards[row, taken]
    record = {
        "from": source,
        "to": target,
        "action": taken,
        "visits": edges.visits[row, taken],
        "value": reward + graph.gamma * known[target],
        "index": reward + graph.gamma * graph.index(ids)[target],
        "reward": reward,
    }
    if graph.has_bonus:
        record["disagreement"] = edges.bonus[row, taken]
    path = _greedy_path(record, record["index"], action)
    return SearchRecord("DeterministicMCTS", "graph", field, record, path, found.left_out, states=found.states)


def known_graph_record(
    graph: KnownGraph, root: int, target: int, plan: Sequence[tuple[int, int]], action: int, most: int
) -> SearchRecord:
    """Describe the graph of best-first search that the root leads to, nearest nodes first.

    Args:
      graph: of all environments.
      root: the current node.
      target: the node that was chosen; NO_NODE: none.
      plan: nodes and actions of the path to it; empty without a target.
      action: the one taken, which differs from the plan's where it is verified or random.
      most: maximum number of nodes.
    """
    nodes = graph.nodes

    def successors(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inner = np.flatnonzero(nodes.expanded[ids] & ~nodes.terminal[ids])
        return inner, nodes.edges[ids[inner]]

    found = _reached(root, successors, nodes.states, most, [node for node, _ in plan] + [target] * (target != NO_NODE))
    ids, source, taken = found.ids, found.source, found.action
    field = {
        "value": nodes.value[ids],
        "index": nodes.value[ids] + nodes.auxiliary[ids],
        "terminal": nodes.terminal[ids],
        "solved": nodes.solved[ids],
        "expanded": nodes.expanded[ids],
        "target": ids == target,
    }
    record = {"from": source, "to": found.target, "action": taken, "reward": nodes.rewards[ids[source], taken]}
    if graph.has_bonus:
        record["disagreement"] = nodes.bonus[ids[source], taken]
    steps = list(plan) or [(root, action)]
    path = _edges_of(record, ids, steps)
    return SearchRecord("BestFirstSearch", "graph", field, record, path, found.left_out, states=found.states)


class Table(NamedTuple):
    """The table of tabular frontier search."""

    next: list[list[int]]  # [N][A], below 0: no state
    untried: list[int]  # [N]
    states: dict[int, Tree]  # [1, ...] of the states that were seen while searches are recorded
    ended: int  # the entry of `next` that stands for an end


def table_record(table: Table, state: int, route: Sequence[tuple[int, int]], most: int) -> SearchRecord:
    """Describe the known transitions from a state on, nearest states first; the route is the plan.

    A step that ended the episode, and the untried step at the end of the route, lead to a node without a state.
    """
    places, order, edges = {state: 0}, [state], dict[str, list[int]]({"from": [], "to": [], "action": []})
    extra, path, left_out = list[bool](), dict[tuple[int, int], int](), 0
    planned = {pair: number for number, pair in enumerate(route)}
    for node in order:
        if node < 0:
            continue
        for action, after in enumerate(table.next[node]):
            is_planned = (node, action) in planned
            if after < 0 and after != table.ended and not is_planned:
                continue
            if after >= 0 and after in places:
                to = places[after]
            elif len(order) >= most and not is_planned:
                left_out += 1
                continue
            else:
                to = len(order)
                order.append(after if after >= 0 else -1)
                extra.append(after == table.ended)
                if after >= 0:
                    places[after] = to
            if is_planned:
                path[(node, action)] = len(edges["to"])
            for name, value in (("from", places[node]), ("to", to), ("action", action)):
                edges[name].append(value)
    fields = {
        "terminal": np.array([False, *extra]),
        "untried": np.array([table.untried[node] if node >= 0 else 0 for node in order]),
    }
    rows, kept = np.full(len(order), NO_NODE), list[Tree]()
    for place, node in enumerate(order):
        if node in table.states:
            rows[place] = len(kept)
            kept.append(table.states[node])
    states = trees.map(lambda *leaves: np.concatenate(leaves), *kept) if kept else None
    arrays = {name: np.array(values, np.int64) for name, values in edges.items()}
    found = [path[pair] for pair in route if pair in path]
    return SearchRecord("FrontierSearch", "graph", fields, arrays, found, left_out, states=states, state_rows=rows)


# -- parts


class Reached(NamedTuple):
    """Nodes that a root leads to, and the edges among them."""

    ids: np.ndarray  # [N] nodes; the root first
    source: np.ndarray  # [E] places in `ids`
    target: np.ndarray  # [E]
    action: np.ndarray  # [E]
    states: Tree  # [N, ...]
    left_out: int


def _reached(
    root: int,
    successors: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    states: Tree,
    most: int,
    wanted: Sequence[int] = (),
) -> Reached:
    """Walk breadth-first from a node; `wanted` nodes are kept beyond the limit.

    Args:
      root: where to begin.
      successors: nodes [M] → the indices of those that have edges, and the nodes that these lead to, [m, A].
      states: of all nodes.
      most: maximum number of nodes.
      wanted: nodes to keep in any case.
    """
    first = list(dict.fromkeys([root, *(int(node) for node in wanted)]))
    seen, order, level = {root}, [root], np.array([root])
    while len(level):
        _, led = successors(level)
        fresh = [node for node in dict.fromkeys(led.ravel().tolist()) if node not in seen]
        seen.update(fresh)
        order += fresh
        level = np.array(fresh, np.int64)
    order = list(dict.fromkeys(first + order)) if len(order) > most else order
    left_out = max(0, len(order) - max(most, len(first)))
    ids = np.array(order[: len(order) - left_out], np.int64)
    inner, led = successors(ids)
    place = np.full(int(max(ids.max(), led.max(initial=0))) + 1, NO_NODE)
    place[ids] = np.arange(len(ids))
    at, action = np.nonzero(place[led] != NO_NODE) if led.size else (np.empty(0, np.int64),) * 2
    target = place[led[at, action]] if led.size else at
    return Reached(ids, inner[at], target, action, trees.map(lambda leaf: leaf[ids], states), left_out)


def most_visited(edges: dict[str, np.ndarray], total: int, most: int, wanted: Sequence[int] = ()) -> np.ndarray:
    """Return which nodes of a tree to keep, ascending: the most visited ones with all nodes above them."""
    if total <= most:
        return np.arange(total)
    weight = np.full(total, np.inf)
    weight[edges["to"]] = edges["visits"]
    parents = np.full(total, 0)
    parents[edges["to"]] = edges["from"]
    for node in range(1, total):  # numbers rise with depth
        weight[node] = min(weight[node], weight[parents[node]])
    weight[np.asarray(wanted, np.int64)] = np.inf
    return np.sort(np.argsort(-weight, kind="stable")[: max(most, len(wanted) + 1)])


def keep(record: SearchRecord, kept: np.ndarray) -> SearchRecord:
    """Keep some nodes, ascending, and the edges among them."""
    total = len(next(iter(record.nodes.values())))
    if len(kept) == total:
        return record
    place = np.full(total, NO_NODE)
    place[kept] = np.arange(len(kept))
    inner = np.flatnonzero((place[record.edges["from"]] != NO_NODE) & (place[record.edges["to"]] != NO_NODE))
    edges = {name: values[inner] for name, values in record.edges.items()}
    edges |= {name: place[edges[name]] for name in ("from", "to")}
    record.edges, record.nodes = edges, {name: values[kept] for name, values in record.nodes.items()}
    record.numbers = None if record.numbers is None else record.numbers[kept]
    record.state_rows = None if record.state_rows is None else record.state_rows[kept]
    record.left_out = total - len(kept)
    return record


def _descent(edges: dict[str, np.ndarray], action: int) -> list[int]:
    """Return the edges of the most visited path that begins with an action."""
    return _greedy_path(edges, edges["visits"], action)


def _greedy_path(edges: dict[str, np.ndarray], score: np.ndarray, action: int) -> list[int]:
    """Follow the edges of the largest score from the root on, the first by its action, until a node is met again."""
    order = np.argsort(edges["from"], kind="stable")
    starts = np.searchsorted(edges["from"][order], np.arange(edges["from"].max(initial=0) + 2))
    path: list[int] = []
    node, met = 0, {0}
    while node + 1 < len(starts):
        mine = order[starts[node] : starts[node + 1]]
        if not path:
            mine = mine[edges["action"][mine] == action]
        if not len(mine):
            break
        edge = int(mine[score[mine].argmax()])
        path.append(edge)
        node = int(edges["to"][edge])
        if node in met:
            break
        met.add(node)
    return path


def _edges_of(edges: dict[str, np.ndarray], ids: np.ndarray, steps: Sequence[tuple[int, int]]) -> list[int]:
    """Return the edges with these nodes and actions; those that were left out are missing."""
    wanted = {step: number for number, step in enumerate(steps)}
    found: list[tuple[int, int]] = []
    for edge, pair in enumerate(zip(ids[edges["from"]].tolist(), edges["action"].tolist(), strict=True)):
        if pair in wanted:
            found.append((wanted[pair], edge))
    return [edge for _, edge in sorted(found)]
