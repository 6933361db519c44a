"""Transformations of rewards in the learner; logged returns stay raw."""

from __future__ import annotations

import torch
from torch import Tensor

REWARD_CLIPPING = ("abs_one", "none", "soft_asymmetric", "symlog")


def clip_reward(reward: Tensor, mode: str) -> Tensor:
    """Return the reward clipped in one of four ways.

        abs_one          max(−1, min(1, r))
        none             r
        soft_asymmetric  5 tanh(r / 5) where r ≥ 0, else 0.3 · 5 tanh(r / 5)
        symlog           sign(r) ln(1 + |r|)

    "abs_one" is the Atari custom. "soft_asymmetric" is what deepmind/scalable_agent offers for DMLab-30: bounded by 5
    above and −1.5 below, nearly linear around 0 with a slope of 1 for rewards and 0.3 for punishments. "symlog" keeps
    rewards of all sizes apart, which a clip at 1 does not: two rewards above 1 are the same there.

    Args:
      reward: any shape, as the environment gave it.
      mode: one of REWARD_CLIPPING.

    Returns:
      The reward to learn from, same shape.
    """
    if mode == "abs_one":
        return reward.clamp(-1.0, 1.0)
    if mode == "none":
        return reward
    if mode == "soft_asymmetric":
        squeezed = 5.0 * torch.tanh(reward / 5.0)
        return torch.where(reward < 0, 0.3 * squeezed, squeezed)
    if mode == "symlog":
        return reward.sign() * reward.abs().log1p()
    raise ValueError(f"reward clipping is {mode!r}, expected one of {', '.join(REWARD_CLIPPING)}")
