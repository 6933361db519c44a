"""Detectors of aberrant policies, and measures of their quality: by hand, by brute force, and with nothing to find."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.errors import ConfigError
from packtrain.studies import detection
from packtrain.studies.detection import (
    advantage_gap,
    auroc,
    best_f1,
    bootstrap_interval,
    detector_scores,
    false_positive_rate_at,
    high_percentile,
    mean_over_steps,
    midranks,
    occupancy_auroc,
    range_over_time,
    roc_curve,
    threshold_from_trusted,
    unexpected_return,
)

NAN = math.nan
# Three episodes of three, two and one steps.
STEPS = np.array([[0.1, 0.5, 0.9], [0.3, 0.1, NAN], [0.2, NAN, NAN]])


def rng(seed=0):
    return np.random.default_rng(seed)


def policies(seed, anomalous=8, acceptable=12, values=6):
    """Random scores with many ties, and shuffled labels."""
    labels = rng(seed).permutation(np.repeat([1, 0], [anomalous, acceptable]))
    return rng(seed + 100).integers(0, values, size=len(labels)).astype(float), labels


# Detectors.


def test_scores_of_steps_by_arithmetic():
    """Mutations: means of episode means; padding counted as zero; the range over single steps."""
    assert mean_over_steps(STEPS) == pytest.approx((0.1 + 0.5 + 0.9 + 0.3 + 0.1 + 0.2) / 6)
    assert high_percentile(STEPS, 100) == 0.9
    assert high_percentile(STEPS, 50) == pytest.approx(0.25)
    assert range_over_time(STEPS) == pytest.approx(0.9 - 0.2)  # step means 0.2, 0.3 and 0.9


def test_the_tail_sees_what_the_mean_hides():
    """Equal means: one policy differs a little everywhere, the other much in one step of ten."""
    even, rare = np.full((4, 20), 0.05), np.zeros((4, 20))
    rare[:, ::10] = 0.5
    assert mean_over_steps(rare) == pytest.approx(mean_over_steps(even))
    assert high_percentile(rare) > 5 * high_percentile(even)


def test_the_advantage_gap_by_arithmetic():
    """Mutations: the sign, no discount, a mean over steps."""
    state = np.array([[1.0, 2.0, 3.0], [4.0, NAN, NAN]])
    action = np.array([[0.0, 2.5, 1.0], [5.0, NAN, NAN]])
    first = (1 - 0) + 0.5 * (2 - 2.5) + 0.25 * (3 - 1)
    assert advantage_gap(state, action, discount=0.5) == pytest.approx((first + (4 - 5)) / 2)
    assert advantage_gap(state, action) == pytest.approx((1 - 0.5 + 2 - 1) / 2)


def test_gaps_are_the_difference_of_returns_where_values_are_exact():
    """A chain: each step pays 1 for the trusted action and r for the other; eight steps, discount 0.9.

    Mutation: a next value that is not discounted.
    """
    discount, steps = 0.9, 8
    value = np.array([sum(discount**k for k in range(steps - t)) for t in range(steps + 1)])
    taken = np.array([1.0, -2.0, 0.5, 1.0, 3.0, 0.0, 0.0, 1.0])
    lost = value[0] - sum(discount**t * taken[t] for t in range(steps))
    assert advantage_gap(value[None, :-1], (taken + discount * value[1:])[None], discount) == pytest.approx(lost)
    assert unexpected_return(taken[None], value[None, :-1], value[None, 1:], discount) == pytest.approx(-lost)


def walks(seed, episodes=20, steps=60, drift=0.0):
    """Slow random walks, each somewhere else: steps of an episode resemble each other; the rest is NaN."""
    made = rng(seed)
    start = 2 * made.normal(size=(episodes, 1, 2))
    walk = start + 0.1 * made.normal(size=(episodes, steps, 2)).cumsum(axis=1)
    walk[..., 0] += drift
    for episode, end in zip(walk, made.integers(steps // 2, steps + 1, size=episodes), strict=True):
        episode[end:] = NAN
    return walk


@pytest.mark.parametrize("classifier", ["nearest", "logistic"])
def test_occupancy_tells_policies_apart_and_two_runs_of_one_policy_not(classifier):
    """Negative control. Mutation: folds of steps instead of episodes tell two runs of one policy apart."""
    same = [occupancy_auroc(walks(2 * k), walks(2 * k + 1), rng(k), classifier=classifier, limit=300) for k in range(8)]
    assert np.mean(same) == pytest.approx(0.5, abs=0.12)
    apart = [
        occupancy_auroc(walks(2 * k), walks(2 * k + 1, drift=5.0), rng(k), classifier=classifier, limit=300)
        for k in range(3)
    ]
    assert min(apart) > 0.85


def test_neighbours_see_a_change_of_spread_that_a_line_cannot():
    inner, outer = rng(8).normal(size=(10, 40, 2)), 3 * rng(9).normal(size=(10, 40, 2))
    assert occupancy_auroc(inner, outer, rng(), limit=400) > 0.75
    assert occupancy_auroc(inner, outer, rng(), limit=400, classifier="logistic") < 0.65


def test_rows_that_are_equally_near_share_the_places_left():
    """By brute force: the mean over all orders of those that tie. Mutation: the first of them in the array."""
    made = rng(3)
    train, test = made.integers(0, 3, (40, 2)).astype(float), made.integers(0, 3, (12, 2)).astype(float)
    labels, places = made.integers(0, 2, 40), 7
    want = []
    for row in test:
        distance = ((train - row) ** 2).sum(axis=1)
        farthest = np.sort(distance)[places - 1]
        tied, nearer = labels[distance == farthest], labels[distance < farthest]
        want.append((nearer.sum() + (places - len(nearer)) * tied.mean()) / places)
    np.testing.assert_allclose(detection._nearest_share(train, labels, test, places), want)


def test_on_a_grid_occupancy_is_as_good_as_the_states_allow():
    """Two states, the second visited by one in half of all steps, by the other in a tenth.

    The best AUROC is .5 · .9 + (.5 · .1 + .5 · .9) / 2. Mutation: ties broken by position get 0.29.
    """
    one = (rng(1).random((40, 25, 1)) < 0.1).astype(float)
    other = (rng(2).random((40, 25, 1)) < 0.5).astype(float)
    assert occupancy_auroc(one, other, rng()) == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize("classifier", ["nearest", "logistic"])
def test_scale_and_place_of_a_feature_and_one_that_never_varies_say_nothing(classifier):
    """Mutation: a spread of 0 that is divided by."""
    one, other = walks(1), walks(2, drift=1.0)
    plain = occupancy_auroc(one, other, rng(), classifier=classifier, limit=300)
    changed = [np.concatenate([100 * part + 7, 0 * part[..., :1] + 3], axis=2) for part in (one, other)]
    assert occupancy_auroc(*changed, rng(), classifier=classifier, limit=300) == pytest.approx(plain, abs=1e-6)


def test_each_detector_scores_the_feature_it_is_given():
    values = rng(10).random((6, 30))
    assert detector_scores({"jensen_shannon": values, "hellinger": 2 * values, "other": values}) == {
        "mean_jensen_shannon": mean_over_steps(values),
        "mean_hellinger": mean_over_steps(2 * values),
        "range_hellinger": range_over_time(2 * values),
        "high_jensen_shannon": high_percentile(values),
        "high_hellinger": high_percentile(2 * values),
    }
    assert set(detector_scores({"hellinger": values})) == {"mean_hellinger", "range_hellinger", "high_hellinger"}


# Judgements.


def test_a_curve_by_hand():
    """Anomalous 3, 2, 1; acceptable 2, 0. Mutation: ties passed one after the other."""
    curve = roc_curve([3, 2, 1, 2, 0], [1, 1, 1, 0, 0])
    np.testing.assert_allclose(curve.threshold, [np.inf, 3, 2, 1, 0])
    np.testing.assert_allclose(curve.true_positive_rate, [0, 1 / 3, 2 / 3, 1, 1])
    np.testing.assert_allclose(curve.false_positive_rate, [0, 0, 1 / 2, 1 / 2, 1])
    assert auroc([3, 2, 1, 2, 0], [1, 1, 1, 0, 0]) == pytest.approx((1 + 1 + 0.5 + 1 + 0 + 1) / 6)
    # From 1 up are all three anomalous policies and one other.
    assert best_f1([3, 2, 1, 2, 0], [1, 1, 1, 0, 0]) == pytest.approx((6 / 7, 1))
    assert false_positive_rate_at([3, 2, 1, 2, 0], [1, 1, 1, 0, 0]) == 0.5
    assert false_positive_rate_at([3, 2, 1, 2, 0], [1, 1, 1, 0, 0], 0.3) == 0


@pytest.mark.parametrize("seed", range(8))
def test_quality_measures_equal_brute_force(seed):
    """All pairs, and all thresholds. Mutations: > for ≥, FP and FN exchanged, ties as wins."""
    scores, labels = policies(seed)
    ones, zeros = scores[labels == 1], scores[labels == 0]
    pairs = [(a > b) + 0.5 * (a == b) for a in ones for b in zeros]
    assert auroc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))
    curve = roc_curve(scores, labels)
    f1, enough = [], []
    for place, threshold in enumerate([math.inf, *sorted(set(scores), reverse=True)]):
        called = [score >= threshold for score in scores]
        tp = sum(c and y for c, y in zip(called, labels, strict=True))
        fp = sum(c and not y for c, y in zip(called, labels, strict=True))
        fn = len(ones) - tp
        assert curve.threshold[place] == threshold
        assert curve.true_positive_rate[place] == pytest.approx(tp / len(ones))
        assert curve.false_positive_rate[place] == pytest.approx(fp / len(zeros))
        f1.append((2 * tp / (2 * tp + fp + fn), threshold))
        if tp / len(ones) >= 0.75:  # six of eight
            enough.append(fp / len(zeros))
    assert len(curve.threshold) == len(f1)
    assert best_f1(scores, labels) == pytest.approx(max(f1))
    assert false_positive_rate_at(scores, labels, 0.75) == pytest.approx(min(enough))


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=25))
@settings(max_examples=80, deadline=None)
def test_the_area_is_that_under_the_curve_and_labels_exchanged_give_the_rest(rows):
    scores, labels = [score for score, _ in rows], [label for _, label in rows]
    if len(set(labels)) < 2:
        return
    area = auroc(scores, labels)
    curve = roc_curve(scores, labels)
    assert np.trapezoid(curve.true_positive_rate, curve.false_positive_rate) == pytest.approx(area)
    assert auroc(scores, [not label for label in labels]) == pytest.approx(1 - area)
    assert auroc(np.exp(scores), labels) == pytest.approx(area)
    assert 2 * sum(labels) / (sum(labels) + len(labels)) - 1e-9 <= best_f1(scores, labels)[0] <= 1


def test_midranks_are_the_naive_counts():
    """Mutation: the last place for all that tie."""
    for seed in range(5):
        values = rng(seed).integers(0, 6, size=15)
        want = [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]
        np.testing.assert_allclose(midranks(values), want)


def test_three_of_ten_are_a_tenth_and_two():
    """0.1 + 0.2 is a little more than 0.3. Mutation: without the allowance four must be found, and all are flagged."""
    scores, labels = [9, 9, 9, *[0] * 7, 5], [1] * 10 + [0]
    assert false_positive_rate_at(scores, labels, 0.1 + 0.2) == 0
    assert false_positive_rate_at(scores, labels, 0.31) == 1


def test_an_interval_is_that_of_all_draws():
    """Two and two policies: sixteen draws are all there are, and their quantiles known. Mutation: no strata."""
    positive, negative = [1.0, 4.0], [0.0, 2.0]
    all_draws = [
        sum((p > n) for p in (a, b) for n in (c, d)) / 4
        for a in positive
        for b in positive
        for c in negative
        for d in negative
    ]
    value, low, high = bootstrap_interval(auroc, [1, 0, 4, 2], [1, 0, 1, 0], rng(), draws=4000, confidence=0.5)
    assert value == 0.75
    assert (low, high) == pytest.approx(tuple(np.quantile(all_draws, [0.25, 0.75])))


def test_draws_keep_the_number_of_each_kind_and_only_given_pairs():
    seen = []

    def look(scores, labels):
        assert labels.sum() == 2 and len(labels) == 5
        assert set(scores[labels == 1]) <= {7.0, 8.0} and set(scores[labels == 0]) <= {1.0, 2.0, 3.0}
        seen.append((*sorted(scores[labels == 1]), *sorted(scores[labels == 0])))
        return float(scores.sum())

    bootstrap_interval(look, [1, 7, 2, 8, 3], [0, 1, 0, 1, 0], rng(), draws=3000)
    assert len(seen) == 3001 and len(set(seen)) == 3 * 10  # every sample there is, but for the order


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Normal scores one deviation apart, whose AUROC is Φ(1/√2) = 0.760; 100 samples of 25 and 25, 95 ± 2 expected."""
    truth = 0.5 * (1 + math.erf(0.5))
    made, held = rng(14), 0
    labels = np.repeat([1, 0], 25)
    for _ in range(100):
        _, low, high = bootstrap_interval(auroc, made.normal(size=50) + labels, labels, made, draws=100)
        held += low <= truth <= high
    assert 84 <= held <= 99


def test_a_threshold_by_arithmetic():
    """Of 19 scores, 5 % leave the largest: ⌈0.95 · 20⌉ = 19; 10 % the one before it."""
    scores = rng().permutation(19)
    assert threshold_from_trusted(scores, 0.05) == 18
    assert threshold_from_trusted(scores, 0.1) == 17
    assert threshold_from_trusted(scores, 0.5) == 9


@pytest.mark.parametrize(("count", "rate"), [(19, 0.05), (24, 0.1), (9, 0.3)])
def test_false_alarms_are_no_more_frequent_than_the_rate(count, rate):
    """4000 further policies of the trusted kind, each with its own sample. Mutation: a plain quantile alarms more."""
    made = rng(15).exponential(size=(4000, count + 1))
    alarms = np.mean([row[0] > threshold_from_trusted(row[1:], rate) for row in made])
    exact = 1 - math.ceil((1 - rate) * (count + 1) - 1e-9) / (count + 1)
    assert exact <= rate + 1e-9
    assert alarms == pytest.approx(exact, abs=4 * math.sqrt(rate * (1 - rate) / 4000))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc([1, 2], [1, 1]), "all 2 labels are 1"),
        (lambda: roc_curve([1, 2], [0, 0]), "all 2 labels are 0"),
        (lambda: best_f1([1, NAN], [0, 1]), "1 of 2 scores are not finite"),
        (lambda: auroc([], []), "not one number per policy"),
        (lambda: auroc([1, 2, 3], [0, 1]), "do not match"),
        (lambda: auroc([1, 2], [0, 2]), "labels must be 0 or 1"),
        (lambda: false_positive_rate_at([1, 2], [0, 1], 0), "true_positive_rate = 0 must be"),
        (lambda: bootstrap_interval(auroc, [1, 2], [0, 1], rng(), draws=0), "draws = 0 must be at least 1"),
        (lambda: bootstrap_interval(auroc, [1, 2], [0, 1], rng(), confidence=1), "confidence = 1 must be between"),
        (lambda: bootstrap_interval(auroc, [1, 2], [0, 0], rng()), "all 2 labels are 0"),
        (lambda: threshold_from_trusted([1] * 18, 0.05), "18 scores .* rate of 0.05; at least 19"),
        (lambda: threshold_from_trusted([1, 2], 0), "rate = 0 must be between 0 and 1"),
        (lambda: mean_over_steps([1, 2]), r"not \[episodes, steps\]"),
        (lambda: mean_over_steps([[1, 2], [NAN, NAN]]), "1 of 2 episodes have no first step"),
        (lambda: mean_over_steps([[1, NAN, 2]]), "before the end of an episode"),
        (lambda: mean_over_steps([[1, math.inf]]), "infinite"),
        (lambda: range_over_time(np.zeros((0, 3))), r"not \[episodes, steps\]"),
        (lambda: high_percentile([[1]], 101), "percentile = 101 must be between 0 and 100"),
        (lambda: advantage_gap([[1, 2]], [[1]]), "must have the same steps"),
        (lambda: advantage_gap([[1, 2]], [[1, NAN]]), "must have the same steps"),
        (lambda: advantage_gap([[1]], [[1]], 1.5), "discount = 1.5 must be between"),
        (lambda: occupancy_auroc(np.zeros((9, 2, 1)), np.zeros((4, 2, 1)), rng()), "4 episodes.* too few for 5 folds"),
        (lambda: occupancy_auroc(np.zeros((9, 2, 1)), np.zeros((5, 2)), rng()), "not .episodes, steps, numbers"),
        (lambda: occupancy_auroc(np.zeros((9, 2, 1)), np.zeros((5, 2, 3)), rng()), "of 1 and 3 numbers"),
        (lambda: occupancy_auroc(np.full((5, 2, 1), NAN), np.zeros((9, 2, 1)), rng()), "0 of them with steps"),
        (lambda: occupancy_auroc(np.full((5, 2, 1), math.inf), np.zeros((9, 2, 1)), rng()), "infinite"),
        (lambda: occupancy_auroc(np.zeros((5, 2, 1)), np.zeros((5, 2, 1)), rng(), folds=1), "folds = 1 must be"),
        (lambda: occupancy_auroc(np.zeros((5, 2, 1)), np.zeros((5, 2, 1)), rng(), limit=0), "limit = 0 must be"),
        (lambda: occupancy_auroc(np.zeros((5, 2, 1)), np.zeros((5, 2, 1)), rng(), classifier="tree"), "'tree' must be"),
    ],
)
def test_what_has_no_answer_is_refused_in_one_line(call, message):
    with pytest.raises(ConfigError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
