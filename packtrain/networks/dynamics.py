"""World models of continuous control: ensembles that guess where a step leads, what it pays, and whether it ends all.

Deterministic, as in STEVE (Buckman et al. 2018, arXiv:1807.01675): s' = s + f(s, a), r = R(s', s, a), and the
probability of an end σ(D(s', s, a)), all in raw units. Probabilistic, as in PETS and MBPO (Chua et al. 2018,
arXiv:1805.12114): f gives the mean and the variance of a Gaussian, inputs and changes are normalised, and only the
members that are best on held-out steps are asked, the elites. Where a task's ends follow from what is seen, as in MBPO,
a rule may say them instead of D.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.networks.stacked import Activation, Initialisation, StackedMlp

NARROWEST, WIDEST = -10.0, 2.0  # logarithm of the variance of a normalised change


class EndRule(Protocol):
    """When a task is over, for whoever knows."""

    def check(self, obs_size: int) -> None:
        """ConfigError if it does not fit observations of so many numbers."""

    def ended(self, obs: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """Which of the steps [..., D], [..., A], [..., D] are the last, bool [...]."""


@configurable
@dataclass(frozen=True)
class EndOutside:
    """A task that is over as soon as a number of the observation is outside its range; without ranges, never."""

    ranges: tuple[tuple[int, float | None, float | None], ...] = ()  # place in the observation, low, high; None: open
    most: float | None = None  # every number stays between minus this and this; None: anything goes

    def __post_init__(self) -> None:
        for place, low, high in self.ranges:
            if place < 0 or (low is not None and high is not None and not low < high):
                raise ConfigError(f"EndOutside.ranges has {(place, low, high)}: a place from 0 on, low below high")
        if self.most is not None and not self.most > 0:
            raise ConfigError(f"EndOutside.most = {self.most} must be above 0")

    def check(self, obs_size: int) -> None:
        """Whether there are so many numbers."""
        last = max((place for place, _, _ in self.ranges), default=-1)
        if last >= obs_size:
            raise ConfigError(f"EndOutside.ranges speaks of number {last}, and observations have 0 to {obs_size - 1}")

    def ended(self, obs: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """By where a step led alone. What is not a number is outside."""
        inside = torch.ones_like(after[..., 0], dtype=torch.bool)
        for place, low, high in self.ranges:
            if low is not None:
                inside = inside & (after[..., place] > low)
            if high is not None:
                inside = inside & (after[..., place] < high)
        if self.most is not None:
            inside = inside & (after.abs() < self.most).all(-1)
        return ~inside


@configurable
@dataclass(frozen=True)
class Dynamics:
    """Sizes of a world model; defaults are STEVE's."""

    transitions: int = 4  # members that guess where a step leads and whether it is the last
    rewards: int = 4  # members that guess what it pays
    hidden_size: int = 512
    num_layers: int = 7  # hidden layers
    aux_hidden_size: int = 128  # of rewards and ends
    aux_num_layers: int = 3
    probabilistic: bool = False  # Gaussian, and sampled from; False: the mean alone
    normalise: bool = False  # inputs and changes, by running moments
    elites: int | None = None  # transition members that are asked; None: all
    initialisation: Initialisation = "glorot"
    activation: Activation = "relu"
    known_end: EndRule | None = None  # says which imagined steps are the last; None: as has been learned

    def __post_init__(self) -> None:
        for name in ("transitions", "rewards", "hidden_size", "aux_hidden_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Dynamics.{name} = {getattr(self, name)} must be at least 1")
        for name in ("num_layers", "aux_num_layers"):
            if getattr(self, name) < 0:
                raise ConfigError(f"Dynamics.{name} = {getattr(self, name)} must not be negative")
        if self.elites is not None and not 1 <= self.elites <= self.transitions:
            raise ConfigError(
                f"Dynamics.elites = {self.elites} must lie between 1 and transitions = {self.transitions}"
            )
        if self.probabilistic and not self.normalise:
            raise ConfigError("Dynamics.probabilistic needs Dynamics.normalise: variances are bounded in such units")

    def build(self, obs_size: int, action_size: int) -> DynamicsNetwork:
        """The module; weights are drawn from torch's global generator."""
        if self.known_end is not None:
            self.known_end.check(obs_size)
        return DynamicsNetwork(self, obs_size, action_size, self.transitions)

    def build_elites(self, obs_size: int, action_size: int) -> DynamicsNetwork:
        """The same with as many transition members as there are elites."""
        return DynamicsNetwork(self, obs_size, action_size, self.elites or self.transitions)


class Guess(NamedTuple):
    """What transition members say of N steps: a Gaussian over normalised changes, or the change itself."""

    mean: Tensor  # [R, K, N, D]
    log_variance: Tensor | None  # [R, K, N, D]; None: deterministic


class DynamicsNetwork(nn.Module):
    """The three ensembles, and the moments that inputs and changes are normalised by. Runs are in front everywhere."""

    def __init__(self, sizes: Dynamics, obs_size: int, action_size: int, transitions: int):
        super().__init__()
        self.sizes = sizes
        self.holdout = False  # whether batches leave out held-out steps; set by `DynamicsLearning.build`
        mlp = partial(StackedMlp, activation=sizes.activation, initialisation=sizes.initialisation)
        body = mlp(transitions, (sizes.hidden_size,) * sizes.num_layers)
        aux = (sizes.aux_hidden_size,) * sizes.aux_num_layers
        step = 2 * obs_size + action_size
        self.transition = body.build(obs_size + action_size, obs_size * (1 + sizes.probabilistic))
        self.reward = mlp(sizes.rewards, aux).build(step, 1)
        self.termination = mlp(transitions, aux).build(step, 1)
        self.obs_mean, self.change_mean = (nn.Buffer(torch.zeros(1, 1, obs_size)) for _ in range(2))
        self.obs_std, self.change_std = (nn.Buffer(torch.ones(1, 1, obs_size)) for _ in range(2))
        self.reward_scale = nn.Buffer(torch.ones(1, 1))
        self.elites = nn.Buffer(torch.arange(sizes.elites or sizes.transitions)[None])  # [R, E] the best members

    def pack(self) -> None:
        """See `StackedNetwork.pack`; for models that do not learn."""
        for network in (self.transition, self.reward, self.termination):
            network.pack()

    def guess(self, obs: Tensor, action: Tensor) -> Guess:
        """What every transition member says of the same steps [R, N, ...], or each of its own [R, K, N, ...]."""
        raw = self.transition(torch.cat([self._normal(obs), action], -1))
        if not self.sizes.probabilistic:
            return Guess(raw, None)
        mean, spread = raw.chunk(2, -1)
        spread = WIDEST - nn.functional.softplus(WIDEST - spread)
        return Guess(mean, NARROWEST + nn.functional.softplus(spread - NARROWEST))

    def judge(self, network: nn.Module, obs: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """What `reward` or `termination` says of steps, in its own units: [R, K, N]."""
        return network(torch.cat([self._normal(after), self._normal(obs), action], -1))[..., 0]

    def change(self, obs: Tensor, after: Tensor) -> Tensor:
        """The change between two observations, as the transition members guess it."""
        return (after - obs - _like(self.change_mean, obs)) / _like(self.change_std, obs)

    def move(self, obs: Tensor, action: Tensor, noise: Tensor | None = None) -> Tensor:
        """Where each transition member thinks a step leads, from where it stands.

        Args:
          obs: [R, K, N, D].
          action: [R, K, N, A].
          noise: [R, K, N, D] standard normal numbers; None: the mean.
        """
        guess = self.guess(obs, action)
        moved = guess.mean
        if noise is not None and guess.log_variance is not None:
            moved = moved + noise * torch.exp(0.5 * guess.log_variance)
        return obs + _like(self.change_mean, obs) + moved * _like(self.change_std, obs)

    def judge_rollout(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """What the steps of a rollout pay, by each reward member, and the probability that each is the last.

        Args:
          obs: [R, H+1, K, N, D] where each transition member was.
          action: [R, H, K, N, A].

        Returns:
          Rewards [R, H, K, L, N] and probabilities [R, H, K, N].
        """
        steps = (obs[:, :-1], action, obs[:, 1:])
        paid = self.judge(self.reward, *(part.flatten(1, 3) for part in steps))  # [R, L, H*K*N]: all judge all
        paid = (paid * self.reward_scale.unsqueeze(-1)).unflatten(-1, action.shape[1:4])
        if self.sizes.known_end is not None:
            return paid.movedim(1, 3), self.sizes.known_end.ended(*steps).to(paid.dtype)
        own = (part.transpose(1, 2).flatten(2, 3) for part in steps)  # [R, K, H*N, ...]: each member its own path
        over = self.judge(self.termination, *own).unflatten(-1, (action.shape[1], -1)).transpose(1, 2)
        return paid.movedim(1, 3), over.sigmoid()

    @torch.no_grad()
    def take_elites(self, model: DynamicsNetwork) -> None:
        """Become a copy of a model that has only its elites."""
        if self.transition.members == model.transition.members:  # all of them
            torch._foreach_copy_(self._numbers(), model._numbers())
            return
        for name, mine in [*self.named_parameters(), *self.named_buffers()]:
            theirs = model.get_parameter(name) if isinstance(mine, nn.Parameter) else model.get_buffer(name)
            if name.startswith(("transition.", "termination.")):
                members = theirs.unflatten(0, (len(model.elites), -1))  # [R, K, ...]
                places = model.elites.reshape(*model.elites.shape, *[1] * (theirs.ndim - 1))
                theirs = members.gather(1, places.expand(-1, -1, *theirs.shape[1:])).flatten(0, 1)
            mine.copy_(theirs)

    def _numbers(self) -> list[Tensor]:
        return [leaf for leaf in (*self.parameters(), *self.buffers()) if leaf.is_floating_point()]

    def _normal(self, obs: Tensor) -> Tensor:
        if not self.sizes.normalise:
            return obs
        return (obs - _like(self.obs_mean, obs)) / _like(self.obs_std, obs)


def _like(moments: Tensor, rows: Tensor) -> Tensor:
    """[R, 1, D] against rows [R, N, D] or [R, K, N, D]."""
    return moments if rows.ndim == 3 else moments.unsqueeze(1)
