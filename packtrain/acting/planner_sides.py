"""Protocols of the objects around a planning policy: the receiver of its events, and its environments."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from packtrain.planning.events import Listener
from packtrain.planning.model import Stepped
from packtrain.trees import Tree


class Watcher(Listener, Protocol):
    """Receives the events of searches, and real transitions."""

    def episode_begin(self, columns: np.ndarray, epoch: int, states: Tree, seen: Tree = None) -> None:
        """Receive the start of an episode in these environments; `seen`: the states as a learned model sees them."""

    def real_steps(
        self,
        columns: np.ndarray,
        states: Tree,
        actions: Any,
        rewards: Any,
        ended: Any,
        extras: dict[str, Any],
        seen: Tree = None,
        predicted: Stepped | None = None,
    ) -> None:
        """Receive real transitions: the resulting states, and the planner's extras at the decision.

        With a learned model, `seen` are the states as it sees them, and `predicted` is its prediction.
        """


class PlannedStream(Protocol):
    """The attributes of a stream that an actor state reads: size, simulator states, solved tasks."""

    size: int

    @property
    def solved(self) -> np.ndarray | None:
        """Return whether each task was solved, [B] bool; None: the environment does not report it."""

    @property
    def columns(self) -> Any:
        """Return the vector environment."""
