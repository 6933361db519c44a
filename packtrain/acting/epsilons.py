"""Probabilities of random actions of ε-greedy policies, one per environment (Ape-X: Horgan et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from packtrain import check
from packtrain.config import configurable
from packtrain.equations.policy_family import actor_epsilons


@configurable
@dataclass(frozen=True)
class Epsilons:
    """Probability of a random action in environment i: ε_i = base^(1 + α i / (N − 1)) (Ape-X); defaults are R2D2's."""

    base: float = 0.4  # ε of the first environment
    base_end: float | None = None  # base after `updates`; None: constant
    alpha: float = 7.0  # exponent: larger values make the last environments explore less
    alpha_end: float | None = None  # alpha after `updates`; None: constant
    updates: int = 30_000  # learner updates over which base and alpha change linearly
    least: float = 0.0
    evaluation: float = 0.0  # ε in evaluations

    def __post_init__(self) -> None:
        check.share(self, "base", "base_end", "least", "evaluation")
        check.not_negative(self, "alpha", "alpha_end")
        check.at_least(self, 1, "updates")

    @property
    def moves(self) -> bool:
        """Return whether ε changes during training."""
        return self.base_end is not None or self.alpha_end is not None

    def after(self, updates: int, columns: int) -> Tensor:
        """Return ε of all environments after `updates` updates, [N]."""
        share = min(1.0, updates / self.updates)
        base, alpha = (
            begin if end is None else begin + share * (end - begin)
            for begin, end in ((self.base, self.base_end), (self.alpha, self.alpha_end))
        )
        return actor_epsilons(columns, base, alpha).clamp(min=self.least)
