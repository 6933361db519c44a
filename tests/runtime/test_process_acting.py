"""Acting in spawned processes: the same data as in a thread, resume across acting modes, and workers that die."""

import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from packtrain import knobs, trees
from packtrain.runtime import checkpoint, open_run, train_command
from packtrain.runtime.cluster.flow import Flow
from packtrain.runtime.messages import Remote
from packtrain.runtime.worker import pack_tensors, unpack_tensors

PLAN = {"n_envs": 4, "n_epochs": 2, "n_steps_per_epoch": 5, "batch_size": 8, "episode_time_limit": 15}
CASES = {
    "impala/catch": {"total_steps": 2000, "eval_every": 1000},
    "r2d2/catch": {"total_steps": 1200, "warm_up": 400, "eval_every": 0},
    "steve/ddpg_pendulum": {"total_steps": 450, "eval_every": 0},
    "planning/mcts_hanoi": {**PLAN, "eval_period": 1},
}


def train(name, folder, *, acting="process", runtime="serial", workers=1, num_seeds=None, bindings=(), **values):
    path, _ = knobs.find_config(name)
    remote = None if acting == "thread" else Remote(acting, workers)
    request = open_run.TrainRequest([path], list(bindings), values, Path(folder), 3, num_seeds, runtime, remote=remote)
    return train_command.train(request)


def state_of(folder):
    return checkpoint.load_newest(Path(folder) / "checkpoints")[1]


def leaves(tree, path=""):
    if isinstance(tree, dict):
        for name, inner in tree.items():
            if name not in ("wall_s", "metrics_bytes", "values", "identity"):
                yield from leaves(inner, f"{path}/{name}")
    elif isinstance(tree, (list, tuple)):
        for place, inner in enumerate(tree):
            yield from leaves(inner, f"{path}/{place}")
    else:
        yield path, tree


def assert_equal(one, other):
    one, other = dict(leaves(one)), dict(leaves(other))
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        if isinstance(leaf, (torch.Tensor, np.ndarray)):
            assert np.array_equal(np.asarray(leaf), np.asarray(other[path]), equal_nan=True), path
        else:
            assert leaf == other[path] or leaf != leaf, path


def rows_of(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_a_process_acts_row_for_row_like_a_thread(tmp_path, name):
    """Mutations: weights of the step before; chunks stored in another order; random numbers of the worker's own."""
    for acting in ("thread", "process"):
        assert train(name, tmp_path / acting, acting=acting, **CASES[name]) == 0
    assert_equal(state_of(tmp_path / "thread"), state_of(tmp_path / "process"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_resumes_exactly_with_the_other_acting_mode(tmp_path, name):
    """Mutation: rows that wait for room are lost, or environments begin new episodes."""
    values = {**CASES[name], **({} if "eval_period" in CASES[name] else {"eval_every": 0})}
    length = "n_epochs" if "n_epochs" in values else "total_steps"
    assert train(name, tmp_path / "whole", acting="thread", **values) == 0
    for first, second in (("thread", "process"), ("process", "thread")):
        assert train(name, tmp_path / first, acting=first, **{**values, length: values[length] * 2 // 3 or 1}) == 0
        assert train(name, tmp_path / first, acting=second, **values) == 0
        for part in ("learners", "actor", "weights"):
            assert_equal(state_of(tmp_path / "whole")[part], state_of(tmp_path / first)[part])


@pytest.mark.slow
def test_two_workers_learn_and_resume_with_another_number(tmp_path, capsys):
    """Mutation: the actor part of a checkpoint of other workers is loaded all the same."""
    assert train("r2d2/catch", tmp_path / "a", runtime="local", workers=2, total_steps=1500, warm_up=300) == 0
    state = state_of(tmp_path / "a")
    assert len(state["actor"]["workers"]) == 2
    assert train("r2d2/catch", tmp_path / "a", runtime="local", workers=1, total_steps=2000, warm_up=300) == 0
    rows = [row for row in rows_of(tmp_path / "a") if row["kind"] == "train"]
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps)) and steps[-1] >= 2000
    state = state_of(tmp_path / "a")
    (replay,) = state["memories"].values()
    assert replay["count"] >= 2000 and (replay["made"] - replay["gone"]).sum() > 100, "the replay was kept"
    assert train("r2d2/catch", tmp_path / "a", acting="thread", total_steps=2500, warm_up=300) == 0
    assert state_of(tmp_path / "a")["run"]["groups"] == [16, 16]
    assert train("r2d2/catch", tmp_path / "a", runtime="local", workers=3, total_steps=2800, warm_up=300) == 0
    state = state_of(tmp_path / "a")
    assert state["run"]["groups"] == [11, 11, 10] and len(state["actor"]["workers"]) == 3
    (replay,) = state["memories"].values()
    assert replay["count"] >= 2800 and (replay["made"] - replay["gone"]).sum() > 100


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_the_run_ends(tmp_path):
    """Mutation: rows of the new life are appended to unrolls of the old one; the run ends with the worker."""
    killed = []

    def kill():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not killed:
            time.sleep(0.3)
            rows = tmp_path / "run" / "metrics.jsonl"
            if rows.exists() and rows.stat().st_size:
                workers = [one for one in multiprocessing.active_children() if one.name.startswith("actor")]
                for worker in workers[:1]:
                    os.kill(worker.pid, signal.SIGKILL)
                    killed.append(worker.pid)

    thread = threading.Thread(target=kill)
    thread.start()
    values = {"total_steps": 60_000, "eval_every": 0, "log_every": 1000}
    assert train("impala/catch", tmp_path / "run", runtime="local", workers=2, **values) == 0
    thread.join()
    assert len(killed) == 1, "no fault was injected"
    rows = [row for row in rows_of(tmp_path / "run") if row["kind"] == "train"]
    assert rows[-1]["workers/worker_restarts"] >= 1 and rows[-1]["step"] >= 60_000
    assert not [one for one in psutil.Process().children() if one.pid in killed and one.status() != "zombie"]


def test_the_lag_of_a_run_is_limited_by_its_memory(tmp_path, monkeypatch):
    """L4: 100 % of what is stored. Mutation: the memory's limit does not reach the flow control."""
    seen, limits = [], []
    poll = Flow.poll

    def recorded(self, timeout):
        found = poll(self, timeout)
        seen.extend(each.lag for each in found if each.chunk is not None)
        limits.append(self.limits)
        return found

    monkeypatch.setattr(Flow, "poll", recorded)
    values = {"total_steps": 6000, "eval_every": 0, "unroll_length": 5, "batch_size": 4}
    values["bindings"] = ["Unrolls.max_policy_lag = 2"]
    assert train("impala/catch", tmp_path / "run", runtime="local", workers=2, **values) == 0
    assert limits[0].max_lag == 2 and limits[0].updates_per_chunk > 1
    assert len(seen) > 10 and max(seen) <= 2


def test_several_seeds_act_in_processes(tmp_path):
    assert train("impala/catch", tmp_path / "runs", num_seeds=2, total_steps=600, eval_every=0) == 0
    for seed in (0, 1):
        assert state_of(tmp_path / "runs" / f"seed_{seed}")["run"]["step"] >= 600


def test_tensors_travel_as_arrays_and_come_back():
    tree = {"a": [torch.ones(2, dtype=torch.bfloat16), torch.tensor(3)], "b": (np.zeros(2), None, 1.5)}
    packed = pack_tensors(tree)
    assert not any(isinstance(leaf, torch.Tensor) for leaf in trees.flatten(packed["b"]))
    back = unpack_tensors(packed)
    assert back["a"][0].dtype == torch.bfloat16 and torch.equal(back["a"][0], tree["a"][0])
    assert back["a"][1].shape == () and int(back["a"][1]) == 3
    assert isinstance(back["b"], tuple) and back["b"][1:] == (None, 1.5)
