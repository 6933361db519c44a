"""Files that are whole or not there, after a loss of power too: written beside their place, synced, then renamed."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from pathlib import Path

from packtrain.errors import Seldom


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


# What systems answer that cannot sync a file or a folder, such as some network mounts. A full or broken disk is not
# among them.
_CANNOT_SYNC = {errno.EINVAL, errno.EROFS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EPERM}
_unsynced = Seldom(math.inf)


def sync(handle: int, path: Path) -> None:
    """Bring an open file or folder to the disk; a warning, once, where the file system refuses to sync."""
    try:
        os.fsync(handle)
    except OSError as error:
        _warn_if_refused(error, path)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk; a warning, once, where the file system refuses to sync."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        _warn_if_refused(error, path)
        return
    try:
        sync(handle, path)
    finally:
        os.close(handle)


def _warn_if_refused(error: OSError, path: Path) -> None:
    if error.errno not in _CANNOT_SYNC:
        raise error
    _unsynced.warn(
        f"{path} cannot be synced ({error.strerror}): files are written all the same, and a loss of power may lose "
        "the latest of them"
    )
