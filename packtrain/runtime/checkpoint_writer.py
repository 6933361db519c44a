"""Writing of a run's checkpoints: when they are due, at once or in the background, and which old ones are deleted.

A disk that refuses is a warning, since the checkpoint before stands, unless this one is required. A folder that is no
longer where it was ends the run: see `RunFolder.check_place`.
"""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from packtrain import trees
from packtrain.errors import CheckpointError, DivergedError, SaveError, Seldom, warn
from packtrain.files import sync
from packtrain.memory.segments import drop_segments
from packtrain.runtime import checkpoint
from packtrain.runtime.folder import RunFolder


class Saving:
    """Writes the checkpoints of one run."""

    def __init__(self, folder: RunFolder, secs: float, keep_every: int | None, in_use: Callable[[], dict[str, Any]]):
        """Schedule the first checkpoint after this many seconds.

        Args:
          folder: of the run.
          secs: between two checkpoints.
          keep_every: steps; one checkpoint in each such span is never deleted.
          in_use: memories, as in a checkpoint, whose segments are in use although no checkpoint refers to them.
        """
        self._folder, self._secs, self._keep_every, self._in_use = folder, secs, keep_every, in_use
        self._last = time.monotonic()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None  # error of a write in the background, other than a disk error
        self._whole: set[int] = set()  # steps whose checkpoints were written or verified by this process
        self._refused, self._cluttered = Seldom(), Seldom()
        self.written: collections.deque[int] = collections.deque()  # steps; removed by the code that reports them

    @property
    def due(self) -> bool:
        """Return whether it is time for a checkpoint; never while one is being written, which would be waited for."""
        writes = self._thread is not None and self._thread.is_alive()
        return not writes and time.monotonic() - self._last >= self._secs

    def write(self, state: dict[str, Any], background: bool = False, required: bool = False) -> None:
        """Write a checkpoint, and delete old ones.

        Raises:
          DivergedError: some weights are not finite.
          FolderLostError: the run folder is no longer where it was.
          SaveError: it is required, and the disk refused.
        """
        step = state["run"]["step"]
        for name, weights in state["weights"].items():
            if not all(bool(torch.isfinite(leaf).all()) for leaf in trees.flatten(weights) if leaf.is_floating_point()):
                raise DivergedError(f"the weights of {name!r} are not finite at step {step}: not saved")
        self.join()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        self._last = time.monotonic()

        def run() -> None:
            with self.guarded(step, required):
                self._sync_metrics()
                checkpoint.save(self._folder.checkpoints, step, state)
                self._whole.add(step)
                self.written.append(step)
                self._clear_old(step, state)

        def run_beside() -> None:
            try:
                run()
            except BaseException as error:  # raised at the next write
                self._failed = error

        if background:
            self._thread = threading.Thread(target=run_beside, name="checkpoint")
            self._thread.start()
        else:
            run()

    def keep_if_best(
        self, state: dict[str, Any], score: float, rewards: dict[str, float], kind: str = "greedy"
    ) -> None:
        """Keep the evaluated state as the best checkpoint, if its score is not below the best so far.

        Args:
          state: of the run, before the evaluation.
          score: its mean return.
          rewards: the means of other reward channels.
          kind: of the evaluation, greedy or sampled. Scores of two kinds do not compare: if `Evaluation.best` has been
            changed, the next evaluation is the best.
        """
        if score <= self._best_score(kind):
            return
        self.join()
        step = state["run"]["step"]
        with self.guarded(step):
            self._sync_metrics()
            checkpoint.save(self._folder.checkpoints, step, state)
            self._whole.add(step)
            self.written.append(step)
            checkpoint.mark_best(self._folder.checkpoints, step, score, rewards, kind)

    def join(self) -> None:
        """Wait for background writes."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @contextlib.contextmanager
    def guarded(self, step: int, required: bool = False) -> Iterator[None]:
        """Turn errors of the disk into warnings, or into a SaveError if the checkpoint is required.

        FolderLostError if the run folder is no longer where it was.
        """
        self._folder.check_place()
        try:
            yield
        except OSError as error:
            self._last = time.monotonic()
            if required:
                raise SaveError(f"the checkpoint at step {step:,} could not be written: {error}") from error
            self._refused.warn(f"checkpoint at step {step} not written: {error}; the one before it stands")

    def _sync_metrics(self) -> None:
        """Sync the metric rows to disk before the checkpoint that counts them; if it fails, a resume repairs them."""
        with contextlib.suppress(OSError), open(self._folder.metrics, "rb") as file:
            sync(file.fileno(), self._folder.metrics)

    def _clear_old(self, step: int, state: dict[str, Any]) -> None:
        """Delete old checkpoints and segments; if the disk refuses, warn, since the new checkpoint is complete."""
        try:
            checkpoint.prune(self._folder.checkpoints, self._keep_every, self._whole, step)
            self._drop_segments(state.get("memories", {}))
        except OSError as error:
            self._cluttered.warn(f"old checkpoints in {self._folder.checkpoints} cannot be cleared away: {error}")

    def _best_score(self, kind: str) -> float:
        try:
            best = checkpoint.best(self._folder.checkpoints)
        except CheckpointError as error:
            warn(f"{error}; the next evaluation counts as the best")
            best = None
        if best is None or not (self._folder.checkpoints / str(best["step"])).is_dir():
            return -math.inf
        if best.get("kind", "greedy") != kind:
            warn(
                f"the best checkpoint is that of a {best.get('kind', 'greedy')} evaluation; this one counts as the best"
            )
            return -math.inf
        return float(best["score"])

    def _drop_segments(self, newest: dict[str, Any]) -> None:
        """Delete replay segments that no checkpoint refers to."""
        folder = self._folder.checkpoints
        try:
            others = [checkpoint.peek(folder, step, "memories") for step in checkpoint.steps(folder)]
        except CheckpointError:
            return  # unreadable checkpoint: its references are unknown
        others.append(self._in_use())
        for name, snapshot in newest.items():
            kept = [other.get(name) for other in others]
            folder = self._folder.path / "replay" / name
            if "parts" not in snapshot:
                drop_segments(folder, snapshot, kept)
            for part, content in snapshot.get("parts", {}).items():  # of a replay in shards
                drop_segments(
                    folder / f"part_{part}", content, [(each or {}).get("parts", {}).get(part) for each in kept]
                )
