"""Streams have hardware queues of their own before anybody calls CUDA."""

import os

import pytest

from packtrain.errors import ConfigError
from packtrain.runtime.command import find_device

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
