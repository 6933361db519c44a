"""Atari suites: the games of Atari-5, Atari-10 or all 57, and a configuration's scores on them beside published ones.

    HNS = (score − random) / (human − random)        of each game, from the mean score over seeds

Atari-5 and Atari-10 estimate the median HNS over 57 games; see `packtrain/studies/atari_scores.py`. The published
scores are those that Aitchison et al. 2023 (arXiv:2210.02019) and the authors of each agent give for the five games of
Atari-5. They were made by different protocols, so that differences of a few percent mean nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from packtrain.studies.atari_scores import SCORES, SUBSETS, estimate_median, human_normalised
from packtrain.studies.comparison import FEWEST_SEEDS
from packtrain.studies.statistics import Scores, bootstrap_interval, interquartile_mean
from packtrain.studies.sweep.record import Record
from packtrain.studies.sweep.results import aligned

SUITES = {"atari5": list(SUBSETS["Atari-5"]), "atari10": list(SUBSETS["Atari-10"]), "atari57": list(SCORES)}
FRAMES_PER_STEP = 4
_NOT_CLASSIC = ("Surround",)  # games without an id of the classic protocol


class Published(NamedTuple):
    """Mean scores of one agent on the five games of Atari-5, in the order of `SUBSETS`."""

    agent: str
    frames: str  # in millions; empty if the source does not say
    scores: tuple[float, ...]
    median: int | None  # over 57 games in percent; None if it is not published


PUBLISHED = (
    Published("IMPALA deep", "200", (20_885, -0.3, 21_537, 210_996, 351_200), 192),
    Published("MonoBeast", "200", (30_266, -0.6, 12_195, 51_481, 22_034), 160),
    Published("Cleanba IMPALA", "200", (30_307, -2.9, 15_198, 43_734, 22_199), 166),
    Published("Cleanba PPO", "200", (38_075, 4.4, 12_089, 37_109, 17_050), 160),
    Published("Rainbow", "200", (62_010, -0.3, 13_136, 108_529, 33_818), 227),
    Published("BTR", "10", (34_810, -23.9, 14_228, 25_635, 4_099), None),
    Published("BTR", "50", (84_840, 0.2, 23_616, 105_371, 16_328), None),
    Published("BTR", "200", (132_230, 21.6, 28_931, 125_452, 28_705), None),
    Published("MR.Q", "10", (19_880, -11.0, 8_694, 5_174, 3_939), None),
    Published("R2D2", "", (751_880, 23.7, 58_183, 864_020, 408_850), 1_927),
)


def env_id(game: str, protocol: str) -> str:
    """Return the Gymnasium id of a game in a protocol, classic or sticky."""
    return f"{game}NoFrameskip-v4" if protocol == "classic" and game not in _NOT_CLASSIC else f"ALE/{game}-v5"


def suite_scores(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return human-normalised scores and their aggregates, 1 for a human, with bootstrap intervals over seeds.

    Args:
      results: of games, each with the returns `each` of its seeds.
    """
    games = {game: list(found["each"]) for game, found in results.items() if game in SCORES and found["each"]}
    normalised = {game: _mean_normalised(game, each) for game, each in games.items()}
    names = list(games)

    def over(statistic: Any) -> Any:
        return lambda scores: statistic(
            {game: _mean_normalised(game, each) for game, each in zip(names, scores, strict=True)}
        )

    aggregates: dict[str, Any] = {}
    here = f"{len(names)} game{'s' * (len(names) != 1)}"
    for subset in SUBSETS:
        if estimate_median(subset, normalised) is not None:
            aggregates[f"{subset} estimate of the median over 57 games"] = over(
                lambda found, subset=subset: estimate_median(subset, found)
            )
    if normalised:
        aggregates[f"median over {here}"] = over(lambda found: statistics.median(found.values()))
        aggregates[f"mean over {here}"] = over(lambda found: statistics.fmean(found.values()))
        aggregates[f"interquartile mean over {here}"] = over(
            lambda found: interquartile_mean([[value] for value in found.values()])
        )
    scores: Scores = list(games.values())
    enough = bool(scores) and min(map(len, scores)) >= FEWEST_SEEDS
    return {
        "games": {
            game: {"score": statistics.fmean(games[game]), "seeds": len(games[game]), "normalised": value}
            for game, value in normalised.items()
        },
        "aggregates": {
            name: {
                "value": statistic(scores),
                "interval": list(bootstrap_interval(statistic, scores, resamples=1000)) if enough else None,
            }
            for name, statistic in aggregates.items()
        },
    }


def _mean_normalised(game: str, each: Sequence[float]) -> float:
    return human_normalised(game, statistics.fmean(each))


def describe(record: Record, games: Sequence[str], title: str) -> list[str]:
    """Add a suite's scores to the record, and return them as lines of text, beside published ones.

    Args:
      record: of the sweep, with results by game.
      games: of the suite.
      title: what was played and how.
    """
    found = suite_scores({game: record.results[game] for game in games if game in record.results})
    record.extra["suite"] = {"title": title, **found}
    lines = [["game", "random", "human", "score", "human-normalised"]]
    for game in games:
        random, human = SCORES[game]
        own = found["games"].get(game)
        cells = [f"{own['score']:,.1f}", f"{100 * own['normalised']:.1f} %"] if own else ["-", "-"]
        lines.append([game, f"{random:,.1f}", f"{human:,.1f}", *cells])
    said = ["", title, "", aligned(lines), ""]
    for name, each in found["aggregates"].items():
        bounds = each["interval"]
        interval = f" (95 % interval {100 * bounds[0]:.1f} to {100 * bounds[1]:.1f})" if bounds else ""
        said.append(f"{name}: {100 * each['value']:.1f} %{interval}")
    missing = [game for game in games if game not in found["games"]]
    if missing:
        said.append(f"without a score: {', '.join(missing)}; estimates need all games of their list")
    return [*said, "", published_table(found)]


def published_table(found: Mapping[str, Any]) -> str:
    """Return the scores on the games of Atari-5 beside published ones, as text."""
    games = SUITES["atari5"]
    lines = [["agent", "M frames", *games, "Atari-5 estimate", "median of 57"]]
    own = found["games"]
    if any(game in own for game in games):
        estimate = found["aggregates"].get("Atari-5 estimate of the median over 57 games")
        cells = [f"{own[game]['score']:,.1f}" if game in own else "-" for game in games]
        lines.append(["these runs", "-", *cells, f"{100 * estimate['value']:.0f} %" if estimate else "-", "-"])
    for one in PUBLISHED:
        value = estimate_of(one)
        cells = [f"{score:,.1f}" if abs(score) < 100 else f"{score:,.0f}" for score in one.scores]
        lines.append(
            [one.agent, one.frames or "-", *cells, f"{100 * value:.0f} %", f"{one.median} %" if one.median else "-"]
        )
    return "published scores on Atari-5, of several protocols:\n" + aligned(lines)


def estimate_of(one: Published) -> float:
    """Return the Atari-5 estimate of a published agent's median, 1 for a human."""
    games = SUITES["atari5"]
    value = estimate_median(
        "Atari-5", {game: human_normalised(game, score) for game, score in zip(games, one.scores, strict=True)}
    )
    assert value is not None
    return value
