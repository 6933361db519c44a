"""Step 3 of the walk, for on-policy learners: stores unrolls of T steps in a queue, yields batches of B.

Rows are written once: every environment fills a slot of one arena [C+T+1, slots, ...]. A full slot joins the queue, and
the environment continues in a free slot that begins with copies of its last rows, so row T of an unroll is row 0 of the
next. If `staggered`, environment i of N starts its unrolls i·T/N steps after environment 0, so batches do not arrive in
bursts.

With a GPU, observations and carries are stored there, since acting has uploaded them already. The other leaves are
small: they stay on the host, where writing is cheap, and are uploaded with each batch.
"""

from __future__ import annotations

import collections
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packtrain import check, trees
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.interfaces import Memory, MemoryBytes, MemorySettings, PolicyLag, Writer
from packtrain.trees import Tree
from packtrain.types import Row, Sample, Trajectory


@configurable
@dataclass(frozen=True)
class Unrolls(MemorySettings):
    """Sizes of an unroll queue."""

    unroll_length: int = 80  # T, steps
    batch_size: int = 8  # B, unrolls per batch
    # maximum number of finished unrolls in the queue; None: max(2 · num_actors, batch_size)
    num_buffers: int | None = None
    # learner versions; older unrolls are dropped. None: max(20, largest possible lag)
    max_policy_lag: int | None = None
    # environments begin their unrolls at different rows; False: all at the same row, as PPO needs
    staggered: bool = True

    def __post_init__(self) -> None:
        check.at_least(self, 1, "unroll_length", "batch_size", "num_buffers", "max_policy_lag")
        if self.num_buffers is not None and self.batch_size > self.num_buffers:
            raise ConfigError(
                f"Unrolls.batch_size = {self.batch_size} is more than Unrolls.num_buffers = {self.num_buffers} can "
                "hold: no batch would ever be full"
            )

    def build(self, groups: list[int], context: int, device: torch.device) -> UnrollQueue:
        """Return a queue for groups of environments of the given sizes."""
        return UnrollQueue(self, groups, context, device)

    @property
    def batch_steps(self) -> int:
        """Steps of a batch, filler timesteps included."""
        return self.batch_size * self.unroll_length

    def bytes_needed(self, columns: int, row: int) -> int:
        """Return the approximate bytes of the arena.

        Args:
          columns: number of environments of all groups together.
          row: bytes of one row of one environment.
        """
        return self.slots(columns) * (self.unroll_length + 1) * row

    def plan_bytes(self, num_envs: int, row_bytes: int, total_steps: int) -> MemoryBytes:
        """Estimate the arena, which is allocated at once."""
        advice = "lower num_actors, num_buffers, batch_size or unroll_length"
        return MemoryBytes(self.bytes_needed(num_envs, row_bytes), name="the unroll queue", advice=advice)

    def bound(self, columns: int) -> int:
        """Maximum number of finished unrolls in the queue."""
        return self.num_buffers or max(2 * columns, self.batch_size)

    def slots(self, columns: int) -> int:
        """Number of unrolls in the arena: one per environment, the queue, those that enter it at once, one batch."""
        joining = -(-columns // self.unroll_length) if self.staggered else columns
        return columns + self.bound(columns) + joining + self.batch_size

    def policy_lag(self, num_envs: int) -> PolicyLag:
        """Return the limit of policy lag, and the steps of a batch."""
        return PolicyLag(self.lag_limit(num_envs), self.unroll_length * self.batch_size)

    def lag_limit(self, columns: int) -> int:
        """Lag above which an unroll is dropped; the default is at least what queue and environments can cause."""
        possible = -(-(self.bound(columns) + 2 * columns) // self.batch_size) + 1
        return self.max_policy_lag or max(20, possible)


class UnrollQueue(Memory):
    """A bounded queue of unrolls in one arena. Actors add through `writer`, one learner calls `sample`."""

    def __init__(self, sizes: Unrolls, groups: list[int], context: int, device: torch.device):
        columns = sum(groups)
        self.length, self._batch, self.context = sizes.unroll_length, sizes.batch_size, context
        self._bound, self._lag_limit = sizes.bound(columns), sizes.lag_limit(columns)
        self.device = device
        self._slots = sizes.slots(columns)
        self._rows: Row | None = None  # [C+T+1, slots, ...]
        self._extras: dict[str, Tensor] = {}  # [T, slots, ...]
        self._carry: Tree = ()  # [slots, ...]
        self._row_arrays: list[Any] = []
        self._extra_arrays: dict[str, Any] = {}
        self._fillers = np.zeros(self._slots, np.int64)
        self._begun = np.zeros(self._slots, np.int64)  # version of the weights that chose the first action
        self._full: collections.deque[int] = collections.deque()
        self._free: collections.deque[int] = collections.deque(range(self._slots))
        self._changed = threading.Condition()
        self.dropped = 0  # unrolls dropped because of their policy lag
        # recorded after the last rows of full slots
        self._written = torch.cuda.Event() if device.type == "cuda" else None
        starts = np.arange(columns) * self.length // columns * sizes.staggered
        first = np.cumsum([0, *groups])
        self.writers = [_GroupWriter(self, starts[a:b]) for a, b in zip(first[:-1], first[1:], strict=True)]

    # -- used by the learner

    def ready(self) -> bool:
        """Return whether a batch can be sampled."""
        return len(self._full) >= self._batch

    def __len__(self) -> int:
        return len(self._full)

    def wait_for_batch(self, timeout: float) -> bool:
        """Wait until a batch can be sampled; return False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(self.ready, timeout)

    def sample(
        self,
        batch_size: int | None = None,
        count: int | None = None,
        *,
        holdout: bool = False,
        version: int | None = None,
    ) -> Sample | None:
        """Remove the B oldest unrolls as one trajectory [T, B]; None if there are fewer. Their slots become free.

        Args:
          batch_size: None, or `Unrolls.batch_size`: slots for batches of that size are set aside.
          count: must be None.
          holdout: must be False.
          version: of the learner's weights. Unrolls begun more than `max_policy_lag` versions ago are dropped; None:
            none are, and the sample has no lag.
        """
        self.refuse(count=count, holdout=holdout, batch_size=None if batch_size == self._batch else batch_size)
        with self._changed:
            if version is not None:
                self._drop_stale(version)
            if not self.ready():
                return None
            slots = [self._full.popleft() for _ in range(self._batch)]
        rows, carry, extras = self._gather(slots)
        lag = None if version is None else torch.from_numpy(version - self._begun[slots])
        steps = self.length * self._batch - int(self._fillers[slots].sum())
        with self._changed:
            self._free.extend(slots)
            self._changed.notify_all()
        return Sample(_trajectory(rows, carry, extras, self.context), steps, lag=lag)

    def _gather(self, slots: list[int]) -> tuple[Row, Tree, dict[str, Tensor]]:
        """Return copies of these slots on the device; afterwards the slots can be overwritten."""
        here = torch.tensor(slots)
        there = here.to(self.device)
        if self._written is not None:
            self._written.wait()

        def pick(leaf: Tensor, axis: int) -> Tensor:
            if leaf.device == self.device:
                return leaf.index_select(axis, there)
            return leaf.index_select(axis, here).to(self.device)

        rows = Row(**trees.map(lambda leaf: pick(leaf, 1), self._rows._asdict()))  # type: ignore[union-attr]
        carry = trees.map(lambda leaf: pick(leaf, 0), self._carry)
        extras = {name: pick(leaf, 1) for name, leaf in self._extras.items()}
        if self.device.type == "cuda":
            # blocking=True sleeps, which leaves the CPU core to the environments
            done = torch.cuda.Event(blocking=True)
            done.record()
            done.synchronize()
        return rows, carry, extras

    def _drop_stale(self, version: int) -> None:
        while self._full:
            if version - self._begun[self._full[0]] <= self._lag_limit:
                return
            self._free.append(self._full.popleft())
            self.dropped += 1
            self._changed.notify_all()  # there is room now, even if too few are left for a batch

    # -- used by the actor

    def writer(self, group: int) -> _GroupWriter:
        """Return the writer of one group of environments."""
        return self.writers[group]

    def release(self, group: int) -> None:
        """Cut a group's stream: its next row does not follow its latest one."""
        self.writers[group].cut = True

    def has_room(self) -> bool:
        """Return whether an actor may continue."""
        return len(self._full) < self._bound

    def room(self, group: int) -> int:
        """Return how many rows of a group may be added now: T where every environment can finish an unroll, else 1."""
        if not self.has_room():
            return 0
        return self.length if len(self._free) >= len(self.writers[group].slot) else 1

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until an actor may continue; return False after `timeout` seconds."""
        if self.has_room():
            return True
        with self._changed:
            return self._changed.wait_for(self.has_room, timeout)

    def _allocate(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        def arena(length: int, leaf: Any) -> Tensor:
            like = torch.as_tensor(leaf)
            return torch.zeros(length, self._slots, *leaf.shape[1:], dtype=like.dtype, device=like.device)

        self._rows = Row(**trees.map(lambda leaf: arena(self.context + self.length + 1, leaf), row._asdict()))
        self._extras = {name: arena(self.length, leaf) for name, leaf in extras.items()}
        self._carry = trees.map(lambda leaf: arena(1, leaf)[0], carry)
        self._view_arrays()

    def _view_arrays(self) -> None:
        """Return the arrays that rows are written to: on a CPU NumPy views of the arena, faster for small writes."""
        self._row_arrays = [leaf.numpy() if leaf.device.type == "cpu" else leaf for leaf in trees.flatten(self._rows)]
        self._extra_arrays = {name: leaf.numpy() for name, leaf in self._extras.items()}

    # -- checkpoints

    def snapshot(self) -> dict[str, Any]:
        """Return all rows that are queued or being filled."""
        if self._rows is None:
            return {}
        return {
            "rows": trees.map(lambda leaf: leaf.clone(), self._rows._asdict()),
            "extras": {name: leaf.clone() for name, leaf in self._extras.items()},
            "carry": trees.map(lambda leaf: leaf.clone(), self._carry),
            "fillers": self._fillers.copy(),
            "begun": self._begun.copy(),
            "full": list(self._full),
            "free": list(self._free),
            "dropped": self.dropped,
            "sinks": [
                {"slot": writer.slot.copy(), "position": writer.position.copy(), "early": writer.early.copy()}
                | ({"cut": True} if writer.cut else {})
                for writer in self.writers
            ],
        }

    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Continue from a snapshot of a queue of the same sizes, which includes its episodes."""
        if not snapshot:
            return
        rows = trees.map(lambda leaf: leaf.cpu().clone(), snapshot["rows"])
        rows["obs"] = trees.map(lambda leaf: leaf.to(self.device), rows["obs"])
        self._rows = Row(**rows)
        self._extras = {name: leaf.cpu().clone() for name, leaf in snapshot["extras"].items()}
        self._carry = trees.map(lambda leaf: leaf.to(self.device, copy=True), snapshot["carry"])
        self._view_arrays()
        self._fillers, self._begun = snapshot["fillers"].copy(), snapshot["begun"].copy()
        self._full = collections.deque(int(slot) for slot in snapshot["full"])
        self._free = collections.deque(int(slot) for slot in snapshot["free"])
        self.dropped = int(snapshot["dropped"])
        for writer, state in zip(self.writers, snapshot["sinks"], strict=True):
            writer.slot, writer.position = state["slot"].copy(), state["position"].copy()
            writer.early, writer.cut = state["early"].copy(), bool(state.get("cut", False))


class _GroupWriter(Writer):
    """Writer of one group of environments. Each has a slot and a position in it."""

    def __init__(self, queue: UnrollQueue, starts: np.ndarray):
        self._queue = queue
        self.slot = np.array([queue._free.popleft() for _ in starts], np.int64)
        self.position = queue.length - starts  # the first unroll begins when this reaches T …
        self.early = np.ones(len(starts), bool)  # … and rows written before it are discarded
        self.cut = False  # the next row does not follow the latest one

    @torch.no_grad()  # a value with a graph would make the whole buffer part of that graph
    def add(self, row: Row, carry: Tree, extras: dict[str, Tensor]) -> None:
        """Write a row to every environment's slot; environments whose slot is full continue in a free one."""
        queue = self._queue
        if queue._rows is None:
            queue._allocate(row, carry, extras)
        if self.cut:
            self._discard(~np.asarray(row.first))
        rows = queue.context + self.position
        places: tuple[Tensor, ...] | None = None  # the same indices on the device
        for array, leaf in zip(queue._row_arrays, trees.flatten(row), strict=True):
            if isinstance(array, np.ndarray):
                array[rows, self.slot] = _array(leaf)
            else:
                places = places or _sent(np.stack([rows, self.slot]), array.device)
                array[places] = leaf
        if row.first.any():
            queue._fillers[self.slot] += np.asarray(row.first) & (self.position > 0)
        finished = np.nonzero(self.position == queue.length)[0]
        if len(finished):
            self._move_on(finished, carry)
            queue._begun[self.slot[finished]] = extras["weights_version"][finished]
        steps = np.maximum(self.position, 0)  # below 0 for unrolls that are discarded
        for name, leaf in extras.items():
            queue._extra_arrays[name][steps, self.slot] = _array(leaf)
        self.position = self.position + 1

    def _discard(self, columns: np.ndarray) -> None:
        """Discard the current unrolls of these environments when they are full: rows are missing before this one.

        Environments that begin an episode with this row continue, since the row before it is a filler. The steps at
        which unrolls end stay the same, since the number of free slots relies on their being staggered.

        Args:
          columns: bool [B], true for environments whose next row continues an episode with missing rows.
        """
        queue, self.cut = self._queue, False
        self.early |= columns
        while (late := columns & (self.position > queue.length - queue.context)).any():
            self.position[late] -= queue.length  # too few rows would be left for the next unroll's context

    def _move_on(self, columns: np.ndarray, carry: Tree) -> None:
        """Queue the slots of these environments and give them free ones that begin with the rows just written."""
        queue = self._queue
        old = self.slot[columns].copy()
        with queue._changed:
            new = np.array([queue._free.popleft() for _ in columns], np.int64)
        for array in queue._row_arrays:
            if isinstance(array, np.ndarray):
                array[: queue.context + 1, new] = array[queue.length :, old]
            else:
                there, here = _sent(np.stack([new, old]), array.device)
                array[: queue.context + 1, there] = array[queue.length :, here]
        new_slots, which = torch.from_numpy(new), torch.from_numpy(columns)
        for arena, leaf in zip(trees.flatten(queue._carry), trees.flatten(carry), strict=True):
            there, here = (
                (new_slots, which) if arena.device.type == "cpu" else _sent(np.stack([new, columns]), arena.device)
            )
            arena[there] = leaf[here]
        queue._fillers[new] = 0
        self.slot[columns] = new
        self.position[columns] = 0
        early, self.early[columns] = self.early[columns], False
        if queue._written is not None:
            queue._written.record()
        with queue._changed:
            queue._full.extend(old[~early].tolist())
            queue._free.extend(old[early].tolist())
            queue._changed.notify_all()


def _sent(indices: np.ndarray, device: torch.device) -> tuple[Tensor, ...]:
    """Copy indices to a device without waiting for it."""
    return torch.from_numpy(indices).pin_memory().to(device, non_blocking=True).unbind()


def _array(leaf: Any) -> np.ndarray:
    return leaf if isinstance(leaf, np.ndarray) else leaf.detach().numpy()


def _trajectory(rows: Row, carry: Tree, extras: dict[str, Tensor], context: int) -> Trajectory:
    """Return rows [C+T+1, B] as a trajectory: a row's reward and end belong to the previous row's action."""
    after = slice(context + 1, None)
    before = slice(0, context + 1)
    rewards = {f"reward/{name}": leaf[after] for name, leaf in rows.last_reward.items() if name != "train"}
    return Trajectory(
        obs=rows.obs,
        first=rows.first,
        action=trees.map(lambda leaf: leaf[after], rows.last_action),
        reward=rows.last_reward["train"][after],
        terminated=rows.terminated[after],
        truncated=rows.truncated[after],
        last_action=trees.map(lambda leaf: leaf[before], rows.last_action),
        last_reward={name: leaf[before] for name, leaf in rows.last_reward.items()},
        carry=carry,
        extras={**extras, **rewards},
    )
