"""The trust-but-verify rule, by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.planning.learned.verification import Verification


def seen(rule: Verification, column: int, values: list[float]) -> None:
    rule.expanded(np.full(len(values), column), np.array(values, np.float32))


def test_thresholds_are_quantiles_of_the_newest() -> None:
    """Linear interpolation, per column, over at most the queue's length, from the episode's beginning.

    Mutation: count a column that comes twice in one call once; the second value is written over the first.
    """
    rule = Verification(3, 0.9, 0.5, 5, seed=0)
    every = np.arange(3)
    assert np.isinf(rule.thresholds(every)).all()
    rule.expanded(np.array([0, 2, 0, 2, 0]), np.array([1, 10, 2, 20, 3], np.float32))
    want = [np.quantile([1, 2, 3], 0.9), np.inf, np.quantile([10, 20], 0.9)]
    np.testing.assert_allclose(rule.thresholds(every), want)
    seen(rule, 0, [4, 5, 6, 7])
    np.testing.assert_allclose(rule.thresholds(every)[0], np.quantile([3, 4, 5, 6, 7], 0.9))
    rule.begin(np.array([0]))
    assert np.isinf(rule.thresholds(every)[0]) and np.isfinite(rule.thresholds(every)[2])


def test_only_more_than_the_threshold_is_verified() -> None:
    """Strictly: a queue of equal disagreements never triggers."""
    rule = Verification(2, 0.9, 0.0, 10, seed=0)
    seen(rule, 0, [0.3] * 10)
    seen(rule, 1, [0.1] * 9 + [0.3])
    bonus = np.array([[0.1, 0.3], [0.3, 0.0]], np.float32)
    np.testing.assert_array_equal(rule.choose(np.arange(2), bonus, 0), [-1, 0])


def test_rejections_have_their_probability_and_differ_between_columns() -> None:
    """p = 0.75 verifies a quarter of the time. Mutation: draw one number for all columns."""
    rule = Verification(500, 0.5, 0.75, 10, seed=0)
    for column in range(500):
        seen(rule, column, [0.0, 0.1])
    bonus = np.tile(np.array([[0.0, 1.0, 0.5]], np.float32), (500, 1))
    chosen = np.stack([rule.choose(np.arange(500), bonus, decision) for decision in range(20)])
    assert set(np.unique(chosen)) == {-1, 1}
    assert abs((chosen == 1).mean() - 0.25) < 0.02
    assert 0.15 < (chosen[0] == 1).mean() < 0.35
    np.testing.assert_array_equal(rule.choose(np.array([7]), bonus[:1], 3), chosen[3, 7:8])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    quantile=st.one_of(st.integers(0, 100).map(lambda percent: percent / 100), st.floats(0, 1)),
    queues=st.lists(st.lists(st.integers(0, 12), max_size=130), min_size=1, max_size=4),
    values=st.lists(st.integers(-1, 26), min_size=4, max_size=4),
    room=st.integers(1, 130),
)
def test_counting_tells_what_quantiles_tell(
    quantile: float, queues: list[list[int]], values: list[int], room: int
) -> None:
    """The same as a comparison with the quantile of each queue, sorted or not, between entries and at them.

    Mutations: floor instead of ceiling; count what is equal, too; no entry counts as unusual.
    """
    rule = Verification(len(queues), quantile, 0.0, room, seed=0)
    for column, queue in enumerate(queues):
        seen(rule, column, [entry / 8 for entry in queue])
    mine = np.array(values[: len(queues)], np.float32) / 16
    newest = [np.array(queue[-room:]) / 8 for queue in queues]
    want = [bool(len(q)) and value > np.quantile(q, quantile) for q, value in zip(newest, mine, strict=True)]
    assert rule._is_unusual(np.arange(len(queues)), mine).tolist() == want


def confirm(rule: Verification, column: int, values: list[float]) -> None:
    rule.confirmed(np.full(len(values), column), np.array(values, np.float32))


def test_nothing_at_the_level_of_noise_is_verified() -> None:
    """VectorEnv 0 and 1 are of run 0, 2 and 3 of run 1, which has confirmed nothing.

    There is a level after 256 confirmations, from the next episode on, for that episode; exactly at it nothing is
    verified. Mutations: one level for all runs; ≥ instead of >; a level from the first confirmation on; a level that
    moves within an episode when another column begins one.
    """
    rule, every = Verification(4, 0.5, 0.0, 10, seed=0, noise_quantile=1.0, runs=2), np.arange(4)

    def looks(at: float) -> list[bool]:
        for column in every:
            seen(rule, column, [0.0, 0.0])
        return (rule.choose(every, np.tile(np.array([[0, at]], np.float32), (4, 1)), 0) == 1).tolist()

    rule.begin(every)
    confirm(rule, 0, [0.25] * 200)
    confirm(rule, 1, [0.25] * 55)
    rule.begin(every)
    assert looks(0.25) == [True] * 4 and not rule.noise(every).any()
    confirm(rule, 1, [0.25])
    assert looks(0.25) == [True] * 4, "not yet"
    rule.begin(every)
    assert looks(0.25) == [False, False, True, True] and looks(0.26) == [True] * 4
    assert rule.noise(every).tolist() == [0.25, 0.25, 0, 0]
    confirm(rule, 0, [0.5])
    rule.begin(np.array([1]))
    assert looks(0.3) == [True, False, True, True]


def test_the_level_is_a_quantile_of_the_newest_confirmations() -> None:
    """Of 4,096. Mutations: all that ever were; the oldest kept."""
    rule, column = Verification(1, 0.5, 0.0, 10, seed=0, noise_quantile=0.9), np.zeros(1, np.int64)
    values = np.random.default_rng(0).random(9000).astype(np.float32)
    for start, end in ((0, 100), (100, 4100), (4100, 9000)):  # the last is more than there is room for
        confirm(rule, 0, values[start:end].tolist())
    rule.begin(column)
    np.testing.assert_allclose(rule.noise(column), np.quantile(values[-4096:], 0.9))


def test_no_level_without_a_quantile() -> None:
    """Off is off."""
    rule = Verification(1, 0.5, 0.0, 10, seed=0)
    confirm(rule, 0, [5.0] * 500)
    rule.begin(np.zeros(1, np.int64))
    assert rule.noise(np.zeros(1, np.int64)).tolist() == [0] and rule.snapshot()["confirmations"] == 0


def test_the_level_outlives_a_restart_run_by_run() -> None:
    """Mutation: restore into another run, or without the place to write on from."""
    rule, every = Verification(4, 0.5, 0.0, 10, seed=0, noise_quantile=0.5, runs=2), np.arange(4)
    values = np.random.default_rng(1).random(5000).astype(np.float32)
    for part in (values[:300], values[300:4500]):
        confirm(rule, 3, part.tolist())
    other = Verification(4, 0.5, 0.0, 10, seed=0, noise_quantile=0.5, runs=2)
    other.restore(rule.snapshot(1), 1)
    for one in (rule, other):
        confirm(one, 2, values[4500:].tolist())
        one.begin(every)
    assert rule.noise(every).tolist() == other.noise(every).tolist()
    assert rule.noise(every)[0] == 0 < rule.noise(every)[3]


def test_who_came_to_look_looks_whatever_the_quantile_is() -> None:
    """But not at noise, nor at nothing. Mutation: `arrived` for all columns."""
    for quantile in (None, 0.9):
        rule = Verification(3, quantile, 0.0, 10, seed=0)
        for column in range(3):
            seen(rule, column, [0.5] * 10)
        bonus = np.array([[0, 0.1], [0, 0.1], [0, 0]], np.float32)
        chosen = rule.choose(np.arange(3), bonus, 0, np.array([True, False, True]))
        assert chosen.tolist() == [1, -1, -1]
    never = Verification(1, None, 1.0, 10, seed=0)
    assert never.choose(np.zeros(1, np.int64), bonus[:1], 0, np.array([True])).tolist() == [-1]
