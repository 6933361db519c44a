"""Factors of a vector observation: parts that take one of a few values each.

A core may declare them in the attribute `factors`, a tuple that covers the vector in order. Predictions made factor by
factor are always valid observations: a disk is on one peg, a row is a whole number inside the room.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs.functional import Core
from packtrain.errors import EnvSetupError

# Largest number of values of a coordinate; wider bounds mean "any number" and would need as many logits.
MOST_VALUES = 4096


@dataclass(frozen=True)
class Factor:
    """A part of an observation with `size` possible values, numbered from 0: its classes.

    If `low` is None the factor is one-hot: of the coordinates begin … begin + size − 1 one is 1 and the others are 0.
    Otherwise it is a whole number: the coordinate `begin`, which holds low … low + size − 1.
    """

    begin: int
    size: int
    low: int | None = None

    def __post_init__(self) -> None:
        if self.begin < 0 or self.size < 1:
            raise EnvSetupError(f"Factor(begin={self.begin}, size={self.size}): begin is 0 or more, size 1 or more")

    @classmethod
    def one_hot(cls, begin: int, size: int) -> Factor:
        """Return the factor of `size` coordinates of which exactly one is 1."""
        return cls(begin, size)

    @classmethod
    def whole_number(cls, begin: int, low: int, high: int) -> Factor:
        """Return the factor of one coordinate between two numbers, both included."""
        return cls(begin, high - low + 1, low)

    @property
    def width(self) -> int:
        """Return the number of coordinates."""
        return self.size if self.low is None else 1


Factors = tuple[Factor, ...]


@dataclass(frozen=True)
class Layout:
    """Factors as tables over their C classes, one factor after the other."""

    starts: np.ndarray  # [F] first class of each factor
    coordinate: np.ndarray  # [C] coordinate of each class
    value: np.ndarray  # [C] float32 value of that coordinate
    width: int  # D


@lru_cache(maxsize=64)
def layout(factors: Factors) -> Layout:
    """Return the tables of factors; their arrays are shared and read-only."""
    starts = np.cumsum([0, *(factor.size for factor in factors)])[:-1]
    coordinate = [f.begin + (i if f.low is None else 0) for f in factors for i in range(f.size)]
    value = [1.0 if f.low is None else f.low + i for f in factors for i in range(f.size)]
    tables = (starts, np.array(coordinate, np.intp), np.array(value, np.float32))
    for table in tables:
        table.flags.writeable = False
    return Layout(*tables, sum(factor.width for factor in factors))


def factors_of(core: Core) -> Factors:
    """Return the core's own factors, or a whole number for each coordinate; EnvSetupError if it has neither.

    Bounds do not show whether a coordinate takes whole numbers only, so a start observation is checked, too.
    """
    name, space = type(core).__name__, core.observation_space
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise EnvSetupError(f"{name} cannot be split into factors: observations are {space}, not vectors")
    own: Factors | None = getattr(core, "factors", None)
    if own is not None:
        checked(own, space.shape[0], name)
        return own
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    whole = np.isfinite(low) & np.isfinite(high) & (low == np.floor(low)) & (high == np.floor(high))
    if not whole.all():
        i = int(np.argmin(whole))
        raise EnvSetupError(f"{name} cannot be split into factors: coordinate {i} lies in [{low[i]}, {high[i]}]")
    if (high - low >= MOST_VALUES).any():
        i = int(np.argmax(high - low))
        raise EnvSetupError(
            f"{name} cannot be split into factors: coordinate {i} has {high[i] - low[i] + 1:.0f} values, more than "
            f"{MOST_VALUES}"
        )
    start = np.asarray(core.observe(core.initial(1, np.random.default_rng(0))))
    if (start != np.floor(start)).any():
        i = int(np.argmax(start[0] != np.floor(start[0])))
        raise EnvSetupError(f"{name} cannot be split into factors: coordinate {i} is not a whole number")
    return tuple(Factor.whole_number(i, int(low[i]), int(high[i])) for i in range(len(low)))


def checked(factors: Factors, width: int, owner: str) -> None:
    """Return the factors; EnvSetupError unless they cover `width` coordinates in order, without gaps."""
    begin = 0
    for factor in factors:
        if factor.begin != begin:
            raise EnvSetupError(f"{owner}.factors: one begins at coordinate {factor.begin}, expected {begin}")
        begin += factor.width
    if begin != width:
        raise EnvSetupError(f"{owner}.factors cover {begin} coordinates, but the observation has {width}")


def encode(obs: Any, factors: Factors) -> np.ndarray:
    """Return observations [N, D] as class numbers, int64 [N, F]; ValueError if one does not match the factors."""
    obs = np.asarray(obs)
    table = layout(factors)
    shown = obs[:, table.coordinate] == table.value  # [N, C]
    ends = [*table.starts[1:], shown.shape[1]]
    columns = [shown[:, a:b].argmax(axis=1) for a, b in zip(table.starts, ends, strict=True)]
    classes = np.stack(columns, axis=1).astype(np.int64)
    strange = (decode(classes, factors) != obs).any(axis=1)
    if strange.any():
        raise ValueError(f"an observation does not match the factors: {obs[strange][0].tolist()}")
    return classes


def decode(classes: np.ndarray, factors: Factors) -> np.ndarray:
    """Return class numbers [N, F] as observations, float32 [N, D]."""
    table = layout(factors)
    obs = np.zeros((len(classes), table.width), np.float32)
    chosen = classes + table.starts
    obs[np.arange(len(classes))[:, None], table.coordinate[chosen]] = table.value[chosen]
    return obs
