"""Pack the rows of one group of environments into chunks, for a memory in another process or on another machine.

The other side hands each chunk to `Writer.add_many` of the memory. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from packtrain import trees
from packtrain.interfaces import Writer
from packtrain.trees import Tree
from packtrain.types import CarryRows, Chunk, Row


class ChunkWriter(Writer):
    """Collects the rows of one group and hands out a chunk after every K of them.

    Everything is copied: policies and environments reuse their buffers. The arrays of a chunk belong to the receiver.
    """

    def __init__(self, length: int, hand_out: Callable[[Chunk], None], carries: CarryRows = "every"):
        """Allocate nothing yet.

        Args:
          length: K, rows of a chunk.
          hand_out: called with every chunk.
          carries: the rows whose recurrent state is sent; see `Memory.chunk_carries`.
        """
        if length < 1:
            raise ValueError(f"a chunk of {length} rows is impossible: it has at least one")
        self._length, self._hand_out, self._carries = length, hand_out, carries
        self._kinds: Tree = None  # shape and dtype of the leaves of a row
        self._rows: Tree = ()  # [K, B, ...], row and extras
        self._carry: Tree = ()  # [K or 1, B, ...]
        self._count = 0  # rows collected

    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """Copy one row; hand out a chunk if it is the K-th.

        A chunk is handed out earlier if a row has other extras, shapes or dtypes than the rows before it: planners give
        no extras where no search was made.

        Args:
          row: tensors on any device, or arrays, [B, ...].
          carry: recurrent state before the row.
          extras: what the policy adds to the row, [B, ...] each.
        """
        carry = () if self._carries == "none" else trees.map(_array, carry)
        given = trees.map(_array, (row, extras))
        kinds = trees.map(lambda leaf: (leaf.shape, leaf.dtype), (given, carry))
        if kinds != self._kinds:
            self.flush()
        if not self._count:
            self._kinds = kinds
            self._rows, self._carry = self._room(given, self._length), self._room(carry, self._carry_rows)
        _put(self._rows, given, self._count)
        if self._count < self._carry_rows:
            _put(self._carry, carry, self._count)
        self._count += 1
        if self._count == self._length:
            self.flush()

    def flush(self) -> None:
        """Hand out the rows collected so far, if there are any."""
        if not self._count:
            return
        row, extras = trees.map(lambda leaf: leaf[: self._count], self._rows)
        chunk = Chunk(row, trees.map(lambda leaf: leaf[: self._count], self._carry), extras)
        self.discard()
        self._hand_out(chunk)

    def discard(self) -> None:
        """Drop the rows collected so far."""
        self._count, self._rows, self._carry = 0, (), ()

    @property
    def _carry_rows(self) -> int:
        return 1 if self._carries == "first" else self._length

    @staticmethod
    def _room(tree: Tree, rows: int) -> Tree:
        return trees.map(lambda leaf: np.empty((rows, *leaf.shape), leaf.dtype), tree)


def _put(buffers: Tree, values: Tree, place: int) -> None:
    def put(buffer: np.ndarray, value: np.ndarray) -> None:
        buffer[place] = value

    trees.map(put, buffers, values)


def _array(leaf: Any) -> np.ndarray:
    """Return a tensor on any device, or an array, as an array on the host, without a copy if possible."""
    return leaf.detach().cpu().numpy() if hasattr(leaf, "detach") else np.asarray(leaf)
