"""The families of Ape-X, NGU and Agent57 against published numbers and their formulas, arm by arm."""

import math

import pytest
import torch

from packtrain.equations.policy_family import actor_epsilons, agent57_discounts, ngu_discounts, novelty_weights


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_ape_x_epsilons():
    """0.4 to 0.4^8 = 0.00065536. Mutation: N for N − 1, which never gets there."""
    got = actor_epsilons(8)
    want = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]  # α = 7 = N − 1: powers 1 to 8
    torch.testing.assert_close(got, torch.tensor(want))
    many = actor_epsilons(256)
    assert many[0] == pytest.approx(0.4) and many[-1] == pytest.approx(0.00065536, rel=1e-5)
    assert many[100].item() == pytest.approx(0.4 ** (1 + 7 * 100 / 255), rel=1e-5)
    assert (many.diff() < 0).all()
    torch.testing.assert_close(actor_epsilons(1, base=0.3), torch.tensor([0.3]))


def test_novelty_weights_of_32_arms():
    """0, 0.00003 … 0.15 in the middle … 0.29999, 0.3. Mutation: N − 1 for N − 2; no 0 for arm 0."""
    got = novelty_weights()
    assert got.shape == (32,) and got[0] == 0 and got[-1] == torch.tensor(0.3)
    assert got[1].item() == pytest.approx(0.0000265, abs=1e-7)
    assert got[15].item() == pytest.approx(0.15)
    assert 0.29996 < got[30].item() < 0.3
    want = [0.0, *(0.3 * sigmoid(10 * (2 * j - 30) / 30) for j in range(1, 31)), 0.3]
    torch.testing.assert_close(got, torch.tensor(want))
    assert (got.diff() > 0).all()
    torch.testing.assert_close(novelty_weights(2, 0.5), torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(novelty_weights(3, 0.2), torch.tensor([0.0, 0.2 * sigmoid(10), 0.2]))


@pytest.mark.parametrize("arms", [2, 3, 32])
def test_ngu_discounts(arms):
    """0.997 for the arm that exploits, 0.99 for the last; 1 − γ is geometric between."""
    got = ngu_discounts(arms)
    top, low = math.log(1 - 0.997), math.log(1 - 0.99)
    want = [1 - math.exp(((arms - 1 - i) * top + i * low) / (arms - 1)) for i in range(arms)]
    torch.testing.assert_close(got, torch.tensor(want), rtol=1e-6, atol=0)
    torch.testing.assert_close(got[[0, -1]], torch.tensor([0.997, 0.99]))


@pytest.mark.parametrize("arms", [10, 32])
def test_agent57_discounts(arms):
    """As printed: not monotone. Mutation: the last part without the inner difference, which does not reach g2."""
    got = agent57_discounts(arms)
    g0, g1, g2 = 0.9999, 0.997, 0.99
    want = [g0]
    want += [g1 + (g0 - g1) * sigmoid(10 * (2 * j - 6) / 6) for j in range(1, 7)]
    want += [g1]
    top, low = math.log(1 - g1), math.log(1 - g2)
    want += [1 - math.exp(((arms - 9) * top + (j - 8) * (low - top)) / (arms - 9)) for j in range(8, arms)]
    torch.testing.assert_close(got, torch.tensor(want), rtol=1e-6, atol=0)
    torch.testing.assert_close(got[[0, 7, 8, -1]], torch.tensor([0.9999, 0.997, 0.997, 0.99]))
    assert got[1].item() == pytest.approx(0.997, abs=1e-5) and got[6].item() == pytest.approx(0.9999, abs=1e-5)
    ordered = agent57_discounts(arms, ordered=True)
    assert (ordered.diff() <= 0).all()
    assert sorted(ordered.tolist()) == sorted(got.tolist())


def test_too_few_arms_are_refused():
    for family, fewest in ((novelty_weights, 2), (ngu_discounts, 2), (agent57_discounts, 10), (actor_epsilons, 1)):
        assert len(family(fewest)) == fewest
        with pytest.raises(AssertionError):
            family(fewest - 1)
