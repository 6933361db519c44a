"""Deadlines: what counts as time, and calls that are given up."""

import threading
from types import SimpleNamespace

import pytest

from packtrain.envs import deadline
from packtrain.envs.deadline import RunningTime, within
from packtrain.errors import EnvSetupError


def test_time_in_which_the_process_was_stopped_does_not_count(monkeypatch):
    """Mutation: the difference of two clocks, which a SIGSTOP makes as large as it likes."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(deadline, "time", clock)
    running = RunningTime(longest_gap=2.0)
    for passed, want in ((1.5, 1.5), (1.0, 2.5), (3600.0, 4.5), (0.25, 4.75)):
        clock.now += passed
        assert running.look() == want


def test_what_a_call_returns_or_raises_comes_through():
    assert within(5, lambda: 7, "it") == 7
    assert within(5, lambda: None, "it") is None
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0, "it")


def test_a_call_that_leaves_the_program_is_a_fault_of_what_was_called():
    def leave():
        raise SystemExit(0)

    with pytest.raises(EnvSetupError, match="it did not start: it raised SystemExit: 0"):
        within(5, leave, "it did not start")


def test_a_call_that_takes_too_long_is_given_up():
    over = threading.Event()
    with pytest.raises(EnvSetupError, match=r"it did not start within 0.05 s; X.y sets the deadline$"):
        within(0.05, over.wait, "it did not start", "X.y")
    with pytest.raises(EnvSetupError, match=r"it did not start within 0.05 s$"):
        within(0.05, over.wait, "it did not start")
    over.set()
