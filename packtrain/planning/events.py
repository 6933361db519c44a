"""Events of searches, which every planner reports for all its environments at once."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from packtrain.trees import Tree


class ModelSteps(NamedTuple):
    """M steps made in the model, in the order in which a single search would have made them."""

    columns: np.ndarray  # [M] which environment column is planned for
    source: np.ndarray  # [M] a number for the state stepped from, unique within a column's episode; −1: not kept
    target: np.ndarray  # [M] the same for the state it leads to
    states: Tree  # [M, ...] states it leads to
    actions: np.ndarray  # [M, ...]
    rewards: np.ndarray  # [M]
    terminated: np.ndarray  # [M]


class Listener(Protocol):
    """Receives the events of a search.

    A pass is one descent of a tree search, one expansion of best-first search, one batch of rollouts of shooting.
    """

    def pass_begin(self, columns: np.ndarray) -> None:
        """Receive the beginning of a pass in these environments."""

    def model_steps(self, steps: ModelSteps) -> None:
        """Receive model steps of the current pass."""

    def pass_end(self, columns: np.ndarray) -> None:
        """Receive the end of a pass."""
