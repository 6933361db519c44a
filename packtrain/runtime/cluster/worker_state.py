"""The state of each worker in the flow control: its life, its calls in flight, and what it has delivered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from packtrain.runtime.cluster.calls import Call, Limits
from packtrain.runtime.cluster.errands import Errand

Phase = Literal["waiting", "starting", "ready", "retired"]


@dataclass
class InFlight:
    """A call without a result."""

    call: Call
    sent: float
    errand: Errand | None = None
    written_off: bool = False  # whether it is expected to arrive too late
    overtaken_at: float | None = None  # when a later result of the same life arrived

    def is_lost(self, now: float, limits: Limits) -> bool:
        """Return whether its result is not expected any more, because a later one has been there for long."""
        return self.overtaken_at is not None and now - self.overtaken_at > limits.call_secs


@dataclass
class WorkerState:
    """One worker, in its current life."""

    index: int
    role: str
    life: int
    phase: Phase = "waiting"
    since: float = 0.0  # when the phase began
    due: float = 0.0  # when the next life starts, while waiting
    calls: list[InFlight] = field(default_factory=list)
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

    def call_secs(self, limits: Limits) -> float:
        """Return for how long a call may make no progress."""
        return limits.call_secs if self.accepted >= 0 else max(limits.first_secs, limits.call_secs)

    def retire_reason(self, limits: Limits) -> str | None:
        """Return why this worker is started no more, or None.

        Processes that are killed from outside are replaced without end as long as they deliver. An error of the
        worker's own code, such as an exception of an environment, is expected to come again.
        """
        if self.fruitless >= limits.fruitless_lives:
            return f"{self.fruitless} lives in a row with fewer than {limits.fruitful_chunks} results"
        if len(self.raised_at) >= limits.errors:
            return f"{len(self.raised_at)} errors within {limits.errors_secs / 60:g} min"
        return None

    def describe(self, now: float, suspect_secs: float) -> str:
        """Return what it does at this time, as text.

        Args:
          now: time of the flow control.
          suspect_secs: without an answer, after which this is said.
        """
        name, secs = f"worker {self.index}", now - self.since
        if self.phase == "waiting":
            why = f" after: {self.error}" if self.error else ""
            return f"{name} starts in {max(0.0, self.due - now):.0f} s{why}"
        if self.phase == "starting":
            return f"{name} has been starting for {secs:.0f} s"
        if self.phase == "retired":
            return f"{name} is retired after: {self.error}"
        if now - self.beat_at > suspect_secs:
            return f"{name} has not answered for {now - self.beat_at:.0f} s"
        if not self.calls:
            return f"{name} has no order"
        return f"{name} has been at a call for {now - self.active_since:.0f} s"


def worker_metrics(workers: Sequence[WorkerState], span: float) -> dict[str, float]:
    """Return metrics of workers since the last call.

    Args:
      workers: those of all roles; only actors have rates.
      span: seconds since the last call.
    """
    actors = [worker for worker in workers if worker.role == "actor"]
    row: dict[str, float] = {
        "workers_ready": sum(worker.phase == "ready" for worker in actors),
        "workers_retired": sum(worker.phase == "retired" for worker in actors),
        "worker_restarts": sum(worker.restarts for worker in workers),
        "calls_in_flight": sum(len(worker.calls) for worker in actors),
        "chunk_bytes_per_s": sum(worker.size for worker in actors) / span,
    }
    for worker in actors:
        row[f"worker_{worker.index}_steps_per_s"] = worker.steps / span
        row[f"worker_{worker.index}_lag"] = worker.lag
        worker.steps = worker.size = 0
    return row
