"""A trace of a few updates of a run, and of what acts meanwhile, for chrome://tracing and Perfetto."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from packtrain.errors import RunFolderError, warn
from packtrain.files import read_bounded, write_inside
from packtrain.metrics.sinks import About, Sink

SKIPPED = 5  # updates before the trace, in which memory is allocated and functions are compiled
TRACED = 10  # updates in the trace
MOST_SECS = 10.0  # after which a trace ends with the update under way
MOST_BYTES = 256 * 2**20  # of a trace; a larger one is not kept


class Profile(Sink):
    """Writes RUN/profile/updates_A_to_B.json, once for each start of a run."""

    def __init__(self) -> None:
        self._updates, self._first, self._begun = 0, 0, 0.0
        self._profiler: Any = None
        self._done = False
        self._folder = Path()

    def for_seed(self) -> Profile:
        """Return the profile of one of several seeds."""
        return Profile()

    def begin(self, about: About) -> None:
        """Note the run folder."""
        self._folder = about.folder

    def update(self) -> None:
        """Start the trace before an update, and end it after some, in the thread that makes them."""
        self._updates += 1
        if self._done:
            return
        if self._profiler is None and self._updates >= SKIPPED:
            self._start()
        elif self._profiler is not None:
            is_long = time.monotonic() - self._begun > MOST_SECS
            if self._updates >= self._first + TRACED - 1 or is_long:
                self._finish()

    def close(self) -> None:
        """End a trace that is under way."""
        if self._profiler is not None:
            self._finish()
        elif not self._done:
            warn(f"--profile: no trace, since the run made {self._updates} updates; it begins after {SKIPPED}")

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        self._profiler = profile(activities=activities, **_all_threads())
        self._profiler.start()
        self._first, self._begun = self._updates + 1, time.monotonic()

    def _finish(self) -> None:
        """Write the trace; errors of the disk are warnings."""
        profiler, self._profiler, self._done = self._profiler, None, True
        profiler.stop()
        name = f"profile/updates_{self._first}_to_{self._updates}.json"
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.json"
                profiler.export_chrome_trace(str(path))
                write_inside(self._folder, name, read_bounded(path, MOST_BYTES))
        except (OSError, RunFolderError) as error:
            warn(f"--profile: {self._folder / name} is not written: {error}")


def _all_threads() -> dict[str, Any]:
    """Return the option that traces all threads, the actor's too; empty where torch does not have it."""
    try:
        return {"experimental_config": torch._C._profiler._ExperimentalConfig(profile_all_threads=True)}
    except (AttributeError, TypeError):
        return {}
