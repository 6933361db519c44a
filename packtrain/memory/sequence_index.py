"""Index of the sequences of a memory: position, recurrent state, priority and key of each.

The entry of a sequence lies in a slot; the sum tree and the keys are indexed by slot. Changes are collected on the
host and copied to the device together when the learner samples, or when an actor uploads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from packtrain.equations.priorities import item_priority, sequence_priority
from packtrain.errors import DivergedError
from packtrain.memory.storage import sent
from packtrain.memory.sum_tree import SlotGenerations, SumTree

if TYPE_CHECKING:
    from packtrain.memory.sequence_settings import Sequences


class SequenceIndex:
    """The sequences of all environments. Not thread-safe."""

    def __init__(
        self, sizes: Sequences, columns: int, context: int, device: torch.device, wait_until_read: Callable[[], None]
    ):
        """Create an index without sequences.

        Args:
          sizes: of the memory.
          columns: how many there are.
          context: C, rows in front of the first to learn from.
          device: where notes are drawn from.
          wait_until_read: called before notes move to another place.
        """
        self._sizes, self._context, self._device = sizes, context, device
        self._wait_until_read = wait_until_read
        self._length = sizes.length(columns)  # L
        slots = most_notes(sizes, columns)
        self.tree, self.generations = SumTree(slots, device), SlotGenerations(slots, device)
        self.items = torch.zeros(first_room(sizes, columns), 4, dtype=torch.int64, device=device)  # see `where`
        self.carries: list[Tensor] = []  # [room, ...], leaf by leaf
        self._recent: list[Tensor] = []  # [rows, columns, ...] recurrent states before the latest rows
        # TD errors that came with the latest rows, for new_priority = "given"
        self._errors = np.zeros((sizes.rows, columns), np.float32)
        self.errors_are_known = True  # False: new sequences get the largest priority, whatever actors give
        self._largest = torch.ones((), dtype=torch.float64, device=device)  # largest TD error, which may decay
        self.unused = 0  # slots from here on have never been used
        self._freed: list[int] = []
        self._resting: list[int] = []  # freed since the last regular upload; reusable after the next
        # The sequences of environment c have the numbers gone[c] … made[c] − 1, stored in two rings.
        self._made, self._gone = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
        self._queue = np.zeros((2, columns, self._length), np.int64)  # slot, and the oldest row that it needs
        self._new: list[
            tuple[np.ndarray, np.ndarray]
        ] = []  # new sequences: [M, 1 + 4] slot and item, [2, M] see `_given`
        self._leaving: list[np.ndarray] = []  # freed slots whose release is not on the device yet

    def __len__(self) -> int:
        """Return the number of sequences that can be sampled."""
        return int((self._made - self._gone).sum())

    @property
    def on_device(self) -> int:
        """Return the number of sequences that sampling can reach; additions and removals wait for an upload."""
        return len(self) - sum(len(items) for items, _ in self._new) + sum(map(len, self._leaving))

    # -- used by the learner

    def draw(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Sample slots in proportion to their priorities; return slots and probabilities, [B] each: see `SumTree`."""
        slots = self.tree.sample(uniforms)
        return slots, self.tree.priorities(slots)

    def where(self, slots: Tensor) -> tuple[Tensor, ...]:
        """Return environment, first row, number of rows before it and number of steps of each sequence, [B] each."""
        return self.items[slots].unbind(1)

    def judge(self, keys: Tensor, priorities: Tensor) -> None:
        """Set new errors [B] of sequences by their keys; keys of removed sequences are ignored."""
        errors = priorities.to(self._device, torch.float64)
        slots = self.generations.slots(keys.to(self._device))
        self.tree.set(slots, item_priority(errors, self._sizes.priority_exponent))
        counts = (slots >= 0) & errors.isfinite()
        # In place: another stream may still read these tensors, so they must not move.
        before = self._largest * self._sizes.largest_decay
        self._largest.copy_(torch.maximum(before, torch.where(counts, errors, 0.0).amax()))

    # -- used by the actor

    def allocate(self, carry: list[Tensor]) -> None:
        """Allocate storage for recurrent states [B, ...] like these."""

        def make(leaf: Tensor, *shape: int) -> Tensor:
            return torch.zeros(*shape, *leaf.shape[1:], dtype=leaf.dtype, device=self._device)

        self.carries = [make(leaf, len(self.items)) for leaf in carry]
        self._recent = [make(leaf, *self._errors.shape) for leaf in carry]

    def look(self, number: int, columns: slice, carry: list[Tensor], errors: Tensor | None) -> None:
        """Record the recurrent state before row `number` of some environments, and the actor's errors."""
        place = number % len(self._errors)
        for recent, leaf in zip(self._recent, carry, strict=True):
            recent[place, columns] = leaf
        if errors is not None:
            self._errors[place, columns] = errors

    def add(self, columns: np.ndarray, begin: np.ndarray, start: np.ndarray, steps: np.ndarray) -> None:
        """Add new sequences [M], each of another environment.

        Args:
          columns: the index of each sequence's environment.
          begin: the rows in which their episodes begin.
          start: their first rows to learn from.
          steps: how many are there from `start` on, those after the T included.
        """
        slots = self._take_slots(len(columns))
        front = np.minimum(self._context, start - begin)
        turn = self._made[columns] % self._length
        self._queue[0, columns, turn], self._queue[1, columns, turn] = slots, start - front
        self._made[columns] += 1
        if self.carries:
            row = np.maximum(start - self._sizes.burn_in, begin) % self._sizes.rows
            to, row, column = sent(np.stack([slots, row, columns]), self._device).unbind()
            for kept, recent in zip(self.carries, self._recent, strict=True):
                kept[to] = recent[row, column]
        items = np.stack([slots, columns, start, front, steps], axis=1)
        self._new.append((items, self._given(columns, start, steps)))

    def _given(self, columns: np.ndarray, start: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the errors of new sequences as the actor computed them, and their priorities, [2, M].

        −1 where no step of a sequence has an error. extras["priority"] of row t + n is |δ_t|: only then the return is
        known. Chances are computed here and not in `upload`: the last bit of a power depends on what is computed with
        it, and what waits for an upload is not always the same.
        """
        if self._sizes.new_priority == "largest" or not self.errors_are_known:
            return np.full((2, len(columns)), -1.0)
        behind = max(self._sizes.n_step, 1) + np.arange(self._sizes.sequence_length)[:, None]  # [T, 1] rows from start
        errors = torch.from_numpy(self._errors[(start + behind) % len(self._errors), columns])
        valid = torch.from_numpy((behind <= steps).astype(np.float32))
        found = sequence_priority(errors, valid, self._sizes.eta).double()
        if not bool(found.isfinite().all()):
            raise DivergedError("the actor gives priorities that are not finite")
        chances = item_priority(found, self._sizes.priority_exponent)
        return np.where(valid.any(0), torch.stack([found, chances]), -1.0)

    def _take_slots(self, count: int) -> np.ndarray:
        again = min(count, len(self._freed))
        slots = [self._freed.pop() for _ in range(again)] + list(range(self.unused, self.unused + count - again))
        self.unused += count - again
        if self.unused > len(self.items):  # many short episodes need more slots
            self._make_room(max(2 * len(self.items), self.unused))
        return np.array(slots, np.int64)

    def _make_room(self, room: int) -> None:
        room = min(self.tree.capacity, room)
        self._wait_until_read()
        if self._device.type == "cuda":
            torch.cuda.synchronize()  # another stream may still read the tensors that are replaced

        def grow(leaf: Tensor) -> Tensor:
            return torch.cat([leaf, leaf.new_zeros(room - len(leaf), *leaf.shape[1:])])

        self.items, self.carries = grow(self.items), [grow(leaf) for leaf in self.carries]

    def give_up(self, columns: np.ndarray, oldest: int) -> None:
        """Remove sequences of these environments that need rows before `oldest`."""
        while len(columns):
            columns = columns[self._gone[columns] < self._made[columns]]
            turn = self._gone[columns] % self._length
            lost = self._queue[1, columns, turn] < oldest
            columns = columns[lost]
            if len(columns):
                self._leaving.append(self._queue[0, columns, turn[lost]])
                self._gone[columns] += 1

    def lose(self, columns: np.ndarray, first: int, end: int) -> int:
        """Remove sequences of these environments that need one of rows `first` to `end` − 1; return how many."""
        items, before = self.items.cpu().numpy(), len(self)
        for column in columns:
            turns = np.arange(self._gone[column], self._made[column]) % self._length
            slots, oldest = self._queue[:, column, turns]
            _, start, _, steps = items[slots].T
            lost = (oldest < end) & (start + steps >= first)  # the row after the last step is needed too
            if lost.any():
                self._leaving.append(slots[lost])
                self._gone[column] += int(lost.sum())
                turns = np.arange(self._gone[column], self._made[column]) % self._length
                self._queue[:, column, turns] = slots[~lost], oldest[~lost]
        return before - len(self)

    def upload(self) -> None:
        """Copy pending changes to the device. Its timing does not change which sequences are sampled."""
        if self._new:
            items = sent(np.concatenate([item for item, _ in self._new]), self._device)
            errors, chances = sent(np.concatenate([given for _, given in self._new], axis=1), self._device)
            slots = items[:, 0].contiguous()
            self.items[slots] = items[:, 1:]
            self.generations.take(slots)
            before = item_priority(self._largest, self._sizes.priority_exponent)
            largest = torch.maximum(chances.cummax(0).values, before)
            self.tree.set(slots, torch.where(chances < 0, largest, chances))
            self._largest.copy_(torch.maximum(errors.amax(), self._largest))
            self._new.clear()
        if self._leaving:
            leaving = np.concatenate(self._leaving)
            slots = sent(leaving, self._device)
            self.generations.take(slots)  # taken without a new sequence, so that old keys become invalid
            self.tree.set(slots, torch.zeros_like(slots, dtype=torch.float64))
            self._resting += leaving.tolist()
            self._leaving.clear()

    def free(self) -> None:
        """Release slots of removed sequences. Called at regular times, so that samples do not depend on it."""
        self._freed += self._resting
        self._resting = []

    # -- checkpoints

    def snapshot(self) -> dict[str, Any]:
        """Return everything, after an upload, on the host."""
        return {
            "items": self.items[: self.unused].to("cpu", copy=True),
            "carries": [leaf[: self.unused].to("cpu", copy=True) for leaf in self.carries],
            "recent": [leaf.to("cpu", copy=True) for leaf in self._recent],
            "errors": self._errors.copy(),
            "freed": np.array(self._freed, np.int64),
            "resting": np.array(self._resting, np.int64),
            "made": self._made.copy(),
            "gone": self._gone.copy(),
            "queue": self._queue.copy(),
            "largest": float(self._largest),
            "tree": self.tree.snapshot(),
            "keys": self.generations.snapshot(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot of the same sizes."""
        self._new, self._leaving = [], []
        room, self.unused = len(self.items), len(snapshot["items"])
        self.items = snapshot["items"].to(self._device, copy=True)
        self.carries, self._recent = (
            [leaf.to(self._device, copy=True) for leaf in snapshot[name]] for name in ("carries", "recent")
        )
        if self.unused < room:
            self._make_room(room)
        self._freed, self._resting = snapshot["freed"].tolist(), snapshot["resting"].tolist()
        self._errors, self._queue = snapshot["errors"].copy(), snapshot["queue"].copy()
        self._made, self._gone = snapshot["made"].copy(), snapshot["gone"].copy()
        self._largest.fill_(float(snapshot["largest"]))
        self.tree.restore(snapshot["tree"])
        self.generations.restore(snapshot["keys"])


def most_notes(sizes: Sequences, columns: int) -> int:
    """Return a sufficient number of slots for any episodes: sequences of an environment begin in different rows."""
    return columns * (sizes.length(columns) + sizes.together(columns))


def first_room(sizes: Sequences, columns: int) -> int:
    """Return a sufficient number of slots if episodes are long; more are allocated if many episodes are short."""
    rows = sizes.length(columns) + sizes.together(columns)
    return min(most_notes(sizes, columns), columns * (-(-rows // sizes.stride) + 1))


def note_bytes(sizes: Sequences, columns: int, carry: int) -> dict[str, int]:
    """Return the bytes of the index on the device and on the host if episodes are long.

    Args:
      sizes: of the memory.
      columns: how many there are.
      carry: bytes of the carry of one environment.
    """
    slots, length = most_notes(sizes, columns), sizes.length(columns)
    kept = (32 + carry) * first_room(sizes, columns) + carry * sizes.rows * columns
    queue = 16 * columns * length + 16 * columns  # slots and rows; numbers of made and removed sequences
    return {
        "device": kept + SumTree.bytes_needed(slots) + SlotGenerations.bytes_needed(slots) + 8,
        "host": queue + 4 * sizes.rows * columns,
    }
