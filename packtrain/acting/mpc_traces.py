"""Traces of model-predictive control: the sequences of each decision, the plan, and what the actions led to.

Only the first environment is recorded, on the CPU; on a GPU a decision is one captured launch.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from packtrain import trees
from packtrain.acting.actor_state import RowActor, RowActorState
from packtrain.errors import ConfigError
from packtrain.interfaces import ActingPlace, Decision
from packtrain.planning.events import SearchRecord
from packtrain.planning.rollout_records import Iteration, sequences_record
from packtrain.planning.traces import TraceWriter, traces_of_flag
from packtrain.types import Row

FIRST = np.zeros(1, np.int64)  # the environment that is recorded


class RecordingActor(RowActor, Protocol):
    """A policy that keeps the sequences of its latest decision when `tried` is a list."""

    tried: list[Iteration] | None
    plan: np.ndarray  # [B, H, D]
    random: bool  # it acts at random at present


def mpc_writer(place: ActingPlace, device: torch.device) -> TraceWriter:
    """Return the writer of `--trace`; ConfigError on a GPU."""
    if device.type != "cpu":
        raise ConfigError("--trace records the searches of PredictiveControl on the CPU only; add --device cpu")
    assert place.trace_folder is not None
    about = (place.env_name, place.trace_seed, place.first_env, place.trace_checkpoint)
    return TraceWriter(traces_of_flag(place.trace_episodes), place.trace_folder, *about)


class RecordedMpcState(RowActorState):
    """Acting state of the group whose first environment is recorded."""

    def __init__(self, policy: RecordingActor, size: int, writer: TraceWriter):
        super().__init__(policy, size)
        self._recording, self._writer = policy, writer
        self._begun = 0  # episodes of the first environment
        self._last: tuple[np.ndarray, dict[str, Any]] | None = None  # action and extras of its last decision

    def act(self, row: Row) -> Decision:
        """Choose actions, and report the sequences to the writer."""
        policy = self._recording
        self._look_back(row)
        if row.first[0]:
            self._writer.planned = None if policy.random else self._begun
            self._begun += not policy.random
            self._writer.episode_begin(FIRST, self._begun, self._states(row))
        policy.tried = None if policy.random else []
        decision = super().act(row)
        tried, policy.tried = policy.tried, None
        extras: dict[str, Any] = {}
        if tried:
            best = float(tried[-1].returns[0].max())
            extras = {"value": np.array([best]), "candidates": np.array([sum(one.returns.shape[1] for one in tried)])}
            plan = policy.plan

            def describe(place: int, most: int) -> SearchRecord:
                return sequences_record("PredictiveControl", tried, place, plan[place])

            self._writer.searched(FIRST, describe)
        self._last = (np.array(decision.action[:1]), extras)
        return decision

    def finish(self, row: Row) -> None:
        """Process the outcome of the last decision, and write what is recorded."""
        self._look_back(row)
        self._writer.finish()

    def _look_back(self, row: Row) -> None:
        last, self._last = self._last, None
        if last is None or row.first[0]:
            return
        ended = np.asarray(row.terminated[:1]) | np.asarray(row.truncated[:1])
        rewards = np.asarray(row.last_reward["train"][:1])
        self._writer.real_steps(FIRST, self._states(row), last[0], rewards, ended, last[1])

    def _states(self, row: Row) -> Any:
        return trees.map(lambda leaf: np.array(leaf[:1]), row.obs)
