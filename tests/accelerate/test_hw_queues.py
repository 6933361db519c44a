"""GPUs as they are asked for: streams have hardware queues of their own, and what does not open is one line."""

import os

import pytest
import torch

from packtrain.errors import ConfigError
from packtrain.runtime.preparation import find_device

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"


def test_asking_for_a_gpu_uses_all_of_its_queues(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    with pytest.raises(ConfigError):
        find_device("cuda:99")
    assert os.environ[NAME] == "32"


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv(NAME, "4")
    with pytest.raises(ConfigError):
        find_device("cuda:99")
    assert os.environ[NAME] == "4"


def test_a_cpu_needs_none(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    find_device("cpu")
    assert NAME not in os.environ


def test_a_gpu_that_does_not_open_is_one_line(monkeypatch):
    """As when another program has all of its memory. Mutation: torch's own error, of many lines."""

    def full(index):
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", full)
    with pytest.raises(ConfigError) as caught:
        find_device("cuda")
    assert str(caught.value) == (
        "--device 'cuda' does not open: CUDA error: out of memory; nvidia-smi shows who uses it"
    )
