"""Best-first search as functions: expand, evaluate and choose targets in the graphs of known states.

`KnownGraph` is the data. `search` expands nodes in the order of a selection rule of `frontier_index.py`. Start reading
with `packtrain/testing/plain_best_first.py`, which makes the same choices for one environment with dictionaries and
loops; `agent.py` says what is computed and has the planner.

Shapes: R environments in a call, M nodes, A actions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packtrain.planning.best_first.frontier_index import FrontierIndex, Heuristics, Selection
from packtrain.planning.best_first.graph import BreadthFirstWalk, Graph, PlanPaths, graph_fields
from packtrain.planning.counter_rng import best
from packtrain.planning.learned.verification import Verification
from packtrain.planning.model import Asking, Model, gives_bonus
from packtrain.planning.nodes import NO_NODE, Expansion, Nodes, RealSteps, predict_values, step_all_actions
from packtrain.trees import Tree

if TYPE_CHECKING:
    from packtrain.planning.best_first.agent import BestFirstSearchAgent


class KnownGraph:
    """The data of best-first search for B environments: nodes and edges, scores of nodes, and an index of them."""

    def __init__(self, agent: BestFirstSearchAgent, model: Model, columns: int, verification: Verification | None):
        self.actions = int(model.action_space.n)  # type: ignore[attr-defined]
        self.has_bonus, self.has_values = gives_bonus(model), agent.asks
        fields: dict[str, tuple[tuple[int, ...], Any, Any]] = {
            "slot": ((), np.int64, None),  # its number within its environment, in order of creation
            "terminal": ((), bool, False),
            "solved": ((), bool, False),
            "expanded": ((), bool, False),
            "open": ((), bool, True),  # neither expanded nor terminal
            "rewards": ((self.actions,), np.float32, None),  # of nodes that are expanded
            "value": ((), np.float32, 0),
            "rated": ((), bool, False),  # has the network's value
            "auxiliary": ((), np.float32, 0),  # part of the index that depends on visits
            "rank": ((), np.int64, None),  # rank as a target, by the top-level heuristic
        }
        if self.has_bonus:
            fields["bonus"] = ((self.actions,), np.float32, 0)
            fields["found_bonus"] = ((), np.float32, 0)  # bonus of the edge that led to the node first
        if verification is not None and verification.learns_noise:
            fields["tried"] = ((self.actions,), bool, False)
        self.nodes = Nodes(graph_fields(self.actions) | fields)
        self.edges = Graph(self.nodes)
        by_disagreement = verification if agent.plan_to_verify else None
        by = (agent.expand_heuristic, agent.top_level_heuristic)
        self.heuristics = Heuristics(self.nodes, *by, by_disagreement, agent.doubt_octaves)
        scored = agent.fringe == "priority" and agent.expand_heuristic != "neg_distance"
        listed = agent.fringe in ("fifo", "lifo", "random")
        self.index = FrontierIndex(self.nodes, columns, listed, self.heuristics.of_expansion if scored else None)
        self._reached_from = np.full(columns, NO_NODE)  # the current node for which `reachable` is valid, or NO_NODE

    def forget(self, columns: np.ndarray) -> None:
        """Remove everything about these environments."""
        self.nodes.forget(columns)
        self._reached_from[columns] = NO_NODE
        self.index.forget(columns)

    def intern(self, columns: np.ndarray, keys: np.ndarray, states: Tree) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes of real states [M], and whether each was added now."""
        ids, fresh = self.nodes.intern(columns, keys, states)
        if fresh.any():
            self.enter(ids[fresh], columns[fresh])
        return ids, fresh

    def enter(self, ids: np.ndarray, columns: np.ndarray) -> None:
        """Enter new nodes [M] into the index and the edges; nodes of the same environment are adjacent."""
        self.index.enter(ids, columns)
        self.edges.enter(ids)

    def rank(self, ids: np.ndarray) -> None:
        """Compute the ranks of nodes [M] as targets again, in the index too where they are reachable."""
        self.nodes.rank[ids] = self.heuristics.rank(ids)
        self.index.show(ids.compress(self.nodes.reachable.take(ids)))

    def reach(self, ids: np.ndarray) -> np.ndarray:
        """Mark nodes [M] and everything they lead to as reachable; return those that were not, breadth-first."""
        found = self.edges.reach_on(ids)
        self.index.count(found)
        return found

    def settle(self, columns: np.ndarray, current: np.ndarray) -> None:
        """Update which nodes are reachable from current nodes [R], which are expanded or terminal."""
        nodes, index = self.nodes, self.index
        rows, ids = self.edges.moved(current, self._reached_from[columns])
        self._reached_from[columns] = current
        if not len(rows):
            return
        members = index.members[columns[rows]]
        nodes.reachable[members[members != NO_NODE]] = False
        nodes.reachable[ids] = True
        index.clear(columns[rows])
        index.count(ids)
        index.show(ids)

    def correct(self, steps: RealSteps, ids: np.ndarray, fresh: np.ndarray, known: np.ndarray) -> None:
        """Correct edges that real steps [M] contradict: where they lead, their rewards, and where the episode ends.

        Args:
          steps: at least one of them contradicts the graph.
          ids: [M] the nodes they led to.
          fresh: [M] bool, these nodes were added now.
          known: [M] bool, the nodes they left are expanded.
        """
        nodes, (columns, before, action, _, rewards, terminated) = self.nodes, steps
        # Usually the model had predicted an edge back to its own node. Correcting that adds reachable nodes and removes
        # none.
        was = nodes.edges[before, action]
        grows = known & ((was == before) | (was == ids)) & (fresh | (nodes.terminal[ids] == terminated))
        found = ids[grows & nodes.reachable[before]]
        self._reached_from[columns[~grows]] = NO_NODE
        nodes.terminal[ids], nodes.solved[ids] = terminated, terminated & (rewards > 0)
        nodes.open[ids] = ~(terminated | nodes.expanded[ids])
        before, action = before[known], action[known]
        nodes.edges[before, action], nodes.rewards[before, action] = ids[known], rewards[known]
        again = np.concatenate([before, ids[nodes.expanded[ids] & ~terminated]])
        self.edges.link(again, nodes.edges[again])
        self.edges.close(ids[terminated])
        nodes.value[ids[terminated]] = 0
        self.rank(ids)
        if len(found):
            self.index.show(self.reach(found))


class Expanded(NamedTuple):
    """The result of expanding M nodes."""

    expansion: Expansion
    reached: np.ndarray  # nodes that became reachable, breadth-first


def search(selection: Selection, expand: Callable[[np.ndarray, np.ndarray | None], Asking[np.ndarray]]) -> Asking[None]:
    """Expand nodes in the order of a selection rule until the rule ends.

    Args:
      selection: yields nodes [M] to expand and their numbers, and is sent the nodes that became reachable.
      expand: expands the nodes and returns those that became reachable.
    """
    chosen = next(selection, None)
    while chosen is not None:
        reached = yield from expand(*chosen)
        try:
            chosen = selection.send(reached)
        except StopIteration:
            return


def expand(
    graph: KnownGraph,
    ids: np.ndarray,
    model: Model,
    rng: np.random.Generator,
    verification: Verification | None,
    filter_traps: bool,
) -> Asking[Expanded]:
    """Expand reachable frontier nodes [M], those of an environment adjacent, and evaluate the nodes this adds.

    Args:
      graph: of all environments.
      ids: the nodes.
      model: to step in.
      rng: for the model.
      verification: records the disagreement about each node, if given.
      filter_traps: no bonus for actions predicted to end the episode without a reward.
    """
    nodes, actions = graph.nodes, graph.actions
    expansion = yield from step_all_actions(nodes, ids, actions, model, rng)
    stepped, children, made = expansion.stepped, expansion.target, expansion.new
    bonus = stepped.bonus if graph.has_bonus else None
    if bonus is not None and filter_traps:
        bonus = np.where(stepped.terminated & (stepped.rewards <= 0), np.float32(0), bonus)
    if bonus is not None and verification is not None:
        verification.expanded(nodes.owner.take(ids), bonus.reshape(-1, actions).max(axis=1))
    new = children.take(made)
    if len(made):
        terminal = stepped.terminated.take(made)
        nodes.terminal[new], nodes.open[new] = terminal, ~terminal
        nodes.solved[new] = stepped.solved.take(made)
        if bonus is not None:
            nodes.found_bonus[new] = bonus.take(made)
        graph.enter(new, expansion.owners.take(made))
        yield from evaluate(graph, new, model)
    graph.index.leave_fringe(ids)
    graph.edges.link(ids, children.reshape(-1, actions))
    nodes.rewards[ids] = stepped.rewards.reshape(-1, actions)
    if bonus is not None:
        nodes.bonus[ids] = bonus.reshape(-1, actions)
    nodes.open[ids], nodes.expanded[ids] = False, True
    reached = graph.reach(children)
    graph.rank(np.concatenate([ids, new]))
    if len(reached) > len(new):  # known nodes have become reachable
        graph.index.show(reached)
    return Expanded(expansion, reached)


def evaluate(graph: KnownGraph, ids: np.ndarray, model: Model) -> Asking[None]:
    """Request the network's values of nodes [M] that have none and are not terminal, if heuristics use values."""
    nodes = graph.nodes
    if not graph.has_values:
        return
    ids = ids.compress(~(nodes.rated.take(ids) | nodes.terminal.take(ids)))
    if not len(ids):
        return
    answer = yield from predict_values(nodes, ids, model)
    values = answer.reshape(len(ids))  # [M, 1] → [M]
    unknown = np.isnan(values)
    if unknown.any():
        warnings.warn(f"best-first search takes {unknown.sum()} values that are NaN as -inf", stacklevel=2)
        values = np.where(unknown, -np.inf, values)
    nodes.value[ids], nodes.rated[ids] = values, True


def choose_targets(
    graph: KnownGraph,
    paths: PlanPaths,
    walk: BreadthFirstWalk,
    columns: np.ndarray,
    before: np.ndarray,
    current: np.ndarray,
    nearest: np.ndarray,
) -> None:
    """Choose the best node other than the current one as each environment's target, and store a shortest path to it.

    Args:
      graph: of all environments.
      paths: written.
      walk: from the current nodes; it is continued.
      columns: [R] environments.
      before: [R] the current nodes of the last decision.
      current: [R] the current nodes.
      nearest: [R] a lower bound of the distances of the nodes expanded in this decision.
    """
    nodes, index = graph.nodes, graph.index
    top = index.best_ranks(columns, current)
    # Following a path needs no walk. The path stays the first choice if all new nodes are farther away, and if the node
    # just left, which could not be a target while it was the current one, is no better target.
    left = paths.left(columns, current)
    follows = (left > 0) & (nodes.rank.take(before) != top)
    follows &= (nodes.rank.take(paths.targets[columns]) == top) & (left < nearest)
    paths.keep(columns, np.where(follows, left, 0))
    wanted = ~follows & (top != NO_NODE)
    if not wanted.any():
        return
    target = index.first_met(walk, columns, current, top, wanted)
    going = wanted & (target == NO_NODE)
    if going.any():
        walk.resume(going)
        walk.seek(nodes.rank, top)
        rows = walk.rows(walk.ids)
        hits = np.flatnonzero(nodes.rank.take(walk.ids) == top.take(rows))[::-1]
        target[rows.take(hits)] = walk.ids.take(hits)  # of several writes the last stays: the first hit
        assert (target[going] != NO_NODE).all(), "a reachable node was not met by a walk"
    rows = np.flatnonzero(wanted)
    paths.lead(walk, columns[rows], target[rows])


def random_actions(
    graph: KnownGraph, current: np.ndarray, legal: np.ndarray | None, noise: np.ndarray, avoid_traps: bool
) -> np.ndarray:
    """Choose uniformly among the legal actions of nodes [M], without known dead ends if that is requested and possible.

    Args:
      graph: of all environments.
      current: [M] nodes.
      legal: [M, A] bool; None: all.
      noise: [M, A] random numbers.
      avoid_traps: leave out actions known or predicted to end the episode without a reward.
    """
    nodes = graph.nodes
    allowed = np.ones(noise.shape, bool)
    if legal is not None:
        allowed &= legal | ~legal.any(axis=1, keepdims=True)
    if avoid_traps:
        trap = nodes.terminal[nodes.edges[current]] & (nodes.rewards[current] <= 0)
        safe = allowed & ~(trap & nodes.expanded[current][:, None])
        allowed = np.where(safe.any(axis=1, keepdims=True), safe, allowed)
    return best(np.zeros(allowed.shape), noise, allowed)
