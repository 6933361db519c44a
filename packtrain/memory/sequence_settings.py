"""Settings of a replay memory of prioritised sequences, for Q-learners; `sequence_memory.py` is the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from packtrain import check, trees
from packtrain.config import configurable, unrecorded
from packtrain.equations.priorities import annealed_exponent, importance_weights
from packtrain.errors import ConfigError
from packtrain.interfaces import MemoryBytes, MemorySettings
from packtrain.memory.sequence_index import note_bytes
from packtrain.memory.sequence_memory import SequenceMemory
from packtrain.memory.storage import BLOCK
from packtrain.types import Sample

_TOGETHER = 64  # maximum number of rows that wait on the host before one copy per leaf to the device
_SMALL = 15  # bytes of a row besides the observation: action, reward and three flags


@configurable
@dataclass(frozen=True)
class Sequences(MemorySettings):
    """Sizes of a replay memory of sequences."""

    replays: ClassVar[bool] = True
    preloads: ClassVar[bool] = True

    capacity: int = 1_000_000  # rows of all environments together; the oldest are overwritten
    sequence_length: int = 80  # T, steps to learn from; 1: transitions
    burn_in: int = 40  # rows before them that only warm up the recurrent state
    stride: int = 40  # steps from one sequence to the next
    # steps of a return; n − 1 further steps are stored after the T, so that returns can use them; 0 as 1
    n_step: int = 5
    batch_size: int = 64  # sequences per batch
    warm_up: int = 1  # steps before the first batch
    priority_exponent: float = 0.9  # α
    importance_exponent: float = 0.6  # β at the first batch …
    importance_exponent_end: float = 0.6  # … and at the end
    importance_steps: int = 100_000  # batches over which β changes linearly
    # initial priority of sequences: "largest": largest error so far; "given": the actor's TD errors
    new_priority: str = "largest"
    extras: tuple[str, ...] = ()  # outputs of the actor to store
    storage: Literal["device", "host", "disk"] = "device"  # where observations are stored; disk: in a file
    compression: Literal["zlib"] | None = None  # compress observations on the host: less memory, slower sampling
    eta: float = 0.9  # priority from given errors: η max |δ| + (1 − η) mean |δ|
    largest_decay: float = 1.0  # factor on the largest error per batch of new errors; 1: no decay
    normalise_rewards: bool = False  # sample rewards in units of the running deviation of discounted returns

    def __post_init__(self) -> None:
        check.at_least(self, 1, "capacity", "sequence_length", "stride", "batch_size", "warm_up", "importance_steps")
        check.at_least(self, 0, "burn_in", "n_step", "priority_exponent")
        check.share(self, "importance_exponent", "importance_exponent_end", "eta")
        if not 0 < self.largest_decay <= 1:
            raise ConfigError(f"Sequences.largest_decay = {self.largest_decay} must be above 0 and at most 1")
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
        if self.burn_in and self.burn_in >= self.sequence_length:
            raise ConfigError(
                f"Sequences.burn_in = {self.burn_in} must be less than "
                f"Sequences.sequence_length = {self.sequence_length}, because these steps follow it"
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
        if self.normalise_rewards and self.new_priority == "given":
            raise ConfigError(
                "Sequences.normalise_rewards = True does not fit Sequences.new_priority = 'given', because actors "
                "compute errors from rewards as they are; set --new_priority largest"
            )
        if self.compression and self.storage != "host":
            raise ConfigError(
                f'Sequences.compression = {self.compression!r} needs Sequences.storage = "host", not {self.storage!r}'
            )

    @property
    def steps(self) -> int:
        """Number of steps in a sampled trajectory: T training steps and n − 1 more."""
        return self.sequence_length + max(self.n_step, 1) - 1

    @property
    def rows(self) -> int:
        """Number of rows in a sampled trajectory, from the first row of the burn-in to the row after the last step."""
        return self.burn_in + self.steps + 2

    def length(self, columns: int) -> int:
        """Number of rows L per environment, given the number of environments."""
        return self.capacity // columns

    def refuse_unless_it_fits(self, columns: int, context: int) -> None:
        """Raise a ConfigError if an environment has no room for one sequence and the context rows of a policy."""
        there, needed = self.length(columns), context + self.rows
        if there < needed:
            raise ConfigError(
                f"Sequences.capacity = {self.capacity} gives each of {columns} columns {there} rows, and a sequence "
                f"takes {needed}"
            )

    def together(self, columns: int) -> int:
        """Maximum number of rows of all groups before pending rows are copied to the device."""
        return min(_TOGETHER, self.length(columns))

    def build(self, groups: list[int], context: int, device: torch.device) -> SequenceMemory:
        """Return a memory for groups of environments of the given sizes, whose policy needs this many context rows."""
        return SequenceMemory(self, groups, context, device)

    def weights(self, chances: Tensor, batches: int) -> Tensor:
        """Return the importance weights of a batch, float32 [B].

        Args:
          chances: [B] priorities in proportion to which it was drawn.
          batches: sampled before.
        """
        first, last = self.importance_exponent, self.importance_exponent_end
        exponent = annealed_exponent(batches, first, last, self.importance_steps)
        return importance_weights(chances, exponent).to(torch.float32)

    def shard(self, envs: int, num_envs: int) -> Sequences:
        """Return the settings of a part, whose environments have as many rows each as in the whole memory."""
        if self.normalise_rewards:
            raise ConfigError(
                "--replay_shards: each part would divide rewards by a deviation of its own; "
                "set --normalise_rewards False"
            )
        with unrecorded():  # the run's configuration is that of the whole memory
            return replace(self, capacity=self.length(num_envs) * envs, batch_size=1, warm_up=1)

    def join_shards(self, drawn: Sequence[tuple[Sample, Tensor]], batches: int) -> Sample:
        """Return one batch of what several parts gave, with importance weights of all its sequences together."""
        samples, chances = [sample for sample, _ in drawn], torch.cat([each for _, each in drawn])
        parts = [sample.trajectory for sample in samples]
        # [T, B, ...], but for the carry, which is [B, ...]
        whole = trees.map(lambda *leaves: torch.cat(leaves, 1), *[part._replace(carry=()) for part in parts])
        carry = trees.map(lambda *leaves: torch.cat(leaves), *[part.carry for part in parts])
        keys = torch.cat([sample.keys for sample in samples if sample.keys is not None])
        steps = sum(sample.steps for sample in samples)
        return Sample(whole._replace(carry=carry), steps, keys, self.weights(chances, batches))

    def check(self, num_envs: int, context: int, warm_up: int) -> None:
        """Raise a ConfigError if the environments have no room for a sequence each."""
        self.refuse_unless_it_fits(num_envs, context)

    def plan_bytes(self, num_envs: int, row_bytes: int, total_steps: int) -> MemoryBytes:
        """Estimate the rings, which are allocated at once; a checkpoint copies the index and one segment."""
        size, host = self.bytes_needed(num_envs, row_bytes), self.host_bytes_needed(num_envs, row_bytes)
        copied = min((size + host) / 4, 256 * 2**20)  # measured
        advice = "lower replay_size, or set storage to host or disk"
        return MemoryBytes(size, host, copied, name="the replay", advice=advice)

    def bytes_needed(self, columns: int, row: int, small: int = _SMALL, carry: int = 0) -> int:
        """Return the bytes of a full memory on the learner's device if episodes are long.

        Args:
          columns: number of environments of all groups together.
          row: bytes of one row of one environment.
          small: bytes of the row without its observation.
          carry: bytes of the carry of one environment.
        """
        return self._bytes(columns, row, small, carry)["device"]

    def host_bytes_needed(self, columns: int, row: int, small: int = _SMALL, carry: int = 0) -> int:
        """Return the bytes on the host besides those on the learner's device; with compression, the worst case."""
        return self._bytes(columns, row, small, carry)["host"]

    def disk_bytes_needed(self, columns: int, row: int, small: int = _SMALL, carry: int = 0) -> int:
        """Return the bytes in files, without checkpoints and their segments."""
        return self._bytes(columns, row, small, carry)["disk"]

    def _bytes(self, columns: int, row: int, small: int, carry: int) -> dict[str, int]:
        places = columns * self.length(columns) + 1
        found = {"disk": 0, **note_bytes(self, columns, carry)}
        found["device"] += small * places
        found["host"] += 16 * columns  # positions of episodes
        if self.compression:
            blocks = -(-self.length(columns) // BLOCK) + 1  # blocks of an environment, including the open one
            found["host"] += (row - small) * BLOCK * columns * blocks + 8 * columns
        else:
            found[self.storage] += (row - small) * places
        return found
