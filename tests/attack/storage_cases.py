"""Attacks on what a run has on disk and on the terminal it prints to: nothing that was learned may be lost.

Those that start a run are not fast: CI has the same in `tests/cli/test_storage.py` and `tests/cli/test_faults.py`.
"""

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from cases import SMALL, case, refused, run, small_run

from packtrain import errors, files
from packtrain.memory.replay import Replay
from packtrain.metrics.reading import read_metrics
from packtrain.metrics.writers import JsonlWriter
from packtrain.runtime import checkpoint
from packtrain.runtime.folder import RunFolder, claim
from packtrain.testing import chaos

ENDLESS = [*SMALL, "--total_steps", "100000000"]
LONGER = [*SMALL, "--total_steps", "800"]
FAULTY = (
    "import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\neval_every = 0\n"
    "Environment.kwargs = {{'fault': '{}', 'at_step': 200}}\n"
)


def newest(place: Path) -> int:
    """The step of the newest checkpoint that is whole."""
    found = checkpoint.load_newest(place / "checkpoints")
    assert found is not None, f"{place} has no whole checkpoint"
    return found[0]


def started(argv: list[str], place: Path, stdout: Path | None = None) -> chaos.Command:
    """A run under way that has saved something."""
    command = chaos.Command([*argv, "--checkpoint_secs", "0.2"], place, stdout)
    chaos.wait_until(lambda: not command.running or len(checkpoint.steps(place / "run/checkpoints")) > 1)
    assert command.running, command.output()
    return command


# -- full disks


@case(
    "full disk during a metrics row",
    attacks="metrics.jsonl: the disk takes 10 bytes of a row, then none, then all",
    expected="one warning, no half row, and every row when space returns",
)
def full_metrics(place: Path) -> None:
    """The disk is a stand-in for the file."""

    class Disk:
        free = 10

        def __init__(self, file):
            self._file = file

        def write(self, data):
            if not self.free:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.free -= (count := self._file.write(data[: self.free]))
            return count

        def __getattr__(self, name):
            return getattr(self._file, name)

    path = place / "metrics.jsonl"
    writer = JsonlWriter(path, 0, patient=True)
    disk = writer._file = Disk(writer._file)
    for step in range(5):
        writer.write({"step": step, "kind": "train"})
        assert not path.read_bytes()
    disk.free = 10_000
    writer.write({"step": 5, "kind": "train"})
    assert [row["step"] for row in read_metrics(place)] == list(range(6))


@case(
    "full disk during a run",
    attacks="the run folder: a file system of 2 MB that is filled while the run goes on",
    expected="the run goes on, keeps its checkpoints, writes whole rows and saves when space returns",
    fast=False,
)
def full_disk(place: Path) -> None:
    """Needs the right to mount a file system."""
    disk = place / "run"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False).returncode
    assert not mounted, "this case needs the right to mount a file system"
    try:
        command = started(ENDLESS, place)
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(512))
        chaos.wait_until(lambda: not command.running or "No space left" in command.output())
        before = newest(disk)
        (disk / "filler").unlink()
        chaos.wait_until(lambda: not command.running or newest(disk) > before)
        command.signal(signal.SIGINT)
        assert command.wait(30) == 130 and "Traceback" not in command.output(), command.output()
        assert not read_metrics(disk).bad_lines and not list(disk.glob("**/.writing-*"))
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@case(
    "full disk during a checkpoint",
    attacks="checkpoints/: the disk refuses the second file of a checkpoint",
    expected="nothing of it stays, and the one before stands",
)
def full_checkpoint(place: Path) -> None:
    """The disk is a stand-in for the function that writes."""
    state = {"run": {"step": 1}, "weights": {}}
    checkpoint.save(place, 1, state)
    write, calls = checkpoint._write_synced, []

    def refuse(path, data):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    checkpoint._write_synced = refuse
    try:
        checkpoint.save(place, 2, state)
    except OSError:
        pass
    finally:
        checkpoint._write_synced = write
    assert len(calls) == 2 and os.listdir(place) == ["1"]


@case(
    "folder that cannot be synced",
    attacks="checkpoints/: fsync of a folder answers EINVAL, as on some network mounts",
    expected="one warning, and checkpoints are written",
)
def no_sync(place: Path) -> None:
    """The mount is a stand-in for fsync."""
    sync = os.fsync

    def refuse(handle):
        if Path(f"/proc/self/fd/{handle}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(handle)

    os.fsync, files._unsynced = refuse, errors.Seldom(float("inf"))
    try:
        for step in (1, 2):
            checkpoint.save(place / "checkpoints", step, {"run": {"step": step}, "weights": {}})
    finally:
        os.fsync = sync
    assert newest(place) == 2


# -- damage


@case(
    "three damaged newer checkpoints",
    attacks="checkpoints/: three with higher steps are cut",
    expected="they are moved aside, and new checkpoints stay",
    fast=False,
)
def damaged_newer(place: Path) -> None:
    """Pruning once counted them."""
    folder = small_run(place) / "checkpoints"
    for step in (5000, 5001, 5002):
        shutil.copytree(folder / str(checkpoint.steps(folder)[-1]), folder / str(step))
        chaos.truncate(folder / str(step) / "weights.safetensors", 50)
    code, output = run(LONGER, place)
    assert code == 0 and 800 <= newest(place / "run") < 5000, output
    assert len(list(folder.glob("*.damaged"))) == 3


@case(
    "one bit of a replay segment",
    attacks="replay/: one flipped bit in a file that all checkpoints share",
    expected="its steps are dropped with a warning and a count, and are never drawn",
)
def flipped_segment(place: Path) -> None:
    """Beside it nothing is lost."""
    import numpy as np
    import torch

    def memory():
        made = Replay(1000, 50).build([2], 0, torch.device("cpu"))
        made.attach(place / "replay", 16)
        return made

    numbers = np.arange(100.0)[:, None]
    one, flags = memory(), np.zeros(100, bool)
    step = {"obs": numbers, "action": numbers, "reward": numbers[:, 0], "after": numbers + 1}
    one.add({**step, "terminated": flags, "truncated": flags})
    state = one.snapshot()
    chaos.flip_bit(place / "replay/00000002.safetensors", random.Random(0))
    again = memory()
    again.restore(state)
    left = set(range(100)) - set(range(32, 48))
    assert again.lost == 16 and {int(n) for n in again.sample(count=100).trajectory.reward.flatten()} == left


@case(
    "metrics shorter than the checkpoint counts",
    attacks="metrics.jsonl: its last 30 bytes are missing",
    expected="a warning, and the next row stands on a line of its own",
    fast=False,
)
def short_metrics(place: Path) -> None:
    """As a loss of power leaves it."""
    path = small_run(place) / "metrics.jsonl"
    chaos.truncate(path, path.stat().st_size - 30)
    code, output = run(LONGER, place)
    assert code == 0 and "metrics.jsonl was damaged" in output, output
    assert not read_metrics(place / "run").bad_lines


@case(
    "crash while config.gin is written",
    attacks="config.gin: the process ends before the new file is whole",
    expected="the one before is there",
)
def half_config(place: Path) -> None:
    """On resume it was once written in place."""
    folder = RunFolder(place / "run")
    folder.open()
    folder.write_config("a = 1\n")
    replace = os.replace

    def crash(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    os.replace = crash
    try:
        folder.write_config("a = 2\n")
    except errors.RunFolderError:
        pass
    finally:
        os.replace = replace
        folder.close()
    assert folder.config.read_text() == "a = 1\n"


# -- environments that end the program


def environment_that(fault: str, place: Path, runtime: str) -> None:
    """Train in an environment with a fault, which must be named, with the run saved."""
    (place / "mine.gin").write_text(FAULTY.format(fault))
    argv = ["train", "mine.gin", *SMALL[2:], "--total_steps", "100000", "--runtime", runtime]
    what = {"sys_exit": "SystemExit: 0", "interrupt": "KeyboardInterrupt"}[fault]
    refused(argv, place, "environment", what, code=3)
    assert newest(place / "run") > 0


@case(
    "sys.exit in an environment",
    attacks="step(): sys.exit(0), local runtime",
    expected="a fault of the environment: saved, one line, exit code 3",
    fast=False,
)
def exits(place: Path) -> None:
    """Once it ended the run with code 0."""
    environment_that("sys_exit", place, "local")


@case(
    "KeyboardInterrupt in an environment",
    attacks="step(): KeyboardInterrupt, serial runtime",
    expected="a fault of the environment: saved, one line, exit code 3",
    fast=False,
)
def interrupts(place: Path) -> None:
    """Once it ended the run with code 130, unsaved."""
    environment_that("interrupt", place, "serial")


# -- terminals


@case(
    "stdout into a pipe that is closed",
    attacks="stdout: | head -1",
    expected="the run ends normally",
    fast=False,
)
def closed_pipe(place: Path) -> None:
    """The reader goes when the first line is there."""
    os.mkfifo(place / "pipe")
    reader = os.open(place / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    command = chaos.Command([*SMALL, "--total_steps", "3000"], place, place / "pipe")
    chaos.wait_until(lambda: not command.running or bool(_read(reader)))
    os.close(reader)
    assert command.wait(60) == 0 and newest(place / "run") >= 3000, command.output()


def _read(handle: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(handle, 100)
    return b""


@case("stdout onto a full device", attacks="stdout: > /dev/full", expected="the run ends normally", fast=False)
def full_stdout(place: Path) -> None:
    """Every flush fails."""
    command = chaos.Command([*SMALL, "--total_steps", "400"], place, Path("/dev/full"))
    assert command.wait(60) == 0 and newest(place / "run") >= 400, command.output()


@case(
    "closed terminal",
    attacks="SIGHUP, twice, while nothing can be printed",
    expected="saved, exit code 129",
    fast=False,
)
def closed_terminal(place: Path) -> None:
    """The second is that of the shell."""
    command = started(ENDLESS, place, Path("/dev/full"))
    for _ in range(2):
        command.signal(signal.SIGHUP)
    assert command.wait(30) == 129 and newest(place / "run") > 0, command.output()


# -- run folders that go away


def folder_that_is(what: str, place: Path, found: str) -> None:
    """Move or delete the folder of a run under way, which must be saved elsewhere and say where."""
    command = started(ENDLESS, place)
    (place / "run").rename(place / "moved")
    if what == "deleted":
        shutil.rmtree(place / "moved", ignore_errors=True)
    assert command.wait(60) == 3 and what in command.output() and "Traceback" not in command.output(), command.output()
    assert f"saved at step {newest(place / found):,}" in command.output()


@case(
    "renamed run folder",
    attacks="RUN renamed while its run goes on",
    expected="noticed at the next checkpoint, saved under the new name, one line, exit code 3",
    fast=False,
)
def renamed(place: Path) -> None:
    """Linux says what an open folder is called now."""
    folder_that_is("renamed", place, "moved")


@case(
    "deleted run folder",
    attacks="RUN deleted while its run goes on",
    expected="noticed at the next checkpoint, saved in a new folder, one line, exit code 3",
    fast=False,
)
def deleted(place: Path) -> None:
    """The name is free, and is taken again."""
    folder_that_is("deleted", place, "run")


@case(
    "environment that changes the current folder",
    attacks="step(): os.chdir('/')",
    expected="the run folder stays where it was",
    fast=False,
)
def changes_folder(place: Path) -> None:
    """Relative paths are those of where the command was typed."""
    (place / "mine.gin").write_text(FAULTY.format("chdir"))
    code, output = run(["train", "mine.gin", *SMALL[2:], "--total_steps", "600", "--checkpoint_secs", "0.1"], place)
    assert code == 0 and newest(place / "run") >= 600, output


# -- names and locks


@case(
    "runs of the same second",
    attacks="the run folder's name: the time alone",
    expected="every run has a folder of its own",
)
def same_second(place: Path) -> None:
    """The kernel decides who was first."""
    assert len({claim(place / "now") for _ in range(3)}) == 3


@case(
    "lock held by a child of a dead run",
    attacks=".lock: a process inherits it, and the run is killed",
    expected="the line names the child and says how to free the folder",
)
def inherited_lock(place: Path) -> None:
    """The run is a process that opens a run folder."""
    script = (
        "import sys, subprocess, pathlib; from packtrain.runtime.folder import RunFolder\n"
        "f = RunFolder(pathlib.Path('run')); f.open()\n"
        "print(subprocess.Popen(['sleep', '60'], pass_fds=[f._lock.fileno()], stdout=2).pid, flush=True)\n"
        "sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        RunFolder(place / "run").open()
        raise AssertionError("the lock was taken from the child")
    except errors.RunFolderError as error:
        assert f"locked by process {child}" in str(error) and f"`kill {child}`" in str(error)
    finally:
        os.kill(child, signal.SIGKILL)


@case(
    "file system without locks",
    attacks=".lock: flock answers ENOLCK",
    expected="a warning that says so, and the run starts",
)
def no_locks(place: Path) -> None:
    """The file system is a stand-in for flock."""
    import fcntl

    lock = fcntl.flock

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    fcntl.flock = refuse
    try:
        folder = RunFolder(place / "run")
        folder.open()
        folder.close()
    finally:
        fcntl.flock = lock
    assert (place / "run/log.txt").is_file()
