"""The run folder: where things are, who holds it, and what its log says."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Any

from packtrain.errors import RunFolderError

log = logging.getLogger("packtrain")


class RunFolder:
    """One run's folder, held by a lock that the kernel frees when its process dies."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.config = path / "config.gin"
        self.study = path / "study.json"  # of a finished study, which has no checkpoints
        self._lock: Any = None
        self._handler: logging.Handler | None = None

    def open(self) -> None:
        """Create the folder if need be, take its lock and start its log; RunFolderError if that cannot be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "a+")  # noqa: SIM115  (held until close)
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be written: {error.strerror}; choose another --output_dir"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise RunFolderError(f"{self.path} is in use by process {holder}; choose another --output_dir") from None
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        self._handler = logging.FileHandler(self.path / "log.txt", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(self._handler)
        log.setLevel(logging.INFO)

    def close(self) -> None:
        """Free the lock and end the log."""
        if self._handler is not None:
            log.removeHandler(self._handler)
            self._handler.close()
            self._handler = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check_writable(self) -> None:
        """RunFolderError if the folder could not be written; creates nothing."""
        place = self.path
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise RunFolderError(f"{self.path} cannot be made: {place} is not a folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise RunFolderError(
                f"{self.path} cannot be written: no permission in {place}; choose another --output_dir"
            )

    def refuse_other_kind(self, sign: Path) -> None:
        """RunFolderError if the folder holds a run of the other kind, of which this file or folder is the sign."""
        if sign.exists():
            raise RunFolderError(
                f"{self.path} holds another kind of run; --fresh starts one beside it, or choose another --output_dir"
            )


def beside(path: Path) -> Path:
    """The folder itself if it is new, else the first free name beside it."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def point_latest(root: Path, path: Path) -> None:
    """ROOT/latest → the newest run; a real file or folder of that name is left alone."""
    link = root / "latest"
    if link.is_symlink() or not link.exists():
        temporary = root / f".latest-{os.getpid()}"
        temporary.symlink_to(os.path.relpath(path, root))
        os.replace(temporary, link)
