"""Warnings about a loop that waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from packtrain.runtime.watchdog import log_stacks

log = logging.getLogger("packtrain")
STARVED_SECS = 60.0  # between two warnings


class StarvationLog:
    """Logs once a minute that a loop waits, and for what; the first time with the stacks of all threads."""

    def __init__(self, who: str, what: str | Callable[[], str], now: Callable[[], float] = time.monotonic):
        """Begin to measure.

        Args:
          who: waits.
          what: it waits for, or a function that returns it.
          now: returns the time in seconds.
        """
        self._who, self._what, self._now = who, what, now
        self.reset()

    def reset(self) -> None:
        """Record that the loop has just done work, so it is not waiting."""
        self._since, self._said = self._now(), 0

    def check(self) -> None:
        """Log a warning if it is time."""
        waited = self._now() - self._since
        if waited > STARVED_SECS * (self._said + 1):
            self._said += 1
            what = self._what if isinstance(self._what, str) else self._what()
            text = f"{self._who} has waited {waited:.0f} s for {what}"
            if self._said == 1:
                log_stacks(text)
            else:
                log.warning("%s", text)
