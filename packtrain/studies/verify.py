"""`packtrain verify`: run the first updates of published results again, and compare their digests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from packtrain import knobs
from packtrain.errors import Error, one_line
from packtrain.studies import digest
from packtrain.studies.results import Result, StoredRun

LEAST_SECS = 600.0  # after which a run is given up; more if it took a tenth of that when it was stored


class Verdict(NamedTuple):
    """The outcome of one run."""

    result: str
    config: str
    passed: bool
    exact: bool  # compared to the bit; else scalars within the tolerance
    secs: float
    problems: tuple[str, ...]

    def line(self) -> str:
        """Return the verdict as one line."""
        how = "equal to the bit" if self.exact else "equal within the tolerance; other versions or another processor"
        end = how if self.passed else "; ".join(self.problems[:4])
        more = f" (and {len(self.problems) - 4} more)" if len(self.problems) > 4 else ""
        mark = "ok  " if self.passed else "FAIL"
        return one_line(f"{self.result}: {self.config}: {end}{more}  ({self.secs:.0f} s)").join((f"{mark}  ", ""))


def verify(result: Result) -> Iterator[Verdict]:
    """Yield a verdict for each short run of a result."""
    here = digest.fingerprint()
    exact = here == result.fingerprint
    for stored in result.runs:
        began = time.monotonic()
        try:
            found = digest.measure(short_run(stored))
            problems = digest.compare(stored.digest, found, exact)
        except Error as error:
            problems = [str(error)]
        except (RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError, OSError) as error:
            problems = [f"{type(error).__name__}: {one_line(str(error))[:200]}"]
        yield Verdict(result.name, stored.config, not problems, exact, time.monotonic() - began, tuple(problems))


def short_run(stored: StoredRun) -> digest.ShortRun:
    """Return what has to be run for a stored digest."""
    limit = max(LEAST_SECS, 60 * (stored.secs or 0.0))
    return digest.ShortRun(stored.config, {**stored.knobs, **stored.reduced}, stored.seed, stored.updates, limit)


def store(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run's entry in a record, with the digest that is measured now.

    Args:
      run: config, and optionally knobs, reduced, seed and updates.
    """
    began = time.process_time()
    known = knobs.read_knobs(knobs.find_config(run["config"])[0])
    quiet = {name: 0 for name in ("eval_every",) if name in known}  # evaluations are no updates
    run = {**run, "reduced": {**quiet, **run.get("reduced", {})}}
    values = {**run.get("knobs", {}), **run.get("reduced", {})}
    short = digest.ShortRun(run["config"], values, run.get("seed", 0), run.get("updates"), within_secs=3600.0)
    found = digest.measure(short).as_json()
    return {**run, "secs": round(time.process_time() - began, 1), **{k: v for k, v in found.items() if k != "updates"}}
