"""Schedules of learning rates, against their values written out."""

import pytest

from packtrain.equations.schedules import linear_between, linear_decay, scheduled_rate


def test_linear_decay_reaches_0_and_stays():
    """Catches a rate that turns negative past the end."""
    rates = [linear_decay(0.4, step, total_steps=100) for step in (0, 25, 50, 100, 250)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.0, 0.0])
    assert rates[-2:] == [0.0, 0.0]


def test_linear_between_stays_at_its_last_value():
    assert [linear_between(1.0, 0.2, update, 4) for update in (0, 1, 2, 4, 9)] == pytest.approx([1, 0.8, 0.6, 0.2, 0.2])
    assert linear_between(1.0, None, 7, None) == 1.0


def test_a_step_schedule_changes_once():
    """Mutation: the straight line."""
    assert [scheduled_rate(update, 1.0, 0.1, 3, "step") for update in (0, 2, 3, 9)] == [1.0, 1.0, 0.1, 0.1]
    assert scheduled_rate(1, 1.0, 0.0, 2, "linear") == 0.5
