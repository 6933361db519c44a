"""The configurable name `ValueExpansion`, under which DDPG, TD3, SAC, MVE, STEVE and MBPO share one set of settings.

Shipped configurations use it, so that one base file serves all of them. `core` and `target` say which algorithm it is:

| core | algorithm | | target | algorithm |
| --- | --- | --- | --- | --- |
| 'ddpg' | `ddpg.py` | | @OneStep() | that of `core` alone |
| 'td3' | `td3.py` | | @Mve(), @MveMean(), @MveTdLambda() | `mve.py` on that of `core` |
| 'sac' | `sac.py` | | @Steve(), @SteveCov() | `steve.py` on that of `core` |

With `augmentation`, MVE and STEVE have model steps in their batches, and DDPG, TD3 or SAC becomes `mbpo.py`.

The targets and losses of each are in its file. A configuration may name an algorithm itself instead: @DDPG(), @TD3(),
@SAC(), or @MVE(), @STEVE() and @MBPO() with `actor_critic` set to one of these.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol

from packtrain import check
from packtrain.algorithms.actor_critic import Rows, check_replay
from packtrain.algorithms.batched_updates import ReplayLearner
from packtrain.algorithms.ddpg import DDPG
from packtrain.algorithms.mbpo import MBPO
from packtrain.algorithms.model_rollouts import ModelRollouts
from packtrain.algorithms.mve import MVE
from packtrain.algorithms.sac import SAC
from packtrain.algorithms.steve import STEVE
from packtrain.algorithms.td3 import TD3
from packtrain.config import configurable, unrecorded
from packtrain.errors import ConfigError
from packtrain.interfaces import EpisodeAnalysis, LearnerSettings, MemorySettings, ObservedStep, PolicySettings
from packtrain.networks.control import ControlNetwork

ACTOR_CRITICS: dict[str, Any] = {"ddpg": DDPG, "td3": TD3, "sac": SAC}


class Target(Protocol):
    """The target of the critics, as a configuration names it."""

    @property
    def horizon(self) -> int:
        """Rollout horizon H in model steps; 0: no model is needed."""

    def algorithm(self, actor_critic: DDPG | TD3 | SAC, **model: Any) -> DDPG | TD3 | SAC | MVE | STEVE | MBPO:
        """Return the settings of the algorithm with this target.

        Args:
          actor_critic: what it builds on.
          model: settings that MVE and STEVE share.
        """


@configurable
@dataclass(frozen=True)
class OneStep:
    """The target of DDPG, TD3 or SAC: the reward and the value of the next state."""

    horizon: ClassVar[int] = 0

    def algorithm(self, actor_critic: DDPG | TD3 | SAC, **model: Any) -> DDPG | TD3 | SAC | MBPO:
        """Return the algorithm itself, or MBPO if batches contain model steps."""
        if model["augmentation"] is None:
            return actor_critic
        return MBPO(actor_critic, model["augmentation"], model["model_period"])


@configurable
@dataclass(frozen=True)
class Mve:
    """The target of MVE: rewards of H model steps, then the critic's value."""

    horizon: int = 3  # H
    tdk_trick: bool = True  # train the critics on imagined pairs too

    def __post_init__(self) -> None:
        _check_horizon(self)

    def algorithm(self, actor_critic: DDPG | TD3 | SAC, **model: Any) -> MVE:
        """Return MVE."""
        return MVE(actor_critic, self.horizon, self.tdk_trick, **model)


@configurable
@dataclass(frozen=True)
class MveMean:
    """MVE with the uniform mean over depths 0 … H."""

    horizon: int = 3  # H
    tdk_trick: bool = False

    def __post_init__(self) -> None:
        _check_horizon(self)

    def algorithm(self, actor_critic: DDPG | TD3 | SAC, **model: Any) -> MVE:
        """Return MVE with the uniform mean over depths."""
        return MVE(actor_critic, self.horizon, self.tdk_trick, trace_lambda=None, **model)


@configurable
@dataclass(frozen=True)
class MveTdLambda:
    """MVE with TD(λ) weights over depths 0 … H."""

    horizon: int = 3  # H
    trace_lambda: float = 0.25
    tdk_trick: bool = False

    def __post_init__(self) -> None:
        _check_horizon(self)
        check.share(self, "trace_lambda")

    def algorithm(self, actor_critic: DDPG | TD3 | SAC, **model: Any) -> MVE:
        """Return MVE with TD(λ) weights."""
        return MVE(actor_critic, self.horizon, self.tdk_trick, trace_lambda=self.trace_lambda, **model)


@configurable
@dataclass(frozen=True)
class Steve:
    """The target of STEVE: depths weighted by the inverse variance of their candidates."""

    horizon: int = 3  # H
    epsilon: float = 1e-8  # added to variances
    tdk_trick: bool = False

    def __post_init__(self) -> None:
        _check_horizon(self)
        check.positive(self, "epsilon")

    def algorithm(self, actor_critic: DDPG | TD3 | SAC, **model: Any) -> STEVE:
        """Return STEVE."""
        return STEVE(actor_critic, self.horizon, self.epsilon, tdk_trick=self.tdk_trick, **model)


@configurable
@dataclass(frozen=True)
class SteveCov:
    """STEVE with the full covariance matrix between depths."""

    horizon: int = 3  # H
    ridge: float = 1e-3  # added to the diagonal of the covariance
    tdk_trick: bool = False

    def __post_init__(self) -> None:
        _check_horizon(self)
        check.positive(self, "ridge")

    def algorithm(self, actor_critic: DDPG | TD3 | SAC, **model: Any) -> STEVE:
        """Return STEVE with that covariance."""
        return STEVE(actor_critic, self.horizon, ridge=self.ridge, tdk_trick=self.tdk_trick, **model)


def _check_horizon(target: Target) -> None:
    check.at_least(target, 1, "horizon", end="; without a model there is @OneStep()")


@configurable
@dataclass(frozen=True)
class ValueExpansion(LearnerSettings):
    """Settings of DDPG, TD3, SAC, MVE, STEVE and MBPO together; defaults are those of the released STEVE."""

    joins_seeds: ClassVar[bool] = True

    target: Target = field(default_factory=OneStep)
    core: Literal["ddpg", "td3", "sac"] = "ddpg"
    batch_size: int = 512
    discount: float = 0.99
    reward_scale: float = 1.0
    learning_rate: float = 0.0003
    policy_regulariser: float = 0.001  # ddpg only: weight of the squared input of the policy's tanh
    rows: Rows = "split"  # use of batch rows: split between critics, one random critic for each, or all for all
    target_period: int | None = 500  # updates between copies into the target networks; None: Polyak averaging
    polyak: float = 0.005  # Polyak coefficient τ of the target networks
    model_period: int | None = 500  # updates between copies of the model for targets; None: after every call
    publish_period: int | None = 500  # updates between copies of the policy that acts; None: after every call
    calibration_period: int = 2500  # updates between measurements of the model on held-out steps; 0: none
    policy_delay: int = 1  # critic updates per policy update
    target_noise: float = 0.2  # td3 only: standard deviation of the noise on target actions
    target_noise_clip: float = 0.5  # td3 only: that noise is clipped to ± this
    temperature: float | None = None  # sac only; None: learned, towards an entropy of target_entropy per dimension
    target_entropy: float = -1.0  # sac only: nats per dimension of the action
    augmentation: ModelRollouts | None = None  # model steps in each batch, as in MBPO; None: real steps only
    compile: bool | None = None  # compile the functions of an update; None: on a GPU

    def __post_init__(self) -> None:
        check.positive(self, "batch_size", "reward_scale", "learning_rate", "policy_delay")
        check.at_least(self, 1, "target_period", "model_period", "publish_period", end=", or None")
        check.at_least(self, 0, "calibration_period")
        check.not_negative(self, "policy_regulariser", "target_noise", "target_noise_clip", "temperature")
        check.share(self, "discount", "polyak")

    @functools.cached_property
    def actor_critic(self) -> DDPG | TD3 | SAC:
        """Return the settings of DDPG, TD3 or SAC."""
        kind = ACTOR_CRITICS[self.core]
        with unrecorded():
            built: DDPG | TD3 | SAC = kind(**{each.name: getattr(self, each.name) for each in fields(kind)})
        return built

    @functools.cached_property
    def algorithm(self) -> DDPG | TD3 | SAC | MVE | STEVE | MBPO:
        """Return the settings of the algorithm that `core` and `target` make up."""
        with unrecorded():
            return self.target.algorithm(
                self.actor_critic,
                model_period=self.model_period,
                calibration_period=self.calibration_period,
                augmentation=self.augmentation,
            )

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if the memory lacks data that targets need."""
        replay = check_replay(self, self, memory, policy)
        if replay.n_step > 1 and self.augmentation is not None:
            raise ConfigError(
                f"Replay.n_step = {replay.n_step} and ValueExpansion.augmentation do not fit: a model imagines single "
                "steps; --n_step 1"
            )
        if replay.n_step > 1 and self.target.horizon:
            raise ConfigError(
                f"Replay.n_step = {replay.n_step} and ValueExpansion.target = @{type(self.target).__name__}() do not "
                "fit: rollouts of a model continue single steps; @OneStep() takes several real ones"
            )

    @property
    def analyses_episodes(self) -> bool:
        """Whether targets use a world model."""
        return self.algorithm.analyses_episodes

    def analyse_episodes(self, network: Any, episodes: Mapping[int, Sequence[ObservedStep]]) -> EpisodeAnalysis:
        """Return the weight of each depth in the targets of filmed steps."""
        return self.algorithm.analyse_episodes(network, episodes)

    def build(self, network: ControlNetwork, total_steps: int) -> ReplayLearner:
        """Return a learner; ConfigError if the network does not fit."""
        sizes = network.sizes
        if self.target.horizon and network.frozen is None:
            kind = type(self.target).__name__
            raise ConfigError(f"ValueExpansion.target = @{kind}() needs a world model: set Control.dynamics")
        if self.augmentation is not None and network.frozen is None:
            raise ConfigError("ValueExpansion.augmentation needs a world model: set Control.dynamics")
        if (self.core == "sac") != sizes.stochastic:
            raise ConfigError(
                f"ValueExpansion.core = {self.core!r} and Control.stochastic = {sizes.stochastic} do not fit: "
                f"sac draws its actions, the others do not; --stochastic {not sizes.stochastic}"
            )
        if self.rows == "split" and self.batch_size % sizes.critics:
            raise ConfigError(
                f"ValueExpansion.batch_size = {self.batch_size} cannot be split between "
                f"Control.critics = {sizes.critics}"
            )
        return self.algorithm.build(network, total_steps)
