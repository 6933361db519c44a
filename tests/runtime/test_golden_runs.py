"""D5: run folders of each release are loaded, evaluated and resumed by this version.

`PACKTRAIN_GOLDEN=write pytest tests/runtime/test_golden_runs.py` writes the folders of this version, where there are
none, and the scores that evaluations must repeat. Folders of earlier versions are never written again.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

import packtrain
from packtrain.cli import main
from packtrain.errors import CheckpointError
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.testing import tiny_runs

GOLDEN = Path(__file__).parent.parent / "golden/runs"
NEWEST = "0.2.0"
TOTAL = {"impala": 400, "r2d2": 400, "steve": 400, "planning": 200}  # of the stored runs
RUNS = [f"{version.name}/{family}" for version in sorted(GOLDEN.glob("*.*")) for family in TOTAL]


def argv(family, total):
    more = ["--runtime", "serial"] + (["--eval_every", "0"] if family != "planning" else [])
    more += ["--replay_size", "1000"] if family == "r2d2" else []
    return tiny_runs.argv(family, "--output_dir", "run", *more, total=total)


def score(capsys):
    capsys.readouterr()
    assert main(["eval", "run", "--num_episodes", "2", "--greedy", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["return_mean"]


if os.environ.get("PACKTRAIN_GOLDEN") == "write":

    @pytest.mark.parametrize("family", TOTAL)
    def test_write(family, tmp_path, monkeypatch, capsys):
        place = GOLDEN / NEWEST / family
        monkeypatch.chdir(tmp_path)
        if not place.is_dir():
            assert main(argv(family, TOTAL[family])) == 0
            shutil.copytree("run", place, ignore=shutil.ignore_patterns("log.txt", ".lock", "replay"))
        else:
            shutil.copytree(place, "run")
        (place / "score.json").write_text(json.dumps(score(capsys)) + "\n")


@pytest.fixture
def stored(request, tmp_path, monkeypatch):
    shutil.copytree(GOLDEN / request.param, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return request.param


def test_this_version_has_golden_runs():
    """A release without them could break the folders of its users without notice."""
    assert packtrain.__version__.split(".dev")[0] == NEWEST, "write golden runs for this version"
    assert {path.name for path in (GOLDEN / NEWEST).iterdir()} == set(TOTAL)


@pytest.mark.slow
@pytest.mark.parametrize("stored", RUNS, indirect=True)
def test_a_run_of_a_release_is_evaluated_to_its_score_and_goes_on(stored, capsys):
    """Mutation: a change of what a checkpoint holds, without reading what earlier versions wrote."""
    family = stored.rpartition("/")[2]
    assert score(capsys) == pytest.approx(json.loads(Path("run/score.json").read_text()), rel=1e-5)
    step, state = checkpoint.load_newest(Path("run/checkpoints"))
    rows = read_metrics("run")
    assert main(argv(family, TOTAL[family] + 100)) == 0, capsys.readouterr()
    after, resumed = checkpoint.load_newest(Path("run/checkpoints"))
    assert after > step and resumed["run"]["env_steps"] > state["run"]["env_steps"]
    now = read_metrics("run")
    assert now[: len(rows)] == rows and len(now) > len(rows), "rows are kept, and others are added"
    steps = [row["step"] for row in now if row["kind"] == "train"]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("stored", RUNS[:1], indirect=True)
def test_another_format_without_a_migration_is_refused(stored, monkeypatch):
    """Negative control: raising the format's version makes every test above fail."""
    monkeypatch.setattr(checkpoint, "SCHEMA", checkpoint.SCHEMA + 1)
    (step,) = checkpoint.steps(Path("run/checkpoints"))
    with pytest.raises(CheckpointError, match="schema"):
        checkpoint.load(Path("run/checkpoints") / str(step))


def test_the_stored_runs_are_small():
    size = sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file())
    assert size < 600_000 * len(list(GOLDEN.iterdir()))
