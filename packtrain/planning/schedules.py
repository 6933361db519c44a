"""Schedules: parameters that change from epoch to epoch."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, Protocol, TypeVar

from packtrain import knobs
from packtrain.config import configurable
from packtrain.errors import ConfigError

Agent = TypeVar("Agent")


class Schedule(Protocol):
    """A parameter's value in each epoch."""

    def __call__(self, epoch: int) -> float:
        """Return the value in this epoch, counted from 0."""


@configurable
@dataclasses.dataclass(frozen=True)
class LinearAnnealing:
    """Linear from `max_value` in epoch 0 to `min_value` in epoch `n_epochs`, constant after that."""

    max_value: float
    min_value: float
    n_epochs: int

    def __post_init__(self) -> None:
        if self.n_epochs < 1:
            raise ConfigError(f"LinearAnnealing.n_epochs = {self.n_epochs} must be at least 1")
        if not self.max_value >= self.min_value:
            raise ConfigError(
                f"LinearAnnealing.max_value = {self.max_value} must be at least min_value = {self.min_value}"
            )

    def __call__(self, epoch: int) -> float:
        """Return the value in this epoch."""
        share = min(epoch / self.n_epochs, 1.0)
        return (1.0 - share) * self.max_value + share * self.min_value


@configurable
@dataclasses.dataclass(frozen=True)
class RsqrtAnnealing:
    """`max_value` / √(1 + epoch / `scale`)."""

    max_value: float = 1.0
    scale: float = 1.0  # epochs after which a factor of 1/√2 is reached

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"RsqrtAnnealing.scale = {self.scale} must be above 0")

    def __call__(self, epoch: int) -> float:
        """Return the value in this epoch."""
        return self.max_value / math.sqrt(1.0 + epoch / self.scale)


def scheduled(agent: Agent, epoch: int) -> Agent:
    """Return the agent with the parameters of this epoch; the agent itself if nothing is scheduled.

    An agent's schedules are in `parameter_schedules`, {name: schedule}. A dotted name ("rollout_agent.epsilon") refers
    to a parameter of a nested agent, whose own schedules are applied first. Values for integer parameters are rounded.
    Changed agents are checked like new ones.
    """
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(agent):  # type: ignore[arg-type]
        inner = getattr(agent, field.name)
        if _is_agent(inner) and (changed := scheduled(inner, epoch)) is not inner:
            changes[field.name] = changed
    if changes:
        agent = _changed(agent, changes)
    for name, schedule in getattr(agent, "parameter_schedules", {}).items():
        agent = _with_value(agent, name.split("."), schedule(epoch))
    return agent


def scheduled_values(agent: Any, epoch: int) -> dict[str, float]:
    """Return every scheduled parameter's value in an epoch, by the dotted name of the parameter."""
    values: dict[str, float] = {}
    for field in dataclasses.fields(agent) if _is_agent(agent) else ():
        inner = getattr(agent, field.name)
        if _is_agent(inner):
            values |= {f"{field.name}.{name}": value for name, value in scheduled_values(inner, epoch).items()}
    for name in getattr(agent, "parameter_schedules", {}):
        value: Any = scheduled(agent, epoch)
        for part in name.split("."):
            value = getattr(value, part)
        values[name] = float(value)
    return values


def check_schedules(agent: Any, changeable: tuple[str, ...] | None = None) -> None:
    """Raise a ConfigError unless every scheduled name is a parameter of the agent; called by agents on construction.

    Args:
      agent: has `parameter_schedules`.
      changeable: the parameters that may be scheduled; None: all.
    """
    for path, schedule in agent.parameter_schedules.items():
        if changeable is not None and path in _names(agent) and path not in changeable:
            raise ConfigError(
                f"{_name(agent)}.parameter_schedules names {path!r}, which is fixed for a run; these may change: "
                f"{', '.join(changeable)}"
            )
        if not callable(schedule):
            raise ConfigError(f"{_name(agent)}.parameter_schedules[{path!r}] = {schedule!r} is not a schedule")
        owner = agent
        for name in path.split("."):
            known = _names(owner)
            if name not in known or name == "parameter_schedules":
                near = knobs.nearest(name, known)
                raise ConfigError(
                    f"{_name(agent)}.parameter_schedules names {path!r}, but {_name(owner)} has no parameter "
                    f"{name!r}{near}"
                )
            owner = getattr(owner, name)


def _with_value(agent: Any, path: list[str], value: float) -> Any:
    name, *rest = path
    before = getattr(agent, name)
    if rest:
        return _changed(agent, {name: _with_value(before, rest, value)})
    whole = isinstance(before, int) and not isinstance(before, bool) and _is_whole(agent, name)
    return _changed(agent, {name: round(value) if whole else value})


def _is_whole(agent: Any, name: str) -> bool:
    """Return whether a parameter is declared as an integer: 1 may stand for 1.0 where floats are expected."""
    (field,) = (field for field in dataclasses.fields(agent) if field.name == name)
    return field.type is int or str(field.type).split(" ")[0] == "int"


def _changed(agent: Any, changes: dict[str, Any]) -> Any:
    """Return a checked copy with other values.

    The constructor is not called: it would record the values as configured.
    """
    agent = copy.copy(agent)
    for name, value in changes.items():
        object.__setattr__(agent, name, value)
    if hasattr(agent, "__post_init__"):
        agent.__post_init__()
    return agent


def _is_agent(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _names(owner: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(owner)] if _is_agent(owner) else []


def _name(owner: Any) -> str:
    return type(owner).__name__
