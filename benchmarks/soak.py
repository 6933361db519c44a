"""Run each family for a long time, and look for growth of memory, files and threads and a falling rate (`make soak`).

Each run trains a small network in a process of its own, with checkpoints every minute, until its time is over, and is
stopped by SIGINT. Its whole process tree is measured every few seconds. The rate counts processor seconds and not time,
so it means the same on a machine that is shared; several families can run at once.

    python benchmarks/soak.py [--minutes 60] [--families impala r2d2] [--jobs 1] [--out FOLDER] [--device cpu]

Limits: memory grows by at most 1 MB/min after the warm-up (10 minutes, or half of a shorter run), steps per processor
second of the last fifth are at least 95 % of the first, and open files, threads and GPU memory do not grow between the
first and the last fifth. Exit code 1 if a limit is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from packtrain.testing import tiny_runs

SAMPLE_SECS = 5.0
WARM_UP_MINUTES = 10.0
MOST_SLOPE = 1.0  # MB per minute
LEAST_RATE = 0.95  # of the first fifth
ENDLESS = 10**9
MORE = {  # families beside those of `tiny_runs`; their replays are full within the warm-up
    "ppo": ["train", "ppo/cartpole", "--total_steps", str(ENDLESS), "--log_every", "2048"],
    "dqn": "train dqn/catch --replay_size 4000 --num_actors 8 --batch_size 64 --warm_up 500 --log_every 500".split(),
    "ngu": "train ngu/key_door --num_actors 4 --replay_size 4000 --warm_up 500 --batch_size 8 --log_every 500".split(),
}
FAMILIES = (*tiny_runs.TINY, *MORE)


@dataclass(frozen=True)
class Sample:
    """One look at a run and everything that it has started."""

    secs: float  # since the first
    rss_mb: float
    cpu_secs: float
    step: int  # of its newest metric row
    files: int  # open file descriptors
    threads: int
    processes: int
    gpu_mb: float


@dataclass(frozen=True)
class Verdict:
    """The figures of a run, and which limits it broke."""

    minutes: float
    steps: int
    cpu_secs: float
    slope: float  # MB per minute
    rate: float  # of the last fifth over that of the first
    files: int  # growth
    threads: int  # growth
    gpu_mb: float  # growth
    broken: tuple[str, ...]


def evaluate(samples: list[Sample]) -> Verdict:
    """Return the figures of a run after its warm-up.

    Raises:
      ValueError: there are too few samples, or no steps, in a fifth of the time.
    """
    whole = samples[-1].secs
    warm = min(60 * WARM_UP_MINUTES, whole / 2)
    late = [one for one in samples if one.secs >= warm]
    fifth = (whole - warm) / 5
    first = [one for one in late if one.secs <= warm + fifth]
    last = [one for one in late if one.secs >= whole - fifth]
    if min(len(first), len(last)) < 3 or any(part[-1].step <= part[0].step for part in (first, last)):
        raise ValueError(f"too little was seen: {len(samples)} samples, {samples[-1].step} steps in {whole:.0f} s")
    slope = float(np.polyfit([one.secs / 60 for one in late], [one.rss_mb for one in late], 1)[0])
    rates = [(part[-1].step - part[0].step) / (part[-1].cpu_secs - part[0].cpu_secs) for part in (first, last)]
    files, threads = (
        int(np.median([getattr(one, name) for one in last]) - np.median([getattr(one, name) for one in first]))
        for name in ("files", "threads")
    )
    gpu = max(one.gpu_mb for one in last) - max(one.gpu_mb for one in first)
    broken = [f"memory grows by {slope:.2f} MB/min"] if slope > MOST_SLOPE else []
    broken += [f"the rate falls to {rates[1] / rates[0]:.1%}"] if rates[1] < LEAST_RATE * rates[0] else []
    grown = (("open files", files), ("threads", threads), ("MB on the GPU", gpu))
    broken += [f"{growth:g} more {name}" for name, growth in grown if growth > 0]
    cpu = samples[-1].cpu_secs - samples[0].cpu_secs
    figures = (whole / 60, samples[-1].step, cpu, slope, rates[1] / rates[0], files, threads, gpu)
    return Verdict(*figures, tuple(broken))


def look(process: psutil.Process, run: Path, begun: float) -> Sample:
    """Measure a process and its descendants."""
    rss = cpu = files = threads = number = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess), one.oneshot():
            rss += one.memory_info().rss / 2**20
            times = one.cpu_times()
            cpu += times.user + times.system
            files += one.num_fds()
            threads += one.num_threads()
            number += 1
    row = newest_row(run)
    counts = int(files), int(threads), int(number), float(row.get("gpu_mb", 0.0))
    return Sample(time.monotonic() - begun, rss, cpu, int(row.get("step", 0)), *counts)


def newest_row(run: Path) -> dict[str, float]:
    """Return the last whole training row of a run; {} before the first."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 65536))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if row["kind"] == "train":
                return dict(row)
    return {}


def argv(family: str, device: str) -> list[str]:
    """Return the arguments of a family's endless run."""
    found = MORE.get(family) or tiny_runs.argv(family, total=ENDLESS)
    if family in tiny_runs.TINY and family != "planning":
        found = [*found, "--log_every", "500"] if "--log_every" not in found else _with(found, "--log_every", "500")
    if family in ("dqn", "ngu"):
        found = [*found, "--total_steps", str(ENDLESS)]
    evaluation = [] if family == "planning" else ["--eval_every", "0"]
    return [*found, *evaluation, "--checkpoint_secs", "60", "--device", device]


def _with(words: list[str], flag: str, value: str) -> list[str]:
    place = words.index(flag) + 1
    return [*words[:place], value, *words[place + 1 :]]


def soak(family: str, minutes: float, out: Path, device: str) -> Verdict:
    """Run a family for some minutes and evaluate its samples, which are written to a file beside the run."""
    run, begun = out / family, time.monotonic()
    command = [sys.executable, "-m", "packtrain", *argv(family, device), "--output_dir", str(run)]
    samples: list[Sample] = []
    with (out / f"{family}.log").open("w") as log, (out / f"{family}.jsonl").open("w", buffering=1) as file:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            about = psutil.Process(process.pid)
            while process.poll() is None and time.monotonic() - begun < 60 * minutes:
                time.sleep(SAMPLE_SECS)
                with contextlib.suppress(psutil.NoSuchProcess):
                    samples.append(look(about, run, begun))
                    file.write(json.dumps(asdict(samples[-1])) + "\n")
            if process.poll() is not None:
                raise ValueError(f"the run ended with exit code {process.returncode}; see {log.name}")
            process.send_signal(signal.SIGINT)
            code = process.wait(120)
            if code != 130:
                raise ValueError(f"the run was stopped and ended with exit code {code}; see {log.name}")
        finally:
            process.kill()
            process.wait()
    return evaluate(samples)


def line(family: str, found: Verdict) -> str:
    """Return a row of the table."""
    figures = f"{found.minutes:.0f} | {found.steps:,} | {found.cpu_secs:,.0f} | {found.slope:+.2f} | {found.rate:.1%}"
    grown = f"{found.files:+d} | {found.threads:+d} | {found.gpu_mb:+.0f}"
    return f"| {family} | {figures} | {grown} | {'; '.join(found.broken) or 'within all limits'} |"


def main() -> int:
    """Run all families, at most `--jobs` at a time, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="of each family")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--jobs", type=int, default=1, help="families that run at the same time")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="folder of runs, logs and samples")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    room, results = threading.Semaphore(arguments.jobs), {}

    def one(family: str) -> None:
        with room:
            try:
                results[family] = soak(family, arguments.minutes, arguments.out, arguments.device)
                print(line(family, results[family]), flush=True)
            except ValueError as error:
                print(f"| {family} | {error} |", flush=True)

    print("| family | minutes | steps | CPU s | MB/min | last/first rate | files | threads | GPU MB | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    threads = [threading.Thread(target=one, args=(family,)) for family in arguments.families]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(len(results) < len(threads) or any(found.broken for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
