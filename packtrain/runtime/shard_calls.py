"""Calls to the processes of replay shards, from several threads; a process that ends is replaced.

An engine is used by one thread at a time, and never while a thread waits for an answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from packtrain.errors import WorkersLostError, one_line
from packtrain.runtime.cluster.calls import Arrival, Call, Engine, Event, Failure, Started
from packtrain.runtime.seeds import seed_for

log = logging.getLogger("packtrain")
ROLE = "replay"
ANSWER_SECS = 60.0  # limit for an answer, after which a process counts as stopped
PAUSE_SECS = 0.001  # between two looks of a waiting thread
FIRST_DELAY, LAST_DELAY = 1.0, 30.0  # seconds before the next life; doubles with each life without an answer
FRUITLESS_LIVES = 5  # lives in a row without an answer, after which the run ends
LONGEST_GAP = 5.0  # seconds between two looks that count: this process may have been stopped


@dataclass
class Request:
    """An order to a shard, and its answer."""

    shard: int
    done: bool = False  # whether the answer is there, or will never come
    answer: Any = None  # None: the shard's process ended before it answered
    life: int = 0  # of the shard's process


@dataclass
class _Shard:
    life: int = -1
    ready: bool = False
    due: float | None = 0.0  # when the next life starts; None: a process runs
    number: int = 0  # of the next call
    open: dict[int, Request] = field(default_factory=dict)  # by number
    since: float = 0.0  # when the process was started, or the oldest open order was sent or became the oldest
    answers: int = 0  # of this life
    fruitless: int = 0  # lives in a row without an answer


class ShardCalls:
    """Starts the processes of shards and sends orders to them."""

    def __init__(
        self,
        engine: Engine,
        count: int,
        seed: int,
        start_secs: float,
        on_start: Callable[[int, int], None],
    ):
        """Store the arguments; the processes start at the first `poll`.

        Args:
          engine: starts and calls processes.
          count: number of shards.
          seed: of the run.
          start_secs: that a process may take to start.
          on_start: called with shard and life when a process is ready, before any other order is sent to it.
        """
        self._engine, self._seed, self._start_secs, self._on_start = engine, seed, start_secs, on_start
        self._shards = [_Shard() for _ in range(count)]
        self._lock = threading.RLock()
        self._time, self._last = 0.0, engine.now()
        self._closed = False
        self.restarts = 0
        self.first_error = ""

    def is_ready(self, shard: int) -> bool:
        """Return whether a shard can be called."""
        return self._shards[shard].ready

    @property
    def ready(self) -> int:
        """Number of shards that can be called."""
        return sum(shard.ready for shard in self._shards)

    def waiting(self, shard: int) -> int:
        """Return the number of orders that a shard has not answered."""
        return len(self._shards[shard].open)

    def send(self, shard: int, order: Any) -> Request:
        """Send an order; the request is done without an answer if the shard cannot be called now."""
        with self._lock:
            found, request = self._shards[shard], Request(shard, life=self._shards[shard].life)
            if not found.ready:
                request.done = True
                return request
            if not found.open:
                found.since = self._time
            found.open[found.number] = request
            call = Call(shard, found.life, found.number, 0, None, order, 0)
            found.number += 1
            self._engine.call(call)
            return request

    def wait(self, requests: Sequence[Request]) -> None:
        """Wait until all requests are done."""
        while not all(request.done for request in requests):
            self.poll()
            time.sleep(PAUSE_SECS)

    def poll(self) -> None:
        """Start and replace processes, and receive answers; does not wait for any.

        Raises:
          WorkersLostError: a shard cannot be started, or ends again and again.
        """
        with self._lock:
            if self._closed:
                return
            now = self._engine.now()
            self._time += min(max(0.0, now - self._last), LONGEST_GAP)
            self._last = now
            for index, shard in enumerate(self._shards):
                self._advance(index, shard)
            for event in self._engine.ready(0.0):
                self._receive(event)

    def _advance(self, index: int, shard: _Shard) -> None:
        if shard.due is not None:
            if shard.due <= self._time:
                shard.life, shard.due, shard.since = shard.life + 1, None, self._time
                shard.number = shard.answers = 0
                seed = seed_for(self._seed, "shard", index, "life", shard.life)
                self._engine.spawn(index, ROLE, shard.life, seed)
            return
        limit = ANSWER_SECS if shard.ready else self._start_secs
        if (shard.open or not shard.ready) and self._time - shard.since > limit:
            self._engine.kill(index, shard.life)
            self._end(index, shard, f"it did not {'answer' if shard.ready else 'start'} within {limit:g} s")

    def _receive(self, event: Event) -> None:
        shard = self._shards[event.worker]
        if event.life != shard.life or shard.due is not None:
            return
        match event:
            case Started():
                shard.ready = True
                self._on_start(event.worker, shard.life)
            case Arrival():
                request = shard.open.pop(event.number, None)
                shard.since, shard.answers, shard.fruitless = self._time, shard.answers + 1, 0
                if request is not None:
                    request.answer, request.done = event.report, True
            case Failure():
                self._end(event.worker, shard, event.error, event.raised)

    def _end(self, index: int, shard: _Shard, error: str, raised: bool = False) -> None:
        self.first_error = self.first_error or error
        begun = shard.ready
        shard.ready, shard.fruitless = False, shard.fruitless + (shard.answers == 0)
        for request in shard.open.values():
            request.done = True
        shard.open.clear()
        last = (error.strip().splitlines() or ["no reason given"])[-1]
        if shard.fruitless >= FRUITLESS_LIVES or (raised and not begun and shard.life == 0):
            raise WorkersLostError(f"replay shard {index} cannot run: {one_line(self.first_error)[-400:]}")
        delay = min(LAST_DELAY, FIRST_DELAY * 2.0 ** max(0, shard.fruitless - 1))
        shard.due, self.restarts = self._time + delay, self.restarts + 1
        log.warning("replay shard %d (life %d) ended: %s; it is loaded again in %g s", index, shard.life, last, delay)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._closed = True
            for index, shard in enumerate(self._shards):
                if shard.due is None:
                    self._engine.kill(index, shard.life)
            self._engine.close()  # type: ignore[attr-defined]
