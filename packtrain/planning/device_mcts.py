"""Batched MCTS with trees on the device: select, expand, evaluate and back up for B roots at once, in torch.

It makes the choices of `mcts_tree.py` with one leaf a pass, a deterministic model and a network that rates all actions
of a leaf (`QualityNetworkNewLeafRater`); start reading there, or with `packtrain/testing/plain_stochastic_mcts.py`. Two
things differ. Nodes hold the states of the model, so that a pass makes one model step, as in mctx (DeepMind, 2022). And
equal scores are decided by a generator on the device.

Memory is laid out for N passes when a search begins: pass k expands node k of every tree, unless it ends in a terminal
state. There are no loops over roots, nodes or actions; a descent is a loop over depth, which waits for the device once
a step.

Shapes: B roots, N passes and nodes, A actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from packtrain import check, trees
from packtrain.errors import ConfigError
from packtrain.trees import Tree

NO_NODE = -1


class DeviceModel(Protocol):
    """Deterministic dynamics over tensors on one device."""

    actions: int

    def step(self, states: Tree, actions: Tensor) -> tuple[Tree, Tensor, Tensor]:
        """Take actions [B] in states [B, ...]; return the states after, rewards [B] and whether they ended [B]."""

    def observe(self, states: Tree) -> Tree:
        """Return the network's inputs for the states, [B, ...]."""

    def legal(self, states: Tree) -> Tensor | None:
        """Return which actions may be taken, bool [B, A], at least one each; None: all, in every state."""


Evaluate = Callable[[Tree], tuple[Tensor, Tensor | None]]
"""Maps observations [B, ...] to qualities [B, A], and to logits [B, A] or None for equal priors."""


@dataclass(frozen=True)
class DeviceMCTS:
    """Settings of a search; those of `StochasticMCTSAgent` with the same names have the same meaning."""

    n_passes: int = 10
    discount: float = 0.99
    exploration_weight: float = 1.0
    rescale_qualities: Literal["no", "node", "tree"] = "no"  # bounds of min-max normalised qualities
    precision: torch.dtype = torch.float32  # of the trees' statistics

    def __post_init__(self) -> None:
        check.at_least(self, 1, "n_passes")
        check.share(self, "discount")
        check.not_negative(self, "exploration_weight")
        if self.rescale_qualities not in get_args(Literal["no", "node", "tree"]):
            raise ConfigError(
                f"DeviceMCTS.rescale_qualities = {self.rescale_qualities!r} is not one of 'no', 'node', 'tree'"
            )


class Found(NamedTuple):
    """Results of a search; the rating of an action counts as one visit."""

    action: Tensor  # [B] most visited; ties at random
    visits: Tensor  # [B, A]; 0 for actions that may not be taken
    qualities: Tensor  # [B, A] mean; 0 without visits
    value: Tensor  # [B] mean over visits
    priors: Tensor  # [B, A]
    depth: Tensor  # [B] mean depth of the passes


class DeviceTree:
    """The trees of B roots, as tensors. NO_NODE stands for a child that no pass has expanded."""

    def __init__(self, settings: DeviceMCTS, states: Tree, actions: int):
        front = trees.front(states)
        size, nodes, device = len(front), settings.n_passes, front.device
        statistics = {"dtype": settings.precision, "device": device}
        self.rows = torch.arange(size, device=device)
        self.children = torch.full((size, nodes, actions), NO_NODE, device=device)
        self.visits = torch.zeros(size, nodes, actions, **statistics)
        self.quality_sums = torch.zeros_like(self.visits)
        self.priors = torch.zeros_like(self.visits)
        self.rewards = torch.zeros_like(self.visits)  # of edges that were stepped
        self.ends = torch.zeros(size, nodes, actions, dtype=torch.bool, device=device)  # edges that end the episode
        self.states = trees.map(
            lambda leaf: torch.zeros((size, nodes, *leaf.shape[1:]), dtype=leaf.dtype, device=device), states
        )
        self.least = torch.full((size,), torch.inf, **statistics)
        self.most = -self.least


@torch.no_grad()
def search(
    settings: DeviceMCTS,
    model: DeviceModel,
    evaluate: Evaluate,
    states: Tree,
    generator: torch.Generator | None = None,
) -> Found:
    """Search from B roots and return the statistics of their actions.

    Args:
      settings: of the search.
      model: to step in, on the device of the states.
      evaluate: rates the actions of leaves.
      states: of the roots, [B, ...], none of which has ended.
      generator: decides ties, on the same device; None: torch's default one.
    """
    tree = DeviceTree(settings, states, model.actions)
    expand(settings, tree, model, evaluate, 0, states, torch.zeros_like(tree.rows, dtype=torch.bool))
    depths = torch.zeros(len(tree.rows), dtype=settings.precision, device=tree.rows.device)
    for number in range(1, settings.n_passes):
        path, lengths = select(settings, tree, number, generator)
        depths += lengths
        last = (lengths - 1).clamp(min=0)
        nodes, actions = (torch.stack(part)[last, tree.rows] for part in path)
        below = trees.map(lambda leaf, nodes=nodes: leaf[tree.rows, nodes], tree.states)
        after, rewards, ended = model.step(below, actions)
        edge = (tree.rows, nodes, actions)
        tree.rewards[edge], tree.ends[edge] = rewards.to(settings.precision), ended
        tree.children[edge] = torch.where(ended, NO_NODE, number)
        found = expand(settings, tree, model, evaluate, number, after, ended)
        back_up(settings, tree, path, lengths, torch.where(ended, 0.0, found))
    return _results(settings, tree, depths, generator)


def select(
    settings: DeviceMCTS, tree: DeviceTree, number: int, generator: torch.Generator | None
) -> tuple[tuple[list[Tensor], list[Tensor]], Tensor]:
    """Descend from all roots to edges without a child.

    Returns:
      Nodes and actions of the path, lists over depth of [B], and the numbers of edges [B]. Rows whose descent is over
      repeat their last edge.
    """
    nodes, actions = [torch.zeros_like(tree.rows)], list[Tensor]()
    visits = torch.full(tree.rows.shape, float(number), dtype=settings.precision, device=tree.rows.device)
    active = torch.ones_like(tree.rows, dtype=torch.bool)
    lengths = torch.zeros_like(tree.rows)
    while True:
        node = nodes[-1]
        chosen = _best(_scores(settings, tree, node, visits), generator)
        if actions:
            chosen = torch.where(active, chosen, actions[-1])
        actions.append(chosen)
        lengths += active
        child = tree.children[tree.rows, node, chosen]
        active = active & (child != NO_NODE)
        if not bool(active.any()):  # waits for the device
            return (nodes, actions), lengths
        visits = torch.where(active, tree.visits[tree.rows, node, chosen], visits)
        nodes.append(torch.where(active, child, node))


def expand(
    settings: DeviceMCTS,
    tree: DeviceTree,
    model: DeviceModel,
    evaluate: Evaluate,
    number: int,
    states: Tree,
    ended: Tensor,
) -> Tensor:
    """Rate all actions of node `number` of every tree, and return the quality of the best by exploratory score, [B].

    Where the episode has `ended` [B] no edge leads to the node, and what is in it does not count.
    """
    qualities, logits = evaluate(model.observe(states))
    qualities = qualities.to(settings.precision)
    trees.map(lambda mine, given: mine[:, number].copy_(given), tree.states, states)
    legal = model.legal(states)
    allowed = torch.ones_like(qualities, dtype=torch.bool) if legal is None else legal
    tree.visits[:, number] = allowed.to(settings.precision)
    tree.quality_sums[:, number] = torch.where(allowed, qualities, 0.0)
    weights = torch.zeros_like(qualities) if logits is None else logits.to(settings.precision)
    tree.priors[:, number] = torch.where(allowed, weights, -torch.inf).softmax(-1)
    low, high = (torch.where(allowed, qualities, far) for far in (torch.inf, -torch.inf))
    _widen(tree, torch.where(ended, torch.inf, low.amin(1)), torch.where(ended, -torch.inf, high.amax(1)))
    if logits is None:
        return high.amax(1)
    node, once = torch.full_like(tree.rows, number), torch.ones_like(qualities[:, 0])
    best = _scores(settings, tree, node, once).argmax(1)
    return qualities[tree.rows, best]


def back_up(
    settings: DeviceMCTS, tree: DeviceTree, path: tuple[list[Tensor], list[Tensor]], lengths: Tensor, found: Tensor
) -> None:
    """Go back to the roots by q ← r + discount · q, and enter q [B] in every edge of the path."""
    for depth in reversed(range(len(path[1]))):
        on = depth < lengths
        edge = (tree.rows, path[0][depth], path[1][depth])
        found = torch.where(on, tree.rewards[edge] + settings.discount * found, found)
        tree.visits[edge] += on
        tree.quality_sums[edge] += torch.where(on, found, 0.0)
        mean = tree.quality_sums[edge] / tree.visits[edge]
        _widen(tree, torch.where(on, mean, torch.inf), torch.where(on, mean, -torch.inf))


def _scores(settings: DeviceMCTS, tree: DeviceTree, node: Tensor, node_visits: Tensor) -> Tensor:
    """Return Q + exploration_weight · P √N / (N(a) + 1) of the actions of one node a tree, [B, A]; −∞ if illegal."""
    visits = tree.visits[tree.rows, node]
    allowed = visits > 0
    qualities = tree.quality_sums[tree.rows, node] / visits.clamp(min=1)
    if settings.rescale_qualities != "no":
        least, most = tree.least[:, None], tree.most[:, None]
        if settings.rescale_qualities == "node":
            low, high = (torch.where(allowed, qualities, far) for far in (torch.inf, -torch.inf))
            least, most = low.amin(1, keepdim=True), high.amax(1, keepdim=True)
        flat = torch.zeros_like(qualities) if settings.rescale_qualities == "node" else qualities
        qualities = torch.where(most > least, (qualities - least) / (most - least), flat)
    bonus = tree.priors[tree.rows, node] * node_visits.sqrt()[:, None] / (visits + 1)
    return torch.where(allowed, qualities + settings.exploration_weight * bonus, -torch.inf)


def _best(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the action of the largest score, ties at random, [B]."""
    noise = torch.rand(scores.shape, generator=generator, device=scores.device)
    return torch.where(scores == scores.amax(1, keepdim=True), noise, -1.0).argmax(1)


def _widen(tree: DeviceTree, least: Tensor, most: Tensor) -> None:
    tree.least, tree.most = torch.minimum(tree.least, least), torch.maximum(tree.most, most)


def _results(settings: DeviceMCTS, tree: DeviceTree, depths: Tensor, generator: torch.Generator | None) -> Found:
    visits, sums = tree.visits[:, 0], tree.quality_sums[:, 0]
    value = sums.sum(1) / visits.sum(1)
    action = _best(visits, generator)
    return Found(action, visits, sums / visits.clamp(min=1), value, tree.priors[:, 0], depths / settings.n_passes)
