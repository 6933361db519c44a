"""A replay in shards, without Ray: a fake engine runs them in this process, and one test kills real processes."""

import collections
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from packtrain import knobs
from packtrain.errors import CheckpointError, ConfigError, WorkersLostError
from packtrain.memory.sequence_settings import Sequences
from packtrain.runtime import shard_calls
from packtrain.runtime.cluster.calls import Arrival, Failure, Started
from packtrain.runtime.preparation import prepare
from packtrain.runtime.process_engine import ProcessEngine
from packtrain.runtime.sharded_memory import ShardedMemory, _divide
from packtrain.types import Chunk, Row

CPU = torch.device("cpu")
SIZES = Sequences(capacity=4000, sequence_length=4, burn_in=2, stride=2, n_step=2, batch_size=32, warm_up=40)
ENVS = 2


class FakeEngine:
    """Shards in this process; every answer arrives one poll later, and `crash` ends a shard with what it held."""

    def __init__(self, setup):
        self.setup, self.shards, self.events, self.broken = setup, {}, collections.deque(), False
        self.time, self.tick = 0.0, 0.1

    def now(self):
        self.time += self.tick
        return self.time

    def spawn(self, shard, role, life, seed):
        assert role == "replay"
        if self.broken:
            self.events.append(Failure(shard, life, "ValueError: no disk"))
            return
        self.shards[shard] = self.setup(shard, life).build()
        self.events.append(Started(shard, life))

    def call(self, call):
        if call.worker not in self.shards:
            return  # it has ended, and `ready` will report it
        chunks, report = self.shards[call.worker].act(call.order, 0, None)
        self.events.append(Arrival(call.worker, call.life, call.number, chunks, report))

    def ready(self, timeout):
        events, self.events = list(self.events), collections.deque()
        return events

    def kill(self, shard, life):
        self.shards.pop(shard, None)

    def crash(self, shard):
        self.shards.pop(shard)
        self.events = collections.deque(each for each in self.events if each.worker != shard)
        self.events.append(Failure(shard, memory_life(self, shard), "killed"))

    def close(self):
        pass


def memory_life(engine, shard):
    return engine.lives[shard]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Return a function that makes a memory of four groups, and its fake engine."""
    monkeypatch.setattr("packtrain.runtime.sharded_memory.POLL_SECS", 0.0)
    (tmp_path / "run").mkdir()

    def make(shards, sizes=SIZES, groups=(ENVS,) * 4, name="replay", save_secs=1e9, kind=FakeEngine):
        engines = []

        def open_engine(count, setup):
            engine = kind(setup)
            engine.lives = collections.Counter()
            spawn = engine.spawn

            def spawn_and_note(shard, role, life, seed):
                engine.lives[shard] = life
                spawn(shard, role, life, seed)

            engine.spawn = spawn_and_note
            engines.append(engine)
            return engine

        memory = ShardedMemory(sizes, groups, 0, CPU, shards, open_engine, save_secs)
        memory.reseed(5)
        memory.attach(tmp_path / "run" / "replay" / name)
        return memory, engines[0]

    return make


def chunk(begin, rows=8, envs=ENVS, group=0):
    """Return rows whose observations are 1000 · group + number; an episode begins at row 0."""
    number = begin + np.arange(rows)
    obs = np.broadcast_to((1000.0 * group + number)[:, None, None], (rows, envs, 1)).astype(np.float32)
    first = np.broadcast_to((number == 0)[:, None], (rows, envs))
    no, zeros = np.zeros((rows, envs), bool), np.zeros((rows, envs), np.float32)
    row = Row(obs.copy(), first.copy(), np.zeros((rows, envs), np.int64), {"train": zeros}, no, no)
    return Chunk(row, (), {})


def fill(memory, rows=40, groups=4, begin=0):
    for start in range(begin, begin + rows, 8):
        for group in range(groups):
            while not memory.room(group):
                pass
            memory.writer(group).add_many(chunk(start, group=group))
    settle(memory)


def settle(memory):
    while (
        any(memory._processes.waiting(shard) for shard in range(memory._count))
        or memory._processes.ready < memory._count
    ):
        memory._poll(0.001)
    memory._poll(0.001)


def test_batches_hold_rows_of_all_parts_as_they_were_added(opened):
    """Mutations: keys of different parts coincide; parts are joined along time; a part is left out."""
    memory, _ = opened(2)
    assert memory.sample() is None
    settle(memory)
    fill(memory)
    assert memory.ready() and memory.steps == 4 * ENVS * 39
    sample = memory.sample()
    obs = sample.trajectory.obs[..., 0]
    assert obs.shape == (8, 32) and sample.keys.shape == (32,) and sample.importance_weight.max() == 1
    present = obs[2:]  # the first two may be missing in front of an episode
    assert (present.diff(dim=0) == 1).all(), "rows of a sequence follow each other"
    groups = (present[0] // 1000).int()
    assert sorted(groups.unique().tolist()) == [0, 1, 2, 3]
    assert torch.equal(groups, (sample.keys % 4).int()), "a key says which part its sequence is in"


def test_new_priorities_reach_the_part_of_their_key(opened):
    """Mutation: keys are sent without being divided by the number of parts."""
    memory, engine = opened(2)
    settle(memory)
    fill(memory)
    before = dict(memory._masses)
    sample = memory.sample()
    errors = torch.where(sample.keys % 4 == 3, 1000.0, 1e-4)
    memory.update_priorities(sample.keys, errors)
    settle(memory)
    assert memory._masses[3] > 100 * before[3] and all(memory._masses[group] < before[group] for group in range(3))
    counts = collections.Counter((memory.sample().keys % 4).tolist())
    assert counts[3] >= 31, "a batch takes from parts in proportion to their priorities"
    assert memory.dropped == 0


def test_importance_weights_are_those_of_one_memory(opened):
    """Mutation: weights are normalised within each part."""
    memory, _ = opened(2, replace(SIZES, importance_exponent=1.0, importance_exponent_end=1.0, priority_exponent=1.0))
    settle(memory)
    fill(memory)
    sample = memory.sample()
    memory.update_priorities(sample.keys, 1.0 + (sample.keys % 4).float())
    settle(memory)
    sample, drawn = memory.sample(), collections.defaultdict(set)
    for key, weight in zip((sample.keys % 4).tolist(), sample.importance_weight.tolist(), strict=True):
        drawn[key].add(round(weight, 3))
    smallest = min(1 + group for group in drawn)
    for group, weights in drawn.items():
        assert weights & {round(smallest / (1 + group), 3), round(smallest, 3)}, (group, weights)


def test_a_crashed_shard_is_loaded_again_and_what_it_lost_is_counted(opened):
    """Mutations: the next life begins empty; steps after the last save are not counted; batches wait for the shard."""
    memory, engine = opened(2)
    settle(memory)
    fill(memory, rows=80)
    memory.snapshot()  # saves both shards
    fill(memory, rows=16, begin=80)
    held = {shard: each.act(_look(), 0, None)[1].steps for shard, each in engine.shards.items()}
    engine.crash(1)
    memory._poll(0.001)
    assert memory.ready(), "the other shard serves batches"
    assert set((memory.sample().keys % 4 % 2).tolist()) == {0}
    memory.writer(1).add_many(chunk(96, group=1))
    assert memory.lost == 8 * ENVS, "rows for a shard that is gone are lost"
    settle(memory)
    assert memory.lost == 8 * ENVS + 2 * 16 * ENVS, "the rows of two groups since the last save"
    assert engine.shards[1].act(_look(), 0, None)[1].steps == held[1] - 2 * 16 * ENVS
    assert engine.lives == {0: 0, 1: 1}
    sample = memory.sample()
    assert set((sample.keys % 4).tolist()) == {0, 1, 2, 3}
    assert memory.report() == {"replay_shards_ready": 2, "replay_shard_restarts": 1}


def _look():
    from packtrain.runtime.replay_shard import ShardOrder

    return ShardOrder("look")


def test_a_shard_saves_itself_from_time_to_time(opened):
    """Mutation: only checkpoints of the run save it."""
    memory, engine = opened(1, save_secs=0.0)
    settle(memory)
    fill(memory, rows=80)
    engine.crash(0)
    settle(memory)
    assert memory.lost == 0 and memory.steps == 4 * ENVS * 79
    assert memory.sample() is not None


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_a_checkpoint_goes_on_with_another_number_of_shards(opened, shards):
    """Mutation: parts are restored by the number of their shard."""
    memory, _ = opened(2)
    settle(memory)
    fill(memory)
    saved = memory.snapshot()
    again, _ = opened(shards, name="again")
    # segments are files of the folder: this test's parts are too short to have any
    again.restore(saved, same_episodes=True)
    assert again.steps == memory.steps and again._masses == pytest.approx(memory._masses)
    fill(again, begin=40)
    assert sum(engine_steps(again)) == 4 * ENVS * 79
    obs = again.sample().trajectory.obs[2:, :, 0]
    assert (obs.diff(dim=0) == 1).all()


def engine_steps(memory):
    return [answer.steps for answer in memory._answers.values()]


def test_a_checkpoint_without_a_shard_that_was_gone_uses_what_the_shard_saved(opened, monkeypatch):
    """Mutation: parts that are missing in a checkpoint begin empty."""
    monkeypatch.setattr("packtrain.runtime.sharded_memory.BACK_SECS", 0.0)
    memory, engine = opened(2)
    settle(memory)
    fill(memory)
    memory.snapshot()
    engine.crash(1)
    engine.tick = 0.0  # no new life starts
    saved = memory.snapshot()
    assert [group for group, part in saved["parts"].items() if part is None] == ["1", "3"]
    again, _ = opened(2)
    again.restore(saved, same_episodes=False)
    assert sum(engine_steps(again)) == 4 * ENVS * 39


def test_what_cannot_be_is_one_line(opened):
    memory, engine = opened(2)
    settle(memory)
    with pytest.raises(ConfigError, match="--replay_shards 5: the environments form 4 groups"):
        opened(5)
    with pytest.raises(CheckpointError, match="leave --replay_shards out"):
        memory.restore({"sinks": []})
    with pytest.raises(CheckpointError, match="same groups of environments only"):
        memory.restore({"parts": {}, "groups": [1]})
    with pytest.raises(CheckpointError, match="repeat --replay_shards"):
        SIZES.build([2, 2], 0, CPU).restore({"parts": {}})
    engine.broken = True
    engine.crash(0)
    with pytest.raises(WorkersLostError, match="replay shard 0 cannot run: killed"):
        for _ in range(20000):
            memory._poll(0.001)


def test_settings_of_parts_are_not_those_that_a_run_writes_down():
    """Mutation: a part's settings are recorded, so that the run cannot be resumed."""
    path, _ = knobs.find_config("r2d2/catch")
    configuration, experiment, _ = prepare([path], [], {}, 3, False)
    (settings,) = experiment.memories.values()
    before = configuration.identity()
    assert settings.shard(8, 32).capacity == settings.length(32) * 8 != settings.capacity
    assert (
        configuration.identity() == before
        and f"capacity = {settings.shard(8, 32).capacity}" not in configuration.text()
    )


def test_parts_are_taken_from_in_proportion_to_their_mass():
    counts = _divide(100, {2: 1.0, 5: 3.0}, np.random.default_rng(0))
    assert counts == {2: 25, 5: 75}


@pytest.mark.slow
def test_a_killed_process_loses_at_most_what_it_had_not_saved(opened, monkeypatch):
    """Mutations: an order to a process that ended is waited for forever; the next process does not load."""
    monkeypatch.setattr(shard_calls, "FIRST_DELAY", 0.1)
    path = tuple(sys.path)
    memory, _ = opened(
        2,
        kind=lambda setup: ProcessEngine(lambda shard, life: replace(setup(shard, life), import_path=path)),
        save_secs=0.5,
    )
    try:
        settle(memory)
        fill(memory, rows=80)
        time.sleep(0.6)
        fill(memory, rows=16, begin=80)  # saves: more than 0.5 s have passed
        process = multiprocessing.active_children()[0]
        os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while memory._processes.restarts == 0:
            assert memory.sample() is not None and time.monotonic() < deadline
        settle(memory)
        assert memory.lost <= 2 * 16 * ENVS and set((memory.sample().keys % 2).tolist()) == {0, 1}
    finally:
        memory.close()
    assert not multiprocessing.active_children()
