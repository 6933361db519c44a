"""The newest version of the weights, and the version that was stored for workers last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from packtrain.runtime.cluster.calls import Engine


class WeightVersions:
    """Stores a version for workers when a call first needs it: at most one for each call's duration."""

    def __init__(self) -> None:
        self.newest = -1
        self.put = -1  # the version that was stored last
        self.token: Any = None  # result of `Engine.put` for it
        self._at = -math.inf  # when it was stored
        self._weights: Callable[[], Any] | None = None

    def publish(self, version: int, weights: Callable[[], Any]) -> None:
        """Make a version the newest; `weights` is called if and when it is stored."""
        self.newest, self._weights = version, weights

    def is_old(self, now: float, secs: float) -> bool:
        """Return whether there is no stored version, or the newest is not stored and the stored one is older than so.

        Args:
          now: time of the flow control.
          secs: minimum time between two versions.
        """
        return self.newest != self.put and (self.put < 0 or now - self._at >= secs)

    def store(self, engine: Engine, now: float) -> None:
        """Store the newest version where workers can read it, if it is not stored yet.

        Args:
          engine: stores it.
          now: time of the flow control.
        """
        if self.newest != self.put:
            assert self._weights is not None
            self.token = engine.put(self.newest, self._weights())
            self.put, self._at = self.newest, now
