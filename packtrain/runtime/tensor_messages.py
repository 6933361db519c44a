"""Tensors in messages between data-parallel learners: packed into one tensor of bytes, and unpacked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.algorithms.data_parallel import Gradients

ALIGNMENT = 16  # bytes, alignment of tensors in a message


@dataclass(frozen=True)
class Layout:
    """Type and shape of a tensor in a message."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, leaf: Tensor) -> Layout:
        """Return the layout of a tensor."""
        return cls(leaf.dtype, tuple(leaf.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


def pack(leaves: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return tensors as one of bytes, each at a multiple of 16 bytes."""
    sizes = [_padded(leaf.nbytes) for leaf in leaves]
    packed = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    begin = 0
    for leaf, size in zip(leaves, sizes, strict=True):
        if leaf.nbytes:
            packed[begin : begin + leaf.nbytes].copy_(leaf.detach().contiguous().reshape(-1).view(torch.uint8))
        begin += size
    return packed


def unpack(packed: Tensor, layout: Any, device: torch.device) -> Any:
    """Return the tree of tensors that was packed.

    Args:
      packed: from `pack`.
      layout: tree of the tensors' layouts.
      device: where the tensors are wanted.
    """
    begin, leaves = 0, []
    for one in trees.flatten(layout):
        leaf = packed[begin : begin + one.nbytes].view(one.dtype) if one.nbytes else torch.empty(0, dtype=one.dtype)
        leaves.append(leaf.reshape(one.shape).to(device))
        begin += _padded(one.nbytes)
    return trees.pack(layout, leaves)


@torch.no_grad()
def unpack_into(network: nn.Module, packed: Tensor) -> None:
    """Load packed weights into a network, in place."""
    own = list(network.state_dict().values())
    for leaf, received in zip(own, unpack(packed, [Layout.of(leaf) for leaf in own], packed.device), strict=True):
        leaf.copy_(received)


def flatten(gradients: Gradients, device: torch.device) -> Tensor:
    """Return all gradients as one vector."""
    return torch.cat([leaf.reshape(-1) for each in gradients.values() for leaf in each]).to(device)


def unflatten(flat: Tensor, like: Gradients) -> Gradients:
    """Return gradients from one vector.

    Args:
      flat: from `flatten`.
      like: gradients of the same names and shapes.
    """
    rest = iter(flat.split([leaf.numel() for each in like.values() for leaf in each]))
    return {name: [next(rest).view_as(leaf) for leaf in each] for name, each in like.items()}


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def to_arrays(values: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return tensors as float32 arrays, for a pipe."""
    return {name: value.detach().float().cpu().numpy() for name, value in values.items()}


def to_tensors(arrays: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Return arrays as tensors on a device."""
    return {name: torch.as_tensor(array, device=device) for name, array in arrays.items()}
