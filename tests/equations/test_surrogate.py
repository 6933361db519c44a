"""PPO's clipped objective: by arithmetic, its gradient, and what filler rows do to it."""

import math

import pytest
import torch

from packtrain.equations.surrogate import clipped_surrogate


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def test_the_loss_by_arithmetic():
    """Ratio 2 pays as 1.1 for a gain and as 2 for a loss; ratio ½ as ½ and as 0.9. Mutation: max for min."""
    log_ratio = row(math.log(2), math.log(2), math.log(0.5), math.log(0.5), 0.0)
    got = clipped_surrogate(log_ratio, row(1, -1, 1, -1, 3), torch.ones(1, 5), 0.1)
    assert got.loss.item() == pytest.approx(-(1.1 - 2 + 0.5 - 0.9 + 3) / 5)
    assert got.clip_fraction.item() == pytest.approx(4 / 5)
    kl = 2 * (2 - 1 - math.log(2)) + 2 * (0.5 - 1 - math.log(0.5))
    assert got.approx_kl.item() == pytest.approx(kl / 5)


def test_there_is_no_gradient_where_moving_on_would_not_pay():
    log_ratio = row(0.5, 0.5, -0.5, -0.5, 0.0).requires_grad_()
    clipped_surrogate(log_ratio, row(1, -1, 1, -1, 1), torch.ones(1, 5), 0.2).loss.backward()
    want = [0, math.exp(0.5) / 5, -math.exp(-0.5) / 5, 0, -1 / 5]
    torch.testing.assert_close(log_ratio.grad, row(*want))


def test_fillers_count_for_nothing_whatever_they_hold():
    """Mutation: a mean over all rows."""
    weight = torch.tensor([[1.0, 0.0, 1.0]])
    log_ratio = torch.tensor([[0.3, math.nan, -0.2]], requires_grad=True)
    got = clipped_surrogate(log_ratio, torch.tensor([[1.0, math.inf, 2.0]]), weight, 0.1)
    got.loss.backward()
    kept = clipped_surrogate(torch.tensor([[0.3, -0.2]]), torch.tensor([[1.0, 2.0]]), torch.ones(1, 2), 0.1)
    for mine, want in zip(got, kept, strict=True):
        torch.testing.assert_close(mine, want)
    assert log_ratio.grad[0, 1] == 0
    assert clipped_surrogate(log_ratio, log_ratio, torch.zeros(1, 3), 0.1).loss == 0


def test_a_ratio_that_cannot_be_is_finite():
    got = clipped_surrogate(torch.tensor([[300.0, -300.0]]), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2), 0.1)
    assert all(part.isfinite() for part in got)
