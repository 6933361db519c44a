"""Exploration metrics: visited states and transitions of a known environment, and distances to its goal.

States are numbers here; `envs.state_graph.StateGraph` assigns them for small deterministic environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packtrain.errors import CheckpointError

NEVER = -1  # first-seen step of states that have not been seen


class Exploration:
    """Counts visits of states and of state–action pairs, over the whole run and over its current epoch.

    Landmarks are flags of a state: landmark j of a name counts as seen when a state with landmarks[name][state, j]
    is visited.

    Args:
      size: N, number of states.
      actions: A, number of actions.
      to_goal: [N] length of the shortest path to the goal, below 0 if there is none.
      from_start: [N] length of the shortest path from the start.
      landmarks: {name: bool [N, M]}.
    """

    def __init__(
        self,
        size: int,
        actions: int,
        to_goal: np.ndarray,
        from_start: np.ndarray,
        landmarks: Mapping[str, np.ndarray] | None = None,
    ):
        self.size, self.actions = size, actions
        self._to_goal, self._from_start = np.asarray(to_goal), np.asarray(from_start)
        self._landmarks = {name: np.asarray(shown, bool) for name, shown in (landmarks or {}).items()}
        for name, array in {"to_goal": self._to_goal, "from_start": self._from_start, **self._landmarks}.items():
            if len(array) != size:
                raise ValueError(f"{name} has {len(array)} states, but the environment has {size}")
        self._past_visits, self._visits = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._past_pairs, self._pairs = np.zeros(size * actions, np.int64), np.zeros(size * actions, np.int64)
        self._seen = np.zeros(size, bool)
        self._first = {name: np.full(shown.shape[1], NEVER, np.int64) for name, shown in self._landmarks.items()}

    @property
    def visits(self) -> np.ndarray:
        """Return the visits of each state in the whole run, [N] int64."""
        return self._past_visits + self._visits

    @property
    def transitions(self) -> np.ndarray:
        """Return how often each action was taken in each state in the whole run, [N, A] int64."""
        return (self._past_pairs + self._pairs).reshape(self.size, self.actions)

    def begin_epoch(self) -> None:
        """Reset the counts of the epoch."""
        self._past_visits += self._visits
        self._past_pairs += self._pairs
        self._visits[:], self._pairs[:] = 0, 0

    def visit(self, states: np.ndarray, at: int = 0) -> None:
        """Count states [B] where an episode begins; numbers below 0 are unknown and not counted.

        Args:
          states: [B] their numbers.
          at: the run's step count, for `first_visits`.
        """
        known = states[states >= 0]
        np.add.at(self._visits, known, 1)
        fresh = known[~self._seen[known]]
        if len(fresh):
            self._seen[fresh] = True
            for name, first in self._first.items():
                first[self._landmarks[name][fresh].any(axis=0) & (first == NEVER)] = at

    def step(self, before: np.ndarray, actions: np.ndarray, after: np.ndarray, at: int = 0) -> None:
        """Count B steps: the action taken in `before`, and a visit of `after`. Unknown states are left out.

        After a reset instead of a step, `before` is -1: the start is visited, and no action was taken.
        """
        np.add.at(self._pairs, (before * self.actions + actions)[before >= 0], 1)
        self.visit(after, at)

    def first_visits(self) -> dict[str, np.ndarray]:
        """Return the step at which each landmark was first seen, [M] int64; NEVER for the others."""
        return {name: first.copy() for name, first in self._first.items()}

    def row(self) -> dict[str, Any]:
        """Return the metrics graph/*, exploration/* and env/*. A distance is omitted while no visited state has one."""
        row: dict[str, Any] = {"graph/size": self.size}
        for period, visits, pairs in (
            ("history", self.visits, self._past_pairs + self._pairs),
            ("epoch", self._visits, self._pairs),
        ):
            seen = visits > 0
            near = seen & (self._to_goal >= 0)
            if near.any():
                row[f"graph/min_distance_to_goal_in_{period}"] = int(self._to_goal[near].min())
            if seen.any():
                row[f"graph/max_distance_from_start_in_{period}"] = int(self._from_start[seen].max())
            row[f"exploration/total_experienced_states_in_{period}"] = int(seen.sum())
            row[f"exploration/total_experienced_transitions_in_{period}"] = int(np.count_nonzero(pairs))
        row["env/visited_share"] = row["exploration/total_experienced_states_in_history"] / self.size
        row |= {f"env/{name}_visited": int((first != NEVER).sum()) for name, first in self._first.items()}
        return row

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return copies of all counts and first visits."""
        kept = {
            "past_visits": self._past_visits,
            "visits": self._visits,
            "past_transitions": self._past_pairs,
            "transitions": self._pairs,
        } | {f"first_visits/{name}": first for name, first in self._first.items()}
        return {name: array.copy() for name, array in kept.items()}

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Restore a snapshot; CheckpointError if it is of another environment."""
        mine = self.snapshot()
        if {name: array.shape for name, array in mine.items()} != {
            name: np.shape(array) for name, array in snapshot.items()
        }:
            raise CheckpointError(
                f"the exploration counts of the checkpoint are not those of a world of {self.size} states and "
                f"{self.actions} actions; resume with the environment that the run was started with"
            )
        copies = {name: np.array(array, np.int64) for name, array in snapshot.items()}
        self._past_visits, self._visits = copies["past_visits"], copies["visits"]
        self._past_pairs, self._pairs = copies["past_transitions"], copies["transitions"]
        self._first = {name: copies[f"first_visits/{name}"] for name in self._first}
        self._seen = self.visits > 0
