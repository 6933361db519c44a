"""D1 and D2 for each family: the same seed gives the same run, also if it is stopped and resumed on the way."""

from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.testing import tiny_runs

CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")
HALF = {"impala": 300, "r2d2": 300, "steve": 200, "planning": 100}


def play(family, output, total, seed=0):
    more = ["--output_dir", output, "--runtime", "serial", "--seed", str(seed)]
    # Rows are due by steps, so that they are the same whatever the length of the run.
    more += ["--log_every", "50", "--eval_every", "0"] if family != "planning" else []
    env = "CartPole" if family == "planning" else None  # built in: states of a Simulator cannot be saved
    assert main([*tiny_runs.argv(family, env=env, total=total), *more]) == 0


def result(output):
    """Everything but times: arrays of the last checkpoint as bytes, its other values, and the metric rows."""
    folder = Path(output) / "checkpoints"
    place = folder / str(checkpoint.steps(folder)[-1])
    arrays = {file.name: file.read_bytes() for file in place.glob("*.safetensors")}
    run = checkpoint.load(place)["run"]
    run = {name: value for name, value in run.items() if name not in ("wall_s", "metrics_bytes", "values")}
    rows = [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_metrics(output)]
    return arrays, run, rows


@pytest.mark.slow
@pytest.mark.parametrize("family", tiny_runs.TINY)
def test_d1_d2_a_run_is_repeated_exactly_also_across_a_resume(tmp_path, monkeypatch, family):
    """IMPALA's learning rate falls until the end of the run, so its D2, with kills, is in tests/cli/test_train.py.
    Mutation: any generator, moment, counter or environment is left out of the checkpoint."""
    monkeypatch.chdir(tmp_path)
    half = HALF[family]
    play(family, "straight", 2 * half)
    play(family, "again", 2 * half)
    play(family, "halves", half)
    play(family, "halves", 2 * half)
    play(family, "other", 2 * half, seed=1)
    straight, again, halves, other = (result(name) for name in ("straight", "again", "halves", "other"))
    assert straight[0] == again[0] and straight[2] == again[2], "D1"
    assert straight[2] != other[2], "another seed is another run"
    if family == "impala":
        return
    assert straight[0].keys() == halves[0].keys()
    assert [name for name in straight[0] if straight[0][name] != halves[0][name]] == [], "D2"
    assert straight[1] == halves[1], "D2"
    last = [[row for row in rows if row["step"] > half + 100] for rows in (straight[2], halves[2])]
    assert last[0] == last[1], "D2"
