"""Best-first search over the graph of known states, for deterministic worlds in which a goal is to be reached.

Each decision expands a few nodes of the known graph, picks the node most worth being at, and takes the first action of
a shortest path to it. The graph lasts for the episode: states met again are the same node, and what really happened
corrects it (`feedback`). The planner of Trust-but-Verify (IJCNN 2021), without that rule itself.
What nodes are worth is in `worth.py`, what is looked up of all nodes of a column at once in `boards.py`, and the paths
that are being followed in `routes.py`.

Deviations from the published code:
1. Values. `value` is the return of the plan: the rewards on the path to the target, then the network's value of it.
   The published code reports, and so trains on, the network's own estimate of the current state.
2. Terminal nodes are never expanded and spend no budget.
3. Whether a node solves the task is corrected by what really happened.
4. Ties. Among equally good targets an unexpanded one is preferred, then the nearest, then the first that a
   breadth-first search meets. The published code takes whichever a set yields first.
5. A fringe node's bonus, for the order of expansion, is that of the edge that found it. In the published code it is
   always 0 and a heap's order of equal keys decides, which here is `fringe = 'artefact'`.
6. Nothing is recomputed that has not changed: `distances.py` says how.
"""

from __future__ import annotations

import heapq
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np

from packtrain import config, trees
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.boards import Boards, numbered
from packtrain.planning.chance import best, chance
from packtrain.planning.distances import Graph, Outward, graph_fields
from packtrain.planning.events import Listener, ModelSteps
from packtrain.planning.model import Asking, Model, Stepped
from packtrain.planning.nodes import Nodes
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.routes import Routes
from packtrain.planning.table import NOBODY
from packtrain.planning.verification import Verification
from packtrain.planning.worth import Worth
from packtrain.trees import Tree
from packtrain.types import Request

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
_TRUE = np.ones(1, bool)
_FAR = np.iinfo(np.int64).max
_EPSILON, _RANDOM_ACTION, _RANDOM_NODE = range(3)  # what a random number is for


@configurable
@dataclass(frozen=True)
class BestFirstSearchAgent:
    """Best-first search's numbers. Rewards should be 0, and 1 where an episode ends solved.

    Heuristics are scores of nodes: "value" V(n) is the network's (0 of terminal nodes, and of all without
    `use_value`); "index" is V(n) + `avoid_history_coeff` · visits(n) in this episode, and
    "index_without_auxiliary_loss" another name of "value"; "bonus" is the largest disagreement of an ensemble about
    n's actions; "neg_distance" the steps from the current node. "solved_then_index" and
    "solved_then_auxiliary_then_bonus" (auxiliary: the part due to visits) put nodes that solve the task first.

    The fringe holds the reachable nodes that are neither expanded nor terminal. By "priority" the best by
    `expand_heuristic` is expanded next (ties: the oldest; at equal distance the first that a breadth-first search
    meets). The others do not look at it: "fifo" takes the oldest, "lifo" the newest, "random" any, and "artefact" the
    order in which Python's heap yields equal keys entered breadth-first from the current node, then as found: the
    nearest, a few ever farther ones, then the newest.
    """

    gamma: float = 0.99
    n_nodes_per_step: int = 10  # expansions a decision
    expand_heuristic: ExpandHeuristic = "neg_distance"
    top_level_heuristic: TopLevelHeuristic = "solved_then_index"
    fringe: Fringe = "priority"
    top_level_epsilon: float = 0.0  # chance of a random action
    epsilon_avoid_traps: bool = False  # random actions are not such as are predicted to end the episode unrewarded
    avoid_history_coeff: float = 0.0  # added to a node's index with each visit; below 0 to avoid visited nodes
    use_value: bool = True  # ask "agent" for "value" of new nodes, if a heuristic looks at values
    bonus_quantile_threshold: float | None = None  # verify what the model is less sure of than this; None: never
    rejection_probability: float = 0.5  # chance of trusting the plan all the same
    bonus_queue_length: int = 200  # expansions that the quantile is taken over
    filter_bonus_on_traps: bool = False  # no bonus for actions that are predicted to end the episode unrewarded
    noise_quantile: float | None = None  # of bonuses of what came as predicted: up to there nothing is verified
    plan_to_verify: bool = False  # go where the model is least sure, on purpose, and look
    doubt_octaves: int = 1  # of doubt that count as alike, so that the nearest is looked at first; 0: all of it

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.doubt_octaves < 0:
            raise ConfigError(f"{name}.doubt_octaves = {self.doubt_octaves} must not be negative")
        for field in ("n_nodes_per_step", "bonus_queue_length"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{name}.{field} = {getattr(self, field)} must be at least 1")
        shares = ("gamma", "top_level_epsilon", "bonus_quantile_threshold", "rejection_probability", "noise_quantile")
        for field in shares:
            if getattr(self, field) is not None and not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"{name}.{field} = {getattr(self, field)} must be from 0 to 1")
        if not math.isfinite(self.avoid_history_coeff):
            raise ConfigError(f"{name}.avoid_history_coeff = {self.avoid_history_coeff} must be a finite number")
        for field, known in (
            ("expand_heuristic", ExpandHeuristic),
            ("top_level_heuristic", TopLevelHeuristic),
            ("fringe", Fringe),
        ):
            if getattr(self, field) not in get_args(known):
                choices = ", ".join(map(repr, get_args(known)))
                raise ConfigError(f"{name}.{field} = {getattr(self, field)!r} is not one of {choices}")
        if self.fringe != "priority" and self.expand_heuristic != "neg_distance":
            raise ConfigError(
                f"{name}.expand_heuristic = {self.expand_heuristic!r} is looked at only with {name}.fringe = "
                f"'priority', not {self.fringe!r}"
            )
        if self.noise_quantile is not None and self.bonus_quantile_threshold is None and not self.plan_to_verify:
            raise ConfigError(
                f"{name}.noise_quantile = {self.noise_quantile} needs {name}.bonus_quantile_threshold or "
                f"{name}.plan_to_verify: nothing is verified"
            )

    @property
    def asks(self) -> bool:
        """Whether the network is asked."""
        return self.use_value and bool({self.expand_heuristic, self.top_level_heuristic} & _OF_VALUE)

    def trusting(self) -> BestFirstSearchAgent:
        """The same, but it never verifies: for evaluations."""
        with config.unrecorded():
            return replace(self, bonus_quantile_threshold=None, plan_to_verify=False, noise_quantile=None)

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """A value, if a heuristic looks at it."""
        return {"agent": {"value": 1}} if self.asks else {}

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> BestFirstSearch:
        """A planner over a deterministic model with finitely many actions."""
        name, space = type(self).__name__, model.action_space
        if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
            raise ConfigError(f"{name} needs actions Discrete(n) from 0; this model's are {space}")
        if not model.deterministic:
            raise ConfigError(f"{name} needs a deterministic model: it looks up states that it has met before")
        wanted: list[str] = sorted({self.expand_heuristic, self.top_level_heuristic} & _OF_BONUS)
        wanted += ["filter_bonus_on_traps"] * self.filter_bonus_on_traps
        wanted += ["bonus_quantile_threshold"] * (self.bonus_quantile_threshold is not None)
        wanted += ["plan_to_verify"] * self.plan_to_verify
        if wanted and not getattr(model, "gives_bonus", False):
            raise ConfigError(
                f"{name} is to look at {wanted[0]!r}, and needs a model that gives bonuses: this one gives none"
            )
        if self.plan_to_verify and not getattr(model, "clears_bonus", False):
            raise ConfigError(
                f"{name}.plan_to_verify needs LearnedModel.verified_edges = 'episode' or 'run': it would look at the "
                "same place for ever"
            )
        return BestFirstSearch(self, model, columns, seed, listener)


class BestFirstSearch:
    """The graphs of B columns, and the search in them.

    A model whose `gives_bonus` is true answers `step` with a field `bonus`, float32 [N], beside those of `Stepped`.
    """

    def __init__(
        self, agent: BestFirstSearchAgent, model: Model, columns: int, seed: int, listener: Listener | None = None
    ):
        self._agent, self._model, self._seed, self._listener = agent, model, seed, listener
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self._n_actions = int(model.action_space.n)  # type: ignore[attr-defined]
        self._every_action = np.arange(self._n_actions)
        self._actions = self._every_action  # repeated as often as was needed
        self._bonuses = bool(getattr(model, "gives_bonus", False))
        self._verification: Verification | None = None
        self._clears_bonus = bool(getattr(model, "clears_bonus", False))
        if agent.bonus_quantile_threshold is not None or agent.plan_to_verify:
            self._verification = Verification(
                columns,
                agent.bonus_quantile_threshold,
                agent.rejection_probability,
                agent.bonus_queue_length,
                seed,
                agent.noise_quantile,
                getattr(model, "runs", 1),
            )
        actions = (self._n_actions,)
        fields = {
            "key": ((), np.uint64, None),  # the model's
            "slot": ((), np.int64, None),  # its number within its column, in order of creation
            "terminal": ((), bool, False),
            "solved": ((), bool, False),
            "expanded": ((), bool, False),
            "open": ((), bool, True),  # neither expanded nor terminal
            "rewards": (actions, np.float32, None),  # of nodes that are expanded
            "value": ((), np.float32, 0),
            "rated": ((), bool, False),  # the network has said its value
            "auxiliary": ((), np.float32, 0),
            "rank": ((), np.int64, None),  # its worth as a target, in the order of the top-level heuristic
        }
        if self._bonuses:
            fields |= {
                "bonuses": (actions, np.float32, 0),
                "found_bonus": ((), np.float32, 0),
            }  # that of its first edge
        self._hears_noise = self._bonuses and agent.noise_quantile is not None
        if self._hears_noise:
            fields["tried"] = (actions, bool, False)
        self.nodes = Nodes(graph_fields(self._n_actions) | fields)
        self._graph = Graph(self.nodes)
        self._current = np.full(columns, NOBODY)
        self._before = np.full(columns, NOBODY)  # the current node of the last decision
        self._action = np.zeros(columns, np.int64)
        self._unrated = np.empty(0, np.int64)  # nodes that were heard of, until the network is asked about them
        self._reached_from = np.full(columns, NOBODY)  # the current node of which `reachable` is true; NOBODY: none
        self._expansions = np.zeros(columns, np.int64)  # for the latest decision
        self._routes = Routes(self.nodes, columns, agent.gamma)
        doubts = self._verification if agent.plan_to_verify else None
        heuristics = (agent.expand_heuristic, agent.top_level_heuristic)
        self._worth = Worth(self.nodes, *heuristics, doubts, agent.doubt_octaves)
        self._by_distance = agent.fringe == "priority" and agent.expand_heuristic == "neg_distance"
        scored = agent.fringe == "priority" and not self._by_distance
        lists_fringe = agent.fringe in ("fifo", "lifo", "random")
        self.boards = Boards(self.nodes, columns, lists_fringe, self._worth.of_expansion if scored else None)

    # -- the planner's face

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """An episode begins in these columns: forget what is known there."""
        if self._verification is not None:
            self._verification.begin(columns)
        self._unrated = self._unrated[~np.isin(self.nodes.owner[self._unrated], columns)]
        self.nodes.forget(columns)
        self._current[columns] = self._reached_from[columns] = NOBODY
        self._routes.forget(columns)
        self.boards.forget(columns)

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Expand nodes, choose a target, take the first step towards it."""
        columns, nodes = roots.columns, self.nodes
        self._expansions[columns] = 0
        current = yield from self._arrive(columns, roots.states)
        fresh = nodes.open.take(current)
        if not fresh.all():
            self._settle(columns[~fresh], current[~fresh])
        if fresh.any():
            yield from self._expand(current[fresh])
            self._settle(columns[fresh], current[fresh])
        nearest = np.where(fresh, 0, _FAR)  # [R] distance of the nearest node that this decision has expanded
        left = self._agent.n_nodes_per_step - fresh
        if self._by_distance:
            walk = self._graph.walk(current)
            yield from self._expand_nearest(walk, columns, left, nearest)
        else:
            nearest[self.boards.fringes[columns] > 0] = 0  # at least; nobody measures it
            if self._agent.fringe == "artefact":
                yield from self._expand_heaps(columns, current, left)
            else:
                yield from self._expand_listed(columns, left)
            walk = self._graph.walk(current)
        self._find_targets(walk, columns, current, nearest)
        return self._decide(columns, current, roots.states)

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Correct the edges just taken: where they lead, what they pay, whether the episode ended there, and solved.

        It ended solved if it ended with a reward. A node that reality has shown and the model had not gets its value
        when the search plans from it.
        """
        before, action = self._current[columns], self._action[columns]
        assert (before != NOBODY).all(), "there was no plan to give feedback on"
        self._correct(columns, before, action, states, rewards, terminated, tried=True)

    def hear(
        self, columns: np.ndarray, before: Tree, actions: np.ndarray, states: Tree, rewards: Any, terminated: Any
    ) -> None:
        """What came of actions [M] somewhere else, for columns [M], ascending, that may know the states before them."""
        nodes = self.nodes
        sources = nodes.find(columns, self._model.keys(before))
        known = np.flatnonzero((sources != NOBODY) & nodes.expanded[sources])
        if len(known):
            there = trees.pick(states, known)
            self._correct(columns[known], sources[known], actions[known], there, rewards[known], terminated[known])

    def lasting(self, run: int = 0) -> dict[str, Any]:
        """What outlives the episodes of a run, to be saved."""
        return {} if self._verification is None else self._verification.snapshot(run)

    def restore(self, lasting: dict[str, Any], run: int = 0) -> None:
        """Go on with what has been saved."""
        if self._verification is not None:
            self._verification.restore(lasting, run)

    def _correct(
        self,
        columns: np.ndarray,
        before: np.ndarray,
        action: np.ndarray,
        states: Tree,
        rewards: np.ndarray,
        terminated: np.ndarray,
        tried: bool = False,
    ) -> None:
        """Set edges [M] right.

        If the columns have tried them, the rule hears how unsure the model was of those that came as predicted, each
        once: later it is reality that says where they lead.
        """
        nodes = self.nodes
        keys = self._model.keys(states)
        ids, fresh = nodes.intern(columns, keys, states)
        if fresh.any():
            self._enter(ids[fresh], columns[fresh], keys[fresh])
        solved = terminated & (rewards > 0)
        known = nodes.expanded[before]  # nothing is known of what follows an end
        wrong = nodes.edges[before, action] != ids
        wrong |= nodes.rewards[before, action] != rewards
        wrong |= (nodes.terminal[ids] != terminated) | (nodes.solved[ids] != solved)
        if tried and self._hears_noise and self._verification is not None:
            doubts = nodes.bonuses[before, action]
            right = known & ~wrong & ~nodes.tried[before, action] & (doubts > 0)
            self._verification.confirmed(columns[right], doubts[right])
        if self._hears_noise:
            nodes.tried[before, action] = True
        if self._clears_bonus:
            nodes.bonuses[before[known], action[known]] = 0
            self._rank(before[known])
        wrong = (wrong & known) | fresh
        if not wrong.any():
            return
        columns, ids, before, action, known = (each[wrong] for each in (columns, ids, before, action, known))
        terminated, solved, rewards, fresh = terminated[wrong], solved[wrong], rewards[wrong], fresh[wrong]
        # Where an edge that led nowhere leads somewhere, more can be reached and nothing less: that is the usual lie.
        was = nodes.edges[before, action]
        grows = known & ((was == before) | (was == ids)) & (fresh | (nodes.terminal[ids] == terminated))
        found = ids[grows & nodes.reachable[before]]
        self._reached_from[columns[~grows]] = NOBODY
        nodes.terminal[ids], nodes.solved[ids] = terminated, solved
        nodes.open[ids] = ~(terminated | nodes.expanded[ids])
        before, action = before[known], action[known]
        nodes.edges[before, action], nodes.rewards[before, action] = ids[known], rewards[known]
        again = np.concatenate([before, ids[nodes.expanded[ids] & ~terminated]])
        self._graph.link(again, nodes.edges[again])
        self._graph.close(ids[terminated])
        nodes.value[ids[terminated]] = 0
        if self._agent.asks and not tried:
            self._unrated = np.union1d(self._unrated, ids[~terminated])
        self._rank(ids)
        if len(found):
            found = self._graph.reach_on(found)
            self.boards.count(found)
            self.boards.show(found)
        self._routes.drop(columns)

    # -- where the columns are

    def _arrive(self, columns: np.ndarray, states: Tree) -> Asking[np.ndarray]:
        """The nodes of the roots [R], visited and rated."""
        nodes = self.nodes
        keys = self._model.keys(states)
        current, fresh = nodes.intern(columns, keys, states)
        if fresh.any():
            self._enter(current[fresh], columns[fresh], keys[fresh])
        self._before[columns], self._current[columns] = self._current[columns], current
        if len(self._unrated):
            mine = np.isin(nodes.owner[self._unrated], columns)
            heard = self._unrated[mine]
            yield from self._rate(np.union1d(current, heard))
            self._unrated = self._unrated[~mine]
            self._rank(heard)
        else:
            yield from self._rate(current)
        if self._agent.avoid_history_coeff:
            nodes.auxiliary[current] += np.float32(self._agent.avoid_history_coeff)
        self._rank(current)
        return current

    def _settle(self, columns: np.ndarray, current: np.ndarray) -> None:
        """Bring up to date what can be reached from current nodes [R] that are expanded or terminal."""
        nodes = self.nodes
        rows, ids = self._graph.moved(current, self._reached_from[columns])
        self._reached_from[columns] = current
        if not len(rows):
            return
        columns = columns[rows]
        members = self.boards.members[columns]
        nodes.reachable[members[members != NOBODY]] = False
        nodes.reachable[ids] = True
        self.boards.clear(columns)
        self.boards.count(ids)
        self.boards.show(ids)

    # -- expansion

    def _expand_nearest(
        self, walk: Outward, columns: np.ndarray, left: np.ndarray, nearest: np.ndarray
    ) -> Asking[None]:
        """Expand the `left` [R] nearest fringe nodes, those of a row's level together: none changes another's place.

        Writes into `nearest` the distance of the first of each row.
        """
        nodes, level = self.nodes, np.zeros(len(columns), np.int64)
        walk.only((left > 0) & (self.boards.fringes[columns] > 0))
        while len(walk.ids):
            level += walk.seek(nodes.open, _TRUE)
            ids = walk.ids.compress(nodes.open.take(walk.ids))
            rows = walk.rows(ids)
            number = numbered(rows, len(columns))
            within = np.flatnonzero(number < left.take(rows))
            if len(within) < len(rows):
                ids, rows, number = ids.take(within), rows.take(within), number.take(within)
            left -= np.bincount(rows, minlength=len(columns))
            nearest[rows] = np.minimum(nearest.take(rows), level.take(rows))
            yield from self._expand(ids, number)
            walk.only((left > 0) & (self.boards.fringes[columns] > 0))

    def _expand_listed(self, columns: np.ndarray, left: np.ndarray) -> Asking[None]:
        """Expand the first `left` [R] nodes of the fringe in the agent's order, one of each column at a time."""
        done = self._agent.n_nodes_per_step - left
        for _ in range(self._agent.n_nodes_per_step):
            rows = np.flatnonzero((done < self._agent.n_nodes_per_step) & (self.boards.fringes[columns] > 0))
            if not len(rows):
                return
            slots = self._pick(columns[rows], done[rows])
            done[rows] += 1
            yield from self._expand(self.boards.members[columns[rows], slots])

    def _pick(self, columns: np.ndarray, done: np.ndarray) -> np.ndarray:
        """The places of the fringe nodes to be expanded next, in columns that have some."""
        boards, size = self.boards, self.boards.sizes.max()
        if self._agent.fringe == "priority":
            return boards.scores[columns, :size].argmax(axis=1)
        open_ = boards.open[columns, :size]
        if self._agent.fringe == "fifo":
            return open_.argmax(axis=1)
        if self._agent.fringe == "lifo":
            return size - 1 - open_[:, ::-1].argmax(axis=1)
        drawn = chance(self._seed, columns, self.decisions, _RANDOM_NODE, done)
        wanted = (drawn * boards.fringes[columns]).astype(np.int64)
        return (open_.cumsum(axis=1) > wanted[:, None]).argmax(axis=1)

    def _expand_heaps(self, columns: np.ndarray, current: np.ndarray, left: np.ndarray) -> Asking[None]:
        """Expand in the order of heaps of equal keys. Loops over columns: it is here to compare with published runs."""
        nodes, walk = self.nodes, self._graph.walk(current)
        while len(walk.ids):
            walk.advance()
        heaps: list[list[_Equal]] = [[] for _ in columns]
        row_of = dict(zip(columns.tolist(), range(len(columns)), strict=True))

        def push(ids: np.ndarray) -> None:
            open_ = ids[nodes.open[ids]]
            for node, column in zip(open_.tolist(), nodes.owner[open_].tolist(), strict=True):
                heapq.heappush(heaps[row_of[column]], _Equal(node))

        push(walk.everything())
        for round_ in range(self._agent.n_nodes_per_step):
            chosen = [
                heapq.heappop(heap).node for heap, more in zip(heaps, left > round_, strict=True) if more and heap
            ]
            if not chosen:
                return
            push((yield from self._expand(np.array(chosen))))

    def _expand(self, ids: np.ndarray, number: np.ndarray | None = None) -> Asking[np.ndarray]:
        """Step all actions in nodes [M], column by column; what becomes reachable by it, in the order of a queue.

        Args:
          ids: of the fringe, and reachable.
          number: [M] 0 for the first node of a column, 1 for the second, …; None if there is only one of each.
        """
        nodes, n_actions = self.nodes, self._n_actions
        repeated = ids.repeat(n_actions)
        owners = nodes.owner.take(repeated)
        states = trees.map(lambda leaf: leaf.take(repeated, axis=0), nodes.states)
        if len(self._actions) < len(repeated):
            self._actions = np.tile(self._every_action, 2 * len(ids))
        actions = self._actions[: len(repeated)]
        stepped = yield from self._model.step(states, actions, self.rng)
        children, made, keys = self._children(repeated, owners, stepped)
        bonus = stepped.bonus if self._bonuses else None
        if bonus is not None and self._agent.filter_bonus_on_traps:
            bonus = np.where(stepped.terminated & (stepped.rewards <= 0), np.float32(0), bonus)
        if bonus is not None and self._verification is not None:
            self._verification.expanded(owners[::n_actions], bonus.reshape(-1, n_actions).max(axis=1))
        new = children.take(made)
        if len(made):
            terminal = stepped.terminated.take(made)
            nodes.terminal[new], nodes.open[new] = terminal, ~terminal
            nodes.solved[new] = stepped.solved.take(made)
            if bonus is not None:
                nodes.found_bonus[new] = bonus.take(made)
            self._enter(new, owners.take(made), keys.take(made))
            yield from self._rate(new)
        self._expansions += np.bincount(owners[::n_actions], minlength=len(self._expansions))
        self.boards.leave_fringe(ids)
        self._graph.link(ids, children.reshape(-1, n_actions))
        nodes.rewards[ids] = stepped.rewards.reshape(-1, n_actions)
        if bonus is not None:
            nodes.bonuses[ids] = bonus.reshape(-1, n_actions)
        nodes.open[ids], nodes.expanded[ids] = False, True
        out = self._graph.reach_on(children)
        self.boards.count(out)
        self._rank(np.concatenate([ids, new]))
        if len(out) > len(new):  # something known has come within reach
            self.boards.show(out)
        if self._listener is not None:
            numbers = np.zeros(len(ids), np.int64) if number is None else number
            self._tell(numbers, owners, repeated, children, actions, stepped)
        return out

    def _children(
        self, source: np.ndarray, owners: np.ndarray, stepped: Stepped
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The nodes that steps from sources [M] led to; the indices of those made now; all keys [M].

        Steps that changed nothing need no looking up, and are often half of all.
        """
        keys = self._model.keys(stepped.states)
        moved = np.flatnonzero(self.nodes.key.take(source) != keys)
        states = trees.map(lambda leaf: leaf.take(moved, axis=0), stepped.states)
        found, fresh = self.nodes.intern(owners.take(moved), keys.take(moved), states)
        children = source.copy()
        children[moved] = found
        return children, moved.compress(fresh), keys

    def _tell(
        self,
        number: np.ndarray,
        owners: np.ndarray,
        source: np.ndarray,
        target: np.ndarray,
        actions: np.ndarray,
        stepped: Stepped,
    ) -> None:
        """Tell the listener of each expansion as a pass of its own, of the columns together."""
        assert self._listener is not None
        slot, numbers = self.nodes.slot, number.repeat(self._n_actions)
        for pass_ in range(number.max() + 1):
            mine = np.flatnonzero(numbers == pass_)
            columns = owners[mine]
            self._listener.pass_begin(columns[:: self._n_actions])
            states = trees.map(lambda leaf, mine=mine: leaf[mine], stepped.states)
            steps = (slot[source[mine]], slot[target[mine]], states, actions[mine])
            self._listener.model_steps(ModelSteps(columns, *steps, stepped.rewards[mine], stepped.terminated[mine]))
            self._listener.pass_end(columns[:: self._n_actions])

    # -- new nodes, and what they are worth

    def _enter(self, ids: np.ndarray, columns: np.ndarray, keys: np.ndarray) -> None:
        """Give new nodes [M], those of a column together, a place in their column."""
        self.nodes.key[ids] = keys
        self.boards.enter(ids, columns)
        self._graph.enter(ids)

    def _rate(self, ids: np.ndarray) -> Asking[None]:
        """Ask for the values of nodes [M] that have none and are not terminal."""
        nodes = self.nodes
        if not self._agent.asks:
            return
        ids = ids.compress(~(nodes.rated.take(ids) | nodes.terminal.take(ids)))
        if not len(ids):
            return
        states = trees.map(lambda leaf: leaf.take(ids, axis=0), nodes.states)
        answer = yield Request("agent", self._model.observe(states))
        values = answer["value"].reshape(len(ids))  # [M, 1] → [M]
        unknown = np.isnan(values)
        if unknown.any():
            warnings.warn(f"best-first search takes {unknown.sum()} values that are NaN as -inf", stacklevel=2)
            values = np.where(unknown, -np.inf, values)
        nodes.value[ids], nodes.rated[ids] = values, True

    def _rank(self, ids: np.ndarray) -> None:
        """Say anew what nodes are worth as targets, where they can be reached on the boards too."""
        self.nodes.rank[ids] = self._worth.rank(ids)
        self.boards.show(ids.compress(self.nodes.reachable.take(ids)))

    # -- the choice

    def _find_targets(self, walk: Outward, columns: np.ndarray, current: np.ndarray, nearest: np.ndarray) -> None:
        """Plan a shortest path to the best node other than the current one, where there is one."""
        nodes, routes = self.nodes, self._routes
        top = self.boards.best_ranks(columns, current)
        # Following a plan needs no walk: a path that was the first choice is so still, if all that is new is farther
        # away and the node just left, which could not be a target while it was the current one, is none now.
        left = routes.left(columns, current)
        follows = (left > 0) & (nodes.rank.take(self._before[columns]) != top)
        follows &= (nodes.rank.take(routes.targets[columns]) == top) & (left < nearest)
        routes.keep(columns, np.where(follows, left, 0))
        wanted = ~follows & (top != NOBODY)
        if not wanted.any():
            return
        target = self.boards.first_met(walk, columns, current, top, wanted)
        going = wanted & (target == NOBODY)
        if going.any():
            walk.resume(going)
            walk.seek(nodes.rank, top)
            rows = walk.rows(walk.ids)
            hits = np.flatnonzero(nodes.rank.take(walk.ids) == top.take(rows))[::-1]
            target[rows.take(hits)] = walk.ids.take(hits)  # of several writers the last one stays: the first hit
            assert (target[going] != NOBODY).all(), "a reachable node was not met by a walk"
        rows = np.flatnonzero(wanted)
        routes.lead(walk, columns[rows], target[rows])

    def _decide(self, columns: np.ndarray, current: np.ndarray, states: Tree) -> Plan:
        """The first action of each plan; a random one where there is no plan, or where chance says so."""
        nodes, agent = self.nodes, self._agent
        decision, self.decisions = self.decisions, self.decisions + 1
        steps, action, value = self._routes.next(columns)
        planned = steps > 0
        by_chance = planned & (chance(self._seed, columns, decision, _EPSILON) < agent.top_level_epsilon)
        verified = np.full(len(columns), -1)
        if self._verification is not None:
            arrived: np.ndarray | bool = False
            if agent.plan_to_verify:  # nothing that can be reached is less sure, and nothing solves the task
                best_elsewhere = self.boards.best_ranks(columns, current)
                arrived = self._worth.doubt(current) >= self._worth.doubt_of(best_elsewhere)
            verified = self._verification.choose(columns, nodes.bonuses[current], decision, arrived)
            planned, by_chance = planned | (verified >= 0), by_chance & (verified < 0)
        if not planned.all() or by_chance.any():
            rows = np.flatnonzero(~planned | by_chance)
            here = current[rows]
            allowed = np.ones((len(rows), self._n_actions), bool)
            legal = self._model.legal(trees.pick(states, rows))
            if legal is not None:
                allowed &= legal | ~legal.any(axis=1, keepdims=True)
            if agent.epsilon_avoid_traps:
                trap = nodes.terminal[nodes.edges[here]] & (nodes.rewards[here] <= 0)
                safe = allowed & ~(trap & nodes.expanded[here][:, None])
                allowed = np.where(safe.any(axis=1, keepdims=True), safe, allowed)
            noise = chance(self._seed, columns[rows, None], decision, _RANDOM_ACTION, self._every_action)
            action[rows] = best(np.zeros(allowed.shape), noise, allowed)
            self._routes.drop(columns[rows])
            undo = current[by_chance]
            if len(undo) and agent.avoid_history_coeff:
                nodes.auxiliary[undo] -= np.float32(agent.avoid_history_coeff)
                self._rank(undo)
        if self._verification is not None:
            action = np.where(verified >= 0, verified, action)
            self._routes.drop(columns[verified >= 0])  # what is found out may change the plan
        self._action[columns] = action
        extras = {
            "value": value.astype(np.float32),
            "target_distance": steps,
            "random_action": ~planned | by_chance,
            "expansions": self._expansions[columns],
            "graph_size": self.boards.sizes[columns],
            "reachable_nodes": self.boards.reached[columns],
            "fringe_size": self.boards.fringes[columns],
        }
        if self._bonuses:
            extras["one_step_bonus"] = nodes.bonuses[current]  # [R, A]
        if self._verification is not None:
            extras["verified"] = verified >= 0
        return Plan(action, extras)


class _Equal:
    """A node in a heap, worth as much as any other."""

    def __init__(self, node: int):
        self.node = node

    def __lt__(self, other: _Equal) -> bool:
        return False
