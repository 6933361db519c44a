"""Step 3 of the walk, for Q-learners: stores rows, samples prioritised sequences. T = 1 is a transition.

Every row is written once, into the ring buffer of its environment (storage.py). A sequence is stored as a reference:
environment, first row, number of rows, and the carry before the first row that a recurrent core reads
(sequence_index.py). In an episode with steps e … F − 1, sequences begin at e, e + stride, …, as long as T steps are
left. If none of these ends at F, one more sequence does; an episode shorter than T is one short sequence
(sequence_writer.py). No sequence crosses a reset. A sequence can be sampled as soon as all its rows, and the later rows
that n-step returns need, are stored. It is removed when its oldest row is overwritten.

All samples have the same shape, so sequences near an end of an episode are padded with zero rows. Zero rows precede an
episode that began less than C rows before the sequence: `first` in the row after them resets recurrent cores and frame
stacks. Zero rows with `first` set follow the end of an episode: `boundaries` gives them weight and discount 0.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from packtrain import trees
from packtrain.errors import CheckpointError, ConfigError, warn
from packtrain.interfaces import DemonstratedState, MemoryShard
from packtrain.memory.demonstrated_sequences import store_demonstrations
from packtrain.memory.resize import group_sizes, restore_resized
from packtrain.memory.reward_scale import RewardScale
from packtrain.memory.segments import NoSegments, Segments
from packtrain.memory.sequence_index import SequenceIndex
from packtrain.memory.sequence_writer import SequenceWriter, compact
from packtrain.memory.storage import Rings, sent
from packtrain.trees import Tree
from packtrain.types import Row, Sample, Trajectory

if TYPE_CHECKING:
    from packtrain.memory.sequence_settings import Sequences


class SequenceMemory(MemoryShard):
    """Rings of rows, and an index of the sequences in them. Actors add through `writer`, learners `sample`.

    Actor and learner may be two threads. What actors add goes where it lies at once where it is large (observations,
    carries); the rest waits on the host for the next sample. With a `margin`, rows are given up so many rows before
    they are overwritten, and in between actors bring what waits and free slots at least once: only then an actor waits
    for those who read, and these have nothing to bring.
    """

    replays = outlives_episodes = True

    def __init__(self, sizes: Sequences, groups: list[int], context: int, device: torch.device):
        self.columns, self.device, self.sizes = sum(groups), device, sizes
        sizes.refuse_unless_it_fits(self.columns, context)
        self.length = sizes.length(self.columns)  # L, rows of a column
        self.context = context + sizes.burn_in  # C, context rows before the first row to learn from
        self.rings = Rings(self.columns, self.length, device, sizes.storage, sizes.compression)
        self.index = SequenceIndex(sizes, self.columns, self.context, device, self._wait_until_read)
        self._structure: dict[str, Tree] = {}  # structure of observations, actions and recurrent states
        self._rng = np.random.default_rng(0)
        self._draws = 0  # batches ever sampled
        self._adds = 0
        self.count = 0  # steps ever added
        self.lost = 0  # rows of all columns that were lost with their segments, ever
        self._lost: list[tuple[SequenceWriter, int, int]] = []  # losses found while a snapshot is restored
        self.segments: Segments | NoSegments = NoSegments()
        self._turn = threading.Condition(threading.Lock())
        self._reads = False  # whether a learner is reading while actors may write
        on_gpu, together = device.type == "cuda", sizes.together(self.columns)
        self._acted, self._learned = (torch.cuda.Event() if on_gpu else None for _ in range(2))
        # Number of rows that stop being sampled before they are overwritten: see `acting`.
        self.margin = together if on_gpu and self.length >= context + sizes.rows + together else 0
        self.reward_scale = RewardScale() if sizes.normalise_rewards else None
        ends = np.cumsum([0, *groups])
        self.writers = [SequenceWriter(self, int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]

    def reseed(self, seed: int) -> None:
        """Sample from another random stream from now on."""
        self._rng = np.random.default_rng(seed)

    def attach(self, folder: Path, segment_rows: int | None = None) -> None:
        """Keep full segments of rows in a folder, so that checkpoints do not contain them.

        The files of storage = "disk" lie there too. They have no names and are gone when the process ends: what must
        outlive it is in the segments. Without a folder they lie where temporary files do.
        """
        self.segments, self.rings.folder = Segments(folder, segment_rows), folder

    def take_turns(self) -> None:
        """Let every row be sampled as soon as it is added."""
        self.margin = 0

    def move(self, folder: Path) -> None:
        """Keep segments, and files to be created, in another folder from now on."""
        self.segments.move(folder)
        self.rings.folder = folder

    def __len__(self) -> int:
        """Return the number of sequences that can be sampled."""
        return len(self.index)

    @property
    def dropped(self) -> int:  # type: ignore[override]
        """Return how many priorities came too late since the beginning; waits for a GPU."""
        return int(self.index.generations.dropped)

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Lock for learners; on a GPU, work launched inside follows everything that actors have launched."""
        with self._turn, torch.no_grad():
            self._wait_until_read()
            if self._acted is not None:
                self._acted.wait()
            try:
                yield
            finally:
                if self._learned is not None:
                    self._learned.record()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Inside `learning`: allow actors to write while rows and index entries on the device are only read."""
        if not self.margin or self.sizes.storage != "device":
            yield
            return
        self._reads = True
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()
            self._reads = False
            self._turn.notify_all()

    def _wait_until_read(self) -> None:
        """Wait until a learner has finished reading."""
        while self._reads:
            self._turn.wait()

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Lock memory while actors write.

        On a GPU, an actor that waited for the learner's stream before each row would wait for an update each time. It
        need not wait, because it writes where no learner reads: to rows that left the index at least `margin` rows ago,
        and to freed slots. It waits when slots are freed, which happens once in `margin` rows or less often.
        """
        with self._turn, torch.no_grad():
            if not self.margin:
                self._wait_for_learner()
            try:
                yield
            finally:
                if self._acted is not None:
                    self._acted.record()

    def _wait_for_learner(self) -> None:
        self._wait_until_read()
        if self._learned is not None:
            self._learned.wait()

    # -- used by the learner

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps that actors have made."""
        return self.count

    def ready(self) -> bool:
        """Return whether a batch can be sampled."""
        return self.count >= self.sizes.warm_up and len(self) > 0

    def sample(
        self,
        batch_size: int | None = None,
        count: int | None = None,
        *,
        holdout: bool = False,
        version: int | None = None,
    ) -> Sample | None:
        """Sample B sequences in proportion to their priorities, with replacement; None if there are too few.

        The trajectory has C = context + burn_in rows in front and T + n − 1 steps. extras["weight"] [T+n−1, B] is 1 for
        steps to learn from: those after the T and those that padding answers have 0. Where rows are missing behind a
        step that is marked as neither terminated nor truncated, because the stream was cut off, `truncated` is set. The
        carry is that before row `context`, the first of the burn-in. `steps` counts padding too.

        Args:
          batch_size: B; None: `Sequences.batch_size`.
          count: must be None.
          holdout: must be False.
          version: changes nothing, since sequences have no policy lag here.
        """
        self.refuse(count=count, holdout=holdout)
        with self.learning():
            if not self.ready():
                return None
            if not self.margin or not self.index.on_device:
                self._upload()
            with self._reading():
                return self._draw(self.sizes.batch_size if batch_size is None else batch_size)

    def update_priorities(self, keys: Tensor | None, priorities: Tensor) -> None:
        """Set the priorities of sequences from their new errors.

        Args:
          keys: [B] as they came with a sample. Those of sequences that are gone are passed over and counted.
          priorities: [B] errors, 0 or above, as `sequence_priority` gives them; DivergedError if not finite.
        """
        assert keys is not None
        with self.learning():
            if not self.margin:
                self._upload()  # new sequences get the largest error of the time when they were added
            # index entries on the device belong to the learner, except what actors upload under the lock
            with self._reading():
                self.index.judge(keys, priorities)

    @property
    def mass(self) -> float:
        """Return the sum of all priorities, which decides how many items of a batch come from this part."""
        with self.learning():
            self._upload()
            return float(self.index.tree.total)

    def draw_part(self, batch_size: int) -> tuple[Sample, Tensor]:
        """Sample as a part of a memory in shards: return B sequences without weights, and their priorities [B]."""
        with self.learning():
            self._upload()
            slots, chances = self._choose(batch_size)
            return self._sample_of(slots, None), chances

    def _choose(self, size: int) -> tuple[Tensor, Tensor]:
        uniforms = (np.arange(size) + self._rng.random(size)) / size
        return self.index.draw(sent(uniforms, self.device))

    def _draw(self, size: int) -> Sample:
        slots, chances = self._choose(size)
        weights = self.sizes.weights(chances, self._draws)
        self._draws += 1
        return self._sample_of(slots, weights)

    def _sample_of(self, slots: Tensor, weights: Tensor | None) -> Sample:
        keys, steps = self.index.generations.of(slots), len(slots) * self.sizes.sequence_length
        trajectory = self._gather(slots)
        if self.reward_scale is not None:
            trajectory = self.reward_scale.scaled_steps(trajectory)
        return Sample(trajectory, steps, keys, weights)

    def _gather(self, slots: Tensor) -> Trajectory:
        column, start, front, steps = self.index.where(slots)  # [B] each
        context, length = self.context, self.sizes.steps
        offset = torch.arange(-context, length + 1, device=self.device).unsqueeze(1)  # [C+T+n, 1] of rows from row 0
        there = (offset >= -front) & (offset <= steps)
        nothing = self.columns * self.length
        places = torch.where(there, column * self.length + (start + offset).remainder(self.length), nothing)
        after, before, acted = places[context + 1 :], places[: context + 1], places[context:-1]
        acted = torch.where(offset[context:-1] < steps, acted, nothing)  # the last row's action has no result

        def take(name: str, rows: Tensor) -> Tensor:
            return self.rings.take([name], rows)[0]

        channels = [name.removeprefix("last_reward/") for name in self.rings.names("last_reward/")]
        others = [channel for channel in channels if channel != "train"]
        extras = {name: take(f"extras/{name}", acted) for name in self.sizes.extras}
        extras |= {f"reward/{channel}": take(f"last_reward/{channel}", after) for channel in others}
        step = offset[context:-1]  # [T+n−1, 1]
        extras["weight"] = (step < steps.clamp(max=self.sizes.sequence_length)).to(torch.float32)
        terminated, truncated = take("terminated", after), take("truncated", after)
        cut = (step == steps - 1) & (steps < length) & ~terminated
        return Trajectory(
            obs=self._tree_of("obs", places),
            first=take("first", places) | (offset > steps),
            action=self._tree_of("last_action", after),
            reward=take("last_reward/train", after),
            terminated=terminated,
            truncated=truncated | cut,
            last_action=self._tree_of("last_action", before),
            last_reward={channel: take(f"last_reward/{channel}", before) for channel in channels},
            carry=trees.pack(self._structure["carry"], [leaf[slots] for leaf in self.index.carries]),
            extras=extras,
        )

    def _tree_of(self, name: str, places: Tensor) -> Tree:
        """Return a tree of observations or actions, from the rings of its leaves."""
        structure = self._structure[name]
        return trees.pack(structure, self.rings.take(list(trees.named_leaves(structure, name)), places))

    # -- used by the actor

    def writer(self, group: int) -> SequenceWriter:
        """Return the writer of one group of environments."""
        return self.writers[group]

    def preload(self, rows: Iterable[Row], state: DemonstratedState) -> int:
        """Store demonstrations, before any actor has stepped; they count as no steps of the run.

        Args:
          rows: [1, ...] of one environment that plays whole episodes.
          state: number of environments → recurrent state and extras of their rows.
        """
        steps = store_demonstrations(self, rows, state)
        with self.learning():
            self._upload()
        self.count = 0
        return steps

    def release(self, group: int) -> None:
        """End a group's episodes in progress at its latest row; its rows are stored again from its next resets on."""
        with self.acting():
            self.writers[group].leave()

    def named(self, row: Row, extras: dict[str, Any]) -> dict[str, Any]:
        """Return the stored leaves of a row, by the names of their rings."""
        for name in (*self.sizes.extras, *["priority"] * (self.sizes.new_priority == "given")):
            if name not in extras:
                given = ", ".join(sorted(extras)) or "nothing"
                raise ConfigError(f"Sequences keeps {name!r} of the actor's extras, and the actor gives {given}")
        return {
            **trees.named_leaves(row.obs, "obs"),
            **trees.named_leaves(row.last_action, "last_action"),
            **{f"last_reward/{channel}": leaf for channel, leaf in row.last_reward.items()},
            **{name: getattr(row, name) for name in ("first", "terminated", "truncated")},
            **{f"extras/{name}": extras[name] for name in self.sizes.extras},
        }

    def begin(self, row: Row, carry: Tree, named: dict[str, Tensor]) -> None:
        """Allocate storage for rows like this one, if it is the first."""
        if len(self.rings):
            return

        def empty(leaf: Tensor) -> Tensor:
            return compact(leaf)[:0].clone()

        parts = {"obs": row.obs, "last_action": row.last_action, "carry": carry}
        self._structure = {name: trees.map(empty, tree) for name, tree in parts.items()}
        self.rings.allocate(named)
        self.index.allocate([compact(leaf) for leaf in trees.flatten(carry)])

    def added(self, steps: int) -> None:
        """Count a row that a group has written, with this many steps in it."""
        self.count += steps
        self._adds += 1
        if self._adds % self.sizes.together(self.columns) == 0:
            self._wait_for_learner()
            self._upload()
            self.index.free()

    def _upload(self) -> None:
        for writer in self.writers:
            writer.upload()
        self.index.upload()

    # -- checkpoints

    def snapshot(self) -> dict[str, Any]:
        """Return rows that are in no segment, sequences with recurrent states and priorities, and the generator."""
        with self.learning():
            self._upload()
            structure = {name: trees.map(lambda leaf: leaf[:0], tree) for name, tree in self._structure.items()}
            return {
                "sizes": [self.columns, self.length, self.context, self.sizes.rows],
                "count": self.count,
                "adds": self._adds,
                "draws": self._draws,
                "rng": self._rng.bit_generator.state,
                "structure": structure,
                "sinks": [writer.snapshot() for writer in self.writers],
                **self.index.snapshot(),
                **({"lost": self.lost} if self.lost else {}),
                **({} if self.reward_scale is None else {"reward_scale": self.reward_scale.snapshot()}),
            }

    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Continue from a snapshot, also of another storage, without sequences whose segments are missing or damaged.

        One of other environments, or of other groups of them, is resized, see `memory/resize.py`. CheckpointError if it
        is of other sizes.

        Args:
          snapshot: what `snapshot` gave.
          same_episodes: whether the environments were restored too; if not, unfinished episodes end at their last row.
        """
        if "parts" in snapshot:
            raise CheckpointError("this run's replay is in shards: repeat --replay_shards, with any number")
        groups = group_sizes(snapshot)
        same_groups = groups == [writer.columns for writer in self.writers]
        sizes = [sum(groups), self.sizes.length(sum(groups)), self.context, self.sizes.rows]
        if list(snapshot["sizes"]) != sizes or (same_episodes and not same_groups):
            sizes = [self.columns, self.length, self.context, self.sizes.rows]
            raise CheckpointError(
                f"sequences of environments, rows, context and length {sizes} cannot be restored from "
                f"{list(snapshot['sizes'])}"
            )
        with self.learning():
            self.count, self._adds, self._draws = (int(snapshot[name]) for name in ("count", "adds", "draws"))
            self._rng.bit_generator.state = snapshot["rng"]
            self._structure = dict(snapshot["structure"])
            self.lost, self._lost = int(snapshot.get("lost", 0)), []
            if self.reward_scale is not None and "reward_scale" in snapshot:
                self.reward_scale.restore(snapshot["reward_scale"])
            self.rings.clear()
            if not same_groups:
                restore_resized(self, snapshot)
            else:
                for writer, state in zip(self.writers, snapshot["sinks"], strict=True):
                    writer.restore(state)
                self.index.restore(snapshot)
            self._give_up_lost()
            if not same_episodes:
                for writer in self.writers:
                    writer.leave()
            if self._learned is not None:
                torch.cuda.synchronize()  # actors write to tensors created on this stream

    def put_rows(self, columns: slice, numbers: np.ndarray, rows: dict[str, Tensor]) -> None:
        """Store rows [R, columns, ...] of a snapshot under their numbers [R]."""
        if not len(self.rings):
            self.rings.allocate({name: leaf[0] for name, leaf in rows.items()})
        for name, leaf in rows.items():
            self.rings.put(name, columns, numbers % self.length, leaf.transpose(0, 1))

    def note_lost(self, writer: SequenceWriter, first: int, end: int, anew: bool) -> None:
        """Record that rows of a group cannot be read; `anew` if they were readable when the snapshot was made."""
        self._lost.append((writer, first, end))
        if anew:
            self.lost += (end - first) * writer.columns

    def _give_up_lost(self) -> None:
        for writer, first, end in self._lost:
            if gone := writer.lose(first, end):
                warn(f"{gone:,} sequences of the replay need rows that are lost: {len(self):,} are left")
        self._lost = []
        self.index.upload()
