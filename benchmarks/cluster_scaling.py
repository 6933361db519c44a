"""Measure the cluster runtime: processor time per step beside the local runtime, and scaling.

Rates are taken between two moments of a run that has warmed up. The processor time is that of the run's process and of
everything it has started: workers, raylet, head and guard.

    python benchmarks/cluster_scaling.py overhead [--secs 40]
    python benchmarks/cluster_scaling.py sleep --workers 1 4 16 [--secs 40]
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ENDLESS = ["--total_steps", "1000000000", "--eval_every", "0", "--log_every", "500"]
SLEEPING = "import packtrain.testing.sleeping_gym\ninclude 'impala/gym.gin'\nenv = 'packtrain/Sleeping-v0'\n"
MOST_CPU = 80  # percent of all processors, above which a rate says nothing about the cluster runtime
ENVS, SECS = 8, 0.0025  # environments of a worker, and the sleep of each in a step


def newest_step(folder: Path) -> int:
    """Return the step of the last metric row; 0 before the first."""
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return 0
    return int(json.loads(lines[-1])["step"]) if lines and lines[-1].endswith("}") else 0


def processor_secs(root: psutil.Process) -> tuple[float, float]:
    """Return the processor seconds of a process, and those of it and all its descendants."""
    own = sum(root.cpu_times()[:2])
    total = own
    for child in root.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue
    return own, total


def measure(words: list[str], secs: float) -> dict[str, float]:
    """Train, and return steps per second, processor µs per step, and shares of this machine's processors in use.

    "own_cpu_percent" is that of the run's processes, "machine_cpu_percent" that of all programs.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        command = [sys.executable, "-m", "packtrain", "train", *words, *ENDLESS, "--output_dir", str(folder)]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            root, deadline = psutil.Process(run.pid), time.monotonic() + 300
            while newest_step(folder) < 2000:
                if run.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{' '.join(words)} does not run")
                time.sleep(0.2)
            time.sleep(5)
            psutil.cpu_percent()
            begin, (own, total), step = time.monotonic(), processor_secs(root), newest_step(folder)
            time.sleep(secs)
            passed, (own_after, total_after) = time.monotonic() - begin, processor_secs(root)
            steps = newest_step(folder) - step
            return {
                "steps_per_s": steps / passed,
                "driver_us_per_step": 1e6 * (own_after - own) / steps,
                "all_us_per_step": 1e6 * (total_after - total) / steps,
                "own_cpu_percent": 100 * (total_after - total) / passed / (psutil.cpu_count() or 1),
                "machine_cpu_percent": psutil.cpu_percent(),
            }
        finally:
            run.send_signal(signal.SIGTERM)
            try:
                run.wait(60)
            except subprocess.TimeoutExpired:
                run.kill()


def overhead(secs: float) -> None:
    """Print processor time per step of impala/catch under the local runtime, and with one Ray worker."""
    kinds = {
        "local": [],
        "cluster": ["--runtime", "cluster", "--workers", "1"],
    }
    found = {}
    for name, flags in kinds.items():
        found[name] = measure(["impala/catch", *flags], secs)
        print(name, json.dumps({key: round(value, 1) for key, value in found[name].items()}), flush=True)
    ratio = found["cluster"]["all_us_per_step"] / found["local"]["all_us_per_step"]
    print(f"processor time per step, cluster / local: {ratio:.2f}")


def sleep(counts: list[int], secs: float) -> None:
    """Print rates with sleeping environments, as ratios to the first number of workers and to what the sleep allows."""
    first = None
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "sleepy.gin"
        path.write_text(SLEEPING + f"Environment.kwargs = {{'secs': {SECS}}}\n")
        for count in counts:
            words = [str(path), "--num_actors", str(ENVS * count), "--runtime", "cluster", "--workers", str(count)]
            found = measure([*words, "--batch_size", "8", "--num_buffers", str(max(32, 2 * ENVS * count))], secs)
            rate = found["steps_per_s"] / count
            first = first or rate
            ratios = {"efficiency_to_first": rate / first, "efficiency_to_sleep": rate * SECS}
            row = {key: round(value, 3) for key, value in (found | ratios).items()}
            void = f"  void: above {MOST_CPU} % CPU" if found["machine_cpu_percent"] > MOST_CPU else ""
            print(count, json.dumps(row) + void, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("overhead", "sleep"))
    parser.add_argument("--secs", type=float, default=40.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    arguments = parser.parse_args()
    if arguments.what == "overhead":
        overhead(arguments.secs)
    else:
        sleep(arguments.workers, arguments.secs)
