"""Batched rollouts in a model, and estimates of their returns.

All rollouts make their next step together, in one call of the model; finished ones are left out from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import Listener, ModelSteps
from packtrain.planning.model import Asking, Model
from packtrain.planning.policy import NETWORK, Distribution, PolicyAgent, categorical
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.rollout_records import KEPT_LEVELS, Taken
from packtrain.trees import Tree
from packtrain.types import Request

EstimateFn = Literal["truncated_return", "bootstrap_return_with_value"]

BLOCK = 32  # steps for which uniform noise is sampled at once


class Uniform:
    """Uniformly random legal actions: the default rollout policy."""

    legal_only = True

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return no heads: no network is used."""
        return {}

    def distribution(self, logits: np.ndarray, legal: np.ndarray | None) -> Distribution:
        """Return equal probabilities, whatever the logits [M, A]."""
        return categorical(np.zeros_like(logits), legal=legal)


class Places(NamedTuple):
    """Identifies N rollouts, so that each has its own random numbers."""

    columns: np.ndarray  # [N] environment columns
    decisions: np.ndarray  # [N] decisions made before
    numbers: np.ndarray  # [N] number of the rollout within the decision


class Rollouts(NamedTuple):
    """N finished rollouts."""

    returns: np.ndarray  # [N] float64, discounted
    lengths: np.ndarray  # [N] int64, steps
    terminated: np.ndarray  # [N] bool; the others were truncated
    truncated_states: Tree  # [K, ...] the last states of those
    entropy: np.ndarray  # [N] float64, the sum over the choices made; 0 where no network was asked
    taken: list[Taken]  # the steps, time by time; empty without a listener


def roll_out(
    model: Model,
    agent: PolicyAgent,
    states: Tree,
    places: Places,
    *,
    limit: int,
    discount: float,
    seed: int,
    rng: np.random.Generator,
    first: np.ndarray | None = None,
    listener: Listener | None = None,
) -> Asking[Rollouts]:
    """Act in N states until the end, but no longer than `limit` steps.

    Args:
      model: to act in.
      agent: acts.
      states: [N, ...] to start from; none of them has ended.
      places: of the rollouts.
      limit: steps.
      discount: γ.
      seed: of the agent's choices.
      rng: for the model.
      first: [N] first actions; None: the agent's.
      listener: receives the model steps; they are kept in the result, too.
    """
    count = len(places.columns)
    returns, entropy = np.zeros(count), np.zeros(count)
    lengths, terminated = np.full(count, limit), np.zeros(count, bool)
    alive = np.arange(count)
    choices = _Choices(model, agent, places, seed, limit)
    weight, taken = 1.0, list[Taken]()
    for time in range(limit):
        if time == 0 and first is not None:
            actions = first
        else:
            actions, spread = yield from choices.make(states, alive, time)
            if spread is not None:
                entropy[alive] += spread
        stepped = yield from model.step(states, actions, rng)
        states = stepped.states
        if listener is not None:
            tell_steps(listener, places.columns[alive], actions, states, stepped.rewards, stepped.terminated)
            kept_states = states if time < KEPT_LEVELS else None
            taken.append(Taken(alive, actions, stepped.rewards, stepped.terminated, kept_states))
        returns[alive] += weight * stepped.rewards
        weight *= discount
        if stepped.terminated.any():
            over, kept = alive[stepped.terminated], np.flatnonzero(~stepped.terminated)
            lengths[over], terminated[over] = time + 1, True
            alive, states = alive[kept], trees.map(lambda leaf, kept=kept: leaf[kept], states)
            choices.keep(kept)
            if not len(alive):
                break
    return Rollouts(returns, lengths, terminated, states, entropy, taken)


def estimate(model: Model, rollouts: Rollouts, discount: float, estimate_fn: EstimateFn) -> Asking[np.ndarray]:
    """Return the estimated values of N rollouts, float64 [N].

    truncated_return:             Σ γ^t r_t
    bootstrap_return_with_value:  the same, plus γ^length · V(last state) where the rollout was truncated
    """
    if estimate_fn == "truncated_return" or rollouts.terminated.all():
        return rollouts.returns
    answer = yield Request(NETWORK, model.observe(rollouts.truncated_states))
    truncated = np.flatnonzero(~rollouts.terminated)
    returns = rollouts.returns.copy()
    returns[truncated] += discount ** rollouts.lengths[truncated] * answer["value"][:, 0]
    return returns


def open_loop(
    model: Model,
    states: Tree,
    columns: np.ndarray,
    actions: np.ndarray,
    *,
    discount: float,
    rng: np.random.Generator,
    listener: Listener | None = None,
    value_network: str | None = None,
) -> Asking[tuple[np.ndarray, np.ndarray]]:
    """Return the returns of given sequences of actions, in one native call if the model's core has a `rollout`.

    Args:
      model: to act in.
      states: [N, ...] to start from.
      columns: [N] environments, for the listener.
      actions: [N, H, ...] in the model's units.
      discount: γ.
      rng: for the model.
      listener: receives the steps.
      value_network: whose head "value" rates the last states of sequences that did not end, added times γ^H; None: 0.

    Returns:
      discounted returns up to the end [N] float64; steps made [N] int64.
    """
    horizon = actions.shape[1]
    native = getattr(getattr(model, "core", None), "rollout", None)
    if native is not None:
        after, rewards, terminated = native(states, actions)
        over = np.zeros(rewards.shape, bool)
        np.logical_or.accumulate(terminated[:, :-1], axis=1, out=over[:, 1:])  # whether it ended before this step
        if listener is not None:
            for time in range(horizon):
                on = np.flatnonzero(~over[:, time])
                there = trees.map(lambda leaf, on=on, time=time: leaf[on, time], after)
                tell_steps(listener, columns[on], actions[on, time], there, rewards[on, time], terminated[on, time])
        returns = np.where(over, 0.0, rewards) @ discount ** np.arange(horizon)
        alive = np.flatnonzero(~over[:, -1] & ~terminated[:, -1])
        if value_network is not None and len(alive):
            last = trees.map(lambda leaf: leaf[alive, -1], after)
            returns[alive] += discount**horizon * (yield from _values(model, value_network, last))
        return returns, (~over).sum(axis=1)
    returns, steps = np.zeros(len(columns)), np.zeros(len(columns), np.int64)
    alive, weight = np.arange(len(columns)), 1.0
    for time in range(horizon):
        stepped = yield from model.step(states, actions[alive, time], rng)
        states = stepped.states
        if listener is not None:
            tell_steps(listener, columns[alive], actions[alive, time], states, stepped.rewards, stepped.terminated)
        returns[alive] += weight * stepped.rewards
        steps[alive] += 1
        weight *= discount
        if stepped.terminated.any():
            kept = np.flatnonzero(~stepped.terminated)
            alive, states = alive[kept], trees.map(lambda leaf, kept=kept: leaf[kept], states)
            if not len(alive):
                break
    if value_network is not None and len(alive):
        returns[alive] += weight * (yield from _values(model, value_network, states))
    return returns, steps


def follow_policy(
    model: Model,
    states: Tree,
    columns: np.ndarray,
    noise: np.ndarray,
    *,
    network: str,
    to_env: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    listener: Listener | None = None,
) -> Asking[np.ndarray]:
    """Return the sequences of actions [N, H, D] in [−1, 1] that a network's head "action" takes in a model.

    Args:
      model: to act in.
      states: [N, ...] to start from.
      columns: [N] environments, for the listener.
      noise: [N, H, D] added to the network's actions.
      network: whose head "action" is asked.
      to_env: actions [N, D] in [−1, 1] → the model's units.
      rng: for the model.
      listener: receives the steps, one fewer than actions: the last state is not needed.
    """
    taken = np.empty(noise.shape)
    for time in range(noise.shape[1]):
        answer = yield Request(network, model.observe(states))
        taken[:, time] = np.clip(np.nan_to_num(answer["action"]) + noise[:, time], -1.0, 1.0)
        if time + 1 < noise.shape[1]:
            actions = to_env(taken[:, time])
            stepped = yield from model.step(states, actions, rng)
            states = stepped.states
            if listener is not None:
                tell_steps(listener, columns, actions, states, stepped.rewards, stepped.terminated)
    return taken


def _values(model: Model, network: str, states: Tree) -> Asking[np.ndarray]:
    """Return the network's values of states, [N] float64."""
    answer = yield Request(network, model.observe(states))
    values: np.ndarray = answer["value"][:, 0].astype(np.float64)
    return values


def tell_steps(
    listener: Listener,
    columns: np.ndarray,
    actions: np.ndarray,
    states: Tree,
    rewards: np.ndarray,
    terminated: np.ndarray,
) -> None:
    """Report steps between states that are not stored."""
    nowhere = np.full(len(columns), -1)
    listener.model_steps(ModelSteps(columns, nowhere, nowhere, states, actions, rewards, terminated))


def repeat(tree: Tree, times: int) -> Tree:
    """Repeat each of R states several times in a row: [R, ...] → [R · times, ...]."""
    return trees.map(lambda leaf: np.repeat(leaf, times, axis=0), tree)


def uniform_actions(noise: np.ndarray, actions: int, legal: np.ndarray | None) -> np.ndarray:
    """Return actions [M] for uniform noise [M]: uniform over the legal ones [M, A], or over all if none is legal."""
    if legal is None:
        return (noise * actions).astype(np.int64)
    possible = legal | ~legal.any(axis=1, keepdims=True)
    ranks = (noise * possible.sum(axis=1)).astype(np.int64)
    return (possible.cumsum(axis=1) > ranks[:, None]).argmax(axis=1)


class _Choices:
    """Chooses the actions of each rollout, step by step."""

    def __init__(self, model: Model, agent: PolicyAgent, places: Places, seed: int, limit: int):
        self._model, self._agent, self._places, self._seed, self._limit = model, agent, places, seed, limit
        assert isinstance(model.action_space, gym.spaces.Discrete)
        self._actions = int(model.action_space.n)
        self._asks = bool(agent.heads(model.action_space))
        self._uniform = isinstance(agent, RandomAgent | Uniform)
        self._noise = np.empty((0, 0))  # [BLOCK, n] noise of the rollouts that were unfinished when it was sampled
        self._rows = np.empty(0, np.int64)  # their indices in it
        self._drawn = -1

    def make(self, states: Tree, alive: np.ndarray, time: int) -> Asking[tuple[Any, Any]]:
        """Return actions [n] in the states of unfinished rollouts [n], and the entropies [n] of a network's choices."""
        if self._uniform:
            legal = self._model.legal(states) if self._agent.legal_only else None  # type: ignore[attr-defined]
            return uniform_actions(self._uniform_noise(alive, time), self._actions, legal), None
        if self._asks:
            logits = (yield Request(NETWORK, self._model.observe(states)))["logits"]
        else:
            logits = np.zeros((len(alive), self._actions))
        choice = self._agent.distribution(logits, self._model.legal(states))
        where = (place[alive][:, None] for place in self._places)
        return choice.sample(chance(self._seed, *where, time, np.arange(self._actions))), choice.entropy

    def keep(self, kept: np.ndarray) -> None:
        """Continue only with the selected rollouts."""
        if len(self._rows):
            self._rows = self._rows[kept]

    def _uniform_noise(self, alive: np.ndarray, time: int) -> np.ndarray:
        block = time // BLOCK
        if self._drawn != block:
            times = np.arange(block * BLOCK, min((block + 1) * BLOCK, self._limit))[:, None]
            self._noise = chance(self._seed, *(place[alive] for place in self._places), times)
            self._rows, self._drawn = np.arange(len(alive)), block
        return self._noise[time % BLOCK].take(self._rows)
