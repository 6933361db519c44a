"""Speed of prioritised replay by fill level: rows in, batches out, priorities back.

A million 3-step transitions of small observations, and sequences of Atari frames at a smaller capacity, each in three
memories: 1 %, 50 % and 100 % full. They are measured alternately. The bound is the same memory at 1 %: the time of a
batch if the fill level cost nothing. A batch of a full memory may take 1.5 times as long.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from packtrain.accelerate.allocator import keep_large_blocks
from packtrain.bench.measure import machine
from packtrain.config import unrecorded
from packtrain.memory.sequence_memory import SequenceMemory
from packtrain.memory.sequence_settings import Sequences
from packtrain.types import Row

TRANSITIONS, FRAMES = 1_000_000, 100_000  # rows of the two memories
FILLS = (0.01, 0.5, 1.0)
BAR = 1.5  # maximum ratio of the time to that at the smallest fill
ROUNDS = 5
EPISODE = 500  # steps
POOL = 61  # rows that are reused, so that creating them is not measured


@dataclass(frozen=True)
class Case:
    """One benchmark case: a memory and the rows written to it."""

    name: str
    sizes: Sequences
    columns: int
    obs: np.ndarray  # [...] zeros of one observation
    carry: int  # size of each of the two parts of a recurrent state; 0: none


def run(secs: float, device: str = "cpu") -> dict[str, Any]:
    """Measure both memories on a device."""
    keep_large_blocks()  # as in every run
    with unrecorded():
        transitions = Sequences(TRANSITIONS, 1, burn_in=0, stride=1, n_step=3, batch_size=512)
        cases = (
            Case("transitions", transitions, 64, np.zeros(8, np.float32), 0),
            Case("sequences", Sequences(FRAMES), 4, np.zeros((84, 84), np.uint8), 512),
        )
        where = torch.device(device)
        parts = [part for case in cases for part in _measured(case, secs, where)]
    return _result(parts, where)


def _result(parts: list[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    lines = [
        f"{TRANSITIONS:,} transitions of 8 numbers, batches of 512; {FRAMES:,} Atari frames, batches of 64 x 125",
        "",
        f"{'':<13}{'full':>6}{'rows in/s':>13}{'out/s':>12}{'a batch':>12}{'x 1 %':>8}{'priorities/s':>15}",
    ]
    for part in parts:
        lines.append(
            f"{part['name']:<13}{part['fill']:>6.0%}{part['inserts_per_second']:>13,.0f}"
            f"{part['samples_per_second']:>12,.0f}{part['batch_ms']:>9.2f} ms{part['times_smallest']:>8.2f}"
            f"{part['priorities_per_second']:>15,.0f}"
        )
    full = [part for part in parts if part["fill"] == max(FILLS)]
    worst = max(part["times_smallest"] for part in full)
    lines += ["", f"a batch of a full memory takes {worst:.2f} x its time at {min(FILLS):.0%}; the bar is {BAR}"]
    rate, bound = full[0]["samples_per_second"], parts[0]["samples_per_second"]
    return {
        **{"bench": "replay", "rate": rate, "bound": bound, "ratio": rate / bound, "times_smallest": worst},
        **{"bar": BAR, "passed": worst <= BAR},
        "parts": parts,
        "lines": lines,
        "machine": machine(device.type == "cuda"),
    }


def _measured(case: Case, secs: float, device: torch.device) -> list[dict[str, Any]]:
    """Measure one part for every fill level."""
    feed = _Feed(case)
    memories = [case.sizes.build([case.columns], 0, device) for _ in FILLS]
    inserts = [feed.fill(memory, fill, device) for memory, fill in zip(memories, FILLS, strict=True)]
    samples: list[list[float]] = []  # seconds per call, by round and fill
    answers: list[list[float]] = []
    for _ in range(ROUNDS):  # alternately, because a shared machine's speed varies
        samples.append([_secs_a_call(_draw(memory), secs / ROUNDS, device) for memory in memories])
        answers.append([_secs_a_call(_answer(memory), secs / ROUNDS / 4, device) for memory in memories])
    parts = []
    for index, memory in enumerate(memories):
        batch = statistics.median(each[index] for each in samples)
        parts.append(
            {
                "name": case.name,
                "fill": FILLS[index],
                "sequences": len(memory),
                "inserts_per_second": inserts[index],
                "samples_per_second": case.sizes.batch_size / batch,
                "batch_ms": 1e3 * batch,
                "times_smallest": statistics.median(each[index] / each[0] for each in samples),
                "priorities_per_second": case.sizes.batch_size / statistics.median(each[index] for each in answers),
            }
        )
    return parts


class _Feed:
    """Rows of noise in the shapes of a case."""

    def __init__(self, case: Case):
        rng, columns = np.random.default_rng(0), case.columns
        self._columns = columns
        self._obs = rng.integers(0, 256, (POOL, columns, *case.obs.shape)).astype(case.obs.dtype)
        self._action = rng.integers(0, 18, (POOL, columns))
        self._reward = rng.standard_normal((POOL, columns)).astype(np.float32)
        self._carry = tuple(torch.zeros(columns, case.carry) for _ in range(2 * bool(case.carry)))
        self._no = np.zeros(columns, bool)

    def fill(self, memory: SequenceMemory, share: float, device: torch.device) -> float:
        """Fill a memory; return rows per second of the second half, or of overwriting the oldest half if it is full."""
        rows = round(share * memory.length)
        begin = rows if share == 1 else rows // 2
        for number in range(begin):
            self._add(memory, number)
        _settle(device)
        start, end = time.perf_counter(), rows + rows // 2 if share == 1 else rows
        for number in range(begin, end):
            self._add(memory, number)
        _settle(device)
        return (end - begin) * self._columns / (time.perf_counter() - start)

    def _add(self, memory: SequenceMemory, number: int) -> None:
        at, ends = number % POOL, self._no | (number % EPISODE == EPISODE - 1)
        reward = {"train": self._reward[at]}
        row = Row(self._obs[at], self._no | (number % EPISODE == 0), self._action[at], reward, ends, self._no)  # type: ignore[arg-type]
        memory.writer(0).add(row, self._carry, {})


def _draw(memory: SequenceMemory) -> Callable[[], Any]:
    return lambda: memory.sample()


def _answer(memory: SequenceMemory) -> Callable[[], Any]:
    sample = memory.sample()
    assert sample is not None and sample.keys is not None, "nothing to draw"
    keys = sample.keys
    errors = torch.rand(len(keys), device=keys.device)
    return lambda: memory.update_priorities(keys, errors)


def _secs_a_call(call: Callable[[], Any], secs: float, device: torch.device) -> float:
    """Return the median time of a call, repeated for so many seconds."""
    times: list[float] = []
    call()
    _settle(device)
    end = time.perf_counter() + secs
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        _settle(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
