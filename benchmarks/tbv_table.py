"""Measure and tabulate exploration methods for "Trust, but verify": one cell a process, one JSON file a cell.

python benchmarks/tbv_table.py run --out cells --jobs 16 --cell-seconds 90 --total-seconds 480
python benchmarks/tbv_table.py run --out cells --envs hanoi7 --methods frontier,all --seeds 0-9
python benchmarks/tbv_table.py cell hanoi7 tbv 3 --out cells --cell-seconds 300
python benchmarks/tbv_table.py render cells

A cell is (environment, method, seed). It trains until an episode has been solved, and writes OUT/ENV-METHOD-SEED.json.
Methods that search in a learned model share the random data and the pre-trained model of their seed: OUT/ENV-pre-SEED.
A cell that reaches its time or step limit first is reported as "> N steps", N its environment steps so far. All
environment steps count, random data included; the planner's own steps stand in a column of their own.
`run` skips cells whose JSON exists, goes through the seeds one after the other, and stops starting cells at
--total-seconds. `render` prints one Markdown table an environment, and names the methods that were not run.
"""

import argparse
import datetime
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from packtrain.studies.results import data_of, write_data

ROOT = Path(__file__).resolve().parent.parent

# Environment → (title, name in the configurations, flags, distance from the start to the goal).
ENVS = {
    "hanoi7": ("Tower of Hanoi, 7 disks", "hanoi", ("--disks", "7"), 127),
    "hanoi8": ("Tower of Hanoi, 8 disks", "hanoi", ("--disks", "8"), 255),
    "hanoi9": ("Tower of Hanoi, 9 disks", "hanoi", ("--disks", "9"), 511),
    "toy_mr": ("Toy Montezuma's Revenge, `pyramid_24`", "toy_mr", (), 232),
    "one_room": ("Toy Montezuma's Revenge, `one_room`", "toy_mr", ("--map", "one_room"), 17),
    "hall_way": ("Toy Montezuma's Revenge, `hall_way`", "toy_mr", ("--map", "hall_way"), 47),
    "four_rooms": ("Toy Montezuma's Revenge, `four_rooms`", "toy_mr", ("--map", "four_rooms"), 128),
}

_MEMORY = ("--verified_edges", "run")
_ALL = (*_MEMORY, "--plan_to_verify", "True", "--rejection_probability", "0.0")
_WIDE = ("--n_nodes_per_step", "300", "--expand_heuristic", "neg_distance")
_UNTRAINED = ("--n_model_precollect_episodes", "0", "--n_model_pretrain_epochs", "0")
_UNTRAINED += ("--n_precollect_epochs", "100000", "--n_epochs", "0")
_ROUNDED = ("--config", "LearnedModel.factored=False")
_FACTORED = ("--config", "Runner.model_network_class=@FactoredWorldModel")
_FACTORED += ("--config", "FactoredWorldModel.ensemble=@EnsembleMlp()")

# Method → (what the table calls it, configuration, flags, where its beginning comes from: pre-trained, or its own).
METHODS = {
    "frontier": ("tabular frontier search, no model", "frontier", (), None),
    "plain": ("plain: trusts its model", "bfs", (), "pre"),
    "epsilon": ("random actions (ε)", "bfs_epsilon", (), "pre"),
    "tbv": ("the paper's TBV", "bfs_tbv", (), "pre"),
    "plain_rounded": ("plain, coordinates rounded one by one as published", "bfs", _ROUNDED, "pre"),
    "tbv_rounded": ("the paper's TBV, coordinates rounded one by one as published", "bfs_tbv", _ROUNDED, "pre"),
    "episode": ("TBV + memory of the episode", "bfs_tbv", ("--verified_edges", "episode"), "pre"),
    "run": ("TBV + memory of the run", "bfs_tbv", _MEMORY, "pre"),
    "reject0": ("TBV, rejection probability 0", "bfs_tbv", ("--rejection_probability", "0.0"), "pre"),
    "noise": ("TBV + decaying trust", "bfs_tbv", ("--noise_quantile", "0.9"), "pre"),
    "goto": (
        "TBV + planning to verify (with the memory of the episode, which it needs)",
        "bfs_tbv",
        ("--plan_to_verify", "True", "--verified_edges", "episode"),
        "pre",
    ),
    "wide": ("TBV + 300 expansions, nearest first", "bfs_tbv", _WIDE, "pre"),
    "factored": ("TBV + factored model", "bfs_tbv", _FACTORED, None),
    "all": ("all: memory of the run, planning to verify, rejection 0", "bfs_tbv", _ALL, "pre"),
    "all_wide": ("all, 300 expansions, nearest first", "bfs_tbv", (*_ALL, *_WIDE), "pre"),
    "all_untrained": ("all, model untrained, no random data", "bfs_tbv", (*_ALL, *_UNTRAINED), None),
    "all_wide_untrained": (
        "all, 300 expansions, nearest first, model untrained, no random data",
        "bfs_tbv",
        (*_ALL, *_WIDE, *_UNTRAINED),
        None,
    ),
}

# Sizes of the model, its random data and its pre-training.
MODELS = {
    "small": (
        *("--n_model_precollect_episodes", "320", "--n_model_pretrain_epochs", "20"),
        *("--model_hidden_sizes", "(128, 128)", "--model_batch_size", "256"),
    ),
    "published": (),
}


def config_name(method: str, env: str) -> str:
    """The shipped configuration of a method."""
    family, _, kind = METHODS[method][1].partition("_")
    return f"tbv/{family}_{ENVS[env][1]}" + (f"_{kind}" if kind else "")


def train(arguments: list[str], log: Path, seconds: float) -> tuple[int, bool]:
    """Run `packtrain train` of this checkout; the exit code, and whether the time limit ended it."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "packtrain", "train", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            return process.wait(None if seconds == math.inf else max(1.0, seconds)), False
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # it saves, then leaves
        try:
            return process.wait(60), True
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(), True


def versions() -> dict[str, str]:
    """The machine and the libraries that a number depends on."""
    found = {"python": platform.python_version(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    for name in ("torch", "numpy", "numba"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    found["date"] = datetime.date.today().isoformat()
    return found


def pretrained(env: str, seed: int, options: argparse.Namespace) -> Path:
    """The folder with the random data and the pre-trained model of a seed."""
    return options.out / f"{env}-pre-{seed}"


def pretrain(env: str, seed: int, options: argparse.Namespace, seconds: float) -> bool:
    """Collect random data and train the model of a seed; whether it is there."""
    folder = pretrained(env, seed, options)
    done = folder / "done"
    if done.exists():
        return True
    shutil.rmtree(folder, ignore_errors=True)
    arguments = [config_name("plain", env), *ENVS[env][2], *MODELS[options.model], "--seed", str(seed)]
    arguments += ["--n_epochs", "0", "--n_precollect_epochs", "0", "--device", options.device]
    begin = time.monotonic()
    code, late = train([*arguments, "--output_dir", str(folder)], options.out / f"{folder.name}.log", seconds)
    if code == 0 and not late:
        done.write_text(f"{time.monotonic() - begin:.1f}\n")
    return done.exists()


def measure(env: str, method: str, seed: int, options: argparse.Namespace) -> dict:
    """Run one cell and write its JSON."""
    title, _, flags, beginning = METHODS[method]
    name = f"{env}-{method}-{seed}"
    folder = options.out / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    arguments = [config_name(method, env), *ENVS[env][2]]
    if method != "frontier":
        arguments += MODELS[options.model]
    arguments += [*flags, "--seed", str(seed), "--until_solved", "True", "--total_steps", str(options.total_steps)]
    begin, code, late = time.monotonic(), 0, False
    if beginning == "pre":
        if not pretrain(env, seed, options, math.inf):
            raise SystemExit(f"tbv_table: pre-training failed; see {pretrained(env, seed, options)}.log")
        arguments += ["--start_from", str(pretrained(env, seed, options))]
        begin = time.monotonic()
    device = [] if method == "frontier" else ["--device", options.device]
    code, late = train(
        [*arguments, *device, "--output_dir", str(folder)], folder.parent / f"{name}.log", options.cell_seconds
    )
    rows = []
    if (folder / "metrics.jsonl").exists():
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = next((row for row in reversed(rows) if row["kind"] == "train"), {})
    solved = last.get("first_solved_step")
    found = {
        "env": env,
        "method": method,
        "seed": seed,
        "model": None if method == "frontier" else options.model,
        "command": " ".join(arguments),
        "device": options.device,
        "solved": solved is not None,
        "steps": last.get("env_steps", 0) if solved is None else solved,
        "planner_steps": last.get("first_solved_step_without_random", last.get("env_steps_without_random", 0)),
        "distance": 0 if solved is not None else last.get("graph/min_distance_to_goal_in_history"),
        "ended": "solved" if solved is not None else "time limit" if late else "failed" if code else "step limit",
        "cell_seconds": options.cell_seconds,
        "total_steps": options.total_steps,
        "seconds": round(time.monotonic() - begin, 1),
        **versions(),
    }
    if found["ended"] == "failed":
        print(f"{name} failed, see {folder.parent / name}.log", file=sys.stderr)
        return found
    (options.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def run(options: argparse.Namespace) -> None:
    """Run all missing cells in `jobs` processes, pre-training first where a cell needs it."""
    begin = time.monotonic()
    cells = [(env, method, seed) for seed in options.seeds for env in options.envs for method in options.methods]
    cells = [cell for cell in cells if not (options.out / "{}-{}-{}.json".format(*cell)).exists()]
    needed = {(env, seed) for env, method, seed in cells if METHODS[method][3] == "pre"}
    ready = {one for one in needed if (pretrained(*one, options) / "done").exists()}
    refused: set[tuple[str, int]] = set()
    own = [str(Path(__file__).resolve())]
    limits = ["--out", str(options.out), "--cell-seconds", str(options.cell_seconds), "--model", options.model]
    limits += ["--total-steps", str(options.total_steps), "--device", options.device, *["--keep"] * options.keep]
    waiting = list(cells)
    under_way: dict[subprocess.Popen, tuple] = {}

    def left() -> float:
        return options.total_seconds - (time.monotonic() - begin)

    def start(command: list[str], what: tuple) -> None:
        under_way[subprocess.Popen([sys.executable, *own, *command, *limits])] = what

    while under_way or (waiting and left() > 0):
        for process in [process for process in under_way if process.poll() is not None]:
            what = under_way.pop(process)
            print(f"{time.monotonic() - begin:6.0f} s  {'-'.join(map(str, what))}", flush=True)
            if what[1] == "pre":
                (ready if process.returncode == 0 else refused).add((what[0], what[2]))
        starting = {(what[0], what[2]) for what in under_way.values() if what[1] == "pre"}
        for cell in list(waiting):
            if len(under_way) >= options.jobs or left() <= 0:
                break
            env, method, seed = cell
            one = (env, seed)
            if METHODS[method][3] != "pre" or one in ready:
                limits[3] = str(min(options.cell_seconds, max(1.0, left())))
                start(["cell", env, method, str(seed)], cell)
                waiting.remove(cell)
            elif one in refused:
                waiting.remove(cell)
            elif one not in starting:
                starting.add(one)
                limits[3] = str(left())
                start(["pretrain", env, str(seed)], (env, "pre", seed))
        time.sleep(0.2)
    print(f"{len(waiting)} cells not run", flush=True)


def shown(cells: list[dict], name: str) -> str:
    """The steps of a method's seeds: each if they are few, else median and range; ">" where a limit came first."""

    def amount(cell: dict) -> str:
        return f"{'' if cell['solved'] else '> '}{cell[name] / 1e3:,.1f} K"

    cells = sorted(cells, key=lambda cell: (not cell["solved"], cell[name]))
    if len(cells) <= 3:
        return ", ".join(amount(cell) for cell in cells)
    solved = [cell for cell in cells if cell["solved"]]
    if len(solved) == len(cells):
        middle = f"{statistics.median(cell[name] for cell in cells) / 1e3:,.1f} K"
    else:
        middle = amount(cells[len(cells) // 2])
    return f"{middle} ({amount(cells[0])} – {amount(cells[-1])})"


def load(paths: list[Path]) -> list[dict]:
    """Read cells from folders of JSON files, or from files that --data has written."""
    cells = []
    for path in paths:
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            found = data_of(json.loads(file.read_text()))
            cells += found if isinstance(found, list) else [found]
    return cells


def render(options: argparse.Namespace) -> None:
    """Print a table for every environment with cells; those that were cut before the planner played are left out."""
    cells = [cell for cell in load(options.paths) if cell["solved"] or cell["planner_steps"]]
    if options.data:
        write_data(options.data, "[\n" + ",\n".join(json.dumps(cell) for cell in cells) + "\n]\n")
    for env, (title, _, _, start) in ENVS.items():
        mine = [cell for cell in cells if cell["env"] == env]
        if not mine:
            continue
        print(f"### {title} (goal {start} steps from the start)\n")
        print("| method | seeds | solved | environment steps, all | planner steps | distance to the goal |")
        print("| --- | --- | --- | --- | --- | --- |")
        missing = []
        for method, (name, *_) in METHODS.items():
            own = [cell for cell in mine if cell["method"] == method]
            if not own:
                missing.append(name)
                continue
            far = [str(cell["distance"]) for cell in own if not cell["solved"]]
            solved = sum(cell["solved"] for cell in own)
            print(
                f"| {name} | {len(own)} | {solved} of {len(own)} | {shown(own, 'steps')} | "
                f"{shown(own, 'planner_steps')} | {', '.join(far) or '0'} |"
            )
        print(f"\nNot run: {'; '.join(missing)}.\n" if missing else "")
    machines = {
        tuple(sorted((k, str(cell[k])) for k in ("python", "torch", "numba", "machine", "date"))) for cell in cells
    }
    for machine in sorted(machines):
        print("; ".join(f"{name} {value}" for name, value in machine))


def numbers(text: str) -> list[int]:
    """'0-9' or '0,3,5' as a list."""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(part) for part in text.split(",")]


def names(known: dict) -> object:
    """A parser of comma-separated names that are known."""

    def parse(text: str) -> list[str]:
        wanted = text.split(",")
        for name in wanted:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return wanted

    return parse


def main() -> None:
    """Run cells, or print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "cell", "pretrain"):
        command = commands.add_parser(name)
        command.add_argument("--out", type=lambda text: Path(text).resolve(), default=Path("tbv_cells").resolve())
        command.add_argument("--cell-seconds", type=float, default=300.0, help="wall-clock limit of one process")
        command.add_argument("--total-steps", type=int, default=3_000_000, help="environment steps of a cell at most")
        command.add_argument("--model", choices=tuple(MODELS), default="small", help="sizes of model and random data")
        command.add_argument("--device", default="cpu", help="where models are trained")
        command.add_argument("--keep", action="store_true", help="keep the run folders of cells")
        if name == "run":
            command.add_argument("--envs", type=names(ENVS), default=["hanoi7", "hanoi8", "hanoi9", "toy_mr"])
            command.add_argument("--methods", type=names(METHODS), default=list(METHODS))
            command.add_argument("--seeds", type=numbers, default=[0, 1, 2], help="0-9, or 0,3,5")
            command.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
            command.add_argument("--total-seconds", type=float, default=math.inf, help="wall-clock limit of all")
        else:
            command.add_argument("env", choices=tuple(ENVS))
            if name == "cell":
                command.add_argument("method", choices=tuple(METHODS))
            command.add_argument("seed", type=int)
    command = commands.add_parser("render")
    command.add_argument("paths", type=Path, nargs="+", help="folders of JSON files, or files that --data has written")
    command.add_argument("--data", type=Path, help="write all cells to this file")
    options = parser.parse_args()
    if options.command == "render":
        render(options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command == "run":
        run(options)
    elif options.command == "pretrain":
        raise SystemExit(0 if pretrain(options.env, options.seed, options, options.cell_seconds) else 1)
    else:
        found = measure(options.env, options.method, options.seed, options)
        print(f"{found['env']} {found['method']} {found['seed']}: {found['ended']} at {found['steps']:,} steps")


if __name__ == "__main__":
    main()
