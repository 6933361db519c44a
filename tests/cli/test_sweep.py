"""`packtrain sweep` and `train --mrunner` from the command line."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packtrain import cli, config
from packtrain.cli import sweep as command
from packtrain.cli import train_flags
from packtrain.runtime import train_command
from packtrain.studies import study

_spec = importlib.util.spec_from_file_location(
    "test_specification", Path(__file__).parent.parent / "studies" / "sweep" / "test_specification.py"
)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
SEED_001 = _module.SEED_001
SMALL = ["--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--total_steps", "100"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.py").write_text(SEED_001)


@pytest.fixture
def requested(monkeypatch):
    """The requests that would be run."""
    found = []
    monkeypatch.setattr(command, "run_sweep", lambda request, say: found.append(request) or 0)
    return found


def sweep(*words):
    return cli.main(["sweep", *words])


def settings(words):
    """The values with which `train` would run."""
    paths, values, arguments, _ = train_flags.parse(list(words))
    loaded = config.load(paths, arguments.config, values)
    config.build(loaded)
    return loaded.values


def test_lists_of_knobs_make_a_grid(requested):
    assert sweep("impala/catch", "--learning_rate", "0.001,0.003", "--use_lstm=true,false", "--seeds", "3", *SMALL) == 0
    (request,) = requested
    assert [point.settings for point in request.points] == [
        {"use_lstm": lstm, "learning_rate": rate} for lstm in ("true", "false") for rate in ("0.001", "0.003")
    ]
    assert request.seeds == 3 and request.about["varied_names"] == ["use_lstm", "learning_rate"]
    found = settings(request.points[1].words)
    assert found["Impala.learning_rate"] == "0.003" and found["ActorCritic.use_lstm"] == "True"
    assert found["Streams.num_actors"] == "2"


def test_the_same_command_finds_the_same_folder_and_another_one_does_not(requested):
    """Mutation: a folder named by the time, or by --jobs."""
    grid = ["impala/catch", "--learning_rate", "0.001,0.003"]
    for words in ([], ["--jobs", "1", "--retries", "0", "--seeds", "2"], ["--entropy_cost", "0.1"]):
        sweep(*grid, *words)
    first, same, other = (request.root for request in requested)
    assert first == same != other and first.parent == Path("runs/sweeps") and first.name.startswith("impala-catch-")


def test_random_searches_have_different_points(requested):
    sweep(
        "impala/catch",
        "--learning_rate",
        "log:1e-4:1e-2",
        "--unroll_length",
        "uniform:5:9",
        "--random",
        "6",
        "--seed",
        "3",
    )
    (request,) = requested
    assert len({point.name for point in request.points}) == 6 and {point.seed for point in request.points} == {3}
    assert all(5 <= int(point.settings["unroll_length"]) <= 9 for point in request.points)


def test_the_seed_of_the_configuration_counts_unless_one_is_given(requested):
    """Mutation: --seed 0 for all, which makes experiments equal that differ in nothing but their seed."""
    sweep("impala/catch", "--config", "Experiment.seed = 7", "--seeds", "2")
    sweep("impala/catch", "--config", "Experiment.seed = 7", "--seed", "3")
    assert [request.points[0].seed for request in requested] == [7, 3]


def test_precedence_is_file_base_grid_command_line(requested, capsys):
    """Mutations: any two of the four exchanged."""
    assert sweep("spec.py", "--config", "ShootingAgent.n_rollouts = 7", "--episode_time_limit", "33") == 0
    (request,) = requested
    assert len(request.points) == 5 + 1
    found = settings(request.points[1].words)
    assert found["ShootingAgent.n_rollouts"] == "7", "the command line wins over params_grid"
    assert found["ShootingAgent.rollout_time_limit"] == "100", "params_grid wins over the file, which has 15"
    assert found["Runner.n_envs"] == "5", "base_config wins over the file"
    assert found["Runner.episode_time_limit"] == "33" and found["ShootingAgent.stratified"] == "True", "the file"
    assert request.about["tags"] == ["spec"] and request.root == Path("runs/sweeps/Shooting_Agent_in_CartPole")
    said = capsys.readouterr().err
    assert said.count("Neptune's service has closed") == 1 and "--output_dir=./out is not used" in said


def test_the_scripts_own_flags_win_over_its_grid(requested):
    text = SEED_001.replace("--mrunner", "--mrunner --config=ShootingAgent.rollout_time_limit=3 --seed=4")
    Path("spec.py").write_text(text.replace("'Runner.n_epochs': 1", "'Runner.n_epochs': 2"))
    assert sweep("spec.py", "--output_dir", "mine", "--seeds", "2") == 0
    (request,) = requested
    assert settings(request.points[0].words)["ShootingAgent.rollout_time_limit"] == "3"
    assert {point.seed for point in request.points} == {4} and request.root == Path("mine") and request.seeds == 2


def test_a_dry_run_prints_commands_that_train_understands(capsys):
    assert sweep("spec.py", "--dry_run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and not Path("runs").exists()
    words = shlex.split(lines[0])
    assert words[:2] == ["packtrain", "train"] and settings(words[2:])["ShootingAgent.n_rollouts"] == "10"
    assert [word for word in words if word.startswith("--output_dir=")][0].endswith("/seed_0")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "no CONFIG and no SPEC.py"),
        (["nowhere.py"], "nowhere.py does not exist"),
        (["a.py", "b.py"], "one specification at a time"),
        (["impala/cach"], "did you mean 'impala/catch'"),
        (["impala/catch", "--learning_rat", "1,2"], "did you mean 'learning_rate'"),
        (["impala/catch", "--learning_rate", "1,x"], "'x' is not a number"),
        (["impala/catch", "--learning_rate", "0.1,-1"], "learning_rate"),
        (["impala/catch", "--learning_rate", "log:1e-4:1e-2"], "--random N or --optuna N"),
        (["impala/catch", "--random", "3"], "needs a knob to vary"),
        (["impala/catch", "--optuna", "3"], "needs a knob to vary"),
        (["impala/catch", "--learning_rate", "1,2", "--random", "3", "--optuna", "3"], "exclude each other"),
        (["impala/catch", "--seeds", "0"], "--seeds 0 must be at least 1"),
        (["impala/catch", "--jobs", "0"], "--jobs 0 must be at least 1"),
        (["impala/catch", "--retries", "-1"], "--retries -1 must be at least 0"),
        (["impala/catch", "--on", "mars"], "'mars' is not one of local, slurm, cluster"),
        (["impala/catch", "--runtime", "cluster"], "--on cluster"),
        (["impala/catch", "--address", "a:1"], "need --on cluster"),
        (["impala/catch", "--slurm", "a=b"], "--slurm needs --on slurm"),
        (["impala/catch", "--on", "slurm", "--slurm", "ab"], "not KEY=VALUE"),
        (["impala/catch", "--env", "Catch,Cach"], "Cach"),
        (["impala/catch", "--track", "nowhere"], "not one of"),
        (["impala/catch", "--config", "Impala.nothing = 1"], "nothing"),
        (["impala/catch", "--prune_after", "2"], "must lie in"),
        (
            ["misspecification/counterfeit_sweep"],
            "'seeds' of misspecification/counterfeit_sweep has the name of a flag",
        ),
        (["spec.py", "--n_rollouts", "1,2"], "has its grid in params_grid"),
        (["spec.py", "--random", "2"], "lists its experiments itself"),
        (["spec.py", "--n_rollout", "2"], "unknown flag"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(capsys, words, part):
    assert sweep(*words) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("packtrain: error: ") and part in said[-1], said
    assert sorted(os.listdir()) == ["spec.py"]


def test_missing_packages_are_named(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "optuna" else find(name))
    assert sweep("impala/catch", "--learning_rate", "0.1,0.2", "--optuna", "2") == 2
    assert "pip install 'packtrain[sweep]'" in capsys.readouterr().err and not Path("runs").exists()


# -- train --mrunner


def test_mrunner_runs_the_first_experiment_and_says_so(monkeypatch, capsys):
    """Mutations: the last experiment; bindings of the command line that lose."""
    requests = []
    monkeypatch.setattr(train_command, "train", lambda request: requests.append(request) or 0)
    monkeypatch.setattr(study, "train", lambda request: 1)
    words = "--config_file=alpacka/configs/shooting_random_cartpole.gin --config=Runner.n_envs=3 --config=spec.py"
    monkeypatch.setattr(sys, "stdout", None)  # the run is not made, so there is no summary
    assert cli.main(["train", "--mrunner", *words.split(), "--output_dir=out"]) == 0
    (request,) = requests
    loaded = config.load(request.files, request.bindings, request.knobs)
    config.build(loaded)
    assert loaded.values["ShootingAgent.n_rollouts"] == "10" and loaded.values["Runner.n_envs"] == "3"
    assert "has 6 experiments, and this is the first; `packtrain sweep spec.py` runs all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "--mrunner needs --config SPEC.py"),
        (["--config=experiment.pkl"], "does not exist"),
        (["--config=Runner.n_envs=3"], "does not exist"),
    ],
)
def test_mrunner_without_a_specification_is_one_line(capsys, words, part):
    assert cli.main(["train", "planning/shooting_random_cartpole", "--mrunner", *words]) == 2
    assert part in capsys.readouterr().err.splitlines()[-1]


# -- the real thing


@pytest.mark.slow
def test_the_specification_of_seed_001_survives_two_kills(tmp_path):
    """All six experiments are trained by `packtrain train`. Mutation: runs that end with their sweep are lost."""
    words = [sys.executable, "-m", "packtrain", "sweep", "spec.py", "--episode_time_limit", "10", "--jobs", "2"]
    root = tmp_path / "runs" / "sweeps" / "Shooting_Agent_in_CartPole"
    for finished in (1, 3):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 400
        while states(root).count("finished") < finished:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"going on, [3-6] of 6 runs are over", done.stdout), done.stdout
    content = json.loads((root / "sweep.json").read_text())
    assert states(root) == ["finished"] * 6
    assert [point["result"]["each"] for point in content["points"]] == [[10.0]] * 6
    grid = [
        (point["settings"]["ShootingAgent.n_rollouts"], point["settings"]["ShootingAgent.rollout_time_limit"])
        for point in content["points"]
    ]
    assert grid == [(a, b) for a in ("10", "100", "1000") for b in ("10", "100")]
    assert (root / "report.html").stat().st_size > 10_000


def states(root):
    try:
        return [row["state"] for row in json.loads((root / "sweep.json").read_text())["runs"]]
    except OSError:
        return []
