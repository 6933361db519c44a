"""Measure what each fast path of small networks on a CPU gains, as ratios of whole training runs' CPU time.

    python benchmarks/cpu_paths.py [--job sac/pendulum]... [--variant unrecorded]... [--rounds 3]

Every round trains each job once as shipped and once per variant, in turn, in processes of their own with one thread.
The time of a run is its CPU time from the start of training to the end, environments and logging included, imports not.
A ratio above 1 is what the path gains: the time without it, divided by the time with it.

Variants:
  unrecorded   updates are not recorded (packtrain/accelerate/cpu_replay.py)
  autograd     layers with ReLUs are single operations of autograd (packtrain/networks/stacked.py)
  neither      both of the above
  torch_adam   torch.optim.Adam(fused=True) instead of packtrain/algorithms/optimisers.py
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Environment steps.
JOBS = {
    "steve/ddpg_pendulum": 4000,
    "steve/sac_pendulum": 2500,
    "steve/steve_pendulum": 1500,
    "ddpg/pendulum": 4000,
    "sac/pendulum": 2000,
}
VARIANTS = ("unrecorded", "autograd", "neither", "torch_adam")


def change(variant: str) -> None:
    """Replace one path in this process."""
    from packtrain.algorithms import ddpg, dynamics, optimisers, sac
    from packtrain.algorithms.batched_updates import Launches
    from packtrain.networks.stacked import StackedNetwork

    if variant in ("unrecorded", "neither"):
        begin = Launches.__init__
        Launches.__init__ = lambda self, rule, runs, device, capture=True: begin(self, rule, runs, device, False)
    if variant in ("autograd", "neither"):
        build = StackedNetwork.__init__

        def plain(self: StackedNetwork, *given: Any) -> None:
            build(self, *given)
            self._simple = False

        StackedNetwork.__init__ = plain
    if variant == "torch_adam":

        class TorchAdam(optimisers.Adam):
            """The public fused optimiser behind the same methods."""

            def __init__(self, parameters: Any, learning_rate: float, weight_decay: float = 0.0, **more: Any):
                super().__init__(parameters, learning_rate, weight_decay, **more)
                options = {"lr": learning_rate, "weight_decay": weight_decay, "eps": self._epsilon}
                self._torch = torch.optim.Adam(self._parameters, fused=True, capturable=True, **options)

            @torch.no_grad()
            def follow(self, found: Sequence[Tensor]) -> None:
                for parameter, gradient in zip(self._parameters, found, strict=True):
                    parameter.grad = gradient
                self._torch.step()

        for module in (ddpg, dynamics, sac):
            module.Adam = TorchAdam


def play(job: str, variant: str, folder: Path) -> float:
    """Train in this process and return the CPU seconds."""
    from packtrain import api

    change(variant)
    before = time.process_time()
    api.train(job, output_dir=folder, seed=0, runtime="serial", total_steps=JOBS[job], log_every=1000, eval_every=0)
    return time.process_time() - before


def measure(job: str, variant: str) -> float:
    """Train in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--one", job, variant, f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise SystemExit(f"{job} {variant}: {done.stderr[-2000:]}")
        return float(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure all jobs and print a line per variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", action="append", choices=JOBS)
    parser.add_argument("--variant", action="append", choices=VARIANTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(play(given.one[0], given.one[1], Path(given.one[2])))
        return 0
    variants = given.variant or VARIANTS
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, one thread, {given.rounds} rounds")
    for job in given.job or JOBS:
        ratios: dict[str, list[float]] = {variant: [] for variant in variants}
        for number in range(given.rounds):
            order = ("shipped", *variants) if number % 2 == 0 else (*reversed(variants), "shipped")
            secs = {variant: measure(job, variant) for variant in order}
            for variant in variants:
                ratios[variant].append(secs[variant] / secs["shipped"])
            print(f"  {job} round {number}: {', '.join(f'{name} {secs[name]:.2f} s' for name in secs)}", flush=True)
        for variant, found in ratios.items():
            mean = math.exp(statistics.fmean(map(math.log, found)))
            print(f"{job:22} {variant:11} {mean:.2f}  ({', '.join(f'{ratio:.2f}' for ratio in found)})", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
