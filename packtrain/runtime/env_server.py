"""Environments in a process of their own, without a policy: they receive actions and return rows. Imports no torch.

Any engine can serve it: a spawned process (`process_engine.py`) or a Ray actor (`cluster/engine.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.envs.environment import Environment
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.vector_env import Outcome, VectorEnv
from packtrain.trees import Tree
from packtrain.types import Spec


@dataclass(frozen=True)
class ServedGroup:
    """A group of environments of a server."""

    number: int  # index among all groups of the run
    size: int  # number of environments
    seed: int


@dataclass(frozen=True)
class EnvServerSetup:
    """Settings of a server, as plain values that do not import torch."""

    environment: Environment
    spec: Spec
    groups: tuple[ServedGroup, ...]
    all_groups: int  # number of groups of the run that share the machine's cores
    import_path: tuple[str, ...] = field(default_factory=tuple)  # folders of the user's modules

    def build(self) -> EnvServer:
        """Return the server; called in the server's process."""
        return EnvServer(self)


class EnvOrder(NamedTuple):
    """An order to a server: reset a group, or step it."""

    group: int
    actions: Tree | None  # [B, ...]; None: reset


class EnvAnswer(NamedTuple):
    """The outcome of a reset or a step of one group, and the server's counts of errors since it began."""

    group: int
    outcome: Outcome
    dropped: int
    clipped: int


class EnvServer:
    """Owns some groups of environments and steps them as ordered."""

    def __init__(self, setup: EnvServerSetup):
        """Open the environments; they are not stepped."""
        self._groups: dict[int, VectorEnv] = {}
        for group in setup.groups:
            self._groups[group.number] = setup.environment.open(group.size, group.seed, setup.spec, setup.all_groups)
        self.progress = 0  # number of steps; lets a supervisor detect a stuck server

    def act(self, order: EnvOrder, version: int, weights: Any) -> tuple[list[Any], EnvAnswer]:
        """Carry out an order; return no rows, and its answer.

        Args:
          order: what to do.
          version: not used: there are no weights.
          weights: not used.
        """
        columns = self._groups[order.group]
        with exits_are_faults([columns]):
            if order.actions is None:
                outcome = columns.reset()
            else:
                columns.send(order.actions)
                outcome = columns.recv()
        self.progress += 1
        # `info` is not needed outside this process
        kept = Outcome(*trees.map(_owned, tuple(outcome._replace(info={}))))
        return [], EnvAnswer(order.group, kept, columns.boundary.dropped, columns.boundary.clipped)

    def close(self) -> None:
        """Close the environments."""
        for columns in self._groups.values():
            columns.close()


def _owned(leaf: Any) -> Any:
    """Return an array as a contiguous array that can be sent; other values are unchanged."""
    return np.ascontiguousarray(leaf) if isinstance(leaf, np.ndarray) else leaf
