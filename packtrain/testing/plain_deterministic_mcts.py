"""Deterministic MCTS for one environment in textbook form: the reference for `planning.deterministic_mcts`.

Nodes are objects in a dict, a pass is a loop. It uses the same random numbers, so both must make the same choices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from packtrain import trees
from packtrain.planning.counter_rng import chance
from packtrain.planning.deterministic_mcts import (
    EPSILON,
    RANDOM_ACTION,
    TOP_LEVEL,
    DeterministicMCTSAgent,
    pass_words,
)
from packtrain.planning.mcts_graph import tie_words
from packtrain.planning.model import Asking, Model, gives_bonus
from packtrain.planning.node_values import MASKS
from packtrain.trees import Tree
from packtrain.types import Request


@dataclass(eq=False)
class PlainNode:
    """A state with its search statistics."""

    state: Tree  # [1, ...]
    added: list[np.ndarray] = field(default_factory=list)  # backed-up values, [members]; the network's first
    bonuses: list[float] = field(default_factory=list)  # backed-up bonuses
    aux: float = 0.0
    terminal: bool = False
    children: list[PlainNode] = field(default_factory=list)  # by action; empty until expanded
    rewards: list[float] = field(default_factory=list)
    bonus: list[float] = field(default_factory=list)
    visits: list[int] = field(default_factory=list)


class PlainDeterministicMCTS:
    """Plans for one environment."""

    def __init__(self, agent: DeterministicMCTSAgent, model: Model, column: int, seed: int):
        self.agent, self.model, self.column, self.seed = agent, model, column, seed
        self.n_actions = int(model.action_space.n)  # type: ignore[attr-defined]
        self.decisions = 0
        self.begin()

    def begin(self) -> None:
        """Clear the graph, and sample the members of the ensemble that are used."""
        self.nodes: dict[int, PlainNode] = {}
        size = self.agent.ensemble_size or 1
        noise = chance(self.seed, MASKS, self.column, self.decisions, np.arange(size))
        self.mask = sorted(noise.argsort()[: self.agent.ensemble_mask_size or size])

    # -- values

    def get(self, node: PlainNode) -> np.ndarray:
        """Return alpha · mean of the added values, by member."""
        total = np.zeros(len(self.mask))
        for value in node.added:
            total = total + value
        return self.agent.alpha * (total / max(len(node.added), 1))

    def index(self, node: PlainNode) -> float:
        """Return the score by which a node is selected."""
        value = self.get(node)
        score = value[0] if self.agent.ensemble_size is None else value.mean() + self.agent.kappa * value.std()
        if gives_bonus(self.model):
            score = score + self.agent.beta * (sum(node.bonuses) / max(len(node.bonuses), 1))
        return float(score + node.aux)

    # -- planning

    def plan(self, state: Tree) -> Asking[tuple[int, PlainNode]]:
        """Return the action in a state [1, ...], and the node of that state."""
        agent, decision = self.agent, self.decisions
        self.decisions += 1
        columns = np.array([self.column])
        (key,) = self.model.keys(state).tolist()
        if key not in self.nodes:
            self.nodes[key] = PlainNode(state)
        root = self.nodes[key]
        if not root.added:
            yield from self.appraise([root])
        root.terminal = False
        root.aux += agent.avoid_history_coeff
        words = pass_words(self.seed, columns, decision, agent.n_passes * agent.n_leaves_to_expand)[:, 0].tolist()
        for start in range(0, len(words), agent.n_leaves_to_expand):
            yield from self.make_pass(root, words[start : start + agent.n_leaves_to_expand])
        if float(chance(self.seed, EPSILON, columns, decision)[0]) < agent.top_level_epsilon:
            root.aux -= agent.avoid_history_coeff
            return int(chance(self.seed, RANDOM_ACTION, columns, decision)[0] * self.n_actions), root
        noise = chance(self.seed, TOP_LEVEL, columns, decision, np.arange(self.n_actions))
        allowed = list(range(self.n_actions))
        if agent.avoid_termination:
            allowed = [a for a in allowed if not (root.children[a].terminal and root.rewards[a] <= 0)] or allowed
        if agent.avoid_top_level_loops:
            allowed = [a for a in allowed if root.children[a] is not root] or allowed
        return max(allowed, key=lambda a: (self.score(root, a), noise[a])), root

    def score(self, node: PlainNode, action: int) -> float:
        """Return the score of an action, from the index of its successor."""
        return node.rewards[action] + self.agent.gamma * self.index(node.children[action])

    def make_pass(self, root: PlainNode, words: list[int]) -> Asking[None]:
        """Descend to one leaf for each word, and back up."""
        agent, node, path = self.agent, root, []  # type: ignore[var-annotated]
        seen: list[PlainNode] = []
        for leaf, word in enumerate(words):
            level = 0
            while node.children and (agent.avoid_loops or node not in seen):
                seen.append(node)
                allowed = [
                    a
                    for a, child in enumerate(node.children)
                    if not (agent.avoid_loops and child in seen)
                    and not (agent.avoid_termination and node.rewards[a] <= 0 and child.terminal)
                ]
                if not allowed:
                    dead_end = np.full(len(self.mask), agent.dead_end_value)
                    node.added.append(dead_end)
                    node.bonuses.append(0.0)
                    self.back_up(path, dead_end, 0.0)
                    return
                noise = [word * int(c) % 2**64 for c in tie_words(level + 1, self.n_actions)[level]]
                action = max(allowed, key=lambda a: (self.score(node, a), noise[a]))
                path.append((node, action))
                node, level = node.children[action], level + 1
            if node in seen:
                self.back_up(path, self.get(node), 0.0)
                return
            if node.terminal:
                self.back_up(path, np.zeros(len(self.mask)), 0.0)
                return
            yield from self.expand(node)
            if leaf + 1 == len(words) or agent.backpropagate_intermediate_expansion:
                self.back_up(path, self.get(node), max(node.bonus))

    def expand(self, node: PlainNode) -> Asking[None]:
        """Compute the successors of all actions."""
        states = trees.map(lambda leaf: np.repeat(leaf, self.n_actions, axis=0), node.state)
        stepped = yield from self.model.step(states, np.arange(self.n_actions), np.random.default_rng(0))
        new = []
        for action, key in enumerate(self.model.keys(stepped.states).tolist()):
            if key not in self.nodes:
                state = trees.map(lambda leaf: leaf[action : action + 1], stepped.states)  # noqa: B023
                self.nodes[key] = PlainNode(state, terminal=bool(stepped.terminated[action]))
                new.append(self.nodes[key])
            node.children.append(self.nodes[key])
            node.rewards.append(float(stepped.rewards[action]))
            node.bonus.append(float(stepped.bonus[action]) if gives_bonus(self.model) else 0.0)  # type: ignore
            node.visits.append(0)
        yield from self.appraise(new)

    def appraise(self, nodes: list[PlainNode]) -> Asking[None]:
        """Initialise the values of new nodes."""
        asked = [node for node in nodes if not node.terminal and self.agent.use_value_network]
        answers = {}
        if asked:
            states = trees.map(lambda *leaves: np.concatenate(leaves), *[node.state for node in asked])
            answer = yield Request("agent", self.model.observe(states))
            answers = dict(zip(asked, answer["value"].astype(np.float64), strict=True))
        for node in nodes:
            node.added.append(answers[node][self.mask] if node in answers else np.zeros(len(self.mask)))

    def back_up(self, path: list[tuple[PlainNode, int]], value: np.ndarray, bonus: float) -> None:
        """Add a result to all nodes of the path."""
        for node, action in reversed(path):
            value = self.agent.gamma * value + node.rewards[action]
            bonus = self.agent.gamma * bonus
            node.added.append(value)
            node.bonuses.append(bonus)
            node.visits[action] += 1
