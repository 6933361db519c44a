"""The run folder: paths of its files, its lock, its log, and a check that it still exists."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import platform
import shutil
import weakref
from pathlib import Path
from typing import Any, Literal

import psutil

from packtrain.errors import FolderLostError, RunFolderError, warn
from packtrain.files import write_whole

log = logging.getLogger("packtrain")
_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}  # errors of a lock that another process holds


class RunFolder:
    """One run's folder, protected by a lock that the kernel releases when its process dies."""

    def __init__(self, path: Path, home: Path | None = None, fresh: bool = False):
        """Store the path; nothing is created or opened yet.

        Args:
          path: of the folder.
          home: what a relative path is relative to; None: the current folder, which an environment may change later.
          fresh: whether the folder must be new; if there is one of that name, the first free name beside it is taken.
        """
        self.path, self.shown = (home or Path.cwd()) / path, path
        self._fresh = fresh
        self._lock: Any = None
        # how it is held; "name": a file name, on file systems without locks
        self._held: Literal["lock", "name"] | None = None
        self._handle: int | None = None  # file descriptor of the folder, valid even if it is renamed
        self._handler: logging.Handler | None = None

    @property
    def checkpoints(self) -> Path:
        """Path of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Path of the metric rows."""
        return self.path / "metrics.jsonl"

    @property
    def config(self) -> Path:
        """Path of the configuration."""
        return self.path / "config.gin"

    @property
    def study(self) -> Path:
        """Path of the results of a finished study, which has no checkpoints."""
        return self.path / "study.json"

    def open(self) -> None:
        """Create the folder if necessary, take its lock and start its log; RunFolderError if that fails."""
        try:
            if self._fresh:
                name = claim(self.path).name
                self.path, self.shown = self.path.with_name(name), self.shown.with_name(name)
            else:
                self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "a+")  # noqa: SIM115  (held until close)
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            self.close()
            raise RunFolderError(
                f"{self.shown} cannot be written: {error.strerror}; choose another --output_dir"
            ) from None
        try:
            self._take_lock()
            self._handler = _LogFile(self.path / "log.txt", encoding="utf-8")
        except OSError as error:
            self.close()
            raise RunFolderError(f"{self.shown} cannot be written: {error}; choose another --output_dir") from None
        except RunFolderError:
            self.close()
            raise
        _open_folders.add(self)
        self._clear_leftovers()
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(self._handler)
        log.setLevel(logging.INFO)

    def _take_lock(self) -> None:
        """Take the lock; RunFolderError, which names the holder, if another process has it."""
        self._lock.seek(0)
        pid, host = ([*self._lock.read().split(), "", ""])[:2]
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held = "lock"
        except OSError as error:
            if error.errno in _TAKEN:
                raise RunFolderError(f"{self.shown} {self._holder(pid, host)}") from None
            self._refuse_without_locks(pid, host)
            self._held = "name"
            warn(
                f"{self.shown} lies on a file system without locks ({error.strerror}): nothing but its file .lock "
                "keeps a second run out of it"
            )
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(f"{os.getpid()} {platform.node()}")
        self._lock.flush()

    def _holder(self, pid: str, host: str) -> str:
        """Describe the process that holds the lock, and what the user can do.

        Args:
          pid: process id in the file .lock.
          host: machine name in the file .lock.
        """
        if host and host != platform.node():
            return f"is in use by process {pid} on {host}; choose another --output_dir"
        own = str(os.getpid())
        holders = [other for other in _users_of(self.path / ".lock") if pid == own or other != own]
        if pid in holders or (not holders and _is_running(pid)):
            return f"is in use by process {pid}; choose another --output_dir"
        if holders:
            return (
                f"is locked by process {holders[0]}, which process {pid or 'another one'} left behind when it ended: "
                f"`kill {holders[0]}` frees it, or choose another --output_dir"
            )
        return (
            f"is locked by a process that cannot be seen here; process {pid or 'of no number'} took the lock and has "
            "ended on this machine: look for what it left behind or for another machine that uses the folder, or "
            "choose another --output_dir"
        )

    def _refuse_without_locks(self, pid: str, host: str) -> None:
        """Raise a RunFolderError if .lock names a process that may be a run; for file systems without locks."""
        elsewhere = bool(host) and host != platform.node()
        if elsewhere or (_is_running(pid) and pid != str(os.getpid())):
            raise RunFolderError(
                f"{self.shown} is in use by process {pid}{f' on {host}' * elsewhere}, according to the file .lock on a "
                f"file system without locks; if that process is not a run, delete {self.path / '.lock'}"
            )

    def _clear_leftovers(self) -> None:
        """Delete half-written files of killed runs. The lock is held, so no other run is writing them."""
        if self._held != "lock":
            return
        for place in (self.path, self.checkpoints, *(self.path / "replay").glob("*")):
            if place.is_symlink() or (self.path / "replay").is_symlink():
                continue
            for leftover in place.glob(".writing-*"):
                with contextlib.suppress(OSError):
                    if leftover.is_dir() and not leftover.is_symlink():
                        shutil.rmtree(leftover, ignore_errors=True)
                    else:
                        leftover.unlink()

    def close(self) -> None:
        """Release the lock and end the log."""
        _open_folders.discard(self)
        if self._handler is not None:
            log.removeHandler(self._handler)
            self._handler.close()
            self._handler = None
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if self._lock is not None:
            if self._held == "name":
                with contextlib.suppress(OSError):
                    self._lock.truncate(0)
            with contextlib.suppress(OSError):  # writing there may have failed because the disk is full
                self._lock.close()
            self._lock, self._held = None, None

    def write_config(self, text: str) -> None:
        """Write config.gin atomically if its text has changed; RunFolderError if it cannot be written."""
        try:
            if not self.config.is_file() or self.config.read_bytes() != text.encode():
                write_whole(self.config, text.encode())
        except OSError as error:
            raise RunFolderError(f"{self.shown}/config.gin cannot be written: {error.strerror}") from None

    # -- whether the folder still exists

    def check_place(self) -> None:
        """Raise a FolderLostError if the path no longer leads to the folder that was opened."""
        if self._handle is None or self._is_here(self.path):
            return
        raise FolderLostError(f"{self.shown} was deleted, renamed or replaced while its run went on")

    def _is_here(self, path: Path) -> bool:
        assert self._handle is not None
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._handle))
        except OSError:
            return False

    def find_again(self) -> str:
        """Switch to the folder's new path, or to a new folder if it was deleted; return a sentence for the log.

        RunFolderError if no new folder can be made.
        """
        assert self._handle is not None
        before = self.shown
        name = None
        with contextlib.suppress(OSError):  # Linux reports the current path of an open folder
            name = Path(os.readlink(f"/proc/self/fd/{self._handle}"))
        if name is not None and self._is_here(name):
            self.path = self.shown = name
            return f"{before} was renamed to {name} while its run went on"
        what = "replaced by another folder" if self.path.exists() else "deleted"
        self.close()
        self._fresh = True
        self.open()
        return f"{before} was {what} while its run went on"

    # -- whether the folder can be used

    def check_writable(self) -> None:
        """Raise a RunFolderError if the folder could not be written; creates nothing."""
        place = self.path.parent if self._fresh else self.path
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise RunFolderError(f"{self.shown} cannot be made: {place} is not a folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise RunFolderError(
                f"{self.shown} cannot be written: no permission in {place}; choose another --output_dir"
            )

    def refuse_other_kind(self, sign: Path) -> None:
        """Raise a RunFolderError if the folder holds a run of the other kind, which this file or folder indicates."""
        if not self._fresh and sign.exists():
            raise RunFolderError(
                f"{self.shown} contains another kind of run; --fresh starts a new run beside it, "
                "or choose another --output_dir"
            )


class _LogFile(logging.FileHandler):
    """A log file whose write errors (such as a full disk) are not printed as tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""

    def close(self) -> None:
        """Close the file and ignore write errors."""
        with contextlib.suppress(OSError):
            super().close()


_open_folders: weakref.WeakSet[RunFolder] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """Close the lock in a forked process, which would otherwise keep the folder locked after this process ends."""
    for folder in list(_open_folders):
        if folder._lock is not None:
            folder._lock.close()
            folder._lock = None


os.register_at_fork(after_in_child=_let_go_in_child)


def _is_running(pid: str) -> bool:
    return pid.isdecimal() and psutil.pid_exists(int(pid))


def _users_of(path: Path) -> list[str]:
    """Return the ids of the processes on this machine that have a file open, as far as this user may see them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.path.samefile(handle, path) for handle in (process / "fd").iterdir() if handle.is_file()):
                found.append(process.name)
    return found


def claim(path: Path) -> Path:
    """Create a folder: this path if it is new, else the first free name with a number. Safe with several processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    candidate, number = path, 2
    while True:
        try:
            candidate.mkdir()
        except FileExistsError:
            candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
        else:
            return candidate


def point_latest(root: Path, path: Path) -> None:
    """Link ROOT/latest to the newest run; an existing file or folder of that name is left alone."""
    link = root / "latest"
    if link.is_symlink() or not link.exists():
        temporary = root / f".latest-{os.getpid()}"
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(os.path.relpath(path, root))
            os.replace(temporary, link)
        except OSError as error:  # a full disk, or a file system without links
            warn(f"{link} does not point to {path}: {error.strerror}")
