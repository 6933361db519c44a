"""`--profile`: a bounded trace of some updates with the threads that learn and act."""

import json

import pytest

from packtrain.cli import main
from packtrain.metrics.sinks import About
from packtrain.runtime import profiling
from packtrain.runtime.profiling import SKIPPED, TRACED, Profile

SMALL = ["--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--eval_every", "0", "--log_every", "100"]


def test_a_trace_has_updates_and_acting(tmp_path):
    """Mutations: a trace of the learner's thread alone; one that never ends."""
    run = tmp_path / "run"
    assert main(["train", "impala/catch", "--output_dir", str(run), "--total_steps", "600", "--profile", *SMALL]) == 0
    (path,) = (run / "profile").iterdir()
    assert path.name == f"updates_{SKIPPED + 1}_to_{SKIPPED + TRACED}.json"
    events = json.loads(path.read_text())["traceEvents"]
    work = [event for event in events if event.get("cat") == "cpu_op"]
    names = {event["name"] for event in work}
    assert any("Backward" in name or "backward" in name for name in names)
    assert len({event["tid"] for event in work}) >= 2
    assert path.stat().st_size < 50_000_000


def test_a_run_with_few_updates_says_that_there_is_no_trace(tmp_path, capsys):
    sink = Profile()
    sink.begin(About("run", tmp_path, "", {}))
    for _ in range(SKIPPED - 1):
        sink.update()
    sink.close()
    assert "no trace, since the run made 4 updates" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("bound", ["bytes", "link"])
def test_a_trace_that_cannot_be_kept_is_a_warning(bound, tmp_path, monkeypatch, capsys):
    """Mutations: no bound; a link out of the run folder followed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "run"
    run.mkdir()
    if bound == "bytes":
        monkeypatch.setattr(profiling, "MOST_BYTES", 10)
    else:
        (run / "profile").symlink_to(elsewhere)
    sink = Profile()
    sink.begin(About("run", run, "", {}))
    for _ in range(SKIPPED + TRACED):
        sink.update()
    sink.close()
    assert "is not written" in capsys.readouterr().err
    assert not list(elsewhere.iterdir()) and not list(run.glob("profile/*"))


def test_a_cluster_is_refused(tmp_path, capsys):
    argv = ["train", "impala/catch", "--output_dir", str(tmp_path / "run"), "--runtime", "cluster", "--profile"]
    assert main(argv) == 2 and "--profile traces this process" in capsys.readouterr().err
