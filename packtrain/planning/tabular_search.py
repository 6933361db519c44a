"""Tabular frontier search: exact exploration of a deterministic environment, without a network and without random data.

The agent stores every real transition in a table that all environments of a run share. A frontier state is a known
state with an action that has not been tried. Each decision follows a shortest known path to the nearest frontier state
and tries the action there; ties between equally near (state, action) pairs are broken uniformly at random. Once a
rewarded end is known, the agent walks the shortest known path to it instead.

This is the simplest baseline for model-based exploration in deterministic environments: whatever a learned model or an
ensemble's disagreement adds must show as fewer environment steps than this search needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain import config, trees
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.hashing import digest
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import Listener, SearchRecord, tell_search
from packtrain.planning.model import Asking, Model
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.policy import discrete_actions
from packtrain.planning.search_records import Table, table_record
from packtrain.trees import Tree

UNTRIED, ENDED = -1, -2  # entries of the transition table other than states
_TIE, _RANDOM_ACTION = range(2)  # purposes of random numbers

Route = list[tuple[int, int]]
"""(state, action) pairs still to be played, the last one first."""


@configurable
@dataclass(frozen=True)
class FrontierAgent:
    """Settings of tabular frontier search. It has no networks and makes no steps in a model."""

    learns: bool = True  # store transitions and visit frontiers; False: only walk to a known goal, else act at random

    def trusting(self) -> FrontierAgent:
        """Return the agent for evaluations: it neither explores nor stores transitions."""
        with config.unrecorded():
            return replace(self, learns=False)

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return no heads: no network is used."""
        return {}

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> FrontierSearch:
        """Return the planner; ConfigError unless the environment is deterministic with Discrete actions from 0."""
        if not model.deterministic:
            raise ConfigError("FrontierAgent needs a deterministic environment: it trusts each transition it has seen")
        if getattr(model, "gives_bonus", False):
            raise ConfigError("FrontierAgent uses no learned model: remove Runner.model_class")
        return FrontierSearch(self, model, columns, seed, listener)


class FrontierSearch:
    """Tabular frontier search for B environments that share one table of transitions.

    States are identified by their observations. The model is used only for the observation of a real state.
    """

    def __init__(self, agent: FrontierAgent, model: Model, columns: int, seed: int, listener: Listener | None = None):
        self._agent, self._model, self._seed, self._listener = agent, model, seed, listener
        self._n_actions = discrete_actions("FrontierAgent", model.action_space)
        self.decisions = 0
        self.rng = np.random.default_rng(seed)  # part of the planner interface; unused
        self._numbers: dict[int, int] = {}  # digest of an observation → number of the state
        self._next: list[list[int]] = []  # [N][A] number of the next state, UNTRIED or ENDED
        self._untried: list[int] = []  # [N] untried actions of each state
        self._goals: dict[int, int] = {}  # state → action that ends the episode with a reward
        self._routes: list[Route] = [[] for _ in range(columns)]
        self._played: dict[int, tuple[int, int]] = {}  # column → (state, action) of its last decision
        self._seen: dict[int, Tree] = {}  # state → the simulator's state [1, ...], while searches are recorded

    @property
    def transitions(self) -> int:
        """Number of (state, action) pairs that have been tried."""
        return len(self._next) * self._n_actions - sum(self._untried)

    # -- planner interface

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Clear the paths of environments whose episode begins; the table stays."""
        for column in columns.tolist():
            self._routes[column] = []
            self._played.pop(column, None)

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Continue each environment's path to a frontier or goal, or find a new one."""
        columns, decision = roots.columns, self.decisions
        self.decisions += 1
        states = self._find(roots.states)
        ties = chance(self._seed, columns, decision, _TIE)
        random_actions = chance(self._seed, columns, decision, _RANDOM_ACTION) * self._n_actions
        count = len(columns)
        action, distance = random_actions.astype(np.int64), np.zeros(count, np.int64)
        explores, at_random = np.zeros(count, bool), np.zeros(count, bool)
        routes: list[Route] = []
        for row, (column, state) in enumerate(zip(columns.tolist(), states, strict=True)):
            route = self._routes[column]
            if not self._is_valid(route, state):
                route = self._routes[column] = self._search(state, float(ties[row]))
            routes.append(route[::-1])
            if route:
                distance[row] = len(route)
                _, action[row] = route.pop()
                explores[row] = not route and self._next[state][action[row]] == UNTRIED
            else:
                at_random[row] = True
            self._played[column] = (state, int(action[row]))
        extras = {
            "target_distance": distance,
            "explores": explores,
            "random_action": at_random,
            "known_states_max": np.full(count, len(self._next)),
            "known_transitions_max": np.full(count, self.transitions),
        }
        if self._listener is not None:

            def describe(row: int, most: int) -> SearchRecord:
                table = Table(self._next, self._untried, self._seen, ENDED)
                return table_record(table, states[row], routes[row], most)

            tell_search(self._listener, columns, describe)
        return Plan(action, extras)
        yield  # makes this a generator, although it sends no requests

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Store what the last actions led to."""
        if not self._agent.learns:
            return
        outcomes = zip(columns.tolist(), self._find(states), rewards.tolist(), terminated.tolist(), strict=True)
        for column, after, reward, ended in outcomes:
            state, action = self._played[column]
            self._store(state, action, ENDED if ended else after, bool(ended and reward > 0))

    def lasting(self, run: int = 0) -> dict[str, Any]:
        """Return the table as arrays, for checkpoints."""
        return {
            "keys": np.fromiter(self._numbers, np.uint64, len(self._numbers)),
            "next": np.array(self._next, np.int64).reshape(-1, self._n_actions),
            "goals": np.array(list(self._goals.items()), np.int64).reshape(-1, 2),
        }

    def restore(self, lasting: dict[str, Any], run: int = 0) -> None:
        """Replace the table by a saved one."""
        self._numbers = {key: number for number, key in enumerate(np.asarray(lasting["keys"]).tolist())}
        self._next = np.asarray(lasting["next"]).tolist()
        self._untried = [actions.count(UNTRIED) for actions in self._next]
        self._goals = {state: action for state, action in np.asarray(lasting["goals"]).tolist()}
        self._routes = [[] for _ in self._routes]
        self._played = {}

    # -- transition table

    def _find(self, states: Tree) -> list[int]:
        """Return the numbers of real states; new ones are entered."""
        seen = trees.map(lambda leaf: leaf + np.zeros((), leaf.dtype), self._model.observe(states))  # −0 becomes 0
        found = []
        for place, key in enumerate(digest(seen).tolist()):
            number = self._numbers.setdefault(key, len(self._next))
            if number == len(self._next):
                self._next.append([UNTRIED] * self._n_actions)
                self._untried.append(self._n_actions)
            if self._listener is not None and number not in self._seen:
                self._seen[number] = trees.map(lambda leaf, at=place: leaf[at : at + 1], states)
            found.append(number)
        return found

    def _store(self, state: int, action: int, after: int, goal: bool) -> None:
        before = self._next[state][action]
        self._untried[state] -= before == UNTRIED
        self._next[state][action] = after
        if goal and self._goals.get(state) != action:
            self._goals[state] = action
            self._routes = [[] for _ in self._routes]  # all environments go to the goal

    # -- routes

    def _is_valid(self, route: Route, state: int) -> bool:
        """Return whether a route begins here and its last action is still worth playing."""
        if not route or route[-1][0] != state:
            return False
        target, action = route[0]
        return self._next[target][action] == UNTRIED or self._goals.get(target) == action

    def _search(self, state: int, tie: float) -> Route:
        """Return a shortest route to a known goal; else to an untried action, the tie in [0, 1) broken by `tie`."""
        if self._goals:
            route = self._nearest(state, tie, lambda node: [self._goals[node]] if node in self._goals else [])
            if route:
                return route
        if not self._agent.learns:
            return []
        untried, table = self._untried, self._next

        def actions(node: int) -> list[int]:
            return [action for action, after in enumerate(table[node]) if after == UNTRIED] if untried[node] else []

        return self._nearest(state, tie, actions)

    def _nearest(self, state: int, tie: float, wanted: Any) -> Route:
        """Breadth-first search for the nearest state with wanted actions: {state → actions}."""
        table, came_from, level = self._next, {state: (state, 0)}, [state]
        while level:
            found = [(node, action) for node in level for action in wanted(node)]
            if found:
                node, action = found[int(tie * len(found))]
                route = [(node, action)]
                while node != state:
                    route.append(came_from[node])
                    node = came_from[node][0]
                return route
            outer = []
            for node in level:
                for action, after in enumerate(table[node]):
                    if after >= 0 and after not in came_from:
                        came_from[after] = (node, action)
                        outer.append(after)
            level = outer
        return []
