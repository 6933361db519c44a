"""A user's own environment as "module:Class": found in the current folder, errors with file and line, floats."""

import json
import os
import subprocess
import sys

import pytest

from packtrain.cli import main

CHASE = """
import gymnasium as gym
import numpy as np

class Chase(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, size=3, dtype="float32", breaks_at=None):
        self.size, self.dtype, self.breaks_at, self.steps = size, dtype, breaks_at, 0
        assert size > 1, "too small"

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, self.dtype), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.breaks_at:
            return {}["lost"]  # LINE
        return np.full(2, 0.5, self.dtype), 1.0, False, self.steps >= self.size, {}

def make(**kwargs):
    return Chase(**kwargs)
"""
LINE = next(n for n, line in enumerate(CHASE.splitlines(), 1) if "# LINE" in line)
SMALL = ["--total_steps", "200", "--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--eval_every", "0"]


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """The module under a name of its own for each test, in the current folder."""
    monkeypatch.chdir(tmp_path)
    name = f"chase_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(CHASE)
    return name


def train(*more, run="run"):
    return main(["train", "impala/gym", "--output_dir", run, *SMALL, *more])


@pytest.mark.parametrize("member", ["Chase", "make"])
def test_a_class_or_a_factory_of_the_current_folder_is_trained_on(module, member, tmp_path):
    assert train("--env", f"{module}:{member}", "--env_kwargs", "{'size': 7}") == 0
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert any(row.get("episode_length") == 7 for row in rows)


def test_a_step_that_raises_is_named_with_file_and_line(module, tmp_path, capsys):
    """Mutation: the deepest frame in place of the user's; no traceback in the log."""
    assert train("--env", f"{module}:Chase", "--env_kwargs", '{"breaks_at": 2}') == 3
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"raised in step: KeyError: 'lost' ({module}.py:{LINE})" in error
    log = (tmp_path / "run/log.txt").read_text()
    assert "Traceback" in log and 'return {}["lost"]' in log


def test_a_constructor_that_raises_leaves_its_traceback_where_the_line_says(module, capsys):
    assert train("--env", f"{module}:Chase", "--env_kwargs", "{'size': 1}") == 2
    error = capsys.readouterr().err.strip()
    assert "AssertionError: too small" in error and f"({module}.py:" in error
    path = error.rpartition("the traceback is in ")[2]
    assert "too small" in open(path).read()


def test_float64_observations_are_cast_with_a_warning(module, capsys, monkeypatch):
    from packtrain.envs import user_code
    from packtrain.errors import Seldom

    monkeypatch.setattr(user_code, "_casts", Seldom(1e9))
    assert train("--env", f"{module}:Chase", "--env_kwargs", "{'dtype': 'float64'}") == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "float64" in line]
    assert len(warnings) == 1 and "float32" in warnings[0]


def test_the_float64_warning_is_printed_once(module, tmp_path):
    """In a process of its own: under pytest the logger has handlers. Mutation: no NullHandler in errors.py."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "packtrain", "train", "impala/gym", "--output_dir", "run", *SMALL]
    command += ["--env", f"{module}:Chase", "--env_kwargs", "{'dtype': 'float64'}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.partition(": ")[0] for line in done.stderr.splitlines() if "float64" in line] == ["packtrain"]


@pytest.mark.parametrize(
    "env, parts",
    [
        ("no_such_module:Chase", ["no module 'no_such_module'", "current folder", "PYTHONPATH"]),
        ("{module}:Chas", ["did you mean 'Chase'"]),
        ("Pong", ["did you mean 'ALE/Pong-v5'"]),
        ("pongg-v5", ["did you mean 'ALE/Pong-v5'"]),
        ("Acrobat-v1", ["did you mean 'Acrobot-v1'"]),
    ],
)
def test_a_misspelt_environment_gets_the_nearest_name(module, env, parts, capsys):
    assert train("--env", env.format(module=module)) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    for part in parts:
        assert part in error, error


def test_a_missing_package_names_our_extra(module, tmp_path, capsys):
    """Gymnasium's own message says `pip install gymnasium[box2d]`."""
    (tmp_path / f"{module}.py").write_text(
        "import gymnasium\n"
        "def make():\n"
        "    raise gymnasium.error.DependencyNotInstalled('Box2D is not installed, pip install gymnasium[box2d]')\n"
    )
    assert train("--env", f"{module}:make") == 2
    error = capsys.readouterr().err
    assert "packtrain[box2d]" in error and "gymnasium[box2d]" not in error


@pytest.mark.parametrize("text", ["[1]", "{", "{1: 2}", "size=3"])
def test_env_kwargs_that_are_no_dict_are_refused(module, text, capsys):
    assert train("--env", f"{module}:Chase", "--env_kwargs", text) == 2
    assert "--env_kwargs" in capsys.readouterr().err
