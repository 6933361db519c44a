"""Targets of action values: by arithmetic, by the papers' sums and products, and by what must hold for any stream."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from packtrain.equations.boundaries import boundaries
from packtrain.equations.q_learning import (
    action_value,
    combined_q,
    epsilon_greedy_policy,
    greedy_value,
    n_step_q_targets,
    peng_q_targets,
    retrace_q_targets,
    sequence_losses,
    td_errors,
)

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
rescalings = st.sampled_from([None, 1e-3, 0.1])
ROWS = ("r_t", "discount_t", "continue_t", "weight_t")


def col(*rows):
    return torch.tensor(rows, dtype=torch.float64)[:, None]


def one_action(*rows):
    """Values [T+1, 1, 1] of a single action: the greedy one."""
    return col(*rows)[:, :, None]


def h(x, epsilon):
    return x if epsilon is None else math.copysign(math.sqrt(abs(x) + 1) - 1, x) + epsilon * x


def inverse_h(y, epsilon):
    if epsilon is None:
        return y
    return math.copysign(((math.sqrt(1 + 4 * epsilon * (abs(y) + 1 + epsilon)) - 1) / (2 * epsilon)) ** 2 - 1, y)


def random_stream(seed, length, width, actions=3):
    """Streams whose episodes end in every way, also without a filler behind; NaN rewards in filler rows."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(length + 1, width, dtype=torch.bool)
    terminated, truncated = (torch.zeros(length, width, dtype=torch.bool) for _ in range(2))
    for b in range(width):
        over = False
        for t in range(length):
            if over:
                first[t + 1, b], over = True, False
                continue
            event = torch.rand((), generator=generator).item()
            terminated[t, b] = event < 0.2  # half of these are lost lives: no filler follows
            truncated[t, b] = 0.2 <= event < 0.35
            over = event < 0.1 or bool(truncated[t, b])
    ends = boundaries(first, terminated, truncated, 0.9)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    return {
        "q_online": draw(length + 1, width, actions),
        "q_target": 3 * draw(length + 1, width, actions),
        "a_tm1": torch.randint(actions, (length, width), generator=generator),
        "behaviour_prob_tm1": torch.rand(length, width, dtype=torch.float64, generator=generator),
        "r_t": draw(length, width).masked_fill(ends.weight_t == 0, math.nan),
        "discount_t": ends.discount_t.double(),
        "continue_t": ends.continue_t.double() * (torch.rand(length, width, generator=generator) < 0.85),
        "weight_t": ends.weight_t.double(),
    }


def without_policy(stream):
    return {name: value for name, value in stream.items() if name not in ("a_tm1", "behaviour_prob_tm1")}


def value_of(stream, row, b, double, rescaling):
    """h⁻¹ of Q' in the greedy action of a row."""
    ranked = stream["q_online" if double else "q_target"][row, b].tolist()
    return inverse_h(stream["q_target"][row, b].tolist()[ranked.index(max(ranked))], rescaling)


def n_step_by_hand(stream, t, b, n, double, rescaling):
    """The docstring's sum: walks forward until n rewards are summed or something ends."""
    total, power, m = 0.0, 1.0, 0
    while True:
        total += power * stream["r_t"][t + m, b].item()
        power *= stream["discount_t"][t + m, b].item()
        ended = stream["continue_t"][t + m, b] == 0
        m += 1
        if m == n or ended or t + m == len(stream["r_t"]):
            break
    return total + (power * value_of(stream, t + m, b, double, rescaling) if power else 0.0)


def every_step(stream):
    length, width = stream["r_t"].shape
    return [(t, b) for t in range(length) for b in range(width) if stream["weight_t"][t, b] == 1]


def assert_targets(got, want, stream):
    """Filler rows are 0, all others as wanted."""
    assert got.shape == stream["r_t"].shape and not got.requires_grad
    assert (got[stream["weight_t"] == 0] == 0).all()
    for t, b in every_step(stream):
        assert got[t, b].item() == pytest.approx(want(t, b), rel=1e-6, abs=1e-6)


# By arithmetic.


def test_n_step_sums_are_cut_at_ends_and_bootstrap_from_the_right_row():
    """n = 2 over a termination, a truncation and the end. Mutations: 99 or 1000 leak; the last n − 1 rows lost."""
    q = one_action(70, 80, 99, 20, 30, 40, 50)
    got = n_step_q_targets(
        q,
        q,
        r_t=col(1, 2, 1000, 4, 5, 6),
        discount_t=col(0.5, 0, 0.5, 0.5, 0.5, 0.5),
        continue_t=col(1, 0, 0, 1, 1, 1),
        weight_t=torch.ones(6, 1),
        n=2,
    )
    want = col(
        1 + 0.5 * 2,  # terminated in the second step: no bootstrap
        2,  # terminated: 99 must not leak
        1000 + 0.5 * 20,  # truncated after one step: the row it led to
        4 + 0.5 * 5 + 0.25 * 40,
        5 + 0.5 * 6 + 0.25 * 50,  # the last row there is
        6 + 0.5 * 50,  # one step left
    )
    torch.testing.assert_close(got, want)


def test_double_values_the_online_choice_by_the_target_network():
    """Mutation: the networks exchanged; a max over the target network, which is the plain case."""
    q_online = torch.tensor([[[0.0, 0.0]], [[1.0, 2.0]]])
    q_target = torch.tensor([[[0.0, 0.0]], [[30.0, 10.0]]])
    rows = {name: torch.ones(1, 1) for name in ROWS}
    assert n_step_q_targets(q_online, q_target, **rows, n=1).item() == 1 + 10
    assert n_step_q_targets(q_online, q_target, **rows, n=1, double=False).item() == 1 + 30
    assert peng_q_targets(q_online, q_target, **rows, trace_lambda=0.5).item() == 1 + 10
    assert peng_q_targets(q_online, q_target, **rows, trace_lambda=0.5, double=False).item() == 1 + 30
    policy = {"a_tm1": torch.zeros(1, 1, dtype=torch.int64), "behaviour_prob_tm1": torch.ones(1, 1)}
    assert retrace_q_targets(q_online, q_target, **policy, **rows).item() == 1 + 10
    assert retrace_q_targets(q_online, q_target, **policy, **rows, double=False).item() == 1 + 30
    half = retrace_q_targets(q_online, q_target, **policy, **rows, target_epsilon=0.5).item()
    assert half == 1 + 0.75 * 10 + 0.25 * 30


def test_rescaled_returns_are_summed_in_units_of_rewards():
    """Q' = h(100). Mutation: rewards added to squashed values."""
    squashed = h(100.0, 1e-3)
    q, ones = one_action(0, 0, squashed), torch.ones(2, 1)
    got = n_step_q_targets(q, q, col(1, 2), 0.5 * ones.double(), ones, ones, n=2, rescaling=1e-3)
    torch.testing.assert_close(got, col(h(1 + 0.5 * 2 + 0.25 * 100, 1e-3), h(2 + 0.5 * 100, 1e-3)))


def test_retrace_weighs_a_step_by_the_action_after_it():
    """Row 1's action had μ = 0.8 and is greedy, row 2's is not. Mutation: c of the row itself; no min(1, ·)."""
    q = torch.tensor([[[5.0, 0.0]], [[6.0, 0.0]], [[7.0, 1.0]], [[8.0, 0.0]]], dtype=torch.float64)
    got = retrace_q_targets(
        q,
        q,
        a_tm1=torch.tensor([[1], [0], [1]]),
        behaviour_prob_tm1=col(0.2, 0.8, 0.2),
        r_t=col(1, 2, 4),
        discount_t=col(0.5, 0.5, 0.5),
        continue_t=col(1, 1, 1),
        weight_t=col(1, 1, 1),
        trace_lambda=0.5,
    )
    errors = 1 + 0.5 * 6 - 0, 2 + 0.5 * 7 - 6, 4 + 0.5 * 8 - 1
    want = col(
        0 + errors[0] + 0.5 * (0.5 * 1) * errors[1],  # then the trace ends
        6 + errors[1],
        1 + errors[2],
    )
    torch.testing.assert_close(got, want)


def test_peng_mixes_bootstrap_and_return():
    """Mutation: the last row's bootstrap times 1 − λ."""
    q, ones = one_action(0, 10, 20), col(1, 1)
    got = peng_q_targets(q, q, col(1, 2), 0.5 * ones, ones, ones, trace_lambda=0.75)
    last = 2 + 0.5 * 20
    torch.testing.assert_close(got, col(1 + 0.5 * (0.25 * 10 + 0.75 * last), last))


def test_td_errors_and_losses():
    """Column 1 has one valid step. Mutations: a mean over T; NaN from a filler; the sign; gradient into targets."""
    q = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]], [[9.0, 9.0], [9.0, 9.0]]], requires_grad=True)
    action = torch.tensor([[1, 0], [0, 1]])
    targets = torch.tensor([[4.0, 2.0], [8.0, math.nan]], requires_grad=True)
    weight = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    error = td_errors(q, action, targets, weight)
    torch.testing.assert_close(error, torch.tensor([[2.0, -1.0], [3.0, 0.0]]))
    loss = sequence_losses(error, weight)
    torch.testing.assert_close(loss, torch.tensor([(0.5 * 4 + 0.5 * 9) / 2, 0.5]))
    clipped = sequence_losses(error, weight, huber=1.0)
    torch.testing.assert_close(clipped, torch.tensor([(1.5 + 2.5) / 2, 0.5]))
    loss.sum().backward()
    assert targets.grad is None
    want = torch.zeros_like(q)
    want[0, 0, 1], want[1, 0, 0], want[0, 1, 0] = -1.0, -1.5, 1.0
    torch.testing.assert_close(q.grad, want)
    assert sequence_losses(error, torch.zeros_like(weight)).tolist() == [0, 0]
    torch.testing.assert_close(td_errors(q[:2], action, targets, weight), error)


def test_policies_and_values():
    """A tie goes to the first. Mutation: ε shared among the other actions only."""
    q = torch.tensor([[1.0, 3.0, 3.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    want = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])
    torch.testing.assert_close(epsilon_greedy_policy(q, torch.tensor([0.4, 1.0])), want)
    torch.testing.assert_close(epsilon_greedy_policy(q, 0.4)[0], want[0])
    assert action_value(q, torch.tensor([3, 0])).tolist() == [0, 9]
    assert greedy_value(10 * q, -q).tolist() == [0, 0]


def test_combined_values():
    """β of each row. Mutation: squashed values added."""
    extrinsic, intrinsic = torch.tensor([[2.0], [-1.0]]).double(), torch.tensor([[3.0], [4.0]]).double()
    beta = torch.tensor([0.0, 0.3], dtype=torch.float64)
    torch.testing.assert_close(combined_q(extrinsic, intrinsic, beta), col(2.0, -1 + 0.3 * 4))
    got = combined_q(extrinsic, intrinsic, beta, rescaling=1e-3)
    mixed = inverse_h(-1.0, 1e-3) + 0.3 * inverse_h(4.0, 1e-3)
    torch.testing.assert_close(got, col(2.0, h(mixed, 1e-3)))


# By brute force.


@quick
@given(seeds, st.integers(1, 9), st.integers(1, 6), st.booleans(), rescalings)
def test_n_step_equals_the_sum_walked_forward(seed, length, n, double, rescaling):
    """Termination at every offset, truncation, windows shorter than n. Mutation: γ looked up in the first row only."""
    stream = random_stream(seed, length, 3)
    got = n_step_q_targets(**without_policy(stream), n=n, double=double, rescaling=rescaling)
    assert_targets(got, lambda t, b: h(n_step_by_hand(stream, t, b, n, double, rescaling), rescaling), stream)


@quick
@given(seeds, st.integers(1, 9), st.floats(0, 1), st.booleans(), rescalings)
def test_peng_is_the_geometric_mean_of_n_step_returns(seed, length, trace_lambda, double, rescaling):
    """Σ (1 − λ) λ^(n−1) of the n-step returns, the longest taking the rest. Mutation: λ outliving an episode."""
    stream = random_stream(seed, length, 2)

    def want(t, b):
        longest = 1
        while stream["continue_t"][t + longest - 1, b] == 1 and t + longest < length:
            longest += 1
        weights = [(1 - trace_lambda) * trace_lambda ** (n - 1) for n in range(1, longest)]
        weights.append(trace_lambda ** (longest - 1))
        assert sum(weights) == pytest.approx(1)
        returns = [n_step_by_hand(stream, t, b, n + 1, double, rescaling) for n in range(longest)]
        return h(sum(w * g for w, g in zip(weights, returns, strict=True)), rescaling)

    got = peng_q_targets(**without_policy(stream), trace_lambda=trace_lambda, double=double, rescaling=rescaling)
    assert_targets(got, want, stream)


@quick
@given(seeds, st.integers(1, 9), st.floats(0, 1), st.sampled_from([0.0, 0.3]), st.booleans(), rescalings)
def test_retrace_equals_the_papers_sum(seed, length, trace_lambda, epsilon, double, rescaling):
    """Sum and product written out, O(T²). Mutation: q_online in the place of Q' for q(x_t, a_t)."""
    stream = random_stream(seed, length, 2)
    actions = stream["q_online"].shape[-1]

    def policy(row, b, action):
        ranked = stream["q_online" if double else "q_target"][row, b].tolist()
        return epsilon / actions + (1 - epsilon) * (action == ranked.index(max(ranked)))

    def q(row, b, action):
        return inverse_h(stream["q_target"][row, b, action].item(), rescaling)

    def want(t, b):
        total = q(t, b, stream["a_tm1"][t, b].item())
        product = 1.0
        for s in range(t, length):
            if s > t:
                action, behaviour = stream["a_tm1"][s, b].item(), stream["behaviour_prob_tm1"][s, b].item()
                product *= stream["discount_t"][s - 1, b].item() * trace_lambda
                product *= min(1.0, policy(s, b, action) / behaviour)
            expected = sum(policy(s + 1, b, a) * q(s + 1, b, a) for a in range(actions))
            delta = stream["r_t"][s, b].item() + stream["discount_t"][s, b].item() * expected
            total += product * (delta - q(s, b, stream["a_tm1"][s, b].item()))
            if stream["continue_t"][s, b] == 0:
                break
        return h(total, rescaling)

    got = retrace_q_targets(
        **stream, trace_lambda=trace_lambda, target_epsilon=epsilon, double=double, rescaling=rescaling
    )
    assert_targets(got, want, stream)


# By properties.


@quick
@given(seeds, st.integers(1, 9), rescalings)
def test_without_traces_all_three_are_one_step(seed, length, rescaling):
    stream = random_stream(seed, length, 3)
    one = n_step_q_targets(**without_policy(stream), n=1, rescaling=rescaling)
    peng = peng_q_targets(**without_policy(stream), trace_lambda=0.0, rescaling=rescaling)
    torch.testing.assert_close(peng, one)
    torch.testing.assert_close(retrace_q_targets(**stream, trace_lambda=0.0, rescaling=rescaling), one)
    longest = n_step_q_targets(**without_policy(stream), n=length + 3, rescaling=rescaling)
    torch.testing.assert_close(peng_q_targets(**without_policy(stream), trace_lambda=1.0, rescaling=rescaling), longest)


@quick
@given(seeds, st.integers(1, 9), rescalings)
def test_retrace_of_greedy_actions_is_peng(seed, length, rescaling):
    """Where every action is greedy by π and the networks agree, nothing is to be corrected."""
    stream = random_stream(seed, length, 3)
    stream["q_online"] = stream["q_target"]
    stream["a_tm1"] = stream["q_target"][:-1].argmax(-1)
    stream["behaviour_prob_tm1"] = torch.ones_like(stream["behaviour_prob_tm1"])
    got = retrace_q_targets(**stream, trace_lambda=0.8, rescaling=rescaling)
    want = peng_q_targets(**without_policy(stream), trace_lambda=0.8, rescaling=rescaling)
    torch.testing.assert_close(got, want)


@quick
@given(seeds, st.integers(1, 5), rescalings)
def test_a_collapsed_transition_is_a_sequence_of_one(seed, n, rescaling):
    """n rewards summed beforehand, their discounts multiplied. The rows between do not matter."""
    stream = without_policy(random_stream(seed, n, 4))
    stream["continue_t"], stream["weight_t"] = torch.ones(n, 4), torch.ones(n, 4)
    stream["r_t"] = stream["r_t"].nan_to_num(1.0)
    want = n_step_q_targets(**stream, n=n, rescaling=rescaling)[:1]
    before = torch.cat([torch.ones(1, 4), stream["discount_t"].cumprod(0)[:-1]])
    ones = torch.ones(1, 4)
    got = n_step_q_targets(
        stream["q_online"][[0, -1]],
        stream["q_target"][[0, -1]],
        (before * stream["r_t"]).sum(0, keepdim=True),
        stream["discount_t"].prod(0, keepdim=True),
        ones,
        ones,
        n=1,
        rescaling=rescaling,
    )
    torch.testing.assert_close(got, want)


def all_three(stream):
    return [
        n_step_q_targets(**without_policy(stream), n=3, rescaling=1e-3),
        peng_q_targets(**without_policy(stream), trace_lambda=0.9, rescaling=1e-3),
        retrace_q_targets(**stream, rescaling=1e-3, target_epsilon=0.1),
    ]


@quick
@given(seeds, st.integers(2, 9), st.integers(1, 4))
def test_padding_contributes_nothing_whatever_it_holds(seed, length, padding):
    """A short sequence filled up to a longer one with NaN in everything. Mutation: no mask before the scan."""
    stream = random_stream(seed, length, 2)
    want = all_three(stream)
    padded = {}
    for name, value in stream.items():
        waste = torch.zeros(padding, *value.shape[1:], dtype=value.dtype)
        if name not in ("a_tm1", "continue_t", "discount_t", "weight_t"):
            waste = waste + math.nan
        padded[name] = torch.cat([value, waste])
    padded["continue_t"][length - 1] = 0
    for got, short in zip(all_three(padded), want, strict=True):
        torch.testing.assert_close(got[:length], short)
        assert (got[length:] == 0).all()


@quick
@given(seeds, st.permutations(range(4)))
def test_permuting_columns_permutes_the_result(seed, order):
    stream = random_stream(seed, 7, 4)
    permuted = all_three({name: value[:, order] for name, value in stream.items()})
    for got, want in zip(permuted, all_three(stream), strict=True):
        torch.testing.assert_close(got, want[:, order])


def test_what_comes_after_a_termination_may_be_anything():
    """Values of NaN where nothing is bootstrapped from. Mutation: NaN times a discount of 0."""
    rows = {"r_t": col(1, 2), "discount_t": col(0.5, 0), "continue_t": col(1, 0), "weight_t": col(1, 1)}
    q = one_action(5, 6, math.nan)
    policy = {"a_tm1": torch.zeros(2, 1, dtype=torch.int64), "behaviour_prob_tm1": col(1, 1)}
    want = col(1 + 0.5 * 2, 2)
    torch.testing.assert_close(n_step_q_targets(q, q, **rows, n=3), want)
    torch.testing.assert_close(peng_q_targets(q, q, **rows, trace_lambda=1.0), want)
    torch.testing.assert_close(retrace_q_targets(q, q, **policy, **rows, trace_lambda=1.0), want)


@pytest.mark.parametrize("rescaling", [None, 1e-3])
def test_illegal_actions_may_be_valued_minus_infinity(rescaling):
    """A greedy policy never takes them. Mutation: 0 · inf in the expectation."""
    stream = random_stream(5, 8, 3)
    legal = all_three(stream)[:2]
    for name in ("q_online", "q_target"):
        stream[name] = torch.cat([stream[name], torch.full((9, 3, 1), -math.inf)], -1)
    torch.testing.assert_close(all_three(stream)[:2], legal)
    assert retrace_q_targets(**stream, rescaling=rescaling).isfinite().all()


def test_an_action_of_no_probability_does_not_break_a_trace():
    """μ = 0, from a policy that has changed or was rounded. Mutation: 0 / 0."""
    stream = random_stream(3, 8, 3)
    stream["behaviour_prob_tm1"] = torch.zeros_like(stream["behaviour_prob_tm1"])
    assert retrace_q_targets(**stream).isfinite().all()


def test_no_shape_depends_on_data():
    """A captured graph must not wait for values. Mutation: an index by a mask, or .item()."""
    real = random_stream(0, 5, 3)
    with FakeTensorMode() as mode:
        stream = {name: mode.from_tensor(value) for name, value in real.items()}
        for targets in all_three(stream):
            error = td_errors(stream["q_online"], stream["a_tm1"], targets, stream["weight_t"])
            assert sequence_losses(error, stream["weight_t"], huber=1.0).shape == (3,)


@pytest.mark.parametrize("name", ["q_online", "q_target", *ROWS, "a_tm1", "behaviour_prob_tm1"])
def test_shapes_that_would_broadcast_are_refused(name):
    stream = random_stream(0, 4, 3)
    stream[name] = stream[name][:, :1]
    with pytest.raises(AssertionError, match="shapes differ|one row more"):
        retrace_q_targets(**stream)
    if name in without_policy(stream):
        with pytest.raises(AssertionError, match="shapes differ|one row more"):
            n_step_q_targets(**without_policy(stream), n=2)
        with pytest.raises(AssertionError, match="shapes differ|one row more"):
            peng_q_targets(**without_policy(stream), trace_lambda=0.5)


def test_a_row_for_bootstrapping_must_be_there():
    stream = without_policy(random_stream(0, 4, 3))
    stream["q_online"], stream["q_target"] = stream["q_online"][:-1], stream["q_target"][:-1]
    with pytest.raises(AssertionError, match="one row more"):
        n_step_q_targets(**stream, n=2)
