"""Compare the speed of two checkouts of packtrain: `packtrain bench` in both, in turn, and the ratio with an interval.

    python benchmarks/speed_ratio.py OLD NEW [--bench impala_catch]... [--rounds 5] [--secs 5] [--device cpu]

OLD and NEW are folders that hold a `packtrain` package. Each round runs a benchmark once in both; the order alternates,
so that a machine that becomes slower favours neither. Printed are the ratios new / old of the rounds' rates, their
geometric mean, and its 95 % interval by Student's t over the rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

from packtrain.metrics.intervals import student_t

BENCHES = ("impala_catch", "impala_atari", "r2d2", "steve", "search")


def measure(tree: Path, bench: str, secs: float, device: str) -> float:
    """Return the rate of a benchmark with the package in `tree`."""
    command = [sys.executable, "-m", "packtrain", "bench", bench, "--json", "--secs", str(secs), "--device", device]
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{tree}: bench {bench} failed: {done.stderr.strip().splitlines()[-1]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["rate"])


def compare(old: Path, new: Path, bench: str, rounds: int, secs: float, device: str) -> list[float]:
    """Return the ratios new / old of the rates, one per round."""
    ratios = []
    for number in range(rounds):
        trees = (old, new) if number % 2 == 0 else (new, old)
        rates = {tree: measure(tree, bench, secs, device) for tree in trees}
        ratios.append(rates[new] / rates[old])
    return ratios


def describe(bench: str, ratios: list[float]) -> str:
    """Return a line with the ratios, their geometric mean and its interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    if len(logs) < 2:
        return f"{bench:14} {math.exp(mean):.3f}  (one round: no interval)"
    half = student_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{bench:14} {math.exp(mean):.3f}  [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]  ({rounds})"


def main() -> int:
    """Compare all benchmarks and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="folder with the older package")
    parser.add_argument("new", type=Path, help="folder with the newer package")
    parser.add_argument("--bench", action="append", choices=BENCHES, help="benchmark; may repeat (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each benchmark (default: 5)")
    parser.add_argument("--secs", type=float, default=5.0, help="seconds of each measurement (default: 5)")
    parser.add_argument("--device", default="cpu", help="device of both (default: cpu)")
    arguments = parser.parse_args()
    print("bench          new / old, 95 % interval, rounds")
    for bench in arguments.bench or BENCHES:
        ratios = compare(arguments.old, arguments.new, bench, arguments.rounds, arguments.secs, arguments.device)
        print(describe(bench, ratios), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
