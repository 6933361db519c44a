"""End processes whose parent has died, and restart runs that die.

A driver that starts processes has a *session folder* of its own in the folder for temporary files, readable for its
owner alone. A small guard process watches the driver, writes the process ids and creation times of everything the
driver has started into that folder, and ends all of it if the driver dies without saying that it is done. If the guard
was killed too, the next session finds the folder and does the same. No process is ever ended because of its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from packtrain.errors import StalledError

PREFIX = "packtrain-run-"
RECORDS = "processes.json"
LONGEST_PATH = 16  # characters of a session folder's parent; the path of a socket is limited to 107 in all
GRACE_SECS = 2.0  # between SIGTERM and SIGKILL
WATCH_SECS = 1.0
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
BREAKER_FAILURES, BREAKER_SECS = 5, 600.0
AGAIN = {StalledError.exit_code}
"""Exit codes after which a run is started again; also after a signal that it did not handle."""


class Record(NamedTuple):
    """One process; its creation time distinguishes it from a later one with the same id."""

    pid: int
    created: float


def record(pid: int) -> Record | None:
    """Return a process's current record, or None if it does not exist."""
    try:
        return Record(pid, psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def is_running(each: Record) -> bool:
    """Return whether this very process exists and is not a zombie."""
    try:
        process = psutil.Process(each.pid)
        same = abs(process.create_time() - each.created) < 0.01
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def descendants(roots: Iterable[Record]) -> set[Record]:
    """Return all living descendants of these processes."""
    found: set[Record] = set()
    for root in roots:
        if is_running(root):
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(root.pid).children(recursive=True)
                found |= {known for child in children if (known := record(child.pid)) is not None}
    return found


def mentioning(text: str) -> set[Record]:
    """Return own processes whose command line contains this text, such as the path of a session folder."""
    found, me = set(), os.getuid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == me and any(text in word for word in process.cmdline()):
                found.add(Record(process.pid, process.create_time()))
    return found


def end(records: Iterable[Record], grace_secs: float = GRACE_SECS) -> int:
    """End processes, first with SIGTERM, then with SIGKILL; return how many were running."""
    running = [each for each in records if each.pid != os.getpid() and is_running(each)]
    for number, secs in ((signal.SIGTERM, grace_secs), (signal.SIGKILL, 5.0)):
        for each in running:
            if is_running(each):
                with contextlib.suppress(OSError):
                    os.kill(each.pid, number)
        deadline = time.monotonic() + secs
        while any(map(is_running, running)) and time.monotonic() < deadline:
            time.sleep(0.05)
    return len(running)


# -- sessions


class Session:
    """A private folder whose processes end with the driver; must be closed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_short_folder()))  # created with mode 700
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "packtrain.runtime.supervise", str(os.getpid()), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is handled by the driver
        )

    def close(self) -> None:
        """Let the guard end remaining processes and delete the folder; waits for it."""
        if self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(2 * GRACE_SECS + 10)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _short_folder() -> str | None:
    """Return a folder for sockets, whose paths must be short; None: the default temporary folder."""
    usual = tempfile.gettempdir()
    return os.sep + "tmp" if len(usual) > LONGEST_PATH and os.path.isdir(os.sep + "tmp") else None


def guard(driver: int, folder: Path) -> None:
    """Record the processes that a driver starts, and end the remaining ones when stdin closes or the driver dies.

    The driver itself is not ended, nor what it had started before this guard. While it lives, processes of Python's
    multiprocessing are not ended either. Standard input is a pipe from the driver; the kernel closes it when it dies.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    root, mine = record(driver), record(os.getpid())
    known: set[Record] = set()
    while root is not None and mine is not None:
        now = descendants([*_started_since(root, mine), *known]) - {mine}
        now |= _started_since(root, mine)
        if not now <= known:
            known = {each for each in known if is_running(each)} | now
            _write(folder, root, known)
        closed, _, _ = select.select([sys.stdin], [], [], WATCH_SECS)
        if closed or not is_running(root):
            break
    if root is not None and mine is not None:
        known |= _started_since(root, mine)
        known |= descendants(known) - {mine}
    if root is not None and is_running(root):  # it continues without this session, and so do its helper processes
        known -= mentioning("multiprocessing.resource_tracker") | mentioning("multiprocessing.spawn")
    _finish(folder, known, mine)


def _started_since(driver: Record, mine: Record) -> set[Record]:
    """Return the children that a driver has started since it started this guard: earlier ones are not the session's."""
    found: set[Record] = set()
    if is_running(driver):
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(driver.pid).children()
            found = {known for child in children if (known := record(child.pid)) is not None}
    return {each for each in found if each.created >= mine.created and each != mine}


def reap_left_over(root: Path | None = None) -> int:
    """End processes of this user's earlier sessions whose guards were killed; return how many.

    Args:
      root: where session folders are; None: the folder for temporary files.
    """
    ended = 0
    for folder in sorted((root or Path(_short_folder() or tempfile.gettempdir())).glob(f"{PREFIX}*")):
        found = _read(folder)
        if found is not None and not is_running(found[0]):
            ended += _finish(folder, found[1] | descendants(found[1]), None)
    return ended


def _finish(folder: Path, known: set[Record], but: Record | None) -> int:
    ended = end((known | mentioning(str(folder))) - ({but} if but is not None else set()))
    shutil.rmtree(folder, ignore_errors=True)
    return ended


def _write(folder: Path, driver: Record, known: set[Record]) -> None:
    with contextlib.suppress(OSError):
        temporary = folder / f"{RECORDS}.new"
        temporary.write_text(json.dumps({"driver": driver, "processes": sorted(known)}))
        os.replace(temporary, folder / RECORDS)


def _read(folder: Path) -> tuple[Record, set[Record]] | None:
    """Return driver and processes of a session folder; None unless it belongs to this user alone and is complete."""
    try:
        state = folder.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
            return None
        values = json.loads((folder / RECORDS).read_text())
        processes = {Record(int(pid), float(created)) for pid, created in values["processes"]}
        pid, created = values["driver"]
        return Record(int(pid), float(created)), processes
    except (OSError, ValueError, KeyError, TypeError):
        return None


# -- restarts


def die_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent dies; Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)


def launch(command: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own that gets SIGTERM if this one dies; its output goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=die_with_parent,
        )


class _Breaker:
    """Notices crash loops."""

    def __init__(self) -> None:
        self._failures: list[tuple[float, str]] = []  # when and how the command ended

    def failed(self, how: str) -> str | None:
        """Count a failure; return the reason for giving up, if there were too many within `BREAKER_SECS`."""
        now = time.monotonic()
        self._failures = [each for each in self._failures if now - each[0] < BREAKER_SECS] + [(now, how)]
        count = len(self._failures)
        if count < BREAKER_FAILURES:
            return None
        return f"it failed {count} times within {BREAKER_SECS / 60:g} minutes; the first: {self._failures[0][1]}"


def supervise(
    command: Sequence[str],
    restarts: int,
    *,
    say: Callable[[str], None],
    first_delay: float = 1.0,
    last_delay: float = 30.0,
    steady_secs: float = 300.0,
) -> int:
    """Run a command, and run it again when a signal or a fault ended it; return the last exit code.

    SIGINT, SIGTERM and SIGHUP are passed on and end the restarts. A crash loop ends with exit code 3.

    Args:
      command: the program and its arguments; started again, it must go on where it was.
      restarts: how often it is started again at most.
      say: receives one line when it is started again.
      first_delay: seconds before the first new start; doubled for each further one.
      last_delay: seconds at most.
      steady_secs: after a run of so many seconds the delay is the first one again.
    """
    stopped: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        stopped.append(number)
        if child is not None:
            with contextlib.suppress(OSError):
                child.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    delay, used = first_delay, 0
    breaker = _Breaker()
    try:
        while True:
            begin = time.monotonic()
            # In a separate process group, so that Ctrl-C reaches it once, through this process.
            child = subprocess.Popen(list(command), process_group=0, preexec_fn=die_with_parent)
            if stopped:
                child.send_signal(stopped[-1])
            code = child.wait()
            child = None
            if stopped or (code >= 0 and code not in AGAIN) or used == restarts:
                return code if code >= 0 else 128 - code
            used += 1
            delay = first_delay if time.monotonic() - begin > steady_secs else delay
            how = f"ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            if loop := breaker.failed(how):
                say(loop)
                return StalledError.exit_code
            say(f"{how}; restart {used} of {restarts} in {delay:g} s")
            reap_left_over()
            _pause(delay, stopped)
            if stopped:
                return 128 + stopped[-1]
            delay = min(last_delay, 2 * delay)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pause(seconds: float, stopped: list[int]) -> None:
    """Sleep until a time has passed or a signal has arrived."""
    deadline = time.monotonic() + seconds
    while not stopped and time.monotonic() < deadline:
        time.sleep(0.05)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


if __name__ == "__main__":
    guard(int(sys.argv[1]), Path(sys.argv[2]))
