"""Open, read and write files safely: complete or not at all, inside one folder, with bounded size.

A run folder may be untrusted. Its parts are opened without following symbolic links, so that nothing outside
the folder is read, changed or deleted through it, and only ordinary files are read, so that a pipe or a device cannot
block the program or fill its memory.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from packtrain.errors import RunFolderError, Seldom

MOST_CONFIG = 2**20
"""Maximum size of a configuration in bytes."""
MOST_TEXT = 16 * 2**20
"""Maximum size of a JSON file in bytes, unless a caller sets another limit."""
_FLAGS = {
    "rb": os.O_RDONLY,
    "r+b": os.O_RDWR,
    "wb": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "xb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "a+b": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}
_SPARSE = 256 * 2**20  # size in bytes above which a file that consists almost entirely of holes is rejected


def write_whole(target: Path, data: bytes) -> None:
    """Write a file so that readers see the old one or the new one; missing folders are created.

    Permissions follow the umask. Links in the path are followed: the path is the user's own.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _write_in(handle, target.name, data)
    finally:
        os.close(handle)


def read_bounded(path: Path, most: int = MOST_TEXT) -> bytes:
    """Return the bytes of an ordinary file; the path is the user's own, so links are followed.

    Raises:
      OSError: it cannot be opened, is not an ordinary file, or has more than `most` bytes; `strerror` says which.
    """
    with open_bounded(path, most) as file:
        return _read(file, path, most)


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return the text of a configuration, with newline characters as line ends.

    Raises:
      OSError: as in `read_bounded`, for more than MOST_CONFIG bytes.
      UnicodeDecodeError: it is not text in this encoding.
    """
    return io.StringIO(read_bounded(path, MOST_CONFIG).decode(encoding), newline=None).read()


def open_bounded(path: Path, most: int) -> BinaryIO:
    """Open an ordinary file for reading; the path is the user's own, so links are followed.

    Raises:
      OSError: as in `read_bounded`.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _refuse_size(os.fstat(handle), path, most)
        return cast(BinaryIO, os.fdopen(handle, "rb"))
    except OSError:
        os.close(handle)
        raise


def open_inside(root: Path, name: str, mode: str = "rb") -> BinaryIO:
    """Open an ordinary file of a folder without following links below the folder.

    Args:
      root: the folder; a link to it is followed, since the user named it.
      name: the file's relative path in it, such as "checkpoints/100/state.json"; its folders must exist.
      mode: "rb", "r+b", "wb", "xb", "ab" or "a+b".

    Raises:
      RunFolderError: a part of the path is a link, or the file is a pipe, a device or a folder.
      OSError: as `open` does, such as FileNotFoundError.
    """
    with _folder_of(root, name) as (folder, last):
        flags = _FLAGS[mode]
        try:  # check the file type before anything is truncated, without waiting for a pipe
            handle = os.open(last, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)
        except OSError as error:
            _refuse_link(folder, last, root / name)
            if os.path.lexists(root / name) and not _is_ordinary(folder, last):
                raise RunFolderError(f"{root / name} is not an ordinary file") from error
            raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise RunFolderError(f"{root / name} is not an ordinary file")
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
        if mode == "rb":
            _refuse_holes(os.fstat(handle), root / name)
        return cast(BinaryIO, os.fdopen(handle, mode))
    except BaseException:
        os.close(handle)
        raise


def read_inside(root: Path, name: str, most: int = MOST_TEXT) -> bytes:
    """Return the bytes of a file in a folder, opened as by `open_inside`; OSError if it has more than `most`."""
    with open_inside(root, name) as file:
        return _read(file, root / name, most)


def write_inside(root: Path, name: str, data: bytes) -> None:
    """Write a file in a folder completely or not at all, without following links; missing folders are created.

    Raises:
      RunFolderError: a part of the path is a link, or the target exists and is not an ordinary file.
      OSError: the file cannot be written.
    """
    with _folder_of(root, name, create=True) as (folder, last):
        _refuse_link(folder, last, root / name)
        if not _is_ordinary(folder, last, absent=True):
            raise RunFolderError(f"{root / name} is not an ordinary file")
        _write_in(folder, last, data)


def list_inside(root: Path, name: str = ".") -> list[str]:
    """Return the sorted names in a subfolder; RunFolderError if a part of the path is a link."""
    with _folder_of(root, f"{name}/.") as (folder, _):
        return sorted(os.listdir(folder))


def remove_inside(root: Path, name: str) -> None:
    """Delete a file or a folder with its content; do nothing if it does not exist.

    Links are never followed: a link inside a deleted folder is itself deleted, a link in the path is rejected.

    Raises:
      RunFolderError: a part of the path is a link.
      OSError: something cannot be deleted.
    """
    try:
        with _folder_of(root, name) as (folder, last):
            _refuse_link(folder, last, root / name)
            if stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=folder)
            else:
                os.unlink(last, dir_fd=folder)
    except FileNotFoundError:
        return


def refuse_links(root: Path, *names: str) -> None:
    """Raise a RunFolderError if one of these paths in a folder is a link or below one; missing ones are accepted.

    Without names, everything in the folder and its subfolders is checked.
    """
    for name in names or _names(root):
        with contextlib.suppress(FileNotFoundError), _folder_of(root, name) as (folder, last):
            _refuse_link(folder, last, root / name)


def _names(root: Path) -> Iterator[str]:
    """Return relative paths of the links in a folder and its subfolders."""
    with contextlib.suppress(OSError), os.scandir(root) as found:
        for part in found:
            if part.is_symlink():
                yield part.name
            elif part.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError), os.scandir(part) as inner:
                    yield from (f"{part.name}/{one.name}" for one in inner if one.is_symlink())


@contextlib.contextmanager
def _folder_of(root: Path, name: str, create: bool = False) -> Iterator[tuple[int, str]]:
    """Open the parent folder of a part of `root` without following links; return it with the part's own name."""
    parts = PurePosixPath(name).parts + ((".",) if name.endswith("/.") else ())
    if not parts or ".." in parts or parts[0] == "/" or "\0" in name:
        raise RunFolderError(f"{name!r} is not a path inside {root}")
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for depth, part in enumerate(parts[:-1]):
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
            try:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            except OSError:
                _refuse_link(handle, part, root.joinpath(*parts[: depth + 1]))
                raise
            os.close(handle)
            handle = below
        yield handle, parts[-1]
    finally:
        os.close(handle)


def _refuse_link(folder: int, name: str, shown: Path) -> None:
    """Raise a RunFolderError if a name in an open folder is a symbolic link."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise RunFolderError(
                f"{shown} is a symbolic link, which is not followed inside a run folder; put the file or folder itself "
                "there, or remove the link"
            )


def _is_ordinary(folder: int, name: str, absent: bool = False) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return absent


def _read(file: BinaryIO, path: Path, most: int) -> bytes:
    """Read an open file of bounded size; an OSError gives the reason if it is not read."""
    _refuse_size(os.fstat(file.fileno()), path, most)
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(0, f"it grew past {most:,} bytes while it was read", str(path))
    return data


def _refuse_size(found: os.stat_result, path: Path, most: int) -> None:
    """Raise an OSError unless it is an ordinary file of at most `most` bytes."""
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is not an ordinary file", str(path))
    if found.st_size > most:
        raise OSError(0, f"it has {found.st_size:,} bytes, and at most {most:,} are read", str(path))
    _refuse_holes(found, path)


def _refuse_holes(found: os.stat_result, path: Path) -> None:
    """Raise an OSError for a sparse file that takes almost no disk space and would fill the memory."""
    if found.st_size > _SPARSE and found.st_blocks * 512 < found.st_size // 64:
        raise OSError(0, f"it has a size of {found.st_size:,} bytes and consists almost entirely of holes", str(path))


def _write_in(folder: int, name: str, data: bytes) -> None:
    """Write a file in an open folder: to a temporary file, which is synced and then renamed."""
    temporary = f".writing-{secrets.token_hex(6)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


# Errors of file systems that cannot sync a file or a folder, such as some network mounts. A full or broken disk has
# others.
_CANNOT_SYNC = {errno.EINVAL, errno.EROFS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EPERM}
_unsynced = Seldom(math.inf)


def sync(handle: int, path: Path) -> None:
    """Sync an open file or folder to disk; warn once if the file system does not support it."""
    try:
        os.fsync(handle)
    except OSError as error:
        _warn_if_refused(error, path)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk; warn once if the file system does not support it."""
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
        f"{path} cannot be synced ({error.strerror}): files are written anyway, but a power failure may lose the "
        "latest of them"
    )
