"""Synchronisation of an actor thread and a learner thread: pausing the actor, and measuring utilisation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from packtrain.envs.deadline import RunningTime
from packtrain.errors import StalledError


class ActorPause:
    """Lets another thread pause an actor thread between two actor steps.

    The actor makes thousands of steps per pause, so a step takes no lock: the actor sets the flag `_inside`, then
    checks whether the learner has requested a pause; the learner requests a pause, then checks whether the actor is
    inside.
    """

    def __init__(self, timeout: float):
        """Let the actor run; no pause is requested yet.

        Args:
          timeout: seconds that an actor step may take to end when a pause is requested.
        """
        self._timeout = timeout
        self._holders = 0
        self._inside = False
        self.stuck = False  # set when the current actor step is known never to end

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Enclose each actor step."""
        self._inside = True
        while self._holders:
            self._inside = False
            time.sleep(0.0005)
            self._inside = True
        try:
            yield
        finally:
            self._inside = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Pause the actor; StalledError if its current step does not end."""
        self._holders += 1
        try:
            waited = RunningTime(longest_gap=1.0)
            while self._inside:
                if self.stuck or waited.look() > self._timeout:
                    raise StalledError(f"the actor did not finish its step within {self._timeout:g} s")
                time.sleep(0.0005)
            yield
        finally:
            self._holders -= 1


@dataclass
class Busy:
    """Fraction of its time that a loop worked, since the last query."""

    waited: float = 0.0
    since: float = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Enclose a wait."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - begin

    def share(self) -> float:
        """Return the fraction of time spent working since the last call, and start a new interval."""
        now = time.perf_counter()
        span, waited = now - self.since, self.waited
        self.since, self.waited = now, 0.0
        return min(1.0, max(0.0, 1 - waited / span)) if span > 0 else 0.0
