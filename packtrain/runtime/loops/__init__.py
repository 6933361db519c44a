"""The three training loops, one file each: generators that yield what is due next.

A loop decides the order from counters alone and touches no thread, so a runtime, a test or several joined seeds can
drive it. The driver executes what the loop yields and passes `tidy`, which counts, evaluates and saves when due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Act(NamedTuple):
    """One actor step is due: one group of environments is served."""


class Learn(NamedTuple):
    """Updates of one learner are due."""

    learner: str
    updates: int


Loop = Iterator[Act | Learn]
Tidy = Callable[[], None]
