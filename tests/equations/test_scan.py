"""The log-step scan against the loop anyone would write."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from packtrain.equations.scan import reverse_linear_scan


def looped_scan(x, decay):
    """The slow obvious twin."""
    y, rows = torch.zeros_like(x[0]), []
    for t in reversed(range(len(x))):
        y = x[t] + decay[t] * y
        rows.append(y)
    return torch.stack(rows[::-1])


def test_each_row_adds_the_decayed_rest():
    x = torch.tensor([[1.0], [10.0], [100.0]])
    decay = torch.tensor([[0.5], [0.25], [7.0]])
    want = torch.tensor(
        [
            [1 + 0.5 * 10 + 0.5 * 0.25 * 100],
            [10 + 0.25 * 100],
            [100.0],  # nothing past the end for the 7 to act on
        ]
    )
    torch.testing.assert_close(reverse_linear_scan(x, decay), want)


@settings(max_examples=80, deadline=None)
@given(
    length=st.integers(1, 70),
    trailing=st.sampled_from([(), (1,), (3,), (2, 3)]),
    seed=st.integers(0, 2**31),
)
def test_equals_the_loop(length, trailing, seed):
    """Catches a wrong span, a product one factor short, and lengths that are not powers of two."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, *trailing, dtype=torch.float64, generator=generator)
    decay = torch.randn(length, *trailing, dtype=torch.float64, generator=generator)
    decay[torch.rand(decay.shape, generator=generator) < 0.2] = 0.0
    got = reverse_linear_scan(x, decay)
    assert got.shape == x.shape
    torch.testing.assert_close(got, looped_scan(x, decay))


def test_vanishing_products_stay_exact():
    """Catches the cumprod-and-divide form: 1e-30 over 64 rows underflows, and 0 / 0 is NaN."""
    x = torch.arange(64.0)
    decay = torch.full((64,), 1e-30)
    decay[10] = 0.0
    torch.testing.assert_close(reverse_linear_scan(x, decay), looped_scan(x, decay), rtol=0, atol=0)


def test_inputs_are_left_alone():
    """Catches an in-place update of the running sums."""
    x, decay = torch.ones(5, 2), torch.full((5, 2), 0.5)
    reverse_linear_scan(x, decay)
    assert (x == 1).all() and (decay == 0.5).all()


def test_gradients_reach_both_arguments():
    """Catches a detach, and an in-place step that autograd would refuse."""
    x, decay = (torch.randn(6, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(reverse_linear_scan, (x, decay))


def test_work_grows_with_the_logarithm_of_time():
    """Catches a Python loop over T: 1024 rows take 10 doublings."""

    class Counter(TorchFunctionMode):
        joins = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.joins += func in (torch.Tensor.mul, torch.mul)
            return func(*args, **(kwargs or {}))

    x = torch.ones(1024, 1)
    with Counter() as counter:
        y = reverse_linear_scan(x, x)
    assert y[0].item() == 1024
    assert 10 <= counter.joins <= 20  # two products a doubling


def test_unequal_shapes_are_refused():
    with pytest.raises(AssertionError, match="shapes differ"):
        reverse_linear_scan(torch.ones(3, 2), torch.ones(3, 1))
