"""All networks of a Q-learner: action values with their target copy, and the networks that measure novelty.

R2D2: Kapturowski et al. 2019. NGU: Badia et al. 2020 (arXiv:2002.06038). Agent57: Badia et al. 2020 (arXiv:2003.13350).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import gymnasium as gym
import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.config import configurable
from packtrain.equations.novelty import Moments, add_to_moments, no_moments, normalise, rnd_error
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.embedding import ControllableEmbedding, ControllableEmbeddingNetwork
from packtrain.networks.novelty import RandomDistillation, RandomDistillationNetwork
from packtrain.networks.perception import Flatten, is_picture
from packtrain.networks.q_network import QNetwork, QValueNetwork
from packtrain.types import Spec

CLIP = 5.0  # clip value of normalised observations, as in RND


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
        check.at_least(self, 1, "versions", "window")
        check.share(self, "decay")
        check.positive(self, "epsilon", "pseudo_count", "most_similar", "largest")
        check.not_negative(self, "cluster_distance")


@dataclass(frozen=True)
class ActionValuesSizes:
    """Settings of Q networks, and of the networks that measure novelty."""

    network: QNetwork
    novelty: Novelty | None
    rescaling: float | None  # ε of h, by which values are rescaled; None: no rescaling


class ActionValuesNetwork(nn.Module):
    """The networks by name. Actors need all of them but `target`, the target copy of the values: `acting`."""

    def __init__(self, sizes: ActionValuesSizes, spec: Spec, arm_weights: Tensor, arm_discounts: Tensor | None):
        """Create the networks; weights are sampled from torch's global generator.

        Args:
          sizes: of all networks.
          spec: of the environment.
          arm_weights: [N] weight β of the intrinsic reward of each arm; [1] without arms.
          arm_discounts: [N] γ of each arm; None: the learner's discount.
        """
        super().__init__()
        self.sizes = sizes
        self.acting = ActingNetwork(sizes, spec)
        self.target = copy.deepcopy(self.acting.values).requires_grad_(False)
        self.context = self.acting.context
        self.arm_weights = nn.Buffer(arm_weights, persistent=False)
        self.arm_discounts = None if arm_discounts is None else nn.Buffer(arm_discounts, persistent=False)

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
