"""The three losses: values, analytic gradients, and rows that do not count."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.equations.losses import baseline_loss, entropy_loss, policy_gradient_loss

T, B, A = 3, 2, 4


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


WEIGHT = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
SCALE = {"sum": 1.0, "mean": 1 / 4}  # four of the six rows count


def test_values_by_arithmetic():
    weight = torch.tensor([[1.0], [0.0], [1.0]])
    log_prob, advantages = torch.tensor([[-1.0], [-50.0], [-2.0]]), torch.tensor([[3.0], [70.0], [-5.0]])
    assert policy_gradient_loss(log_prob, advantages, weight, "sum").item() == 1 * 3 + 2 * -5
    assert policy_gradient_loss(log_prob, advantages, weight, "mean").item() == (1 * 3 + 2 * -5) / 2
    targets, values = torch.tensor([[1.0], [9.0], [4.0]]), torch.tensor([[3.0], [0.0], [1.0]])
    assert baseline_loss(targets, values, weight, "sum").item() == 0.5 * (2**2 + 3**2)
    assert baseline_loss(targets, values, weight, "mean").item() == 0.5 * (2**2 + 3**2) / 2
    entropy = torch.tensor([[1.0], [8.0], [2.0]])
    assert entropy_loss(entropy, weight, "sum").item() == -(1 + 2)
    assert entropy_loss(entropy, weight, "mean").item() == -(1 + 2) / 2


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_policy_gradient_is_softmax_minus_onehot_times_advantage(reduction):
    """Catches a wrong sign, a missing weight, and a mean over T · B instead of over the rows that count."""
    logits = random(T, B, A).requires_grad_()
    advantages = random(T, B, seed=1).requires_grad_()
    action = torch.tensor([[0, 1], [2, 3], [3, 0]])
    log_prob = logits.log_softmax(-1).gather(-1, action[..., None])[..., 0]
    policy_gradient_loss(log_prob, advantages, WEIGHT, reduction).backward()
    onehot = torch.nn.functional.one_hot(action, A)
    want = (logits.softmax(-1) - onehot) * (advantages * WEIGHT)[..., None] * SCALE[reduction]
    torch.testing.assert_close(logits.grad, want.detach())
    assert advantages.grad is None, "advantages take no gradient"


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_baseline_gradient_is_the_error(reduction):
    """½Σx² has gradient x. Catches the missing ½ and a gradient into the targets."""
    targets, values = random(T, B).requires_grad_(), random(T, B, seed=1).requires_grad_()
    baseline_loss(targets, values, WEIGHT, reduction).backward()
    torch.testing.assert_close(values.grad, ((values - targets) * WEIGHT * SCALE[reduction]).detach())
    assert targets.grad is None, "targets take no gradient"


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_entropy_gradient_is_analytic(reduction):
    """∂(−H)/∂logit_a = π_a (log π_a + H). Catches entropy minimised instead of maximised."""
    logits = random(T, B, A).requires_grad_()
    log_policy = logits.log_softmax(-1)
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    entropy_loss(entropy, WEIGHT, reduction).backward()
    want = log_policy.exp() * (log_policy + entropy[..., None]) * WEIGHT[..., None] * SCALE[reduction]
    torch.testing.assert_close(logits.grad, want.detach())


def losses(a, b, weight, reduction):
    """All three, from the same two tensors."""
    yield policy_gradient_loss(a, b, weight, reduction)
    yield baseline_loss(b, a, weight, reduction)
    yield entropy_loss(a, weight, reduction)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    junk=st.floats(-1e6, 1e6) | st.sampled_from([math.inf, -math.inf, math.nan]),
    reduction=st.sampled_from(["sum", "mean"]),
)
def test_weightless_rows_contribute_nothing_whatever_they_hold(seed, junk, reduction):
    """Catches 0 · inf = NaN, as a log-probability of −inf would give."""
    a, b = random(T, B, seed=seed), random(T, B, seed=seed + 1)
    junk_a = a.masked_fill(WEIGHT == 0, junk).requires_grad_()
    for got, want in zip(losses(junk_a, b, WEIGHT, reduction), losses(a, b, WEIGHT, reduction), strict=True):
        torch.testing.assert_close(got.detach(), want, rtol=0, atol=0)
    policy_gradient_loss(junk_a, b, WEIGHT, reduction).backward()
    assert (junk_a.grad[WEIGHT == 0] == 0).all()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_no_row_at_all_gives_0_and_no_gradient(reduction):
    """Catches 0 / 0 in the mean."""
    for index in range(3):
        a = random(T, B).float().requires_grad_()
        loss = list(losses(a, random(T, B, seed=1).float(), torch.zeros(T, B), reduction))[index]
        loss.backward()
        assert loss.item() == 0 and (a.grad == 0).all()


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_the_mean_is_over_the_sum_of_weights(scale):
    """Catches a denominator clamped to 1: a mean does not depend on the scale of the weights."""
    a, b = random(T, B), random(T, B, seed=1)
    for got, want in zip(losses(a, b, scale * WEIGHT, "mean"), losses(a, b, WEIGHT, "mean"), strict=True):
        torch.testing.assert_close(got, want)


def test_unequal_shapes_and_unknown_reductions_are_refused():
    full, narrow = torch.ones(T, B), torch.ones(T, 1)
    for arguments in ((narrow, full, full), (full, narrow, full), (full, full, narrow)):
        with pytest.raises(AssertionError, match="shapes differ"):
            policy_gradient_loss(*arguments)
        with pytest.raises(AssertionError, match="shapes differ"):
            baseline_loss(*arguments)
    with pytest.raises(AssertionError, match="shapes differ"):
        entropy_loss(full, narrow)
    with pytest.raises(ValueError, match="'median', expected one of sum, mean"):
        entropy_loss(full, full, "median")
