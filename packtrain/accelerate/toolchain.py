"""Search for compilers as torch does; standard library only, since the doctor also runs where torch does not import."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple


class Compilers(NamedTuple):
    """Paths of the programs that torch.compile calls; None: there is none."""

    c: str | None  # used by Triton to build its launchers
    cxx: str | None  # used to compile code for a CPU


def find_compilers() -> Compilers:
    """Return the compilers of this machine: those that CC and CXX name, else gcc or clang, and g++."""
    c = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("clang")
    return Compilers(c, shutil.which(os.environ.get("CXX", "g++")))
