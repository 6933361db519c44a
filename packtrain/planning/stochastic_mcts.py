"""Monte Carlo tree search without states in the tree, for stochastic and deterministic models.

A node stands for a sequence of actions, not for a state: every pass steps the model from the root again, so statistics
are averages over what the model samples. With `n_leaves_to_expand` above 1 it is Shoot Tree Search (Czechowski et al.
2021, "Structure and randomness in planning and reinforcement learning"). With `root_selection` "gumbel" the root is
that of Danihelka et al. 2022, "Policy improvement by planning with Gumbel".

A pass descends from the root by the exploratory score Q(a) + exploration_weight · bonus(a) until it meets a leaf, an
end or the depth limit. With `rescale_qualities` Q(a) is scaled to [0, 1] over the actions of a node. A leaf is
expanded: its actions are evaluated, and each begins with its evaluation as one visit. The pass continues below it until
`n_leaves_to_expand` leaves are expanded. One quality is backed up: that of the action with the largest exploratory
score at the last leaf, 0 beyond an end, and at the depth limit the value of the node. A fresh root is a leaf: with
n_leaves_to_expand = 1 its first pass expands it and backs up nothing.

The chosen child becomes the root. Its passes do not change the edge that led to it.

Start reading with `packtrain/testing/plain_stochastic_mcts.py`, which makes the same choices for one environment with
objects and loops. Here are the settings and the planner; `mcts_tree.py` has the trees and the functions of a pass.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from packtrain.config import configurable
from packtrain.equations import puct
from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import gumbels, hashed
from packtrain.planning.events import Listener, ModelSteps, SearchRecord, tell_search
from packtrain.planning.gumbel_root import gumbel_terms
from packtrain.planning.leaf_evaluators import NETWORK, NewLeafRater, RolloutNewLeafRater, possible
from packtrain.planning.mcts_tree import (
    GUMBEL,
    SAMPLE,
    TIE,
    Decision,
    MctsTree,
    Step,
    back_up,
    best_with_ties,
    decision_tickets,
    expand,
    prepare_roots,
    search,
    select,
)
from packtrain.planning.model import Asking, Model, Stepped
from packtrain.planning.nodes import NO_NODE
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.policy import discrete_actions
from packtrain.planning.schedules import check_schedules, scheduled
from packtrain.planning.search_records import tree_record
from packtrain.trees import Tree


@configurable
@dataclass(frozen=True)
class StochasticMCTSAgent:
    """Settings of stochastic MCTS.

    The extras of a plan are those at the time of the choice: "value" (mean quality over the root's visits),
    "qualities", "action_histogram" (passes through each action; without passes the smooth one),
    "action_histogram_smooth" (evaluations counted too), "priors" (noise included), "depth_mean" and "depth_max" (where
    this decision's passes ended), "entropy" and "entropy_smooth" of the histograms, and with Gumbel's root
    "search_policy", the improved policy. Illegal actions have quality 0 and histogram entry 0.
    """

    n_passes: int = 10
    discount: float = 0.99
    exploration_weight: float = 1.0
    new_leaf_rater: NewLeafRater = field(default_factory=RolloutNewLeafRater)
    bonus: Literal["puct", "ucb"] = "puct"  # P(a) √N / (N(a) + 1), or the same without the prior P
    rescale_qualities: bool = False  # add the bonus to (Q − min Q) / (max Q − min Q)
    rescale_over: Literal["node", "tree"] = "node"  # bounds: the node's actions, or all qualities in the tree so far
    action_selection_mode: Literal["count", "quality"] = "count"  # the root's action: largest ln N, or Q
    sampling_temperature: float = 0.0  # scale of Gumbel noise added to that
    depth_limit: int | None = None  # maximum number of steps from the root
    prior_noise_weight: float = 0.0  # weight of Dirichlet noise in the root's priors
    prior_noise_parameter: float = 1.0  # α of the Dirichlet distribution
    n_leaves_to_expand: int = 1  # leaves per pass
    leaf_quality_bias: float = 0.0  # evaluations enter the tree as q · dampening + bias; reports undo this
    leaf_quality_dampening: float = 1.0
    root_selection: Literal["puct", "gumbel"] = "puct"  # "puct": like other nodes, by `bonus`
    max_considered_actions: int = 16  # actions considered at Gumbel's root
    gumbel_scale: float = 1.0  # 0: deterministic choice
    value_scale: float = 0.1  # c_scale of Gumbel's root
    visit_offset: float = 50.0  # c_visit of Gumbel's root
    parameter_schedules: dict[str, Any] = field(default_factory=dict)  # parameter → schedule over epochs

    def __post_init__(self) -> None:
        for name in ("n_passes", "n_leaves_to_expand", "depth_limit", "max_considered_actions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"StochasticMCTSAgent.{name} = {value} must be at least 1")
        for name in ("exploration_weight", "sampling_temperature", "gumbel_scale", "value_scale", "visit_offset"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigError(f"StochasticMCTSAgent.{name} = {getattr(self, name)} must be a number ≥ 0")
        for name in ("discount", "prior_noise_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"StochasticMCTSAgent.{name} = {getattr(self, name)} must be from 0 to 1")
        for name in ("prior_noise_parameter", "leaf_quality_dampening"):
            if not 0 < getattr(self, name) < np.inf:
                raise ConfigError(f"StochasticMCTSAgent.{name} = {getattr(self, name)} must be above 0")
        if not abs(self.leaf_quality_bias) < np.inf:
            raise ConfigError(f"StochasticMCTSAgent.leaf_quality_bias = {self.leaf_quality_bias} must be finite")
        unused = {
            "prior_noise_weight": self.prior_noise_weight and (self.root_selection == "gumbel" or self.bonus == "ucb"),
            "rescale_over": self.rescale_over != "node" and not self.rescale_qualities,
            "sampling_temperature": self.sampling_temperature and self.root_selection == "gumbel",
            "action_selection_mode": self.action_selection_mode != "count" and self.root_selection == "gumbel",
        }
        if unused.pop("rescale_over"):
            raise ConfigError("StochasticMCTSAgent.rescale_over = 'tree' needs StochasticMCTSAgent.rescale_qualities")
        for name, wrong in unused.items():
            if wrong:
                raise ConfigError(
                    f"StochasticMCTSAgent.{name} = {getattr(self, name)!r} has no meaning with root_selection = "
                    f"{self.root_selection!r} and bonus = {self.bonus!r}"
                )
        check_schedules(self)

    def heads(self, action_space: gym.Space[Any]) -> dict[str, dict[str, int]]:
        """Return the heads that evaluate leaves."""
        heads = self.new_leaf_rater.heads(discrete_actions("StochasticMCTSAgent", action_space))
        return {NETWORK: heads} if heads else {}

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> StochasticMCTS:
        """Return a planner for `columns` environments."""
        return StochasticMCTS(self, model, columns, seed, listener)


class StochasticMCTS:
    """The planner: it passes the trees of B environments to the functions of `mcts_tree.py`."""

    def __init__(self, agent: StochasticMCTSAgent, model: Model, columns: int, seed: int, listener: Listener | None):
        self._configured = self._agent = agent
        self._model, self._seed, self._listener = model, seed, listener
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self.tree = MctsTree(discrete_actions("StochasticMCTSAgent", model.action_space), columns)
        self._select = functools.partial(select, model=model, rng=self.rng)
        self._expand = functools.partial(expand, model=model, rng=self.rng, report=self._report_evaluation)

    # -- planner interface

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Clear the trees of these environments."""
        self._agent = scheduled(self._configured, epoch)
        self.tree.forget(columns)

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Do nothing: the tree holds no states that could be wrong."""

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Make the passes, choose an action, and move the root to the chosen child."""
        agent, functions = self._agent, (self._select, self._expand, back_up)
        decision = self._open(agent, roots)
        report = functools.partial(self._report_steps, decision)
        for number in range(agent.n_passes):
            if self._listener is not None:
                self._listener.pass_begin(roots.columns)
            yield from search(self.tree, agent, decision, number, *functions, report)
            if self._listener is not None:
                self._listener.pass_end(roots.columns)
        return self._close(agent, decision)

    # -- before and after the passes

    def _open(self, agent: StochasticMCTSAgent, roots: Roots) -> Decision:
        tree, columns, count = self.tree, roots.columns, self.tree.actions
        if self._listener is None:  # a listener identifies nodes by their numbers, so numbers must not be reused
            tree.collect()
        ids = tree.root_nodes(columns)
        tickets = decision_tickets(self._seed, columns, self.decisions)
        self.decisions += 1
        gumbel = None
        if agent.root_selection == "gumbel":
            gumbel = agent.gumbel_scale * gumbels(hashed(tickets, GUMBEL), count)
        legal = self._model.legal(roots.states)
        expanded = tree.nodes.expanded[ids]
        decision = Decision(
            columns,
            roots.states,
            ids,
            None if legal is None else possible(legal),
            tickets,
            gumbel,
            tried=np.zeros((len(columns), count), np.int64),
            begun=(~expanded & (agent.n_leaves_to_expand == 1)).astype(np.int64),
            priors=np.zeros((len(columns), count)),
            depth_sum=np.zeros(len(columns)),
            depth_max=np.zeros(len(columns), np.int64),
        )
        prepare_roots(tree, agent, decision, np.flatnonzero(expanded))
        return decision

    def _close(self, agent: StochasticMCTSAgent, decision: Decision) -> Plan:
        """Choose, report the statistics of the roots, and move the roots."""
        nodes, ids = self.tree.nodes, decision.ids
        visits, sums = nodes.visits[ids], nodes.quality_sums[ids]
        qualities = sums / np.maximum(visits, 1)
        value = sums.sum(axis=1) / visits.sum(axis=1)
        smooth = puct.histogram(visits)
        histogram = puct.histogram(np.maximum(visits - 1, 0), smooth)
        extras = {
            "value": _undo_scaling(agent, value),
            "qualities": np.where(visits > 0, _undo_scaling(agent, qualities), 0.0),
            "action_histogram": histogram,
            "action_histogram_smooth": smooth,
            "priors": decision.priors,
            "depth_mean": decision.depth_sum / agent.n_passes,
            "depth_max": decision.depth_max,
            "entropy": puct.entropy(histogram),
            "entropy_smooth": puct.entropy(smooth),
        }
        if agent.root_selection == "gumbel":
            scores, extras["search_policy"] = self._gumbel_choice(agent, decision)
        else:
            seen = visits > 0
            counts = np.log(np.where(seen, visits, 1.0))
            scores = np.where(seen, counts if agent.action_selection_mode == "count" else qualities, -np.inf)
            if agent.sampling_temperature > 0:
                noise = gumbels(hashed(decision.tickets, SAMPLE), self.tree.actions)
                scores = scores + agent.sampling_temperature * noise
        every = np.arange(self.tree.actions)
        actions = best_with_ties(scores, decision.legal, lambda: hashed(decision.tickets[:, None], TIE, every))
        if self._listener is not None:

            def describe(row: int, most: int) -> SearchRecord:
                return tree_record(self.tree, agent, decision, row, int(actions[row]), most)

            tell_search(self._listener, decision.columns, describe)
        self.tree.move_roots(decision.columns, ids, actions)
        return Plan(actions, {name: np.asarray(array, np.float32) for name, array in extras.items()})

    def _gumbel_choice(self, agent: StochasticMCTSAgent, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of actions at Gumbel's roots, and the improved policy, both [R, A]."""
        assert decision.gumbel is not None
        logits, scaled = gumbel_terms(self.tree, agent, decision, np.arange(len(decision.ids)))
        policy = puct.softmax(logits + scaled, decision.legal)
        most = decision.tried.max(axis=1, keepdims=True)
        return np.where(decision.tried == most, decision.gumbel + logits + scaled, -np.inf), policy

    # -- reports to listeners

    def _report_steps(self, decision: Decision, steps: list[Step]) -> None:
        """Report the steps of a descent."""
        if self._listener is None:
            return
        for step in steps:
            targets = self.tree.nodes.children.reshape(-1)[step.edges]
            targets[step.stepped.terminated] = NO_NODE
            self._report(decision.columns[step.rows], step.sources, targets, step.stepped, step.actions)

    def _report_evaluation(
        self,
        columns: np.ndarray,
        ids: np.ndarray,
        owners: np.ndarray,
        stepped: Stepped,
        actions: np.ndarray,
        first: bool,
    ) -> None:
        """Report steps that evaluate leaves `owners` [P]; only the first ones of a rollout leave from the leaves."""
        if self._listener is not None:
            no_node = np.full(len(owners), NO_NODE, np.int64)
            self._report(columns[owners], ids[owners] if first else no_node, no_node, stepped, actions)

    def _report(
        self, columns: np.ndarray, source: np.ndarray, target: np.ndarray, stepped: Stepped, actions: np.ndarray
    ) -> None:
        assert self._listener is not None
        steps = ModelSteps(columns, source, target, stepped.states, actions, stepped.rewards, stepped.terminated)
        self._listener.model_steps(steps)


def _undo_scaling(agent: StochasticMCTSAgent, qualities: np.ndarray) -> np.ndarray:
    """Return qualities as they were before `leaf_quality_dampening` and `leaf_quality_bias`."""
    return (qualities - agent.leaf_quality_bias) / agent.leaf_quality_dampening
