"""Random shooting: try many action sequences in the model, and take the first action with the best returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import gymnasium as gym
import numpy as np

from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import best, chance
from packtrain.planning.events import Listener, SearchRecord, tell_search
from packtrain.planning.model import Asking, Model
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.policy import NETWORK, Distribution, PolicyAgent, discrete_actions
from packtrain.planning.rollout_records import RolloutGroup, rollouts_record
from packtrain.planning.rollouts import EstimateFn, Places, Uniform, estimate, repeat, roll_out
from packtrain.planning.schedules import Schedule, check_schedules, scheduled
from packtrain.trees import Tree
from packtrain.types import Request

TIME_LIMIT = 100  # default maximum number of steps of a rollout
CHUNK = 1 << 14  # rollouts computed at once

# Keys of the random numbers of a decision. Those of the rollouts' later actions are seeded separately.
_FIRST, _TIES, _OFFSET = -1, -2, -3


@configurable
@dataclass(frozen=True)
class ShootingAgent:
    """Runs rollouts from each root and takes the action with the best returns.

    The first action of a rollout is the rollout agent's. With `stratified` all actions take turns, so that each is
    tried equally often. Illegal actions are not tried.
    """

    n_rollouts: int = 1000  # rollouts per decision
    rollout_time_limit: int | None = None  # maximum number of steps; None: 100
    estimate_fn: EstimateFn = "truncated_return"
    aggregate_fn: Literal["mean", "max"] = "mean"  # over the returns of rollouts with the same first action
    rollout_agent: PolicyAgent | None = None  # policy of the rollouts; None: uniform over legal actions
    discount: float = 1.0
    stratified: bool = False
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_rollouts("ShootingAgent", self.n_rollouts, self.rollout_time_limit, self.discount)
        check_schedules(self)

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return the rollout agent's heads, and a value to bootstrap with."""
        return rollout_heads("ShootingAgent", self.rollout_agent, self.estimate_fn, action_space)

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> ShootingPlanner:
        """Return a planner over Discrete actions."""
        return ShootingPlanner(self, model, columns, seed, listener)


class ShootingPlanner:
    """Runs rollouts for R roots at once.

    The parameters of the newest epoch that any environment has begun hold for all.
    """

    def __init__(self, agent: ShootingAgent, model: Model, columns: int, seed: int, listener: Listener | None):
        self._agent, self._model, self._seed, self._listener = agent, model, seed, listener
        self._actions = discrete_actions("ShootingAgent", model.action_space)
        agent.heads(model.action_space)
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self._now = scheduled(agent, 0)

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Use the parameters of the epoch; there is no other state."""
        self._now = scheduled(self._agent, epoch)

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Run rollouts, group the returns by first action, and choose."""
        now, columns, rows = self._now, roots.columns, np.arange(len(roots.columns))
        decisions = np.full(len(columns), self.decisions)
        self.decisions += 1
        prior = yield from root_prior(self._model, now.rollout_agent, roots, self._actions)
        limit = now.rollout_time_limit or TIME_LIMIT
        groups: list[tuple[np.ndarray, ...]] = []  # of rollouts under way at once: first actions, returns, …
        recorded: list[RolloutGroup] = []
        at_once = max(1, CHUNK // len(rows))
        for low in range(0, now.n_rollouts, at_once):
            numbers = np.arange(low, min(low + at_once, now.n_rollouts))
            first = self._first(prior, columns, decisions, numbers)  # [R, n]
            places = Places(columns.repeat(len(numbers)), decisions.repeat(len(numbers)), np.tile(numbers, len(rows)))
            if self._listener is not None:
                self._listener.pass_begin(columns)
            rollouts = yield from roll_out(
                self._model,
                now.rollout_agent or Uniform(),
                repeat(roots.states, len(numbers)),
                places,
                limit=limit,
                discount=now.discount,
                seed=self._seed,
                rng=self.rng,
                first=first.ravel(),
                listener=self._listener,
            )
            returns = yield from estimate(self._model, rollouts, now.discount, now.estimate_fn)
            if self._listener is not None:
                self._listener.pass_end(columns)
                recorded.append(RolloutGroup(rollouts.taken, returns.reshape(first.shape)))
            parts = (returns, rollouts.lengths, rollouts.terminated, rollouts.entropy)
            groups.append((first, *(part.reshape(first.shape) for part in parts)))
        first, returns, lengths, terminated, entropy = (
            np.concatenate(parts, axis=1) for parts in zip(*groups, strict=True)
        )
        qualities, tried = aggregate(first, returns, self._actions, now.aggregate_fn)
        noise = chance(self._seed, columns[:, None], decisions[:, None], _TIES, np.arange(self._actions))
        action = best(qualities, noise, tried)
        self._tell(columns, action, prior, recorded)
        histogram = np.zeros(qualities.shape)
        histogram[rows, action] = 1.0
        steps = lengths.sum(axis=1)
        extras = {
            "action_histogram": histogram,
            "value": returns.mean(axis=1),
            "qualities": np.where(tried, qualities, 0.0),
            "simulation_value_std": returns.std(axis=1),
            "simulation_value_min": returns.min(axis=1),
            "simulation_value_max": returns.max(axis=1),
            "simulation_length_mean": lengths.mean(axis=1),
            "simulation_terminated": terminated.mean(axis=1),
            **prior.extras,
        }
        if prior.extras:
            extras["simulation_entropy"] = (entropy.sum(axis=1) + now.n_rollouts * prior.now.entropy) / steps
        numbers_ = {name: array.astype(np.float32) for name, array in extras.items()}
        return Plan(action, {**numbers_, "tried": tried, "simulation_steps": steps})

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Do nothing: outcomes are not used."""

    def _tell(self, columns: np.ndarray, action: np.ndarray, prior: Prior, recorded: list[RolloutGroup]) -> None:
        """Report the rollouts of a decision to the listener."""
        how = self._now.aggregate_fn

        def value(places: np.ndarray, returns: np.ndarray, count: int) -> np.ndarray:
            return aggregate(places[None], returns[None], count, how)[0][0]

        def describe(row: int, most: int) -> SearchRecord:
            return rollouts_record(recorded, row, int(action[row]), prior.now.prob[row], value, most)

        tell_search(self._listener, columns, describe)

    def _first(self, prior: Prior, columns: np.ndarray, decisions: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return first actions [R, n] of the rollouts with these numbers."""
        if self._now.stratified:
            possible = prior.possible
            count = possible.sum(axis=1, keepdims=True)  # [R, 1]
            offset = (chance(self._seed, columns, decisions, _OFFSET)[:, None] * count).astype(np.int64)
            order = np.argsort(~possible, axis=1, kind="stable")  # legal actions first
            return np.take_along_axis(order, (numbers + offset) % count, axis=1)
        counters = (columns[:, None, None], decisions[:, None, None], _FIRST, numbers[:, None])
        noise = chance(self._seed, *counters, np.arange(self._actions))  # [R, n, A]
        flat = Distribution(*(repeat(part, len(numbers)) for part in prior.now))
        return flat.sample(noise.reshape(-1, self._actions)).reshape(len(columns), len(numbers))


class Prior:
    """The rollout agent's policy and value at R roots, before any rollout."""

    def __init__(self, now: Distribution, possible: np.ndarray, extras: dict[str, np.ndarray]):
        self.now = now
        self.possible = possible  # [R, A] allowed actions
        self.extras = extras  # network_logits etc., [R, ...]; empty without a network


def root_prior(model: Model, agent: PolicyAgent | None, roots: Roots, actions: int) -> Asking[Prior]:
    """Request the rollout agent's prior at the roots, if it uses a network."""
    agent = agent or Uniform()
    legal = model.legal(roots.states)
    possible = np.ones((len(roots.columns), actions), bool)
    if legal is not None:
        possible = legal | ~legal.any(axis=1, keepdims=True)
    if not agent.heads(model.action_space):
        return Prior(agent.distribution(np.zeros(possible.shape), legal), possible, {})
    answer = yield Request(NETWORK, model.observe(roots.states))
    now = agent.distribution(answer["logits"], legal)
    extras = {"network_logits": answer["logits"], "network_entropy": now.entropy}
    if "value" in answer:
        extras["network_value"] = answer["value"][:, 0]
    return Prior(now, possible, extras)


def aggregate(
    first: np.ndarray, returns: np.ndarray, actions: int, how: Literal["mean", "max"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean or maximum of returns [R, n] by first action [R, n].

    Returns:
      [R, A] scores, −inf where untried; [R, A] bool, tried.
    """
    rows = len(first)
    places = (first + actions * np.arange(rows)[:, None]).ravel()  # into [R · A]
    counts = np.bincount(places, minlength=rows * actions)
    if how == "mean":
        scores = np.bincount(places, returns.ravel(), minlength=rows * actions) / np.maximum(counts, 1)
    else:
        scores = np.full(rows * actions, -np.inf)
        np.maximum.at(scores, places, returns.ravel())
    tried = counts > 0
    return np.where(tried, scores, -np.inf).reshape(rows, actions), tried.reshape(rows, actions)


def rollout_heads(
    owner: str, agent: PolicyAgent | None, estimate_fn: EstimateFn, action_space: gym.Space
) -> dict[str, dict[str, int]]:
    """Return the heads of an agent with rollouts: its rollout agent's logits, and a value to bootstrap with."""
    discrete_actions(owner, action_space)
    heads = dict(agent.heads(action_space).get(NETWORK, {})) if agent is not None else {}
    if estimate_fn == "bootstrap_return_with_value":
        heads["value"] = 1
    return {NETWORK: heads} if heads else {}


def check_rollouts(owner: str, n_rollouts: int, rollout_time_limit: int | None, discount: float) -> None:
    """Raise a ConfigError unless the budget is valid."""
    for name, value in (("n_rollouts", n_rollouts), ("rollout_time_limit", rollout_time_limit)):
        if value is not None and value < 1:
            raise ConfigError(f"{owner}.{name} = {value} must be at least 1")
    if not 0 <= discount <= 1:
        raise ConfigError(f"{owner}.discount = {discount} must be from 0 to 1")
