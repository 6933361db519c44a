"""Functions compiled by torch: elementwise operations are fused into one kernel (Triton on a GPU, C++ on a CPU).

The first call takes a minute; what was compiled once is kept in a folder of the user's and found again. Compiled work
can be captured like any other (`accelerate/cuda_graph.py`).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from packtrain.accelerate.toolchain import find_compilers
from packtrain.errors import ConfigError

log = logging.getLogger("packtrain")
P = ParamSpec("P")
T = TypeVar("T")
_VARIANTS = 256  # maximum number of compiled variants of a function in a process, for different networks and settings


class Compiled(Generic[P, T]):
    """A function of tensors without side effects, compiled as a whole when it is first called, for those shapes."""

    def __init__(self, call: Callable[P, T], device: torch.device, wanted: bool | None):
        """Store the function; it is compiled at the first call.

        Args:
          call: the function.
          device: where its tensors are.
          wanted: whether to compile it; None: on a GPU, and where that fails it runs as it is.
        """
        self._call, self._device, self._wanted = call, device, wanted
        self._chosen: Callable[P, T] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the function returns.

        Raises:
          ConfigError: it is wanted compiled, and cannot be.
        """
        if self._chosen is not None:
            return self._chosen(*args, **kwargs)
        if not _worthwhile(self._device, self._wanted):
            self._chosen = self._call
            return self._chosen(*args, **kwargs)
        made = _compiled(self._call)
        try:
            found = made(*args, **kwargs)
        except (torch._dynamo.exc.TorchDynamoException, subprocess.SubprocessError, OSError, ImportError) as error:
            why = str(error).strip().split("\n")[0]
            if self._wanted:
                raise ConfigError(f"compile = True does not work here: {why}") from error
            _say_once(logging.WARNING, f"updates are not compiled, which would make them faster: {why}")
            self._chosen = self._call
            return self._chosen(*args, **kwargs)
        self._chosen = made
        return found


class Compiler:
    """Compiles functions when they are first called: `compiled(f)(x)` returns what `f(x)` returns."""

    def __init__(self, device: torch.device, wanted: bool | None):
        """Choose where functions are compiled.

        Args:
          device: where their tensors are.
          wanted: whether to compile them; None: on a GPU, and where that fails they run as they are.
        """
        self._device, self._wanted = device, wanted
        self._made: dict[Callable[..., Any], Compiled[..., Any]] = {}

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function in its compiled form."""
        if function not in self._made:
            self._made[function] = Compiled(function, self._device, self._wanted)
        return self._made[function]


def refuse_unless_possible(device: torch.device, wanted: bool | None) -> None:
    """Raise a ConfigError if `compile` is True on a device where torch cannot compile."""
    if wanted and (lacking := lacks(device)):
        raise ConfigError(f"compile = True needs {lacking}, which was not found; see packtrain doctor")


def lacks(device: torch.device) -> str | None:
    """Return what this machine lacks to compile for a device; None if nothing is missing."""
    if None in find_compilers():
        return "a C and a C++ compiler (gcc and g++, or CC and CXX)"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton"
    return None


def _worthwhile(device: torch.device, wanted: bool | None) -> bool:
    refuse_unless_possible(device, wanted)
    if wanted is False or (wanted is None and device.type != "cuda"):
        return False
    if lacking := lacks(device):
        _say_once(logging.WARNING, f"updates are not compiled, which would make them faster: no {lacking} here")
        return False
    _say_once(logging.INFO, "updates are compiled when the first are made, which takes about a minute")
    return True


def _compiled(call: Callable[P, T]) -> Callable[P, T]:
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_private_folder())
    options: Any = torch._dynamo.config
    options.recompile_limit = max(options.recompile_limit, _VARIANTS)
    exact = torch.backends.cudnn.deterministic  # a reproducible run must not choose kernels by measured speed
    return torch.compile(call, fullgraph=True, dynamic=False, options={"deterministic": exact})


def _private_folder() -> Path:
    """Return a private folder for compiled code: torch's default folder could have been created by another user."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "packtrain" / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid == os.getuid() and not found.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # no home folder, or one that cannot be written
        pass
    return Path(tempfile.mkdtemp(prefix="packtrain-compiled-"))


@functools.cache
def _say_once(level: int, text: str) -> None:
    log.log(level, text)
