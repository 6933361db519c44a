"""Storage of a memory's rows: on the learner's device, on the host, in a file, or compressed on the host.

Every environment has a ring buffer of L rows for each leaf. Observations are stored where `storage` says; all other
leaves, which are small, are stored on the device. Rows are read by their positions, env · L + row. The additional
position envs · L stands for a missing row and reads as zeros. Whole rows are copied, never single elements. Rows read
on the host are gathered in one pinned block, which is copied to the device at once. The values that are read do not
depend on the kind of storage.
"""

from __future__ import annotations

import math
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from packtrain.errors import ConfigError

BLOCK = 16  # rows of an environment that are compressed together
_ALIGNMENT = 64  # bytes; alignment of each leaf in the copy to the device
_LARGE = "obs"  # prefix of the names of large leaves
_CPU = torch.device("cpu")


class Rings:
    """The rings of all leaves, by name. Not thread-safe."""

    def __init__(self, columns: int, length: int, device: torch.device, storage: str, compression: str | None = None):
        """Create storage; nothing is allocated yet.

        Args:
          columns: how many there are.
          length: L, rows of each.
          device: where what is taken is wanted.
          storage: where large leaves lie: "device", "host" or "disk".
          compression: "zlib" to compress what lies on the host.
        """
        self.columns, self.length, self.device = columns, length, device
        self._storage, self._compression = storage, compression
        self.folder: Path | None = None  # folder of the files; None: the default folder for temporary files
        self._rings: dict[str, _Plain | _Packed] = {}

    def __len__(self) -> int:
        """Return the number of stored leaves."""
        return len(self._rings)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of leaves with this prefix."""
        return [name for name in self._rings if name.startswith(prefix)]

    def clear(self) -> None:
        """Remove all rows and free their storage."""
        self._rings = {}

    def allocate(self, leaves: dict[str, Tensor]) -> None:
        """Allocate storage for rows [B, ...] like these."""
        self._rings = {name: self._ring(name, leaf) for name, leaf in leaves.items()}

    def _ring(self, name: str, leaf: Tensor) -> _Plain | _Packed:
        shape, places = tuple(leaf.shape[1:]), self.columns * self.length + 1
        if self._near(name):
            return _Plain(torch.zeros(places, *shape, dtype=leaf.dtype, device=self.device), self.length)
        if self._compression:
            return _Packed(self.columns, self.length, shape, leaf.dtype)
        if self._storage == "disk":
            mapped = _mapped(places * row_bytes(leaf), self.folder)
            return _Plain(mapped.view(leaf.dtype).view(places, *shape), self.length)
        return _Plain(torch.zeros(places, *shape, dtype=leaf.dtype), self.length)

    def put(self, name: str, columns: slice, places: np.ndarray, rows: Tensor) -> None:
        """Write rows [group, R, ...] of some environments to R different positions of their rings."""
        self._rings[name].put(columns, places, rows)

    def take(self, names: list[str], places: Tensor) -> list[Tensor]:
        """Return rows of some leaves by their positions, [*positions, ...] each, on the device; may wait for a copy.

        Args:
          names: of leaves that are all large, or all small.
          places: int64 on the device.
        """
        if all(self._near(name) for name in names):
            return [self._rings[name].select(places) for name in names]
        return self._read([self._rings[name] for name in names], places.cpu().numpy(), self.device)

    def rows(self, columns: slice, places: np.ndarray) -> dict[str, Tensor]:
        """Return all leaves at some positions of some environments, [R, group, ...] on the host."""
        wanted = places[:, None] + np.arange(columns.start, columns.stop) * self.length
        near = sent(wanted, self.device)
        return {
            name: ring.select(near).cpu() if self._near(name) else self._read([ring], wanted, _CPU)[0]
            for name, ring in self._rings.items()
        }

    def _near(self, name: str) -> bool:
        """Return whether a leaf is stored on the device."""
        return self._storage == "device" or not name.startswith(_LARGE)

    def _read(self, rings: list[_Plain | _Packed], places: np.ndarray, device: torch.device) -> list[Tensor]:
        sizes = [ring.row_bytes * places.size for ring in rings]
        starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
        block = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
        parts = [slice(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        for ring, part in zip(rings, parts, strict=True):
            ring.read(places.ravel(), block[part].view(places.size, ring.row_bytes).numpy())
        block = block.to(device, non_blocking=True)
        return [
            block[part].view(ring.dtype).view(*places.shape, *ring.shape)
            for ring, part in zip(rings, parts, strict=True)
        ]


class _Plain:
    """Rings as one tensor of rows [envs · L + 1, ...], on a device, on the host or in a file."""

    def __init__(self, values: Tensor, length: int):
        self.values, self.shape, self.dtype = values, tuple(values.shape[1:]), values.dtype
        self.row_bytes = math.prod(self.shape) * values.element_size()
        self._grid = values[:-1].unflatten(0, (-1, length))
        # View rows as the longest integer words that fit: fewer elements to copy.
        words = (torch.int64, torch.int32, torch.int16, torch.uint8)
        word = next(word for word in words if self.row_bytes % word.itemsize == 0)
        self._words = values.view(len(values), math.prod(self.shape)).view(word)

    def put(self, columns: slice, places: np.ndarray, rows: Tensor) -> None:
        grid, rows = self._grid[columns], rows.to(self.values.device)
        if len(places) == 1:
            grid[:, int(places[0])] = rows[:, 0]
        else:
            grid.index_copy_(1, sent(places, self.values.device), rows)

    def select(self, places: Tensor) -> Tensor:
        """Return rows [*positions, ...] on the device that stores them."""
        found = self._words.index_select(0, places.flatten())
        return found.view(self.dtype).view(*places.shape, *self.shape)

    def read(self, places: np.ndarray, into: np.ndarray) -> None:
        """Return rows [M] as bytes [M, row_bytes], on the host."""
        np.take(self._words.view(torch.uint8).numpy(), places, axis=0, out=into, mode="clip")


class _Packed:
    """Rings of rows that are compressed in blocks; the block that an environment writes to is not compressed."""

    def __init__(self, columns: int, length: int, shape: tuple[int, ...], dtype: torch.dtype):
        self.shape, self.dtype, self._columns, self._length = shape, dtype, columns, length
        self.row_bytes = math.prod(shape) * dtype.itemsize
        self._blocks = -(-length // BLOCK)  # blocks of an environment
        self._packed: list[bytes | None] = [None] * (columns * self._blocks)
        self._open = np.zeros((columns, BLOCK, self.row_bytes), np.uint8)
        self._number = np.full(columns, -1)  # number of each environment's open block

    @property
    def packed_bytes(self) -> int:
        """Return the bytes of compressed blocks."""
        return sum(len(packed) for packed in self._packed if packed is not None)

    def put(self, columns: slice, places: np.ndarray, rows: Tensor) -> None:
        rows = rows.cpu().contiguous()
        raw = rows.view(*rows.shape[:2], math.prod(self.shape)).view(torch.uint8).numpy()
        for at, place in enumerate(places.tolist()):
            block, row = divmod(place, BLOCK)
            for column in columns.start + np.flatnonzero(self._number[columns] != block):
                if self._number[column] >= 0:
                    closed = column * self._blocks + self._number[column]
                    self._packed[closed] = zlib.compress(self._open[column], 1)
                self._open[column] = self._block(column * self._blocks + block)  # rows of the last lap are still in it
                self._number[column] = block
            self._open[columns, row] = raw[:, at]

    def select(self, places: Tensor) -> Tensor:
        """Raise an error: compressed rows are not on a device."""
        raise AssertionError("compressed rows are read on the host")

    def read(self, places: np.ndarray, into: np.ndarray) -> None:
        """Return rows [M] as bytes [M, row_bytes]; every block is decompressed once."""
        column, place = np.divmod(places, self._length)
        number = np.where(column < self._columns, column * self._blocks + place // BLOCK, -1)
        order = np.argsort(number, kind="stable")
        for same in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
            if len(same):
                block = number[same[0]]
                into[same] = 0 if block < 0 else self._block(block)[place[same] % BLOCK]

    def _block(self, number: int) -> np.ndarray:
        """Return a block [16, row_bytes]; unwritten rows are zeros."""
        column, block = divmod(number, self._blocks)
        if self._number[column] == block:
            found: np.ndarray = self._open[column]
            return found
        packed = self._packed[number]
        if packed is None:
            return np.zeros((BLOCK, self.row_bytes), np.uint8)
        return np.frombuffer(zlib.decompress(packed), np.uint8).reshape(BLOCK, self.row_bytes)


def _mapped(size: int, folder: Path | None) -> Tensor:
    """Return zero bytes in a file without a name, which the system deletes however the process ends.

    Room is taken at once. A disk that is found full later would end the process without a word.
    """
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=(size,)))
    except OSError as error:
        where = folder or tempfile.gettempdir()
        raise ConfigError(
            f'Sequences.storage = "disk" takes {size / 1e9:,.1f} GB below {where}: {error.strerror}; '
            "lower Sequences.capacity"
        ) from None


def row_bytes(leaf: Tensor) -> int:
    """Return the size in bytes of one row, given example rows [B, ...]."""
    return math.prod(leaf.shape[1:]) * leaf.element_size()


def sent(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
