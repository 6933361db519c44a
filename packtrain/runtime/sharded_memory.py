"""A replay memory in several processes, for `--replay_shards`: it forwards rows, batches and priorities.

Each group of environments has a part of the memory, and each shard holds the parts of some groups. A batch takes from
every part in proportion to its sum of priorities, as that part reported it last. Loops and learners use this class like
any other memory.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packtrain import trees
from packtrain.errors import CheckpointError, ConfigError, Error, WorkersLostError
from packtrain.interfaces import Memory, MemorySettings, Writer
from packtrain.memory.chunk import ChunkWriter
from packtrain.runtime.cluster.calls import Engine
from packtrain.runtime.replay_shard import SAVE_SECS, ShardAnswer, ShardOrder, ShardSetup
from packtrain.runtime.shard_calls import Request, ShardCalls
from packtrain.runtime.worker import pack_tensors, unpack_tensors
from packtrain.trees import Tree
from packtrain.types import CarryRows, Chunk, Row, Sample

MOST_ORDERS = 6  # orders that one shard has not answered; actors wait above it
START_SECS = 180.0
BACK_SECS = 60.0  # for which a checkpoint waits for a shard that is being loaded
LOOK_SECS = 0.01  # pause of a thread that waits
POLL_SECS = 0.002  # between two looks for answers

OpenEngine = Callable[[int, Callable[[int, int], ShardSetup]], Engine]
"""(number of shards, setup of a shard by its index and life) → the engine that starts them."""


class _ShardWriter(Writer):
    """Forwards the rows of one group."""

    def __init__(self, memory: ShardedMemory, group: int):
        self._memory, self._group = memory, group
        self._single = ChunkWriter(1, self.add_many)

    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """Forward one row."""
        self._single.add(row, carry, extras)

    def add_many(self, chunk: Chunk) -> None:
        """Forward consecutive rows."""
        self._memory.add(self._group, chunk)


class ShardedMemory(Memory):
    """The parts of a memory in several processes. Actors add in one thread, the learner samples in another."""

    replays = outlives_episodes = True

    def __init__(
        self,
        settings: MemorySettings,
        groups: Sequence[int],
        context: int,
        device: torch.device,
        shards: int,
        open_engine: OpenEngine,
        save_secs: float = SAVE_SECS,
    ):
        """Store the arguments; the processes start when a folder is attached.

        Args:
          settings: of the whole memory.
          groups: number of environments in each group.
          context: rows that the policy needs in front of the one it acts on.
          device: where batches are wanted.
          shards: number of processes.
          open_engine: returns the engine that starts them.
          save_secs: between two times that a shard saves its parts.
        """
        if shards > len(groups):
            raise ConfigError(
                f"--replay_shards {shards}: the environments form {len(groups)} groups, which can be divided over 1 to "
                f"{len(groups)} shards; more --workers make more groups"
            )
        self._settings, self._groups, self._context, self._device = settings, list(groups), context, device
        self._count, self._open_engine, self._save_secs = shards, open_engine, save_secs
        self.steps = self.lost = self._batches = 0
        self._rng, self._seed = np.random.default_rng(0), 0
        self._masses: dict[int, float] = {}  # by group
        self._answers: dict[int, ShardAnswer] = {}  # the latest of each shard, without its value
        self._sent = [0] * shards  # steps that the process of each shard was given, or had when it was loaded
        self._before = [0] * shards  # the same of the process before, until it is known what was loaded
        self._requests: collections.deque[Request] = collections.deque()  # whose answers are not waited for
        self._beginnings: collections.deque[Request] = collections.deque()  # the first requests of processes
        self._filled = False  # whether there has been something to sample
        self._polled_at = 0.0
        self._writers = [_ShardWriter(self, group) for group in range(len(groups))]
        self._calls: ShardCalls | None = None
        self.stopping: Callable[[], bool] = lambda: False

    # -- the processes

    def attach(self, folder: Path) -> None:
        """Start the shards, which write below `folder`."""
        self._folder = folder
        envs = sum(self._groups)
        parts = {group: (self._settings.shard(size, envs), size) for group, size in enumerate(self._groups)}

        def setup(shard: int, life: int) -> ShardSetup:
            mine: Any = {group: parts[group] for group in self._groups_of(shard)}
            return ShardSetup(
                shard, life, mine, self._context, self._seed, str(self._folder.absolute()), save_secs=self._save_secs
            )

        engine = self._open_engine(self._count, setup)
        self._calls = ShardCalls(engine, self._count, self._seed, START_SECS, self._on_start)
        self._calls.poll()

    def _groups_of(self, shard: int) -> list[int]:
        return list(range(shard, len(self._groups), self._count))

    def _shard_of(self, group: int) -> int:
        return group % self._count

    @property
    def _processes(self) -> ShardCalls:
        assert self._calls is not None, "no folder has been attached"
        return self._calls

    def _on_start(self, shard: int, life: int) -> None:
        """Begin with a shard's process: find out what a later life has loaded."""
        self._masses.update(dict.fromkeys(self._groups_of(shard), 0.0))
        self._before[shard], self._sent[shard] = self._sent[shard], 0
        self._beginnings.append(self._processes.send(shard, ShardOrder("look")))

    def _poll(self, secs: float = 0.0) -> None:
        """Process the answers that have arrived, after a pause."""
        if secs:
            time.sleep(secs)
        elif time.monotonic() - self._polled_at < POLL_SECS:
            return
        self._processes.poll()
        self._polled_at = time.monotonic()
        for waiting in (self._beginnings, self._requests):
            with contextlib.suppress(IndexError):  # several threads empty them
                for _ in range(len(waiting)):
                    request = waiting.popleft()
                    if not request.done:
                        waiting.append(request)
                    elif request.answer is not None:
                        self._note(request, began=waiting is self._beginnings)

    def _note(self, request: Request, began: bool = False) -> ShardAnswer:
        answer: ShardAnswer = request.answer
        if began and request.life:  # steps since the last save are lost
            self.lost += max(0, self._before[request.shard] - answer.steps)
        if began:
            self._sent[request.shard] += answer.steps
        self._masses.update(answer.masses)
        self._filled = self._filled or any(answer.masses.values())
        self._answers[request.shard] = answer._replace(value=None)
        return answer

    def _ask(self, orders: Mapping[int, ShardOrder]) -> dict[int, Any]:
        """Return the values that shards answer; those that cannot be called, or end before, are left out."""
        requests = {shard: self._processes.send(shard, order) for shard, order in orders.items()}
        self._processes.wait(list(requests.values()))
        answered = {shard: request for shard, request in requests.items() if request.answer is not None}
        return {shard: self._note(request).value for shard, request in answered.items()}

    def _wait_for_all(self, secs: float) -> None:
        deadline = time.monotonic() + secs
        while self._processes.ready < self._count and time.monotonic() < deadline and not self.stopping():
            self._poll(LOOK_SECS)
        while self._beginnings and time.monotonic() < deadline and not self.stopping():
            self._poll(LOOK_SECS)

    # -- the learner's side

    def ready(self) -> bool:
        """Return whether a batch can be sampled."""
        self._poll()
        return self._warmed_up and bool(self._live_masses())

    @property
    def _warmed_up(self) -> bool:
        warm_up: int = getattr(self._settings, "warm_up", 1)
        return self.steps >= warm_up

    def _live_masses(self) -> dict[int, float]:
        ready = [self._processes.is_ready(shard) for shard in range(self._count)]
        return {group: mass for group, mass in self._masses.items() if mass > 0 and ready[self._shard_of(group)]}

    def sample(
        self,
        batch_size: int | None = None,
        count: int | None = None,
        *,
        holdout: bool = False,
        version: int | None = None,
    ) -> Sample | None:
        """Sample B items from all parts in proportion to their priorities; waits while no shard is there.

        Args:
          batch_size: B; None: that of the settings.
          count: must be None.
          holdout: must be False.
          version: changes nothing.
        """
        self.refuse(count=count, holdout=holdout)
        if not self._warmed_up or not self._filled:
            return None
        size: int = getattr(self._settings, "batch_size", 1) if batch_size is None else batch_size
        while True:
            self._wait_for_any()
            masses = self._live_masses()
            sizes = _divide(size, masses, self._rng)
            orders: dict[int, dict[int, int]] = {}
            for group, number in sizes.items():
                orders.setdefault(self._shard_of(group), {})[group] = number
            found = self._ask({shard: ShardOrder("draw", (asked,)) for shard, asked in orders.items()})
            if len(found) == len(orders):
                break
        drawn = {group: unpack_tensors(part) for parts in found.values() for group, part in parts.items()}
        keyed = [
            (sample._replace(keys=sample.keys * len(self._groups) + group), priorities)
            for group, (sample, priorities) in drawn.items()
        ]
        joined = self._settings.join_shards(keyed, self._batches)
        self._batches += 1
        return Sample(*trees.map(self._to_device, tuple(joined)))

    def _to_device(self, leaf: Any) -> Any:
        return leaf.to(self._device) if isinstance(leaf, Tensor) else leaf

    def _wait_for_any(self) -> None:
        """Wait until a shard with experience can be sampled; WorkersLostError if there is none for long."""
        deadline = time.monotonic() + START_SECS
        while not self._live_masses():
            if time.monotonic() > deadline or self.stopping():
                raise WorkersLostError(f"no replay shard answers: {self._processes.first_error[-400:]}")
            self._poll(LOOK_SECS)

    def update_priorities(self, keys: Tensor | None, priorities: Tensor) -> None:
        """Send new errors to the parts; those for a shard that has ended since are lost."""
        assert keys is not None
        groups, keys, priorities = keys.cpu() % len(self._groups), keys.cpu() // len(self._groups), priorities.cpu()
        judged: dict[int, dict[int, Any]] = {}
        for group in groups.unique().tolist():
            mine = groups == group
            judged.setdefault(self._shard_of(group), {})[group] = pack_tensors((keys[mine], priorities[mine]))
        for shard, each in judged.items():
            self._requests.append(self._processes.send(shard, ShardOrder("judge", (each,))))

    @property
    def dropped(self) -> int:  # type: ignore[override]
        """Return how many priorities came too late."""
        return sum(answer.dropped for answer in self._answers.values())

    def report(self) -> dict[str, float]:
        """Return the number of shards that answer, and how often one was loaded again."""
        return {"replay_shards_ready": self._processes.ready, "replay_shard_restarts": self._processes.restarts}

    # -- the actor's side

    def writer(self, group: int) -> Writer:
        """Return the writer of one group of environments."""
        return self._writers[group]

    def add(self, group: int, chunk: Chunk) -> None:
        """Send rows to the part of a group; while its shard is being loaded, they are lost and counted."""
        shard, steps = self._shard_of(group), int((~np.asarray(chunk.rows.first)).sum())
        request = self._processes.send(shard, ShardOrder("add", (group, chunk)))
        if request.done:
            self.lost += steps
        else:
            self._sent[shard] += steps
            self._requests.append(request)
        self.steps += steps  # incremented last: the learner polls it

    def room(self, group: int) -> int:
        """Return how many rows of a group may be sent now."""
        self._poll()
        return 1 << 30 if self._processes.waiting(self._shard_of(group)) < MOST_ORDERS else 0

    def wait_for_room(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until every shard may be sent rows; return whether it may."""
        deadline = time.monotonic() + timeout
        while True:
            self._poll()
            if all(self._processes.waiting(shard) < MOST_ORDERS for shard in range(self._count)):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(LOOK_SECS, timeout))

    def release(self, group: int) -> None:
        """End a group's unfinished episodes."""
        self._requests.append(self._processes.send(self._shard_of(group), ShardOrder("release", (group,))))

    def chunk_carries(self, rows: int) -> CarryRows:
        """Return "every": parts cut rows into sequences."""
        return "every"

    # -- life

    def reseed(self, seed: int) -> None:
        """Sample from another random stream from now on."""
        self._rng, self._seed = np.random.default_rng(seed), seed

    def clear(self) -> None:
        """Remove all experience."""
        self._ask({shard: ShardOrder("clear") for shard in range(self._count)})
        self._filled = False

    def move(self, folder: Path) -> None:
        """Use another folder from now on."""
        self._folder = folder
        self._ask({shard: ShardOrder("move", (str(folder.absolute()),)) for shard in range(self._count)})

    def snapshot(self) -> dict[str, Any]:
        """Return the state of all parts; for a shard that cannot answer, a note that its own saved state is used."""
        found: dict[int, Any] = {}
        try:
            self._wait_for_all(BACK_SECS)
            for states in self._ask({shard: ShardOrder("snapshot") for shard in range(self._count)}).values():
                found |= states
        except Error:  # the cluster is lost: the shards have saved their parts themselves
            pass
        parts = {str(group): unpack_tensors(found.get(group)) for group in range(len(self._groups))}
        return {
            "parts": parts,
            "groups": list(self._groups),
            "steps": self.steps,
            "lost": self.lost,
            "batches": self._batches,
            "rng": self._rng.bit_generator.state,
        }

    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Load the state of all parts, with any number of shards.

        CheckpointError if the replay was not in shards, or if the groups of environments are others.

        Args:
          snapshot: what `snapshot` gave.
          same_episodes: whether the environments were restored too.
        """
        if "parts" not in snapshot:
            raise CheckpointError("this run's replay is not in shards: leave --replay_shards out")
        if list(snapshot["groups"]) != self._groups:
            raise CheckpointError(
                f"a replay in shards goes on with the same groups of environments only, {list(snapshot['groups'])} "
                f"instead of {self._groups}: repeat --workers of the run"
            )
        self._wait_for_all(START_SECS)
        own = {self._shard_of(int(group)) for group, state in snapshot["parts"].items() if state is None}
        self._ask({shard: ShardOrder("reload") for shard in own})
        for group, state in snapshot["parts"].items():
            if state is not None:
                order = ShardOrder("restore", (int(group), pack_tensors(state), same_episodes))
                if not self._ask({self._shard_of(int(group)): order}):
                    raise WorkersLostError(f"a replay shard cannot be restored: {self._processes.first_error[-400:]}")
        self.steps, self.lost, self._batches = (int(snapshot[name]) for name in ("steps", "lost", "batches"))
        self._rng.bit_generator.state = snapshot["rng"]
        self._sent = [self._answers[shard].steps if shard in self._answers else 0 for shard in range(self._count)]
        self._filled = any(self._masses.values())

    def close(self) -> None:
        """End the shards."""
        if self._calls is not None:
            self._calls.close()


def _divide(size: int, masses: Mapping[int, float], rng: np.random.Generator) -> dict[int, int]:
    """Return how many of `size` items come from each part: a stratified sample in proportion to the masses."""
    ends = np.cumsum(list(masses.values()))
    uniforms = (np.arange(size) + rng.random(size)) / size * ends[-1]
    counts = np.bincount(np.searchsorted(ends, uniforms, side="right").clip(max=len(ends) - 1), minlength=len(ends))
    return {group: int(number) for group, number in zip(masses, counts, strict=True) if number}
