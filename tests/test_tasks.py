"""The scripts of docs/tasks run from an empty folder, as a reader would run them, and print what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = Path(__file__).parent.parent / "docs" / "tasks"
PROMISES = {
    "own_environment": "return 0.9",
    "own_loss": "return at first",
    "learning_rates": "open runs/learning_rates.html",
    "notebook": "return ",
    "plain_pytorch": "greedy action",
    "look_at_a_search": "explorer.html",
    "compare_two_algorithms": "probability that a seed of PPO scores higher",
    "trackers": "asked for:",
}


def test_every_script_has_a_test_and_a_line_on_the_page():
    scripts = {path.stem for path in TASKS.glob("*.py")}
    assert scripts == set(PROMISES)
    page = (TASKS / "README.md").read_text()
    assert all(f"[{name}.py]({name}.py)" in page for name in scripts)


@pytest.mark.parametrize("name", PROMISES)
def test_a_script_runs(name, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, str(TASKS / f"{name}.py")], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert PROMISES[name] in done.stdout, done.stdout[-2000:]
    assert (tmp_path / "runs").is_dir()
