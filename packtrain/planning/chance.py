"""Random numbers that depend on where they are used, not on what was drawn before.

A search for many columns draws in another order than a search for one. With numbers that are functions of a seed, the
column and a count, both see the same ones.
"""

from __future__ import annotations

import numpy as np

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


def best(scores: np.ndarray, noise: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """The index of the largest score in each row [M, A]; among equal ones, that with the most noise [M, A].

    Rows in which nothing is allowed give −1. NaN counts as not allowed.
    """
    possible = ~np.isnan(scores) if allowed is None else allowed & ~np.isnan(scores)
    masked = np.where(possible, scores, -np.inf)
    top = possible & (masked == masked.max(axis=1, keepdims=True))
    chosen = np.where(top, noise, -1.0).argmax(axis=1)
    return np.where(possible.any(axis=1), chosen, -1)
