"""Two methods by their final scores, in numbers: means, interquartile means, intervals and the chance to be better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packtrain.errors import ConfigError
from packtrain.metrics.intervals import student_t
from packtrain.metrics.reading import read_metrics, seed_folders
from packtrain.studies.report_data import config_of, environment_of
from packtrain.studies.statistics import (
    bootstrap_interval,
    interquartile_mean,
    mean_interval,
    probability_of_improvement,
)

_NONE = (math.nan, math.nan)


class Comparison(NamedTuple):
    """What `compare` found. Intervals are 95 %: Student's t for means, stratified bootstrap for the probability.

    With a single seed of either method the intervals and the probability are NaN: one seed says nothing about others.
    """

    scores: tuple[list[float], list[float]]  # the last evaluation's mean return of each seed
    means: tuple[float, float]
    mean_intervals: tuple[tuple[float, float], tuple[float, float]]
    interquartile_means: tuple[float, float]
    difference: float  # of the means, first minus second
    difference_interval: tuple[float, float]  # Welch's, for unequal variances
    probability_of_improvement: float  # that a seed of the first scores higher than one of the second
    probability_interval: tuple[float, float]  # too narrow with fewer than about ten seeds


def compare(first: Any, second: Any, metric: str = "return_mean") -> Comparison:
    """Compare two methods by the last evaluations of their runs.

    Args:
      first: runs or run folders of the first method, one for each seed; or one folder with seed_K folders.
      second: likewise.
      metric: of the evaluation.

    Raises:
      ConfigError: a run has no such evaluation, or the runs have different environments.
    """
    folders = _folders(first), _folders(second)
    _refuse_mixed([*folders[0], *folders[1]])
    ours, theirs = ([_score(folder, metric) for folder in each] for each in folders)
    of_means = [mean_interval(scores) for scores in (ours, theirs)]
    enough = min(len(ours), len(theirs)) > 1
    return Comparison(
        scores=(ours, theirs),
        means=(of_means[0][0], of_means[1][0]),
        mean_intervals=(of_means[0][1:], of_means[1][1:]),
        interquartile_means=(interquartile_mean([ours]), interquartile_mean([theirs])),
        difference=of_means[0][0] - of_means[1][0],
        difference_interval=difference_interval(ours, theirs) if enough else _NONE,
        probability_of_improvement=probability_of_improvement([ours], [theirs]) if enough else math.nan,
        probability_interval=bootstrap_interval(probability_of_improvement, [ours], [theirs]) if enough else _NONE,
    )


def difference_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return Welch's 95 % t interval of the difference of two means, first minus second.

    The degrees of freedom of Welch and Satterthwaite are rounded down, which widens the interval a little.

    Args:
      first: two values or more.
      second: two values or more.
    """
    means, errors = [], []
    for values in (first, second):
        mean = math.fsum(values) / len(values)
        means.append(mean)
        errors.append(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    difference, error = means[0] - means[1], sum(errors)
    if error == 0:
        return difference, difference
    parts = sum(own**2 / (len(values) - 1) for own, values in zip(errors, (first, second), strict=True))
    half_width = student_t(max(1, math.floor(error**2 / parts))) * math.sqrt(error)
    return difference - half_width, difference + half_width


def _folders(runs: Any) -> list[Path]:
    """Return the folders of all seeds of a method."""
    several: Sequence[Any] = runs if isinstance(runs, (list, tuple)) else [runs]
    found = [folder for run in several for folder in seed_folders(Path(getattr(run, "path", run)))]
    if not found:
        raise ConfigError("compare needs at least one run of each method")
    return found


def _refuse_mixed(folders: Sequence[Path]) -> None:
    """Raise a ConfigError if runs were trained on different environments."""
    found = {environment_of(config_of(folder)): folder for folder in folders}
    if len(found) > 1:
        (one, here), (other, there) = list(found.items())[:2]
        raise ConfigError(
            f"{here} was trained on {one!r} and {there} on {other!r}: compare runs of one environment, or use "
            "packtrain.report, which has a section for each"
        )


def _score(folder: Path, metric: str) -> float:
    """Return the metric in the last evaluation of a run."""
    rows = [row for row in read_metrics(folder) if row["kind"] == "eval" and metric in row]
    if not rows:
        raise ConfigError(f"{folder} has no evaluation with {metric!r}; train it with eval_every above 0")
    return float(rows[-1][metric])
