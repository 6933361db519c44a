"""IMPALA's training speed on Pong, with the bound from its parts and a conventional system for comparison.

On a CPU: the shallow network, T = 80, B = 8, and in the same call the process-per-actor baseline of
`process_per_actor.py`. On a GPU: T = 80, B = 32 and B = 4, the shallow and the deep network. All measurements of a
round follow each other within seconds, since a shared machine's speed changes; results are medians over rounds.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packtrain.bench.measure import measure, result
from packtrain.bench.training import Subject, breakdown, open_training, prepare, take_apart, train
from packtrain.envs.stream import Stream
from packtrain.errors import StalledError
from packtrain.runtime import preparation
from packtrain.runtime.local_acting import open_streams

ROUNDS = 3
CPU_ACTORS = 64  # games; two groups of 32
GPU_ACTORS = 256  # four groups of 64
GPU_ROUNDS = 3
UNROLL = 80
GPU_CASES = (
    ("AtariNet, B = 32", "impala/atari", 32),
    ("AtariNet, B = 4", "impala/atari", 4),
    ("ResNet, B = 32", "impala/pong_deep", 32),
)


def run(secs: float, device: str = "cpu") -> dict[str, Any]:
    """Measure for about `secs` seconds each: parts, whole and baseline on a CPU; parts and whole in cases on a GPU."""
    return _on_gpu(secs, device) if preparation.find_device(device).type == "cuda" else _on_cpu(secs)


def _on_cpu(secs: float) -> dict[str, Any]:
    subject = prepare("impala/atari", {"num_actors": CPU_ACTORS, "unroll_length": UNROLL, "batch_size": 8})
    rounds, baselines = [], []
    with tempfile.TemporaryDirectory() as name, contextlib.closing(open_training(subject, Path(name))) as training:
        train(training, 2.0)  # warm up
        calls = take_apart(training)
        for _ in range(ROUNDS):
            parts = [measure(n, call, secs / ROUNDS) for n, call in (("act", calls.act), ("learn", calls.learn))]
            rate, busy = train(training, secs, warm_up_secs=2.0)
            rounds.append(result("impala_atari", rate, parts) | busy)
            baselines.append(_baseline(secs))
        spent = breakdown(training, secs / ROUNDS)
        environments = measure("environments", calls.step_environments, secs / ROUNDS)
    median = sorted(rounds, key=lambda one: one["ratio"])[len(rounds) // 2]
    times = [one["rate"] / baseline for one, baseline in zip(rounds, baselines, strict=True)]
    return median | {
        "ratios": [round(one["ratio"], 3) for one in rounds],
        "rates": [round(one["rate"], 1) for one in rounds],
        "baseline": "one process per actor, float32, batch 1",
        "baseline_rates": [round(rate, 1) for rate in baselines],
        "times_baseline": statistics.median(times),
        "within_act": [environments.__dict__],
        "breakdown_us": spent,
    }


def _baseline(secs: float) -> float:
    """Return the baseline's steps per second, measured in a separate process without this process's settings."""
    code = f"from packtrain.bench.process_per_actor import measure; print(measure({secs})['rate'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise StalledError(
            f"the process-per-actor baseline failed: {(done.stderr.splitlines() or ['no output on stderr'])[-1]}"
        )
    return float(done.stdout.split()[-1])


def _on_gpu(secs: float, device: str) -> dict[str, Any]:
    cases: list[dict[str, Any]] = []
    streams = None  # building 256 games takes most of a minute, so every case continues with the same ones
    for label, config, batch in GPU_CASES:
        subject = prepare(config, {"num_actors": GPU_ACTORS, "unroll_length": UNROLL, "batch_size": batch}, device)
        streams = streams or open_streams(subject.experiment, subject.spec)
        cases.append({"case": label, **_gpu_case(subject, streams, secs)})
    return {**cases[0], "cases": cases}


def _gpu_case(subject: Subject, streams: list[Stream], secs: float) -> dict[str, Any]:
    rates, environments = [], []
    with tempfile.TemporaryDirectory() as name:
        training = open_training(subject, Path(name), streams)
        train(training, 3.0)  # warm up, capture
        calls = take_apart(training)
        for _ in range(GPU_ROUNDS):
            rate, busy = train(training, secs, warm_up_secs=1.0)
            rates.append(rate)
            environments.append(measure("environments", calls.step_environments, secs / 2))
            calls.settle()
        spent = breakdown(training, secs / 2)
        with training.acting.on_device():
            parts = [measure("act", calls.act, secs / 2)]
        parts.append(measure("learn", calls.learn, secs / 2))
        training.acting.settle()  # the next case continues from here
    alone = [part.steps_per_second for part in environments]
    middle = sorted(environments, key=lambda part: part.steps_per_second)[GPU_ROUNDS // 2]
    return {
        **result("impala_atari", statistics.median(rates), [*parts, middle], on_gpu=True),
        **busy,
        "rates": [round(rate) for rate in rates],
        "environment_rates": [round(rate) for rate in alone],
        "times_environments": statistics.median(r / a for r, a in zip(rates, alone, strict=True)),
        "breakdown_us": spent,
    }
