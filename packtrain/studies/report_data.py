"""The data of a report: runs read from their folders, grouped, and their scores over seeds.

All data come from run folders, which may be untrusted: files are read as bytes, up to a limit, and unreadable content
is skipped.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from packtrain.errors import ConfigError, RunFolderError
from packtrain.files import read_inside, refuse_links
from packtrain.metrics.intervals import student_t
from packtrain.metrics.reading import CONFIG_FILE, METRICS_FILE, Series, all_series, number, read_metrics, seed_folders
from packtrain.studies.chart import human
from packtrain.studies.statistics import mean_interval

Metric = tuple[str, str]
"""(kind, name), as in the rows."""

EVALUATION_RETURN: Metric = ("eval", "return_mean")
TRAINING_RETURN: Metric = ("train", "episode_return")

_LAST_ROWS = 10  # number of last rows whose mean is the training score
_LAST_PART = 0.98  # fraction of a run: `packtrain eval` results of checkpoints from there on count as final
_LATER_HALF = 0.5  # fraction of a run from which scheduled evaluations count as final, since they may be rare
_MOST_LEVELS = 4  # depth of folders that are searched: runs/FAMILY/CONFIG/TIME
_LOG_LINES = 60
_LOG_BYTES = 64 * 1024
_CONFIG_BYTES = 256 * 1024
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STUDY = re.compile(r"^Study\.", re.MULTILINE)
_ENVIRONMENT = re.compile(r"""^[\w./]*\benv(?:ironment)?(?:_?(?:id|name))?\s*=\s*(['"])(.+?)\1""", re.MULTILINE)
_NONE = Series([], [], [])


@dataclass
class Seed:
    """One ordinary run folder."""

    folder: Path
    name: str
    series: dict[Metric, Series]
    evaluation: dict[str, Any]  # eval.json; empty if there is none
    bad_lines: int = 0  # number of unreadable lines in metrics.jsonl
    thinned: dict[tuple[int, int], tuple[list[float], list[float]]] = field(default_factory=dict)
    """Cached steps and times of shortened series, which many metrics share."""

    def of(self, metric: Metric) -> Series:
        """Return one metric, empty if the run does not have it."""
        return self.series.get(metric, _NONE)

    @cached_property
    def steps(self) -> int:
        """Return the last step of any row."""
        return max((one.steps[-1] for one in self.series.values()), default=0)

    @cached_property
    def wall_s(self) -> float:
        """Return the seconds of training."""
        each = {id(one.walls): one.walls for one in self.series.values()}.values()
        return max((wall for walls in each for wall in walls if not math.isnan(wall)), default=0.0)


@dataclass
class Run:
    """One curve of a report with all its seeds: a run folder, or with --compare all runs with one value."""

    path: Path
    name: str
    colour: int  # index in the palette
    seeds: list[Seed]
    config: str
    warnings: list[str] = field(default_factory=list)

    @property
    def is_study(self) -> bool:
        """Return whether it is a study, which has charts of its own instead of an agent and returns."""
        return bool(_STUDY.search(self.config))

    @cached_property
    def settings(self) -> dict[str, str]:
        """Return the settings of its configuration by name, as text."""
        return settings_of(self.config)

    @cached_property
    def environment(self) -> str:
        """Return the id of its environment; empty if its configuration has none."""
        return environment_of(self.config)

    def where(self, seed: Seed) -> str:
        """Return the name of one of its seeds."""
        return f"{self.name}/{seed.name}" if len(self.seeds) > 1 else self.name


class Source(NamedTuple):
    """Source of a final return, and the number of its episodes (0: unknown)."""

    value: float
    episodes: int


@dataclass(frozen=True)
class Score:
    """A run's final return: the mean over seeds, an interval over seeds or episodes, and its source."""

    mean: float
    interval: tuple[float, float] | None
    over: str
    source: str
    each: tuple[float, ...] = ()  # seed by seed


# Reading


def load(path: Path, name: str, colour: int) -> Run:
    """Read a run from its folder, with warnings about missing, damaged or inconsistent data."""
    refuse_links(path)
    folders = seed_folders(path)
    for folder in folders:
        refuse_links(folder)
    seeds = [_load_seed(folder) for folder in folders]
    config = next((text for folder in [*folders, path] if (text := _head(folder / CONFIG_FILE))), "")
    run = Run(path, name, colour, seeds, config)
    for seed in seeds:
        if seed.bad_lines:
            lines = "line" if seed.bad_lines == 1 else "lines"
            run.warnings.append(f"{run.where(seed)}: {seed.bad_lines} unreadable {lines} of {METRICS_FILE} left out.")
        if not seed.series:
            run.warnings.append(f"{run.where(seed)}: no metrics yet.")
    _warn_if_uneven(run, "seeds")
    return run


def _warn_if_uneven(run: Run, members: str) -> None:
    """Add a warning if the seeds of a curve have reached different steps."""
    reached = {seed.name: seed.steps for seed in run.seeds if seed.series}
    if reached and min(reached.values()) < 0.98 * max(reached.values()):
        least = min(reached, key=lambda seed: reached[seed])
        run.warnings.append(
            f"{run.name}: the {members} have reached different steps, {least} {human(reached[least])} and others up to "
            f"{human(max(reached.values()))}; means are drawn over the steps that all of them have, and each alone "
            "beyond."
        )


def _load_seed(folder: Path) -> Seed:
    rows = read_metrics(folder)
    return Seed(folder, folder.name, all_series(rows), _evaluation(folder), rows.bad_lines)


def run_folders(path: Path) -> list[Path]:
    """Find the runs that a path means: itself, or all run folders below it in the order of their names.

    Links are not followed, so that `latest` is not a run of its own.
    """
    try:
        seed_folders(path)
        return [path]
    except RunFolderError:
        if not path.is_dir():
            raise
        if found := _runs_below(path, _MOST_LEVELS):
            return found
        raise


def _runs_below(folder: Path, levels: int) -> list[Path]:
    found = []
    try:
        children = sorted(child for child in folder.iterdir() if child.is_dir() and not child.is_symlink())
    except OSError:
        return []
    for child in children:
        try:
            seed_folders(child)
            found.append(child)
        except RunFolderError:
            found += _runs_below(child, levels - 1) if levels > 1 else []
    return found


def environment_of(config: str) -> str:
    """Return the id of the environment in a configuration's text; empty if it has none."""
    bound = settings_of(config).get("Environment.id", "")
    if bound[:1] in ("'", '"'):
        return bound[1:-1]
    match = _ENVIRONMENT.search(config)
    return match[2] if match else ""


def config_of(folder: Path) -> str:
    """Return the text of a run's configuration, cut off if it is very long; empty if there is none."""
    return _head(folder / CONFIG_FILE)


def by_environment(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each environment, in the order of first appearance, with their colours renumbered."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.environment, []).append(run)
    for members in found.values():
        for place, run in enumerate(members):
            run.colour = place
    return found


def group_by(runs: Sequence[Run], knob: str) -> list[Run]:
    """Pool the seeds of all runs of one environment that have the same value of a setting.

    Args:
      runs: as loaded.
      knob: name of a knob, or of any other setting of the configuration such as Optimiser.learning_rate.
    """
    if not any(knob in run.settings for run in runs):
        from packtrain.knobs import nearest

        known = sorted({name for run in runs for name in run.settings})
        raise ConfigError(f"--compare {knob}: no run has a setting of this name{nearest(knob, known)}")
    groups: dict[tuple[str, str], Run] = {}
    for run in runs:
        value = run.settings.get(knob, "not set")
        name = f"{knob} = {value}"
        group = groups.setdefault((run.environment, name), Run(run.path, name, 0, [], run.config))
        group.seeds += [replace(seed, name=run.where(seed)) for seed in run.seeds]
        group.warnings += run.warnings
    for group in groups.values():
        if not any("different steps" in text for text in group.warnings):
            _warn_if_uneven(group, "runs")
    return sorted(groups.values(), key=lambda group: _numeric(group.settings.get(knob, "")))


def _numeric(text: str) -> tuple[bool, float, str]:
    """Order values as numbers where they are numbers."""
    try:
        return False, float(text), ""
    except ValueError:
        return True, 0.0, text


def settings_of(config: str) -> dict[str, str]:
    """Return the `name = value` lines of a configuration with knobs resolved; indented lines continue a value."""
    settings: dict[str, str] = {}
    name = ""
    for line in config.splitlines():
        if line[:1].isspace() and name and line.strip():
            settings[name] = f"{settings[name]} {line.strip()}".replace("\\ ", "")
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if name.startswith("#") or not equals or not name:
            name = ""
        else:
            settings[name] = value.partition("  # ")[0]
    return {name: settings.get(value[1:], value) if value[:1] == "%" else value for name, value in settings.items()}


def _evaluation(folder: Path) -> dict[str, Any]:
    """Return the result of the last `packtrain eval`, if it can be read."""
    path = folder / "eval.json"
    try:
        found = json.loads(read_inside(folder, path.name)) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _head(path: Path, limit: int = _CONFIG_BYTES) -> str:
    """Return the beginning of a text file; empty if there is none."""
    data = read_bytes(path, 0, limit + 1)
    return data[:limit].decode("utf-8", "replace") + "\n…" * (len(data) > limit)


def tail(path: Path, lines: int = _LOG_LINES, limit: int = _LOG_BYTES) -> str:
    """Return the last lines of a text file, without terminal colour codes; empty if there is none."""
    text = read_bytes(path, -limit, limit).decode("utf-8", "replace")
    text = _TERMINAL_CODES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(text.rstrip("\n").split("\n")[-lines:])


def read_bytes(path: Path, start: int, size: int) -> bytes:
    """Return at most `size` bytes from `start`, which counts from the end if it is negative."""
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            file.seek(start if start >= 0 else max(0, file.seek(0, os.SEEK_END) + start))
            return file.read(size)
    except OSError as error:
        return f"(cannot be read: {error.strerror})".encode()


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or as many parts as needed to make it unique; a seed's folder with its run."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts - path.name.startswith("seed_") :]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


# Numbers over seeds


def last_value(run: Run, metric: Metric) -> tuple[float, tuple[float, float] | None] | None:
    """Return the mean over seeds of a metric's last value, and its interval."""
    return over_seeds([values[-1] for seed in run.seeds if (values := seed.of(metric).values)])


def over_seeds(values: list[float]) -> tuple[float, tuple[float, float] | None] | None:
    """Return the mean of one value per seed, and its interval if there are several; None without values."""
    if not values:
        return None
    mean, low, high = mean_interval(values)
    return mean, (low, high) if len(values) > 1 else None


def seed_scores(run: Run, seed: Seed) -> dict[str, Source]:
    """Return the final returns of one seed by source: eval.json, the last scheduled evaluation, training episodes.

    An eval.json counts if it evaluates the end of the run (not an earlier checkpoint) with the same kind of
    actions, greedy or sampled, as the run's own evaluations. Scheduled evaluations of a run's first half do not count.
    """
    scores: dict[str, Source] = {}
    evaluated = seed.of(EVALUATION_RETURN)
    if evaluated.values and evaluated.steps[-1] >= _LATER_HALF * seed.steps:
        episodes = seed.of(("eval", "episodes")).values
        scores["evaluation"] = Source(evaluated.values[-1], int(episodes[-1]) if episodes else 0)
    value, at = number(seed.evaluation.get("return_mean")), number(seed.evaluation.get("checkpoint"))
    if value is not None and (at is None or at >= _LAST_PART * seed.steps) and _same_kind(run, seed.evaluation):
        scores["eval.json"] = Source(value, int(number(seed.evaluation.get("episodes")) or 0))
    if trained := seed.of(TRAINING_RETURN).values[-_LAST_ROWS:]:
        scores["training"] = Source(sum(trained) / len(trained), 0)
    return scores


def _same_kind(run: Run, evaluation: dict[str, Any]) -> bool:
    """Return whether an eval.json and the run's own evaluations are of the same kind, greedy or sampled."""
    greedy, best = evaluation.get("greedy"), run.settings.get("Evaluation.best", "").strip("'\"")
    return not isinstance(greedy, bool) or best not in ("greedy", "sampled") or greedy == (best == "greedy")


def final_score(run: Run) -> Score | None:
    """Return the final return of a run over its seeds, all from one kind of source.

    Among the sources that most seeds have, the one with the most episodes is used, and for ties the scheduled
    evaluation: a short `packtrain eval` never replaces a longer evaluation. Training episodes come last.
    """
    found = [(seed, seed_scores(run, seed)) for seed in run.seeds]

    def rank(source: str) -> tuple[int, bool, int]:
        having = [scores[source] for _, scores in found if source in scores]
        return len(having), source != "training", min((one.episodes for one in having), default=0)

    source = max(("evaluation", "eval.json", "training"), key=rank)  # for ties the first
    chosen = [(seed, scores[source]) for seed, scores in found if source in scores]
    if not chosen:
        return None
    each = tuple(one.value for _, one in chosen)
    mean, low, high = mean_interval(each)
    over = "seeds" if len(chosen) > 1 else "episodes"
    interval = (low, high) if over == "seeds" else None
    if source == "eval.json":
        interval = interval or _episode_interval(chosen[0][0].evaluation)
        text = _evaluation_text([seed.evaluation for seed, _ in chosen])
    elif source == "evaluation":
        interval = interval or _episode_interval(_last_evaluation(chosen[0][0]))
        step = max(seed.of(EVALUATION_RETURN).steps[-1] for seed, _ in chosen)
        counts = {one.episodes for _, one in chosen}
        episodes = f", {counts.pop()} episodes" if len(counts) == 1 and 0 not in counts else ""
        text = f"last evaluation during training, step {human(step)}{episodes}"
        text += " a seed" * (bool(episodes) and len(chosen) > 1)
    else:
        text = f"training episodes of the last {_LAST_ROWS} rows"
    if len(run.seeds) > len(chosen):
        text += f"; {len(chosen)} of {len(run.seeds)} seeds"
    return Score(mean, interval, over, text, each)


def _last_evaluation(seed: Seed) -> dict[str, Any]:
    """Return the numbers of the last scheduled evaluation, in the form of eval.json."""
    names = ("return_mean", "return_std", "return_ci95", "episodes")
    step = seed.of(EVALUATION_RETURN).steps[-1]
    found = {name: seed.of(("eval", name)) for name in names}
    return {name: one.values[-1] for name, one in found.items() if one.steps and one.steps[-1] == step}


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
    """Return the Student-t interval over an evaluation's episodes, or else its stored half-width or bounds.

    Files of version 0.1 have a narrower interval, with the normal distribution's 1.96 in place of t.
    """
    given, mean = evaluation.get("return_ci95"), number(evaluation.get("return_mean"))
    half_width = number(given)
    deviation, count = number(evaluation.get("return_std")), number(evaluation.get("episodes"))
    if deviation is not None and count is not None and 2 <= count == int(count):
        half_width = student_t(int(count) - 1) * deviation / math.sqrt(count)
    if half_width is not None and mean is not None:
        return mean - half_width, mean + half_width
    ends = [number(end) for end in given] if isinstance(given, list) and len(given) == 2 else []
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
        return ends[0], ends[1]
    return None
