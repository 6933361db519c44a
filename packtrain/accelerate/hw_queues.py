"""The number of hardware queues of a GPU that a process uses."""

from __future__ import annotations

import os

_NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST = "32"


def use_all_queues() -> None:
    """Let streams use separate hardware queues. Has an effect only before the first CUDA call.

    A process has 8 queues by default, captured work takes several, and streams that share one wait for each other: a
    decision of an actor for the updates that are in the queue before it. A value that the user has set stays.
    """
    os.environ.setdefault(_NAME, _MOST)
