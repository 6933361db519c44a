"""Action distributions over a flat vector of parameters [..., P].

Each distribution is created from an action space. Log-probabilities and entropies of multi-dimensional actions are sums
over the dimensions, so there is one importance ratio per decision for every action space.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import gymnasium as gym
import torch
from torch import Tensor

from packtrain.errors import EnvSetupError


class Distribution(Protocol):
    """A distribution over actions with parameters [..., P]."""

    @property
    def num_parameters(self) -> int:
        """Return P."""

    @property
    def features(self) -> int:
        """Return the width of `encode`."""

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return independent samples, one for each leading index."""

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the mode, the greedy action."""

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability (or log-density) of actions, [...]."""

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the entropy in nats, [...]."""

    def encode(self, action: Tensor) -> Tensor:
        """Return actions as float network inputs [..., features]."""


@functools.cache
def _identity(n: int, device: torch.device) -> Tensor:
    """Return an identity matrix for looking up one-hot vectors: one operator, where torch's one_hot takes several."""
    return torch.eye(n, device=device)


@dataclass(frozen=True)
class Categorical:
    """One of `n` actions; the parameters are logits."""

    n: int

    @property
    def num_parameters(self) -> int:
        """Return n: one logit per action."""
        return self.n

    @property
    def features(self) -> int:
        """Return n: actions are encoded one-hot."""
        return self.n

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Sample by Gumbel-max with independent noise for every logit."""
        noise = torch.empty(parameters.shape, device=parameters.device).exponential_(generator=generator)
        return (parameters - noise.log_()).argmax(-1)

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the most probable action."""
        return parameters.argmax(-1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Return the log-softmax of the logits at the action."""
        return parameters.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return −Σ p log p."""
        log_probs = parameters.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def encode(self, action: Tensor) -> Tensor:
        """Return the action as a one-hot vector."""
        return _identity(self.n, action.device)[action]


@dataclass(frozen=True)
class MultiCategorical:
    """Several independent categorical choices; the parameters are their concatenated logits."""

    nvec: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Return the total number of logits."""
        return sum(self.nvec)

    @property
    def features(self) -> int:
        """Return the total number of logits: every choice is encoded one-hot."""
        return sum(self.nvec)

    def _parts(self, parameters: Tensor) -> list[tuple[Categorical, Tensor]]:
        split = parameters.split(self.nvec, dim=-1)
        return [(Categorical(n), part) for n, part in zip(self.nvec, split, strict=True)]

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Sample each choice independently."""
        return torch.stack([one.sample(part, generator) for one, part in self._parts(parameters)], -1)

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the most probable value of each choice."""
        return torch.stack([one.mode(part) for one, part in self._parts(parameters)], -1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Return the sum of the choices' log-probabilities."""
        parts = enumerate(self._parts(parameters))
        return torch.stack([one.log_prob(part, action[..., i]) for i, (one, part) in parts], -1).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the sum of the choices' entropies."""
        return torch.stack([one.entropy(part) for one, part in self._parts(parameters)], -1).sum(-1)

    def encode(self, action: Tensor) -> Tensor:
        """Return the concatenated one-hot vectors of all choices."""
        return torch.cat([_identity(n, action.device)[action[..., i]] for i, n in enumerate(self.nvec)], -1)


@dataclass(frozen=True)
class Gaussian:
    """A diagonal Gaussian; the parameters are means and log standard deviations.

    The environment applies action bounds.
    """

    shape: tuple[int, ...]
    min_log_std: float = -5.0
    max_log_std: float = 2.0

    @property
    def size(self) -> int:
        """Return the number of action dimensions."""
        return math.prod(self.shape)

    @property
    def num_parameters(self) -> int:
        """Return 2 · size: a mean and a log standard deviation per dimension."""
        return 2 * self.size

    @property
    def features(self) -> int:
        """Return the size: the action itself is the input."""
        return self.size

    def split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations, [..., size] each."""
        mean, log_std = parameters.float().chunk(2, -1)
        return mean, log_std.clamp(self.min_log_std, self.max_log_std)

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return mean + std · noise."""
        mean, log_std = self.split(parameters)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return (mean + log_std.exp() * noise).unflatten(-1, self.shape)

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the mean."""
        return self.split(parameters)[0].unflatten(-1, self.shape)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Return the sum of the dimensions' log-densities."""
        mean, log_std = self.split(parameters)
        z = (self._flat(action) - mean) * torch.exp(-log_std)
        return (-0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return Σ (log std + ½ log 2πe)."""
        _, log_std = self.split(parameters)
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def encode(self, action: Tensor) -> Tensor:
        """Return the action, clipped to [−1, 1]."""
        return self._flat(action).clamp(-1, 1)

    def _flat(self, action: Tensor) -> Tensor:
        return action.flatten(action.ndim - len(self.shape)) if len(self.shape) != 1 else action


def distribution_for(space: gym.Space) -> Distribution:
    """Return the distribution for an action space; EnvSetupError if there is none for it."""
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiCategorical(tuple(int(n) for n in space.nvec))
    if isinstance(space, gym.spaces.Box) and space.shape and space.dtype.kind == "f":
        return Gaussian(tuple(space.shape))
    raise EnvSetupError(
        f"no policy supports the action space {space}; supported are Discrete, MultiDiscrete and float Box spaces"
    )
