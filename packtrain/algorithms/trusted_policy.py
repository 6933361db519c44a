"""A penalty that keeps a policy near a trusted one: a mitigation of reward misspecification for IMPALA and PPO.

    loss + coefficient · mean_t D(π(·|x_t) ‖ π_trusted(·|x_t))     D: KL or χ²

The trusted policy is the network of another run with its weights frozen. The trajectory comes from the learner's own
policy, so the penalty is large where the learner goes and the trusted policy would act otherwise.

Deviations from Laidlaw, Singhal and Dragan 2024 (arXiv:2403.03185), who show that the χ² divergence of occupancy
measures bounds the loss of true reward:
 1. The divergence is between action distributions in visited states, not between occupancy measures.
 2. It is part of the loss, not of the reward: the gradient does not see that an action leads to states in which the
    policies differ.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from packtrain import check
from packtrain.config import configurable
from packtrain.equations.divergences import (
    categorical_hellinger,
    categorical_kl,
    categorical_log_chi_square,
    chi_square_from_log,
    gaussian_hellinger,
    gaussian_kl,
)
from packtrain.errors import ConfigError
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.networks.distributions import Categorical, Distribution, Gaussian, MultiCategorical
from packtrain.networks.prediction import load_weights


@configurable
@dataclass(frozen=True)
class TrustedPolicy:
    """Which policy is trusted, and the weight of the penalty for diverging from it."""

    weights: str | None = None  # .safetensors file, such as RUN/checkpoints/STEP/weights.safetensors; None: no penalty
    divergence: Literal["kl", "chi_square"] = "kl"  # chi_square: discrete actions only
    coefficient: float = 0.1  # of the mean divergence per decision, in nats for KL; 0: it is only measured
    start: bool = False  # a new run begins with the trusted weights

    def __post_init__(self) -> None:
        check.not_negative(self, "coefficient")

    def freeze(self, network: ActorCriticNetwork) -> ActorCriticNetwork | None:
        """Return the trusted network, None without weights; ConfigError if they do not fit the network that learns.

        With `start`, the network that learns receives the same weights.

        Args:
          network: what learns; the trusted one has the same shape.
        """
        if self.weights is None:
            if self.start:
                raise ConfigError("TrustedPolicy.start needs TrustedPolicy.weights, the weights to begin with")
            return None
        if network.core is not None:
            raise ConfigError(
                "TrustedPolicy compares networks without recurrent state: the stored state belongs to the learner's "
                "own LSTM; set use_lstm to False"
            )
        if self.divergence == "chi_square" and isinstance(network.distribution, Gaussian):
            raise ConfigError(
                "TrustedPolicy.divergence = 'chi_square' needs discrete actions: between Gaussians it may be infinite; "
                "use 'kl'"
            )
        trusted = copy.deepcopy(network).requires_grad_(False).eval()
        load_weights(trusted, self.weights, "TrustedPolicy.weights")
        if self.start:
            network.load_state_dict(trusted.state_dict())
        return trusted

    def mean_divergence(
        self, distribution: Distribution, parameters: Tensor, trusted: Tensor, weight_t: Tensor
    ) -> Tensor:
        """Return the mean divergence per decision, 0-d.

        Args:
          distribution: of both policies.
          parameters: [T, B, P] of the one that learns.
          trusted: [T, B, P] of the trusted one.
          weight_t: [T, B] 0 for filler rows, else 1.
        """
        apart = divergence(distribution, parameters, trusted, self.divergence)
        return torch.where(weight_t > 0, apart, 0.0).sum() / weight_t.sum().clamp(min=1)


@torch.no_grad()
def mean_hellinger(distribution: Distribution, parameters: Tensor, trusted: Tensor, weight_t: Tensor) -> Tensor:
    """Return the mean Hellinger distance per decision from the trusted policy, 0-d from 0 to 1; for audits.

    Args:
      distribution: of both policies.
      parameters: [T, B, P] of the one that learns.
      trusted: [T, B, P] of the trusted one.
      weight_t: [T, B] 0 for filler rows, else 1.
    """
    apart = hellinger(distribution, parameters, trusted)
    return torch.where(weight_t > 0, apart, 0.0).sum() / weight_t.sum().clamp(min=1)


def hellinger(distribution: Distribution, p: Tensor, q: Tensor) -> Tensor:
    """Return the Hellinger distance [...] of action distributions with parameters [..., P].

    Independent choices: 1 − H² is the product over them.
    """
    if isinstance(distribution, Gaussian):
        (p_mean, p_log_std), (q_mean, q_log_std) = distribution.split(p), distribution.split(q)
        return gaussian_hellinger(p_mean, p_log_std.exp(), q_mean, q_log_std.exp())
    overlaps = [1 - categorical_hellinger(*pair).square() for pair in _choices(distribution, p, q)]
    return (1 - torch.stack(overlaps).prod(0)).clamp(min=0.0).sqrt()


def divergence(distribution: Distribution, p: Tensor, q: Tensor, kind: Literal["kl", "chi_square"]) -> Tensor:
    """Return D(p ‖ q) [...] of action distributions with parameters [..., P].

    Independent choices: KL is the sum over them, and 1 + χ² the product.
    """
    if isinstance(distribution, Gaussian):
        (p_mean, p_log_std), (q_mean, q_log_std) = distribution.split(p), distribution.split(q)
        return gaussian_kl(p_mean, p_log_std.exp(), q_mean, q_log_std.exp())
    pairs = _choices(distribution, p, q)
    if kind == "kl":
        return torch.stack([categorical_kl(*pair) for pair in pairs]).sum(0)
    return chi_square_from_log(torch.stack([categorical_log_chi_square(*pair) for pair in pairs]).sum(0))


def _choices(distribution: Distribution, p: Tensor, q: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the logits of both policies for each independent choice."""
    assert isinstance(distribution, (Categorical, MultiCategorical))
    sizes = distribution.nvec if isinstance(distribution, MultiCategorical) else (distribution.num_parameters,)
    return list(zip(p.split(sizes, dim=-1), q.split(sizes, dim=-1), strict=True))
