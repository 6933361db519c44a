"""Checks of the options of cores and environments; each raises an error of one line."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from packtrain.errors import EnvSetupError


def whole_number(owner: str, name: str, value: Any, least: int) -> int:
    """Return `value` as an int; EnvSetupError unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise EnvSetupError(f"{owner}({name}={value!r}): {name} must be a whole number, {least} or more")
    return int(value)


def number(owner: str, name: str, value: Any) -> float:
    """Return `value` as a float; EnvSetupError unless it is a finite number."""
    known = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not known or not math.isfinite(value):
        raise EnvSetupError(f"{owner}({name}={value!r}): {name} must be a finite number")
    return float(value)


def fraction(owner: str, name: str, value: Any) -> float:
    """Return `value` as a float; EnvSetupError unless it is a number from 0 to 1."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or math.isnan(value) or not 0 <= value <= 1:
        raise EnvSetupError(f"{owner}({name}={value!r}): {name} must be a number from 0 to 1")
    return float(value)


def one_of(owner: str, name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """Return `value`; EnvSetupError unless it is among `allowed`."""
    choices = tuple(allowed)
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        names = ", ".join(map(repr, choices))
        raise EnvSetupError(f"{owner}({name}={value!r}): {name} must be one of {names}")
    return value
