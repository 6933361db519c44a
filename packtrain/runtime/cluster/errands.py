"""Errands: orders that one worker carries out once, beside the standing orders."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass
class Errand:
    """Something that one worker is to do once."""

    id: int
    order: Any
    version: int
    weights: Any
    worker: int | None = None  # worker that executes it, in its current life; None: any worker without standing orders
    ended_lives: int = 0


class Errands:
    """The errands that wait for a worker, and those that failed."""

    def __init__(self, most_lives: int):
        """Create an empty queue.

        Args:
          most_lives: number of lives that may end during one errand before it fails.
        """
        self._most_lives = most_lives
        self._waiting: deque[Errand] = deque()
        self._next = 0
        self.failed: list[int] = []

    @property
    def versions(self) -> set[int]:
        """Versions of the weights that waiting errands use."""
        return {errand.version for errand in self._waiting}

    def add(self, order: Any, version: int, weights: Any, worker: int | None) -> int:
        """Add an errand, and return its id."""
        self._waiting.append(Errand(self._next, order, version, weights, worker))
        self._next += 1
        return self._next - 1

    def take_named(self) -> list[Errand]:
        """Remove and return the errands for certain workers."""
        named = [errand for errand in self._waiting if errand.worker is not None]
        self._waiting = deque(errand for errand in self._waiting if errand.worker is None)
        return named

    def take_next(self) -> Errand | None:
        """Remove and return the next errand for any worker; None if there is none."""
        return self._waiting.popleft() if self._waiting else None

    def give_back(self, errand: Errand) -> None:
        """Let another life carry out an errand whose life has ended, or fail it."""
        errand.ended_lives += 1
        if errand.worker is not None or errand.ended_lives >= self._most_lives:
            self.fail(errand)
        else:
            self._waiting.appendleft(errand)

    def fail(self, errand: Errand) -> None:
        """Give up an errand."""
        self.failed.append(errand.id)

    def fail_all(self) -> None:
        """Give up all errands that wait."""
        self.failed += [errand.id for errand in self._waiting]
        self._waiting.clear()

    def drain_failed(self) -> list[int]:
        """Return the ids of errands that were given up since the last call."""
        failed, self.failed = self.failed, []
        return failed
