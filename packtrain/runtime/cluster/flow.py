"""Flow control between a driver and its workers.

`Flow` decides when a worker is started, called, given up or replaced, and which results are used. It is a state
machine without Ray, torch or a clock: an `Engine` starts and calls the workers and says what time it is, so that a
test can run thousands of schedules of delays, losses, duplicates and deaths on simulated time.

A *life* is one process that does a worker's job. When it ends, the next life starts after a back-off. Calls are
numbered within a life, and results are accepted in rising order of these numbers only.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from packtrain.errors import WorkersLostError
from packtrain.runtime.seeds import seed_for

LONGEST_GAP = 5.0
"""Seconds between two polls that count at most: the driver was stopped or busy, and no worker is to blame for that."""

# -- arguments of an engine, and its reports


class Call(NamedTuple):
    """One order to a worker. (worker, life, number) is unique."""

    worker: int
    life: int
    number: int  # increases by one from 0 within a life
    version: int  # of the weights
    weights: Any  # result of `Engine.put` for that version
    order: Any  # order for the worker, not interpreted here
    epoch: int


class Started(NamedTuple):
    """A life is ready for calls."""

    worker: int
    life: int


class Arrival(NamedTuple):
    """The result of a call."""

    worker: int
    life: int
    number: int
    chunk: Any
    report: Any
    size: int = 0  # bytes of the chunk
    steps: int = 0  # environment steps in the chunk


class Failure(NamedTuple):
    """A life of a worker has ended, or has raised an error and cannot continue."""

    worker: int
    life: int
    error: str  # a traceback or a sentence; its last line says what happened
    raised: bool = False  # the worker's own code raised it; False: the process ended or is out of reach


class Beat(NamedTuple):
    """The answer to a status request."""

    worker: int
    life: int
    progress: int  # any number that changes while the worker makes progress


Event = Started | Arrival | Failure | Beat


class Engine(Protocol):
    """Starts and calls workers. Only `ready` may wait, and not longer than its time limit."""

    def now(self) -> float:
        """Return the time in seconds, from a clock that never goes back."""

    def spawn(self, worker: int, role: str, life: int, seed: int) -> None:
        """Begin to start a life; `ready` reports Started or Failure later."""

    def call(self, call: Call) -> None:
        """Send a call; `ready` reports Arrival or Failure later."""

    def ask_status(self, worker: int, life: int) -> None:
        """Request a Beat; at most one request is open for a life."""

    def ready(self, timeout: float) -> Sequence[Event]:
        """Return the events since the last call; waits at most `timeout` seconds for the first one."""

    def kill(self, worker: int, life: int) -> None:
        """End a life at once; nothing needs to be reported of it."""

    def put(self, version: int, weights: Any) -> Any:
        """Store weights where workers can read them; the result goes into calls."""


# -- interface for the caller


@dataclass(frozen=True)
class Limits:
    """Bounds and deadlines; seconds, bytes and versions of weights."""

    calls_per_worker: int = 2
    max_lag: int | None = 20  # versions between the weights of a chunk and the newest at its delivery; None: any
    newest_weights: bool = False  # send every new version, even if calls are shorter than its transport
    updates_per_chunk: float = 0.0  # versions that one delivered chunk may cause
    chunk_bytes: int = 0  # of one result at most
    weights_bytes: int = 0  # of one version
    max_bytes: int | None = None  # of results in flight and of the versions in use; None: any
    start_secs: float = 180.0
    call_secs: float = 60.0  # limit without progress
    first_secs: float = 0.0  # the same until the first result of a life, which may include first resets, if longer
    stall_secs: float = 8.0  # without progress, after which a question to a worker is not waited for
    beat_secs: float = 3.0  # between two status requests
    suspect_secs: float = 30.0  # without an answer, until a worker is named as a reason for waiting
    dead_secs: float = 60.0  # without an answer, until a worker is declared dead
    hold_secs: float = 5.0  # maximum time that one slow call may hold back others because of `max_lag`
    first_delay: float = 1.0  # before a worker is restarted
    last_delay: float = 30.0  # maximum; the delay doubles with each life without a chunk
    fruitful_chunks: int = 3  # chunks of a life that has not been fruitless
    fruitless_lives: int = 5  # fruitless lives in a row after which a worker is retired
    errors: int = 5  # lives that ended with an error of the worker's own code within `errors_secs`: it is retired
    errors_secs: float = 600.0
    min_workers: int = 1  # the run stops if fewer workers are left that are not retired
    errand_lives: int = 3  # number of lives that may end during one errand before the errand fails

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.chunk_bytes + 3 * self.weights_bytes > self.max_bytes:
            raise ValueError(
                f"a chunk of {self.chunk_bytes:,} bytes and three versions of weights of {self.weights_bytes:,} bytes "
                f"exceed the limit of {self.max_bytes:,} bytes in flight"
            )


class Delivery(NamedTuple):
    """One result that may be used, exactly once."""

    worker: int
    life: int
    number: int
    version: int
    lag: int  # versions between its weights and the newest
    continues: bool  # whether its first step follows the last delivered step of this worker
    chunk: Any  # None if it is too old to learn from; its report counts nevertheless
    report: Any
    errand: int | None = None  # the id that `request` returned; None for a standing order


Phase = Literal["waiting", "starting", "ready", "retired"]


@dataclass
class _InFlight:
    call: Call
    sent: float
    errand: _Errand | None = None
    written_off: bool = False  # whether it is expected to arrive too late
    overtaken_at: float | None = None  # when a later result of the same life arrived


@dataclass
class _Errand:
    id: int
    order: Any
    version: int
    weights: Any
    worker: int | None = None  # worker that executes it, in its current life; None: any worker without standing orders
    ended_lives: int = 0


@dataclass
class _Worker:
    index: int
    role: str
    life: int
    phase: Phase = "waiting"
    since: float = 0.0  # when the phase began
    due: float = 0.0  # when the next life starts, while waiting
    calls: list[_InFlight] = field(default_factory=list)
    number: int = 0  # number of the next call
    accepted: int = -1  # number of the last accepted result
    unbroken: bool = False  # whether the last accepted result was delivered with its chunk
    active_since: float = 0.0  # start of the current call, or its last progress
    sent_at: float = -math.inf
    beat_at: float = 0.0
    asked_at: float = -math.inf
    asked: bool = False
    progress: int | None = None
    fruitless: int = 0  # lives in a row that ended with fewer than `fruitful_chunks`
    raised_at: list[float] = field(default_factory=list)  # when lives ended with an error of the worker's own code
    delivered: int = 0  # results of this life that count for the breaker
    restarts: int = 0
    error: str = ""  # last line of the error that ended the last life
    steps: int = 0  # since the last metrics row
    size: int = 0
    lag: int = 0


class Flow:
    """Keeps workers alive and busy within limits. To be used from one thread."""

    def __init__(
        self,
        engine: Engine,
        roles: Sequence[str],
        limits: Limits,
        seed: int,
        lives: Sequence[int] = (),
    ):
        """Nothing starts before the first `poll`.

        Args:
          engine: starts and calls workers.
          roles: of each worker; "actor" has standing orders, any other role waits for errands.
          limits: bounds and deadlines.
          seed: of the run; each life has a seed of its own.
          lives: numbers of the first life of each worker, as `lives` returned them before a run was resumed.
        """
        self.limits = limits
        self._engine, self._seed = engine, seed
        self._workers = [_Worker(index, role, -1) for index, role in enumerate(roles)]
        for worker, life in zip(self._workers, lives, strict=False):
            worker.life = life - 1
        self._time, self._last = 0.0, engine.now()
        self._version, self._weights = -1, _no_weights  # the newest, and a function that returns it
        self._put_version, self._put_token, self._put_at = -1, None, -math.inf
        self._order: Any = None
        self._epoch = 0
        self._held = False
        self._errands: deque[_Errand] = deque()
        self._next_errand = 0
        self._failed_errands: list[int] = []
        self._blocker: _InFlight | None = None  # slow call that currently holds back others
        self._blocked_since = 0.0
        self._chunk_bytes = limits.chunk_bytes
        self._typical = 0.0  # running mean of the seconds per call
        self.dropped: Counter[str] = Counter()
        """Results that were not used, by reason: late, duplicate, overtaken, lag, epoch."""
        self.first_error = ""
        """The first error of a worker, with its traceback."""
        self.notices: list[str] = []
        """What happened to workers, one sentence each; for the log. The caller empties it."""
        self._row_at, self._waited, self._held_for = 0.0, 0.0, 0.0

    # -- inputs from the driver

    def publish(self, version: int, weights: Callable[[], Any]) -> None:
        """Make a version of weights the newest; `weights` is called if and when it is sent."""
        self._version, self._weights = version, weights

    def stage(self, order: Any, epoch: int = 0) -> None:
        """Send this order from now on. Results of another epoch are not used any more."""
        self._order, self._epoch = order, epoch

    def hold(self, held: bool) -> None:
        """Send no more standing orders until it is called with False; results on their way still arrive."""
        self._held = held

    def request(self, order: Any, worker: int | None = None) -> int:
        """Give a worker something to do, with the newest weights; return the errand's id.

        The result comes as a Delivery with this id.

        Args:
          order: what to do.
          worker: the one that does it, between its standing orders; if its life ends before that, the errand fails.
            None: any without standing orders; if its life ends, the next life does it.
        """
        if self._version < 0:
            raise ValueError("no weights have been published")
        self._put_if(True)
        errand = _Errand(self._next_errand, order, self._put_version, self._put_token, worker)
        self._next_errand += 1
        self._errands.append(errand)
        return errand.id

    def drain_failed_errands(self) -> list[int]:
        """Return the ids of errands that were given up since the last call."""
        failed, self._failed_errands = self._failed_errands, []
        return failed

    def lives(self) -> list[int]:
        """Return the number of each worker's current life, to go on from after a resume."""
        return [max(0, worker.life) for worker in self._workers]

    def is_ready(self, worker: int) -> bool:
        """Return whether a worker has started and can be called."""
        return self._workers[worker].phase == "ready"

    def is_retired(self, worker: int) -> bool:
        """Return whether a worker was given up for the rest of the run."""
        return self._workers[worker].phase == "retired"

    def is_stalled(self, worker: int) -> bool:
        """Return whether a worker that is ready has an order and makes no progress."""
        found = self._workers[worker]
        return bool(found.calls) and self._time - found.active_since > self.limits.stall_secs

    def busy(self) -> list[int]:
        """Return the workers that have orders and make progress."""
        return [each.index for each in self._workers if each.calls and not self.is_stalled(each.index)]

    @property
    def in_flight(self) -> int:
        """Number of standing orders without a result."""
        return sum(len(worker.calls) for worker in self._workers if worker.role == "actor")

    def close(self) -> None:
        """End all lives."""
        for worker in self._workers:
            if worker.phase in ("starting", "ready"):
                self._engine.kill(worker.index, worker.life)
            worker.phase, worker.calls = "retired", []

    # -- state machine

    def poll(self, timeout: float) -> list[Delivery]:
        """Start, call and replace workers as due, and wait at most `timeout` seconds for a result that may be used.

        Results that come together are returned together. New orders are sent at the next poll, when the results of
        this one have been used: until then they occupy memory.

        Raises:
          WorkersLostError: too many workers are retired; its text has the last line of the first error.
        """
        end = self._engine.now() + timeout
        while True:
            self._tick(self._engine.now(), LONGEST_GAP)
            self._advance()
            wait = max(0.0, min(end - self._engine.now(), self._next_event() - self._time))
            events = self._engine.ready(wait)
            before = self._time
            self._tick(self._engine.now(), wait + LONGEST_GAP)
            if self._held:
                self._held_for += self._time - before
            else:
                self._waited += self._time - before
            deliveries = [delivery for event in events for delivery in self._receive(event)]
            if deliveries or self._failed_errands or self._engine.now() >= end:
                return deliveries

    def _tick(self, now: float, most: float) -> None:
        self._time += min(max(0.0, now - self._last), most)
        self._last = now

    def _advance(self) -> None:
        """Everything that is due by now."""
        for worker in self._workers:
            if worker.phase == "waiting" and worker.due <= self._time:
                self._spawn(worker)
            elif worker.phase == "starting" and self._time - worker.since > self.limits.start_secs:
                self._give_up(worker, f"it did not start within {self.limits.start_secs:g} s")
            elif worker.phase == "ready":
                self._check(worker)
        self._send_errands()
        self._send_orders()

    def _spawn(self, worker: _Worker) -> None:
        worker.life += 1
        worker.phase, worker.since = "starting", self._time
        worker.calls, worker.number, worker.accepted, worker.delivered = [], 0, -1, 0
        worker.unbroken, worker.asked, worker.progress = False, False, None
        seed = seed_for(self._seed, "worker", worker.index, "life", worker.life)
        self._engine.spawn(worker.index, worker.role, worker.life, seed)

    def _check(self, worker: _Worker) -> None:
        """Give up a worker that is silent or stuck; otherwise request its status from time to time."""
        limit = self._call_secs(worker)
        if worker.calls and self._time - worker.active_since > limit:
            self._give_up(worker, f"a call made no progress for {limit:g} s")
        elif lost := [flight for flight in worker.calls if self._is_lost(flight)]:
            self._give_up(worker, f"the result of call {lost[0].call.number} was lost")
        elif worker.asked and self._time - worker.beat_at > self.limits.dead_secs:
            self._give_up(worker, f"it did not answer for {self.limits.dead_secs:g} s")
        elif not worker.asked and self._time - worker.asked_at >= self.limits.beat_secs:
            worker.asked, worker.asked_at = True, self._time
            self._engine.ask_status(worker.index, worker.life)

    def _call_secs(self, worker: _Worker) -> float:
        return self.limits.call_secs if worker.accepted >= 0 else max(self.limits.first_secs, self.limits.call_secs)

    def _is_lost(self, flight: _InFlight) -> bool:
        return flight.overtaken_at is not None and self._time - flight.overtaken_at > self.limits.call_secs

    def _next_event(self) -> float:
        """The earliest time at which something is due even if no result arrives."""
        limits, times = self.limits, []
        for worker in self._workers:
            if worker.phase == "waiting":
                times.append(worker.due)
            elif worker.phase == "starting":
                times.append(worker.since + limits.start_secs)
            elif worker.phase == "ready":
                times.append(worker.beat_at + limits.dead_secs if worker.asked else worker.asked_at + limits.beat_secs)
                if worker.calls:
                    times.append(worker.active_since + self._call_secs(worker))
                    overtaken = [flight.overtaken_at for flight in worker.calls if flight.overtaken_at is not None]
                    times += [since + limits.call_secs for since in overtaken]
        if self._blocker is not None:
            times.append(self._blocked_since + self._patience())
        # Slightly later, so that a comparison with > is true.
        return max(self._time, min(times, default=math.inf)) + 1e-3

    # -- end of lives

    def _give_up(self, worker: _Worker, why: str) -> None:
        self._engine.kill(worker.index, worker.life)
        self._end_life(worker, why)

    def _end_life(self, worker: _Worker, error: str, raised: bool = False) -> None:
        last = (error.strip().splitlines() or ["no reason given"])[-1]
        worker.error = last
        self.first_error = self.first_error or error
        worker.fruitless = 0 if worker.delivered >= self.limits.fruitful_chunks else worker.fruitless + 1
        worker.raised_at = [at for at in worker.raised_at if self._time - at < self.limits.errors_secs]
        worker.raised_at += [self._time] * raised
        for flight in reversed(worker.calls):
            if (errand := flight.errand) is not None:
                errand.ended_lives += 1
                if errand.worker is not None or errand.ended_lives >= self.limits.errand_lives:
                    self._failed_errands.append(errand.id)
                else:
                    self._errands.appendleft(errand)
        worker.calls = []
        name = f"{worker.role} {worker.index} (life {worker.life})"
        if (why := self._breaker(worker)) is not None:
            worker.phase, worker.since = "retired", self._time
            self.notices.append(f"{name} ended: {last}; retired after {why}")
            self._check_enough(why)
            return
        delay = min(self.limits.last_delay, self.limits.first_delay * 2.0 ** max(0, worker.fruitless - 1))
        worker.phase, worker.since, worker.due = "waiting", self._time, self._time + delay
        worker.restarts += 1
        self.notices.append(f"{name} ended: {last}; the next life starts in {delay:g} s")

    def _breaker(self, worker: _Worker) -> str | None:
        """Return why a worker is started no more, or None.

        Processes that are killed from outside are replaced without end as long as they deliver. An error of the
        worker's own code, such as an exception of an environment, is expected to come again.
        """
        limits = self.limits
        if worker.fruitless >= limits.fruitless_lives:
            return f"{worker.fruitless} lives in a row with fewer than {limits.fruitful_chunks} results"
        if len(worker.raised_at) >= limits.errors:
            return f"{len(worker.raised_at)} errors within {limits.errors_secs / 60:g} min"
        return None

    def _check_enough(self, why: str) -> None:
        """WorkersLostError if too few workers are left."""
        actors = [worker for worker in self._workers if worker.role == "actor"]
        left = sum(worker.phase != "retired" for worker in actors)
        if actors and left < self.limits.min_workers:
            reason = (self.first_error.strip().splitlines() or ["no reason given"])[-1]
            raise WorkersLostError(
                f"{len(actors) - left} of {len(actors)} workers were retired, the last one after {why}; the first "
                f"error was: {reason}"
            )

    # -- sending orders

    def _send_errands(self) -> None:
        for errand in [errand for errand in self._errands if errand.worker is not None]:
            self._errands.remove(errand)
            assert errand.worker is not None
            named = self._workers[errand.worker]
            if named.phase == "ready":
                self._send(named, errand.order, errand.version, errand.weights, errand)
            else:
                self._failed_errands.append(errand.id)
        servers = [worker for worker in self._workers if worker.role != "actor" and worker.phase != "retired"]
        if not servers:
            self._failed_errands += [errand.id for errand in self._errands]
            self._errands.clear()
        for worker in servers:
            if self._errands and worker.phase == "ready" and not worker.calls:
                errand = self._errands.popleft()
                self._send(worker, errand.order, errand.version, errand.weights, errand)

    def _send_orders(self) -> None:
        """Send standing orders, to the least busy workers first, as far as the limits allow."""
        while True:
            free = self._free()
            if not free or self._byte_refusal() is not None:
                self._blocker = None
                return
            slow = self._too_old_soon()
            if slow is not self._blocker:
                self._blocker, self._blocked_since = slow, self._time
            if slow is not None:
                if self._time - self._blocked_since <= self._patience():
                    return
                slow.written_off, self._blocker = True, None
                continue
            self._put_if(self._needs_put())
            worker = min(free, key=lambda worker: (len(worker.calls), worker.sent_at))
            self._send(worker, self._order, self._put_version, self._put_token)

    def _free(self) -> list[_Worker]:
        """Return the workers that a standing order may be sent to."""
        if self._held or self._version < 0:
            return []
        most = self.limits.calls_per_worker
        return [
            each for each in self._workers if each.role == "actor" and each.phase == "ready" and len(each.calls) < most
        ]

    def _send(self, worker: _Worker, order: Any, version: int, token: Any, errand: _Errand | None = None) -> None:
        call = Call(worker.index, worker.life, worker.number, version, token, order, self._epoch)
        worker.number += 1
        if not worker.calls:
            worker.active_since = self._time
        worker.sent_at = self._time
        worker.calls.append(_InFlight(call, self._time, errand))
        self._engine.call(call)

    def _flights(self) -> list[_InFlight]:
        return [flight for worker in self._workers if worker.role == "actor" for flight in worker.calls]

    def _byte_refusal(self) -> str | None:
        """Return a reason if another order could exceed the bytes in flight; one is always allowed."""
        flights = self._flights()
        if self.limits.max_bytes is None or not flights:
            return None
        versions = {flight.call.version for worker in self._workers for flight in worker.calls}
        versions |= {errand.version for errand in self._errands} | {self._put_version}
        if self._needs_put():
            versions.add(self._version)
        needed = (len(flights) + 1) * self._chunk_bytes + len(versions) * self.limits.weights_bytes
        if needed <= self.limits.max_bytes:
            return None
        return f"{len(flights)} results in flight fill the limit of {self.limits.max_bytes:,} bytes"

    def _too_old_soon(self) -> _InFlight | None:
        """Return a call whose result would be too old if another order were sent and all others arrived before it."""
        if self.limits.max_lag is None:
            return None
        flights = self._flights()
        ahead = math.ceil(self.limits.updates_per_chunk * len(flights))
        for flight in flights:
            if not flight.written_off and self._version - flight.call.version + ahead > self.limits.max_lag:
                return flight
        return None

    def _patience(self) -> float:
        """Seconds for which a slow call may hold back others."""
        return max(self.limits.hold_secs, 2 * self._typical)

    def _needs_put(self) -> bool:
        """Whether the next order needs newer weights than those last sent: one sending per call's duration, or lag."""
        if self._version == self._put_version:
            return False
        if self.limits.newest_weights or self._put_version < 0 or self._time - self._put_at >= self._typical:
            return True
        if self.limits.max_lag is None:
            return False
        ahead = math.ceil(self.limits.updates_per_chunk * (len(self._flights()) + 1))
        return self._version - self._put_version + ahead > self.limits.max_lag

    def _put_if(self, needed: bool) -> None:
        if needed and self._version != self._put_version:
            self._put_token = self._engine.put(self._version, self._weights())
            self._put_version, self._put_at = self._version, self._time

    # -- receiving results

    def _receive(self, event: Event) -> list[Delivery]:
        worker = self._workers[event.worker]
        current = event.life == worker.life and worker.phase in ("starting", "ready")
        match event:
            case Arrival():
                return self._accept(worker, event) if current else self._drop("late")
            case Started() if current and worker.phase == "starting":
                worker.phase, worker.since = "ready", self._time
                worker.beat_at = worker.asked_at = self._time
            case Failure() if current:
                self._end_life(worker, event.error, event.raised)
            case Beat() if current:
                worker.asked, worker.beat_at = False, self._time
                if event.progress != worker.progress:
                    worker.progress, worker.active_since = event.progress, self._time
        return []

    def _drop(self, reason: str) -> list[Delivery]:
        self.dropped[reason] += 1
        return []

    def _accept(self, worker: _Worker, arrival: Arrival) -> list[Delivery]:
        flight = next((each for each in worker.calls if each.call.number == arrival.number), None)
        if flight is None:
            return self._drop("duplicate")
        worker.calls.remove(flight)
        if flight.overtaken_at is not None:
            return self._drop("overtaken")
        for older in worker.calls:
            if older.call.number < arrival.number and older.overtaken_at is None:
                older.overtaken_at = self._time
        call = flight.call
        continues = worker.unbroken and arrival.number == worker.accepted + 1
        worker.accepted = arrival.number
        if flight.errand is None or worker.role != "actor":  # an answer to a question says nothing about acting
            worker.delivered += 1
        if flight.errand is None:
            self._note_duration(self._time - worker.active_since)
        worker.active_since = worker.beat_at = self._time
        lag = self._version - call.version
        if flight.errand is not None:
            return [Delivery(*call[:4], lag, False, arrival.chunk, arrival.report, flight.errand.id)]
        self._chunk_bytes = max(self._chunk_bytes, arrival.size)
        worker.steps, worker.size, worker.lag = worker.steps + arrival.steps, worker.size + arrival.size, lag
        chunk = arrival.chunk
        if call.epoch != self._epoch:
            self._drop("epoch")
            chunk = None
        elif self.limits.max_lag is not None and lag > self.limits.max_lag:
            self._drop("lag")
            chunk = None
        worker.unbroken = chunk is not None
        return [Delivery(*call[:4], lag, continues, chunk, arrival.report)]

    def _note_duration(self, secs: float) -> None:
        self._typical = secs if not self._typical else 0.9 * self._typical + 0.1 * secs

    # -- status

    def waiting_for(self) -> str:
        """Return one sentence that says why no result has arrived."""
        actors = [worker for worker in self._workers if worker.role == "actor"]
        ready = [worker for worker in actors if worker.phase == "ready"]
        if self._held:
            return "the learner holds the workers"
        if self._version < 0:
            return "no weights have been published"
        if not ready:
            reasons = [self._describe(worker) for worker in actors]
            return "no worker is ready: " + ("; ".join(reasons[:3]) or "there is none")
        silent = [worker for worker in ready if self._time - worker.beat_at > self.limits.suspect_secs]
        if silent:
            return "; ".join(self._describe(worker) for worker in silent[:3])
        if (reason := self._byte_refusal()) is not None:
            return f"no order is sent: {reason}"
        if self._blocker is not None:
            call = self._blocker.call
            return f"no order is sent: worker {call.worker} still uses version {call.version} of {self._version}"
        slowest = max(ready, key=lambda worker: self._time - worker.active_since if worker.calls else -1.0)
        return self._describe(slowest)

    def _describe(self, worker: _Worker) -> str:
        name, secs = f"worker {worker.index}", self._time - worker.since
        if worker.phase == "waiting":
            why = f" after: {worker.error}" if worker.error else ""
            return f"{name} starts in {max(0.0, worker.due - self._time):.0f} s{why}"
        if worker.phase == "starting":
            return f"{name} has been starting for {secs:.0f} s"
        if worker.phase == "retired":
            return f"{name} is retired after: {worker.error}"
        if self._time - worker.beat_at > self.limits.suspect_secs:
            return f"{name} has not answered for {self._time - worker.beat_at:.0f} s"
        if not worker.calls:
            return f"{name} has no order"
        return f"{name} has been at a call for {self._time - worker.active_since:.0f} s"

    def row(self) -> dict[str, float]:
        """Return metrics of the workers since the last call."""
        span = max(1e-9, self._time - self._row_at)
        actors = [worker for worker in self._workers if worker.role == "actor"]
        row: dict[str, float] = {
            "workers_ready": sum(worker.phase == "ready" for worker in actors),
            "workers_retired": sum(worker.phase == "retired" for worker in actors),
            "worker_restarts": sum(worker.restarts for worker in self._workers),
            "calls_in_flight": self.in_flight,
            "chunk_bytes_per_s": sum(worker.size for worker in actors) / span,
            "chunks_dropped": sum(self.dropped.values()),
            "wait_share": self._waited / span,
            "held_share": self._held_for / span,
        }
        for worker in actors:
            row[f"worker_{worker.index}_steps_per_s"] = worker.steps / span
            row[f"worker_{worker.index}_lag"] = worker.lag
            worker.steps = worker.size = 0
        self._row_at, self._waited, self._held_for = self._time, 0.0, 0.0
        return row


def _no_weights() -> Any:
    raise ValueError("no weights have been published")
