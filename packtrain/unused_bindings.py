"""Reject bindings of the user that had no effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from packtrain import knobs
from packtrain.errors import ConfigError

if TYPE_CHECKING:
    from packtrain.config import Configuration


def refuse(configuration: Configuration, operative: Iterable[str]) -> None:
    """Raise a ConfigError if a binding that is not of a shipped file was not used.

    Args:
      configuration: the one that was built.
      operative: names of the parameters that were used, such as "long/Environment.id".
    """
    scopes: dict[tuple[str, str], set[str]] = {}  # scopes in which a parameter was used
    for name in operative:
        scope, _, rest = name.rpartition("/")
        owner, _, parameter = rest.rpartition(".")
        scopes.setdefault((owner, parameter), set()).add(scope)
    given = {key: place for key, place in configuration.where.items() if not place.startswith(knobs.SHIPPED)}
    unused = {
        key: place for key, place in given.items() if not _is_used(configuration, key, place, scopes.get(key, set()))
    }
    if unused:
        (owner, parameter), place = next(iter(unused.items()))
        name = f"{owner}.{parameter}" if owner else parameter
        more = f" (and {len(unused) - 1} more)" if len(unused) > 1 else ""
        inside = [f"{scope}/{name}" for scope in sorted(scopes.get((owner, parameter), ())) if scope]
        instead = f"; there is {', '.join(inside)}" if inside else ""
        raise ConfigError(f"{name} is set but not used in this configuration{more}{instead}; set in {place}")


def _is_used(configuration: Configuration, key: tuple[str, str], place: str, used: set[str]) -> bool:
    """Return whether a binding had an effect in one of the scopes in which its parameter was used.

    That is: in the scope it was set for, or, if set without a scope, in one that does not override it.
    """
    own: dict[str, str] = {}  # scope → place of its own binding
    for (name, of), (where, _) in configuration.scoped.items():
        scope, _, configurable = name.rpartition("/")
        if (configurable, of) == key:
            own[scope] = where
    inside = lambda scope, outer: scope == outer or scope.startswith(f"{outer}/")  # noqa: E731
    if place in own.values():
        return any(inside(scope, outer) for outer, where in own.items() if where == place for scope in used)
    return any(not any(inside(scope, outer) for outer in own) for scope in used)
