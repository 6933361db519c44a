"""Ensembles that predict the next observation, the reward and termination, for planners with discrete actions.

There are three kinds with the same interface, `ModelNetwork`: one predicts the change of every coordinate, one the
class of every factor, and `networks/board_model.py` the class of every cell of a board.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.config import configurable
from packtrain.envs import categorical_factors as parts
from packtrain.envs.categorical_factors import Factors
from packtrain.errors import EnvSetupError
from packtrain.networks.ensembles import EnsembleMlp, EnsembleNetwork

Predicts = Literal["changes", "classes", "cells"]


class ModelNetwork(Protocol):
    """An ensemble of K members that predicts transitions; also a torch module, whose `forward` answers planners."""

    predicts: Predicts  # which decoder the planners' model uses; without this attribute: "changes"
    members: int

    def guess(self, obs: Tensor, action: Tensor) -> dict[str, Tensor]:
        """Return all members' predictions, members first, for obs [N, ...] and action [N], or [K, N, ...] and [K, N].

        "reward" and "terminated" are logits [K, N, 1].
        """

    def errors(self, guess: dict[str, Tensor], obs: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each member's next observations [K], and which of them are right [K, N]."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters of the module by name."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of the module."""


class ModelNetworkSettings(Protocol):
    """Settings of a model's network."""

    def build(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], factors: Factors) -> nn.Module:
        """Return the module, a `ModelNetwork`."""


@configurable
@dataclass(frozen=True)
class WorldModel:
    """An ensemble over observation vectors and one-hot actions that predicts the change of every coordinate."""

    ensemble: EnsembleMlp = EnsembleMlp()

    def build(self, observation_space: gym.Space, action_space: gym.Space, factors: Factors = ()) -> WorldModelNetwork:
        """Return the module; EnvSetupError unless observations are vectors and actions are discrete.

        Factors are ignored.
        """
        width, actions = _sizes("WorldModel", observation_space, action_space)
        return WorldModelNetwork(self.ensemble, width, actions)


@configurable
@dataclass(frozen=True)
class FactoredWorldModel:
    """An ensemble over one-hot factors and actions that predicts the class of every factor in the next observation.

    It predicts the next class itself, not whether it changes: a model of changes easily predicts "no change", and where
    that is wrong it is a false loop, which hides all states behind it.
    """

    ensemble: EnsembleMlp = EnsembleMlp()
    prior_scale: float = 0.0  # scale of fixed random networks (priors), added to every head

    def __post_init__(self) -> None:
        check.not_negative(self, "prior_scale")

    def build(
        self, observation_space: gym.Space, action_space: gym.Space, factors: Factors
    ) -> FactoredWorldModelNetwork:
        """Return the module; EnvSetupError unless observations are vectors of the factors and actions are discrete."""
        width, actions = _sizes("FactoredWorldModel", observation_space, action_space)
        parts.checked(factors, width, "FactoredWorldModel")
        return FactoredWorldModelNetwork(self.ensemble, factors, actions, self.prior_scale)


def _sizes(owner: str, observation_space: gym.Space, action_space: gym.Space) -> tuple[int, int]:
    if not isinstance(observation_space, gym.spaces.Box) or len(observation_space.shape) != 1:
        raise EnvSetupError(f"{owner} needs vectors as observations, not {observation_space}; boards need BoardModel")
    if not isinstance(action_space, gym.spaces.Discrete):
        raise EnvSetupError(f"{owner} needs discrete actions, but the action space is {action_space}")
    return observation_space.shape[0], int(action_space.n)


class WorldModelNetwork(nn.Module):
    """Observation and action → {"delta": [N, K, D], "reward": [N, K], "terminated": [N, K]}, the last two logits."""

    predicts: Predicts = "changes"

    def __init__(self, sizes: EnsembleMlp, width: int, actions: int):
        super().__init__()
        self.actions = actions
        self.ensemble = sizes.build(width + actions, {"delta": width, "reward": 1, "terminated": 1})

    @property
    def members(self) -> int:
        """Return the number of members."""
        return self.ensemble.members

    def guess(self, obs: Tensor, action: Tensor) -> dict[str, Tensor]:
        """Return all members' predictions, members first, for obs [N, D] and action [N], or [K, N, D] and [K, N]."""
        one_hot = nn.functional.one_hot(action.long(), self.actions).to(obs.dtype)
        return self.ensemble(torch.cat([obs, one_hot], -1))

    def errors(self, guess: dict[str, Tensor], obs: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean squared error of each member's changes [K], and which next observations are right [K, N]."""
        delta = guess["delta"]
        squares = (delta - (after - obs)).square().mean((1, 2))
        right = (torch.floor(obs + delta.detach() + 0.5) == after).all(-1)  # halves up, as planners decode
        return squares, right

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Answer a planner's request; the axis of members follows that of rows."""
        return rows_first(self.guess(inputs["obs"].float(), inputs["action"]), "delta")


class FactoredWorldModelNetwork(nn.Module):
    """Observation and action → {"classes": [N, K, C], "reward": [N, K], "terminated": [N, K]}, all of them logits.

    The C classes are those of all factors, one factor after the other; each factor has its own softmax.

    With a `prior_scale`, every member is the sum of a trained network and a fixed random one (randomised priors, Osband
    et al. 2018, arXiv:1806.03335). Training compensates the random part only where there is data, so members differ
    elsewhere. The random networks have the first two hidden layers' sizes.
    """

    predicts: Predicts = "classes"
    coordinate: Tensor  # [C]
    value: Tensor  # [C]
    padded: Tensor  # [F, S] classes of each factor, padded with C, which is no class
    factor: Tensor  # [C] factor of each class
    belongs: Tensor  # [C, F] the same as a table of 0 and 1

    def __init__(self, sizes: EnsembleMlp, factors: Factors, actions: int, prior_scale: float = 0.0):
        super().__init__()
        self.factors, self.actions, self.prior_scale = factors, actions, prior_scale
        table, counts = parts.layout(factors), np.array([factor.size for factor in factors])
        classes = int(counts.sum())
        within = np.arange(counts.max())
        padded = np.where(within < counts[:, None], table.starts[:, None] + within, classes)
        factor = np.repeat(np.arange(len(factors)), counts)
        for name, array in (
            ("coordinate", table.coordinate.astype(np.int64)),
            ("value", table.value),
            ("padded", padded),
            ("factor", factor),
            ("belongs", np.eye(len(factors), dtype=np.float32)[factor]),
        ):
            self.register_buffer(name, torch.tensor(array), persistent=False)
        heads = {"classes": classes, "reward": 1, "terminated": 1}
        self.ensemble = sizes.build(classes + actions, heads)
        self.prior: nn.Module | None = None
        if prior_scale > 0:
            self.prior = EnsembleNetwork(sizes.members, sizes.hidden_sizes[:2], classes + actions, heads)
            self.prior.requires_grad_(False)

    @property
    def members(self) -> int:
        """Return the number of members."""
        return self.ensemble.members

    def one_hot(self, obs: Tensor) -> Tensor:
        """Return observations [..., D] as one-hot classes of the factors, [..., C]."""
        return (obs[..., self.coordinate] == self.value).to(self.value.dtype)

    def guess(self, obs: Tensor, action: Tensor) -> dict[str, Tensor]:
        """Return all members' predictions, members first, for obs [N, D] and action [N], or [K, N, D] and [K, N]."""
        inputs = torch.cat([self.one_hot(obs), nn.functional.one_hot(action.long(), self.actions)], -1)
        guess = self.ensemble(inputs)
        if self.prior is None:
            return guess
        prior = self.prior(inputs)
        return {name: head + self.prior_scale * prior[name] for name, head in guess.items()}

    def errors(self, guess: dict[str, Tensor], obs: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Return each member's mean cross-entropy over factors [K], and where all classes are right [K, N]."""
        logits, truth = guess["classes"], self.one_hot(after)  # [K, N, C]
        with torch.no_grad():
            by_factor = self._by_factor(logits)  # [K, N, F, S]
            right = (by_factor.argmax(-1) == self._by_factor(truth).argmax(-1)).all(-1)
            largest = by_factor.amax(-1)  # [K, N, F]
        # log Σ exp of each factor, as a product with a table, since factors differ in size
        scale = (logits - largest[..., self.factor]).exp() @ self.belongs
        entropy = (scale.log() + largest).sum(-1) - (logits * truth).sum(-1)  # [K, N]
        return entropy.mean(-1) / len(self.factors), right

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Answer a planner's request; the axis of members follows that of rows."""
        return rows_first(self.guess(inputs["obs"].float(), inputs["action"]), "classes")

    def _by_factor(self, classes: Tensor) -> Tensor:
        """[..., C] → [..., F, S], with −∞ for classes that a factor does not have."""
        return nn.functional.pad(classes, (0, 1), value=-torch.inf)[..., self.padded]


def rows_first(guess: dict[str, Tensor], head: str) -> dict[str, Tensor]:
    """Return predictions with the axis of rows first, as planners receive them."""
    return {
        head: guess[head].transpose(0, 1),
        "reward": guess["reward"][..., 0].T,
        "terminated": guess["terminated"][..., 0].T,
    }
