"""Short model rollouts that replace part of a batch of real steps, as in MBPO (Janner et al. 2019, arXiv:1906.08253).

A rollout begins at the observation of a real step of the batch and follows the current policy for up to `length` steps.
One step of it takes the place of the real one:

    s_0 = s of the real step,   a_t ~ π(s_t),   s_{t+1} = model(s_t, a_t),   t = 0 … h,   h uniform in 0 … length − 1

Step h, or the first that the model predicts to end, is what critic and policy learn from.

Deviations from MBPO:
 1. New rollouts are made for each update, with the current policy and model, instead of being kept in a memory.
 2. The reward is the mean of the reward models; each rollout follows one transition model, sampled for all its steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from packtrain import check
from packtrain.algorithms.batched_updates import Batch
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.networks.dynamics import DynamicsNetwork

if TYPE_CHECKING:
    from packtrain.networks.control import ControlNetwork

PREFIX = "rollout_"  # prefix of the names of sampled inputs


@configurable
@dataclass(frozen=True)
class ModelRollouts:
    """Settings of short model rollouts: fraction of model-generated steps per batch, and rollout length."""

    share: float = 0.5  # fraction of the batch's steps that is replaced
    length: int = 1  # longest rollout in steps
    action_std: float = 0.1  # standard deviation of the noise on a deterministic policy's actions

    def __post_init__(self) -> None:
        check.share(self, "share")
        check.at_least(self, 1, "length")
        check.not_negative(self, "action_std")
        if self.share == 0:
            raise ConfigError("ModelRollouts.share = 0 has no effect; set ValueExpansion.augmentation = None")

    def rows(self, size: int, device: torch.device) -> Tensor:
        """Return which rows of a batch are replaced, [N] int64: evenly spread, so that every critic has its share."""
        count = max(1, round(self.share * size))
        return torch.arange(count, device=device) * size // count

    def draws(self, count: int, size: int, network: ControlNetwork, generator: torch.Generator) -> Batch:
        """Return the random inputs of `count` updates of batches of `size` steps."""
        model, device = network.frozen, generator.device
        assert model is not None
        rows = len(self.rows(size, device))
        drawn: Batch = {
            "rollout_actions": torch.randn(
                count, self.length, rows, network.action_size, generator=generator, device=device
            ),
            "rollout_member": torch.randint(
                model.transition.members, (count, rows), generator=generator, device=device
            ),
            "rollout_depth": torch.randint(self.length, (count, rows), generator=generator, device=device),
        }
        if model.sizes.probabilistic:
            width = model.obs_mean.shape[-1]
            drawn["rollout_model"] = torch.randn(count, self.length, rows, width, generator=generator, device=device)
        return drawn


@torch.no_grad()
def with_rollouts(network: ControlNetwork, settings: ModelRollouts, batch: Batch) -> Batch:
    """Return a batch of R runs with the chosen rows replaced by imagined steps.

    A step of the model that is not finite is not taken: the real one stays.

    Args:
      network: has the policy and the model.
      settings: numbers.
      batch: "obs", "action", "after" [R, B, ...], "reward", "terminated" [R, B], and what `ModelRollouts.draws` made.
    """
    model = network.frozen
    assert model is not None
    rows = settings.rows(batch["obs"].shape[1], batch["obs"].device)
    obs, depth = batch["obs"][:, rows], batch["rollout_depth"]  # [R, N, D], [R, N]
    taken = {name: batch[name][:, rows] for name in ("obs", "action", "reward", "after", "terminated")}
    going = torch.ones_like(depth, dtype=torch.bool)
    for t in range(settings.length):
        action = _actions(network, settings, obs, batch["rollout_actions"][:, t])
        noise = batch["rollout_model"][:, t] if "rollout_model" in batch else None
        after, reward, ended = imagined_step(model, obs, action, batch["rollout_member"], noise)
        finite = after.isfinite().all(-1) & reward.isfinite()
        takes = going & finite & (ended | (depth == t))
        found = {"obs": obs, "action": action, "reward": reward, "after": after, "terminated": ended}
        for name, values in found.items():
            old = taken[name]
            mask = takes.unsqueeze(-1) if old.ndim == 3 else takes
            taken[name] = torch.where(mask, values.to(old.dtype), old)
        going = going & finite & ~takes
        obs = torch.where(finite.unsqueeze(-1), after, obs)
    return {**batch, **{name: batch[name].index_copy(1, rows, values) for name, values in taken.items()}}


def imagined_step(
    model: DynamicsNetwork, obs: Tensor, action: Tensor, member: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return next observations [R, N, D], rewards [R, N] and ends, bool [R, N], each by one transition model.

    Args:
      model: of R runs.
      obs: [R, N, D].
      action: [R, N, A].
      member: [R, N] int64, which transition model predicts each step.
      noise: [R, N, D] standard normal numbers of a probabilistic model; None: the mean.
    """
    members = model.transition.members

    def repeated(rows: Tensor) -> Tensor:
        return rows.unsqueeze(1).expand(-1, members, -1, -1)

    moved = model.move(repeated(obs), repeated(action), None if noise is None else repeated(noise))  # [R, K, N, D]
    after = moved.gather(1, member[:, None, :, None].expand(-1, 1, -1, obs.shape[-1])).squeeze(1)
    reward = model.judge(model.reward, obs, action, after).mean(1) * model.reward_scale
    if model.sizes.known_end is not None:
        return after, reward, model.sizes.known_end.ended(obs, action, after)
    over = model.judge(model.termination, obs, action, after)  # [R, K, N]
    return after, reward, over.gather(1, member.unsqueeze(1)).squeeze(1) > 0


def _actions(network: ControlNetwork, settings: ModelRollouts, obs: Tensor, noise: Tensor) -> Tensor:
    """Return the policy's actions [R, N, A] with exploration noise."""
    if network.sizes.stochastic:
        return network.draw(network.policy, obs, noise)[0]
    return (network.act(network.policy, obs) + settings.action_std * noise).clamp(-1, 1)
