"""Priorities and importance weights: by arithmetic, by loops, and by what must hold for any batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.equations.priorities import annealed_exponent, importance_weights, item_priority, sequence_priority

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def test_sequence_priority_by_arithmetic():
    """Column 1 ends after one step, column 2 has none. Mutations: η on the mean; padding in the mean; no abs."""
    error = torch.tensor([[1.0, -2.0, 9.0], [-3.0, 100.0, math.nan], [2.0, math.nan, 9.0]])
    weight = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    got = sequence_priority(error, weight, eta=0.9)
    torch.testing.assert_close(got, torch.tensor([0.9 * 3 + 0.1 * 2, 2.0, 0.0]))


@quick
@given(seed=seeds, length=st.integers(1, 9), eta=st.floats(0, 1))
def test_sequence_priority_by_loops(seed, length, eta):
    generator = torch.Generator().manual_seed(seed)
    error = torch.randn(length, 4, generator=generator, dtype=torch.float64)
    weight = (torch.rand(length, 4, generator=generator) < 0.6).double()
    got = sequence_priority(error, weight, eta)
    assert got.shape == (4,)
    for b in range(4):
        sizes = [abs(error[t, b].item()) for t in range(length) if weight[t, b] == 1]
        want = eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes) if sizes else 0.0
        assert got[b].item() == pytest.approx(want)
    if length == 1:
        torch.testing.assert_close(got, (error.abs() * weight)[0])


def test_item_priority():
    """Mutation: a clip at 1, which makes 3 and 24 alike; ε outside the power."""
    got = item_priority(torch.tensor([-3.0, 24.0, 0.0]), 0.5, epsilon=1.0)
    torch.testing.assert_close(got, torch.tensor([2.0, 5.0, 1.0]))
    assert item_priority(torch.zeros(1), 0.6).item() == pytest.approx(1e-4**0.6)
    assert item_priority(torch.tensor([0.1, 7.0]), 0.0).tolist() == [1, 1]


@quick
@given(seed=seeds, beta=st.floats(0, 1), number=st.integers(8, 10**6))
def test_importance_weights_by_the_paper(seed, beta, number):
    """Mutation: division by the mean; β without its sign."""
    probability = torch.rand(8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / number + 1e-9
    raw = [(number * p.item()) ** -beta for p in probability]
    want = torch.tensor([w / max(raw) for w in raw], dtype=torch.float64)
    got = importance_weights(probability, beta)
    torch.testing.assert_close(got, want)
    assert got.max() == 1
    torch.testing.assert_close(importance_weights(1e3 * probability, torch.tensor(beta).double()), want)
    least = probability.min() / 2
    against_all = torch.tensor([w / (number * least.item()) ** -beta for w in raw], dtype=torch.float64)
    torch.testing.assert_close(importance_weights(probability, beta, least), against_all)


def test_a_place_without_an_item_weighs_nothing_and_sets_no_scale():
    """Mutation: 0 clamped to something tiny, which would silence all others."""
    got = importance_weights(torch.tensor([0.0, 0.25, 0.5]), 1.0)
    torch.testing.assert_close(got, torch.tensor([0.0, 1.0, 0.5]))


def test_beta_rises_to_its_end_and_stays():
    got = [annealed_exponent(step, 0.4, 1.0, 100) for step in (0, 50, 100, 1000, -5)]
    assert got == pytest.approx([0.4, 0.7, 1.0, 1.0, 0.4])


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(AssertionError, match="shapes differ"):
        sequence_priority(torch.ones(3, 2), torch.ones(3, 1))
    with pytest.raises(AssertionError, match="1 dimension"):
        importance_weights(torch.ones(3, 1), 1.0)
