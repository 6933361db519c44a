"""Best-first search over the graph of known states, for deterministic environments in which a goal is to be reached.

Each decision expands a few nodes of the known graph, chooses the best node as a target, and takes the first action of a
shortest path to it. The graph lasts for the episode. Equal states are the same node, and real steps correct it. This is
the planner of Trust-but-Verify (IJCNN 2021); the rule of verification itself is in `learned/verification.py`.

Start reading with `packtrain/testing/plain_best_first.py`, which makes the same choices for one environment with
dictionaries and loops. In this folder, `search.py` has the functions of the search, `graph.py` edges, walks and paths,
and `frontier_index.py` heuristics and the orders of expansion.

Deviations from the published code:
1. Values. `value` is the return of the plan: the rewards on the path to the target, then the network's value of it.
   The published code reports, and so trains on, the network's own estimate of the current state.
2. Terminal nodes are never expanded and use up no budget.
3. Real steps correct whether a node solves the task.
4. Ties. Among equally good targets an unexpanded one is preferred, then the nearest, then the first in breadth-first
   order. The published code takes whichever a set yields first.
5. The bonus that orders a frontier node is that of the edge that found it. In the published code it is always 0 and a
   heap's order of equal keys decides; here that is `fringe = 'artefact'`.
6. Only what has changed is computed again; see `graph.py`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np

from packtrain import config, trees
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.best_first.frontier_index import (
    Pick,
    Selection,
    best_place,
    in_heap_order,
    in_listed_order,
    nearest_first,
    newest_place,
    oldest_place,
    random_place,
)
from packtrain.planning.best_first.graph import PlanPaths
from packtrain.planning.best_first.search import KnownGraph, choose_targets, evaluate, expand, random_actions, search
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import Listener, ModelSteps, SearchRecord, tell_search
from packtrain.planning.learned.verification import (
    build_verification,
    check_threshold_schedule,
    without_threshold_schedule,
)
from packtrain.planning.model import Asking, Model, clears_bonus, gives_bonus
from packtrain.planning.nodes import NO_NODE, Expansion, RealSteps
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.schedules import Schedule, check_schedules, scheduled
from packtrain.planning.search_records import known_graph_record
from packtrain.trees import Tree

ExpandHeuristic = Literal["neg_distance", "value", "index", "index_without_auxiliary_loss", "bonus", "value_plus_bonus"]
TopLevelHeuristic = Literal[
    "solved_then_index",
    "solved_then_auxiliary_then_bonus",
    "neg_distance",
    "value",
    "index",
    "index_without_auxiliary_loss",
    "bonus",
    "value_plus_bonus",
]
Fringe = Literal["priority", "fifo", "lifo", "random", "artefact"]

_OF_VALUE = {"value", "index", "index_without_auxiliary_loss", "value_plus_bonus", "solved_then_index"}
_OF_BONUS = {"bonus", "value_plus_bonus", "solved_then_auxiliary_then_bonus"}
_FAR = np.iinfo(np.int64).max
SCHEDULED = (
    *("n_nodes_per_step", "top_level_epsilon", "avoid_history_coeff"),
    *("bonus_quantile_threshold", "rejection_probability"),
)
EPSILON, RANDOM_ACTION = range(2)  # purposes of random numbers; `frontier_index.RANDOM_NODE` is the next


@configurable
@dataclass(frozen=True)
class BestFirstSearchAgent:
    """Settings of best-first search. Rewards should be 0, and 1 where an episode ends solved.

    A heuristic scores nodes. "value" is V(n), the network's value (0 for terminal nodes, and for all nodes without
    `use_value`). "index" is V(n) + `avoid_history_coeff` · visits(n) in this episode; the second part is called
    auxiliary. "index_without_auxiliary_loss" is another name of "value". "bonus" is the largest disagreement of the
    ensemble about the actions of n. "neg_distance" is minus the number of steps from the current node.
    "solved_then_index" and "solved_then_auxiliary_then_bonus" put nodes that solve the task first.

    The fringe holds the reachable nodes that are neither expanded nor terminal. `fringe` says which is expanded next.
    "priority": the best by `expand_heuristic` (ties: the oldest; at equal distance the first in breadth-first order).
    The other orders do not use a heuristic. "fifo": the oldest. "lifo": the newest. "random": any. "artefact": the
    order in which Python's heap returns equal keys that were entered breadth-first from the current node, then as
    found. This order begins with the nearest node, goes on with a few ever farther ones, and then takes the newest.
    """

    gamma: float = 0.99
    n_nodes_per_step: int = 10  # expansions per decision
    expand_heuristic: ExpandHeuristic = "neg_distance"
    top_level_heuristic: TopLevelHeuristic = "solved_then_index"
    fringe: Fringe = "priority"
    top_level_epsilon: float = 0.0  # probability of a random action
    epsilon_avoid_traps: bool = False  # random actions avoid those predicted to end the episode without a reward
    avoid_history_coeff: float = 0.0  # added to a node's index with each visit; negative values avoid visited nodes
    use_value: bool = True  # request "value" of new nodes from the network "agent", if a heuristic uses values
    bonus_quantile_threshold: float | None = None  # verify actions with more disagreement than this; None: never
    rejection_probability: float = 0.5  # probability of following the plan without verification
    bonus_queue_length: int = 200  # number of expansions that the quantile is computed over
    filter_bonus_on_traps: bool = False  # bonus 0 for actions predicted to end the episode without a reward
    noise_quantile: float | None = None  # quantile of the bonuses of correct predictions: up to it nothing is verified
    plan_to_verify: bool = False  # plan paths to where the model disagrees most, and verify there
    # octaves of disagreement that count as equal, so that the nearest is first; 0: all count as equal
    doubt_octaves: int = 1
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_numbers()
        name = type(self).__name__
        for one, known in (
            ("expand_heuristic", ExpandHeuristic),
            ("top_level_heuristic", TopLevelHeuristic),
            ("fringe", Fringe),
        ):
            if getattr(self, one) not in get_args(known):
                choices = ", ".join(map(repr, get_args(known)))
                raise ConfigError(f"{name}.{one} = {getattr(self, one)!r} is not one of {choices}")
        if self.fringe != "priority" and self.expand_heuristic != "neg_distance":
            raise ConfigError(
                f"{name}.expand_heuristic = {self.expand_heuristic!r} has an effect only with {name}.fringe = "
                f"'priority', not {self.fringe!r}"
            )
        if self.noise_quantile is not None and self.bonus_quantile_threshold is None and not self.plan_to_verify:
            raise ConfigError(
                f"{name}.noise_quantile = {self.noise_quantile} needs {name}.bonus_quantile_threshold or "
                f"{name}.plan_to_verify: nothing is verified"
            )
        check_schedules(self, SCHEDULED)
        check_threshold_schedule(self)

    def _check_numbers(self) -> None:
        name = type(self).__name__
        if self.doubt_octaves < 0:
            raise ConfigError(f"{name}.doubt_octaves = {self.doubt_octaves} must not be negative")
        for one in ("n_nodes_per_step", "bonus_queue_length"):
            if getattr(self, one) < 1:
                raise ConfigError(f"{name}.{one} = {getattr(self, one)} must be at least 1")
        shares = ("gamma", "top_level_epsilon", "bonus_quantile_threshold", "rejection_probability", "noise_quantile")
        for one in shares:
            if getattr(self, one) is not None and not 0 <= getattr(self, one) <= 1:
                raise ConfigError(f"{name}.{one} = {getattr(self, one)} must be from 0 to 1")
        if not math.isfinite(self.avoid_history_coeff):
            raise ConfigError(f"{name}.avoid_history_coeff = {self.avoid_history_coeff} must be a finite number")

    @property
    def asks(self) -> bool:
        """Whether the network's values are requested."""
        return self.use_value and bool({self.expand_heuristic, self.top_level_heuristic} & _OF_VALUE)

    def trusting(self) -> BestFirstSearchAgent:
        """Return the agent for evaluations: it never verifies."""
        schedules = without_threshold_schedule(self.parameter_schedules)
        changes: dict[str, Any] = {"bonus_quantile_threshold": None, "plan_to_verify": False, "noise_quantile": None}
        with config.unrecorded():
            return replace(self, **changes, parameter_schedules=schedules)

    def heads(self, action_space: gym.Space[Any]) -> dict[str, dict[str, int]]:
        """Return the network heads to request: the value head if a heuristic uses values."""
        return {"agent": {"value": 1}} if self.asks else {}

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> BestFirstSearch:
        """Return a planner for `columns` environments; ConfigError unless the model is deterministic and discrete."""
        name, space = type(self).__name__, model.action_space
        if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
            raise ConfigError(f"{name} needs actions Discrete(n) from 0; this model's are {space}")
        if not model.deterministic:
            raise ConfigError(f"{name} needs a deterministic model, because it identifies states by their keys")
        wanted: list[str] = sorted({self.expand_heuristic, self.top_level_heuristic} & _OF_BONUS)
        wanted += ["filter_bonus_on_traps"] * self.filter_bonus_on_traps
        wanted += ["bonus_quantile_threshold"] * (self.bonus_quantile_threshold is not None)
        wanted += ["plan_to_verify"] * self.plan_to_verify
        if wanted and not gives_bonus(model):
            raise ConfigError(
                f"{name} uses {wanted[0]!r}, which needs a model that gives bonuses, such as a learned ensemble"
            )
        if self.plan_to_verify and not clears_bonus(model):
            raise ConfigError(
                f"{name}.plan_to_verify needs LearnedModel.verified_edges = 'episode' or 'run': otherwise it would "
                "verify the same action forever"
            )
        return BestFirstSearch(self, model, columns, seed, listener)


class BestFirstSearch:
    """The planner: it passes the graphs of B environments to the functions of `search.py`."""

    def __init__(
        self, agent: BestFirstSearchAgent, model: Model, columns: int, seed: int, listener: Listener | None = None
    ):
        self._scheduled, self._model, self._seed, self._listener = agent, model, seed, listener
        self._agent = agent = scheduled(agent, 0)  # with the parameters of the first epoch
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self._verification = build_verification(agent, model, columns, seed, agent.plan_to_verify)
        self._clears_bonus = clears_bonus(model)
        self.graph = KnownGraph(agent, model, columns, self._verification)
        self.paths = PlanPaths(self.graph.nodes, columns, agent.gamma)
        self.current = np.full(columns, NO_NODE)
        self._before = np.full(columns, NO_NODE)  # the current node of the last decision
        self._action = np.zeros(columns, np.int64)
        self._unrated = np.empty(0, np.int64)  # unevaluated nodes of real steps, until the next request
        self._expansions = np.zeros(columns, np.int64)  # number of expansions in the latest decision

    # -- planner interface

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Clear the graphs of these environments, whose episodes begin.

        The parameters of the newest epoch that any environment has begun hold for all.
        """
        if self._scheduled.parameter_schedules:
            self._agent = scheduled(self._scheduled, epoch)
            if self._verification is not None:
                self._verification.change(self._agent)
        if self._verification is not None:
            self._verification.begin(columns)
        self._unrated = self._unrated[~np.isin(self.graph.nodes.owner[self._unrated], columns)]
        self.graph.forget(columns)
        self.current[columns] = NO_NODE
        self.paths.forget(columns)

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Expand nodes, choose a target, and take the first action towards it."""
        columns, graph = roots.columns, self.graph
        self._expansions[columns] = 0
        current = yield from self._arrive(columns, roots.states)
        fresh = graph.nodes.open.take(current)
        if not fresh.all():
            graph.settle(columns[~fresh], current[~fresh])
        if fresh.any():
            yield from self._expand(current[fresh])
            graph.settle(columns[fresh], current[fresh])
        nearest = np.where(fresh, 0, _FAR)  # [R] distance of the nearest node that this decision has expanded
        budget = self._agent.n_nodes_per_step - fresh
        by_distance = self._agent.fringe == "priority" and self._agent.expand_heuristic == "neg_distance"
        if by_distance:
            walk = graph.edges.walk(current)
            yield from search(nearest_first(graph.index, walk, columns, budget, nearest), self._expand)
        else:
            nearest[graph.index.fringes[columns] > 0] = 0  # a lower bound; the distance is not measured
            yield from search(self._other_order(columns, current, budget), self._expand)
            walk = graph.edges.walk(current)
        choose_targets(graph, self.paths, walk, columns, self._before[columns], current, nearest)
        return self._decide(columns, current, roots.states)

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Correct the edges just taken: where they lead, their rewards, whether the episode ended, and if solved.

        An episode ends solved if it ends with a reward. A node that the model had not predicted gets its value when the
        search plans from it.
        """
        before, action = self.current[columns], self._action[columns]
        assert (before != NO_NODE).all(), "there was no plan to give feedback on"
        self._correct(RealSteps(columns, before, action, states, rewards, terminated), played=True)

    def hear(
        self, columns: np.ndarray, before: Tree, actions: np.ndarray, states: Tree, rewards: Any, terminated: Any
    ) -> None:
        """Correct the graphs of environments [M], ascending, by other environments' steps from known states."""
        nodes = self.graph.nodes
        sources = nodes.find(columns, self._model.keys(before))
        known = np.flatnonzero((sources != NO_NODE) & nodes.expanded[sources])
        if len(known):
            self._correct(RealSteps(columns, sources, actions, states, rewards, terminated).pick(known), played=False)

    def lasting(self, run: int = 0) -> dict[str, Any]:
        """Return the state that outlives episodes, for checkpoints."""
        return {} if self._verification is None else self._verification.snapshot(run)

    def restore(self, lasting: dict[str, Any], run: int = 0) -> None:
        """Restore that state."""
        if self._verification is not None:
            self._verification.restore(lasting, run)

    # -- internals

    def _correct(self, steps: RealSteps, played: bool) -> None:
        """Compare real steps [M] with the graph, and correct it. `played`: this planner has chosen the actions."""
        graph, nodes, (columns, before, action, states, rewards, terminated) = self.graph, self.graph.nodes, steps
        ids, fresh = graph.intern(columns, self._model.keys(states), states)
        known = nodes.expanded[before]  # terminal nodes have no edges to correct
        wrong = nodes.edges[before, action] != ids
        wrong |= nodes.rewards[before, action] != rewards
        wrong |= (nodes.terminal[ids] != terminated) | (nodes.solved[ids] != (terminated & (rewards > 0)))
        if self._verification is not None:
            self._verification.compare(columns, nodes, before, action, known & ~wrong if played else None)
        if self._clears_bonus:
            nodes.bonus[before[known], action[known]] = 0
            graph.rank(before[known])
        contradicts = np.flatnonzero((wrong & known) | fresh)
        if not len(contradicts):
            return
        some = steps.pick(contradicts)
        ids = ids[contradicts]
        if self._agent.asks and not played:
            self._unrated = np.union1d(self._unrated, ids[~some.terminated])
        graph.correct(some, ids, fresh[contradicts], known[contradicts])
        self.paths.drop(some.columns)

    def _arrive(self, columns: np.ndarray, states: Tree) -> Asking[np.ndarray]:
        """Return the nodes of the roots [R], visited and evaluated."""
        graph, nodes = self.graph, self.graph.nodes
        current, _ = graph.intern(columns, self._model.keys(states), states)
        self._before[columns], self.current[columns] = self.current[columns], current
        if len(self._unrated):
            mine = np.isin(nodes.owner[self._unrated], columns)
            heard = self._unrated[mine]
            yield from evaluate(graph, np.union1d(current, heard), self._model)
            self._unrated = self._unrated[~mine]
            graph.rank(heard)
        else:
            yield from evaluate(graph, current, self._model)
        if self._agent.avoid_history_coeff:
            nodes.auxiliary[current] += np.float32(self._agent.avoid_history_coeff)
        graph.rank(current)
        return current

    def _other_order(self, columns: np.ndarray, current: np.ndarray, budget: np.ndarray) -> Selection:
        """Return the selection rule of an agent that does not expand the nearest nodes first."""
        index, fringe = self.graph.index, self._agent.fringe
        if fringe == "artefact":
            return in_heap_order(index, self.graph.edges.walk(current), columns, budget)
        most = self._agent.n_nodes_per_step
        at_random = functools.partial(random_place, seed=self._seed, decision=self.decisions, most=most)
        rules: dict[str, Pick] = {
            "priority": best_place,
            "fifo": oldest_place,
            "lifo": newest_place,
            "random": at_random,
        }
        return in_listed_order(index, columns, budget, rules[fringe])

    def _expand(self, ids: np.ndarray, number: np.ndarray | None = None) -> Asking[np.ndarray]:
        """Expand nodes [M]; return the nodes that became reachable. `number` counts the nodes of an environment."""
        verification, filter_traps = self._verification, self._agent.filter_bonus_on_traps
        done = yield from expand(self.graph, ids, self._model, self.rng, verification, filter_traps)
        owners = self.graph.nodes.owner.take(ids)
        self._expansions += np.bincount(owners, minlength=len(self._expansions))
        if self._listener is not None:
            self._report(np.zeros(len(ids), np.int64) if number is None else number, done.expansion)
        return done.reached

    def _report(self, number: np.ndarray, expansion: Expansion) -> None:
        """Report each expansion to the listener as a pass of its own, for all environments together."""
        assert self._listener is not None
        slot, actions, stepped = self.graph.nodes.slot, self.graph.actions, expansion.stepped
        numbers = number.repeat(actions)
        for pass_ in range(number.max() + 1):
            mine = np.flatnonzero(numbers == pass_)
            columns = expansion.owners[mine]
            self._listener.pass_begin(columns[::actions])
            ends = (slot[expansion.source[mine]], slot[expansion.target[mine]])
            states, taken = trees.pick(stepped.states, mine), expansion.actions[mine]
            steps = ModelSteps(columns, *ends, states, taken, stepped.rewards[mine], stepped.terminated[mine])
            self._listener.model_steps(steps)
            self._listener.pass_end(columns[::actions])

    def _decide(self, columns: np.ndarray, current: np.ndarray, states: Tree) -> Plan:
        """Take the first action of each path; a random one without a path, or with probability epsilon."""
        graph, nodes, agent = self.graph, self.graph.nodes, self._agent
        decision, self.decisions = self.decisions, self.decisions + 1
        steps, action, value = self.paths.next(columns)
        routes = None if self._listener is None else [self.paths.route(column) for column in columns.tolist()]
        planned = steps > 0
        by_chance = planned & (chance(self._seed, columns, decision, EPSILON) < agent.top_level_epsilon)
        verified = self._verify(columns, current, decision)
        if self._verification is not None:
            planned, by_chance = planned | (verified >= 0), by_chance & (verified < 0)
        if not planned.all() or by_chance.any():
            rows = np.flatnonzero(~planned | by_chance)
            legal = self._model.legal(trees.pick(states, rows))
            noise = chance(self._seed, columns[rows, None], decision, RANDOM_ACTION, np.arange(graph.actions))
            action[rows] = random_actions(graph, current[rows], legal, noise, agent.epsilon_avoid_traps)
            self.paths.drop(columns[rows])
            undo = current[by_chance]
            if len(undo) and agent.avoid_history_coeff:
                nodes.auxiliary[undo] -= np.float32(agent.avoid_history_coeff)
                graph.rank(undo)
        extras = {
            "value": value.astype(np.float32),
            "target_distance": steps,
            "random_action": ~planned | by_chance,
            "expansions": self._expansions[columns],
            "graph_size": graph.index.sizes[columns],
            "reachable_nodes": graph.index.reached[columns],
            "fringe_size": graph.index.fringes[columns],
        }
        if graph.has_bonus:
            extras["one_step_bonus"] = nodes.bonus[current]
        if self._verification is not None:
            action = np.where(verified >= 0, verified, action)
            self.paths.drop(columns[verified >= 0])  # the outcome may change the plan
            extras["verified"] = verified >= 0
        self._action[columns] = action
        if routes is not None:

            def describe(row: int, most: int) -> SearchRecord:
                target = int(self.paths.targets[columns[row]]) if routes[row] else NO_NODE
                return known_graph_record(graph, int(current[row]), target, routes[row], int(action[row]), most)

            tell_search(self._listener, columns, describe)
        return Plan(action, extras)

    def _verify(self, columns: np.ndarray, current: np.ndarray, decision: int) -> np.ndarray:
        """Return the action to verify in each environment [R], −1 to follow the plan."""
        if self._verification is None:
            return np.full(len(columns), -1)
        arrived: np.ndarray | bool = False
        if self._agent.plan_to_verify:  # no reachable node has more disagreement, and no reachable node solves the task
            heuristics, elsewhere = self.graph.heuristics, self.graph.index.best_ranks(columns, current)
            arrived = heuristics.disagreement(current) >= heuristics.disagreement_of(elsewhere)
        return self._verification.choose(columns, self.graph.nodes.bonus[current], decision, arrived)
