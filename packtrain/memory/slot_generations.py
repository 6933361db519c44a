"""Keys of the contents of a memory's slots; a key becomes invalid when its slot is overwritten.

A learner answers for a sample when it is done with it. By then an actor may have put something else in the slot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain.errors import CheckpointError, ConfigError


class SlotGenerations:
    """key = generation · capacity + slot, with a new generation each time a slot is written.

    Where slots are filled in turn, as in a ring, a key is the number of things that came before. Nothing here waits for
    a GPU.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu"):
        if capacity < 1:
            raise ConfigError(f"SlotGenerations.capacity = {capacity} must be at least 1")
        self.capacity = capacity
        self._generation = torch.full((capacity,), -1, dtype=torch.int64, device=device)  # −1: empty
        # number of keys that were invalid when priorities arrived, ever
        self.dropped = torch.zeros((), dtype=torch.int64, device=device)

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """Return the bytes of the keys of this many slots on their device."""
        return 8 * capacity + 8

    def take(self, slots: Tensor) -> Tensor:
        """Return the new keys [M] of these distinct slots [M], which were just written. Older keys become invalid."""
        self._generation[slots] += 1
        return self.of(slots)

    def of(self, slots: Tensor) -> Tensor:
        """Return the keys of the contents of slots [M]; negative for empty slots."""
        return self._generation[slots] * self.capacity + slots

    def slots(self, keys: Tensor) -> Tensor:
        """Return the slots of keys [M]; −1 for invalid keys, which are counted.

        `SumTree.set` passes over −1, so that a late update does nothing.
        """
        slots = keys.remainder(self.capacity)
        there = (self._generation[slots] == keys.div(self.capacity, rounding_mode="floor")) & (keys >= 0)
        self.dropped += (~there).sum()
        return torch.where(there, slots, -1)

    def snapshot(self) -> dict[str, Tensor]:
        """Return generations and count, on the host."""
        return {"generation": self._generation.to("cpu", copy=True), "dropped": self.dropped.to("cpu", copy=True)}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Continue from a snapshot; CheckpointError if it has another capacity."""
        if snapshot["generation"].shape != (self.capacity,):
            raise CheckpointError(
                f"keys of {self.capacity} slots cannot be restored from those of {len(snapshot['generation'])}"
            )
        self._generation.copy_(snapshot["generation"])
        self.dropped.copy_(snapshot["dropped"])
