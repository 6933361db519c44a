"""Read files of `torch.save` without executing anything in them: bounded in size, parts and instructions."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from packtrain.errors import CheckpointError
from packtrain.files import open_bounded

MOST_BYTES = 2**30  # maximum size of a file
MOST_READS = 100_000  # maximum number of reads, such as instructions of a pickle
MOST_PARTS = 2_000  # maximum number of parts of an archive
MOST_INSTRUCTIONS = 2**17  # maximum size of the pickle in an archive: a network of 40 layers takes about 2**15 bytes


def load(path: Path, system: str, allowed: Sequence[Any] = ()) -> Any:
    """Return the content of a file of `torch.save`; nothing in it is executed.

    Args:
      path: the file.
      system: whose file it should be, for messages.
      allowed: classes beside torch's that its pickle may name, as for `torch.serialization.safe_globals`.

    Raises:
      CheckpointError: it cannot be read, or needs more than tensors, plain values and the allowed classes.
    """
    try:
        with open_bounded(path, MOST_BYTES) as file, torch.serialization.safe_globals(list(allowed)):
            if zipfile.is_zipfile(file):
                _refuse_bomb(file, path, system)
            file.seek(0)
            with _Counted(io.FileIO(os.dup(file.fileno()))) as counted:
                return torch.load(counted, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # torch raises many kinds of errors for damaged or foreign files
        if needed := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise CheckpointError(
                f"{path} requires running {needed[1]!r}, and nothing in a checkpoint is executed; files of "
                f"{system} do not require this"
            ) from None
        raise CheckpointError(
            f"{path} cannot be read as a file of torch.save: it is damaged, truncated or something else"
        ) from None


class _Counted(io.BufferedReader):
    """A file with a limited number of reads: unpickling reads each instruction separately."""

    def __init__(self, raw: Any):
        super().__init__(raw)
        self._left = MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        """Read; ValueError after too many calls."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("its pickle has more instructions than a checkpoint needs")
        return super().read(size)

    def fileno(self) -> int:
        """Raise an error: with a file number, torch would unpack archives of its oldest format to disk."""
        raise io.UnsupportedOperation("fileno")


def _refuse_bomb(file: BinaryIO, path: Path, system: str) -> None:
    """Raise a CheckpointError for an archive that expands when read, or has parts that torch.save does not write."""
    file.seek(0)
    size = os.fstat(file.fileno()).st_size
    if sum(part.count(b"PK\x01\x02") for part in iter(lambda: file.read(2**20), b"")) > MOST_PARTS:
        raise CheckpointError(f"{path} has more parts than a checkpoint of {system}")
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
    packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
    if packed or sum(part.file_size for part in parts) > size:
        raise CheckpointError(f"{path} is a compressed archive, which torch.save does not write")
    if any(part.file_size > MOST_INSTRUCTIONS for part in parts if part.filename.endswith("data.pkl")):
        raise CheckpointError(f"{path} has more to unpickle than the weights and flags of a checkpoint of {system}")


def is_plain(value: Any) -> bool:
    """Return whether it is an array as modules store them: contiguous in memory, with finite numbers."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
        return False
    return value.is_floating_point() and value.is_contiguous() and bool(torch.isfinite(value).all())


def shown(value: Any) -> str:
    """Return a foreign value for a message: short, and without control characters."""
    if not is_scalar(value):
        return f"a {type(value).__name__}"
    return "".join(letter for letter in str(value)[:60] if letter.isprintable())


def is_scalar(value: Any) -> bool:
    """Return whether it is a plain value with a short text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value.bit_length() < 100
    return value is None or isinstance(value, (bool, float, str))
