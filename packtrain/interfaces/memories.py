"""The contracts of memories: they receive rows from actors through writers, and give samples to learners."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from packtrain.errors import ConfigError
from packtrain.trees import Tree
from packtrain.types import CarryRows, Chunk, Row, Sample

if TYPE_CHECKING:
    from torch import Tensor

View = Literal["all", "held_out", "stretches"]
"""What `Memory.view` reads: every step; steps that `holdout` leaves out of samples; runs of consecutive steps."""


class Writer(abc.ABC):
    """Takes the experience of one group of environments."""

    @abc.abstractmethod
    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """Store one row of B environments.

        Args:
          row: tensors or arrays [B, ...]; `last_action` is what the row before was answered with.
          carry: recurrent state before the row.
          extras: what the policy adds to the row, [B, ...] each.
        """

    def add_many(self, chunk: Chunk) -> None:
        """Store K consecutive rows. The memory's content is the same as after K calls of `add`."""
        for k in range(chunk.length):
            self.add(chunk.row(k), chunk.carry(k), {name: leaf[k] for name, leaf in chunk.extras.items()})


class Memory(abc.ABC):
    """Receives rows from actors through one writer per group of environments and gives samples to learners."""

    replays: ClassVar[bool] = False  # sampled steps stay in the memory and can be sampled again
    outlives_episodes: ClassVar[bool] = False  # its content is usable without the unfinished episodes
    steps: int = 0  # environment steps received; the ratio loop schedules updates by it
    dropped: int = 0  # pieces of experience or priorities that were discarded
    lost: int = 0  # steps that a damaged file has cost
    reward_scale: Any = None  # what divides sampled rewards, with an attribute `discount`; None: they stay as they are

    # -- the learner's side

    @abc.abstractmethod
    def ready(self) -> bool:
        """Return whether a batch can be sampled."""

    @abc.abstractmethod
    def sample(
        self,
        batch_size: int | None = None,
        count: int | None = None,
        *,
        holdout: bool = False,
        version: int | None = None,
    ) -> Sample | None:
        """Return a batch, or several; None if there is too little.

        A memory that cannot serve a size, a count or a holdout calls `refuse` for it.

        Args:
          batch_size: B, items of a batch; None: the memory's own number.
          count: batches to sample at once, as a leading axis of every tensor; None: one, without that axis.
          holdout: leave out the steps that `view("held_out")` returns.
          version: of the learner's weights, to compute the policy lag; None: it is not computed.
        """

    def view(self, which: View, *, most: int | None = None, steps: int = 1, holdout: bool = False) -> Sample | None:
        """Return stored steps without sampling, in a fixed order; None if there are none of this kind.

        Args:
          which: "all" steps or the "held_out" ones, as a trajectory [1, N]; "stretches" of consecutive steps in none
            of which the task ended, as a trajectory [steps, N].
          most: N is at most this; None: all that there are.
          steps: T of a stretch.
          holdout: stretches consist of held-out steps alone.
        """
        return None

    def refuse(self, **given: Any) -> None:
        """Raise a ConfigError for the first argument of `sample` that is given: this memory has no such samples."""
        for name, value in given.items():
            if value is not None and value is not False:
                raise ConfigError(f"{type(self).__name__} cannot sample with {name} = {value!r}")

    def wait_for_batch(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until a batch can be sampled; return whether it can."""
        return self.ready()

    def update_priorities(self, keys: Tensor | None, priorities: Tensor) -> None:
        """Set the priorities of sampled items; ignored where sampling is uniform.

        Args:
          keys: [B] from the sample; None: of the latest sample.
          priorities: [B] at least 0.
        """

    def report(self) -> dict[str, float]:
        """Return metrics of the content."""
        return {}

    # -- the actor's side

    @abc.abstractmethod
    def writer(self, group: int) -> Writer:
        """Return the writer of one group of environments.

        Args:
          group: its index, in the order of the sizes that the memory was built with.
        """

    def wait_for_room(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until actors may add rows; return whether they may."""
        return True

    def room(self, group: int) -> int:
        """Return how many rows of a group may be added now.

        Args:
          group: its index, as in `writer`.
        """
        return 1 << 30 if self.wait_for_room(0.0) else 0

    def release(self, group: int) -> None:
        """End the group's unfinished episodes because its environments were closed; its next row starts a new episode.

        Args:
          group: its index, as in `writer`.
        """

    def chunk_carries(self, rows: int) -> CarryRows:
        """Return which rows of a chunk must come with the recurrent state before them.

        Args:
          rows: of every chunk.
        """
        return "every"

    # -- life

    def take_turns(self) -> None:
        """Make everything added available to the next sample: acting and learning share one thread."""

    def set_discount(self, discount: float) -> None:
        """Use a learner's discount factor, if this memory normalises rewards."""
        if self.reward_scale is not None:
            self.reward_scale.discount = discount

    def reseed(self, seed: int) -> None:
        """Draw from another random stream from now on."""

    def clear(self) -> None:
        """Remove all experience."""

    def attach(self, folder: Path) -> None:
        """Use `folder` for large files that checkpoints refer to. Called once, before the first row."""

    def move(self, folder: Path) -> None:
        """Use another folder from now on, because the previous one was lost."""

    @abc.abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return the full state as a tree of tensors, arrays and JSON values."""

    @abc.abstractmethod
    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Load a state.

        Args:
          snapshot: from `snapshot`.
          same_episodes: False if the environments start new episodes; episodes in progress then end where they stood.
        """


class MemoryShard(Memory):
    """A memory that can be one of several parts, in other processes, whose samples are joined to batches."""

    @property
    @abc.abstractmethod
    def mass(self) -> float:
        """Sum of the priorities of all items; the number of items where sampling is uniform."""

    @abc.abstractmethod
    def draw_part(self, batch_size: int) -> tuple[Sample, Tensor]:
        """Return a batch, and the priorities [B] in proportion to which its items were drawn."""


class MemoryBytes(NamedTuple):
    """Estimated size of a memory at the end of the run."""

    device: float  # bytes where learning happens
    host: float = 0.0  # further bytes in host memory
    copied: float = 0.0  # bytes that a checkpoint copies while it is written
    name: str = "the memory"  # name in messages
    advice: str = "lower its capacity"  # what to do if it does not fit
    limited: bool = True  # refuse to start if it does not fit; False: the size is only an estimate


class PolicyLag(NamedTuple):
    """How old the weights behind a sample may be."""

    limit: int  # versions of the weights; older samples are dropped
    steps_per_version: int  # steps that a learner uses for one version


DemonstratedState = Callable[[int], tuple[Tree, dict[str, Any]]]
"""Number of environments → recurrent state before each of their demonstrated rows, and the extras of these rows."""


@runtime_checkable
class Preloads(Protocol):
    """A memory that takes demonstrations before a run begins."""

    def preload(self, rows: Iterable[Row], state: DemonstratedState) -> int:
        """Store the rows of one environment; return the number of steps in them.

        Args:
          rows: [1, ...] of whole episodes.
          state: what the policy adds to the rows of a number of environments: recurrent state and extras.
        """


class MemorySettings(abc.ABC):
    """Sizes of a memory. Implemented by frozen dataclasses."""

    preloads: ClassVar[bool] = False  # memories are `Preloads`
    replays: ClassVar[bool] = False  # updates follow steps by a ratio; False: each sample is used once, or by epochs

    @abc.abstractmethod
    def build(self, groups: list[int], context: int, device: Any) -> Memory:
        """Return an empty memory.

        Args:
          groups: number of environments in each group.
          context: rows that the policy needs in front of the one it acts on.
          device: a torch.device, where learning happens.
        """

    def check(self, num_envs: int, context: int, warm_up: int) -> None:
        """Raise a ConfigError if the memory cannot serve an experiment.

        Args:
          num_envs: environments of all groups.
          context: as in `build`.
          warm_up: steps that are collected before the first update.
        """

    def plan_bytes(self, num_envs: int, row_bytes: int, total_steps: int) -> MemoryBytes:
        """Estimate the memory's size; 0 where it is unknown.

        Args:
          num_envs: environments of all groups.
          row_bytes: bytes of one row of one environment.
          total_steps: of the run.
        """
        return MemoryBytes(0)

    def shard(self, envs: int, num_envs: int) -> MemorySettings | None:
        """Return the settings of a part of the memory, a `MemoryShard`, for --replay_shards; None: it has no parts.

        Args:
          envs: environments of the part.
          num_envs: environments of all parts.
        """
        return None

    def join_shards(self, drawn: Sequence[tuple[Sample, Tensor]], batches: int) -> Sample:
        """Return one batch of what several parts gave.

        Args:
          drawn: by `MemoryShard.draw_part`, with keys that differ between parts.
          batches: sampled before.
        """
        raise TypeError(f"{type(self).__name__} has no parts")

    @property
    def batch_steps(self) -> int:
        """Steps of a batch of a queue; 0 where a batch has no fixed number."""
        return 0

    def policy_lag(self, num_envs: int) -> PolicyLag | None:
        """Return the limit of policy lag; None: samples of any age are used.

        Args:
          num_envs: environments of all groups.
        """
        return None
