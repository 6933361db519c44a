"""Evaluation episodes in separate environments, one step at a time, so that a runtime can interleave them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from packtrain.envs.deadline import RunningTime
from packtrain.envs.environment import Environment
from packtrain.envs.stream import Episode, Stream
from packtrain.interfaces import ActingPlace, Policy
from packtrain.metrics.intervals import student_t
from packtrain.runtime.seeds import seed_for
from packtrain.types import Row, Spec

if TYPE_CHECKING:
    from packtrain.runtime.experiment import Evaluation, Experiment

Kind = Literal["greedy", "sampled"]
"""How actions are chosen from the policy's distribution: its mode, or a sample."""

MOST_ENVIRONMENTS = 16  # maximum number of environments played at once
LONGEST_TICK_SECS = 60.0  # a longer pause between two steps does not count as time of the evaluation


class Limits:
    """Truncates episodes that take too long; a truncated episode counts, and its environment plays no more."""

    def __init__(self, max_steps: int | None = None, deadline_secs: float | None = None):
        """Create limits that have truncated no episode yet.

        Args:
          max_steps: of an episode; None: no limit.
          deadline_secs: of an evaluation, after which all unfinished episodes are cut off; None: no deadline.
        """
        self._max_steps, self._deadline = max_steps, deadline_secs
        self.begin()

    def begin(self) -> None:
        """Reset the limits for a new evaluation."""
        self._time = RunningTime(LONGEST_TICK_SECS)
        self.cut_off = 0  # number of environments whose episode was cut off

    def apply(self, stream: Stream, played: list[list[Episode]], wanted: list[int]) -> None:
        """Count the episodes truncated now in `played`, and request no further episodes of their environments."""
        late = self._deadline is not None and self._time.look() > self._deadline
        if not late and (self._max_steps is None or stream.lengths.max() < self._max_steps):
            return
        for column, length in enumerate(stream.lengths.tolist()):
            if len(played[column]) < wanted[column] and (late or length >= (self._max_steps or 0)):
                if length:  # otherwise its next episode has not begun
                    played[column].append(stream.unfinished(column))
                wanted[column] = len(played[column])
                self.cut_off += 1


class Evaluator:
    """Plays a fixed number of episodes of each kind per environment, so that short episodes are not over-counted.

    Kinds are played one after the other in the same environments, from the same seeds.
    """

    def __init__(
        self, stream: Stream, policies: Mapping[Kind, Policy], num_episodes: int, limits: Limits | None = None
    ):
        """Open the environments; nothing is played before `begin`.

        Args:
          stream: the environments.
          policies: by kind, in the order in which they are played. The first one's result goes by the plain names.
          num_episodes: of each kind.
          limits: of episodes, and of all kinds together; None: there are none.
        """
        self.stream = stream
        self._limits = limits or Limits()
        self._kinds = list(policies)
        self._policies = dict(policies)
        self._actor_states = {kind: policy.actor_state(stream) for kind, policy in policies.items()}
        several = policies if len(policies) > 1 else {}
        self._generators = {kind: policy.generator.get_state() for kind, policy in several.items()}
        self._share = [num_episodes // stream.size + (c < num_episodes % stream.size) for c in range(stream.size)]
        self._known: dict[str, Any] = {}
        self._results: dict[Kind, dict[str, Any]] = {}
        self._start_next = False
        self.active = False
        self._choose(self._kinds[0])

    @property
    def policy(self) -> Policy:
        """Return the policy of the first kind."""
        return self._policies[self._kinds[0]]

    @property
    def policies(self) -> list[Policy]:
        """Return the policies of all kinds."""
        return list(self._policies.values())

    @property
    def plays_first_kind(self) -> bool:
        """Return whether the current episodes are those of the first kind."""
        return self.kind == self._kinds[0]

    def begin(self, known: dict[str, Any] | None = None) -> None:
        """Start again with the policy's current weights, from the same seeds every time.

        Args:
          known: the snapshot of the actor state in training. It is copied:
            evaluations do not change the training state.
        """
        self._known, self._results = known or {}, {}
        self._limits.begin()
        self._start(self._kinds[0])

    def _choose(self, kind: Kind) -> None:
        self.kind, self._actor_state = kind, self._actor_states[kind]
        self._played: list[list[Episode]] = [[] for _ in range(self.stream.size)]

    def _start(self, kind: Kind) -> None:
        self._choose(kind)
        self.stream.restart()
        self._actor_state.begin()
        self._actor_state.load_evaluation_state(self._known)
        if kind in self._generators:  # samples must not depend on earlier evaluations
            self._policies[kind].generator.set_state(self._generators[kind])
        self._row = self.stream.start()
        self._wanted, self._limits.cut_off = list(self._share), 0
        self._start_next, self.active = False, True

    def tick(self) -> dict[str, Any] | None:
        """Step every environment once; return the result after the last episode of the last kind, else None."""
        if self._start_next:
            self._start(self._kinds[len(self._results)])
        self.stream.send(self._actor_state.act(self._row).action)
        self._row = self.stream.recv()
        for episode in self.stream.drain_episodes():
            if len(self._played[episode.column]) < self._wanted[episode.column]:
                self._played[episode.column].append(episode)
        self._limits.apply(self.stream, self._played, self._wanted)
        if any(len(played) < wanted for played, wanted in zip(self._played, self._wanted, strict=True)):
            return None
        found = summary([episode for played in self._played for episode in played])
        self._results[self.kind] = {**found, "episodes_truncated": self._limits.cut_off}
        if len(self._results) < len(self._kinds):
            self._start_next = True  # at the next tick, since the film still uses the last step
            return None
        self.active = False
        return self._combined()

    def finish(self) -> None:
        """Let the actor state process the last row, which no decision follows."""
        self._actor_state.finish(self._row)

    def _combined(self) -> dict[str, Any]:
        """Return the result of the first kind, and with several kinds, the returns of each under its own name."""
        result = dict(self._results[self._kinds[0]])
        if len(self._kinds) > 1:
            for kind, found in self._results.items():
                names = ("mean", "std", "ci95")
                result |= {f"return_{kind}_{name}": found[f"return_{name}"] for name in names}
                result[f"episodes_{kind}"] = found["episodes"]
        return result

    def progress(self) -> str:
        """Return the progress as text."""
        of = sum(self._share) * len(self._kinds)
        return (
            f"evaluating: {self.played} of {of} episodes; the longest unfinished: {self.stream.lengths.max():,} steps"
        )

    @property
    def row(self) -> Row:
        """Return the latest row of NumPy arrays, valid until the next tick."""
        return self._row

    @property
    def episodes(self) -> list[list[Episode]]:
        """Return the counted episodes of the current kind, by environment."""
        return self._played

    @property
    def played(self) -> int:
        """Return the number of counted episodes of all kinds."""
        under_way = 0 if self.kind in self._results else sum(len(played) for played in self._played)
        return under_way + sum(int(found["episodes"]) for found in self._results.values())

    def close(self) -> None:
        """Close the environments."""
        self.stream.columns.close()


def summary(episodes: list[Episode]) -> dict[str, Any]:
    """Return the returns' mean, standard deviation and 95 % Student-t half-width, and the mean of every reward channel.

    return_ci95 = t(0.95, n − 1) · s / √n
    """
    returns = [episode.returns["train"] for episode in episodes]
    count = len(returns)
    deviation = statistics.stdev(returns) if count > 1 else 0.0
    result = {
        "episodes": len(episodes),
        "return_mean": statistics.fmean(returns),
        "return_std": deviation,
        "return_ci95": student_t(count - 1) * deviation / math.sqrt(count) if count > 1 else None,
        "length_mean": statistics.fmean(episode.length for episode in episodes),
        "rewards": {
            name: statistics.fmean(episode.returns[name] for episode in episodes) for name in episodes[0].returns
        },
    }
    # some environments report it only for solved episodes
    if not all(math.isnan(episode.solved) for episode in episodes):
        result["solved"] = statistics.fmean(not math.isnan(e.solved) and e.solved for e in episodes)
    return result


class Plays(NamedTuple):
    """What is played in an evaluation, and what is recorded of it."""

    kinds: Sequence[Kind] = ()
    """Kinds of episodes in order; none: all that the policy has, the one that `Evaluation.best` names first."""
    trace_folder: Path | None = None  # for recorded searches
    trace_episodes: int = 0  # number of them to record
    checkpoint: int | None = None  # step of the checkpoint that is played


def open_evaluator(
    experiment: Experiment,
    spec: Spec,
    device: torch.device,
    seed: int,
    settings: Evaluation,
    *,
    precision: torch.dtype | None = None,
    plays: Plays = Plays(),  # noqa: B008  (a tuple)
) -> tuple[Evaluator, torch.nn.Module]:
    """Return an evaluator with its own environments and network, and that network.

    Args:
      experiment: what is evaluated.
      spec: of its environment.
      device: of the network.
      seed: of environments and sampled actions.
      settings: environment, agent, number of episodes and limits.
      precision: of the large layers.
      plays: kinds of episodes, and what is recorded.
    """
    policy, num_episodes = experiment.policy, settings.num_episodes
    network = policy.build_network(spec).to(device)
    if policy.mixed_precision:
        network.precision = precision
    size = min(num_episodes, MOST_ENVIRONMENTS)
    environment: Environment = settings.environment or experiment.streams.environment
    own_seed = seed_for(seed, "evaluation")
    if policy.env_access == "states":
        limit = settings.episode_time_limit or experiment.streams.episode_time_limit
        stream = Stream(environment.open_core(size, own_seed, time_limit=limit), size)
    else:
        stream = Stream(environment.open(size, own_seed, spec), size)
    kinds = plays.kinds
    if not kinds:
        both: list[Kind] = ["greedy", "sampled"] if experiment.samples else ["greedy"]
        kinds = sorted(both, key=lambda kind: kind != settings.best)
    if "greedy" in kinds:
        policy = policy.for_evaluation(settings.agent)
    place = ActingPlace(
        device,
        seed_for(seed, "evaluation", "actions"),
        size,
        env_name=environment.id,
        trace_folder=plays.trace_folder,
        trace_episodes=plays.trace_episodes,
        trace_checkpoint=plays.checkpoint,
    )
    policies = {kind: policy.build_policy(network, place._replace(greedy=kind == "greedy")) for kind in kinds}
    return Evaluator(stream, policies, num_episodes, Limits(settings.max_steps, settings.deadline_secs)), network
