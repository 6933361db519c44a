"""Results of a sweep: final returns of its points over seeds, a table, and the page of `packtrain report`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packtrain.errors import Error, warn
from packtrain.files import open_inside
from packtrain.metrics.reading import METRICS_FILE
from packtrain.studies import report_data
from packtrain.studies.comparison import FEWEST_SEEDS
from packtrain.studies.report import write_report
from packtrain.studies.statistics import bootstrap_interval, interquartile_mean, mean_interval
from packtrain.studies.sweep.record import FAILED, FINISHED, PRUNED, RUNS, Record, Run

PAGE = "report.html"
_TAIL = 8192  # bytes at the end of metrics.jsonl in which the latest step is looked for


def by_point(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each point, by its name."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.point.name, []).append(run)
    return found


def final_scores(record: Record, runs: Sequence[Run]) -> tuple[list[float], str]:
    """Return the final return of each finished run of one point, and where the returns come from.

    The returns are those of the report: of evaluations if there are any, else of training episodes.
    """
    loaded: report_data.Run | None = None
    for run in runs:
        if run.state == FINISHED:
            try:
                one = report_data.load(record.folder(run), run.name, 0)
            except Error as error:
                warn(f"no result of {run.name}: {error}")
                continue
            if loaded is None:
                loaded = one
            else:
                loaded.seeds += one.seeds
    if loaded is None:
        return [], ""
    score = report_data.final_score(loaded)
    return (list(score.each), score.source) if score is not None else ([], "")


def summarise(scores: Sequence[float], source: str = "") -> dict[str, Any] | None:
    """Return mean and interquartile mean over seeds with 95 % intervals; None without scores.

    The interval of the mean is Student's t, that of the interquartile mean a bootstrap over at least 3 seeds.
    """
    if not scores:
        return None
    mean, low, high = mean_interval(scores)
    bounds = bootstrap_interval(interquartile_mean, [scores]) if len(scores) >= FEWEST_SEEDS else None
    return {
        "seeds": len(scores),
        "mean": mean,
        "interval": None if math.isnan(low) else [low, high],
        "iqm": interquartile_mean([scores]),
        "iqm_interval": None if bounds is None else list(bounds),
        "each": list(scores),
        "source": source,
    }


def summarise_all(record: Record) -> None:
    """Compute the results of all points and keep them in the record."""
    for name, runs in by_point(record.runs).items():
        if (found := summarise(*final_scores(record, runs))) is not None:
            record.results[name] = found


def table(record: Record, ranked: bool) -> str:
    """Return the results as text, a line for each point.

    Args:
      record: of the sweep, with results.
      ranked: order by the interquartile mean, highest first, instead of as given.
    """
    groups = by_point(record.runs)
    names = list(groups)
    if ranked:
        names.sort(key=lambda name: -record.results.get(name, {}).get("iqm", -math.inf))
    columns = list(dict.fromkeys(setting for runs in groups.values() for setting in runs[0].point.settings))
    lines = [[*(columns or ["point"]), "seeds", "mean", "95 % interval", "IQM", "95 % interval", ""]]
    for name in names:
        runs, result = groups[name], record.results.get(name)
        settings = runs[0].point.settings
        cells = [settings.get(column, "-") for column in columns] or [name]
        cells.append(f"{result['seeds'] if result else 0} of {len(runs)}")
        for value, interval in (("mean", "interval"), ("iqm", "iqm_interval")):
            cells.append(_number(result[value]) if result else "-")
            bounds = result[interval] if result else None
            cells.append(f"{_number(bounds[0])} to {_number(bounds[1])}" if bounds else "-")
        states = [run.state for run in runs]
        cells.append(", ".join(f"{states.count(state)} {state}" for state in (FAILED, PRUNED) if state in states))
        lines.append(cells)
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return cells as text in columns, two spaces apart; columns of numbers are aligned at the right."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    right = [all(line[k][:1] in "-0123456789" for line in lines[1:]) for k in range(len(lines[0]))]
    shown = []
    for line in lines:
        cells = zip(line, widths, right, strict=True)
        shown.append("  ".join(cell.rjust(width) if at_right else cell.ljust(width) for cell, width, at_right in cells))
    return "\n".join(line.rstrip() for line in shown)


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def write_page(record: Record) -> Path | None:
    """Write the report about all runs that have begun; a failure is a warning, since the runs themselves stand."""
    names = [name for name in by_point(record.runs) if (record.root / RUNS / name).is_dir()]
    folders = [record.root / RUNS / name for name in names]
    varied = record.about["varied_names"]
    try:
        loaded = [report_data.load(folder, folder.name, 0) for folder in folders]
        known = all(any(name in run.settings for run in loaded) for name in varied)
        compare = varied[0] if len(varied) == 1 and known and len(folders) > 1 else None
        return write_report(folders, record.root / PAGE, compare)
    except (Error, OSError) as error:
        warn(f"no report was written: {error}")
        return None


def latest_step(folder: Path) -> int | None:
    """Return the step of the last row in a run's metrics; None if there is none."""
    try:
        with open_inside(folder, METRICS_FILE) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            lines = file.read(_TAIL).splitlines()
    except (OSError, Error):
        return None
    for line in reversed(lines):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        return step if type(step) is int else None
    return None
