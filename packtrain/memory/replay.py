"""Step 3 of the walk, for off-policy learners: stores single transitions, samples uniform batches.

Transitions are rows of one block on the learner's device, numbers as float32. New transitions are collected on the host
and copied to the device together when the learner samples, without waiting for running updates. Indices are sampled on
the host, so that a resumed run samples the same ones, and those of many batches can be sampled at once.

Rows whose segment is lost (segments.py) leave a hole in the ring until they are overwritten: they are never sampled.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from packtrain import check, trees
from packtrain.config import configurable
from packtrain.errors import CheckpointError, ConfigError
from packtrain.interfaces import DemonstratedState, Memory, MemoryBytes, MemorySettings, View
from packtrain.memory.record_layout import RecordLayout, as_transitions, flat_fields, layout_of
from packtrain.memory.reward_scale import RewardScale
from packtrain.memory.segments import SEGMENT_ROWS, NoSegments, Segments
from packtrain.memory.storage import sent
from packtrain.memory.transition_writer import TransitionWriter
from packtrain.trees import Tree
from packtrain.types import CarryRows, Row, Sample, Trajectory

log = logging.getLogger("packtrain")
_FIRST_ROOM = 4096
_HOLDOUT_PERIOD = 10  # the last of this many blocks of transitions is held out
_HOLDOUT_STEPS = 16  # transitions of each environment in such a block: enough for segments of several steps


@configurable
@dataclass(frozen=True)
class Replay(MemorySettings):
    """Sizes of a uniform replay memory."""

    replays: ClassVar[bool] = True
    preloads: ClassVar[bool] = True

    capacity: int = 1_000_000  # transitions; the oldest are overwritten. Memory is allocated as needed
    batch_size: int = 256
    warm_up: int = 1  # transitions before the first batch
    n_step: int = 1  # steps of a transition, see memory/n_step.py
    normalise_rewards: bool = False  # sample rewards in units of the running deviation of discounted returns

    def __post_init__(self) -> None:
        check.at_least(self, 1, "capacity", "batch_size", "warm_up", "n_step")
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
        """Return a memory for groups of environments of the given sizes."""
        return ReplayMemory(self, groups, device)

    def check(self, num_envs: int, context: int, warm_up: int) -> None:
        """Raise a ConfigError if the warm-up ends before the first transition of n steps is complete."""
        if self.n_step > 1 and warm_up < self.n_step * num_envs:
            raise ConfigError(
                f"Collect.steps = {warm_up} ends before there is a transition of Replay.n_step = {self.n_step} "
                f"steps: warm_up must be at least {self.n_step * num_envs}, n_step for each actor"
            )

    def check_batch_size(self, batch_size: int, learner: str) -> None:
        """Raise a ConfigError if a learner's batches are larger than the memory."""
        if self.capacity < batch_size:
            raise ConfigError(
                f"Replay.capacity = {self.capacity} is less than the batches of {batch_size} that {learner} takes"
            )

    def plan_bytes(self, num_envs: int, row_bytes: int, total_steps: int) -> MemoryBytes:
        """Estimate the fraction of the memory that the run fills; a checkpoint copies one segment."""
        whole = self.bytes_needed(num_envs, row_bytes)
        size = min(1.0, total_steps / self.capacity) * whole
        copied = min(size, whole * SEGMENT_ROWS / self.capacity)
        return MemoryBytes(size, copied=copied, name="the replay", advice="lower replay_size")

    def bytes_needed(self, columns: int, row: int) -> int:
        """Return the approximate bytes of a full memory, which has two observations per transition."""
        return 2 * self.capacity * row


class ReplayMemory(Memory):
    """A ring of transitions. Actors add through `writer`; learners call `sample` and `view`."""

    replays = outlives_episodes = True

    def __init__(self, sizes: Replay, groups: list[int], device: torch.device):
        self._sizes, self.device = sizes, device
        self._structure: dict[str, Tree] = {}  # per leaf: structure of the field that it belongs to
        self._layout: RecordLayout | None = None  # set at the first transition
        self._block = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [room, W], replaced while it grows
        # fills the row fields that describe the step before a transition
        self._nothing = torch.zeros((), device=device)
        block = min(_HOLDOUT_STEPS * sum(groups), sizes.capacity // _HOLDOUT_PERIOD)
        self._holdout_block = max(1, block)  # rows that are held out together; a resumed run keeps its value
        self.steps = 0  # steps that actors have made; n-step transitions are added later
        self.count = 0  # transitions ever added, including those not on the device yet
        self._waiting: collections.deque[dict[str, np.ndarray]] = collections.deque()  # not on the device yet
        self._stored = 0  # transitions on the device, ever
        self._holes: list[tuple[int, int]] = []  # [first, end) of lost rows, numbered since the beginning
        self.lost = 0  # transitions that were lost with their segments, ever
        self._rng = np.random.default_rng(0)
        self._segments: Segments | NoSegments = NoSegments()
        self.dropped = 0
        self.reward_scale = RewardScale() if sizes.normalise_rewards else None
        self.writers = [TransitionWriter(self, size, sizes.n_step) for size in groups]

    def reseed(self, seed: int) -> None:
        """Sample from another random stream from now on."""
        self._rng = np.random.default_rng(seed)

    def attach(self, folder: Path, segment_rows: int | None = None) -> None:
        """Keep full segments of rows in a folder, so that checkpoints do not contain them."""
        self._segments = Segments(folder, segment_rows)

    def move(self, folder: Path) -> None:
        """Keep segments in another folder from now on."""
        self._segments.move(folder)

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return min(self.count, self._sizes.capacity) - sum(end - first for first, end in self._hole_places(self.count))

    # -- used by the learner

    def ready(self) -> bool:
        """Return whether a batch can be sampled."""
        return self.count >= self._sizes.warm_up

    def sample(
        self,
        batch_size: int | None = None,
        count: int | None = None,
        *,
        holdout: bool = False,
        version: int | None = None,
    ) -> Sample | None:
        """Sample B transitions uniformly with replacement, as a trajectory [1, B]; None before `warm_up`.

        All tensors are views of one block that was gathered in one operation. `keys` is the place of each transition in
        the ring. A transition of n steps has its first reward in `reward`, all of them in extras["rewards"] [1, B, n],
        and the number of its steps in extras["steps"] [1, B].

        Args:
          batch_size: B; None: `Replay.batch_size`.
          count: batches, as a leading axis: [count, 1, B, ...], `keys` [count, B]; None: one, without that axis.
          holdout: leave out every tenth block of steps.
          version: changes nothing, since transitions have no policy lag here.
        """
        if not self.ready():
            return None
        size = self._sizes.batch_size if batch_size is None else batch_size
        places = self._places(1 if count is None else count, size, holdout)
        if count is None:
            places = places[0]
        trajectory = self._trajectory(self._block[places])
        if self.reward_scale is not None:
            trajectory = self.reward_scale.scaled_steps(trajectory)
        return Sample(trajectory, places.numel(), keys=places)

    def view(self, which: View, *, most: int | None = None, steps: int = 1, holdout: bool = False) -> Sample | None:
        """Return stored transitions without sampling; None if there are none of this kind. `keys` are ring positions.

        Args:
          which: "all": every transition, as views of the memory, [1, N]; "held_out": those that `holdout` leaves out,
            spread over all that there are, [1, N]; "stretches" of consecutive steps, [steps, N].
          most: N is at most this; None: all that there are.
          steps: T of a stretch.
          holdout: stretches consist of held-out steps alone.
        """
        self._upload()
        if self._layout is None:
            return None
        if which == "stretches":
            return self._stretches(steps, most, holdout)
        rows = min(self._stored, self._sizes.capacity)
        places = torch.arange(rows, device=self.device)
        if which == "all":
            block = self._block[:rows]
            if self._holes:
                places = places[~self._in_holes(places)]
                block = block[places]
        else:
            places = places[self._is_held_out(places) & ~self._in_holes(places)]
            places = places[:: 1 if most is None else max(1, -(-len(places) // most))]
            block = self._block[places]
        return Sample(self._trajectory(block), len(places), keys=places) if len(places) else None

    def _places(self, batches: int, size: int, holdout: bool) -> Tensor:
        """Sample ring positions uniformly with replacement, [batches, B] on the device."""
        self._upload()
        rows = min(self._stored, self._sizes.capacity)
        block, learned = self._holdout_block, (_HOLDOUT_PERIOD - 1) * self._holdout_block

        def number(place: int) -> int:
            """Return the number of valid positions below this one, holes included."""
            periods, rest = divmod(place, learned + block)
            return periods * learned + min(rest, learned) if holdout else place

        # Sample among the valid positions only: without held-out blocks, if there are any, and without holes.
        holes = [(number(first), number(end)) for first, end in self._hole_places(self._stored)]
        free = number(rows) - sum(end - first for first, end in holes)
        drawn = self._rng.integers(free, size=(batches, size))
        for first, end in holes:  # in order of position
            drawn += (drawn >= first) * (end - first)
        if holdout:
            drawn += drawn // learned * block  # blocks 0 … 8, 10 … 18, …
        return sent(drawn, self.device)

    def _hole_places(self, stored: int) -> list[tuple[int, int]]:
        """Return the positions of lost rows [first, end), in order, after this many transitions have been stored."""
        capacity, places = self._sizes.capacity, []
        for first, end in self._holes:
            first = max(first, stored - capacity)  # earlier rows are overwritten
            lap = -(-(first + 1) // capacity) * capacity  # the next start of the ring
            for begin, until in ((first, min(end, lap)), (lap, end)):
                if begin < until:
                    places.append((begin % capacity, (until - 1) % capacity + 1))
        return sorted(places)

    def _in_holes(self, places: Tensor) -> Tensor:
        """Return which positions hold lost rows, bool of the same shape."""
        found = torch.zeros_like(places, dtype=torch.bool)
        for first, end in self._hole_places(self._stored):
            found |= (places >= first) & (places < end)
        return found

    def _is_held_out(self, places: Tensor) -> Tensor:
        """Return whether `holdout` leaves out these positions, bool of their shape."""
        return places // self._holdout_block % _HOLDOUT_PERIOD == _HOLDOUT_PERIOD - 1

    def _stretches(self, steps: int, most: int | None, holdout: bool) -> Sample | None:
        """Return runs of consecutive steps, [steps, N]; in a complete run, each step begins where the last one ended.

        Each environment adds one row a turn, so its next step lies `stride` places on.
        """
        assert self._sizes.n_step == 1, "transitions of several steps do not follow each other"
        stride, rows = sum(writer.size for writer in self.writers), min(self._stored, self._sizes.capacity)
        starts = torch.arange(max(0, rows - stride * (steps - 1)), device=self.device)
        places = starts[:, None] + stride * torch.arange(steps, device=self.device)  # [N, steps]
        if holdout:
            places = places[self._is_held_out(places).all(1)]
        if not len(places):
            return None
        count = min(most or len(places), len(places))
        places = places[torch.linspace(0, len(places) - 1, count, device=self.device).long()].T
        each = self._trajectory(self._block[places])  # [steps, 2, N, ...]: each transition separately
        leaves = trees.flatten(each.obs)
        whole = ~each.terminated[:, 0].any(0) & ~self._in_holes(places).any(0)  # [N]
        for leaf in leaves:
            whole &= (leaf[:-1, 1] == leaf[1:, 0]).reshape(steps - 1, count, -1).all(2).all(0)
        if not whole.any():
            return None

        def taken(tree: Tree) -> Tree:  # [steps, N, ...]
            return trees.map(lambda leaf: leaf[:, 0][:, whole], tree)

        obs = trees.map(lambda leaf: torch.cat([leaf[:, 0], leaf[-1:, 1]])[:, whole], each.obs)
        action, reward = taken(each.action), taken(each.reward)
        trajectory = each._replace(
            obs=obs,
            first=torch.zeros(steps + 1, reward.shape[1], dtype=torch.bool, device=self.device),
            action=action,
            reward=reward,
            terminated=taken(each.terminated),
            truncated=taken(each.truncated),
            last_action=trees.map(lambda leaf: torch.zeros_like(leaf[:1]), action),
            last_reward={"train": torch.zeros_like(reward[:1])},
        )
        return Sample(trajectory, reward.numel(), keys=places[0, whole])

    def _trajectory(self, block: Tensor) -> Trajectory:
        """Return rows [..., B, W] of the block as transitions [..., 1, B]: views, nothing is copied."""
        assert self._layout is not None
        return as_transitions(self._layout.views(block), self._structure, self._nothing)

    def _at(self, places: Tensor) -> dict[str, Tensor]:
        """Return every field of the rows at stored positions of any shape."""
        assert self._layout is not None
        return self._layout.views(self._block[places])

    # -- used by the actor

    def writer(self, group: int) -> TransitionWriter:
        """Return the writer of one group of environments."""
        return self.writers[group]

    def release(self, group: int) -> None:
        """Drop a group's previous row and its incomplete transitions: its next row answers no action."""
        self.writers[group].restore({})

    def chunk_carries(self, rows: int) -> CarryRows:
        """Return "none": transitions are stored without recurrent states."""
        return "none"

    def add(self, transitions: dict[str, Tree]) -> None:
        """Store M transitions: "obs", "action", "reward", "after", "terminated", "truncated", each [M, ...].

        Those of n steps have n rewards, and "steps".
        """
        if not self._structure:
            self._structure = {name: transitions[name] for name in ("obs", "action", "after")}
        flat = flat_fields(transitions)
        self._waiting.append(flat)
        self.count += len(flat["reward"])

    def preload(self, rows: Iterable[Row], state: DemonstratedState) -> int:
        """Store the rows [1, ...] of one environment, before any actor has stepped; they count as no steps of the run.

        Returns:
          The number of steps in them.
        """
        writer = TransitionWriter(self, 1, self._sizes.n_step)
        for row in rows:
            writer.add(row, (), {})
        steps, self.steps = self.steps, 0
        return steps

    def _upload(self) -> None:
        """Copy pending rows to the device."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]  # an actor may add at the same time
        if not waiting:
            return
        self._store({name: np.concatenate([part[name] for part in waiting]) for name in waiting[0]})

    def _store_if_any(self, rows: dict[str, Tensor]) -> None:
        if rows and len(rows["reward"]):
            self._store({name: leaf.numpy() for name, leaf in rows.items()})

    def _store(self, rows: dict[str, np.ndarray]) -> None:
        if self._layout is None:
            self._layout = layout_of(rows)
            self._block = self._block.new_zeros(0, self._layout.words)
        packed, capacity = self._layout.pack(rows), self._sizes.capacity
        if len(packed) > capacity:  # only the newest fit
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
        """Return stored rows on the host, by their numbers since the beginning."""
        places = torch.from_numpy(np.arange(first, end) % self._sizes.capacity).to(self.device)
        return {name: leaf.cpu().contiguous() for name, leaf in self._at(places).items()}

    # -- checkpoints

    def snapshot(self) -> dict[str, Any]:
        """Return the positions of rows, the rows that are in no segment, and the generator."""
        self._upload()
        self._holes = [hole for hole in self._holes if hole[1] > self.count - self._sizes.capacity]
        size = self._segments.rows
        oldest, whole = max(0, self.count - self._sizes.capacity), self.count // size
        first = -(-oldest // size)  # the first segment whose rows are all still stored
        for number in range(first, whole):
            self._segments.write(number, lambda k=number: self._rows(k * size, (k + 1) * size))  # type: ignore[misc]
        if first >= whole:  # no complete segment: all rows are in the checkpoint
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
            "sinks": [writer.snapshot() for writer in self.writers],
            **({"lost": self.lost, "holes": [list(hole) for hole in self._holes]} if self.lost else {}),
            **({} if self.reward_scale is None else {"reward_scale": self.reward_scale.snapshot()}),
        }

    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Continue from a snapshot, without the rows of segments that are missing or damaged.

        CheckpointError if no row is left of those that there were.

        Args:
          snapshot: what `snapshot` gave.
          same_episodes: whether the environments continue their episodes; if not, their next rows follow no action.
        """
        self._layout, self._block = None, self._block.new_zeros(0, 0)
        self._waiting, self._structure = collections.deque(), dict(snapshot["structure"])
        self.count = int(snapshot["count"])
        self.steps = int(snapshot.get("steps", self.count))  # missing in checkpoints from before n-step transitions
        self.lost = int(snapshot.get("lost", 0))
        self._holes = [(int(first), int(end)) for first, end in snapshot.get("holes", ())]
        if self.reward_scale is not None and "reward_scale" in snapshot:
            self.reward_scale.restore(snapshot["reward_scale"])
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
            raise CheckpointError("every step of the replay memory is lost with its segments; --fresh starts a new run")
        if self._layout is not None:
            self._make_room(min(self._stored, self._sizes.capacity))  # rows of a hole at the end need positions too
        # missing in checkpoints that held out every tenth row
        self._holdout_block = int(snapshot.get("holdout_block", 1))
        self._rng.bit_generator.state = snapshot["rng"]
        if not same_episodes:
            log.info("the replay goes on with other episodes: %s transitions kept", f"{len(self):,}")
        states = snapshot["sinks"] if same_episodes else [{}] * len(self.writers)
        for writer, state in zip(self.writers, states, strict=True):
            writer.restore(state)
