"""Compiled functions: the setting, where they are possible, compiler failures, and the folder of compiled code."""

import logging
import os

import pytest
import torch

from packtrain.accelerate import compilation, toolchain
from packtrain.accelerate.compilation import Compiled, refuse_unless_possible
from packtrain.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def machine(monkeypatch):
    """A machine that has these programs and modules."""

    def has(*names):
        monkeypatch.setattr(toolchain.shutil, "which", lambda name: name if name in names else None)
        monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda name: name if name in names else None)

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilation, "_compiled", lambda call: lambda *args: ("compiled", call(*args)))
    compilation._say_once.cache_clear()
    return has


def twice(x):
    return 2 * x


@pytest.mark.parametrize(
    "device, wanted, found",
    [(GPU, None, ("compiled", 6)), (CPU, None, 6), (CPU, True, ("compiled", 6)), (GPU, False, 6)],
)
def test_by_default_only_a_gpu_is_compiled_for(machine, device, wanted, found):
    machine("gcc", "g++", "triton")
    call = Compiled(twice, device, wanted)
    assert call(3) == found and call(3) == found


@pytest.mark.parametrize(
    "there, device, lacking", [((), CPU, "a C and a C\\+\\+ compiler"), (("gcc", "g++"), GPU, "Triton")]
)
def test_wanted_where_it_cannot_be_is_one_clear_line(machine, there, device, lacking):
    machine(*there)
    for refused in (lambda: refuse_unless_possible(device, True), lambda: Compiled(twice, device, True)(3)):
        with pytest.raises(ConfigError, match=f"compile = True needs {lacking}"):
            refused()
    refuse_unless_possible(device, None)


def test_a_gpu_without_a_compiler_is_said_once(machine, caplog):
    machine("triton")
    with caplog.at_level(logging.WARNING, "packtrain"):
        assert [Compiled(twice, GPU, None)(3) for _ in range(2)] == [6, 6]
    (record,) = caplog.records
    assert "updates are not compiled" in record.message and "gcc and g++" in record.message


def test_other_compilers_count(machine, monkeypatch):
    machine("mycc", "clang++")
    monkeypatch.setenv("CC", "mycc")
    monkeypatch.setenv("CXX", "clang++")
    refuse_unless_possible(CPU, True)


def broken(call):
    def fails(*args):
        raise torch._dynamo.exc.TorchDynamoException("Found no such thing\nand many lines more")

    return fails


def test_a_compiler_that_fails_is_a_warning_and_the_run_goes_on(machine, monkeypatch, caplog):
    """Mutation: a run that ends because a header was missing."""
    machine("gcc", "g++", "triton")
    monkeypatch.setattr(compilation, "_compiled", broken)
    call = Compiled(twice, GPU, None)
    with caplog.at_level(logging.WARNING, "packtrain"):
        assert [call(3), call(4)] == [6, 8]
    (record,) = caplog.records
    assert record.message.endswith("faster: Found no such thing")


def test_a_requested_compiler_that_fails_is_one_clear_line(machine, monkeypatch):
    machine("gcc", "g++")
    monkeypatch.setattr(compilation, "_compiled", broken)
    with pytest.raises(ConfigError, match="compile = True does not work here: Found no such thing$"):
        Compiled(twice, CPU, True)(3)


def test_what_the_function_raises_is_not_taken_for_the_compilers(machine):
    machine("gcc", "g++", "triton")
    with pytest.raises(ZeroDivisionError):
        Compiled(lambda x: 1 / x, GPU, None)(0)


def test_compiled_code_is_kept_in_a_private_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compilation._private_folder()
    assert folder.is_relative_to(tmp_path) and folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    assert not compilation._private_folder().is_relative_to(tmp_path), "others may have written there"
    folder.chmod(0o700)
    assert compilation._private_folder() == folder
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert not compilation._private_folder().is_relative_to(tmp_path), "it is somebody else's"


def test_a_home_that_cannot_be_written_is_no_hindrance(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = compilation._private_folder()
    assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
