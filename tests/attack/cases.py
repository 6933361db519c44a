"""The registry of attacks on packtrain, and the tools that its cases share.

A case is a function that receives an empty folder, attacks a run in it and asserts what must hold.
`python tests/attack` (or `make attack`) runs all of them and prints a table; `test_attack.py` runs the fast ones in CI.
"""

from __future__ import annotations

import functools
import multiprocessing
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packtrain.testing import chaos

CASES: dict[str, Case] = {}
SMALL = (
    "train impala/catch --output_dir run --num_actors 2 --batch_size 2 --unroll_length 5 --hidden_size 8 --eval_every 0"
).split()
STEPS = ["--total_steps", "400"]
"""`[*SMALL, *STEPS]` is the command line of `small_run`."""
MOST_SECS, MOST_BYTES = 1.0, 256 * 2**20  # what reading a hostile file may cost


@dataclass(frozen=True)
class Case:
    """One attack: what it is aimed at, what must happen, and the function that does both."""

    name: str
    attacks: str
    expected: str
    check: Callable[[Path], None]
    fast: bool
    known_limit: str | None  # why it does not hold; the case is listed and not run


def case(
    name: str, *, attacks: str, expected: str, fast: bool = True, known_limit: str | None = None
) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register a function as a case.

    Args:
      name: unique, a few words.
      attacks: the part and the means, such as "metrics.jsonl: the disk is full".
      expected: what must hold, such as "the run continues and warns once a minute".
      fast: whether CI runs it: below three seconds on a quiet core.
      known_limit: the reason if it cannot hold; then it is listed and not run.
    """

    def register(check: Callable[[Path], None]) -> Callable[[Path], None]:
        assert name not in CASES, f"two cases are called {name!r}"
        CASES[name] = Case(name, attacks, expected, check, fast, known_limit)
        return check

    return register


def run(argv: list[str], place: Path, timeout: float = 60.0) -> tuple[int, str]:
    """Run `packtrain ARGV` in a process of its own with `place` as its folder; the exit code and what it printed."""
    command = chaos.Command(argv, place)
    try:
        return command.wait(timeout), command.output()
    except TimeoutError as error:
        raise AssertionError(str(error)) from None


def refused(argv: list[str], place: Path, *parts: str, code: int = 2, timeout: float = 60.0) -> str:
    """Run a command that must end with one line that has these parts; returns the line."""
    left, output = run(argv, place, timeout)
    lines = [line for line in output.splitlines() if line.startswith("packtrain: error: ")]
    assert left == code and len(lines) == 1 and "Traceback" not in output, f"exit code {left}:\n{output}"
    for part in parts:
        assert part in lines[0], f"no {part!r} in: {lines[0]}"
    return lines[0]


@functools.cache
def _small_run() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="attack-run-"))
    code, output = run([*SMALL, *STEPS], folder)
    assert code == 0, output
    return folder / "run"


def small_run(place: Path, name: str = "run") -> Path:
    """A finished run of 400 steps at place/NAME, copied from one that is trained once; `[*SMALL, *STEPS]` made it."""
    shutil.copytree(_small_run(), place / name, symlinks=True)
    return place / name


def cost(function: Callable[[], object]) -> tuple[str, float, int]:
    """Call a function in a process of its own.

    Returns:
      What it raised ("" if nothing), CPU seconds, and bytes that its peak of memory grew by.
    """
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(function, send))
    process.start()
    send.close()
    try:
        if not receive.poll(60):
            process.kill()
            raise AssertionError("it did not end within 60 s")
        return receive.recv()
    except EOFError:
        raise AssertionError(f"its process died with exit code {process.exitcode}") from None
    finally:
        process.join()


def _measure(function: Callable[[], object], send: object) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is resident now
    before, begin, said = _peak(), time.process_time(), ""
    try:
        function()
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
        traceback.clear_frames(error.__traceback__)
    send.send((said, time.process_time() - begin, _peak() - before))  # type: ignore[attr-defined]


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cheaply_refused(function: Callable[[], object], *parts: str) -> None:
    """Assert that a function raises an error of packtrain with these parts, within the bounds of reading."""
    import packtrain.errors

    said, secs, grown = cost(function)
    kind = getattr(packtrain.errors, said.partition(":")[0], None)
    assert kind is not None, f"it raised {said or 'nothing'}"
    assert "\n" not in said, said
    for part in parts:
        assert part in said, f"no {part!r} in: {said}"
    assert grown <= MOST_BYTES, f"its memory grew by {grown / 2**20:.0f} MiB"
    assert secs <= MOST_SECS * 3, f"it took {secs:.1f} s of CPU time"  # the bound is for a quiet core; CI's are slower
