"""Fields of transitions side by side in one block: a row goes up, and a batch is gathered, in one operation for all.

Letters beside those of `types`: W words of 8 bytes, one row of the block.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_WORD = 8  # bytes; every field begins at one


class Layout:
    """Where in a row each field lies."""

    def __init__(self, example: dict[str, np.ndarray]):
        """For fields of the dtypes of `example`, and its shapes [M, ...] without M."""
        self._shapes = {name: leaf.shape[1:] for name, leaf in example.items()}
        self._kinds = {name: leaf.dtype for name, leaf in example.items()}
        self._dtypes = {name: torch.from_numpy(leaf[:0]).dtype for name, leaf in example.items()}
        sizes = [int(np.prod(leaf.shape[1:], dtype=int)) * leaf.itemsize for leaf in example.values()]
        ends = np.cumsum([-(-size // _WORD) * _WORD for size in sizes])
        starts = [0, *ends[:-1]]
        self._bytes = {name: slice(int(a), int(a) + size) for name, a, size in zip(example, starts, sizes, strict=True)}
        self.words = int(ends[-1]) // _WORD  # W

    def pack(self, fields: dict[str, np.ndarray]) -> np.ndarray:
        """Fields [M, ...] as words [M, W]."""
        count = len(next(iter(fields.values())))
        rows = np.zeros((count, self.words * _WORD), np.uint8)
        for name, leaf in fields.items():
            assert leaf.dtype == self._kinds[name], f"{name} is of {leaf.dtype}, and was of {self._kinds[name]}"
            rows[:, self._bytes[name]] = np.ascontiguousarray(leaf).reshape(count, -1).view(np.uint8)
        return rows.view(np.int64)

    def views(self, block: Tensor) -> dict[str, Tensor]:
        """The fields [..., *shape] of a block of words [..., W]."""
        rows = block.view(torch.uint8)
        return {
            name: rows[..., place].view(self._dtypes[name]).reshape(*block.shape[:-1], *self._shapes[name])
            for name, place in self._bytes.items()
        }
