"""Events of searches, which every planner reports for all its environments at once."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from packtrain.trees import Tree


class ModelSteps(NamedTuple):
    """M steps made in the model, in the order in which a single search would have made them."""

    columns: np.ndarray  # [M] environment
    source: np.ndarray  # [M] id of the state before the step, unique within an episode; −1: not stored
    target: np.ndarray  # [M] id of the state after it
    states: Tree  # [M, ...] states after the steps
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
