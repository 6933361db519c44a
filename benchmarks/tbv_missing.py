"""Run the cells that the tables of docs/results/tbv.md lack, in order of value, within a time limit.

python benchmarks/tbv_missing.py --jobs 11 --seconds 320 --device cuda --out cells
python benchmarks/tbv_missing.py --jobs 1 --seconds 5000 --out cells --only small_maps,pyramid
python benchmarks/tbv_missing.py merge cells --into docs/results

A cell is one process of benchmarks/tbv_table.py (environment, method, seed), or one of benchmarks/tbv_controls.py
(a variant with all its seeds). When its process ends, its result is appended to OUT/tbv_cells.jsonl or
OUT/tbv_controls.jsonl, so a run that is killed loses only the cells under way. Cells that docs/results or OUT already
hold are skipped. Run folders and pre-trained models are under --work. Only the ablations use --device: their networks
are larger.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packtrain.studies.results import data_of, write_data

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
SAVING = 15.0  # seconds that a process needs to save and leave after its limit
SHORTEST = 20.0  # seconds: nothing starts that has less


@dataclass(frozen=True)
class Task:
    """One process: a cell, or the pre-training that several cells start from."""

    name: str
    command: tuple[str, ...]  # script and its arguments; {seconds} is the time limit
    needs: tuple[str, ...] = ()  # names of tasks that must have finished
    seconds: float = 1e9  # wall-clock limit


def table_tasks(env: str, methods: tuple[str, ...], seeds: tuple[int, ...], seconds: float = 1e9) -> list[Task]:
    """Cells of benchmarks/tbv_table.py and the pre-training that they need."""
    tasks = []
    limits = ("--cell-seconds", "{seconds}", "--out", "{work}/cells")
    for seed in seeds:
        pre = f"{env}-pre-{seed}"
        for method in methods:
            own = method == "factored" or method.endswith("untrained") or method == "frontier"
            if not own and pre not in [task.name for task in tasks]:
                tasks.append(Task(pre, ("tbv_table.py", "pretrain", env, str(seed), *limits)))
            name = f"{env}-{method}-{seed}"
            command = ("tbv_table.py", "cell", env, method, str(seed), *limits)
            tasks.append(Task(name, command, () if own else (pre,), seconds))
    return tasks


def control_tasks(variants: tuple[str, ...], first: int, seeds: int) -> list[Task]:
    """Ablations of benchmarks/tbv_controls.py at small size, all seeds of a variant in one process."""
    tasks: list[Task] = []
    common = ("--folder", "{work}/controls", "--joined", "--budget", "{seconds}", "--device", "{device}")
    for variant in variants:
        kind = "no_decay" if variant == "no_decay" else "small_memory" if variant.endswith("small_memory") else "plain"
        needs: tuple[str, ...] = ()
        if variant != "perfect":
            needs = tuple(f"control-pre-{kind}-{index}" for index in range(seeds))
        for index, pre in enumerate(needs):
            if pre not in [task.name for task in tasks]:
                command = ("tbv_controls.py", "pretrain", "--only", variant, *common, "--pretrain_index", str(index))
                tasks.append(Task(pre, (*command, "--first_seed", str(first), "--seeds", str(seeds))))
        command = ("tbv_controls.py", "run", "--only", variant, *common, "--rows", "{out}/tbv_controls.jsonl")
        command += ("--first_seed", str(first), "--seeds", str(seeds))
        tasks.append(Task(f"control-{variant}", command, needs))
    return tasks


# Group → its tasks. Without --only the groups run in the order of DEFAULT.
GROUPS: dict[str, Callable[[], list[Task]]] = {
    "hanoi9": lambda: (
        table_tasks("hanoi9", ("all",), (0, 1, 2))
        + table_tasks("hanoi9", ("all_untrained",), (0,))
        + table_tasks("hanoi9", ("tbv",), (0, 1), 120)
    ),
    "hanoi9_more": lambda: table_tasks("hanoi9", ("run",), (0,)) + table_tasks("hanoi9", ("tbv",), (2,), 120),
    "controls": lambda: control_tasks(
        (
            *("plain", "rounded", "no_tuning", "rounded_no_tuning", "epsilon", "rounded_epsilon", "verifies"),
            *("perfect", "all_members", "no_penalty", "rounded_heap"),
            *("small_memory", "rounded_small_memory", "no_decay"),
        ),
        1,
        2,
    ),
    "hanoi8": lambda: table_tasks("hanoi8", ("all", "run", "all_untrained", "all_wide"), (1, 2)),
    "hanoi8_more": lambda: (
        table_tasks("hanoi8", ("tbv",), (1, 2), 145)
        + table_tasks("hanoi8", ("all", "run", "all_untrained", "all_wide"), (0, 3, 4))
    ),
    "small_maps": lambda: [
        task
        for seed in (0, 1, 2)
        for env in ("one_room", "hall_way", "four_rooms")
        for task in table_tasks(env, ("all", "all_untrained", "run", "tbv", "plain"), (seed,), 120)
    ],
    "pyramid": lambda: table_tasks("toy_mr", ("all_wide_untrained", "all_untrained"), (0, 1, 2)),
}
DEFAULT = ("hanoi9", "controls", "hanoi8", "hanoi9_more", "hanoi8_more")


def known_cells(*folders: Path) -> set[str]:
    """Names of the cells that result files hold; cut table cells of less than two minutes do not count."""
    names = set()
    for folder in folders:
        for file in (folder / "tbv_cells.json", folder / "tbv_cells.jsonl"):
            for cell in read_rows(file):
                if cell["solved"] or cell["seconds"] >= 120 or cell["env"] in ("one_room", "hall_way", "four_rooms"):
                    names.add("{env}-{method}-{seed}".format(**cell))
        for row in read_rows(folder / "tbv_controls.jsonl"):
            names.add(f"control-{row['variant']}")
    return names


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read a JSON list, or one JSON object per line; an absent file has none."""
    if not file.exists():
        return []
    if file.suffix == ".json":
        return data_of(json.loads(file.read_text()))
    return [json.loads(line) for line in file.read_text().splitlines()]


class Queue:
    """Run tasks in order, as many at once as there are jobs, until the time is over."""

    def __init__(self, options: argparse.Namespace):
        self._options, self._end = options, time.monotonic() + options.seconds
        self._begin = time.monotonic()
        self._done: set[str] = set()
        self._failed: set[str] = set()
        self._again: set[str] = set()  # tasks that failed once
        self._waiting: list[Task] = []
        self._under_way: dict[subprocess.Popen[bytes], Task] = {}

    def run(self, tasks: list[Task]) -> list[Task]:
        """Run tasks, and return those that were not run."""
        self._waiting = waiting = list(tasks)
        while True:
            self._collect()
            for task in list(waiting):
                if self._failed.intersection(task.needs):
                    waiting.remove(task)
                    self._failed.add(task.name)
                elif len(self._under_way) < self._options.jobs and self._left() > SHORTEST:
                    if self._done.issuperset(task.needs):
                        waiting.remove(task)
                        self._start(task)
            if not self._under_way and (not waiting or self._left() <= SHORTEST):
                return waiting
            time.sleep(0.2)

    def _left(self) -> float:
        return self._end - time.monotonic() - SAVING

    def _start(self, task: Task) -> None:
        options = self._options
        seconds = min(task.seconds, self._left())
        values = {"seconds": f"{seconds:.0f}", "work": options.work, "out": options.out, "device": options.device}
        script, *arguments = [part.format(**values) for part in task.command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        path = [str(ROOT), *environment.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
        with (options.work / f"{task.name}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "benchmarks" / script), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self._under_way[process] = task

    def _collect(self) -> None:
        for process in [process for process in self._under_way if process.poll() is not None]:
            task = self._under_way.pop(process)
            if process.returncode and task.name not in self._again and self._left() > SHORTEST:
                self._again.add(task.name)  # a GPU that could not be opened, say
                self._waiting.append(task)
            else:
                (self._done if process.returncode == 0 else self._failed).add(task.name)
            cell = self._options.work / "cells" / f"{task.name}.json"
            if cell.exists():
                with (self._options.out / "tbv_cells.jsonl").open("a") as file:
                    file.write(json.dumps(json.loads(cell.read_text())) + "\n")
            lines = (self._options.work / f"{task.name}.log").read_text().splitlines() or [""]
            what = f"{time.monotonic() - self._begin:6.0f} s  {task.name}: exit {process.returncode}  {lines[-1][:150]}"
            print(what, flush=True)


def run(options: argparse.Namespace) -> None:
    """Run the missing cells of the chosen groups."""
    options.out, options.work = options.out.resolve(), options.work.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    known = known_cells(RESULTS, options.out)
    tasks: dict[str, Task] = {}
    for group in options.only:
        for task in GROUPS[group]():
            if task.name not in known:
                tasks.setdefault(task.name, task)
    needed = {name for task in tasks.values() for name in task.needs}
    chosen = [task for task in tasks.values() if "-pre" not in task.name or task.name in needed]
    left = Queue(options).run(chosen)
    print(f"not run: {', '.join(task.name for task in left) or 'nothing'}", flush=True)


def merge(options: argparse.Namespace) -> None:
    """Add the cells of result folders to tbv_cells.json; a longer or solved cell replaces a shorter one."""
    target = options.into / "tbv_cells.json"
    cells = {(c["env"], c["method"], c["seed"], c["model"]): c for c in read_rows(target)}
    for folder in options.folders:
        for cell in read_rows(folder / "tbv_cells.jsonl"):
            if not cell["solved"] and not cell["planner_steps"]:
                continue  # cut before the planner played
            key = (cell["env"], cell["method"], cell["seed"], cell["model"])
            old = cells.get(key)
            if old is None or (not old["solved"] and (cell["solved"] or cell["steps"] > old["steps"])):
                cells[key] = cell
    write_data(target, "[\n" + ",\n".join(json.dumps(cell) for cell in cells.values()) + "\n]\n")
    controls = options.into / "tbv_controls.json"
    content = json.loads(controls.read_text())
    for folder in options.folders:
        for row in read_rows(folder / "tbv_controls.jsonl"):
            seeds = content["variants"].setdefault(row.pop("variant"), {})
            seeds.setdefault(str(row.pop("seed")), row)
    controls.write_text(json.dumps(content) + "\n")


def main() -> None:
    """Run the missing cells, or merge their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if sys.argv[1:2] == ["merge"]:
        parser.add_argument("merge", choices=("merge",))
        parser.add_argument("folders", type=Path, nargs="+", help="folders that runs have written")
        parser.add_argument("--into", type=Path, default=RESULTS, help="folder of the result files")
        merge(parser.parse_args())
        return
    parser.add_argument("--out", type=Path, required=True, help="where results are appended")
    parser.add_argument("--work", type=Path, default=Path("/tmp/tbv_missing"), help="run folders and logs")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--seconds", type=float, default=320.0, help="wall-clock limit of all, saving included")
    parser.add_argument("--device", default="cpu", help="device of the ablations")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(DEFAULT), help=", ".join(GROUPS))
    options = parser.parse_args()
    unknown = [name for name in options.only if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}; groups: {', '.join(GROUPS)}")
    run(options)


if __name__ == "__main__":
    main()
