"""IMPALA's training speed on Catch with the sizes of `impala/catch`, with the bound from its parts.

Parts and the full run alternate in short rounds, because a shared machine's speed changes within seconds; the result is
the round with the median ratio.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

from packtrain.bench.measure import measure, result
from packtrain.bench.training import open_training, prepare, take_apart, train

ROUNDS = 5


def run(secs: float, device: str = "cpu") -> dict[str, Any]:
    """Measure the parts and the local runtime alternately, for about `secs` seconds each."""
    subject = prepare("impala/catch", {}, device)
    rounds = []
    with tempfile.TemporaryDirectory() as name, contextlib.closing(open_training(subject, Path(name))) as training:
        train(training, 1.0)  # warm up
        calls = take_apart(training)
        for _ in range(ROUNDS):
            parts = [measure(n, call, secs / ROUNDS) for n, call in (("act", calls.act), ("learn", calls.learn))]
            rate, busy = train(training, secs / ROUNDS)
            rounds.append(result("impala_catch", rate, parts, subject.device.type == "cuda") | busy)
        environments = measure("environments", calls.step_environments, secs / ROUNDS)
    median = sorted(rounds, key=lambda one: one["ratio"])[len(rounds) // 2]
    median["ratios"] = [round(one["ratio"], 3) for one in rounds]
    for key in ("actor_busy", "learner_busy"):
        median[key] = statistics.fmean(one[key] for one in rounds)
    median["within_act"] = [environments.__dict__]
    return median
