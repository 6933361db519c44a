"""Trust but verify: follow the plan, except where the model's ensemble disagrees unusually much; try that instead.

For each environment and episode, the largest disagreement about an action of every expanded node is kept. Before each
action, the action with the most disagreement replaces the planned one, with probability 1 − `rejection_probability`, if
its disagreement is above the `quantile` of those kept. (openreview DE0MSwKv32y; IJCNN 2021.)

Beyond the published rule, trust may grow. The disagreement about steps that came out as predicted is noise, and nothing
up to the level of noise (its `noise_quantile`) is verified.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import chance
from packtrain.planning.model import Model
from packtrain.planning.nodes import Nodes
from packtrain.planning.schedules import Schedule

_REJECTED, _TIE = 7001, 7002  # purposes of random numbers
_NOISE_ROOM, _NOISE_LEAST = 4096, 256  # number of steps from which the noise level is computed; minimum number


class VerificationSettings(Protocol):
    """The settings of an agent that verifies."""

    @property
    def bonus_quantile_threshold(self) -> float | None:
        """Quantile of an episode's disagreement above which an action is unusual; None: no action is."""

    @property
    def rejection_probability(self) -> float:
        """Probability of following the plan although an action is unusual."""

    @property
    def bonus_queue_length(self) -> int:
        """Number of expansions that the quantile is computed over."""

    @property
    def noise_quantile(self) -> float | None:
        """Quantile of the disagreement about correct predictions, up to which nothing is verified; None: no limit."""


def check_threshold_schedule(agent: Any) -> None:
    """Raise a ConfigError if a schedule sets the verification threshold of an agent that does not verify."""
    if "bonus_quantile_threshold" in agent.parameter_schedules and agent.bonus_quantile_threshold is None:
        name = type(agent).__name__
        raise ConfigError(
            f"{name}.parameter_schedules changes {name}.bonus_quantile_threshold, which is None: "
            "set it to the value of the first epoch"
        )


def without_threshold_schedule(schedules: dict[str, Schedule]) -> dict[str, Schedule]:
    """Return the schedules of an agent that does not verify."""
    return {name: schedule for name, schedule in schedules.items() if name != "bonus_quantile_threshold"}


def build_verification(
    agent: VerificationSettings, model: Model, columns: int, seed: int, always: bool = False
) -> Verification | None:
    """Return the rule for B environments; None if the agent does not verify and `always` is False."""
    if agent.bonus_quantile_threshold is None and not always:
        return None
    return Verification(
        columns,
        agent.bonus_quantile_threshold,
        agent.rejection_probability,
        agent.bonus_queue_length,
        seed,
        agent.noise_quantile,
        getattr(model, "runs", 1),
    )


class Verification:
    """The rule for B environments."""

    def __init__(
        self,
        columns: int,
        quantile: float | None,
        rejection_probability: float,
        queue_length: int,
        seed: int,
        noise_quantile: float | None = None,
        runs: int = 1,
    ):
        """Start with no expanded nodes.

        Args:
          columns: B.
          quantile: disagreement above this quantile of the episode's is unusual; None: nothing is.
          rejection_probability: probability of following the plan without verification.
          queue_length: number of expansions that the quantile is computed over.
          seed: of random choices.
          noise_quantile: this quantile of the disagreement about correct predictions is the level of noise, up to which
            nothing is verified; None: there is no such level.
          runs: number of runs that share the environments, equally many each, one run after the other.
        """
        self._quantile, self._reject, self._seed = quantile, rejection_probability, seed
        self._queue = np.zeros((columns, queue_length), np.float32)
        self._seen = np.zeros(columns, np.int64)  # expansions in the current episode
        self._noise_quantile = noise_quantile
        self._run = np.arange(columns) * runs // max(columns, 1)  # run of each environment
        self._confirmed = np.zeros((runs, _NOISE_ROOM), np.float32)
        self._confirmations = np.zeros(runs, np.int64)
        self._noise = np.zeros(columns)  # noise level in each environment's episode

    @property
    def learns_noise(self) -> bool:
        """Whether a noise level is estimated from real steps."""
        return self._noise_quantile is not None

    def change(self, agent: VerificationSettings) -> None:
        """Use the quantile and the rejection probability of other settings from now on."""
        self._quantile, self._reject = agent.bonus_quantile_threshold, agent.rejection_probability

    def begin(self, columns: np.ndarray) -> None:
        """Begin an episode in these environments: no node has been expanded."""
        self._seen[columns] = 0
        if self._noise_quantile is None:
            return
        runs = self._run[columns]
        for run in np.unique(runs):
            if self._confirmations[run] >= _NOISE_LEAST:
                known = self._confirmed[run, : min(self._confirmations[run], _NOISE_ROOM)]
                self._noise[columns[runs == run]] = np.quantile(known, self._noise_quantile)

    def noise(self, columns: np.ndarray) -> np.ndarray:
        """Return the noise level, [R]; it is constant within an episode."""
        return self._noise[columns]

    def compare(
        self, columns: np.ndarray, edges: Nodes, rows: np.ndarray, actions: np.ndarray, correct: np.ndarray | None
    ) -> None:
        """Estimate the noise level from real steps. Only the first step along an edge counts: later ones are known.

        Args:
          columns: [M] environments.
          edges: has `bonus` and `tried`, [N, A].
          rows: [M] numbers in `edges`.
          actions: [M].
          correct: [M] bool, the step came out as predicted; None: another environment made the steps.
        """
        if not self.learns_noise:
            return
        if correct is not None:
            bonus = edges.bonus[rows, actions]
            first = correct & ~edges.tried[rows, actions] & (bonus > 0)
            self.confirmed(columns[first], bonus[first])
        edges.tried[rows, actions] = True

    def confirmed(self, columns: np.ndarray, bonus: np.ndarray) -> None:
        """Record the disagreement [M] about steps in environments [M] that came out as predicted."""
        if self._noise_quantile is None or not len(bonus):
            return
        runs = self._run[columns]
        for run in np.unique(runs):
            mine = bonus[runs == run][-_NOISE_ROOM:]
            places = (self._confirmations[run] + np.arange(len(mine))) % _NOISE_ROOM
            self._confirmed[run, places] = mine
            self._confirmations[run] += len(mine)

    def expanded(self, columns: np.ndarray, bonus: np.ndarray) -> None:
        """Record the largest disagreement about an action of each expanded node [M]; the oldest records are dropped.

        An environment may occur several times, in the order of expansion.
        """
        order = np.argsort(columns, kind="stable")
        owners = columns[order]
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        counts = np.diff(np.append(starts, len(owners)))
        rank = np.arange(len(owners)) - np.repeat(starts, counts)  # number of earlier entries of the environment
        self._queue[owners, (self._seen[owners] + rank) % self._queue.shape[1]] = bonus[order]
        self._seen[owners[starts]] += counts

    def thresholds(self, columns: np.ndarray) -> np.ndarray:
        """Return the quantile of each environment's queue, linearly interpolated; infinity where it is empty."""
        if self._quantile is None:
            return np.full(len(columns), np.inf)
        lengths = np.minimum(self._seen[columns], self._queue.shape[1])
        result = np.full(len(columns), np.inf)
        for length in np.unique(lengths[lengths > 0]):
            which = np.flatnonzero(lengths == length)
            result[which] = np.quantile(self._queue[columns[which], :length], self._quantile, axis=1)
        return result

    def _is_unusual(self, columns: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return whether values [R] are above their thresholds. Usually counting decides, without sorting."""
        if self._quantile is None:
            return np.zeros(len(columns), bool)
        lengths = np.minimum(self._seen[columns], self._queue.shape[1])
        longest = int(lengths.max(initial=0))
        below = self._queue[columns, :longest] < values[:, None]
        counts = (below & (np.arange(longest) < lengths[:, None])).sum(axis=1)
        place = (lengths - 1) * self._quantile  # index of the threshold in the sorted queue
        unusual: np.ndarray = counts > np.ceil(place)
        near = np.flatnonzero((counts > np.floor(place)) & ~unusual & (lengths > 0))  # between two entries
        unusual[near] = values[near] > self.thresholds(columns[near])
        return unusual & (lengths > 0)

    def choose(
        self, columns: np.ndarray, bonus: np.ndarray, decision: int, arrived: np.ndarray | bool = False
    ) -> np.ndarray:
        """Return the action to verify in each environment, −1 to follow the plan.

        Args:
          columns: [R].
          bonus: [R, A] disagreement about the actions of the current states.
          decision: a number that differs between decisions.
          arrived: [R] bool, environments that came here in order to verify, whatever the quantile is.
        """
        noise = chance(self._seed, columns[:, None], decision, _TIE, np.arange(bonus.shape[1]))
        top = bonus.max(axis=1)
        action = np.where(bonus == top[:, None], noise, -1.0).argmax(axis=1)
        unsure = (top > self.noise(columns)) & (arrived | self._is_unusual(columns, top))
        looks = chance(self._seed, columns, decision, _REJECTED) >= self._reject
        return np.where(unsure & looks, action, -1)

    def snapshot(self, run: int = 0) -> dict[str, Any]:
        """Return the state of a run that outlives its episodes."""
        count = int(self._confirmations[run])
        known = self._confirmed[run, : min(count, _NOISE_ROOM)].copy()
        return {"confirmed": known, "confirmations": count}

    def restore(self, snapshot: dict[str, Any], run: int = 0) -> None:
        """Restore a snapshot; it has an effect from the next episodes on."""
        self._confirmed[run, : len(snapshot["confirmed"])] = snapshot["confirmed"]
        self._confirmations[run] = int(snapshot["confirmations"])
