"""Counter-based random numbers: functions of a seed, an environment and counts, not of what was sampled before.

A search for many environments samples in another order than a search for one. Because each number is a hash of its
seed and counters, both searches get the same numbers.
"""

from __future__ import annotations

import numpy as np

from packtrain.equations import puct
from packtrain.hashing import GOLDEN, mix


def chance(seed: int, *counters: np.ndarray | int) -> np.ndarray:
    """Return uniform float64 numbers in [0, 1), of the shape to which the counters broadcast (at least [1])."""
    words = mix(np.full(1, seed, np.uint64) + GOLDEN)  # arrays overflow without a warning, scalars do not
    return uniforms(hashed(words, *counters))


def hashed(words: np.ndarray, *counters: np.ndarray | int) -> np.ndarray:
    """Return a uint64 hash of words and counters, of the shape to which they broadcast."""
    for counter in counters:
        words = mix(words * np.uint64(3) + mix(np.atleast_1d(counter).astype(np.uint64) + GOLDEN))
    return words


def uniforms(words: np.ndarray) -> np.ndarray:
    """Convert uint64 words to float64 numbers in [0, 1)."""
    numbers: np.ndarray = (words >> np.uint64(11)) * 2.0**-53
    return numbers


def gumbels(words: np.ndarray, actions: int, *counters: np.ndarray | int) -> np.ndarray:
    """Return standard Gumbel numbers [M, A], one for each word and action."""
    inside = uniforms(hashed(words[:, None], *counters, np.arange(actions))) + 2.0**-54  # in (0, 1)
    return -np.log(-np.log(inside))


def dirichlet(words: np.ndarray, parameter: float, allowed: np.ndarray) -> np.ndarray:
    """Sample a symmetric Dirichlet distribution over the allowed actions, once for each word: [M], [M, A] → [M, A].

    The gamma variates are those of Marsaglia and Tsang 2000. They are kept as logarithms, because small parameters
    underflow otherwise: Γ(α) is Γ(α + 1) · U^(1/α).
    """
    shape = parameter + 1 - 1 / 3
    slope = 1 / np.sqrt(9 * shape)
    logs = np.zeros(allowed.shape)
    own = hashed(words[:, None], np.arange(allowed.shape[1]))  # [M, A]
    rows, columns = np.nonzero(allowed)
    attempt = 0
    while len(rows):
        mine = own[rows, columns]
        radius, angle, test = (uniforms(hashed(mine, attempt, part)) + 2.0**-54 for part in range(3))
        normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
        cube = (1 + slope * normal) ** 3
        safe = np.where(cube > 0, cube, 1.0)
        good = (cube > 0) & (np.log(test) < normal**2 / 2 + shape * (1 - safe + np.log(safe)))
        boost = np.log(uniforms(hashed(mine, attempt, 3)) + 2.0**-54) / parameter
        logs[rows[good], columns[good]] = (np.log(shape * safe) + boost)[good]
        rows, columns, attempt = rows[~good], columns[~good], attempt + 1
    return puct.softmax(logs, allowed)


def best(scores: np.ndarray, noise: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """Return the index of the largest score in each row of [M, A]; among equal scores, that with the largest noise.

    A row in which nothing is allowed gives −1. NaN counts as not allowed.
    """
    possible = ~np.isnan(scores) if allowed is None else allowed & ~np.isnan(scores)
    masked = np.where(possible, scores, -np.inf)
    top = possible & (masked == masked.max(axis=1, keepdims=True))
    chosen = np.where(top, noise, -1.0).argmax(axis=1)
    return np.where(possible.any(axis=1), chosen, -1)
