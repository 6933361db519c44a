"""What a specification imports from mrunner, for machines without mrunner.

`create_experiments_helper` has mrunner's arguments and forms the same combinations in the same order. Nothing is
copied and nothing is sent anywhere, so that arguments about copying and about Neptune are recorded at most.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from packtrain.errors import ConfigError

PACKAGE, HELPERS = "mrunner", "mrunner.helpers"
MODULE = "mrunner.helpers.specification_helper"


@dataclass
class Experiment:
    """One experiment of a specification, with the attributes that mrunner's own class has."""

    name: str
    script: str
    parameters: dict[str, Any]
    python_path: str = ""
    tags: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    with_neptune: bool = False
    project: str | None = None
    exclude: list[str] = field(default_factory=list)


def create_experiments_helper(
    experiment_name: str,
    base_config: Mapping[str, Any],
    params_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
    script: str,
    python_path: str = "",
    tags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    project_name: str | None = None,
    exclude: Sequence[str] = (),
    with_neptune: bool = True,
    update_lambda: Callable[[dict[str, Any], Mapping[str, Any]], Any] = dict.update,
    **ignored: Any,
) -> list[Experiment]:
    """Return one experiment for each combination in the grid, each with a copy of the base configuration.

    Args:
      experiment_name: name of all experiments.
      base_config: parameters of all experiments.
      params_grid: lists of values by parameter, or several such dicts; see `combinations`.
      script: the command that mrunner would run.
      python_path: folders for the PYTHONPATH, separated by colons.
      tags: recorded with the sweep.
      env: variables of the processes.
      project_name: recorded with the sweep.
      exclude: patterns of files that mrunner would not copy; nothing is copied here.
      with_neptune: whether metrics were meant to go to Neptune, whose service has closed.
      update_lambda: sets the values of a combination in a copy of the base configuration.
      ignored: arguments of mrunner about copying, random tags and links.
    """
    found = []
    for values in combinations(params_grid):
        parameters = copy.deepcopy(dict(base_config))
        update_lambda(parameters, values)
        found.append(
            Experiment(
                name=experiment_name,
                script=script,
                parameters=parameters,
                python_path=python_path or "",
                tags=[str(tag) for tag in tags],
                env=dict(env or {}),
                with_neptune=with_neptune,
                project=project_name,
                exclude=list(exclude or ()),
            )
        )
    return found


def combinations(params_grid: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the combinations of a grid, or of several grids one after the other.

    Values of different parameters are crossed. Parameters whose names end in `___` are zipped: the first values of
    all of them belong together, then the second ones.
    """
    found = []
    for grid in [params_grid] if isinstance(params_grid, Mapping) else params_grid:
        for name, values in grid.items():
            if isinstance(values, str | Mapping) or not hasattr(values, "__len__"):
                raise ConfigError(f"params_grid: {name} = {values!r} must be a list of values")
        zipped = {name.removesuffix("___"): list(values) for name, values in grid.items() if name.endswith("___")}
        crossed = {name: list(values) for name, values in grid.items() if not name.endswith("___")}
        if len({len(values) for values in zipped.values()}) > 1:
            lengths = ", ".join(f"{name}___ has {len(values)}" for name, values in zipped.items())
            raise ConfigError(f"params_grid: names that end in ___ need lists of one length: {lengths} values")
        for together in zip(*zipped.values(), strict=True) if zipped else [()]:
            for apart in product(*crossed.values()):
                found.append(dict(zip([*zipped, *crossed], [*together, *apart], strict=True)))
    return found


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Context in which mrunner's helper can be imported: the installed one if there is one, else this module."""
    if PACKAGE in sys.modules or importlib.util.find_spec(PACKAGE) is not None:
        yield
        return
    parts = {name: types.ModuleType(name) for name in (PACKAGE, HELPERS, MODULE)}
    for name in (PACKAGE, HELPERS):
        parts[name].__path__ = []
    parts[PACKAGE].helpers = parts[HELPERS]  # type: ignore[attr-defined]
    parts[HELPERS].specification_helper = parts[MODULE]  # type: ignore[attr-defined]
    for thing in (create_experiments_helper, combinations, Experiment):
        setattr(parts[MODULE], "get_combinations" if thing is combinations else thing.__name__, thing)
    sys.modules.update(parts)
    try:
        yield
    finally:
        for name, module in parts.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
