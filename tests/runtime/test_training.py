"""The small machines of a run: gate, busy shares, watchdog, seeds, starvation, evaluation."""

import logging
import threading
import time

import pytest
import torch

from packtrain import knobs
from packtrain.envs.stream import Episode
from packtrain.errors import DivergedError, StalledError
from packtrain.metrics.console import PlainConsole
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint, evaluation_scheduler, local, preparation, serial, starvation
from packtrain.runtime.evaluation import summary
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.local_acting import build_sides
from packtrain.runtime.pause import ActorPause, Busy
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.training import RunSetup, Training

SMALL = {"num_actors": 4, "batch_size": 4, "unroll_length": 5, "eval_every": 0, "total_steps": 400}


def prepare(name="impala/catch", **values):
    return preparation.prepare([knobs.find_config(name)[0]], [], {**SMALL, **values}, 0, True)


def training(tmp_path, name="impala/catch", **values):
    configuration, experiment, spec = prepare(name, **values)
    folder = RunFolder(tmp_path)
    console = PlainConsole("x", experiment.run.total_steps)
    return Training(RunSetup(experiment, spec, folder, configuration, torch.device("cpu"), console), None)


def test_seeds_have_names():
    assert seed_for(0, "a") == seed_for(0, "a")
    assert len({seed_for(s, *name) for s in range(50) for name in (("a",), ("b",), ("a", 1), ("a", 2))}) == 200


def test_actor_and_learner_begin_with_the_same_weights():
    """TorchBeast's began with different ones. Mutation: not publishing version 0."""
    _, experiment, spec = prepare()
    acting, learning = build_sides(experiment, spec, torch.device("cpu"))
    acting.act()
    acts, learns = acting.policy.network.state_dict(), learning.learners["impala"].network.state_dict()
    assert all(torch.equal(acts[name], learns[name]) for name in learns)


def test_an_update_moves_the_weights_and_the_actor_follows(tmp_path):
    run = training(tmp_path)
    before = {k: v.clone() for k, v in run.acting.policy.network.state_dict().items()}
    while not run.learning.memories["unrolls"].ready():
        run.act()
    assert run.learn("impala")
    run.act()
    after, learned = run.acting.policy.network.state_dict(), run.learning.learners["impala"].network.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in after)
    assert all(torch.equal(after[name], learned[name]) for name in after)
    run.close()


def test_no_batch_no_update(tmp_path):
    run = training(tmp_path)
    assert not run.learn("impala") and run.progress.step == 0
    run.close()


def test_the_gate_holds_an_actor_between_turns():
    """Mutation: a gate that does not wait for the turn under way."""
    gate, stop, inside, overlaps = ActorPause(5), threading.Event(), [], []

    def act():
        while not stop.is_set():
            with gate.turn():
                inside.append(1)
                time.sleep(0.002)
                inside.pop()

    thread = threading.Thread(target=act)
    thread.start()
    for _ in range(20):
        with gate.held():
            overlaps.append(len(inside))
            time.sleep(0.001)
            overlaps.append(len(inside))
    stop.set()
    thread.join()
    assert overlaps == [0] * 40


def test_a_gate_does_not_wait_for_ever():
    gate, stop = ActorPause(timeout=0.1), threading.Event()

    def hang():
        with gate.turn():
            stop.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    time.sleep(0.05)
    with pytest.raises(StalledError, match="did not finish its step"), gate.held():
        pass
    stop.set()
    thread.join()
    with gate.held():
        pass


def test_busy_is_the_share_not_waited():
    busy = Busy(since=time.perf_counter())
    with busy.waiting():
        time.sleep(0.1)
    time.sleep(0.1)
    assert 0.3 < busy.share() < 0.7
    assert busy.share() >= 0.0


def test_waiting_is_said_and_for_what(monkeypatch, caplog):
    monkeypatch.setattr(starvation, "STARVED_SECS", 0.05)
    waiting = starvation.StarvationLog("the learner", "unrolls")
    with caplog.at_level(logging.WARNING, "packtrain"):
        waiting.check()
        time.sleep(0.06)
        waiting.check()
        waiting.check()
    (record,) = caplog.records
    first, *stacks = record.message.splitlines()
    assert first == "the learner has waited 0 s for unrolls; the threads of this process:"
    assert "thread MainThread:" in stacks and any("waiting.check()" in line for line in stacks)


def test_an_actors_error_reaches_the_caller_first_cause_first(tmp_path):
    run = training(tmp_path, total_steps=10**9)
    run.folder.checkpoints.mkdir(parents=True)
    turns = []

    def act(patience=None):
        turns.append(1)
        if len(turns) > 20:
            raise RuntimeError("first cause")

    run.act = act
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="first cause"):
        local.run(run)
    assert time.monotonic() - begin < 5
    run.close()


@pytest.mark.parametrize("runtime", [local, serial])
def test_the_last_steps_have_a_row_too(tmp_path, runtime):
    """Also of a run shorter than `log_every`. Mutation: rows at multiples of it only."""
    run = training(tmp_path, log_every=10_000)
    runtime.run(run)
    run.close()
    rows = [row for row in read_metrics(tmp_path) if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [run.progress.step] and rows[0]["episodes"] > 0


def test_new_episodes_after_a_resume_differ_from_earlier_ones(tmp_path, monkeypatch):
    """Nor do actions. Mutation: the seeds of the beginning after every resume."""
    monkeypatch.setattr("packtrain.envs.gymnasium_vector_env.exact_saving", lambda env: None)
    begun = []
    for total in (200, 400, 600):
        saved = checkpoint.load_newest(tmp_path / "checkpoints")
        assert saved is None or "actor" not in saved[1]
        configuration, experiment, spec = prepare("impala/gym", total_steps=total)
        console = PlainConsole("x", total)
        setup = RunSetup(experiment, spec, RunFolder(tmp_path), configuration, torch.device("cpu"), console)
        run = Training(setup, saved)
        shown = run.acting.streams[0].start().obs.copy()
        begun.append((shown.tobytes(), run.acting.policy.generator.get_state().numpy().tobytes()))
        serial.run(run)
        run.saver.save(required=True)
        run.close()
    assert len({obs for obs, _ in begun}) == len({noise for _, noise in begun}) == 3


def test_divergence_stops_the_run(tmp_path):
    """Mutation: no check of the loss. NaN weights are not saved either."""
    run = training(tmp_path, log_every=20)
    with torch.no_grad():
        run.learning.learners["impala"].network.value.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="diverged"):
        local.run(run)
    with pytest.raises(DivergedError, match="not finite"):
        run.saver.save()
    run.close()


def test_a_best_checkpoint_contains_only_the_rows_before_it(tmp_path):
    """Rows written while an evaluation ran belong to later steps. Mutation: taking the file's length at its end."""
    run = training(tmp_path, eval_every=100, eval_episodes=2, log_every=20)
    before = run.log.bytes
    assert evaluation_scheduler.begin_if_due(run)
    run.log.write("train", {"x": 1}, run.progress.step)
    while run.evaluations.running:
        run.evaluations.tick()
        evaluation_scheduler.collect(run)
    step, state = checkpoint.choose(tmp_path / "checkpoints", "best")
    assert step == 0 and state["run"]["metrics_bytes"] == before < run.log.bytes
    assert state["run"]["next_eval"] == 0, "a resumed run evaluates again"
    assert not evaluation_scheduler.begin_if_due(run)
    run.close()


def test_an_evaluation_counts_as_under_way_until_its_row_is_written(tmp_path):
    """Mutation: asking the evaluator, which is through before its result has been handed over: the last row is lost."""
    run = training(tmp_path, eval_every=100, eval_episodes=2)
    assert evaluation_scheduler.begin_if_due(run)
    while run.evaluations.here:
        run.evaluations.tick()
    run.evaluations._results.clear()  # the moment between the last step and the hand-over
    assert run.evaluations.running
    run.close()


def test_an_evaluation_under_way_is_begun_again_after_a_resume(tmp_path):
    run = training(tmp_path, eval_every=100, eval_episodes=2)
    assert evaluation_scheduler.begin_if_due(run)
    run.saver.save()
    assert checkpoint.load_newest(tmp_path / "checkpoints")[1]["run"]["next_eval"] == 0
    run.close()


def test_episodes_that_do_not_say_whether_they_were_solved_were_not_where_others_say_it():
    """Some environments speak of it only when it is so. Mutation: asking the first episode alone."""
    nan = float("nan")
    for solved, expected in (([nan, 1.0, nan, 1.0], 0.5), ([1.0, nan], 0.5), ([nan, nan], None)):
        episodes = [Episode({"train": 1.0}, 3, one, 0) for one in solved]
        assert summary(episodes).get("solved") == expected


def test_summary_of_episodes():
    result = summary([Episode({"train": r, "true": 2 * r}, 10, s, 0) for r, s in ((1.0, 1.0), (3.0, 0.0))])
    assert result["return_mean"] == 2 and result["return_std"] == pytest.approx(2**0.5)
    assert result["rewards"] == {"train": 2.0, "true": 4.0} and result["solved"] == 0.5
    assert result["return_ci95"] == pytest.approx(12.7062), "Student's t with one degree of freedom"
