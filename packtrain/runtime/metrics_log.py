"""The metric rows of a run: averages between two rows, and the sinks that receive them."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from packtrain.envs.stream import Finished
from packtrain.errors import DivergedError
from packtrain.interfaces import UpdateResult
from packtrain.metrics.console import Console
from packtrain.metrics.recorder import Recorder, means, own_copies
from packtrain.metrics.sinks import About, Sink
from packtrain.metrics.writers import JsonlWriter
from packtrain.runtime.pause import Busy

LOSSES = ("total_loss", "grad_norm", "critic_loss", "model/total_loss")  # metrics that must stay finite


class MetricsLog:
    """Averages updates and episodes, and writes a row whenever one is due."""

    def __init__(self, every: int, frames_per_step: int, console: Console):
        """Create the averages; nothing is written before `open`.

        Args:
          every: steps between rows.
          frames_per_step: emulator frames that one step lasts.
          console: shows rows to a person.
        """
        self.recorder = Recorder(every)
        self.console = console
        # passed from the actor's thread to the learner's
        self.episodes: collections.deque[Finished] = collections.deque()
        self.actor_busy, self.learner_busy = Busy(since=time.perf_counter()), Busy(since=time.perf_counter())
        self._frames_per_step = frames_per_step
        self._epoch_updates: dict[str, list[dict[str, Any]]] = {}  # metrics of the epoch's updates, by learner
        self._wall_before, self._begin = 0.0, time.monotonic()
        self.row_step, self._row_time = 0, time.monotonic()
        self._writers: list[JsonlWriter] = []
        self._sinks: list[Sink] = []
        self._process = psutil.Process()

    def open(self, path: Path, keep: int, sinks: Sequence[Sink], about: About) -> None:
        """Open the sinks.

        Args:
          path: metrics.jsonl.
          keep: bytes of it that belong to the run so far.
          sinks: where rows go too.
          about: the run, for them.
        """
        self._writers = [JsonlWriter(path, keep, patient=True)]
        for sink in sinks:
            sink.begin(about)
            self._sinks.append(sink)

    @property
    def bytes(self) -> int:
        """Return the length of metrics.jsonl in bytes."""
        return int(self._writers[0].bytes)

    def add_update(self, result: UpdateResult) -> None:
        """Add an update's metrics to the next row's averages."""
        self.recorder.update(result.metrics, result.lag)
        self._note_update()

    def add_epoch_update(self, learner: str, result: UpdateResult) -> None:
        """Store an update's metrics until its epoch is over."""
        self._epoch_updates.setdefault(learner, []).append(result.metrics)
        self._note_update()

    def _note_update(self) -> None:
        for sink in self._sinks:
            sink.update()

    def epoch_updates(self) -> dict[str, list[dict[str, Any]]]:
        """Return copies of the metrics of the epoch's updates so far, by learner."""
        return {name: own_copies(updates) for name, updates in self._epoch_updates.items()}

    def restore_epoch(self, updates: dict[str, list[dict[str, Any]]], episodes: list[dict[str, Any]]) -> None:
        """Continue an epoch with the metrics of its updates and finished episodes so far."""
        self._epoch_updates = {name: list(own) for name, own in updates.items()}
        self.episodes.extend(Finished(**finished) for finished in episodes)

    def move(self, path: Path) -> None:
        """Write metrics.jsonl to another folder, because the run's folder is lost."""
        self._writers[0].move(path)

    def drain_epoch_updates(self) -> dict[str, dict[str, float]]:
        """Return the means of the epoch's updates by learner, and begin a new epoch."""
        averages = {name: means(updates) for name, updates in self._epoch_updates.items()}
        self._epoch_updates = {}
        return averages

    def record_episodes(self) -> None:
        """Add finished episodes to the next row."""
        while self.episodes:
            finished = self.episodes.popleft()
            self.recorder.episodes(finished)
            for sink in self._sinks:
                sink.episodes(finished)

    def checkpoint(self, step: int, folder: Path) -> None:
        """Notify the sinks of a checkpoint that has been written."""
        for sink in self._sinks:
            sink.checkpoint(step, folder)

    def train_row(self, step: int, parts: dict[str, Any]) -> None:
        """Write a row of averages, rates and `parts`.

        Raises:
          DivergedError: a loss is not finite.
        """
        row = {**parts.pop("first", {}), **self.recorder.row(step), **parts}
        if self._frames_per_step > 1:
            row["frames"] = step * self._frames_per_step
        now = time.monotonic()
        row["steps_per_second"] = (step - self.row_step) / max(1e-9, now - self._row_time)
        if self._frames_per_step > 1:
            row["frames_per_second"] = row["steps_per_second"] * self._frames_per_step
        row["actor_busy"], row["learner_busy"] = self.actor_busy.share(), self.learner_busy.share()
        row["rss_mb"] = self._process.memory_info().rss / 2**20
        if torch.cuda.is_initialized():
            row["gpu_mb"] = torch.cuda.memory_reserved() / 2**20
        self.row_step, self._row_time = step, now
        self.write("train", row, step)
        for name in LOSSES:
            if name in row and not math.isfinite(row[name]):
                raise DivergedError(
                    f"{name} is {row[name]} at step {step}: learning has diverged; lower the learning rate"
                )

    def write(self, kind: str, values: dict[str, Any], step: int) -> None:
        """Write a row and show it."""
        row = {"step": step, "wall_s": round(self.wall_s(), 3), "kind": kind, **values}
        self._writers[0].write(row)
        for sink in self._sinks:
            sink.write(row)
        self.console.show(row)

    def wall_s(self) -> float:
        """Return the seconds of training, including those before a resume."""
        return self._wall_before + time.monotonic() - self._begin

    def restore(self, state: dict[str, Any], step: int, wall_s: float) -> None:
        """Continue from a saved recorder."""
        self.recorder.load_state_dict(state, step)
        self.row_step, self._wall_before = step, wall_s

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers:
            writer.close()
        for sink in self._sinks:
            sink.close()
