"""One call of `packtrain sweep`: open its folder, go on with its runs, and write its results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packtrain.cpu_count import available_cores
from packtrain.errors import ConfigError
from packtrain.files import refuse_links
from packtrain.runtime.cluster import whole_runs
from packtrain.runtime.folder import RunFolder
from packtrain.studies.sweep import places, results
from packtrain.studies.sweep.optuna_search import Trials, import_optuna
from packtrain.studies.sweep.places import Nodes, Place, Slurm, ThisMachine
from packtrain.studies.sweep.points import Point, Varied
from packtrain.studies.sweep.record import FAILED, FINISHED, OVER, STOPPED, Record, Run
from packtrain.studies.sweep.schedule import Listed, Scheduler, Source

log = logging.getLogger("packtrain")
PLACES = ("local", "slurm", "cluster")
MOST_QUEUED = 100  # default number of Slurm jobs at a time


@dataclass(frozen=True)
class Where:
    """The place where runs are started, and the resources of each run."""

    on: str = "local"
    jobs: int | None = None  # at a time; None: as many as there are processors for
    cpus: int = 2  # processors of a run
    gpus: int = 0  # GPUs of a run, on Slurm and on a cluster
    devices: tuple[str, ...] = ("cpu",)
    slurm: Mapping[str, str] = field(default_factory=dict)  # parameters of submitit
    address: str | None = None  # of a cluster; None: this machine
    min_nodes: int = 1

    def __post_init__(self) -> None:
        if self.on not in PLACES:
            raise ConfigError(f"--on {self.on!r} is not one of {', '.join(PLACES)}")
        for name in ("jobs", "cpus", "min_nodes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"--{name} {value} must be at least 1")
        if self.gpus < 0:
            raise ConfigError(f"--gpus {self.gpus} must be at least 0")
        if self.slurm and self.on != "slurm":
            raise ConfigError("--slurm needs --on slurm")
        if (self.address is not None or self.min_nodes > 1) and self.on != "cluster":
            raise ConfigError("--address and --min_nodes need --on cluster")
        if self.on != "local" and len(self.devices) > 1:
            raise ConfigError("--device: a list of devices is for --on local; elsewhere each run has its own GPUs")
        if self.on == "cluster" and self.jobs is not None:
            raise ConfigError("--jobs is not for --on cluster, which has as many runs at a time as --cpus allows")

    def at_a_time(self) -> int:
        """Return the number of processes at a time on this machine."""
        return self.jobs or max(1, available_cores() // self.cpus)

    def open(self, root: Path) -> Place:
        """Return the place; an Error if it cannot be used."""
        if self.on == "slurm":
            return Slurm(root, self.jobs or MOST_QUEUED, self.devices[0], self.cpus, self.gpus, self.slurm)
        if self.on == "cluster":
            return Nodes(root, whole_runs.connect(self.address, self.cpus, self.gpus, self.min_nodes), self.devices[0])
        return ThisMachine(self.at_a_time(), self.devices)

    def threads(self) -> int:
        """Return the number of threads of a numerical library in one run."""
        if self.on != "local":
            return self.cpus
        return max(1, min(self.cpus, available_cores() // self.at_a_time()))


@dataclass(frozen=True)
class Search:
    """A search with Optuna."""

    varied: tuple[Varied, ...]
    make_point: Callable[[Mapping[str, str], int], tuple[Point, int | None]]  # see `Trials`
    count: int
    warm_up: float
    seed: int  # of Optuna's random numbers


@dataclass(frozen=True)
class SweepRequest:
    """A `sweep` command line, parsed and checked."""

    root: Path
    about: dict[str, Any]  # kind, name, configs, varied_names, space, tags, command: for sweep.json
    points: Sequence[Point]  # none with a search
    seeds: int  # of each point
    where: Where
    retries: int = 2
    fresh: bool = False
    search: Search | None = None
    finish: Callable[[Record], list[str]] | None = None  # further results for sweep.json, as lines to print


def run_sweep(request: SweepRequest, say: Callable[[str], None]) -> int:
    """Run a sweep to its end, or until it is asked to stop; return the exit code.

    0: all runs are finished (or pruned); 1: some have failed for good; 128 + N: stopped by signal N.
    """
    if request.search is not None:
        import_optuna()
    folder = RunFolder(request.root, fresh=request.fresh)
    folder.check_writable()
    refuse_links(folder.path)
    folder.open()
    try:
        record = Record(folder.shown, {**request.about, "seeds": request.seeds})
        record.load()
        source = _source(request, record)
        noted = _noting(say)
        over = sum(run.state in OVER for run in record.runs)
        if over:
            noted(f"{folder.shown}: going on, {over} of {source.expected()} runs are over")
        if over < source.expected():
            code = _run(request, record, source, noted)
        else:
            code = int(any(run.state == FAILED for run in record.runs))
            results.summarise_all(record)
            record.write(_state(code))
        return _conclude(request, record, code, noted)
    finally:
        folder.close()


def _noting(say: Callable[[str], None]) -> Callable[[str], None]:
    def both(text: str) -> None:
        say(text)
        log.info("%s", text)

    return both


def _source(request: SweepRequest, record: Record) -> Source:
    if request.search is not None:
        found = request.search
        return Trials(record, found.varied, found.make_point, request.seeds, found.seed, found.count, found.warm_up)
    for k in range(request.seeds):  # seed by seed, so that a sweep under way has results of all points
        for point in request.points:
            record.add(Run(point, point.seed + k))
    return Listed(record)


def _run(request: SweepRequest, record: Record, source: Source, say: Callable[[str], None]) -> int:
    where = request.where
    place = where.open(record.root)
    try:
        count, seeds = source.expected(), request.seeds
        at_a_time = f", {where.at_a_time()} at a time" if where.on == "local" else f", on {where.on}"
        what = f"{count} run{'s' * (count != 1)} ({count // seeds} × {seeds} seed{'s' * (seeds != 1)})"
        say(f"{record.root}: {what}{at_a_time}")
        env = places.threads_env(where.threads())
        return Scheduler(record, source, place, request.retries, env, say).run()
    finally:
        place.close()


def _conclude(request: SweepRequest, record: Record, code: int, say: Callable[[str], None]) -> int:
    """Print the table and what has failed, and write the page."""
    page = results.write_page(record)
    lines = request.finish(record) if request.finish is not None else []
    if lines:
        record.write(_state(code))
    say("\n".join(["", results.table(record, ranked=request.about["kind"] in ("random", "optuna")), *lines, ""]))
    if failed := [run for run in record.runs if run.state == FAILED]:
        names = ", ".join(run.name for run in failed[:5]) + f" and {len(failed) - 5} more" * (len(failed) > 5)
        say(f"{len(failed)} run{'s' * (len(failed) != 1)} failed: {names}; the same command tries again")
    if code > 128:
        say(f"stopped: {record.root} is not finished; the same command goes on")
    say(f"{record.root / 'sweep.json'}" + (f"  {page}" if page is not None else ""))
    return code


def _state(code: int) -> str:
    return FINISHED if code == 0 else FAILED if code == 1 else STOPPED
