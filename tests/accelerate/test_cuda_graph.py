"""Captured work where nothing can be captured: the call itself, every time."""

import logging

import pytest
import torch

from packtrain.accelerate.cuda_graph import WARM_UP, Captured

CPU = torch.device("cpu")


def test_on_a_cpu_every_call_is_made(caplog):
    """Long past the point where a GPU would have captured it. Mutation: a warm-up that ends on a CPU too."""
    caplog.set_level(logging.DEBUG, "packtrain")
    total = torch.zeros(())
    call = Captured(lambda: total.add_(1), CPU, "the sum")
    assert total == 0  # nothing runs before it is called
    for count in range(1, WARM_UP + 10):
        call()
        assert total == count
    assert caplog.text == ""


def test_a_call_reads_what_lies_there_now():
    """Mutation: inputs remembered from the first call."""
    given, doubled = torch.zeros(2), torch.zeros(2)
    call = Captured(lambda: doubled.copy_(2 * given), CPU, "the double")
    for value in range(WARM_UP + 3):
        given.fill_(value)
        call()
        assert doubled.tolist() == [2 * value] * 2


def test_generators_go_on_from_call_to_call():
    generator, seen = torch.Generator().manual_seed(0), []
    call = Captured(lambda: seen.append(torch.rand(3, generator=generator)), CPU, "noise", [generator])
    for _ in range(WARM_UP + 3):
        call()
    again = torch.Generator().manual_seed(0)
    assert all(torch.equal(noise, torch.rand(3, generator=again)) for noise in seen)


def test_errors_are_the_callers():
    """Mutation: an error taken for a failed capture, and swallowed."""
    calls = []

    def fail():
        calls.append(1)
        raise RuntimeError("broken")

    call = Captured(fail, CPU, "the failure")
    for _ in range(WARM_UP + 2):
        with pytest.raises(RuntimeError, match="broken"):
            call()
    assert len(calls) == WARM_UP + 2
