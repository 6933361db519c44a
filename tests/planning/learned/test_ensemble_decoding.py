"""Decoding of ensemble predictions: masks, factors, rewards and ends, disagreement, and the kernel beside its twin."""

import math
from typing import Any

import numpy as np
import pytest

from packtrain.envs.categorical_factors import Factor, encode
from packtrain.planning import kernels
from packtrain.planning.learned.ensemble_decoding import CellDecoder, ClassDecoder, DeltaDecoder, decode_delta
from packtrain.testing.plain_decoding import decode_classes, mutual_information, scaled_std, std_of_deltas

FACTORS = (Factor.one_hot(0, 3), Factor.whole_number(3, -1, 3), Factor.one_hot(4, 2))  # D = 6, C = 10
LOW, HIGH = np.array([0, 0, 0, -1, 0, 0], np.float32), np.array([1, 1, 1, 3, 1, 1], np.float32)


def question(rng: np.random.Generator, n: int = 60, members: int = 8, mask: int = 4) -> tuple[Any, ...]:
    """Observations that exist, answers of twice as many questions, rows of them, and masks."""
    obs = rng.integers(0, 2, (n, 6)).astype(np.float32)
    rows = rng.integers(0, 2 * n, n)
    masks = np.sort(rng.random((n, members)).argsort(axis=1)[:, :mask], axis=1)
    answer = {
        "delta": (rng.normal(size=(2 * n, members, 6)) * rng.choice([0.01, 0.5, 5], (2 * n, 1, 1))).astype(np.float32),
        "classes": (rng.normal(size=(2 * n, members, 10)) * rng.choice([0.1, 3, 60], (2 * n, 1, 1))).astype(np.float32),
        "reward": (3 * rng.normal(size=(2 * n, members))).astype(np.float32),
        "terminated": (3 * rng.normal(size=(2 * n, members))).astype(np.float32),
    }
    answer["delta"][::7] = 0.5  # halves, and members that agree
    answer["delta"][::5, 1:] = answer["delta"][::5, :1]
    return obs, answer, rows, masks


@pytest.mark.parametrize("mask", [1, 3, 4, 8])
@pytest.mark.parametrize("factors", [(), FACTORS], ids=["apart", "together"])
@pytest.mark.parametrize("scaled", [False, True], ids=["published", "scaled"])
def test_the_kernel_is_its_twin(mask: int, factors: Any, scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, compiled or as plain Python, and on answers that are not contiguous.

    Mutations: sums in float64; the last of equal largest coordinates; np.round; deviations from the mean.
    """
    obs, answer, rows, masks = question(np.random.default_rng(mask), mask=mask)
    decoder = DeltaDecoder(LOW, HIGH, factors, scaled)
    kept = decoder.prepare(answer)
    guesses = []
    for compiled, turned in ((False, False), (True, False), (True, True)):
        monkeypatch.setattr(kernels, "compiled", compiled)
        delta = kept["delta"].transpose(1, 0, 2).copy().transpose(1, 0, 2) if turned else kept["delta"]
        guesses.append(decoder.decode(obs, kept | {"delta": delta}, rows, masks))
    for guess in guesses[1:]:
        for mine, theirs in zip(guesses[0], guess, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "kernels"])
def test_changes_by_hand(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only masked members count; a factor's largest coordinate is 1; rewards and ends by the mean belief.

    Mutations: all members; factors rounded one by one, which gives a disk on two pegs; the mean of logits.
    """
    monkeypatch.setattr(kernels, "compiled", compiled)
    delta = np.zeros((1, 4, 6), np.float32)
    delta[0, :2] = [[-0.4, 0.7, 0, 0.7, 0, 0.5], [-0.4, 0.7, 0, 2.3, 0, 0.5]]
    delta[0, 2:] = 100.0
    loud = np.array([[9.0, -1, 0, 0]], np.float32)
    answer = {"delta": delta, "reward": -loud, "terminated": loud}
    obs, place, masks = np.array([[1, 0, 0, 1, 1, 0]], np.float32), np.zeros(1, np.int64), np.array([[0, 1]])
    guess = {}
    for name, factors in (("apart", ()), ("together", FACTORS)):
        decoder = DeltaDecoder(LOW, HIGH, factors)
        guess[name] = decoder.decode(obs, decoder.prepare(answer), place, masks)
    assert guess["apart"].obs.tolist() == [[1, 1, 0, 3, 1, 1]] and guess["together"].obs.tolist() == [
        [0, 1, 0, 3, 1, 0]
    ]
    assert guess["together"].bonus == pytest.approx([0.8 / 6])
    # beliefs of members 0 and 1: 0.0001 and 0.73 of a reward, 0.9999 and 0.27 of an end
    assert (guess["together"].reward.tolist(), guess["together"].terminated.tolist()) == ([0], [True])
    scaled = DeltaDecoder(LOW, HIGH, FACTORS, scaled=True)
    assert scaled.decode(obs, scaled.prepare(answer), place, masks).bonus == pytest.approx([0.8 / 4 / 6])


def test_disagreements_are_those_of_the_equations() -> None:
    """Mutation: rows or masks mixed up."""
    obs, answer, rows, masks = question(np.random.default_rng(0))
    picked = {name: values[rows[:, None], masks] for name, values in answer.items()}
    for scaled, wanted in ((False, std_of_deltas), (True, lambda delta: scaled_std(delta, HIGH - LOW))):
        decoder = DeltaDecoder(LOW, HIGH, FACTORS, scaled)
        guess = decoder.decode(obs, decoder.prepare(answer), rows, masks)
        np.testing.assert_array_equal(guess.bonus, wanted(picked["delta"]))
    classes = ClassDecoder(FACTORS)
    guess = classes.decode(obs, classes.prepare(answer), rows, masks)
    information = mutual_information(picked["classes"], FACTORS, picked["reward"], picked["terminated"])
    np.testing.assert_allclose(guess.bonus, information, atol=3e-6)
    np.testing.assert_array_equal(guess.obs, decode_classes(picked["classes"], FACTORS))
    assert (guess.bonus > 0.01).any() and (guess.bonus >= 0).all()


def test_classes_of_members_that_agree_and_that_are_certain() -> None:
    """No disagreement, and ln 2 for each factor that two differ in. Mutation: rewards and ends left out."""
    logits = np.zeros((3, 2, 10), np.float32)
    logits[:, :, [0, 4, 8]] = 50.0
    logits[1, 1, 2] = 100.0
    silent, apart = np.full((3, 2), 3.0, np.float32), np.full((3, 2), 50.0, np.float32)
    apart[2, 1] = -50.0
    decoder = ClassDecoder(FACTORS)
    kept = decoder.prepare({"classes": logits, "reward": silent, "terminated": apart})
    guess = decoder.decode(np.zeros((3, 6), np.float32), kept, np.arange(3), np.tile(np.arange(2), (3, 1)))
    np.testing.assert_allclose(guess.bonus, [0, np.log(2), np.log(2)], atol=1e-6)
    assert guess.obs[0].tolist() == [1, 0, 0, 0, 1, 0] and guess.reward.tolist() == [1, 1, 1]


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "kernels"])
def test_guesses_always_exist(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is answered, one coordinate of a one-hot factor is 1 and numbers are inside. Mutation: no factors."""
    monkeypatch.setattr(kernels, "compiled", compiled)
    obs, answer, rows, masks = question(np.random.default_rng(5), n=200)
    for decoder in (DeltaDecoder(LOW, HIGH, FACTORS), ClassDecoder(FACTORS)):
        guess = decoder.decode(obs, decoder.prepare(answer), rows, masks)
        assert len({tuple(row) for row in encode(guess.obs, FACTORS)}) > 20  # ValueError if one did not exist
        assert guess.obs.dtype == np.float32 and guess.terminated.dtype == bool


# -- crafted ensembles

SIZES = (3, 5, 2)


def sure(classes: list[list[int]], strength: float = 40.0) -> np.ndarray:
    """Logits [1, M, C] of members that are certain of one class of each factor, given as [M, F]."""
    logits = np.zeros((1, len(classes), sum(SIZES)), np.float32)
    starts = np.cumsum([0, *SIZES[:-1]])
    for member, chosen in enumerate(classes):
        logits[0, member, starts + chosen] = strength
    return logits


def silent(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two binary heads about which all members agree."""
    return np.full(logits.shape[:2], -3.0, np.float32), np.full(logits.shape[:2], 0.5, np.float32)


def slow_information(logits, factors, *binary) -> np.ndarray:
    """Σ H(mean p) − mean H(p), number by number."""

    def entropy(p):
        return -sum(x * math.log(x) for x in p if x > 0)

    def softmax(x):
        weights = [math.exp(y - max(x)) for y in x]
        return [weight / sum(weights) for weight in weights]

    result = []
    for n in range(len(logits)):
        begin, total, members = 0, 0.0, logits.shape[1]
        groups = []
        for factor in factors:
            groups.append([softmax(logits[n, m, begin : begin + factor.size].tolist()) for m in range(members)])
            begin += factor.size
        groups += [[softmax([0.0, float(head[n, m])]) for m in range(members)] for head in binary]
        for beliefs in groups:
            mean = [sum(column) / members for column in zip(*beliefs, strict=True)]
            total += entropy(mean) - sum(map(entropy, beliefs)) / members
        result.append(total)
    return np.array(result)


def test_changes_round_halves_up_and_stay_inside() -> None:
    """Mutations: np.round, which sends 0.5 to 0 and 2.5 to 2; clipping left out; one member instead of the mean."""
    obs = np.array([[0, 2, 3, 1, -1]], np.float32)
    delta = np.array([[[0.2, 0.5, 9, -9, 0.4], [0.8, 0.5, 9, -9, 0.6]]], np.float32)
    low, high = np.array([0, 0, 0, -1, -2]), np.array([5, 5, 4, 5, 5])
    after = decode_delta(obs, delta, low, high)
    assert after.tolist() == [[1, 3, 4, -1, 0]] and after.dtype == np.float32


def test_changes_by_factor_always_exist() -> None:
    """A disk on two pegs and one on none come out on one. Mutation: factors not looked at."""
    obs = np.array([[1, 0, 0, 2, 1, 0], [1, 0, 0, 2, 1, 0]], np.float32)
    mean = np.array([[-0.4, 0.7, 0, 0.6, 0, 0.8], [-0.7, 0.1, 0.4, -9, -0.9, 0.2]], np.float32)
    delta = mean[:, None] + np.array([[[-1]], [[1]]], np.float32).reshape(1, 2, 1)
    assert decode_delta(obs, delta, -1, 3).tolist()[0][:3] == [1, 1, 0]  # the paper's
    after = decode_delta(obs, delta, np.array([0, 0, 0, -1, 0, 0]), np.array([1, 1, 1, 3, 1, 1]), FACTORS)
    assert after.tolist() == [[0, 1, 0, 3, 1, 0], [0, 0, 1, -1, 0, 1]]


def test_classes_are_chosen_by_the_mean_of_beliefs() -> None:
    """Two mild members against a loud one. Mutation: the mean of logits, which the loud one wins."""
    logits = sure([[0, 4, 1], [0, 4, 1], [2, 1, 0]], strength=3.0)
    logits[0, 2] *= 100
    after = decode_classes(logits, FACTORS)
    assert after.tolist() == [[1, 0, 0, 3, 0, 1]] and after.dtype == np.float32


def test_any_logits_decode_to_something_that_exists() -> None:
    """Far apart, without overflow, and the argument is left as it was."""
    logits = np.random.default_rng(0).normal(size=(500, 4, 10)).astype(np.float32) * 200
    before = logits.copy()
    after = decode_classes(logits, FACTORS)
    classes = encode(after, FACTORS)  # ValueError if one did not exist
    assert {tuple(row) for row in classes} == set(np.ndindex(SIZES))
    np.testing.assert_array_equal(logits, before)


def test_the_published_disagreement() -> None:
    """By arithmetic and against NumPy. Mutation: the sample's standard deviation, M − 1."""
    delta = np.array([[[0, 2], [2, 2], [4, 2]]], np.float32)
    assert std_of_deltas(delta) == pytest.approx([math.sqrt(8 / 3) / 2])
    many = np.random.default_rng(1).normal(size=(200, 4, 7)).astype(np.float32)
    many[:, 0] += 1000  # an outlier, and far from 0
    np.testing.assert_allclose(std_of_deltas(many), many.astype(float).std(axis=1).mean(axis=1), rtol=1e-5)
    shifted = np.random.default_rng(2).normal(size=(200, 4, 7)) + 1000  # all far from 0
    shifted = shifted.astype(np.float32)
    np.testing.assert_allclose(std_of_deltas(shifted), shifted.astype(float).std(axis=1).mean(axis=1), rtol=1e-4)


def test_scaled_disagreement_counts_shares_of_the_range() -> None:
    """A flag against a number of 10: both half apart. A coordinate that never changes counts for nothing."""
    delta = np.array([[[0, 0, 0], [1, 10, 6]]], np.float32)
    assert scaled_std(delta, np.array([1, 10, 0])) == pytest.approx([0.5])
    assert std_of_deltas(delta) == pytest.approx([(0.5 + 5 + 3) / 3])
    assert scaled_std(delta, np.zeros(3)).tolist() == [0]


@pytest.mark.parametrize("members", [1, 2, 3, 4, 7, 8])
def test_equal_members_disagree_about_nothing(members) -> None:
    """Whatever they believe. Mutation: subtract the entropies after summing over classes: up to 1e-5 in float32."""
    rng = np.random.default_rng(members)
    factors = tuple(Factor.whole_number(i, 0, 10) for i in range(20))
    one = (rng.normal(size=(300, 1, 220)) * rng.choice([0.01, 1, 30], size=(300, 1, 1))).astype(np.float32)
    logits, heads = one.repeat(members, axis=1), one[..., :2].repeat(members, axis=1)
    information = mutual_information(logits, factors, heads[..., 0], heads[..., 1])
    assert information.shape == (300,) and information.dtype == np.float32
    assert (information >= 0).all() and information.max() < 1e-6
    assert not std_of_deltas(logits).any() and not scaled_std(logits, np.ones(220)).any()


def test_certain_of_different_classes() -> None:
    """ln 2 for each factor that two members differ in, ln M for M. Mutation: log2; the mean over factors."""
    alike = sure([[0, 1, 1], [0, 1, 1]])
    one, two = sure([[0, 1, 1], [2, 1, 1]]), sure([[0, 1, 1], [2, 4, 1]])
    for logits, nats in ((alike, 0), (one, math.log(2)), (two, 2 * math.log(2))):
        assert mutual_information(logits, FACTORS, *silent(logits)) == pytest.approx([nats], abs=1e-6)
    three = sure([[0, 1, 1], [1, 1, 1], [2, 1, 1]])
    assert mutual_information(three, FACTORS, *silent(three)) == pytest.approx([math.log(3)], abs=1e-6)


def test_rewards_and_ends_count() -> None:
    """Mutation: one of the two heads left out."""
    alike = sure([[0, 1, 1], [0, 1, 1]])
    agreed, apart = np.full((1, 2), 50.0), np.array([[-500.0, 500.0]])
    assert mutual_information(alike, FACTORS, apart, agreed) == pytest.approx([math.log(2)], abs=1e-6)
    assert mutual_information(alike, FACTORS, agreed, apart) == pytest.approx([math.log(2)], abs=1e-6)


def test_information_against_the_sum() -> None:
    """Random members, mild and extreme. Mutation: one softmax over all factors."""
    rng = np.random.default_rng(3)
    scale = rng.choice([0.1, 1, 10, 300], size=(100, 1, 1))
    logits = (rng.normal(size=(100, 3, 10)) * scale).astype(np.float32)
    reward, terminated = (rng.normal(size=(2, 100, 3)) * scale[:, 0]).astype(np.float32)
    got = mutual_information(logits, FACTORS, reward, terminated)
    np.testing.assert_allclose(got, slow_information(logits, FACTORS, reward, terminated), atol=2e-6)


def test_boards_are_factors_of_one_class_per_cell() -> None:
    """The decoder of boards gives what that of factors gives for flattened boards: same boards, rewards, disagreement.

    Mutations: the entropy of each member's mean; reward and termination left out of the disagreement; argmax of one
    member.
    """
    rng = np.random.default_rng(0)
    n, members, cells, classes = 40, 5, 6, 3
    rows, masks = rng.integers(0, n, 25), np.sort(rng.random((25, members)).argsort(axis=1)[:, :3], axis=1)
    logits = (rng.normal(size=(n, members, cells * classes)) * rng.choice([0.1, 3, 60], (n, 1, 1))).astype(np.float32)
    ends = {name: (3 * rng.normal(size=(n, members))).astype(np.float32) for name in ("reward", "terminated")}
    obs = np.zeros((25, cells * classes), np.float32)
    flat = ClassDecoder(tuple(Factor.one_hot(classes * cell, classes) for cell in range(cells)))
    want = flat.decode(obs, flat.prepare({"classes": logits, **ends}), rows, masks)
    decoder, board = CellDecoder(), (2, 3, classes)
    kept = decoder.prepare({"classes": logits.reshape(n, members, *board), **ends})
    got = decoder.decode(obs.reshape(25, *board), kept, rows, masks)
    np.testing.assert_array_equal(got.obs, want.obs.reshape(25, *board))
    np.testing.assert_array_equal(got.reward, want.reward)
    np.testing.assert_array_equal(got.terminated, want.terminated)
    np.testing.assert_allclose(got.bonus, want.bonus, rtol=1e-4, atol=1e-5)
    assert want.bonus.max() > 0.5
