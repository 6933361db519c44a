"""The errors packtrain raises on purpose. Each message is one sentence or two: what, where, what to try.

The command line prints them as one line and leaves with `exit_code`: 2 for something the user can correct before a
run starts, 3 for a fault that stopped a run under way. What does not stop a run is a warning, on the terminal and in
the log.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time

log = logging.getLogger("packtrain")


def one_line(text: str) -> str:
    """Return a text as one line: spaces between its words, and escapes in place of characters that cannot be shown.

    File names and values of foreign files may hold codes that move a terminal's cursor, or turn the text around.
    """
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)


class Error(Exception):
    """Anything packtrain refuses or gives up on."""

    exit_code = 1


class ConfigError(Error):
    """A configuration, knob or flag that cannot be meant."""

    exit_code = 2


class EnvSetupError(Error):
    """An environment that cannot be made, or whose first reset breaks its own spaces."""

    exit_code = 2


class MissingExtraError(Error):
    """An optional dependency that the request needs is not installed."""

    exit_code = 2

    def __init__(self, what: str, package: str, extra: str):
        super().__init__(f"{what} needs the package {package!r}; try: pip install 'packtrain[{extra}]'")


class CheckpointError(Error):
    """A checkpoint that is damaged, incomplete, of another configuration, or absent."""

    exit_code = 2


class DamagedError(CheckpointError):
    """A checkpoint of which a file is missing or is not what its manifest describes."""


class RunFolderError(Error):
    """A run folder that cannot be written, is locked by another run, or is not one."""

    exit_code = 2


class EnvError(Error):
    """An environment that failed while the run was under way."""

    exit_code = 3


class SaveError(Error):
    """A checkpoint that had to be written and could not be."""

    exit_code = 3


class DivergedError(Error):
    """Learning that has left the finite numbers."""

    exit_code = 3


class StalledError(Error):
    """A part that made no progress within its deadline."""

    exit_code = 3


class FolderLostError(Error):
    """The run folder was deleted or renamed while its run went on."""

    exit_code = 3


def warn(text: str) -> None:
    """Print a warning as one line, and write it to the log."""
    log.warning("%s", text)
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone, or a full disk behind it
        print(f"packtrain: warning: {text}", file=sys.stderr, flush=True)


class Seldom:
    """Warnings of one kind that are given at most once in a while; those in between are left out."""

    def __init__(self, every_secs: float = 60.0):
        self._every = every_secs
        self._last: float | None = None
        self._lock = threading.Lock()

    def warn(self, text: str) -> None:
        """Give a warning, unless one was given less than `every_secs` ago."""
        with self._lock:
            now = time.monotonic()
            if self._last is not None and now - self._last < self._every:
                return
            self._last = now
        warn(text)
