"""The charts of a report as numbers: selection, titles, and the JSON that the page's script draws.

Every chart has one line per run: the mean over its seeds, a Student-t band if there are three seeds or more, and the
seeds themselves. Lines with the same steps share them in the file too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from packtrain.studies.chart import Curve, printable
from packtrain.studies.report_data import EVALUATION_RETURN, TRAINING_RETURN, Metric, Run, Seed
from packtrain.studies.statistics import align, mean_interval, thin

MODEL_USE: Metric = ("train", "model_use")

# Metrics shown at the top, in this order, with title and unit. Other losses follow total_loss.
_HEADINGS: dict[Metric, tuple[str, str]] = {
    EVALUATION_RETURN: ("Evaluation return", "mean return of evaluation episodes"),
    TRAINING_RETURN: ("Training return", "mean return of the episodes that ended since the last row"),
    ("eval", "return_greedy_mean"): ("Evaluation return, greedy actions", "mean return of greedy episodes"),
    ("eval", "return_sampled_mean"): (
        "Evaluation return, sampled actions",
        "mean return of episodes with sampled actions",
    ),
    ("eval", "solved"): ("Solved in evaluations", "share of episodes"),
    ("train", "solved"): ("Solved while training", "share of episodes"),
    ("train", "total_loss"): ("Total loss", ""),
    ("train", "pg_loss"): ("Policy-gradient loss", ""),
    ("train", "baseline_loss"): ("Baseline loss", ""),
    ("train", "entropy_loss"): ("Entropy loss", ""),
    ("train", "entropy"): ("Policy entropy", ""),
    MODEL_USE: ("Model use", "share of the target that comes from imagined steps"),
    ("train", "policy_lag_mean"): ("Policy lag", "learner versions, mean"),
    ("train", "steps_per_second"): ("Speed", "steps per second"),
    ("train", "episode_length"): ("Episode length", "steps, mean"),
    ("train", "grad_norm"): ("Gradient norm", "before clipping"),
    ("train", "learning_rate"): ("Learning rate", ""),
    ("train", "td_error"): ("TD error", "mean absolute"),
    ("train", "rss_mb"): ("Resident memory", "MB"),
    ("train", "actor_busy"): ("Actor busy", "share of the time"),
    ("train", "learner_busy"): ("Learner busy", "share of the time"),
    ("train", "policy_lag_max"): ("Policy lag, largest", "learner versions"),
    ("eval", "return_std"): ("Evaluation return, standard deviation", "over episodes"),
    ("eval", "length_mean"): ("Evaluation episode length", "steps, mean"),
}
_ABOVE = list(_HEADINGS)[: list(_HEADINGS).index(("train", "steps_per_second")) + 1]
_LARGE = (EVALUATION_RETURN, TRAINING_RETURN)
_WORDS = {"td": "TD", "kl": "KL", "q": "Q", "rnd": "RND", "std": "standard deviation", "pg": "policy-gradient"}
_DEPTH = re.compile(r"weight/depth_(\d{1,3})")
_CHANNEL = {"train": "episode_return/", "eval": "reward/"}  # prefix of a reward channel's return by kind of row

MOST_CHARTS = 150  # maximum per environment; with more the page would open too slowly
LARGE_POINTS, SMALL_POINTS, FEWEST_POINTS = 300, 160, 24  # of a line
_BUDGET = 1_000_000  # maximum number of numbers in the page; with more, lines get fewer points
_MOST_SEED_LINES = 60  # of a chart


@dataclass
class Line:
    """One line of a chart with its steps, and the lines of its seeds. NaN leaves a gap."""

    name: str
    colour: int
    run: int  # index of its run in the section
    steps: Sequence[float]
    walls: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    seeds: list[tuple[str, Sequence[float], Sequence[float], Sequence[float]]] = field(default_factory=list)
    """(name, steps, walls, values)"""


@dataclass
class Chart:
    """One chart: a line per run, or other lines with a legend."""

    title: str
    unit: str
    names: str  # of its metrics, for searching
    lines: list[Line]
    large: bool = False
    own: bool = False  # whether its lines are not the section's runs
    fixed: str = ""  # label of its horizontal axis, if that is not steps

    def curves(self) -> list[Curve]:
        """Return its lines for a static picture: the seeds of a line that has no mean."""
        found = []
        for line in self.lines:
            if len(line.steps):
                found.append(Curve(line.name, line.steps, line.values, line.low, line.high, colour=line.colour))
            for name, steps, _, values in () if len(line.steps) else line.seeds:
                found.append(Curve(f"{line.name}, {name}", steps, values, colour=line.colour))
        return found

    @property
    def lacks_mean(self) -> bool:
        """Return whether a line has seeds but no mean, because they share no step."""
        return any(not len(line.steps) for line in self.lines)


@dataclass
class Charts:
    """All charts of one environment."""

    main: list[Chart]
    folded: list[Chart]
    left_out: int  # number of metrics beyond MOST_CHARTS


def budget_of(sections: Sequence[Sequence[Run]]) -> int:
    """Return the number of points per line that keeps the page small."""
    lines = sum(
        len(metrics_of(runs)) * sum(1 if len(run.seeds) == 1 else 3 + len(run.seeds) for run in runs)
        for runs in sections
    )
    return max(FEWEST_POINTS, min(LARGE_POINTS, _BUDGET // max(1, lines)))


def metrics_of(runs: Sequence[Run]) -> list[Metric]:
    """Return every metric of any seed, in the order of first appearance."""
    return list(dict.fromkeys(metric for run in runs for seed in run.seeds for metric in seed.series))


def charts_of(runs: Sequence[Run], points: int) -> Charts:
    """Return all charts of one environment's runs, each metric once.

    Args:
      runs: of one environment.
      points: maximum per line, see `budget_of`.
    """
    metrics = [metric for metric in metrics_of(runs) if not _is_repeated(metric, runs)]
    channels = [metric for metric in metrics if _channel(metric)]
    depths = sorted((m for m in metrics if _is_depth(m)), key=lambda metric: int(metric[1].rpartition("_")[2]))
    main, other = _split([metric for metric in metrics if metric not in channels and metric not in depths])
    # Drawn together with their channels.
    joined = {_kind_return(kind) for kind, _ in channels} if len(runs) == 1 else set()
    built: list[Chart] = []
    for metric in main:
        if metric in _LARGE and metric not in joined:
            built += _of_metric(runs, metric, points)
    built += _of_channels(runs, channels, metrics, points)
    for metric in main:
        if metric not in _LARGE:
            built += _of_metric(runs, metric, points)
        if metric == MODEL_USE and depths:
            built += [_of_depths(run, depths, points, len(runs) > 1) for run in runs]
    if MODEL_USE not in main and depths:
        built += [_of_depths(run, depths, points, len(runs) > 1) for run in runs]
    room = max(0, MOST_CHARTS - len(built))
    folded = [chart for metric in other[:room] for chart in _of_metric(runs, metric, points)]
    return Charts([chart for chart in built if chart.lines], folded, len(other[room:]))


def title_of(metric: Metric) -> tuple[str, str]:
    """Return a readable title and unit: "Value loss" for value_loss, "Evaluation return, full" for an evaluation."""
    kind, name = metric
    base, _, label = kind.partition("/")
    if metric in _HEADINGS:
        return _HEADINGS[metric]
    if (base, name) in _HEADINGS and label:
        title, unit = _HEADINGS[base, name]
        return f"{title}, {label}", unit
    parts = [part.replace("_", " ").split() for part in name.split("/")]
    words = " · ".join(" ".join(_WORDS.get(word, word) for word in part) for part in parts if part)
    prefix = {"train": "", "eval": "evaluation: "}.get(base, f"{base}: ") + f"{label}: " * bool(label)
    text = prefix + words
    return text[:1].upper() + text[1:], ""


def _split(metrics: list[Metric]) -> tuple[list[Metric], list[Metric]]:
    """Return the metrics shown at first, in the order of the headings, and the others, sorted by name."""
    losses = sorted(metric for metric in metrics if metric[1].endswith("loss") and metric not in _HEADINGS)
    named = sorted(m for m in metrics if m[0].startswith("eval/") and m[1] == "return_mean")
    place = _ABOVE.index(("train", "entropy"))
    main = [metric for metric in [*_ABOVE[:2], *named, *_ABOVE[2:place], *losses, *_ABOVE[place:]] if metric in metrics]
    return main, sorted((metric for metric in metrics if metric not in main), key=lambda metric: title_of(metric))


def _is_repeated(metric: Metric, runs: Sequence[Run]) -> bool:
    """Return whether another metric shows the same: half-widths of intervals, and the first kind of an evaluation."""
    kind, name = metric
    if kind.partition("/")[0] != "eval":
        return False
    if name.endswith("_ci95") or name in ("episodes", "episodes_greedy", "episodes_sampled"):
        return True
    match = re.fullmatch(r"return_(?:greedy|sampled)_(mean|std)", name)
    plain = (kind, f"return_{match[1]}") if match else metric
    return bool(match) and all(seed.of(metric) == seed.of(plain) for run in runs for seed in run.seeds)


def _channel(metric: Metric) -> str:
    """Return the name of the reward channel whose return a metric is; empty for others."""
    prefix = _CHANNEL.get(metric[0].partition("/")[0], "\0")
    return metric[1].removeprefix(prefix) if metric[1].startswith(prefix) else ""


def _kind_return(kind: str) -> Metric:
    return (kind, "episode_return" if kind == "train" else "return_mean")


def _is_depth(metric: Metric) -> bool:
    return metric[0] == "train" and _DEPTH.fullmatch(metric[1]) is not None


def _of_metric(runs: Sequence[Run], metric: Metric, points: int) -> list[Chart]:
    title, unit = title_of(metric)
    lines = _lines(runs, metric, points if metric in _LARGE else min(points, SMALL_POINTS))
    large = metric in _LARGE
    return [Chart(title, unit, " ".join(metric), lines, large=large)] if lines else []


def _of_channels(runs: Sequence[Run], channels: list[Metric], metrics: list[Metric], points: int) -> list[Chart]:
    """Return charts of reward channels: lines of one chart for a single run, separate charts for several."""
    charts = []
    for kind in sorted({kind for kind, _ in channels}):  # evaluations first
        found = [metric for metric in channels if metric[0] == kind]
        what = title_of(_kind_return(kind))[0]
        if len(runs) > 1:
            for metric in found:
                lines = _lines(runs, metric, min(points, SMALL_POINTS))
                charts.append(Chart(f"{what}, {_channel(metric)}", "reward channel", " ".join(metric), lines))
            continue
        total = _kind_return(kind)
        same = [one for one in found if all(seed.of(one).values == seed.of(total).values for seed in runs[0].seeds)]
        drawn = [*([] if same or total not in metrics else [total]), *found]
        lines = []
        for place, metric in enumerate(drawn):
            name = _channel(metric) or "reward learned from"
            name += " (learned from)" * (kind == "train" and metric in same and _channel(metric) != "true")
            for line in _lines(runs, metric, points):
                line.name, line.colour = name, place
                lines.append(line)
        names = " ".join(" ".join(metric) for metric in drawn)
        charts.append(Chart(f"{what} by reward channel", "mean over episodes", names, lines, large=True, own=True))
    return charts


def _of_depths(run: Run, metrics: list[Metric], points: int, named: bool) -> Chart:
    """Return a chart of the weights of value expansion's depths."""
    lines = []
    for place, metric in enumerate(metrics):
        for line in _lines([run], metric, min(points, SMALL_POINTS)):
            line.name, line.colour, line.seeds = f"depth {metric[1].rpartition('_')[2]}", place, []
            lines.append(line)
    title = "Weight by depth" + f", {run.name}" * named
    return Chart(title, "share of the target", "weight/depth", lines, own=True)


def _lines(runs: Sequence[Run], metric: Metric, points: int) -> list[Line]:
    with_seeds = sum(len(run.seeds) for run in runs) <= _MOST_SEED_LINES
    found = [_line(run, place, metric, points, with_seeds) for place, run in enumerate(runs)]
    return [line for line in found if line]


def _line(run: Run, place: int, metric: Metric, points: int, with_seeds: bool) -> Line | None:
    """Return one metric of a run: the mean over the seeds that have it, with a band for three or more."""
    found = [_thinned(seed, metric, points) for seed in run.seeds if seed.of(metric).steps]
    if not found:
        return None
    if len(found) == 1:
        _, steps, walls, values = found[0]
        return Line(run.name, run.colour, place, steps, walls, values)
    common, columns = align([(steps, values) for _, steps, _, values in found])
    if not common:  # no step that all seeds have in common
        return Line(run.name, run.colour, place, [], [], [], seeds=found[:_MOST_SEED_LINES])
    _, times = align([(steps, walls) for _, steps, walls, _ in found])
    walls = [math.fsum(each) / len(each) for each in zip(*times, strict=True)]
    bands = [mean_interval(each) for each in zip(*columns, strict=True)]
    means, lows, highs = ([band[part] for band in bands] for part in range(3))
    line = Line(run.name, run.colour, place, *_thin(common, points, walls, means))
    if len(found) > 2:  # the interval of two seeds is so wide that it would hide the lines
        _, line.low, line.high = _thin(common, points, lows, highs)
    line.seeds = found if with_seeds else []
    return line


def _thinned(seed: Seed, metric: Metric, points: int) -> tuple[str, Sequence[float], Sequence[float], Sequence[float]]:
    one = seed.of(metric)
    if len(one.steps) <= points:
        return seed.name, list(one.steps), one.walls, one.values
    key = (id(one.steps), points)  # many metrics of a seed have the same steps
    if key not in seed.thinned:
        seed.thinned[key] = thin(one.steps, one.walls, points)
    return (seed.name, *seed.thinned[key], thin(one.steps, one.values, points)[1])


def _thin(
    steps: Sequence[float], points: int, first: Sequence[float], second: Sequence[float]
) -> tuple[list[float], list[float], list[float]]:
    if len(steps) <= points:
        return list(steps), list(first), list(second)
    return (*thin(steps, first, points), thin(steps, second, points)[1])


# As JSON


class Numbers:
    """The numbers of a page as JSON. Identical horizontal axes are written once."""

    def __init__(self) -> None:
        self._axes: dict[tuple[Any, ...], int] = {}
        self._written: list[str] = []

    def charts(self, charts: Sequence[Chart]) -> str:
        """Return a list of charts as JSON."""
        return "[" + ",".join(self._chart(chart) for chart in charts) + "]"

    def axes(self) -> str:
        """Return the axes of all charts so far as JSON, [[steps, seconds], …]."""
        return "[" + ",".join(self._written) + "]"

    def _chart(self, chart: Chart) -> str:
        fixed = f',"fixed":{text_json(chart.fixed)}' if chart.fixed else ""
        own = ',"own":true' if chart.own else ""
        lines = ",".join(self._line(line, chart.own) for line in chart.lines)
        return (
            f'{{"t":{text_json(chart.title)},"u":{text_json(chart.unit)},"m":{text_json(chart.names)}{own}{fixed},'
            f'"lines":[{lines}]}}'
        )

    def _line(self, line: Line, own: bool) -> str:
        parts = [f'"n":{text_json(line.name)},"c":{line.colour}' if own else f'"r":{line.run}']
        parts.append(f'"x":{self._axis(line.steps, line.walls)},"y":{_numbers(line.values)}')
        if line.low is not None and line.high is not None:
            parts.append(f'"l":{_numbers(line.low)},"h":{_numbers(line.high)}')
        if line.seeds:
            each = (
                f"[{self._axis(steps, walls)},{_numbers(values)},{text_json(name)}]"
                for name, steps, walls, values in line.seeds
            )
            parts.append(f'"e":[{",".join(each)}]')
        return "{" + ",".join(parts) + "}"

    def _axis(self, steps: Sequence[float], walls: Sequence[float]) -> int:
        key = (tuple(steps), tuple(walls) if walls and not math.isnan(walls[0]) else len(walls))
        if key not in self._axes:
            self._axes[key] = len(self._written)
            self._written.append(f"[{_numbers(steps, 9)},{_numbers(walls)}]")
        return self._axes[key]


def text_json(text: str) -> str:
    """Return text as JSON that is safe inside HTML: it cannot end the element, and has printable characters only."""
    escaped = json.dumps(printable(text))
    return escaped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _numbers(values: Sequence[float], digits: int = 5) -> str:
    """Return numbers as JSON with so many significant digits; null for non-finite ones."""
    return "[" + ",".join([f"{value:.{digits}g}" if math.isfinite(value) else "null" for value in values]) + "]"
