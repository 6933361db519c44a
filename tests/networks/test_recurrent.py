"""ResettingLSTM against a loop over time that zeroes the state before every first row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.networks.recurrent import ResettingLSTM

INPUTS, HIDDEN = 3, 4


def slow(module, inputs, first, carry):
    """The contract, row by row: specs/impala.md section 4."""
    h, c = (state.transpose(0, 1).contiguous() for state in carry)  # [layers, B, hidden]
    outputs = []
    for t in range(len(inputs)):
        keep = (~first[t]).to(h.dtype).view(1, -1, 1)
        output, (h, c) = module.lstm(inputs[t : t + 1], (h * keep, c * keep))
        outputs.append(output[0])
    return torch.stack(outputs), (h.transpose(0, 1), c.transpose(0, 1))


def case(seed, steps, batch, layers, resets, first_row=None):
    """A module, inputs, firsts and a carry that is not zero, all in float64."""
    torch.manual_seed(seed)
    module = ResettingLSTM(INPUTS, HIDDEN, layers).double()
    inputs = torch.randn(steps, batch, INPUTS, dtype=torch.float64, requires_grad=True)
    first = torch.rand(steps, batch) < resets
    if first_row is not None:
        first[0] = first_row
    carry = tuple(torch.randn(batch, layers, HIDDEN, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return module, inputs, first, carry


def assert_same(module, inputs, first, carry):
    """Outputs, the carry after the last row, and the gradients of everything that goes in."""
    leaves = [inputs, *carry, *module.parameters()]
    results = []
    for run in (module, lambda *args: slow(module, *args)):
        output, after = run(inputs, first, carry)
        assert output.shape == (*first.shape, HIDDEN)
        assert [state.shape for state in after] == [state.shape for state in carry]
        weights = torch.linspace(0.5, 2, output.numel(), dtype=torch.float64).view_as(output)
        total = (output * weights).sum() + (2 * after[0]).sum() + (3 * after[1]).sum()
        results.append((output, *after, *torch.autograd.grad(total, leaves, allow_unused=True)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 9),
    batch=st.integers(1, 5),
    layers=st.integers(1, 3),
    resets=st.sampled_from([0.0, 0.15, 0.5, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_loop_over_time(seed, steps, batch, layers, resets):
    """Mutations: segments in row-major order, the wrong last segment, a carry given to a later segment."""
    assert_same(*case(seed, steps, batch, layers, resets))


@pytest.mark.parametrize("first_row", [False, True, [True, False, True]], ids=["kept", "forgotten", "mixed"])
@pytest.mark.parametrize("resets", [0.0, 0.4], ids=["no resets after", "resets after"])
def test_row_zero_may_be_a_reset(first_row, resets):
    """Mutation: without the mask of row 0 the carry of the last episode leaks into the next."""
    assert_same(*case(1, steps=6, batch=3, layers=2, resets=resets, first_row=torch.as_tensor(first_row)))


@pytest.mark.parametrize("resets", [0.0, 0.4], ids=["no resets", "resets"])
def test_one_row_at_a_time_is_all_at_once(resets):
    """What an actor does is what the learner sees."""
    module, inputs, first, carry = case(2, steps=12, batch=4, layers=2, resets=resets)
    output, after = module(inputs, first, carry)
    for t in range(12):
        row, carry = module(inputs[t : t + 1], first[t : t + 1], carry)
        torch.testing.assert_close(row[0], output[t], rtol=1e-9, atol=1e-11)
    for state, want in zip(carry, after, strict=True):
        torch.testing.assert_close(state, want, rtol=1e-9, atol=1e-11)


def test_first_rows_forget_and_others_do_not():
    """A negative control beside the claim: the carry matters exactly in the columns whose row 0 is not a first."""
    module, inputs, _, carry = case(3, steps=4, batch=2, layers=1, resets=0)
    first = torch.zeros(4, 2, dtype=torch.bool)
    first[0, 0] = True
    output, _ = module(inputs, first, carry)
    other, _ = module(inputs, first, tuple(state + 1 for state in carry))
    assert torch.equal(output[:, 0], other[:, 0])
    assert not torch.isclose(output[:, 1], other[:, 1]).any()


def test_nothing_before_a_reset_is_seen_after_it():
    module, inputs, _, carry = case(4, steps=5, batch=2, layers=2, resets=0)
    first = torch.zeros(5, 2, dtype=torch.bool)
    first[3, 1] = True
    output, _ = module(inputs, first, carry)
    changed = inputs.detach().clone()
    changed[:3] += 1
    other, _ = module(changed, first, carry)
    assert torch.equal(output[3:, 1], other[3:, 1])
    assert not torch.isclose(output[3:, 0], other[3:, 0]).any()


def test_columns_do_not_mix():
    """Mutation: a permutation of segments that is not undone. Permuting the columns permutes the result."""
    module, inputs, first, carry = case(5, steps=8, batch=5, layers=2, resets=0.3)
    order = torch.tensor([3, 0, 4, 1, 2])
    output, after = module(inputs, first, carry)
    permuted, permuted_after = module(inputs[:, order], first[:, order], tuple(state[order] for state in carry))
    torch.testing.assert_close(permuted, output[:, order], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(permuted_after[1], after[1][order], rtol=1e-9, atol=1e-11)


def test_the_initial_carry_is_zero_and_batch_first():
    carry = ResettingLSTM(INPUTS, HIDDEN, 2).initial_carry(5)
    assert [state.shape for state in carry] == [(5, 2, HIDDEN)] * 2
    assert not any(state.any() for state in carry)


def test_the_carry_given_is_not_changed():
    module, inputs, first, carry = case(6, steps=4, batch=3, layers=1, resets=0.5, first_row=True)
    before = [state.clone() for state in carry]
    module(inputs, first, carry)
    assert all(torch.equal(state, kept) for state, kept in zip(carry, before, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_padding_before_a_reset_needs_no_cut(seed):
    """Mutations: the flag of the reset's own row, the forget gate alone, a gate not closed."""
    torch.manual_seed(seed)
    module = ResettingLSTM(INPUTS, HIDDEN).double()
    steps, batch = 7, 4
    inputs = torch.randn(steps, batch, INPUTS, dtype=torch.float64, requires_grad=True)
    first = torch.zeros(steps, batch, dtype=torch.bool)
    first[[0, 2, steps - 1], [0, 1, 2]] = True  # at the beginning, in the middle, in the last row; column 3 has none
    carry = tuple(torch.randn(batch, 1, HIDDEN, dtype=torch.float64, requires_grad=True) for _ in range(2))
    valid = torch.stack([~first[t + 1 :].any(0) for t in range(steps)])
    leaves = [inputs, *carry, *module.parameters()]
    results = []
    for run in (lambda *args: module(*args, padded=True), lambda *args: slow(module, *args)):
        output, after = run(inputs, first, carry)
        output = output * valid.unsqueeze(-1)
        total = (output * torch.linspace(0.5, 2, output.numel()).view_as(output)).sum() + after[1].square().sum()
        results.append((output, *after, *torch.autograd.grad(total, leaves)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
