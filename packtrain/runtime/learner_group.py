"""Data-parallel learners on one machine, for `--learners K`: rank 0 in the run's process, the others spawned.

For each batch, rank 0 sends every rank its weights and a part of the batch, computes its own part, and receives the sum
of the gradients. Ranks keep no state that matters: optimisers, memories and checkpoints are rank 0's. So a run may
resume with another number of learners, and when a rank dies, the group is started again and computes the same batch
again: nothing is lost.

Tensors travel by torch.distributed: gloo over the loopback interface, or NCCL between GPUs. Ranks find each other by a
file, since torch's TCP store listens on all interfaces. Commands go through a pipe to each rank; a closed pipe tells
that the rank has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from packtrain import trees
from packtrain.algorithms.data_parallel import Gradients, Part, Work
from packtrain.errors import ConfigError, LearnerGroupError, one_line, warn
from packtrain.interfaces import Learner
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.learner_rank import TRANSFER_SECS, RankLostError, RankSetup, join, serve, transfers
from packtrain.runtime.tensor_messages import Layout, flatten, pack, to_tensors, unflatten
from packtrain.types import Spec

log = logging.getLogger("packtrain")
START_SECS = 180.0  # limit for ranks to import torch and build their networks
LEAST_PATIENCE_SECS = 30.0  # minimum time limit of a part; otherwise PATIENCE times the time of rank 0
PATIENCE = 10.0
MOST_FAILURES = 5  # failures in a row without an update
END_SECS = 5.0
FAULT_SECS = 0.2  # time in which a rank ends after a failed transfer


def refuse_learners(count: int, experiment: Experiment, device: torch.device) -> None:
    """Raise a ConfigError if a run cannot have this number of learners.

    Args:
      count: K.
      experiment: what is run.
      device: of rank 0; the other ranks have the GPUs after it.
    """
    if count < 1:
        raise ConfigError(f"--learners {count} must be at least 1")
    if count == 1:
        return
    for use in experiment.learners.values():
        if experiment.by_epochs or not getattr(use.learner, "splits_batches", False):
            name = type(use.learner).__name__
            raise ConfigError(f"--learners {count}: {name} cannot divide its batches; leave --learners out")
    for memory in experiment.memories.values():
        size = getattr(memory, "batch_size", None)
        if size is not None and size < count:
            raise ConfigError(f"--learners {count} cannot share batch_size = {size}: each learner needs at least one")
    if device.type == "cuda":
        first, found = device.index or 0, torch.cuda.device_count()
        if first + count > found:
            raise ConfigError(
                f"--learners {count} needs a GPU for each learner, from cuda:{first} on; torch sees {found}; "
                "--device cpu allows any number"
            )


def open_group(
    count: int,
    experiment: Experiment,
    spec: Spec,
    learners: Mapping[str, Learner],
    device: torch.device,
    precision: torch.dtype | None,
) -> LearnerGroup | None:
    """Let learners divide their batches over `count` ranks on this machine; None if there is one.

    Args:
      count: K, of which `refuse_learners` has approved.
      experiment: what is run.
      spec: of its environment.
      learners: rank 0's, by name.
      device: of rank 0; the other ranks have the GPUs after it.
      precision: of the networks' large layers.
    """
    if count == 1:
        return None
    first = device.index or 0
    devices = [torch.device("cuda", first + rank) if device.type == "cuda" else device for rank in range(count)]
    return LearnerGroup(experiment, spec, learners, devices, precision)


class LearnerGroup:
    """Ranks 1 … K−1: started, given parts of batches, and started again when one of them dies."""

    def __init__(
        self,
        experiment: Experiment,
        spec: Spec,
        learners: Mapping[str, Learner],
        devices: Sequence[torch.device],
        precision: torch.dtype | None = None,
        backend: str | None = None,
    ):
        """Begin to start the ranks; the first batch waits for them.

        Args:
          experiment: from which every rank builds the same learners.
          spec: of its environment.
          learners: rank 0's, by name; they divide their batches from now on.
          devices: one for each rank.
          precision: of the networks' large layers.
          backend: "gloo" or "nccl"; None: by the devices.
        """
        self._experiment, self._spec, self._precision = experiment, spec, precision
        self._devices, self._learners = list(devices), dict(learners)
        on_gpus = all(device.type == "cuda" for device in devices)
        self._backend = backend or ("nccl" if on_gpus else "gloo")
        self._context = multiprocessing.get_context("spawn")
        self._ranks: list[_Rank] = []
        self._folder: str | None = None
        self._connected = False
        self._failures = 0  # number since the latest update
        self.first_error = ""
        self.restarts = 0
        for name, learner in self._learners.items():
            learner.split(_NamedRanks(self, name))
        atexit.register(self.close)  # must run before multiprocessing waits for its children
        self._start()

    @property
    def size(self) -> int:
        """Number of ranks, this process included."""
        return len(self._devices)

    @property
    def pids(self) -> list[int]:
        """Process numbers of ranks 1 … K−1."""
        return [rank.process.pid for rank in self._ranks]

    def row(self) -> dict[str, int]:
        """Return metrics for training rows."""
        return {"learners": self.size, "learner_restarts": self.restarts}

    def compute(self, name: str, works: Sequence[Work], own: Callable[[], Part]) -> tuple[Gradients, list[Part]]:
        """Compute the parts of a batch, again if a rank dies over it; see `data_parallel.Ranks.compute`.

        Args:
          name: of the learner.
          works: one for each rank.
          own: computes the first of them.
        """
        while True:
            try:
                if not self._connected:
                    self._connect()
                found = self._compute(name, works, own)
            except RankLostError as error:
                self._recover(next(filter(None, (rank.fault() for rank in self._ranks)), str(error)))
            except BaseException:
                self._end_ranks()  # some ranks wait for this process
                raise
            else:
                self._failures = 0
                return found

    def _compute(self, name: str, works: Sequence[Work], own: Callable[[], Part]) -> tuple[Gradients, list[Part]]:
        staging = self._devices[0] if self._backend == "nccl" else torch.device("cpu")
        weights = pack(list(self._learners[name].network.state_dict().values()), staging)
        messages = [pack(trees.flatten(tuple(work)), staging) for work in works[1:]]
        for rank, work, message in zip(self._ranks, works[1:], messages, strict=True):
            rank.send(("part", name, trees.map(Layout.of, tuple(work)), len(weights), len(message)))
        with transfers():
            dist.broadcast(weights, 0)
            pending = [dist.isend(message, rank) for rank, message in enumerate(messages, 1)]
            for one in pending:
                if one is not None:
                    one.wait()
        begun = time.monotonic()
        part = own()
        patience = max(LEAST_PATIENCE_SECS, PATIENCE * (time.monotonic() - begun))
        parts = [part]
        for rank in self._ranks:
            metrics, items = rank.receive("done", patience)
            parts.append(Part({}, to_tensors(metrics, self._devices[0]), to_tensors(items, self._devices[0])))
        flat = flatten(part.gradients, staging)
        with transfers():
            dist.reduce(flat, 0)
        return unflatten(flat.to(self._devices[0]), part.gradients), parts

    # -- start and end of ranks

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="packtrain-learners-")
        for rank in range(1, self.size):
            here, there = self._context.Pipe()
            setup = RankSetup(
                self._experiment,
                self._spec,
                self._precision,
                str(self._devices[rank]),
                rank,
                self.size,
                self._backend,
                str(Path(self._folder) / "store"),
                tuple(sys.path),
            )
            process = self._context.Process(target=serve, args=(there, setup), name=f"learner {rank}")
            process.start()
            log.info("learner %d (life %d) is process %d on this machine", rank, self.restarts, process.pid)
            there.close()
            self._ranks.append(_Rank(rank, process, here))

    def _connect(self) -> None:
        if not self._ranks:
            self._start()
        for rank in self._ranks:
            rank.receive("started", START_SECS)
        assert self._folder is not None
        with transfers():
            join(self._backend, Path(self._folder) / "store", 0, self.size)
        self._connected = True
        for rank in self._ranks:
            rank.receive("joined", TRANSFER_SECS)  # until then a rank reads the file
        if self._backend == "gloo":  # NCCL needs the file again for its first transfers
            self._forget_folder()

    def _recover(self, why: str) -> None:
        """End what is left of the group, so that the next attempt starts it again."""
        self._failures += 1
        self.restarts += 1
        self.first_error = self.first_error or why
        self._end_ranks()
        if self._backend == "nccl" or self._failures >= MOST_FAILURES:
            raise LearnerGroupError(
                f"learners failed {self._failures} times without an update: {one_line(self.first_error)[-400:]}; "
                "repeat the command to resume from the last checkpoint"
            )
        warn(f"{one_line(why)[-400:]}; all learners are started again and compute the same batch again")

    def _end_ranks(self) -> None:
        for rank in self._ranks:
            rank.end(0.0)
        self._ranks.clear()
        if self._connected:
            dist.destroy_process_group()
        self._connected = False
        self._forget_folder()

    def _forget_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def close(self) -> None:
        """End all ranks."""
        atexit.unregister(self.close)
        for rank in self._ranks:
            with contextlib.suppress(RankLostError):
                rank.send(("close",))
        for rank in self._ranks:
            rank.end(END_SECS)
        self._end_ranks()


class _NamedRanks:
    """A group as one learner sees it."""

    def __init__(self, group: LearnerGroup, name: str):
        self._group, self._name = group, name

    @property
    def size(self) -> int:
        return self._group.size

    def compute(self, works: Sequence[Work], own: Callable[[], Part]) -> tuple[Gradients, list[Part]]:
        return self._group.compute(self._name, works, own)


@dataclass
class _Rank:
    """The process of a rank, as rank 0 sees it."""

    number: int
    process: Any
    pipe: Any

    def send(self, message: tuple[Any, ...]) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            raise RankLostError(self._ended()) from None

    def receive(self, kind: str, timeout: float) -> tuple[Any, ...]:
        """Return the content of the next message, which is of this kind."""
        if not multiprocessing.connection.wait([self.pipe, self.process.sentinel], timeout):
            raise RankLostError(f"learner {self.number} gave no answer within {timeout:.0f} s")
        try:
            if not self.pipe.poll(0.0):
                raise EOFError
            found, *content = self.pipe.recv()
        except (EOFError, OSError):
            raise RankLostError(self._ended()) from None
        if found != kind:
            raise RankLostError(f"learner {self.number} failed: {content[0]}")
        return tuple(content)

    def fault(self) -> str | None:
        """Return why a rank fails transfers; None if it seems well."""
        self.process.join(FAULT_SECS)
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll(0.0):
                kind, *content = self.pipe.recv()
                if kind == "failure":
                    return f"learner {self.number} failed: {content[0]}"
        return None if self.process.is_alive() else self._ended()

    def _ended(self) -> str:
        self.process.join(END_SECS)
        return f"learner {self.number} ended with exit code {self.process.exitcode}"

    def end(self, patience: float) -> None:
        if patience:
            self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(END_SECS)
        self.pipe.close()
