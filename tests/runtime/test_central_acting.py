"""--inference learner: the data of a thread, servers that die, rows that wait, and what cannot act from afar."""

import copy
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from packtrain import cli, config, knobs
from packtrain.errors import ConfigError
from packtrain.runtime import central_acting, checkpoint, open_run, train_command
from packtrain.runtime.acting import ActingOptions
from packtrain.runtime.cluster.calls import Arrival, Failure, Started
from packtrain.runtime.learning import build_learning
from packtrain.runtime.messages import Remote
from tests.runtime.test_process_acting import assert_equal

CPU = torch.device("cpu")
CASES = {
    "built-in": ("impala/catch", {"total_steps": 2000, "eval_every": 1000}),
    "gymnasium": ("impala/gym", {"env": "MountainCar-v0", "total_steps": 600, "eval_every": 0, "num_actors": 4}),
    "atari": ("impala/pong", {"total_steps": 400, "eval_every": 0, "num_actors": 2, "batch_size": 2}),
    "replay": ("r2d2/catch", {"total_steps": 1200, "warm_up": 400, "eval_every": 0}),
}


def train(name, folder, remote=None, runtime="serial", bindings=(), **values):
    path, _ = knobs.find_config(name)
    folder = Path(folder)
    request = open_run.TrainRequest([path], list(bindings), values, folder, 3, None, runtime, remote=remote)
    return train_command.train(request)


def state_of(folder):
    return checkpoint.load_newest(Path(folder) / "checkpoints")[1]


def rows_of(folder):
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"]


def servers():
    return [child for child in multiprocessing.active_children() if child.name.startswith("env ")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not servers()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [1, 2])
def test_servers_step_row_for_row_like_a_thread(tmp_path, case, count):
    """Mutations: seeds of the servers' own; actions of the group before; rows stored in another order."""
    name, values = CASES[case]
    if count == 2 and case != "built-in":
        pytest.skip("one case with two servers is enough")
    groups = [f"Streams.groups = {count}"]
    assert train(name, tmp_path / "thread", bindings=groups, **values) == 0
    remote = Remote("process", count, inference="learner")
    assert train(name, tmp_path / "servers", remote, bindings=groups, **values) == 0
    one, other = state_of(tmp_path / "thread"), state_of(tmp_path / "servers")
    assert_equal(one["learners"], other["learners"])
    assert_equal(one["weights"], other["weights"])
    ignored = {"wall_s", "steps_per_second", "frames_per_second", "actor_busy", "learner_busy", "rss_mb"}
    for row, same in zip(rows_of(tmp_path / "thread"), rows_of(tmp_path / "servers"), strict=True):
        assert {n: v for n, v in row.items() if n not in ignored} == {n: v for n, v in same.items() if n not in ignored}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["impala/catch", "r2d2/catch"])
def test_a_server_that_is_killed_is_replaced_and_the_run_ends(tmp_path, name):
    """Mutation: the run ends with the server, or waits for it for ever."""
    killed, torch_free = [], []

    def kill():
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and not killed:
            time.sleep(0.1)
            rows = tmp_path / "run" / "metrics.jsonl"
            if rows.exists() and rows.stat().st_size and len(found := servers()) == 2:
                maps = {Path(one.path).name for each in found for one in psutil.Process(each.pid).memory_maps()}
                torch_free.append(not any("torch" in one for one in maps))
                os.kill(found[0].pid, signal.SIGKILL)
                killed.append(found[0].pid)

    thread = threading.Thread(target=kill)
    thread.start()
    values = {"total_steps": 60_000, "eval_every": 0, "log_every": 1000}
    values |= {"warm_up": 400, "updates_per_step": 0.01} if name.startswith("r2d2") else {}
    remote = Remote("process", 2, inference="learner")
    assert train(name, tmp_path / "run", remote, "local", **values) == 0
    thread.join()
    assert killed and torch_free == [True], "no fault was injected, or torch is loaded where environments run"
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["env_server_restarts"] == 1 and rows[-1]["step"] >= 60_000
    gaps = [after["wall_s"] - row["wall_s"] for row, after in zip(rows[:-1], rows[1:], strict=True)]
    assert max(gaps) < 10, "the other server's group is served meanwhile"


def test_a_run_resumes_with_servers_and_without(tmp_path):
    """Mutation: the acting part of the other kind is loaded."""
    values = {"eval_every": 0, "warm_up": 300}
    assert train("r2d2/catch", tmp_path / "run", total_steps=600, **values) == 0
    remote = Remote("process", 1, inference="learner")
    assert train("r2d2/catch", tmp_path / "run", remote, total_steps=900, **values) == 0
    assert "actor" not in state_of(tmp_path / "run")
    assert train("r2d2/catch", tmp_path / "run", total_steps=1200, **values) == 0
    (replay,) = state_of(tmp_path / "run")["memories"].values()
    assert replay["count"] >= 1200, "the replay was kept"


class Here:
    """An engine whose servers live in this process, answer at once, and die when the test says so."""

    def __init__(self, setup):
        self.setup, self.servers, self.lives, self.events, self.time = setup, {}, {}, [], 0.0

    def now(self):
        return self.time

    def spawn(self, worker, role, life, seed):
        self.servers[worker], self.lives[worker] = self.setup(worker, life).build(), life
        self.events.append(Started(worker, life))

    def call(self, call):
        if call.worker in self.servers:
            chunks, answer = self.servers[call.worker].act(call.order, 0, None)
            self.events.append(Arrival(call.worker, call.life, call.number, chunks, copy.deepcopy(answer)))

    def ready(self, timeout):
        self.time += 0.1 + timeout
        events, self.events = self.events, []
        return events

    def die(self, worker):
        self.servers.pop(worker).close()
        self.events.append(Failure(worker, self.lives[worker], "killed"))

    def kill(self, worker, life):
        self.servers.pop(worker, None)

    def close(self):
        pass


def faulty(monkeypatch, count=2, **values):
    """Return an acting side over servers in this process, its engine and the memory that it fills."""
    engines = []

    def engine_for(setup, launched):
        engines.append(Here(setup))
        return engines[0]

    monkeypatch.setattr(central_acting, "engine_for", engine_for)
    path, _ = knobs.find_config("impala/gym")
    values = {
        "env": "packtrain.testing.faulty:Faulty",
        "num_actors": 4,
        "batch_size": 4,
        "unroll_length": 5,
    } | values
    experiment = config.build(config.load([path], [], values, seed=1))
    spec = experiment.probe()
    remote = Remote("process", count, inference="learner")
    acting = central_acting.central_acting(remote, experiment, spec, CPU, ActingOptions())
    learning = build_learning(experiment, spec, CPU, acting.group_sizes, acting.context)
    acting.connect(learning.memories, learning.weights)
    (memory,) = learning.memories.values()
    return acting, engines[0], memory


def test_rows_of_a_new_life_begin_with_a_reset(monkeypatch):
    """Faulty counts its steps. Mutations: the first row of a life has no `first`; an answer of the old life is used."""
    acting, engine, memory = faulty(monkeypatch)
    deaths = unrolls = 0
    for step in range(2000):
        if step % 97 == 50:
            engine.die(step // 97 % 2)
            deaths += 1
        acting.act()
        while memory.ready():
            trajectory = memory.sample(version=0).trajectory
            count = trajectory.obs[-len(trajectory.reward) - 1 :, :, 0]  # [T+1, B]
            first = trajectory.first[-len(trajectory.reward) :]
            assert (count[1:] == torch.where(first, 0.0, count[:-1] + 1)).all()
            unrolls += trajectory.reward.shape[1]
    assert deaths == 21 and unrolls > 300
    assert acting.row()["env_server_restarts"] == deaths


def test_an_episode_that_was_cut_is_not_counted(monkeypatch):
    """Faulty's episodes last 20 steps. Mutation: the lengths go on in the next life."""
    acting, engine, memory = faulty(monkeypatch)
    lengths = []
    for step in range(1000):
        if step % 97 == 50:
            engine.die(step // 97 % 2)
        for finished in acting.act().finished:
            lengths += finished.length.tolist()
        while memory.ready():
            memory.sample(version=0)
    assert len(lengths) > 50 and set(lengths) == {20}


def test_rows_wait_for_room_in_their_order(monkeypatch):
    """Mutations: a row is dropped when the queue is full; rows of a group are stored in another order."""
    acting, engine, memory = faulty(monkeypatch)
    stored = []
    for group in range(2):
        writer = memory.writer(group)
        monkeypatch.setattr(
            writer, "add", lambda row, *_, g=group, add=writer.add: (stored.append((g, row)), add(row, *_))
        )
    room = [True]
    monkeypatch.setattr(type(memory), "room", lambda self, group: int(room[0]))
    for step in range(200):
        room[0] = step % 3 == 0
        acting.act(0.0)
        while memory.ready():
            memory.sample(version=0)
    for group in range(2):
        steps = [float(row.obs[0, 0]) for g, row in stored if g == group]
        assert len(steps) > 40
        assert all(after == before + 1 or after == 0 for before, after in zip(steps[:-1], steps[1:], strict=True))


def test_groups_that_are_ready_are_one_batch(monkeypatch):
    acting, engine, memory = faulty(monkeypatch, count=4)
    sizes = []
    act = acting.policy.act
    monkeypatch.setattr(
        acting.policy, "act", lambda rows, carry: (sizes.append(rows.first.shape[1]), act(rows, carry))[1]
    )
    for _ in range(10):
        acting.act()
    assert sizes[-1] == 4 and acting.row()["groups_per_batch"] > 2


def test_planners_act_beside_their_simulator():
    path, _ = knobs.find_config("planning/mcts_hanoi")
    experiment = config.build(config.load([path], [], {}))
    with pytest.raises(
        ConfigError,
        match="--inference learner is not supported for planners, which act in the process of their simulator",
    ):
        central_acting.refuse_central(experiment)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--inference", "lerner"], "--inference 'lerner' is not one of worker, learner"),
        (["--inference", "learner", "--acting", "thread"], "leave --acting thread out"),
        (["--inference", "learner", "--workers", "500"], "--workers 500: 128 environments can be divided"),
    ],
)
def test_flags_that_do_not_fit_are_refused(tmp_path, capsys, flags, message):
    assert cli.main(["train", "impala/catch", "--output_dir", str(tmp_path / "run"), *flags]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def children_of(pid):
    """Return the spawned processes below a process: those that have loaded torch, and the others."""
    learners, servers = [], []
    for each in psutil.Process(pid).children():
        try:
            if "spawn_main" in " ".join(each.cmdline()):
                loaded = any("libtorch" in Path(one.path).name for one in each.memory_maps())
                (learners if loaded else servers).append(each.pid)
        except psutil.Error:
            continue
    return learners, servers


@pytest.mark.long
@pytest.mark.parametrize(
    "words", [["impala/catch", "--log_every", "2000"], ["r2d2/catch", "--warm_up", "1000", "--log_every", "200"]]
)
def test_a_run_survives_twelve_kills_of_learners_and_environment_servers(tmp_path, words):
    """Kills at random times. Mutation: any of them ends the run, or leaves a process behind."""
    flags = ["--learners", "2", "--inference", "learner", "--workers", "3", "--total_steps", "100000000"]
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "packtrain", "train", *words, *flags, "--output_dir", str(folder)]
    log = open(tmp_path / "log", "wb")  # noqa: SIM115
    run = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    rng, killed = random.Random(1), {"learner": 0, "server": 0}
    try:
        deadline = time.monotonic() + 400
        while sum(killed.values()) < 12:
            assert run.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(rng.uniform(2, 8))
            learners, servers = children_of(run.pid)
            if not (folder / "metrics.jsonl").exists() or not rows_of(folder):
                continue
            kind = "learner" if sum(killed.values()) % 4 == 3 else "server"
            victims = learners if kind == "learner" else servers
            if victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
                killed[kind] += 1
        step = rows_of(folder)[-1]["step"]
        while rows_of(folder)[-1]["step"] <= step:
            assert run.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130, (tmp_path / "log").read_text()
    finally:
        run.kill()
        log.close()
    rows = rows_of(folder)
    gap = max(after["wall_s"] - row["wall_s"] for row, after in zip(rows[:-1], rows[1:], strict=True))
    print(f"{words[0]}: {killed}, {len(rows)} rows, {rows[-1]['step']:,} steps, longest gap {gap:.1f} s")
    assert killed == {"learner": 3, "server": 9} and gap < 60
    assert rows[-1]["learner_restarts"] == 3 and rows[-1]["env_server_restarts"] == 9
