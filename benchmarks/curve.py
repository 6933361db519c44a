"""The curves shown in the docs: a picture and its data, from run folders.

packtrain train impala/catch --num_seeds 5 --output_dir runs/catch
python benchmarks/curve.py runs/catch --title 'Catch' --picture docs/images/catch.svg --data docs/results/catch.json

With --kind train --metric episode_return it draws what was played while training; with --panels each run has axes of
its own, for games whose returns are of different sizes, and runs joined by commas have them together, under the name of
the folder that the first is in: runs/Hopper/STEVE,runs/Hopper/SAC.
"""

import argparse
import json
from pathlib import Path

from packtrain.metrics.reading import read_metrics, seed_folders, series
from packtrain.studies.chart import Curve, line_chart
from packtrain.studies.statistics import align, mean_interval


def in_two_columns(charts: list[str], width: int = 420, height: int = 274) -> str:
    """Standalone charts of one size as one picture."""
    moved = [
        f'<g transform="translate({i % 2 * width} {i // 2 * height})">{chart}</g>' for i, chart in enumerate(charts)
    ]
    size = f'width="{2 * width}" height="{(len(charts) + 1) // 2 * height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(moved)}</svg>'


def curve(name: str, seeds: list[tuple[list[int], list[float]]]) -> Curve:
    """The mean over seeds and its 95 % interval."""
    steps, columns = align(seeds)
    means, lows, highs = zip(*[mean_interval(values) for values in zip(*columns, strict=True)], strict=True)
    label = f"{name}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return Curve(label, list(steps), list(means), list(lows), list(highs))


def main() -> None:
    """Read, average over seeds, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--kind", default="eval")
    parser.add_argument("--metric", default="return_mean")
    parser.add_argument("--label", default="return of greedy episodes", help="of the vertical axis")
    parser.add_argument("--title", default="")
    parser.add_argument("--panels", action="store_true", help="a chart for each run, or runs joined by commas")
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    groups = [[Path(run) for run in group.split(",")] for group in arguments.runs]
    found = {
        run: [series(read_metrics(seed), arguments.kind, arguments.metric) for seed in seed_folders(run)]
        for group in groups
        for run in group
    }
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    if arguments.panels:
        charts = []
        for group in groups:
            curves = [curve(run.name, found[run]) for run in group]
            title = curves[0].name if len(group) == 1 else group[0].parent.name
            charts.append(line_chart(curves, title, "steps", arguments.label, width=396, height=250, standalone=True))
        picture = in_two_columns(charts)
    else:
        curves = [curve(run.name, seeds) for run, seeds in found.items()]
        picture = line_chart(curves, arguments.title, "steps", arguments.label, width=720, height=360, standalone=True)
    arguments.picture.write_text(picture)
    data = {
        run.name if len(group) == 1 else f"{run.parent.name}, {run.name}": [
            {"step": steps, "value": values} for steps, values in found[run]
        ]
        for group in groups
        for run in group
    }
    arguments.data.parent.mkdir(parents=True, exist_ok=True)
    arguments.data.write_text(json.dumps({"kind": arguments.kind, "metric": arguments.metric, "runs": data}) + "\n")


if __name__ == "__main__":
    main()
