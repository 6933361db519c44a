"""Central inference on a private Ray cluster: actors step environments, the policy acts in the learner's process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray")
TRAIN = [sys.executable, "-m", "packtrain", "train", "impala/catch", "--seed", "1", "--eval_every", "0"]
CLUSTER = ["--runtime", "cluster", "--inference", "learner", "--workers", "2", "--log_every", "1000"]


def rows_of(folder):
    path = Path(folder) / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if row["kind"] == "train"]


def env_actors(pid):
    """Return the processes of Ray actors below a process, with whether they have loaded torch."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        try:
            if "ray::Host" in " ".join(each.cmdline()):
                found.append((each.pid, any("libtorch" in Path(one.path).name for one in each.memory_maps())))
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_environment_actors_without_torch_are_replaced_when_killed(tmp_path):
    """Mutations: policies act in the actors; a lost actor ends the run; its group is never served again."""
    words = [*TRAIN, *CLUSTER, "--total_steps", "150000", "--output_dir", str(tmp_path / "run")]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    killed, deadline = [], time.monotonic() + 200
    try:
        while run.poll() is None and time.monotonic() < deadline and not killed:
            time.sleep(0.1)
            actors = env_actors(run.pid) if rows_of(tmp_path / "run") else []
            if len(actors) == 2:
                assert not any(loaded for _, loaded in actors), "torch is loaded where environments run"
                killed.append(actors[0][0])
                os.kill(actors[0][0], signal.SIGKILL)
        out, error = run.communicate(timeout=200)
    finally:
        run.kill()
    assert killed and run.returncode == 0, (out, error)
    assert "it is started again in 1 s with new episodes" in error and error.count("\n") == 1, error
    row = rows_of(tmp_path / "run")[-1]
    assert row["env_server_restarts"] == 1 and row["env_servers_ready"] == 2 and row["step"] >= 150_000
