"""Methods compared by their final returns: interquartile means, performance profiles, probability of improvement.

After Agarwal et al. 2021 (arXiv:2108.13264). Within one environment the scores are final returns. Over several
environments they are normalised: human-normalised if all are Atari games, otherwise from 0 for the lowest final
return of any seed in an environment to 1 for the highest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packtrain.studies.atari_scores import SUBSETS, estimate_median, game_of, human_normalised
from packtrain.studies.report_charts import Chart, Line
from packtrain.studies.report_data import Run, final_score
from packtrain.studies.statistics import (
    Scores,
    bootstrap_interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)

FEWEST_SEEDS = 3  # for a bootstrap over seeds
MOST_METHODS = 8  # maximum number in a table of pairs and in a chart of profiles
_RESAMPLES = 2000
_ALL_RESAMPLES = 200_000  # bootstrap samples of all intervals of a page
_THRESHOLDS = 101

Estimate = tuple[float, tuple[float, float] | None]
"""A statistic and its 95 % bootstrap interval, if there are enough seeds."""


@dataclass(frozen=True)
class Method:
    """One line of a comparison: scores of every seed in every task."""

    name: str
    colour: int
    tasks: tuple[str, ...]
    scores: Scores

    @property
    def has_seeds(self) -> bool:
        """Return whether every task has enough seeds for a bootstrap."""
        return all(len(task) >= FEWEST_SEEDS for task in self.scores)


def methods_of(runs: Sequence[Run]) -> list[Method]:
    """Return the runs of one environment that have a final return, as methods of one task."""
    found = [(run, score) for run in runs if (score := final_score(run))]
    return [Method(run.name, run.colour, (run.environment,), (score.each,)) for run, score in found]


def methods_over(environments: Mapping[str, Sequence[Run]], compared: bool) -> list[Method]:
    """Return methods over all environments with normalised scores; none if it is unclear which runs belong together.

    Args:
      environments: the runs of each.
      compared: whether --compare is set, so that runs of one name are one method. Otherwise all runs are one method if
        no
        environment has two of them.
    """
    if not compared and any(len(runs) > 1 for runs in environments.values()):
        return []
    rows: dict[str, dict[str, tuple[float, ...]]] = {}
    for environment, runs in environments.items():
        for run in runs:
            if score := final_score(run):
                rows.setdefault(run.name if compared else "these runs", {})[environment] = score.each
    common = [name for name in environments if name and all(name in row for row in rows.values())]
    if len(common) < 2:
        return []
    atari = all(game_of(name) for name in common)
    normalised: dict[str, list[tuple[float, ...]]] = {name: [] for name in rows}
    for environment in common:
        pooled = [value for row in rows.values() for value in row[environment]]
        low, high = min(pooled), max(pooled)
        for name, row in rows.items():
            if game := game_of(environment) if atari else None:
                scores = tuple(human_normalised(game, value) for value in row[environment])
            else:
                scores = tuple((value - low) / (high - low) if high > low else 0.5 for value in row[environment])
            normalised[name].append(scores)
    if len(rows) < 2 and not atari:
        return []
    return [Method(name, place, tuple(common), scores) for place, (name, scores) in enumerate(normalised.items())]


def central(method: Method, of_methods: int = 1) -> Estimate:
    """Return the interquartile mean of a method's scores."""
    value = interquartile_mean(method.scores)
    if not method.has_seeds:
        return value, None
    resamples = max(200, min(_RESAMPLES, _ALL_RESAMPLES // of_methods))
    return value, bootstrap_interval(interquartile_mean, method.scores, resamples=resamples)


def best_of(methods: Sequence[Method]) -> list[Method]:
    """Return the methods with enough seeds and the highest interquartile means, best first, as many as a table has."""
    ranked = sorted(
        (method for method in methods if method.has_seeds), key=lambda method: -interquartile_mean(method.scores)
    )
    return ranked[:MOST_METHODS]


def improvement(first: Method, second: Method) -> Estimate:
    """Return the probability that a seed of the first method scores higher than one of the second."""
    value = probability_of_improvement(first.scores, second.scores)
    return value, bootstrap_interval(probability_of_improvement, first.scores, second.scores, resamples=1000)


def profile_chart(methods: Sequence[Method], axis: str) -> Chart:
    """Draw the fraction of seeds (and tasks) whose score is above each threshold.

    Args:
      methods: drawn in this order.
      axis: name of the scores.
    """
    values = [value for method in methods for task in method.scores for value in task]
    low, high = min(values), max(values)
    air = 0.02 * (high - low) or 1.0
    span = high - low + 2 * air
    thresholds = [low - air + span * k / (_THRESHOLDS - 1) for k in range(_THRESHOLDS)]
    nothing = [float("nan")] * _THRESHOLDS
    lines = [
        Line(method.name, method.colour, 0, thresholds, nothing, performance_profile(method.scores, thresholds))
        for method in methods
    ]
    return Chart(
        "Performance profile", f"share of seeds above a {axis}", "performance profile", lines, False, True, axis
    )


# Atari


@dataclass(frozen=True)
class AtariScores:
    """The human-normalised scores of one method, 1 for a human, and the estimates of the median over 57 games."""

    method: str
    games: dict[str, float]
    estimates: dict[str, float | None]


def atari_scores(environments: Mapping[str, Sequence[Run]], compared: bool) -> list[AtariScores]:
    """Return human-normalised scores by method of all Atari games among the environments.

    Args:
      environments: the runs of each.
      compared: as in `methods_over`. Without it each run is a separate method in games with several runs.
    """
    several = any(len(runs) > 1 for runs in environments.values())
    found: dict[str, dict[str, float]] = {}
    for environment, runs in environments.items():
        if game := game_of(environment):
            for run in runs:
                if score := final_score(run):
                    name = run.name if compared or several else "these runs"
                    found.setdefault(name, {})[game] = human_normalised(game, score.mean)
    return [
        AtariScores(name, games, {subset: estimate_median(subset, games) for subset in SUBSETS})
        for name, games in found.items()
    ]
