"""`--restarts N`: the same command again after a fault."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest


@pytest.mark.slow
def test_a_killed_run_is_started_again_and_goes_on(tmp_path):
    """Mutation: the run is started again with --fresh, or a stop by the user counts as a fault."""
    folder = tmp_path / "run"
    words = ["impala/catch", "--output_dir", str(folder), "--eval_every", "0", "--checkpoint_secs", "1"]
    command = [sys.executable, "-m", "packtrain", "train", *words, "--total_steps", "1000000000", "--restarts", "1"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120

        def wait_for(condition):
            while not (found := condition()):
                assert run.poll() is None and time.monotonic() < deadline, run.communicate()
                time.sleep(0.1)
            return found

        def steps():
            return sorted(int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit())

        wait_for(lambda: (folder / "checkpoints").is_dir() and steps())
        (child,) = psutil.Process(run.pid).children()
        child.send_signal(signal.SIGKILL)
        saved = steps()[-1]
        (again,) = wait_for(lambda: [each for each in psutil.Process(run.pid).children() if each.pid != child.pid])
        wait_for(lambda: steps()[-1] > saved)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 143 and "going on from step" in out, (out, err)
    assert "ended by SIGKILL; restart 1 of 1 in 1 s" in err
    assert not psutil.pid_exists(again.pid)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [row["step"] for row in rows]
    assert found == sorted(set(found)), "a row was written twice"
