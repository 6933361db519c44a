"""Step 3 of the walk, for Q-learners: rows in, prioritised sequences out, again and again. T = 1 is a transition.

Every row is written once, into the ring of its column, on the device that learns. A sequence is only a note of where it
lies: column, first row, how many rows are there, and the carry before the first row that a recurrent core reads. Of an
episode with steps e … F − 1 sequences begin at e, e + stride, …, as long as T steps are left; one more ends at F where
the others do not, and an episode shorter than T is one short sequence. None crosses a reset. A sequence can be drawn
once it and the rows after it that n-step returns need are there, until its oldest row is overwritten.

Shapes are always the same, so rows are missing at both ends. In front, where the episode began less than C rows before,
there are zeros: `first` in the row after them makes cores and stacks of frames forget what they read. Behind the end of
an episode there are zeros too, each with `first` set: `boundaries` takes them for fillers, with weight and discount 0.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packtrain import trees
from packtrain.config import configurable
from packtrain.equations.priorities import annealed_exponent, importance_weights, item_priority, sequence_priority
from packtrain.errors import CheckpointError, ConfigError, DivergedError
from packtrain.memory.keys import Keys
from packtrain.memory.segments import NoSegments, Segments
from packtrain.memory.sum_tree import SumTree
from packtrain.trees import Tree
from packtrain.types import Row, Sample, Trajectory

_TOGETHER = 64  # rows that wait on the host, at most, before they go to the device in one copy a leaf
_FIRST_ROOM = 1024  # sequences
_COLUMN, _START, _FRONT, _STEPS = range(4)  # what is noted of a sequence


@configurable
@dataclass(frozen=True)
class Sequences:
    """Sizes of a replay memory of sequences."""

    capacity: int = 1_000_000  # rows of all columns together; the oldest give way
    sequence_length: int = 80  # T, steps to learn from; 1 for transitions
    burn_in: int = 40  # rows before them, only to warm up the core
    stride: int = 40  # steps from one sequence to the next
    n_step: int = 5  # steps of a return: n − 1 steps come after the T, for returns that reach over the end; 0 as 1
    batch_size: int = 64  # sequences
    warm_up: int = 1  # steps before the first batch
    priority_exponent: float = 0.9  # α
    importance_exponent: float = 0.6  # β at first …
    importance_exponent_end: float = 0.6  # … and in the end
    importance_steps: int = 100_000  # batches in between
    new_priority: str = "largest"  # of new sequences: the largest error so far, or as the actor says: "given"
    extras: tuple[str, ...] = ()  # what the actor knew that is kept

    def __post_init__(self) -> None:
        for name, least in (
            *((name, 1) for name in ("capacity", "sequence_length", "stride", "batch_size", "warm_up")),
            *((name, 0) for name in ("burn_in", "n_step", "priority_exponent")),
            ("importance_steps", 1),
        ):
            if not getattr(self, name) >= least:
                raise ConfigError(f"Sequences.{name} = {getattr(self, name)} must be at least {least}")
        for name in ("importance_exponent", "importance_exponent_end"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"Sequences.{name} = {getattr(self, name)} must be between 0 and 1")
        if self.stride > self.sequence_length:
            raise ConfigError(
                f"Sequences.stride = {self.stride} is more than Sequences.sequence_length = {self.sequence_length}: "
                "steps in between would never be replayed"
            )
        if 1 < self.sequence_length < self.n_step:
            raise ConfigError(
                f"Sequences.n_step = {self.n_step} is more than Sequences.sequence_length = {self.sequence_length}; "
                "for single n-step transitions set sequence_length = 1"
            )
        if self.rows > self.capacity:
            raise ConfigError(
                f"Sequences.burn_in = {self.burn_in} with {self.sequence_length} steps to learn from takes {self.rows} "
                f"rows, more than Sequences.capacity = {self.capacity} can hold"
            )
        if self.capacity < self.batch_size * self.sequence_length:
            raise ConfigError(
                f"Sequences.capacity = {self.capacity} is less than a batch of {self.batch_size} sequences of "
                f"{self.sequence_length} steps"
            )
        if self.warm_up > self.capacity:
            raise ConfigError(
                f"Sequences.warm_up = {self.warm_up} is more than Sequences.capacity = {self.capacity} can hold"
            )
        if self.new_priority not in ("largest", "given"):
            raise ConfigError(f'Sequences.new_priority = {self.new_priority!r} must be "largest" or "given"')

    @property
    def steps(self) -> int:
        """Steps of a sampled trajectory: T to learn from, and n − 1."""
        return self.sequence_length + max(self.n_step, 1) - 1

    @property
    def rows(self) -> int:
        """Rows from the first that a core reads to the one that follows the last."""
        return self.burn_in + self.steps + 2

    def build(self, groups: list[int], context: int, device: torch.device) -> SequenceMemory:
        """A memory for groups of columns of the given sizes, whose policy needs so many rows of context."""
        return SequenceMemory(self, groups, context, device)

    def bytes_needed(self, columns: int, row: int) -> int:
        """What the rows take, about; carries, one a sequence, come on top.

        Args:
          columns: of all groups together.
          row: bytes of one row of one column.
        """
        return self.capacity * row


class SequenceMemory:
    """Rings of rows, and a sum tree over the sequences in them. Actors add through `sinks`, learners `sample`.

    Actor and learner may be two threads. What actors add goes to the device at once where it is large (observations,
    carries); the rest waits on the host for the next sample.
    """

    replays = True  # what is sampled stays

    def __init__(self, sizes: Sequences, groups: list[int], context: int, device: torch.device):
        self.columns, self.device, self._sizes = sum(groups), device, sizes
        self.length = sizes.capacity // self.columns  # L, rows of a column
        self.context = context + sizes.burn_in  # C, rows in front of the first to learn from
        if self.length < context + sizes.rows:
            raise ConfigError(
                f"Sequences.capacity = {sizes.capacity} gives each of {self.columns} columns {self.length} rows, and a "
                f"sequence takes {context + sizes.rows}"
            )
        self._together = min(_TOGETHER, self.length)
        self.rings: dict[str, Tensor] = {}  # [columns · L + 1, ...]; the last row is always 0: what is not there
        self._structure: dict[str, Tree] = {}  # of observations, actions and carries
        self._items = torch.zeros(0, 4, dtype=torch.int64, device=device)  # [room, 4]
        self._carries: list[Tensor] = []  # [room, ...], leaf by leaf
        self._recent: list[Tensor] = []  # [rows, columns, ...] the carries before the latest rows
        self._errors = np.zeros((sizes.rows, self.columns), np.float32)  # "given" with the latest rows

        slots = self.columns * (self.length + self._together)  # no two sequences of a column begin in the same row
        self._tree, self._keys = SumTree(slots, device), Keys(slots, device)
        self._largest = torch.ones((), dtype=torch.float64, device=device)  # error
        self._unused = 0  # slots from here on have never been used
        self._freed: list[int] = []
        self._resting: list[int] = []  # given up since the last regular upload: free after the next
        # The sequences of column c are those with numbers gone[c] … made[c] − 1, in turn in two rings.
        self._made, self._gone = np.zeros(self.columns, np.int64), np.zeros(self.columns, np.int64)
        self._queue = np.zeros((2, self.columns, self.length), np.int64)  # slot, and the oldest row it needs

        self._new: list[tuple[np.ndarray, np.ndarray]] = []  # [M, 1 + 4] slot and item, [M] error; not on the device
        self._leaving: list[np.ndarray] = []  # slots that are given up; not on the device
        self._rng = np.random.default_rng(0)
        self._draws = 0  # batches ever drawn
        self._adds = 0
        self.count = 0  # steps ever added
        self._segments: Segments | NoSegments = NoSegments()
        self._lock = threading.Lock()
        self._written = torch.cuda.Event() if device.type == "cuda" else None
        ends = np.cumsum([0, *groups])
        self.sinks = [_GroupSink(self, int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]

    def reseed(self, seed: int) -> None:
        """Draw other sequences from now on."""
        self._rng = np.random.default_rng(seed)

    def attach(self, segments: Segments) -> None:
        """Keep full segments of rows there, so that checkpoints need not hold them."""
        self._segments = segments

    def __len__(self) -> int:
        """Sequences that can be drawn."""
        return int((self._made - self._gone).sum())

    @property
    def dropped(self) -> int:
        """Priorities that came too late, ever; waits for a GPU."""
        return int(self._keys.dropped)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time, and one stream of a GPU after another."""
        with self._lock, torch.no_grad():
            if self._written is not None:
                self._written.wait()
            try:
                yield
            finally:
                if self._written is not None:
                    self._written.record()

    # -- the learner's side

    def ready(self) -> bool:
        """Whether a batch can be taken."""
        return self.count >= self._sizes.warm_up and len(self) > 0

    def sample(self, version: int) -> Sample | None:
        """B sequences in proportion to their priorities, with replacement; None if there are too few.

        The trajectory has C = context + burn_in rows in front and T + n − 1 steps. extras["weight"] [T+n−1, B] is 1 for
        steps to learn from: those after the T and those that padding answers have 0. Where rows are missing behind a
        step that is marked as neither terminated nor truncated, because the stream was cut off, `truncated` is set. The
        carry is that before row `context`, the first of the burn-in. `steps` counts padding too.
        """
        with self._alone():
            if not self.ready():
                return None
            self._upload()
            size = self._sizes.batch_size
            uniforms = (np.arange(size) + self._rng.random(size)) / size
            slots = self._tree.sample(self._sent(uniforms))
            sizes, draws = self._sizes, self._draws
            exponent = annealed_exponent(
                draws, sizes.importance_exponent, sizes.importance_exponent_end, sizes.importance_steps
            )
            self._draws += 1
            weights = importance_weights(self._tree.priorities(slots), exponent).to(torch.float32)
            return Sample(self._gather(slots), size * sizes.sequence_length, self._keys.of(slots), weights)

    def set_priorities(self, keys: Tensor, priorities: Tensor) -> None:
        """What was learned of sequences.

        Args:
          keys: [B] as they came with a sample. Those of sequences that are gone are passed over and counted.
          priorities: [B] errors, 0 or above, as `sequence_priority` gives them; DivergedError if not finite.
        """
        with self._alone():
            self._upload()  # what is new has the largest error as it was when it came
            errors = priorities.to(self.device, torch.float64)
            slots = self._keys.slots(keys.to(self.device))
            self._tree.set(slots, item_priority(errors, self._sizes.priority_exponent))
            counts = (slots >= 0) & errors.isfinite()
            self._largest = torch.maximum(self._largest, torch.where(counts, errors, 0.0).amax())

    def _gather(self, slots: Tensor) -> Trajectory:
        column, start, front, steps = self._items[slots].unbind(1)  # [B] each
        context, length = self.context, self._sizes.steps
        offset = torch.arange(-context, length + 1, device=self.device).unsqueeze(1)  # [C+T+n, 1] of rows from row 0
        there = (offset >= -front) & (offset <= steps)
        nothing = self.columns * self.length
        places = torch.where(there, column * self.length + (start + offset).remainder(self.length), nothing)
        after, before, acted = places[context + 1 :], places[: context + 1], places[context:-1]
        acted = torch.where(offset[context:-1] < steps, acted, nothing)  # the last row's action was not answered
        ring = self.rings
        tree = lambda name, rows: trees.map(lambda leaf: ring[leaf][rows], self._leaves(name))  # noqa: E731
        rewards = [name for name in ring if name.startswith("last_reward/")]
        channels = {name.removeprefix("last_reward/"): name for name in rewards}
        extras = {name: ring[f"extras/{name}"][acted] for name in self._sizes.extras}
        extras |= {f"reward/{channel}": ring[name][after] for channel, name in channels.items() if channel != "train"}
        step = offset[context:-1]  # [T+n−1, 1]
        extras["weight"] = (step < steps.clamp(max=self._sizes.sequence_length)).to(torch.float32)
        terminated, truncated = ring["terminated"][after], ring["truncated"][after]
        cut = (step == steps - 1) & (steps < length) & ~terminated
        return Trajectory(
            obs=tree("obs", places),
            first=ring["first"][places] | (offset > steps),
            action=tree("last_action", after),
            reward=ring["last_reward/train"][after],
            terminated=terminated,
            truncated=truncated | cut,
            last_action=tree("last_action", before),
            last_reward={channel: ring[name][before] for channel, name in channels.items()},
            carry=trees.pack(self._structure["carry"], [leaf[slots] for leaf in self._carries]),
            extras=extras,
        )

    # -- the actor's side

    def has_room(self) -> bool:
        """There is always room: old rows make it."""
        return True

    def wait_for_room(self, timeout: float) -> bool:
        """Likewise."""
        return True

    def _leaves(self, name: str) -> Tree:
        """A tree of the names of the rings that a tree of observations or actions is kept in."""
        structure = self._structure[name]
        return trees.pack(structure, trees.named_leaves(structure, name))

    def _ring(self, name: str) -> Tensor:
        """[columns, L, ...]."""
        return self.rings[name][:-1].unflatten(0, (self.columns, self.length))

    def _allocate(self, leaves: dict[str, Tensor], carry: list[Tensor]) -> None:
        """Rings for rows and carries [B, ...] like these."""
        make = lambda leaf, *shape: torch.zeros(*shape, *leaf.shape[1:], dtype=leaf.dtype, device=self.device)  # noqa: E731
        self.rings = {name: make(leaf, self.columns * self.length + 1) for name, leaf in leaves.items()}
        self._carries = [make(leaf, 0) for leaf in carry]
        self._recent = [make(leaf, self._sizes.rows, self.columns) for leaf in carry]

    def _named(self, row: Row, extras: dict[str, Any]) -> dict[str, Any]:
        """What is kept of a row, by the names of the rings."""
        for name in (*self._sizes.extras, *["priority"] * (self._sizes.new_priority == "given")):
            if name not in extras:
                given = ", ".join(sorted(extras)) or "nothing"
                raise ConfigError(f"Sequences keeps {name!r} of the actor's extras, and the actor gives {given}")
        return {
            **trees.named_leaves(row.obs, "obs"),
            **trees.named_leaves(row.last_action, "last_action"),
            **{f"last_reward/{channel}": leaf for channel, leaf in row.last_reward.items()},
            **{name: getattr(row, name) for name in ("first", "terminated", "truncated")},
            **{f"extras/{name}": extras[name] for name in self._sizes.extras},
        }

    def _note(self, columns: np.ndarray, begin: np.ndarray, start: np.ndarray, steps: np.ndarray) -> None:
        """New sequences [M], each of another column.

        Args:
          columns: where they lie.
          begin: the rows in which their episodes begin.
          start: their first rows to learn from.
          steps: how many are there from `start` on, those after the T included.
        """
        slots = self._take_slots(len(columns))
        front = np.minimum(self.context, start - begin)
        turn = self._made[columns] % self.length
        self._queue[0, columns, turn], self._queue[1, columns, turn] = slots, start - front
        self._made[columns] += 1
        if self._carries:
            row = np.maximum(start - self._sizes.burn_in, begin) % self._sizes.rows
            to, row, column = self._sent(np.stack([slots, row, columns])).unbind()
            for kept, recent in zip(self._carries, self._recent, strict=True):
                kept[to] = recent[row, column]
        items = np.stack([slots, columns, start, front, steps], axis=1)
        self._new.append((items, self._given(columns, start, steps)))

    def _given(self, columns: np.ndarray, start: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """The errors [M] of new sequences as the actor sees them; −1 if it has said nothing.

        extras["priority"] of row t + n is |δ_t|: only then the return is known.
        """
        if self._sizes.new_priority == "largest":
            return np.full(len(columns), -1.0)
        behind = max(self._sizes.n_step, 1) + np.arange(self._sizes.sequence_length)[:, None]  # [T, 1] rows from start
        errors = torch.from_numpy(self._errors[(start + behind) % len(self._errors), columns])
        valid = torch.from_numpy((behind <= steps).astype(np.float32))
        found = sequence_priority(errors, valid).numpy().astype(np.float64)
        if not np.isfinite(found).all():
            raise DivergedError("the actor gives priorities that are not finite")
        return np.where(valid.any(0), found, -1.0)

    def _take_slots(self, count: int) -> np.ndarray:
        again = min(count, len(self._freed))
        slots = [self._freed.pop() for _ in range(again)] + list(range(self._unused, self._unused + count - again))
        self._unused += count - again
        if self._unused > len(self._items):
            room = min(self._tree.capacity, max(2 * len(self._items), self._unused, _FIRST_ROOM))
            grow = lambda leaf: torch.cat([leaf, leaf.new_zeros(room - len(leaf), *leaf.shape[1:])])  # noqa: E731
            self._items, self._carries = grow(self._items), [grow(leaf) for leaf in self._carries]
        return np.array(slots, np.int64)

    def _give_up(self, columns: np.ndarray, oldest: int) -> None:
        """Sequences of these columns that need rows before `oldest` are gone."""
        while len(columns):
            columns = columns[self._gone[columns] < self._made[columns]]
            turn = self._gone[columns] % self.length
            lost = self._queue[1, columns, turn] < oldest
            columns = columns[lost]
            if len(columns):
                self._leaving.append(self._queue[0, columns, turn[lost]])
                self._gone[columns] += 1

    def _upload(self) -> None:
        """Bring what waits to the device. When that happens changes nothing of what is drawn."""
        for sink in self.sinks:
            if not sink.waiting:
                continue
            numbers = np.arange(sink.rows - len(sink.waiting), sink.rows) % self.length
            places = self._sent(numbers)
            for name in sink.waiting[0]:
                rows = np.stack([row[name] for row in sink.waiting], axis=1)  # [group, R, ...]
                self._ring(name)[sink.begin : sink.end, places] = self._sent(rows)
            sink.waiting.clear()
        if self._new:
            items = self._sent(np.concatenate([item for item, _ in self._new]))
            errors = self._sent(np.concatenate([error for _, error in self._new]))
            slots = items[:, 0].contiguous()
            self._items[slots] = items[:, 1:]
            self._keys.take(slots)
            largest = torch.maximum(errors.cummax(0).values, self._largest)
            self._tree.set(
                slots, item_priority(torch.where(errors < 0, largest, errors), self._sizes.priority_exponent)
            )
            self._largest = largest[-1]
            self._new.clear()
        if self._leaving:
            leaving = np.concatenate(self._leaving)
            slots = self._sent(leaving)
            self._keys.take(slots)  # by nobody, so that old keys find nothing
            self._tree.set(slots, torch.zeros_like(slots, dtype=torch.float64))
            self._resting += leaving.tolist()
            self._leaving.clear()

    def _sent(self, array: np.ndarray) -> Tensor:
        """On the device, without waiting for it."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    # -- saving

    def snapshot(self) -> dict[str, Any]:
        """Everything: rows that are in no segment, sequences with their carries and priorities, the generator."""
        with self._alone():
            self._upload()
            structure = {name: trees.map(lambda leaf: leaf[:0], tree) for name, tree in self._structure.items()}
            return {
                "sizes": [self.columns, self.length, self.context, self._sizes.rows],
                "count": self.count,
                "adds": self._adds,
                "draws": self._draws,
                "rng": self._rng.bit_generator.state,
                "structure": structure,
                "sinks": [sink.snapshot() for sink in self.sinks],
                "items": self._items[: self._unused].to("cpu", copy=True),
                "carries": [leaf[: self._unused].to("cpu", copy=True) for leaf in self._carries],
                "recent": [leaf.to("cpu", copy=True) for leaf in self._recent],
                "errors": self._errors.copy(),
                "freed": np.array(self._freed, np.int64),
                "resting": np.array(self._resting, np.int64),
                "made": self._made.copy(),
                "gone": self._gone.copy(),
                "queue": self._queue.copy(),
                "largest": float(self._largest),
                "tree": self._tree.snapshot(),
                "keys": self._keys.snapshot(),
            }

    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Go on from a snapshot; CheckpointError if it is of other sizes, or a segment is missing or damaged.

        Args:
          snapshot: what `snapshot` gave.
          same_episodes: whether the environments go on too; if not, what was under way ends where it stood.
        """
        sizes = [self.columns, self.length, self.context, self._sizes.rows]
        if list(snapshot["sizes"]) != sizes:
            raise CheckpointError(
                f"sequences of columns, rows, context and length {sizes} cannot go on from {list(snapshot['sizes'])}"
            )
        with self._alone():
            self._new, self._leaving = [], []
            self.count, self._adds, self._draws = (int(snapshot[name]) for name in ("count", "adds", "draws"))
            self._rng.bit_generator.state = snapshot["rng"]
            self._structure = dict(snapshot["structure"])
            self.rings = {}
            self._items = snapshot["items"].to(self.device, copy=True)
            self._unused = len(self._items)
            for sink, state in zip(self.sinks, snapshot["sinks"], strict=True):
                sink.restore(state, snapshot["recent"])
            self._carries, self._recent = (
                [leaf.to(self.device, copy=True) for leaf in snapshot[name]] for name in ("carries", "recent")
            )
            self._freed, self._resting = snapshot["freed"].tolist(), snapshot["resting"].tolist()
            self._errors, self._queue = snapshot["errors"].copy(), snapshot["queue"].copy()
            self._made, self._gone = snapshot["made"].copy(), snapshot["gone"].copy()
            self._largest.fill_(float(snapshot["largest"]))
            self._tree.restore(snapshot["tree"])
            self._keys.restore(snapshot["keys"])
            if not same_episodes:
                for sink in self.sinks:
                    sink.leave()

    def _rows(self, sink: _GroupSink, first: int, end: int) -> dict[str, Tensor]:
        """Rows of a group by their numbers, which are still there, [rows, group, ...] on the host."""
        places = self._sent(np.arange(first, end) % self.length)
        return {name: self._ring(name)[sink.begin : sink.end, places].transpose(0, 1).cpu() for name in self.rings}


class _GroupSink:
    """Where one group of columns writes, and where the episodes of each stand."""

    def __init__(self, memory: SequenceMemory, begin: int, end: int):
        self._memory, self.begin, self.end = memory, begin, end
        self.rows = 0  # ever written
        self.episode = np.full(end - begin, -1)  # the row in which it began; −1: not known, nothing is kept
        self.next = np.zeros(end - begin, np.int64)  # where the next sequence begins
        self.waiting: list[dict[str, np.ndarray]] = []  # what is small of the latest rows, not on the device

    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """One row of all columns; sequences that are whole now can be drawn."""
        memory, number = self._memory, self.rows
        named = memory._named(row, extras)
        with memory._alone():
            if not memory.rings:
                memory._structure = {"obs": row.obs, "last_action": row.last_action, "carry": carry}
                empty = lambda leaf: _compact(leaf)[:0].clone()  # noqa: E731
                memory._structure = {name: trees.map(empty, tree) for name, tree in memory._structure.items()}
                memory._allocate(
                    {name: _compact(leaf) for name, leaf in named.items()}, [_compact(x) for x in trees.flatten(carry)]
                )
            memory._give_up(np.arange(self.begin, self.end), number + 1 - memory.length)
            waits = {}
            for name, leaf in named.items():
                if name.startswith("obs"):
                    memory._ring(name)[self.begin : self.end, number % memory.length] = _compact(leaf)
                else:
                    waits[name] = _compact(leaf).cpu().numpy().copy()
            self.waiting.append(waits)
            place = number % len(memory._errors)
            for recent, leaf in zip(memory._recent, trees.flatten(carry), strict=True):
                recent[place, self.begin : self.end] = _compact(leaf)
            if memory._sizes.new_priority == "given":
                memory._errors[place, self.begin : self.end] = _compact(extras["priority"])
            self.rows += 1
            self._cut(waits["first"])
            memory.count += self.end - self.begin - int(waits["first"].sum())
            memory._adds += 1
            if memory._adds % memory._together == 0:
                memory._upload()
                memory._freed += memory._resting
                memory._resting = []

    def _cut(self, first: np.ndarray) -> None:
        """Note the sequences that the latest row makes whole."""
        number, sizes = self.rows - 1, self._memory._sizes
        if first.any():
            self._end(np.flatnonzero(first & (self.episode >= 0)), number - 1)
            self.episode[first] = self.next[first] = number
        whole = np.flatnonzero((self.episode >= 0) & (self.next + sizes.steps <= number))
        self._note(whole, self.next[whole], np.full(len(whole), sizes.steps))
        self.next[whole] += sizes.stride

    def _end(self, columns: np.ndarray, final: int) -> None:
        """The episodes of these columns ended in row `final`: what is left of them, up to there."""
        length, stride = self._memory._sizes.sequence_length, self._memory._sizes.stride
        left = columns
        while len(left := left[self.next[left] + length <= final]):
            self._note(left, self.next[left], final - self.next[left])
            self.next[left] += stride
        covered = np.where(self.next > self.episode, self.next - stride + length, self.episode)
        rest = columns[covered[columns] < final]
        start = np.maximum(final - length, self.episode[rest])
        self._note(rest, start, final - start)

    def _note(self, columns: np.ndarray, start: np.ndarray, steps: np.ndarray) -> None:
        if len(columns):
            self._memory._note(self.begin + columns, self.episode[columns], start, steps)

    def leave(self) -> None:
        """What is under way ends here; nothing is kept until a reset."""
        self._end(np.flatnonzero(self.episode >= 0), self.rows - 1)
        self.episode[:] = -1

    def snapshot(self) -> dict[str, Any]:
        """Where it stands, its rows by segment, and those that are in none."""
        memory = self._memory
        segments, groups, mine = memory._segments, len(memory.sinks), memory.sinks.index(self)
        size = max(1, segments.rows // memory.columns)  # rows of this group in a segment
        oldest, whole = max(0, self.rows - memory.length), self.rows // size
        first = -(-oldest // size)  # the first segment of which every row is still there
        described = []
        for number in range(first, whole):
            segments.write(number * groups + mine, memory._rows(self, number * size, (number + 1) * size))
            described += segments.described(number * groups + mine, number * groups + mine + 1)
        if first >= whole:  # no whole segment: everything is in the checkpoint
            head, tail = (oldest, oldest), (oldest, self.rows)
        else:
            head, tail = (oldest, first * size), (whole * size, self.rows)
        return {
            "rows": self.rows,
            "episode": self.episode.copy(),
            "next": self.next.copy(),
            "segments": described,
            "head": memory._rows(self, *head),
            "tail": memory._rows(self, *tail),
        }

    def restore(self, snapshot: dict[str, Any], carry: list[Tensor]) -> None:
        """Go on from a snapshot; carries are only looked at for their shapes, [rows, columns, ...]."""
        memory = self._memory
        self.rows, self.waiting = int(snapshot["rows"]), []
        self.episode, self.next = snapshot["episode"].copy(), snapshot["next"].copy()
        parts = [snapshot["head"], *(memory._segments.read(each) for each in snapshot["segments"]), snapshot["tail"]]
        parts = [part for part in parts if part and len(part["first"])]
        number = self.rows - sum(len(part["first"]) for part in parts)
        for part in parts:
            if not memory.rings:
                memory._allocate({name: leaf[0] for name, leaf in part.items()}, [leaf[0] for leaf in carry])
            places = memory._sent(np.arange(number, number + len(part["first"])) % memory.length)
            for name, leaf in part.items():
                memory._ring(name)[self.begin : self.end, places] = leaf.transpose(0, 1).to(memory.device)
            number += len(part["first"])


def _compact(leaf: Any) -> Tensor:
    """Long floating-point numbers as float32; everything else, pictures and flags, as it is. Without a copy if it can.

    A tensor stays on its device.
    """
    tensor = leaf.detach() if isinstance(leaf, Tensor) else torch.from_numpy(np.asarray(leaf))
    return tensor.to(torch.float32) if tensor.dtype == torch.float64 else tensor
