"""World models of continuous control: ensembles that predict next observation, reward and termination.

Deterministic models are as in STEVE (Buckman et al. 2018, arXiv:1807.01675): s' = s + f(s, a), r = R(s', s, a), and
termination probability σ(D(s', s, a)), all in raw units. Probabilistic models are as in PETS and MBPO (Chua et al.
2018, arXiv:1805.12114): f predicts mean and variance of a Gaussian, inputs and changes are normalised, and only the
elites are used, the members with the smallest error on held-out steps. If terminations follow from the observation, a
known rule may replace D, as in MBPO.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.networks.stacked import Activation, Initialisation, StackedMlp

NARROWEST, WIDEST = -10.0, 2.0  # bounds of the log-variance of a normalised change


class EndRule(Protocol):
    """A known termination rule."""

    def check(self, obs_size: int) -> None:
        """Raise a ConfigError if the rule does not fit observations of this size."""

    def ended(self, obs: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """Return which of the steps [..., D], [..., A], [..., D] terminate, bool [...]."""


@configurable
@dataclass(frozen=True)
class EndOutside:
    """Termination as soon as a number of the observation leaves its range; without ranges, never."""

    # Index in the observation, low, high; None: no bound.
    ranges: tuple[tuple[int, float | None, float | None], ...] = ()
    most: float | None = None  # bound of every number's magnitude; None: no bound

    def __post_init__(self) -> None:
        for place, low, high in self.ranges:
            if place < 0 or (low is not None and high is not None and not low < high):
                raise ConfigError(
                    f"EndOutside.ranges has {(place, low, high)}: expected an index of at least 0, and low below high"
                )
        check.positive(self, "most")

    def check(self, obs_size: int) -> None:
        """Raise a ConfigError if an index exceeds the observation."""
        last = max((place for place, _, _ in self.ranges), default=-1)
        if last >= obs_size:
            raise ConfigError(f"EndOutside.ranges has index {last}, but observations have indices 0 to {obs_size - 1}")

    def ended(self, obs: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """Decide by the next observation alone. NaN counts as outside."""
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

    transitions: int = 4  # members that predict next observation and termination
    rewards: int = 4  # members that predict the reward
    hidden_size: int = 512
    num_layers: int = 7  # hidden layers
    aux_hidden_size: int = 128  # units of the reward and termination models
    aux_num_layers: int = 3
    probabilistic: bool = False  # predict Gaussians and sample from them; False: means only
    normalise: bool = False  # normalise inputs and changes by running moments
    elites: int | None = None  # number of transition members in use; None: all
    initialisation: Initialisation = "glorot"
    activation: Activation = "relu"
    known_end: EndRule | None = None  # termination rule in place of the learned one; None: learned

    def __post_init__(self) -> None:
        check.at_least(self, 1, "transitions", "rewards", "hidden_size", "aux_hidden_size")
        check.not_negative(self, "num_layers", "aux_num_layers")
        if self.elites is not None and not 1 <= self.elites <= self.transitions:
            raise ConfigError(
                f"Dynamics.elites = {self.elites} must lie between 1 and transitions = {self.transitions}"
            )
        if self.probabilistic and not self.normalise:
            raise ConfigError(
                "Dynamics.probabilistic = True needs Dynamics.normalise = True: variances are bounded in normalised "
                "units"
            )

    def build(self, obs_size: int, action_size: int) -> DynamicsNetwork:
        """Return the module; weights are sampled from torch's global generator."""
        if self.known_end is not None:
            self.known_end.check(obs_size)
        return DynamicsNetwork(self, obs_size, action_size, self.transitions)

    def build_elites(self, obs_size: int, action_size: int) -> DynamicsNetwork:
        """Return a module with as many transition members as there are elites."""
        return DynamicsNetwork(self, obs_size, action_size, self.elites or self.transitions)


class Guess(NamedTuple):
    """Predictions of the transition members for N steps: a Gaussian over normalised changes, or the change itself."""

    mean: Tensor  # [R, K, N, D]
    log_variance: Tensor | None  # [R, K, N, D]; None: deterministic


class DynamicsNetwork(nn.Module):
    """The three ensembles, and the moments for normalisation. The axis of runs precedes all others."""

    def __init__(self, sizes: Dynamics, obs_size: int, action_size: int, transitions: int):
        super().__init__()
        self.sizes = sizes
        self.holdout = False  # whether training batches exclude held-out steps; set by `DynamicsLearning.build`
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
        # [R, E] indices of the best members.
        self.elites = nn.Buffer(torch.arange(sizes.elites or sizes.transitions)[None])

    def pack(self) -> None:
        """Pack the weights, see `StackedNetwork.pack`; for models that are not trained."""
        for network in (self.transition, self.reward, self.termination):
            network.pack()

    def guess(self, obs: Tensor, action: Tensor) -> Guess:
        """Return the predictions of all transition members for shared steps [R, N, ...] or their own [R, K, N, ...]."""
        raw = self.transition(torch.cat([self._normal(obs), action], -1))
        if not self.sizes.probabilistic:
            return Guess(raw, None)
        mean, spread = raw.chunk(2, -1)
        spread = WIDEST - nn.functional.softplus(WIDEST - spread)
        return Guess(mean, NARROWEST + nn.functional.softplus(spread - NARROWEST))

    def judge(self, network: nn.Module, obs: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """Return the outputs of the `reward` or `termination` ensemble for steps, unnormalised: [R, K, N]."""
        return network(torch.cat([self._normal(after), self._normal(obs), action], -1))[..., 0]

    def change(self, obs: Tensor, after: Tensor) -> Tensor:
        """Return the change between two observations in the units that transition members predict."""
        return (after - obs - _like(self.change_mean, obs)) / _like(self.change_std, obs)

    def move(self, obs: Tensor, action: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the next observation that each transition member predicts for its own steps.

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
        """Return rewards of a rollout by each reward member, and the termination probability of each step.

        Args:
          obs: [R, H+1, K, N, D] observations of each transition member's rollout.
          action: [R, H, K, N, A].

        Returns:
          Rewards [R, H, K, L, N] and probabilities [R, H, K, N].
        """
        steps = (obs[:, :-1], action, obs[:, 1:])
        # [R, L, H*K*N]: every reward member evaluates all rollouts.
        paid = self.judge(self.reward, *(part.flatten(1, 3) for part in steps))
        paid = (paid * self.reward_scale.unsqueeze(-1)).unflatten(-1, action.shape[1:4])
        if self.sizes.known_end is not None:
            return paid.movedim(1, 3), self.sizes.known_end.ended(*steps).to(paid.dtype)
        own = (part.transpose(1, 2).flatten(2, 3) for part in steps)  # [R, K, H*N, ...]: each member its own rollout
        over = self.judge(self.termination, *own).unflatten(-1, (action.shape[1], -1)).transpose(1, 2)
        return paid.movedim(1, 3), over.sigmoid()

    @torch.no_grad()
    def take_elites(self, model: DynamicsNetwork) -> None:
        """Copy the elites of a model into this one."""
        if self.transition.members == model.transition.members:  # all members are elites
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
    """Return moments [R, 1, D] with the axes of rows [R, N, D] or [R, K, N, D]."""
    return moments if rows.ndim == 3 else moments.unsqueeze(1)
