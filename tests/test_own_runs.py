"""Runs of this user and machine are trusted for the code they were trained with; foreign and changed ones are not."""

import shutil
import sys

import pytest

from packtrain import own_runs
from packtrain.cli import main

ENV = """
import gymnasium as gym
import numpy as np

class Chase(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}
"""
SMALL = ["--total_steps", "100", "--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--eval_every", "0"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "own_chase.py").write_text(ENV)
    monkeypatch.chdir(code)
    before = list(sys.path)
    assert main(["train", "impala/gym", "--env", "own_chase:Chase", "--output_dir", str(tmp_path / "run"), *SMALL]) == 0
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("own_chase")
    sys.path[:] = [each for each in before if each not in (str(code), "")]
    yield tmp_path / "run"
    sys.path[:] = before
    sys.modules.pop("own_chase", None)


def test_an_own_run_is_evaluated_from_another_folder(run, capsys):
    """Mutation: the folder of the module not noted."""
    assert main(["eval", str(run), "--num_episodes", "2"]) == 0
    assert "return 1.000" in capsys.readouterr().out


def test_a_run_that_was_not_made_here_is_refused(run, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other_home"))
    assert main(["eval", str(run), "--num_episodes", "2"]) == 2
    assert "--trust-config" in capsys.readouterr().err


def test_a_changed_configuration_is_refused(run, capsys):
    """Mutation: trust by the folder's name."""
    text = (run / "config.gin").read_text()
    (run / "config.gin").write_text(text.replace("\nenv = ", "\nimport os\nenv = ", 1))
    assert main(["eval", str(run), "--num_episodes", "2"]) == 2
    assert "imports 'os'" in capsys.readouterr().err


def test_a_copy_of_an_own_run_is_own(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    assert own_runs.is_own(tmp_path / "copy" / "config.gin")


def test_runs_without_code_of_their_own_are_not_noted(tmp_path):
    assert main(["train", "impala/catch", "--output_dir", str(tmp_path / "run"), *SMALL]) == 0
    assert not list(own_runs.folder().glob("*"))
