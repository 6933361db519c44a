"""Fault injection for runs: start a command in a separate process, kill it, damage its files."""

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
_context.set_forkserver_preload(["packtrain.runtime.train_command", "packtrain.algorithms.impala"])


def default_signals() -> None:
    """Handle signals like a process started by a terminal: `nohup` and `&` let children ignore some of them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _main(argv: list[str], log: str, folder: str, stdout: str | None) -> None:
    os.setsid()  # a separate process group, so that all its processes can be killed at once
    default_signals()
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
        """Start the command.

        Args:
          argv: its arguments.
          folder: its working directory, and the place of its output: command.log.
          stdout: replaces standard output, for example by a full device or a pipe.
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
        """Return the process id, which is also the group's."""
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float = 120.0) -> int:
        """Return the exit code; after the timeout, kill the group and raise a TimeoutError."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill_group()
            raise TimeoutError(f"the command did not end within {timeout:g} s:\n{self.output()}")
        return self._process.exitcode

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Send SIGKILL to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()

    @property
    def running(self) -> bool:
        """Return whether it is still running."""
        return self._process.is_alive()

    def output(self) -> str:
        """Return its output so far."""
        return self.log.read_text() if self.log.exists() else ""


def wait_until(condition: Callable[[], bool], timeout: float = 60.0) -> None:
    """Poll a condition; TimeoutError if it does not become true."""
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
    """Run a command repeatedly and kill it shortly after each new checkpoint; return the number of kills.

    Args:
      argv: arguments of `packtrain` that resume the run.
      run: its folder.
      kills: required number.
      tries: how often the command may finish before it is killed.
    """
    killed, saved = 0, run / "checkpoints"
    for turn in range(tries):
        before = set(checkpoint.steps(saved)) if saved.is_dir() else set()
        command = Command(argv, run.parent)
        begun = time.monotonic()
        while command.running and time.monotonic() - begun < 60:
            if saved.is_dir() and set(checkpoint.steps(saved)) - before:
                time.sleep(0.013 * (turn % 10))  # kill at different places
                break
            time.sleep(0.01)
        if command.running:
            command.kill_group()
            killed += 1
        if killed == kills:
            break
    return killed
