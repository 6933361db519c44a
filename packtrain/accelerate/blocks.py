"""Trees of arrays packed into one block of bytes, so that a row is copied between host and device in one transfer."""

from __future__ import annotations

import numpy as np
import torch

from packtrain import trees
from packtrain.trees import Tree

ALIGNMENT = 64  # bytes; every leaf begins on a cache line


class Block:
    """One block of bytes, and its leaves as tensors that are views of it."""

    def __init__(self, example: Tree, device: torch.device, pinned: bool = False):
        """Allocate a block for trees like `example`.

        Args:
          example: arrays or tensors of the shapes and dtypes to hold.
          device: where the block lies.
          pinned: whether a block on the host may be copied to a GPU while others work.
        """
        leaves = [torch.as_tensor(leaf) for leaf in trees.flatten(example)]
        sizes = [leaf.numel() * leaf.element_size() for leaf in leaves]
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
        self.bytes = torch.zeros(int(starts[-1]), dtype=torch.uint8, device=device, pin_memory=pinned)
        self.views: Tree = trees.pack(
            example,
            [
                self.bytes[start : start + size].view(leaf.dtype).view(leaf.shape)
                for leaf, start, size in zip(leaves, starts, sizes, strict=False)
            ],
        )


class Upload:
    """Copies trees of arrays to a device, with one transfer each; the next call overwrites the returned tensors."""

    def __init__(self, example: Tree, device: torch.device):
        self._host = Block(example, torch.device("cpu"), pinned=device.type == "cuda")
        self._device = Block(example, device)
        self._arrays = [leaf.numpy() for leaf in trees.flatten(self._host.views)]

    def __call__(self, tree: Tree) -> Tree:
        """Return the tree on the device, copied in the order of the current stream, after waiting for the last copy."""
        for array, leaf in zip(self._arrays, trees.flatten(tree), strict=True):
            array[...] = leaf
        self._device.bytes.copy_(self._host.bytes, non_blocking=True)
        return self._device.views


class Download:
    """Copies trees of tensors from a device, with one transfer each; the next call overwrites the returned arrays."""

    def __init__(self, example: Tree, device: torch.device):
        self._device = Block(example, device)
        self._host = Block(example, torch.device("cpu"), pinned=device.type == "cuda")
        self._arrays = trees.map(lambda leaf: leaf.numpy(), self._host.views)
        self._arrived = torch.cuda.Event() if device.type == "cuda" else None

    def put(self, tree: Tree) -> None:
        """Pack a tree into the block on the device; can be part of a captured CUDA graph."""
        for view, leaf in zip(trees.flatten(self._device.views), trees.flatten(tree), strict=True):
            view.copy_(leaf)

    def fetch(self) -> Tree:
        """Return the latest packed tree as NumPy arrays; waits for the current stream."""
        self._host.bytes.copy_(self._device.bytes, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()
            self._arrived.synchronize()
        return self._arrays
