"""Events of searches, which every planner reports for all its environments at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

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


@dataclass
class SearchRecord:
    """The search data of one environment at a decision: a tree, a graph, or whole action sequences.

    Node 0 is the root. N nodes, E edges, S states. A field that the planner does not have is missing. Fields of nodes:
    "value", "visits", "terminal", "solved", "expanded", "index", "untried". Fields of edges besides "from", "to" and
    "action": "visits", "value", "prior", "bonus", "index", "reward", "disagreement".
    """

    planner: str
    kind: Literal["tree", "graph", "sequences"]
    nodes: dict[str, np.ndarray] = field(default_factory=dict)  # [N] each
    edges: dict[str, np.ndarray] = field(default_factory=dict)  # [E] each
    path: list[int] = field(default_factory=list)  # edges of the plan, from the root on
    left_out: int = 0  # nodes beyond the limit
    numbers: np.ndarray | None = None  # [N] the planner's numbers of nodes, as in `ModelSteps`; NO_NODE: none
    states: Tree = None  # [S, ...]
    state_rows: np.ndarray | None = None  # [N] rows of `states`, NO_NODE: unknown; None: one state per node
    sequences: dict[str, Any] = field(default_factory=dict)  # of kind "sequences": see `search_records.py`


Describe = Callable[[int, int], SearchRecord]
"""(row of the reported environments, maximum number of nodes) → what is known there; valid until the next plan."""


def tell_search(listener: Listener | None, columns: np.ndarray, describe: Describe) -> None:
    """Report finished searches of environments [R], if the listener has the optional method `searched`.

    Args:
      listener: of the planner.
      columns: the environments.
      describe: called by the listener for those environments that it records.
    """
    searched = getattr(listener, "searched", None)
    if searched is not None:
        searched(columns, describe)
