"""Measure parts separately: seconds, core-seconds and seconds with the interpreter's lock held, per step.

On a CPU a run cannot be faster than its cores allow, nor than the interpreter's lock allows:

    bound = min(cores / Σ core-seconds, 1 / Σ lock-held seconds)     per step, over the parts

torch releases the lock inside its operators, NumPy mostly does not, and a waiting thread does not hold it. So the time
that a part holds the lock is the processor time of its thread minus the time in torch's top-level operators according
to its profiler.

With a GPU the parts run concurrently on separate resources, and the slowest of them alone is the bound.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from packtrain.cpu_count import available_cores

PROFILED_CALLS, PROFILED_SECS = 20, 2.0  # limits of the short run under the profiler


@dataclass(frozen=True)
class Part:
    """Cost of one part, measured alone, per step of the agent."""

    name: str
    steps_per_second: float
    core_us: float  # microseconds of CPU time
    lock_us: float  # microseconds holding the interpreter's lock


def measure(name: str, call: Callable[[], int], secs: float) -> Part:
    """Time a call that returns its number of steps, for about `secs` seconds.

    The share of time inside torch's operators comes from a short profiled interval. Profiling slows operators and the
    code between them alike, so the share is used and the profiled times are not.
    """
    for _ in range(3):
        call()
    steps, begin, cpu, thread = 0, time.perf_counter(), time.process_time(), time.thread_time()
    while time.perf_counter() - begin < secs:
        steps += call()
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    thread = time.thread_time() - thread
    inside = _operator_share(call)
    return Part(name, steps / wall, 1e6 * cpu / steps, 1e6 * thread * (1 - inside) / steps)


def _operator_share(call: Callable[[], int]) -> float:
    with _quiet(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        begin, thread = time.perf_counter(), time.thread_time()
        for _ in range(PROFILED_CALLS):
            call()
            if time.perf_counter() - begin > PROFILED_SECS:
                break
        thread = time.thread_time() - thread
    events = [event for event in profiler.events() if event.cpu_parent is None]
    return min(1.0, sum(event.cpu_time_total for event in events) * 1e-6 / thread)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what the profiler's native code writes to standard error."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def bound(parts: list[Part], cores: int) -> tuple[float, str]:
    """Return the steps per second that the parts allow together, and what limits them."""
    by_cores = 1e6 * cores / sum(part.core_us for part in parts)
    by_lock = 1e6 / max(1e-9, sum(part.lock_us for part in parts))  # the profiler may attribute everything to operators
    return (by_cores, f"{cores} cores") if by_cores <= by_lock else (by_lock, "the interpreter's lock")


def slowest(parts: list[Part]) -> tuple[float, str]:
    """Return the steps per second of the slowest part alone, and its name: the bound on a machine with a GPU."""
    part = min(parts, key=lambda part: part.steps_per_second)
    return part.steps_per_second, f"{part.name} alone"


def result(name: str, rate: float, parts: list[Part], on_gpu: bool = False, **more: Any) -> dict[str, Any]:
    """Return the JSON of a benchmark: rate, bound, ratio, the parts, and the machine."""
    limit, why = slowest(parts) if on_gpu else bound(parts, available_cores())
    return {
        "bench": name,
        "rate": rate,
        "bound": limit,
        "ratio": rate / limit,
        "limited_by": why,
        **more,
        "parts": [asdict(part) for part in parts],
        "machine": machine(on_gpu),
    }


def machine(on_gpu: bool = False) -> dict[str, Any]:
    """Return a description of the machine and the versions."""
    return {
        "processor": platform.processor() or platform.machine(),
        **({"gpu": torch.cuda.get_device_name()} if on_gpu else {}),
        "cores": available_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def table(content: dict[str, Any]) -> str:
    """Return a benchmark's result as text: its own summary, or a table of its parts, for each case."""
    if "lines" in content:
        return "\n".join(content["lines"])
    if "cases" in content:
        return "\n\n".join(f"{case['case']}\n{table(case)}" for case in content["cases"])
    lines = [f"{'part':<24}{'steps/s alone':>16}{'core µs/step':>16}{'lock µs/step':>16}"]
    for part in content["parts"]:
        lines.append(
            f"{part['name']:<24}{part['steps_per_second']:>16,.0f}{part['core_us']:>16.1f}{part['lock_us']:>16.1f}"
        )
    lines += [
        "",
        f"rate   {content['rate']:>12,.0f} steps/s",
        f"bound  {content['bound']:>12,.0f} steps/s, by {content['limited_by']}",
        f"ratio  {content['ratio']:>12.2f}",
    ]
    if "ratios" in content:
        lines[-1] += f"   the median of {', '.join(f'{ratio:.2f}' for ratio in content['ratios'])}"
    if "times_environments" in content:
        rates = ", ".join(f"{rate:,.0f}" for rate in content["environment_rates"])
        lines.append(f"times  {content['times_environments']:>12.2f}   the rate of the environments ({rates} steps/s)")
    if "times_baseline" in content:
        rates = ", ".join(f"{rate:,.0f}" for rate in content["baseline_rates"])
        lines.append(f"times  {content['times_baseline']:>12.2f}   the rate of {content['baseline']} ({rates} steps/s)")
    if "actor_busy" in content:
        lines.append(f"busy   actor {content['actor_busy']:.0%}, learner {content['learner_busy']:.0%}")
    return "\n".join(lines)
