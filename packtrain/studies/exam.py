"""`packtrain exam`: train families on one-ability environments, several seeds each, and write one score card.

Runs go to processes, and each leaves its result in its folder, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from packtrain import config, files, knobs
from packtrain.errors import ConfigError, EnvSetupError, Error, RunFolderError, one_line
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import train_command
from packtrain.runtime.open_run import TrainRequest
from packtrain.studies.exam_card import ABILITIES, Cell, value_in

RESULT = "result.json"


@dataclass(frozen=True)
class Job:
    """One run of the exam, as sent to a process."""

    cell: Cell
    files: tuple[Path, ...]
    seed: int
    folder: Path
    knobs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The end of one run."""

    job: Job
    value: float | None = None  # None: it failed, or does not apply
    secs: float = 0.0  # of processor time; 0 if the result was there already
    problem: str = ""  # why there is no value
    applies: bool = True  # False: the configuration cannot be used with this environment


def jobs(cells: Sequence[Cell], seeds: int, out: Path, steps: int | None = None) -> list[Job]:
    """Return the runs of some cells, the first seed of every cell first.

    Args:
      cells: what to run.
      seeds: number of runs of each cell.
      out: folder of the exam.
      steps: number of environment steps of each run; None: those of its configuration.
    """
    found = []
    for seed in range(seeds):
        for cell in cells:
            paths = _files_of(cell)
            known = {name for path in paths for name in knobs.read_knobs(path)}
            given = (("total_steps", steps),) if steps is not None and "total_steps" in known else ()
            name = cell.config.replace("/", "_")
            found.append(Job(cell, paths, seed, out / "runs" / name / f"seed_{seed}", given))
    return found


def _files_of(cell: Cell) -> tuple[Path, ...]:
    """Return the configuration of a cell: the exam's own, or another one followed by the ability's task."""
    if cell.config in knobs.shipped():
        return (knobs.find_config(cell.config)[0],)
    return knobs.find_config(cell.family)[0], knobs.CONFIGS / "exam" / "tasks" / f"{cell.ability}.gin"


def run(work: Sequence[Job], processes: int, report: Callable[[int, Outcome], None]) -> list[Outcome]:
    """Make all runs, `processes` of them at a time; results that are there already are taken.

    Args:
      work: the runs.
      processes: how many run at the same time.
      report: is called with the number of finished runs and each outcome.
    """
    outcomes: list[Outcome] = []
    with _pool(processes) as pool:
        waiting = [pool.submit(play, job) for job in work]
        for done in concurrent.futures.as_completed(waiting):
            outcomes.append(done.result())
            report(len(outcomes), outcomes[-1])
    return outcomes


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Open worker processes; at an interrupt, runs that have not begun are dropped."""
    context = multiprocessing.get_context("spawn")
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the libraries of the workers when they start
    pool = concurrent.futures.ProcessPoolExecutor(processes, mp_context=context)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        os.environ.pop("OMP_NUM_THREADS", None)
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def play(job: Job) -> Outcome:
    """Train one run, or take its result if its configuration is still the same; errors become outcomes."""
    began = time.process_time()
    try:
        with config.alone(), torch.random.fork_rng(devices=[]):
            identity = _identity(job)
            if (known := _known(job, identity)) is not None:
                return Outcome(job, known)
            shutil.rmtree(job.folder, ignore_errors=True)  # of another configuration, or stopped before its end
            request = TrainRequest(
                list(job.files), [], dict(job.knobs), job.folder, job.seed, runtime="serial", quiet=True, alone=False
            )
            if code := train_command.train(request):
                return Outcome(job, problem=f"it was stopped, with exit code {code}")
        return _finish(job, identity, time.process_time() - began)
    except (ConfigError, EnvSetupError) as error:
        return Outcome(job, problem=one_line(str(error)), applies=False)
    except Error as error:
        return Outcome(job, problem=one_line(str(error)))
    except (RuntimeError, ValueError, TypeError, ArithmeticError, OSError) as error:
        return Outcome(job, problem=one_line(f"{type(error).__name__}: {error}"))


def _identity(job: Job) -> str:
    """Return the hash of a run's configuration, its length included."""
    loaded = config.load(list(job.files), [], dict(job.knobs), False, job.seed)
    config.build(loaded)
    return f"{loaded.hash()} {loaded.values.get('Run.total_steps')} {loaded.values.get('Runner.n_epochs')}"


def _known(job: Job, identity: str) -> float | None:
    """Return the value of a finished run with this configuration; None if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, RunFolderError):
        found = json.loads(files.read_inside(job.folder, RESULT, most=10_000))
        if found["identity"] == identity:
            return float(found["value"])
    return None


def _finish(job: Job, identity: str, secs: float) -> Outcome:
    """Read the value of a run that has just ended, and leave it in its folder; checkpoints are deleted."""
    value = value_in(read_metrics(job.folder), ABILITIES[job.cell.ability])
    if value is None:
        return Outcome(job, secs=secs, problem="it has no evaluation")
    for name in ("checkpoints", "replay"):
        files.remove_inside(job.folder, name)
    result = {"identity": identity, "value": value, "secs": round(secs, 2)}
    files.write_inside(job.folder, RESULT, (json.dumps(result) + "\n").encode())
    return Outcome(job, value, secs)


def scores(outcomes: Sequence[Outcome], cells: Sequence[Cell]) -> dict[Cell, dict[int, float]]:
    """Return the normalised score of every run that has one, by cell and seed, in the order of the cells."""
    found: dict[Cell, dict[int, float]] = {cell: {} for cell in cells}
    for outcome in outcomes:
        if outcome.value is not None:
            cell = outcome.job.cell
            found[cell][outcome.job.seed] = ABILITIES[cell.ability].score(outcome.value)
    return found
