"""The curves shown in the docs: a picture and its data, from run folders.

packtrain train impala/catch --num_seeds 5 --output_dir runs/catch
python benchmarks/curve.py runs/catch --title 'Catch' --picture docs/images/catch.svg --data docs/results/catch.json

With --kind train --metric episode_return it draws what was played while training, and with --window 5000 each point is
the mean of the rows of the 5,000 steps before it. With --panels each run has axes of its own, for games whose returns
are of different sizes, and runs joined by commas have them together, under the name of the folder that the first is in:
runs/Hopper/STEVE,runs/Hopper/SAC. Without runs, the picture is drawn again from --data, all of it or some --names.
"""

import argparse
import json
from pathlib import Path

from packtrain.metrics.reading import read_metrics, seed_folders, series
from packtrain.studies.chart import Curve, line_chart
from packtrain.studies.results import write_data
from packtrain.studies.statistics import align, mean_interval

Seeds = list[tuple[list[int], list[float]]]  # steps and values of each


def in_two_columns(charts: list[str], width: int = 420, height: int = 274) -> str:
    """Standalone charts of one size as one picture."""
    moved = [
        f'<g transform="translate({i % 2 * width} {i // 2 * height})">{chart}</g>' for i, chart in enumerate(charts)
    ]
    size = f'width="{2 * width}" height="{(len(charts) + 1) // 2 * height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(moved)}</svg>'


def curve(name: str, seeds: Seeds) -> Curve:
    """The mean over seeds and its 95 % interval."""
    steps, columns = align(seeds)
    means, lows, highs = zip(*[mean_interval(values) for values in zip(*columns, strict=True)], strict=True)
    label = f"{name}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return Curve(label, list(steps), list(means), list(lows), list(highs))


def smooth(steps: list[int], values: list[float], window: int) -> list[float]:
    """The mean of all rows in the `window` steps up to each; as they are if it is 0."""
    if not window:
        return values
    near = ([v for s, v in zip(steps, values, strict=True) if end - window < s <= end] for end in steps)
    return [sum(rows) / len(rows) for rows in near]


def read(runs: list[str], kind: str, metric: str) -> dict[str, Seeds]:
    """Curves of all seeds by the name of their run, which stands after that of its panel if several share one."""
    found = {}
    for group in (one.split(",") for one in runs):
        for run in map(Path, group):
            name = run.name if len(group) == 1 else f"{run.parent.name}, {run.name}"
            found[name] = [series(read_metrics(seed), kind, metric) for seed in seed_folders(run)]
    return found


def panels(found: dict[str, Seeds]) -> dict[str, dict[str, Seeds]]:
    """Runs by the panel that they are drawn in; a run that shares it with no other has no title of its own."""
    grouped: dict[str, dict[str, Seeds]] = {}
    for name, seeds in found.items():
        panel, _, run = name.rpartition(", ")
        grouped.setdefault(panel or name, {})[run] = seeds
    return grouped


def main() -> None:
    """Read, average over seeds, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--kind", default="eval")
    parser.add_argument("--metric", default="return_mean")
    parser.add_argument("--label", default="return of greedy episodes", help="of the vertical axis")
    parser.add_argument("--title", default="")
    parser.add_argument("--window", type=int, default=0, help="steps that each point is the mean of")
    parser.add_argument("--panels", action="store_true", help="a chart for each run, or runs joined by commas")
    parser.add_argument("--names", nargs="*", help="runs that are drawn; all, if not given")
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.runs:
        found = read(arguments.runs, arguments.kind, arguments.metric)
        data = {name: [{"step": steps, "value": values} for steps, values in seeds] for name, seeds in found.items()}
        arguments.data.parent.mkdir(parents=True, exist_ok=True)
        content = {"kind": arguments.kind, "metric": arguments.metric, "runs": data}
        write_data(arguments.data, json.dumps(content) + "\n")
    data = json.loads(arguments.data.read_text())["runs"]
    if unknown := set(arguments.names or ()) - set(data):
        parser.error(f"{arguments.data} has no {', '.join(sorted(unknown))}; there are: {'; '.join(data)}")
    found = {
        name: [(seed["step"], smooth(seed["step"], seed["value"], arguments.window)) for seed in seeds]
        for name, seeds in data.items()
        if arguments.names is None or name in arguments.names
    }
    if arguments.panels:
        charts = []
        for title, runs in panels(found).items():
            curves = [curve(name, seeds) for name, seeds in runs.items()]
            title = title if len(runs) > 1 else curves[0].name
            charts.append(line_chart(curves, title, "steps", arguments.label, width=396, height=250, standalone=True))
        picture = in_two_columns(charts)
    else:
        curves = [curve(name, seeds) for name, seeds in found.items()]
        picture = line_chart(curves, arguments.title, "steps", arguments.label, width=720, height=360, standalone=True)
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(picture)


if __name__ == "__main__":
    main()
