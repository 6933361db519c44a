"""Sliding-window bandit: selects the policy of the next episode by the returns of the last W episodes.

UCB1-Tuned: Auer et al. 2002, section 4. Over a window: Garivier and Moulines 2008 (arXiv:0805.3415); as the
meta-controller of an actor: Badia et al. 2020 (Agent57, arXiv:2003.13350), section 3.2.

C environments with one bandit each; A arms; W episodes in the window. The caller supplies the random generator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """The last W episodes of each environment, in a ring buffer."""

    arm: Tensor  # [C, W] int64
    value: Tensor  # [C, W] the return of that episode
    number: Tensor  # [C] int64  episodes so far; the next one takes place number % W


class ArmStatistics(NamedTuple):
    """Statistics of each arm in the window; 0 for an arm without episodes."""

    number: Tensor  # [C, A] n_a
    mean: Tensor  # [C, A]
    variance: Tensor  # [C, A] of the population


def empty_window(columns: int, length: int, device: torch.device | None = None) -> Window:
    """Return a window without episodes."""
    arm = torch.zeros(columns, length, dtype=torch.int64, device=device)
    return Window(arm, torch.zeros_like(arm, dtype=torch.float64), arm.new_zeros(columns))


@torch.no_grad()
def add_episode(window: Window, arm: Tensor, value: Tensor, ended: Tensor) -> Window:
    """Return the window after an episode, which replaces arm and return of the episode W before it.

    Args:
      window: before; not changed.
      arm: [C] int64 what was played.
      value: [C] its return, undiscounted and not clipped; anything where no episode ended.
      ended: [C] bool, whether an episode ended in this column; others stay as they are.

    Returns:
      A new window.
    """
    columns, length = window.arm.shape
    assert arm.shape == value.shape == ended.shape == (columns,), f"expected [{columns}] each"
    place = torch.arange(length, device=arm.device) == (window.number % length)[:, None]
    place = place & ended[:, None]  # [C, W] at most one true per environment
    return Window(
        torch.where(place, arm[:, None], window.arm),
        torch.where(place, value[:, None].to(window.value.dtype), window.value),
        window.number + ended,
    )


@torch.no_grad()
def arm_statistics(window: Window, arms: int, scaled: bool = True) -> ArmStatistics:
    """Return number, mean and variance of the returns of each arm in the window.

    Args:
      window: the episodes.
      arms: A.
      scaled: returns are first mapped to [0, 1] by the least and the largest in the column's window, as the bound ¼ on
        a variance in UCB1-Tuned needs; all 0 where these are the same.

    Returns:
      ArmStatistics of [C, A].
    """
    valid = torch.arange(window.arm.shape[1], device=window.arm.device) < window.number[:, None]  # [C, W]
    value = window.value.masked_fill(~valid, 0.0)
    if scaled:
        least = value.masked_fill(~valid, torch.inf).amin(1, keepdim=True)
        span = value.masked_fill(~valid, -torch.inf).amax(1, keepdim=True) - least
        value = ((value - least) / torch.where(span > 0, span, 1.0)).masked_fill(~valid, 0.0)
    played = (window.arm.unsqueeze(-1) == torch.arange(arms, device=value.device)) & valid.unsqueeze(-1)  # [C, W, A]
    number = played.sum(1).to(value.dtype)
    mean = (played * value.unsqueeze(-1)).sum(1) / number.clamp(min=1)
    apart = (value.unsqueeze(-1) - mean.unsqueeze(1)) * played
    return ArmStatistics(number, mean, apart.square().sum(1) / number.clamp(min=1))


@torch.no_grad()
def ucb1_tuned_scores(statistics: ArmStatistics) -> Tensor:
    """Return UCB1-Tuned scores (Auer et al. 2002) for returns in [0, 1]: mean plus an uncertainty bonus.

        score_a = mean_a + √(ln m / n_a · min(¼, variance_a + √(2 ln m / n_a))),   m = Σ_a n_a

    Args:
      statistics: of `arm_statistics`, scaled.

    Returns:
      [C, A] scores; inf for arms that are not in the window.
    """
    number, mean, variance = statistics
    share = number.sum(1, keepdim=True).clamp(min=1).log() / number.clamp(min=1)  # ln m / n_a
    score = mean + (share * (variance + (2 * share).sqrt()).clamp(max=0.25)).sqrt()
    return score.masked_fill(number == 0, torch.inf)


@torch.no_grad()
def agent57_scores(statistics: ArmStatistics, exploration: float = 1.0) -> Tensor:
    """Return Agent57's simpler scores, without the logarithm: mean_a + β √(1 / n_a), inf where n_a is 0; [C, A].

    The paper's returns are not scaled, so that β is in units of returns.
    """
    score = statistics.mean + exploration * statistics.number.clamp(min=1).rsqrt()
    return score.masked_fill(statistics.number == 0, torch.inf)


@torch.no_grad()
def choose_arm(scores: Tensor, explore: Tensor, noise: Tensor) -> Tensor:
    """Return the arm to play: one that is not in the window, else a random one when exploring, else the best.

    Among those that are equally good (all, where exploring) the one with the largest noise is taken: with independent
    uniform noise each is as likely.

    Args:
      scores: [C, A], inf for arms without an episode.
      explore: [C] bool, true with probability ε.
      noise: [C, A] at least 0.

    Returns:
      [C] int64.
    """
    assert scores.shape == noise.shape and explore.shape == scores.shape[:1], "shapes do not fit"
    best = scores.amax(1, keepdim=True)
    candidate = (scores == best) | (explore[:, None] & best.isfinite())
    return noise.masked_fill(~candidate, -1.0).argmax(1)
