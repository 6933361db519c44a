"""One pass of stochastic MCTS as functions: select, expand and back up, over trees of action sequences.

`MctsTree` is the data, `search` makes one pass for R environments at once. `stochastic_mcts.py` describes the algorithm
and calls this; start reading with `packtrain/testing/plain_stochastic_mcts.py`, which makes the same choices for one
environment with objects and loops.

Shapes: R roots, M of them with an unfinished pass, A actions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.equations import puct
from packtrain.hashing import GOLDEN, mix
from packtrain.planning.counter_rng import chance, dirichlet, hashed
from packtrain.planning.gumbel_root import gumbel_scores
from packtrain.planning.leaf_evaluators import Leaves, possible
from packtrain.planning.model import Asking, Model, Stepped
from packtrain.planning.nodes import NO_NODE, Nodes
from packtrain.trees import Tree

if TYPE_CHECKING:
    from packtrain.planning.stochastic_mcts import StochasticMCTSAgent

LEAF, NOISE, GUMBEL, SAMPLE, TIE = range(1, 6)  # purposes of random numbers
_COLLECT = 4096  # number of nodes above which unused ones are removed


class MctsTree:
    """The trees of B environments, as data.

    A node stands for a sequence of actions. Statistics belong to edges: children, visits, sums of qualities and priors
    of A actions at each node. The sentinel NO_NODE stands for a child, or a root, that no pass has reached.
    """

    def __init__(self, actions: int, columns: int):
        self.actions = actions
        self.nodes = Nodes(
            {
                "expanded": ((), bool, False),
                "children": ((actions,), np.int64, NO_NODE),
                # an evaluation counts as one visit; 0 for actions that were not allowed
                "visits": ((actions,), np.float64, 0.0),
                "quality_sums": ((actions,), np.float64, 0.0),
                "priors": ((actions,), np.float64, 0.0),
            }
        )
        self.roots = np.full(columns, NO_NODE, np.int64)  # the root node of each environment
        self.root_visits = np.zeros(
            columns
        )  # of the root itself: the visits of the edge that led to it, and later ones
        self.collect_at = _COLLECT  # number of nodes
        self.least, self.most = np.full(columns, np.inf), np.full(columns, -np.inf)  # qualities of the episode so far

    def forget(self, columns: np.ndarray) -> None:
        """Remove the trees of these environments."""
        self.nodes.forget(columns)
        self.roots[columns] = NO_NODE
        self.root_visits[columns] = 0
        self.least[columns], self.most[columns] = np.inf, -np.inf

    def widen(self, columns: np.ndarray, least: np.ndarray, most: np.ndarray) -> None:
        """Widen the range of qualities of environments [M], some of which may be equal."""
        np.minimum.at(self.least, columns, least)
        np.maximum.at(self.most, columns, most)

    def root_nodes(self, columns: np.ndarray) -> np.ndarray:
        """Return the roots of environments [R], added where there are none."""
        fresh = columns[self.roots[columns] == NO_NODE]
        self.roots[fresh] = self.nodes.add(fresh)
        return self.roots[columns]

    def move_roots(self, columns: np.ndarray, ids: np.ndarray, actions: np.ndarray) -> None:
        """Make the children by the chosen actions the roots; NO_NODE if no pass went there."""
        self.root_visits[columns] = self.nodes.visits[ids, actions]
        self.roots[columns] = self.nodes.children[ids, actions]

    def collect(self) -> None:
        """Remove the nodes that no root leads to, if there are many nodes."""
        if len(self.nodes) <= self.collect_at:
            return
        frontier = self.roots[self.roots != NO_NODE]
        alive = []
        while len(frontier):
            alive.append(frontier)
            frontier = self.nodes.children[frontier].ravel()
            frontier = frontier[frontier != NO_NODE]
        self.nodes.keep(np.concatenate(alive) if alive else frontier)
        self.collect_at = max(_COLLECT, 4 * len(self.nodes))

    def add_children(self, front: Front, columns: np.ndarray) -> Front:
        """Add nodes for the members of a front that have none; `columns` [R] are the environments of all rows."""
        missing = np.flatnonzero(front.ids == NO_NODE)
        if len(missing):
            made = self.nodes.add(columns[front.rows[missing]])
            front.ids[missing] = made
            self.nodes.children.reshape(-1)[front.edges[missing]] = made
        return front


@dataclass
class Decision:
    """The data of one decision for R roots."""

    columns: np.ndarray  # [R] environments
    states: Tree  # [R, ...]
    ids: np.ndarray  # [R] root nodes
    legal: np.ndarray | None  # [R, A] bool
    tickets: np.ndarray  # [R] uint64 words, from which all random choices of this decision are computed
    gumbel: np.ndarray | None  # [R, A]
    tried: np.ndarray  # [R, A] passes of this decision through each action
    begun: np.ndarray  # [R] the first pass that tries actions: 1 if pass 0 only expands the root, else 0
    priors: np.ndarray  # [R, A] priors of expanded roots, with noise
    depth_sum: np.ndarray  # [R] sum of depths over the passes
    depth_max: np.ndarray  # [R]


class Front(NamedTuple):
    """Nodes that the passes have reached."""

    rows: np.ndarray  # [M] pass of each entry
    ids: np.ndarray  # [M] nodes; NO_NODE if not created yet
    edges: np.ndarray  # [M] edges that led there, as node · A + action; NO_NODE at a root
    states: Tree  # [M, ...]
    visits: np.ndarray  # [M] visits of the nodes
    depths: np.ndarray  # [M] steps from the root

    def pick(self, some: np.ndarray) -> Front:
        """Return the selected entries."""
        states = trees.pick(self.states, some)
        return Front(self.rows[some], self.ids[some], self.edges[some], states, self.visits[some], self.depths[some])


class Step(NamedTuple):
    """One step of M passes."""

    rows: np.ndarray  # [M]
    sources: np.ndarray  # [M] nodes
    actions: np.ndarray  # [M]
    edges: np.ndarray  # [M]
    stepped: Stepped


class Pass:
    """One pass from each of R roots: its steps, and the qualities at its ends."""

    def __init__(self, decision: Decision, number: int):
        self.decision, self.number = decision, number
        self.steps: list[Step] = []
        self.found = np.zeros(len(decision.columns))  # [R] quality that is backed up; 0 after an end


def search(
    tree: MctsTree,
    agent: StochasticMCTSAgent,
    decision: Decision,
    number: int,
    select: Callable[[MctsTree, StochasticMCTSAgent, Pass, Front], Asking[Front | None]],
    expand: Callable[[MctsTree, StochasticMCTSAgent, Pass, Front], Asking[np.ndarray]],
    back_up: Callable[[MctsTree, StochasticMCTSAgent, Pass], None],
    report: Callable[[list[Step]], None],
) -> Asking[None]:
    """Make one pass from each root: `n_leaves_to_expand` times select and expand a leaf, then back up once.

    Args:
      tree: of all environments.
      agent: settings.
      decision: the roots, and data of the decision.
      number: of the pass.
      select: descends from a front to leaves; None if there are none.
      expand: expands and evaluates leaves [M]; returns the quality of their best actions, [M].
      back_up: adds the qualities at the ends to the edges of the pass.
      report: receives the model steps.
    """
    one, size = Pass(decision, number), len(decision.columns)
    nowhere, depths = np.full(size, NO_NODE, np.int64), np.zeros(size, np.int64)
    visits = tree.root_visits[decision.columns]
    front: Front | None = Front(np.arange(size), decision.ids, nowhere, decision.states, visits, depths)
    for _ in range(agent.n_leaves_to_expand):
        assert front is not None
        reported = len(one.steps)
        front = yield from select(tree, agent, one, front)
        report(one.steps[reported:])
        if front is None:
            break
        one.found[front.rows] = yield from expand(tree, agent, one, front)
        if agent.depth_limit is not None:
            front = front.pick(np.flatnonzero(front.depths < agent.depth_limit))
            if not len(front.rows):
                break
    back_up(tree, agent, one)


def select(
    tree: MctsTree,
    agent: StochasticMCTSAgent,
    one: Pass,
    front: Front,
    model: Model,
    rng: np.random.Generator,
) -> Asking[Front | None]:
    """Descend until all passes have reached a leaf, an end or the depth limit; return the leaves, None without any."""
    nodes, leaves, may_be_root = tree.nodes, [], True
    inner = nodes.expanded[front.ids]
    if not inner.all():  # new roots
        leaves.append(front.pick(np.flatnonzero(~inner)))
        front = front.pick(np.flatnonzero(inner))
    while len(front.rows):
        if agent.depth_limit is not None and (front.depths == agent.depth_limit).any():
            over = front.depths == agent.depth_limit
            ids = front.ids[over]
            one.found[front.rows[over]] = nodes.quality_sums[ids].sum(axis=1) / nodes.visits[ids].sum(axis=1)
            front = front.pick(np.flatnonzero(~over))
            continue
        actions, _ = best_actions(tree, agent, one, front, model, may_be_root)
        may_be_root = False
        stepped = yield from model.step(front.states, actions, rng)
        edges = front.ids * tree.actions + actions
        one.steps.append(Step(front.rows, front.ids, actions, edges, stepped))
        one.found[front.rows] = 0.0
        children, visits = nodes.children.reshape(-1).take(edges), nodes.visits.reshape(-1).take(edges)
        front = Front(front.rows, children, edges, stepped.states, visits, front.depths + 1)
        inner = children != NO_NODE  # all nodes but roots are expanded
        inner &= ~stepped.terminated
        going = np.flatnonzero(inner)
        if len(going) < len(inner):
            new = np.flatnonzero(~(inner | stepped.terminated))
            if len(new):
                leaves.append(front.pick(new))
            front = front.pick(going)
    return tree.add_children(_joined(leaves), one.decision.columns) if leaves else None


def expand(
    tree: MctsTree,
    agent: StochasticMCTSAgent,
    one: Pass,
    leaves: Front,
    model: Model,
    rng: np.random.Generator,
    report: Callable[..., None],
) -> Asking[np.ndarray]:
    """Evaluate the actions of leaves, and record each evaluation as the action's first visit.

    Args:
      tree: of all environments.
      agent: settings.
      one: the pass.
      leaves: M nodes that are not expanded.
      model: to step in.
      rng: for the model.
      report: receives the environments and nodes of the leaves, and the steps made from them.

    Returns:
      [M] the quality of the action with the largest exploratory score of each leaf.
    """
    nodes, ids, decision = tree.nodes, leaves.ids, one.decision
    allowed = None if decision.legal is None else legal_actions(model, leaves.states)
    tickets = decision.tickets[leaves.rows]
    words = functools.partial(leaf_words, tickets, one.number, leaves.depths)
    told = functools.partial(report, decision.columns[leaves.rows], ids)
    asked = Leaves(model, rng, agent.discount, leaves.states, len(ids), allowed, words, told)
    rating = yield from agent.new_leaf_rater.rate(asked)
    qualities = rating.qualities.astype(np.float64)
    if agent.leaf_quality_dampening != 1 or agent.leaf_quality_bias != 0:
        qualities = qualities * agent.leaf_quality_dampening + agent.leaf_quality_bias
    if allowed is None:
        nodes.visits[ids] = 1
        nodes.quality_sums[ids] = qualities
        nodes.priors[ids] = 1 / tree.actions if rating.logits is None else puct.softmax(rating.logits)
    else:
        nodes.visits[ids] = allowed
        nodes.quality_sums[ids] = np.where(allowed, qualities, 0.0)
        logits = rating.logits
        nodes.priors[ids] = puct.histogram(allowed) if logits is None else puct.softmax(logits, allowed)
    nodes.expanded[ids] = True
    if agent.rescale_over == "tree":
        bounds = (np.where(nodes.visits[ids] > 0, qualities, blank) for blank in (np.inf, -np.inf))
        low, high = bounds
        tree.widen(decision.columns[leaves.rows], low.min(axis=1), high.max(axis=1))
    prepare_roots(tree, agent, decision, leaves.rows[leaves.depths == 0])
    if rating.logits is None:  # equal bonuses: the best action with exploration is also the best without
        best: np.ndarray = (qualities if allowed is None else np.where(allowed, qualities, -np.inf)).max(axis=1)
        return best
    actions, qualities = best_actions(tree, agent, one, leaves, model, False)
    return qualities[np.arange(len(ids)), actions]


def back_up(tree: MctsTree, agent: StochasticMCTSAgent, one: Pass) -> None:
    """Go back to the roots by q ← r + discount · q, and enter q in every edge of the pass."""
    decision, path, found = one.decision, one.steps, one.found
    tree.root_visits[decision.columns] += 1
    if not path:
        return
    depths, entered = np.zeros(len(found), np.int64), []
    for step in reversed(path):
        back = step.stepped.rewards + agent.discount * found[step.rows]
        found[step.rows] = back
        depths[step.rows] += 1
        entered.append(back)
    edges = np.concatenate([step.edges for step in reversed(path)])  # no edge occurs twice
    tree.nodes.visits.reshape(-1)[edges] += 1
    tree.nodes.quality_sums.reshape(-1)[edges] += np.concatenate(entered)
    if agent.rescale_over == "tree":
        means = tree.nodes.quality_sums.reshape(-1)[edges] / tree.nodes.visits.reshape(-1)[edges]
        tree.widen(decision.columns[np.concatenate([step.rows for step in reversed(path)])], means, means)
    if decision.gumbel is not None:
        first = np.full(len(found), NO_NODE, np.int64)  # a root that was a leaf is left in a later pass than the others
        for step in reversed(path):
            first[step.rows] = step.actions
        rows = np.flatnonzero(first != NO_NODE)
        decision.tried[rows, first[rows]] += 1
    decision.depth_sum += depths
    np.maximum(decision.depth_max, depths, out=decision.depth_max)


def prepare_roots(tree: MctsTree, agent: StochasticMCTSAgent, decision: Decision, rows: np.ndarray) -> None:
    """Set this decision's priors of expanded roots, with noise. Those in the tree stay as they are."""
    if not len(rows):
        return
    ids = decision.ids[rows]
    priors = tree.nodes.priors[ids]
    if agent.prior_noise_weight > 0:
        words = hashed(decision.tickets[rows], NOISE)
        noise = dirichlet(words, agent.prior_noise_parameter, tree.nodes.visits[ids] > 0)
        priors = (1 - agent.prior_noise_weight) * priors + agent.prior_noise_weight * noise
    decision.priors[rows] = priors


# -- choices


def best_actions(
    tree: MctsTree, agent: StochasticMCTSAgent, one: Pass, front: Front, model: Model, may_be_root: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the action with the largest exploratory score of each node [M], and the qualities of all actions [M, A].

    Roots have a rule of their own, which is applied only if `may_be_root`.
    """
    nodes, ids, decision = tree.nodes, front.ids, one.decision
    visits, sums = nodes.visits.take(ids, axis=0), nodes.quality_sums.take(ids, axis=0)
    if decision.legal is None:
        qualities, allowed = sums / visits, None
    else:
        qualities = sums / np.maximum(visits, 1)
        allowed = visits > 0 if model.deterministic else legal_actions(model, front.states)
    roots = np.flatnonzero(front.depths == 0) if may_be_root else ids[:0]
    if agent.bonus == "puct":
        priors = nodes.priors.take(ids, axis=0)
        if len(roots):
            priors[roots] = decision.priors[front.rows[roots]]
        bonus = puct.puct_bonus(priors, visits, front.visits)
    else:
        bonus = puct.ucb_bonus(visits, front.visits)
    worth = qualities
    if agent.rescale_over == "tree":
        columns = decision.columns[front.rows]
        worth = puct.rescaled_in_range(qualities, tree.least[columns], tree.most[columns])
    elif agent.rescale_qualities:
        worth = puct.rescaled_qualities(qualities, allowed)
    scores = worth + agent.exploration_weight * bonus
    if len(roots) and agent.root_selection == "gumbel":
        scores[roots] = gumbel_scores(tree, agent, decision, one.number, front.rows[roots])
    tie = functools.partial(tie_words, decision.tickets, front.rows, one.number, front.depths, tree.actions)
    return best_with_ties(scores, allowed, tie), qualities


def best_with_ties(scores: np.ndarray, allowed: np.ndarray | None, words: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the action of the largest score in each row [M, A]; among equal ones that with the largest word.

    Args:
      scores: [M, A].
      allowed: [M, A] bool, at least one in each row; None for all.
      words: returns [M, A] uint64; called if a row has equal scores.
    """
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    top = scores == scores.max(axis=1, keepdims=True)
    if allowed is not None:
        top &= allowed  # for rows in which no allowed action has a score
    if np.count_nonzero(top) > len(top):
        return np.where(top, words(), np.uint64(0)).argmax(axis=1)
    chosen: np.ndarray = top.argmax(axis=1)
    return chosen


def legal_actions(model: Model, states: Tree) -> np.ndarray:
    """Return which actions may be tried in states [M], bool [M, A]."""
    legal = model.legal(states)
    assert legal is not None, "a model says which actions may be taken in all of its states, or in none"
    return possible(legal)


def _joined(fronts: list[Front]) -> Front:
    """Return several fronts as one."""
    if len(fronts) == 1:
        return fronts[0]

    def join(*parts: Any) -> Any:
        return trees.map(lambda *leaves: np.concatenate(leaves), *parts)

    return Front(*(join(*parts) for parts in zip(*fronts, strict=True)))


# -- random words, computed from the place where they are used


def decision_tickets(seed: int, columns: np.ndarray, number: int) -> np.ndarray:
    """Return a word for each environment [R] and this decision."""
    words: np.ndarray = (chance(seed, columns, number) * 2.0**53).astype(np.uint64)
    return words


def tie_words(tickets: np.ndarray, rows: np.ndarray, number: int, depths: np.ndarray, actions: int) -> np.ndarray:
    """Return words [M, A] that break ties in a pass at these depths [M], for the tickets of these rows [M]."""
    place = (depths.astype(np.uint64) << np.uint64(20)) + np.uint64((number << 40) + 1)
    return mix((tickets[rows] + place * GOLDEN)[:, None] + np.arange(actions, dtype=np.uint64) * GOLDEN)


def leaf_words(tickets: np.ndarray, number: int, depths: np.ndarray) -> np.ndarray:
    """Return a word for each leaf [M] that is expanded in a pass at these depths."""
    return hashed(tickets, LEAF, number, depths)
