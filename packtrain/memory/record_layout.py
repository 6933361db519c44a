"""Transitions as rows of one block: writing a row and gathering a batch take one operation for all fields.

Fields: "obs", "action", "after", leaf by leaf; "reward", "terminated", "truncated"; "steps" of transitions of n steps.
Letters beside those of `types`: W words of 8 bytes, one row of the block.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packtrain import trees
from packtrain.trees import Tree
from packtrain.types import Trajectory

_TREES, _NUMBERS = ("obs", "action", "after"), ("reward", "terminated", "truncated", "steps")
_WORD = 8  # bytes; every field begins at a multiple


class RecordLayout:
    """Offsets of the fields in a row."""

    def __init__(self, example: dict[str, np.ndarray]):
        """Compute offsets for fields of the dtypes of `example`, and its shapes [M, ...] without M."""
        self._shapes = {name: leaf.shape[1:] for name, leaf in example.items()}
        self._kinds = {name: leaf.dtype for name, leaf in example.items()}
        self._dtypes = {name: torch.from_numpy(leaf[:0]).dtype for name, leaf in example.items()}
        sizes = [int(np.prod(leaf.shape[1:], dtype=int)) * leaf.itemsize for leaf in example.values()]
        ends = np.cumsum([-(-size // _WORD) * _WORD for size in sizes])
        starts = [0, *ends[:-1]]
        self._bytes = {name: slice(int(a), int(a) + size) for name, a, size in zip(example, starts, sizes, strict=True)}
        self.words = int(ends[-1]) // _WORD  # W, words per record

    def pack(self, fields: dict[str, np.ndarray]) -> np.ndarray:
        """Return fields [M, ...] as words [M, W]."""
        count = len(next(iter(fields.values())))
        rows = np.zeros((count, self.words * _WORD), np.uint8)
        for name, leaf in fields.items():
            assert leaf.dtype == self._kinds[name], f"{name} is of {leaf.dtype}, and was of {self._kinds[name]}"
            rows[:, self._bytes[name]] = np.ascontiguousarray(leaf).reshape(count, -1).view(np.uint8)
        return rows.view(np.int64)

    def views(self, block: Tensor) -> dict[str, Tensor]:
        """Return the fields [..., *shape] of a block of words [..., W]."""
        rows = block.view(torch.uint8)
        return {
            name: rows[..., place].view(self._dtypes[name]).reshape(*block.shape[:-1], *self._shapes[name])
            for name, place in self._bytes.items()
        }


def flat_fields(transitions: dict[str, Tree]) -> dict[str, np.ndarray]:
    """Return the fields of M transitions by name, [M, ...] each, with compact types."""
    fields: dict[str, np.ndarray] = {}
    for name in _TREES:
        leaves = trees.flatten(transitions[name])
        fields |= {leaf: _compact(value) for leaf, value in zip(_leaf_names(name, len(leaves)), leaves, strict=True)}
    return fields | {name: _compact(transitions[name]) for name in _NUMBERS if name in transitions}


def layout_of(fields: dict[str, np.ndarray]) -> RecordLayout:
    """Return the layout of rows with these fields. The order is fixed, with "obs" in front of "after": see `_pair`."""
    return RecordLayout({name: fields[name] for name in sorted(fields, reverse=True)})


def as_transitions(fields: dict[str, Tensor], structure: dict[str, Tree], nothing: Tensor) -> Trajectory:
    """Return fields [..., B, *] as transitions [..., 1, B]: views, nothing is copied.

    Args:
      fields: views of one block.
      structure: the trees that "obs", "action" and "after" are.
      nothing: 0-d zero on their device, for what transitions do not have: the step before them.
    """
    shape = fields["terminated"].shape

    def tree(name: str) -> Tree:
        names = _leaf_names(name, len(trees.flatten(structure[name])))
        return trees.pack(structure[name], [fields[leaf] for leaf in names])

    time = len(shape) - 1  # axis before B
    action = trees.map(lambda leaf: leaf.unsqueeze(time), tree("action"))
    reward = fields["reward"].unsqueeze(time)  # [..., 1, B], or [..., 1, B, n]
    extras = {}
    if "steps" in fields:
        extras = {"rewards": reward, "steps": fields["steps"].unsqueeze(time)}
        reward = reward[..., 0]
    return Trajectory(
        obs=trees.map(partial(_pair, axis=time), tree("obs"), tree("after")),
        first=nothing.bool().expand(*shape[:-1], 2, shape[-1]),
        action=action,
        reward=reward,
        terminated=fields["terminated"].view(torch.bool).unsqueeze(time),
        truncated=fields["truncated"].view(torch.bool).unsqueeze(time),
        last_action=trees.map(lambda leaf: nothing.to(leaf.dtype).expand(leaf.shape), action),
        last_reward={"train": nothing.expand(reward.shape)},
        carry=(),
        extras=extras,
    )


def _pair(first: Tensor, second: Tensor, axis: int) -> Tensor:
    """Stack two fields of the same rows along a new axis, without a copy; the first must lie in front in memory."""
    apart = second.storage_offset() - first.storage_offset()
    size, stride = first.shape, first.stride()
    return first.as_strided((*size[:axis], 2, *size[axis:]), (*stride[:axis], apart, *stride[axis:]))


def _leaf_names(name: str, leaves: int) -> list[str]:
    return [name] if leaves == 1 else [f"{name}/{number}" for number in range(leaves)]


def _compact(leaf: Any) -> np.ndarray:
    """Return numbers as float32 and flags as uint8; integers and pictures keep their type."""
    array = np.asarray(leaf)
    if array.dtype == bool:
        return array.astype(np.uint8)
    return array.astype(np.float32) if array.dtype.kind == "f" else array
