"""Two methods by their final scores, in numbers: means, interquartile means, intervals and the chance to be better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packtrain.errors import ConfigError
from packtrain.metrics.reading import read_metrics, seed_folders
from packtrain.studies.statistics import (
    bootstrap_interval,
    interquartile_mean,
    mean_interval,
    probability_of_improvement,
)


class Comparison(NamedTuple):
    """Result of `compare`. Intervals are 95 %: Student's t for means, stratified bootstrap for the others."""

    scores: tuple[list[float], list[float]]  # the last evaluation's mean return of each seed
    means: tuple[float, float]
    mean_intervals: tuple[tuple[float, float], tuple[float, float]]
    interquartile_means: tuple[float, float]
    difference: float  # difference of the means, first minus second
    difference_interval: tuple[float, float]
    probability_of_improvement: float  # probability that a seed of the first scores higher than one of the second
    probability_interval: tuple[float, float]


def compare(first: Any, second: Any, metric: str = "return_mean") -> Comparison:
    """Compare two methods by the last evaluations of their runs.

    Args:
      first: runs or run folders of the first method, one for each seed; or one folder with seed_K folders.
      second: likewise.
      metric: of the evaluation.
    """
    ours, theirs = _scores(first, metric), _scores(second, metric)
    of_means = [mean_interval(scores) for scores in (ours, theirs)]

    def difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
        return sum(a[0]) / len(a[0]) - sum(b[0]) / len(b[0])

    return Comparison(
        scores=(ours, theirs),
        means=(of_means[0][0], of_means[1][0]),
        mean_intervals=(of_means[0][1:], of_means[1][1:]),
        interquartile_means=(interquartile_mean([ours]), interquartile_mean([theirs])),
        difference=difference([ours], [theirs]),
        difference_interval=bootstrap_interval(difference, [ours], [theirs]),
        probability_of_improvement=probability_of_improvement([ours], [theirs]),
        probability_interval=bootstrap_interval(probability_of_improvement, [ours], [theirs]),
    )


def _scores(runs: Any, metric: str) -> list[float]:
    """The metric in the last evaluation of each run."""
    several: Sequence[Any] = runs if isinstance(runs, (list, tuple)) else [runs]
    folders = [folder for run in several for folder in seed_folders(Path(getattr(run, "path", run)))]
    found = []
    for folder in folders:
        rows = [row for row in read_metrics(folder) if row["kind"] == "eval" and metric in row]
        if not rows:
            raise ConfigError(f"{folder} has no evaluation with {metric!r}; train it with eval_every above 0")
        found.append(float(rows[-1][metric]))
    if not found:
        raise ConfigError("compare needs at least one run of each method")
    return found
