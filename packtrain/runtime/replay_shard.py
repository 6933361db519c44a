"""A replay shard: the process that holds some parts of a memory, one for each of its groups of environments.

Every `SAVE_SECS` it writes its parts to a folder of its own below the run folder. After it was killed, the next process
continues from there. Any engine can serve it: a spawned process or a Ray actor.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from packtrain.config import import_again
from packtrain.errors import ConfigError
from packtrain.interfaces import MemorySettings, MemoryShard
from packtrain.runtime import checkpoint
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.worker import pack_tensors, unpack_tensors
from packtrain.types import Chunk

log = logging.getLogger("packtrain")
SAVE_SECS = 30.0
SEGMENT_ROWS = 8192  # rows of all environments of a part in one file
KEPT = 2  # saved states of a shard


@dataclass(frozen=True)
class ShardSetup:
    """Settings of one shard, as plain values."""

    index: int
    life: int
    parts: Mapping[int, tuple[MemorySettings, int]]  # settings and number of environments, by group
    context: int  # rows that the policy needs in front of the one it acts on
    seed: int
    folder: str  # of the memory in the run folder, on a file system that this process sees too
    import_path: tuple[str, ...] = ()  # folders of the user's modules
    imports: tuple[str, ...] = ()  # modules that the configuration imports
    save_secs: float = SAVE_SECS

    def build(self) -> ReplayShard:
        """Return the shard; called in its process."""
        return ReplayShard(self)


class ShardOrder(NamedTuple):
    """An order to a shard: a method `answer_NAME` and its arguments."""

    call: str
    arguments: tuple[Any, ...] = ()


class ShardAnswer(NamedTuple):
    """The result of an order, and the content of the shard after it."""

    value: Any
    masses: dict[int, float]  # sum of priorities by part
    steps: int  # environment steps received by all parts
    dropped: int  # see `Memory.dropped`, of all parts
    lost: int  # see `Memory.lost`, of all parts


class ReplayShard:
    """Holds parts of a memory and serves them as ordered."""

    def __init__(self, setup: ShardSetup):
        """Build the parts; a later life continues from what the shard saved last.

        Args:
          setup: what to build.
        """
        torch.set_num_threads(1)
        import_again(setup.imports)
        self._setup, self.progress = setup, 0
        if not Path(setup.folder).parents[1].is_dir():
            raise ConfigError(
                f"a replay shard cannot see the run folder {Path(setup.folder).parents[1]}: --replay_shards needs a "
                "file system that all nodes share, under one path"
            )
        self._folder = Path(setup.folder)
        self._parts: dict[int, MemoryShard] = {}
        for part, (settings, envs) in setup.parts.items():
            memory: Any = settings.build([envs], setup.context, torch.device("cpu"))
            memory.reseed(seed_for(setup.seed, "part", part, "life", setup.life))
            memory.attach(self._folder / f"part_{part}", SEGMENT_ROWS)
            self._parts[part] = memory
        self._saves, self._saved_at = 0, time.monotonic()
        self._others = not setup.life  # what was saved here is of an earlier run
        if setup.life:
            self._reload()

    @property
    def _own(self) -> Path:
        return self._folder / f"shard_{self._setup.index}"

    def act(self, order: ShardOrder, version: int, weights: Any) -> tuple[list[Any], ShardAnswer]:
        """Carry out an order; return no rows, and its answer.

        Args:
          order: what to do.
          version: not used: there are no weights.
          weights: not used.
        """
        value = getattr(self, f"answer_{order.call}")(*order.arguments)
        self.progress += 1
        parts = self._parts.values()
        masses = {part: memory.mass for part, memory in self._parts.items()}
        sums = (sum(getattr(memory, name) for memory in parts) for name in ("steps", "dropped", "lost"))
        return [], ShardAnswer(value, masses, *sums)

    # -- orders

    def answer_look(self) -> None:
        """Do nothing: the answer says what the shard holds."""

    def answer_add(self, part: int, chunk: Chunk) -> None:
        """Store rows."""
        self._discard_others()
        self._parts[part].writer(0).add_many(chunk)
        if time.monotonic() - self._saved_at > self._setup.save_secs:
            self.save()

    def answer_draw(self, sizes: Mapping[int, int]) -> dict[int, Any]:
        """Return a sample of each of some parts, and the priorities that it was drawn by."""
        return {part: pack_tensors(self._parts[part].draw_part(size)) for part, size in sizes.items()}

    def answer_judge(self, judged: Mapping[int, Any]) -> None:
        """Set priorities: keys and new errors by part."""
        for part, (keys, errors) in unpack_tensors(dict(judged)).items():
            self._parts[part].update_priorities(keys, errors)

    def answer_release(self, part: int) -> None:
        """End the unfinished episodes of a part."""
        self._parts[part].release(0)

    def answer_clear(self) -> None:
        """Remove all experience."""
        for memory in self._parts.values():
            memory.clear()

    def answer_move(self, folder: str) -> None:
        """Use another folder from now on."""
        self._folder = Path(folder)
        for part, memory in self._parts.items():
            memory.move(self._folder / f"part_{part}")

    def answer_snapshot(self) -> dict[int, Any]:
        """Return the full state of each part, and save it here too."""
        states = self.save()
        return {int(part): pack_tensors(state) for part, state in states.items()}

    def answer_restore(self, part: int, state: dict[str, Any], same_episodes: bool) -> None:
        """Load the state of a part from a checkpoint."""
        self._parts[part].restore(unpack_tensors(state), same_episodes)

    def answer_reload(self) -> None:
        """Load what this shard saved last; the checkpoint was made while it could not be reached."""
        self._reload()

    # -- the shard's own saved state

    def save(self) -> dict[str, Any]:
        """Write the state of all parts below the run folder; return it."""
        self._discard_others()
        states = {str(part): memory.snapshot() for part, memory in self._parts.items()}
        self._saves += 1
        checkpoint.save(self._own, self._saves, {"parts": states})
        for number in checkpoint.steps(self._own)[:-KEPT]:
            shutil.rmtree(self._own / str(number), ignore_errors=True)
        self._saved_at = time.monotonic()
        return states

    def _discard_others(self) -> None:
        """Delete what an earlier run saved here, unless it was loaded."""
        if self._others:
            shutil.rmtree(self._own, ignore_errors=True)
            self._others = False

    def _reload(self) -> None:
        self._others = False
        found = checkpoint.load_newest(self._own) if self._own.is_dir() else None
        if found is None:
            return
        self._saves, state = found
        for part, memory in self._parts.items():
            memory.restore(state["parts"][str(part)], same_episodes=False)

    def close(self) -> None:
        """Do nothing: what was saved remains."""
