"""The points of a sweep: combinations of settings, each of which is trained with several seeds.

A knob is varied by a comma list, `0.001,0.003`, or, in a random search or with Optuna, by a range: `uniform:0.1:0.9`
or `log:1e-4:1e-2`. For a knob that is a whole number, so are the values in a range, bounds included.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packtrain.errors import ConfigError, Error
from packtrain.knobs import Knob

LONGEST_NAME = 100  # letters of a point's folder
_RANGE = re.compile(r"(uniform|log):([^:]+):([^:]+)")
_DIGITS = 4  # significant ones of a value from a range
_TRIES = 200  # for each point of a random search


@dataclass(frozen=True)
class Point:
    """One combination of settings."""

    name: str  # of its folder
    settings: dict[str, str]  # what distinguishes it from other points
    words: tuple[str, ...]  # arguments of `packtrain train`, without seed, device and output folder
    env: dict[str, str] = field(default_factory=dict)  # variables of its processes
    seed: int = 0  # of its first run
    trial: int | None = None  # number of Optuna's trial


@dataclass(frozen=True)
class Choice:
    """A knob that takes one of several values."""

    name: str
    values: tuple[str, ...]

    def sample(self, rng: random.Random) -> str:
        """Return one of the values."""
        return rng.choice(self.values)


@dataclass(frozen=True)
class Range:
    """A knob that takes a value between two bounds."""

    name: str
    low: float
    high: float
    log: bool
    whole: bool

    def sample(self, rng: random.Random) -> str:
        """Return a value, uniform or log-uniform."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        value = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else rng.uniform(low, high)
        return self.written(min(self.high, max(self.low, round(value) if self.whole else value)))

    def written(self, value: float) -> str:
        """Return a value as text, with few digits, so that names of folders stay short."""
        return str(round(value)) if self.whole else f"{value:.{_DIGITS}g}"


Varied = Choice | Range


def parse_value(knob: Knob, text: str) -> Varied:
    r"""Return the value, list or range in a flag's text; ConfigError if a part is not of the knob's type.

    A comma in a text is written `\,`. For a knob that is a tuple, each value of a list has brackets.
    """
    if match := _RANGE.fullmatch(text):
        return _range(knob, text, *match.groups())
    parts = _split(text)
    if knob.type is tuple and not all(part.strip()[:1] in ("(", "[") or part.strip() == "None" for part in parts):
        parts = [text]
    if any(not part.strip() for part in parts) and len(parts) > 1:
        raise ConfigError(f"--{knob.name} {text!r} has an empty value between two commas")
    values = tuple(part if knob.type is str else part.strip() for part in parts)
    for value in values:
        knob.parse(value)
    if len(set(values)) < len(values):
        raise ConfigError(f"--{knob.name} {text!r} contains a value twice")
    return Choice(knob.name, values)


def _range(knob: Knob, text: str, kind: str, low: str, high: str) -> Range:
    if knob.type not in (int, float):
        raise ConfigError(
            f"--{knob.name} {text!r} is a range, and {knob.name} is not a number but {knob.type.__name__}"
        )
    bounds = knob.parse(low), knob.parse(high)
    if not all(isinstance(bound, int | float) for bound in bounds) or not bounds[0] < bounds[1]:
        raise ConfigError(f"--{knob.name} {text!r}: the first bound must be below the second")
    if kind == "log" and bounds[0] <= 0:
        raise ConfigError(f"--{knob.name} {text!r}: the bounds of a logarithmic range must be above 0")
    return Range(knob.name, *bounds, log=kind == "log", whole=knob.type is int)


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes that have no backslash in front."""
    parts, depth, quote, part = [], 0, "", ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            following = next(letters, "")
            part += following if following == "," else letter + following
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "([{") - (letter in ")]}") if not quote else 0
        if letter == "," and depth <= 0 and not quote:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [*parts, part]


def grid(varied: Sequence[Varied]) -> list[dict[str, str]]:
    """Return all combinations, the last knob fastest; ConfigError if one of them is a range."""
    for one in varied:
        if isinstance(one, Range):
            raise ConfigError(f"--{one.name} is a range, which needs --random N or --optuna N; a grid has lists")
    names = [one.name for one in varied]
    values = [one.values for one in varied if isinstance(one, Choice)]
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def sampled(varied: Sequence[Varied], count: int, seed: int) -> list[dict[str, str]]:
    """Return different random combinations; the first ones are the same for every count.

    Args:
      varied: lists and ranges.
      count: number of combinations.
      seed: of the random numbers.
    """
    if not varied:
        raise ConfigError("a search needs a knob to vary: --KNOB A,B,C or --KNOB log:A:B")
    rng = random.Random(f"packtrain sweep {seed}")
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for _ in range(_TRIES * count):
        values = {one.name: one.sample(rng) for one in varied}
        found.setdefault(tuple(values.values()), values)
        if len(found) == count:
            return list(found.values())
    raise ConfigError(f"--random {count}: the lists and ranges have only about {len(found)} different combinations")


def folder_names(settings: Sequence[Mapping[str, str]], otherwise: str) -> list[str]:
    """Return one folder name for each point: its settings as `name=value`; shortened ones end in a digest.

    Args:
      settings: of each point.
      otherwise: the name of a point without settings.
    """
    return [_folder_name(one, otherwise) for one in settings]


def _folder_name(settings: Mapping[str, str], otherwise: str) -> str:
    raw = ",".join(f"{name}={value}" for name, value in settings.items()) or otherwise
    name = slug(raw)
    if name != raw or len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}-{digest(raw)}"
    return name


def slug(text: str) -> str:
    """Return a text as part of a path, with other characters as underscores."""
    return re.sub(r"[^\w.+=,-]+", "_", text, flags=re.ASCII).lstrip(".-") or "sweep"


def digest(*texts: str) -> str:
    """Return eight hexadecimal digits that depend on texts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:8]


def varied_settings(each: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the parameters of each experiment whose values differ between experiments, as text."""
    experiments = list(each)
    names = list(dict.fromkeys(name for one in experiments for name in one))
    texts = [{name: repr(one[name]) if name in one else "" for name in names} for one in experiments]
    differ = [name for name in names if len({text[name] for text in texts}) > 1]
    return [
        {name: str(one[name]) if isinstance(one.get(name), str) else text[name] for name in differ if name in one}
        for one, text in zip(experiments, texts, strict=True)
    ]


def refuse_duplicates(points: Sequence[Point]) -> list[Point]:
    """Return the points without repetitions; Error if two different ones have one name."""
    found: dict[str, Point] = {}
    for point in points:
        before = found.setdefault(point.name, point)
        if before.words != point.words:
            raise Error(f"two points of the sweep have the name {point.name!r}")
    return list(found.values())
