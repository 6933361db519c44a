"""Training as a user types it: resume, determinism, kills, signals, locks, folders."""

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.testing import chaos

SMALL = ["--num_actors", "4", "--batch_size", "4", "--unroll_length", "5", "--hidden_size", "16", "--log_every", "200"]
CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")


def command(config, steps, output="run", *more):
    return [
        "train",
        config,
        "--output_dir",
        output,
        "--total_steps",
        str(steps),
        *SMALL,
        "--eval_every",
        "500",
        "--eval_episodes",
        "4",
        *more,
    ]


def rows(run):
    return [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_metrics(run)]


def weights(run):
    (path,) = [run / "checkpoints" / str(step) for step in checkpoint.steps(run / "checkpoints")[-1:]]
    return {file.name: file.read_bytes() for file in path.glob("*.safetensors")}


def wait_for_checkpoint(run, folder, after):
    chaos.wait_until(lambda: not run.running or max(checkpoint.steps(folder), default=-1) > after)


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("config", ["impala/catch", "impala/cartpole", "abilities/memory", "impala/point_mass"])
def test_d1_the_same_seed_gives_the_same_run(tmp_path, config):
    """D1. Mutation: any unseeded draw."""
    for name in ("a", "b"):
        assert main(command(config, 2000, name, "--runtime", "serial")) == 0
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert main(command(config, 2000, "c", "--runtime", "serial", "--seed", "1")) == 0
    assert weights(tmp_path / "a")["weights.safetensors"] != weights(tmp_path / "c")["weights.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("config", ["impala/catch", "abilities/memory", "impala/point_mass"])
def test_d2_killed_and_resumed_equals_straight(tmp_path, config):
    """D2, with kill -9 at random moments: weights, optimiser, environments, generators and rows are those of a run
    that was left alone. Mutation: leaving any of them out of the checkpoint."""
    argv = command(config, 6000, "straight", "--runtime", "serial")
    assert chaos.Command(argv, tmp_path).wait() == 0
    argv = command(config, 6000, "killed", "--runtime", "serial", "--checkpoint_secs", "0.1")
    rng, kills = random.Random(1), 0
    folder = tmp_path / "killed" / "checkpoints"
    while True:
        before = max(checkpoint.steps(folder), default=-1)
        run = chaos.Command(argv, tmp_path)
        wait_for_checkpoint(run, folder, before)
        time.sleep(rng.uniform(0, 0.2))
        if kills == 2 or not run.running:
            assert run.wait() == 0, run.output()
            break
        run.kill_group()
        kills += 1
    assert kills >= 2, "the run was over before it could be killed"
    assert weights(tmp_path / "straight") == weights(tmp_path / "killed")
    assert rows(tmp_path / "straight") == rows(tmp_path / "killed")


@pytest.mark.slow
def test_f6_twenty_kills_never_leave_a_folder_that_does_not_load(tmp_path):
    """F6 at 20 kills, most of them while checkpoints are being written. Local runtime: counters are monotone."""
    argv = command("impala/catch", 10_000_000, "run", "--checkpoint_secs", "0.02")
    folder, rng, last, kills = tmp_path / "run" / "checkpoints", random.Random(2), -1, 0
    for _ in range(20):
        run = chaos.Command(argv, tmp_path)
        wait_for_checkpoint(run, folder, last)
        time.sleep(rng.uniform(0, 0.05))
        assert run.running, run.output()
        run.kill_group()
        kills += 1
        step, state = checkpoint.load_newest(folder)
        assert step >= last and state["run"]["step"] == step
        assert "error" not in run.output() and "damaged" not in run.output()
        last = step
    assert kills == 20
    steps = [row["step"] for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert steps == sorted(set(steps)), "a row is doubled or out of order"


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", "serial"])
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_f7_a_signal_saves_and_leaves(tmp_path, runtime, number, code):
    run = chaos.Command(command("impala/catch", 10_000_000, "run", "--runtime", runtime), tmp_path)
    chaos.wait_until(lambda: (tmp_path / "run/metrics.jsonl").exists() and len(rows(tmp_path / "run")) > 3)
    begin = time.monotonic()
    run.signal(number)
    assert run.wait(30) == code
    assert time.monotonic() - begin < 30
    step = checkpoint.steps(tmp_path / "run/checkpoints")[-1]
    assert step >= rows(tmp_path / "run")[-1]["step"]
    assert f"saved at step {step:,}" in run.output()


@pytest.mark.slow
def test_f7_a_second_signal_leaves_at_once(tmp_path):
    """The environment hangs, so the first signal cannot be served. Mutation: a handler that only sets a flag."""
    (tmp_path / "mine.gin").write_text(
        "import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\n"
        "Environment.kwargs = {'fault': 'hang', 'at_step': 50}\n"
    )
    run = chaos.Command(command("mine.gin", 10_000_000, "run", "--runtime", "serial", "--eval_every", "0"), tmp_path)
    chaos.wait_until(lambda: (tmp_path / "run/metrics.jsonl").exists())
    time.sleep(2)
    run.signal(signal.SIGINT)
    time.sleep(0.5)
    assert run.running
    begin = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.wait(5) == 130 and time.monotonic() - begin < 5


@pytest.mark.slow
def test_local_counters_are_monotone_across_a_resume(tmp_path):
    argv = command("impala/catch", 40_000, "run", "--checkpoint_secs", "0.2")
    run = chaos.Command(argv, tmp_path)
    chaos.wait_until(lambda: len(checkpoint.steps(tmp_path / "run/checkpoints")) > 1)
    run.kill_group()
    assert chaos.Command(argv, tmp_path).wait() == 0
    train = [row for row in rows(tmp_path / "run") if row["kind"] == "train"]
    for name in ("step", "env_steps"):
        values = [row[name] for row in train]
        assert values == sorted(values)
    assert len({row["step"] for row in train}) == len(train)
    assert all(b["step"] - a["step"] < 400 for a, b in zip(train, train[1:], strict=False)), "a row is missing"
    assert "resumed at step" in (tmp_path / "run/log.txt").read_text()


def test_a_finished_run_says_so(tmp_path, capsys):
    assert main(command("impala/catch", 400)) == 0
    capsys.readouterr()
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    assert main(command("impala/catch", 400)) == 0
    assert "is finished" in capsys.readouterr().out
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


def test_run_length_and_logging_may_change_on_resume(tmp_path, capsys):
    assert main(command("impala/catch", 400)) == 0
    assert main(command("impala/catch", 800, "run", "--log_every", "100", "--eval_every", "0")) == 0
    assert checkpoint.steps(tmp_path / "run/checkpoints")[-1] >= 800
    log = (tmp_path / "run/log.txt").read_text()
    assert "now Run.total_steps = 800" in log and "now Run.log_every = 100" in log


def test_metrics_without_a_checkpoint_start_over(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 5, "wall_s": 1, "kind": "train"}\n{"ste')
    assert main(command("impala/catch", 400)) == 0
    assert all(row["step"] != 5 for row in rows(tmp_path / "run"))


def test_a_damaged_newest_checkpoint_is_skipped(tmp_path, capsys):
    assert main(command("impala/catch", 1200)) == 0
    folder = tmp_path / "run/checkpoints"
    found = checkpoint.steps(folder)
    assert len(found) >= 2
    chaos.truncate(folder / str(found[-1]) / "weights.safetensors", 100)
    assert main(command("impala/catch", 1600)) == 0
    assert "skipping a damaged checkpoint" in (tmp_path / "run/log.txt").read_text()
    assert checkpoint.load_newest(folder)[0] >= 1600


def test_fresh_starts_beside_and_deletes_nothing(tmp_path):
    assert main(command("impala/catch", 400)) == 0
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert main(command("impala/catch", 400, "run", "--fresh")) == 0
    assert (tmp_path / "run-2/metrics.jsonl").exists()
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_s5_a_second_run_on_one_folder_is_refused(tmp_path, capsys):
    from packtrain.runtime.folder import RunFolder

    holder = RunFolder(tmp_path / "run")
    holder.open()
    assert main(command("impala/catch", 400)) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    holder.close()
    (tmp_path / "run/.lock").write_text("99999999")  # a dead process's lock is taken over
    assert main(command("impala/catch", 400)) == 0


def test_default_folder_and_latest(tmp_path):
    argv = [a for a in command("impala/catch", 400) if a not in ("--output_dir", "run")]
    assert main(argv) == 0
    latest = tmp_path / "runs/latest"
    assert latest.is_symlink() and re.search(r"runs/impala/catch/\d{8}-\d{6}$", str(latest.resolve()))
    assert main(["eval", "runs/latest", "--num_episodes", "4"]) == 0


def test_savedir_and_xpid_and_mode_test(tmp_path, capsys):
    argv = [a for a in command("impala/catch", 400) if a not in ("--output_dir", "run")]
    assert main([*argv, "--savedir", "logs", "--xpid", "example"]) == 0
    assert (tmp_path / "logs/example/metrics.jsonl").exists() and (tmp_path / "logs/latest/metrics.jsonl").exists()
    capsys.readouterr()
    assert (
        main(
            ["train", "impala/catch", "--mode", "test", "--savedir", "logs", "--xpid", "example", "--num_episodes", "4"]
        )
        == 0
    )
    captured = capsys.readouterr()
    assert "packtrain eval logs/example" in captured.err and "4 episodes" in captured.out


def test_an_evaluation_refuses_knobs_that_are_not_the_runs(capsys):
    """And takes those that are. Mutation: flags of --mode eval dropped, as if they counted."""
    assert main(command("impala/catch", 400, "run", "--entropy_cost", "0.02")) == 0
    old = ["train", "impala/catch", "--mode", "eval", "--savedir", ".", "--xpid", "run", "--num_episodes", "2"]
    for argv in (old, ["eval", "run", "--num_episodes", "2"]):
        assert main([*argv, "--entropy_cost", "0.02"]) == 0
        capsys.readouterr()
        assert main([*argv, "--entropy_cost=0.5"]) == 2
        line = "--entropy_cost 0.5 is not what was trained: run has entropy_cost = 0.02, and an evaluation plays that"
        assert capsys.readouterr().err.splitlines()[-1] == f"packtrain: error: {line}"
    assert main(["eval", "run", "--entropy_cots", "1"]) == 2
    assert "unknown flag '--entropy_cots' (did you mean 'entropy_cost'?)" in capsys.readouterr().err


def test_a_reward_of_the_users_own(tmp_path, capsys):
    """A function in a module beside the configuration. Mutation: what it is called with in a run taken for settings."""
    code = """
import numpy as np
from packtrain.config import configurable
from packtrain.envs.rewards import Step

@configurable
def left(step: Step) -> np.ndarray:
    return (step.action == 0).astype(np.float32)
"""
    (tmp_path / "rewards_of_mine.py").write_text(code)
    lines = ["import rewards_of_mine", "include 'impala/catch.gin'", "", "Environment.rewards = @Rewards()"]
    lines += ["Rewards.functions = {'left': @left}", "Rewards.train = 'left'"]
    (tmp_path / "left.gin").write_text("\n".join(lines) + "\n")
    small = ["--output_dir", "run", "--num_actors", "4", "--batch_size", "4", "--eval_every", "0"]
    for steps in ("400", "800"):  # the second goes on
        assert main(["train", "left.gin", "--total_steps", steps, *small]) == 0
    capsys.readouterr()
    assert main(["eval", "run", "--num_episodes", "2", "--trust-config", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["rewards"]) == {"train", "true", "left"}


def test_num_seeds_are_ordinary_run_folders(tmp_path):
    assert main([*command("impala/catch", 400, "many"), "--num_seeds", "2", "--seed", "5"]) == 0
    for k in (0, 1):
        assert f"Experiment.seed = {5 + k}" in (tmp_path / f"many/seed_{k}/config.gin").read_text()
        assert rows(tmp_path / f"many/seed_{k}")
    assert weights(tmp_path / "many/seed_0") != weights(tmp_path / "many/seed_1")
    assert main(["report", "many"]) == 0 and (tmp_path / "many/report.html").exists()


def test_the_runs_own_config_gives_the_same_run(tmp_path):
    assert main(command("impala/catch", 1000, "a", "--runtime", "serial", "--seed", "3")) == 0
    assert main(["train", "a/config.gin", "--output_dir", "b", "--runtime", "serial"]) == 0
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def test_runner_module_takes_the_old_flags(tmp_path):
    import subprocess
    import sys

    small = [f"--config={x}" for x in ("Unrolls.unroll_length=5", "Streams.num_actors=4", "Run.total_steps=400")]
    argv = [
        sys.executable,
        "-m",
        "packtrain.runner",
        "--config_file=old/place/point_mass.gin",
        *small,
        "--output_dir=./out",
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "taking the shipped config 'impala/point_mass'" in done.stderr
    assert (tmp_path / "out/metrics.jsonl").exists()


def test_eval_json(tmp_path, capsys):
    assert main(command("impala/catch", 600)) == 0
    capsys.readouterr()
    assert main(["eval", "run", "--num_episodes", "20", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["episodes"] == 20 and result["length_mean"] == 9.0
    assert {"return_mean", "return_std", "return_ci95", "rewards"} <= set(result) and "train" in result["rewards"]
    assert main(["eval", "run", "--checkpoint", "best", "--num_episodes", "20", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["checkpoint"] in checkpoint.steps(tmp_path / "run/checkpoints")


def test_eval_repeats_itself_and_seeds_matter(tmp_path, capsys):
    assert main(command("impala/catch", 400)) == 0
    results = []
    for seed in ("1", "1", "2"):
        capsys.readouterr()
        assert main(["eval", "run", "--num_episodes", "50", "--seed", seed, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out)["return_mean"])
    assert results[0] == results[1]


def test_eval_draws_actions_if_asked(tmp_path, capsys):
    """All episodes of this task begin alike, so greedy ones are alike. Mutation: `--sampled` taken and ignored."""
    assert main(command("abilities/stochastic_policy", 400)) == 0
    spread = {}
    for flag in ("--greedy", "--sampled"):
        capsys.readouterr()
        assert main(["eval", "run", "--num_episodes", "50", "--json", flag]) == 0
        result = json.loads(capsys.readouterr().out)
        spread[result["greedy"]] = result["return_std"]
    assert spread[True] == 0.0 < spread[False]


def test_x9_no_code_in_a_foreign_folder_runs(tmp_path, capsys, monkeypatch):
    """X9, X3: train, eval and report on a folder whose config imports a module that would leave a trace."""
    assert main(command("impala/catch", 400)) == 0
    (tmp_path / "evil_module.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "run/config.gin"
    config.write_text("import evil_module\n" + config.read_text())
    capsys.readouterr()
    for argv in (["eval", "run"], ["train", "run/config.gin", "--output_dir", "run"]):
        assert main(argv) == 2
        assert "--trust-config" in capsys.readouterr().err
    assert main(["report", "run"]) == 0
    assert not Path("ran").exists()
    assert main(["eval", "run", "--num_episodes", "2", "--trust-config"]) == 0
    assert Path("ran").exists()


def test_tensorboard_gets_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    assert main(command("impala/catch", 600, "run", "--tensorboard")) == 0
    assert list((tmp_path / "run/tensorboard").glob("events*"))


@pytest.mark.parametrize("num_actors", ["1", "3", "7"])
def test_any_number_of_columns(tmp_path, num_actors):
    """1, odd, and fewer than batch_size."""
    assert main([*command("impala/catch", 400), "--num_actors", num_actors]) == 0
    assert checkpoint.steps(tmp_path / "run/checkpoints")[-1] >= 400


def test_seeds_begin_at_the_configurations_and_fresh_goes_beside(tmp_path):
    (tmp_path / "mine.gin").write_text("include 'impala/catch.gin'\nExperiment.seed = 7\n")
    argv = [*command("mine.gin", 400, "many"), "--num_seeds", "2"]
    assert main(argv) == 0 and main([*argv, "--fresh"]) == 0
    for folder in ("many", "many-2"):
        assert "Experiment.seed = 8" in (tmp_path / folder / "seed_1/config.gin").read_text()
    assert sorted(p.name for p in (tmp_path / "many").glob("seed*")) == ["seed_0", "seed_1"]


def test_a_bad_best_file_does_not_end_a_run(tmp_path):
    assert main(command("impala/catch", 600)) == 0
    (tmp_path / "run/checkpoints/best.json").write_text("{bad")
    assert main(command("impala/catch", 1600)) == 0
    assert "does not read as JSON" in (tmp_path / "run/log.txt").read_text()
    assert checkpoint.best(tmp_path / "run/checkpoints") is not None


def test_a_disk_that_refuses_is_one_line(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", refuse)
    assert main(command("impala/catch", 600)) == 3
    captured = capsys.readouterr()
    assert "could not be written" in captured.err and "Traceback" not in captured.err


def test_an_unchanged_resume_logs_no_change(tmp_path):
    assert main(command("impala/catch", 400)) == 0
    assert main(command("impala/catch", 800)) == 0
    log = (tmp_path / "run/log.txt").read_text()
    assert "now Run.total_steps = 800, before 400" in log and "now Run.num_threads" not in log
