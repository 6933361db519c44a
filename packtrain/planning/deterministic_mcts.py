"""Monte Carlo tree search on the graph of states, for deterministic models and discrete actions.

Equal states are one node, found by key, so all ways to a state share what is known about it. A pass descends from the
root along

    argmax_a r(n, a) + gamma · index(child(n, a))

over the actions that do not lead back to a state of this pass; ties are broken uniformly at random. It stops at a node
without edges, its leaf. The leaf is expanded: it gets edges by one model step for each action, and the new states get
values by one request to the network. Then the value of the leaf is backed up: v ← r + gamma · v, added to every node
above it. A pass that ends in a terminal state backs up 0. One that comes to a node without an allowed action backs up
`dead_end_value` from there. There is no exploration bonus: unexpanded states attract by the network's value, and by the
disagreement of its ensemble.

With `n_leaves_to_expand` = k a pass continues below an expanded leaf until it has expanded k leaves (Shoot Tree Search,
Czechowski et al. 2021).

Start reading with `packtrain/testing/plain_deterministic_mcts.py`, which makes the same choices for one environment
with objects and loops. This file has the settings and the planner; `mcts_graph.py` has the graph and the functions of a
pass.

Differences from the planners of the Shoot Tree Search [S] and Trust-but-Verify [T] code:

1. There are no tree nodes besides the graph. Visits are counted on the graph's edges, so `visits` and
   `action_histogram` of a state count the passes of all ways through it. A pass does not stop at a state that another
   way has expanded; it continues below it, so each pass that is not cut off expands a new node.
2. With `avoid_loops` off, a pass that returns to one of its own states ends there and backs up that state's value. [T]
   goes around the loop in its tree.
3. The root is found by the key of the real state. If the model was wrong about the last step, only its edge is
   corrected, and the node behind it if the model was wrong about the end of the episode.
4. At the top level, actions that lead back to the root's own state are left out ([S]) unless there is no other action,
   where [S] crashed. `avoid_top_level_loops` = False gives the rule of [T], which plays such actions too.
5. The pass ends at its last expanded leaf ([S] took one more step), and a terminal state is backed up once.
6. Training targets are those at the time of acting. Depths are of this decision's passes, from the root to their ends.
7. Ensemble masks are sampled for each environment and episode, not for the process.
8. The mean bonus is over the bonuses backed up, 0 before the first.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain import config
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import Listener, SearchRecord, tell_search
from packtrain.planning.learned.verification import (
    build_verification,
    check_threshold_schedule,
    without_threshold_schedule,
)
from packtrain.planning.mcts_graph import MctsGraph, back_up, evaluate, expand, search, select
from packtrain.planning.model import Asking, Model, clears_bonus, gives_bonus
from packtrain.planning.node_values import EnsembleValue, ScalarValue, Values
from packtrain.planning.nodes import NO_NODE, RealSteps
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.schedules import Schedule, check_schedules, scheduled
from packtrain.planning.search_records import graph_record
from packtrain.trees import Tree

SWEEP = 1 << 14  # number of nodes above which nodes of finished episodes are removed
EPSILON, RANDOM_ACTION, TOP_LEVEL, PASSES = range(4)  # purposes of random numbers
SCHEDULED = (
    *("n_passes", "top_level_epsilon", "avoid_history_coeff", "dead_end_value", "kappa"),
    *("bonus_quantile_threshold", "rejection_probability"),
)


@configurable
@dataclass(frozen=True)
class DeterministicMCTSAgent:
    """Settings of deterministic MCTS."""

    gamma: float = 0.99  # discount
    n_passes: int = 10  # per decision
    avoid_loops: bool = True  # a pass visits no state twice
    avoid_top_level_loops: bool = True  # no action that leads back to the root's own state
    avoid_termination: bool = False  # no action that ends the episode without a reward
    dead_end_value: float = -2.0  # value backed up from states where no action is allowed
    avoid_history_coeff: float = 0.0  # added to the index of a state each time it is the root
    top_level_epsilon: float = 0.0  # probability of a uniformly random action
    n_leaves_to_expand: int = 1  # per pass; more than 1 is Shoot Tree Search
    backpropagate_intermediate_expansion: bool = False  # back up from each of these leaves, not only from the last
    ensemble_size: int | None = None  # members of the value network; None for a single one
    ensemble_mask_size: int | None = None  # members used in an episode; None for all
    kappa: float = 3.0  # weight of the members' standard deviation in the index
    alpha: float = 1.0  # weight of the mean value
    beta: float = 0.0  # weight of the mean bonus in the index
    use_value_network: bool = True  # False: new states have value 0, without a network
    bonus_quantile_threshold: float | None = None  # verify actions with more disagreement than this; None: never
    rejection_probability: float = 0.5  # probability of following the plan without verification
    bonus_queue_length: int = 2000  # number of expansions that the quantile is computed over
    noise_quantile: float | None = None  # quantile of the bonuses of correct predictions: up to it nothing is verified
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = "DeterministicMCTSAgent"
        for one in ("n_passes", "n_leaves_to_expand", "ensemble_size", "ensemble_mask_size", "bonus_queue_length"):
            value = getattr(self, one)
            if value is not None and value < 1:
                raise ConfigError(f"{name}.{one} = {value} must be at least 1")
        shares = ("gamma", "top_level_epsilon", "bonus_quantile_threshold", "rejection_probability", "noise_quantile")
        for one in shares:
            if getattr(self, one) is not None and not 0 <= getattr(self, one) <= 1:
                raise ConfigError(f"{name}.{one} = {getattr(self, one)} must be between 0 and 1")
        for one in ("dead_end_value", "avoid_history_coeff", "kappa", "alpha", "beta"):
            if not math.isfinite(getattr(self, one)):
                raise ConfigError(f"{name}.{one} = {getattr(self, one)} must be a finite number")
        if self.ensemble_mask_size is not None and self.ensemble_mask_size > (self.ensemble_size or 0):
            raise ConfigError(
                f"{name}.ensemble_mask_size = {self.ensemble_mask_size} must be at most "
                f"{name}.ensemble_size = {self.ensemble_size}"
            )
        if self.ensemble_size is not None and not self.use_value_network:
            raise ConfigError(f"{name}.ensemble_size = {self.ensemble_size} needs {name}.use_value_network = True")
        if self.noise_quantile is not None and self.bonus_quantile_threshold is None:
            raise ConfigError(
                f"{name}.noise_quantile = {self.noise_quantile} needs {name}.bonus_quantile_threshold: nothing is "
                "verified"
            )
        check_schedules(self, SCHEDULED)
        check_threshold_schedule(self)

    def trusting(self) -> DeterministicMCTSAgent:
        """Return the agent for evaluations: it never verifies."""
        schedules = without_threshold_schedule(self.parameter_schedules)
        with config.unrecorded():
            return replace(self, bonus_quantile_threshold=None, noise_quantile=None, parameter_schedules=schedules)

    def heads(self, action_space: gym.Space[Any]) -> dict[str, dict[str, int]]:
        """Return a value head with an output for each ensemble member; no heads without a network."""
        return {"agent": {"value": self.ensemble_size or 1}} if self.use_value_network else {}

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> DeterministicMCTS:
        """Return a planner for `columns` environments; ConfigError unless it can plan in this model."""
        if not isinstance(model.action_space, gym.spaces.Discrete):
            raise ConfigError(f"DeterministicMCTSAgent needs discrete actions, not {model.action_space}")
        if not model.deterministic:
            raise ConfigError("DeterministicMCTSAgent needs a deterministic model, and this one is stochastic")
        if self.beta and not gives_bonus(model):
            raise ConfigError(f"DeterministicMCTSAgent.beta = {self.beta} weighs a bonus that this model does not give")
        if self.bonus_quantile_threshold is not None and not gives_bonus(model):
            raise ConfigError(
                f"DeterministicMCTSAgent.bonus_quantile_threshold = {self.bonus_quantile_threshold} verifies "
                "predictions with disagreement, but this model is exact"
            )
        return DeterministicMCTS(self, model, columns, seed, listener)

    def values(self, columns: int, seed: int) -> Values:
        """Return how values of nodes are stored."""
        if self.ensemble_size is None:
            return ScalarValue(self.alpha, self.beta)
        mask_size = self.ensemble_mask_size or self.ensemble_size
        return EnsembleValue(self.ensemble_size, mask_size, columns, seed, self.kappa, self.alpha, self.beta)


class DeterministicMCTS:
    """The planner: it passes the graph of B environments to the functions of `mcts_graph.py`.

    Nodes live from `begin` to the next `begin` of their environment.
    """

    def __init__(self, agent: DeterministicMCTSAgent, model: Model, columns: int, seed: int, listener: Listener | None):
        self._scheduled, self.model, self.listener = agent, model, listener
        self.agent = agent = scheduled(agent, 0)  # with the parameters of the first epoch
        self._seed = seed
        self.rng = np.random.default_rng(seed)  # passed to the model, which is deterministic
        self.decisions = 0
        self.values = agent.values(columns, seed)
        self._verification = build_verification(agent, model, columns, seed)
        learns_noise = self._verification is not None and self._verification.learns_noise
        self._clears_bonus = clears_bonus(model)
        self.graph = MctsGraph(agent, model, self.values, learns_noise)
        self.labels = np.arange(columns)  # owner label of each environment's episode; a new one per episode
        self._next_label = columns
        self._past: list[np.ndarray] = []  # labels of finished episodes whose nodes are not removed yet
        self._sweep = SWEEP
        self._last_root = np.full(columns, NO_NODE)
        self._last_action = np.zeros(columns, np.int64)
        self._unrated = np.empty((2, 0), np.int64)  # unevaluated nodes of real steps, and their environments
        self._expand = functools.partial(
            expand, self.graph, model=model, rng=self.rng, verification=self._verification, listener=listener
        )
        self._evaluate = functools.partial(evaluate, self.graph, model=model)

    # -- planner interface

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Clear these environments. Nodes are removed later, many at once, because that visits every node.

        The parameters of the newest epoch that any environment has begun hold for all.
        """
        columns = np.asarray(columns)
        if self._scheduled.parameter_schedules:
            self._take_parameters(epoch)
        self._forget(columns)

    def _forget(self, columns: np.ndarray) -> None:
        self.values.begin(columns, self.decisions)
        if self._verification is not None:
            self._verification.begin(columns)
        self._past.append(self.labels[columns])
        self.labels[columns] = self._next_label + np.arange(len(columns))
        self._next_label += len(columns)
        self._last_root[columns] = NO_NODE
        self._unrated = self._unrated[:, ~np.isin(self._unrated[1], columns)]
        if len(self.graph.nodes) >= self._sweep:
            self.graph.forget(np.concatenate(self._past))
            self._past = []
            self._sweep = max(SWEEP, 2 * len(self.graph.nodes))

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Make `n_passes` passes from each root, and choose an action."""
        agent, nodes, columns = self.agent, self.graph.nodes, roots.columns
        decision = self.decisions
        self.decisions += 1
        root, _ = nodes.intern(self.labels[columns], self.model.keys(roots.states), roots.states)
        nodes.terminal[root] = False  # a real state in which the environment requests an action is not terminal
        yield from self._evaluate_roots(columns, root)
        if agent.avoid_history_coeff:
            nodes.aux[root] += agent.avoid_history_coeff
            self.graph.refresh(root)
        leaves = agent.n_leaves_to_expand
        words = pass_words(self._seed, columns, decision, agent.n_passes * leaves)
        depth_sum, depth_max = np.zeros(len(root), np.int64), np.zeros(len(root), np.int64)
        for start in range(0, len(words), leaves):
            depths = yield from self._pass(columns, root, words[start : start + leaves])
            depth_sum += depths
            np.maximum(depth_max, depths, out=depth_max)
        extras: dict[str, np.ndarray] = {
            "depth_mean": (depth_sum / agent.n_passes).astype(np.float32),
            "depth_max": depth_max,
        }
        return self._decide(columns, root, decision, extras)

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Correct the edges just taken: where they lead, their rewards, and whether the episode ends there."""
        before, actions = self._last_root[columns], self._last_action[columns]
        steps = RealSteps(columns, before, actions, states, rewards, terminated)
        planned = np.flatnonzero(before != NO_NODE)
        if len(planned):
            self._correct(steps if len(planned) == len(columns) else steps.pick(planned), played=True)

    def hear(
        self, columns: np.ndarray, before: Tree, actions: np.ndarray, states: Tree, rewards: Any, terminated: Any
    ) -> None:
        """Correct the graphs of environments [M] by steps of other environments from known states."""
        nodes = self.graph.nodes
        sources = nodes.find(self.labels[columns], self.model.keys(before))
        known = np.flatnonzero((sources != NO_NODE) & (nodes.edge_row[sources] != NO_NODE))
        if len(known):
            self._correct(RealSteps(columns, sources, actions, states, rewards, terminated).pick(known), played=False)

    def lasting(self, run: int = 0) -> dict[str, Any]:
        """Return the state of a run that outlives episodes, for checkpoints."""
        return {} if self._verification is None else self._verification.snapshot(run)

    def restore(self, lasting: dict[str, Any], run: int = 0) -> None:
        """Restore that state."""
        if self._verification is not None:
            self._verification.restore(lasting, run)

    # -- internals

    def _take_parameters(self, epoch: int) -> None:
        self.agent = scheduled(self._scheduled, epoch)
        if isinstance(self.values, EnsembleValue):
            self.values.kappa = self.agent.kappa
        if self._verification is not None:
            self._verification.change(self.agent)

    def _evaluate_roots(self, columns: np.ndarray, root: np.ndarray) -> Asking[None]:
        """Evaluate the roots [R], and nodes of the same environments that steps elsewhere have added."""
        unknown, owners, others = root, columns, self._unrated
        if others.shape[1]:
            mine = np.isin(others[1], columns)
            both = np.concatenate([np.stack([root, columns]), others[:, mine]], axis=1)
            (unknown, owners), others = np.unique(both, axis=1), others[:, ~mine]
        asked = np.flatnonzero(self.graph.nodes.count[unknown] == 0)
        yield from self._evaluate(owners[asked], unknown[asked])
        self._unrated = others

    def _pass(self, columns: np.ndarray, root: np.ndarray, words: np.ndarray) -> Asking[np.ndarray]:
        """Make one pass from each root; return its depths [R]."""
        if self.listener is not None:
            self.listener.pass_begin(columns)

        def grow(rows: np.ndarray, leaves: np.ndarray) -> Asking[tuple[np.ndarray, np.ndarray]]:
            return self._expand(columns[rows], leaves)

        rate = self._evaluate if self.agent.use_value_network else no_evaluation
        try:
            path = yield from search(
                self.graph, self.agent, root, words, select=select, expand=grow, evaluate=rate, back_up=back_up
            )
        except BaseException:  # a request failed, or the plan was cancelled: the graph is in an intermediate state
            self._forget(columns)
            raise
        if self.listener is not None:
            self.listener.pass_end(columns)
        return path.depths(len(root))

    def _correct(self, steps: RealSteps, played: bool) -> None:
        """Correct edges by real steps [M], and the nodes they led to: an end has value 0 and no edges.

        `played`: this planner has chosen the actions. Then the new nodes are the next roots.
        """
        graph, nodes, edges = self.graph, self.graph.nodes, self.graph.edges
        columns, before, action, states, rewards, _ = steps
        real, _ = nodes.intern(self.labels[columns], self.model.keys(states), states)
        terminated, row = np.asarray(steps.terminated, bool), nodes.edge_row[before]
        changed = nodes.terminal[real] != terminated
        if self._verification is not None:
            correct = (edges.children[row, action] == real) & (edges.rewards[row, action] == rewards) & ~changed
            self._verification.compare(columns, edges, row, action, correct if played else None)
        if self._clears_bonus:
            edges.bonus[row, action] = 0.0
        edges.children[row, action] = real
        edges.rewards[row, action] = rewards
        nodes.solved[real] = terminated & (rewards > 0)
        if changed.any():
            ids = real[changed]
            nodes.terminal[ids] = terminated[changed]
            nodes.edge_row[ids], nodes.total[ids] = NO_NODE, 0.0
            nodes.count[ids] = terminated[changed] | (not self.agent.use_value_network)  # 0: not evaluated yet
            if graph.has_bonus:
                nodes.bonus_total[ids] = 0.0
            graph.refresh(ids)
        if not played:
            unrated = nodes.count[real] == 0
            heard = np.stack([real[unrated], columns[unrated]])
            self._unrated = np.concatenate([self._unrated, heard], axis=1)

    def _decide(self, columns: np.ndarray, root: np.ndarray, decision: int, extras: dict[str, np.ndarray]) -> Plan:
        """Choose an action for each root, and report what is known there."""
        agent, graph, nodes, values, n = self.agent, self.graph, self.graph.nodes, self.values, self.graph.actions
        edges, row = graph.edges, nodes.edge_row[root]
        children, rewards, visits = edges.children[row], edges.rewards[row], edges.visits[row]  # [R, A]
        flat = children.ravel()  # [R, A] → [R · A]
        qualities = rewards + agent.gamma * values.target(graph.get(flat)).reshape(children.shape)
        action, random = self._choose(columns, root, children, rewards, decision)
        if self._verification is not None:
            verified = self._verification.choose(columns, edges.bonus[row], decision)
            action, random = np.where(verified >= 0, verified, action), random & (verified < 0)
            extras["verified"] = verified >= 0
        own = graph.get(root)
        passes = visits.sum(axis=1, keepdims=True)
        extras |= {
            "value": values.target(own).astype(np.float32),
            "initial_value": nodes.initial[root].astype(np.float32),
            "qualities": qualities.astype(np.float32),
            "index": graph.index(flat).reshape(children.shape).astype(np.float32),
            "visits": visits,
            "action_histogram": np.where(passes, visits / np.maximum(passes, 1), 1 / n).astype(np.float32),
            "random_action": random,
            "graph_size": nodes.sizes(self.labels[columns]),
        }
        if values.shape:
            extras["value_std"] = own.std(axis=1).astype(np.float32)
        if agent.avoid_history_coeff and random.any():
            nodes.aux[root[random]] -= agent.avoid_history_coeff
            graph.refresh(root[random])
        self._last_root[columns], self._last_action[columns] = root, action
        if self.listener is not None:

            def describe(row: int, most: int) -> SearchRecord:
                return graph_record(graph, int(root[row]), int(action[row]), most)

            tell_search(self.listener, columns, describe)
        return Plan(action, extras)

    def _choose(
        self, columns: np.ndarray, root: np.ndarray, children: np.ndarray, rewards: np.ndarray, decision: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best action of each root by its children and rewards [R, A], and whether it is random instead."""
        agent, nodes, n = self.agent, self.graph.nodes, self.graph.actions
        score = rewards + nodes.discounted_index[children]
        if agent.avoid_termination:
            score = without(nodes.terminal[children] & (rewards <= 0), score)
        if agent.avoid_top_level_loops:
            score = without(children == root[:, None], score)
        noise = chance(self._seed, TOP_LEVEL, columns[:, None], decision, np.arange(n))
        action = np.where(score == score.max(axis=1, keepdims=True), noise, -1.0).argmax(axis=1)
        random = chance(self._seed, EPSILON, columns, decision) < agent.top_level_epsilon
        at_random = (chance(self._seed, RANDOM_ACTION, columns, decision) * n).astype(np.int64)
        return np.where(random, at_random, action), random


def no_evaluation(columns: np.ndarray, ids: np.ndarray) -> Asking[None]:
    """Leave new nodes at value 0, without a network."""
    return
    yield  # makes this a generator


def pass_words(seed: int, columns: np.ndarray, decision: int, count: int) -> np.ndarray:
    """Return a random word for each descent and environment, [count, R] uint64, which breaks its ties."""
    numbers = chance(seed, PASSES, columns[None], decision, np.arange(count)[:, None])
    words: np.ndarray = (numbers * 2.0**53).astype(np.uint64)
    return words


def without(unwanted: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return scores [R, A] with −inf for unwanted actions, in rows that have other actions left."""
    less = np.where(unwanted, -np.inf, score)
    return np.where((less > -np.inf).any(axis=1, keepdims=True), less, score)
