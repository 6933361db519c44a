"""Reference implementation of `planning/learned/ensemble_decoding.py`: plain formulas, directly from logits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packtrain.envs.categorical_factors import Factor, Factors, decode
from packtrain.planning.learned.ensemble_decoding import deviations, in_shares

TINY = np.float32(1e-37)


def decode_classes(logits: np.ndarray, factors: Factors) -> np.ndarray:
    """Return the most probable class of each factor by the members' mean probability, as observations, float32 [N, D].

    Args:
      logits: [N, M, C] of the classes of all factors; each factor has its own softmax.
      factors: that cover the observation.
    """
    classes = np.empty((len(logits), len(factors)), np.intp)
    for i, belief in enumerate(_beliefs(logits.transpose(2, 1, 0).astype(np.float32, order="C"), factors)):
        classes[:, i] = belief.sum(axis=1).argmax(axis=0)
    return decode(classes, factors)


def std_of_deltas(delta: np.ndarray) -> np.ndarray:
    """Return the published disagreement: standard deviation over members, averaged over coordinates, [N].

    Args:
      delta: [N, M, D] changes, before clipping and rounding.
    """
    return deviations(delta).mean(axis=1)


def scaled_std(delta: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the same with every coordinate as a fraction of its range, so that all coordinates have equal weight, [N].

    Args:
      delta: [N, M, D] changes.
      scale: [D] high − low; coordinates with 0 never change, and are left out of the average.
    """
    return in_shares(deviations(delta), scale)


def mutual_information(
    logits: np.ndarray, factors: Factors, reward_logits: np.ndarray, terminated_logits: np.ndarray
) -> np.ndarray:
    """Return the mutual information between prediction and member in nats: Σ H(mean p) − mean H(p), [N] float32.

    Rewards and terminations count as one factor each. Members that are uncertain in the same way have no disagreement;
    two that are certain of different classes have ln 2.

    Args:
      logits: [N, M, C] of the classes of all factors; each factor has its own softmax.
      factors: that cover the observation.
      reward_logits: [N, M].
      terminated_logits: [N, M].
    """
    n, m, c = logits.shape
    # a Bernoulli output is a factor of two classes, the first with logit 0
    stacked = np.zeros((c + 4, m, n), np.float32)
    stacked[:c] = logits.transpose(2, 1, 0)
    stacked[c + 1], stacked[c + 3] = reward_logits.T, terminated_logits.T
    information = np.zeros(n, np.float32)
    for belief in _beliefs(stacked, (*factors, Factor(0, 2), Factor(0, 2))):
        gained = _times_log(belief).mean(axis=1)  # [S, N]
        # class by class, because a sum over many classes would round differently
        gained -= _times_log(belief.mean(axis=1))
        information += gained.sum(axis=0)
    return np.maximum(information, 0)  # negative only by rounding


def _beliefs(logits: np.ndarray, factors: Factors) -> Iterator[np.ndarray]:
    """Return probabilities [S, M, N] of each factor in turn, from logits [C, M, N], which they overwrite.

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
    """Return p · ln p, 0 at 0."""
    result = np.maximum(p, TINY)
    np.log(result, out=result)
    result *= p
    return result
