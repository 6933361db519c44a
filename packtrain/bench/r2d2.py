"""Speed of Q-learners that act and learn concurrently, compared with acting and learning alone.

On a CPU: R2D2 and DQN with the sizes of marltas_core's scripts on Pong. For each, the time of a step and of an update
are first measured alone; then both run concurrently in the ratio in which they take equal time, so that neither waits
for long. A step costs its own acting and its share of an update, and the bound is that of `measure.py`.

On a GPU: R2D2 at the paper's sizes, batches of 64 sequences of 80 steps after 40 of burn-in, both at full speed.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from packtrain.bench.measure import Part, measure, result
from packtrain.bench.training import open_training, prepare, train
from packtrain.interfaces import learn as make_updates
from packtrain.runtime import preparation
from packtrain.runtime.local_acting import local_side
from packtrain.runtime.training import Training

ROUNDS = 3
CPU_CASES = (
    ("R2D2, batches of 32 x 16", "r2d2/marltas_async", {"num_actors": 32, "warm_up": 4000}),
    ("DQN, batches of 32", "dqn/marltas_async", {"num_actors": 32, "warm_up": 1000, "batch_size": 32}),
)
GPU_VALUES = {"num_actors": 256, "warm_up": 50_000, "updates_per_step": None, "slack": None}
WANTED = {"updates": 35.0, "steps": 15_000.0}  # per second, on a GPU with 16 cores


def run(secs: float, device: str = "cpu") -> dict[str, Any]:
    """Run the benchmark of a device, with about `secs` seconds per measurement."""
    if preparation.find_device(device).type == "cuda":
        return _on_gpu(secs, device)
    cases = [{"case": label, **_cpu_case(config, values, secs)} for label, config, values in CPU_CASES]
    lines = [f"{'':<28}{'act/s':>10}{'learn/s':>10}{'bound/s':>10}{'ratio':>8}   busy"]
    for case in cases:
        alone = case["alone"]
        lines += [
            f"{case['case']:<28}{alone['steps']:>10,.0f}{alone['updates']:>10.1f}{'':>18}   alone",
            f"{'  at once':<28}{case['rate']:>10,.0f}{case['updates_per_second']:>10.1f}{case['bound']:>10,.0f}"
            f"{case['ratio']:>8.2f}   actor {case['actor_busy']:.0%}, learner {case['learner_busy']:.0%}",
        ]
    lines += ["", "marltas_core on two such cores: 2.7 updates/s (R2D2), 15.1 (DQN), all of the time learning"]
    return {**cases[0], "cases": cases, "lines": lines}


def _cpu_case(config: str, values: dict[str, Any], secs: float) -> dict[str, Any]:
    proportion = _proportion(config, values, secs / 2)
    subject = prepare(config, {**values, "updates_per_step": proportion, "slack": 4})
    rounds = []
    with tempfile.TemporaryDirectory() as name, contextlib.closing(open_training(subject, Path(name))) as training:
        train(training, 1.0)
        for _ in range(ROUNDS):
            parts = _parts(training, secs / ROUNDS, 1 / proportion)
            rate, both = train(training, secs, warm_up_secs=1.0)
            alone = {"steps": parts[0].steps_per_second, "updates": parts[1].steps_per_second * proportion}
            rounds.append(result("r2d2", rate, parts, alone=alone) | both)
    median = sorted(rounds, key=lambda one: one["ratio"])[len(rounds) // 2]
    return median | {"ratios": [round(one["ratio"], 3) for one in rounds], "updates_per_step": proportion}


def _proportion(config: str, values: dict[str, Any], secs: float) -> float:
    """Return the number of updates that take as long as a step, each measured alone."""
    subject = prepare(config, values)
    with tempfile.TemporaryDirectory() as name, contextlib.closing(open_training(subject, Path(name))) as training:
        train(training, 0.5)
        act, learn = _parts(training, secs, 1.0)
    return learn.steps_per_second / act.steps_per_second


def _parts(training: Training, secs: float, steps: float) -> list[Part]:
    """Return acting and learning as separate calls, without starting a run; `steps` is the steps per update."""
    side, learners = local_side(training.acting), training.learning
    (learner,), (memory,) = learners.learners.values(), learners.memories.values()

    def act() -> int:
        before = side.actor.steps
        training.act()
        return side.actor.steps - before

    def learn() -> int:
        make_updates([learner], [memory], 1)
        learners.publish(learners.updates)
        if side.policy.device.type == "cuda":
            torch.cuda.synchronize()
        return 1000

    while not memory.ready():
        act()
    acting, made = measure("act", act, secs), learner.updates
    learning = measure("learn", learn, secs)
    learner.updates = made  # these updates were not due: a run would wait until they are
    share = 1000 / steps  # updates due per call of 1000 steps
    return [
        acting,
        Part("learn", learning.steps_per_second / share, learning.core_us * share, learning.lock_us * share),
    ]


def _on_gpu(secs: float, device: str) -> dict[str, Any]:
    subject = prepare("r2d2/atari", GPU_VALUES, device)
    rounds = []
    with tempfile.TemporaryDirectory() as name, contextlib.closing(open_training(subject, Path(name))) as training:
        train(training, 5.0)  # warm up, capture
        for _ in range(ROUNDS):
            act, learn = _parts(training, secs / 2, 1.0)
            rate, both = train(training, secs, warm_up_secs=1.0)
            rounds.append({"rate": rate, **both, "act": act.steps_per_second, "learn": learn.steps_per_second})
        parts = _parts(training, secs / 2, 1.0)
    found = sorted(rounds, key=lambda one: one["updates_per_second"])[ROUNDS // 2]
    updates, alone = found["updates_per_second"], found["learn"]
    lines = [
        "R2D2, batches of 64 x 80 after 40 of burn-in, Pong",
        "",
        f"{'':<12}{'alone/s':>12}{'at once/s':>12}{'ratio':>8}{'wanted':>10}   busy",
        f"{'acting':<12}{found['act']:>12,.0f}{found['rate']:>12,.0f}{found['rate'] / found['act']:>8.2f}"
        f"{WANTED['steps']:>10,.0f}   {found['actor_busy']:.0%}",
        f"{'updates':<12}{alone:>12.1f}{updates:>12.1f}{updates / alone:>8.2f}{WANTED['updates']:>10.0f}"
        f"   {found['learner_busy']:.0%}",
    ]
    return {
        **result("r2d2", found["rate"], parts[:1], on_gpu=True),
        **found,
        "rounds": rounds,
        "lines": lines,
    }
