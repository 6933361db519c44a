"""--learners K: the same learning as with one, whatever dies meanwhile, and nothing left behind."""

import functools
import json
import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from packtrain import knobs
from packtrain.algorithms import data_parallel
from packtrain.errors import DivergedError, LearnerGroupError
from packtrain.runtime import checkpoint, learner_group, open_run, train_command

CATCH = {"num_actors": 8, "batch_size": 8, "lr_schedule": "constant", "unroll_length": 10, "hidden_size": 16} | {
    "eval_every": 0,
    "log_every": 80,
}
REPLAY = {"num_actors": 4, "batch_size": 6, "hidden_sizes": (16,), "lstm_size": 8, "dueling_size": 8, "eval_every": 0}


def train(folder, learners, name="impala/catch", runtime="serial", num_seeds=None, bindings=(), **values):
    path, _ = knobs.find_config(name)
    request = open_run.TrainRequest(
        [path], list(bindings), values, Path(folder), 3, num_seeds, runtime, learners=learners
    )
    return train_command.train(request)


def learned(folder):
    return checkpoint.load_newest(Path(folder) / "checkpoints")[1]["weights"]


def rows_of(folder):
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"]


def assert_close(one, other, **tolerance):
    for name, weights in one.items():
        for key, leaf in weights.items():
            torch.testing.assert_close(leaf, other[name][key], **tolerance)


def ranks():
    return [child for child in multiprocessing.active_children() if child.name.startswith("learner")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not ranks()
    assert not torch.distributed.is_initialized()


def when_learning(folder, do, *, times=1):
    """Call `do` with a rank's pid as soon as the run has a training row, in a thread; return thread and pids."""
    done = []

    def look():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and len(done) < times:
            time.sleep(0.01)
            rows = Path(folder) / "metrics.jsonl"
            for rank in ranks():
                if rank.pid not in done and rows.exists() and rows.stat().st_size:
                    do(rank.pid)
                    done.append(rank.pid)

    thread = threading.Thread(target=look)
    thread.start()
    return thread, done


@pytest.mark.parametrize("name, values", [("impala/catch", CATCH), ("r2d2/catch", {**REPLAY, "warm_up": 200})])
def test_two_learners_learn_what_one_does(tmp_path, name, values):
    """Over gloo, in processes. Mutations: weights of the update before; the sum over ranks without rank 0."""
    for learners in (1, 2):
        assert train(tmp_path / str(learners), learners, name, **values, total_steps=400) == 0
    assert_close(learned(tmp_path / "1"), learned(tmp_path / "2"), rtol=1e-3, atol=1e-4)
    assert rows_of(tmp_path / "2")[-1]["learners"] == 2 and "learners" not in rows_of(tmp_path / "1")[-1]


def test_a_learner_that_is_killed_costs_nothing(tmp_path, capsys):
    """The batch is computed again by a new group. Mutations: the batch is skipped; the run ends."""
    values = {**CATCH, "total_steps": 8000}
    assert train(tmp_path / "whole", 2, **values) == 0
    thread, killed = when_learning(tmp_path / "run", lambda pid: os.kill(pid, signal.SIGKILL))
    assert train(tmp_path / "run", 2, **values) == 0
    thread.join()
    assert len(killed) == 1, "no fault was injected"
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["learner_restarts"] == 1
    assert max(after["wall_s"] - row["wall_s"] for row, after in zip(rows[:-1], rows[1:], strict=True)) < 60
    assert_close(learned(tmp_path / "whole"), learned(tmp_path / "run"), rtol=0, atol=0)
    assert "learner 1 ended with exit code -9" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["stop", "skip"])
def test_a_part_of_another_rank_that_is_not_finite_is_noticed_at_that_update(tmp_path, monkeypatch, answer):
    """Rank 1 computes NaN from the rewards of its part of update 5. Mutation: rank 0 looks at its own part alone."""
    divide, made = data_parallel.divide, []

    def poisoned(*args):
        works = divide(*args)
        made.append(works)
        if len(made) == 5:
            works[1].inputs[0].reward.fill_(math.nan)
        return works

    monkeypatch.setattr(data_parallel, "divide", poisoned)
    run = functools.partial(train, tmp_path / "run", 2, bindings=[f"Run.on_diverged = '{answer}'"], **CATCH)
    if answer == "stop":
        with pytest.raises(DivergedError, match="update 5 of learner 'impala' is not finite"):
            run(total_steps=1600)
        assert len(list((tmp_path / "run/diverged").glob("*.safetensors"))) == 1
    else:
        assert run(total_steps=1600) == 0
        assert rows_of(tmp_path / "run")[-1]["updates_skipped"] == 1 and len(made) > 15
        assert all(leaf.isfinite().all() for one in learned(tmp_path / "run").values() for leaf in one.values())


@pytest.mark.slow
def test_a_learner_that_is_stopped_is_replaced(tmp_path, monkeypatch):
    """Mutation: rank 0 waits for ever."""
    monkeypatch.setattr(learner_group, "LEAST_PATIENCE_SECS", 2.0)
    thread, stopped = when_learning(tmp_path / "run", lambda pid: os.kill(pid, signal.SIGSTOP))
    assert train(tmp_path / "run", 2, runtime="local", **{**CATCH, "total_steps": 4000}) == 0
    thread.join()
    assert stopped and rows_of(tmp_path / "run")[-1]["learner_restarts"] == 1


def test_a_slow_rank_still_finds_the_file_it_joins_by(tmp_path, monkeypatch):
    """Rank 1 is stopped while rank 0 has joined already. Mutation: rank 0 removes the file without waiting."""
    join = learner_group.join

    def stop_the_other_rank(*args):
        join(*args)
        (rank,) = ranks()
        os.kill(rank.pid, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (rank.pid, signal.SIGCONT)).start()

    monkeypatch.setattr(learner_group, "join", stop_the_other_rank)
    assert train(tmp_path / "run", 2, **CATCH, total_steps=160) == 0
    assert rows_of(tmp_path / "run")[-1]["learner_restarts"] == 0


def test_learners_that_always_die_end_the_run_saved(tmp_path, monkeypatch):
    """Exit code 3, and the same command goes on. Mutation: no checkpoint is written."""
    monkeypatch.setattr(learner_group, "MOST_FAILURES", 1)
    values = {**CATCH, "total_steps": 100_000}
    thread, killed = when_learning(tmp_path / "run", lambda pid: os.kill(pid, signal.SIGKILL))
    with pytest.raises(LearnerGroupError, match="repeat the command to resume") as raised:
        train(tmp_path / "run", 2, **values)
    thread.join()
    assert killed and raised.value.exit_code == 3
    step = checkpoint.load_newest(tmp_path / "run" / "checkpoints")[0]
    assert step > 0
    assert train(tmp_path / "run", 1, **{**values, "total_steps": step + 160}) == 0


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_learners(tmp_path):
    """Mutation: the number of learners is part of a run's identity, or optimisers are lost."""
    assert train(tmp_path / "whole", 1, **CATCH, total_steps=640) == 0
    assert train(tmp_path / "run", 2, **CATCH, total_steps=320) == 0
    assert train(tmp_path / "run", 1, **CATCH, total_steps=480) == 0
    assert train(tmp_path / "run", 3, **CATCH, total_steps=640) == 0
    assert_close(learned(tmp_path / "whole"), learned(tmp_path / "run"), rtol=1e-3, atol=1e-4)


def test_learners_listen_on_the_loopback_interface_alone(tmp_path, monkeypatch):
    """Mutation: gloo chooses the interface by the host's name."""
    addresses, left = [], []
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def look(pid):
        left.append(list((tmp_path / "temporary").glob("packtrain-learners-*")))
        for process in (psutil.Process(pid), psutil.Process()):
            addresses.extend(each.laddr.ip for each in process.net_connections("inet") if each.status == "LISTEN")

    thread, _ = when_learning(tmp_path / "run", look)
    assert train(tmp_path / "run", 2, **CATCH, total_steps=2000) == 0
    thread.join()
    assert left == [[]], "the ranks have met, and their file is gone"
    assert addresses and set(addresses) <= {"127.0.0.1", "::1"}


@pytest.mark.slow
def test_seeds_with_several_learners_run_one_after_another(tmp_path):
    assert train(tmp_path / "runs", 2, num_seeds=2, **CATCH, total_steps=160) == 0
    assert all(rows_of(tmp_path / "runs" / f"seed_{seed}")[-1]["learners"] == 2 for seed in range(2))


@pytest.mark.parametrize(
    "name, learners, values, message",
    [
        ("impala/catch", 0, {}, "--learners 0 must be at least 1"),
        ("impala/catch", 9, {"batch_size": 8}, "--learners 9 cannot share batch_size = 8"),
        ("steve/ddpg_pendulum", 2, {}, "cannot divide its batches; leave --learners out"),
        ("planning/mcts_hanoi", 2, {}, "cannot divide its batches; leave --learners out"),
    ],
)
def test_what_cannot_be_divided_is_refused_before_anything_is_written(tmp_path, name, learners, values, message):
    with pytest.raises(learner_group.ConfigError, match=message):
        train(tmp_path / "run", learners, name, **values)
    assert not (tmp_path / "run").exists()
