"""The process of one data-parallel learner, and how it meets the others; `learner_group.py` has the other side."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from packtrain.accelerate.precision import use_tf32
from packtrain.algorithms.data_parallel import Work
from packtrain.envs.gymnasium_vector_env import die_with_parent
from packtrain.errors import one_line
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.tensor_messages import flatten, to_arrays, unpack, unpack_into
from packtrain.types import Spec

TRANSFER_SECS = 30.0  # limit for a transfer between two live ranks


@dataclass(frozen=True)
class RankSetup:
    """What a rank is built from. Everything in it is a value."""

    experiment: Experiment
    spec: Spec
    precision: torch.dtype | None  # precision of the networks' large layers
    device: str
    rank: int
    size: int
    backend: str  # gloo or nccl
    store: str  # file through which the ranks find each other
    import_path: tuple[str, ...]  # folders of the user's modules


class RankLostError(Exception):
    """A rank has ended, is stuck, or cannot be reached."""


def serve(pipe: Any, setup: RankSetup) -> None:
    """Build the learners and compute parts of batches until the pipe is closed."""
    die_with_parent(started_by_main_thread=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles Ctrl-C and ends this process
    sys.path[:0] = [path for path in setup.import_path if path not in sys.path]
    try:
        learners, device = _build(setup)
        pipe.send(("started",))
        join(setup.backend, Path(setup.store), setup.rank, setup.size)
        pipe.send(("joined",))
        staging = device if setup.backend == "nccl" else torch.device("cpu")
        while (message := pipe.recv())[0] == "part":
            _, name, layout, weights_size, work_size = message
            weights = torch.empty(weights_size, dtype=torch.uint8, device=staging)
            dist.broadcast(weights, 0)
            learner = learners[name]
            unpack_into(learner.network, weights)
            packed = torch.empty(work_size, dtype=torch.uint8, device=staging)
            dist.recv(packed, 0)
            part = learner.part(Work(*unpack(packed, layout, device)))
            pipe.send(("done", to_arrays(part.metrics), to_arrays(part.items)))
            dist.reduce(flatten(part.gradients, staging), 0)
    except (EOFError, OSError):
        pass  # rank 0 has ended, or is ending this process
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send(("failure", traceback.format_exc()))


def _build(setup: RankSetup) -> tuple[dict[str, Any], torch.device]:
    """Return learners like rank 0's; their weights are overwritten by those sent with each part."""
    experiment, device = setup.experiment, torch.device(setup.device)
    torch.set_num_threads(experiment.run.num_threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if experiment.by_ratio:
        use_tf32(experiment.run.precision, device)
    network: nn.Module = experiment.policy.build_network(setup.spec).to(device)
    if experiment.policy.mixed_precision:
        network.precision = setup.precision  # type: ignore[assignment]
    total = experiment.total_steps
    return {name: use.learner.build(network, total) for name, use in experiment.learners.items()}, device


def join(backend: str, store: Path, rank: int, size: int) -> None:
    """Join the process group of all ranks over the loopback interface."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    wait = datetime.timedelta(seconds=TRANSFER_SECS)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, loopback))
    try:
        meeting = dist.FileStore(str(store), size)
        dist.init_process_group(backend, store=meeting, rank=rank, world_size=size, timeout=wait)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def transfers() -> Iterator[None]:
    """Convert errors of a transfer into a lost-rank error."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(f"a transfer between learners failed: {one_line(str(error))[:200]}") from error
