"""Names for what lies in the slots of a memory, which say whether it is still there.

A learner answers for a sample when it is done with it. By then an actor may have put something else in the slot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain.errors import CheckpointError, ConfigError


class SlotGenerations:
    """key = generation · capacity + slot, with a generation for everything that has ever lain in a slot.

    Where slots are filled in turn, as in a ring, a key is the number of things that came before. Nothing here waits for
    a GPU.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu"):
        if capacity < 1:
            raise ConfigError(f"SlotGenerations.capacity = {capacity} must be at least 1")
        self.capacity = capacity
        self._generation = torch.full((capacity,), -1, dtype=torch.int64, device=device)  # −1: nothing yet
        self.dropped = torch.zeros((), dtype=torch.int64, device=device)  # keys that came too late, ever

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """What the keys of so many slots take on their device."""
        return 8 * capacity + 8

    def take(self, slots: Tensor) -> Tensor:
        """Something new lies in each of these slots [M], each named once: its keys [M]. Older keys are void."""
        self._generation[slots] += 1
        return self.of(slots)

    def of(self, slots: Tensor) -> Tensor:
        """The keys of what lies in slots [M] now; below 0 where nothing does."""
        return self._generation[slots] * self.capacity + slots

    def slots(self, keys: Tensor) -> Tensor:
        """Where the things with keys [M] lie; −1 for those that are gone, which are counted.

        `SumTree.set` passes over −1, so that a late update does nothing.
        """
        slots = keys.remainder(self.capacity)
        there = (self._generation[slots] == keys.div(self.capacity, rounding_mode="floor")) & (keys >= 0)
        self.dropped += (~there).sum()
        return torch.where(there, slots, -1)

    def snapshot(self) -> dict[str, Tensor]:
        """Generations and count, on the host."""
        return {"generation": self._generation.to("cpu", copy=True), "dropped": self.dropped.to("cpu", copy=True)}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Go on from a snapshot; CheckpointError if it is of another capacity."""
        if snapshot["generation"].shape != (self.capacity,):
            raise CheckpointError(
                f"keys of {self.capacity} slots cannot go on from those of {len(snapshot['generation'])}"
            )
        self._generation.copy_(snapshot["generation"])
        self.dropped.copy_(snapshot["dropped"])
