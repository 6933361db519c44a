"""Plot and tabulate the distance to the goal against all environment steps, random data included.

packtrain train tbv/bfs_hanoi --n_epochs 0 --n_precollect_epochs 0 --num_seeds 5 --output_dir runs/pretrained
packtrain train tbv/bfs_hanoi_tbv --num_seeds 5 --start_from runs/pretrained --output_dir runs/tbv
python benchmarks/distances.py TBV=runs/tbv plain=runs/plain --until 1.5e6 --picture docs/images/tbv.svg --data tbv.json

With --planner-steps the steps of random data are left out. A run is LABEL=FOLDER, or LABEL=FOLDER,FOLDER where its
seeds lie in several, or LABEL=FILE.json to draw again what --data has written. A seed that has solved its task stays at
0; one that ended otherwise is drawn as far as it went, and the mean with it.
"""

import argparse
import json
import statistics
from pathlib import Path

from packtrain.metrics.reading import read_metrics, seed_folders
from packtrain.studies.chart import Curve, line_chart
from packtrain.studies.results import write_data
from packtrain.studies.statistics import mean_interval

DISTANCE = "graph/min_distance_to_goal_in_history"


def read(folder: Path, planner_steps: bool) -> dict:
    """One seed: the steps at which its distance was written, the distances, when it was first solved, what it cost."""
    suffix = "_without_random" if planner_steps else ""
    rows = [row for row in read_metrics(folder) if row["kind"] == "train" and row.get("env_steps_without_random")]
    steps = [row[f"env_steps{suffix}"] for row in rows]
    distances = [row[DISTANCE] for row in rows]
    solved = rows[-1].get(f"first_solved_step{suffix}")
    return {
        "steps": steps,
        "distances": distances,
        "solved": solved,
        "wall_s": rows[-1]["wall_s"],
        "rss_mb": max(row["rss_mb"] for row in rows),
    }


def at(seed: dict, step: float, start: float) -> float | None:
    """The distance a seed had come to by a step; None if it did not get that far."""
    if seed["solved"] is not None and step >= seed["solved"]:
        return 0.0
    known = [d for s, d in zip(seed["steps"], seed["distances"], strict=True) if s <= step]
    if step > seed["steps"][-1] and seed["solved"] is None:
        return None
    return float(known[-1]) if known else start


def main() -> None:
    """Read, average over seeds, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER[,FOLDER]")
    parser.add_argument("--start", type=float, default=127.0, help="distance at the start (default: 127, of 7 disks)")
    parser.add_argument("--planner-steps", action="store_true", help="leave out the steps of random data")
    parser.add_argument("--until", type=float, default=1.5e6, help="steps")
    parser.add_argument("--points", type=int, default=120, help="of a curve")
    parser.add_argument("--marks", type=float, nargs="*", default=[1e5, 4e5, 9e5, 1.5e6], help="steps in the table")
    parser.add_argument("--title", default="")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    grid = [arguments.until * i / arguments.points for i in range(arguments.points + 1)]
    curves, data = [], {}
    marks = " | ".join(f"{mark / 1e6:g} M" for mark in arguments.marks)
    print(f"| | seeds | {marks} | solved | median | last |\n|{' --- |' * (len(arguments.marks) + 5)}")
    for run in arguments.runs:
        label, _, folders = run.partition("=")
        if folders.endswith(".json"):  # what --data has written; its steps are what they were then
            seeds = json.loads(Path(folders).read_text())["runs"][label]
        else:
            found = [seed for folder in folders.split(",") for seed in seed_folders(Path(folder))]
            seeds = [read(seed, arguments.planner_steps) for seed in found]
        data[label] = seeds
        points = []
        for step in grid:
            values = [at(seed, step, arguments.start) for seed in seeds]
            if None in values:
                break
            points.append((step, *mean_interval([float(v) for v in values if v is not None])))
        steps, means, lows, highs = (list(column) for column in zip(*points, strict=True))
        lows = [max(0.0, low) for low in lows]
        curves.append(Curve(f"{label}, {len(seeds)} seeds", steps, means, lows, highs))
        cells = []
        for mark in arguments.marks:
            values = [at(seed, mark, arguments.start) for seed in seeds]
            known = [v for v in values if v is not None]
            cells.append(f"{statistics.fmean(known):.1f}" if len(known) == len(values) else "–")
        solved = sorted(seed["solved"] for seed in seeds if seed["solved"] is not None)
        everyone = len(solved) == len(seeds)  # otherwise the time of the last is unknown
        middle = f"{statistics.median(solved) / 1e3:,.0f} K" if everyone else "–"
        last = f"{solved[-1] / 1e3:,.0f} K" if everyone else "–"
        print(f"| {label} | {len(seeds)} | {' | '.join(cells)} | {len(solved)} of {len(seeds)} | {middle} | {last} |")
    if arguments.picture:
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        counted = "planner steps" if arguments.planner_steps else "environment steps, random data included"
        labels = (counted, "distance to the goal, mean and 95 % interval over seeds")
        picture = line_chart(curves, arguments.title, *labels, width=720, height=380, standalone=True)
        arguments.picture.write_text(picture)
    if arguments.data:
        arguments.data.parent.mkdir(parents=True, exist_ok=True)
        write_data(arguments.data, json.dumps({"metric": DISTANCE, "start": arguments.start, "runs": data}) + "\n")


if __name__ == "__main__":
    main()
