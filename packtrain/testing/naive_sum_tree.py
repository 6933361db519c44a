"""A sum tree as a plain list: the readable reference for `memory/sum_tree.py`, for tests."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class NaiveSumTree:
    """Priorities of `capacity` leaves, scanned from the first to the last for every sample."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._priorities = [0.0] * capacity

    @property
    def total(self) -> float:
        """Return the sum of all priorities."""
        return sum(self._priorities)

    def priorities(self, leaves: Iterable) -> Tensor:
        """Return the priorities of leaves [M], float64."""
        return torch.tensor([self._priorities[int(leaf)] for leaf in leaves], dtype=torch.float64)

    def set(self, leaves: Iterable, priorities: Iterable) -> None:
        """Set priorities of leaves, one after the other; leaves below 0 are skipped."""
        for leaf, priority in zip(leaves, priorities, strict=True):
            if int(leaf) >= 0:
                self._priorities[int(leaf)] = float(priority)

    def sample(self, uniforms: Iterable) -> Tensor:
        """Return for each uniform number u the leaf that contains u · total, or the last with a priority, [B] int64."""
        return torch.tensor([self._draw(float(u)) for u in uniforms], dtype=torch.int64)

    def _draw(self, uniform: float) -> int:
        target, end, drawn = uniform * self.total, 0.0, -1
        for leaf, priority in enumerate(self._priorities):
            if priority > 0:
                drawn, end = leaf, end + priority
                if end > target:
                    break
        return drawn

    def snapshot(self) -> dict[str, Tensor]:
        """Return the priorities, [capacity]."""
        return {"priorities": torch.tensor(self._priorities, dtype=torch.float64)}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Restore a snapshot."""
        self._priorities = snapshot["priorities"].tolist()
