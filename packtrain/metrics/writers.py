"""Where metric rows go: the JSONL file that is the truth, and TensorBoard beside it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from packtrain.errors import MissingExtraError


class JsonlWriter:
    """Appends rows to RUN/metrics.jsonl; on resume the rows past the checkpoint are cut first."""

    def __init__(self, path: Path, keep_bytes: int):
        """Open the file with its first `keep_bytes` bytes, which are whole rows."""
        self._file = open(path, "ab")  # noqa: SIM115  (held until close)
        if os.fstat(self._file.fileno()).st_size > keep_bytes:
            self._file.truncate(keep_bytes)
        self._file.seek(0, os.SEEK_END)

    @property
    def bytes(self) -> int:
        """The length of the file."""
        return self._file.tell()

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; numbers that are not finite become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._file.write(json.dumps(clean).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter:
    """The same numbers for TensorBoard, under RUN/tensorboard."""

    def __init__(self, path: Path):
        self._writer = self.available()(str(path))

    @staticmethod
    def available() -> Any:
        """TensorBoard's writer class; MissingExtraError if it is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("--tensorboard", "tensorboard", "tensorboard") from None
        return SummaryWriter

    def write(self, row: dict[str, Any]) -> None:
        """Add every number of a row as KIND/NAME."""
        for name, value in row.items():
            if isinstance(value, (int, float)) and name not in ("step", "wall_s"):
                self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"], walltime=None)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
