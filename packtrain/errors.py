"""Exceptions that packtrain raises intentionally. Each message is one or two sentences: what, where, what to try.

The command line prints the message as one line and exits with `exit_code`: 2 for an error that the user can correct
before a run starts, 3 for a fault that stopped a run. Problems that do not stop a run are warnings, on the terminal and
in the log.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time

log = logging.getLogger("packtrain")
log.addHandler(logging.NullHandler())  # before a run has its log.txt, Python would print warnings a second time


def one_line(text: str) -> str:
    """Return a text as one line: spaces between its words, and escapes in place of unprintable characters.

    File names and values from foreign files may contain codes that move a terminal's cursor or reverse the text.
    """
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)


class Error(Exception):
    """Base of all exceptions that packtrain raises intentionally."""

    exit_code = 1


class ConfigError(Error):
    """An invalid configuration, knob or flag."""

    exit_code = 2


class EnvSetupError(Error):
    """An environment that cannot be made, or whose first reset violates its own spaces."""

    exit_code = 2


class MissingExtraError(Error):
    """A required optional dependency is not installed."""

    exit_code = 2

    def __init__(self, what: str, package: str, extra: str):
        super().__init__(f"{what} needs the package {package!r}; try: pip install 'packtrain[{extra}]'")


class CheckpointError(Error):
    """A checkpoint that is damaged, incomplete, missing, or of another configuration."""

    exit_code = 2


class DamagedError(CheckpointError):
    """A checkpoint with a file that is missing or differs from its manifest."""


class RunFolderError(Error):
    """A run folder that cannot be written, is locked by another run, or is not a run folder."""

    exit_code = 2


class ClusterError(Error):
    """A cluster that cannot be started, reached or used as asked for."""

    exit_code = 2


class ClusterLostError(Error):
    """The head of the cluster does not answer, or its object store has overflowed."""

    exit_code = 3


class EnvError(Error):
    """An environment that failed during a run."""

    exit_code = 3


class SaveError(Error):
    """A required checkpoint could not be written."""

    exit_code = 3


class DivergedError(Error):
    """Learning diverged: values are no longer finite."""

    exit_code = 3


class StalledError(Error):
    """A component that made no progress within its deadline."""

    exit_code = 3


class LearnerGroupError(Error):
    """Data-parallel learners that fail again and again."""

    exit_code = 3


class WorkersLostError(StalledError):
    """Too many acting processes have ended repeatedly, or did not start."""


class FolderLostError(Error):
    """The run folder was deleted or renamed during its run."""

    exit_code = 3


ENDS_AFTER_SAVING = (EnvError, ClusterLostError, WorkersLostError, LearnerGroupError)
"""Errors of acting and learning after which a runtime saves what was learned, and raises them again."""


def warn(text: str) -> None:
    """Print a warning as one line, and write it to the log."""
    log.warning("%s", text)
    with contextlib.suppress(OSError, ValueError):  # the terminal is closed, or its disk is full
        print(f"packtrain: warning: {text}", file=sys.stderr, flush=True)


class Seldom:
    """Rate-limited warnings of one kind: at most one in an interval, the others are dropped."""

    def __init__(self, every_secs: float = 60.0):
        self._every = every_secs
        self._last: float | None = None
        self._lock = threading.Lock()

    def warn(self, text: str) -> None:
        """Print a warning, unless one was printed less than `every_secs` ago."""
        with self._lock:
            now = time.monotonic()
            if self._last is not None and now - self._last < self._every:
                return
            self._last = now
        warn(text)
