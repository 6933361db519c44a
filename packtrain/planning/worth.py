"""What nodes of best-first search are worth, as targets and to be expanded: heuristics of `BestFirstSearchAgent`."""

from __future__ import annotations

import numpy as np

from packtrain.planning.nodes import Nodes
from packtrain.planning.verification import Verification


class Worth:
    """Heuristics of nodes."""

    def __init__(
        self,
        nodes: Nodes,
        expand_heuristic: str,
        top_level_heuristic: str,
        verification: Verification | None = None,
        doubt_octaves: int = 1,
    ):
        """Of nodes by these heuristics.

        Args:
          nodes: have `value`, `auxiliary`, `open`, `solved`, and `bonuses` and `found_bonus` where a heuristic looks at
            them.
          expand_heuristic: what the fringe is ordered by.
          top_level_heuristic: what targets are chosen by.
          verification: targets are chosen by how unsure the model is there, and by nothing else; None: they are not.
          doubt_octaves: so many of doubt count as alike; 0: all of it.
        """
        self._nodes, self._verification, self._doubt_octaves = nodes, verification, doubt_octaves
        self._expands_by, self._chooses_by = expand_heuristic, top_level_heuristic

    def rank(self, ids: np.ndarray) -> np.ndarray:
        """Of nodes [M] as targets: whole numbers that compare as the tuples of the heuristic do."""
        nodes, by = self._nodes, self._chooses_by
        if by == "neg_distance" and self._verification is None:
            return np.zeros(len(ids), np.int64)  # all equal: then the nearest is taken
        rank = nodes.open.take(ids).astype(np.int64)
        if self._verification is not None:
            rank |= ordered(nodes.auxiliary.take(ids)) << 21 | self.doubt(ids) << 53
        elif by == "solved_then_auxiliary_then_bonus":
            rank |= ordered(nodes.auxiliary.take(ids)) << 30
            rank |= (ordered(self._bonus(ids)) >> 3) << 1  # bonuses lose three bits
        else:
            rank |= ordered(self._score(ids, by.removeprefix("solved_then_"))) << 30
        if by.startswith("solved") or self._verification is not None:
            rank |= nodes.solved.take(ids).astype(np.int64) << 62
        return rank

    @staticmethod
    def doubt_of(rank: np.ndarray) -> np.ndarray:
        """The doubt in ranks; those of nodes that solve the task are above all doubt."""
        return rank >> 53

    def doubt(self, ids: np.ndarray) -> np.ndarray:
        """How unsure the model is of an action of nodes [M], in steps of octaves, below 512; 0 up to noise."""
        assert self._verification is not None
        bonus, octaves = self._bonus(ids), self._doubt_octaves
        noise = self._verification.noise(self._nodes.owner.take(ids))
        level = np.minimum(1 + (ordered(bonus) >> 23) // octaves, 511) if octaves else 1
        return np.where(bonus > noise, level, 0)

    def of_expansion(self, ids: np.ndarray) -> np.ndarray:
        """Of fringe nodes [M], which have no bonuses of their own: that of the edge that found them. float32."""
        nodes, by = self._nodes, self._expands_by
        if by == "bonus":
            return nodes.found_bonus.take(ids)
        score = self._score(ids, by)
        return score + nodes.found_bonus.take(ids) if by == "value_plus_bonus" else score

    def _score(self, ids: np.ndarray, heuristic: str) -> np.ndarray:
        """A heuristic of nodes [M], float32."""
        nodes = self._nodes
        if heuristic == "bonus":
            return self._bonus(ids)
        value = nodes.value.take(ids)
        if heuristic == "value_plus_bonus":
            return value + self._bonus(ids)
        return value + nodes.auxiliary.take(ids) if heuristic == "index" else value

    def _bonus(self, ids: np.ndarray) -> np.ndarray:
        """The largest bonus of the actions of nodes [M]; 0 of those that are not expanded."""
        return self._nodes.bonuses.take(ids, axis=0).max(axis=1)


def ordered(scores: np.ndarray) -> np.ndarray:
    """Whole numbers in [0, 2^32) that compare as float32 scores do; int64."""
    bits = (scores + np.float32(0)).view(np.int32)  # −0 becomes 0
    return (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).astype(np.int64) + (1 << 31)
