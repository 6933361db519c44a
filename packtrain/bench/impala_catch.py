"""How fast IMPALA trains on Catch with `impala/catch`'s sizes, beside what its parts allow.

Parts and whole take turns in short rounds, because a shared machine's speed changes within seconds; the result is the
round with the median ratio.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from packtrain import knobs
from packtrain.bench.measure import measure, result
from packtrain.runtime import command, local
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.training import Parts, Training
from packtrain.types import Sample

ROUNDS = 5


class _Silent:
    def show(self, row: dict[str, Any]) -> None:
        """Show nothing."""


def run(secs: float) -> dict[str, Any]:
    """Measure the parts alone and the local runtime, in turn, for about `secs` seconds each."""
    path, _ = knobs.find_config("impala/catch")
    values = {"eval_every": 0, "total_steps": 10**9, "log_every": 10**9}
    configuration, experiment, spec = command.prepare([path], [], values, 0, True)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    act, learn, step_environments = _parts(Parts(experiment, spec, device), experiment.streams.num_actors)
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        training = Training(experiment, spec, RunFolder(Path(name)), configuration, device, _Silent(), None)  # type: ignore[arg-type]
        _train(training, 1.0)  # warm up
        for _ in range(ROUNDS):
            parts = [measure(n, call, secs / ROUNDS) for n, call in (("act", act), ("learn", learn))]
            rate, busy = _train(training, secs / ROUNDS)
            rounds.append(result("impala_catch", rate, parts, **busy))
        training.close()
    median = sorted(rounds, key=lambda one: one["ratio"])[len(rounds) // 2]
    median["ratios"] = [round(one["ratio"], 3) for one in rounds]
    for key in ("actor_busy", "learner_busy"):
        median[key] = statistics.fmean(one[key] for one in rounds)
    median["within_act"] = [measure("environments", step_environments, secs / ROUNDS).__dict__]
    return median


def _parts(parts: Parts, columns: int) -> tuple[Callable[[], int], Callable[[], int], Callable[[], int]]:
    """What an actor does and what a learner does, each as a call that returns how many steps it did."""
    (memory,) = parts.memories.values()
    (learner,) = parts.learners.values()
    samples: list[Sample] = []
    action = torch.zeros(columns, dtype=torch.int64)

    def act() -> int:
        parts.actor.turn()
        parts.actor.drain_finished()
        if memory.ready():
            samples[:] = [sample for sample in [memory.sample(learner.updates)] if sample is not None]
        return columns

    def learn() -> int:
        learner.update(samples[0])
        parts.publish(learner.updates)
        return samples[0].steps

    def step_environments() -> int:
        parts.streams[0].send(action)
        parts.streams[0].recv()
        return columns

    while not samples:
        act()
    return act, learn, step_environments


def _train(training: Training, secs: float) -> tuple[float, dict[str, float]]:
    """The local runtime for a while: its rate, and how busy its two loops were."""
    training.stop = None
    training.actor_busy.share(), training.learner_busy.share()
    marks: list[tuple[float, int]] = []

    def stop_later() -> None:
        for pause in (0.2, secs):  # the first moments fill the queue
            time.sleep(pause)
            marks.append((time.monotonic(), training.step))
        training.stop = KeyboardInterrupt()

    threading.Thread(target=stop_later, daemon=True).start()
    local.run(training)
    (begin, first), (end, last) = marks
    busy = {"actor_busy": training.actor_busy.share(), "learner_busy": training.learner_busy.share()}
    return (last - first) / (end - begin), busy
