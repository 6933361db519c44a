"""What the answers of an ensemble mean: the next observation, and how much the members disagree about it.

Pure functions of the answers of the M members that a column listens to.
"""

from __future__ import annotations

import numpy as np

from packtrain.envs.factors import Factors


def decode_delta(
    obs: np.ndarray, delta: np.ndarray, low: np.ndarray, high: np.ndarray, factors: Factors = ()
) -> np.ndarray:
    """The next observation that changes lead to on average, float32 [N, D]: whole numbers within the bounds.

        s' = round(clip(s + mean Δ, low, high)), halves up

    Rounded one by one, coordinates that belong together can be a disk on two pegs, or on none. With `factors` one-hot
    factors are decoded together, to 1 where s + mean Δ is largest.

    Args:
      obs: [N, D].
      delta: [N, M, D] changes.
      low: [D] or a number, whole.
      high: likewise.
      factors: that cover the observation; () for none.
    """
    moved = delta.mean(axis=1)
    moved += obs
    after = np.floor(np.clip(moved, low, high) + np.float32(0.5)).astype(np.float32, copy=False)
    rows = np.arange(len(obs))
    for factor in factors:
        if factor.low is None:
            own = slice(factor.begin, factor.begin + factor.size)
            after[:, own] = 0
            after[rows, factor.begin + moved[:, own].argmax(axis=1)] = 1
    return after


def in_shares(spread: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Deviations [N, D] as shares of their ranges [D], averaged over coordinates that have one, [N]."""
    varies = scale > 0
    shares = np.where(varies, 1 / np.where(varies, scale, 1), 0) / max(varies.sum(), 1)
    return spread @ shares.astype(np.float32)


def deviations(delta: np.ndarray) -> np.ndarray:
    """Population standard deviation over members, [N, D].

    Of differences from the first member: exactly 0 for equal ones. A 0 is among them, so their mean square is at
    least M / (M − 1) times the square of their mean, and the subtraction loses little.
    """
    apart = delta - delta[:, :1]
    mean = apart.mean(axis=1)
    variance = np.einsum("nmd,nmd->nd", apart, apart)
    variance /= np.float32(delta.shape[1])
    variance -= mean * mean
    return np.sqrt(np.maximum(variance, 0, out=variance), out=variance)
