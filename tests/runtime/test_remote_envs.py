"""Groups of environments on servers: first come, first served, and what happens when a server ends."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packtrain.envs.vector_env import Outcome
from packtrain.errors import EnvError
from packtrain.metrics.bottleneck import bottleneck
from packtrain.runtime.cluster.calls import Arrival, Failure, Started
from packtrain.runtime.env_server import EnvAnswer
from packtrain.runtime.remote_envs import FAILURES, GOOD_ANSWERS, EnvServers


class Script:
    """An engine on simulated time, whose servers start and answer when the test says so."""

    def __init__(self):
        self.time, self.events, self.calls, self.lives, self.killed = 0.0, [], [], {}, []

    def now(self):
        return self.time

    def spawn(self, worker, role, life, seed):
        assert role == "env"
        self.lives[worker] = life

    def call(self, call):
        self.calls.append(call)

    def ready(self, timeout):
        events, self.events = self.events, []
        self.time += timeout if not events else 0.0
        return events

    def kill(self, worker, life):
        self.killed.append((worker, life))

    def close(self):
        pass

    def start(self, worker):
        self.events.append(Started(worker, self.lives[worker]))

    def answer(self, call, value=0.0, dropped=0):
        zeros = np.zeros(2, bool)
        outcome = Outcome(np.full((2, 1), value), zeros, {"train": np.zeros(2, np.float32)}, zeros, zeros, None)
        answer = EnvAnswer(call.order.group, outcome, dropped, 0)
        self.events.append(Arrival(call.worker, call.life, call.number, [], answer))

    def fail(self, worker, error="Boom"):
        self.events.append(Failure(worker, self.lives[worker], f"Traceback\n{error}"))

    def waiting(self, worker):
        found = [call for call in self.calls if call.worker == worker and call.life == self.lives[worker]]
        self.calls = [call for call in self.calls if call not in found]
        return found


def servers(blocks=((0,), (1,)), started=True):
    engine = Script()
    found = EnvServers(engine, blocks, start_secs=30.0, step_secs=10.0)
    found.poll(0.0)
    if started:
        for worker in range(len(blocks)):
            bring_up(engine, found, worker)
    return engine, found


def bring_up(engine, found, worker):
    engine.start(worker)
    found.poll(0.0)
    resets = engine.waiting(worker)
    assert resets and all(call.order.actions is None for call in resets)
    for call in resets:
        engine.answer(call)
    found.poll(0.0)


def test_a_slow_server_delays_its_own_groups_alone():
    """Mutation: groups are served in turn."""
    engine, found = servers()
    for group in (0, 1):
        found.take(group)
        found.send(group, np.zeros(2))
    engine.waiting(0)  # never answered
    for _ in range(50):
        (call,) = engine.waiting(1)
        engine.answer(call)
        found.poll(0.0)
        assert found.answered == [1]
        found.take(1)
        found.send(1, np.zeros(2))
    assert not engine.killed


def test_groups_are_listed_in_the_order_of_their_answers():
    engine, found = servers(((0, 1), (2,)))
    for group in (0, 1, 2):
        found.take(group)
        found.send(group, np.zeros(2))
    first, second = engine.waiting(0)
    (third,) = engine.waiting(1)
    for call in (third, second, first):
        engine.answer(call)
    found.poll(0.0)
    assert found.answered == [2, 1, 0]


def test_a_server_that_ends_begins_new_episodes_after_a_pause():
    """Mutations: an answer of the old life is used; actions chosen for the old episodes are sent to the new ones."""
    engine, found = servers()
    found.take(0)
    found.send(0, np.zeros(2))
    (old,) = engine.waiting(0)
    engine.answer(old, value=7.0)
    engine.fail(0)
    found.poll(0.0)
    assert 0 not in found.answered and engine.lives[0] == 0
    found.send(0, np.zeros(2))
    assert not engine.waiting(0)
    found.poll(0.6)
    found.poll(0.6)
    found.poll(0.0)
    assert engine.lives[0] == 1 and found.restarts == 1
    engine.start(0)
    found.poll(0.0)
    found.send(0, np.zeros(2))  # a decision on the row before the end
    (reset,) = engine.waiting(0)
    engine.answer(old, value=7.0)  # late
    engine.answer(reset, value=1.0)
    found.poll(0.0)
    assert found.is_new(0) and found.take(0).obs[0, 0] == 1.0 and not found.is_new(0)
    found.send(0, np.zeros(2))
    assert len(engine.waiting(0)) == 1


def test_a_server_that_does_not_answer_is_given_up():
    engine, found = servers()
    found.take(0)
    found.send(0, np.zeros(2))
    for _ in range(25):
        found.poll(0.5)
    assert engine.killed == [(0, 0)]
    assert found.answered == [1], "the others go on"


def test_time_in_which_this_process_was_stopped_does_not_count():
    """Mutation: the deadline is that of a clock on the wall."""
    engine, found = servers()
    found.take(0)
    found.send(0, np.zeros(2))
    engine.time += 3600
    found.poll(0.0)
    assert not engine.killed


def test_a_server_that_always_fails_is_left_out_and_the_others_go_on():
    """Mutation: it is started for ever; or the run ends with it."""
    engine, found = servers()
    found.take(1)
    for failure in range(FAILURES):
        engine.fail(0, f"Boom {failure}")
        found.poll(0.0)
        for _ in range(80):
            if engine.lives[0] == failure:
                found.poll(0.5)
        if failure < FAILURES - 1:
            bring_up(engine, found, 0)
            found.take(0)
    assert found.lost == [0] and engine.lives[0] == FAILURES - 1
    row = found.row()
    assert (row["env_servers_ready"], row["env_servers_left_out"], row["env_server_restarts"]) == (1, 1, FAILURES - 1)
    assert row["workers/workers_ready"] == 1 and row["workers/worker_1_steps_per_s"] > 0
    assert row["workers/chunk_bytes_per_s"] > 0 and bottleneck(row).startswith("environment-bound")
    with pytest.raises(EnvError, match="left out: Boom 4"):
        found.take(0)
    engine.fail(1, "Other")
    found.poll(0.0)
    found._servers[1].failures = FAILURES - 1
    found.poll(2.0)
    found.poll(0.0)
    bring_up(engine, found, 1)
    engine.fail(1, "Other")
    with pytest.raises(EnvError, match="all environment servers failed 5 times in a row; the first error: Boom 0"):
        found.poll(0.0)


def test_failures_far_apart_are_not_in_a_row():
    """Mutation: failures are counted over the whole run."""
    engine, found = servers()
    for _ in range(2 * FAILURES):
        found.take(0)
        for _ in range(GOOD_ANSWERS):
            found.send(0, np.zeros(2))
            (call,) = engine.waiting(0)
            engine.answer(call)
            found.poll(0.0)
            found.take(0)
        engine.fail(0)
        found.poll(0.0)
        found.poll(1.1)
        found.poll(0.0)
        bring_up(engine, found, 0)
    assert not found.lost and found.restarts == 2 * FAILURES


def test_dropped_episodes_are_counted_over_all_lives():
    engine, found = servers()
    found.take(0)
    found.send(0, np.zeros(2))
    (call,) = engine.waiting(0)
    engine.answer(call, dropped=3)
    found.poll(0.0)
    found.take(0)
    assert found.counts(0) == (3, 0)
    engine.fail(0)
    found.poll(0.0)
    found.poll(1.1)
    found.poll(0.0)
    bring_up(engine, found, 0)
    found.take(0)
    assert found.counts(0) == (3, 0)


EVENTS = st.sampled_from(["answer", "answer", "answer", "duplicate", "late", "fail", "start", "stop", "wait"])


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(EVENTS, st.integers(0, 2)), max_size=120))
def test_every_outcome_is_the_answer_to_the_latest_actions(schedule):
    """Random deaths, losses, duplicates and delays. Mutations: numbers or lives of answers are not looked at."""
    engine, found = servers(((0, 1), (2,), (3, 4)), started=False)
    sent, answered = {}, []  # by group: (life, order number) that its next outcome must answer

    def value(call):
        return 1000.0 * call.life + call.number

    def serve():
        for group in found.answered:
            obs = found.take(group).obs[0, 0]
            assert group not in sent or sent.pop(group) == obs, "an answer to other actions"
            found.send(group, np.zeros(2))
        for call in engine.calls:
            sent.setdefault(call.order.group, value(call))
            sent[call.order.group] = value(call)

    for event, worker in schedule:
        open_calls = [call for call in engine.calls if call.worker == worker]
        if event == "answer" and open_calls:
            call = open_calls[0]
            engine.calls.remove(call)
            answered.append(call)
            engine.answer(call, value(call))
        elif event in ("duplicate", "late") and answered:
            engine.answer(answered[worker % len(answered)], -1.0)  # of an earlier call, perhaps of an earlier life
        elif event == "fail":
            engine.fail(worker)
        elif event == "start":
            engine.start(worker)
        elif event == "stop":
            engine.time += 7.0
        elif event == "wait":
            for _ in range(4):
                found.poll(0.9)
        try:
            found.poll(0.0)
        except EnvError:
            assert len(found.lost) == 5, "only when all are left out"
            return
        serve()
