"""Gymnasium environments as a vector environment, in this process or each in its own process.

A guard wraps every environment, wherever it runs, and names environment, seed and step in errors.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from packtrain.envs.deadline import START_SECS, START_SETTING, within
from packtrain.envs.failures import Failures, report
from packtrain.envs.gymnasium_guard import DROPPED, FAILED, Guard
from packtrain.envs.gymnasium_state import Saving, exact_saving
from packtrain.envs.mujoco_warnings import remarks_logged
from packtrain.envs.picture import PICTURES_PER_SECOND, drawn, reason
from packtrain.envs.process_pool import Batch, ProcessPool
from packtrain.envs.process_pool import die_with_parent as die_with_parent  # learner processes need it too
from packtrain.envs.user_code import place_of, refuse_missing_extra
from packtrain.envs.validation import Answer, Boundary
from packtrain.envs.vector_env import Outcome
from packtrain.errors import CheckpointError, EnvSetupError, Error
from packtrain.trees import Tree


def make_gymnasium(spec: Any, kwargs: dict[str, Any], name: str) -> gym.Env:
    """Return one Gymnasium environment from its registration; EnvSetupError if it cannot be made."""
    try:
        with remarks_logged(spec.entry_point):
            return gym.make(spec, disable_env_checker=True, **kwargs)
    except Error:
        raise
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        refuse_missing_extra(name, error)
        raise EnvSetupError(f"{name!r} needs a package that is missing: {error}") from None
    except Exception as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown and unknown[1] in kwargs:
            raise EnvSetupError(
                f"{name!r} has no parameter {unknown[1]!r}, which Environment.kwargs = {kwargs} sets; --config "
                "'Environment.kwargs = {}' removes it"
            ) from error
        raise EnvSetupError(f"{name!r} cannot be made: {reason(error)}{place_of(error)}") from error


class Factory:
    """Makes one guarded Gymnasium environment, here or in a child process."""

    def __init__(
        self,
        make: Callable[[], gym.Env],
        label: str,
        answer: Answer,
        start_deadline_secs: float = START_SECS,
    ):
        self._make, self.label, self._answer = make, label, answer
        self._deadline = start_deadline_secs
        self._made_in = os.getpid()

    def __call__(self, failures: Failures | None = None) -> gym.Env:
        """Return the environment within the deadline."""
        return Guard(self._made(), self.label, self._answer, self._made, failures)

    def _made(self) -> gym.Env:
        """Return an environment without its guard; in a child process the parent enforces the deadline."""
        if os.getpid() != self._made_in:
            return self._make()
        return within(self._deadline, self._make, f"{self.label} was not made", START_SETTING)


class GymnasiumVectorEnv:
    """B Gymnasium environments in one of Gymnasium's vector environments."""

    rows_last = False  # observations are in a buffer that environments overwrite

    def __init__(
        self,
        factories: list[Factory],
        seeds: list[int],
        *,
        processes: bool,
        deadline_secs: float,
        answer: Answer,
        name: str,
        reward_channels: tuple[str, ...] = ("train",),
        start_deadline_secs: float = START_SECS,
        restarts: int = 0,
    ):
        """Make the environments; they are not reset.

        Args:
          factories: one per environment.
          seeds: of the environments.
          processes: run each environment in its own process.
          deadline_secs: of a step, with processes.
          answer: handling of bad values.
          name: of the environment, for messages.
          reward_channels: of the environment, "train" first.
          start_deadline_secs: of a constructor and a first reset.
          restarts: replacements in a row of an environment that fails; 0: a failure is an error.
        """
        self._seeds, self._deadline, self._name = seeds, deadline_secs, name
        self._failures = [Failures(seed, restarts) for seed in seeds]
        self._totals = [0] * len(seeds)  # failures that were logged
        self._start_deadline = start_deadline_secs
        self.overlaps = self.times_itself = processes
        self.starting = False
        self._waiting_since: float | None = None  # start of the current wait for processes; None without processes
        self._steps = np.zeros(len(seeds), np.int64)
        self._envs: Any
        if processes:
            self._envs = ProcessPool(factories, self._failures, start_deadline_secs, self._describe, self._steps_of)
        else:
            made = [functools.partial(one, known) for one, known in zip(factories, self._failures, strict=True)]
            self._envs = SyncVectorEnv(made, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        if self._envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise EnvSetupError(f"{name} does not reset on the next step; packtrain requires AutoresetMode.NEXT_STEP")
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.reward_channels = reward_channels
        self.boundary = Boundary(self.observation_space, answer, self._describe)
        self._ended = np.zeros(len(seeds), bool)
        self._actions: Tree = None
        self._savable = not processes and all(exact_saving(guard.env) is not None for guard in self._envs.envs)

    @property
    def busy_since(self) -> float | None:
        """Return when the current call began: that of the stepped environment, or the wait for processes."""
        if self.times_itself:
            return self._waiting_since
        return next((guard.busy_since for guard in self._envs.envs if guard.busy_since is not None), None)

    def _describe(self, column: int) -> str:
        label = f"environment {column} ({self._name}, seed {self._seeds[column]})"
        return f"{self._failures[column].name(label)} at its step {self._steps[column]}"

    def _steps_of(self, column: int) -> int:
        return int(self._steps[column])

    def reset(self) -> Outcome:
        """Return the first rows; each environment gets its own seed."""
        self.starting = True
        if isinstance(self._envs, ProcessPool):
            self._envs.begin_reset(self._seeds)
            obs, *_, infos = self._wait(self._envs, self._start_deadline)
        else:
            obs, infos = self._envs.reset(seed=self._seeds)
        self.starting = False
        self._ended = no = np.zeros(len(self._seeds), bool)
        rewards = {channel: np.zeros(len(self._seeds), np.float32) for channel in self.reward_channels}
        obs, rewards, *_ = self.boundary.cross(obs, rewards, no, no)
        self.boundary.dropped += int(np.sum(infos.get(DROPPED, 0)))
        self._count_failures(infos)
        return Outcome(obs, ~no, rewards, no, no, None)

    def send(self, actions: Tree) -> None:
        """Start the step; subprocesses begin at once."""
        self._steps = self._steps + ~self._ended  # incremented here, so that errors and deadlines name this step
        if isinstance(self._envs, ProcessPool):
            self._envs.send(actions)
        else:
            self._actions = actions

    def recv(self) -> Outcome:
        """Finish the step, within the deadline if environments run in processes."""
        if isinstance(self._envs, ProcessPool):
            result = self._wait(self._envs, self._deadline)
        else:
            result = self._envs.step(self._actions)
        obs, reward, terminated, truncated, infos = result
        first = self._ended
        rewards = {"train": np.asarray(reward, np.float32)}
        for channel in self.reward_channels[1:]:
            rewards[channel] = np.where(first, 0, infos.get(f"reward/{channel}", 0)).astype(np.float32)
        obs, rewards, terminated, truncated = self.boundary.cross(obs, rewards, terminated, truncated)
        self.boundary.dropped += int(np.sum(infos.get(DROPPED, 0)))
        failed = self._count_failures(infos)
        self._ended = terminated | truncated
        solved = infos.get("solved")
        solved = None if solved is None else np.asarray(solved, bool)
        return Outcome(obs, first, rewards, terminated, truncated, solved, info=infos, dropped=failed)

    def _wait(self, pool: ProcessPool, seconds: float) -> Batch:
        self._waiting_since = time.monotonic()
        try:
            return pool.recv(seconds)
        finally:
            self._waiting_since = None

    def _count_failures(self, infos: dict[str, Any]) -> np.ndarray | None:
        """Log new failures; return the environments that failed in this step, whose episodes are dropped."""
        totals = [failures.total for failures in self._failures]
        if totals == self._totals:
            return None
        self._steps = np.where(np.not_equal(totals, self._totals), 0, self._steps)  # those of replacements
        self._totals = totals
        self.boundary.replaced = report(self._failures)
        failed = infos.get(FAILED)
        return None if failed is None else np.asarray(failed, bool)

    @property
    def savable(self) -> bool:
        """Return whether every environment runs in this process and can be saved exactly."""
        return self._savable

    def snapshot(self) -> Tree | None:
        """Return the state of all environments; None unless they are savable."""
        if not self.savable:
            return None
        return {
            "envs": [None if guard.broken else _saving(guard).snapshot() for guard in self._envs.envs],
            "guards": [guard.snapshot() for guard in self._envs.envs],
            "clocks": [[clock._elapsed_steps for clock in _clocks(env)] for env in self._envs.envs],
            "steps": self._steps.copy(),
            "ended": self._ended.copy(),
        }

    def restore(self, snapshot: Tree) -> None:
        """Restore a snapshot; CheckpointError if it comes from a version that did not save guards."""
        if "guards" not in snapshot:
            raise CheckpointError(
                f"{self._name} was saved by an earlier version of packtrain, without its guards; --fresh begins"
            )
        # Gymnasium's wrappers require a reset before the first step.
        what = f"environment 0 ({self._name}, seed {self._seeds[0]}) or one beside it did not reset"
        within(self._start_deadline, lambda: self._envs.reset(seed=list(self._seeds)), what, START_SETTING)
        for guard, env, state in zip(self._envs.envs, snapshot["envs"], snapshot["guards"], strict=True):
            guard.restore(state)
            if not guard.broken:  # else the next reset replaces it
                _saving(guard).restore(env)
        for env, elapsed in zip(self._envs.envs, snapshot["clocks"], strict=True):
            for clock, steps in zip(_clocks(env), elapsed, strict=True):
                clock._elapsed_steps = steps
        self._steps, self._ended = snapshot["steps"].copy(), snapshot["ended"].copy()
        self._envs._autoreset_envs = self._ended.copy()
        self._totals = [failures.total for failures in self._failures]
        self.boundary.replaced = sum(self._totals)

    def describe_busy(self) -> str:
        """Return a description of the environment being stepped; in one process they are stepped one by one."""
        if isinstance(self._envs, ProcessPool):
            return self._describe(self._envs.silent)
        busy = [column for column, guard in enumerate(self._envs.envs) if guard.busy_since is not None]
        return self._describe(busy[0] if busy else 0)

    def picture(self, column: int) -> np.ndarray:
        """Return the environment's own image; it must have been made in this process, with images."""
        return drawn(self._name, self._envs.envs[column].render)

    def pictures_per_second(self) -> float:
        """Return the environment's frame rate."""
        return float(self._envs.envs[0].metadata.get("render_fps") or PICTURES_PER_SECOND)

    def close(self) -> None:
        """End the environments; processes that do not answer are killed."""
        self._envs.close()


def _saving(guard: Guard) -> Saving:
    saving = exact_saving(guard.env)
    assert saving is not None
    return saving


def _clocks(env: gym.Env) -> list[Any]:
    """Return the time-limit wrappers around an environment, whose counters are part of the state."""
    clocks = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            clocks.append(env)
        env = env.env
    return clocks
