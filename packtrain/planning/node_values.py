"""Values of the nodes of deterministic MCTS: one number, or one for each member of an ensemble.

A node stores the sum of the values added to it, [*shape], and their count. The first value is the network's. What is
backed up (`get`), what actions are selected by (`index`) and what a network learns (`target`) follow from these.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from packtrain.planning.counter_rng import chance

MASKS = 0x6D61736B  # purpose of a random number: the masks of `EnsembleValue`


class Values(Protocol):
    """Storage of the values of M nodes, and the statistics read from it."""

    shape: tuple[int, ...]  # shape of a node's value: () or (members,)

    def begin(self, columns: np.ndarray, decisions: int) -> None:
        """Begin an episode in these environments, after this many decisions of the planner."""

    def initial(self, columns: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Return values [M, *shape] from a network's answers [M, outputs] for nodes of these environments [M]."""

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """Reshape numbers [M], such as rewards, so that they can be added to values [M, *shape]."""

    def get(self, total: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Return alpha · mean, [M, *shape]; 0 where nothing was added."""

    def target(self, values: np.ndarray) -> np.ndarray:
        """Return the training target [M] from values as `get` returns them."""

    def index(self, values: np.ndarray, bonus: np.ndarray | None, aux: np.ndarray) -> np.ndarray:
        """Return the index [M] by which actions are selected, from `get`, the mean bonus and the auxiliary term."""


class ScalarValue:
    """One number per node: index = alpha · mean + beta · bonus + aux, target = alpha · mean."""

    shape: tuple[int, ...] = ()

    def __init__(self, alpha: float = 1.0, beta: float = 0.0):
        self.alpha, self.beta = alpha, beta

    def begin(self, columns: np.ndarray, decisions: int) -> None:
        """Do nothing: there is nothing to sample."""

    def initial(self, columns: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Return the only output, [M, 1] → [M]."""
        return answers[:, 0]

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers as they are."""
        return numbers

    def get(self, total: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Return alpha · mean, [M]."""
        mean: np.ndarray = self.alpha * (total / np.maximum(count, 1))
        return mean

    def target(self, values: np.ndarray) -> np.ndarray:
        """Return the values themselves."""
        return values

    def index(self, values: np.ndarray, bonus: np.ndarray | None, aux: np.ndarray) -> np.ndarray:
        """Return the sum of value, weighted bonus and auxiliary term."""
        return values + aux if bonus is None else values + self.beta * bonus + aux


class EnsembleValue:
    """One number per ensemble member: index = mean + kappa · std + beta · bonus + aux, target = mean.

    Mean and population standard deviation are over `mask_size` of the `size` members. These are sampled without
    replacement for each environment at the begin of each episode. A node belongs to one episode, so only these members
    are stored.
    """

    def __init__(
        self, size: int, mask_size: int, columns: int, seed: int, kappa: float, alpha: float = 1.0, beta: float = 0.0
    ):
        self.shape: tuple[int, ...] = (mask_size,)
        self.kappa, self.alpha, self.beta = kappa, alpha, beta
        self._size, self._seed = size, seed
        self.members = np.zeros((columns, mask_size), np.int64)  # members used in each environment's episode, ascending
        self.begin(np.arange(columns), 0)

    def begin(self, columns: np.ndarray, decisions: int) -> None:
        """Sample ensemble members for new episodes."""
        noise = chance(self._seed, MASKS, columns[:, None], decisions, np.arange(self._size))
        self.members[columns] = np.sort(noise.argsort(axis=1)[:, : self.shape[0]], axis=1)

    def initial(self, columns: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Return the outputs of each environment's members, [M, size] → [M, mask_size]."""
        return np.take_along_axis(answers, self.members[columns], axis=1)

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """Return the same number for all members: [M] → [M, 1]."""
        return numbers[:, None]

    def get(self, total: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Return alpha · mean of each member, [M, mask_size]."""
        mean: np.ndarray = self.alpha * (total / np.maximum(count, 1)[:, None])
        return mean

    def target(self, values: np.ndarray) -> np.ndarray:
        """Return the members' mean."""
        mean: np.ndarray = values.mean(axis=1)
        return mean

    def index(self, values: np.ndarray, bonus: np.ndarray | None, aux: np.ndarray) -> np.ndarray:
        """Return an index that is optimistic where members disagree."""
        optimistic: np.ndarray = values.mean(axis=1) + self.kappa * values.std(axis=1)
        return optimistic + aux if bonus is None else optimistic + self.beta * bonus + aux
