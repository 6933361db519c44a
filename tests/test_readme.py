"""The README's examples are run as they stand there."""

import re
from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics, series

README = Path(__file__).parent.parent / "README.md"


def example(name):
    match = re.search(rf"<!-- test: {re.escape(name)} -->\n```\w*\n(.*?)```", README.read_text(), re.S)
    assert match, name
    text = match.group(1)
    assert len(text.splitlines()) < 30, "the README promises under 30 lines"
    return text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_add_an_environment(folder):
    """It is learned, too: the return nears 1 (chance: a random walk of 20 steps, about 0.2)."""
    (folder / "my_walk.py").write_text(example("environment"))
    argv = ["train", "impala/gym", "--env", "my_walk:mine/Walk-v0", "--total_steps", "30000", "--output_dir", "run"]
    assert main([*argv, "--eval_every", "0", "--reward_scale", "1", "--log_every", "2000"]) == 0
    assert series(read_metrics(folder / "run"), "train", "episode_return")[1][-1] > 0.9


@pytest.mark.slow
def test_add_an_algorithm(folder):
    """Chance 0.375, best 0.9."""
    (folder / "my_a2c.py").write_text(example("algorithm"))
    (folder / "a2c.gin").write_text(example("a2c.gin"))
    argv = ["train", "a2c.gin", "--output_dir", "run", "--total_steps", "30000", "--log_every", "2000"]
    assert main(argv) == 0
    assert series(read_metrics(folder / "run"), "train", "episode_return")[1][-1] > 0.75
