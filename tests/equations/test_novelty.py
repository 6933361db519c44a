"""Novelty: running moments against all data at once, scales, and the bonuses by arithmetic and by brute force."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.equations.novelty import (
    add_to_moments,
    count_bonus,
    deviation,
    episodic_bonus,
    forward_returns,
    life_long_modulator,
    nearest_distances,
    no_moments,
    normalise,
    rnd_error,
)

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def moments_of(*values):
    values = torch.tensor(values)
    return add_to_moments(no_moments(), values, torch.ones(len(values)))


@quick
@given(seeds)
def test_moments_in_batches_are_those_of_all_data(seed):
    """Far from 0, where sums of squares would lose everything. Mutation: no term for the change of the mean."""
    generator = torch.Generator().manual_seed(seed)
    moments, kept = no_moments(3), []
    for size in (1, 5, 0, 17):
        values = 1e4 + torch.randn(size, 3, generator=generator) * torch.tensor([1.0, 10.0, 0.0])
        weight = torch.randint(0, 3, (size,), generator=generator)
        kept.append(values.repeat_interleave(weight, 0))
        moments = add_to_moments(moments, values.masked_fill(weight[:, None] == 0, math.nan), weight.float())
    everything = torch.cat(kept).double()
    assert moments.number == len(everything)
    if len(everything):
        torch.testing.assert_close(moments.mean, everything.mean(0))
        torch.testing.assert_close(deviation(moments), everything.std(0, correction=0), atol=1e-8, rtol=1e-6)


def test_moments_given_are_not_changed():
    """A checkpoint may be writing them. Mutation: an update in place."""
    moments = no_moments(2)
    add_to_moments(moments, torch.ones(4, 2), torch.ones(4))
    assert moments.number == 0 and (moments.mean == 0).all() and (moments.m2 == 0).all()
    assert (deviation(moments) == 0).all()


def test_values_are_normalised_and_clipped():
    """Mean 2, deviation 1. A coordinate that never changed is 0 as ever, and ±clip otherwise."""
    moments = add_to_moments(no_moments(2), torch.tensor([[1.0, 7.0], [3.0, 7.0]]), torch.ones(2))
    got = normalise(torch.tensor([[2.5, 7.0], [99.0, 8.0], [-99.0, 6.0]]), moments, 5.0)
    torch.testing.assert_close(got, torch.tensor([[0.5, 0.0], [5.0, 5.0], [-5.0, -5.0]]))


def test_rnd_error_is_a_mean_over_features():
    prediction, target = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 4.0], [3.0, 1.0]])
    torch.testing.assert_close(rnd_error(prediction, target), torch.tensor([2.0, 5.0]))
    with pytest.raises(AssertionError, match="shapes differ"):
        rnd_error(prediction, target[:1])


def test_count_bonus():
    torch.testing.assert_close(count_bonus(torch.tensor([1, 4, 100])), torch.tensor([1.0, 0.5, 0.1]))


def test_forward_returns_by_arithmetic():
    """A filler keeps what there was. Mutation: one that discounts; a `before` that is not discounted."""
    got = forward_returns(
        torch.tensor([[1.0], [2.0], [math.nan], [4.0]]),
        torch.tensor([[1.0], [1.0], [0.0], [1.0]]),
        0.5,
        torch.tensor([8.0]),
    )
    torch.testing.assert_close(got, torch.tensor([[5.0], [4.5], [4.5], [6.25]]))


@quick
@given(seeds, st.integers(1, 20))
def test_forward_returns_of_two_halves_are_those_of_the_whole(seed, cut):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(21, 3, generator=generator, dtype=torch.float64)
    weight = (torch.rand(21, 3, generator=generator) < 0.8).double()
    begin = torch.rand(3, generator=generator, dtype=torch.float64)
    whole = forward_returns(rewards, weight, 0.9, begin)
    before = forward_returns(rewards[:cut], weight[:cut], 0.9, begin)
    after = forward_returns(rewards[cut:], weight[cut:], 0.9, before[-1])
    torch.testing.assert_close(torch.cat([before, after]), whole)


def test_the_modulator_is_one_for_what_is_usual_and_never_above_its_bound():
    """Mean 3, deviation 1. Mutation: no clipping below."""
    moments = moments_of(2.0, 4.0)
    got = life_long_modulator(torch.tensor([0.0, 3.0, 4.5, 99.0]), moments, 5.0)
    torch.testing.assert_close(got, torch.tensor([1.0, 1.0, 2.5, 5.0]))


@quick
@given(seeds, st.integers(1, 12))
def test_nearest_distances_by_sorting_all(seed, neighbours):
    generator = torch.Generator().manual_seed(seed)
    embedding, memory = torch.randn(4, 3, generator=generator), torch.randn(9, 3, generator=generator)
    got = nearest_distances(embedding, memory, neighbours)
    assert got.shape == (4, min(neighbours, 9))
    for n in range(4):
        distances = sorted(sum((a - b) ** 2 for a, b in zip(embedding[n], m, strict=True)).item() for m in memory)
        torch.testing.assert_close(got[n], torch.tensor(distances[:neighbours]))


def test_episodic_bonus_by_the_papers_steps():
    """Mutation: distances that are not divided by their mean; ξ added; no c."""
    squared, mean = [0.0, 0.001, 0.5, 40.0], 2.0
    epsilon, xi, c = 0.01, 0.008, 0.001
    kernel = [epsilon / (max(d / mean - xi, 0) + epsilon) for d in squared]
    want = 1 / (math.sqrt(sum(kernel)) + c)
    got = episodic_bonus(
        torch.tensor([squared, squared]), torch.tensor(mean), epsilon=epsilon, cluster_distance=xi, pseudo_count=c
    )
    torch.testing.assert_close(got, torch.tensor([want, want]))
    assert kernel[:2] == [1, 1], "closer than ξ is the same"


def test_n_equal_observations_pay_one_over_root_n_and_too_many_nothing():
    same = episodic_bonus(torch.zeros(9), torch.tensor(1.0), pseudo_count=0.0)
    assert same.item() == pytest.approx(1 / 3)
    assert episodic_bonus(torch.zeros(9), torch.tensor(1.0), most_similar=2.9).item() == 0
    far = episodic_bonus(torch.full((9,), 1e6), torch.tensor(1.0))
    assert far.item() > 10
    assert episodic_bonus(torch.zeros(9), torch.tensor(0.0)).isfinite()
