"""How fast IMPALA trains on Catch with `impala/catch`'s sizes, beside what its parts allow."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from packtrain import knobs
from packtrain.bench.measure import measure, result
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import command, local
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.training import Parts, Training


class _Silent:
    def show(self, row: dict[str, Any]) -> None:
        """Show nothing."""


def run(secs: float) -> dict[str, Any]:
    """Measure the parts alone, then the local runtime for about as long as one of them, in one process."""
    path, _ = knobs.find_config("impala/catch")
    configuration, experiment, spec = command.prepare([path], [], {"eval_every": 0}, 0, True)
    torch.set_num_threads(1)
    parts = Parts(experiment, spec, torch.device("cpu"))
    (memory,) = parts.memories.values()
    (learner,) = parts.learners.values()
    columns = experiment.streams.num_actors
    samples = []

    def act() -> int:
        parts.actor.turn()
        if memory.ready():
            samples[:] = [memory.sample(learner.updates)]
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


def _train(configuration: Any, experiment: Any, spec: Any, secs: float) -> tuple[float, dict[str, float]]:
    """Steps per second of the local runtime over `secs`, after it has warmed up."""
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        training = Training(experiment, spec, folder, configuration, torch.device("cpu"), _Silent(), None)  # type: ignore[arg-type]
        marks: list[tuple[float, int]] = []
        update = training.update

        def timed(learner: str) -> bool:
            done = update(learner)
            now = time.monotonic()
            marks.append((now, training.step))
            if now - marks[0][0] > secs + 1:
                training.stop = KeyboardInterrupt()
            return done

        training.update = timed  # type: ignore[method-assign]
        local.run(training)
        training.close()
        warm = next(mark for mark in marks if mark[0] - marks[0][0] > 1)
        rate = (marks[-1][1] - warm[1]) / (marks[-1][0] - warm[0])
        rows = [row for row in read_metrics(Path(name)) if row["kind"] == "train"]
        mean = {key: sum(row[key] for row in rows[1:]) / len(rows[1:]) for key in ("actor_busy", "learner_busy")}
        return rate, mean
