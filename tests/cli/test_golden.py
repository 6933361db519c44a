"""What the command line prints, word for word. `make golden` regenerates the files; look at the difference."""

import os
import re
from pathlib import Path

import pytest

from packtrain.cli import main

GOLDEN = Path(__file__).parent.parent / "golden"


def check(name, text):
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("PACKTRAIN_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; `make golden` regenerates it"


@pytest.mark.parametrize(
    "name, argv",
    [
        ("help", ["--help"]),
        ("train_help", ["train", "impala/catch", "--help"]),
        ("eval_help", ["eval", "--help"]),
        ("convert_help", ["convert", "--help"]),
        ("audit_help", ["audit", "--help"]),
        ("sweep_help", ["sweep", "--help"]),
        ("list", ["list"]),
        ("study_help", ["train", "steve/toy", "--help"]),
        ("show_study", ["show-config", "steve/toy", "--seed", "3", "--noise", "0.2"]),
        ("show_config", ["show-config", "impala/catch", "--entropy_cost", "0.02", "--config", "Impala.c_bar = 0.9"]),
    ],
)
def test_printed_texts(capsys, monkeypatch, name, argv):
    monkeypatch.setenv("COLUMNS", "110")
    try:
        code = main(argv)
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    check(name, capsys.readouterr().out)


def test_a_short_run_leaves_these_files_and_this_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = (
        "--total_steps 200 --num_actors 2 --batch_size 2 --unroll_length 5 --eval_every 100 --eval_episodes 2".split()
    )
    assert main(["train", "impala/catch", "--output_dir", "run", *small]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert re.fullmatch(r"finished 20\d steps in 0:\d\d \([\d.]+K? steps/s\): run", last), last
    top = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert top == [".lock", "checkpoints", "config.gin", "log.txt", "metrics.jsonl"]
    newest = max((tmp_path / "run/checkpoints").glob("[0-9]*"), key=lambda p: int(p.name))
    assert sorted(p.name for p in newest.iterdir()) == [
        "actor.safetensors",
        "learners.safetensors",
        "manifest.json",
        "memories.safetensors",
        "state.json",
        "weights.safetensors",
    ]
