"""A training run split for measurement: its actor and its learner as calls, and the local runtime for some seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from packtrain import knobs
from packtrain.config import Configuration
from packtrain.envs.stream import Stream
from packtrain.runtime import local, preparation
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.local_acting import local_side
from packtrain.runtime.training import RunSetup, Training
from packtrain.types import Sample, Spec

WARM_UP_SECS = 0.2  # fills the queue


class _Silent:
    """A console without output."""

    def show(self, row: dict[str, Any]) -> None:
        """Do nothing."""

    def pulse(self, step: int, wall_s: float, doing: Callable[[], str]) -> None:
        """Do nothing."""


class Subject(NamedTuple):
    """The configuration under measurement."""

    configuration: Configuration
    experiment: Experiment
    spec: Spec
    device: torch.device


class Calls(NamedTuple):
    """Parts of a run as calls that return their number of steps."""

    act: Callable[[], int]
    learn: Callable[[], int]
    step_environments: Callable[[], int]
    settle: Callable[[], None]  # called afterwards, so that the actor can continue


def prepare(config: str, values: dict[str, Any], device: str = "cpu") -> Subject:
    """Return a shipped configuration without evaluation, metric rows and end."""
    path, _ = knobs.find_config(config)
    values = {"eval_every": 0, "total_steps": 10**9, "log_every": 10**9, "checkpoint_secs": 1e9, **values}
    torch.set_num_threads(1)
    return Subject(*preparation.prepare([path], [], values, 0, True), preparation.find_device(device))


def take_apart(training: Training) -> Calls:
    """Return the actor (environments, policy, memory) and the learner of a run separately, without starting the run."""
    acting, learning = local_side(training.acting), training.learning
    (memory,), (learner,) = learning.memories.values(), learning.learners.values()
    samples: list[Sample] = []
    turn = 0
    rng = np.random.default_rng(0)
    (count,) = {int(stream.columns.action_space.n) for stream in acting.streams}  # type: ignore[attr-defined]

    def act() -> int:
        before = acting.actor.steps
        acting.actor.turn()
        acting.actor.drain_finished()
        if memory.ready():
            samples[:] = [sample for sample in [memory.sample(version=learner.updates)] if sample is not None]
        return acting.actor.steps - before

    def learn() -> int:
        learner.apply(samples)
        learning.publish(learner.updates)
        if acting.policy.device.type == "cuda":
            torch.cuda.synchronize()
        return samples[0].steps

    def step_environments() -> int:
        """Wait for a group and send random actions: like `act`, without a policy and a memory."""
        nonlocal turn
        acting.actor.settle()
        stream = acting.streams[turn % len(acting.streams)]
        if turn >= len(acting.streams):
            stream.recv()
        stream.send(rng.integers(0, count, stream.size))
        turn += 1
        return stream.size

    def settle() -> None:
        nonlocal turn
        for stream in acting.streams[:turn]:
            stream.recv()
        turn = 0
        acting.actor.look()

    while not samples:
        act()
    return Calls(act, learn, step_environments, settle)


def open_training(subject: Subject, folder: Path, streams: list[Stream] | None = None) -> Training:
    """Open the full run in a separate folder, on already open environments if there are any."""
    parts = (subject.experiment, subject.spec, RunFolder(folder), subject.configuration, subject.device)
    return Training(RunSetup(*parts, _Silent()), None, streams)


def train(training: Training, secs: float, warm_up_secs: float = WARM_UP_SECS) -> tuple[float, dict[str, float]]:
    """Run the local runtime; return its rate, the busy fractions of its two loops, and updates per second."""
    training.progress.stop = None
    marks: list[tuple[float, int, int]] = []
    busy: dict[str, float] = {}

    def stop_later() -> None:
        for pause in (warm_up_secs, secs):
            time.sleep(pause)
            marks.append((time.monotonic(), training.progress.step, training.learning.updates))
            busy["actor_busy"], busy["learner_busy"] = (
                training.log.actor_busy.share(),
                training.log.learner_busy.share(),
            )
        training.progress.stop = KeyboardInterrupt()

    threading.Thread(target=stop_later, daemon=True).start()
    local.run(training)
    (begin, first, before), (end, last, after) = marks
    return (last - first) / (end - begin), {**busy, "updates_per_second": (after - before) / (end - begin)}


def breakdown(training: Training, secs: float) -> dict[str, float]:
    """Return the time that the two loops spend in each of their parts when both run, in microseconds per step."""
    acting, learning = local_side(training.acting), training.learning
    (memory,), (learner,) = learning.memories.values(), learning.learners.values()
    spent: dict[str, float] = {}
    watched: list[tuple[Any, str]] = []

    def watch(target: Any, method: str, label: str) -> None:
        call = getattr(target, method)
        spent[label] = 0.0

        def timed(*arguments: Any, **keywords: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                spent[label] += time.perf_counter() - begin

        setattr(target, method, timed)
        watched.append((target, method))

    for group, (stream, actor_state) in enumerate(zip(acting.streams, acting.actor.actor_states, strict=True)):
        watch(stream, "recv", "actor: wait for environments")
        watch(actor_state, "act", "actor: decide")
        watch(memory.writer(group), "add", "actor: store")
        watch(stream, "send", "actor: send actions")
    watch(learning.weights, "pull", "actor: new weights")
    watch(memory, "wait_for_room", "actor: wait for room")
    watch(memory, "wait_for_batch", "learner: wait for unrolls")
    watch(memory, "sample", "learner: gather a batch")
    watch(learner, "update", "learner: update")
    watch(learning, "publish", "learner: publish weights")
    begin = training.progress.step
    train(training, secs)
    for target, method in watched:
        delattr(target, method)
    steps = max(1, training.progress.step - begin)
    return {label: 1e6 * seconds / steps for label, seconds in spent.items()}
