"""One pass of deterministic MCTS as functions: select, expand, evaluate and back up, over a graph of states.

`MctsGraph` is the data, `search` makes one pass for R environments at once. `deterministic_mcts.py` describes the
algorithm and calls this; start reading with `packtrain/testing/plain_deterministic_mcts.py`, which makes the same
choices for one environment with objects and loops.

Every operation of a level of the descent covers all environments whose pass has not ended. The path is stored as
arrays, one `Level` (rows, nodes, edges) per level; environments leave the arrays when their passes end.

Shapes: R roots, M of them with an unfinished pass, A actions, [*shape] the values of one node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packtrain.errors import DivergedError
from packtrain.hashing import GOLDEN, mix
from packtrain.planning.events import Listener, ModelSteps
from packtrain.planning.learned.verification import Verification
from packtrain.planning.model import Asking, Model, gives_bonus
from packtrain.planning.node_values import Values
from packtrain.planning.nodes import NO_NODE, Nodes, predict_values, step_all_actions

if TYPE_CHECKING:
    from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent

# -- data


class MctsGraph:
    """The known states of B environments and the edges between them, as data.

    `nodes` has a row per state. `edges` has a row per expanded state, with the fields of its A outgoing edges; they are
    apart because most states are never expanded. The sentinel NO_NODE stands for "not expanded" in `nodes.edge_row`.
    Nodes are owned by labels, a new one for each episode of each environment.
    """

    def __init__(self, agent: DeterministicMCTSAgent, model: Model, values: Values, learns_noise: bool):
        self.actions = int(model.action_space.n)  # type: ignore[attr-defined]
        self.values, self.gamma, self.has_bonus = values, agent.gamma, gives_bonus(model)
        each = (self.actions,)
        fields: dict[str, tuple[tuple[int, ...], Any, Any]] = {
            "edge_row": ((), np.int64, NO_NODE),  # row of `edges`
            "terminal": ((), bool, False),
            "solved": ((), bool, False),
            "total": (values.shape, np.float64, 0.0),  # sum of the values added
            # number of values added; 0 until the network has answered
            "count": ((), np.int64, 0 if agent.use_value_network else 1),
            "initial": ((), np.float64, 0.0),  # the network's value, over the ensemble mask
            "aux": ((), np.float64, 0.0),  # added to the index
            "discounted_index": ((), np.float64, 0.0),  # gamma · index, kept up to date; -inf while a pass is here
        }
        if not agent.avoid_loops:
            fields["seen"] = ((), np.int64, 0)  # number of the last pass that reached the node
        edge_fields: dict[str, tuple[tuple[int, ...], Any, Any]] = {
            "children": (each, np.int64, NO_NODE),  # the node that each action leads to
            "rewards": (each, np.float64, 0.0),
            "visits": (each, np.int64, 0),  # passes through the edge
        }
        if self.has_bonus:
            fields["bonus_total"] = ((), np.float64, 0.0)
            edge_fields["bonus"] = (each, np.float64, 0.0)
        if learns_noise:
            edge_fields["tried"] = (each, bool, False)
        self.nodes, self.edges = Nodes(fields), Nodes(edge_fields)
        self.passes = 0  # number of passes so far
        self.tie_words = tie_words(0, self.actions)  # tie-breaking words of the levels reached so far

    def forget(self, labels: np.ndarray) -> None:
        """Remove the nodes of these episodes."""
        self.nodes.forget(labels)
        self.edges.forget(labels)

    def get(self, ids: np.ndarray) -> np.ndarray:
        """Return the values of nodes [M] that are backed up, [M, *shape]."""
        return self.values.get(self.nodes.total.take(ids, axis=0), self.nodes.count.take(ids))

    def index(self, ids: np.ndarray) -> np.ndarray:
        """Return the index of nodes [M]."""
        nodes = self.nodes
        bonus = None
        if self.has_bonus:
            bonus = nodes.bonus_total.take(ids) / np.maximum(nodes.count.take(ids) - 1, 1)
        return self.values.index(self.get(ids), bonus, nodes.aux.take(ids))

    def refresh(self, ids: np.ndarray) -> None:
        """Bring the discounted index of nodes [M] up to date."""
        self.nodes.discounted_index[ids] = self.gamma * self.index(ids)


class Level(NamedTuple):
    """One step down in M environments of a pass."""

    rows: np.ndarray  # [M] which of the R roots
    nodes: np.ndarray  # [M] nodes that are left
    edges: np.ndarray  # [M] indices into the flattened fields of `MctsGraph.edges`


class Path:
    """The path of a pass in R environments, and the values at its ends."""

    def __init__(self, graph: MctsGraph, roots: int):
        self.levels: list[Level] = []
        self.dead_ends: list[tuple[np.ndarray, np.ndarray]] = []  # rows and nodes where no action is allowed
        self.value = np.zeros((roots, *graph.values.shape))  # [R, *shape] values to back up; 0 for terminal states
        self.bonus = np.zeros(roots) if graph.has_bonus else None  # [R]

    def end(self, rows: np.ndarray, value: np.ndarray | float, bonus: np.ndarray | float = 0.0) -> None:
        """Set what is backed up in these rows."""
        self.value[rows] = value
        if self.bonus is not None:
            self.bonus[rows] = bonus

    def depths(self, roots: int) -> np.ndarray:
        """Return the number of steps of each environment, [R]."""
        rows = [level.rows for level in self.levels]
        return np.bincount(np.concatenate(rows), minlength=roots) if rows else np.zeros(roots, np.int64)


# -- functions


def search(
    graph: MctsGraph,
    agent: DeterministicMCTSAgent,
    root: np.ndarray,
    words: np.ndarray,
    *,
    select: Callable[..., tuple[np.ndarray, np.ndarray]],
    expand: Callable[[np.ndarray, np.ndarray], Asking[tuple[np.ndarray, np.ndarray]]],
    evaluate: Callable[[np.ndarray, np.ndarray], Asking[None]],
    back_up: Callable[..., None],
) -> Asking[Path]:
    """Make one pass from each of R roots: select and expand leaves, then back up the value of the last one.

    Args:
      graph: of all environments.
      agent: settings.
      root: [R] nodes.
      words: [leaves, R] random words that break ties, for each leaf to expand.
      select: descends from nodes to leaves, as `select` below.
      expand: adds edges to leaves [M], given their rows and nodes; returns environments and nodes of the states added.
      evaluate: gives nodes [P], preceded by their environments [P], their first values.
      back_up: adds the values at the ends to the nodes of the path, as `back_up` below.

    Returns:
      The path of the pass.
    """
    path = Path(graph, len(root))
    graph.passes += 1
    rows, current = np.arange(len(root)), root
    for leaf in range(len(words)):
        rows, current = select(graph, agent, path, rows, current, words[leaf])
        if not len(rows):
            break
        yield from evaluate(*(yield from expand(rows, current)))
        bonus = graph.edges.bonus[graph.nodes.edge_row[current]].max(axis=1) if graph.has_bonus else 0.0
        path.end(rows, graph.get(current), bonus)
        if agent.backpropagate_intermediate_expansion and leaf + 1 < len(words):
            only = np.zeros(len(root), bool)
            only[rows] = True
            back_up(graph, agent, path, only)
    for stuck, _ in path.dead_ends:
        path.end(stuck, agent.dead_end_value)
    back_up(graph, agent, path)
    return path


def select(
    graph: MctsGraph,
    agent: DeterministicMCTSAgent,
    path: Path,
    rows: np.ndarray,
    current: np.ndarray,
    words: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Descend from nodes [M] to the leaves to expand. Passes that end otherwise leave their value in the path.

    Returns:
      Rows and nodes of the leaves.
    """
    nodes = graph.nodes
    rows, current = descend(graph, agent, path, rows, current, words)
    path.end(rows, 0.0)  # the value of an earlier leaf is replaced
    if not agent.avoid_loops:
        back = nodes.seen[current] == graph.passes
        path.value[rows[back]] = graph.get(current[back])
        rows, current = rows[~back], current[~back]
    under_way = ~nodes.terminal[current]
    if not under_way.all():
        rows, current = rows[under_way], current[under_way]
    return rows, current


def descend(
    graph: MctsGraph,
    agent: DeterministicMCTSAgent,
    path: Path,
    rows: np.ndarray,
    current: np.ndarray,
    words: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Go down to nodes without edges, or to one seen before if loops are not avoided; record levels and dead ends.

    Returns:
      [M] rows of the environments that are not at a dead end, [M] the nodes they have come to.
    """
    nodes, n = graph.nodes, graph.actions
    children, rewards = graph.edges.children, graph.edges.rewards
    edge_row, index = nodes.edge_row, nodes.discounted_index
    first = np.arange(0, len(rows) * n, n)  # first index of each environment in flat arrays
    began, here = rows, np.full(len(words), NO_NODE)  # current node of each environment
    here[rows] = current
    for level in range(len(nodes) + 1):  # a path without loops has at most this many steps
        row = edge_row.take(current)
        inner = row != NO_NODE
        if not agent.avoid_loops:
            inner &= nodes.seen.take(current) != graph.passes
        if np.count_nonzero(inner) < len(rows):
            rows, current, row = rows[inner], current[inner], row[inner]
            if not len(rows):
                break
            first = first[: len(rows)]
        if agent.avoid_loops:
            index[current] = -np.inf  # until the pass is backed up, so that it does not return here
        else:
            nodes.seen[current] = graph.passes
        targets, pay = children.take(row, axis=0), rewards.take(row, axis=0)  # [M, A]
        score = index.take(targets)
        score += pay
        if agent.avoid_termination:
            np.putmask(score, nodes.terminal.take(targets) & (pay <= 0), -np.inf)
        actions = score.argmax(axis=1)
        top = score.ravel().take(first + actions)  # several times as fast as score.max(axis=1)
        if top[top.argmin()] == -np.inf:
            free = top > -np.inf
            path.dead_ends.append((rows[~free], current[~free]))
            here[rows[~free]] = NO_NODE
            rows, current, row = rows[free], current[free], row[free]
            if not len(rows):
                break
            first, score, top, actions = first[: len(rows)], score[free], top[free], actions[free]
        ties = score == top[:, None]
        if np.count_nonzero(ties) > len(rows):
            actions = break_ties(graph, ties, words.take(rows), level)
        edges = row * n
        edges += actions
        path.levels.append(Level(rows, current, edges))
        current = children.reshape(-1).take(edges)
        here[rows] = current
    arrived = here.take(began)
    return began[arrived != NO_NODE], arrived[arrived != NO_NODE]


def break_ties(graph: MctsGraph, ties: np.ndarray, words: np.ndarray, level: int) -> np.ndarray:
    """Choose uniformly among equal actions, bool [M, A], by the random words [M] of a descent."""
    if level >= len(graph.tie_words):
        graph.tie_words = tie_words(2 * level + 8, graph.actions)
    chosen: np.ndarray = (ties * (words[:, None] * graph.tie_words[level])).argmax(axis=1)
    return chosen


def expand(
    graph: MctsGraph,
    columns: np.ndarray,
    leaves: np.ndarray,
    model: Model,
    rng: np.random.Generator,
    verification: Verification | None,
    listener: Listener | None,
) -> Asking[tuple[np.ndarray, np.ndarray]]:
    """Give leaves [M] of environments [M] edges to the states that all actions lead to.

    Returns:
      [P] environments and [P] nodes of the states that were added and are not terminal.
    """
    nodes, edges, n = graph.nodes, graph.edges, graph.actions
    found = yield from step_all_actions(nodes, leaves, n, model, rng)
    stepped, target, shape = found.stepped, found.target, (len(leaves), n)
    bonus = None if stepped.bonus is None or not graph.has_bonus else stepped.bonus.reshape(shape)
    if verification is not None and bonus is not None:
        verification.expanded(columns, bonus.max(axis=1))
    columns = columns.repeat(n)
    row = edges.add(nodes.owner[leaves])
    nodes.edge_row[leaves] = row
    edges.children[row] = target.reshape(shape)  # [M · A] → [M, A]
    edges.rewards[row] = stepped.rewards.reshape(shape)
    if bonus is not None:
        edges.bonus[row] = bonus
    new = found.new
    if stepped.terminated.any():  # known states keep their flags
        nodes.terminal[target[new[stepped.terminated[new]]]] = True
        nodes.solved[target[new[stepped.solved[new]]]] = True
    if listener is not None:
        ends = (found.source, target, stepped.states, found.actions)
        listener.model_steps(ModelSteps(columns, *ends, stepped.rewards, stepped.terminated))
    return columns[new], target[new]


def evaluate(graph: MctsGraph, columns: np.ndarray, ids: np.ndarray, model: Model) -> Asking[None]:
    """Give nodes [M] of environments [M] the network's values as their first ones; terminal nodes have value 0."""
    nodes = graph.nodes
    nodes.count[ids] = 1
    going = ~nodes.terminal[ids]
    columns, ids = columns[going], ids[going]
    if not len(ids):
        return
    answers = yield from predict_values(nodes, ids, model)
    if not np.isfinite(answers).all():
        raise DivergedError(f"the value network answered NaN or infinity for some of {len(ids)} states")
    values = graph.values.initial(columns, np.asarray(answers, np.float64))
    nodes.total[ids] = values
    nodes.count[ids] = 1
    nodes.initial[ids] = graph.values.target(values)
    graph.refresh(ids)


def back_up(graph: MctsGraph, agent: DeterministicMCTSAgent, path: Path, only: np.ndarray | None = None) -> None:
    """Add v ← r + gamma · v to the nodes of the path from below, starting with the values at its ends.

    Args:
      graph: of all environments.
      agent: settings.
      path: of a pass; an environment meets no node twice. Its values are used up if `only` is None.
      only: [R] bool, the environments to back up; None for all.
    """
    nodes, edges, gamma = graph.nodes, graph.edges, graph.gamma
    levels, dead_ends, value, bonus = path.levels, path.dead_ends, path.value, path.bonus
    if only is not None:
        levels = [Level(*(part[only[level.rows]] for part in level)) for level in levels]
        dead_ends = []  # an environment at a dead end has no further leaf
        value, bonus = value.copy(), None if bonus is None else bonus.copy()
    if not levels and not dead_ends:
        return
    ids = np.concatenate([level.nodes for level in levels] + [node for _, node in dead_ends])
    taken = np.concatenate([level.edges for level in levels] or [ids[:0]])
    rewards = graph.values.spread(edges.rewards.reshape(-1).take(taken))
    added = np.empty((len(ids), *value.shape[1:]))
    bonuses = None if bonus is None else np.zeros(len(ids))
    end = len(taken)
    added[end:] = agent.dead_end_value
    for level in reversed(levels):
        begin = end - len(level.rows)
        v = value.take(level.rows, axis=0)
        v *= gamma
        v += rewards[begin:end]
        value[level.rows] = added[begin:end] = v
        if bonus is not None and bonuses is not None:
            bonus[level.rows] = bonuses[begin:end] = gamma * bonus[level.rows]
        end = begin
    nodes.total[ids] += added
    nodes.count[ids] += 1
    edges.visits.reshape(-1)[taken] += 1
    if bonuses is not None:
        nodes.bonus_total[ids] += bonuses
    if only is None or not agent.avoid_loops:  # otherwise the pass continues, and its nodes stay excluded
        graph.refresh(ids)


# -- random words


def tie_words(levels: int, actions: int) -> np.ndarray:
    """Return fixed odd numbers [levels, A]: the action with the largest product of word and number, mod 2^64, wins.

    Over all words, the products of different numbers are uniform and independent of each other. So one random word
    serves all levels and actions of a descent.
    """
    places = np.arange(1, levels * actions + 1, dtype=np.uint64).reshape(levels, actions)
    return mix(places * GOLDEN) | np.uint64(1)
