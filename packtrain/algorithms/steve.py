"""STEVE: stochastic ensemble value expansion (Buckman et al. 2018, arXiv:1807.01675).

As in MVE (`mve.py`), the policy of DDPG, TD3 or SAC is followed H steps into a world model, and T[j] is the return with
j imagined steps. Models and critics are ensembles, so that there is a T[j] for every combination of members:

    y = Σ_j w_j mean T[j],   w_j ∝ 1 / (var T[j] + ε)

A depth counts the more, the less its estimates differ. With `ridge` the weights take into account what depths have in
common: w ∝ (Cov + ridge · I)⁻¹ 1, Cov being the scatter of the T[j] between depths.

Deviations from the released STEVE (docs/value_expansion.md says why):
 1. The rows of a batch are split between the members of an ensemble, instead of computing all members on all rows and
    masking three quarters; `rows = 'random'` is the original.
 2. The critic steps first, and the policy's loss uses the critic after its step; the original leaves the order open.
 3. Copies are made after every 500th update, not before it.
 4. c_t / c_{i−1} is a product over the steps between, not a quotient with 1e-8 added.
 5. Returns that are not finite are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from packtrain import check
from packtrain.accelerate.compilation import Compiler
from packtrain.algorithms.actor_critic import ActorCritic, Optimisers, build_learner, measures, metric_names
from packtrain.algorithms.batched_updates import Batch, ReplayLearner
from packtrain.algorithms.candidate_returns import (
    Rollouts,
    calibrate,
    candidate_returns,
    check_model,
    check_model_memory,
    copies_of_model,
    draw_noise,
    rollouts,
    tdk_critic_losses,
)
from packtrain.algorithms.depth_weights import analyse
from packtrain.algorithms.model_rollouts import ModelRollouts, with_rollouts
from packtrain.config import configurable
from packtrain.equations.value_expansion import Targets, steve_cov_targets, steve_targets, with_fallback
from packtrain.interfaces import EpisodeAnalysis, LearnerSettings, MemorySettings, ObservedStep, PolicySettings
from packtrain.networks.control import ControlNetwork


@configurable
@dataclass(frozen=True)
class STEVE(LearnerSettings):
    """Hyper-parameters of STEVE, and the functions that make up an update."""

    joins_seeds: ClassVar[bool] = True

    actor_critic: ActorCritic  # DDPG, TD3 or SAC: acts, and has all settings except the expansion's
    horizon: int = 3  # H, steps of the model
    epsilon: float = 1e-8  # ε, added to variances
    ridge: float | None = None  # added to the diagonal of the covariance between depths; None: variances only
    tdk_trick: bool = False  # train the critics on imagined pairs too
    model_period: int | None = 500  # updates between copies of the model for targets; None: after every call
    calibration_period: int = 2500  # updates between measurements of the model on held-out steps; 0: none
    augmentation: ModelRollouts | None = None  # model steps in each batch, as in MBPO; None: real steps only

    def __post_init__(self) -> None:
        check.at_least(self, 1, "horizon")
        check.at_least(self, 1, "model_period", end=", or None")
        check.at_least(self, 0, "calibration_period")
        check.positive(self, "epsilon")
        check.positive(self, "ridge", end=", or None")

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if the memory does not hold single steps of a `Control` policy."""
        check_model_memory(self, memory, policy)

    def build(self, network: ControlNetwork, total_steps: int) -> ReplayLearner:
        """Return a learner; ConfigError if the network does not fit."""
        check_model(self, network)
        copies, prepare = partial(copies_of_model, self), partial(calibrate, self)
        return build_learner(network, self, self.actor_critic, copies, prepare)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `step` returns."""
        return metric_names(self.horizon + 1)

    def optimisers(self, network: ControlNetwork) -> Optimisers:
        """Return the optimisers by name."""
        return self.actor_critic.optimisers(network)

    def draws(self, network: ControlNetwork, count: int, generator: torch.Generator) -> Batch:
        """Return the noise of actions and of a probabilistic model, [count, ...] each."""
        return draw_noise(self, network, count, generator)

    @torch.no_grad()
    def targets(self, network: ControlNetwork, batch: Batch) -> tuple[Rollouts, Targets]:
        """Return the rollouts after a batch, and the targets y of real pairs; with TD-k also of imagined ones."""
        found = rollouts(network, self.actor_critic, self.horizon, batch)
        expansion = candidate_returns(found, self.actor_critic, batch, self.tdk_trick)
        if self.ridge is None:
            targets = steve_targets(expansion, epsilon=self.epsilon)
        else:
            targets = steve_cov_targets(expansion, ridge=self.ridge)
        return found, with_fallback(targets, expansion)

    def step(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, moves_policy: bool, compiled: Compiler
    ) -> Tensor:
        """Make one update: the critics, then the networks of the actor–critic algorithm; return metrics [R, M]."""
        base = self.actor_critic
        if self.augmentation is not None:
            batch = with_rollouts(network, self.augmentation, batch)
        found, targets = compiled(self.targets)(network, batch)
        critic_loss, value_mean = compiled(tdk_critic_losses)(network, base, batch, found, targets)
        optimisers["critic"].descend(critic_loss.sum())
        policy = base.step_policy(network, optimisers, batch, compiled) if moves_policy else None
        base.follow(network, moves_policy)
        return compiled(measures)(network, base, critic_loss.detach(), policy, value_mean, targets)

    @property
    def analyses_episodes(self) -> bool:
        """Whether `analyse_episodes` returns a result."""
        return True

    def analyse_episodes(self, network: Any, episodes: Mapping[int, Sequence[ObservedStep]]) -> EpisodeAnalysis:
        """Return the weight of each depth in the targets of filmed steps."""
        return analyse(network, self, episodes)
