"""The record of a sweep, `sweep.json`: what it is, and the state of every run.

A sweep that is started again reads from it which runs are finished. Paths are never taken from the file, which may be
damaged or foreign: they follow from the names of the points.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packtrain import __version__
from packtrain.errors import RunFolderError
from packtrain.files import read_inside, write_inside
from packtrain.metrics.reading import is_run_folder
from packtrain.studies.sweep.points import Point, digest

FILE, SCHEMA = "sweep.json", 1
RUNS, LOGS = "runs", "logs"  # folders of a sweep
WAITING, RUNNING, FINISHED, FAILED, STOPPED, PRUNED = "waiting", "running", "finished", "failed", "stopped", "pruned"
OVER = (FINISHED, FAILED, PRUNED)


@dataclass(eq=False)
class Run:
    """One run of a sweep: a point with one seed."""

    point: Point
    seed: int
    state: str = WAITING
    starts: int = 0  # over all calls of the sweep
    failures: int = 0  # of this call
    exit_code: int | None = None  # of the latest start; negative: the signal that ended it
    seconds: float = 0.0  # of all starts
    job: str = ""  # id of its Slurm job
    trouble: str = ""  # the last line that a failed start printed

    @property
    def name(self) -> str:
        """The run's name in messages."""
        return f"{self.point.name} seed {self.seed}"

    @property
    def place(self) -> str:
        """The run's folder, relative to the folder of runs."""
        return f"{self.point.name}/seed_{self.seed}"

    def fingerprint(self) -> str:
        """Return a digest of its command, which must be unchanged for a finished run to be skipped."""
        return digest(*self.point.words, str(self.seed))


@dataclass
class Record:
    """The folder of a sweep and what is known about its runs."""

    root: Path
    about: dict[str, Any]  # kind, name, configs, varied, seeds, tags, command
    runs: list[Run] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name of the point
    extra: dict[str, Any] = field(default_factory=dict)  # further results, such as those of a suite
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)  # rows of the file, by folder

    def folder(self, run: Run) -> Path:
        """Return a run's folder."""
        return self.root / RUNS / run.place

    def log(self, run: Run) -> Path:
        """Return the file with what a run's processes print."""
        return self.root / LOGS / f"{run.place.replace('/', '-')}.txt"

    def load(self) -> None:
        """Read the file of an earlier call, if there is one; RunFolderError if it is of another sweep or damaged."""
        try:
            found = json.loads(read_inside(self.root, FILE))
            rows = {str(row["folder"]): dict(row) for row in found["runs"]}
            about = dict(found["sweep"])
            schema = int(found["schema"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunFolderError(
                f"{self.root / FILE} cannot be read; delete it, and the same command goes on with the runs"
            ) from error
        if schema > SCHEMA:
            raise RunFolderError(f"{self.root / FILE} was written by a newer version of packtrain")
        for name in ("kind", "name", "configs", "varied_names"):
            before, now = about.get(name), json.loads(json.dumps(self.about.get(name)))
            if before != now:
                raise RunFolderError(
                    f"{self.root} holds another sweep: its {name} is {before!r}, not {now!r}; --fresh starts one "
                    "beside it, or choose another --output_dir"
                )
        self._known = rows

    def add(self, run: Run) -> None:
        """Add a run, with what an earlier call has recorded about it."""
        row = self._known.get(f"{RUNS}/{run.place}", {})
        run.starts = _whole(row.get("starts"))
        run.seconds = float(row["seconds"]) if isinstance(row.get("seconds"), int | float) else 0.0
        run.job = str(row.get("job") or "")
        same = row.get("fingerprint") == run.fingerprint() and is_run_folder(self.folder(run))
        if same and row.get("state") in (FINISHED, PRUNED):
            run.state, run.exit_code = row["state"], row.get("exit_code")
        self.runs.append(run)

    def write(self, state: str) -> None:
        """Write the file, whole; `state` is running, finished, failed or stopped."""
        points = list(dict.fromkeys(run.point.name for run in self.runs))
        settings = {run.point.name: run.point for run in self.runs}
        content = {
            "schema": SCHEMA,
            "packtrain": __version__,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "state": state,
            "sweep": self.about,
            "points": [
                {
                    "name": name,
                    "settings": settings[name].settings,
                    "train": list(settings[name].words),
                    "trial": settings[name].trial,
                    "result": self.results.get(name),
                }
                for name in points
            ],
            "runs": [self._row(run) for run in self.runs],
            **self.extra,
        }
        write_inside(self.root, FILE, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())

    def _row(self, run: Run) -> dict[str, Any]:
        return {
            "point": run.point.name,
            "seed": run.seed,
            "folder": f"{RUNS}/{run.place}",
            "log": str(self.log(run).relative_to(self.root)),
            "state": run.state,
            "starts": run.starts,
            "exit_code": run.exit_code,
            "seconds": round(run.seconds, 1),
            "fingerprint": run.fingerprint(),
            "job": run.job or None,
            "trouble": run.trouble or None,
        }


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else 0
