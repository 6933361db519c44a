"""Detection of updates whose loss or gradient is not finite: the batch is kept, and the run stops or leaves it out.

Without it, NaN would be detected at the next checkpoint, thousands of updates after its cause. Each check waits for
the device, so on a GPU only every `GPU_EVERY`-th update is checked, unless updates are to be skipped.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from packtrain.errors import DivergedError, Seldom
from packtrain.interfaces import Learner, Memory, UpdateResult
from packtrain.runtime.order_log import Event

log = logging.getLogger("packtrain")

OnDiverged = Literal["stop", "skip"]
GPU_EVERY = 50  # updates
MOST_DUMPS = 3
MOST_BYTES = 256 * 2**20  # of one dump
MOST_SKIPPED = 20  # in a row


class Divergence:
    """Makes the updates of a run's learners, and checks that the metrics they return are finite."""

    def __init__(self, policy: OnDiverged, folder: Path | None, event: Event = contextlib.nullcontext):
        """Create the check.

        Args:
          policy: "stop" ends the run with a DivergedError; "skip" restores the learner as it was before the update.
          folder: where batches are written to; None: nowhere.
          event: encloses sampling a batch and storing priorities.
        """
        self._event = event
        self._policy, self._folder = policy, folder
        self._calls = self._in_row = self._dumped = 0
        self._told = Seldom()
        self.skipped = 0  # updates

    def learn(self, name: str, learner: Learner, memory: Memory, count: int) -> UpdateResult | None:
        """Make `count` updates of a learner; None if its memory holds too little.

        Raises:
          DivergedError: a loss or a gradient is not finite, or updates were skipped again and again.
        """
        with self._event(f"draw {name} {count}"):
            work = learner.draw(memory, count)
        return None if work is None else self.finish(name, learner, memory, work)

    def finish(self, name: str, learner: Learner, memory: Memory, work: Any) -> UpdateResult:
        """Make the updates whose inputs were drawn; raises the errors of `learn`."""
        before = self.before(learner)
        (result,) = learner.apply([work])
        checked = self.after(name, learner, work, result, before)
        with self._event("update"):
            if checked.priorities is not None:
                memory.update_priorities(checked.keys, checked.priorities)
        return checked

    def before(self, learner: Learner) -> dict[str, Any] | None:
        """Return a copy of a learner's state, to which `after` can restore it; None if updates are not skipped."""
        return copy.deepcopy(learner.state_dict()) if self._policy == "skip" else None

    def after(
        self, name: str, learner: Learner, work: Any, result: UpdateResult, before: dict[str, Any] | None
    ) -> UpdateResult:
        """Return the result of an update; that of a skipped one has no metrics and no priorities.

        Raises:
          DivergedError: as in `learn`.
        """
        self._calls += 1
        bad = self._bad(result)
        if bad:
            return self._diverged(name, learner, work, result, bad, before)
        self._in_row = 0
        return result

    def _bad(self, result: UpdateResult) -> dict[str, float]:
        """Return the losses and gradient norms that are not finite."""
        watched = {
            name: value for name, value in result.metrics.items() if name.endswith("loss") or name.endswith("grad_norm")
        }
        on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in watched.values())
        if on_gpu and self._policy == "stop" and self._calls % GPU_EVERY:
            return {}
        values = {name: float(value) for name, value in watched.items()}
        return {name: value for name, value in values.items() if not math.isfinite(value)}

    def _diverged(
        self,
        name: str,
        learner: Learner,
        work: Any,
        result: UpdateResult,
        bad: dict[str, float],
        before: dict[str, Any] | None,
    ) -> UpdateResult:
        self._in_row += 1
        what = ", ".join(f"{key} = {value}" for key, value in bad.items())
        place = self._dump(name, learner, work, bad)
        shown = f"; its batch is in {place}" if place else ""
        if before is None or self._in_row > MOST_SKIPPED:
            again = f" {self._in_row} times in a row" if before is not None else ""
            hint = "" if before is not None else "; Run.on_diverged = 'skip' would leave it out and go on"
            raise DivergedError(
                f"update {learner.updates} of learner {name!r} is not finite{again} ({what}){shown}; the last "
                f"checkpoint is kept{hint}"
            )
        updates, steps = learner.updates, learner.steps
        learner.load_state_dict(before)
        learner.updates, learner.steps = updates, steps  # counters go on, or the same update would be due again
        self.skipped += result.updates
        self._told.warn(f"update {updates} of learner {name!r} is not finite ({what}) and was left out{shown}")
        return result._replace(metrics={}, lag=None, keys=None, priorities=None)

    def _dump(self, name: str, learner: Learner, work: Any, bad: dict[str, float]) -> Path | None:
        """Write the tensors of a batch, at most `MOST_BYTES`, and what was not finite; the first few times only."""
        if self._folder is None or self._dumped >= MOST_DUMPS:
            return None
        self._dumped += 1
        path = self._folder / f"{name}-{learner.updates}.safetensors"
        tensors, left_out, size = {}, [], 0
        for key, value in _tensors(work):
            size += value.nbytes
            if size > MOST_BYTES:
                left_out.append(key)
                size -= value.nbytes
            else:
                tensors[key] = value.detach().to("cpu", copy=True).contiguous()
        about = {"learner": name, "update": learner.updates, "left_out": left_out}
        about["not_finite"] = {key: str(value) for key, value in bad.items()}
        try:
            self._folder.mkdir(exist_ok=True)
            save_file(tensors, path)
            path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
        except OSError as error:
            log.warning("the batch of the update could not be written: %s", error)
            return None
        return path


class Guarded(NamedTuple):
    """A learner whose updates are checked, and its memory."""

    guard: Divergence
    learner: Learner
    memory: Memory


def learn_together(name: str, learners: Sequence[Guarded], count: int) -> list[UpdateResult | DivergedError] | None:
    """Make `count` updates of the joined learners of several seeds; None if a memory has too little.

    A seed whose update is not finite concerns no other: if updates are skipped, its own learner alone is restored.

    Args:
      name: of the learner.
      learners: one per seed.
      count: at most `max_updates`.

    Returns:
      For each seed its result, or why it has diverged.
    """
    works = [learner.draw(memory, count) for _, learner, memory in learners]
    if any(work is None for work in works):
        return None
    # After `draw`: what is random has been sampled, so the update after a skipped one has another batch.
    states = [guard.before(learner) for guard, learner, _ in learners]
    results = learners[0].learner.apply(works)
    found: list[UpdateResult | DivergedError] = []
    for (guard, learner, memory), work, result, before in zip(learners, works, results, states, strict=True):
        try:
            checked = guard.after(name, learner, work, result, before)
        except DivergedError as error:
            found.append(error)
            continue
        if checked.priorities is not None:
            memory.update_priorities(checked.keys, checked.priorities)
        found.append(checked)
    return found


def _tensors(value: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested dicts, tuples, lists and dataclasses, with readable names."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        yield name, torch.from_numpy(np.ascontiguousarray(value))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _tensors(inner, f"{name}/{key}")
    elif isinstance(value, tuple | list):
        keys = getattr(value, "_fields", range(len(value)))
        for key, inner in zip(keys, value, strict=True):
            yield from _tensors(inner, f"{name}/{key}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name), f"{name}/{field.name}")
