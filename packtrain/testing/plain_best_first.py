"""Best-first search for one environment with dicts and a full breadth-first search in every decision.

This is the readable reference for `planning/best_first`, for tests. It makes the same choices for the same seed and
environment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packtrain import trees
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.counter_rng import chance
from packtrain.planning.model import Asking, Model
from packtrain.trees import Tree
from packtrain.types import Request

Answer = Callable[[Request], dict[str, np.ndarray]]


@dataclass(eq=False)
class PlainNode:
    """A state with its search statistics."""

    slot: int  # number of the node, in order of creation
    state: Tree  # [1, ...]
    terminal: bool = False
    solved: bool = False
    value: float = 0.0
    rated: bool = False
    visits_term: float = 0.0  # part of the index that depends on visits
    found_bonus: float = 0.0
    edges: list[PlainNode] = field(default_factory=list)  # one per action; empty if not expanded
    rewards: list[float] = field(default_factory=list)
    bonuses: list[float] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Return whether it is neither expanded nor terminal."""
        return not self.edges and not self.terminal


class PlainBestFirst:
    """Plans for one environment."""

    def __init__(self, agent: BestFirstSearchAgent, model: Model, column: int, seed: int, answer: Answer | None = None):
        """Create an empty graph.

        Args:
          agent: settings.
          model: to plan in.
          column: index of the environment whose random numbers are used.
          seed: of these random numbers.
          answer: answers requests; None if none is made.
        """
        self.agent, self.model, self.column, self.seed, self.answer = agent, model, column, seed, answer
        self.rng = np.random.default_rng(seed)
        self.n_actions = int(model.action_space.n)  # type: ignore[attr-defined]
        self.decisions = 0
        self.begin()

    def begin(self) -> None:
        """Begin an episode."""
        self.graph: dict[int, PlainNode] = {}
        self.current: PlainNode | None = None
        self.action = 0
        self.expansions: list[int] = []  # slots of the nodes that the last plan expanded, in order

    def plan(self, state: Tree) -> tuple[int, dict[str, Any]]:
        """Return an action in the state [1, ...], and the search results."""
        agent = self.agent
        here = self.current = self.node(state)
        self.rate([here])
        here.visits_term = float(np.float32(here.visits_term) + np.float32(agent.avoid_history_coeff))
        self.expand_some(here)
        met = distances(here)
        target = self.target(met, here)
        decision, self.decisions = self.decisions, self.decisions + 1
        value, path = 0.0, []
        if target is not None:
            path = shortest_path(met, target)
            value = target.value
            for node, action in reversed(path):
                value = node.rewards[action] + agent.gamma * value
        random_action = target is None
        if target is not None and chance(self.seed, self.column, decision, 0)[0] < agent.top_level_epsilon:
            random_action = True
            here.visits_term = float(np.float32(here.visits_term) - np.float32(agent.avoid_history_coeff))
        action = self.random_action(here, decision) if random_action else path[0][1]
        self.action = action
        return action, {
            "value": np.float32(value),
            "target_distance": len(path),
            "random_action": random_action,
            "graph_size": len(self.graph),
            "reachable_nodes": len(met),
            "fringe_size": sum(node.open for node in met),
        }

    def feedback(self, state: Tree, reward: float, terminated: bool) -> None:
        """Process the outcome of the action."""
        before, after = self.current, self.node(state)
        assert before is not None
        if before.edges:
            before.edges[self.action], before.rewards[self.action] = after, reward
            after.terminal, after.solved = terminated, terminated and reward > 0
            if terminated:
                after.value = 0.0

    # -- the graph

    def node(self, state: Tree) -> PlainNode:
        """Return the node of a state, creating it if necessary."""
        key = int(self.model.keys(state)[0])
        if key not in self.graph:
            self.graph[key] = PlainNode(len(self.graph), trees.map(np.copy, state))
        return self.graph[key]

    def rate(self, nodes: list[PlainNode]) -> None:
        """Request missing values."""
        nodes = [node for node in nodes if not node.rated and not node.terminal]
        if not self.agent.asks or not nodes:
            return
        assert self.answer is not None
        states = trees.map(lambda *leaves: np.concatenate(leaves), *[node.state for node in nodes])
        values = self.answer(Request("agent", self.model.observe(states)))["value"]
        for node, value in zip(nodes, values[:, 0], strict=True):
            node.value, node.rated = float(value), True

    def ask(self, asking: Asking) -> Any:
        """Run a generator and answer its requests."""
        try:
            request = next(asking)
            while True:
                assert self.answer is not None
                request = asking.send(self.answer(request))
        except StopIteration as stop:
            return stop.value

    def expand(self, node: PlainNode) -> None:
        """Step all actions from a node."""
        states = trees.map(lambda leaf: np.repeat(leaf, self.n_actions, axis=0), node.state)
        stepped = self.ask(self.model.step(states, np.arange(self.n_actions), self.rng))
        bonuses = getattr(stepped, "bonus", np.zeros(self.n_actions))
        made = []
        for action in range(self.n_actions):
            known = len(self.graph)
            child = self.node(trees.map(lambda leaf, a=action: leaf[a : a + 1], stepped.states))
            if len(self.graph) > known:
                child.terminal, child.solved = bool(stepped.terminated[action]), bool(stepped.solved[action])
                child.found_bonus = float(bonuses[action])
                made.append(child)
            node.edges.append(child)
        node.rewards, node.bonuses = [float(r) for r in stepped.rewards], [float(b) for b in bonuses]
        self.rate(made)
        self.expansions.append(node.slot)

    # -- the order of expansion

    def expand_some(self, here: PlainNode) -> None:
        """Expand up to n_nodes_per_step nodes of the fringe."""
        self.expansions = []
        heap: list[Equal] = []
        heaped: set[PlainNode] = set()
        while len(self.expansions) < self.agent.n_nodes_per_step:
            fringe = [node for node in distances(here) if node.open]  # breadth-first
            if not fringe:
                return
            if self.agent.fringe == "artefact" and here.edges:
                for node in fringe:
                    if node not in heaped:
                        heaped.add(node)
                        heapq.heappush(heap, Equal(node))
                self.expand(heapq.heappop(heap).node)
            else:
                self.expand(self.next_of(fringe))

    def next_of(self, fringe: list[PlainNode]) -> PlainNode:
        """Return the fringe node that is expanded next."""
        agent, by_age = self.agent, sorted(fringe, key=lambda node: node.slot)
        if agent.fringe == "fifo":
            return by_age[0]
        if agent.fringe == "lifo":
            return by_age[-1]
        if agent.fringe == "random" and self.current is not None and self.current.edges:
            drawn = chance(self.seed, self.column, self.decisions, 2, len(self.expansions))[0]
            return by_age[int(drawn * len(by_age))]
        if agent.expand_heuristic == "neg_distance":
            return fringe[0]
        return max(by_age, key=lambda node: score(node, agent.expand_heuristic, node.found_bonus))

    # -- the choice

    def target(self, met: dict[PlainNode, Any], here: PlainNode) -> PlainNode | None:
        """Return the best target node other than the current one; among equal ones the first that was met."""
        others = [node for node in met if node is not here]
        return max(others, key=self.rank) if others else None

    def rank(self, node: PlainNode) -> tuple:
        """Return the top-level heuristic, and whether the node is unexpanded, for ranking."""
        by = self.agent.top_level_heuristic
        bonus = max(node.bonuses, default=0.0)
        if by == "neg_distance":
            return ()
        if by == "solved_then_auxiliary_then_bonus":
            return (node.solved, np.float32(node.visits_term), bonus, node.open)
        if by == "solved_then_index":
            return (node.solved, score(node, "index", bonus), node.open)
        return (score(node, by, bonus), node.open)

    def random_action(self, here: PlainNode, decision: int) -> int:
        """Return a random legal action."""
        allowed = list(range(self.n_actions))
        legal = self.model.legal(here.state)
        if legal is not None and legal[0].any():
            allowed = [action for action in allowed if legal[0, action]]
        if self.agent.epsilon_avoid_traps and here.edges:
            safe = [a for a in allowed if not (here.edges[a].terminal and here.rewards[a] <= 0)]
            allowed = safe or allowed
        noise = chance(self.seed, self.column, decision, 1, np.arange(self.n_actions))
        return max(allowed, key=lambda action: noise[action])


class Equal:
    """A node in a heap that compares equal to any other."""

    def __init__(self, node: PlainNode):
        self.node = node

    def __lt__(self, other: Equal) -> bool:
        return False


def score(node: PlainNode, heuristic: str, bonus: float) -> np.float32:
    """Return the value of a scalar heuristic."""
    value, visits = np.float32(node.value), np.float32(node.visits_term)
    scores = {
        "value": value,
        "index_without_auxiliary_loss": value,
        "index": value + visits,
        "bonus": np.float32(bonus),
        "value_plus_bonus": value + np.float32(bonus),
    }
    return scores[heuristic]


def distances(source: PlainNode) -> dict[PlainNode, tuple[int, PlainNode | None, int]]:
    """Return all reachable nodes, breadth first: {node: (distance, predecessor, action)}."""
    met: dict[PlainNode, tuple[int, PlainNode | None, int]] = {source: (0, None, -1)}
    queue = [source]
    for node in queue:
        for action, child in enumerate([] if node.terminal else node.edges):
            if child not in met:
                met[child] = (met[node][0] + 1, node, action)
                queue.append(child)
    return met


def shortest_path(met: dict[PlainNode, Any], target: PlainNode) -> list[tuple[PlainNode, int]]:
    """Return the nodes and actions of the path to a node."""
    path: list[tuple[PlainNode, int]] = []
    _, node, action = met[target]
    while node is not None:
        path.append((node, action))
        _, node, action = met[node]
    return path[::-1]
