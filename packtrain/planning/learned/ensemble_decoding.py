"""Decoding of an ensemble's predictions into next observation, reward, termination and disagreement.

An answer of the network is prepared once, when it arrives, and decoded each time it is used, each time for other
members of the ensemble. Start reading with `packtrain/testing/plain_decoding.py`, which computes the same plainly.

Shapes: N predictions, K members of the ensemble, M of them selected by a mask, D coordinates of an observation, F
factors.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from packtrain.envs.categorical_factors import Factors, decode, layout
from packtrain.planning import kernels

Answer = dict[str, np.ndarray]
_TINY = np.float32(1e-37)


class Guess(NamedTuple):
    """The joint prediction of M members for N pairs of state and action."""

    obs: np.ndarray  # [N, D] float32
    reward: np.ndarray  # [N] float32, 0 or 1
    terminated: np.ndarray  # [N] bool
    bonus: np.ndarray  # [N] float32, disagreement of the members


MOST_CACHED = 400_000  # predictions


class Decoder(Protocol):
    """A decoder of one kind of network's answers."""

    most_cached: int  # number of predictions that a cache should keep at most

    def prepare(self, answer: Answer) -> Answer:
        """Return the part of an answer that should be cached, {name: [N, K, ...]}."""

    def decode(self, obs: np.ndarray, kept: Answer, rows: np.ndarray, masks: np.ndarray) -> Guess:
        """Decode rows [N] of the prepared answers for members masks [N, M] and observations [N, D]."""


class DeltaDecoder:
    """Decode changes: s' = round(clip(s + mean Δ, low, high)), halves up; one-hot factors as wholes, if given.

    Reward and termination are 1 where their mean probability is above one half. The disagreement is the standard
    deviation of the members' changes, averaged over coordinates, each divided by its range if `scaled`.
    """

    most_cached = MOST_CACHED

    def __init__(self, low: np.ndarray, high: np.ndarray, factors: Factors = (), scaled: bool = False):
        self._low, self._high, self._factors = low.astype(np.float32), high.astype(np.float32), factors
        self._scale = (high - low) if scaled else None
        one_hot = [factor for factor in factors if factor.low is None]
        self._begins = np.array([factor.begin for factor in one_hot], np.int64)
        self._sizes = np.array([factor.size for factor in one_hot], np.int64)

    def prepare(self, answer: Answer) -> Answer:
        """Return changes as they are, the others as probabilities."""
        return {
            "delta": answer["delta"],
            "reward": _probability(answer["reward"]),
            "terminated": _probability(answer["terminated"]),
        }

    def decode(self, obs: np.ndarray, kept: Answer, rows: np.ndarray, masks: np.ndarray) -> Guess:
        """Return the joint prediction of the masked members."""
        if kernels.compiled:
            after, spread = np.empty_like(obs), np.empty_like(obs)
            bounds = (self._low, self._high, self._begins, self._sizes)
            kernels.decode_deltas(obs, kept["delta"], rows, masks, *bounds, after, spread)
        else:
            delta = kept["delta"][rows[:, None], masks]  # [N, M, D]
            after = decode_delta(obs, delta, self._low, self._high, self._factors)
            spread = deviations(delta)
        bonus = spread.mean(axis=1) if self._scale is None else in_shares(spread, self._scale)
        return Guess(after, *_beliefs(kept, rows, masks), bonus)


class ClassDecoder:
    """Decode classes of factors: the class with the largest mean probability, so the prediction is always valid.

    The disagreement is the mutual information between the member and the prediction, in nats, reward and termination
    included: Σ H(mean p) − mean H(p).
    """

    most_cached = MOST_CACHED

    def __init__(self, factors: Factors):
        self._factors = factors
        self._spans = [slice(a, a + f.size) for a, f in zip(layout(factors).starts, factors, strict=True)]

    def prepare(self, answer: Answer) -> Answer:
        """Return the probabilities p of classes, reward and termination, and p · ln p of each."""
        logits = answer["classes"].astype(np.float32)
        beliefs = []
        for span in self._spans:
            own = np.exp(logits[..., span] - logits[..., span].max(axis=-1, keepdims=True))
            beliefs.append(own / own.sum(axis=-1, keepdims=True))
        reward, terminated = _probability(answer["reward"]), _probability(answer["terminated"])
        both = np.stack([reward, 1 - reward, terminated, 1 - terminated], axis=-1)
        p = np.concatenate([*beliefs, both], axis=-1).astype(np.float32)
        return {"p": p, "p_log_p": _times_log(p), "reward": reward, "terminated": terminated}

    def decode(self, obs: np.ndarray, kept: Answer, rows: np.ndarray, masks: np.ndarray) -> Guess:
        """Return the joint prediction of the masked members."""
        p = kept["p"][rows[:, None], masks].mean(axis=1)  # [N, C + 4]
        gained = kept["p_log_p"][rows[:, None], masks].mean(axis=1) - _times_log(p)
        classes = np.stack([p[:, span].argmax(axis=1) for span in self._spans], axis=1)
        bonus = np.maximum(gained.sum(axis=1), 0)  # below 0 only by rounding
        return Guess(decode(classes, self._factors), *_beliefs(kept, rows, masks), bonus)


class CellDecoder:
    """Decode boards [H, W, C]: in each cell the class with the largest mean probability, as one-hot planes.

    The disagreement is that of `ClassDecoder`, summed over cells.
    """

    most_cached = 40_000  # a prediction has H · W · C numbers of each member

    def prepare(self, answer: Answer) -> Answer:
        """Return the probabilities p of classes, reward and termination, and each member's Σ p · ln p."""
        logits = answer["classes"].astype(np.float32)  # [N, K, H, W, C]
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        reward, terminated = (_probability(answer[name]).astype(np.float32) for name in ("reward", "terminated"))
        both = np.stack([reward, 1 - reward, terminated, 1 - terminated], axis=-1)
        p_log_p = _times_log(p).sum(axis=(2, 3, 4)) + _times_log(both).sum(axis=-1)
        return {"p": p, "p_log_p": p_log_p, "reward": reward, "terminated": terminated}

    def decode(self, obs: np.ndarray, kept: Answer, rows: np.ndarray, masks: np.ndarray) -> Guess:
        """Return the joint prediction of the masked members."""
        p = kept["p"][rows[:, None], masks].mean(axis=1)  # [N, H, W, C]
        both = [kept[name][rows[:, None], masks].mean(axis=1) for name in ("reward", "terminated")]
        mixed = _times_log(p).sum(axis=(1, 2, 3)) + sum(_times_log(q) + _times_log(1 - q) for q in both)
        bonus = np.maximum(kept["p_log_p"][rows[:, None], masks].mean(axis=1) - mixed, 0)
        planes = np.eye(p.shape[-1], dtype=np.float32)[p.argmax(axis=-1)]
        return Guess(planes, *_beliefs(kept, rows, masks), bonus.astype(np.float32))


def decode_delta(
    obs: np.ndarray, delta: np.ndarray, low: np.ndarray, high: np.ndarray, factors: Factors = ()
) -> np.ndarray:
    """Return the next observation that the mean change leads to, float32 [N, D]: whole numbers within the bounds.

        s' = round(clip(s + mean Δ, low, high)), halves up

    Coordinates that are rounded one by one can be invalid together: a disk on two pegs, or on none. With `factors` the
    coordinates of a one-hot factor are decoded as a whole: 1 where s + mean Δ is largest.

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
    """Return deviations [N, D] divided by their ranges [D], averaged over coordinates with a range above 0, [N]."""
    varies = scale > 0
    shares = np.where(varies, 1 / np.where(varies, scale, 1), 0) / max(varies.sum(), 1)
    mean: np.ndarray = spread @ shares.astype(np.float32)
    return mean


def deviations(delta: np.ndarray) -> np.ndarray:
    """Return the population standard deviation of changes [N, M, D] over members, [N, D].

    It is computed from differences to the first member, so it is exactly 0 for equal changes. One difference is 0, so
    the mean square is at least M / (M − 1) times the square of the mean, and the subtraction loses little precision.
    """
    apart = delta - delta[:, :1]
    mean = apart.mean(axis=1)
    variance = np.einsum("nmd,nmd->nd", apart, apart)
    variance /= np.float32(delta.shape[1])
    variance -= mean * mean
    result: np.ndarray = np.sqrt(np.maximum(variance, 0, out=variance), out=variance)
    return result


def _beliefs(kept: Answer, rows: np.ndarray, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    reward = (kept["reward"][rows[:, None], masks].mean(axis=1) > 0.5).astype(np.float32)
    return reward, kept["terminated"][rows[:, None], masks].mean(axis=1) > 0.5


def _probability(logits: np.ndarray) -> np.ndarray:
    p: np.ndarray = 1 / (1 + np.exp(-np.clip(logits, -60, 60)))
    return p


def _times_log(p: np.ndarray) -> np.ndarray:
    product: np.ndarray = p * np.log(np.maximum(p, _TINY))
    return product
