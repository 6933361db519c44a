"""Flow control between a driver and its workers.

`Flow` decides when a worker is started, called, given up or replaced, and which results are used. It is a state
machine without Ray, torch or a clock: an `Engine` starts and calls the workers and says what time it is, so that a
test can run thousands of schedules of delays, losses, duplicates and deaths on simulated time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from packtrain.errors import WorkersLostError
from packtrain.runtime.cluster.calls import Arrival, Beat, Call, Delivery, Engine, Event, Failure, Limits, Started
from packtrain.runtime.cluster.errands import Errand, Errands
from packtrain.runtime.cluster.versions import WeightVersions
from packtrain.runtime.cluster.worker_state import InFlight, WorkerState, worker_metrics
from packtrain.runtime.seeds import seed_for

LONGEST_GAP = 5.0
"""Seconds between two polls that count at most: the driver was stopped or busy, and no worker is to blame for that."""


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
        """Store the settings; workers start at the first `poll`.

        Args:
          engine: starts and calls workers.
          roles: of each worker; "actor" has standing orders, any other role waits for errands.
          limits: bounds and deadlines.
          seed: of the run; each life has a seed of its own.
          lives: numbers of the first life of each worker, as `lives` returned them before a run was resumed.
        """
        self.limits = limits
        self._engine, self._seed = engine, seed
        self._workers = [WorkerState(index, role, -1) for index, role in enumerate(roles)]
        for worker, life in zip(self._workers, lives, strict=False):
            worker.life = life - 1
        self._time, self._last = 0.0, engine.now()
        self._weights = WeightVersions()
        self._order: Any = None
        self._epoch = 0
        self._held = False
        self._errands = Errands(limits.errand_lives)
        self._blocker: InFlight | None = None  # slow call that currently holds back others
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
        self._weights.publish(version, weights)

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
        if self._weights.newest < 0:
            raise ValueError("no weights have been published")
        self._weights.store(self._engine, self._time)
        return self._errands.add(order, self._weights.put, self._weights.token, worker)

    def drain_failed_errands(self) -> list[int]:
        """Return the ids of errands that were given up since the last call."""
        return self._errands.drain_failed()

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
            if deliveries or self._errands.failed or self._engine.now() >= end:
                return deliveries

    def _tick(self, now: float, most: float) -> None:
        self._time += min(max(0.0, now - self._last), most)
        self._last = now

    def _advance(self) -> None:
        """Do everything that is due: start, call and replace workers."""
        for worker in self._workers:
            if worker.phase == "waiting" and worker.due <= self._time:
                self._spawn(worker)
            elif worker.phase == "starting" and self._time - worker.since > self.limits.start_secs:
                self._give_up(worker, f"it did not start within {self.limits.start_secs:g} s")
            elif worker.phase == "ready":
                self._check(worker)
        self._send_errands()
        self._send_orders()

    def _spawn(self, worker: WorkerState) -> None:
        worker.life += 1
        worker.phase, worker.since = "starting", self._time
        worker.calls, worker.number, worker.accepted, worker.delivered = [], 0, -1, 0
        worker.unbroken, worker.asked, worker.progress = False, False, None
        seed = seed_for(self._seed, "worker", worker.index, "life", worker.life)
        self._engine.spawn(worker.index, worker.role, worker.life, seed)

    def _check(self, worker: WorkerState) -> None:
        """Give up a worker that is silent or stuck; otherwise request its status from time to time."""
        limit = worker.call_secs(self.limits)
        if worker.calls and self._time - worker.active_since > limit:
            self._give_up(worker, f"a call made no progress for {limit:g} s")
        elif lost := [flight for flight in worker.calls if flight.is_lost(self._time, self.limits)]:
            self._give_up(worker, f"the result of call {lost[0].call.number} was lost")
        elif worker.asked and self._time - worker.beat_at > self.limits.dead_secs:
            self._give_up(worker, f"it did not answer for {self.limits.dead_secs:g} s")
        elif not worker.asked and self._time - worker.asked_at >= self.limits.beat_secs:
            worker.asked, worker.asked_at = True, self._time
            self._engine.ask_status(worker.index, worker.life)

    def _next_event(self) -> float:
        """Return the earliest time at which something is due even if no result arrives."""
        limits, times = self.limits, []
        for worker in self._workers:
            if worker.phase == "waiting":
                times.append(worker.due)
            elif worker.phase == "starting":
                times.append(worker.since + limits.start_secs)
            elif worker.phase == "ready":
                times.append(worker.beat_at + limits.dead_secs if worker.asked else worker.asked_at + limits.beat_secs)
                if worker.calls:
                    times.append(worker.active_since + worker.call_secs(self.limits))
                    overtaken = [flight.overtaken_at for flight in worker.calls if flight.overtaken_at is not None]
                    times += [since + limits.call_secs for since in overtaken]
        if self._blocker is not None:
            times.append(self._blocked_since + self._patience())
        # Slightly later, so that a comparison with > is true.
        return max(self._time, min(times, default=math.inf)) + 1e-3

    # -- end of lives

    def _give_up(self, worker: WorkerState, why: str) -> None:
        self._engine.kill(worker.index, worker.life)
        self._end_life(worker, why)

    def _end_life(self, worker: WorkerState, error: str, raised: bool = False) -> None:
        last = (error.strip().splitlines() or ["no reason given"])[-1]
        worker.error = last
        self.first_error = self.first_error or error
        worker.fruitless = 0 if worker.delivered >= self.limits.fruitful_chunks else worker.fruitless + 1
        worker.raised_at = [at for at in worker.raised_at if self._time - at < self.limits.errors_secs]
        worker.raised_at += [self._time] * raised
        for flight in reversed(worker.calls):
            if flight.errand is not None:
                self._errands.give_back(flight.errand)
        worker.calls = []
        name = f"{worker.role} {worker.index} (life {worker.life})"
        if (why := worker.retire_reason(self.limits)) is not None:
            worker.phase, worker.since = "retired", self._time
            self.notices.append(f"{name} ended: {last}; retired after {why}")
            self._check_enough(why)
            return
        delay = min(self.limits.last_delay, self.limits.first_delay * 2.0 ** max(0, worker.fruitless - 1))
        worker.phase, worker.since, worker.due = "waiting", self._time, self._time + delay
        worker.restarts += 1
        self.notices.append(f"{name} ended: {last}; the next life starts in {delay:g} s")

    def _check_enough(self, why: str) -> None:
        """Raise a WorkersLostError if too few workers are left."""
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
        for errand in self._errands.take_named():
            assert errand.worker is not None
            named = self._workers[errand.worker]
            if named.phase == "ready":
                self._send(named, errand.order, errand.version, errand.weights, errand)
            else:
                self._errands.fail(errand)
        servers = [worker for worker in self._workers if worker.role != "actor" and worker.phase != "retired"]
        if not servers:
            self._errands.fail_all()
        for worker in servers:
            if worker.phase == "ready" and not worker.calls and (following := self._errands.take_next()) is not None:
                self._send(worker, following.order, following.version, following.weights, following)

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
            if self._needs_put():
                self._weights.store(self._engine, self._time)
            worker = min(free, key=lambda worker: (len(worker.calls), worker.sent_at))
            self._send(worker, self._order, self._weights.put, self._weights.token)

    def _free(self) -> list[WorkerState]:
        """Return the workers that a standing order may be sent to."""
        if self._held or self._weights.newest < 0:
            return []
        most = self.limits.calls_per_worker
        return [
            each for each in self._workers if each.role == "actor" and each.phase == "ready" and len(each.calls) < most
        ]

    def _send(self, worker: WorkerState, order: Any, version: int, token: Any, errand: Errand | None = None) -> None:
        call = Call(worker.index, worker.life, worker.number, version, token, order, self._epoch)
        worker.number += 1
        if not worker.calls:
            worker.active_since = self._time
        worker.sent_at = self._time
        worker.calls.append(InFlight(call, self._time, errand))
        self._engine.call(call)

    def _flights(self) -> list[InFlight]:
        return [flight for worker in self._workers if worker.role == "actor" for flight in worker.calls]

    def _byte_refusal(self) -> str | None:
        """Return a reason if another order could exceed the bytes in flight; one is always allowed."""
        flights = self._flights()
        if self.limits.max_bytes is None or not flights:
            return None
        versions = {flight.call.version for worker in self._workers for flight in worker.calls}
        versions |= self._errands.versions | {self._weights.put}
        if self._needs_put():
            versions.add(self._weights.newest)
        needed = (len(flights) + 1) * self._chunk_bytes + len(versions) * self.limits.weights_bytes
        if needed <= self.limits.max_bytes:
            return None
        return f"{len(flights)} results in flight fill the limit of {self.limits.max_bytes:,} bytes"

    def _too_old_soon(self) -> InFlight | None:
        """Return a call whose result would be too old if another order were sent and all others arrived before it."""
        if self.limits.max_lag is None:
            return None
        flights = self._flights()
        ahead = math.ceil(self.limits.updates_per_chunk * len(flights))
        for flight in flights:
            if not flight.written_off and self._weights.newest - flight.call.version + ahead > self.limits.max_lag:
                return flight
        return None

    def _patience(self) -> float:
        """Seconds for which a slow call may hold back others."""
        return max(self.limits.hold_secs, 2 * self._typical)

    def _needs_put(self) -> bool:
        """Whether the next order needs newer weights than those last sent: one sending per call's duration, or lag."""
        weights = self._weights
        if weights.newest == weights.put:
            return False
        if self.limits.newest_weights or weights.is_old(self._time, self._typical):
            return True
        if self.limits.max_lag is None:
            return False
        ahead = math.ceil(self.limits.updates_per_chunk * (len(self._flights()) + 1))
        return weights.newest - weights.put + ahead > self.limits.max_lag

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

    def _accept(self, worker: WorkerState, arrival: Arrival) -> list[Delivery]:
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
            secs = self._time - worker.active_since
            self._typical = secs if not self._typical else 0.9 * self._typical + 0.1 * secs
        worker.active_since = worker.beat_at = self._time
        lag = self._weights.newest - call.version
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

    # -- status

    def waiting_for(self) -> str:
        """Return one sentence that says why no result has arrived."""
        actors = [worker for worker in self._workers if worker.role == "actor"]
        ready = [worker for worker in actors if worker.phase == "ready"]
        if self._held:
            return "the learner holds the workers"
        if self._weights.newest < 0:
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
            return f"no order is sent: worker {call.worker} still uses version {call.version} of {self._weights.newest}"
        slowest = max(ready, key=lambda worker: self._time - worker.active_since if worker.calls else -1.0)
        return self._describe(slowest)

    def _describe(self, worker: WorkerState) -> str:
        return worker.describe(self._time, self.limits.suspect_secs)

    def row(self) -> dict[str, float]:
        """Return metrics of the workers since the last call."""
        span = max(1e-9, self._time - self._row_at)
        row = worker_metrics(self._workers, span) | {
            "chunks_dropped": sum(self.dropped.values()),
            "wait_share": self._waited / span,
            "held_share": self._held_for / span,
        }
        self._row_at, self._waited, self._held_for = self._time, 0.0, 0.0
        return row
