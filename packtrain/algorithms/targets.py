"""What a critic is trained towards, one choice of a configuration: how deep into the model, and how depths are mixed.

The mathematics is in `equations/value_expansion.py`; these are its names and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from packtrain.config import configurable
from packtrain.equations import value_expansion as expansion_of
from packtrain.equations.value_expansion import Expansion, Targets
from packtrain.errors import ConfigError


class Target(Protocol):
    """A way to make targets of candidate returns."""

    @property
    def horizon(self) -> int:
        """H, steps of the model; 0: none is needed."""

    @property
    def tdk_trick(self) -> bool:
        """Whether the critic is also trained on imagined pairs."""

    def mix(self, expansion: Expansion) -> Targets:
        """One target of the candidates of all depths."""


@configurable
@dataclass(frozen=True)
class OneStep:
    """DDPG's: the reward and the critic of what follows. With several critics, their mean."""

    horizon = 0
    tdk_trick = False

    def mix(self, expansion: Expansion) -> Targets:
        """There is one depth."""
        return expansion_of.mve_targets(expansion)


@configurable
@dataclass(frozen=True)
class Mve:
    """Model-based value expansion: H steps of the model, then the critic (Feinberg et al. 2018)."""

    horizon: int = 3  # H
    tdk_trick: bool = True  # train the critic on imagined pairs too

    def __post_init__(self) -> None:
        _check_horizon(self)

    def mix(self, expansion: Expansion) -> Targets:
        """The deepest alone."""
        return expansion_of.mve_targets(expansion)


@configurable
@dataclass(frozen=True)
class MveMean:
    """The uniform mean over depths 0 … H."""

    horizon: int = 3  # H
    tdk_trick: bool = False

    def __post_init__(self) -> None:
        _check_horizon(self)

    def mix(self, expansion: Expansion) -> Targets:
        """Every depth alike."""
        return expansion_of.mve_mean_targets(expansion)


@configurable
@dataclass(frozen=True)
class MveTdLambda:
    """TD(λ) over depths 0 … H."""

    horizon: int = 3  # H
    trace_lambda: float = 0.25
    tdk_trick: bool = False

    def __post_init__(self) -> None:
        _check_horizon(self)
        if not 0 <= self.trace_lambda <= 1:
            raise ConfigError(f"MveTdLambda.trace_lambda = {self.trace_lambda} must lie between 0 and 1")

    def mix(self, expansion: Expansion) -> Targets:
        """Depths weighted by powers of λ."""
        return expansion_of.td_lambda_targets(expansion, trace_lambda=self.trace_lambda)


@configurable
@dataclass(frozen=True)
class Steve:
    """Stochastic ensemble value expansion: depths weighted by how little their candidates differ."""

    horizon: int = 3  # H
    epsilon: float = 1e-8  # added to variances
    tdk_trick: bool = False

    def __post_init__(self) -> None:
        _check_horizon(self)
        if self.epsilon <= 0:
            raise ConfigError(f"Steve.epsilon = {self.epsilon} must be above 0")

    def mix(self, expansion: Expansion) -> Targets:
        """Inverse variances."""
        return expansion_of.steve_targets(expansion, epsilon=self.epsilon)


@configurable
@dataclass(frozen=True)
class SteveCov:
    """STEVE with the full covariance between depths."""

    horizon: int = 3  # H
    ridge: float = 1e-3  # added to the diagonal
    tdk_trick: bool = False

    def __post_init__(self) -> None:
        _check_horizon(self)
        if self.ridge <= 0:
            raise ConfigError(f"SteveCov.ridge = {self.ridge} must be above 0")

    def mix(self, expansion: Expansion) -> Targets:
        """The mixture of least variance."""
        return expansion_of.steve_cov_targets(expansion, ridge=self.ridge)


def _check_horizon(target: Target) -> None:
    if target.horizon < 1:
        name = type(target).__name__
        raise ConfigError(f"{name}.horizon = {target.horizon} must be at least 1; without a model there is @OneStep()")
