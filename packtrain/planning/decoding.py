"""What the answers of an ensemble mean: the next observation, and how much the members disagree about it.

Pure functions of the answers of the M members that a column listens to.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packtrain.envs.factors import Factor, Factors, decode

TINY = np.float32(1e-37)


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


def decode_classes(logits: np.ndarray, factors: Factors) -> np.ndarray:
    """For each factor the class that members believe in most on average: observations, float32 [N, D].

    Args:
      logits: [N, M, C] of the classes of all factors; each factor has a softmax of its own.
      factors: that cover the observation.
    """
    classes = np.empty((len(logits), len(factors)), np.intp)
    for i, belief in enumerate(_beliefs(logits.transpose(2, 1, 0).astype(np.float32, order="C"), factors)):
        classes[:, i] = belief.sum(axis=1).argmax(axis=0)
    return decode(classes, factors)


def std_of_deltas(delta: np.ndarray) -> np.ndarray:
    """Disagreement as published: population standard deviation over members, averaged over coordinates, [N].

    Args:
      delta: [N, M, D] changes, before clipping and rounding.
    """
    return deviations(delta).mean(axis=1)


def scaled_std(delta: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The same with every coordinate as a share of its range, so that a flag counts as much as a room's number, [N].

    Args:
      delta: [N, M, D] changes.
      scale: [D] high − low; coordinates with 0 never change, and are left out of the average.
    """
    return in_shares(deviations(delta), scale)


def in_shares(spread: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Deviations [N, D] as shares of their ranges [D], averaged over coordinates that have one, [N]."""
    varies = scale > 0
    shares = np.where(varies, 1 / np.where(varies, scale, 1), 0) / max(varies.sum(), 1)
    return spread @ shares.astype(np.float32)


def mutual_information(
    logits: np.ndarray, factors: Factors, reward_logits: np.ndarray, terminated_logits: np.ndarray
) -> np.ndarray:
    """What it would tell to learn which member is right, in nats: Σ H(mean p) − mean H(p) over factors, [N] float32.

    Rewards and ends count as a factor each. Members that are unsure in the same way disagree about nothing; two that
    are certain of different classes disagree by ln 2.

    Args:
      logits: [N, M, C] of the classes of all factors; each factor has a softmax of its own.
      factors: that cover the observation.
      reward_logits: [N, M].
      terminated_logits: [N, M].
    """
    n, m, c = logits.shape
    stacked = np.zeros((c + 4, m, n), np.float32)  # a yes or no is a factor of two classes, the first one's logit 0
    stacked[:c] = logits.transpose(2, 1, 0)
    stacked[c + 1], stacked[c + 3] = reward_logits.T, terminated_logits.T
    information = np.zeros(n, np.float32)
    for belief in _beliefs(stacked, (*factors, Factor(0, 2), Factor(0, 2))):
        gained = _times_log(belief).mean(axis=1)  # [S, N]
        gained -= _times_log(belief.mean(axis=1))  # class by class: sums of many classes would round differently
        information += gained.sum(axis=0)
    return np.maximum(information, 0)  # never negative but for rounding


def _beliefs(logits: np.ndarray, factors: Factors) -> Iterator[np.ndarray]:
    """Probabilities [S, M, N] of each factor in turn, from logits [C, M, N], which they overwrite.

    Classes come first: sums over them then run along the rows, and one factor's numbers stay in the cache.
    """
    begin = 0
    for factor in factors:
        belief = logits[begin : begin + factor.size]
        belief -= belief.max(axis=0)
        np.exp(belief, out=belief)
        belief /= belief.sum(axis=0)
        yield belief
        begin += factor.size


def _times_log(p: np.ndarray) -> np.ndarray:
    """Products p · ln p, 0 at 0."""
    result = np.maximum(p, TINY)
    np.log(result, out=result)
    result *= p
    return result


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
