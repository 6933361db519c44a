"""Run what a sweep consists of: start runs where there is room, watch them, retry failed ones, stop when asked to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from packtrain.errors import ConfigError, Error, one_line
from packtrain.files import open_inside
from packtrain.metrics.console import duration
from packtrain.studies import report_data
from packtrain.studies.sweep import results
from packtrain.studies.sweep.places import LOST, Job, Place, train_command
from packtrain.studies.sweep.record import FAILED, FINISHED, OVER, PRUNED, RUNNING, STOPPED, WAITING, Record, Run

log = logging.getLogger("packtrain")

POLL_SECS = 0.2
STATUS_SECS = 60.0  # between two lines about runs under way
STOP_SECS = 60.0  # that runs have to save and leave
LOCK_SECS = 120.0  # that a run waits for its folder, in which a process of a killed sweep is still saving
FIRST_DELAY, LAST_DELAY = 1.0, 30.0  # seconds before a failed run is started again
_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}


class Source(Protocol):
    """A source of runs: decides which runs a sweep makes, and in which order."""

    def waiting(self) -> Iterator[Run]:
        """Yield runs that may start, the most urgent first."""

    def ended(self, run: Run) -> None:
        """Receive a run that is over: finished, failed or pruned."""

    def to_prune(self, running: Sequence[Run]) -> list[Run]:
        """Return the running runs that should be pruned."""

    def expected(self) -> int:
        """Return the number of runs that there will be."""


class Listed:
    """A source of runs that are known from the start: one seed of every point, then the next seed."""

    def __init__(self, record: Record):
        self._record = record

    def waiting(self) -> Iterator[Run]:
        """Yield runs that may start, in the order of seeds."""
        yield from (run for run in self._record.runs if run.state == WAITING)

    def ended(self, run: Run) -> None:
        """Do nothing."""

    def to_prune(self, running: Sequence[Run]) -> list[Run]:
        """Return no run."""
        return []

    def expected(self) -> int:
        """Return the number of runs."""
        return len(self._record.runs)


class Scheduler:
    """Runs of a sweep under way."""

    def __init__(
        self,
        record: Record,
        source: Source,
        place: Place,
        retries: int,
        env: dict[str, str],
        say: Callable[[str], None],
    ):
        """Nothing is started yet.

        Args:
          record: of the sweep.
          source: of runs.
          place: where runs run.
          retries: how often a run that fails is started again.
          env: variables of all runs.
          say: receives lines of progress.
        """
        self._record, self._source, self._place, self._retries = record, source, place, retries
        self._env, self._say = env, say
        self._handles: dict[Run, Any] = {}
        self._begun: dict[Run, float] = {}
        self._not_before: dict[Run, float] = {}
        self._pruned: set[Run] = set()
        self._received: list[int] = []
        self._start = self._status = time.monotonic()

    def run(self) -> int:
        """Run everything; return 0, 1 if a run has failed for good, or 128 + the signal that stopped the sweep."""
        with self._signals():
            try:
                self._adopt()
                self._go_on()
            finally:
                self._stop_all()
        runs = self._record.runs
        code = 128 + self._received[0] if self._received else int(any(run.state == FAILED for run in runs))
        state = STOPPED if self._received else FAILED if code else FINISHED
        results.summarise_all(self._record)
        self._record.write(state)
        return code

    def _go_on(self) -> None:
        self._record.write(RUNNING)
        while not self._received:
            changed = self._collect()
            for run in self._source.to_prune(list(self._handles)):
                if run not in self._pruned:
                    self._pruned.add(run)
                    self._place.stop(self._handles[run])
            changed |= self._start_some()
            if changed:
                self._record.write(RUNNING)
            if not self._handles and next(self._source.waiting(), None) is None:
                return
            if time.monotonic() - self._status > STATUS_SECS:
                self._say_status()
            time.sleep(POLL_SECS)

    # -- starting

    def _start_some(self) -> bool:
        started = False
        while not self._received and self._place.has_room():
            run = next((run for run in self._source.waiting() if self._may_start(run)), None)
            if run is None:
                return started
            self._begin(run, self._place.start(self._job(run)))
            started = True
        return started

    def _may_start(self, run: Run) -> bool:
        """Return whether a run's delay is over and no process of an earlier sweep is still saving in its folder."""
        now = time.monotonic()
        if now < self._not_before.get(run, 0.0):
            return False
        return now - self._start > LOCK_SECS or not is_locked(self._record, run)

    def _begin(self, run: Run, handle: Any) -> None:
        self._handles[run], self._begun[run] = handle, time.monotonic()
        run.state, run.starts, run.exit_code, run.trouble = RUNNING, run.starts + 1, None, ""
        run.job = self._place.job_id(handle)
        log.info("started %s", run.name)

    def _job(self, run: Run) -> Job:
        words = [*run.point.words, f"--seed={run.seed}", f"--output_dir={self._record.folder(run)}"]
        return Job(run.name, train_command(words), self._record.log(run), {**self._env, **run.point.env})

    def _adopt(self) -> None:
        """Take over jobs that an earlier call of this sweep has queued."""
        for run in self._record.runs:
            if run.state == WAITING and run.job:
                handle = self._place.adopt(run.job, self._job(run))
                if handle is not None:
                    self._say(f"{run.name}: its job {run.job} is still there")
                    self._begin(run, handle)
                    run.starts -= 1

    # -- ends

    def _collect(self) -> bool:
        """Handle the runs that have ended; return whether there were any."""
        changed = False
        for run, handle in list(self._handles.items()):
            code = self._place.poll(handle)
            if code is not None:
                del self._handles[run]
                self._ended(run, code)
                changed = True
        return changed

    def _ended(self, run: Run, code: int) -> None:
        secs = time.monotonic() - self._begun.pop(run)
        run.exit_code, run.seconds, run.job = code, run.seconds + secs, ""
        if code == 0:
            run.state = FINISHED
            scores, _ = results.final_scores(self._record, [run])
            outcome = f"return {scores[0]:.4g}" if scores else "no return was recorded"
            self._report(run, f"finished in {duration(run.seconds)}: {outcome}")
        elif run in self._pruned:
            run.state = PRUNED
            self._report(run, f"pruned after {duration(run.seconds)}")
        elif self._received:
            run.state = STOPPED
            return
        else:
            self._failed(run, code)
        if run.state in OVER:
            self._source.ended(run)

    def _failed(self, run: Run, code: int) -> None:
        run.failures += 1
        run.trouble = self._trouble(run)
        how = f"{_describe(code)}{': ' * bool(run.trouble)}{run.trouble}"
        log.warning("%s %s", run.name, how)
        if code == ConfigError.exit_code or run.failures > self._retries:
            run.state = FAILED
            self._report(run, f"failed, {how}; see {self._record.log(run)}")
            return
        run.state = WAITING
        delay = min(LAST_DELAY, FIRST_DELAY * 2 ** (run.failures - 1))
        self._not_before[run] = time.monotonic() + delay
        self._say(f"{run.name} {how}; retry {run.failures} of {self._retries} in {delay:g} s")

    def _trouble(self, run: Run) -> str:
        """Return the last error that a run has printed, as one line."""
        lines = [line for line in report_data.tail(self._record.log(run)).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("packtrain: error:")]
        text = (errors or lines or [""])[-1].removeprefix("packtrain: error:")
        return one_line(text)[:300]

    # -- words

    def _report(self, run: Run, text: str) -> None:
        over = sum(one.state in OVER for one in self._record.runs)
        passed = duration(time.monotonic() - self._start)
        self._say(f"{over} of {self._source.expected()}  {passed}  {run.name} {text}")
        self._status = time.monotonic()

    def _say_status(self) -> None:
        self._status = time.monotonic()
        under_way = []
        for run in self._handles:
            step = results.latest_step(self._record.folder(run))
            under_way.append(f"{run.name} at step {step:,}" if step is not None else f"{run.name} starting")
        over = sum(one.state in OVER for one in self._record.runs)
        shown = "; ".join(under_way[:4]) + f" and {len(under_way) - 4} more" * (len(under_way) > 4)
        passed = duration(time.monotonic() - self._start)
        self._say(f"{over} of {self._source.expected()}  {passed}  running: {shown or 'nothing yet'}")

    # -- stopping

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Record signals, so that runs can be asked to save and exit."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _: Any) -> None:
            self._received.append(number)
            text = "the runs save and leave; once more ends them at once" if len(self._received) == 1 else "ending"
            self._say(f"{signal.Signals(number).name}: {text}")

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop_all(self) -> None:
        """Ask what still runs to save and leave, and end it after a while or at a second signal."""
        for handle in self._handles.values():
            self._place.stop(handle)
        deadline = time.monotonic() + STOP_SECS
        while self._handles and time.monotonic() < deadline and len(self._received) < 2:
            with contextlib.suppress(Error):
                self._collect()
            time.sleep(POLL_SECS)
        for run, handle in self._handles.items():
            self._place.stop(handle, kill=True)
            run.state = STOPPED
        for run in self._record.runs:
            run.state = STOPPED if run.state == RUNNING else run.state


def is_locked(record: Record, run: Run) -> bool:
    """Return whether another process is using a run's folder."""
    try:
        with open_inside(record.folder(run), ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _TAKEN
    except Error:
        return False
    return False


def _describe(code: int) -> str:
    """Return how a process has ended."""
    if code == LOST:
        return "was lost with its machine"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
