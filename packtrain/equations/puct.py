"""Tree-search statistics of a node in NumPy: exploration bonuses, visit histograms, and Gumbel root selection.

Shapes: M nodes, A actions. Visits are floats or integers; whether an action's rating counts as its first visit is the
caller's affair.
"""

from __future__ import annotations

import math

import numpy as np


def puct_bonus(priors: np.ndarray, visits: np.ndarray, parent_visits: np.ndarray) -> np.ndarray:
    """Return P(a) · √N / (N(a) + 1) (Silver et al. 2017): priors, visits [M, A], parent_visits [M] → [M, A]."""
    assert priors.shape == visits.shape and parent_visits.shape == visits.shape[:1]
    found: np.ndarray = priors * np.sqrt(parent_visits)[:, None] / (visits + 1)
    return found


def ucb_bonus(visits: np.ndarray, parent_visits: np.ndarray) -> np.ndarray:
    """Return √N / (N(a) + 1), the same for every prior: visits [M, A], parent_visits [M] → [M, A]."""
    assert parent_visits.shape == visits.shape[:1]
    found: np.ndarray = np.sqrt(parent_visits)[:, None] / (visits + 1)
    return found


def rescaled_qualities(qualities: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """Return (Q − min Q) / (max Q − min Q) over the allowed actions of each node [M, A]; 0 where all are equal.

    With it an exploration weight does not depend on the scale of rewards. MuZero (Schrittwieser et al. 2020, appendix
    B) takes minimum and maximum over the tree, `rescaled_in_range`; over the actions of a node, as here, is mctx's
    `qtransform_by_parent_and_siblings`.
    """
    least = (qualities if allowed is None else np.where(allowed, qualities, np.inf)).min(axis=1, keepdims=True)
    most = (qualities if allowed is None else np.where(allowed, qualities, -np.inf)).max(axis=1, keepdims=True)
    spread = most - least
    rescaled: np.ndarray = np.where(spread > 0, (qualities - least) / np.where(spread > 0, spread, 1.0), 0.0)
    return rescaled


def rescaled_in_range(qualities: np.ndarray, least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Return (Q − least) / (most − least) with the bounds of each node's tree, [M] (MuZero); Q where they are equal.

    Args:
      qualities: [M, A].
      least: [M] the smallest quality of the tree so far; ∞ before the first.
      most: [M] the largest.
    """
    assert least.shape == most.shape == qualities.shape[:1]
    wide = (most > least)[:, None]
    rescaled: np.ndarray = np.where(
        wide,
        (qualities - np.where(wide, least[:, None], 0.0)) / np.where(wide, (most - least)[:, None], 1.0),
        qualities,
    )
    return rescaled


def softmax(logits: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """Return probabilities [M, A] float64, 0 where an action is not allowed; each row needs an allowed action."""
    logits = logits.astype(np.float64)
    if allowed is not None:
        logits = np.where(allowed, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    return found


def histogram(visits: np.ndarray, otherwise: np.ndarray | None = None) -> np.ndarray:
    """Return visits divided by their sum, [M, A]; where the sum is 0, the row of `otherwise`, or zeros."""
    total = visits.sum(axis=1, keepdims=True)
    return np.where(total > 0, visits / np.where(total > 0, total, 1), 0.0 if otherwise is None else otherwise)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Return −Σ p ln p of each row, [M, A] → [M]; 0 ln 0 is 0."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    found: np.ndarray = -(probabilities * logs).sum(axis=1)
    return found


def considered_visits(considered: int, simulations: int) -> np.ndarray:
    """Return the visit counts of sequential halving (Karnin et al. 2013; Danihelka et al. 2022), [simulations] int64.

    In simulation i an action is chosen among those that have been tried so many times in this search. Rounds share
    the simulations equally; after each the better half goes on, two at least.

    Args:
      considered: actions that begin.
      simulations: how many there are to share.
    """
    order: list[int] = []
    tried, width = 0, max(considered, 1)
    rounds = max(1, math.ceil(math.log2(width)))
    while len(order) < simulations:
        for _ in range(max(1, simulations // (rounds * width))):
            order += [tried] * width
            tried += 1
        width = max(min(2, considered), width // 2, 1)
    return np.array(order[:simulations], np.int64)


def completed_qualities(qualities: np.ndarray, visits: np.ndarray, priors: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return qualities with estimates for unvisited actions (Danihelka et al. 2022, appendix D).

        v_mix = (v + ΣN / Σ_{N(b)>0} P(b) · Σ_{N(b)>0} P(b) Q(b)) / (1 + ΣN)

    Args:
      qualities: [M, A] Q, anything where unvisited.
      visits: [M, A] N.
      priors: [M, A] P.
      value: [M] v, an estimate from before the visits.

    Returns:
      [M, A] Q where visited, v_mix elsewhere.
    """
    assert qualities.shape == visits.shape == priors.shape and value.shape == visits.shape[:1]
    visited = visits > 0
    weights = np.where(visited, priors, 0.0)
    share = weights.sum(axis=1)
    mean = np.where(visited, weights * qualities, 0.0).sum(axis=1) / np.where(share > 0, share, 1.0)
    count = np.where(share > 0, visits.sum(axis=1), 0.0)
    mixed = (value + count * mean) / (1 + count)
    return np.where(visited, qualities, mixed[:, None])


def scaled_qualities(
    qualities: np.ndarray, most_visits: np.ndarray, allowed: np.ndarray, value_scale: float, visit_offset: float
) -> np.ndarray:
    """Return (visit_offset + max N) · value_scale · Q, Q scaled to [0, 1] (Danihelka et al. 2022, equation 8).

    Args:
      qualities: [M, A].
      most_visits: [M] max_b N(b).
      allowed: [M, A] bool; the others do not count for the range, and theirs may leave it.
      value_scale: c_scale.
      visit_offset: c_visit.

    Returns:
      [M, A]; 0 in rows whose qualities are all equal.
    """
    assert qualities.shape == allowed.shape and most_visits.shape == qualities.shape[:1]
    least = np.where(allowed, qualities, np.inf).min(axis=1, keepdims=True)
    most = np.where(allowed, qualities, -np.inf).max(axis=1, keepdims=True)
    unit = (qualities - least) / np.maximum(most - least, 1e-8)
    found: np.ndarray = (visit_offset + most_visits)[:, None] * value_scale * unit
    return found
