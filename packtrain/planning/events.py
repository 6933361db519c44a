"""What planners tell while they search. Every planner tells all of it, for all its columns at once."""

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
    """Hears of a search.

    A pass is one descent of a tree search, one expansion of best-first search, one batch of rollouts of shooting.
    """

    def pass_begin(self, columns: np.ndarray) -> None:
        """A pass begins in these columns."""

    def model_steps(self, steps: ModelSteps) -> None:
        """The model was stepped in the pass under way."""

    def pass_end(self, columns: np.ndarray) -> None:
        """The pass is over."""
