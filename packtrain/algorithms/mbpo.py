"""MBPO: model-based policy optimisation (Janner et al. 2019, arXiv:1906.08253).

DDPG, TD3 or SAC, unchanged, on batches in which steps of a world model replace real ones. `model_rollouts.py` has the
equations and the deviations from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from packtrain import check
from packtrain.accelerate.compilation import Compiler
from packtrain.algorithms.actor_critic import ActorCriticAlgorithm, Optimisers, build_learner
from packtrain.algorithms.batched_updates import Batch, ReplayLearner
from packtrain.algorithms.candidate_returns import (
    check_model,
    check_model_memory,
    copies_of_model,
    copy_first_model,
)
from packtrain.algorithms.model_rollouts import ModelRollouts, with_rollouts
from packtrain.config import configurable
from packtrain.interfaces import LearnerSettings, MemorySettings, PolicySettings
from packtrain.networks.control import ControlNetwork


@configurable
@dataclass(frozen=True)
class MBPO(LearnerSettings):
    """Hyper-parameters of MBPO, and the functions that make up an update."""

    joins_seeds: ClassVar[bool] = True

    actor_critic: ActorCriticAlgorithm  # DDPG, TD3 or SAC: acts, and has all settings except the model's
    augmentation: ModelRollouts = field(default_factory=ModelRollouts)  # model steps in each batch
    model_period: int | None = 500  # updates between copies of the model for rollouts; None: after every call

    def __post_init__(self) -> None:
        check.at_least(self, 1, "model_period", end=", or None")

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if the memory does not hold single steps of a `Control` policy."""
        check_model_memory(self, memory, policy)

    def build(self, network: ControlNetwork, total_steps: int) -> ReplayLearner:
        """Return a learner; ConfigError if the network does not fit."""
        check_model(self, network)
        return build_learner(network, self, self.actor_critic, partial(copies_of_model, self), copy_first_model)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `step` returns."""
        return self.actor_critic.metrics

    def optimisers(self, network: ControlNetwork) -> Optimisers:
        """Return the optimisers by name."""
        return self.actor_critic.optimisers(network)

    def draws(self, network: ControlNetwork, count: int, generator: torch.Generator) -> Batch:
        """Return the random inputs of updates, those of rollouts included, [count, ...] each."""
        drawn = self.actor_critic.draws(network, count, generator)
        return drawn | self.augmentation.draws(count, self.actor_critic.batch_size, network, generator)

    def step(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, moves_policy: bool, compiled: Compiler
    ) -> Tensor:
        """Make one update of DDPG, TD3 or SAC with model steps in the batch; return metrics [R, M]."""
        batch = with_rollouts(network, self.augmentation, batch)
        return self.actor_critic.step(network, optimisers, batch, moves_policy, compiled)
