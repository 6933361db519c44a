"""Gymnasium environments, each in its own process, of which any one can be replaced while the others go on.

Gymnasium's AsyncVectorEnv steps likewise, but it ends all of its processes when one fails. Here each process has a pipe
and a deadline of its own. Observations are in shared memory. A process that ends, or that does not answer in time, is
killed, and a new one with a new seed is started; an environment that raises is made again inside its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import multiprocessing.connection
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import (
    batch_space,
    clear_mpi_env_vars,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)

from packtrain.cpu_count import available_cores
from packtrain.envs.deadline import START_SETTING, RunningTime
from packtrain.envs.failures import Failures
from packtrain.envs.gymnasium_guard import DROPPED, FAILED
from packtrain.errors import EnvError, EnvSetupError, Error
from packtrain.trees import Tree

IMPORT_SECS = 10.0  # time for a process to start and import everything, on its own core


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


class ProcessFactory(Protocol):
    """Makes one guarded environment."""

    label: str

    def __call__(self, failures: Failures | None = None) -> gym.Env:
        """Return the environment; in a child process, after its configuration was verified."""


class _Made(NamedTuple):
    """First message of a process: its environment is made, and its spaces are the expected ones."""

    same_spaces: bool


class _Answer(NamedTuple):
    """Outcome of a reset or a step. The observation is in shared memory."""

    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    failures: Failures | None  # where there are new ones


class _Fault(NamedTuple):
    """The process gives up: a failure that does not allow a replacement, or one of packtrain's own errors."""

    kind: str  # name of the exception's class
    message: str
    traceback: str
    is_ours: bool  # the message names the environment

    @property
    def what(self) -> str:
        """Return the exception in one line."""
        return self.message if self.is_ours else f"{self.kind}: {self.message}"


class Batch(NamedTuple):
    """The outcomes of all environments. Observations are overwritten by the next step."""

    obs: Tree
    rewards: np.ndarray  # [B] float64
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool
    infos: dict[str, Any]


class _Member:
    """One environment and its process."""

    def __init__(self, index: int, factory: ProcessFactory, failures: Failures):
        self.index, self.factory, self.failures = index, factory, failures
        self.process: Any = None
        self.pipe: Any = None
        self.fd = -1
        self.made = False  # the environment exists
        self.resets = True  # the pending or the next command is a reset
        self.ordered = False  # a command was sent whose outcome was not returned yet
        self.early: Any = None  # a message that arrived before `recv` waited for it


class _Wait:
    """The environments that `recv` waits for, and since when."""

    def __init__(self, size: int, deadline_secs: float):
        self.deadline = deadline_secs
        self.look = min(1.0, deadline_secs / 4)
        self.running = RunningTime(2 * self.look)
        self.since = dict.fromkeys(range(size), 0.0)
        self.begins = True
        self.checked = 0.0


class ProcessPool(gym.vector.VectorEnv):
    """A vector environment whose members run in processes; `send` and `recv` follow each other."""

    def __init__(
        self,
        factories: Sequence[ProcessFactory],
        failures: Sequence[Failures],
        start_deadline_secs: float,
        describe: Callable[[int], str],
        steps: Callable[[int], int],
    ):
        """Start all processes and wait until their environments are made.

        Args:
          factories: one per environment.
          failures: one per environment; brought up to date by `recv`.
          start_deadline_secs: for a constructor and for a reset.
          describe: index → "environment 3 (CartPole-v1, seed 1017) at its step 48213".
          steps: index → steps that the current environment has made.

        Raises:
          EnvSetupError: an environment cannot be made, or not in time.
        """
        self.num_envs = len(factories)
        self._describe, self._steps, self._reset_deadline = describe, steps, start_deadline_secs
        rounds = math.ceil(self.num_envs / available_cores())  # they start at the same time and share the cores
        self._start_deadline = start_deadline_secs + IMPORT_SECS * rounds
        self._context = multiprocessing.get_context("spawn")
        one = factories[0]()
        self.metadata = {**one.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        one.close()
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._buffer = create_shared_memory(self.single_observation_space, n=self.num_envs, ctx=self._context)  # type: ignore[arg-type]
        self._obs = read_from_shared_memory(self.single_observation_space, self._buffer, n=self.num_envs)
        self._poll = select.poll()
        self._by_fd: dict[int, _Member] = {}
        self._members = [_Member(*each) for each in zip(range(self.num_envs), factories, failures, strict=True)]
        try:
            for member in self._members:
                self._start(member)
            self._wait_until_made()
        except BaseException:
            self.close()
            raise

    # -- the interface

    def begin_reset(self, seeds: Sequence[int]) -> None:
        """Begin a reset of every environment with these seeds."""
        for member, seed in zip(self._members, seeds, strict=True):
            if member.ordered:  # a new process is being reset with its own seed
                continue
            member.resets, member.failures.seed = True, seed
            self._order(member, ("reset", seed))

    def send(self, actions: Tree) -> None:
        """Begin a step of every environment; those whose process is new are being reset already."""
        for member, action in zip(self._members, iterate(self.action_space, actions), strict=True):
            if not member.ordered:
                self._order(member, ("step", action))

    def recv(self, deadline_secs: float) -> Batch:
        """Wait for all outcomes, and replace environments that fail.

        Args:
          deadline_secs: for a step; a new process has the start deadline.

        Raises:
          EnvError: an environment failed and must not be replaced.
        """
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        infos: dict[str, Any] = {}
        wait = _Wait(self.num_envs, deadline_secs)
        while wait.since:
            for member, message in self._messages(wait):
                answer = self._settled(member, message)
                if answer is None:  # the environment is made now, or a new process has been started
                    wait.since[member.index] = wait.running.look()
                    continue
                del wait.since[member.index]
                index = member.index
                rewards[index], terminated[index], truncated[index] = answer[:3]
                if answer.info:
                    infos = self._add_info(infos, answer.info, index)
        return Batch(self._obs, rewards, terminated, truncated, infos)

    @property
    def silent(self) -> int:
        """Return the first environment that has not answered; 0 if all have."""
        return next((member.index for member in self._members if member.ordered and member.early is None), 0)

    @property
    def processes(self) -> list[Any]:
        """Return the current processes, in the order of the environments."""
        return [member.process for member in self._members]

    def close(self, **kwargs: Any) -> None:
        """Kill all processes."""
        running = [member for member in self._members if member.process is not None]
        for member in running:
            member.process.kill()
        for member in running:
            member.process.join(5)
            member.pipe.close()
        self.closed = True

    # -- messages

    def _messages(self, wait: _Wait) -> list[tuple[_Member, Any]]:
        """Return new messages of environments that are waited for; of late ones and ended ones, an exception."""
        if wait.begins:
            wait.begins = False
            early = [member for member in self._members if member.early is not None]
            found = [(member, member.early) for member in early]
            for member in early:
                member.early = None
            if found:
                return found
        found = []
        for fd, _ in self._poll.poll(1000 * wait.look):
            member = self._by_fd[fd]
            message = self._read(member)
            if isinstance(message, _Made):
                self._check_made(member, message)
                if member.index in wait.since:
                    wait.since[member.index] = wait.running.look()
            elif member.index in wait.since:
                found.append((member, message))
            else:
                member.early = message
        return found or self._late(wait)

    def _read(self, member: _Member) -> Any:
        """Return the next message of a process; the exception if it has ended."""
        try:
            return member.pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._poll.unregister(member.fd)
            del self._by_fd[member.fd]
            return error

    def _late(self, wait: _Wait) -> list[tuple[_Member, Any]]:
        """Return the environments whose deadline has passed, each with a TimeoutError."""
        now = wait.running.look()
        found: list[tuple[_Member, Any]] = []
        for index, since in wait.since.items():
            member = self._members[index]
            limit = wait.deadline if member.made else self._start_deadline + member.failures.delay
            if member.made and member.resets and member.failures.total:  # the first reset of a replacement
                limit = max(limit, self._reset_deadline)
            if now - since > limit:
                found.append((member, TimeoutError(f"{limit:g}")))
        return found

    def _settled(self, member: _Member, message: Any) -> _Answer | None:
        """Return the outcome that a message means for its environment; None if a new process resets now."""
        where = self._describe(member.index)
        match message:
            case _Answer():
                if message.failures is not None:
                    new = message.failures.new
                    member.failures.restore(message.failures.snapshot())
                    member.failures.new += new
                member.ordered, member.resets = False, message.terminated or message.truncated
                return message
            case _Fault(is_ours=True) if member.made:
                raise EnvError(message.message) from _there(member, message)
            case _Fault():
                return self._replaced(member, f"{where} failed: {message.what}", message.traceback)
            case TimeoutError():
                return self._replaced(member, f"{where} did not answer within {message} s")
            case _:
                return self._replaced(member, f"{where} died (its process ended with code {self._exit_code(member)})")

    def _replaced(self, member: _Member, message: str, trace: str = "") -> _Answer | None:
        """Start a new process in place of one that failed; return the end of its episode, if one was under way."""
        resetting = member.resets
        member.failures.note(message, trace, self._steps(member.index))
        self._end(member)
        self._start(member)
        self._order(member, ("reset", member.failures.seed))
        return None if resetting else _Answer(0.0, False, True, {DROPPED: 1, FAILED: True}, None)

    # -- the life of a process

    def _start(self, member: _Member) -> None:
        """Start a process for a member; its environment is not reset."""
        member.pipe, child = self._context.Pipe()
        by_main_thread = threading.current_thread() is threading.main_thread()
        spaces = self.single_observation_space, self.single_action_space
        arguments = (member.index, member.factory, member.failures, by_main_thread, child, self._buffer, spaces)
        member.process = self._context.Process(target=_serve, args=arguments, daemon=True)
        with clear_mpi_env_vars():
            member.process.start()
        child.close()
        member.fd = member.pipe.fileno()
        self._by_fd[member.fd] = member
        self._poll.register(member.fd, select.POLLIN)
        member.made, member.resets, member.ordered, member.early = False, True, False, None

    def _end(self, member: _Member) -> None:
        """Kill a member's process."""
        member.process.kill()
        member.process.join(5)
        if self._by_fd.pop(member.fd, None) is not None:
            self._poll.unregister(member.fd)
        member.pipe.close()

    def _exit_code(self, member: _Member) -> int | None:
        """Return the code with which a process ended; a broken pipe is seen a moment before its end."""
        member.process.join(5)
        return member.process.exitcode

    def _order(self, member: _Member, command: tuple[str, Any]) -> None:
        member.ordered = True
        # The end of a process is noticed when its answer is read.
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            member.pipe.send(command)

    def _wait_until_made(self) -> None:
        """Wait for all first environments; EnvSetupError if one cannot be made in time."""
        wait = _Wait(self.num_envs, self._start_deadline)
        while not all(member.made for member in self._members):
            for member, message in self._messages(wait):
                label = member.factory.label
                if isinstance(message, TimeoutError) and not member.made:
                    what = f"was not made within {self._start_deadline:g} s"
                    raise EnvSetupError(f"{label} {what}; {START_SETTING} sets the deadline")
                if isinstance(message, _Fault):
                    text = message.message if message.is_ours else f"{label} cannot be made: {message.what}"
                    raise EnvSetupError(text) from _there(member, message)
                if not isinstance(message, TimeoutError):
                    code = self._exit_code(member)
                    raise EnvSetupError(f"the process of {label} ended with code {code} before it was ready")

    def _check_made(self, member: _Member, message: _Made) -> None:
        member.made = True
        if not message.same_spaces:
            raise EnvSetupError(f"{member.factory.label} has other spaces than the first environment")


def _there(member: _Member, fault: _Fault) -> RuntimeError:
    return RuntimeError(f"in the process of environment {member.index}:\n{fault.traceback}")


def _serve(
    index: int,
    factory: ProcessFactory,
    failures: Failures,
    by_main_thread: bool,
    pipe: multiprocessing.connection.Connection,
    buffer: Any,
    spaces: tuple[gym.Space, gym.Space],
) -> None:
    """Make one environment in this process and carry out orders, until the parent closes the pipe."""
    try:
        die_with_parent(by_main_thread)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        time.sleep(failures.delay)
        env = factory(failures)
        pipe.send(_Made(env.observation_space == spaces[0] and env.action_space == spaces[1]))
        ended = False
        while True:
            command, data = pipe.recv()
            if command == "reset" or ended:  # next-step autoreset
                obs, info = env.reset(seed=data if command == "reset" else None)
                answer = _Answer(0.0, False, False, info, None)
            else:
                obs, reward, terminated, truncated, info = env.step(data)
                answer = _Answer(float(reward), terminated, truncated, info, None)
            ended = answer.terminated or answer.truncated
            write_to_shared_memory(spaces[0], index, obs, buffer)
            if failures.new:
                answer = answer._replace(failures=failures)
            pipe.send(answer)
            failures.new = []
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            pipe.send(_Fault(type(error).__name__, str(error), trace, isinstance(error, Error)))
