"""MVE: model-based value expansion (Feinberg et al. 2018, arXiv:1803.00101).

From the state x_0 that a real step led to, a world model imagines x_1 … x_H under the policy of DDPG, TD3 or SAC. With
c_t the probability that the task continues after x_t, and ρ_t the rewards, the first of which is real:

    T[j] = κ Σ_{t≤j} γᵗ c_{t−1} ρ_t + γ^{j+1} c_j Q'(x_j, a_j)      the return with j imagined steps
    y    = T[H]

TD-k trick: the critics learn from imagined pairs (x_{i−1}, a_{i−1}) too, towards the return that starts at x_i.

Deviations from the paper:
 1. Models and critics may be ensembles; T is the mean over all combinations of members.
 2. Depths may be mixed: y = Σ_j w_j T[j] with the weights of TD(λ), or uniform ones (`trace_lambda`).
 3. Returns that are not finite are left out.
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
from packtrain.equations.value_expansion import Targets, mve_mean_targets, td_lambda_targets, with_fallback
from packtrain.interfaces import EpisodeAnalysis, LearnerSettings, MemorySettings, ObservedStep, PolicySettings
from packtrain.networks.control import ControlNetwork


@configurable
@dataclass(frozen=True)
class MVE(LearnerSettings):
    """Hyper-parameters of MVE, and the functions that make up an update."""

    joins_seeds: ClassVar[bool] = True

    actor_critic: ActorCritic  # DDPG, TD3 or SAC: acts, and has all settings except the expansion's
    horizon: int = 3  # H, steps of the model
    tdk_trick: bool = True  # train the critics on imagined pairs too
    trace_lambda: float | None = 1.0  # λ of TD(λ) over depths; 1: the deepest only, as in the paper; None: their mean
    model_period: int | None = 500  # updates between copies of the model for targets; None: after every call
    calibration_period: int = 2500  # updates between measurements of the model on held-out steps; 0: none
    augmentation: ModelRollouts | None = None  # model steps in each batch, as in MBPO; None: real steps only

    def __post_init__(self) -> None:
        check.at_least(self, 1, "horizon")
        check.at_least(self, 1, "model_period", end=", or None")
        check.at_least(self, 0, "calibration_period")
        check.share(self, "trace_lambda")

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
        """Names of the metrics that `step` returns."""
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
        if self.trace_lambda is None:
            targets = mve_mean_targets(expansion)
        else:
            targets = td_lambda_targets(expansion, trace_lambda=self.trace_lambda)
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
