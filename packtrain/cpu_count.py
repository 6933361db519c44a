"""Number of processors that this process may use: a container's share, not the machine's."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
