"""Trainers with Alpacka's names: a memory, and a learner that is updated between episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from packtrain import config
from packtrain.algorithms.expert_iteration import ExpertIteration
from packtrain.algorithms.world_model import WorldModelLearning
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.memory.episodes import Episodes
from packtrain.networks.planner_inputs import Inputs
from packtrain.runtime.experiment import LearnerDescription

LEARNER, MODEL = "agent", "model"


@dataclass(frozen=True)
class Trainer:
    """A memory and a learner that is updated between episodes, with the number of updates."""

    learner: LearnerDescription
    memory: Episodes
    n_steps_per_epoch: int


@partial(configurable, module="packtrain.trainers")
def SupervisedTrainer(  # noqa: N802  (the name that configurations use)
    targets: dict[str, str] | None = None,
    batch_size: int = 64,
    n_steps_per_epoch: int = 1000,
    replay_buffer_capacity: int = 1_000_000,
    sampling_hierarchy: tuple[str, ...] = (),
    discount: float = 0.99,
    priority_exponent: float = 0.0,
    validation_share: float = 0.0,
    inputs: Inputs = "observation",
) -> Trainer:
    """Return a trainer of search results or of episode outcomes.

    Args:
      targets: head → target, see `expert_iteration.target`; None: the value that the search computed.
      batch_size: steps per batch, of each member of an ensemble.
      n_steps_per_epoch: updates after each epoch.
      replay_buffer_capacity: steps stored per bucket.
      sampling_hierarchy: buckets by these attributes of an episode.
      discount: of `discounted_return`.
      priority_exponent: above 0: sample steps with larger errors more often.
      validation_share: fraction of each bucket's episodes that is held out to measure the losses on them.
      inputs: what the network receives; must be what the planner sends.
    """
    owner = "SupervisedTrainer"
    at_least(1, owner, batch_size=batch_size, replay_buffer_capacity=replay_buffer_capacity)
    at_least(1, owner, n_steps_per_epoch=n_steps_per_epoch)
    share(owner, discount=discount, priority_exponent=priority_exponent)
    _check_validation(owner, validation_share)
    targets = targets or {"value": "value"}
    if "n_step" in targets.values():
        raise ConfigError(f"SupervisedTrainer.targets = {targets}: use TDTrainer for n-step returns")
    sizes = (replay_buffer_capacity, batch_size, tuple(sampling_hierarchy))
    memory = partial(Episodes, *sizes, validation_share=validation_share)
    learner: ExpertIteration = config.bind(ExpertIteration, targets=targets, inputs=inputs)
    return _trainer(learner, memory, n_steps_per_epoch, discount=discount, priority_exponent=priority_exponent)


@partial(configurable, module="packtrain.trainers")
def TDTrainer(  # noqa: N802
    temporal_diff_n: int = 1,
    gamma: float = 1.0,
    head: str = "value",
    batch_size: int = 64,
    n_steps_per_epoch: int = 1000,
    replay_buffer_capacity: int = 1_000_000,
    sampling_hierarchy: tuple[str, ...] = (),
    priority_exponent: float = 0.0,
    validation_share: float = 0.0,
) -> Trainer:
    """Return a trainer of n-step returns that bootstrap from the network itself.

    Args:
      temporal_diff_n: steps before bootstrapping; a number beyond every episode's length gives the full return.
      gamma: the discount.
      head: the head to train.
      batch_size: steps per batch, of each member of an ensemble.
      n_steps_per_epoch: updates after each epoch.
      replay_buffer_capacity: steps stored per bucket.
      sampling_hierarchy: buckets by these attributes of an episode.
      priority_exponent: above 0: sample steps with larger errors more often.
      validation_share: fraction of each bucket's episodes that is held out to measure the losses on them.
    """
    owner = "TDTrainer"
    if head != "value":
        raise ConfigError(f"TDTrainer.head = {head!r} must be 'value': returns of other actions are unknown")
    at_least(1, owner, temporal_diff_n=temporal_diff_n, batch_size=batch_size)
    at_least(1, owner, replay_buffer_capacity=replay_buffer_capacity, n_steps_per_epoch=n_steps_per_epoch)
    share(owner, gamma=gamma, priority_exponent=priority_exponent)
    _check_validation(owner, validation_share)
    sizes = (replay_buffer_capacity, batch_size, tuple(sampling_hierarchy))
    memory = partial(Episodes, *sizes, validation_share=validation_share)
    learner: ExpertIteration = config.bind(ExpertIteration, targets={head: "n_step"})
    more = {"discount": gamma, "n_step": temporal_diff_n, "priority_exponent": priority_exponent}
    return _trainer(learner, memory, n_steps_per_epoch, **more)


def _trainer(learner: ExpertIteration, memory: Callable[..., Episodes], steps: int, **more: Any) -> Trainer:
    with config.unrecorded():
        return Trainer(learner, memory(extras=learner.wanted(), **more), steps)


def _check_validation(owner: str, validation_share: float) -> None:
    if not 0 <= validation_share <= 0.5:
        raise ConfigError(f"{owner}.validation_share = {validation_share} must lie in [0, 0.5]")


def at_least(least: int, owner: str, **values: int | None) -> None:
    """Raise a ConfigError unless these parameters of `owner` are at least `least`, or None."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"{owner}.{name} = {value} must be at least {least}")


def share(owner: str, **values: float) -> None:
    """Raise a ConfigError unless these parameters of `owner` lie in [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{owner}.{name} = {value} must lie in [0, 1]")


@partial(configurable, module="packtrain.trainers")
def WorldModelTrainer(  # noqa: N802
    batch_size: int = 1024,
    members: int = 8,
    n_steps_per_epoch: int = 200,
    replay_buffer_capacity: int = 500_000,
    sampling_hierarchy: tuple[str, ...] = ("solved",),
    validation_share: float = 0.0,
) -> Trainer:
    """Return a trainer of the world model.

    Args:
      batch_size: steps per batch of one member.
      members: of the ensemble, each of which has its own batches.
      n_steps_per_epoch: updates of all members.
      replay_buffer_capacity: steps stored per bucket.
      sampling_hierarchy: buckets by these attributes of an episode.
      validation_share: fraction of each bucket's episodes that is held out to measure the model's accuracy.
    """
    _check_validation("WorldModelTrainer", validation_share)
    learner: WorldModelLearning = WorldModelLearning()
    with config.unrecorded():
        sizes = (replay_buffer_capacity, batch_size * members, tuple(sampling_hierarchy))
        memory = Episodes(*sizes, validation_share=validation_share)
        return Trainer(learner, memory, n_steps_per_epoch)


@partial(configurable, module="packtrain.trainers")
def DummyTrainer() -> None:  # noqa: N802
    """Return no trainer: no learning."""
    return None
