"""The abilities of `packtrain exam`, the families that are examined, and the score card. Imports no torch.

A score is (return − chance) / (optimum − chance): 0 is what random actions score, 1 the best policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packtrain import knobs
from packtrain.errors import ConfigError
from packtrain.studies.chart import escape
from packtrain.studies.statistics import mean_interval

PLANNED = "episode/return_mean"  # what the last epoch of a planner returned
EVALUATED = "return_mean"


@dataclass(frozen=True)
class Ability:
    """One environment that tests one ability."""

    name: str
    title: str
    task: str  # what has to be done, in a few words
    chance: float  # return of random actions
    optimum: float  # return of the best policy
    metric: str = EVALUATED  # of the last evaluation

    def score(self, value: float) -> float:
        """Return the normalised score of a return."""
        return (value - self.chance) / (self.optimum - self.chance)


ABILITIES = {
    one.name: one
    for one in (
        Ability("memory", "memory", "name a cue that was shown three steps before", 0.0, 1.0),
        Ability("credit", "credit assignment", "earn a reward that comes ten steps after its action", 0.25, 1.0),
        Ability("exploration", "exploration", "find a treasure behind eight right moves in a row", -0.0011, 0.99),
        Ability("stochasticity", "stochastic policy", "take an action three times in four", -0.0015, 0.6977),
        Ability("loop", "false loop", "pass a rare move that a learned model takes for a loop", 0.0, 1.0),
        Ability(
            "proxy", "proxy trap", "earn the true reward while the proxy pays for forging", 3.4496, 8.0, "reward/true"
        ),
        Ability("truncation", "truncation", "value what comes after a time limit", 8.0, 40.0),
        Ability("control", "continuous control", "bring a point to 0 and hold it", -5.56, -0.4375),
        Ability("depth", "planning depth", "solve a tower of four disks, 15 moves", 0.0003, 1.0),
        Ability("partial", "partial observability", "find a side that is seen nine times through noise", 0.0, 0.8024),
    )
}
"""The chance and the optimum of each are verified in tests/testing/test_exam_envs.py."""

FAMILIES = {
    "impala": "IMPALA",
    "ppo": "PPO",
    "dqn": "DQN",
    "r2d2": "R2D2",
    "ngu": "NGU",
    "agent57": "Agent57",
    "ddpg": "DDPG",
    "td3": "TD3",
    "sac": "SAC",
    "mve": "MVE",
    "steve": "STEVE",
    "mbpo": "MBPO",
    "pets": "PETS",
    "shooting": "random shooting, true model",
    "mcts": "MCTS, true model",
    "best_first": "best-first search, true model",
    "frontier": "tabular frontier search",
    "trusting": "search in a learned model",
    "verifying": "trust, but verify",
}


@dataclass(frozen=True)
class Cell:
    """One family at one ability."""

    family: str
    ability: str

    @property
    def config(self) -> str:
        """Return the name of the shipped configuration."""
        return f"exam/{self.family}_{self.ability}"


def cells(families: Sequence[str] = (), abilities: Sequence[str] = ()) -> list[Cell]:
    """Return the chosen cells of the card that have a configuration; without choices, all.

    Raises:
      ConfigError: a name is unknown, or no family that was chosen applies to an ability that was chosen.
    """
    for name in families:
        if name not in FAMILIES:
            near = knobs.nearest(name, list(FAMILIES))
            raise ConfigError(f"the exam has no family {name!r}{near}; there are {', '.join(FAMILIES)}")
    check_abilities(abilities)
    shipped = set(knobs.shipped())
    every = (Cell(family, ability) for family in families or FAMILIES for ability in abilities or ABILITIES)
    found = [cell for cell in every if cell.config in shipped]
    if not found:
        raise ConfigError(f"none of {', '.join(families)} applies to {', '.join(abilities)}")
    return list(dict.fromkeys(found))


def check_abilities(names: Sequence[str]) -> None:
    """Raise a ConfigError for a name that is no ability."""
    for name in names:
        if name not in ABILITIES:
            near = knobs.nearest(name, list(ABILITIES))
            raise ConfigError(f"the exam has no ability {name!r}{near}; there are {', '.join(ABILITIES)}")


def value_in(rows: Sequence[dict[str, Any]], ability: Ability) -> float | None:
    """Return the value of an ability in the last evaluation, or the last epoch of a planner, of a run's rows."""
    for kind, name in (("eval", ability.metric), ("planning", PLANNED)):
        values = [row[name] for row in rows if row["kind"] == kind and isinstance(row.get(name), (int, float))]
        if values:
            return float(values[-1])
    return None


def summarise(scores: dict[Cell, dict[int, float]]) -> list[dict[str, Any]]:
    """Return the lines of the card: of each cell the mean score and its 95 % Student interval over seeds."""
    lines = []
    for cell, by_seed in scores.items():
        if by_seed:
            values = [by_seed[seed] for seed in sorted(by_seed)]
            mean, low, high = mean_interval(values)
            lines.append(
                {
                    "family": cell.family,
                    "ability": cell.ability,
                    "config": cell.config,
                    "score": round(mean, 4),
                    "low": None if math.isnan(low) or len(values) < 2 else round(low, 4),
                    "high": None if math.isnan(high) or len(values) < 2 else round(high, 4),
                    "seeds": {str(seed): round(by_seed[seed], 4) for seed in sorted(by_seed)},
                }
            )
    return lines


def _axes(lines: Sequence[dict[str, Any]]) -> tuple[dict[tuple[str, str], dict[str, Any]], list[str], list[str]]:
    """Return the lines by family and ability, and the families and abilities that they have, in the card's order."""
    found = {(line["family"], line["ability"]): line for line in lines}
    given = dict.fromkeys(family for family, _ in found)
    families = [family for family in FAMILIES if family in given] + [one for one in given if one not in FAMILIES]
    return found, families, [ability for ability in ABILITIES if any(key[1] == ability for key in found)]


def title_of(family: str) -> str:
    """Return the name on the card of a family, or of a configuration that belongs to none."""
    return FAMILIES.get(family, family)


def _half(line: dict[str, Any]) -> float:
    """Return half of the interval's width; 0 if there is none."""
    return 0.0 if line["low"] is None else (line["high"] - line["low"]) / 2


def _shown(line: dict[str, Any] | None) -> str:
    if line is None:
        return "·"
    half = _half(line)
    return f"{line['score']:.2f}".replace("-", "−") + (f" ±{half:.2f}" if half >= 0.005 else "")


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the card as text: a row per family, a column per ability."""
    found, families, abilities = _axes(lines)
    heads = ["", *(ABILITIES[ability].title for ability in abilities)]
    rows = [[title_of(family), *(_shown(found.get((family, one))) for one in abilities)] for family in families]
    widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
    lines_of = [
        "  ".join(
            text.ljust(width) if k == 0 else text.rjust(width)
            for k, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [heads, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines_of)


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """Return the card as a Markdown table."""
    found, families, _ = _axes(lines)
    heads = ["", *(ability.title for ability in ABILITIES.values())]
    rows = [
        [title_of(family), *(_shown(found.get((family, one))).replace("·", "") for one in ABILITIES)]
        for family in families
    ]
    parts = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(" ".join(part.split()) for part in parts)


_LOW, _HIGH = (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)  # Okabe and Ito's vermilion and blue, as in chart.PALETTE
_WHITE = (0xFF, 0xFF, 0xFF)


def _colour(score: float) -> tuple[str, str]:
    """Return the colours of a square and of the text in it: white at 0, blue at 1, vermilion at −1 and below."""
    share = max(-1.0, min(1.0, score))
    end = _HIGH if share >= 0 else _LOW
    mixed = [round(w + (e - w) * abs(share)) for w, e in zip(_WHITE, end, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed), "#ffffff" if abs(share) > 0.6 else "#1d2430"


def picture(lines: Sequence[dict[str, Any]], caption: str = "") -> str:
    """Return the card as a standalone SVG: a square per cell, with its score and interval in it."""
    found, families, abilities = _axes(lines)
    left, top, width, height = 190, 74, 76, 30
    full = left + width * len(abilities) + 12, top + height * len(families) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full[0]} {full[1]}" width="{full[0]}" '
        f'height="{full[1]}" role="img" aria-label="Scores of packtrain exam by family and ability" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#1d2430">',
        f'<rect width="{full[0]}" height="{full[1]}" fill="#ffffff"/>',
        '<text x="12" y="20" font-size="14" font-weight="600">0 = random actions, 1 = best policy</text>',
    ]
    for column, name in enumerate(abilities):
        x = left + width * column + width / 2
        words = ABILITIES[name].title.split()
        for k, word in enumerate(words):
            y = top - 8 - 14 * (len(words) - 1 - k)
            parts.append(f'<text x="{x:.0f}" y="{y}" text-anchor="middle" font-size="11">{escape(word)}</text>')
    for row, family in enumerate(families):
        y = top + height * row
        parts.append(f'<text x="{left - 10}" y="{y + 19}" text-anchor="end">{escape(title_of(family))}</text>')
        for column, name in enumerate(abilities):
            if (line := found.get((family, name))) is not None:
                parts.append(_square(line, left + width * column, y, width, height))
    parts.append(f'<text x="12" y="{full[1] - 14}" font-size="11" opacity="0.75">{escape(caption)}</text></svg>')
    return "".join(parts) + "\n"


def _square(line: dict[str, Any], x: int, y: int, width: int, height: int) -> str:
    fill, ink = _colour(line["score"])
    seeds = ", ".join(f"seed {seed}: {value:.2f}" for seed, value in line["seeds"].items())
    tip = f"{title_of(line['family'])}, {ABILITIES[line['ability']].title}: {_shown(line)} ({seeds})"
    return (
        f"<g><title>{escape(tip)}</title>"
        f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" rx="3" '
        f'fill="{fill}" stroke="#1d2430" stroke-opacity="0.15"/><text x="{x + width / 2:.0f}" y="{y + 19}" '
        f'text-anchor="middle" font-size="11" fill="{ink}">{escape(_shown(line))}</text></g>'
    )
