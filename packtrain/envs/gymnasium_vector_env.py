"""Gymnasium environments as a vector environment, in this process or each in its own process.

A guard wraps every environment, wherever it runs, and names environment, seed and step in errors.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from packtrain.config import Travelling
from packtrain.cpu_count import available_cores
from packtrain.envs.deadline import START_SECS, START_SETTING, RunningTime, within
from packtrain.envs.gymnasium_guard import DROPPED, Guard
from packtrain.envs.gymnasium_state import exact_saving
from packtrain.envs.mujoco_warnings import remarks_logged
from packtrain.envs.picture import PICTURES_PER_SECOND, drawn, reason
from packtrain.envs.user_code import place_of, refuse_missing_extra
from packtrain.envs.validation import Answer, Boundary
from packtrain.envs.vector_env import Outcome
from packtrain.errors import CheckpointError, EnvError, EnvSetupError, Error
from packtrain.trees import Tree

IMPORT_SECS = 10.0  # time for a process to start and import everything, on its own core


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


PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def die_with_parent(started_by_main_thread: bool) -> None:
    """End this child process when its parent ends, however the parent ends and whatever this process does.

    A thread waits for the end of the parent and kills this process. Linux is also asked to do so, because native code
    that holds the interpreter's lock keeps that thread from running.

    Args:
      started_by_main_thread: whether the parent's main thread started this process. Linux ends a child with the thread
        that started it, not with the parent, so it is not asked if that thread may end earlier.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux" and started_by_main_thread:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class Factory:
    """Makes one guarded Gymnasium environment, here or in a child process."""

    def __init__(
        self,
        make: Callable[[], gym.Env],
        label: str,
        answer: Answer,
        travelling: Travelling | None,
        start_deadline_secs: float = START_SECS,
    ):
        self._make, self.label, self._answer, self._travelling = make, label, answer, travelling
        self._deadline = start_deadline_secs
        self._by_main_thread = threading.current_thread() is threading.main_thread()

    def __call__(self) -> gym.Env:
        """Return the environment within the deadline; a child process also verifies its configuration."""
        if multiprocessing.parent_process() is None:
            made = within(self._deadline, self._make, f"{self.label} was not made", START_SETTING)
            return Guard(made, self.label, self._answer)
        die_with_parent(self._by_main_thread)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        if self._travelling is not None:
            self._travelling.check()
        return Guard(self._make(), self.label, self._answer)  # the parent enforces the deadline


class _Processes(AsyncVectorEnv):
    """Gymnasium's subprocess environments with a deadline for their start, reporting the first failure, not the last.

    Deadlines exclude the time in which this process was stopped.
    """

    def __init__(self, factories: list[Factory], start_deadline_secs: float):
        rounds = math.ceil(len(factories) / available_cores())  # they start at the same time and share the cores
        self._factories, self._start_deadline = factories, start_deadline_secs + IMPORT_SECS * rounds
        super().__init__(factories, context="spawn", copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)

    def _check_spaces(self) -> None:
        self.call_async("metadata")  # each process answers first when its environment is made
        if not self._poll_pipe_envs(self._start_deadline):
            silent = self.silent()
            for process in self.processes:
                process.kill()
            self.closed = True  # otherwise close would wait for answers
            what = f"was not made within {self._start_deadline:g} s"
            raise EnvSetupError(f"{self._factories[silent].label} {what}; {START_SETTING} sets the deadline")
        self.call_wait()
        super()._check_spaces()

    def silent(self) -> int:
        """Return the first environment that has not answered; 0 if all have."""
        return next((i for i, pipe in enumerate(self.parent_pipes) if not pipe.poll(0)), 0)

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        self._assert_is_running()
        if timeout is None:
            return True
        look = min(1.0, timeout / 4)
        running = RunningTime(2 * look)
        for pipe in self.parent_pipes:
            if pipe is None or pipe.closed:
                return False
            while not pipe.poll(look):
                if running.look() >= timeout:
                    return False
        return True

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        failed = list(successes).count(False)
        if failed:
            errors = [self.error_queue.get() for _ in range(failed)]
            index, kind, value, trace = errors[0]
            there = RuntimeError(f"in the process of environment {index}:\n{trace}")
            for gone, *_ in errors:
                self.parent_pipes[gone] = None  # type: ignore[call-overload]
            others = f" ({failed - 1} more environments failed with it)" if failed > 1 else ""
            if issubclass(kind, EnvError):
                raise EnvError(f"{value}{others}") from there
            raise EnvError(f"environment {index} failed: {kind.__name__}: {value}{others}") from there


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
    ):
        self._seeds, self._deadline, self._name = seeds, deadline_secs, name
        self._start_deadline = start_deadline_secs
        self.overlaps = self.times_itself = processes
        self.starting = False
        self._waiting_since: float | None = None  # start of the current wait for processes; None without processes
        self._steps = np.zeros(len(seeds), np.int64)
        self._envs: Any
        if processes:
            try:
                self._envs = _Processes(factories, start_deadline_secs)
            except (ConnectionError, EOFError, BrokenPipeError) as error:
                raise EnvSetupError(f"the process of {name!r} ended before the environment was ready") from error
        else:
            self._envs = SyncVectorEnv(factories, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        if self._envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise EnvSetupError(f"{name} does not reset on the next step; packtrain requires AutoresetMode.NEXT_STEP")
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.reward_channels = reward_channels
        self.boundary = Boundary(self.observation_space, answer, self._describe)
        self._ended = np.zeros(len(seeds), bool)
        self._actions: Tree = None
        self._savings = [None] if processes else [exact_saving(guard.env) for guard in self._envs.envs]

    @property
    def busy_since(self) -> float | None:
        """Return when the current call began: that of the stepped environment, or the wait for processes."""
        if self.times_itself:
            return self._waiting_since
        return next((guard.busy_since for guard in self._envs.envs if guard.busy_since is not None), None)

    def _describe(self, column: int) -> str:
        return f"environment {column} ({self._name}, seed {self._seeds[column]}) at its step {self._steps[column]}"

    def reset(self) -> Outcome:
        """Return the first rows; each environment gets its own seed."""
        self.starting = True
        if isinstance(self._envs, AsyncVectorEnv):
            self._envs.reset_async(seed=list(self._seeds))
            obs, infos = self._wait(self._envs.reset_wait, self._start_deadline)
        else:
            obs, infos = self._envs.reset(seed=self._seeds)
        self.starting = False
        self._ended = no = np.zeros(len(self._seeds), bool)
        rewards = {channel: np.zeros(len(self._seeds), np.float32) for channel in self.reward_channels}
        obs, rewards, *_ = self.boundary.cross(obs, rewards, no, no)
        self.boundary.dropped += int(np.sum(infos.get(DROPPED, 0)))
        return Outcome(obs, ~no, rewards, no, no, None)

    def send(self, actions: Tree) -> None:
        """Start the step; subprocesses begin at once."""
        self._steps = self._steps + ~self._ended  # incremented here, so that errors and deadlines name this step
        if isinstance(self._envs, AsyncVectorEnv):
            try:
                self._envs.step_async(actions)
            except (BrokenPipeError, ConnectionError, EOFError) as error:
                raise self._dead() from error
        else:
            self._actions = actions

    def recv(self) -> Outcome:
        """Finish the step, within the deadline if environments run in processes."""
        if isinstance(self._envs, AsyncVectorEnv):
            result = self._wait(self._envs.step_wait, self._deadline)
        else:
            result = self._envs.step(self._actions)
        obs, reward, terminated, truncated, infos = result
        first = self._ended
        rewards = {"train": np.asarray(reward, np.float32)}
        for channel in self.reward_channels[1:]:
            rewards[channel] = np.where(first, 0, infos.get(f"reward/{channel}", 0)).astype(np.float32)
        obs, rewards, terminated, truncated = self.boundary.cross(obs, rewards, terminated, truncated)
        self.boundary.dropped += int(np.sum(infos.get(DROPPED, 0)))
        self._ended = terminated | truncated
        solved = infos.get("solved")
        solved = None if solved is None else np.asarray(solved, bool)
        return Outcome(obs, first, rewards, terminated, truncated, solved, info=infos)

    def _wait(self, call: Callable[..., Any], seconds: float) -> Any:
        self._waiting_since = time.monotonic()
        try:
            return call(timeout=seconds)
        except multiprocessing.TimeoutError as error:
            raise EnvError(f"{self._describe(self._envs.silent())} did not answer within {seconds:g} s") from error
        except (BrokenPipeError, ConnectionError, EOFError) as error:
            raise self._dead() from error
        finally:
            self._waiting_since = None

    def _dead(self) -> EnvError:
        # A broken pipe is seen a moment before the end of its process.
        ended = multiprocessing.connection.wait([process.sentinel for process in self._envs.processes], timeout=5)
        gone = [i for i, process in enumerate(self._envs.processes) if process.sentinel in ended]
        code = None
        if gone:
            self._envs.processes[gone[0]].join(5)
            code = self._envs.processes[gone[0]].exitcode
        return EnvError(f"{self._describe(gone[0] if gone else 0)} died (its process ended with code {code})")

    @property
    def savable(self) -> bool:
        """Return whether every environment runs in this process and can be saved exactly."""
        return None not in self._savings

    def snapshot(self) -> Tree | None:
        """Return the state of all environments; None unless they are savable."""
        if not self.savable:
            return None
        return {
            "envs": [saving.snapshot() for saving in self._savings if saving is not None],
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
        for saving, state in zip(self._savings, snapshot["envs"], strict=True):
            assert saving is not None
            saving.restore(state)
        for guard, state in zip(self._envs.envs, snapshot["guards"], strict=True):
            guard.restore(state)
        for env, elapsed in zip(self._envs.envs, snapshot["clocks"], strict=True):
            for clock, steps in zip(_clocks(env), elapsed, strict=True):
                clock._elapsed_steps = steps
        self._steps, self._ended = snapshot["steps"].copy(), snapshot["ended"].copy()
        self._envs._autoreset_envs = self._ended.copy()

    def describe_busy(self) -> str:
        """Return a description of the environment being stepped; in one process they are stepped one by one."""
        if isinstance(self._envs, _Processes):
            return self._describe(self._envs.silent())
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
        if isinstance(self._envs, AsyncVectorEnv):
            for process in self._envs.processes:
                process.kill()
            for process in self._envs.processes:
                process.join(5)
            self._envs.closed = True  # otherwise close would wait for answers
        else:
            self._envs.close()


def _clocks(env: gym.Env) -> list[Any]:
    """Return the time-limit wrappers around an environment, whose counters are part of the state."""
    clocks = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            clocks.append(env)
        env = env.env
    return clocks
