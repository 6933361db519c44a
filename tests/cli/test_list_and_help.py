"""`packtrain list`, help of single commands, and terminals that can show ASCII only."""

import io
import sys

import pytest

from packtrain.cli import main


def printed(capsys, *argv):
    try:
        code = main(list(argv))
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    return capsys.readouterr().out


def test_list_groups_by_family_and_hides_base_files(capsys):
    text = printed(capsys, "list")
    heads = [line.partition(":")[0] for line in text.splitlines() if line and line[0] not in " `"]
    assert heads[:3] == ["ppo", "sac", "td3"] and len(heads) == len(set(heads))
    assert "ppo/cartpole" in text and "ppo/base" not in text
    assert "ppo/base" in printed(capsys, "list", "--all")


def test_list_searches_descriptions_and_ignores_case(capsys):
    assert "dqn/lunarlander" in printed(capsys, "list", "LunarLander", "dqn")
    assert "tbv/rnd_hanoi" in printed(capsys, "list", "tower", "ppo")


def test_list_suggests_a_word(capsys):
    assert main(["list", "cartpol3"]) == 2
    assert "did you mean 'cartpole'" in capsys.readouterr().err


def test_show_config_has_a_help_of_its_own(capsys):
    text = printed(capsys, "show-config", "impala/catch", "--help")
    assert text.startswith("usage: packtrain show-config") and "--num_seeds" not in text and "--entropy_cost" in text


@pytest.mark.parametrize("argv", [["list", "cartpole"], ["train", "ppo/cartpole", "--help"], ["--help"]])
def test_ascii_terminals_show_everything(monkeypatch, argv):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    try:
        main(argv)
        print("± 3 – λ → ≥")
    except SystemExit:
        print("± 3 – λ → ≥")
    stream.flush()
    assert raw.getvalue().decode("ascii").rstrip().endswith("+- 3 - lambda -> >=")
