"""Segments: files of rows of a large memory, stored outside the checkpoints; written once, never changed.

Rows are numbered since the beginning of a run. Segment k holds rows k · rows to (k + 1) · rows − 1. A checkpoint refers
to segments by name and SHA-256 and holds the rest itself, so that gigabytes are not copied into each of them.

A segment that is missing or damaged is lost: memories go on without its rows, and so do checkpoints from then on, which
describe it as {"number", "lost": rows}.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from packtrain.errors import CheckpointError, warn
from packtrain.files import sync_folder, write_whole

Rows = dict[str, Tensor]
SEGMENT_ROWS = 65_536


class Segments:
    """The segments of one memory. Reading them does not execute code."""

    def __init__(self, folder: Path, rows: int | None = None):
        """Store the folder's path; it is created when the first segment is written.

        Args:
          folder: RUN/replay/NAME.
          rows: in each segment; None: SEGMENT_ROWS.
        """
        self._folder, self.rows = folder, rows or SEGMENT_ROWS
        self._written: dict[int, dict[str, Any]] = {}  # number → its description in checkpoints

    def move(self, folder: Path) -> None:
        """Use another folder; segments that it lacks are written again."""
        self._folder = folder
        self._written = {
            number: said
            for number, said in self._written.items()
            if "lost" in said or (folder / said["name"]).is_file()
        }

    def write(self, number: int, content: Callable[[], Rows]) -> None:
        """Write a segment, unless it exists or is lost: rows never change.

        Args:
          number: of the segment.
          content: returns its rows, each leaf [rows, ...]; called only if the segment must be written.
        """
        if number in self._written:
            return
        name = f"{number:08}.safetensors"
        data = save({leaf: value.contiguous() for leaf, value in content().items()})
        write_whole(self._folder / name, data)
        sync_folder(self._folder)
        self._written[number] = {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def described(self, first: int, end: int) -> list[dict[str, Any]]:
        """Return the descriptions of segments `first` to `end` − 1, written or lost, for a checkpoint."""
        return [{"number": number, **self._written[number]} for number in range(first, end)]

    def read(self, description: dict[str, Any], rows: int) -> Rows | None:
        """Return a verified segment that a checkpoint describes; None, with a warning, if it is missing or damaged.

        CheckpointError if it cannot be read for another reason, such as a missing permission.

        Args:
          description: what `described` gave.
          rows: how many it must have.
        """
        number = description["number"]
        if "lost" in description:
            self._written[number] = {"lost": description["lost"]}
            return None
        data = self._verified(description)
        if data is None:
            self._written[number] = {"lost": rows}
            return None
        try:
            content = load(data)
        except SafetensorError as error:
            raise CheckpointError(
                f"{self._folder / description['name']} does not read as a segment: {error}"
            ) from error
        self._written[number] = {key: description[key] for key in ("name", "bytes", "sha256")}
        return content

    def _verified(self, description: dict[str, Any]) -> bytes | None:
        name = description["name"]
        if "/" in name or name.startswith("."):
            raise CheckpointError(f"a checkpoint refers to {name!r}, which is not a plain file name")
        path = self._folder / name
        try:
            found = path.lstat()  # checked first: a pipe would block, and a huge file fill the memory
            whole = stat.S_ISREG(found.st_mode) and found.st_size == description["bytes"]
            data = path.read_bytes() if whole else b""
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EIO):
                raise CheckpointError(
                    f"{path}, which the checkpoint refers to, cannot be read: {error.strerror}"
                ) from None
            warn(
                f"{path}, which the checkpoint refers to, cannot be read: {error.strerror}; the replay loses its steps"
            )
            return None
        if not whole or hashlib.sha256(data).hexdigest() != description["sha256"]:
            warn(f"{path} is damaged: it is not what the checkpoint refers to; the replay loses its steps")
            return None
        return data


def drop_segments(folder: Path, newest: Any, others: Sequence[Any]) -> None:
    """Delete segments with overwritten rows that no snapshot of a memory refers to.

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


def _descriptions(tree: Any) -> Iterator[dict[str, Any]]:
    """Return every description of a segment in a tree."""
    if isinstance(tree, dict):
        if "sha256" in tree:
            yield tree
            return
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _descriptions(item)


class NoSegments:
    """Replaces `Segments` for a memory without a folder: all rows go into the checkpoint."""

    rows = 2**62

    def move(self, folder: Path) -> None:
        """Do nothing: there are no files."""

    def write(self, number: int, content: Callable[[], Rows]) -> None:
        """Do nothing: rows stay in the memory."""
        raise AssertionError("no memory is that large")

    def described(self, first: int, end: int) -> list[dict[str, Any]]:
        """Return no descriptions."""
        return []

    def read(self, description: dict[str, Any], rows: int) -> Rows | None:
        """Raise a CheckpointError: there are no segments."""
        raise CheckpointError("the checkpoint refers to segments of a replay memory, whose folder is missing")
