"""Faults of disks and clocks inside this process, without root, and a count of all injected faults.

A test of fault tolerance that injects no fault passes without testing anything. `expect` makes it fail. The functions
of `packtrain.testing.chaos` are counted too.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import errno
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

injected: collections.Counter[str] = collections.Counter()
"""Number of faults injected by this process, by kind."""


def count(kind: str, number: int = 1) -> None:
    """Add faults to `injected`."""
    injected[kind] += number


@contextlib.contextmanager
def expect(kind: str | None = None, at_least: int = 1) -> Iterator[collections.Counter[str]]:
    """Fail unless faults are injected inside the `with` statement.

    Args:
      kind: such as "kill"; None: any.
      at_least: number of faults.

    Yields:
      The faults so far inside the statement; complete at its end.

    Raises:
      AssertionError: there were fewer.
    """
    before, found = injected.copy(), collections.Counter[str]()
    try:
        yield found
    finally:
        found.update(injected - before)
    number = found.total() if kind is None else found[kind]
    what = "faults" if kind is None else f"faults of kind {kind!r}"
    assert number >= at_least, f"{number} {what} were injected, {at_least} are the least: {dict(found)}"


class Disk:
    """The disk of one folder, as files written in this process meet it: full, slow, or both; it can change at any time.

    Files are recognised by their path, so only files below the folder are concerned. Of other processes and of native
    code that writes by itself, nothing is noticed.
    """

    def __init__(self, folder: Path, room: int | None = None, bytes_per_sec: float | None = None):
        """Describe the disk; it is in effect inside the `with` statement.

        Args:
          folder: must exist.
          room: bytes that can still be written; None: no limit. Deleting files does not give room; set it again.
          bytes_per_sec: speed of writes; None: no limit.
        """
        self._folder = str(folder.resolve())
        self.room, self.bytes_per_sec = room, bytes_per_sec
        self.refused = self.written = 0  # writes; bytes
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Disk:
        for module, name in ((builtins, "open"), (io, "open"), (os, "fdopen")):
            replaced = self._watching(getattr(module, name))
            self._stack.enter_context(mock.patch.object(module, name, replaced))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, size: int) -> None:
        """Account for a write, after the time that it takes; OSError (ENOSPC) if there is no room."""
        if self.room is not None and size > self.room:
            self.refused += 1
            count("full disk")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.bytes_per_sec is not None:
            count("slow write")
            time.sleep(size / self.bytes_per_sec)
        self.room = None if self.room is None else self.room - size
        self.written += size

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*arguments: Any, **more: Any) -> Any:
            file = original(*arguments, **more)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                if file.writable() and self._is_inside(file.fileno()):
                    return _File(file, self)
            return file

        return opened

    def _is_inside(self, handle: int) -> bool:
        path = os.readlink(f"/proc/self/fd/{handle}")
        return path.startswith(self._folder + os.sep)


class _File:
    """A file whose writes go to a `Disk` first."""

    def __init__(self, file: Any, disk: Disk):
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        self._disk.take(len(data.encode()) if isinstance(data, str) else memoryview(data).nbytes)
        return int(self._file.write(data))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


class Clock:
    """The wall clock of this process, `time.time`, inside the `with` statement: it can jump. Other clocks do not."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._patch: Any = None

    def __enter__(self) -> Clock:
        real = time.time
        self._patch = mock.patch.object(time, "time", lambda: real() + self._offset)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def jump(self, seconds: float) -> None:
        """Set the clock forward, or back if negative."""
        count("clock jump")
        self._offset += seconds
