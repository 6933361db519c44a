"""IMPALA's training speed on River Raid with a proxy, which needs the console's memory, and without one.

Without proxies games run in ALE's native threads; with one they run in processes (`envs/atari_ram.py`). Both runs are
open and are measured alternately, since a shared machine's speed changes; results are medians over rounds.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

from packtrain.bench.training import open_training, prepare, train
from packtrain.runtime import preparation

ROUNDS = 3
VALUES = {"unroll_length": 80, "batch_size": 8}
ACTORS = {"cpu": 64, "cuda": 256}
CASES: dict[str, dict[str, Any]] = {
    "score": {"proxy": "true"},
    "pacifist": {"proxy": "pacifist"},
    "sent off": {"proxy": "true", "idle_start": False},
}
WANTED = 0.7


def run(secs: float, device: str = "cpu") -> dict[str, Any]:
    """Return the rates of all cases, measured for about `secs` seconds each."""
    actors = ACTORS[preparation.find_device(device).type]
    rates: dict[str, list[float]] = {name: [] for name in CASES}
    with contextlib.ExitStack() as stack:
        trainings = {}
        for name, values in CASES.items():
            subject = prepare("impala/riverraid", {**VALUES, "num_actors": actors, **values}, device)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            trainings[name] = stack.enter_context(contextlib.closing(open_training(subject, folder)))
            while not trainings[name].learning.updates:  # warm up
                train(trainings[name], 2.0)
        for _ in range(ROUNDS):
            for name, training in trainings.items():
                rates[name].append(train(training, secs, warm_up_secs=1.0)[0])
    ratios = {
        name: statistics.median(one / plain for one, plain in zip(found, rates["score"], strict=True))
        for name, found in rates.items()
    }
    lines = [f"{'':<12}{'steps/s':>10}{'ratio':>8}{'wanted':>8}"]
    for name, found in rates.items():
        wanted = "" if name == "score" else f"{WANTED:>8.1f}"
        lines.append(f"{name:<12}{statistics.median(found):>10,.0f}{ratios[name]:>8.2f}{wanted}")
    return {
        "bench": "riverraid",
        "rate": statistics.median(rates["pacifist"]),
        "ratio": ratios["pacifist"],
        "rates": {name: [round(rate, 1) for rate in found] for name, found in rates.items()},
        "ratios": ratios,
        "lines": lines,
    }
