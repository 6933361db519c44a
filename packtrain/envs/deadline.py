"""Deadlines that count only the time in which this process could run, and time limits for starting environments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from packtrain.errors import EnvSetupError

Result = TypeVar("Result")

START_SECS = 120.0  # default limit for constructing an environment, and for its first reset
START_SETTING = "Environment.start_deadline_secs"
LOOK_SECS = 0.25  # interval at which a waiting thread calls `look`


class RunningTime:
    """Seconds since a start time in which this process was running.

    A stopped process (SIGSTOP, Ctrl-Z, a suspended machine) does not wait for anything, so that time is excluded: it
    shows as a long gap between two calls of `look`, and a gap counts as `longest_gap` seconds at most. Call it often.
    """

    def __init__(self, longest_gap: float):
        self._longest_gap, self._last, self._spent = longest_gap, time.monotonic(), 0.0

    def look(self) -> float:
        """Return the seconds so far."""
        now = time.monotonic()
        self._spent += min(now - self._last, self._longest_gap)
        self._last = now
        return self._spent


def within(seconds: float, call: Callable[[], Result], complaint: str, setting: str | None = None) -> Result:
    """Return what a call returns, and raise what it raises; EnvSetupError if it takes too long.

    The call runs in a daemon thread, which is abandoned if it does not end.

    Args:
      seconds: the deadline.
      call: makes or resets an environment.
      complaint: the beginning of the message, such as "environment 3 (X, seed 5) did not start".
      setting: the parameter that sets the deadline, for the message; None: there is none.
    """
    results: list[Any] = []

    def target() -> None:
        try:
            results.append((call(), None))
        except BaseException as error:  # passed on to the caller
            results.append((None, error))

    thread = threading.Thread(target=target, name="start", daemon=True)
    thread.start()
    look = min(LOOK_SECS, seconds / 4)
    running = RunningTime(2 * look)
    while thread.is_alive() and running.look() < seconds:
        thread.join(look)
    if not results:
        hint = f"; {setting} sets the deadline" if setting else ""
        raise EnvSetupError(f"{complaint} within {seconds:g} s{hint}")
    result, error = results[0]
    if isinstance(error, Exception):
        raise error
    if error is not None:  # raised by the environment: a user's Ctrl-C is raised in the main thread
        raise EnvSetupError(f"{complaint}: it raised {type(error).__name__}: {error}") from error
    return result
