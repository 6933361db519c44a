"""From an ensemble's answers to guesses: what is kept of an answer, and what some of the members make of it.

An answer is prepared once, when the network gives it; it is decoded each time it is used, by other members each time.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from packtrain.envs.factors import Factors, decode, layout
from packtrain.planning import kernels
from packtrain.planning.decoding import decode_delta, deviations, in_shares

Answer = dict[str, np.ndarray]
_TINY = np.float32(1e-37)


class Guess(NamedTuple):
    """What M members of an ensemble make of N questions."""

    obs: np.ndarray  # [N, D] float32
    reward: np.ndarray  # [N] float32, 0 or 1
    terminated: np.ndarray  # [N] bool
    bonus: np.ndarray  # [N] float32, how much they disagree


class Decoder(Protocol):
    """One kind of network's answers."""

    def prepare(self, answer: Answer) -> Answer:
        """What is worth keeping of an answer, {name: [N, K, ...]}."""

    def decode(self, obs: np.ndarray, kept: Answer, rows: np.ndarray, masks: np.ndarray) -> Guess:
        """What members masks [N, M] make of rows [N] of what is kept, for observations [N, D]."""


class DeltaDecoder:
    """Changes: s' = round(clip(s + mean Δ, low, high)), halves up; one-hot factors together, where they are given.

    Rewards and ends are those that more than half of the belief goes to. Members disagree by the standard deviation of
    their changes, averaged over coordinates, each as a share of its range if `scaled`.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray, factors: Factors = (), scaled: bool = False):
        self._low, self._high, self._factors = low.astype(np.float32), high.astype(np.float32), factors
        self._scale = (high - low) if scaled else None
        one_hot = [factor for factor in factors if factor.low is None]
        self._begins = np.array([factor.begin for factor in one_hot], np.int64)
        self._sizes = np.array([factor.size for factor in one_hot], np.int64)

    def prepare(self, answer: Answer) -> Answer:
        """Changes as they are, the others as probabilities."""
        return {
            "delta": answer["delta"],
            "reward": _probability(answer["reward"]),
            "terminated": _probability(answer["terminated"]),
        }

    def decode(self, obs: np.ndarray, kept: Answer, rows: np.ndarray, masks: np.ndarray) -> Guess:
        """The guesses of masked members."""
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
    """Classes of factors: the one that members believe in most on average, so that guesses always exist.

    Members disagree by the mutual information between who is right and what comes next, in nats, rewards and ends
    included: Σ H(mean p) − mean H(p).
    """

    def __init__(self, factors: Factors):
        self._factors = factors
        self._spans = [slice(a, a + f.size) for a, f in zip(layout(factors).starts, factors, strict=True)]

    def prepare(self, answer: Answer) -> Answer:
        """Probabilities p of classes, rewards and ends, and p · ln p of each."""
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
        """The guesses of masked members."""
        p = kept["p"][rows[:, None], masks].mean(axis=1)  # [N, C + 4]
        gained = kept["p_log_p"][rows[:, None], masks].mean(axis=1) - _times_log(p)
        classes = np.stack([p[:, span].argmax(axis=1) for span in self._spans], axis=1)
        bonus = np.maximum(gained.sum(axis=1), 0)  # never negative but for rounding
        return Guess(decode(classes, self._factors), *_beliefs(kept, rows, masks), bonus)


def _beliefs(kept: Answer, rows: np.ndarray, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    reward = (kept["reward"][rows[:, None], masks].mean(axis=1) > 0.5).astype(np.float32)
    return reward, kept["terminated"][rows[:, None], masks].mean(axis=1) > 0.5


def _probability(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logits, -60, 60)))


def _times_log(p: np.ndarray) -> np.ndarray:
    return p * np.log(np.maximum(p, _TINY))
