"""Arms of a Q-learner, pairs of novelty weight and discount, and the bandit that chooses among them.

NGU: Badia et al. 2020 (arXiv:2002.06038). Agent57: Badia et al. 2020 (arXiv:2003.13350).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from packtrain import check
from packtrain.config import configurable
from packtrain.equations.policy_family import agent57_discounts, ngu_discounts, novelty_weights
from packtrain.errors import ConfigError


@configurable
@dataclass(frozen=True)
class Bandit:
    """Settings of a bandit that chooses an environment's arm for every episode, by the returns of its last episodes."""

    window: int = 160  # number of latest episodes that count
    rule: Literal["ucb1_tuned", "agent57"] = "ucb1_tuned"
    explore: float = 0.1  # probability of a uniformly random arm
    exploration: float = 1.0  # β of agent57's rule, in units of returns

    def __post_init__(self) -> None:
        check.at_least(self, 1, "window")
        check.share(self, "explore")


@configurable
@dataclass(frozen=True)
class Arms:
    """Settings of the arms: pairs of novelty weight β and discount γ. Arm 0 has β = 0."""

    count: int = 32  # N
    largest_weight: float = 0.3  # β of the last arm
    discounts: Literal["one", "ngu", "agent57"] = "ngu"  # one: the learner's discount for all arms
    bandit: Bandit | None = None  # None: environment i always has arm i modulo N

    def __post_init__(self) -> None:
        check.at_least(
            self, 10 if self.discounts == "agent57" else 2, "count", end=f" with {self.discounts!r} discounts"
        )
        check.not_negative(self, "largest_weight")
        if self.bandit is not None and self.bandit.window <= self.count:
            raise ConfigError(
                f"Bandit.window = {self.bandit.window} episodes must be larger than Arms.count = {self.count}: "
                "otherwise arms leave the window before all have been compared"
            )

    def weights(self) -> Tensor:
        """Return β of each arm, [N]."""
        return novelty_weights(self.count, self.largest_weight)

    def own_discounts(self) -> Tensor | None:
        """Return γ of each arm, [N]; None: the learner's discount."""
        if self.discounts == "one":
            return None
        return ngu_discounts(self.count) if self.discounts == "ngu" else agent57_discounts(self.count, ordered=True)
