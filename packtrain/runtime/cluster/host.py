"""Entry point of a worker process: report library versions, then run the worker until it ends."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import packtrain
from packtrain.runtime.messages import measure

VERSIONS = "packtrain_versions:"
"""Beginning of the name of a resource, see `resource`."""


class Result(NamedTuple):
    """What a call returns, with its measures."""

    chunks: Any
    report: Any
    size: int  # bytes of the chunks' arrays
    steps: int  # environment steps in the chunks


def versions() -> dict[str, str]:
    """Return the versions in which a driver and its workers must agree."""
    return {
        "packtrain": packtrain.__version__,
        "Python": ".".join(map(str, sys.version_info[:2])),
        "torch": ".".join(importlib.metadata.version("torch").split(".")[:2]),
    }


def resource() -> str:
    """Return the name of the Ray resource by which a node of `packtrain node` states its versions."""
    return VERSIONS + "/".join(versions().values())


def stated(resources: Iterable[str]) -> dict[str, str] | None:
    """Return the versions that a node's resources state; None if they state none."""
    found = next((name for name in resources if name.startswith(VERSIONS)), None)
    return None if found is None else dict(zip(versions(), found.removeprefix(VERSIONS).split("/"), strict=False))


def compare(driver: dict[str, str], worker: dict[str, str], node: str) -> str | None:
    """Return one sentence that names the versions that differ, or None."""
    differ = [
        f"{name} {worker.get(name, 'none')} instead of {driver[name]}"
        for name in driver
        if worker.get(name) != driver[name]
    ]
    return f"the node {node} has {' and '.join(differ)}; install the same versions on every node" if differ else None


class Host:
    """Holds one worker. It can be created and asked for its versions before anything of packtrain's is unpacked."""

    def __init__(self) -> None:
        self._worker: Any = None

    def identify(self, import_path: Sequence[str]) -> tuple[dict[str, str], int]:
        """Search modules in these folders first; return this process's library versions and its id."""
        sys.path[:0] = [path for path in import_path if path not in sys.path]
        return versions(), os.getpid()

    def build(self, build: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Build the worker."""
        self._worker = build(*arguments)

    def act(self, order: Any, version: int, weights: Any) -> Result:
        """Let the worker act; weights are None if it has this version already."""
        chunks, report = self._worker.act(order, version, weights)
        return Result(chunks, report, *measure(chunks))

    def status(self) -> int:
        """Return a number that changes while the worker makes progress."""
        return 0 if self._worker is None else int(self._worker.progress)
