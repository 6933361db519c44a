"""Flat PUCB: a bandit over the root's actions; each pull is evaluated by rollouts from the next state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import best, chance
from packtrain.planning.events import Listener, SearchRecord, tell_search
from packtrain.planning.model import Asking, Model, Stepped
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.policy import PolicyAgent, categorical, dirichlet, discrete_actions
from packtrain.planning.rollout_records import arms_record
from packtrain.planning.rollouts import EstimateFn, Places, Uniform, estimate, repeat, roll_out, tell_steps
from packtrain.planning.schedules import Schedule, check_schedules, scheduled
from packtrain.planning.shooting import TIME_LIMIT, check_rollouts, rollout_heads, root_prior
from packtrain.trees import Tree

GREEDY = 0.01  # temperatures up to this choose the most visited action

# Keys of the random numbers of a decision. Those of the rollouts are seeded separately.
_TIES, _CHOICE, _NOISE = -1, -2, -3


@configurable
@dataclass(frozen=True)
class BanditAgent:
    """Pulls the arm with the largest quality plus bonus, n_rollouts times, and takes the one pulled most.

        a = argmax Q(a) + exploration_weight · bonus(a)
        bonus(a) = √ΣN / (1 + N(a))           ucb_bonus
        bonus(a) = P(a) · √ΣN / (1 + N(a))    pucb_bonus

    The first pull is the action with the largest prior P: the rollout agent's probability, mixed with Dirichlet noise
    where `prior_noise` is set. An action not tried yet counts as good as the best one, so that whether it will be is a
    question of its bonus, not of the scale of rewards. Equal scores are decided by chance, equal counts by quality.
    """

    n_rollouts: int = 1000  # pulls per decision
    rollouts_per_pull: int = 1  # rollouts from the state that a pull leads to; their mean is its return
    rollout_time_limit: int | None = None  # maximum number of steps; None: 100
    estimate_fn: EstimateFn = "truncated_return"
    rollout_agent: PolicyAgent | None = None  # policy of the rollouts; None: uniform over legal actions
    discount: float = 1.0
    temperature: float = 0.0  # above 0.01 an action is sampled in proportion to N^(1 / temperature)
    prior_noise: float | None = None  # α of the Dirichlet distribution; None: no noise
    noise_weight: float = 0.25
    bonus_fn: Literal["pucb_bonus", "ucb_bonus"] = "pucb_bonus"
    exploration_weight: float = 2.5  # weight of the exploration bonus, in units of returns
    initial_quality: float | None = None  # quality of untried actions; None: that of the best so far
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_rollouts("BanditAgent", self.n_rollouts, self.rollout_time_limit, self.discount)
        if self.rollouts_per_pull < 1:
            raise ConfigError(f"BanditAgent.rollouts_per_pull = {self.rollouts_per_pull} must be at least 1")
        for name in ("temperature", "exploration_weight"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"BanditAgent.{name} = {getattr(self, name)} must be at least 0")
        if self.prior_noise is not None and not self.prior_noise > 0:
            raise ConfigError(f"BanditAgent.prior_noise = {self.prior_noise} must be above 0; None is no noise")
        if not 0 <= self.noise_weight <= 1:
            raise ConfigError(f"BanditAgent.noise_weight = {self.noise_weight} must be from 0 to 1")
        check_schedules(self)

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return the rollout agent's heads, and a value to bootstrap with."""
        return rollout_heads("BanditAgent", self.rollout_agent, self.estimate_fn, action_space)

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> BanditPlanner:
        """Return a planner over Discrete actions."""
        return BanditPlanner(self, model, columns, seed, listener)


class BanditPlanner:
    """Pulls arms for R roots at once.

    The parameters of the newest epoch that any environment has begun hold for all.
    """

    def __init__(self, agent: BanditAgent, model: Model, columns: int, seed: int, listener: Listener | None):
        self._agent, self._model, self._seed, self._listener = agent, model, seed, listener
        self._actions = discrete_actions("BanditAgent", model.action_space)
        agent.heads(model.action_space)
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self._now = scheduled(agent, 0)

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Use the parameters of the epoch; there is no other state."""
        self._now = scheduled(self._agent, epoch)

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Pull arms, and choose."""
        now, columns, arms = self._now, roots.columns, np.arange(self._actions)
        rows = np.arange(len(columns))
        decisions = np.full(len(columns), self.decisions)
        self.decisions += 1
        here = (columns[:, None], decisions[:, None])
        known = yield from root_prior(self._model, now.rollout_agent, roots, self._actions)
        prior = known.now.prob
        if now.prior_noise is not None:
            noise = dirichlet(now.prior_noise, self._actions, self._seed, columns, decisions, _NOISE)
            noise = noise * known.possible  # illegal actions get no noise
            noise /= np.maximum(noise.sum(axis=1, keepdims=True), 2.0**-1000)
            prior = (1 - now.noise_weight) * prior + now.noise_weight * noise
        counts, qualities = np.zeros(prior.shape, np.int64), np.zeros(prior.shape)
        steps = np.zeros(len(rows), np.int64)
        seen = Outcomes(prior.shape)
        for pull in range(now.n_rollouts):
            if self._listener is not None:
                self._listener.pass_begin(columns)
            scores = prior if pull == 0 else self._scores(prior, counts, qualities, pull)
            action = best(scores, chance(self._seed, *here, _TIES, pull, arms), known.possible)
            target, made = yield from self._pull(roots, decisions, action, pull, seen)
            steps += made
            counts[rows, action] += 1
            qualities[rows, action] += (target - qualities[rows, action]) / counts[rows, action]
            if self._listener is not None:
                self._listener.pass_end(columns)
        tried = counts > 0
        histogram = counts / now.n_rollouts
        noise = chance(self._seed, *here, _CHOICE, arms)
        if now.temperature > GREEDY:
            with np.errstate(divide="ignore"):
                choice = categorical(np.log(counts), now.temperature, legal=tried)
            action = choice.sample(noise)
        else:
            action = best(qualities, noise, counts == counts.max(axis=1, keepdims=True))
        extras = {
            "action_histogram": histogram,
            "value": (counts * qualities).sum(axis=1) / now.n_rollouts,
            "qualities": qualities,  # 0 for untried actions
            "bonuses": self._bonus(prior, counts, now.n_rollouts),
            "prior_entropy": known.now.entropy,
            "noisy_prior_entropy": _entropy(prior),
            "histogram_entropy": _entropy(histogram),
            **known.extras,
        }
        if self._listener is not None:
            fields = {"value": qualities, "prior": prior, "bonus": now.exploration_weight * extras["bonuses"]}

            def describe(row: int, most: int) -> SearchRecord:
                of_row = {name: values[row] for name, values in fields.items()}
                return arms_record(counts[row], of_row, seen.of(row), seen.states_of(row), int(action[row]))

            tell_search(self._listener, columns, describe)
        numbers = {name: array.astype(np.float32) for name, array in extras.items()}
        return Plan(action, {**numbers, "counts": counts, "tried": tried, "simulation_steps": steps})

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Do nothing: outcomes are not used."""

    def _scores(self, prior: np.ndarray, counts: np.ndarray, qualities: np.ndarray, pulls: int) -> np.ndarray:
        untried = self._now.initial_quality
        if untried is None:
            start = np.where(counts > 0, qualities, -np.inf).max(axis=1, keepdims=True)
        else:
            start = np.full((len(counts), 1), untried)
        estimates = np.where(counts > 0, qualities, start)
        return estimates + self._now.exploration_weight * self._bonus(prior, counts, pulls)

    def _bonus(self, prior: np.ndarray, counts: np.ndarray, pulls: int) -> np.ndarray:
        bonus = np.sqrt(pulls) / (1 + counts)
        return prior * bonus if self._now.bonus_fn == "pucb_bonus" else bonus

    def _pull(
        self, roots: Roots, decisions: np.ndarray, action: np.ndarray, pull: int, seen: Outcomes
    ) -> Asking[tuple[np.ndarray, np.ndarray]]:
        """Return values [R] of one pull each, r + γ · (0 at an end, else mean rollout return), and the steps [R]."""
        now, times = self._now, self._now.rollouts_per_pull
        stepped = yield from self._model.step(roots.states, action, self.rng)
        if self._listener is not None:
            tell_steps(self._listener, roots.columns, action, stepped.states, stepped.rewards, stepped.terminated)
            seen.add(action, stepped)
        values, steps = stepped.rewards.astype(np.float64), np.ones(len(action), np.int64)
        on = np.flatnonzero(~stepped.terminated)
        if not len(on):
            return values, steps
        numbers = pull * times + np.arange(times)
        rollouts = yield from roll_out(
            self._model,
            now.rollout_agent or Uniform(),
            repeat(trees.pick(stepped.states, on), times),
            Places(roots.columns[on].repeat(times), decisions[on].repeat(times), np.tile(numbers, len(on))),
            limit=now.rollout_time_limit or TIME_LIMIT,
            discount=now.discount,
            seed=self._seed,
            rng=self.rng,
            listener=self._listener,
        )
        returns = yield from estimate(self._model, rollouts, now.discount, now.estimate_fn)
        values[on] += now.discount * returns.reshape(-1, times).mean(axis=1)
        steps[on] += rollouts.lengths.reshape(-1, times).sum(axis=1)
        return values, steps


class Outcomes:
    """What the latest pull of each arm led to, for R environments; filled while searches are recorded."""

    def __init__(self, shape: tuple[int, ...]):
        self._rewards, self._terminated = np.zeros(shape), np.zeros(shape, bool)
        self._states: Tree = None  # [R, A, ...]

    def add(self, action: np.ndarray, stepped: Stepped) -> None:
        """Store the outcomes of one pull in each environment."""
        rows = np.arange(len(action))
        self._rewards[rows, action], self._terminated[rows, action] = stepped.rewards, stepped.terminated
        shape = self._rewards.shape
        if self._states is None:
            self._states = trees.map(lambda leaf: np.empty((*shape, *leaf.shape[1:]), leaf.dtype), stepped.states)

        def put(mine: np.ndarray, given: np.ndarray) -> None:
            mine[rows, action] = given

        trees.map(put, self._states, stepped.states)

    def of(self, row: int) -> dict[str, np.ndarray]:
        """Return rewards and ends of an environment's arms, [A] each."""
        return {"reward": self._rewards[row], "terminated": self._terminated[row]}

    def states_of(self, row: int) -> Tree:
        """Return the states that an environment's arms led to, [A, ...]."""
        return None if self._states is None else trees.map(lambda leaf: leaf[row], self._states)


def _entropy(prob: np.ndarray) -> np.ndarray:
    """Return the entropy in nats of probabilities [R, A]."""
    return -(prob * np.log(prob, out=np.zeros_like(prob), where=prob > 0)).sum(axis=1)
