"""The configurable name `QLearning`, under which DQN, R2D2, NGU and Agent57 share one set of settings.

Shipped configurations use it, so that one base file serves all four. Which algorithm it is follows from the policy's
network and from what the memory gives:

| algorithm | network | a sequence |
| --- | --- | --- |
| `dqn.py` | neither recurrent nor rewarded for novelty, n-step returns | one transition |
| `r2d2.py` | not rewarded for novelty | any other |
| `ngu.py` | one network for rewards and novelty | any |
| `agent57.py` | a network for each | any |

The loss of each is in its file. A configuration may name an algorithm itself instead: @DQN(), @R2D2(), @NGU() or
@Agent57().
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

from torch import Tensor

from packtrain.algorithms import agent57, dqn, ngu, r2d2
from packtrain.algorithms.q_sequences import (
    Reduction,
    Returns,
    RewardClipping,
    check_ignored_discount,
    check_sequences,
    prepare_priorities,
    value_optimiser,
)
from packtrain.algorithms.target_network import Optimisers, TargetNetworkLearner
from packtrain.config import configurable, unrecorded
from packtrain.interfaces import LearnerSettings, MemorySettings, Policy, PolicySettings
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.types import Trajectory

T = TypeVar("T")


@configurable
@dataclass(frozen=True)
class QLearning(LearnerSettings):
    """Settings of DQN, R2D2, NGU and Agent57 together; defaults are R2D2's."""

    splits_batches: ClassVar[bool] = True
    discount: float | None = 0.997  # γ per step; None: each arm has its own
    returns: Returns = "n_step"
    n_step: int = 5  # n of n_step; the memory's must be the same
    trace_lambda: float = 0.95  # λ of retrace and peng
    double: bool = True  # the online network chooses the action that the target network values
    reward_clipping: RewardClipping = "none"
    huber: float | None = None  # TD error from which the loss is linear; None: squared loss
    exploit_share: float = 0.0  # fraction of the sequences that are learned as if arm 0 had made them
    eta: float = 0.9  # η of a sequence's priority, η max |δ| + (1 − η) mean |δ|
    learning_rate: float = 0.0001
    adam_epsilon: float = 0.001
    grad_norm_clipping: float | None = 40.0  # maximum global gradient norm of the Q network; None: not clipped
    target_period: int = 2500  # updates between copies into the target network
    publish_period: int = 1  # updates between versions of the weights that act
    embedding_learning_rate: float = 0.0005
    embedding_decay: float = 1e-5  # weight of the L2 regularisation
    distillation_learning_rate: float = 0.0005
    novelty_steps: int = 5  # last steps of each sequence that embedding and distillation learn from
    target_epsilon: float = 0.0  # of the ε-greedy policy that retrace evaluates
    reduction: Reduction = "mean"  # reduction of the loss over the steps of a sequence

    def __post_init__(self) -> None:
        ngu.check_numbers(self)

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if the memory lacks required data, or no discount is set."""
        check_sequences(self, memory, policy)

    def check_new_run(self, policy: PolicySettings) -> None:
        """Raise a ConfigError if a setting would be ignored."""
        check_ignored_discount(self, policy)

    def prepare_policy(self, policy: Policy, memory: MemorySettings) -> None:
        """Let actors compute initial priorities if the memory requires them."""
        prepare_priorities(self, policy, memory)

    def build(self, network: ActionValuesNetwork, total_steps: int) -> TargetNetworkLearner:
        """Return a learner of the algorithm that follows from network and settings."""
        if network.sizes.network.separate_intrinsic:
            return self.as_agent57.build(network, total_steps)
        if network.sizes.novelty is not None:
            return self.as_ngu.build(network, total_steps)
        if self.returns != "n_step" or network.sizes.network.recurrent:
            return self.as_r2d2.build(network, total_steps)
        return TargetNetworkLearner(
            network,
            {"values": value_optimiser(network, self)},
            functools.partial(step, settings=self),
            target_period=self.target_period,
            publish_period=self.publish_period,
        )

    @functools.cached_property
    def as_dqn(self) -> dqn.DQN:
        """Return the settings of DQN."""
        return _taken(dqn.DQN, self)

    @functools.cached_property
    def as_r2d2(self) -> r2d2.R2D2:
        """Return the settings of R2D2."""
        return _taken(r2d2.R2D2, self)

    @functools.cached_property
    def as_ngu(self) -> ngu.NGU:
        """Return the settings of NGU."""
        return _taken(ngu.NGU, self)

    @functools.cached_property
    def as_agent57(self) -> agent57.Agent57:
        """Return the settings of Agent57."""
        return _taken(agent57.Agent57, self)


def step(
    network: ActionValuesNetwork, optimisers: Optimisers, trajectory: Trajectory, weight: Tensor, *, settings: QLearning
) -> dict[str, Tensor]:
    """Make one update without novelty: DQN's on single transitions, R2D2's on sequences."""
    if dqn.are_transitions(network, trajectory, settings.n_step):
        return dqn.step(network, optimisers, trajectory, weight, settings=settings.as_dqn)
    return r2d2.step(network, optimisers, trajectory, weight, settings=settings.as_r2d2)


def _taken(algorithm: type[T], settings: QLearning) -> T:
    """Return the settings of one algorithm, which follow from those of the configuration."""
    names = [field.name for field in fields(algorithm)]  # type: ignore[arg-type]
    with unrecorded():
        return algorithm(**{name: getattr(settings, name) for name in names})
