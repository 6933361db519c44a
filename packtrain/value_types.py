"""Check values against the annotations of parameters, and write values as configuration files do. Without gin."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from dataclasses import is_dataclass
from typing import Any, TypeVar


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type; annotations that cannot be checked fit every value."""
    origin = typing.get_origin(hint)
    if hint is Any or isinstance(hint, (str, TypeVar)):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if origin in (tuple, list):
        inner = typing.get_args(hint) or (Any, ...)
        if origin is tuple and inner[-1] is not ...:  # each element has its own type
            same_length = isinstance(value, (tuple, list)) and len(value) == len(inner)
            return same_length and all(fits(item, each) for item, each in zip(value, inner, strict=True))
        return isinstance(value, (tuple, list)) and all(fits(item, inner[0]) for item in value)
    if origin is dict:
        inner = typing.get_args(hint)[1:] or (Any,)
        return isinstance(value, dict) and all(fits(item, inner[0]) for item in value.values())
    if origin is not None:  # Callable and the like
        return True
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if inspect.isclass(hint) and getattr(hint, "_is_protocol", False):
        return not isinstance(value, (str, int, float, bool, type(None)))
    return isinstance(value, hint) if inspect.isclass(hint) else True


def describe(hint: Any) -> str:
    """Return an annotation in words, such as "a whole number or None"."""
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(describe(option) for option in typing.get_args(hint))
    plain = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}
    return plain.get(hint, f"a {getattr(hint, '__name__', hint)}")


def written(value: Any) -> str:
    """Return a value as written in a configuration file; a built object as a reference to its name."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return f"@{value.__name__}"
    if is_dataclass(value):
        return f"@{type(value).__name__}()"
    if isinstance(value, dict):
        # The order in which they were written is irrelevant.
        items = sorted(value.items(), key=lambda pair: repr(pair[0]))
        return "{" + ", ".join(f"{key!r}: {written(item)}" for key, item in items) + "}"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(written(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return repr(value)


def is_literal(text: str) -> bool:
    """Return whether a text is a Python literal."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True
