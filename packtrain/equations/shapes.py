"""Shape assertion at the start of every equation, since accidental broadcasting is silent."""

from __future__ import annotations

from torch import Tensor


def assert_equal_shapes(rank: int, **tensors: Tensor) -> None:
    """Assert that all tensors have the same shape, of `rank` dimensions; the message names each of them."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert len(set(shapes.values())) == 1, f"shapes differ: {shapes}"
    assert len(next(iter(shapes.values()))) == rank, f"expected {rank} dimensions: {shapes}"
