"""The JSONL file of metric rows, which is the source of truth; `sinks.py` has trackers."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from packtrain.errors import Seldom, warn
from packtrain.files import write_whole

MOST_PENDING = 1 << 20  # bytes of rows kept while the disk refuses writes


class JsonlWriter:
    """Appends rows to RUN/metrics.jsonl; on resume the rows after the checkpoint are cut first.

    A patient writer survives write errors: rows wait in memory and are written, in order, when the disk accepts them
    again. The file never contains a part of a row in between.
    """

    def __init__(self, path: Path, keep_bytes: int, patient: bool = False):
        """Open the file with its first `keep_bytes` bytes, which are complete rows.

        A file that is shorter, or that has no row end there, is cut after its last complete row, with a warning.

        Args:
          path: of the file.
          keep_bytes: number of bytes to keep.
          patient: whether a write error is a warning, at most one per minute, instead of an OSError.
        """
        self._path, self._patient = path, patient
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115  (held until close)
        size = os.fstat(self._file.fileno()).st_size
        self._bytes = self._after_last_row(min(size, keep_bytes))
        if self._bytes != keep_bytes:
            warn(
                f"{path} was damaged: {keep_bytes - self._bytes:,} of the {keep_bytes:,} bytes that the checkpoint "
                "counts are missing; the file is continued after its last complete row"
            )
        if self._bytes != size:
            self._file.truncate(self._bytes)
        self._pending: list[bytes] = []
        self._refused, self._lost = Seldom(), 0

    def _after_last_row(self, end: int) -> int:
        """Return the largest length of at most `end` bytes at which a row ends."""
        while end:
            begin = max(0, end - 65_536)
            self._file.seek(begin)
            found = self._file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return 0

    @property
    def bytes(self) -> int:
        """Return the bytes of complete rows in the file, after another attempt to write the waiting rows."""
        self._write_pending()
        return self._bytes

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; non-finite numbers become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._pending.append(json.dumps(clean).encode() + b"\n")
        self._write_pending()

    def _write_pending(self) -> None:
        if not self._pending:
            return
        data = b"".join(self._pending)
        try:
            if os.fstat(self._file.fileno()).st_size != self._bytes:  # an incomplete row, written when the disk refused
                self._file.truncate(self._bytes)
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._undo()
            if not self._patient:
                raise
            while len(self._pending) > 1 and sum(map(len, self._pending)) > MOST_PENDING:
                self._pending.pop(0)
                self._lost += 1
            lost = f", and {self._lost:,} are lost" if self._lost else ""
            self._refused.warn(
                f"{self._path} cannot be written: {error.strerror}; the run goes on, and {len(self._pending):,} rows "
                f"wait{lost}"
            )
            return
        self._bytes += len(data)
        self._pending.clear()

    def _undo(self) -> None:
        """Cut a partly written row; if that fails too, the next row tries again."""
        try:
            self._file.truncate(self._bytes)
        except OSError as error:
            self._refused.warn(f"{self._path} cannot be truncated: {error.strerror}")

    def move(self, path: Path) -> None:
        """Continue at the file's new path; if the file is missing there, create a copy."""
        if not path.exists() or not os.path.samestat(os.stat(path), os.fstat(self._file.fileno())):
            write_whole(path, _read(self._file, self._bytes) + b"".join(self._pending))
            self._file.close()
            self._file, self._pending = open(path, "a+b", buffering=0), []  # noqa: SIM115  (held until close)
            self._bytes = os.fstat(self._file.fileno()).st_size
        self._path = path

    def close(self) -> None:
        """Write waiting rows, and close the file."""
        try:
            self._write_pending()
            if self._pending:
                warn(f"{self._path}: the last {len(self._pending):,} rows could not be written")
        finally:
            self._file.close()


def _read(file: Any, size: int) -> bytes:
    """Return the first bytes of an open file, whose name may have been deleted."""
    file.seek(0)
    parts = []
    while part := file.read(1 << 20):
        parts.append(part)
    return b"".join(parts)[:size]
