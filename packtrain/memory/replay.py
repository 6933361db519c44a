"""Step 3 of the walk, for off-policy learners: single transitions in, uniform batches out, again and again.

Transitions lie as rows of one block on the device that learns, numbers as float32. What actors add is kept on the host
and goes up in one copy when somebody samples, without waiting for updates under way. Indices are drawn on the host, so
that a resumed run draws the same ones, and many batches of them can be drawn at once.

Rows whose segment is lost (segments.py) leave a hole in the ring until they are overwritten: they are never drawn.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packtrain import trees
from packtrain.config import configurable
from packtrain.errors import CheckpointError, ConfigError
from packtrain.interfaces import Memory
from packtrain.memory.n_step import Joiner
from packtrain.memory.packed import Layout
from packtrain.memory.segments import NoSegments, Segments
from packtrain.memory.storage import sent
from packtrain.trees import Tree
from packtrain.types import Row, Sample, Trajectory

_FLAGS = ("terminated", "truncated")
_FIRST_ROOM = 4096
_HOLDOUT_PERIOD = 10  # the last of every so many blocks of transitions is held out
_HOLDOUT_STEPS = 16  # transitions of each column in such a block: enough for stretches of several steps


@configurable
@dataclass(frozen=True)
class Replay:
    """Sizes of a uniform replay memory."""

    capacity: int = 1_000_000  # transitions; the oldest give way. Room is taken as it is needed
    batch_size: int = 256
    warm_up: int = 1  # transitions before the first batch
    n_step: int = 1  # steps of a transition, see memory/n_step.py

    def __post_init__(self) -> None:
        for name in ("capacity", "batch_size", "warm_up", "n_step"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Replay.{name} = {getattr(self, name)} must be at least 1")
        if self.capacity < self.batch_size:
            raise ConfigError(
                f"Replay.capacity = {self.capacity} is less than Replay.batch_size = {self.batch_size}: a batch would "
                "be the same transitions over and over"
            )
        if self.warm_up > self.capacity:
            raise ConfigError(
                f"Replay.warm_up = {self.warm_up} is more than Replay.capacity = {self.capacity} can hold"
            )

    def build(self, groups: list[int], context: int, device: torch.device) -> ReplayMemory:
        """A memory for groups of columns of the given sizes."""
        return ReplayMemory(self, groups, device)

    def bytes_needed(self, columns: int, row: int) -> int:
        """What it takes when it is full: two observations a transition, about."""
        return 2 * self.capacity * row


class ReplayMemory(Memory):
    """A ring of transitions. Actors add through `sinks`; learners take `sample` or `batches`."""

    replays = outlives_episodes = True

    def __init__(self, sizes: Replay, groups: list[int], device: torch.device):
        self._sizes, self.device = sizes, device
        self._structure: dict[str, Tree] = {}  # leaf by leaf: what a field is made of
        self._layout: Layout | None = None  # known from the first transition on
        self._block = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [room, W], replaced while it grows
        block = min(_HOLDOUT_STEPS * sum(groups), sizes.capacity // _HOLDOUT_PERIOD)
        self._holdout_block = max(1, block)  # rows that are held out together; a resumed run keeps its own number
        self.steps = 0  # that actors have made; transitions of several of them come later
        self.count = 0  # transitions ever added, those that wait included
        self._waiting: collections.deque[dict[str, np.ndarray]] = collections.deque()  # not on the device yet
        self._stored = 0  # transitions on the device, ever
        self._holes: list[tuple[int, int]] = []  # [first, end) of rows that are lost, by number since the beginning
        self.lost = 0  # transitions that were lost with their segments, ever
        self._rng = np.random.default_rng(0)
        self._segments: Segments | NoSegments = NoSegments()
        self.dropped = 0
        self.sinks = [_GroupSink(self, size, sizes) for size in groups]

    def reseed(self, seed: int) -> None:
        """Draw other rows from now on."""
        self._rng = np.random.default_rng(seed)

    def attach(self, folder: Path, segment_rows: int | None = None) -> None:
        """Keep full segments of rows in a folder, so that checkpoints need not hold them."""
        self._segments = Segments(folder, segment_rows)

    @property
    def fields(self) -> dict[str, Tensor]:
        """Every field by its name, [room, ...] on the device."""
        return {} if self._layout is None else self._layout.views(self._block)

    def move(self, folder: Path) -> None:
        """Keep segments in another folder from now on."""
        self._segments.move(folder)

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        return min(self.count, self._sizes.capacity) - sum(end - first for first, end in self._hole_places(self.count))

    # -- the learner's side

    def ready(self) -> bool:
        """Whether a batch can be taken."""
        return self.count >= self._sizes.warm_up

    def indices(self, batches: int = 1, size: int | None = None, holdout: bool = False) -> Tensor:
        """Rows of `fields` drawn uniformly with replacement, [batches, B] on the device.

        With `holdout` every tenth block of rows is left out, for validation.
        """
        self._upload()
        rows, size = min(self._stored, self._sizes.capacity), size or self._sizes.batch_size
        block, learned = self._holdout_block, (_HOLDOUT_PERIOD - 1) * self._holdout_block

        def number(place: int) -> int:
            """How many places below this one may be drawn, holes included."""
            periods, rest = divmod(place, learned + block)
            return periods * learned + min(rest, learned) if holdout else place

        # Numbers are drawn of the places that may be: without held-out blocks, if there are any, and without holes.
        holes = [(number(first), number(end)) for first, end in self._hole_places(self._stored)]
        free = number(rows) - sum(end - first for first, end in holes)
        drawn = self._rng.integers(free, size=(batches, size))
        for first, end in holes:  # in the order of their places
            drawn += (drawn >= first) * (end - first)
        if holdout:
            drawn += drawn // learned * block  # blocks 0 … 8, 10 … 18, …
        return sent(drawn, self.device)

    def _hole_places(self, stored: int) -> list[tuple[int, int]]:
        """The places of lost rows [first, end), in order, when so many transitions have been stored."""
        capacity, places = self._sizes.capacity, []
        for first, end in self._holes:
            first = max(first, stored - capacity)  # what lies before is overwritten
            lap = -(-(first + 1) // capacity) * capacity  # where the ring begins again
            for begin, until in ((first, min(end, lap)), (lap, end)):
                if begin < until:
                    places.append((begin % capacity, (until - 1) % capacity + 1))
        return sorted(places)

    def _in_holes(self, places: Tensor) -> Tensor:
        """Which of some places hold lost rows, bool of the same shape."""
        found = torch.zeros_like(places, dtype=torch.bool)
        for first, end in self._hole_places(self._stored):
            found |= (places >= first) & (places < end)
        return found

    def batches(self, count: int, size: int | None = None, holdout: bool = False) -> dict[str, Tensor]:
        """Many batches at once: every field [count, B, ...], and "row", where each transition lies."""
        rows = self.indices(count, size, holdout)
        return {**self._at(rows), "row": rows}

    def filled(self) -> dict[str, Tensor]:
        """Every field of all transitions that are there, [N, ...]."""
        fields = self._ring()
        if not self._holes or not fields:
            return fields
        places = torch.arange(len(fields["reward"]), device=self.device)
        places = places[~self._in_holes(places)]
        return {name: leaf[places] for name, leaf in fields.items()}

    def _ring(self) -> dict[str, Tensor]:
        """Every field by place, [N, ...], holes included."""
        self._upload()
        return {name: leaf[: min(self._stored, self._sizes.capacity)] for name, leaf in self.fields.items()}

    def stretches(self, steps: int, most: int, holdout: bool = False) -> dict[str, Tensor]:
        """Steps that follow each other: fields [N, steps, ...] of at most `most` stretches in which no task ended.

        With `holdout` every step of a stretch is held out. Rows of a column come once a turn. Whether one really
        follows another is seen from where it begins.
        """
        assert self._sizes.n_step == 1, "transitions of several steps do not follow each other"
        fields = self._ring()
        stride, rows = sum(sink.size for sink in self.sinks), len(fields["reward"])
        starts = torch.arange(max(0, rows - stride * (steps - 1)), device=self.device)
        places = starts[:, None] + stride * torch.arange(steps, device=self.device)  # [N, steps]
        if holdout:
            places = places[self._is_held_out(places).all(1)]
        count = len(places)
        places = places[torch.linspace(0, count - 1, min(most, count), device=self.device).long()]
        found = self._at(places)
        follows = (found["after"][:, :-1] == found["obs"][:, 1:]).flatten(1).all(1)
        whole = follows & ~found["terminated"].bool().any(1) & ~self._in_holes(places).any(1)
        return {name: leaf[whole] for name, leaf in found.items()}

    def held_out(self, most: int) -> dict[str, Tensor]:
        """Transitions that `holdout` leaves out, spread over all that are there; [N, ...] with N at most `most`."""
        fields = self._ring()
        places = torch.arange(len(fields["reward"]), device=self.device)
        places = places[self._is_held_out(places) & ~self._in_holes(places)]
        places = places[:: max(1, -(-len(places) // most))]
        return {name: leaf[places] for name, leaf in fields.items()}

    def _is_held_out(self, places: Tensor) -> Tensor:
        """Whether `holdout` leaves out these places, bool of their shape."""
        return places // self._holdout_block % _HOLDOUT_PERIOD == _HOLDOUT_PERIOD - 1

    def sample(self, version: int) -> Sample | None:
        """B transitions drawn with replacement, as a trajectory [1, B]; None if there are too few."""
        if not self.ready():
            return None
        return Sample(self.gather(self.indices()[0]), self._sizes.batch_size)

    def gather(self, rows: Tensor) -> Trajectory:
        """Transitions as a trajectory [1, B]."""
        assert self._sizes.n_step == 1, "a trajectory has single steps"
        taken = self._at(rows)
        tree = lambda name: trees.pack(self._structure[name], [taken[leaf] for leaf in self._leaves(name)])  # noqa: E731
        obs = trees.map(lambda a, b: torch.stack([a, b]), tree("obs"), tree("after"))
        action = trees.map(lambda leaf: leaf[None], tree("action"))
        no = torch.zeros(2, len(rows), dtype=torch.bool, device=self.device)
        reward = taken["reward"][None]
        terminated, truncated = (taken[name].bool()[None] for name in _FLAGS)
        return Trajectory(
            obs=obs,
            first=no,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            last_action=trees.map(torch.zeros_like, action),
            last_reward={"train": torch.zeros_like(reward)},
            carry=(),
            extras={},
        )

    def _at(self, places: Tensor) -> dict[str, Tensor]:
        """Every field of the rows at places of any shape, which must be there."""
        assert self._layout is not None
        return self._layout.views(self._block[places])

    def _leaves(self, name: str) -> list[str]:
        """The fields that a tree is kept in, leaf by leaf."""
        return _names(name, len(trees.flatten(self._structure[name])))

    # -- the actor's side

    def add(self, transitions: dict[str, Tree]) -> None:
        """Keep M transitions: "obs", "action", "reward", "after", "terminated", "truncated", each [M, ...].

        Those of n steps have n rewards, and "steps".
        """
        if not self._structure:
            self._structure = {name: transitions[name] for name in ("obs", "action", "after")}
        flat: dict[str, np.ndarray] = {}
        for name in ("obs", "action", "after"):
            leaves = trees.flatten(transitions[name])
            flat |= {leaf: _compact(value) for leaf, value in zip(_names(name, len(leaves)), leaves, strict=True)}
        flat |= {name: _compact(transitions[name]) for name in ("reward", *_FLAGS, "steps") if name in transitions}
        self._waiting.append(flat)
        self.count += len(flat["reward"])

    def _upload(self) -> None:
        """Bring what waits to the device."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]  # an actor may add at the same time
        if not waiting:
            return
        self._store({name: np.concatenate([part[name] for part in waiting]) for name in waiting[0]})

    def _store_if_any(self, rows: dict[str, Tensor]) -> None:
        if rows and len(rows["reward"]):
            self._store({name: leaf.numpy() for name, leaf in rows.items()})

    def _store(self, rows: dict[str, np.ndarray]) -> None:
        if self._layout is None:
            self._layout = Layout(rows)
            self._block = self._block.new_zeros(0, self._layout.words)
        packed, capacity = self._layout.pack(rows), self._sizes.capacity
        if len(packed) > capacity:  # only the newest are left anyway
            self._stored += len(packed) - capacity
            packed = packed[-capacity:]
        count = len(packed)
        self._make_room(min(capacity, self._stored + count))
        places = sent((self._stored + np.arange(count)) % capacity, self.device)
        self._block[places] = sent(packed, self.device)
        self._stored += count

    def _make_room(self, wanted: int) -> None:
        assert self._layout is not None
        room = len(self._block)
        if wanted <= room:
            return
        grown = min(self._sizes.capacity, max(wanted, 2 * room, _FIRST_ROOM))
        block = torch.zeros(grown, self._layout.words, dtype=torch.int64, device=self.device)
        block[:room] = self._block
        self._block = block

    def _rows(self, first: int, end: int) -> dict[str, Tensor]:
        """Rows by their numbers since the beginning, which are still there, on the host."""
        places = torch.from_numpy(np.arange(first, end) % self._sizes.capacity).to(self.device)
        return {name: leaf.cpu().contiguous() for name, leaf in self._at(places).items()}

    # -- saving

    def snapshot(self) -> dict[str, Any]:
        """Where the rows are, the rows that are in no segment, and the generator."""
        self._upload()
        self._holes = [hole for hole in self._holes if hole[1] > self.count - self._sizes.capacity]
        size = self._segments.rows
        oldest, whole = max(0, self.count - self._sizes.capacity), self.count // size
        first = -(-oldest // size)  # the first segment of which every row is still there
        for number in range(first, whole):
            self._segments.write(number, lambda k=number: self._rows(k * size, (k + 1) * size))  # type: ignore[misc]
        if first >= whole:  # no whole segment: everything is in the checkpoint
            head, tail = (oldest, oldest), (oldest, self.count)
        else:
            head, tail = (oldest, first * size), (whole * size, self.count)
        return {
            "steps": self.steps,
            "count": self.count,
            "holdout_block": self._holdout_block,
            "rng": self._rng.bit_generator.state,
            "segments": self._segments.described(first, whole) if first < whole else [],
            "head": self._rows(*head) if self._layout else {},
            "tail": self._rows(*tail) if self._layout else {},
            "structure": {name: trees.map(lambda leaf: leaf[:0], tree) for name, tree in self._structure.items()},
            "sinks": [sink.snapshot() for sink in self.sinks],
            **({"lost": self.lost, "holes": [list(hole) for hole in self._holes]} if self.lost else {}),
        }

    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Go on from a snapshot, without the rows of segments that are missing or damaged.

        CheckpointError if no row is left of those that there were.

        Args:
          snapshot: what `snapshot` gave.
          same_episodes: whether the environments go on too; if not, their next rows answer nothing.
        """
        self._layout, self._block = None, self._block.new_zeros(0, 0)
        self._waiting, self._structure = collections.deque(), dict(snapshot["structure"])
        self.count = int(snapshot["count"])
        self.steps = int(snapshot.get("steps", self.count))  # none: a run of when every transition was one step
        self.lost = int(snapshot.get("lost", 0))
        self._holes = [(int(first), int(end)) for first, end in snapshot.get("holes", ())]
        described, kept = snapshot["segments"], min(self.count, self._sizes.capacity)
        apart = sum(len(snapshot[part]["reward"]) for part in ("head", "tail") if snapshot[part])
        size = (kept - apart) // max(1, len(described))  # rows of a segment
        self._stored = self.count - kept
        self._store_if_any(snapshot["head"])
        for description in described:
            rows = self._segments.read(description, size)
            if rows is not None:
                self._store_if_any(rows)
                continue
            if "lost" not in description:
                self.lost += size
                self._holes.append((self._stored, self._stored + size))
            self._stored += size
        self._store_if_any(snapshot["tail"])
        if self.count and not len(self):
            raise CheckpointError("every step of the replay memory is lost with its segments; --fresh starts anew")
        if self._layout is not None:
            self._make_room(min(self._stored, self._sizes.capacity))  # a hole at the end has places too
        self._holdout_block = int(snapshot.get("holdout_block", 1))  # none: a run of when every tenth row was held out
        self._rng.bit_generator.state = snapshot["rng"]
        for sink, state in zip(self.sinks, snapshot["sinks"], strict=True):
            sink.restore(state if same_episodes else {})


class _GroupSink:
    """Where one group of columns writes: a transition is a row and what its action led to, or what n of them led to."""

    def __init__(self, memory: ReplayMemory, size: int, sizes: Replay):
        self._memory, self.size = memory, size
        self._obs: Tree = None  # of the row before
        self._joiner = Joiner(sizes.n_step) if sizes.n_step > 1 else None

    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """One row of all columns. A row that a reset made answers no action."""
        before, self._obs = self._obs, trees.map(_on_host, row.obs)
        if before is None:
            return
        real = np.flatnonzero(~np.asarray(row.first))
        if self._joiner is not None:
            self._joiner.forget(np.flatnonzero(row.first))
        if not len(real):
            return
        pick = lambda tree: trees.map(lambda leaf: np.asarray(leaf)[real], tree)  # noqa: E731
        steps = {
            "obs": pick(before),
            "action": pick(row.last_action),
            "reward": pick(row.last_reward["train"]),
            "after": pick(self._obs),
            "terminated": pick(row.terminated),
            "truncated": pick(row.truncated),
        }
        whole = steps if self._joiner is None else self._joiner.add(real, steps)
        if whole is not None:
            self._memory.add(whole)
        self._memory.steps += len(real)  # now: somebody may wait for it, to draw

    def snapshot(self) -> dict[str, Any]:
        """The row before, and steps whose transitions are not whole yet."""
        found: dict[str, Any] = {} if self._obs is None else {"obs": trees.map(np.copy, self._obs)}
        return found if self._joiner is None else {**found, "open": self._joiner.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on with the row before, if there was one."""
        self._obs = trees.map(np.array, snapshot["obs"]) if "obs" in snapshot else None
        if self._joiner is not None:
            self._joiner.restore(snapshot.get("open", {}))


def _on_host(leaf: Any) -> np.ndarray:
    """A copy; policies on a GPU hand on what they have seen there."""
    return leaf.cpu().numpy() if isinstance(leaf, Tensor) and leaf.is_cuda else np.array(leaf)


def _names(name: str, leaves: int) -> list[str]:
    return [name] if leaves == 1 else [f"{name}/{number}" for number in range(leaves)]


def _compact(leaf: Any) -> np.ndarray:
    """Numbers as float32, flags as uint8; whole numbers and pictures as they are."""
    array = np.asarray(leaf)
    if array.dtype == bool:
        return array.astype(np.uint8)
    return array.astype(np.float32) if array.dtype.kind == "f" else array
