"""Gymnasium environments behind the face of columns, in this process or each in one of its own.

A guard stands around every environment, wherever it runs, and says who, where and when something breaks.
"""

from __future__ import annotations

import copy
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
from packtrain.cores import available_cores
from packtrain.envs.boundary import Answer, Boundary, batch_of_one, check_structure
from packtrain.envs.columns import Outcome
from packtrain.envs.deadline import START_SECS, START_SETTING, RunningTime, within
from packtrain.envs.mujoco_remarks import remarks_logged
from packtrain.envs.picture import PICTURES_PER_SECOND, drawn, reason
from packtrain.envs.saving import exact_saving
from packtrain.errors import CheckpointError, EnvError, EnvSetupError, Error
from packtrain.trees import Tree

IMPORT_SECS = 10.0  # for a process to start and import everything, on a core of its own
RESET_TRIES = 10  # resets in a row that may be dropped
DROPPED = "packtrain/dropped"  # the info key under which a guard tells how many episodes it cut


class Guard(gym.Wrapper):
    """Stands around one Gymnasium environment: checks structure, and says who, where and when something breaks."""

    def __init__(self, env: gym.Env, label: str, answer: Answer):
        super().__init__(env)
        self._label, self._answer = label, answer
        self._steps = 0
        self._good: Any = None
        self.busy_since: float | None = None  # time.monotonic() at the beginning of the call under way
        # An episode that is dropped must end in this environment too, so `drop` looks at values here, one at a time.
        self._boundary = Boundary(env.observation_space, "drop", lambda _: label) if answer == "drop" else None
        self._channels = reward_channels(env)[1:]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Reset, checked. With `drop`, an episode whose first observation is bad is given up for the next."""
        for dropped in range(RESET_TRIES):
            self.busy_since = time.monotonic()
            try:
                obs, info = self.env.reset(seed=seed, options=options)
            except Exception as error:
                raise self._broken("reset", error) from error
            self.busy_since = None
            if wrong := check_structure(obs, self.observation_space):
                raise EnvError(f"{self._where()} reset to an observation of {wrong}")
            if self._boundary is None or not self._is_bad(obs, {}):
                self._remember(obs)
                return obs, {**(info or {}), DROPPED: dropped}
            seed = None  # the same seed would give the same observation
        raise EnvError(f"{self._where()} reset to a bad observation {RESET_TRIES} times in a row")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Step, checked."""
        self._steps += 1
        self.busy_since = time.monotonic()
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            reward, info = float(reward), info or {}
        except Exception as error:
            raise self._broken("step", error) from error
        self.busy_since = None
        if wrong := check_structure(obs, self.observation_space):
            if self._answer == "drop":
                return self._good, 0.0, False, True, {DROPPED: 1}
            castable = isinstance(obs, np.ndarray) and obs.shape == self.observation_space.shape
            if self._answer == "raise" or not castable:
                raise EnvError(f"{self._where()} gave an observation of {wrong}")
            obs = obs.astype(self.observation_space.dtype)
        channels = {name: info.get(f"reward/{name}", 0.0) for name in self._channels}
        if self._boundary is not None and self._is_bad(obs, {"train": reward, **channels}):
            return self._good, 0.0, False, True, {DROPPED: 1}
        self._remember(obs)
        return obs, reward, bool(terminated), bool(truncated), info

    def snapshot(self) -> Tree:
        """Its count, and the last good observation where one is kept."""
        return {"steps": self._steps, "good": copy.deepcopy(self._good)}

    def restore(self, snapshot: Tree) -> None:
        """Go on after the environment inside was restored to where it was then."""
        self._steps, self._good = int(snapshot["steps"]), snapshot["good"]

    def _remember(self, obs: Any) -> None:
        """Keep the last good observation for `drop`; a copy, since an environment may write over its own."""
        if self._answer == "drop":
            self._good = copy.deepcopy(obs)

    def _is_bad(self, obs: Any, rewards: dict[str, float]) -> bool:
        assert self._boundary is not None
        no = np.zeros(1, bool)
        one = batch_of_one(obs, self.observation_space)
        *_, truncated = self._boundary.cross(one, {name: np.array([value]) for name, value in rewards.items()}, no, no)
        return bool(truncated[0])

    def _where(self) -> str:
        return f"{self._label} at its step {self._steps}"

    def _broken(self, call: str, error: Exception) -> EnvError:
        self.busy_since = None
        return EnvError(f"{self._where()} raised in {call}: {type(error).__name__}: {error}")


def make_gymnasium(spec: Any, kwargs: dict[str, Any], name: str) -> gym.Env:
    """One Gymnasium environment from its registration; EnvSetupError if it cannot be made."""
    try:
        with remarks_logged(spec.entry_point):
            return gym.make(spec, disable_env_checker=True, **kwargs)
    except Error:
        raise
    except gym.error.DependencyNotInstalled as error:
        raise EnvSetupError(f"{name!r} needs a package that is missing: {error}") from None
    except Exception as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown and unknown[1] in kwargs:
            raise EnvSetupError(
                f"{name!r} takes no {unknown[1]!r}, which Environment.kwargs = {kwargs} names; "
                "--config 'Environment.kwargs = {}' leaves them out"
            ) from error
        raise EnvSetupError(f"{name!r} cannot be made: {reason(error)}") from error


PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def die_with_parent(started_by_main_thread: bool) -> None:
    """Let this child process end when its parent does, however the parent ends and whatever this process does.

    A thread waits for the end of the parent and kills this process. Linux is also asked to do so, because native code
    that holds the interpreter's lock keeps that thread from running.

    Args:
      started_by_main_thread: whether the parent's main thread started this process. Linux ends a child with the thread
        that started it, not with the parent, and is not asked where that thread may end earlier.
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
        """The environment, within the deadline; a child process also checks that it has the right configuration."""
        if multiprocessing.parent_process() is None:
            made = within(self._deadline, self._make, f"{self.label} was not made", START_SETTING)
            return Guard(made, self.label, self._answer)
        die_with_parent(self._by_main_thread)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        if self._travelling is not None:
            self._travelling.check()
        return Guard(self._make(), self.label, self._answer)  # the parent waits for it, within the deadline


class _Processes(AsyncVectorEnv):
    """Gymnasium's subprocess environments with a deadline for their start, reporting the first failure, not the last.

    Deadlines leave out the time in which this process was stopped.
    """

    def __init__(self, factories: list[Factory], start_deadline_secs: float):
        rounds = math.ceil(len(factories) / available_cores())  # they start at once, and share the cores
        self._factories, self._start_deadline = factories, start_deadline_secs + IMPORT_SECS * rounds
        super().__init__(factories, context="spawn", copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)

    def _check_spaces(self) -> None:
        self.call_async("metadata")  # the first answer of each, once it is made
        if not self._poll_pipe_envs(self._start_deadline):
            silent = self.silent()
            for process in self.processes:
                process.kill()
            self.closed = True  # its own close would wait for answers
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


class GymnasiumColumns:
    """B Gymnasium environments behind one of Gymnasium's vector environments."""

    rows_last = False  # observations lie in a buffer that the environments write to

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
        self._waiting_since: float | None = None  # for processes
        self._steps = np.zeros(len(seeds), np.int64)
        self._envs: Any
        if processes:
            try:
                self._envs = _Processes(factories, start_deadline_secs)
            except (ConnectionError, EOFError, BrokenPipeError) as error:
                raise EnvSetupError(f"{name!r} died in its process before it was ready") from error
        else:
            self._envs = SyncVectorEnv(factories, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        if self._envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise EnvSetupError(f"{name} does not reset on the next step; packtrain needs AutoresetMode.NEXT_STEP")
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.reward_channels = reward_channels
        self.boundary = Boundary(self.observation_space, answer, self._describe)
        self._ended = np.zeros(len(seeds), bool)
        self._actions: Tree = None
        self._savings = [None] if processes else [exact_saving(guard.env) for guard in self._envs.envs]

    @property
    def busy_since(self) -> float | None:
        """When the call under way began: of the environment that is stepped, or of the wait for processes."""
        if self.times_itself:
            return self._waiting_since
        return next((guard.busy_since for guard in self._envs.envs if guard.busy_since is not None), None)

    def _describe(self, column: int) -> str:
        return f"environment {column} ({self._name}, seed {self._seeds[column]}) at its step {self._steps[column]}"

    def reset(self) -> Outcome:
        """The first rows; each environment gets its own seed."""
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
        self._steps = self._steps + ~self._ended  # counted here, so that who hangs or dies is named with this step
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
        # A broken pipe comes a moment before the end of the process that held it.
        ended = multiprocessing.connection.wait([process.sentinel for process in self._envs.processes], timeout=5)
        gone = [i for i, process in enumerate(self._envs.processes) if process.sentinel in ended]
        code = None
        if gone:
            self._envs.processes[gone[0]].join(5)
            code = self._envs.processes[gone[0]].exitcode
        return EnvError(f"{self._describe(gone[0] if gone else 0)} died (its process left with code {code})")

    @property
    def savable(self) -> bool:
        """Whether every environment runs in this process and can go on as if it had not stopped."""
        return None not in self._savings

    def snapshot(self) -> Tree | None:
        """None unless they are savable."""
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
        """Go back to a snapshot; CheckpointError if it is from before guards were saved."""
        if "guards" not in snapshot:
            raise CheckpointError(f"{self._name} was saved by an earlier packtrain, without its guards; --fresh begins")
        # Gymnasium's wrappers insist on a reset before the first step.
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
        """The environment whose step is under way; in one process they step one after the other."""
        if isinstance(self._envs, _Processes):
            return self._describe(self._envs.silent())
        busy = [column for column, guard in enumerate(self._envs.envs) if guard.busy_since is not None]
        return self._describe(busy[0] if busy else 0)

    def picture(self, column: int) -> np.ndarray:
        """The environment's own; it must have been made in this process, and to be drawn."""
        return drawn(self._name, self._envs.envs[column].render)

    def pictures_per_second(self) -> float:
        """What the environment says."""
        return float(self._envs.envs[0].metadata.get("render_fps") or PICTURES_PER_SECOND)

    def close(self) -> None:
        """End the environments; processes that do not answer are killed."""
        if isinstance(self._envs, AsyncVectorEnv):
            for process in self._envs.processes:
                process.kill()
            for process in self._envs.processes:
                process.join(5)
            self._envs.closed = True  # its own close would wait for answers
        else:
            self._envs.close()


def reward_channels(env: gym.Env) -> tuple[str, ...]:
    """The training channel first, then those an environment or its core declares and reports as "reward/NAME"."""
    source = getattr(env.unwrapped, "core", env.unwrapped)
    while isinstance(env, gym.Wrapper):
        if "reward_channels" in vars(env):  # a wrapper may report some, too
            source = env
            break
        env = env.env
    return ("train", *getattr(source, "reward_channels", ()))


def _clocks(env: gym.Env) -> list[Any]:
    """The time-limit wrappers around an environment: their counts are part of the state."""
    clocks = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            clocks.append(env)
        env = env.env
    return clocks
