"""Generalised advantage estimation: by arithmetic, by the paper's sum and product, and with and without ends."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.equations.boundaries import boundaries
from packtrain.equations.gae import endless_gae, gae

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
GAMMA, LAMBDA = 0.5, 0.75  # exact in float32, which boundaries are


def col(*rows):
    return torch.tensor(rows, dtype=torch.float64)[:, None]


def random_stream(seed, length=12, width=4):
    """Values [T+1, B], rewards, flags: episodes end in every way, with fillers, some of them two in a row."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(length + 1, width, dtype=torch.bool)
    terminated, truncated = (torch.zeros(length, width, dtype=torch.bool) for _ in range(2))
    for b in range(width):
        fillers = 0
        for t in range(length):
            if fillers:
                first[t + 1, b], fillers = True, fillers - 1
                continue
            event = torch.rand((), generator=generator).item()
            terminated[t, b] = event < 0.2  # half of these are lost lives: no filler follows
            truncated[t, b] = 0.2 <= event < 0.3
            fillers = (1 + (event < 0.02)) * (event < 0.1 or bool(truncated[t, b]))
    value = torch.randn(length + 1, width, dtype=torch.float64, generator=generator)
    reward = torch.randn(length, width, dtype=torch.float64, generator=generator)
    return value, reward, first, terminated, truncated


def with_ends(value, reward, first, terminated, truncated, trace_lambda=LAMBDA):
    ends = boundaries(first, terminated, truncated, GAMMA)
    return gae(value[:-1], value[1:], reward, *ends, trace_lambda=trace_lambda), ends


def test_advantages_by_arithmetic():
    """Two steps, the second terminates; a filler; a step into the bootstrap value."""
    none = torch.zeros(4, 1, dtype=torch.bool)
    terminated, first = none.clone(), torch.zeros(5, 1, dtype=torch.bool)
    terminated[1] = first[3] = True
    value = col(10, 20, 99, 40, 50)
    got, _ = with_ends(value, col(1, 2, 77, 4), first, terminated, none)
    last = 2 - 20  # terminated: 99 must not leak
    want = col(1 + GAMMA * 20 - 10 + GAMMA * LAMBDA * last, last, 0, 4 + GAMMA * 50 - 40)
    torch.testing.assert_close(got.advantages, want)
    torch.testing.assert_close(got.targets, value[:-1] + want)


def test_a_truncation_bootstraps_from_the_final_observation_and_cuts_the_trace():
    none = torch.zeros(3, 1, dtype=torch.bool)
    truncated, first = none.clone(), torch.zeros(4, 1, dtype=torch.bool)
    truncated[0] = first[2] = True
    got, _ = with_ends(col(10, 20, 30, 40), col(1, 5, 3), first, none, truncated)
    torch.testing.assert_close(got.advantages, col(1 + GAMMA * 20 - 10, 0, 3 + GAMMA * 40 - 30))


def test_a_row_that_does_not_continue_sees_nothing_after_it():
    """Whatever follows, a filler or not. Mutation: continue_t left out of the decay."""
    one = torch.ones(2, 1, dtype=torch.float64)
    got = gae(col(10, 20), col(20, 40), col(1, 2), GAMMA * one, col(0, 1), one, trace_lambda=LAMBDA)
    torch.testing.assert_close(got.advantages, col(1 + GAMMA * 20 - 10, 2 + GAMMA * 40 - 20))


@quick
@given(seeds)
def test_advantages_are_the_papers_sum(seed):
    """Mutation: λ missing from the decay, a discount too much, an off-by-one in v_t."""
    stream = random_stream(seed)
    value, reward = stream[:2]
    got, ends = with_ends(*stream)
    length, width = reward.shape
    want = torch.zeros(length, width, dtype=torch.float64)
    for b in range(width):
        for t in range(length):
            for k in range(t, length):
                product = math.prod(
                    (ends.discount_t[i, b] * LAMBDA * ends.continue_t[i, b]).item() for i in range(t, k)
                )
                delta = reward[k, b] + ends.discount_t[k, b].double() * value[k + 1, b] - value[k, b]
                want[t, b] += product * ends.weight_t[k, b] * delta
            want[t, b] *= ends.weight_t[t, b]
    torch.testing.assert_close(got.advantages, want)
    torch.testing.assert_close(got.targets, value[:-1] + want)


@quick
@given(seeds)
def test_lambda_0_is_one_step_and_lambda_1_is_the_return(seed):
    value, reward = random_stream(seed)[:2]
    none = torch.zeros_like(reward, dtype=torch.bool)
    first = torch.zeros(len(value), reward.shape[1], dtype=torch.bool)
    one_step, _ = with_ends(value, reward, first, none, none, trace_lambda=0.0)
    torch.testing.assert_close(one_step.targets, reward + GAMMA * value[1:])
    whole, _ = with_ends(value, reward, first, none, none, trace_lambda=1.0)
    total = value[-1]
    for t in reversed(range(len(reward))):
        total = reward[t] + GAMMA * total
        torch.testing.assert_close(whole.targets[t], total)


@quick
@given(seeds)
def test_without_ends_fillers_are_as_if_they_were_not_there(seed):
    """Each column with its fillers taken out is one long episode. Mutation: a filler that discounts, or cuts; a last
    step that is followed by the final observation instead of the reset's."""
    value, reward, first, terminated, truncated = random_stream(seed)
    weight = boundaries(first, terminated, truncated, GAMMA).weight_t
    got = endless_gae(value[:-1], value[1:], reward, weight, discount=GAMMA, trace_lambda=LAMBDA)
    for b in range(reward.shape[1]):
        rows = [t for t in range(len(reward)) if weight[t, b]]
        values = [value[t, b].item() for t in rows] + [value[-1, b].item()]
        for n, t in enumerate(rows):
            want = sum(
                (GAMMA * LAMBDA) ** (k - n) * (reward[rows[k], b].item() + GAMMA * values[k + 1] - values[k])
                for k in range(n, len(rows))
            )
            assert got.advantages[t, b].item() == pytest.approx(want, abs=1e-9)
            assert got.targets[t, b].item() == pytest.approx(values[n] + want, abs=1e-9)
    assert (got.advantages[weight == 0] == 0).all()


def test_fillers_may_hold_anything():
    """Mutation: 0 · NaN instead of a mask."""
    value, reward, first, terminated, truncated = random_stream(3, length=40)
    weight = boundaries(first, terminated, truncated, GAMMA).weight_t
    assert (weight == 0).any()
    reward[weight == 0] = math.nan
    got, _ = with_ends(value, reward, first, terminated, truncated)
    endless = endless_gae(value[:-1], value[1:], reward, weight, discount=GAMMA)
    for leaf in (*got, *endless):
        assert leaf.shape == (40, 4) and leaf.isfinite().all()


def test_unequal_shapes_are_refused():
    one, other = torch.zeros(3, 2), torch.zeros(3, 2, 1)
    with pytest.raises(AssertionError, match="shapes differ"):
        gae(one, one, other, one, one, one)
    with pytest.raises(AssertionError, match="shapes differ"):
        endless_gae(one, one, other, one, discount=0.9)
