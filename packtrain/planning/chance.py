"""Random numbers that depend on where they are used, not on what was drawn before.

A search for many columns draws in another order than a search for one. With numbers that are functions of a seed, the
column and a count, both see the same ones.
"""

from __future__ import annotations

import numpy as np

from packtrain.equations import puct
from packtrain.planning.model import GOLDEN, mix


def chance(seed: int, *counters: np.ndarray | int) -> np.ndarray:
    """Uniform numbers in [0, 1), float64, of the shape to which the counters broadcast, [1] at least."""
    words = mix(np.full(1, seed, np.uint64) + GOLDEN)  # arrays wrap around without a warning, scalars do not
    return uniforms(hashed(words, *counters))


def hashed(words: np.ndarray, *counters: np.ndarray | int) -> np.ndarray:
    """Other words, uint64, of the shape to which words and counters broadcast."""
    for counter in counters:
        words = mix(words * np.uint64(3) + mix(np.atleast_1d(counter).astype(np.uint64) + GOLDEN))
    return words


def uniforms(words: np.ndarray) -> np.ndarray:
    """Words as numbers in [0, 1), float64."""
    return (words >> np.uint64(11)) * 2.0**-53


def gumbels(words: np.ndarray, actions: int, *counters: np.ndarray | int) -> np.ndarray:
    """Standard Gumbel numbers [M, A], one for each word and action."""
    inside = uniforms(hashed(words[:, None], *counters, np.arange(actions))) + 2.0**-54  # in (0, 1)
    return -np.log(-np.log(inside))


def dirichlet(words: np.ndarray, parameter: float, allowed: np.ndarray) -> np.ndarray:
    """Draws from a symmetric Dirichlet distribution over the allowed actions, one for each word: [M], [M, A] → [M, A].

    Gammas by Marsaglia and Tsang 2000, in logarithms, so that small parameters do not underflow: Γ(α) is
    Γ(α + 1) · U^(1/α).
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
    """The index of the largest score in each row [M, A]; among equal ones, that with the most noise [M, A].

    Rows in which nothing is allowed give −1. NaN counts as not allowed.
    """
    possible = ~np.isnan(scores) if allowed is None else allowed & ~np.isnan(scores)
    masked = np.where(possible, scores, -np.inf)
    top = possible & (masked == masked.max(axis=1, keepdims=True))
    chosen = np.where(top, noise, -1.0).argmax(axis=1)
    return np.where(possible.any(axis=1), chosen, -1)
