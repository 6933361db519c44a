"""What a graph search keeps of the values of a state: one number, or one for each member of an ensemble.

A node keeps the sum of the values added to it, [*shape], and their count; the first one added is the network's. From
these come what is backed up (`get`), what children are chosen by (`index`) and what a network learns (`target`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from packtrain.planning.chance import chance

MASKS = 0x6D61736B  # sets these random numbers apart from others of the same seed and column


class Values(Protocol):
    """How the values of M nodes are kept and read."""

    shape: tuple[int, ...]  # of one node's value: () or (members,)
    outputs: int  # of the value head

    def begin(self, columns: np.ndarray, decisions: int) -> None:
        """An episode begins in these columns, after so many decisions of the planner."""

    def initial(self, columns: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Values [M, *shape] from a network's answers [M, outputs] for nodes of these columns [M]."""

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers [M], rewards say, so that they can be added to values [M, *shape]."""

    def get(self, total: np.ndarray, count: np.ndarray) -> np.ndarray:
        """What is backed up, [M, *shape]: alpha · mean; 0 where nothing was added."""

    def target(self, values: np.ndarray) -> np.ndarray:
        """What a network learns from values as `get` gives them, [M]."""

    def index(self, values: np.ndarray, bonus: np.ndarray | None, aux: np.ndarray) -> np.ndarray:
        """What children are chosen by, [M], from values as `get` gives them, the mean bonus and the auxiliary term."""


class ScalarValue:
    """One number a node: index = alpha · mean + beta · bonus + aux, target = alpha · mean."""

    shape: tuple[int, ...] = ()
    outputs = 1

    def __init__(self, alpha: float = 1.0, beta: float = 0.0):
        self.alpha, self.beta = alpha, beta

    def begin(self, columns: np.ndarray, decisions: int) -> None:
        """Nothing is drawn."""

    def initial(self, columns: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """The only output, [M, 1] → [M]."""
        return answers[:, 0]

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """As they are."""
        return numbers

    def get(self, total: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Alpha · mean, [M]."""
        return self.alpha * (total / np.maximum(count, 1))

    def target(self, values: np.ndarray) -> np.ndarray:
        """The same."""
        return values

    def index(self, values: np.ndarray, bonus: np.ndarray | None, aux: np.ndarray) -> np.ndarray:
        """Value, bonus and auxiliary term together."""
        return values + aux if bonus is None else values + self.beta * bonus + aux


class EnsembleValue:
    """A number for each ensemble member: index = mean + kappa · std + beta · bonus + aux, target = mean.

    Mean and population standard deviation are over `mask_size` of the `size` members, drawn without replacement for
    each column at the begin of each of its episodes. A node belongs to one episode, so only these members are kept.
    """

    def __init__(
        self, size: int, mask_size: int, columns: int, seed: int, kappa: float, alpha: float = 1.0, beta: float = 0.0
    ):
        self.shape: tuple[int, ...] = (mask_size,)
        self.outputs = size
        self.kappa, self.alpha, self.beta = kappa, alpha, beta
        self._seed = seed
        self.members = np.zeros((columns, mask_size), np.int64)  # of each column's episode, ascending
        self.begin(np.arange(columns), 0)

    def begin(self, columns: np.ndarray, decisions: int) -> None:
        """Draw masks."""
        noise = chance(self._seed, MASKS, columns[:, None], decisions, np.arange(self.outputs))
        self.members[columns] = np.sort(noise.argsort(axis=1)[:, : self.shape[0]], axis=1)

    def initial(self, columns: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """The members of each column's mask, [M, size] → [M, mask_size]."""
        return np.take_along_axis(answers, self.members[columns], axis=1)

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """The same for all members: [M] → [M, 1]."""
        return numbers[:, None]

    def get(self, total: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Alpha · mean of each member, [M, mask_size]."""
        return self.alpha * (total / np.maximum(count, 1)[:, None])

    def target(self, values: np.ndarray) -> np.ndarray:
        """The members' mean."""
        return values.mean(axis=1)

    def index(self, values: np.ndarray, bonus: np.ndarray | None, aux: np.ndarray) -> np.ndarray:
        """Optimistic where members disagree."""
        optimistic = values.mean(axis=1) + self.kappa * values.std(axis=1)
        return optimistic + aux if bonus is None else optimistic + self.beta * bonus + aux
