"""Detection of environments that hang: a thread measures how long the current call takes."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from packtrain.envs.vector_env import VectorEnv
from packtrain.errors import EnvError

if TYPE_CHECKING:
    from packtrain.runtime.training import Training

log = logging.getLogger("packtrain")
STOP_SECS = 15.0  # limit for a call after a stop request: the run must save and exit within 30 s


def log_stacks(why: str) -> None:
    """Write what every thread of this process is doing to the log, as Python stacks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [f"{why}; the threads of this process:"]
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "without a name")
        parts.append(f"thread {name}:\n{''.join(traceback.format_stack(frame)).rstrip()}")
    log.warning("%s", "\n".join(parts))


class Watchdog:
    """Calls `on_hang` once if a call of an environment takes longer than its deadline.

    Only time in which this process was running counts. The thread ticks several times per deadline; a gap between two
    ticks that is longer than two ticks means that the process was stopped (SIGSTOP, Ctrl-Z), and counts as two.
    """

    def __init__(
        self,
        columns: list[VectorEnv],
        deadline_secs: float,
        start_deadline_secs: float,
        on_hang: Callable[[EnvError], None],
        stopping: Callable[[], bool] = lambda: False,
    ):
        """Create a watchdog; it runs inside the `with` statement.

        Args:
          columns: the environments.
          deadline_secs: of a step.
          start_deadline_secs: of a first reset.
          on_hang: receives the error that names the environment.
          stopping: whether the run has been asked to stop; from then on a call may last `STOP_SECS` at most.
        """
        self._columns, self._deadline, self._on_hang = columns, deadline_secs, on_hang
        self._start_deadline, self._stopping = max(deadline_secs, start_deadline_secs), stopping
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _watch(self) -> None:
        tick = min(1.0, self._deadline / 4)
        calls: list[float | None] = [None] * len(self._columns)  # start of each current call
        spent = [0.0] * len(self._columns)  # running time of each current call
        stopping = 0.0  # seconds since the stop request
        last = time.monotonic()
        while not self._stop.wait(tick):
            now = time.monotonic()
            passed, last = min(now - last, 2 * tick), now
            stopping += passed if stopping or self._stopping() else 0.0
            for index, columns in enumerate(self._columns):
                since = columns.busy_since
                if since is None or since != calls[index]:
                    calls[index], spent[index] = since, 0.0 if since is None else min(now - since, passed)
                    continue
                spent[index] += passed
                deadline = self._start_deadline if columns.starting else self._deadline
                if spent[index] > deadline and not columns.times_itself:
                    what = f"{columns.describe_busy()} did not answer within {deadline:g} s"
                    log_stacks(what)
                    self._on_hang(EnvError(what))
                    return
                if min(stopping, spent[index]) > STOP_SECS:
                    why = f"did not answer within {STOP_SECS:g} s after the run was asked to stop"
                    self._on_hang(EnvError(f"{columns.describe_busy()} {why}"))
                    return


def save_and_exit(trainings: Sequence[Training], error: EnvError) -> NoReturn:
    """Save without the environments and end the process, whose main thread hangs inside an environment."""
    log.error("%s", error)
    print(f"packtrain: error: {error}", file=sys.stderr, flush=True)
    try:
        for training in trainings:
            training.saver.save(with_actor=False)
    except Exception:
        log.exception("the run could not be saved")
    finally:
        os._exit(error.exit_code)


def is_in_environment(thread: threading.Thread) -> bool:
    """Whether a thread is inside a call of an environment now."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("packtrain.envs."):
            return True
        frame = frame.f_back
    return False
