"""How fast IMPALA trains on Catch with `impala/catch`'s sizes, beside what its parts allow."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from packtrain import knobs
from packtrain.bench.measure import measure, result
from packtrain.config import Configuration
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import command, local
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.training import Parts, Training
from packtrain.types import Sample, Spec


class _Silent:
    def show(self, row: dict[str, Any]) -> None:
        """Show nothing."""


def run(secs: float) -> dict[str, Any]:
    """Measure the parts alone, then the local runtime for about as long as one of them, in one process."""
    path, _ = knobs.find_config("impala/catch")
    configuration, experiment, spec = command.prepare([path], [], {"eval_every": 0, "total_steps": 10**9}, 0, True)
    torch.set_num_threads(1)
    parts = Parts(experiment, spec, torch.device("cpu"))
    (memory,) = parts.memories.values()
    (learner,) = parts.learners.values()
    columns = experiment.streams.num_actors
    samples: list[Sample] = []

    def act() -> int:
        parts.actor.turn()
        if memory.ready():
            samples[:] = [s for s in [memory.sample(learner.updates)] if s is not None]
        return columns

    def learn() -> int:
        learner.update(samples[0])
        parts.publish(learner.updates)
        return samples[0].steps

    def step_environments() -> int:
        stream = parts.streams[0]
        stream.send(action)
        stream.recv()
        return columns

    acting = measure("act (policy, env, memory)", act, secs / 3)
    learning = measure("learn", learn, secs / 3)
    action = torch.zeros(columns, dtype=torch.int64)
    environments = measure("  env alone, within act", step_environments, secs / 6)
    rate, busy = _train(configuration, experiment, spec, secs)
    content = result("impala_catch", rate, [acting, learning], **busy)
    content["within"] = [environments.__dict__]
    return content


def _train(
    configuration: Configuration, experiment: Experiment, spec: Spec, secs: float
) -> tuple[float, dict[str, float]]:
    """Steps per second of the local runtime over `secs`, after a second of warming up, and how busy its loops were."""
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        training = Training(experiment, spec, folder, configuration, torch.device("cpu"), _Silent(), None)  # type: ignore[arg-type]
        marks: list[tuple[float, int]] = []

        def stop_later() -> None:
            for pause in (1.0, secs):
                time.sleep(pause)
                marks.append((time.monotonic(), training.step))
            training.stop = KeyboardInterrupt()

        threading.Thread(target=stop_later, daemon=True).start()
        local.run(training)
        training.close()
        (begin, first), (end, last) = marks
        rows = [row for row in read_metrics(Path(name)) if row["kind"] == "train"][1:]
        busy = {key: sum(row[key] for row in rows) / len(rows) for key in ("actor_busy", "learner_busy")}
        return (last - first) / (end - begin), busy
