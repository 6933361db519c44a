"""Notices environments of this process that hang: a thread that looks at how long the call under way has lasted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from packtrain.envs.columns import Columns
from packtrain.errors import EnvError


class Watchdog:
    """Calls `on_hang` once if a step takes longer than the deadline."""

    def __init__(self, columns: list[Columns], deadline_secs: float, on_hang: Callable[[EnvError], None]):
        self._columns, self._deadline, self._on_hang = columns, deadline_secs, on_hang
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(min(1.0, self._deadline / 4)):
            now = time.monotonic()
            for columns in self._columns:
                since = columns.busy_since
                if since is not None and now - since > self._deadline:
                    self._on_hang(EnvError(f"{columns.describe_busy()} did not answer within {self._deadline:g} s"))
                    return
