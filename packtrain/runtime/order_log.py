"""Record the order of events of a local run, and replay it in a serial run, which repeats the learner exactly.

Two threads act and learn, so which weights a step is acted with, and which steps a batch is sampled from, depend on
when they happen. `Run.record_order` writes the order of four kinds of events to RUN/order.txt. A lock keeps them apart;
gradients are still computed while the actor steps.

| line | event |
| --- | --- |
| `act N` | N actor steps: weights are read, actions chosen, rows stored, environments stepped |
| `stage KIND` | the actor's policy is `random` or `policy` from now on |
| `draw NAME COUNT` | a learner samples the inputs of at most COUNT updates, or finds too little |
| `update` | their priorities are stored; the gradient was computed at some time since `draw` |
| `publish` | the new weights can be read |

`Run.replay_order` names such a file: `--runtime serial` then makes the same events in the same order.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from packtrain.errors import ConfigError, StalledError

if TYPE_CHECKING:
    from packtrain.runtime.training import Training

log = logging.getLogger("packtrain")
FILE = "order.txt"
_FIRST_LINE = "packtrain order of events 1\n"


Event = Callable[[str], AbstractContextManager[Any]]
"""Encloses an event, given its line; `contextlib.nullcontext` records nothing."""


class OrderLog:
    """Lets one event happen at a time, and writes down their order."""

    def __init__(self, path: Path, patience: float):
        """Begin a file; one that is there is overwritten.

        Args:
          path: of the file.
          patience: seconds after which a thread that waits for another one's event gives up.
        """
        self._file = path.open("w", encoding="utf-8")
        self._file.write(_FIRST_LINE)
        self._lock, self._patience = threading.Lock(), patience
        self._acts = 0  # actor steps since the last line

    @contextlib.contextmanager
    def event(self, what: str) -> Iterator[None]:
        """Enclose an event; StalledError if another thread's does not end."""
        if not self._lock.acquire(timeout=self._patience):
            raise StalledError(f"{what!r} had to wait more than {self._patience:g} s for an event of another thread")
        try:
            yield
            if what == "act":
                self._acts += 1
            else:
                self._write_acts()
                self._file.write(f"{what}\n")
        finally:
            self._lock.release()

    def _write_acts(self) -> None:
        if self._acts:
            self._file.write(f"act {self._acts}\n")
        self._acts = 0

    def close(self) -> None:
        """Write what is left."""
        if not self._file.closed:
            self._write_acts()
            self._file.close()


def open_order(training: Training, resumes: bool) -> OrderLog | None:
    """Return what records a run's events; None: they are not recorded.

    Args:
      training: the run.
      resumes: whether it goes on from a checkpoint.
    """
    setup = training.setup
    if not setup.experiment.run.record_order or not training.overlaps:
        return None
    if setup.remote is not None or setup.device.type == "cuda":
        raise ConfigError(
            "Run.record_order = True: only a run whose environments and learner share a process and the CPU can be "
            "replayed; use --device cpu without --acting process and without --runtime cluster"
        )
    if resumes:
        log.warning("the order of events is not recorded: the run goes on from a checkpoint")
        return None
    patience = setup.experiment.streams.environment.step_deadline_secs + 30
    return OrderLog(setup.folder.path / FILE, patience)


def read_order(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the kind of each event and what else its line says.

    Raises:
      ConfigError: the file cannot be read, or is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            if file.readline() != _FIRST_LINE:
                raise ConfigError(f"Run.replay_order = {path!r}: the file does not begin with {_FIRST_LINE.strip()!r}")
            for line in file:
                kind, *rest = line.split()
                yield kind, rest
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Run.replay_order = {path!r} cannot be read: {error}") from error


def replay(training: Training, path: str) -> None:
    """Make the events of a file in their order, without evaluations; then the run has the recorded run's weights.

    The actor steps are made in a thread of their own as in the recorded run, since the number of threads of an
    operation may change its rounding; nothing else happens meanwhile.
    """
    learning = training.learning
    every: list[Any] = [inner for stage in training.experiment.schedule for inner in getattr(stage, "stages", (stage,))]
    stages = {stage.policy: stage for stage in every if hasattr(stage, "policy")}  # all that matters when one begins
    pending: tuple[str, Any] = "", None  # the learner's name, and its batch or result
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as actor:
        for kind, rest in read_order(path):
            if training.progress.stop is not None:
                return
            match kind, rest:
                case "act", [count]:
                    for _ in range(int(count)):
                        actor.submit(training.act).result()
                        training.rows.count_acted()
                case "stage", [policy] if policy in stages:
                    training.acting.begin_stage(stages[policy])
                case "draw", [name, count]:
                    pending = name, learning.learners[name].draw(learning.memory_of(name), int(count))
                case "update", []:
                    name, work = pending
                    learner, memory = learning.learners[name], learning.memory_of(name)
                    pending = name, learning.divergence.finish(name, learner, memory, work)
                case "publish", []:
                    name, result = pending
                    learning.publish_after(name)
                    training.rows.note_update(name, result)
                case _:
                    raise ConfigError(f"Run.replay_order = {path!r}: {' '.join([kind, *rest])!r} is no event")
