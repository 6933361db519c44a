"""What a vector of observations is made of: parts that take one of a few values each.

A core may say so with an attribute `factors`, a tuple of them that covers the vector in order. Guesses made factor by
factor are always something that could be seen: a disk is on one peg, a row is a whole number inside the room.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs.functional import Core
from packtrain.errors import EnvSetupError

MOST_VALUES = 4096  # of one coordinate: bounds beyond that say "any number", and would ask for as many logits


@dataclass(frozen=True)
class Factor:
    """A part of an observation with `size` possible values, numbered from 0: its classes.

    One-hot, `low` None: coordinates begin … begin + size − 1, of which one is 1 and the others are 0. A whole number
    otherwise: the coordinate `begin`, which holds low … low + size − 1.
    """

    begin: int
    size: int
    low: int | None = None

    def __post_init__(self) -> None:
        if self.begin < 0 or self.size < 1:
            raise EnvSetupError(f"Factor(begin={self.begin}, size={self.size}): begin is 0 or more, size 1 or more")

    @classmethod
    def one_hot(cls, begin: int, size: int) -> Factor:
        """`size` coordinates of which exactly one is 1."""
        return cls(begin, size)

    @classmethod
    def whole_number(cls, begin: int, low: int, high: int) -> Factor:
        """One coordinate between two numbers, both included."""
        return cls(begin, high - low + 1, low)

    @property
    def width(self) -> int:
        """How many coordinates it takes."""
        return self.size if self.low is None else 1


Factors = tuple[Factor, ...]


@dataclass(frozen=True)
class Layout:
    """Factors as tables over their C classes, one factor's after the other's."""

    starts: np.ndarray  # [F] the first class of each factor
    coordinate: np.ndarray  # [C] which coordinate shows a class
    value: np.ndarray  # [C] float32  by holding this number
    width: int  # D


@lru_cache(maxsize=64)
def layout(factors: Factors) -> Layout:
    """The tables; their arrays are shared and read-only."""
    starts = np.cumsum([0, *(factor.size for factor in factors)])[:-1]
    coordinate = [f.begin + (i if f.low is None else 0) for f in factors for i in range(f.size)]
    value = [1.0 if f.low is None else f.low + i for f in factors for i in range(f.size)]
    tables = (starts, np.array(coordinate, np.intp), np.array(value, np.float32))
    for table in tables:
        table.flags.writeable = False
    return Layout(*tables, sum(factor.width for factor in factors))


def factors_of(core: Core) -> Factors:
    """The core's own factors, else a whole number for each coordinate; EnvSetupError where there is no such thing.

    Bounds cannot tell whether a coordinate moves in whole steps, so a start is looked at, too.
    """
    name, space = type(core).__name__, core.observation_space
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise EnvSetupError(f"{name} cannot be taken apart into factors: observations are {space}, not vectors")
    own: Factors | None = getattr(core, "factors", None)
    if own is not None:
        checked(own, space.shape[0], name)
        return own
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    whole = np.isfinite(low) & np.isfinite(high) & (low == np.floor(low)) & (high == np.floor(high))
    if not whole.all():
        i = int(np.argmin(whole))
        raise EnvSetupError(f"{name} cannot be taken apart into factors: coordinate {i} lies in [{low[i]}, {high[i]}]")
    if (high - low >= MOST_VALUES).any():
        i = int(np.argmax(high - low))
        raise EnvSetupError(
            f"{name} cannot be taken apart into factors: coordinate {i} has {high[i] - low[i] + 1:.0f} values, "
            f"more than {MOST_VALUES}"
        )
    start = np.asarray(core.observe(core.initial(1, np.random.default_rng(0))))
    if (start != np.floor(start)).any():
        i = int(np.argmax(start[0] != np.floor(start[0])))
        raise EnvSetupError(f"{name} cannot be taken apart into factors: coordinate {i} is not a whole number")
    return tuple(Factor.whole_number(i, int(low[i]), int(high[i])) for i in range(len(low)))


def checked(factors: Factors, width: int, owner: str) -> None:
    """EnvSetupError unless the factors cover `width` coordinates in order, without gaps."""
    begin = 0
    for factor in factors:
        if factor.begin != begin:
            raise EnvSetupError(f"{owner}.factors: one begins at coordinate {factor.begin}, expected {begin}")
        begin += factor.width
    if begin != width:
        raise EnvSetupError(f"{owner}.factors cover {begin} coordinates, and the observation has {width}")


def encode(obs: Any, factors: Factors) -> np.ndarray:
    """Observations [N, D] as class numbers, int64 [N, F]; ValueError for one that is not made of these factors."""
    obs = np.asarray(obs)
    table = layout(factors)
    shown = obs[:, table.coordinate] == table.value  # [N, C]
    ends = [*table.starts[1:], shown.shape[1]]
    columns = [shown[:, a:b].argmax(axis=1) for a, b in zip(table.starts, ends, strict=True)]
    classes = np.stack(columns, axis=1).astype(np.int64)
    strange = (decode(classes, factors) != obs).any(axis=1)
    if strange.any():
        raise ValueError(f"no such observation: {obs[strange][0].tolist()}")
    return classes


def decode(classes: np.ndarray, factors: Factors) -> np.ndarray:
    """Class numbers [N, F] as observations, float32 [N, D]."""
    table = layout(factors)
    obs = np.zeros((len(classes), table.width), np.float32)
    chosen = classes + table.starts
    obs[np.arange(len(classes))[:, None], table.coordinate[chosen]] = table.value[chosen]
    return obs
