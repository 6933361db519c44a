"""The estimate of a run's memory, printed before it starts, is what it takes at its peak (C7)."""

import re
import time

import pytest
import torch

from packtrain import knobs
from packtrain.runtime import open_run, preflight, preparation, train_command
from packtrain.testing import chaos

CPU = torch.device("cpu")


def plan(name, device=CPU, **values):
    path = knobs.find_config(name)[0]
    _, experiment, spec = preparation.prepare([path], [], {"total_steps": 2000, **values}, 0)
    return preflight.plan_memory(experiment, spec, device)


def test_a_replay_counts_as_far_as_the_steps_fill_it():
    """Mutations: the capacity alone; the steps alone."""
    small, half, full, more = (
        plan("steve/ddpg_pendulum", replay_size=100_000, total_steps=steps)["memories"]
        for steps in (1000, 50_000, 100_000, 500_000)
    )
    assert full == pytest.approx(2 * half) and half == pytest.approx(50 * small) and more == full


def test_a_memory_of_sequences_counts_at_once():
    one, two = (plan("r2d2/catch", replay_size=size)["memories"] for size in (100_000, 200_000))
    assert two == pytest.approx(2 * one, rel=0.1)


def test_on_a_gpu_memories_and_networks_are_there():
    found = plan("dqn/catch", torch.device("cuda", 0), replay_size=10**6)
    assert found["device"] > 10**8 and found["host"] < plan("dqn/catch", replay_size=10**6)["host"]


def test_the_line_is_printed_before_the_run_starts(tmp_path, capsys):
    path = knobs.find_config("impala/catch")[0]
    values = {"eval_every": 0, "total_steps": 400}
    assert train_command.train(open_run.TrainRequest([path], [], values, tmp_path / "run")) == 0
    said = capsys.readouterr().out
    assert re.match(r"memory at its peak: about \d+\.\d\d GiB \(", said)
    assert "memory at its peak" in (tmp_path / "run/log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("r2d2/catch", "--replay_size 1000000 --total_steps 1500"),
        ("dqn/catch", "--replay_size 2000000 --total_steps 1500"),
    ],
)
def test_c7_the_estimate_is_within_20_percent_of_the_peak(tmp_path, name, values):
    run = chaos.Command(["train", name, "--output_dir", "run", "--eval_every", "0", *values.split()], tmp_path)
    peak = 0
    while run.running:
        try:
            status = open(f"/proc/{run.pid}/status").read()
        except OSError:
            break
        peak = max([peak, *(int(size) * 1024 for size in re.findall(r"VmHWM:\s+(\d+) kB", status))])
        time.sleep(0.02)
    assert run.wait(120) == 0, run.output()
    said = float(re.search(r"memory at its peak: about ([\d.]+) GiB", run.output())[1]) * 2**30
    assert said == pytest.approx(peak, rel=0.2), (said, peak)
