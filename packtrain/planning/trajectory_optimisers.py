"""Optimisers of action sequences, as functions of sequences and scores, without a model.

R problems are solved at once: sequences are [R, P, H, D] with P candidates, horizon H and D action dimensions, each in
[−1, 1]; scores are [R, P], larger is better.
"""

from __future__ import annotations

import numpy as np


def correlated(noise: np.ndarray, correlation: float) -> np.ndarray:
    """Return noise with correlation between neighbouring steps and unchanged variance, from white noise [R, P, H, D].

    n_0 = ε_0,   n_t = ρ · n_{t−1} + √(1 − ρ²) · ε_t
    """
    if correlation == 0:
        return noise
    smooth, fresh = noise.copy(), np.sqrt(1 - correlation**2)
    for time in range(1, noise.shape[2]):
        smooth[:, :, time] = correlation * smooth[:, :, time - 1] + fresh * noise[:, :, time]
    return smooth


def candidates_around(mean: np.ndarray, std: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return sequences [R, P, H, D] around a mean [R, H, D] with deviations [R, H, D], clipped to [−1, 1]."""
    return np.clip(mean[:, None] + std[:, None] * noise, -1.0, 1.0)


def proper_scores(scores: np.ndarray) -> np.ndarray:
    """Replace NaN and ±inf by −inf: a sequence on which the model broke down is the worst, however it broke down."""
    return np.where(np.isfinite(scores), scores, -np.inf)


def elites(sequences: np.ndarray, scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best sequences [R, count, H, D] and their scores [R, count], best first."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(sequences, order[:, :, None, None], axis=1), np.take_along_axis(scores, order, axis=1)


def cross_entropy(
    mean: np.ndarray, std: np.ndarray, best: np.ndarray, momentum: float, min_std: float
) -> tuple[np.ndarray, np.ndarray]:
    """Make a step of the cross-entropy method: return mean and deviation of the elites, smoothed by momentum.

    Rubinstein and Kroese 2004, "The cross-entropy method"; for control as in Chua et al. 2018 (arXiv:1805.12114).

    Args:
      mean: [R, H, D] with which the candidates were sampled.
      std: [R, H, D] with which the candidates were sampled.
      best: [R, E, H, D] elites.
      momentum: weight of the old values.
      min_std: lower bound of deviations.
    """
    mean = momentum * mean + (1 - momentum) * best.mean(axis=1)
    std = momentum * std + (1 - momentum) * best.std(axis=1)
    return mean, np.maximum(std, min_std)


def path_integral(sequences: np.ndarray, scores: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Make a step of model-predictive path integral control: average candidates by softmax(scores / temperature).

    Williams et al. 2017 (arXiv:1707.02342), information-theoretic MPC without the control cost's cross term.

    Returns:
      [R, H, D] mean; [R, P] weights.
    """
    top = scores.max(axis=1, keepdims=True)
    # If every score is −inf, all candidates have the same weight.
    gaps = np.where(np.isneginf(top), 0.0, scores - np.where(np.isneginf(top), 0.0, top))
    weights = np.exp(gaps / temperature)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("rp,rphd->rhd", weights, sequences), weights


def shifted(sequences: np.ndarray) -> np.ndarray:
    """Return sequences [..., H, D] shifted by one step: the first action is dropped, the last is repeated."""
    return np.concatenate([sequences[..., 1:, :], sequences[..., -1:, :]], axis=-2)
