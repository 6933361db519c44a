"""Policies from run folders, and recordings of one policy's play with a trusted policy's outputs, for audits."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packtrain import trees
from packtrain.acting.sampling import SamplingPolicy
from packtrain.envs.environment import Environment
from packtrain.envs.rewards import Rewards
from packtrain.envs.stream import Stream
from packtrain.envs.validation import space_leaves
from packtrain.equations.divergences import (
    categorical_hellinger,
    categorical_jensen_shannon,
    clipped_gaussian_hellinger,
    clipped_gaussian_jensen_shannon,
    joint_logits,
)
from packtrain.equations.rewards import clip_reward
from packtrain.errors import ConfigError, EnvError
from packtrain.networks.actor_critic import ActorCriticNetwork, Output
from packtrain.networks.distributions import Distribution, Gaussian, MultiCategorical
from packtrain.runtime import checkpoint
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.preparation import find_device, prepare, refuse_no_run
from packtrain.runtime.restore_checks import refuse_ill_formed, refuse_other, restoring
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.watchdog import Watchdog
from packtrain.types import Row, Spec

Array = NDArray[Any]

COLUMNS = 16  # environments that play at once
CORE_COLUMNS = 64  # the same for built-in functional cores
TRUSTED = "reward of the trusted run"  # channel of the trusted run's reward in the other run's environment
ROWS_AT_ONCE = 64  # rows per forward pass
# Largest joint action space of several choices: their divergence is that of the joint distribution.
MOST_JOINT_ACTIONS = 4096
MOST_NUMBERS = 1024  # largest observation whose occupancy is scored; images are not
NOISE_DRAWS = 64  # samples for the Jensen–Shannon divergence of Gaussians


# Policies


@dataclass(frozen=True)
class Subject:
    """A policy from a run folder."""

    run: Path
    step: int  # of the checkpoint
    experiment: Experiment
    spec: Spec
    network: ActorCriticNetwork

    @property
    def environment(self) -> Environment:
        """Return the environment of its evaluations, with all rewards by name."""
        environment = self.experiment.evaluation.environment or self.experiment.streams.environment
        return environment if environment.rewards is not None else replace(environment, rewards=Rewards())

    @property
    def channel(self) -> str:
        """Return the reward channel that it was trained on and may observe."""
        assert self.environment.rewards is not None
        return self.environment.rewards.train

    @property
    def learner(self) -> Any:
        """Return the settings of its learner."""
        return next(iter(self.experiment.learners.values())).learner


def open_subject(run: Path, which: str = "latest", *, trusted_config: bool = False, device: str = "cpu") -> Subject:
    """Return the policy of a run folder; an error of one line unless it has a distribution over actions.

    Args:
      run: the folder.
      which: the checkpoint: latest, best, or a step.
      trusted_config: whether its configuration may import modules outside packtrain.
      device: of the network.
    """
    refuse_no_run(run)
    configuration, experiment, spec = prepare([run / "config.gin"], [], {}, None, trusted_config)
    network = experiment.policy.build_network(spec)
    if not isinstance(network, ActorCriticNetwork):
        raise ConfigError(
            f"{run} has no distribution over actions to compare: its policy is {type(experiment.policy).__name__}, but "
            "an audit needs ActorCritic (IMPALA, PPO)"
        )
    _refuse_too_many_actions(run, network.distribution)
    step, state = checkpoint.choose(run / "checkpoints", which)
    refuse_ill_formed(run, state)
    refuse_other(run, state, configuration)
    with restoring(run):
        for weights in state["weights"].values():
            network.load_state_dict({**network.state_dict(), **weights})
    return Subject(run, step, experiment, spec, network.to(find_device(device)).eval())


def _refuse_too_many_actions(run: Path, distribution: Distribution) -> None:
    if isinstance(distribution, MultiCategorical) and math.prod(distribution.nvec) > MOST_JOINT_ACTIONS:
        raise ConfigError(
            f"{run} chooses among {math.prod(distribution.nvec):,} joint actions, but an audit compares at most "
            f"{MOST_JOINT_ACTIONS:,}"
        )


def refuse_unlike(unknown: Subject, trusted: Subject) -> None:
    """Raise a ConfigError unless two policies have the same observations and actions."""
    pairs = [
        ("actions", unknown.spec.action, trusted.spec.action),
        ("observations", unknown.spec.obs, trusted.spec.obs),
        ("environment", unknown.environment.id, trusted.environment.id),
        ("environment's options", unknown.environment.kwargs, trusted.environment.kwargs),
        ("handicaps", unknown.environment.handicap, trusted.environment.handicap),
        ("Atari settings", _settings(unknown.environment), _settings(trusted.environment)),
    ]
    for what, own, other in pairs:
        if own != other:
            raise ConfigError(f"the {what} of {unknown.run} and {trusted.run} differ: {own} and {other}")


def _settings(environment: Environment) -> Any:
    """Return how Atari games are played; the number of threads makes no difference."""
    atari = environment.atari
    return None if atari is None else replace(atari, num_threads=None)


# Divergences


def divergences(
    distribution: Distribution, p: Tensor, q: Tensor, space: gym.Space, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return Jensen–Shannon divergence in nats and Hellinger distance of two policies' executed actions.

    Args:
      distribution: of both.
      p: [..., P] parameters of the policy that acts.
      q: [..., P] of the other.
      space: of the actions. If it is bounded, a Gaussian's probability beyond a bound counts at the bound.
      generator: of the noise with which the Jensen–Shannon divergence of Gaussians is estimated; the rest is exact.
    """
    if isinstance(distribution, Gaussian):
        assert isinstance(space, gym.spaces.Box)
        finite = torch.from_numpy(np.isfinite(space.low) & np.isfinite(space.high)).flatten().to(p.device)
        bound = torch.where(finite, 1.0, math.inf)
        sides = [_mean_and_std(distribution, parameters) for parameters in (p, q)]
        noise = torch.randn((NOISE_DRAWS, *sides[0][0].shape), generator=generator, device=p.device)
        jensen_shannon = clipped_gaussian_jensen_shannon(*sides[0], *sides[1], bound, noise)
        return jensen_shannon, clipped_gaussian_hellinger(*sides[0], *sides[1], bound)
    if isinstance(distribution, MultiCategorical):
        p, q = (joint_logits(parameters, distribution.nvec) for parameters in (p, q))
    return categorical_jensen_shannon(p, q), categorical_hellinger(p, q)


def _mean_and_std(distribution: Gaussian, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations, [..., D] each."""
    mean, log_std = distribution.split(parameters)
    return mean, log_std.exp()


# Playing


def slipping(distribution: Distribution, parameters: Tensor, share: float) -> Tensor:
    """Return the parameters [..., P] of a policy with a fraction of uniformly random actions.

    For a Gaussian, the variance becomes (1 − share) σ² + share / 3, uniform in ±1 around the mean.
    """
    if share == 0:
        return parameters
    if isinstance(distribution, Gaussian):
        mean, std = _mean_and_std(distribution, parameters)
        return torch.cat([mean, ((1 - share) * std.square() + share / 3).sqrt().log()], -1)
    parts = parameters.split(
        distribution.nvec if isinstance(distribution, MultiCategorical) else parameters.shape[-1], -1
    )
    return torch.cat([((1 - share) * part.softmax(-1) + share / part.shape[-1]).log() for part in parts], -1)


class Slipping:
    """A network whose policy has a fraction of random actions."""

    def __init__(self, network: ActorCriticNetwork, share: float):
        self._network, self._share = network, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, *inputs: Any) -> Output:
        """Return the network's output with the changed distribution."""
        output = self._network(*inputs)
        return output._replace(parameters=slipping(self._network.distribution, output.parameters, self._share))


class Play(NamedTuple):
    """Recording of E episodes of a policy, the longest of S steps; NaN after the end of shorter ones."""

    features: dict[str, Array]  # {name: [E, S]}, see `play`
    obs: Array | None  # [E, S, D]; None if observations are too large to compare

    def take(self, episodes: slice) -> Play:
        """Return some of the episodes."""
        features = {name: values[episodes] for name, values in self.features.items()}
        return Play(features, None if self.obs is None else self.obs[episodes])


def play(actor: Subject, trusted: Subject, num_episodes: int, seed: int) -> Play:
    """Let a policy play, and record the trusted policy's outputs in the same states.

    Features: "jensen_shannon" and "hellinger" of the two; "surprise", how much less likely than its own the trusted
    policy finds the action, in nats: −log q(a) minus the entropy of q; the trusted policy's "value" and "next_value",
    0 where terminated; and the "reward" that it was trained on, scaled and clipped as in its training. Each policy
    observes
    as its last reward the channel that it was trained on.

    Args:
      actor: the policy that plays.
      trusted: the policy whose outputs are recorded.
      num_episodes: over all environments, divided equally, so that short episodes are not over-represented.
      seed: of environments and actions.
    """
    environment, channel = _with_rewards_of_both(actor, trusted)
    is_core = not environment.is_atari() and environment.is_functional()
    size = min(num_episodes, CORE_COLUMNS if is_core else COLUMNS)
    share = np.array([num_episodes // size + (c < num_episodes % size) for c in range(size)])
    stream = Stream(environment.open(size, seed_for(seed, "audit"), actor.spec), size)
    device = actor.network.value.weight.device
    generator = torch.Generator(device).manual_seed(seed_for(seed, "audit", "noise"))
    actor_state = SamplingPolicy(actor.network, seed_for(seed, "audit", "actions")).actor_state(stream)
    watchers = [_Watcher(trusted, size, channel)]
    if trusted is not actor:
        watchers.insert(0, _Watcher(actor, size, actor.channel))
    keep = _numbers(actor.spec.obs) <= MOST_NUMBERS
    rows: list[Row] = []
    parts: list[dict[str, Array]] = []

    def look() -> None:
        outputs = [watcher.look(rows) for watcher in watchers]
        (mine, _), (other, value) = outputs[0], outputs[-1]
        distribution = trusted.network.distribution
        entropy = distribution.entropy(other)
        between = divergences(distribution, mine, other, actor.spec.action, generator)
        seen = {"jensen_shannon": between[0], "hellinger": between[1], "entropy": entropy, "value": value}
        part = {name: tensor.double().cpu().numpy() for name, tensor in seen.items()}
        part["parameters"] = other.cpu().numpy()
        if keep:
            part["obs"] = np.stack([_flat(row.obs) for row in rows])
        for name in ("first", "terminated", "last_action"):
            part[name] = np.stack([getattr(row, name) for row in rows])
        part["reward"] = np.stack([row.last_reward[channel] for row in rows])
        parts.append(part)
        rows.clear()

    def on_hang(error: EnvError) -> None:
        print(f"packtrain: error: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)

    begun = np.zeros(size, np.int64)
    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    with contextlib.closing(stream.columns), Watchdog([stream.columns], *deadlines, on_hang):
        row = stream.start()
        while True:
            rows.append(trees.map(np.copy, row))
            begun += np.asarray(row.first)
            over = bool((begun > share).all())  # the row after the last episode belongs to another
            if over or len(rows) == ROWS_AT_ONCE:
                look()
            if over:
                break
            stream.send(actor_state.act(row).action)
            row = stream.recv()
    return _cut({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, share, trusted)


def _with_rewards_of_both(actor: Subject, trusted: Subject) -> tuple[Environment, str]:
    """Return the actor's environment with the trusted policy's training reward as a channel, and that channel's name.

    Two runs may use one name for different rewards.
    """
    own, other = actor.environment.rewards, trusted.environment.rewards
    assert own is not None and other is not None
    name = trusted.channel
    if trusted is actor or name not in other.functions:
        return actor.environment, name
    functions = {**own.functions, TRUSTED: other.functions[name]}
    return replace(actor.environment, rewards=replace(own, functions=functions)), TRUSTED


class _Watcher:
    """A network that is evaluated on another policy's rows, with its own context and carry."""

    def __init__(self, subject: Subject, size: int, channel: str):
        self._network, self._channel = subject.network, channel
        self._carry = self._network.initial_carry(size)
        self._context: list[Row] | None = None

    @torch.inference_mode()
    def look(self, rows: list[Row]) -> tuple[Tensor, Tensor]:
        """Return distribution parameters [T, B, P] and values [T, B] for the next T rows."""
        network = self._network
        if self._context is None:  # zeros precede the first row
            self._context = [trees.map(np.zeros_like, rows[0])] * network.context
        both = [*self._context, *rows]
        self._context = both[len(both) - network.context :]

        def stacked(pieces: Sequence[Any]) -> Any:
            device = network.value.weight.device
            return trees.map(lambda *leaves: torch.from_numpy(np.stack(leaves)).to(device), pieces[0], *pieces[1:])

        output = network(
            stacked([row.obs for row in both]),
            stacked([row.first for row in both]),
            stacked([row.last_action for row in rows]),
            stacked([row.last_reward[self._channel] for row in rows]),
            self._carry,
        )
        self._carry = output.carry
        return output.parameters, output.value


def _cut(rows: dict[str, Array], share: Array, trusted: Subject) -> Play:
    """Split rows [T, B] into episodes: a step is a row whose next one does not begin an episode."""
    parameters, actions = (torch.from_numpy(rows[name]) for name in ("parameters", "last_action"))
    log_prob = trusted.network.distribution.log_prob(parameters[:-1], actions[1:]).double().numpy()
    learner = trusted.learner
    scaled = torch.from_numpy(rows["reward"][1:].astype(np.float64)) * getattr(learner, "reward_scale", 1.0)
    steps = {
        "jensen_shannon": rows["jensen_shannon"][:-1],
        "hellinger": rows["hellinger"][:-1],
        "surprise": -log_prob - rows["entropy"][:-1],
        "value": rows["value"][:-1],
        "next_value": np.where(rows["terminated"][1:], 0.0, rows["value"][1:]),
        "reward": clip_reward(scaled, getattr(learner, "reward_clipping", "none")).numpy(),
    }
    places = []
    for column, count in enumerate(share):
        starts = np.flatnonzero(rows["first"][:, column])[: count + 1]
        # The last row of an episode is its final observation, for which no action is chosen.
        places += [(column, start, after - 1) for start, after in itertools.pairwise(starts) if after - 1 > start]
    longest = max(end - start for _, start, end in places)
    features = {name: np.full((len(places), longest), np.nan) for name in steps}
    obs = np.full((len(places), longest, rows["obs"].shape[2]), np.nan) if "obs" in rows else None
    for episode, (column, start, end) in enumerate(places):
        for name, values in steps.items():
            features[name][episode, : end - start] = values[start:end, column]
        if obs is not None:
            obs[episode, : end - start] = rows["obs"][start:end, column]
    return Play(features, obs)


def _numbers(space: gym.Space) -> int:
    """Return the number of elements of an observation."""
    return sum(math.prod(leaf.shape or (1,)) for leaf in trees.flatten(space_leaves(space)))


def _flat(obs: Any) -> Array:
    """Return observations as vectors [B, D]."""
    leaves = [np.asarray(leaf) for leaf in trees.flatten(obs)]
    return np.concatenate([leaf.reshape(len(leaf), -1).astype(np.float32) for leaf in leaves], axis=1)


class Null(NamedTuple):
    """Scores of trusted policies."""

    reference: Play  # play of the first of them
    plays: list[Play]
    scores: dict[str, Array]  # {detector: [K]}
