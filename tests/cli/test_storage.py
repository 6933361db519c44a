"""What a run survives of disks, terminals and folders, as a user meets it: nothing that was learned is lost."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint, train_command
from packtrain.testing import chaos

SMALL = "--num_actors 4 --batch_size 4 --unroll_length 5 --hidden_size 16 --log_every 200 --eval_every 0".split()
LONG = ["--total_steps", "100000000"]


def argv(*more, steps=400, output="run"):
    return ["train", "impala/catch", "--output_dir", str(output), *SMALL, "--total_steps", str(steps), *more]


def steps_of(run):
    return [row["step"] for row in read_metrics(run)]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# -- terminals


@pytest.mark.slow
@pytest.mark.parametrize("where, runtime", [("full", "local"), ("closed", "serial"), ("closed", "local")])
def test_a_broken_stdout_ends_no_training(tmp_path, runtime, where):
    """`> /dev/full`, and `| head -1`. Mutation: printing as anybody would."""
    if where == "closed":
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    out = tmp_path / "pipe" if where == "closed" else "/dev/full"
    run = chaos.Command(argv("--runtime", runtime, steps=3000), tmp_path, out)
    if where == "closed":
        chaos.wait_until(lambda: not run.running or len(_read(reader)) > 0)
        os.close(reader)
    assert run.wait(60) == 0, run.output()
    assert checkpoint.steps(tmp_path / "run/checkpoints")[-1] >= 3000 and run.output() == ""
    assert "stdout cannot be written" in (tmp_path / "run/log.txt").read_text()


def _read(handle):
    with contextlib.suppress(BlockingIOError):
        return os.read(handle, 100)
    return b""


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", "serial"])
def test_a_closed_terminal_saves_and_leaves(tmp_path, runtime):
    """Mutation: SIGHUP as Python finds it, which ends the process unsaved."""
    run = chaos.Command(argv(*LONG, "--runtime", runtime), tmp_path, "/dev/full")
    try:
        chaos.wait_until(lambda: (tmp_path / "run/metrics.jsonl").exists() and len(steps_of("run")) > 3)
        for _ in range(2):  # the terminal's, and its shell's
            run.signal(signal.SIGHUP)
            time.sleep(0.005)
        assert run.wait(30) == 128 + signal.SIGHUP
    finally:
        run.kill_group()
    assert checkpoint.steps(tmp_path / "run/checkpoints")[-1] >= steps_of("run")[-1]


def test_under_nohup_a_closed_terminal_is_nothing(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with train_command._signals([]) as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert not received
    finally:
        signal.signal(signal.SIGHUP, before)


# -- folders


@pytest.mark.slow
@pytest.mark.parametrize(
    "what, place, runtime",
    [("renamed", "moved", "local"), ("deleted", "run", "serial"), ("replaced", "run-2", "local")],
)
def test_a_lost_run_folder_is_noticed_and_the_run_is_saved(tmp_path, runtime, what, place):
    """Mutations: a folder that is silently created again; a run that continues although its results are lost."""
    run = chaos.Command(argv(*LONG, "--runtime", runtime, "--checkpoint_secs", "0.3"), tmp_path)
    chaos.wait_until(lambda: len(checkpoint.steps(tmp_path / "run/checkpoints")) > 1)
    before = checkpoint.steps(tmp_path / "run/checkpoints")[-1]
    (tmp_path / "run").rename(tmp_path / "moved")
    if what != "renamed":
        (tmp_path / "moved").rename(tmp_path / "other")
    if what == "deleted":
        shutil.rmtree(tmp_path / "other")
    if what == "replaced":
        (tmp_path / "run").mkdir()
        shutil.rmtree(tmp_path / "other")
    assert run.wait(60) == 3, run.output()
    (line,) = (line for line in run.output().splitlines() if line.startswith("packtrain: error"))
    assert what in line and "Traceback" not in run.output()
    (found,) = {path.parent.parent.name for path in tmp_path.glob("*/checkpoints/*")}
    assert found == place and f"{place}; the same command with --output_dir" in line
    step, state = checkpoint.load_newest(tmp_path / place / "checkpoints")
    assert step > before and f"saved at step {step:,}" in line
    assert (tmp_path / place / "metrics.jsonl").stat().st_size == state["run"]["metrics_bytes"] > 0
    assert main(argv("--runtime", runtime, steps=step + 400, output=place)) == 0
    assert steps_of(place) == sorted(set(steps_of(place))) and steps_of(place)[0] < 400


@pytest.mark.parametrize("runtime", ["local", "serial"])
def test_an_environment_that_changes_the_current_folder_moves_nothing(tmp_path, runtime):
    """Mutation: a run folder that is looked for from where the environment went."""
    (tmp_path / "mine.gin").write_text(
        "import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\n"
        "Environment.kwargs = {'fault': 'chdir', 'at_step': 20}\n"
    )
    given = ["train", "mine.gin", "--output_dir", "run", *SMALL, "--runtime", runtime, "--checkpoint_secs", "0.01"]
    assert main([*given, "--total_steps", "400", "--num_seeds", "2"]) == 0
    for seed in (0, 1):
        assert checkpoint.steps(tmp_path / f"run/seed_{seed}/checkpoints")[-1] >= 400
    assert not os.path.exists("/run/seed_0")


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch, capsys):
    """Mutation: the time alone as a name."""
    monkeypatch.setattr(train_command.time, "strftime", lambda _: "now")
    given = [word for word in argv() if word not in ("--output_dir", "run")]
    for _ in range(3):
        assert main(given) == 0
    assert sorted(path.name for path in (tmp_path / "runs/impala/catch").iterdir()) == ["now", "now-2", "now-3"]
    assert "is finished" not in capsys.readouterr().out
    assert os.readlink(tmp_path / "runs/latest") == "impala/catch/now-3"


# -- files


def test_metrics_cut_by_a_loss_of_power_are_repaired_on_resume(tmp_path, capsys):
    """Mutation: the next row glued to half a one."""
    assert main(argv(steps=1200)) == 0
    before = steps_of("run")
    chaos.truncate(tmp_path / "run/metrics.jsonl", (tmp_path / "run/metrics.jsonl").stat().st_size - 30)
    capsys.readouterr()
    assert main(argv(steps=1600)) == 0
    assert "metrics.jsonl was damaged" in capsys.readouterr().err
    found = read_metrics("run")
    assert not found.bad_lines and [row["step"] for row in found][: len(before) - 1] == before[:-1]
    assert found[-1]["step"] >= 1600


def test_three_damaged_checkpoints_do_not_swallow_the_new_ones(tmp_path, capsys):
    """Mutation: pruning that keeps the highest steps, whole or not."""
    assert main(argv("--checkpoint_secs", "0.001", steps=1200)) == 0
    folder = tmp_path / "run/checkpoints"
    first = checkpoint.steps(folder)[0]
    whole = folder / str(first)
    for step in range(5000, 5003):
        shutil.copytree(whole, folder / str(step))
        chaos.truncate(folder / str(step) / "weights.safetensors", 50)
    assert main(argv("--checkpoint_secs", "0.001", steps=1600)) == 0
    assert 1600 <= checkpoint.steps(folder)[-1] < 5000
    assert sorted(path.name for path in folder.glob("*.damaged")) == ["5000.damaged", "5001.damaged", "5002.damaged"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place]).returncode:
        pytest.skip("only root may mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk):
    """Take what room there is."""
    with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(512))


@pytest.mark.slow
def test_s3_a_full_disk_is_borne_until_space_returns(tmp_path, small_disk):
    """S3. Mutations: an error; half rows; a folder of a failed save that keeps the disk full."""
    run = chaos.Command(argv(*LONG, "--checkpoint_secs", "0.2", output=small_disk / "run"), tmp_path)
    folder = small_disk / "run/checkpoints"
    chaos.wait_until(
        lambda: not run.running or (len(checkpoint.steps(folder)) > 1 and len(steps_of(small_disk / "run")) > 1)
    )
    fill(small_disk)
    chaos.wait_until(lambda: not run.running or "wait" in run.output())
    kept, size = checkpoint.steps(folder), (small_disk / "run/metrics.jsonl").stat().st_size
    time.sleep(1)
    assert run.running, run.output()
    assert checkpoint.load_newest(folder)[0] >= kept[-1]
    assert (small_disk / "run/metrics.jsonl").read_bytes()[-1:] == b"\n"
    warned = [line for line in run.output().splitlines() if line.startswith("packtrain: warning")]
    assert 1 <= len(warned) <= 3 and any("metrics.jsonl cannot be written" in line for line in warned), warned
    (small_disk / "filler").unlink()
    chaos.wait_until(lambda: not run.running or checkpoint.steps(folder)[-1] > kept[-1])
    assert (small_disk / "run/metrics.jsonl").stat().st_size > size
    fill(small_disk)
    run.signal(signal.SIGINT)
    assert run.wait(30) == 3, "what cannot be saved at the end is an error"
    assert "could not be written" in run.output().splitlines()[-1]
    assert "Traceback" not in run.output() and not list(folder.glob(".writing-*"))
    found = read_metrics(small_disk / "run")
    steps = [row["step"] for row in found]
    assert not found.bad_lines and steps == sorted(set(steps))
    assert max(b - a for a, b in zip(steps, steps[1:], strict=False)) < 600, "no row is lost"
