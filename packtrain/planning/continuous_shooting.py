"""Planning over continuous actions: uniform random shooting, the cross-entropy method, MPPI.

Plans are made in the units in which policies speak, [−1, 1] per dimension, and brought to the bounds of the action
space by the stream's own scale on the way into the model: what was planned is what the stream will play, and
`Plan.action` is in [−1, 1]. Unbounded action spaces are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from packtrain.config import configurable
from packtrain.envs.stream import ActionScale
from packtrain.errors import ConfigError
from packtrain.planning import trajectory_optimisers as optimise
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import Listener, SearchRecord, tell_search
from packtrain.planning.model import Asking, Model
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.policy import normals
from packtrain.planning.rollout_records import Iteration, sequences_record
from packtrain.planning.rollouts import follow_policy, open_loop, repeat
from packtrain.planning.schedules import Schedule, check_schedules, scheduled
from packtrain.trees import Tree

NETWORK = "agent"
CHUNK = 1 << 14  # sequences evaluated at once


@configurable
@dataclass(frozen=True)
class ContinuousShootingAgent:
    """Tries uniformly random sequences of actions and takes the first action of the best."""

    n_rollouts: int = 1000  # sequences per decision
    horizon: int = 20  # steps
    discount: float = 1.0
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self, least={"n_rollouts": 1, "horizon": 1}, shares=("discount",))

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return no heads: no network is used."""
        return {}

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> UniformPlanner:
        """Return a planner over a bounded Box."""
        return UniformPlanner(self, model, columns, seed, listener)


@configurable
@dataclass(frozen=True)
class CEMAgent:
    """Samples sequences around a mean, moves the mean to the best of them, repeats this, and takes the first action.

    With `warm_start` the next decision begins with this one's mean and elites, shifted by one step. Within a decision,
    elites are kept with their scores between iterations. Pinneri et al. 2020 (arXiv:2008.06389) measured how much both,
    and noise that correlates in time, save.

    The defaults, with HalfCheetah as its own model: returns of 6189 and 5872 over 1000 steps (two starts), for 1440
    model steps per decision. A population of 32 (6 elites, 2 kept, correlation 0.5) gave 4789 and 1555.
    """

    horizon: int = 15  # H, steps
    population: int = 48  # sequences per iteration
    elites: int = 8  # best sequences, from which the next mean and deviation are computed
    iterations: int = 2
    momentum: float = 0.1  # weight of the old mean and deviation
    initial_std: float = 0.5  # as a fraction of half the action range
    min_std: float = 0.05
    noise_correlation: float = 0.3  # correlation of the noise at successive steps; 0: white noise
    keep_elites: int = 3  # elites kept as candidates of the next iteration
    warm_start: bool = True
    execute: Literal["best", "mean"] = "best"  # the first action of the best sequence seen, or of the final mean
    discount: float = 1.0
    terminal_value: bool = False  # add discount^horizon times the network's value of the last state
    prior_candidates: int = 0  # candidates of the first iteration that follow the network's head "action" in the model
    prior_std: float = 0.1  # noise of these candidates but the first, as a fraction of half the action range
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least = {"horizon": 1, "population": 2, "elites": 1, "iterations": 1, "keep_elites": 0}
        _check(self, least=least, shares=("momentum", "noise_correlation", "discount"))
        if not self.initial_std > 0:
            raise ConfigError(f"CEMAgent.initial_std = {self.initial_std} must be above 0")
        if not 0 <= self.min_std <= self.initial_std:
            raise ConfigError(f"CEMAgent.min_std = {self.min_std} must be from 0 to initial_std = {self.initial_std}")
        if self.elites > self.population:
            raise ConfigError(f"CEMAgent.elites = {self.elites} must be at most population = {self.population}")
        if self.keep_elites > self.elites:
            raise ConfigError(f"CEMAgent.keep_elites = {self.keep_elites} must be at most elites = {self.elites}")
        _check_prior(self, self.population - self.keep_elites, "population − keep_elites")

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return the heads of the value and of the policy, where they are used."""
        return _heads(self, action_space)

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> CEMPlanner:
        """Return a planner over a bounded Box."""
        return CEMPlanner(self, model, columns, seed, listener)


@configurable
@dataclass(frozen=True)
class MPPIAgent:
    """Samples sequences around a mean and takes the first action of their exp(return / temperature)-weighted mean."""

    horizon: int = 20  # H, steps
    population: int = 128  # sequences per iteration
    iterations: int = 1
    temperature: float = 1.0  # in units of returns
    noise_std: float = 0.5  # as a fraction of half the action range
    noise_correlation: float = 0.5  # correlation of the noise at successive steps; 0: white noise
    warm_start: bool = True
    discount: float = 1.0
    terminal_value: bool = False  # add discount^horizon times the network's value of the last state
    prior_candidates: int = 0  # candidates of the first iteration that follow the network's head "action" in the model
    prior_std: float = 0.1  # noise of these candidates but the first, as a fraction of half the action range
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least = {"horizon": 1, "population": 2, "iterations": 1}
        _check(self, least=least, shares=("noise_correlation", "discount"))
        for name in ("temperature", "noise_std"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"MPPIAgent.{name} = {getattr(self, name)} must be above 0")
        _check_prior(self, self.population - 1, "population − 1")

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return the heads of the value and of the policy, where they are used."""
        return _heads(self, action_space)

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> MPPIPlanner:
        """Return a planner over a bounded Box."""
        return MPPIPlanner(self, model, columns, seed, listener)


class _Planner:
    """Base of the three planners: a model in which sequences are evaluated, and random numbers.

    The parameters of the newest epoch that any environment has begun hold for all.
    """

    def __init__(self, agent: Any, model: Model, columns: int, seed: int, listener: Listener | None):
        space = model.action_space
        name = type(agent).__name__
        if not isinstance(space, gym.spaces.Box):
            raise ConfigError(f"{name} plans over a Box of actions, and this environment's action space is {space}")
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise ConfigError(f"{name} plans between finite bounds, and this environment's action space is {space}")
        self._agent, self._model, self._seed, self._listener = agent, model, seed, listener
        self._tried: list[Iteration] = []  # of the current decision, while searches are recorded
        self._shape, self._size = space.shape, int(np.prod(space.shape))  # of an action; D
        self._scale = ActionScale(space)
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self._columns = columns
        self._now = scheduled(agent, 0)

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Use the parameters of the epoch."""
        self._now = scheduled(self._agent, epoch)

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Do nothing: outcomes are not used."""

    def _decide(self, columns: np.ndarray) -> np.ndarray:
        """Return the number [R] of the decision that begins."""
        self.decisions += 1
        self._tried = []
        return np.full(len(columns), self.decisions - 1)

    def _normals(self, columns: np.ndarray, decisions: np.ndarray, iteration: int, population: int) -> np.ndarray:
        shape = (len(columns), population, self._now.horizon, self._size)
        places = np.arange(int(np.prod(shape[1:])))
        noise = normals(self._seed, columns[:, None], decisions[:, None], iteration, places).reshape(shape)
        return optimise.correlated(noise, self._now.noise_correlation)

    def _proposals(self, roots: Roots, decisions: np.ndarray) -> Asking[np.ndarray]:
        """Return the sequences [R, prior_candidates, H, D] that the network's policy takes in the model."""
        now, rows, count = self._now, len(roots.columns), self._now.prior_candidates
        noise = now.prior_std * self._normals(roots.columns, decisions, now.iterations, count)
        noise[:, :1] = 0.0
        if not count:
            return noise
        if self._listener is not None:
            self._listener.pass_begin(roots.columns)
        sequences = yield from follow_policy(
            self._model,
            repeat(roots.states, count),
            roots.columns.repeat(count),
            noise.reshape(rows * count, now.horizon, self._size),
            network=NETWORK,
            to_env=lambda actions: self._scale.to_env(actions.reshape(len(actions), *self._shape)),
            rng=self.rng,
            listener=self._listener,
        )
        if self._listener is not None:
            self._listener.pass_end(roots.columns)
        return sequences.reshape(noise.shape)

    def _evaluate(self, roots: Roots, sequences: np.ndarray) -> Asking[tuple[np.ndarray, np.ndarray]]:
        """Return the returns [R, P] of sequences [R, P, H, D], and the steps made [R]."""
        columns, (rows, population, horizon, _) = roots.columns, sequences.shape
        if self._listener is not None:
            self._listener.pass_begin(columns)
        scores, steps = np.empty((rows, population)), np.zeros(rows, np.int64)
        at_once = max(1, CHUNK // rows)
        for low in range(0, population, at_once):
            part = sequences[:, low : low + at_once]
            count = part.shape[1]
            actions = self._scale.to_env(part.reshape(rows * count, horizon, *self._shape))
            returns, made = yield from open_loop(
                self._model,
                repeat(roots.states, count),
                columns.repeat(count),
                actions,
                discount=self._now.discount,
                rng=self.rng,
                listener=self._listener,
                value_network=NETWORK if getattr(self._now, "terminal_value", False) else None,
            )
            scores[:, low : low + at_once] = returns.reshape(rows, count)
            steps += made.reshape(rows, count).sum(axis=1)
        if self._listener is not None:
            self._listener.pass_end(columns)
            self._tried.append(Iteration(sequences.copy(), scores))
        return scores, steps

    def _tell(self, columns: np.ndarray, plan: np.ndarray, std: np.ndarray | None = None) -> None:
        """Report the sequences of a decision, and the plans [R, H, D], to the listener."""

        def describe(row: int, most: int) -> SearchRecord:
            spread = None if std is None else std[row]
            return sequences_record(type(self._agent).__name__, self._tried, row, plan[row], spread)

        tell_search(self._listener, columns, describe)

    def _plan(self, actions: np.ndarray, steps: np.ndarray, bad: np.ndarray, **extras: np.ndarray) -> Plan:
        """Return the plan to take actions [R, D]; `bad` [R] sequences had no finite return."""
        if getattr(self._agent, "prior_candidates", 0):
            extras["planned_action"] = actions  # a target for the head "action"
        numbers = {name: array.astype(np.float32) for name, array in extras.items()}
        action = actions.astype(np.float32).reshape(len(actions), *self._shape)
        return Plan(action, {**numbers, "simulation_steps": steps, "simulation_nan": bad})


class UniformPlanner(_Planner):
    """Shoots uniformly for R roots at once."""

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Try sequences and take the best."""
        now, columns = self._now, roots.columns
        decisions = self._decide(columns)
        shape = (len(columns), now.n_rollouts, now.horizon, self._size)
        noise = chance(self._seed, columns[:, None], decisions[:, None], np.arange(int(np.prod(shape[1:]))))
        sequences = (2 * noise - 1).reshape(shape)
        returns, steps = yield from self._evaluate(roots, sequences)
        scores = optimise.proper_scores(returns)
        best, top = optimise.elites(sequences, scores, 1)
        bad = (~np.isfinite(returns)).sum(axis=1)
        self._tell(columns, best[:, 0])
        return self._plan(best[:, 0, 0], steps, bad, value=top[:, 0], simulation_value_mean=_mean(returns))


class CEMPlanner(_Planner):
    """The cross-entropy method for R roots at once."""

    def __init__(self, agent: CEMAgent, model: Model, columns: int, seed: int, listener: Listener | None):
        super().__init__(agent, model, columns, seed, listener)
        self._known = np.zeros(columns, bool)  # environments with a plan from the previous decision
        self._mean = np.zeros((columns, 0, self._size))  # [B, H, D]
        self._kept = np.zeros((columns, 0, 0, self._size))  # [B, K, H, D]

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Use the parameters of the epoch, and clear the plans of these environments."""
        super().begin(columns, epoch)
        self._known[columns] = False
        sizes = (self._now.keep_elites, self._now.horizon)
        if self._kept.shape[1:3] != sizes:  # a schedule has changed the sizes, so old plans do not fit
            self._known[:] = False
            self._mean = np.zeros((self._columns, self._now.horizon, self._size))
            self._kept = np.zeros((self._columns, *sizes, self._size))

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Sample sequences, move the mean to the best ones, repeat, and take the best sequence's first action."""
        now, columns = self._now, roots.columns
        if self._mean.shape[1] == 0:
            self.begin(columns, 0)
        decisions = self._decide(columns)
        known = self._known[columns][:, None, None]
        mean = np.where(known, self._mean[columns], 0.0)
        std = np.full(mean.shape, now.initial_std)
        steps, bad = np.zeros(len(columns), np.int64), np.zeros(len(columns), np.int64)
        proposed = yield from self._proposals(roots, decisions)
        steps += now.prior_candidates * (now.horizon - 1)
        kept: list[tuple[np.ndarray, np.ndarray]] = []  # elites of the previous iteration, with their scores
        for iteration in range(now.iterations):
            noise = self._normals(columns, decisions, iteration, now.population)
            sequences = optimise.candidates_around(mean, std, noise)
            if iteration == 0:
                fresh = sequences[:, : now.keep_elites]
                sequences[:, : now.keep_elites] = np.where(known[..., None], self._kept[columns], fresh)
                sequences[:, now.keep_elites : now.keep_elites + now.prior_candidates] = proposed
            returns, made = yield from self._evaluate(roots, sequences)
            steps += made
            bad += (~np.isfinite(returns)).sum(axis=1)
            scores = optimise.proper_scores(returns)
            for old, old_scores in kept:
                sequences = np.concatenate([sequences, old], axis=1)
                scores = np.concatenate([scores, old_scores], axis=1)
            best, top = optimise.elites(sequences, scores, now.elites)
            mean, std = optimise.cross_entropy(mean, std, best, now.momentum, now.min_std)
            # The best one is kept even if keep_elites = 0, since it may be the one to execute.
            kept = [(best[:, : max(now.keep_elites, 1)], top[:, : max(now.keep_elites, 1)])]
        if now.warm_start:
            self._known[columns] = True
            self._mean[columns] = optimise.shifted(mean)
            self._kept[columns] = optimise.shifted(best[:, : now.keep_elites])
        plan = best[:, 0] if now.execute == "best" else mean
        self._tell(columns, plan, std)
        action = plan[:, 0]
        extras = {"simulation_value_mean": _mean(returns), "simulation_std": std.mean(axis=(1, 2))}
        return self._plan(action, steps, bad, value=top[:, 0], **extras)


class MPPIPlanner(_Planner):
    """MPPI for R roots at once."""

    def __init__(self, agent: MPPIAgent, model: Model, columns: int, seed: int, listener: Listener | None):
        super().__init__(agent, model, columns, seed, listener)
        self._mean = np.zeros((columns, self._now.horizon, self._size))  # [B, H, D]

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Use the parameters of the epoch, and clear the plans of these environments."""
        super().begin(columns, epoch)
        if self._mean.shape[1] != self._now.horizon:  # a schedule has changed it
            self._mean = np.zeros((self._columns, self._now.horizon, self._size))
        self._mean[columns] = 0.0

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Sample sequences and take the first action of their weighted mean."""
        now, columns = self._now, roots.columns
        decisions = self._decide(columns)
        mean = self._mean[columns]
        std = np.full(mean.shape, now.noise_std)
        steps, bad = np.zeros(len(columns), np.int64), np.zeros(len(columns), np.int64)
        proposed = yield from self._proposals(roots, decisions)
        steps += now.prior_candidates * (now.horizon - 1)
        for iteration in range(now.iterations):
            noise = self._normals(columns, decisions, iteration, now.population)
            noise[:, 0] = 0.0  # the mean itself is a candidate
            sequences = optimise.candidates_around(mean, std, noise)
            if iteration == 0:
                sequences[:, 1 : 1 + now.prior_candidates] = proposed
            returns, made = yield from self._evaluate(roots, sequences)
            steps += made
            bad += (~np.isfinite(returns)).sum(axis=1)
            scores = optimise.proper_scores(returns)
            mean, weights = optimise.path_integral(sequences, scores, now.temperature)
        if now.warm_start:
            self._mean[columns] = optimise.shifted(mean)
        extras = {
            "simulation_value_mean": _mean(returns),
            "simulation_effective_sequences": 1 / np.square(weights).sum(axis=1),
        }
        value = (weights * np.where(weights > 0, scores, 0.0)).sum(axis=1)
        self._tell(columns, mean)
        return self._plan(mean[:, 0], steps, bad, value=value, **extras)


def _mean(returns: np.ndarray) -> np.ndarray:
    """Return the mean [R] of the finite returns [R, P]; 0 where none is finite."""
    good = np.isfinite(returns)
    return np.where(good, returns, 0.0).sum(axis=1) / np.maximum(good.sum(axis=1), 1)


def _heads(agent: CEMAgent | MPPIAgent, action_space: gym.Space) -> dict[str, dict[str, int]]:
    """Return the heads that an agent requests, {network: {head: outputs}}."""
    heads = {"value": 1} if agent.terminal_value else {}
    if agent.prior_candidates:
        heads["action"] = int(np.prod(action_space.shape or (1,)))
    return {NETWORK: heads} if heads else {}


def _check_prior(agent: CEMAgent | MPPIAgent, most: int, what: str) -> None:
    """Raise a ConfigError unless the policy's candidates are 0 to `most`, and their noise is not negative."""
    name = type(agent).__name__
    if not 0 <= agent.prior_candidates <= most:
        raise ConfigError(f"{name}.prior_candidates = {agent.prior_candidates} must be from 0 to {what} = {most}")
    if not agent.prior_std >= 0:
        raise ConfigError(f"{name}.prior_std = {agent.prior_std} must be at least 0")


def _check(agent: Any, least: dict[str, int], shares: tuple[str, ...]) -> None:
    """Raise a ConfigError for a count below its minimum, or a fraction outside [0, 1]."""
    name = type(agent).__name__
    for parameter, bound in least.items():
        if getattr(agent, parameter) < bound:
            raise ConfigError(f"{name}.{parameter} = {getattr(agent, parameter)} must be at least {bound}")
    for parameter in shares:
        if not 0 <= getattr(agent, parameter) <= 1:
            raise ConfigError(f"{name}.{parameter} = {getattr(agent, parameter)} must be from 0 to 1")
    check_schedules(agent)
