"""Workers as processes of this machine, for `--acting process`: an `Engine` for the flow control without Ray.

Each worker is a spawned process with one pipe. It answers calls in order, and status requests at once from a second
thread. Messages on the pipe come from this program's own processes only. On this side, each pipe has a thread that
sends and one that receives: a process that is stopped in the middle of a message blocks these threads alone.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from packtrain.envs.gymnasium_vector_env import die_with_parent
from packtrain.runtime.cluster.calls import Arrival, Beat, Call, Event, Failure, Started
from packtrain.runtime.messages import measure


class Setup(Protocol):
    """Settings of a worker, as a value that is sent to its process."""

    @property
    def import_path(self) -> tuple[str, ...]:
        """Folders in which the process searches modules first."""

    def build(self) -> Any:
        """Return the worker, with `act`, `progress` and `close`."""


END_SECS = 5.0  # limit for a worker to close its environments
CLOSE_SECS = 1.0  # the same after a failure, while a run waits


class ProcessEngine:
    """Starts and calls workers, each in a process of its own."""

    def __init__(self, setup: Callable[[int, int], Setup]):
        """Create an engine without workers.

        Args:
          setup: returns what a worker is built from, for its index and life.
        """
        self._setup = setup
        self._context = multiprocessing.get_context("spawn")
        self._lives: dict[tuple[int, int], _Life] = {}
        self._arrived = queue.SimpleQueue[tuple[tuple[int, int], tuple[Any, ...] | None]]()  # None: the pipe is closed
        self._sent: dict[tuple[int, int], int] = {}  # version of the weights that each life has
        atexit.register(self.close)  # must run before multiprocessing waits for its children

    def now(self) -> float:
        """Return the time in seconds, from a clock that never goes back."""
        return time.monotonic()

    def spawn(self, worker: int, role: str, life: int, seed: int) -> None:
        """Begin to start a process."""
        here, there = self._context.Pipe()
        arguments = (there, self._setup(worker, life))
        process = self._context.Process(target=_serve, args=arguments, name=f"{role} {worker}", daemon=False)
        process.start()
        there.close()
        self._lives[worker, life] = _Life(process, here, (worker, life), self._arrived)

    def call(self, call: Call) -> None:
        """Send a call; weights only if the process does not have this version yet."""
        life = self._lives.get((call.worker, call.life))
        if life is None:
            return
        key = call.worker, call.life
        leaves = None if self._sent.get(key) == call.version else call.weights
        self._sent[key] = call.version
        life.send(("call", call.number, call.order, call.version, leaves))

    def ask_status(self, worker: int, life: int) -> None:
        """Request the number of steps a worker has made."""
        if (found := self._lives.get((worker, life))) is not None:
            found.send(("status",))

    def ready(self, timeout: float) -> Sequence[Event]:
        """Return the events since the last call; wait at most `timeout` seconds for the first one."""
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            events += self._event(*self._arrived.get(timeout=timeout) if timeout else self._arrived.get_nowait())
            while True:
                events += self._event(*self._arrived.get_nowait())
        return events

    def _event(self, key: tuple[int, int], message: tuple[Any, ...] | None) -> list[Event]:
        """Return the event of a message; none if its life was killed before."""
        if (life := self._lives.get(key)) is None:
            return []
        if message is None:
            del self._lives[key]
            life.end(END_SECS)
            return [Failure(*key, f"the process ended with exit code {life.process.exitcode}")]
        if message[0] == "failure":  # it may be unable to end: an environment's call does not return
            del self._lives[key]
            life.end(CLOSE_SECS)
        return [_event(*key, message)]

    def kill(self, worker: int, life: int) -> None:
        """Kill a process."""
        if (found := self._lives.pop((worker, life), None)) is not None:
            found.end(0.0)

    def put(self, version: int, weights: Any) -> Any:
        """Return the weights: they are sent with the first call that needs them."""
        return weights

    def close(self) -> None:
        """End all processes; they close their environments first."""
        atexit.unregister(self.close)
        lives, self._lives = list(self._lives.values()), {}
        for life in lives:
            life.send(("close",))
        deadline = time.monotonic() + END_SECS
        for life in lives:
            life.end(max(0.0, deadline - time.monotonic()))


class _Life:
    """One process, its pipe, and the threads that send and receive."""

    def __init__(self, process: Any, pipe: Any, key: tuple[int, int], arrived: queue.SimpleQueue[Any]):
        self.process, self._pipe, self._key, self._arrived = process, pipe, key, arrived
        self._outbox = queue.SimpleQueue[tuple[Any, ...] | None]()
        self._threads = [
            threading.Thread(target=run, name=f"{process.name} {name}", daemon=True)
            for name, run in (("sender", self._send_all), ("receiver", self._receive_all))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message, without waiting; `ready` notices a process that has ended."""
        self._outbox.put(message)

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._pipe.send(message)

    def _receive_all(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._arrived.put((self._key, self._pipe.recv()))
        self._arrived.put((self._key, None))

    def end(self, patience: float) -> None:
        """Wait some seconds for the process to end, then kill it."""
        if patience:
            self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(END_SECS)
        self._outbox.put(None)
        for thread in self._threads:  # without a process at the other end, no message blocks them
            thread.join(END_SECS)
        if not any(thread.is_alive() for thread in self._threads):
            self._pipe.close()


def _event(worker: int, life: int, message: tuple[Any, ...]) -> Event:
    kind, *content = message
    if kind == "started":
        return Started(worker, life)
    if kind == "failure":
        return Failure(worker, life, content[0], raised=True)
    if kind == "beat":
        return Beat(worker, life, content[0])
    number, chunks, report = content
    return Arrival(worker, life, number, chunks, report, *measure(chunks))


# -- in the worker's process


def _serve(pipe: Any, setup: Setup) -> None:
    """Build a worker and answer calls until the pipe is closed."""
    die_with_parent(started_by_main_thread=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner's process handles Ctrl-C and ends this one
    sys.path[:0] = [path for path in setup.import_path if path not in sys.path]
    lock, orders = threading.Lock(), queue.SimpleQueue[tuple[Any, ...]]()
    workers: list[Any] = []

    def send(*message: Any) -> None:
        with lock:
            pipe.send(message)

    def receive() -> None:
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                message = ("close",)
            if message[0] == "status":
                try:
                    send("beat", workers[0].progress if workers else 0)
                except Exception:  # an environment that does not answer
                    with contextlib.suppress(OSError):
                        send("failure", traceback.format_exc())
            else:
                orders.put(message)
            if message[0] == "close":
                return

    threading.Thread(target=receive, name="receiver", daemon=True).start()
    try:
        worker = setup.build()
        workers.append(worker)
        send("started")
        while (message := orders.get())[0] == "call":
            _, number, order, version, leaves = message
            chunks, report = worker.act(order, version, leaves)
            send("result", number, chunks, report)
    except BaseException:
        with contextlib.suppress(OSError):
            send("failure", traceback.format_exc())
    finally:
        for worker in workers:
            worker.close()
