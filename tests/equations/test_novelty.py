"""Novelty: running moments against all data at once, scales, and the bonuses by arithmetic and by brute force."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from packtrain.equations.novelty import (
    MeanDistance,
    add_to_mean_distance,
    add_to_moments,
    count_bonus,
    deviation,
    episodic_bonus,
    episodic_novelty,
    forget,
    forward_returns,
    life_long_modulator,
    nearest_distances,
    nearest_in_memories,
    ngu_reward,
    no_mean_distance,
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


# NGU over columns.


class SlowNovelty:
    """Algorithm 1 for one environment, with lists: find neighbours, adapt the scale, compute novelty, store."""

    def __init__(self, neighbours, capacity, decay):
        self.neighbours, self.capacity, self.decay = neighbours, capacity, decay
        self.memory, self.steps, self.mean = [], 0, 0.0

    def reward(self, embedding):
        squared = sorted(sum((a - b) ** 2 for a, b in zip(embedding, other, strict=True)) for other in self.memory)
        squared = squared[: self.neighbours]
        if squared:
            self.steps += 1
            self.mean += max(1 - self.decay, 1 / self.steps) * (sum(squared) / len(squared) - self.mean)
        reward = 0.0
        if len(squared) == self.neighbours:
            kernel = [1e-4 / (max(d / max(self.mean, 1e-8) - 0.008, 0) + 1e-4) for d in squared]
            similarity = math.sqrt(sum(kernel)) + 0.001
            reward = 0.0 if similarity > 1.2 else 1 / similarity
        self.memory = [*self.memory, embedding][-self.capacity :]
        return reward


def play(embeddings, weight, begins, *, neighbours, places, decay=0.9, most_similar=8.0):
    """Rewards [T, B] of embeddings [T, B, D], with memories as rings that a new episode empties."""
    length, columns, features = embeddings.shape
    memory = torch.full((columns, places, features), 7.0)
    number = torch.zeros(columns, dtype=torch.int64)
    scale, rewards = no_mean_distance(columns), []
    for t in range(length):
        number = number.masked_fill(begins[t], 0)
        reward, scale = episodic_novelty(
            embeddings[t],
            memory,
            number,
            weight[t],
            scale,
            neighbours=neighbours,
            decay=decay,
            most_similar=most_similar,
        )
        rewards.append(reward)
        for b in range(columns):
            if weight[t, b]:
                memory[b, number[b] % places] = embeddings[t, b]
                number[b] += 1
    return torch.stack(rewards), scale


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(1, 4), st.integers(4, 7))
def test_episodic_novelty_equals_a_slow_reference(seed, neighbours, places):
    """Environments begin episodes at other times, fill their rings, repeat themselves and skip steps.

    Mutations: one column's count for all; distances not squared; a scale that stays at its first value or takes in the
    step after it is used; steps without weight that count.
    """
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randint(0, 3, (14, 3, 2), generator=generator).float()
    weight = (torch.rand(14, 3, generator=generator) < 0.85).float()
    begins = torch.rand(14, 3, generator=generator) < 0.15
    got, scale = play(embeddings, weight, begins, neighbours=neighbours, places=places, most_similar=1.2)
    for b in range(3):
        slow = SlowNovelty(neighbours, places, 0.9)
        for t in range(14):
            if begins[t, b]:
                slow.memory = []
            want = slow.reward(embeddings[t, b].tolist()) if weight[t, b] else 0.0
            assert got[t, b].item() == pytest.approx(want, rel=1e-4)
        assert scale.mean[b].item() == pytest.approx(slow.mean, rel=1e-4) and scale.number[b] == slow.steps


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_rewards_do_not_depend_on_the_size_of_embeddings(factor):
    """Mutation: a scale that is never adapted, as one that stays NaN or 1e-4 would be."""
    embeddings = torch.randn(30, 2, 4, generator=torch.Generator().manual_seed(0))
    ones, never = torch.ones(30, 2), torch.zeros(30, 2, dtype=torch.bool)
    want, scale = play(embeddings, ones, never, neighbours=5, places=30)
    got, _ = play(factor * embeddings, ones, never, neighbours=5, places=30)
    assert (want[5:] > 0).all() and scale.mean.isfinite().all() and (scale.mean > 0.01).all()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=0)


def test_what_is_repeated_pays_one_over_root_m_and_what_is_new_the_most():
    """After 10 far states one is seen again and again. Mutation: the query put in before it is asked about."""
    far = 100 * torch.eye(12)
    embeddings = torch.cat([far[:10], far[10].expand(5, 12), far[11:]])[:, None]
    ones = torch.ones(len(embeddings), 1)
    got, _ = play(embeddings, ones, torch.zeros(16, 1, dtype=torch.bool), neighbours=10, places=20)
    got = got[:, 0]
    assert (got[:10] == 0).all(), "no reward before there are k to compare with"
    torch.testing.assert_close(got[11:15], torch.arange(1.0, 5).rsqrt(), rtol=2e-2, atol=0)
    assert got[10] > 20 and got[15] > 20


def test_nearest_in_memories_is_nearest_distances_column_by_column():
    """A ring that is full, one that is not, one that is empty. Mutation: places that hold nothing are looked at."""
    generator = torch.Generator().manual_seed(1)
    embedding, memory = 1e3 + torch.randn(3, 4, generator=generator), 1e3 + torch.randn(3, 6, 4, generator=generator)
    got = nearest_in_memories(embedding, memory, torch.tensor([9, 2, 0]), 3)
    torch.testing.assert_close(got[0], nearest_distances(embedding[:1], memory[0], 3)[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(got[1, :2], nearest_distances(embedding[1:2], memory[1, :2], 3)[0], rtol=1e-5, atol=0)
    assert got[1, 2] == got[2].min() == math.inf
    with pytest.raises(AssertionError, match="neighbours"):
        nearest_in_memories(embedding, memory, torch.zeros(3, dtype=torch.int64), 7)


def test_the_mean_distance_forgets_but_begins_with_the_first():
    """1, then the mean of 1 and 3, then ¼ of 10. Mutation: a rate of 1 − decay from the start; inf taken in."""
    scale = no_mean_distance(2)
    want = [1.0, 2.0, 2.0, 2.0, 2 + 0.25 * 8], [0.0, 0.0, 0.0, 5.0, 5.0]
    steps = [(1.0, math.inf, 1), (3.0, math.inf, 1), (9.0, math.inf, 0), (2.0, 5.0, 1), (10.0, 9.0, 1)]
    decays = [0.5, 0.5, 0.5, 0.75, 0.75]
    for step, ((first, second, weight), decay) in enumerate(zip(steps, decays, strict=True)):
        weights = torch.tensor([weight, 0 if step == 4 else 1])
        scale = add_to_mean_distance(scale, torch.tensor([[first, first], [second, math.inf]]), weights, decay)
        assert scale.mean.tolist() == pytest.approx([want[0][step], want[1][step]])
    assert scale.number.tolist() == [4, 1]
    forever = MeanDistance(torch.tensor([99.0]), torch.tensor([1.0]))
    assert add_to_mean_distance(forever, torch.tensor([[101.0]]), torch.ones(1), 1.0).mean.item() == pytest.approx(2)


def test_ngu_reward_is_the_episodic_one_times_the_modulator():
    """Mean 3, deviation 1: α is −2, 2.5 and 97. Mutation: a sum; no bounds."""
    got = ngu_reward(torch.tensor([0.5, 0.5, 0.2]), torch.tensor([0.0, 4.5, 99.0]), moments_of(2.0, 4.0), 5.0)
    torch.testing.assert_close(got, torch.tensor([0.5, 1.25, 1.0]))
    with pytest.raises(AssertionError, match="shapes differ"):
        ngu_reward(torch.ones(2), torch.ones(1), no_moments())


def test_no_shape_of_novelty_depends_on_data():
    with FakeTensorMode():
        number, weight = torch.ones(3, dtype=torch.int64), torch.ones(3)
        reward, scale = episodic_novelty(
            torch.ones(3, 2), torch.ones(3, 12, 2), number, weight, no_mean_distance(3), neighbours=10
        )
        assert reward.shape == scale.mean.shape == (3,)


def test_forgetting_keeps_mean_and_deviation_and_lets_newer_values_count_for_more():
    """Mutations: the sum of squares left as it was; a number that grows to the most it may be."""
    values = torch.arange(100.0)
    moments = add_to_moments(no_moments(), values, torch.ones(100))
    shorter = forget(moments, 10)
    assert float(shorter.number) == 10 and float(shorter.mean) == float(moments.mean)
    torch.testing.assert_close(deviation(shorter), deviation(moments))
    assert float(add_to_moments(shorter, torch.tensor([149.5]), torch.ones(1)).mean) == pytest.approx(49.5 + 100 / 11)
    few = forget(add_to_moments(no_moments(), values[:3], torch.ones(3)), 10)
    assert float(few.number) == 3 and float(forget(no_moments(), 10).number) == 0
