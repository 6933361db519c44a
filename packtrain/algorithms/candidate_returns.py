"""What MVE, STEVE and MBPO share: rollouts of a world model under the policy, candidate returns, copies of the model.

Letters besides those of `types`: R runs, M transition members, L reward members, N critics, H steps into the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from packtrain.algorithms.actor_critic import (
    ActorCritic,
    Copy,
    check_network,
    check_replay,
    critic_values,
    rows_of_critics,
)
from packtrain.algorithms.batched_updates import Batch
from packtrain.algorithms.calibration import calibration
from packtrain.algorithms.model_rollouts import ModelRollouts
from packtrain.equations.value_expansion import Expansion, Targets, expanded_returns
from packtrain.errors import ConfigError
from packtrain.interfaces import Memory, MemorySettings, PolicySettings
from packtrain.networks.control import ControlNetwork

STRETCHES = 1024  # number of held-out segments in a calibration
_FEWEST_STRETCHES = 16
Metrics = dict[str, Tensor]


class Rollouts(NamedTuple):
    """H model steps under the policy, from the states that follow the batch's real steps."""

    obs: list[Tensor]  # H + 1 of [R, M, B, D]
    action: list[Tensor]  # H + 1 of [R, M, B, A]
    termination: Tensor  # [H+1, R, B, M]; row 0 is the real one
    reward: Tensor  # [H, R, B, M, L]
    value: Tensor  # [H+1, R, B, M, N]
    entropy_cost: Tensor | None  # [H, R, B, M] temperature · log π of the actions; None where entropy does not count


class ModelSettings(Protocol):
    """Settings that MVE, STEVE and MBPO have."""

    @property
    def actor_critic(self) -> ActorCritic:
        """The actor–critic algorithm that MVE, STEVE or MBPO extends."""

    @property
    def model_period(self) -> int | None:
        """Updates between copies of the model that updates use; None: one at the end of every call."""

    @property
    def augmentation(self) -> ModelRollouts | None:
        """Replacement of part of each batch by model steps; None: real steps only."""


class ExpansionSettings(ModelSettings, Protocol):
    """Settings that MVE and STEVE have."""

    @property
    def horizon(self) -> int:
        """Rollout horizon H in model steps."""

    @property
    def calibration_period(self) -> int:
        """Updates between two calibration measurements; 0: none."""


class ModelExpansion(ExpansionSettings, Protocol):
    """Base class of MVE and STEVE."""

    def draws(self, network: ControlNetwork, count: int, generator: torch.Generator) -> Batch:
        """Return the random inputs of updates."""

    def targets(self, network: ControlNetwork, batch: Batch) -> tuple[Rollouts, Targets]:
        """Return the rollouts after the steps of a batch, and the critics' targets."""


def rollouts(network: ControlNetwork, actor_critic: ActorCritic, horizon: int, batch: Batch) -> Rollouts:
    """Roll out the policy in the model from the states that follow the steps of a batch.

    Args:
      network: of R runs.
      actor_critic: chooses actions and values states.
      horizon: H.
      batch: "after" [R, B, D] and "terminated" [R, B], and the noise that `draws` returned.
    """
    model = network.frozen
    assert model is not None
    members = model.transition.members
    obs = [batch["after"].unsqueeze(1).expand(-1, members, -1, -1)]  # [R, M, B, D]
    chosen = [actor_critic.next_action(network, batch, obs[0], 0)]
    for depth in range(horizon):
        noise = batch["model_noise"][:, depth] if "model_noise" in batch else None
        obs.append(model.move(obs[depth], chosen[depth].action, noise))
        chosen.append(actor_critic.next_action(network, batch, obs[depth + 1], depth + 1))
    action = [each.action for each in chosen]
    # Only the transitions must be computed step by step; values, rewards and ends of all depths are computed at once.
    pairs = (torch.stack(part, 1).flatten(1, 3) for part in (obs, action))  # [R, (H+1)*M*B, ...]
    value = actor_critic.next_value(network, batch, *pairs)  # [R, N, (H+1)*M*B]
    value = value.unflatten(-1, (horizon + 1, *obs[0].shape[1:3])).permute(2, 0, 4, 3, 1)  # [H+1, R, B, M, N]
    real_end = batch["terminated"].to(value.dtype)[None, :, :, None].expand(1, -1, -1, members)
    reward, end = model.judge_rollout(torch.stack(obs, 1), torch.stack(action[:-1], 1))
    reward = reward.permute(1, 0, 4, 2, 3)  # [R, H, M, L, B] → [H, R, B, M, L]
    termination = torch.cat([real_end, end.permute(1, 0, 3, 2)])  # [R, H, M, B] → [H, R, B, M]
    costs = [each.entropy_cost for each in chosen if each.entropy_cost is not None]
    if not costs:
        return Rollouts(obs, action, termination, reward, value, None)
    cost = torch.stack(costs).permute(0, 1, 3, 2)  # [H+1, R, B, M]: subtracted with the value after the action
    value = value - cost.unsqueeze(-1)
    reward = reward - cost[:-1].unsqueeze(-1) / actor_critic.reward_scale
    return Rollouts(obs, action, termination, reward, value, cost[:-1])


def candidate_returns(found: Rollouts, actor_critic: ActorCritic, batch: Batch, tdk_trick: bool) -> Expansion:
    """Return the candidate returns T[i, j] of all members, for every depth j.

    Args:
      found: rollouts after the steps of a batch.
      actor_critic: γ and κ.
      batch: "reward" [R, B].
      tdk_trick: with a start i for each imagined pair, and not only for the real one.
    """
    expansion = expanded_returns(
        batch["reward"],
        found.termination,
        found.reward,
        found.value,
        discount=actor_critic.discount,
        reward_scale=actor_critic.reward_scale,
        starts=len(found.termination) if tdk_trick else 1,
    )
    if found.entropy_cost is not None:  # the value of a model-generated pair excludes the cost of its own action
        for start in range(1, len(expansion.rewards)):
            expansion.rewards[start, start:] += found.entropy_cost[start - 1].unsqueeze(-1)
    return expansion


def tdk_critic_losses(
    network: ControlNetwork, actor_critic: ActorCritic, batch: Batch, found: Rollouts, targets: Targets
) -> tuple[Tensor, Tensor]:
    """Return half the mean squared error of the critics with the TD-k trick, and their mean value of real pairs.

    Critics learn from imagined pairs too, each weighted by the probability of reaching it; the mean is over all. Pairs
    that are not finite are left out. With targets of real pairs alone it is `actor_critic.critic_losses`.

    Args:
      network: of R runs.
      actor_critic: says which critics learn from a row.
      batch: transitions [R, B].
      found: rollouts after them.
      targets: S starts, 1 or H + 1.

    Returns:
      [R] each.
    """
    rows, starts = actor_critic.rows, len(targets.target)
    real = critic_values(network, rows, batch, batch["obs"].unsqueeze(1), batch["action"].unsqueeze(1))
    value = real  # [R, 1, N, B / N], or as `rows` says
    target, weight = (rows_of_critics(network, rows, part.transpose(0, 1)) for part in (targets.target, targets.reach))
    if starts > 1:
        obs, action, finite = _finite_pairs(found, starts - 1)
        imagined = critic_values(network, rows, batch, obs.flatten(1, 2), action.flatten(1, 2))
        imagined = imagined.unflatten(1, (starts - 1, -1))  # [R, S-1, M, N, B / N]
        counts = rows_of_critics(network, rows, finite)
        number = counts.sum(2, dtype=imagined.dtype)
        mean = torch.where(counts, imagined, 0.0).sum(2) / number.clamp(min=1)
        value = torch.cat([real, mean], 1)  # [R, S, N, B / N]
        weight = torch.cat([weight[:, :1], torch.where(number > 0, weight[:, 1:], 0.0)], 1)
    loss = (weight * 0.5 * (value - target).square()).mean((1, 2, 3))
    return loss, real.detach().mean((1, 2, 3))


def _finite_pairs(found: Rollouts, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first imagined pairs, [R, S-1, M, B, ...] each, with non-finite ones set to 0; and which are finite.

    A pair for which a target critic is not finite is not: its gradient would not be finite either.
    """
    obs, action = (torch.stack(parts[:count], 1) for parts in (found.obs, found.action))
    value = found.value[:count].isfinite().all(-1).permute(1, 0, 3, 2)  # [S-1, R, B, M] → [R, S-1, M, B]
    finite = value & obs.isfinite().all(-1) & action.isfinite().all(-1)
    obs, action = (torch.where(finite.unsqueeze(-1), part, 0.0) for part in (obs, action))
    return obs, action, finite


def draw_noise(settings: ExpansionSettings, network: ControlNetwork, count: int, generator: torch.Generator) -> Batch:
    """Return the random inputs of updates: noise of actions at every depth, and of a probabilistic model."""
    drawn = settings.actor_critic.draws(network, count, generator, settings.horizon + 1)
    size, model = settings.actor_critic.batch_size, network.frozen
    if model is not None and model.sizes.probabilistic:
        members, width = model.transition.members, model.obs_mean.shape[-1]
        shape = (count, settings.horizon, members, size, width)
        drawn["model_noise"] = torch.randn(shape, generator=generator, device=generator.device)
    if settings.augmentation is not None:
        drawn |= settings.augmentation.draws(count, size, network, generator)
    return drawn


def copies_of_model(settings: ModelSettings, network: ControlNetwork) -> Sequence[Copy]:
    """Return the copy of the model that targets are computed with."""
    return [Copy(settings.model_period, lambda: _copy_model(network), True)]


def copy_first_model(network: ControlNetwork, memory: Memory, updates: int, prepared: dict[str, int]) -> Metrics:
    """Copy the model before the first update, since it may have been pretrained."""
    if updates == 0:
        _copy_model(network)
    return {}


def calibrate(
    settings: ExpansionSettings, network: ControlNetwork, memory: Memory, updates: int, prepared: dict[str, int]
) -> Metrics:
    """Do what `copy_first_model` does; when a calibration is due, measure the model on held-out steps; return metrics.

    Without held-out steps nothing is measured: on steps that it was trained on, a model seems better than it is.

    Args:
      settings: of MVE or STEVE.
      network: of one run.
      memory: what it learns from.
      updates: how many have been made.
      prepared: keeps when the next calibration is due.
    """
    assert network.model is not None
    copy_first_model(network, memory, updates, prepared)
    period = settings.calibration_period if network.model.holdout else 0
    if not period or updates < prepared.get("next_calibration", period):
        return {}
    prepared["next_calibration"] = updates + period
    steps = settings.horizon + 1
    real = memory.view("stretches", most=STRETCHES, steps=steps, holdout=True)
    if real is None or real.trajectory.reward.shape[1] < _FEWEST_STRETCHES:
        return {}
    numbers = settings.actor_critic
    return calibration(network, real.trajectory, numbers.discount, numbers.reward_scale)


@torch.no_grad()
def _copy_model(network: ControlNetwork) -> None:
    if network.frozen is not None and network.model is not None:
        network.frozen.take_elites(network.model)


def check_model_memory(settings: ModelSettings, memory: MemorySettings, policy: PolicySettings) -> None:
    """Raise a ConfigError if the memory does not hold single steps of a `Control` policy."""
    replay = check_replay(settings, settings.actor_critic, memory, policy)
    if replay.n_step > 1:
        raise ConfigError(
            f"Replay.n_step = {replay.n_step} and {type(settings).__name__} do not fit: rollouts of a model continue "
            "single steps; @DDPG(), @TD3() and @SAC() learn from several real ones"
        )


def check_model(settings: ModelSettings, network: ControlNetwork) -> None:
    """Raise a ConfigError if the network has no world model, or does not fit the actor–critic algorithm."""
    if network.frozen is None:
        raise ConfigError(f"{type(settings).__name__} needs a world model: set Control.dynamics")
    check_network(settings, settings.actor_critic, network)
