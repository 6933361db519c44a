"""Compare the speed of two checkouts of packtrain: `packtrain bench` in both, in turn, and the ratio with an interval.

    python benchmarks/speed_ratio.py OLD NEW [--bench impala_catch]... [--rounds 5] [--secs 5] [--device cpu]
    python benchmarks/speed_ratio.py OLD NEW --processor [--rounds 5]

OLD and NEW are folders that hold a `packtrain` package. Each round runs a benchmark once in both; the order alternates,
so that a machine that becomes slower favours neither. Printed are the ratios new / old of the rounds' rates, their
geometric mean, and its 95 % interval by Student's t over the rounds.

With `--processor`, serial runs of shipped configurations are compared by their steps per second of processor time,
which other processes on the machine disturb much less than elapsed time. A short run's time is subtracted, so that
imports and compilation do not count.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from packtrain.metrics.intervals import student_t

BENCHES = ("impala_catch", "impala_atari", "r2d2", "steve", "search")
SERIAL = {  # configuration: the knob of its length, with a short and a long value
    "impala/catch": ("total_steps", 2_000, 150_000),
    "r2d2/catch": ("total_steps", 5_000, 40_000),
    "steve/steve_pendulum": ("total_steps", 1_050, 1_350),
    "planning/mcts_hanoi": ("n_epochs", 2, 40),
}


def processor_rate(tree: Path, config: str) -> float:
    """Return the units of length (steps, epochs) that a serial run makes in a second of processor time."""
    knob, short, long = SERIAL[config]
    spent = {length: _processor_secs(tree, config, {knob: length}) for length in (short, long)}
    return (long - short) / (spent[long] - spent[short])


def _processor_secs(tree: Path, config: str, knobs: dict[str, int]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
    flags = [f"--{name}={value}" for name, value in {"eval_every": 0, **knobs}.items()]
    if config.startswith("planning/"):
        flags = [flag for flag in flags if not flag.startswith("--eval_every")]
    with tempfile.TemporaryDirectory() as folder:
        flags += ["--runtime", "serial", "--seed", "0", "--output_dir", str(Path(folder) / "run")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "packtrain", "train", config, *flags],
            env=environment,
            cwd=tree,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{tree}: train {config} failed: {done.stderr.strip().splitlines()[-1]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(tree: Path, bench: str, secs: float, device: str) -> float:
    """Return the rate of a benchmark with the package in `tree`."""
    command = [sys.executable, "-m", "packtrain", "bench", bench, "--json", "--secs", str(secs), "--device", device]
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{tree}: bench {bench} failed: {done.stderr.strip().splitlines()[-1]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["rate"])


def compare(old: Path, new: Path, rounds: int, rate: Callable[[Path], float]) -> list[float]:
    """Return the ratios new / old of the rates of the two trees, one per round."""
    ratios = []
    for number in range(rounds):
        trees = (old, new) if number % 2 == 0 else (new, old)
        rates = {tree: rate(tree) for tree in trees}
        ratios.append(rates[new] / rates[old])
    return ratios


def describe(bench: str, ratios: list[float]) -> str:
    """Return a line with the ratios, their geometric mean and its interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    if len(logs) < 2:
        return f"{bench:21} {math.exp(mean):.3f}  (one round: no interval)"
    half = student_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{bench:21} {math.exp(mean):.3f}  [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]  ({rounds})"


def main() -> int:
    """Compare all benchmarks and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="folder with the older package")
    parser.add_argument("new", type=Path, help="folder with the newer package")
    parser.add_argument("--bench", action="append", choices=BENCHES, help="benchmark; may repeat (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each benchmark (default: 5)")
    parser.add_argument("--secs", type=float, default=5.0, help="seconds of each measurement (default: 5)")
    parser.add_argument("--device", default="cpu", help="device of both (default: cpu)")
    parser.add_argument("--processor", action="store_true", help="compare processor time of serial runs instead")
    arguments = parser.parse_args()
    rates: dict[str, Callable[[Path], float]]
    if arguments.processor:
        rates = {config: partial(processor_rate, config=config) for config in SERIAL}
    else:
        own = {"secs": arguments.secs, "device": arguments.device}
        rates = {bench: partial(measure, bench=bench, **own) for bench in arguments.bench or BENCHES}
    print("case                  new / old, 95 % interval, rounds")
    for name, rate in rates.items():
        print(describe(name, compare(arguments.old, arguments.new, arguments.rounds, rate)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
