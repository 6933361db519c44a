"""Calls to workers and their results, the interface of an engine, and the limits of the flow control. No Ray, no torch.

A *life* is one process that does a worker's job. When it ends, the next life starts after a back-off. Calls are
numbered within a life, and results are accepted in rising order of these numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Call(NamedTuple):
    """One order to a worker. (worker, life, number) is unique."""

    worker: int
    life: int
    number: int  # increases by one from 0 within a life
    version: int  # version of the weights
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
