"""Breaking runs on purpose: start a command in a process of its own, kill it, damage its files. Counts what it did."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from packtrain.runtime import checkpoint

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["packtrain.runtime.command", "packtrain.algorithms.impala"])


def _main(argv: list[str], log: str, folder: str, stdout: str | None) -> None:
    os.setsid()  # a process group of its own, so that all of it can be killed at once
    os.chdir(folder)
    output = open(log, "ab", buffering=0)  # noqa: SIM115  (it is this process's output from here on)
    os.dup2(output.fileno() if stdout is None else os.open(stdout, os.O_WRONLY), 1)
    os.dup2(output.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    from packtrain.cli import main

    code = main(argv)
    if stdout is None:
        sys.stdout.flush()
    sys.exit(code)


class Command:
    """`packtrain ARGV` in a process group of its own, started quickly from a server that has torch loaded."""

    def __init__(self, argv: list[str], folder: Path, stdout: Path | None = None):
        """Start it.

        Args:
          argv: its arguments.
          folder: where it runs, and where it prints to: command.log.
          stdout: where standard output goes instead, such as a full device or a pipe.
        """
        self.log = folder / "command.log"
        with contextlib.suppress(FileNotFoundError):
            self.log.unlink()
        self._process = _context.Process(
            target=_main, args=(argv, str(self.log), str(folder), str(stdout) if stdout else None)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """The process id, which is also the group's."""
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float = 120.0) -> int:
        """The exit code; a TimeoutError, and a killed group, if it does not end."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill_group()
            raise TimeoutError(f"the command did not end within {timeout:g} s:\n{self.output()}")
        return self._process.exitcode

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL for the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text() if self.log.exists() else ""


def wait_until(condition: Callable[[], bool], timeout: float = 60.0) -> None:
    """Poll a condition; TimeoutError if it does not come true."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.01)


def flip_bit(path: Path, rng: random.Random) -> int:
    """Flip one random bit of a file; returns its offset in bytes."""
    data = bytearray(path.read_bytes())
    offset = rng.randrange(len(data))
    data[offset] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return offset


def truncate(path: Path, length: int) -> None:
    """Cut a file to a length."""
    with open(path, "r+b") as file:
        file.truncate(length)


def kill_after_checkpoints(argv: list[str], run: Path, kills: int, tries: int = 40) -> int:
    """Run a command again and again, each time killed a moment after it has saved something new; how often it was.

    Args:
      argv: `packtrain`'s, which resumes the run.
      run: its folder.
      kills: how many are wanted.
      tries: how often it may end before it is killed.
    """
    killed, saved = 0, run / "checkpoints"
    for turn in range(tries):
        before = set(checkpoint.steps(saved)) if saved.is_dir() else set()
        command = Command(argv, run.parent)
        begun = time.monotonic()
        while command.running and time.monotonic() - begun < 60:
            if saved.is_dir() and set(checkpoint.steps(saved)) - before:
                time.sleep(0.013 * (turn % 10))  # in different places
                break
            time.sleep(0.01)
        if command.running:
            command.kill_group()
            killed += 1
        if killed == kills:
            break
    return killed
