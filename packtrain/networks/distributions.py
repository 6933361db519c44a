"""Action distributions over a flat vector of parameters [..., P]: how many it needs, and what it means.

Each is a value made from an action space. Log-probabilities and entropies of many-dimensional actions are sums over
the dimensions, so V-trace sees one ratio per decision whatever the action space.
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
    """How parameters [..., P] become actions."""

    @property
    def num_parameters(self) -> int:
        """P."""

    @property
    def features(self) -> int:
        """Width of `encode`."""

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Independent draws, one for each leading index."""

    def mode(self, parameters: Tensor) -> Tensor:
        """The greedy action."""

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """[...] log-probability (density) of actions."""

    def entropy(self, parameters: Tensor) -> Tensor:
        """[...] entropy in nats."""

    def encode(self, action: Tensor) -> Tensor:
        """Actions as float network input [..., features]."""


@functools.cache
def _identity(n: int, device: torch.device) -> Tensor:
    """Rows to look one-hot vectors up in: one operator, where torch's one_hot takes several."""
    return torch.eye(n, device=device)


@dataclass(frozen=True)
class Categorical:
    """One of `n` actions; the parameters are logits."""

    n: int

    @property
    def num_parameters(self) -> int:
        """One logit an action."""
        return self.n

    @property
    def features(self) -> int:
        """One-hot."""
        return self.n

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Gumbel-max with one draw for every logit: columns never share noise."""
        noise = torch.empty(parameters.shape, device=parameters.device).exponential_(generator=generator)
        return (parameters - noise.log_()).argmax(-1)

    def mode(self, parameters: Tensor) -> Tensor:
        """The likeliest action."""
        return parameters.argmax(-1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Log-softmax at the action."""
        return parameters.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """−Σ p log p."""
        log_probs = parameters.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def encode(self, action: Tensor) -> Tensor:
        """One-hot."""
        return _identity(self.n, action.device)[action]


@dataclass(frozen=True)
class MultiCategorical:
    """Several independent choices; the parameters are their logits side by side."""

    nvec: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """All logits."""
        return sum(self.nvec)

    @property
    def features(self) -> int:
        """One-hot of every choice."""
        return sum(self.nvec)

    def _parts(self, parameters: Tensor) -> list[tuple[Categorical, Tensor]]:
        split = parameters.split(self.nvec, dim=-1)
        return [(Categorical(n), part) for n, part in zip(self.nvec, split, strict=True)]

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Each choice on its own."""
        return torch.stack([one.sample(part, generator) for one, part in self._parts(parameters)], -1)

    def mode(self, parameters: Tensor) -> Tensor:
        """The likeliest of each."""
        return torch.stack([one.mode(part) for one, part in self._parts(parameters)], -1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Sum over the choices."""
        parts = enumerate(self._parts(parameters))
        return torch.stack([one.log_prob(part, action[..., i]) for i, (one, part) in parts], -1).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Sum over the choices."""
        return torch.stack([one.entropy(part) for one, part in self._parts(parameters)], -1).sum(-1)

    def encode(self, action: Tensor) -> Tensor:
        """One-hot of every choice, side by side."""
        return torch.cat([_identity(n, action.device)[action[..., i]] for i, n in enumerate(self.nvec)], -1)


@dataclass(frozen=True)
class Gaussian:
    """A diagonal Gaussian; the parameters are means and log standard deviations. Bounds belong to the environment."""

    shape: tuple[int, ...]
    min_log_std: float = -5.0
    max_log_std: float = 2.0

    @property
    def size(self) -> int:
        """Dimensions of the action."""
        return math.prod(self.shape)

    @property
    def num_parameters(self) -> int:
        """A mean and a log standard deviation a dimension."""
        return 2 * self.size

    @property
    def features(self) -> int:
        """The action itself."""
        return self.size

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = parameters.float().chunk(2, -1)
        return mean, log_std.clamp(self.min_log_std, self.max_log_std)

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Mean + std · noise."""
        mean, log_std = self._split(parameters)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return (mean + log_std.exp() * noise).unflatten(-1, self.shape)

    def mode(self, parameters: Tensor) -> Tensor:
        """The mean."""
        return self._split(parameters)[0].unflatten(-1, self.shape)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Sum of the dimensions' log-densities."""
        mean, log_std = self._split(parameters)
        z = (self._flat(action) - mean) * torch.exp(-log_std)
        return (-0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Σ (log std + ½ log 2πe)."""
        _, log_std = self._split(parameters)
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def encode(self, action: Tensor) -> Tensor:
        """The action, brought to [−1, 1]."""
        return self._flat(action).clamp(-1, 1)

    def _flat(self, action: Tensor) -> Tensor:
        return action.flatten(action.ndim - len(self.shape)) if len(self.shape) != 1 else action


def distribution_for(space: gym.Space) -> Distribution:
    """The distribution for an action space; EnvSetupError for one we have none for."""
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiCategorical(tuple(int(n) for n in space.nvec))
    if isinstance(space, gym.spaces.Box) and space.shape and space.dtype.kind == "f":
        return Gaussian(tuple(space.shape))
    raise EnvSetupError(
        f"no policy for the action space {space}; Discrete, MultiDiscrete and float Box spaces have one"
    )
