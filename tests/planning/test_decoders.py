"""From an ensemble's answers to guesses: masks, factors, rewards and ends, and the kernel beside its twin."""

from typing import Any

import numpy as np
import pytest

from packtrain.envs.factors import Factor, encode
from packtrain.planning import kernels
from packtrain.planning.decoders import ClassDecoder, DeltaDecoder
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
