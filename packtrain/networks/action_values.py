"""All networks of a Q-learner: action values with their target copy, and the networks that measure novelty.

R2D2: Kapturowski et al. 2019. NGU: Badia et al. 2020 (arXiv:2002.06038). Agent57: Badia et al. 2020 (arXiv:2003.13350).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import gymnasium as gym
import torch
from torch import Tensor, nn

from packtrain.config import configurable
from packtrain.equations.novelty import Moments, add_to_moments, no_moments, normalise, rnd_error
from packtrain.equations.policy_family import actor_epsilons, agent57_discounts, ngu_discounts, novelty_weights
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.embedding import ControllableEmbedding, ControllableEmbeddingNetwork
from packtrain.networks.novelty import RandomDistillation, RandomDistillationNetwork
from packtrain.networks.perception import Flatten, is_picture
from packtrain.networks.q_network import QNetwork, QValueNetwork
from packtrain.types import Spec

CLIP = 5.0  # clip value of normalised observations, as in RND


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
        for name in ("base", "base_end", "least", "evaluation"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"Epsilons.{name} = {value} must lie between 0 and 1")
        for name in ("alpha", "alpha_end"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"Epsilons.{name} = {getattr(self, name)} must not be negative")
        if self.updates < 1:
            raise ConfigError(f"Epsilons.updates = {self.updates} must be at least 1")

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


@configurable
@dataclass(frozen=True)
class Novelty:
    """Intrinsic reward: episodic times life-long novelty, r = r_episodic · min(max(α, 1), L); defaults are NGU's.

    Without `embedding` the reward is the error of `distillation` over its standard deviation; without `distillation`
    it is the episodic novelty alone.
    """

    embedding: ControllableEmbedding | None = ControllableEmbedding()
    distillation: RandomDistillation | None = RandomDistillation((), (), 128)
    memory: int = 30_000  # capacity of the episodic memory in embeddings
    neighbours: int = 10  # k nearest neighbours
    decay: float = 0.99  # decay of the running mean of neighbour distances
    epsilon: float = 1e-4  # ε of the kernel
    cluster_distance: float = 0.008  # ξ: normalised distances below it count as 0
    pseudo_count: float = 0.001  # c, added to the similarity
    most_similar: float = 8.0  # s_m: similarity above which novelty is 0
    largest: float = 5.0  # L: upper bound of the life-long factor
    window: int = 1_000_000  # approximate number of latest distillation errors in their running mean and deviation
    versions: int = 4  # maximum number of embedding versions in use by the episodes of a group of environments

    def __post_init__(self) -> None:
        if self.embedding is None and self.distillation is None:
            raise ConfigError(
                "Novelty.embedding and Novelty.distillation are both None: novelty needs at least one of them"
            )
        if not 1 <= self.neighbours <= self.memory:
            raise ConfigError(f"Novelty.neighbours = {self.neighbours} must lie between 1 and memory = {self.memory}")
        if self.versions < 1:
            raise ConfigError(f"Novelty.versions = {self.versions} must be at least 1")
        if self.window < 1:
            raise ConfigError(f"Novelty.window = {self.window} must be at least 1")
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"Novelty.decay = {self.decay} must lie between 0 and 1")
        for name in ("epsilon", "pseudo_count", "most_similar", "largest"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"Novelty.{name} = {getattr(self, name)} must be above 0")
        if self.cluster_distance < 0:
            raise ConfigError(f"Novelty.cluster_distance = {self.cluster_distance} must not be negative")


@configurable
@dataclass(frozen=True)
class Bandit:
    """Settings of a bandit that chooses an environment's arm for every episode, by the returns of its last episodes."""

    window: int = 160  # number of latest episodes that count
    rule: Literal["ucb1_tuned", "agent57"] = "ucb1_tuned"
    explore: float = 0.1  # probability of a uniformly random arm
    exploration: float = 1.0  # β of agent57's rule, in units of returns

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"Bandit.window = {self.window} must be at least 1")
        if not 0 <= self.explore <= 1:
            raise ConfigError(f"Bandit.explore = {self.explore} must lie between 0 and 1")


@configurable
@dataclass(frozen=True)
class Arms:
    """Settings of the arms: pairs of novelty weight β and discount γ. Arm 0 has β = 0."""

    count: int = 32  # N
    largest_weight: float = 0.3  # β of the last arm
    discounts: Literal["one", "ngu", "agent57"] = "ngu"  # one: the learner's discount for all arms
    bandit: Bandit | None = None  # None: environment i always has arm i modulo N

    def __post_init__(self) -> None:
        least = 10 if self.discounts == "agent57" else 2
        if self.count < least:
            raise ConfigError(f"Arms.count = {self.count} must be at least {least} with discounts = {self.discounts!r}")
        if self.largest_weight < 0:
            raise ConfigError(f"Arms.largest_weight = {self.largest_weight} must not be negative")
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


@dataclass(frozen=True)
class ActionValuesSizes:
    """Settings of Q networks and of exploration: ε, novelty and arms."""

    network: QNetwork = QNetwork()
    epsilons: Epsilons = Epsilons()
    novelty: Novelty | None = None
    arms: Arms | None = None
    novelty_weight: float = 0.3  # β if there are no arms
    rescaling: float | None = 1e-3  # ε of h, by which values are rescaled; None: no rescaling

    def __post_init__(self) -> None:
        if self.rescaling is not None and self.rescaling <= 0:
            raise ConfigError(f"ActionValues.rescaling = {self.rescaling} must be above 0, or None")
        wanted = self.arms.count if self.arms is not None else 0
        if self.network.arms not in (0, wanted):
            raise ConfigError(f"QNetwork.arms = {self.network.arms} must equal Arms.count = {wanted}")
        if self.novelty is None:
            for name in ("use_last_intrinsic", "separate_intrinsic"):
                if getattr(self.network, name):
                    raise ConfigError(f"QNetwork.{name} = True needs intrinsic rewards: set ActionValues.novelty")
            if self.arms is not None:
                raise ConfigError("Arms are weights of the intrinsic reward: set ActionValues.novelty")

    def build_network(self, spec: Spec) -> ActionValuesNetwork:
        """Return the module for an environment; weights are sampled from torch's global generator."""
        return ActionValuesNetwork(self, spec)


class ActionValuesNetwork(nn.Module):
    """The networks by name. Actors need all of them but `target`, the target copy of the values: `acting`."""

    def __init__(self, sizes: ActionValuesSizes, spec: Spec):
        super().__init__()
        self.sizes = sizes
        self.acting = ActingNetwork(sizes, spec)
        self.target = copy.deepcopy(self.acting.values).requires_grad_(False)
        self.context = self.acting.context
        arms = sizes.arms
        weights = torch.tensor([sizes.novelty_weight]) if arms is None else arms.weights()
        self.arm_weights = nn.Buffer(weights, persistent=False)  # [N] β; [1] without arms
        discounts = None if arms is None else arms.own_discounts()  # [N] γ; None: the learner's discount
        self.arm_discounts = None if discounts is None else nn.Buffer(discounts, persistent=False)

    @property
    def precision(self) -> torch.dtype | None:
        """Return the dtype in which the large layers of the values compute; embeddings are always float32."""
        return self.acting.values.precision

    @precision.setter
    def precision(self, precision: torch.dtype | None) -> None:
        self.acting.values.precision = self.target.precision = precision

    @property
    def device(self) -> torch.device:
        """Return the device of the networks."""
        return self.acting.values.device


class ActingNetwork(nn.Module):
    """The networks that actors need: action values and, with novelty, those that measure it."""

    def __init__(self, sizes: ActionValuesSizes, spec: Spec):
        super().__init__()
        self.values: QValueNetwork = sizes.network.build(spec)
        self.embedding: ControllableEmbeddingNetwork | None = None
        self.distillation: RandomDistillationNetwork | None = None
        self.context = self.values.context
        if sizes.novelty is not None and sizes.novelty.embedding is not None:
            self.embedding = sizes.novelty.embedding.build(spec)
            self.context = max(self.context, self.embedding.context)
        if sizes.novelty is not None and sizes.novelty.distillation is not None:
            self.distillation, shape = _distillation(sizes.novelty.distillation, spec.obs)
            for name, leaf in no_moments(*shape)._asdict().items():
                self.register_buffer(f"obs_{name}", leaf)

    @property
    def obs_moments(self) -> Moments:
        """Return mean and standard deviation of the observations that the distillation was trained on."""
        return Moments(*(getattr(self, f"obs_{name}") for name in Moments._fields))

    @torch.no_grad()
    def count_observations(self, obs: Tensor, weight: Tensor) -> None:
        """Add observations [N, ...] to the statistics, each with its `weight`."""
        moments = add_to_moments(self.obs_moments, self._laid(obs), weight)
        for old, new in zip(self.obs_moments, moments, strict=True):
            old.copy_(new)

    def distillation_error(self, obs: Tensor) -> Tensor:
        """Return the prediction error for observations [N, ...], [N]; differentiable."""
        assert self.distillation is not None
        return rnd_error(*self.distillation(normalise(self._laid(obs), self.obs_moments, CLIP)))

    def _laid(self, obs: Tensor) -> Tensor:
        """Return observations as inputs of the distillation: [N, *shape] float32, normalised."""
        return obs.float().reshape(len(obs), *self.obs_moments.mean.shape)


def _distillation(sizes: RandomDistillation, space: gym.Space) -> tuple[RandomDistillationNetwork, tuple[int, ...]]:
    """Return the distillation module, and the shape of its inputs."""
    if not isinstance(space, gym.spaces.Box):
        raise EnvSetupError(f"Novelty.distillation needs a single image or vector as observation, not {space}")
    if is_picture(space) and not isinstance(sizes.perception, Flatten):
        return sizes.build_for_pictures(space.shape), space.shape
    size = math.prod(space.shape)
    return sizes.build(size), (size,)
