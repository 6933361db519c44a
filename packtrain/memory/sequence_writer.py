"""Writer of the sequence memory: rows of a group go into rings; sequences are added when they are complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from packtrain import trees
from packtrain.interfaces import Writer
from packtrain.memory.resize import stored_rows
from packtrain.memory.storage import sent
from packtrain.trees import Tree
from packtrain.types import Row

if TYPE_CHECKING:
    from packtrain.memory.sequence_memory import SequenceMemory


class SequenceWriter(Writer):
    """Writer of one group of environments, and the progress of their episodes."""

    def __init__(self, memory: SequenceMemory, begin: int, end: int):
        self._memory, self._group = memory, slice(begin, end)
        self.columns = end - begin
        self.rows = 0  # rows ever written
        self.begin = 0  # the first of them that was stored; above 0 after the number of environments has changed
        self._episode = np.full(end - begin, -1)  # row in which each episode began; −1: unknown, no sequences are added
        self._next = np.zeros(end - begin, np.int64)  # row at which the next sequence begins
        self._waiting: list[dict[str, np.ndarray]] = []  # small leaves of the latest rows, not on the device yet
        # running discounted returns, for `RewardScale`
        self._returns = np.zeros(end - begin if memory.reward_scale is not None else 0)

    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """Store one row of all environments; sequences that are complete now can be sampled."""
        memory, number = self._memory, self.rows
        named = {name: compact(leaf) for name, leaf in memory.named(row, extras).items()}
        carries = [compact(leaf) for leaf in trees.flatten(carry)]
        errors = compact(extras["priority"]).cpu() if memory.sizes.new_priority == "given" else None
        with memory.acting():
            memory.begin(row, carry, named)
            oldest = number + 1 - memory.length + memory.margin
            memory.index.give_up(np.arange(self._group.start, self._group.stop), oldest)
            waits = {}
            for name, leaf in named.items():
                if name.startswith("obs"):
                    memory.rings.put(name, self._group, np.array([number % memory.length]), leaf[:, None])
                else:
                    waits[name] = leaf.cpu().numpy().copy()
            self._waiting.append(waits)
            if memory.reward_scale is not None:
                memory.reward_scale.add(self._returns, waits["last_reward/train"], waits["first"])
            memory.index.look(number, self._group, carries, errors)
            self.rows += 1
            self._cut(waits["first"])
            memory.added(len(waits["first"]) - int(waits["first"].sum()))

    def upload(self) -> None:
        """Copy pending rows to the rings."""
        if not self._waiting:
            return
        places = np.arange(self.rows - len(self._waiting), self.rows) % self._memory.length
        for name in self._waiting[0]:
            rows = np.stack([row[name] for row in self._waiting], axis=1)  # [group, R, ...]
            self._memory.rings.put(name, self._group, places, sent(rows, self._memory.device))
        self._waiting.clear()

    def _cut(self, first: np.ndarray) -> None:
        """Add the sequences that the latest row completes."""
        number, sizes = self.rows - 1, self._memory.sizes
        if first.any():
            self._end(np.flatnonzero(first & (self._episode >= 0)), number - 1)
            self._episode[first] = self._next[first] = number
        whole = np.flatnonzero((self._episode >= 0) & (self._next + sizes.steps <= number))
        self._note(whole, self._next[whole], np.full(len(whole), sizes.steps))
        self._next[whole] += sizes.stride

    def _end(self, columns: np.ndarray, final: int) -> None:
        """Add the remaining sequences of these environments, whose episodes ended in row `final`."""
        length, stride = self._memory.sizes.sequence_length, self._memory.sizes.stride
        left = columns
        while len(left := left[self._next[left] + length <= final]):
            self._note(left, self._next[left], final - self._next[left])
            self._next[left] += stride
        covered = np.where(self._next > self._episode, self._next - stride + length, self._episode)
        rest = columns[covered[columns] < final]
        start = np.maximum(final - length, self._episode[rest])
        self._note(rest, start, final - start)

    def _note(self, columns: np.ndarray, start: np.ndarray, steps: np.ndarray) -> None:
        if len(columns):
            self._memory.index.add(self._group.start + columns, self._episode[columns], start, steps)

    def leave(self) -> None:
        """End the unfinished episodes here; nothing is stored until a reset."""
        self._end(np.flatnonzero(self._episode >= 0), self.rows - 1)
        self._episode[:] = -1

    # -- checkpoints

    def snapshot(self) -> dict[str, Any]:
        """Return the writer's position, its rows by segment, and the rows that are in none."""
        memory = self._memory
        segments, groups, mine = memory.segments, len(memory.writers), memory.writers.index(self)
        size = max(1, segments.rows // memory.columns)  # rows of this group in a segment
        oldest, whole = max(self.begin, self.rows - memory.length), self.rows // size
        first = -(-oldest // size)  # the first segment whose rows are all still stored
        described = []
        for number in range(first, whole):
            rows = lambda k=number: self._rows(k * size, (k + 1) * size)  # noqa: E731
            segments.write(number * groups + mine, rows)
            described += segments.described(number * groups + mine, number * groups + mine + 1)
        if first >= whole:  # no complete segment: all rows are in the checkpoint
            head, tail = (oldest, oldest), (oldest, self.rows)
        else:
            head, tail = (oldest, first * size), (whole * size, self.rows)
        return {
            "rows": self.rows,
            "episode": self._episode.copy(),
            "next": self._next.copy(),
            "segments": described,
            "head": self._rows(*head),
            "tail": self._rows(*tail),
            **({"begin": self.begin} if self.begin else {}),
            **({} if memory.reward_scale is None else {"returns": self._returns.copy()}),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot, into empty rings."""
        memory = self._memory
        self.stand(snapshot)
        groups, mine = len(memory.writers), memory.writers.index(self)
        for part in stored_rows(snapshot, mine, groups, memory.length, memory.segments):
            if part.rows is None:
                memory.note_lost(self, part.first, part.end, anew=not part.known)
            else:
                memory.put_rows(self._group, np.arange(part.first, part.end), part.rows)

    def stand(self, snapshot: dict[str, Any]) -> None:
        """Continue from the position of a snapshot's rows and episodes, without its rows."""
        self.rows, self.begin, self._waiting = int(snapshot["rows"]), int(snapshot.get("begin", 0)), []
        self._episode, self._next = snapshot["episode"].copy(), snapshot["next"].copy()
        if self._memory.reward_scale is not None:
            self._returns[:] = snapshot.get("returns", 0.0)

    def begin_at(self, begin: int, rows: int) -> None:
        """Continue with row `rows`, with rows from `begin` on stored; every environment begins a new episode."""
        self.rows, self.begin, self._waiting = rows, begin, []
        self._episode[:], self._next[:] = -1, 0

    def lose(self, first: int, end: int) -> int:
        """Remove sequences that need one of the lost rows `first` to `end` − 1; return how many.

        If a later sequence of an unfinished episode needs a lost row, no more sequences of this episode are added.
        """
        columns, sizes = np.arange(self._group.start, self._group.stop), self._memory.sizes
        gone = self._memory.index.lose(columns, first, end)
        # The last sequence of an episode may begin up to a stride before the regular start of the next.
        earliest = np.where(self._next > self._episode, self._next - sizes.stride + 1, self._episode)
        earliest = np.maximum(earliest - self._memory.context, self._episode)
        self._episode[(self._episode >= 0) & (earliest < end)] = -1
        return gone

    def _rows(self, first: int, end: int) -> dict[str, Tensor]:
        """Return stored rows by their numbers, [rows, group, ...] on the host."""
        return self._memory.rings.rows(self._group, np.arange(first, end) % self._memory.length)


def compact(leaf: Any) -> Tensor:
    """Return long floating-point numbers as float32 and other leaves unchanged, without a copy if possible.

    A tensor stays on its device.
    """
    tensor = leaf.detach() if isinstance(leaf, Tensor) else torch.from_numpy(np.asarray(leaf))
    return tensor.to(torch.float32) if tensor.dtype == torch.float64 else tensor
