"""Runs of the cluster runtime on a private cluster of this machine."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from packtrain.runtime import supervise

pytest.importorskip("ray")
TRAIN = [sys.executable, "-m", "packtrain", "train"]


def packtrain_train(*words, secs=240, **options):
    return subprocess.run([*TRAIN, *words], capture_output=True, text=True, timeout=secs, **options)


def rows_of(folder, kind="train"):
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.slow
def test_a_private_cluster_trains_resumes_and_leaves_nothing(tmp_path, monkeypatch):
    """Mutation: the engine does not leave the cluster when it is closed."""
    own = tempfile.mkdtemp(prefix="p")  # short, for sockets; other tests have sessions at the same time
    monkeypatch.setenv("TMPDIR", own)
    shared = set(os.listdir("/dev/shm"))
    first = ["impala/catch", "--runtime", "cluster", "--workers", "2", "--output_dir", str(tmp_path / "run")]
    done = packtrain_train(*first, "--total_steps", "20000")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "finished 2" in done.stdout
    assert rows_of(tmp_path / "run")[-1]["workers/workers_ready"] == 2
    assert {row["kind"] for row in rows_of(tmp_path / "run", "eval")} == {"eval"}
    again = ["impala/catch", "--runtime", "RayBatchStepper", "--output_dir", str(tmp_path / "run")]
    done = packtrain_train(*again, "--total_steps", "40000")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "going on from step 2" in done.stdout
    steps = [row["step"] for row in rows_of(tmp_path / "run")]
    assert steps == sorted(set(steps)) and steps[-1] >= 40_000
    deadline = time.monotonic() + 10
    while (left := list(Path(own).glob(f"{supervise.PREFIX}*"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not [each for each in set(os.listdir("/dev/shm")) - shared if "plasma" in each]
    assert not [each for each in psutil.process_iter() if str(tmp_path) in " ".join(each.cmdline())]


@pytest.mark.long
def test_a_replay_in_shards_goes_on_with_another_number_of_them(tmp_path):
    """Mutations: the parts' settings change the run's identity; a run without shards reads what it cannot."""
    words = ["r2d2/catch", "--runtime", "cluster", "--workers", "2", "--eval_every", "0", "--warm_up", "300"]
    words += ["--output_dir", str(tmp_path / "run")]
    for shards, steps in (("2", "1500"), ("1", "2500")):
        done = packtrain_train(*words, "--replay_shards", shards, "--total_steps", steps)
        assert done.returncode == 0 and "finished" in done.stdout, done.stderr
    assert "going on from step 1,5" in done.stdout and (tmp_path / "run" / "replay").is_dir()
    assert "replay_steps_lost" not in rows_of(tmp_path / "run")[-1]
    done = packtrain_train(*words, "--total_steps", "3500")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "repeat --replay_shards" in done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--workers", "9999"], ["--workers 9999", "can be divided over 1 to"]),
        (["--min_nodes", "2"], ["--min_nodes 2 needs --address"]),
        (["--address", "nowhere"], ["'nowhere' is not HOST:PORT"]),
        (["--address", "127.0.0.1:1"], ["nothing answers at 127.0.0.1:1", "packtrain node --head"]),
        (["--address", "auto"], ["RAY_ADDRESS"]),
        (["--replay_shards", "2"], ["--replay_shards 2", "has no shards; leave --replay_shards out"]),
    ],
)
def test_a_cluster_that_cannot_be_is_one_line_within_seconds(tmp_path, words, parts):
    begin = time.monotonic()
    done = packtrain_train("impala/catch", "--runtime", "cluster", *words, "--output_dir", str(tmp_path / "run"))
    assert done.returncode == 2 and time.monotonic() - begin < 60
    assert done.stderr.count("\n") == 1 and all(part in done.stderr for part in parts), done.stderr
    assert not (tmp_path / "run").exists()
