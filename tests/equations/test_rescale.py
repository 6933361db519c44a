"""Value rescaling: by arithmetic, and that the inverse is one, from the smallest values to the largest."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.equations.rescale import rescale, unrescale

quick = settings(max_examples=100, deadline=None)
values = st.floats(-1e6, 1e6)


def test_by_arithmetic():
    """Mutation: no ε; and for the inverse, a missing square: h⁻¹(2.3266) would be 2.3166."""
    x = torch.tensor([0.0, 3.0, 10.0, 100.0, -8.0], dtype=torch.float64)
    h = [0.0, 1 + 0.003, math.sqrt(11) - 1 + 0.01, math.sqrt(101) - 1 + 0.1, -2 - 0.008]
    torch.testing.assert_close(rescale(x), torch.tensor(h, dtype=torch.float64))
    torch.testing.assert_close(unrescale(torch.tensor(h, dtype=torch.float64)), x)
    assert rescale(x)[2].item() == pytest.approx(2.3266, abs=1e-4)


@quick
@given(values, st.sampled_from([0.0, 1e-3, 1e-2, 0.5]))
def test_the_printed_formulas_are_what_is_computed(x, epsilon):
    """From the docstrings. The printed inverse needs ε > 0 and loses small values even in float64."""
    y = math.copysign(math.sqrt(abs(x) + 1) - 1, x) + epsilon * x
    got = rescale(torch.tensor(x, dtype=torch.float64), epsilon)
    torch.testing.assert_close(got.item(), y, rtol=1e-9, atol=1e-12)
    if epsilon:
        root = (math.sqrt(1 + 4 * epsilon * (abs(y) + 1 + epsilon)) - 1) / (2 * epsilon)
        printed = math.copysign(root**2 - 1, y)
        got = unrescale(torch.tensor(y, dtype=torch.float64), epsilon)
        torch.testing.assert_close(got.item(), printed, rtol=1e-7, atol=1e-7)


@quick
@given(st.floats(-30, 30), st.sampled_from([-1.0, 1.0]), st.sampled_from([0.0, 1e-3, 0.1]))
def test_the_inverse_is_one_at_every_size(exponent, sign, epsilon):
    """From 1e-30 to 1e30. Mutation: the printed inverse, which in float32 gives 0 below 1e-4."""
    x = torch.tensor(sign * 10**exponent, dtype=torch.float64)
    torch.testing.assert_close(unrescale(rescale(x, epsilon), epsilon), x, rtol=1e-13, atol=0)
    torch.testing.assert_close(rescale(unrescale(x, epsilon), epsilon), x, rtol=1e-13, atol=0)
    single = x.float()
    torch.testing.assert_close(unrescale(rescale(single, epsilon), epsilon), single, rtol=2e-6, atol=0)


@quick
@given(values, values)
def test_odd_and_increasing(a, b):
    """Mutation: abs without the sign."""
    a, b = (torch.tensor(x, dtype=torch.float64) for x in (a, b))
    for function in (rescale, unrescale):
        assert function(-a) == -function(a)
        assert function(torch.zeros(3)).eq(0).all()
        if a < b:
            assert function(a) < function(b) or b - a < 1e-9
    assert rescale(a).abs() <= a.abs()


def test_slopes():
    """½ + ε at 0 and 1 / (½ + ε) back: no NaN where the sign changes."""
    for function, slope in ((rescale, 0.501), (unrescale, 1 / 0.501)):
        x = torch.zeros((), dtype=torch.float64, requires_grad=True)
        function(x).backward()
        assert x.grad.item() == pytest.approx(slope)
    points = torch.tensor([-50.0, -0.3, 0.2, 7.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rescale, (points,)) and torch.autograd.gradcheck(unrescale, (points,))
