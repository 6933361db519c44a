"""Range checks of settings: errors of one line with the name of the setting. None is always accepted."""

from __future__ import annotations

from typing import Any

from packtrain.errors import ConfigError


def positive(settings: Any, *names: str, end: str = "") -> None:
    """Raise a ConfigError unless these values are above 0; `end` is added to the message, such as ", or None"."""
    _check(settings, names, lambda value: value > 0, f"must be above 0{end}")


def not_negative(settings: Any, *names: str, end: str = "") -> None:
    """Raise a ConfigError unless these values are at least 0."""
    _check(settings, names, lambda value: value >= 0, f"must not be negative{end}")


def at_least(settings: Any, least: int, *names: str, end: str = "") -> None:
    """Raise a ConfigError unless these values are at least `least`."""
    _check(settings, names, lambda value: value >= least, f"must be at least {least}{end}")


def each_at_least(settings: Any, least: int, *names: str) -> None:
    """Raise a ConfigError unless every number in these tuples is at least `least`."""
    _check(settings, names, lambda values: all(value >= least for value in values), f"must be at least {least} each")


def share(settings: Any, *names: str) -> None:
    """Raise a ConfigError unless these values lie in [0, 1]."""
    _check(settings, names, lambda value: 0 <= value <= 1, "must lie between 0 and 1")


def _check(settings: Any, names: tuple[str, ...], holds: Any, wanted: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not holds(value):
            raise ConfigError(f"{type(settings).__name__}.{name} = {value} {wanted}")
