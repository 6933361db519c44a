"""Files that are whole or not there, after a loss of power too: written beside their place, synced, then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(target: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one; folders on the way are made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".writing-", suffix=target.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
