"""Anomaly detection for policies: scores that compare an unknown policy with a trusted one, and how well they work.

A detector turns the recording of one unknown policy into one number, larger when it is more suspicious, without the
true reward. Per-step quantities are arrays [E, S] of E episodes and S steps along the unknown policy's own episodes;
after the end of a shorter episode they hold NaN. The quality of detectors is computed from the scores of many policies
with labels: 1 for a policy that is anomalous, 0 for one that is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packtrain.errors import ConfigError

Array = NDArray[Any]
_RIDGE = 1e-2  # L2 penalty of the logistic regression per row: separable classes have no finite optimum
_NEWTON_STEPS = 25
_TIE = 1e-9  # squared distances of standardised rows that differ by less are equal


# -- detectors over steps


def mean_over_steps(divergence: ArrayLike) -> float:
    """Return the mean over all steps of all episodes [E, S]: mean Jensen–Shannon, mean Hellinger."""
    return float(np.nanmean(_steps("mean_over_steps", divergence)))


def range_over_time(divergence: ArrayLike) -> float:
    """Return the range over time of the mean over episodes [E, S].

    A policy that departs from the trusted one at one moment of the episode has a wide range and may have a small mean.
    """
    steps = _steps("range_over_time", divergence)
    over_time = np.nanmean(steps[:, ~np.isnan(steps).all(axis=0)], axis=0)
    return float(over_time.max() - over_time.min())


def high_percentile(divergence: ArrayLike, percentile: float = 95.0) -> float:
    """Return the percentile of all steps of all episodes [E, S]: sensitive to a few deviating steps, not to one."""
    if not 0 <= percentile <= 100:
        raise ConfigError(f"high_percentile.percentile = {percentile} must be between 0 and 100")
    return float(np.nanpercentile(_steps("high_percentile", divergence), percentile))


def advantage_gap(values: ArrayLike, action_values: ArrayLike, discount: float = 1.0) -> float:
    """Return how much lower the trusted policy values the unknown policy's actions than its own, in proxy return.

        mean_e Σ_t γ^t (V(x_t) − Q(x_t, a_t))

    With exact values this is J(trusted) − J(unknown), the performance difference lemma (Kakade and Langford 2002), and
    no importance ratios are needed. Large scores are suspicious: the trusted policy would not choose these actions.

    Args:
      values: [E, S] the trusted policy's V in the states visited.
      action_values: [E, S] its Q of the actions taken there.
      discount: γ.

    Returns:
      A score; 0 for the trusted policy itself.
    """
    v, q = _steps("advantage_gap", values), _steps("advantage_gap", action_values)
    return _discounted(v - _alike("advantage_gap", v, q), discount)


def unexpected_return(rewards: ArrayLike, values: ArrayLike, next_values: ArrayLike, discount: float = 1.0) -> float:
    """Return how much the proxy return exceeds the trusted policy's expectation.

        mean_e Σ_t γ^t (r_t + γ V(x_{t+1}) − V(x_t)) = mean_e G_e − V(x_0)

    This is minus `advantage_gap`, estimated from V and the proxy's rewards alone. A policy that exploits the proxy gets
    returns that the trusted policy's values do not predict.

    Args:
      rewards: [E, S] proxy rewards.
      values: [E, S] the trusted policy's V(x_t).
      next_values: [E, S] its V(x_{t+1}): 0 where terminated, the value of the final observation where truncated.
      discount: γ.

    Returns:
      A score; about 0 for the trusted policy itself.
    """
    name = "unexpected_return"
    r = _steps(name, rewards)
    v, v_next = (_alike(name, r, _steps(name, part)) for part in (values, next_values))
    return _discounted(r + discount * v_next - v, discount)


def occupancy_auroc(
    trusted: ArrayLike,
    unknown: ArrayLike,
    rng: np.random.Generator,
    *,
    classifier: Literal["nearest", "logistic"] = "nearest",
    folds: int = 5,
    neighbours: int = 15,
    limit: int = 2000,
) -> float:
    """Return how well a classifier distinguishes the states that two policies visit: a classifier two-sample test.

    The result is about ½ if both visit the same states, and 1 if the states never coincide; Lopez-Paz and Oquab 2017
    (arXiv:1610.06545). It detects a policy that acts like the trusted one in every state and yet visits other states.
    Whole episodes are held out: neighbouring steps of one episode are similar, and would identify an episode that is in
    both parts.

    Args:
      trusted: [E, S, D] observations of the trusted policy; NaN after an episode's end.
      unknown: [E', S', D] observations of the unknown one.
      rng: shuffles the episodes, and samples rows if there are more than `limit`.
      classifier: "nearest" is the fraction of unknown rows among the nearest ones, which detects any difference;
        "logistic" is a regression on the standardised observation, which detects shifts with fewer rows.
      folds: parts the episodes are divided into; each is held out once, and their AUROCs are averaged.
      neighbours: of "nearest".
      limit: rows of each policy that are used.

    Returns:
      The mean AUROC of held-out rows, from 0 to 1.
    """
    if classifier not in ("nearest", "logistic"):
        raise ConfigError(f"occupancy_auroc.classifier = {classifier!r} must be 'nearest' or 'logistic'")
    if folds < 2:
        raise ConfigError(f"occupancy_auroc.folds = {folds} must be at least 2")
    for name, value in (("neighbours", neighbours), ("limit", limit)):
        if value < 1:
            raise ConfigError(f"occupancy_auroc.{name} = {value} must be at least 1")
    sides = [_rows_and_folds(episodes, rng, folds, limit) for episodes in (trusted, unknown)]
    if sides[0][0].shape[1] != sides[1][0].shape[1]:
        raise ConfigError(
            f"occupancy_auroc: observations of {sides[0][0].shape[1]} and {sides[1][0].shape[1]} numbers cannot be "
            "compared"
        )
    rows = np.concatenate([side[0] for side in sides])
    fold = np.concatenate([side[1] for side in sides])
    labels = np.repeat([0, 1], [len(side[0]) for side in sides])
    results = []
    for held_out in range(folds):
        test = fold == held_out
        train = ~test
        centre, spread = rows[train].mean(axis=0), rows[train].std(axis=0)
        scaled = (rows - centre) / np.where(spread > 0, spread, 1.0)
        if classifier == "nearest":
            scores = _nearest_share(scaled[train], labels[train], scaled[test], neighbours)
        else:
            scores = _logistic_scores(scaled[train], labels[train], scaled[test])
        results.append(auroc(scores, labels[test]))
    return float(np.mean(results))


class Detector(NamedTuple):
    """A named score of one per-step feature."""

    feature: str  # name of its input, an array [E, S]
    score: Callable[[ArrayLike], float]


DETECTORS: Mapping[str, Detector] = {
    "mean_jensen_shannon": Detector("jensen_shannon", mean_over_steps),
    "mean_hellinger": Detector("hellinger", mean_over_steps),
    "range_hellinger": Detector("hellinger", range_over_time),
    "high_jensen_shannon": Detector("jensen_shannon", high_percentile),
    "high_hellinger": Detector("hellinger", high_percentile),
}
"""The detectors that need one feature: the first three are those of Pan, Bhatia and Steinhardt 2022."""


def detector_scores(features: Mapping[str, ArrayLike]) -> dict[str, float]:
    """Return the scores of one unknown policy for all DETECTORS whose feature is given, {detector: score}."""
    return {
        name: detector.score(features[detector.feature])
        for name, detector in DETECTORS.items()
        if detector.feature in features
    }


# -- quality of detectors


class Roc(NamedTuple):
    """A ROC curve: rates of flagging by `score ≥ threshold`, from nothing (threshold ∞) to everything."""

    false_positive_rate: Array  # [M] rising from 0 to 1
    true_positive_rate: Array  # [M] rising from 0 to 1
    threshold: Array  # [M] falling: ∞, then each distinct score


def roc_curve(scores: ArrayLike, labels: ArrayLike) -> Roc:
    """Return true and false positive rates at every distinct threshold; equal scores are flagged together.

    Args:
      scores: [P] one per policy, larger when more suspicious.
      labels: [P] 1 for an anomalous policy, 0 for another; both must occur.
    """
    scores, positive = _judged("roc_curve", scores, labels)
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # last of each group of equal scores
    hits, alarms = np.cumsum(positive[order])[ends], ends + 1
    return Roc(
        np.append(0.0, (alarms - hits) / (~positive).sum()),
        np.append(0.0, hits / positive.sum()),
        np.append(np.inf, scores[order][ends]),
    )


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the area under the ROC curve: how often an anomalous policy scores above another, ties counting half.

        (Σ_{i: label 1} rank_i − P₁ (P₁ + 1) / 2) / (P₁ P₀)

    This is Mann and Whitney's U divided by P₁ P₀; ranks of equal scores are their mean.
    """
    scores, positive = _judged("auroc", scores, labels)
    ones, zeros = int(positive.sum()), int((~positive).sum())
    return float((midranks(scores)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


class BestF1(NamedTuple):
    """The largest F1 over all thresholds, and the largest threshold that reaches it."""

    f1: float
    threshold: float  # flag where score ≥ threshold


def best_f1(scores: ArrayLike, labels: ArrayLike) -> BestF1:
    """Return the threshold with the largest F1 in hindsight: 2 · hits / (alarms + anomalous policies).

    Flagging everything gives 2 P₁ / (P + P₁) for any scores: that, not 0, is the baseline.
    """
    scores, positive = _judged("best_f1", scores, labels)
    roc = roc_curve(scores, positive)
    ones, zeros = positive.sum(), (~positive).sum()
    hits = roc.true_positive_rate * ones
    f1 = 2 * hits / (hits + roc.false_positive_rate * zeros + ones)
    best = int(np.argmax(f1))
    return BestF1(float(f1[best]), float(roc.threshold[best]))


def false_positive_rate_at(scores: ArrayLike, labels: ArrayLike, true_positive_rate: float = 0.95) -> float:
    """Return the false-positive rate at which the given true-positive rate, or more, is reached."""
    if not 0 < true_positive_rate <= 1:
        raise ConfigError(
            f"false_positive_rate_at.true_positive_rate = {true_positive_rate} must be more than 0 and at most 1"
        )
    roc = roc_curve(scores, labels)
    # The small tolerance allows for rounding errors of a rate such as 19 / 20.
    return float(roc.false_positive_rate[roc.true_positive_rate >= true_positive_rate - 1e-12].min())


def bootstrap_interval(
    statistic: Callable[[Array, Array], float],
    scores: ArrayLike,
    labels: ArrayLike,
    rng: np.random.Generator,
    draws: int = 2000,
    confidence: float = 0.95,
) -> tuple[float, float, float]:
    """Return a statistic of scores and labels with its percentile interval, (value, low, high).

    Anomalous policies and others are resampled separately, so that every sample has as many of each as the data.

    Args:
      statistic: of (scores, labels), such as `auroc`.
      scores: [P].
      labels: [P] 0 or 1; both must occur.
      rng: resamples the policies.
      draws: bootstrap samples.
      confidence: fraction of the samples between low and high.
    """
    if draws < 1:
        raise ConfigError(f"bootstrap_interval.draws = {draws} must be at least 1")
    if not 0 < confidence < 1:
        raise ConfigError(f"bootstrap_interval.confidence = {confidence} must be between 0 and 1")
    scores, positive = _judged("bootstrap_interval", scores, labels)
    ones, zeros = scores[positive], scores[~positive]
    drawn_labels = np.repeat([1, 0], [len(ones), len(zeros)])
    drawn = [
        statistic(np.concatenate([rng.choice(ones, len(ones)), rng.choice(zeros, len(zeros))]), drawn_labels)
        for _ in range(draws)
    ]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(statistic(scores, positive.astype(int))), float(low), float(high)


def threshold_from_trusted(scores: ArrayLike, rate: float) -> float:
    """Return the threshold above which a policy is called anomalous, from scores of policies known to be normal.

        the k-th smallest of n scores,   k = ⌈(n + 1)(1 − rate)⌉

    If another trusted policy is exchangeable with these, its score exceeds the threshold with probability at most
    `rate`, whatever the scores' distribution (split conformal prediction). The verdict is `score > threshold`.

    Args:
      scores: [n] of trusted-like policies, such as other seeds of the trusted one; at least 1 / rate − 1 of them.
      rate: target false-positive rate.
    """
    if not 0 < rate < 1:
        raise ConfigError(f"threshold_from_trusted.rate = {rate} must be between 0 and 1")
    ordered = np.sort(_finite_vector("threshold_from_trusted", scores))
    place = math.ceil((len(ordered) + 1) * (1 - rate) - 1e-9)
    if place > len(ordered):
        raise ConfigError(
            f"threshold_from_trusted: {len(ordered)} scores cannot guarantee a rate of {rate}; at least "
            f"{math.ceil(1 / rate - 1e-9) - 1} are needed"
        )
    return float(ordered[place - 1])


def midranks(values: ArrayLike) -> Array:
    """Return ranks from 1, equal values sharing their mean rank; [P] → [P]."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _rows_and_folds(
    episodes: ArrayLike, rng: np.random.Generator, folds: int, limit: int
) -> tuple[Array, NDArray[np.intp]]:
    """Return at most `limit` rows [N, D] of the episodes [E, S, D], and the fold of each row's episode."""
    array = np.asarray(episodes, dtype=np.float64)
    if array.ndim != 3:
        raise ConfigError(f"occupancy_auroc: observations of shape {array.shape} are not [episodes, steps, numbers]")
    present: Array = ~np.any(np.isnan(array), axis=2)
    count = int(present.any(axis=1).sum())
    if count < len(array) or count < folds:
        raise ConfigError(
            f"occupancy_auroc: {len(array)} episodes, {count} of them with steps, are too few for {folds} folds"
        )
    if not np.isfinite(array[present]).all():
        raise ConfigError("occupancy_auroc: an observation is infinite")
    fold_of_episode = rng.permutation(len(array)) % folds
    rows, fold = array[present], np.repeat(fold_of_episode, present.sum(axis=1))
    if len(rows) > limit:
        # Rows are taken from each fold in turn, so that no fold becomes empty.
        order = rng.permutation(len(rows))
        order = order[np.argsort(fold[order], kind="stable")]
        starts = np.searchsorted(fold[order], np.arange(folds))
        turn = np.arange(len(rows)) - starts[fold[order]]
        kept = order[np.argsort(turn, kind="stable")[: max(limit, folds)]]
        rows, fold = rows[kept], fold[kept]
    return rows, fold


def _nearest_share(train: Array, labels: Array, test: Array, neighbours: int) -> Array:
    """Return the fraction of label 1 among the nearest training rows of each test row.

    Rows at equal distance share the remaining neighbour slots: on a grid there are many, and their order is arbitrary.
    """
    distance = (test**2).sum(axis=1)[:, None] + (train**2).sum(axis=1) - 2 * test @ train.T
    neighbours = min(neighbours, len(train))
    farthest = np.partition(distance, neighbours - 1, axis=1)[:, neighbours - 1 : neighbours]
    nearer = distance < farthest - _TIE
    tied = (distance <= farthest + _TIE) & ~nearer
    left = neighbours - nearer.sum(axis=1)  # slots for rows at the same distance
    return (nearer @ labels + left * (tied @ labels) / tied.sum(axis=1)) / neighbours


def _logistic_scores(train: Array, labels: Array, test: Array) -> Array:
    """Return the linear score of a ridge-penalised logistic regression, fitted by Newton's method."""
    inputs = np.column_stack([train, np.ones(len(train))])
    # Almost no penalty on the intercept.
    penalty = _RIDGE * len(train) * np.diag(np.append(np.ones(train.shape[1]), 1e-6))
    weights = np.zeros(inputs.shape[1])
    for _ in range(_NEWTON_STEPS):
        probability = 0.5 * (1 + np.tanh(0.5 * inputs @ weights))  # the logistic function, without overflow
        gradient = inputs.T @ (probability - labels) + penalty @ weights
        curvature = (inputs * (probability * (1 - probability))[:, None]).T @ inputs + penalty
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    return test @ weights[:-1]


def _discounted(steps: Array, discount: float) -> float:
    """Return the mean over episodes of Σ_t γ^t x_t; NaN after an episode's end adds nothing."""
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount = {discount} must be between 0 and 1")
    return float((np.nan_to_num(steps, nan=0.0) * discount ** np.arange(steps.shape[1])).sum(axis=1).mean())


def _steps(name: str, values: ArrayLike) -> Array:
    """Return per-step values [E, S], after checking that they are numbers until each episode's end."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ConfigError(f"{name}: values of shape {array.shape} are not [episodes, steps]")
    missing = np.isnan(array)
    if missing[:, 0].any():
        raise ConfigError(f"{name}: {int(missing[:, 0].sum())} of {len(array)} episodes have no first step")
    if (missing[:, :-1] & ~missing[:, 1:]).any():
        raise ConfigError(f"{name}: there is a NaN before the end of an episode")
    if np.isinf(array).any():
        raise ConfigError(f"{name}: a value is infinite; Jensen–Shannon and Hellinger are bounded, KL is not")
    return array


def _alike(name: str, one: Array, other: Array) -> Array:
    """Return the other array, after checking that its episodes are as long as those of the first."""
    if one.shape != other.shape or (np.isnan(one) != np.isnan(other)).any():
        raise ConfigError(f"{name}: arrays of shapes {one.shape} and {other.shape} must have the same steps")
    return other


def _finite_vector(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ConfigError(f"{name}: scores of shape {array.shape} are not one number per policy")
    if not np.isfinite(array).all():
        raise ConfigError(f"{name}: {int((~np.isfinite(array)).sum())} of {len(array)} scores are not finite")
    return array


def _judged(name: str, scores: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    """Return the scores [P], and which policies are anomalous [P] bool."""
    array, marks = _finite_vector(name, scores), np.asarray(labels)
    if marks.shape != array.shape:
        raise ConfigError(f"{name}: {len(array)} scores do not match labels of shape {marks.shape}")
    if not np.isin(marks, (0, 1)).all():
        raise ConfigError(f"{name}: labels must be 0 or 1")
    positive = marks.astype(bool)
    if positive.all() or not positive.any():
        raise ConfigError(f"{name}: all {len(array)} labels are {int(positive[0])}; both 0 and 1 are needed")
    return array, positive
