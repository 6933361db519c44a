"""Workers as processes: one that is stopped blocks neither what is sent to it nor what it has half sent."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from packtrain.errors import EnvError
from packtrain.runtime.cluster.calls import Arrival, Beat, Call, Failure, Started
from packtrain.runtime.messages import GroupChunk, Report, WorkerReport, WorkerSetup
from packtrain.runtime.process_engine import ProcessEngine
from packtrain.types import Chunk, Row

BIG = 8 * 2**20


class Setup:
    """A worker without torch that answers with many bytes, stops in the middle of that, or hangs."""

    import_path = ()

    def build(self):
        return self

    def act(self, order, version, weights):
        if order == "hang":
            self.hung = True
            time.sleep(1000)
        flags = np.zeros((1, 1), bool)
        row = Row(np.zeros((1, 1, BIG), np.uint8), flags, flags, {}, flags, flags)
        report = WorkerReport(
            Report(1, [], False), 0, False, False, 1, answer=None if weights is None else len(weights)
        )
        return [GroupChunk(0, Chunk(row, (), {}))], report

    @property
    def progress(self):
        if getattr(self, "hung", False):
            raise EnvError("environment 3 did not answer within 60 s")
        return 7

    def close(self):
        pass


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # the worker imports `Setup` by this module's name
    found = ProcessEngine(lambda worker, life: Setup())
    found.spawn(0, "actor", 0, 0)
    yield found
    found.close()


def wait_for(engine, kind, secs=60):
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        for event in engine.ready(0.2):
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__}")


def call(number, order="act"):
    return Call(0, 0, number, number, b"w" * BIG, order, 0)


def test_a_stopped_process_does_not_block_its_engine(engine):
    """Mutations: `call` writes to the pipe itself; `ready` reads a message that never becomes whole."""
    wait_for(engine, Started)
    engine.call(call(0))
    assert wait_for(engine, Arrival).report.answer == BIG
    (life,) = engine._lives.values()
    engine.call(call(1))
    time.sleep(0.05)  # in the middle of a message, or before, or after
    os.kill(life.process.pid, signal.SIGSTOP)
    begin = time.monotonic()
    for number in range(2, 5):
        engine.call(call(number))
    while time.monotonic() - begin < 2:
        engine.ready(0.1)
    engine.kill(0, 0)
    assert time.monotonic() - begin < 20 and not life.process.is_alive()
    assert not engine.ready(0.1)


def test_a_process_that_dies_is_reported(engine):
    wait_for(engine, Started)
    (life,) = engine._lives.values()
    engine.ask_status(0, 0)
    assert wait_for(engine, Beat).progress == 7
    os.kill(life.process.pid, signal.SIGKILL)
    failure = wait_for(engine, Failure)
    assert failure.error == "the process ended with exit code -9" and not failure.raised


def test_an_environment_that_hangs_is_reported_by_its_own_process(engine):
    """Mutation: only the call's deadline ends it, and nothing says which environment it was."""
    wait_for(engine, Started)
    engine.call(call(0, "hang"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        engine.ask_status(0, 0)
        if failure := next((each for each in engine.ready(0.2) if isinstance(each, Failure)), None):
            break
    assert failure.raised and failure.error.splitlines()[-1].endswith("environment 3 did not answer within 60 s")
    assert not engine._lives


def test_environments_are_timed_and_decisions_are_not(monkeypatch):
    """The first reset has its own deadline. Mutations: one deadline for both; a planner's decision counts."""
    from packtrain.runtime import worker

    now = [0.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: now[0])
    columns = SimpleNamespace(busy_since=None, starting=True, times_itself=False, describe_busy=lambda: "environment 1")
    watch = worker.EnvWatch(SimpleNamespace(step_deadline_secs=60.0, start_deadline_secs=120.0), [columns])

    def looks(secs):
        seen = []
        for _ in range(int(secs / 5)):
            now[0] += 5
            seen.append(watch.look())
        return seen

    seen = looks(500)  # a decision
    assert len(set(seen)) == len(seen)
    columns.busy_since = now[0]
    looks(115)
    with pytest.raises(EnvError, match="environment 1 did not answer within 120 s"):
        looks(30)
    columns.starting, columns.busy_since = False, now[0]
    looks(55)
    with pytest.raises(EnvError, match="within 60 s"):
        looks(30)
    columns.busy_since = now[0]
    watch.look()
    now[0] += 3600  # the process was stopped
    watch.look()


def test_an_environment_made_in_a_worker_does_not_bind_the_worker_to_its_starter(monkeypatch):
    """A worker is a child process itself, and the thread that started it may end before it. Mutation: Linux ends the
    process in which an environment is made with the thread that started it."""
    from packtrain.envs import gymnasium_vector_env as envs

    bound = []
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    monkeypatch.setattr(envs, "die_with_parent", bound.append)
    factory = envs.Factory(lambda: gym.make("CartPole-v1"), "environment 0", "raise")
    factory().close()
    assert not bound


def test_several_workers_write_to_folders_of_their_own(tmp_path):
    """Mutation: all write to the same files, or make the folder on machines that do not have it."""
    from packtrain.runtime.worker import _own_folder

    def setup(folder, subfolder):
        return WorkerSetup(None, (0,), (1,), 0, 0, folder=folder, subfolder=subfolder)

    assert _own_folder(setup(str(tmp_path), "")) == tmp_path
    assert _own_folder(setup(str(tmp_path), "worker_1")) == tmp_path / "worker_1"
    assert _own_folder(setup(str(tmp_path / "elsewhere"), "worker_1")) is None and _own_folder(setup(None, "")) is None
