"""Evaluation of new leaves of a search: qualities of their actions, and a prior over them.

Shapes: M leaves, A actions, P pairs of a leaf and a legal action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from packtrain import trees
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import gumbels, hashed, uniforms
from packtrain.planning.model import Asking, Model, Stepped
from packtrain.planning.policy import discrete_actions
from packtrain.trees import Tree
from packtrain.types import Request

NETWORK = "agent"


class Leaves(NamedTuple):
    """M leaves to evaluate, with their states and observations."""

    model: Model
    rng: np.random.Generator  # used by the model
    discount: float
    states: Tree  # [M, ...]
    size: int  # M
    allowed: np.ndarray | None  # [M, A] bool; None: all actions are allowed
    words: Callable[[], np.ndarray]  # returns [M] uint64, one per leaf and pass: keys of random choices
    # receives model steps: [P] leaves, steps, actions, whether it is the first action
    tell: Callable[[np.ndarray, Stepped, np.ndarray, bool], None]


class Rating(NamedTuple):
    """The evaluation of M leaves."""

    qualities: np.ndarray  # [M, A]; arbitrary for actions that are not allowed
    logits: np.ndarray | None  # [M, A] of the prior; None: uniform


class NewLeafRater(Protocol):
    """Rates the actions of new leaves."""

    def heads(self, actions: int) -> dict[str, int]:
        """Return the requested outputs of the agent's network, {head: outputs}."""

    def rate(self, leaves: Leaves) -> Asking[Rating]:
        """Return qualities and priors of M leaves."""


@configurable
@dataclass(frozen=True)
class RolloutNewLeafRater:
    """One step with every action, and a rollout from there: q = r + discount · Σ discount^t r_t. Uniform priors."""

    rollout_time_limit: int = 100  # maximum number of steps after the first
    rollout_agent: Literal["logits"] | None = None  # None: uniform actions; "logits": sampled from the network's head

    def __post_init__(self) -> None:
        if self.rollout_time_limit < 1:
            raise ConfigError(f"RolloutNewLeafRater.rollout_time_limit = {self.rollout_time_limit} must be at least 1")

    def heads(self, actions: int) -> dict[str, int]:
        """Return the logits, if they choose the rollouts' actions."""
        return {"logits": actions} if self.rollout_agent else {}

    def rate(self, leaves: Leaves) -> Asking[Rating]:
        """Run all rollouts of all leaves together; finished ones are dropped."""
        model, actions = leaves.model, discrete_actions("StochasticMCTSAgent", leaves.model.action_space)
        owners, first = _pairs(leaves, actions)
        stepped = yield from model.step(trees.pick(leaves.states, owners), first, leaves.rng)
        leaves.tell(owners, stepped, first, True)
        returns = stepped.rewards.astype(np.float64)
        words = hashed(leaves.words()[owners], first)
        rows, states, weight = np.arange(len(returns)), stepped.states, 1.0
        for time in range(self.rollout_time_limit):
            going = np.flatnonzero(~stepped.terminated)
            if not len(going):
                break
            rows, states, weight = rows[going], trees.pick(states, going), weight * leaves.discount
            chosen = yield from self._act(model, states, words[rows], time, actions)
            stepped = yield from model.step(states, chosen, leaves.rng)
            leaves.tell(owners[rows], stepped, chosen, False)
            returns[rows] += weight * stepped.rewards.astype(np.float64)
            states = stepped.states
        qualities = np.zeros((leaves.size, actions))
        qualities[owners, first] = returns
        return Rating(qualities, None)

    def _act(self, model: Model, states: Tree, words: np.ndarray, time: int, actions: int) -> Asking[np.ndarray]:
        legal = model.legal(states)
        scores: np.ndarray | None = None
        if self.rollout_agent:
            answer = yield Request(NETWORK, model.observe(states))
            scores = answer["logits"] + gumbels(words, actions, time)
        elif legal is None:
            return (uniforms(hashed(words, time)) * actions).astype(np.int64)
        else:
            scores = uniforms(hashed(words[:, None], time, np.arange(actions)))
        return (scores if legal is None else np.where(possible(legal), scores, -np.inf)).argmax(axis=1)


@configurable
@dataclass(frozen=True)
class ValueNetworkNewLeafRater:
    """One step with every action, and the network's value of where it leads: q = r + discount · V, V = 0 at ends."""

    use_policy: bool = False  # priors from the head "logits" at the leaf; False: uniform

    def heads(self, actions: int) -> dict[str, int]:
        """Return values, and logits if they are the priors."""
        return {"value": 1, "logits": actions} if self.use_policy else {"value": 1}

    def rate(self, leaves: Leaves) -> Asking[Rating]:
        """Make one request for all successors, and for the leaves themselves if needed."""
        model, actions = leaves.model, discrete_actions("StochasticMCTSAgent", leaves.model.action_space)
        owners, first = _pairs(leaves, actions)
        stepped = yield from model.step(trees.pick(leaves.states, owners), first, leaves.rng)
        leaves.tell(owners, stepped, first, True)
        found = stepped.rewards.astype(np.float64)
        going = np.flatnonzero(~stepped.terminated)
        front = leaves.size if self.use_policy else 0
        logits = None
        if front or len(going):
            asked = model.observe(trees.pick(stepped.states, going))
            if front:
                asked = trees.map(lambda *pair: np.concatenate(pair), model.observe(leaves.states), asked)
            answer = yield Request(NETWORK, asked)
            found[going] += leaves.discount * answer["value"][front:, 0].astype(np.float64)
            logits = answer["logits"][:front] if front else None
        qualities = np.zeros((leaves.size, actions))
        qualities[owners, first] = found
        return Rating(qualities, logits)


@configurable
@dataclass(frozen=True)
class QualityNetworkNewLeafRater:
    """The network's qualities of all actions at the leaf, from its head "quality". The model is not stepped."""

    use_policy: bool = False  # priors from the head "logits"; False: uniform

    def heads(self, actions: int) -> dict[str, int]:
        """Return qualities, and logits if they are the priors."""
        return {"quality": actions, "logits": actions} if self.use_policy else {"quality": actions}

    def rate(self, leaves: Leaves) -> Asking[Rating]:
        """Make one request."""
        answer = yield Request(NETWORK, leaves.model.observe(leaves.states))
        return Rating(answer["quality"], answer["logits"] if self.use_policy else None)


def possible(legal: np.ndarray) -> np.ndarray:
    """Return the actions to try: the legal ones, or all if none is legal."""
    return legal | ~legal.any(axis=1, keepdims=True)


def _pairs(leaves: Leaves, actions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every leaf with each of its actions: two arrays [P]."""
    if leaves.allowed is not None:
        return np.nonzero(leaves.allowed)  # type: ignore[return-value]
    count = leaves.size
    return np.repeat(np.arange(count), actions), np.tile(np.arange(actions), count)
