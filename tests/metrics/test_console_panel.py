"""The panel on narrow and wide terminals, and the summary over seeds."""

import json
import re

import pytest

from packtrain.cli import main
from packtrain.metrics.console import RichConsole, laid_out, line, reward_channels
from packtrain.studies.seed_summary import describe_seeds

TRAIN = {
    **{"kind": "train", "step": 5_000, "wall_s": 61.0, "episode_return": 12.5, "steps_per_second": 1234.0},
    **{"actor_busy": 0.5, "learner_busy": 0.9, "policy_lag_mean": 1.5, "policy_lag_max": 3, "episode_return/true": 3.5},
}
EVAL = {
    **{"kind": "eval", "step": 5_000, "wall_s": 61.0, "return_mean": 20.0, "return_std": 1.0, "episodes": 4},
    **{"reward/true": 7.25},
}


def test_cells_fill_lines_without_being_cut():
    assert laid_out(["aa", "bbbb", "cc"], 9) == ["aa   bbbb", "cc"]
    assert laid_out(["a" * 20], 9) == ["a" * 20] and laid_out([], 9) == []


def test_reward_channels_leave_out_the_one_that_is_learned_from():
    assert reward_channels({**TRAIN, "reward/train": 1.0}) == {"true": 3.5}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_panel_fits_and_shows_everything(width, monkeypatch, capsys):
    """Mutations: one row of a table, which 40 columns cut into single letters; only one reward."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("rich._console", None)  # it keeps the width of the test that made it
    console = RichConsole("runs/a", 100_000)
    console.show(TRAIN)
    console.show(EVAL)
    console.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)  # where colours are forced
    assert all(len(each) <= width for each in text.splitlines())
    for part in ("return 12.5", "evaluated 20", "true 3.5", "evaluated true 7.25", "1.23K steps/s", "actor 50 % busy"):
        assert part in text, text


def test_plain_lines_have_all_reward_channels():
    assert "true 7.25" in line(EVAL, 100_000) and "true 3.5" in line(TRAIN, 100_000)


def test_the_seeds_of_a_run_are_counted_and_summed_up(tmp_path, capsys, monkeypatch):
    """One after another in the serial runtime: "seed 2 of 3", then the mean of the last evaluations."""
    monkeypatch.chdir(tmp_path)
    sizes = ["--total_steps", "200", "--num_actors", "2", "--batch_size", "2", "--unroll_length", "5"]
    more = ["--eval_every", "100", "--eval_episodes", "2", "--num_seeds", "3", "--output_dir", "run"]
    assert main(["train", "impala/catch", *sizes, *more]) == 0
    out = capsys.readouterr().out
    assert "seed 2 of 3: run/seed_1" in out
    last = out.strip().splitlines()[-1]
    assert last.startswith("3 seeds, return in the last evaluation: mean ") and "95 % interval" in last


def test_a_summary_without_evaluations_uses_training(tmp_path):
    for k, value in enumerate((1.0, 3.0)):
        folder = tmp_path / f"seed_{k}"
        folder.mkdir()
        row = {"step": 10, "kind": "train", "wall_s": 1.0, "episode_return": value}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert "2 seeds, return in the last training: mean 2.0" in describe_seeds(tmp_path)
