"""Failures of an environment during a run: their count, the seeds of replacements, and when to give up.

An environment that raises, hangs, dies or returns no valid observation is made again with a new seed. Its episode is
dropped: the stream shows a truncation with reward 0, and the next row is the first of the new environment. What counts
is the number of steps between failures and not the time, so that a serial run is the same every time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from packtrain.errors import EnvError, Seldom

log = logging.getLogger("packtrain")

RESTARTS = 5  # default of Environment.restarts
GOOD_STEPS = 100  # after which the next failure is the first in a row again
FIRST_DELAY, LAST_DELAY = 0.1, 5.0  # seconds before the second replacement in a row, doubled for each further one
SETTING = "Environment.restarts"
_terminal = Seldom(10.0)


class Failure(NamedTuple):
    """One failure: what happened, and the traceback of the environment's code, if there is one."""

    message: str
    traceback: str


class Failures:
    """The failures of one environment of a group, over all its replacements."""

    def __init__(self, seed: int, allowed: int):
        """Create the count of a sound environment.

        Args:
          seed: of the first environment; those of replacements are derived from it and the number of failures.
          allowed: replacements in a row, with fewer than `GOOD_STEPS` steps between failures; 0: none.
        """
        self.allowed, self._origin = allowed, seed
        self.seed = seed  # of the current environment
        self.total = 0
        self.in_row = 0
        self.first = ""  # message of the first failure in the current row
        self.new: list[Failure] = []  # not logged yet

    def note(self, message: str, traceback: str, steps: int) -> None:
        """Count a failure and choose the seed of the replacement.

        Args:
          message: names the environment, its step and the fault.
          traceback: of the environment's code; "": there is none.
          steps: that this environment had made.

        Raises:
          EnvError: no replacement is allowed any more.
        """
        if steps >= GOOD_STEPS:
            self.in_row = 0
        if self.in_row == 0:
            self.first = message
        self.total += 1
        self.in_row += 1
        if self.in_row > self.allowed:
            raise EnvError(self.first + self._reason())
        self.new.append(Failure(message, traceback))
        self.seed = int(np.random.SeedSequence([self._origin, self.total]).generate_state(1)[0])

    def _reason(self) -> str:
        if not self.allowed:
            return ""
        return (
            f"; it was the first of {self.in_row} failures with fewer than {GOOD_STEPS} steps between them, and "
            f"{SETTING} = {self.allowed}"
        )

    @property
    def delay(self) -> float:
        """Return the seconds to wait before the replacement is made."""
        return 0.0 if self.in_row < 2 else min(LAST_DELAY, FIRST_DELAY * 2.0 ** (self.in_row - 2))

    def name(self, label: str) -> str:
        """Return the label of an environment; that of a replacement has its number and its seed."""
        return f"{label}, replacement {self.total} with seed {self.seed}," if self.total else label

    def snapshot(self) -> dict[str, Any]:
        """Return the counts and the current seed."""
        return {"seed": self.seed, "total": self.total, "in_row": self.in_row, "first": self.first}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.seed, self.total, self.in_row = int(snapshot["seed"]), int(snapshot["total"]), int(snapshot["in_row"])
        self.first = str(snapshot["first"])


def log_repeated(failures: Failures) -> None:
    """Log a failure of an environment that a planner searches in: its call is repeated, so nothing is lost."""
    new, failures.new = failures.new, []
    for failure in new:
        log.info("%s; the environment is made again\n%s", failure.message, failure.traceback.rstrip())
        _terminal.warn(f"{failure.message}; it is made again and the call repeated (failure {failures.total})")


def report(counts: Iterable[Failures]) -> int:
    """Log new failures: each in one line and with its traceback, and on the terminal at most one in 10 s.

    Returns:
      The number of replacements so far.
    """
    total = 0
    for failures in counts:
        total += failures.total
        if not failures.new:
            continue
        new, failures.new = failures.new, []
        for failure in new:
            log.info("%s; the environment is replaced\n%s", failure.message, failure.traceback.rstrip())
        _terminal.warn(
            f"{new[-1].message}; its episode is dropped and the environment replaced, with seed {failures.seed} "
            f"(failure {failures.total} of this environment)"
        )
    return total
