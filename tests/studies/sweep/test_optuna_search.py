"""Searches with Optuna over scripted runs: values, failures, pruning, going on."""

import importlib.util
import json
import time
from pathlib import Path

import pytest

from packtrain.errors import ConfigError, RunFolderError
from packtrain.studies.sweep import optuna_search, schedule, session
from packtrain.studies.sweep.points import Choice, Point, Range
from packtrain.studies.sweep.record import PRUNED, Record
from packtrain.studies.sweep.session import Search, SweepRequest, Where

optuna = pytest.importorskip("optuna")
spec = importlib.util.spec_from_file_location("scripted_train", Path(__file__).parent / "scripted_train.py")
scripted = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scripted)
X = Range("x", -10.0, 10.0, log=False, whole=False)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "train_command", scripted.command)
    monkeypatch.setattr(schedule, "POLL_SECS", 0.02)
    monkeypatch.setattr(optuna_search, "LOOK_SECS", 0.0)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / scripted.PLAN).write_text("{}")
    return tmp_path / "s"


def point(values, number):
    if float(values["x"]) > 9.5:
        raise ConfigError("too large")
    name = optuna_search.trial_name(number)
    return Point(name, dict(values), ("none", f"--x={values['x']}"), trial=number), 1000


def request(root, trials, seeds=3, warm_up=1.0):
    about = {"kind": "optuna", "name": "n", "configs": ["none"], "varied_names": ["x"], "space": {"x": "-10:10"}}
    return SweepRequest(root, about, [], seeds, Where(jobs=3), 0, search=Search((X,), point, trials, warm_up, 0))


def run(root, *arguments, **more):
    lines = []
    code = session.run_sweep(request(root, *arguments, **more), lines.append)
    return code, "\n".join(lines), json.loads((root / "sweep.json").read_text())


def trials_of(root):
    backend = optuna.storages.journal.JournalFileBackend(str(root / optuna_search.JOURNAL))
    study = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))
    return study.get_trials()


def test_a_trial_is_worth_the_iqm_of_its_seeds(root):
    """Mutations: the mean of two seeds; a minimised return; one trial per seed."""
    code, said, content = run(root, 4, seeds=5)
    assert code == 0 and len(content["runs"]) == 20
    for trial, found in zip(trials_of(root), content["points"], strict=True):
        assert trial.value == pytest.approx(trial.params["x"] + 2) == pytest.approx(found["result"]["iqm"])
        assert found["settings"]["x"] == repr(trial.params["x"]) and found["trial"] == trial.number
    best = max(trials_of(root), key=lambda trial: trial.value)
    lines = said.splitlines()
    table = lines[next(k for k, line in enumerate(lines) if line.split()[:2] == ["x", "seeds"]) + 1]
    assert table.split()[0] == repr(best.params["x"]), "the best comes first"


def test_a_search_goes_on_with_trials_under_way(root, monkeypatch):
    """Mutations: finished trials again; the seeds of a trial under way again; a new trial in its place."""
    (root / scripted.PLAN).write_text(json.dumps({"trial_001/seed_1": ["hang", "ok"]}))
    begin = session.Scheduler._begin

    def stop_soon(self, run, handle):
        begin(self, run, handle)
        if run.name == "trial_001 seed 1":
            deadline = time.monotonic() + 60
            while not (self._record.folder(run) / "metrics.jsonl").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            self._received.append(2)

    monkeypatch.setattr(session.Scheduler, "_begin", stop_soon)
    assert run(root, 3, seeds=2)[0] == 130
    monkeypatch.setattr(session.Scheduler, "_begin", begin)
    before = [trial.params for trial in trials_of(root)]
    code, _, content = run(root, 3, seeds=2)
    assert code == 0 and [trial.params for trial in trials_of(root)][: len(before)] == before
    assert {trial.state.name for trial in trials_of(root)} == {"COMPLETE"} and len(trials_of(root)) == 3
    assert {row["state"] for row in content["runs"]} == {"finished"}
    again = {str(path.parent.relative_to(root / "runs")) for path in root.rglob("starts") if path.stat().st_size > 1}
    assert again <= {"trial_001/seed_0", "trial_001/seed_1"}
    assert run(root, 3, seeds=2)[0] == 0 and len(trials_of(root)) == 3
    code, _, content = run(root, 4, seeds=2)
    assert code == 0 and len(content["points"]) == 4


def test_failed_and_impossible_trials_are_told_and_the_others_go_on(root, monkeypatch):
    """Mutation: a failed trial that counts with the seeds that are left."""
    (root / scripted.PLAN).write_text(json.dumps({"trial_001/seed_0": ["exit1"]}))
    monkeypatch.setattr(optuna.trial.Trial, "suggest_float", lambda self, *_, **__: [1.0, 2.0, 9.9][self.number])
    code, _, content = run(root, 3, seeds=2)
    assert code == 1 and [trial.state.name for trial in trials_of(root)] == ["COMPLETE", "FAIL", "FAIL"]
    rows = {(row["point"], row["seed"]): row for row in content["runs"]}
    assert rows["trial_002", 0]["trouble"] == "too large" and rows["trial_002", 0]["starts"] == 0


def trials(root, monkeypatch, warm_up):
    """Three finished trials of return 10 and one under way of return 1, all curves at every rung up to a half."""
    monkeypatch.setattr(optuna_search, "STARTUP_TRIALS", 3)
    monkeypatch.setattr(optuna.trial.Trial, "suggest_float", lambda self, *_, **__: 9.0 if self.number < 3 else 1.0)
    record = Record(root, {"varied_names": ["x"]})
    found = optuna_search.Trials(record, [X], point, 2, 0, 4, warm_up)
    for number in range(4):
        waiting = found.waiting()
        for each in [next(waiting), next(waiting)]:
            record.folder(each).mkdir(parents=True)
            scripted.write_rows(record.folder(each), float(each.point.settings["x"]), 10 if number < 3 else 5)
            each.state = "finished" if number < 3 else "running"
        if number < 3:
            found.to_prune([])
            found.ended(record.runs[-1])
    return found, record


def test_a_trial_below_the_median_is_pruned_after_the_warm_up(root, monkeypatch):
    """Mutations: no warm-up; a trial above the median; returns of one seed only."""
    found, record = trials(root, monkeypatch, warm_up=0.4)
    running = record.runs[-2:]
    assert found.to_prune(running) == running
    reported = trials_of(root)[3].intermediate_values
    assert max(reported) == 8 and reported[8] == pytest.approx(1 * 4 / 10), "the first rung after the warm-up"
    for each in running:
        each.state = PRUNED
        found.ended(each)
    assert trials_of(root)[3].state.name == "PRUNED"


def test_nothing_is_pruned_in_the_warm_up(root, monkeypatch):
    found, record = trials(root, monkeypatch, warm_up=0.6)
    assert found.to_prune(record.runs[-2:]) == []


def test_a_trial_waits_for_all_its_seeds(root, monkeypatch):
    found, record = trials(root, monkeypatch, warm_up=0.4)
    scripted.write_rows(record.folder(record.runs[-1]), 1.0, 3)
    assert found.to_prune(record.runs[-2:]) == []


def test_values_at_a_step_are_those_known_by_then():
    """Mutation: the value after the step, which another trial has not seen yet."""
    curve = ([100, 200, 300], [1.0, 2.0, 3.0])
    assert [optuna_search.value_at(curve, step) for step in (50, 100, 250, 300, 301)] == [1.0, 1.0, 2.0, 3.0, None]
    assert optuna_search.value_at(([], []), 1) is None


def test_choices_and_whole_ranges_reach_optuna(root):
    record = Record(root, {"varied_names": ["n", "c"]})
    seen = []

    def make(values, number):
        seen.append(values)
        return Point(optuna_search.trial_name(number), dict(values), ()), None

    varied = [Range("n", 1, 8, log=True, whole=True), Choice("c", ("True", "False"))]
    found = optuna_search.Trials(record, varied, make, 1, 0, 6, 1.0)
    list(found.waiting())
    assert len(seen) == 6 and {values["c"] for values in seen} <= {"True", "False"}
    assert {int(values["n"]) for values in seen} <= set(range(1, 9))


def test_a_damaged_journal_is_one_line(root):
    (root / optuna_search.JOURNAL).write_text("{nonsense\n" * 3)
    with pytest.raises(RunFolderError, match="optuna.journal cannot be read"):
        run(root, 1)
