"""Compiled work: who asks for it, where it can be, and where what was compiled is kept."""

import logging

import pytest
import torch

from packtrain.devices import compiled
from packtrain.devices.compiled import worthwhile
from packtrain.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def machine(monkeypatch):
    """A machine that has these programs and modules."""

    def has(*names):
        monkeypatch.setattr(compiled.shutil, "which", lambda name: name if name in names else None)
        monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: name if name in names else None)

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    compiled._say_once.cache_clear()
    return has


def test_where_nobody_said_only_a_gpu_is_compiled_for(machine):
    machine("gcc", "g++", "triton")
    assert worthwhile(GPU, None)
    assert not worthwhile(CPU, None)


def test_who_wants_it_has_it_and_who_does_not_has_not(machine):
    machine("gcc", "g++", "triton")
    assert worthwhile(CPU, True)
    assert not worthwhile(GPU, False)


@pytest.mark.parametrize(
    "there, device, lacking", [((), CPU, "a C and C\\+\\+ compiler"), (("gcc", "g++"), GPU, "Triton")]
)
def test_wanted_where_it_cannot_be_is_one_clear_line(machine, there, device, lacking):
    machine(*there)
    with pytest.raises(ConfigError, match=f"compile = True needs {lacking}"):
        worthwhile(device, True)


def test_a_gpu_without_a_compiler_is_said_once(machine, caplog):
    machine("triton")
    with caplog.at_level(logging.WARNING, "packtrain"):
        assert not worthwhile(GPU, None)
        assert not worthwhile(GPU, None)
    assert [record.message for record in caplog.records] == [
        "updates are not compiled, which would make them faster: a C and C++ compiler is not here"
    ]


def test_other_compilers_count(machine, monkeypatch):
    machine("clang", "clang++")
    monkeypatch.setenv("CC", "clang")
    monkeypatch.setenv("CXX", "clang++")
    assert worthwhile(CPU, True)


def test_what_was_compiled_lies_where_nobody_else_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiled._private_folder()
    assert folder.is_relative_to(tmp_path) and folder.stat().st_mode & 0o077 == 0


def test_a_home_that_cannot_be_written_is_no_hindrance(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = compiled._private_folder()
    assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
