"""Open-loop Monte-Carlo tree search for one environment with node objects: the readable reference of the planner.

It computes the same as `planning.stochastic_mcts`, one node and one action at a time. Only settings, random numbers and
the halving schedule are shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from packtrain.equations.puct import considered_visits
from packtrain.planning import counter_rng, leaf_evaluators
from packtrain.planning import mcts_tree as fast
from packtrain.planning.model import Model
from packtrain.planning.stochastic_mcts import StochasticMCTSAgent
from packtrain.testing.path_hash import settle
from packtrain.trees import Tree
from packtrain.types import Request


@dataclass
class Edge:
    """One action at a node."""

    visits: int  # including the evaluation
    quality_sum: float
    prior: float
    child: PlainNode | None = None

    @property
    def quality(self) -> float:
        """Return the mean of the added values."""
        return self.quality_sum / max(self.visits, 1)


@dataclass
class PlainNode:
    """The node of a sequence of actions."""

    edges: list[Edge] = field(default_factory=list)  # empty: a leaf

    def value(self) -> float:
        """Return the mean quality over all visits."""
        return sum(edge.quality_sum for edge in self.edges) / sum(edge.visits for edge in self.edges)

    def tree(self) -> dict:
        """Return the subtree as JSON values."""
        return {
            str(action): {
                "visits": edge.visits,
                "quality": edge.quality,
                "prior": edge.prior,
                **({"below": edge.child.tree()} if edge.child and edge.child.edges else {}),
            }
            for action, edge in enumerate(self.edges)
        }


@dataclass
class PlainChoice:
    """Result of one decision."""

    action: int
    visits: list[int]
    qualities: list[float]
    value: float
    depths: list[int]  # depth at which each pass ended
    model_steps: int
    tree: dict  # the tree before the root moved


class PlainStochasticMCTS:
    """The search of one environment."""

    def __init__(
        self,
        agent: StochasticMCTSAgent,
        model: Model,
        column: int,
        seed: int,
        answer: Callable[[Request], dict[str, np.ndarray]],
    ):
        self.agent, self.model, self.column, self.seed, self.answer = agent, model, column, seed, answer
        self.actions = int(model.action_space.n)  # type: ignore[attr-defined]
        self.rng = np.random.default_rng(seed)
        self.begin()

    def begin(self) -> None:
        """Begin a new episode."""
        self.root, self.root_visits = PlainNode(), 0
        self.met: list[float] = []  # qualities of all edges of the episode, as they were

    def plan(self, state: Tree, decision: int) -> PlainChoice:
        """Make passes from a state [1, ...], and choose an action."""
        agent = self.agent
        self.ticket = fast.decision_tickets(self.seed, np.array([self.column]), decision)
        self.gumbel = [0.0] * self.actions
        if agent.root_selection == "gumbel":
            drawn = counter_rng.gumbels(counter_rng.hashed(self.ticket, fast.GUMBEL), self.actions)[0]
            self.gumbel = [agent.gumbel_scale * float(number) for number in drawn]
        self.tried = [0] * self.actions
        self.spent = 1 if not self.root.edges and agent.n_leaves_to_expand == 1 else 0
        self.root_priors: list[float] | None = None
        self.steps = 0
        depths = [self._pass(state, number) for number in range(agent.n_passes)]
        visits = [edge.visits for edge in self.root.edges]
        qualities = [edge.quality for edge in self.root.edges]
        value, tree = self.root.value(), self.root.tree()
        action = self._choose()
        edge = self.root.edges[action]
        self.root, self.root_visits = edge.child or PlainNode(), edge.visits
        return PlainChoice(action, visits, qualities, value, depths, self.steps, tree)

    def _pass(self, state: Tree, number: int) -> int:
        """Descend once and back up; return the depth of the leaf."""
        agent = self.agent
        node, node_visits, depth, left = self.root, self.root_visits, 0, agent.n_leaves_to_expand
        path: list[tuple[PlainNode, int, float]] = []
        while True:
            was_leaf = not node.edges
            if was_leaf:
                node.edges = self._rate(state, number, depth)
                self.met += [edge.quality for edge in node.edges if edge.visits > 0]
                left -= 1
            if node is self.root and self.root_priors is None:
                self.root_priors = self._noisy_priors()
            action = self._select(node, node_visits, number, depth)
            if was_leaf and (left == 0 or depth == agent.depth_limit):
                found = node.edges[action].quality
                break
            if depth == agent.depth_limit:
                found = node.value()
                break
            state, reward, terminated = self._step(state, action)
            path.append((node, action, reward))
            depth += 1
            edge = node.edges[action]
            if terminated:
                found = 0.0
                break
            edge.child = edge.child or PlainNode()
            node, node_visits = edge.child, edge.visits
        for node, action, reward in reversed(path):
            found = reward + agent.discount * found
            node.edges[action].visits += 1
            node.edges[action].quality_sum += found
            self.met.append(node.edges[action].quality)
        if path:
            self.tried[path[0][1]] += 1
        self.root_visits += 1
        return depth

    def _select(self, node: PlainNode, node_visits: int, number: int, depth: int) -> int:
        agent = self.agent
        if node is self.root and agent.root_selection == "gumbel":
            scores = self._gumbel_scores(number)
        else:
            scores = []
            known = [edge.quality for edge in node.edges if edge.visits > 0]
            if agent.rescale_over == "tree":
                known = self.met
            least, spread = (min(known), max(known) - min(known)) if agent.rescale_qualities else (0.0, 1.0)
            if agent.rescale_over == "tree" and spread == 0:
                least, spread = 0.0, 1.0
            for action, edge in enumerate(node.edges):
                bonus = math.sqrt(node_visits) / (edge.visits + 1)
                if agent.bonus == "puct":
                    prior = self.root_priors[action] if node is self.root and self.root_priors else edge.prior
                    bonus = prior * math.sqrt(node_visits) / (edge.visits + 1)
                quality = (edge.quality - least) / spread if spread > 0 else 0.0
                scores.append(quality + agent.exploration_weight * bonus)
        words = fast.tie_words(self.ticket, np.array([0]), number, np.array([depth]), self.actions)[0]
        return self._best(node, scores, words)

    def _best(self, node: PlainNode, scores: list[float], words: np.ndarray) -> int:
        allowed = [action for action, edge in enumerate(node.edges) if edge.visits > 0]
        return max(allowed, key=lambda action: (scores[action], int(words[action])))

    def _choose(self) -> int:
        agent, edges = self.agent, self.root.edges
        if agent.root_selection == "gumbel":
            bent = self._bent_logits()
            most = max(self.tried)
            scores = [self.gumbel[a] + bent[a] if self.tried[a] == most else -math.inf for a in range(self.actions)]
        elif agent.action_selection_mode == "count":
            scores = [math.log(max(edge.visits, 1)) for edge in edges]
        else:
            scores = [edge.quality for edge in edges]
        if agent.sampling_temperature > 0:
            noise = counter_rng.gumbels(counter_rng.hashed(self.ticket, fast.SAMPLE), self.actions)[0]
            scores = [scores[a] + agent.sampling_temperature * float(noise[a]) for a in range(self.actions)]
        words = counter_rng.hashed(self.ticket[:, None], fast.TIE, np.arange(self.actions))[0]
        return self._best(self.root, scores, words)

    def _gumbel_scores(self, number: int) -> list[float]:
        agent, bent = self.agent, self._bent_logits()
        allowed = sum(edge.visits > 0 for edge in self.root.edges)
        order = considered_visits(min(allowed, agent.max_considered_actions), agent.n_passes - self.spent)
        if number < self.spent:  # this pass only expands the root
            return [0.0] * self.actions
        turn = order[number - self.spent]
        return [self.gumbel[a] + bent[a] if self.tried[a] == turn else -math.inf for a in range(self.actions)]

    def _bent_logits(self) -> list[float]:
        """Return logits plus scaled qualities; every legal action has a quality: its evaluation counts as a visit."""
        agent, edges = self.agent, self.root.edges
        known = [edge.quality for edge in edges if edge.visits > 0]
        spread = max(max(known) - min(known), 1e-8)
        weight = (agent.visit_offset + max(self.tried)) * agent.value_scale
        return [
            math.log(edge.prior) + weight * ((edge.quality - min(known)) / spread) if edge.visits > 0 else -math.inf
            for edge in edges
        ]

    def _noisy_priors(self) -> list[float]:
        agent, priors = self.agent, [edge.prior for edge in self.root.edges]
        if agent.prior_noise_weight == 0:
            return priors
        allowed = np.array([[edge.visits > 0 for edge in self.root.edges]])
        words = counter_rng.hashed(self.ticket, fast.NOISE)
        noise = counter_rng.dirichlet(words, agent.prior_noise_parameter, allowed)[0]
        weight = agent.prior_noise_weight
        return [(1 - weight) * p + weight * float(extra) for p, extra in zip(priors, noise, strict=True)]

    # -- leaf evaluators

    def _rate(self, state: Tree, number: int, depth: int) -> list[Edge]:
        legal = self.model.legal(state)
        allowed = [True] * self.actions if legal is None else [bool(one) for one in legal[0]]
        if not any(allowed):
            allowed = [True] * self.actions
        rater = self.agent.new_leaf_rater
        logits = None
        if isinstance(rater, leaf_evaluators.QualityNetworkNewLeafRater):
            qualities = [float(q) for q in self._ask(state)["quality"][0]]
            logits = self._ask(state)["logits"][0] if rater.use_policy else None
        elif isinstance(rater, leaf_evaluators.ValueNetworkNewLeafRater):
            qualities = [self._one_step(state, a) if allowed[a] else 0.0 for a in range(self.actions)]
            logits = self._ask(state)["logits"][0] if rater.use_policy else None
        else:
            assert isinstance(rater, leaf_evaluators.RolloutNewLeafRater)
            word = fast.leaf_words(self.ticket, number, np.array([depth]))
            qualities = [
                self._rollout(rater, state, a, counter_rng.hashed(word, a)) if allowed[a] else 0.0
                for a in range(self.actions)
            ]
        weights = [0.0 if not ok else 1.0 for ok in allowed]
        if logits is not None:
            top = max(float(logit) for logit, ok in zip(logits, allowed, strict=True) if ok)
            weights = [math.exp(float(x) - top) if ok else 0.0 for x, ok in zip(logits, allowed, strict=True)]
        priors = [weight / sum(weights) for weight in weights]
        damp, bias = self.agent.leaf_quality_dampening, self.agent.leaf_quality_bias
        return [
            Edge(1, q * damp + bias, prior) if ok else Edge(0, 0.0, 0.0)
            for q, prior, ok in zip(qualities, priors, allowed, strict=True)
        ]

    def _one_step(self, state: Tree, action: int) -> float:
        after, reward, terminated = self._step(state, action)
        return reward + (0.0 if terminated else self.agent.discount * float(self._ask(after)["value"][0, 0]))

    def _rollout(self, rater: leaf_evaluators.RolloutNewLeafRater, state: Tree, action: int, word: np.ndarray) -> float:
        state, total, terminated = self._step(state, action)
        weight = 1.0
        for time in range(rater.rollout_time_limit):
            if terminated:
                break
            legal = self.model.legal(state)
            if rater.rollout_agent:
                scores = [
                    float(x) for x in self._ask(state)["logits"][0] + counter_rng.gumbels(word, self.actions, time)[0]
                ]
            elif legal is None:
                chosen = int(float(counter_rng.uniforms(counter_rng.hashed(word, time))[0]) * self.actions)
                scores = [float(a == chosen) for a in range(self.actions)]
            else:
                scores = list(counter_rng.uniforms(counter_rng.hashed(word[:, None], time, np.arange(self.actions)))[0])
            possible = [a for a in range(self.actions) if legal is None or legal[0, a] or not legal[0].any()]
            state, reward, terminated = self._step(state, max(possible, key=lambda a: scores[a]))
            weight *= self.agent.discount
            total += weight * reward
        return total

    def _step(self, state: Tree, action: int) -> tuple[Tree, float, bool]:
        stepped = settle(self.model.step(state, np.array([action]), self.rng), self.answer)
        self.steps += 1
        return stepped.states, float(stepped.rewards[0]), bool(stepped.terminated[0])

    def _ask(self, state: Tree) -> dict[str, np.ndarray]:
        return self.answer(Request(leaf_evaluators.NETWORK, self.model.observe(state)))
