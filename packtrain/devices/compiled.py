"""Work that torch compiles: what stands between two products becomes one kernel, on a GPU by Triton, on a CPU by C++.

The first call takes a minute; what was compiled once is kept in a folder of the user's and found again. Compiled work
can be captured like any other (`devices/captured.py`).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from packtrain.errors import ConfigError

log = logging.getLogger("packtrain")
P = ParamSpec("P")
T = TypeVar("T")
_VARIANTS = 256  # of one function in a process: networks and settings it was compiled for


def worthwhile(device: torch.device, wanted: bool | None) -> bool:
    """Whether to compile for a device; where nobody said, on a GPU that can.

    Raises:
      ConfigError: somebody wants it, and it cannot be.
    """
    if wanted is False or (wanted is None and device.type != "cuda"):
        return False
    lacking = _lacking(device)
    if lacking is None:
        _say_once(logging.INFO, "updates are compiled when the first are made, which takes about a minute")
        return True
    if wanted:
        raise ConfigError(f"compile = True needs {lacking}, which is not here; packtrain doctor says more")
    _say_once(logging.WARNING, f"updates are not compiled, which would make them faster: {lacking} is not here")
    return False


def compiled(call: Callable[P, T]) -> Callable[P, T]:
    """The same function of tensors, compiled as a whole when it is first called, for the shapes it is called with."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_private_folder())
    options: Any = torch._dynamo.config
    options.recompile_limit = max(options.recompile_limit, _VARIANTS)
    return torch.compile(call, fullgraph=True, dynamic=False)


def _lacking(device: torch.device) -> str | None:
    if shutil.which(os.environ.get("CXX", "g++")) is None or shutil.which(os.environ.get("CC", "gcc")) is None:
        return "a C and C++ compiler"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton"
    return None


def _private_folder() -> Path:
    """Where torch keeps what it compiled, and runs it from: its own choice is a folder that others may have made."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "packtrain" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written
        return Path(tempfile.mkdtemp(prefix="packtrain-compiled-"))
    return folder


@functools.cache
def _say_once(level: int, text: str) -> None:
    log.log(level, text)
