"""Agents that act by a network's logits, and the distributions they act by.

Distributions are functions of arrays [M, A]. An action that may not be taken has probability 0; where nothing may be
taken, everything may.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import Listener
from packtrain.planning.model import Asking, Model
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.schedules import Schedule, scheduled
from packtrain.trees import Tree
from packtrain.types import Request

NETWORK = "agent"
LOG_OF_ZERO = float(np.log(np.finfo(np.float32).tiny))  # −87.3: reported for the logarithm of a probability of 0


class Distribution(NamedTuple):
    """Probabilities of A actions in M states, and what follows from them. All finite."""

    prob: np.ndarray  # [M, A]
    logp: np.ndarray  # [M, A], at least LOG_OF_ZERO
    entropy: np.ndarray  # [M] in nats

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Return actions [M] by Gumbel-max: largest log-probability plus Gumbel noise, from uniform noise [M, A]."""
        gumbel = -np.log(-np.log(np.maximum(noise, 2.0**-54)))  # 0 has no logarithm, and may be sampled
        return np.where(self.prob > 0, self.logp + gumbel, -np.inf).argmax(axis=1)


def categorical(logits: np.ndarray, temperature: float = 1.0, legal: np.ndarray | None = None) -> Distribution:
    """Return the softmax of logits / temperature."""
    scaled = np.where(_possible(legal), logits, -np.inf) if legal is not None else logits
    scaled = (scaled - scaled.max(axis=1, keepdims=True)) / temperature
    logp = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    return _finite(np.exp(logp), logp)


def epsilon_greedy(logits: np.ndarray, epsilon: float, legal: np.ndarray | None = None) -> Distribution:
    """Return the first arg-max of the logits, or with probability epsilon any action, that one included."""
    possible = np.ones(logits.shape, bool) if legal is None else _possible(legal)
    prob = possible * (epsilon / possible.sum(axis=1, keepdims=True))
    greedy = np.where(possible, logits, -np.inf).argmax(axis=1)
    prob[np.arange(len(prob)), greedy] += 1.0 - epsilon
    return _finite(prob, np.log(prob, out=np.full_like(prob, -np.inf), where=prob > 0))


def dirichlet(alpha: float, size: int, seed: int, *counters: np.ndarray | int) -> np.ndarray:
    """Return samples [M, size] of the symmetric Dirichlet distribution, one for each of M keys of `chance`.

    Gamma variates by Marsaglia and Tsang 2000, "A simple method for generating gamma variables", for alpha + 1, then
    converted to alpha as logarithms: with alpha = 0.03 most of them are below the smallest float.
    """
    places = [np.atleast_1d(counter)[:, None] for counter in counters]
    shape = np.broadcast_shapes(*[place.shape for place in places], (1, size))
    d = alpha + 1 - 1 / 3
    c = 1 / np.sqrt(9 * d)
    log_gamma, open_, attempt = np.zeros(shape), np.ones(shape, bool), 0
    while open_.any():  # at most one in twenty is rejected
        normal = normals(seed, *places, attempt, np.arange(size))
        uniform = np.maximum(chance(seed, *places, attempt, 2, np.arange(size)), 2.0**-54)
        cubed = (1 + c * normal) ** 3
        positive = np.maximum(cubed, 2.0**-54)
        good = (cubed > 0) & (np.log(uniform) < normal**2 / 2 + d - d * cubed + d * np.log(positive))
        log_gamma = np.where(open_ & good, np.log(d * positive), log_gamma)
        open_ &= ~good
        attempt += 1
    last = np.maximum(chance(seed, *places, 0, 3, np.arange(size)), 2.0**-54)
    log_gamma = log_gamma + np.log(last) / alpha
    weights = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def normals(seed: int, *counters: np.ndarray | int) -> np.ndarray:
    """Return standard normal numbers by their keys in `chance` (Box and Muller 1958)."""
    *outer, last = counters  # the last counter is usually the longest; counters before it are hashed only once
    radius = np.sqrt(-2 * np.log1p(-chance(seed, *outer, 0, last)))
    return radius * np.cos(2 * np.pi * chance(seed, *outer, 1, last))


class PolicyAgent(Protocol):
    """An agent that acts by a distribution over actions. Planners use it for their rollouts too."""

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return the network outputs that are needed; empty if the distribution needs no logits."""

    def distribution(self, logits: np.ndarray, legal: np.ndarray | None) -> Distribution:
        """Return probabilities for logits [M, A] of the legal actions [M, A]; None: all are legal."""


@configurable
@dataclass(frozen=True)
class SoftmaxAgent:
    """Acts by softmax(logits / temperature)."""

    temperature: float = 1.0
    with_critic: bool = False  # also request a value from the network, for learners that use it
    annealing: Schedule | None = None  # temperature over epochs; None: constant

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(
                f"SoftmaxAgent.temperature = {self.temperature} must be above 0; EpsilonGreedyAgent.epsilon = 0 is "
                "greedy"
            )

    @property
    def parameter_schedules(self) -> dict[str, Schedule]:
        """Return the annealing in the form that `scheduled` expects."""
        return {} if self.annealing is None else {"temperature": self.annealing}

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return logits, and with a critic a value."""
        return policy_heads("SoftmaxAgent", action_space, self.with_critic)

    def distribution(self, logits: np.ndarray, legal: np.ndarray | None) -> Distribution:
        """Return the softmax of logits / temperature."""
        return categorical(logits, self.temperature, legal)

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> PolicyPlanner:
        """Return a planner that does not search."""
        return PolicyPlanner(self, model, columns, seed)


@configurable
@dataclass(frozen=True)
class EpsilonGreedyAgent:
    """Acts by the largest logit, and with probability epsilon uniformly at random."""

    epsilon: float = 0.05
    with_critic: bool = False  # also request a value from the network, for learners that use it
    annealing: Schedule | None = None  # epsilon over epochs; None: constant

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"EpsilonGreedyAgent.epsilon = {self.epsilon} must be from 0 to 1")

    @property
    def parameter_schedules(self) -> dict[str, Schedule]:
        """Return the annealing in the form that `scheduled` expects."""
        return {} if self.annealing is None else {"epsilon": self.annealing}

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return logits, and with a critic a value."""
        return policy_heads("EpsilonGreedyAgent", action_space, self.with_critic)

    def distribution(self, logits: np.ndarray, legal: np.ndarray | None) -> Distribution:
        """Return the ε-greedy distribution of the logits."""
        return epsilon_greedy(logits, self.epsilon, legal)

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> PolicyPlanner:
        """Return a planner that does not search."""
        return PolicyPlanner(self, model, columns, seed)


class PolicyPlanner:
    """Samples actions from a network's policy: one request per decision, no model steps.

    The parameters of the newest epoch that any environment has begun hold for all.
    """

    def __init__(self, agent: Any, model: Model, columns: int, seed: int):
        self._agent, self._model, self._seed = agent, model, seed
        self._critic = "value" in agent.heads(model.action_space)[NETWORK]
        self._actions = discrete_actions(type(agent).__name__, model.action_space)
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self._now = scheduled(agent, 0)

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Use the parameters of the epoch."""
        self._now = scheduled(self._agent, epoch)

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Request the policy's logits, and sample actions."""
        answer = yield Request(NETWORK, self._model.observe(roots.states))
        logits = answer["logits"]
        now = self._now.distribution(logits, self._model.legal(roots.states))
        extras = {"logits": logits, "prob": now.prob, "logp": now.logp, "entropy": now.entropy}
        if self._critic:
            extras["value"] = answer["value"][:, 0]
        count, self.decisions = self.decisions, self.decisions + 1
        noise = chance(self._seed, roots.columns[:, None], count, np.arange(self._actions))
        return Plan(now.sample(noise), {name: array.astype(np.float32) for name, array in extras.items()})

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Do nothing: outcomes are not used."""


def policy_heads(owner: str, action_space: gym.Space, with_critic: bool) -> dict[str, dict[str, int]]:
    """Return logits, and with a critic a value, of the agent's network."""
    heads = {"logits": discrete_actions(owner, action_space)}
    return {NETWORK: {**heads, "value": 1} if with_critic else heads}


def discrete_actions(owner: str, space: gym.Space) -> int:
    """Return the number of actions; ConfigError unless they are numbered from 0."""
    if not isinstance(space, gym.spaces.Discrete):
        raise ConfigError(f"{owner} plans over Discrete actions, and this environment's action space is {space}")
    if space.start != 0:
        raise ConfigError(f"{owner} plans over actions that count from 0, and this environment's are {space}")
    return int(space.n)


def _possible(legal: np.ndarray) -> np.ndarray:
    return legal | ~legal.any(axis=1, keepdims=True)


def _finite(prob: np.ndarray, logp: np.ndarray) -> Distribution:
    logp = np.maximum(logp, LOG_OF_ZERO)
    return Distribution(prob, logp, -(prob * logp).sum(axis=1))
