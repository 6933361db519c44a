"""Planning in a learned world model of continuous control: action sequences are evaluated in an ensemble, and refined.

PETS: Chua et al. 2018 (arXiv:1805.12114), with the cross-entropy method; MPPI: Williams et al. 2017 (arXiv:1707.02342).
The planners of `continuous_shooting.py` use any `Model` and NumPy. Here model and sequences are tensors, all candidates
of all environments and members are one batch, and nothing is copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.networks.dynamics import DynamicsNetwork


@configurable
@dataclass(frozen=True)
class Predictive:
    """Settings of the search over action sequences; defaults are those of PETS for HalfCheetah."""

    optimiser: Literal["cem", "mppi"] = "cem"
    horizon: int = 30  # H, steps
    candidates: int = 500  # sequences per iteration
    iterations: int = 5
    elites: int = 50  # cem only: best candidates, from which the next distribution is computed
    temperature: float = 1.0  # mppi only, in units of the return
    initial_std: float = 0.5  # of the first candidates, for actions scaled to [−1, 1]
    least_std: float = 0.05
    momentum: float = 0.1  # cem only: weight of the old mean and deviation
    discount: float = 1.0
    terminal_value: bool = False  # add γ^H · the critics' value of the last state; needs an actor–critic learner
    value_scale: float = 1.0  # divisor of the critics' values: the learner's reward_scale
    particles: int = 1  # rollouts of a sequence in each member; needs a probabilistic model
    prior_candidates: int = 0  # candidates of the first iteration from rollouts of the policy network

    def __post_init__(self) -> None:
        for name in ("horizon", "candidates", "iterations", "elites", "particles"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Predictive.{name} = {getattr(self, name)} must be at least 1")
        if self.elites > self.candidates:
            raise ConfigError(f"Predictive.elites = {self.elites} is more than candidates = {self.candidates}")
        if not 0 <= self.prior_candidates <= self.candidates:
            raise ConfigError(
                f"Predictive.prior_candidates = {self.prior_candidates} must lie between 0 and candidates = "
                f"{self.candidates}"
            )
        for name in ("temperature", "initial_std", "value_scale"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"Predictive.{name} = {getattr(self, name)} must be above 0")
        for name in ("momentum", "discount"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"Predictive.{name} = {getattr(self, name)} must lie between 0 and 1")

    @property
    def asks_networks(self) -> bool:
        """Whether planning needs the policy network and the critics."""
        return self.terminal_value or self.prior_candidates > 0


def returns(
    model: DynamicsNetwork,
    obs: Tensor,
    actions: Tensor,
    discount: float,
    noise: Tensor | None = None,
    value: Callable[[Tensor], Tensor] | None = None,
    particles: int = 1,
) -> Tensor:
    """Return the return of action sequences in a model, averaged over its members and particles: [B, P].

        Σ_t γ^t (Π_{u<t} (1 − δ_u)) ρ_t + γ^H (Π_{u<H} (1 − δ_u)) V(s_H)

    Args:
      model: of one run.
      obs: [B, D] where they begin.
      actions: [B, P, H, A].
      discount: γ.
      noise: [H, K, B*P*particles, D] standard normal numbers; None: means are followed.
      value: V of states [1, N, D], [N]; None: 0.
      particles: rollouts of each sequence in each member.
    """
    if particles > 1:
        actions = actions.repeat_interleave(particles, 1)
    members, (batch, candidates, horizon) = model.transition.members, actions.shape[:3]
    place = obs.repeat_interleave(candidates, 0).expand(1, members, -1, -1)  # [1, K, B*P, D]
    played = actions.flatten(0, 1).expand(members, -1, -1, -1)[None]  # [1, K, B*P, H, A]
    places = [place]
    for t in range(horizon):
        places.append(model.move(places[t], played[..., t, :], None if noise is None else noise[t][None]))
    paid, over = model.judge_rollout(torch.stack(places, 1), played.movedim(3, 1))
    goes_on = torch.cat([torch.ones_like(over[:, :1]), (1 - over[:, :-1]).cumprod(1)], 1)  # [1, H, K, B*P]
    weight = discount ** torch.arange(horizon, device=obs.device)
    total = (goes_on * paid.mean(3) * weight[None, :, None, None]).sum(1)  # [1, K, B*P]
    if value is not None:
        last = value(places[-1].flatten(1, 2)).view(1, members, -1)
        total = total + discount**horizon * goes_on[:, -1] * (1 - over[:, -1]) * last
    each = total.mean((0, 1))
    if particles > 1:
        each, candidates = each.unflatten(0, (-1, particles)).mean(1), candidates // particles
    return each.unflatten(0, (batch, candidates))


def policy_sequences(
    model: DynamicsNetwork, obs: Tensor, policy: Callable[[Tensor], Tensor], count: int, horizon: int, noise: Tensor
) -> Tensor:
    """Return the actions that a policy takes in a model, [B, P, H, A]; sequence p follows transition member p mod K.

    Args:
      model: of one run; means are followed.
      obs: [B, D] where they begin.
      policy: states [1, N, D] → actions [1, N, A].
      count: P.
      horizon: H.
      noise: [H, B, P, A] added to the actions; the first sequence is without noise.
    """
    member = torch.arange(count, device=obs.device) % model.transition.members
    place = obs.unsqueeze(1).expand(-1, count, -1)  # [B, P, D]
    quiet = (torch.arange(count, device=obs.device) > 0)[:, None]
    taken = []
    for t in range(horizon):
        action = policy(place.flatten(0, 1)[None])[0].unflatten(0, place.shape[:2])
        action = (action + noise[t] * quiet).clamp(-1, 1)
        taken.append(action)
        rows = (part.flatten(0, 1).expand(1, model.transition.members, -1, -1) for part in (place, action))
        moved = model.move(*rows)[0].unflatten(1, place.shape[:2])  # [K, B, P, D]
        place = moved[member, :, torch.arange(count, device=obs.device)].transpose(0, 1)
    return torch.stack(taken, 2)


def proper_scores(scores: Tensor) -> Tensor:
    """Replace NaN and ±inf by −inf: a sequence on which the model broke down is the worst, however it broke down."""
    return torch.where(scores.isfinite(), scores, -torch.inf)


def cross_entropy(
    mean: Tensor, std: Tensor, tried: Tensor, scores: Tensor, settings: Predictive
) -> tuple[Tensor, Tensor]:
    """Return mean and deviation [B, H, A] of the best candidates, smoothed by momentum."""
    best = scores.topk(settings.elites, 1).indices[..., None, None].expand(-1, -1, *tried.shape[2:])
    elites = tried.gather(1, best)
    keep = settings.momentum
    mean = keep * mean + (1 - keep) * elites.mean(1)
    std = keep * std + (1 - keep) * elites.std(1, correction=0)
    return mean, std.clamp(min=settings.least_std)


def path_integral(tried: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Return the mean of all candidates [B, P, H, A], weighted by softmax(scores / temperature): [B, H, A].

    If every score is −inf, all candidates have the same weight.
    """
    none = scores.isneginf().all(1, keepdim=True)
    weight = torch.softmax(torch.where(none, 0.0, scores) / temperature, 1)
    return torch.einsum("bp,bpha->bha", weight, tried)
