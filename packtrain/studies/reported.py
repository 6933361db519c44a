"""What a report is about: runs as they lie in their folders, and their numbers over seeds.

Everything here comes out of a run folder, which may be someone else's: files are read as bytes, up to a limit, and
what cannot be read is left out.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packtrain.files import read_inside, refuse_links
from packtrain.metrics.intervals import student_t
from packtrain.metrics.reading import CONFIG_FILE, METRICS_FILE, Rows, number, read_metrics, seed_folders, series
from packtrain.studies.chart import Curve, human
from packtrain.studies.statistics import align, mean_interval, thin

Metric = tuple[str, str]
"""(kind, name), as in the rows."""

EVALUATION_RETURN: Metric = ("eval", "return_mean")
TRAINING_RETURN: Metric = ("train", "episode_return")

_LAST_ROWS = 10  # whose mean is the training score
_LAST_PART = 0.98  # of a run: what `packtrain eval` says of checkpoints from there on is of its end
_LATER_HALF = 0.5  # of a run: its evaluations while it trained may be rare
_LOG_LINES = 60
_LOG_BYTES = 64 * 1024
_CONFIG_BYTES = 256 * 1024
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STUDY = re.compile(r"^Study\.", re.MULTILINE)


@dataclass
class Seed:
    """One ordinary run folder."""

    folder: Path
    rows: Rows
    evaluation: dict[str, Any]  # eval.json; empty if there is none

    @property
    def steps(self) -> int:
        """The last that a row tells of."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def wall_s(self) -> float:
        """Seconds that it has run."""
        return max((number(row.get("wall_s")) or 0.0 for row in self.rows), default=0.0)


@dataclass
class Run:
    """One run as the user named it: all its seeds."""

    path: Path
    name: str
    colour: int  # place in the palette
    seeds: list[Seed]
    config: str
    warnings: list[str] = field(default_factory=list)

    @property
    def is_study(self) -> bool:
        """Whether it has no agent, and so no return, but pictures of its own."""
        return bool(_STUDY.search(self.config))


@dataclass(frozen=True)
class Score:
    """A run's final return: the mean over seeds, an interval over seeds or episodes, and where it comes from."""

    mean: float
    interval: tuple[float, float] | None
    over: str
    source: str


# Reading


def load(path: Path, name: str, colour: int) -> Run:
    """A run from its folder, with warnings of what is missing, damaged or uneven in it."""
    refuse_links(path)
    folders = seed_folders(path)
    for folder in folders:
        refuse_links(folder)
    seeds = [Seed(folder, read_metrics(folder), _evaluation(folder)) for folder in folders]
    config = next((text for folder in [*folders, path] if (text := _head(folder / CONFIG_FILE))), "")
    run = Run(path, name, colour, seeds, config)
    for seed in seeds:
        where = f"{name}/{seed.folder.name}" if len(seeds) > 1 else name
        if seed.rows.bad_lines:
            lines = "line" if seed.rows.bad_lines == 1 else "lines"
            run.warnings.append(f"{where}: {seed.rows.bad_lines} unreadable {lines} of {METRICS_FILE} left out.")
        if not seed.rows:
            run.warnings.append(f"{where}: no metrics yet.")
    reached = {seed.folder.name: seed.steps for seed in seeds if seed.rows}
    if reached and min(reached.values()) < 0.98 * max(reached.values()):
        least = min(reached, key=lambda seed: reached[seed])
        run.warnings.append(
            f"{name}: the seeds have reached different steps, {least} {human(reached[least])} and others up to "
            f"{human(max(reached.values()))}; means over seeds are drawn as far as all of them go."
        )
    return run


def _evaluation(folder: Path) -> dict[str, Any]:
    """What the last `packtrain eval` said, if it said anything that can be read."""
    path = folder / "eval.json"
    try:
        found = json.loads(read_inside(folder, path.name)) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _head(path: Path, limit: int = _CONFIG_BYTES) -> str:
    """The beginning of a text file; empty if there is none."""
    data = read_bytes(path, 0, limit + 1)
    return data[:limit].decode("utf-8", "replace") + "\n…" * (len(data) > limit)


def tail(path: Path, lines: int = _LOG_LINES, limit: int = _LOG_BYTES) -> str:
    """The last lines of a text file, without the codes that colour a terminal; empty if there is none."""
    text = read_bytes(path, -limit, limit).decode("utf-8", "replace")
    text = _TERMINAL_CODES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(text.rstrip("\n").split("\n")[-lines:])


def read_bytes(path: Path, start: int, size: int) -> bytes:
    """At most `size` bytes from `start`, or from so far before the end if it is negative."""
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            file.seek(start if start >= 0 else max(0, file.seek(0, os.SEEK_END) + start))
            return file.read(size)
    except OSError as error:
        return f"(cannot be read: {error.strerror})".encode()


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """For each path its last part, or as many parts as tell it from the others; a seed's folder with its run."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts - path.name.startswith("seed_") :]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


# Numbers over seeds


def curve_of(run: Run, metric: Metric, points: int) -> Curve | None:
    """One metric of a run: the mean over the seeds that have it, with an interval where there are several."""
    found = [series(seed.rows, *metric) for seed in run.seeds]
    thinned = [thin(steps, values, points) for steps, values in found if steps]
    if not thinned:
        return None
    if len(thinned) == 1:
        return Curve(run.name, *thinned[0], colour=run.colour)
    steps, columns = align(thinned)
    if not steps:  # no step that all seeds have in common
        return None
    means, lows, highs = zip(*(mean_interval(values) for values in zip(*columns, strict=True)), strict=True)
    return Curve(run.name, steps, means, lows, highs, colour=run.colour)


def last_value(run: Run, metric: Metric) -> tuple[float, tuple[float, float] | None] | None:
    """The mean over seeds of a metric's last value, and its interval."""
    found = [series(seed.rows, *metric)[1] for seed in run.seeds]
    return over_seeds([values[-1] for values in found if values])


def over_seeds(values: list[float]) -> tuple[float, tuple[float, float] | None] | None:
    """The mean of one value a seed, and its interval where there are several; None of none."""
    if not values:
        return None
    mean, low, high = mean_interval(values)
    return mean, (low, high) if len(values) > 1 else None


def seed_scores(seed: Seed) -> dict[str, float]:
    """What one seed scored in the end, by source, the best first: eval.json, its evaluation rows, its training rows.

    An evaluation of an earlier checkpoint, or of the best one, says nothing about the end, nor do evaluation rows of a
    run's first half.
    """
    scores: dict[str, float] = {}
    value, at = number(seed.evaluation.get("return_mean")), number(seed.evaluation.get("checkpoint"))
    if value is not None and (at is None or at >= _LAST_PART * seed.steps):
        scores["eval.json"] = value
    steps, evaluated = series(seed.rows, *EVALUATION_RETURN)
    if evaluated and steps[-1] >= _LATER_HALF * seed.steps:
        scores["evaluation"] = evaluated[-1]
    if trained := series(seed.rows, *TRAINING_RETURN)[1][-_LAST_ROWS:]:
        scores["training"] = sum(trained) / len(trained)
    return scores


def final_score(run: Run) -> Score | None:
    """The final return of a run, over seeds with one kind of source: the best of those that most seeds have."""
    found = [(seed, seed_scores(seed)) for seed in run.seeds]
    counts = {name: sum(name in scores for _, scores in found) for name in ("eval.json", "evaluation", "training")}
    source = max(counts, key=lambda name: counts[name])  # of equal ones the first
    chosen = [(seed, scores[source]) for seed, scores in found if source in scores]
    if not chosen:
        return None
    mean, low, high = mean_interval([value for _, value in chosen])
    over = "seeds" if len(chosen) > 1 else "episodes"
    interval = (low, high) if over == "seeds" else None
    if source == "eval.json":
        interval = interval or _episode_interval(chosen[0][0].evaluation)
        text = _evaluation_text([seed.evaluation for seed, _ in chosen])
    elif source == "evaluation":
        text = f"last evaluation during training, step {human(max(_last_step(seed) for seed, _ in chosen))}"
    else:
        text = f"training episodes of the last {_LAST_ROWS} rows"
    if len(run.seeds) > len(chosen):
        text += f"; {len(chosen)} of {len(run.seeds)} seeds"
    return Score(mean, interval, over, text)


def _last_step(seed: Seed) -> int:
    return series(seed.rows, *EVALUATION_RETURN)[0][-1]


def _evaluation_text(evaluations: list[dict[str, Any]]) -> str:
    text = "packtrain eval"
    episodes = {number(evaluation.get("episodes")) for evaluation in evaluations}
    checkpoints = {number(evaluation.get("checkpoint")) for evaluation in evaluations}
    if len(episodes) == 1 and (count := episodes.pop()) is not None:
        text += f", {count:.0f} episodes" + " a seed" * (len(evaluations) > 1)
    if len(checkpoints) == 1 and (step := checkpoints.pop()) is not None:
        text += f", checkpoint {human(step)}"
    return text


def _episode_interval(evaluation: dict[str, Any]) -> tuple[float, float] | None:
    """The Student-t interval over an evaluation's episodes; else the one that it gave, a half-width or both ends.

    Files of version 0.1 gave a narrower interval, with the normal distribution's 1.96 in place of t.
    """
    given, mean = evaluation.get("return_ci95"), number(evaluation.get("return_mean"))
    half_width = number(given)
    deviation, count = number(evaluation.get("return_std")), number(evaluation.get("episodes"))
    if half_width is not None and deviation is not None and count is not None and 2 <= count == int(count):
        half_width = student_t(int(count) - 1) * deviation / math.sqrt(count)
    if half_width is not None and mean is not None:
        return mean - half_width, mean + half_width
    ends = [number(end) for end in given] if isinstance(given, list) and len(given) == 2 else []
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
        return ends[0], ends[1]
    return None


# The page
