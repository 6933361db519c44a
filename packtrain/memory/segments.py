"""What a large memory holds, on disk beside the checkpoints: files of many rows that are written once, never changed.

Rows are numbered since the beginning of a run. Segment k holds rows k · rows to (k + 1) · rows − 1. A checkpoint refers
to segments by name and SHA-256 and holds the rest itself, so that gigabytes are not copied into each of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from packtrain.errors import CheckpointError
from packtrain.files import write_whole

Rows = dict[str, Tensor]
SEGMENT_ROWS = 65_536


class Segments:
    """The segments of one memory. Nothing that is read can run code."""

    def __init__(self, folder: Path, rows: int = SEGMENT_ROWS):
        """The folder is made when the first segment is written.

        Args:
          folder: RUN/replay/NAME.
          rows: in each segment.
        """
        self._folder, self.rows = folder, rows
        self._written: dict[int, dict[str, Any]] = {}  # number → what a checkpoint says of it

    def write(self, number: int, content: Rows) -> None:
        """Write a segment, unless it is there: rows never change. Each leaf is [rows, ...]."""
        if number in self._written:
            return
        name = f"{number:08}.safetensors"
        data = save({leaf: value.contiguous() for leaf, value in content.items()})
        write_whole(self._folder / name, data)
        self._written[number] = {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def described(self, first: int, end: int) -> list[dict[str, Any]]:
        """What a checkpoint says of segments `first` to `end` − 1, which have been written."""
        return [{"number": number, **self._written[number]} for number in range(first, end)]

    def read_verified(self, description: dict[str, Any]) -> bytes:
        """The bytes of a segment as a checkpoint describes it; CheckpointError if it is not there or not whole."""
        name = description["name"]
        if "/" in name or name.startswith("."):
            raise CheckpointError(f"a checkpoint refers to {name!r}, which is not a plain file name")
        path = self._folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}, which the checkpoint refers to, cannot be read: {error.strerror}") from None
        if len(data) != description["bytes"] or hashlib.sha256(data).hexdigest() != description["sha256"]:
            raise CheckpointError(f"{path} is damaged: it is not what the checkpoint refers to")
        return data

    def read(self, description: dict[str, Any]) -> Rows:
        """A segment as a checkpoint describes it, verified; CheckpointError if it is not there or not whole."""
        data = self.read_verified(description)
        try:
            content = load(data)
        except SafetensorError as error:
            raise CheckpointError(
                f"{self._folder / description['name']} does not read as a segment: {error}"
            ) from error
        self._written[description["number"]] = {key: description[key] for key in ("name", "bytes", "sha256")}
        return content


def drop_segments(folder: Path, newest: Any, others: Sequence[Any]) -> None:
    """Delete what no snapshot of a memory refers to, of rows that the memory has let go.

    Args:
      folder: RUN/replay/NAME.
      newest: the latest snapshot; what comes after the oldest segment in it may be about to be referred to.
      others: every other one that is kept.
    """
    referred = {entry["name"] for tree in (newest, *others) for entry in _descriptions(tree)}
    oldest = min((entry["number"] for entry in _descriptions(newest)), default=0)
    for path in folder.glob("*.safetensors"):
        if path.stem.isdecimal() and int(path.stem) < oldest and path.name not in referred:
            path.unlink(missing_ok=True)


def verify_segments(folder: Path, snapshot: Any) -> None:
    """CheckpointError if something that a snapshot of a memory refers to is not there, or not whole."""
    segments = Segments(folder)
    for entry in _descriptions(snapshot):
        segments.read_verified(entry)


def _descriptions(tree: Any) -> Iterator[dict[str, Any]]:
    """Every description of a segment in a tree."""
    if isinstance(tree, dict):
        if "sha256" in tree:
            yield tree
            return
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _descriptions(item)


class NoSegments:
    """For memories that live nowhere on disk: everything goes into the checkpoint."""

    rows = 2**62

    def write(self, number: int, content: Rows) -> None:
        """There is never a whole one."""
        raise AssertionError("no memory is that large")

    def described(self, first: int, end: int) -> list[dict[str, Any]]:
        """None."""
        return []

    def read(self, description: dict[str, Any]) -> Rows:
        """CheckpointError: there are none."""
        raise CheckpointError("the checkpoint refers to segments of a replay memory, and there is no folder of them")
