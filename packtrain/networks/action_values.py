"""Everything a Q-learner learns with: the values of actions and their slower copy, and what judges novelty.

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
from packtrain.equations.arms import actor_epsilons, agent57_discounts, ngu_discounts, novelty_weights
from packtrain.equations.novelty import Moments, add_to_moments, no_moments, normalise, rnd_error
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.embedding import ControllableEmbedding, ControllableEmbeddingNetwork
from packtrain.networks.novelty import RandomDistillation, RandomDistillationNetwork
from packtrain.networks.perception import Flatten, is_picture
from packtrain.networks.q_network import QNetwork, QValueNetwork
from packtrain.types import Spec

CLIP = 5.0  # of normalised observations, as in RND


@configurable
@dataclass(frozen=True)
class Epsilons:
    """How likely each column acts at random: ε_i = base^(1 + α i / (N − 1)), Ape-X's; defaults are R2D2's."""

    base: float = 0.4  # of the first column
    base_end: float | None = None  # after `updates`; None: base
    alpha: float = 7.0  # how much less the others do
    alpha_end: float | None = None  # after `updates`; None: alpha
    updates: int = 30_000  # of the learner, over which both move
    least: float = 0.0
    evaluation: float = 0.0  # in evaluations

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
        """Whether they change as the learner learns."""
        return self.base_end is not None or self.alpha_end is not None

    def after(self, updates: int, columns: int) -> Tensor:
        """Of all columns, [N]."""
        share = min(1.0, updates / self.updates)
        base, alpha = (
            begin if end is None else begin + share * (end - begin)
            for begin, end in ((self.base, self.base_end), (self.alpha, self.alpha_end))
        )
        return actor_epsilons(columns, base, alpha).clamp(min=self.least)


@configurable
@dataclass(frozen=True)
class Novelty:
    """What is new in an episode, times what is new in life: r = r_episodic · min(max(α, 1), L); numbers are NGU's.

    Without `embedding` the reward is the error of `distillation` over its standard deviation; without `distillation`
    it is that of the episode alone.
    """

    embedding: ControllableEmbedding | None = ControllableEmbedding()
    distillation: RandomDistillation | None = RandomDistillation((), (), 128)
    memory: int = 30_000  # embeddings that an episode remembers
    neighbours: int = 10  # k
    decay: float = 0.99  # of the mean distance to them
    epsilon: float = 1e-4  # of the kernel
    cluster_distance: float = 0.008  # ξ
    pseudo_count: float = 0.001  # c
    most_similar: float = 8.0  # s_m: above it there is nothing new
    largest: float = 5.0  # L
    window: int = 1_000_000  # about how many errors of the distillation back the usual error is remembered
    versions: int = 4  # of the embedding that the episodes of a group of environments use, at most

    def __post_init__(self) -> None:
        if self.embedding is None and self.distillation is None:
            raise ConfigError("Novelty needs an embedding, or a distillation, or both")
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
    """Chooses an arm for every episode of a column, by the returns of its last episodes."""

    window: int = 160  # episodes that count
    rule: Literal["ucb1_tuned", "agent57"] = "ucb1_tuned"
    explore: float = 0.1  # the chance of any arm
    exploration: float = 1.0  # β of agent57's rule, in units of returns

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"Bandit.window = {self.window} must be at least 1")
        if not 0 <= self.explore <= 1:
            raise ConfigError(f"Bandit.explore = {self.explore} must lie between 0 and 1")


@configurable
@dataclass(frozen=True)
class Arms:
    """A family of behaviours: how much novelty counts, and how far each looks ahead; arm 0 only exploits."""

    count: int = 32  # N
    largest_weight: float = 0.3  # β of the last arm
    discounts: Literal["one", "ngu", "agent57"] = "ngu"  # one: the learner's, for all
    bandit: Bandit | None = None  # None: column i always has arm i modulo N

    def __post_init__(self) -> None:
        least = 10 if self.discounts == "agent57" else 2
        if self.count < least:
            raise ConfigError(f"Arms.count = {self.count} must be at least {least} with discounts = {self.discounts!r}")
        if self.largest_weight < 0:
            raise ConfigError(f"Arms.largest_weight = {self.largest_weight} must not be negative")
        if self.bandit is not None and self.bandit.window <= self.count:
            raise ConfigError(
                f"Bandit.window = {self.bandit.window} episodes cannot compare Arms.count = {self.count}: "
                "an arm that falls out of it is tried anew, and no other gets a turn"
            )

    def weights(self) -> Tensor:
        """β of each, [N]."""
        return novelty_weights(self.count, self.largest_weight)

    def own_discounts(self) -> Tensor | None:
        """γ of each, [N]; None: the learner's."""
        if self.discounts == "one":
            return None
        return ngu_discounts(self.count) if self.discounts == "ngu" else agent57_discounts(self.count, ordered=True)


@configurable
@dataclass(frozen=True)
class ActionValues:
    """Who acts by the values of actions, now and then at random, perhaps for novelty too."""

    network: QNetwork = QNetwork()
    epsilons: Epsilons = Epsilons()
    novelty: Novelty | None = None
    arms: Arms | None = None
    novelty_weight: float = 0.3  # β where there are no arms
    rescaling: float | None = 1e-3  # ε of h, in whose units the networks speak of values; None: in those of rewards

    def __post_init__(self) -> None:
        if self.rescaling is not None and self.rescaling <= 0:
            raise ConfigError(f"ActionValues.rescaling = {self.rescaling} must be above 0, or None")
        wanted = self.arms.count if self.arms is not None else 0
        if self.network.arms not in (0, wanted):
            raise ConfigError(f"QNetwork.arms = {self.network.arms} does not fit Arms.count = {wanted}")
        if self.novelty is None:
            for name in ("use_last_intrinsic", "separate_intrinsic"):
                if getattr(self.network, name):
                    raise ConfigError(f"QNetwork.{name} = True needs intrinsic rewards: set ActionValues.novelty")
            if self.arms is not None:
                raise ConfigError("Arms weigh intrinsic rewards: set ActionValues.novelty")

    def build(self, spec: Spec) -> ActionValuesNetwork:
        """The module for an environment; weights are drawn from torch's global generator."""
        return ActionValuesNetwork(self, spec)


class ActionValuesNetwork(nn.Module):
    """The parts by their names. Whoever acts needs all but `target`, the slower copy of the values: `acting`."""

    def __init__(self, sizes: ActionValues, spec: Spec):
        super().__init__()
        self.sizes = sizes
        self.acting = ActingNetwork(sizes, spec)
        self.target = copy.deepcopy(self.acting.values).requires_grad_(False)
        self.context = self.acting.context
        arms = sizes.arms
        weights = torch.tensor([sizes.novelty_weight]) if arms is None else arms.weights()
        self.arm_weights = nn.Buffer(weights, persistent=False)  # [N] β; of the only arm, where there are none
        discounts = None if arms is None else arms.own_discounts()  # [N] γ; None: the learner's
        self.arm_discounts = None if discounts is None else nn.Buffer(discounts, persistent=False)

    @property
    def precision(self) -> torch.dtype | None:
        """What the large layers of the values compute in; embeddings are always float32."""
        return self.acting.values.precision

    @precision.setter
    def precision(self, precision: torch.dtype | None) -> None:
        self.acting.values.precision = self.target.precision = precision

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.acting.values.device


class ActingNetwork(nn.Module):
    """Values of actions, and an embedding, a distillation and the scale of observations where novelty counts."""

    def __init__(self, sizes: ActionValues, spec: Spec):
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
        """Of the observations that the distillation has been shown."""
        return Moments(*(getattr(self, f"obs_{name}") for name in Moments._fields))

    @torch.no_grad()
    def count_observations(self, obs: Tensor, weight: Tensor) -> None:
        """Let [N, ...] more of them into the scale, each `weight` times."""
        moments = add_to_moments(self.obs_moments, self._laid(obs), weight)
        for old, new in zip(self.obs_moments, moments, strict=True):
            old.copy_(new)

    def distillation_error(self, obs: Tensor) -> Tensor:
        """How badly the random features of [N, ...] are predicted, [N]; differentiable."""
        assert self.distillation is not None
        return rnd_error(*self.distillation(normalise(self._laid(obs), self.obs_moments, CLIP)))

    def _laid(self, obs: Tensor) -> Tensor:
        """As the distillation sees them: [N, *shape] float32."""
        return obs.float().reshape(len(obs), *self.obs_moments.mean.shape)


def _distillation(sizes: RandomDistillation, space: gym.Space) -> tuple[RandomDistillationNetwork, tuple[int, ...]]:
    """The module, and the shape of what it sees."""
    if not isinstance(space, gym.spaces.Box):
        raise EnvSetupError(f"Novelty.distillation sees one picture or vector, and observations are {space}")
    if is_picture(space) and not isinstance(sizes.perception, Flatten):
        return sizes.build_for_pictures(space.shape), space.shape
    size = math.prod(space.shape)
    return sizes.build(size), (size,)
