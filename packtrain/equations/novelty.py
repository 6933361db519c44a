"""Novelty of observations: prediction errors, visit counts, distances within an episode, and their normalisation.

RND: Burda et al. 2018 (arXiv:1810.12894). NGU: Badia et al. 2020 (arXiv:2002.06038). A reward for novelty belongs to
the action that led there: row t of every reward here speaks of the observation after action t.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from packtrain.equations.scan import reverse_linear_scan
from packtrain.equations.shapes import assert_equal_shapes

TINY = 1e-8  # smaller standard deviations or distances count as zero
LEAST = 100  # number of errors from which their deviation scales rewards


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of a stream of numbers, or of each coordinate of vectors; float64."""

    number: Tensor  # [] number of values
    mean: Tensor  # [...]
    m2: Tensor  # [...] Σ (x − mean)²


def no_moments(*shape: int, device: torch.device | None = None) -> Moments:
    """Return the moments of an empty stream."""
    zeros = torch.zeros(shape, dtype=torch.float64, device=device)
    return Moments(torch.zeros((), dtype=torch.float64, device=device), zeros, zeros.clone())


@torch.no_grad()
def add_to_moments(moments: Moments, values: Tensor, weight: Tensor) -> Moments:
    """Return the moments after N more values, merged as in Chan et al. 1979: order and batches do not matter.

    Args:
      moments: of what came before.
      values: [N, ...].
      weight: [N] how often each value counts, a whole number; values that count 0 times may be anything.

    Returns:
      New moments; those given are not changed.
    """
    assert values.shape[1:] == moments.mean.shape, f"{tuple(values.shape)} does not fit {tuple(moments.mean.shape)}"
    assert weight.shape == values.shape[:1], f"{tuple(weight.shape)} does not fit {tuple(values.shape)}"
    times = weight.double().reshape(-1, *[1] * (values.ndim - 1))
    values = values.double().masked_fill(times == 0, 0.0)
    added = times.sum()
    mean = (values * times).sum(0) / added.clamp(min=1)
    m2 = ((values - mean).square() * times).sum(0)
    total = (moments.number + added).clamp(min=1)
    change = mean - moments.mean
    return Moments(
        moments.number + added,
        moments.mean + change * added / total,
        moments.m2 + m2 + change.square() * moments.number * added / total,
    )


@torch.no_grad()
def forget(moments: Moments, most: float) -> Moments:
    """Limit the count of the moments to `most`, with the same mean and deviation, so that later values weigh more."""
    share = (most / moments.number.clamp(min=1)).clamp(max=1.0)
    return Moments(moments.number * share, moments.mean, moments.m2 * share)


def deviation(moments: Moments) -> Tensor:
    """Return the standard deviation √(M2 / number), [...] float64; 0 for an empty stream."""
    return (moments.m2 / moments.number.clamp(min=1)).sqrt()


def normalise(values: Tensor, moments: Moments, clip: float) -> Tensor:
    """Return (x − mean) / std of values, clipped to [−clip, clip], same shape, float32.

    A coordinate that has never changed is 0 where it is as ever, and ±clip where it is not.
    """
    scale = deviation(moments).clamp(min=TINY)
    return ((values - moments.mean.float()) / scale.float()).clamp(-clip, clip)


def rnd_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error of predicted random features, [..., F] → [...] (Burda et al. 2018, section 2.2)."""
    assert prediction.shape == target.shape, f"shapes differ: {tuple(prediction.shape)} and {tuple(target.shape)}"
    return (prediction - target).square().mean(-1)


def rnd_reward(error: Tensor, moments: Moments) -> Tensor:
    """Return errors divided by their standard deviation, same shape, float32; 0 while the deviation is negligible.

    That is before `LEAST` have been counted, and where they differ by less than a thousandth of their mean: a deviation
    near 0 would make rewards without bounds.
    """
    scale = deviation(moments)
    known = (moments.number >= LEAST) & (scale > 1e-3 * moments.mean.abs() + TINY)
    return torch.where(known, error.double() / scale.clamp(min=TINY), 0.0).float()


def count_bonus(visits: Tensor) -> Tensor:
    """Return 1 / √n for the n-th visit, n at least 1, any shape (Bellemare et al. 2016, arXiv:1606.01868, β = 1)."""
    return visits.float().rsqrt()


@torch.no_grad()
def forward_returns(r_t: Tensor, weight_t: Tensor, discount: float, before: Tensor) -> Tensor:
    """Return the sums of past rewards, discounted backward in time.

        f_t = γ f_{t−1} + r_t,   f_{−1} = before

    RND divides intrinsic rewards by the standard deviation of f over all environments and timesteps. The sum runs
    backward, so it needs no future rewards. Ends of episodes do not reset it.

    Args:
      r_t: [T, B].
      weight_t: [T, B] 0 for filler rows, where f stays as it was, else 1.
      discount: γ.
      before: [B] f before row 0.

    Returns:
      [T, B] f.
    """
    assert_equal_shapes(2, r_t=r_t, weight_t=weight_t)
    assert before.shape == r_t.shape[1:], f"{tuple(before.shape)} does not fit {tuple(r_t.shape)}"
    filler = weight_t == 0
    decay = torch.full_like(r_t, discount).masked_fill(filler, 1.0)
    added = r_t.masked_fill(filler, 0.0)
    added = torch.cat([added[:1] + decay[:1] * before, added[1:]])
    return reverse_linear_scan(added.flip(0), decay.flip(0)).flip(0)


def life_long_modulator(error: Tensor, moments: Moments, largest: float = 5.0) -> Tensor:
    """Return NGU's life-long novelty modulator α: the distillation error in standard deviations above its mean, plus 1.

        α = min(max(1 + (error − mean) / std, 1), largest)

    Args:
      error: any shape, `rnd_error`s.
      moments: of errors so far.
      largest: L.

    Returns:
      Same shape, in [1, largest].
    """
    unusual = (error - moments.mean.float()) / deviation(moments).clamp(min=TINY).float()
    return (1 + unusual).clamp(1.0, largest)


def nearest_distances(embedding: Tensor, memory: Tensor, neighbours: int) -> Tensor:
    """Return squared distances to the nearest points of an episode's memory, ascending: [N, D], [M, D] → [N, k].

    k is `neighbours`, or M where the memory holds fewer.
    """
    assert embedding.ndim == memory.ndim == 2 and embedding.shape[1] == memory.shape[1]
    squared = (embedding[:, None] - memory[None]).square().sum(-1)  # [N, 1, D], [1, M, D] → [N, M]
    return squared.topk(min(neighbours, len(memory)), largest=False).values


def episodic_bonus(
    squared_distances: Tensor,
    mean_squared_distance: Tensor,
    *,
    epsilon: float = 1e-4,
    cluster_distance: float = 0.008,
    pseudo_count: float = 0.001,
    most_similar: float = 8.0,
) -> Tensor:
    """Return NGU's episodic bonus (Badia et al. 2020, equation 2 and algorithm 1): 1 / √n with a kernel-based count.

        K_i = ε / (max(d_i² / d_m² − ξ, 0) + ε)
        s   = √(Σ_i K_i) + c
        r   = 1 / s, or 0 where s > s_m

    The embedding asked about is not in the memory yet. With k neighbours s is at most √k + c: the default s_m never
    acts below k = 64.

    Args:
      squared_distances: [..., k] d_i² to the nearest neighbours (`nearest_distances`).
      mean_squared_distance: [...] or [] d_m², a running mean of such distances; 0 counts as TINY.
      epsilon: ε of the inverse kernel.
      cluster_distance: ξ, closer than this is the same.
      pseudo_count: c.
      most_similar: s_m.

    Returns:
      [...] the bonus; 1 / c where there is no neighbour.
    """
    relative = squared_distances / mean_squared_distance.clamp(min=TINY).unsqueeze(-1)
    kernel = epsilon / ((relative - cluster_distance).clamp(min=0.0) + epsilon)
    similarity = kernel.sum(-1).sqrt() + pseudo_count
    return similarity.reciprocal().masked_fill(similarity > most_similar, 0.0)


class MeanDistance(NamedTuple):
    """Running means of squared distances, one per environment."""

    number: Tensor  # [B] number of steps counted
    mean: Tensor  # [B] d_m²; 0 before the first


def no_mean_distance(columns: int, device: torch.device | None = None) -> MeanDistance:
    """Return running means before the first step."""
    zeros = torch.zeros(columns, device=device)
    return MeanDistance(zeros, zeros.clone())


def nearest_in_memories(embedding: Tensor, memory: Tensor, number: Tensor, neighbours: int) -> Tensor:
    """Return `nearest_distances` for B episodes at once, each in its own memory.

    Differences are taken before they are squared: |a|² + |b|² − 2ab would be faster and lose the small distances,
    which are the ones that count.

    Args:
      embedding: [B, D] what is asked about; not in the memory yet.
      memory: [B, M, D] what each episode has shown, rings of M places; may hold anything finite beyond `number`.
      number: [B] int64 how many were put in; beyond M they have taken the places of the oldest.
      neighbours: k, at most M.

    Returns:
      [B, k]; inf where a memory holds fewer than k.
    """
    columns, places, features = memory.shape
    assert embedding.shape == (columns, features) and number.shape == (columns,), "shapes do not fit"
    assert 1 <= neighbours <= places, f"{neighbours} neighbours of {places}"
    distance = torch.cdist(embedding[:, None], memory, compute_mode="donot_use_mm_for_euclid_dist").squeeze(1)  # [B, M]
    empty = torch.arange(places, device=memory.device) >= number[:, None]
    return distance.square().masked_fill(empty, torch.inf).topk(neighbours, largest=False).values


@torch.no_grad()
def add_to_mean_distance(
    scale: MeanDistance, squared_distances: Tensor, weight: Tensor, decay: float = 0.99
) -> MeanDistance:
    """Return the running mean after one more step: the exact mean at first, later an exponential average.

        d_m² ← d_m² + max(1 − decay, 1 / (number + 1)) (mean_i d_i² − d_m²)

    The first value is taken as it is. With decay 1 it is the mean of all steps for ever.

    Args:
      scale: before; not changed.
      squared_distances: [B, k] of `nearest_in_memories`; inf is no neighbour and does not count.
      weight: [B] 0 where no step was made, else 1.
      decay: how much of the past is kept once it is long.

    Returns:
      A new mean; environments without a neighbour or a step stay as they are.
    """
    assert scale.mean.shape == weight.shape == squared_distances.shape[:1], "shapes do not fit"
    there = squared_distances.isfinite()
    found = there.sum(1)
    value = squared_distances.masked_fill(~there, 0.0).sum(1) / found.clamp(min=1)
    counts = (found > 0) & (weight > 0)
    rate = (1 / (scale.number + 1)).clamp(min=1 - decay)
    return MeanDistance(
        scale.number + counts, torch.where(counts, scale.mean + rate * (value - scale.mean), scale.mean)
    )


@torch.no_grad()
def episodic_novelty(
    embedding: Tensor,
    memory: Tensor,
    number: Tensor,
    weight: Tensor,
    scale: MeanDistance,
    *,
    neighbours: int = 10,
    decay: float = 0.99,
    epsilon: float = 1e-4,
    cluster_distance: float = 0.008,
    pseudo_count: float = 0.001,
    most_similar: float = 8.0,
) -> tuple[Tensor, MeanDistance]:
    """Return NGU's episodic reward of B environments (Badia et al. 2020, algorithm 1), and the updated distance scale.

    d_m² takes in this step's distances before they are divided by it, so that it is never 0 where they are not, and
    rewards do not depend on the size of embeddings. The caller puts the embedding into the memory afterwards, and
    empties the memory (number = 0) where an episode ends; the scale goes on over episodes.

    Args:
      embedding: [B, D] of the observation after the action.
      memory: [B, M, D], see `nearest_in_memories`.
      number: [B] int64 how many were put in.
      weight: [B] 0 where no step was made (a reset), else 1.
      scale: d_m² so far.
      neighbours: k.
      decay: see `add_to_mean_distance`.
      epsilon: see `episodic_bonus`, as for the rest.
      cluster_distance: ξ.
      pseudo_count: c.
      most_similar: s_m.

    Returns:
      [B] the reward, 0 where the memory of that column holds fewer than k or no step was made; and the new scale.
    """
    squared = nearest_in_memories(embedding, memory, number, neighbours)
    scale = add_to_mean_distance(scale, squared, weight, decay)
    bonus = episodic_bonus(
        squared,
        scale.mean,
        epsilon=epsilon,
        cluster_distance=cluster_distance,
        pseudo_count=pseudo_count,
        most_similar=most_similar,
    )
    return bonus.masked_fill((number < neighbours) | (weight == 0), 0.0), scale


def ngu_reward(episodic: Tensor, error: Tensor, moments: Moments, largest: float = 5.0) -> Tensor:
    """Return NGU's intrinsic reward r = r_episodic · min(max(α, 1), L) (Badia et al. 2020, equation 1).

    Args:
      episodic: any shape, `episodic_bonus`.
      error: same shape, `rnd_error` of the same observations.
      moments: of errors so far.
      largest: L.

    Returns:
      Same shape, between the episodic reward and L times it.
    """
    assert episodic.shape == error.shape, f"shapes differ: {tuple(episodic.shape)} and {tuple(error.shape)}"
    return episodic * life_long_modulator(error, moments, largest)
