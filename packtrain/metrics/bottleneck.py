"""What limits the speed of a run whose environments act in workers, from one of its metric rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def bottleneck(row: Mapping[str, Any]) -> str:
    """Return what limits the speed and what would help, in one sentence; "" for a run without workers.

    Args:
      row: of kind "train". `workers/wait_share` is the share of the time in which the learner's process waited for
        results of workers; `workers/held_share` that in which it held them back, for a checkpoint or an evaluation.
    """
    if (waited := row.get("workers/wait_share")) is None:
        return ""
    if not row.get("workers/workers_ready"):
        return "starved: no worker is ready, see log.txt"
    if waited > 0.5:
        return "environment-bound: the learner waits for the workers; add workers"
    if waited + (row.get("workers/held_share") or 0.0) < 0.2:
        return "learner-bound: the workers wait for the learner; add `--learners`, or use fewer workers"
    return "balanced: neither the learner nor the workers wait most of the time"
