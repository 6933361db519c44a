"""Where the runs of a sweep run: processes of this machine, jobs of Slurm through submitit, or nodes of Ray."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from packtrain.errors import ClusterError, ConfigError, Error, MissingExtraError, warn
from packtrain.files import write_whole
from packtrain.runtime.cluster.whole_runs import UNSEEN, WholeRun, WholeRuns
from packtrain.runtime.supervise import launch
from packtrain.studies.sweep.record import FILE

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
LOST = 1000  # exit code of a run whose machine or job is gone


@dataclass(frozen=True)
class Job:
    """One process to start: `packtrain train` with its output in a file."""

    name: str
    command: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)  # set on top of the sweep's own variables


class Place(Protocol):
    """Where jobs run. A handle stands for a started job."""

    def has_room(self) -> bool:
        """Return whether one more job may start now."""

    def start(self, job: Job) -> Any:
        """Start a job and return its handle."""

    def adopt(self, job_id: str, job: Job) -> Any | None:
        """Return the handle of a job that an earlier sweep has started and that still runs, or None."""

    def job_id(self, handle: Any) -> str:
        """Return the name under which `adopt` finds the job; empty if it ends with the sweep."""

    def poll(self, handle: Any) -> int | None:
        """Return the exit code, negative for a signal, LOST if it is unknown; None while the job runs."""

    def stop(self, handle: Any, kill: bool = False) -> None:
        """Ask a job to save and leave, or end it at once."""

    def close(self) -> None:
        """Release what the place holds; jobs have ended."""


def train_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a child process that trains."""
    return (sys.executable, "-m", "packtrain", "train", *words)


def threads_env(threads: int) -> dict[str, str]:
    """Return the variables that limit the threads of numerical libraries; those that the user has set stand."""
    return {name: str(threads) for name in THREADS if name not in os.environ}


class ThisMachine:
    """Child processes, at most so many at a time. They save and leave if the sweep dies."""

    def __init__(self, jobs: int, devices: Sequence[str]):
        """Nothing is started yet.

        Args:
          jobs: processes at a time.
          devices: of the runs, used in turn; each new run gets the one with the fewest.
        """
        self._jobs, self._devices = jobs, list(devices)
        self._running: dict[subprocess.Popen[bytes], str] = {}

    def has_room(self) -> bool:
        """Return whether one more job may start now."""
        return len(self._running) < self._jobs

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        """Start a process; its output is appended to the log."""
        used = list(self._running.values())
        device = min(self._devices, key=used.count)
        process = launch([*job.command, f"--device={device}"], os.environ | dict(job.env), job.log)
        self._running[process] = device
        return process

    def adopt(self, job_id: str, job: Job) -> None:
        """Return None: processes end with the sweep."""

    def job_id(self, handle: Any) -> str:
        """Return nothing: processes end with the sweep."""
        return ""

    def poll(self, handle: subprocess.Popen[bytes]) -> int | None:
        """Return the exit code of a process, or None while it runs."""
        code = handle.poll()
        if code is not None:
            self._running.pop(handle, None)
        return code

    def stop(self, handle: subprocess.Popen[bytes], kill: bool = False) -> None:
        """Send SIGTERM, upon which a run saves and leaves; or SIGKILL."""
        with contextlib.suppress(OSError):
            handle.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    def close(self) -> None:
        """Do nothing."""


# -- Slurm


def run_job(command: Sequence[str], env: Mapping[str, str], log: str, code_file: str, home: str) -> int:
    """Run one job on a machine of Slurm, and write its exit code to a file; called by submitit."""
    os.chdir(home)
    process = launch(command, os.environ | dict(env), Path(log))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    write_whole(Path(code_file), json.dumps(code).encode())
    return code


@dataclass
class _SlurmJob:
    job: Any  # of submitit
    code_file: Path
    looked: float = 0.0


class Slurm:
    """Jobs of Slurm, which go on if the sweep dies; its folder must be on a file system that all nodes share."""

    LOOK_EVERY = 2.0  # seconds between two looks at a job's state

    def __init__(self, root: Path, jobs: int, device: str, cpus: int, gpus: int, options: Mapping[str, str]):
        """Check the options; MissingExtraError without submitit.

        Args:
          root: of the sweep.
          jobs: jobs in the queue at a time.
          device: of all runs.
          cpus: processors of a job.
          gpus: GPUs of a job.
          options: parameters of submitit, such as slurm_partition and timeout_min; `cluster` is submitit's executor.
        """
        if importlib.util.find_spec("submitit") is None:
            raise MissingExtraError("--on slurm", "submitit", "slurm")
        self._submitit: Any = importlib.import_module("submitit")
        self._folder, self._jobs, self._device = root / "slurm", jobs, device
        self._running = 0
        given: dict[str, Any] = {key: int(text) if text.isdecimal() else text for key, text in options.items()}
        cluster = given.pop("cluster", "slurm")
        try:
            self._executor = self._submitit.AutoExecutor(folder=str(self._folder), cluster=cluster)
            self._executor.update_parameters(cpus_per_task=cpus, gpus_per_node=gpus, **given)
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise ConfigError(f"--on slurm: {str(error).splitlines()[0]}") from error

    def has_room(self) -> bool:
        """Return whether one more job may be queued."""
        return self._running < self._jobs

    def start(self, job: Job) -> _SlurmJob:
        """Queue a job."""
        code_file = self._folder / f"{job.log.stem}.exit"
        code_file.unlink(missing_ok=True)
        command = (*job.command, f"--device={self._device}")
        arguments = (command, dict(job.env), str(job.log.resolve()), str(code_file.resolve()), os.getcwd())
        self._executor.update_parameters(name=job.name[:40])
        try:
            submitted = self._executor.submit(run_job, *arguments)
        except Exception as error:  # submitit's own kinds, which are many
            raise Error(f"Slurm refused a job: {str(error).splitlines()[0]}") from error
        self._running += 1
        return _SlurmJob(submitted, code_file)

    def adopt(self, job_id: str, job: Job) -> _SlurmJob | None:
        """Return a job that is still queued or running, or None."""
        if not job_id.isdecimal() or self._executor.cluster != "slurm":
            return None
        found = self._submitit.SlurmJob(folder=str(self._folder), job_id=job_id)
        if found.state not in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED"):
            return None
        self._running += 1
        return _SlurmJob(found, self._folder / f"{job.log.stem}.exit")

    def job_id(self, handle: _SlurmJob) -> str:
        """Return Slurm's number of the job."""
        return str(handle.job.job_id)

    def poll(self, handle: _SlurmJob) -> int | None:
        """Return the exit code that the job has written; LOST if Slurm has ended it before."""
        code = _read_code(handle.code_file)
        if code is None:
            if time.monotonic() - handle.looked < self.LOOK_EVERY:
                return None
            handle.looked = time.monotonic()
            if not handle.job.done():
                return None
            code = _read_code(handle.code_file)
        self._running -= 1
        return LOST if code is None else code

    def stop(self, handle: _SlurmJob, kill: bool = False) -> None:
        """Cancel a job, upon which its run gets SIGTERM, saves and leaves."""
        with contextlib.suppress(Exception):
            handle.job.cancel(check=False)

    def close(self) -> None:
        """Do nothing: jobs have ended."""


def _read_code(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# -- Ray


class Nodes:
    """Runs on the nodes of a Ray cluster; see `packtrain/runtime/cluster/whole_runs.py`."""

    def __init__(self, root: Path, runs: WholeRuns, device: str):
        """Nothing is started yet.

        Args:
          root: of the sweep, on a file system that all nodes share.
          runs: the cluster.
          device: of all runs.
        """
        self._root, self._runs, self._device = root, runs, device
        self._free: Any = None  # the node of the next run

    def has_room(self) -> bool:
        """Return whether a node has room for one more run."""
        self._free = self._runs.free_node()
        return self._free is not None

    def start(self, job: Job) -> WholeRun:
        """Start a run on the node with the most room."""
        command = [*job.command, f"--device={self._device}"]
        mark = (self._root / FILE).resolve()
        return self._runs.start(self._free, command, job.env, job.log.resolve(), Path.cwd(), mark)

    def adopt(self, job_id: str, job: Job) -> None:
        """Return None: runs end with the sweep."""

    def job_id(self, handle: WholeRun) -> str:
        """Return nothing: runs end with the sweep."""
        return ""

    def poll(self, handle: WholeRun) -> int | None:
        """Return the exit code of a run, LOST if its node is lost; Error if the node does not see the sweep's folder.

        Without the folder no run on that node can work.
        """
        try:
            code = self._runs.poll(handle)
        except ClusterError as error:
            warn(str(error))
            return LOST
        if code == UNSEEN:
            raise ClusterError(
                f"the node {handle.node.address} does not have {self._root.resolve()}: a sweep on a cluster needs an "
                "--output_dir on a file system that all nodes share"
            )
        return code

    def stop(self, handle: WholeRun, kill: bool = False) -> None:
        """Ask a run to save and leave, or end it at once."""
        (self._runs.end if kill else self._runs.stop)(handle)

    def close(self) -> None:
        """Leave the cluster."""
        self._runs.close()
