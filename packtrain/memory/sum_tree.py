"""Sum tree: leaves with priorities, sampled in proportion to them, in batches on any device; and keys of their slots.

The tree is wide: a node has 32 children, so a million leaves are four levels, and each level takes a handful of
operators however many leaves are set or sampled. A parent is always recomputed as the sum of its children, so rounding
errors do not accumulate. Sums are float64 on every device. Nothing here waits for a GPU, and shapes never depend on
values, so that all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from packtrain.errors import CheckpointError, ConfigError, DivergedError, Error

LARGEST = 1e290  # largest priority; the sum over any memory stays finite
_FAN = 32  # number of children of a node, a power of two


class SumTree:
    """Priorities of `capacity` leaves, initially 0. Not thread-safe.

    A CPU refuses bad priorities and draws from nothing at once. A GPU counts them, keeps what was there, and goes on;
    `check` looks at the counts, which waits.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu"):
        if capacity < 1:
            raise ConfigError(f"SumTree.capacity = {capacity} must be at least 1")
        self.capacity = capacity
        self.device = torch.device(device)
        self._levels: list[Tensor] = [
            torch.zeros(size, dtype=torch.float64, device=self.device) for size in _level_sizes(capacity)
        ]
        self._total = torch.zeros(1, dtype=torch.float64, device=self.device)
        # counts of invalid priorities and of samples from an empty tree
        self.faults = torch.zeros(2, dtype=torch.int64, device=self.device)

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """Return the bytes of a tree of this many leaves on its device."""
        return 8 * (sum(_level_sizes(capacity)) + 3)  # the levels, the total and two counts

    @property
    def total(self) -> Tensor:
        """Return a copy of the sum of all priorities, [] float64."""
        return self._total[0].clone()

    def priorities(self, leaves: Tensor) -> Tensor:
        """Return the priorities of leaves [M], float64."""
        return self._levels[0][leaves]

    @torch.no_grad()
    def set(self, leaves: Tensor, priorities: Tensor) -> None:
        """Set the priorities of leaves.

        Args:
          leaves: [M] int64. Where one comes more than once, the last counts; those below 0 are passed over.
          priorities: [M] finite, 0 or above; DivergedError otherwise, and nothing has changed.
        """
        assert leaves.shape == priorities.shape and leaves.ndim == 1, f"{leaves.shape} and {priorities.shape}"
        if not len(leaves):
            return
        priorities = priorities.to(self._total.dtype)
        good = (priorities >= 0) & (priorities <= LARGEST)  # False for NaN
        if self.device.type == "cpu":
            _refuse_bad(priorities, good)
            assert int(leaves.max()) < self.capacity, f"leaf {int(leaves.max())} of {self.capacity}"
        else:
            self.faults[0] += (~good).sum()
        ranked, order = leaves.sort(stable=True)
        last = order[torch.searchsorted(ranked, leaves, right=True) - 1]  # [M] the last entry with the same leaf
        places = torch.where(leaves < 0, self.capacity, leaves)
        # Duplicates all write the same value, so their order does not matter.
        values = torch.where(good[last], priorities[last], self._levels[0][places])
        self._levels[0][places] = values.masked_fill(leaves < 0, 0.0)
        self._add_up(places)

    @torch.no_grad()
    def sample(self, uniforms: Tensor) -> Tensor:
        """Sample leaves in proportion to their priorities, [B] int64; never one with priority 0.

        Args:
          uniforms: [B] in [0, 1]. For a stratified draw give (b + u) / B.
        """
        if self.device.type != "cpu":
            self.faults[1] += (self._total[0] <= 0) * len(uniforms)
        elif not float(self._total) > 0:
            raise Error(f"a sum tree cannot be sampled: the priorities of all {self.capacity} leaves are 0")
        rest = uniforms.to(self._total.dtype) * self._total
        node = torch.zeros_like(rest, dtype=torch.int64)
        for level in reversed(self._levels):
            children = level.view(-1, _FAN)[node]  # [B, 32]
            # Where each child ends. A GPU adds in another order, so an empty child may seem to reach further.
            until = children.cumsum(-1).mul_(children > 0)
            end = until.amax(-1)
            rest = torch.minimum(rest, torch.nextafter(end, torch.zeros_like(end)))  # rounding may exceed the end
            child = (until > rest.unsqueeze(-1)).byte().argmax(-1, keepdim=True)  # the first child that reaches further
            begin = (until.gather(-1, child) - children.gather(-1, child)).squeeze(-1)
            rest = (rest - begin).clamp_(min=0.0)
            node = node * _FAN + child.squeeze(-1)
        return node

    def check(self) -> None:
        """Raise a DivergedError or Error if a GPU has received bad priorities or sampled from nothing; waits for it."""
        bad, empty = self.faults.tolist()
        if bad:
            raise DivergedError(f"{bad} priorities were not finite numbers of 0 or above")
        if empty:
            raise Error(f"{empty} draws were made from a sum tree in which every priority was 0")

    def snapshot(self) -> dict[str, Tensor]:
        """Return the priorities, [capacity] on the host; the sums follow from them exactly."""
        return {"priorities": self._levels[0][: self.capacity].to("cpu", copy=True)}

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Continue from a snapshot; CheckpointError if it has another capacity."""
        priorities = snapshot["priorities"]
        if priorities.shape != (self.capacity,):
            raise CheckpointError(
                f"a sum tree of {self.capacity} leaves cannot be restored from one of {len(priorities)}"
            )
        _refuse_bad(priorities, (priorities >= 0) & (priorities <= LARGEST))
        self._levels[0][: self.capacity] = priorities.to(self.device)
        for below, above in itertools.pairwise([*self._levels, self._total]):
            above[: len(below) // _FAN] = _sums(below.view(-1, _FAN))
        self.faults.zero_()

    def _add_up(self, places: Tensor) -> None:
        """Recompute all sums above some leaves."""
        for below, above in itertools.pairwise([*self._levels, self._total]):
            places = places.div(_FAN, rounding_mode="floor")
            above[places] = _sums(below.view(-1, _FAN)[places])


def _level_sizes(capacity: int) -> list[int]:
    """Return the number of nodes of each level, leaves first, padded to a multiple of the branching factor."""
    families, sizes = capacity + 1, []  # one extra leaf, always 0, which absorbs masked writes
    while families > 1:
        families = -(-families // _FAN)
        sizes.append(families * _FAN)
    return sizes


def _sums(families: Tensor) -> Tensor:
    """Return [M] sums of [M, 32], always added in the same order; torch's order depends on M and on the device."""
    while families.shape[-1] > 1:
        half = families.shape[-1] // 2
        families = families[:, :half] + families[:, half:]
    return families.squeeze(-1)


def _refuse_bad(priorities: Tensor, good: Tensor) -> None:
    if not bool(good.all()):
        index = int(good.byte().argmin())
        raise DivergedError(f"priority {index} of {len(good)} is {float(priorities[index])}, not finite and 0 or above")


class SlotGenerations:
    """Keys of the contents of a memory's slots; a key becomes invalid when its slot is overwritten.

    A learner answers for a sample when it is done with it. By then an actor may have put something else in the slot:

        key = generation · capacity + slot, with a new generation each time a slot is written.

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
