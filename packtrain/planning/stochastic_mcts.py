"""Monte-Carlo tree search without states in the tree, for models that draw as well as for those that do not.

A node stands for a sequence of actions, not for a state: every pass steps the model from the root again, so what
the tree knows is an average over what the model does. With `n_leaves_to_expand` above 1 it is Shoot Tree Search,
Czechowski et al. 2021, "Structure and randomness in planning and reinforcement learning"; with `root_selection`
"gumbel" the root is that of Danihelka et al. 2022, "Policy improvement by planning with Gumbel".

A pass descends from the root by the exploratory score Q(a) + exploration_weight · bonus(a) until it meets a leaf, an
end or the depth limit. A leaf is expanded: its actions are rated, and each begins with its rating as one visit. The
pass goes on below it until `n_leaves_to_expand` leaves are expanded. What is backed up, once, is the quality of the
exploratory-best action of the last leaf expanded, 0 beyond an end, and at the depth limit the value of the node there.
A fresh root is a leaf: with n_leaves_to_expand = 1 its first pass expands it and backs up nothing.

Statistics belong to edges: children, visits, sums of qualities and priors of A actions at each node. The child that was
chosen becomes the root, and its passes leave the edge that led to it alone.

Shapes: R roots, M of them still descending, A actions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.config import configurable
from packtrain.equations import puct
from packtrain.errors import ConfigError
from packtrain.planning.chance import chance, dirichlet, gumbels, hashed
from packtrain.planning.events import Listener, ModelSteps
from packtrain.planning.leaf_raters import NETWORK, Leaves, NewLeafRater, RolloutNewLeafRater, possible
from packtrain.planning.model import GOLDEN, Asking, Model, Stepped, mix
from packtrain.planning.nodes import Nodes
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.policy import discrete_actions
from packtrain.planning.schedules import check_schedules, scheduled
from packtrain.planning.table import NOBODY
from packtrain.trees import Tree

_LEAF, _NOISE, _GUMBEL, _SAMPLE, _TIE = range(1, 6)  # what a random number is for
_ROOMY = 4096  # nodes that may lie about before anybody looks for dead ones


@configurable
@dataclass(frozen=True)
class StochasticMCTSAgent:
    """The numbers of the search.

    Extras of a plan, all of the moment of the choice: "value" (mean quality over the root's visits), "qualities",
    "action_histogram" (passes through each action; like the smooth one where there was none),
    "action_histogram_smooth" (ratings counted too), "priors" (noise included), "depth_mean" and "depth_max" (of where
    this decision's passes ended), "entropy" and "entropy_smooth" of the histograms, and with Gumbel's root
    "search_policy", the improved policy. Actions that may not be taken have quality 0 and no share.
    """

    n_passes: int = 10
    discount: float = 0.99
    exploration_weight: float = 1.0
    new_leaf_rater: NewLeafRater = field(default_factory=RolloutNewLeafRater)
    bonus: Literal["puct", "ucb"] = "puct"  # P(a) √N / (N(a) + 1), or the same without the prior P
    action_selection_mode: Literal["count", "quality"] = "count"  # the root's action: largest ln N, or Q
    sampling_temperature: float = 0.0  # times Gumbel noise, added to that
    depth_limit: int | None = None  # steps from the root
    prior_noise_weight: float = 0.0  # of Dirichlet noise in the root's priors
    prior_noise_parameter: float = 1.0  # of the Dirichlet distribution
    n_leaves_to_expand: int = 1  # in each pass
    leaf_quality_bias: float = 0.0  # ratings enter the tree as q · dampening + bias; reports take that back
    leaf_quality_dampening: float = 1.0
    root_selection: Literal["puct", "gumbel"] = "puct"  # "puct": as everywhere, by `bonus`
    max_considered_actions: int = 16  # at Gumbel's root
    gumbel_scale: float = 1.0  # 0 for the same choice each time
    value_scale: float = 0.1  # c_scale of Gumbel's root
    visit_offset: float = 50.0  # c_visit of Gumbel's root
    parameter_schedules: dict[str, Any] = field(default_factory=dict)  # parameter → its value in each epoch

    def __post_init__(self) -> None:
        for name in ("n_passes", "n_leaves_to_expand", "depth_limit", "max_considered_actions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"StochasticMCTSAgent.{name} = {value} must be at least 1")
        for name in ("exploration_weight", "sampling_temperature", "gumbel_scale", "value_scale", "visit_offset"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigError(f"StochasticMCTSAgent.{name} = {getattr(self, name)} must be a number from 0 on")
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
            "sampling_temperature": self.sampling_temperature and self.root_selection == "gumbel",
            "action_selection_mode": self.action_selection_mode != "count" and self.root_selection == "gumbel",
        }
        for name, wrong in unused.items():
            if wrong:
                raise ConfigError(
                    f"StochasticMCTSAgent.{name} = {getattr(self, name)!r} has no meaning with root_selection = "
                    f"{self.root_selection!r} and bonus = {self.bonus!r}"
                )
        check_schedules(self)

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """What the rater asks for."""
        heads = self.new_leaf_rater.heads(discrete_actions("StochasticMCTSAgent", action_space))
        return {NETWORK: heads} if heads else {}

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> StochasticMCTS:
        """The planner for B columns."""
        return StochasticMCTS(self, model, columns, seed, listener)


@dataclass
class _Decision:
    """One plan under way."""

    columns: np.ndarray  # [R]
    states: Tree  # [R, ...]
    ids: np.ndarray  # [R] root nodes
    legal: np.ndarray | None  # [R, A] bool
    tickets: np.ndarray  # [R] uint64: what this decision's random choices are made from
    gumbel: np.ndarray | None  # [R, A]
    tried: np.ndarray  # [R, A] passes of this decision through each action
    begun: np.ndarray  # [R] the pass from which on actions are tried: 1 if the first only expands the root, else 0
    priors: np.ndarray  # [R, A] of the roots, noise included, once they are expanded
    depth_sum: np.ndarray  # [R] over the passes
    depth_max: np.ndarray  # [R]


class _Front(NamedTuple):
    """Nodes that passes have come to."""

    rows: np.ndarray  # [M] whose passes
    ids: np.ndarray  # [M] nodes; NOBODY where there is none yet
    edges: np.ndarray  # [M] that led there, as node · A + action; NOBODY at a root
    states: Tree  # [M, ...]
    visits: np.ndarray  # [M] of the nodes themselves
    depths: np.ndarray  # [M] steps from the root

    def pick(self, some: np.ndarray) -> _Front:
        """Some of them."""
        return _Front(
            self.rows[some],
            self.ids[some],
            self.edges[some],
            trees.pick(self.states, some),
            self.visits[some],
            self.depths[some],
        )


class _Step(NamedTuple):
    """One step of M passes."""

    rows: np.ndarray  # [M]
    sources: np.ndarray  # [M] nodes
    actions: np.ndarray  # [M]
    edges: np.ndarray  # [M]
    stepped: Stepped


class StochasticMCTS:
    """Trees of B columns, all in the same arrays."""

    def __init__(self, agent: StochasticMCTSAgent, model: Model, columns: int, seed: int, listener: Listener | None):
        self._actions = discrete_actions("StochasticMCTSAgent", model.action_space)
        self._configured = self._agent = agent
        self._model, self._seed, self._listener = model, seed, listener
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self.nodes = Nodes(
            {
                "expanded": ((), bool, False),
                "children": ((self._actions,), np.int64, NOBODY),
                "visits": ((self._actions,), np.float64, 0.0),  # a rating is one; 0 for actions that were not allowed
                "quality_sums": ((self._actions,), np.float64, 0.0),
                "priors": ((self._actions,), np.float64, 0.0),
            }
        )
        self.roots = np.full(columns, NOBODY, np.int64)  # the root node of each column
        self._root_visits = np.zeros(columns)  # of the root itself: the visits of the edge that led to it, and since
        self._roomy = _ROOMY

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Forget the trees of these columns."""
        self._agent = scheduled(self._configured, epoch)
        self.nodes.forget(columns)
        self.roots[columns] = NOBODY
        self._root_visits[columns] = 0

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Nothing to learn: the tree holds no states that could be wrong."""

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Make the passes, choose, and go on to the chosen child."""
        agent = self._agent
        decision = self._open(agent, roots)
        for number in range(agent.n_passes):
            if self._listener is not None:
                self._listener.pass_begin(roots.columns)
            yield from self._pass(agent, decision, number)
            if self._listener is not None:
                self._listener.pass_end(roots.columns)
        return self._close(agent, decision)

    # -- before and after the passes

    def _open(self, agent: StochasticMCTSAgent, roots: Roots) -> _Decision:
        columns, count = roots.columns, self._actions
        if self._listener is None and len(self.nodes) > self._roomy:  # who listens tells nodes apart by their numbers
            self._collect()
        fresh = columns[self.roots[columns] == NOBODY]
        self.roots[fresh] = self.nodes.add(fresh)
        ids = self.roots[columns]
        tickets = decision_tickets(self._seed, columns, self.decisions)
        self.decisions += 1
        gumbel = None
        if agent.root_selection == "gumbel":
            gumbel = agent.gumbel_scale * gumbels(hashed(tickets, _GUMBEL), count)
        legal = self._model.legal(roots.states)
        expanded = self.nodes.expanded[ids]
        decision = _Decision(
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
        self._prepare_roots(agent, decision, np.flatnonzero(expanded))
        return decision

    def _close(self, agent: StochasticMCTSAgent, decision: _Decision) -> Plan:
        """Choose, tell what is known now, and move the roots."""
        nodes, ids, legal = self.nodes, decision.ids, decision.legal
        visits, sums = nodes.visits[ids], nodes.quality_sums[ids]
        qualities = sums / np.maximum(visits, 1)
        value = sums.sum(axis=1) / visits.sum(axis=1)
        smooth = puct.histogram(visits)
        histogram = puct.histogram(np.maximum(visits - 1, 0), smooth)
        extras = {
            "value": self._reported(agent, value),
            "qualities": np.where(visits > 0, self._reported(agent, qualities), 0.0),
            "action_histogram": histogram,
            "action_histogram_smooth": smooth,
            "priors": decision.priors,
            "depth_mean": decision.depth_sum / agent.n_passes,
            "depth_max": decision.depth_max,
            "entropy": puct.entropy(histogram),
            "entropy_smooth": puct.entropy(smooth),
        }
        if agent.root_selection == "gumbel":
            logits, bent = self._gumbel_terms(agent, decision, np.arange(len(ids)))
            extras["search_policy"] = puct.softmax(logits + bent, legal)
            most = decision.tried.max(axis=1, keepdims=True)
            assert decision.gumbel is not None
            scores = np.where(decision.tried == most, decision.gumbel + logits + bent, -np.inf)
        else:
            seen = visits > 0
            counts = np.log(np.where(seen, visits, 1.0))
            scores = np.where(seen, counts if agent.action_selection_mode == "count" else qualities, -np.inf)
            if agent.sampling_temperature > 0:
                noise = gumbels(hashed(decision.tickets, _SAMPLE), self._actions)
                scores = scores + agent.sampling_temperature * noise
        actions = best_with_ties(
            scores, legal, lambda: hashed(decision.tickets[:, None], _TIE, np.arange(self._actions))
        )
        self._move(decision.columns, ids, actions)
        return Plan(actions, {name: np.asarray(array, np.float32) for name, array in extras.items()})

    def _move(self, columns: np.ndarray, ids: np.ndarray, actions: np.ndarray) -> None:
        """The chosen children become the roots."""
        self._root_visits[columns] = self.nodes.visits[ids, actions]
        self.roots[columns] = self.nodes.children[ids, actions]  # NOBODY if no pass went there

    def _reported(self, agent: StochasticMCTSAgent, qualities: np.ndarray) -> np.ndarray:
        return (qualities - agent.leaf_quality_bias) / agent.leaf_quality_dampening

    def _collect(self) -> None:
        """Give back the nodes that no root leads to."""
        frontier = self.roots[self.roots != NOBODY]
        alive = []
        while len(frontier):
            alive.append(frontier)
            frontier = self.nodes.children[frontier].ravel()
            frontier = frontier[frontier != NOBODY]
        self.nodes.keep(np.concatenate(alive) if alive else frontier)
        self._roomy = max(_ROOMY, 4 * len(self.nodes))

    # -- a pass

    def _pass(self, agent: StochasticMCTSAgent, decision: _Decision, number: int) -> Asking[None]:
        """Descend everywhere to the next leaves, expand these together, and so on; then back up."""
        size = len(decision.columns)
        nowhere = np.full(size, NOBODY, np.int64)
        visits, depths = self._root_visits[decision.columns], np.zeros(size, np.int64)
        front = _Front(np.arange(size), decision.ids, nowhere, decision.states, visits, depths)
        found = np.zeros(size)  # [R] what is backed up; 0 beyond an end
        path: list[_Step] = []
        for turn in range(agent.n_leaves_to_expand):
            leaves, going = [], front
            if turn == 0:
                inner = self.nodes.expanded[front.ids]
                if not inner.all():
                    leaves, going = [front.pick(np.flatnonzero(~inner))], front.pick(np.flatnonzero(inner))
            told = len(path)
            yield from self._descend(agent, decision, number, turn, going, leaves, path, found)
            if leaves:
                front = self._entered(decision, _joined(leaves))
            if self._listener is not None:
                self._tell_path(decision, path[told:])
            if not leaves:
                break
            found[front.rows] = yield from self._expand(agent, decision, number, front)
            if agent.depth_limit is not None:
                front = front.pick(np.flatnonzero(front.depths < agent.depth_limit))
                if not len(front.rows):
                    break
        self._back_up(agent, decision, path, found)

    def _descend(
        self,
        agent: StochasticMCTSAgent,
        decision: _Decision,
        number: int,
        turn: int,
        front: _Front,
        leaves: list[_Front],
        path: list[_Step],
        found: np.ndarray,
    ) -> Asking[None]:
        """Go from expanded nodes on until all have come to a leaf (they join `leaves`), an end or the depth limit."""
        nodes, may_be_root = self.nodes, turn <= 1
        while len(front.rows):
            if agent.depth_limit is not None and (front.depths == agent.depth_limit).any():
                over = front.depths == agent.depth_limit
                ids = front.ids[over]
                found[front.rows[over]] = nodes.quality_sums[ids].sum(axis=1) / nodes.visits[ids].sum(axis=1)
                front = front.pick(np.flatnonzero(~over))
                continue
            actions, _ = self._select(agent, decision, number, front, may_be_root)
            may_be_root = False
            stepped = yield from self._model.step(front.states, actions, self.rng)
            edges = front.ids * self._actions + actions
            path.append(_Step(front.rows, front.ids, actions, edges, stepped))
            found[front.rows] = 0.0
            children, visits = nodes.children.reshape(-1).take(edges), nodes.visits.reshape(-1).take(edges)
            front = _Front(front.rows, children, edges, stepped.states, visits, front.depths + 1)
            inner = children != NOBODY  # all nodes but roots are expanded
            inner &= ~stepped.terminated
            going = np.flatnonzero(inner)
            if len(going) < len(inner):
                new = np.flatnonzero(~(inner | stepped.terminated))
                if len(new):
                    leaves.append(front.pick(new))
                front = front.pick(going)

    def _entered(self, decision: _Decision, leaves: _Front) -> _Front:
        """Leaves with nodes of their own."""
        missing = np.flatnonzero(leaves.ids == NOBODY)
        if len(missing):
            made = self.nodes.add(decision.columns[leaves.rows[missing]])
            leaves.ids[missing] = made
            self.nodes.children.reshape(-1)[leaves.edges[missing]] = made
        return leaves

    def _expand(
        self, agent: StochasticMCTSAgent, decision: _Decision, number: int, leaves: _Front
    ) -> Asking[np.ndarray]:
        """Rate the actions of leaves and enter the ratings as their first visits; the quality of their best, [M]."""
        nodes, ids = self.nodes, leaves.ids
        allowed = None if decision.legal is None else self._legal(leaves.states)
        tickets = decision.tickets[leaves.rows]
        asked = Leaves(
            self._model,
            self.rng,
            agent.discount,
            leaves.states,
            len(ids),
            allowed,
            functools.partial(leaf_words, tickets, number, leaves.depths),
            functools.partial(self._tell_rating, decision.columns[leaves.rows], ids),
        )
        rating = yield from agent.new_leaf_rater.rate(asked)
        qualities = rating.qualities.astype(np.float64)
        if agent.leaf_quality_dampening != 1 or agent.leaf_quality_bias != 0:
            qualities = qualities * agent.leaf_quality_dampening + agent.leaf_quality_bias
        if allowed is None:
            nodes.visits[ids] = 1
            nodes.quality_sums[ids] = qualities
            nodes.priors[ids] = 1 / self._actions if rating.logits is None else puct.softmax(rating.logits)
        else:
            nodes.visits[ids] = allowed
            nodes.quality_sums[ids] = np.where(allowed, qualities, 0.0)
            logits = rating.logits
            nodes.priors[ids] = puct.histogram(allowed) if logits is None else puct.softmax(logits, allowed)
        nodes.expanded[ids] = True
        self._prepare_roots(agent, decision, leaves.rows[leaves.depths == 0])
        if rating.logits is None:  # equal bonuses: the exploratory best is the best
            return (qualities if allowed is None else np.where(allowed, qualities, -np.inf)).max(axis=1)
        actions, qualities = self._select(agent, decision, number, leaves, False)
        return qualities[np.arange(len(ids)), actions]

    def _prepare_roots(self, agent: StochasticMCTSAgent, decision: _Decision, rows: np.ndarray) -> None:
        """The priors for this decision of roots that are expanded. Those in the tree stay as they are."""
        if not len(rows):
            return
        ids = decision.ids[rows]
        priors = self.nodes.priors[ids]
        if agent.prior_noise_weight > 0:
            words = hashed(decision.tickets[rows], _NOISE)
            noise = dirichlet(words, agent.prior_noise_parameter, self.nodes.visits[ids] > 0)
            priors = (1 - agent.prior_noise_weight) * priors + agent.prior_noise_weight * noise
        decision.priors[rows] = priors

    def _back_up(self, agent: StochasticMCTSAgent, decision: _Decision, path: list[_Step], found: np.ndarray) -> None:
        """Go back to the roots by q ← r + discount · q, and enter it in every edge."""
        self._root_visits[decision.columns] += 1
        if not path:
            return
        depths, entered = np.zeros(len(found), np.int64), []
        for step in reversed(path):
            back = step.stepped.rewards + agent.discount * found[step.rows]
            found[step.rows] = back
            depths[step.rows] += 1
            entered.append(back)
        edges = np.concatenate([step.edges for step in reversed(path)])  # no edge comes twice
        self.nodes.visits.reshape(-1)[edges] += 1
        self.nodes.quality_sums.reshape(-1)[edges] += np.concatenate(entered)
        if decision.gumbel is not None:
            first = np.full(len(found), NOBODY, np.int64)  # roots that were leaves are left later than the others
            for step in reversed(path):
                first[step.rows] = step.actions
            rows = np.flatnonzero(first != NOBODY)
            decision.tried[rows, first[rows]] += 1
        decision.depth_sum += depths
        np.maximum(decision.depth_max, depths, out=decision.depth_max)

    # -- choices

    def _select(
        self, agent: StochasticMCTSAgent, decision: _Decision, number: int, front: _Front, may_be_root: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """The exploratory-best action of each node [M], and the qualities of all [M, A]."""
        nodes, ids = self.nodes, front.ids
        visits, sums = nodes.visits.take(ids, axis=0), nodes.quality_sums.take(ids, axis=0)
        if decision.legal is None:
            qualities, allowed = sums / visits, None
        else:
            qualities = sums / np.maximum(visits, 1)
            allowed = visits > 0 if self._model.deterministic else self._legal(front.states)
        roots = np.flatnonzero(front.depths == 0) if may_be_root else ids[:0]
        if agent.bonus == "puct":
            priors = nodes.priors.take(ids, axis=0)
            if len(roots):
                priors[roots] = decision.priors[front.rows[roots]]
            bonus = puct.puct_bonus(priors, visits, front.visits)
        else:
            bonus = puct.ucb_bonus(visits, front.visits)
        scores = qualities + agent.exploration_weight * bonus
        if len(roots) and agent.root_selection == "gumbel":
            scores[roots] = self._gumbel_scores(agent, decision, number, front.rows[roots])
        tie = functools.partial(tie_words, decision.tickets, front.rows, number, front.depths, self._actions)
        return best_with_ties(scores, allowed, tie), qualities

    def _gumbel_terms(
        self, agent: StochasticMCTSAgent, decision: _Decision, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits of roots, and the completed qualities that bend them, both [M, A].

        A rating is an action's first visit: what is left to complete are actions that were not allowed then.
        """
        ids = decision.ids[rows]
        visits, sums, priors = self.nodes.visits[ids], self.nodes.quality_sums[ids], self.nodes.priors[ids]
        logits = np.log(np.maximum(priors, 1e-300))
        value = sums.sum(axis=1) / visits.sum(axis=1)
        completed = puct.completed_qualities(sums / np.maximum(visits, 1), visits, priors, value)
        allowed = visits > 0 if decision.legal is None else decision.legal[rows]
        most = decision.tried[rows].max(axis=1)
        return logits, puct.scaled_qualities(completed, most, allowed, agent.value_scale, agent.visit_offset)

    def _gumbel_scores(
        self, agent: StochasticMCTSAgent, decision: _Decision, number: int, rows: np.ndarray
    ) -> np.ndarray:
        """Gumbel, logits and qualities together, of the actions whose turn it is in sequential halving, [M, A]."""
        assert decision.gumbel is not None
        logits, bent = self._gumbel_terms(agent, decision, rows)
        most = min(agent.max_considered_actions, self._actions)
        considered = np.full(len(rows), most)
        due = np.ones(logits.shape, bool)
        if decision.legal is not None:
            due = decision.legal[rows]
            considered = np.minimum(due.sum(axis=1), most)
        begun = decision.begun[rows]
        turn = halving_table(agent.n_passes, most)[begun, considered, number - begun]
        due = due & (decision.tried[rows] == turn[:, None])
        return np.where(due, decision.gumbel[rows] + logits + bent, -np.inf)

    def _legal(self, states: Tree) -> np.ndarray:
        legal = self._model.legal(states)
        assert legal is not None, "a model says which actions may be taken in all of its states, or in none"
        return possible(legal)

    # -- listeners

    def _tell_path(self, decision: _Decision, path: list[_Step]) -> None:
        for step in path:
            targets = self.nodes.children.reshape(-1)[step.edges]
            targets[step.stepped.terminated] = NOBODY
            self._tell(decision.columns[step.rows], step.sources, targets, step.stepped, step.actions)

    def _tell_rating(
        self,
        columns: np.ndarray,
        ids: np.ndarray,
        owners: np.ndarray,
        stepped: Stepped,
        actions: np.ndarray,
        first: bool,
    ) -> None:
        if self._listener is not None:
            nobody = np.full(len(owners), NOBODY, np.int64)
            self._tell(columns[owners], ids[owners] if first else nobody, nobody, stepped, actions)

    def _tell(
        self, columns: np.ndarray, source: np.ndarray, target: np.ndarray, stepped: Stepped, actions: np.ndarray
    ) -> None:
        assert self._listener is not None
        self._listener.model_steps(
            ModelSteps(columns, source, target, stepped.states, actions, stepped.rewards, stepped.terminated)
        )


def _joined(fronts: list[_Front]) -> _Front:
    """Several as one."""
    if len(fronts) == 1:
        return fronts[0]
    return _Front(*(trees.map(lambda *leaves: np.concatenate(leaves), *part) for part in zip(*fronts, strict=True)))


def best_with_ties(scores: np.ndarray, allowed: np.ndarray | None, words: Callable[[], np.ndarray]) -> np.ndarray:
    """The action of the largest score in each row [M, A]; among equal ones that with the largest word.

    Args:
      scores: [M, A].
      allowed: [M, A] bool, one at least in each row; None for all.
      words: called for [M, A] uint64 when a row has equals.
    """
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    top = scores == scores.max(axis=1, keepdims=True)
    if allowed is not None:
        top &= allowed  # where nothing that is allowed has a score
    if np.count_nonzero(top) > len(top):
        return np.where(top, words(), np.uint64(0)).argmax(axis=1)
    return top.argmax(axis=1)


@functools.lru_cache(maxsize=64)
def halving_table(passes: int, considered: int) -> np.ndarray:
    """[2, considered + 1, passes]: `puct.considered_visits` for passes and passes − 1, for each number of actions."""
    table = np.zeros((2, considered + 1, passes), np.int64)
    for spent in (0, 1):
        for actions in range(1, considered + 1):
            table[spent, actions, : passes - spent] = puct.considered_visits(actions, passes - spent)
    return table


# -- random numbers as functions of where they are used


def decision_tickets(seed: int, columns: np.ndarray, number: int) -> np.ndarray:
    """A word for each column [R] and this decision."""
    return (chance(seed, columns, number) * 2.0**53).astype(np.uint64)


def tie_words(tickets: np.ndarray, rows: np.ndarray, number: int, depths: np.ndarray, actions: int) -> np.ndarray:
    """Words that break ties in a pass at these depths [M], for the tickets of these rows [M]: [M, A]."""
    place = (depths.astype(np.uint64) << np.uint64(20)) + np.uint64((number << 40) + 1)
    return mix((tickets[rows] + place * GOLDEN)[:, None] + np.arange(actions, dtype=np.uint64) * GOLDEN)


def leaf_words(tickets: np.ndarray, number: int, depths: np.ndarray) -> np.ndarray:
    """A word for each leaf [M] that is expanded in a pass at these depths."""
    return hashed(tickets, _LEAF, number, depths)
