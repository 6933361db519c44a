"""The acting side in other processes, over an engine in simulated time: what it does while workers are missing."""

from types import SimpleNamespace

import numpy as np
import pytest

from packtrain.errors import ClusterLostError
from packtrain.memory.episodes import Episodes
from packtrain.runtime.cluster.calls import Arrival, Beat, Failure, Limits, Started
from packtrain.runtime.messages import GroupChunk, Order, Report, WorkerReport
from packtrain.runtime.remote_acting import Division, RemoteActing
from packtrain.types import Chunk, Row

COUNTED = {"episodes_dropped": 2, "search_steps_dropped": 0, "values_clipped": 1}


class Workers:
    """An engine whose workers answer at once, except those that a test has named."""

    def __init__(self):
        self.time, self.events, self.alive, self.spawned = 0.0, [], {}, []
        self.silent, self.slow_starts, self.bad = set(), set(), set()  # worker numbers
        self.over = set()  # workers that have finished their episodes
        self.asked, self.chunks, self.steps = [], {}, {}
        self.lost = False

    def now(self):
        return self.time

    def spawn(self, worker, role, life, seed):
        self.spawned.append((worker, life))
        if worker in self.bad:
            self.events.append(Failure(worker, life, "ValueError: bad", raised=True))
            return
        self.alive[worker] = life
        if worker not in self.slow_starts:
            self.events.append(Started(worker, life))

    def call(self, call):
        if call.worker in self.silent:
            return
        key, order = (call.worker, call.life), call.order
        answer = None
        if order.call is not None:
            self.asked.append((order.call, call.worker))
            lasting = [{"learned by": f"{call.worker}.{call.life}"}]
            answers = {"snapshot": ({"episode": call.worker}, lasting), "lasting_state": lasting}
            answer = answers.get(order.call, f"{order.call} of {call.worker}")
        else:
            self.steps[key] = self.steps.get(key, 0) + 1
        report = Report(self.steps.get(key, 0), [], False)
        chunks = self.chunks.pop(key, []) if order.call is None else []
        told = WorkerReport(
            report, order.round, call.worker in self.over, True, report.env_steps, dict(COUNTED), answer
        )
        self.events.append(Arrival(*call[:3], chunks, told, 1, 1))

    def die(self, worker):
        self.events.append(Failure(worker, self.alive.pop(worker), "Killed: signal 9"))

    def ask_status(self, worker, life):
        if worker not in self.silent:
            self.events.append(Beat(worker, life, int(self.time * 10)))

    def ready(self, timeout):
        self.check()
        if not self.events:
            self.time += timeout
        self.time += 0.01
        found, self.events = self.events, []
        return [each for each in found if self.alive.get(each.worker) == each.life or isinstance(each, Failure)]

    def kill(self, worker, life):
        self.alive.pop(worker, None)

    def put(self, version, weights):
        return weights

    def check(self):
        if self.lost:
            raise ClusterLostError("the head does not answer")


def make(workers=2, memories=None, exact=False, **limits):
    engine = Workers()
    experiment = SimpleNamespace(exploration=None, seed=3)
    blocks = [(worker,) for worker in range(workers)]
    limits = Limits(max_lag=None, last_delay=2.0, **limits)
    acting = RemoteActing(experiment, engine, limits, Division(blocks, [1] * workers), 0, Order(1), exact)
    acting.connect(memories or {}, None)
    while not all(acting._flow.is_ready(worker) or worker in engine.slow_starts for worker in range(workers)):
        acting.act(0.1)
    for _ in range(5):
        acting.act(0.1)
    return acting, engine


def lose(acting, engine, how):
    """Take worker 1 away: it is retired, starts again, or is stopped."""
    if how == "stopped":
        engine.silent.add(1)
        end = engine.time + 5
    else:
        (engine.bad if how == "retired" else engine.slow_starts).add(1)
        engine.die(1)
        end = engine.time + (60 if how == "retired" else 3)
    while engine.time < end:
        acting.act(0.1)
    assert acting._flow.is_retired(1) == (how == "retired")


@pytest.mark.parametrize("how", ["retired", "starting", "stopped"])
def test_checkpoints_and_evaluations_do_not_wait_for_a_missing_worker(how):
    """At most 10 s. Mutation: they wait until every worker is ready, for 180 s, and end the run then."""
    acting, engine = make()
    lose(acting, engine, how)
    begin = engine.time
    assert acting.snapshot() is None, "environments of a worker that is missing cannot be saved"
    assert acting.lasting_state() == [{"learned by": "0.0"}, {}]
    assert acting.evaluation_state() == "evaluation_state of 0"
    assert acting.row()["episodes_dropped"] >= 4
    assert engine.time - begin < 10
    steps = acting.act(0.1).env_steps
    assert acting.act(0.5).env_steps > steps, "the others do not go on"


def test_a_round_is_over_without_a_retired_worker():
    """Mutation: the round waits for its episodes for ever."""
    acting, engine = make()
    lose(acting, engine, "retired")
    acting.begin_round(SimpleNamespace(memories=(), policy="policy"))
    engine.over.add(0)
    end = engine.time + 20
    while not acting.round_is_over() and engine.time < end:
        acting.act(0.1)
    assert acting.round_is_over()


def test_a_serial_run_waits_for_a_stopped_worker_until_its_deadline():
    """It promises equal data. Mutation: it takes a checkpoint without the environments."""
    acting, engine = make(exact=True, call_secs=30.0, dead_secs=1000.0)
    engine.silent.add(1)
    begin = engine.time
    acting.act(0.1)
    acting.snapshot()
    assert engine.time - begin > 20 and engine.alive.get(1) != 0


def test_an_evaluation_uses_the_state_of_another_worker_if_the_first_is_missing():
    acting, engine = make()
    engine.slow_starts.add(0)
    engine.die(0)
    acting.act(0.1)
    assert acting.evaluation_state() == "evaluation_state of 1"
    engine.slow_starts.add(1)
    engine.die(1)
    acting.act(0.1)
    assert acting.evaluation_state() == "evaluation_state of 1", "the latest answer"


def test_lasting_state_of_a_single_worker_outlives_it():
    """Mutations: only checkpoints of several workers keep it; a resumed run has none until its next checkpoint."""
    acting, engine = make(workers=1)
    assert acting.lasting_of(0) == ()
    assert acting.snapshot() == {"episode": 0}
    assert acting.lasting_of(0) == ({"learned by": "0.0"},)
    acting, engine = make(workers=1)
    acting.restore({"seats": [{"learned by": "a run before"}], "run": {"env_steps": 5}})
    assert acting.lasting_of(0) == ({"learned by": "0.0"},), "what the worker says after it was restored"


def test_counts_do_not_fall_when_a_worker_dies():
    """Mutation: only current lives are counted."""
    acting, engine = make()
    assert acting.row()["episodes_dropped"] == 4 and acting.row()["values_clipped"] == 2
    engine.die(0)
    while engine.time < 10:
        acting.act(0.1)
        assert acting.row()["episodes_dropped"] >= 4
    assert acting.row()["episodes_dropped"] == 6 and acting.row()["values_clipped"] == 3


def test_acting_ends_when_the_run_is_asked_to_stop():
    """No worker answers. Mutation: `act` waits until there are rows."""
    acting, engine = make()
    engine.silent |= {0, 1}
    acting.act(0.0)
    acting.stopping = lambda: engine.time > 5
    begin = engine.time
    acting.act(None)
    assert 0 < engine.time - begin < 6


def test_a_run_that_starves_says_which_worker_it_waits_for(caplog):
    """Mutation: nothing is logged."""
    acting, engine = make(workers=1, dead_secs=1e9, call_secs=1e9)
    engine.silent.add(0)
    begin = engine.time
    while engine.time < begin + 150:
        acting.act(0.2)
    said = [record.message for record in caplog.records if "has waited" in record.message]
    assert len(said) == 2 and said[0].startswith("the run has waited 60 s for workers: worker 0 has not answered for")


def test_a_lost_cluster_is_noticed_without_acting():
    """While it learns or evaluates, a serial run polls no worker. Mutation: `check` does nothing."""
    acting, engine = make()
    acting.check()
    engine.lost = True
    with pytest.raises(ClusterLostError):
        acting.check()
    assert acting.lasting_state() == [], "workers of a lost cluster are not asked"


def rows(length, ends):
    """The first rows of a round of two environments; `ends`: the rows in which their episodes end."""
    values = np.repeat(np.arange(length, dtype=np.float32)[:, None], 2, 1)
    over = np.arange(length)[:, None] == np.array(ends)
    row = Row(
        obs=values[..., None],
        first=values == 0,
        last_action=values,
        last_reward={"train": values},
        terminated=over,
        truncated=np.zeros((length, 2), bool),
    )
    return Chunk(row, (), {"solved": over})


def test_a_life_that_follows_in_the_middle_of_a_round_plays_the_round_again():
    """Mutation: the episode memory keeps the unfinished round of the life before."""
    memory = Episodes(capacity=100, batch_size=4).build([2, 2], 0, "cpu")
    acting, engine = make(memories={"episodes": memory})
    acting.begin_round(SimpleNamespace(memories=("episodes",), policy="policy"))
    engine.chunks[0, 0] = [GroupChunk(0, rows(5, ends=(2, 9)))]
    while (0, 0) in engine.chunks:
        acting.act(0.1)
    acting.act(0.1)
    engine.die(0)
    engine.chunks[0, 1] = [GroupChunk(0, rows(4, ends=(3, 2)))]
    while (0, 1) in engine.chunks or not memory.episodes:
        acting.act(0.1)
        assert engine.time < 100
    assert memory.episodes == 2 and len(memory) == 5
    assert acting.lives == [1, 0]
