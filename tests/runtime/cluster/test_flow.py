"""Flow control over an engine that exists in simulated time only: delays, losses, duplicates, hangs and deaths."""

import heapq
import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packtrain.errors import WorkersLostError
from packtrain.metrics.bottleneck import bottleneck
from packtrain.runtime.cluster.calls import Arrival, Beat, Failure, Limits, Started
from packtrain.runtime.cluster.flow import Flow

CHUNK, WEIGHTS = 100, 10


class FakeEngine:
    """Workers that answer after a delay, or as `faults` say; checks what a caller must never do."""

    def __init__(self, limits, faults=None, delay=1.0, start=2.0, seed=0):
        self.limits, self.faults, self.delay, self.start = limits, faults or {}, delay, start
        self.random = random.Random(seed)
        self.time = 0.0
        self.alive, self.roles, self.busy_until, self.silent = {}, {}, {}, set()
        self.outstanding = {}  # (worker, life, number) → version
        self.heap, self.ids = [], itertools.count()
        self.calls, self.spawned, self.killed, self.puts = [], [], [], []
        self.most_bytes = 0
        self.late = 0.0  # how long `ready` waits beyond its timeout

    def now(self):
        return self.time

    def at(self, delay, event):
        heapq.heappush(self.heap, (self.time + delay, next(self.ids), event))

    def happens(self, fault):
        return self.random.random() < self.faults.get(fault, 0.0)

    def spawn(self, worker, role, life, seed):
        assert worker not in self.alive, "a second life beside a living one"
        self.alive[worker], self.roles[worker] = life, role
        self.spawned.append((worker, role, life, seed))
        self.busy_until[worker] = self.time
        self.silent.discard(worker)
        if self.happens("bad start"):
            self.die(worker, self.start)
        elif not self.happens("no start"):
            self.at(self.start, Started(worker, life))

    def die(self, worker, delay):
        self.at(delay, Failure(worker, self.alive[worker], "Traceback\nKilled: signal 9"))

    def call(self, call):
        assert self.alive.get(call.worker) == call.life, "a call to a life that has ended"
        mine = [key for key in self.outstanding if key[:2] == call[:2]]
        assert len(mine) < self.limits.calls_per_worker, "too many calls in flight"
        key = call[:3]
        assert key not in {each[:3] for each in self.calls}, "a number was used twice"
        self.calls.append(call)
        self.outstanding[key] = call.version
        if self.limits.max_bytes is not None:
            results = sum(self.roles[worker] == "actor" for worker, _, _ in self.outstanding)  # others are small
            size = results * CHUNK + len(set(self.outstanding.values())) * WEIGHTS
            self.most_bytes = max(self.most_bytes, size)
            assert size <= self.limits.max_bytes, "too many bytes in flight"
        if call.worker in self.silent:
            return
        if self.happens("hang"):
            self.silent.add(call.worker)
            return
        secs = self.delay * (1 + self.random.random() * self.faults.get("jitter", 0.0))
        begin = max(self.busy_until[call.worker], self.time)
        self.busy_until[call.worker] = begin + secs
        delay = begin + secs - self.time
        if self.happens("death"):
            self.die(call.worker, delay)
            self.silent.add(call.worker)
        elif not self.happens("loss"):
            arrival = Arrival(*key, chunk=key, report=f"report {key}", size=CHUNK, steps=8)
            delay += 5 * self.random.random() * self.faults.get("shuffle", 0.0)
            self.at(delay, arrival)
            if self.happens("duplicate"):
                self.at(delay + self.random.random(), arrival)

    def ask_status(self, worker, life):
        if worker not in self.silent:
            self.at(0.01, Beat(worker, life, int(100 * min(self.time, self.busy_until[worker]))))

    def ready(self, timeout):
        assert 0 <= timeout < float("inf")
        end = self.time + timeout
        if not self.heap or self.heap[0][0] > end:
            self.time = end + self.late
            return []
        self.time = max(self.time, self.heap[0][0])
        events = []
        while self.heap and self.heap[0][0] <= self.time:
            event = heapq.heappop(self.heap)[2]
            events.append(event)
            if isinstance(event, Arrival):
                self.outstanding.pop((event.worker, event.life, event.number), None)
            if isinstance(event, Failure):
                self.end(event.worker, event.life)
        return events

    def kill(self, worker, life):
        self.killed.append((worker, life))
        self.end(worker, life)

    def end(self, worker, life):
        if self.alive.get(worker) == life:
            del self.alive[worker]
            for key in [key for key in self.outstanding if key[:2] == (worker, life)]:
                del self.outstanding[key]

    def put(self, version, weights):
        self.puts.append((version, self.time))
        return f"weights {weights}"


def make(roles=("actor",), faults=None, delay=1.0, start=2.0, seed=0, publish=True, lives=(), **limits):
    found = Limits(**limits)
    engine = FakeEngine(found, faults, delay, start, seed)
    flow = Flow(engine, roles, found, seed=5, lives=lives)
    if publish:
        flow.publish(0, lambda: 0)
    return flow, engine


def run(flow, engine, until, timeout=1.0):
    """Poll until the simulated time; all deliveries."""
    found = []
    while engine.time < until:
        found += flow.poll(timeout)
    return found


# -- schedules


SHARE = st.sampled_from([0.0, 0.0, 0.02, 0.1, 0.3])


@st.composite
def schedules(draw):
    names = ["bad start", "no start", "death", "loss", "duplicate", "hang"]
    faults = {name: draw(SHARE) for name in names}
    faults["jitter"], faults["shuffle"] = draw(st.sampled_from([0.0, 1.0, 3.0])), draw(st.sampled_from([0.0, 1.0]))
    return {
        "seed": draw(st.integers(0, 2**32)),
        "workers": draw(st.integers(1, 5)),
        "faults": faults,
        "delay": draw(st.sampled_from([0.05, 1.0, 4.0])),
        "max_lag": draw(st.sampled_from([None, 0, 3, 20])),
        "updates_per_chunk": draw(st.sampled_from([0.0, 0.5, 1.0, 4.0])),
        "max_bytes": draw(st.sampled_from([None, CHUNK + 3 * WEIGHTS, 3 * CHUNK + 3 * WEIGHTS])),
        "evaluations": draw(st.integers(0, 2)),
    }


@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_no_schedule_of_faults_hangs_doubles_or_exceeds_a_bound(schedule):
    """F12. Mutation: no check of numbers, of lag, of bytes, or of a call's deadline: each fails here."""
    limits = Limits(
        max_lag=schedule["max_lag"],
        updates_per_chunk=schedule["updates_per_chunk"],
        chunk_bytes=CHUNK,
        weights_bytes=WEIGHTS,
        max_bytes=schedule["max_bytes"],
        start_secs=10,
        call_secs=8,
        beat_secs=3,
        dead_secs=9,
        hold_secs=2,
        last_delay=4,
        fruitless_lives=10**9,  # the breaker has tests of its own
    )
    roles = ["actor"] * schedule["workers"] + ["evaluator"] * bool(schedule["evaluations"])
    engine = FakeEngine(limits, schedule["faults"], schedule["delay"], seed=schedule["seed"])
    flow = Flow(engine, roles, limits, seed=5)
    flow.publish(0, lambda: 0)
    errands = {flow.request("evaluate") for _ in range(schedule["evaluations"])}
    seen, order, updates, version = set(), {}, 0.0, 0
    timeouts = random.Random(schedule["seed"])
    for polls in range(60):
        if polls == 30:  # from now on nothing goes wrong any more
            engine.faults, engine.delay = {}, 1.0
        timeout = timeouts.choice([0.0, 0.3, 5.0])
        begin = engine.time
        found = flow.poll(timeout)
        assert engine.time - begin <= timeout + 1e-6, "a wait went past its deadline"
        for each in found:
            key = each[:3]
            assert key not in seen, "a result was delivered twice"
            seen.add(key)
            if each.errand is not None:
                errands.remove(each.errand)
                continue
            life, number, _ = order.get(each.worker, (-1, -1, None))
            assert (each.life, each.number) > (life, number), "results came out of order"
            if each.continues:
                assert order[each.worker] == (each.life, each.number - 1, True)
            order[each.worker] = (each.life, each.number, each.chunk is not None)
            if each.chunk is not None:
                assert each.chunk == key and each.report == f"report {key}"
                assert limits.max_lag is None or each.lag <= limits.max_lag
                updates += limits.updates_per_chunk
        errands -= set(flow.drain_failed_errands())
        if int(updates) > version:
            version = int(updates)
            flow.publish(version, lambda version=version: version)
    # No hang: everything that was in flight when the faults ended has had its deadline, and chunks arrive again.
    longest = 2 * schedule["delay"] * (1 + schedule["faults"]["jitter"])  # two calls that began before
    later = run(flow, engine, engine.time + longest + 2 * limits.start_secs + limits.last_delay + limits.dead_secs)
    errands -= {each.errand for each in later} | set(flow.drain_failed_errands())
    assert not errands, "an evaluation was never answered"
    assert sum(each.chunk is not None for each in run(flow, engine, engine.time + 20)) >= 5
    assert engine.puts == sorted(set(engine.puts)) and len({version for version, _ in engine.puts}) == len(engine.puts)


# -- calls and results


def test_two_calls_are_in_flight_per_worker_and_results_come_in_order():
    flow, engine = make(["actor", "actor"])
    found = run(flow, engine, 30)
    assert max(sum(each.worker == 0 for each in engine.calls if each.number < 2) for _ in (0,)) == 2
    for worker in (0, 1):
        mine = [each for each in found if each.worker == worker]
        assert [each.number for each in mine] == list(range(len(mine))) and len(mine) > 20
        assert [each.continues for each in mine] == [False] + [True] * (len(mine) - 1)


def test_a_duplicate_and_a_late_result_are_dropped_and_counted():
    flow, engine = make()
    first = run(flow, engine, 4)[0]
    again = Arrival(first.worker, first.life, first.number, "again", None, CHUNK)
    engine.at(0, again)
    engine.at(0, again._replace(life=first.life - 1))
    found = run(flow, engine, 6)
    assert "again" not in [each.chunk for each in found]
    assert flow.dropped == {"duplicate": 1, "late": 1}


def test_a_result_that_was_overtaken_is_dropped_and_breaks_the_continuity():
    flow, engine = make(delay=1e9)
    run(flow, engine, 4)
    engine.delay, engine.busy_until[0] = 1.0, engine.time
    engine.at(0, Arrival(0, 0, 1, "second", None, CHUNK))
    engine.at(1, Arrival(0, 0, 0, "first", None, CHUNK))
    found = run(flow, engine, 20)
    assert [each.number for each in found][:2] == [1, 2] and flow.dropped == {"overtaken": 1}
    assert [each.continues for each in found][:2] == [False, True]


def test_results_of_another_epoch_keep_their_report_only():
    flow, engine = make()
    flow.stage("collect", epoch=0)
    run(flow, engine, 4.5)
    flow.poll(0)  # which sends the second order again
    flow.stage("verify", epoch=1)
    found = run(flow, engine, 9)
    assert [each.chunk is None for each in found][:2] == [True, True] and found[0].report
    assert found[2].chunk is not None and not found[2].continues and found[3].continues
    assert flow.dropped == {"epoch": 2}
    assert {each.order for each in engine.calls if each.epoch == 1} == {"verify"}


def test_a_lost_result_ends_the_life_even_if_later_ones_arrive():
    flow, engine = make(call_secs=20)
    run(flow, engine, 4)
    engine.heap = [each for each in engine.heap if not isinstance(each[2], Arrival)]
    assert run(flow, engine, 15)
    run(flow, engine, 30)
    assert engine.killed == [(0, 0)] and "the result of call 2 was lost" in flow.notices[0]


def test_holding_sends_nothing_and_still_delivers():
    flow, engine = make()
    run(flow, engine, 4.5)
    flow.poll(0)
    flow.hold(True)
    sent = len(engine.calls)
    assert len(run(flow, engine, 20)) == 2 and len(engine.calls) == sent and flow.in_flight == 0
    assert flow.waiting_for() == "the learner holds the workers"
    flow.hold(False)
    assert run(flow, engine, 25)


# -- lag, weights and bytes


def test_lag_is_bounded_by_holding_back_calls_not_by_wasting_results():
    flow, engine = make(["actor"] * 8, max_lag=6, updates_per_chunk=1.0)
    found, version = [], 0
    while engine.time < 60:
        for each in flow.poll(1.0):
            found.append(each)
            version += 1
            flow.publish(version, lambda: 0)
    assert max(each.lag for each in found) <= 6 and len(found) > 100
    assert sum(each.chunk is None for each in found) == 0


def test_one_stopped_worker_does_not_hold_back_the_others_beyond_its_patience():
    flow, engine = make(["actor"] * 3, max_lag=4, updates_per_chunk=1.0)
    arrivals, version = [], 0
    while engine.time < 50:
        if engine.time > 10:
            engine.silent.add(0)
        for _ in flow.poll(0.5):
            version += 1
            flow.publish(version, lambda: 0)
            arrivals.append(engine.time)
    gaps = [b - a for a, b in zip(arrivals, arrivals[1:], strict=False)]
    assert 2 < max(gaps) <= 10 and arrivals[-1] > 45


def test_weights_are_sent_at_most_once_in_the_time_of_a_call():
    flow, engine = make(["actor"] * 4, max_lag=100)
    version = 0
    while engine.time < 60:
        for _ in flow.poll(0.1):
            version += 1
            flow.publish(version, lambda version=version: version)
    gaps = [b - a for (_, a), (_, b) in zip(engine.puts[2:], engine.puts[3:], strict=False)]
    assert len(engine.puts) > 20 and min(gaps) > 0.8 and version > 150
    assert all(call.weights == f"weights {call.version}" for call in engine.calls)


def test_every_version_is_sent_where_acting_and_learning_take_turns():
    """Mutation: a version that comes sooner than a call lasts is left out, and equal runs differ by their timing."""
    flow, engine = make(["actor"], delay=0.5, calls_per_worker=1, newest_weights=True)
    version = 0
    while engine.time < 20:
        for _ in flow.poll(0.1):
            engine.delay = 0.1 + 0.9 * (version % 3)
            version += 1
            flow.publish(version, lambda: 0)
    assert [call.version for call in engine.calls] == list(range(len(engine.calls))) and len(engine.calls) > 10


def test_bytes_in_flight_count_results_and_weights():
    flow, engine = make(["actor"] * 6, chunk_bytes=CHUNK, weights_bytes=WEIGHTS, max_bytes=4 * CHUNK + 3 * WEIGHTS)
    assert len(run(flow, engine, 60)) > 100
    assert 4 * CHUNK < engine.most_bytes <= 4 * CHUNK + 3 * WEIGHTS
    while flow.poll(0.01):
        pass
    assert "fill the limit of 430 bytes" in flow.waiting_for()


def test_a_limit_that_no_chunk_fits_is_refused():
    with pytest.raises(ValueError, match="exceed the limit of 129 bytes"):
        Limits(chunk_bytes=CHUNK, weights_bytes=WEIGHTS, max_bytes=129)


# -- lives


def test_a_dead_worker_is_replaced_with_another_seed_and_new_numbers():
    flow, engine = make()
    run(flow, engine, 5)
    engine.die(0, 0)
    found = run(flow, engine, 20)
    fresh = [each for each in found if each.life == 1]
    assert fresh[0].number == 0 and not fresh[0].continues
    seeds = [seed for _, _, _, seed in engine.spawned]
    assert len(engine.spawned) == 2 and len(set(seeds)) == 2
    assert flow.notices == ["actor 0 (life 0) ended: Killed: signal 9; the next life starts in 1 s"]
    assert flow.first_error.startswith("Traceback") and flow.row()["worker_restarts"] == 1


def test_a_resumed_flow_goes_on_with_later_lives():
    flow, engine = make(["actor", "actor"])
    run(flow, engine, 5)
    engine.die(1, 0)
    run(flow, engine, 10)
    assert flow.lives() == [0, 1]
    again, other = make(["actor", "actor"], lives=flow.lives())
    run(again, other, 3)
    other.die(1, 0)
    run(again, other, 10)
    assert [life for _, _, life, _ in other.spawned] == [0, 1, 2]
    assert other.spawned[-1][3] not in {seed for *_, seed in engine.spawned}, "a life has the seed of an earlier one"


def test_delays_double_up_to_thirty_seconds_and_the_breaker_names_the_first_error():
    flow, engine = make(faults={"bad start": 1.0}, fruitless_lives=8)
    with pytest.raises(
        WorkersLostError, match="1 of 1 workers were retired.* after 8 lives .*: Killed: signal 9"
    ) as caught:
        run(flow, engine, 1000)
    assert caught.value.exit_code == 3
    delays = [float(notice.split()[-2]) for notice in flow.notices[:-1]]
    assert delays == [1, 2, 4, 8, 16, 30, 30]


def test_five_fruitless_lives_retire_a_worker_and_the_others_go_on():
    flow, engine = make(["actor", "actor"])
    engine_spawn = engine.spawn

    def spawn(worker, *rest):
        engine.faults = {"bad start": float(worker == 1)}
        engine_spawn(worker, *rest)

    engine.spawn = spawn
    found = run(flow, engine, 200)
    assert len([each for each in engine.spawned if each[0] == 1]) == 5
    assert {each.worker for each in found} == {0} and len(found) > 150
    assert flow.row()["workers_retired"] == 1
    assert "retired after 5 lives" in flow.notices[-1]


def test_a_life_that_delivered_resets_the_count():
    flow, engine = make()
    for _ in range(12):
        run(flow, engine, engine.time + 8)
        engine.die(0, 0)
    assert run(flow, engine, engine.time + 8)
    assert flow.row()["worker_restarts"] == 12


def test_errors_of_a_worker_s_own_code_retire_it_although_it_delivers():
    """Mutation: every delivery resets the count. Killed processes are replaced without end, see above."""
    flow, engine = make(["actor", "actor"])
    while not (fallen := flow.row()["workers_retired"]) and engine.time < 500:
        run(flow, engine, engine.time + 12)
        if 1 in engine.alive:
            engine.at(0, Failure(1, engine.alive[1], "Traceback\nValueError: bad", raised=True))
    assert fallen == 1 and len([each for each in engine.spawned if each[0] == 1]) == 5
    assert flow.notices[-1].endswith("ValueError: bad; retired after 5 errors within 10 min")
    assert run(flow, engine, engine.time + 10)


def test_errors_far_apart_do_not_retire_a_worker():
    """Mutation: errors are never forgotten."""
    flow, engine = make(errors_secs=60.0)
    for _ in range(8):
        run(flow, engine, engine.time + 20)
        engine.at(0, Failure(0, engine.alive[0], "ValueError: bad", raised=True))
    assert run(flow, engine, engine.time + 20)


def test_answers_to_questions_do_not_count_as_results():
    """Mutation: an answered question resets the count of fruitless lives."""
    flow, engine = make(["actor"], delay=0.1)
    flow.hold(True)
    with pytest.raises(WorkersLostError, match="5 lives in a row"):
        for _ in range(20):
            run(flow, engine, engine.time + 40)
            for _ in range(4):
                flow.request("row", 0)
                run(flow, engine, engine.time + 1)
            engine.die(0, 0)


# -- deadlines


def test_the_first_result_of_a_life_may_take_longer():
    """Environments are reset in the first call. Mutation: one deadline for all calls."""
    for secs, killed in ((100, False), (150, True)):
        flow, engine = make(delay=secs, call_secs=70, first_secs=130, dead_secs=1e9)
        engine.ask_status = lambda worker, life, engine=engine: engine.at(0.01, Beat(worker, life, 7))
        run(flow, engine, 140)
        assert bool(engine.killed) == killed


def test_a_worker_without_progress_is_stalled_and_one_with_progress_is_busy():
    """Mutation: a checkpoint waits for a stopped worker until its deadline."""
    flow, engine = make(["actor", "actor"], delay=30)
    run(flow, engine, 5)
    engine.silent.add(1)
    run(flow, engine, 20)
    assert flow.is_stalled(1) and not flow.is_stalled(0) and flow.busy() == [0]


def test_a_worker_that_never_starts_is_given_up():
    flow, engine = make(faults={"no start": 1.0}, start_secs=10)
    run(flow, engine, 12)
    assert engine.killed == [(0, 0)] and "did not start within 10 s" in flow.notices[0]


def test_a_stopped_worker_is_named_then_killed_and_its_late_result_dropped():
    flow, engine = make(call_secs=1e9)
    run(flow, engine, 4)
    engine.silent.add(0)
    engine.heap.clear()
    run(flow, engine, 40)
    assert flow.waiting_for().startswith("worker 0 has not answered for 3")
    run(flow, engine, 70)
    assert engine.killed == [(0, 0)] and "did not answer for 60 s" in flow.notices[0]
    engine.at(0, Arrival(0, 0, 1, "late", None, CHUNK))
    found = run(flow, engine, 80)
    assert found and "late" not in [each.chunk for each in found] and flow.dropped == {"late": 1}


def test_a_long_call_with_progress_is_no_hang_and_one_without_is():
    flow, engine = make(delay=500)
    assert len(run(flow, engine, 510)) == 1 and not engine.killed
    flow, engine = make(delay=500)
    engine.ask_status = lambda worker, life: engine.at(0.01, Beat(worker, life, 7))
    run(flow, engine, 100)
    assert engine.killed == [(0, 0)] and "made no progress for 60 s" in flow.notices[0]


def test_time_in_which_the_driver_was_stopped_does_not_count():
    flow, engine = make(delay=50)
    run(flow, engine, 20)
    engine.time += 3600
    for _ in range(5):
        flow.poll(0.1)
    assert not engine.killed


# -- errands


def test_an_evaluation_is_done_again_by_the_next_life_and_uses_its_own_weights():
    flow, engine = make(["actor", "evaluator"], delay=3)
    run(flow, engine, 5)
    number = flow.request("evaluate")
    flow.publish(9, lambda: 9)
    run(flow, engine, 6)
    engine.die(1, 0)
    found = [each for each in run(flow, engine, 30) if each.errand is not None]
    assert [(each.errand, each.life, each.version) for each in found] == [(number, 1, 0)]
    tries = [call for call in engine.calls if call.worker == 1]
    assert [call.weights for call in tries] == ["weights 0"] * 2 and tries[0].order == "evaluate"


def test_an_evaluation_that_always_kills_its_worker_is_given_up():
    flow, engine = make(["actor", "evaluator"])
    number = flow.request("evaluate")
    call = engine.call
    engine.call = lambda each: engine.die(1, 0.5) if each.worker == 1 else call(each)
    run(flow, engine, 60)
    assert flow.drain_failed_errands() == [number]
    assert not [each for each in run(flow, engine, 90) if each.errand is not None]


# -- reasons


def test_reasons_for_waiting_are_sentences():
    flow, engine = make(publish=False)
    assert flow.waiting_for() == "no weights have been published"
    flow.publish(0, lambda: 0)
    run(flow, engine, 1)
    assert flow.waiting_for() == "no worker is ready: worker 0 has been starting for 1 s"
    run(flow, engine, 3)
    assert flow.waiting_for().startswith("worker 0 has been at a call for")
    engine.die(0, 0)
    flow.poll(0.1)
    assert "worker 0 starts in 1 s after: Killed: signal 9" in flow.waiting_for()


def test_the_verdict_names_the_bottleneck():
    flow, engine = make()
    run(flow, engine, 30)
    assert bottleneck(named(flow.row())).startswith("environment-bound")
    assert bottleneck(named({"workers_ready": 1, "held_share": 0.0, "wait_share": 0.1})).startswith("learner-bound")
    assert bottleneck(named({"workers_ready": 1, "held_share": 0.2, "wait_share": 0.3})).startswith("balanced")
    assert bottleneck(named({"workers_ready": 0, "wait_share": 1.0})).startswith("starved")
    assert bottleneck({"steps_per_second": 10.0}) == ""


def named(row):
    return {f"workers/{name}": value for name, value in row.items()}


def test_the_row_shows_rates_and_lag_of_each_worker():
    flow, engine = make(["actor", "actor"])
    run(flow, engine, 42)
    flow.row()
    run(flow, engine, 62)
    row = flow.row()
    assert row["worker_0_steps_per_s"] == pytest.approx(8, rel=0.1) and row["worker_1_lag"] == 0
    assert row["chunk_bytes_per_s"] == pytest.approx(200, rel=0.1) and row["workers_ready"] == 2
