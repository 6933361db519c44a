"""Sweeps of scripted runs: order, retries, failures, kill -9, resuming, the record and the table."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packtrain.errors import RunFolderError
from packtrain.studies.sweep import schedule, session
from packtrain.studies.sweep.session import Where

SCRIPT = Path(__file__).parent / "scripted_train.py"
spec = importlib.util.spec_from_file_location("scripted_train", SCRIPT)
scripted = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scripted)
DEADLINE = 120


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "train_command", scripted.command)
    monkeypatch.setattr(schedule, "POLL_SECS", 0.02)
    monkeypatch.setattr(schedule, "FIRST_DELAY", 0.02)
    (tmp_path / "s").mkdir()
    plan(tmp_path / "s")
    return tmp_path / "s"


def plan(root, **behaviours):
    """What each start of a run does; names are like x_0_seed_1 for x=0/seed_1."""
    named = {name.replace("_", "=", 1).replace("_seed", "/seed"): list(each) for name, each in behaviours.items()}
    (root / scripted.PLAN).write_text(json.dumps(named))


def run(root, points, seeds, **more):
    lines = []
    code = session.run_sweep(scripted.request(root, points, seeds, **more), lines.append)
    return code, "\n".join(lines), json.loads((root / "sweep.json").read_text())


def states(content):
    return {row["folder"].removeprefix("runs/"): row["state"] for row in content["runs"]}


def starts(root):
    return {str(path.parent.relative_to(root / "runs")): path.stat().st_size for path in root.rglob("starts")}


def test_all_runs_are_made_and_summed_up(root):
    """Mutations: seeds of one point pooled with another's; the mean over all points."""
    code, said, content = run(root, 3, 4)
    assert code == 0 and content["schema"] == 1 and content["state"] == "finished"
    assert set(states(content).values()) == {"finished"} and len(content["runs"]) == 12
    results = {point["name"]: point["result"] for point in content["points"]}
    assert results["x=1"]["each"] == [1.0, 2.0, 3.0, 4.0] and results["x=1"]["mean"] == 2.5
    assert results["x=2"]["iqm"] == 3.5 and results["x=2"]["seeds"] == 4
    low, high = results["x=1"]["interval"]
    assert low == pytest.approx(2.5 - 3.182446 * 1.290994 / 2, abs=1e-4) and high == pytest.approx(5 - low)
    table = [line.split() for line in said.splitlines() if line[:1].isspace() or line.startswith(("0", "1", "2"))]
    assert ["2", "4", "of", "4", "3.5"] in [line[:5] for line in table]
    assert (root / "report.html").stat().st_size > 10_000
    assert "12 of 12" in said and "return 5" in said


def test_seeds_come_one_after_the_other(root):
    """Mutation: all seeds of the first point first, so that a sweep under way says nothing about the others."""
    _, said, _ = run(root, 3, 2, where=Where(jobs=1))
    order = [line.split("  ")[2].split(" finished")[0] for line in said.splitlines() if " finished in " in line]
    assert order == [f"x={k} seed {seed}" for seed in (0, 1) for k in range(3)]


def test_at_most_so_many_runs_at_a_time(root, monkeypatch):
    """Mutation: room for one more than --jobs."""
    seen = []
    start = session.ThisMachine.start

    def counting(self, job):
        handle = start(self, job)
        seen.append(len(self._running))
        return handle

    monkeypatch.setattr(session.ThisMachine, "start", counting)
    run(root, 5, 1, where=Where(jobs=2))
    assert max(seen) == 2


def test_failed_runs_are_retried_and_then_reported_while_others_go_on(root):
    """Mutations: one retry too many or too few; a failure that ends the sweep; exit code 0; a retried config error."""
    plan(root, x_0_seed_0=["die", "ok"], x_1_seed_0=["exit1"], x_2_seed_0=["exit2"], x_3_seed_0=["exit3", "die", "ok"])
    code, said, content = run(root, 5, 1, retries=2)
    assert code == 1 and content["state"] == "failed"
    assert states(content) == {
        "x=0/seed_0": "finished",
        "x=1/seed_0": "failed",
        "x=2/seed_0": "failed",
        "x=3/seed_0": "finished",
        "x=4/seed_0": "finished",
    }
    assert starts(root) == {"x=0/seed_0": 2, "x=1/seed_0": 3, "x=2/seed_0": 1, "x=3/seed_0": 3, "x=4/seed_0": 1}
    rows = {row["point"]: row for row in content["runs"]}
    assert rows["x=1"]["exit_code"] == 1 and rows["x=1"]["trouble"] == "it went wrong" and rows["x=2"]["exit_code"] == 2
    assert "was ended by SIGKILL; retry 1 of 2" in said and "2 runs failed: x=1 seed 0, x=2 seed 0" in said
    assert content["points"][1]["result"] is None, "an unfinished run has no final return"


def test_the_same_command_skips_finished_runs_and_tries_failed_ones_again(root):
    """Mutations: everything again; failed runs are given up for ever."""
    plan(root, x_1_seed_0=["exit1", "ok"])
    assert run(root, 3, 1, retries=0)[0] == 1
    code, said, content = run(root, 3, 1, retries=0)
    assert code == 0 and "going on, 2 of 3 runs are over" in said
    assert starts(root) == {"x=0/seed_0": 1, "x=1/seed_0": 2, "x=2/seed_0": 1}
    assert [row["starts"] for row in content["runs"]] == [1, 2, 1]
    assert run(root, 3, 1)[0] == 0 and starts(root)["x=0/seed_0"] == 1


def test_more_seeds_and_points_join_the_runs_that_are_there(root):
    run(root, 1, 1)
    _, _, content = run(root, 2, 2)
    assert set(states(content).values()) == {"finished"} and starts(root)["x=0/seed_0"] == 1


def test_a_run_whose_command_has_changed_is_not_skipped(root):
    """Mutation: states are trusted without the fingerprint."""
    run(root, 1, 1)
    content = json.loads((root / "sweep.json").read_text())
    content["runs"][0]["fingerprint"] = "0"
    (root / "sweep.json").write_text(json.dumps(content))
    run(root, 1, 1)
    assert starts(root) == {"x=0/seed_0": 2}


def test_kill_9_of_the_sweep_twice_loses_nothing(root):
    """Mutations: children that go on without the sweep; finished runs that start again; a lock that is not awaited."""
    hang = {f"x_{k}_seed_0": ["hang"] for k in (2, 3, 4, 5)}
    plan(root, **hang)
    command = [sys.executable, str(SCRIPT), "sweep", str(root), "6", "1"]
    for number in (1, 2):
        with open(root / f"out{number}.txt", "w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        expected = {"x=2/seed_0": number, "x=3/seed_0": number}
        wait_for(
            lambda expected=expected: {k: v for k, v in starts(root).items() if k in expected} == expected, process
        )
        wait_for(lambda: list(states(json.loads((root / "sweep.json").read_text())).values()).count("running") == 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not running_in(root))
    plan(root)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((root / "sweep.json").read_text())
    assert set(states(content).values()) == {"finished"}
    assert starts(root) == {"x=0/seed_0": 1, "x=1/seed_0": 1, "x=2/seed_0": 3, "x=3/seed_0": 3} | {
        f"x={k}/seed_0": 1 for k in (4, 5)
    }


def wait_for(condition, process=None):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline and (process is None or process.poll() is None)
        time.sleep(0.02)


def running_in(root):
    import psutil

    found = []
    for each in psutil.process_iter():
        try:
            found += [each] if any(str(root / "runs") in word for word in each.cmdline()) else []
        except psutil.Error:
            continue
    return found


def test_a_signal_lets_runs_save_and_says_that_the_command_goes_on(root):
    """Mutation: a stopped run that counts as failed."""
    plan(root, x_0_seed_0=["hang", "ok"])
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "sweep", str(root), "2", "1"], stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: starts(root) == {"x=0/seed_0": 1, "x=1/seed_0": 1}, process)
    wait_for(lambda: states(json.loads((root / "sweep.json").read_text())).get("x=1/seed_0") == "finished", process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130 and "the same command goes on" in said
    content = json.loads((root / "sweep.json").read_text())
    assert content["state"] == "stopped" and states(content)["x=0/seed_0"] == "stopped"
    assert run(root, 2, 1)[0] == 0


def test_a_run_waits_until_its_folder_is_free(root):
    """A process of a killed sweep is still saving. Mutation: it starts at once, and fails."""
    folder = root / "runs" / "x=0" / "seed_0"
    folder.mkdir(parents=True)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); "
            "time.sleep(1.5)",
            str(folder / ".lock"),
        ],
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    code, _, content = run(root, 1, 1, retries=0)
    holder.wait()
    assert code == 0 and content["runs"][0]["starts"] == 1


def test_another_sweep_in_the_folder_is_refused(root):
    run(root, 1, 1)
    other = scripted.request(root, 1, 1)
    other.about["varied_names"] = ["y"]
    with pytest.raises(RunFolderError, match="holds another sweep: its varied_names is .'x'., not .'y'."):
        session.run_sweep(other, print)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"schema": 1, "sweep": 3, "runs": []}', '{"schema": 1e999}'])
def test_a_damaged_record_is_one_line(root, text):
    (root / "sweep.json").write_text(text)
    with pytest.raises(RunFolderError, match="sweep.json cannot be read; delete it"):
        session.run_sweep(scripted.request(root, 1, 1), print)


def test_hostile_run_folders_break_nothing(root, tmp_path):
    """Links, NaN and endless lines in runs that are finished; nothing outside is read or written."""
    secret = tmp_path / "secret"
    secret.write_text("x" * 100)
    assert run(root, 3, 1)[0] == 0
    metrics = [root / "runs" / f"x={k}" / "seed_0" / "metrics.jsonl" for k in range(3)]
    metrics[0].unlink()
    metrics[0].symlink_to(secret)
    metrics[1].write_text('{"step": 5, "kind": "eval", "return_mean": NaN}\n' + "[" * 200_000 + "\n" + "y" * 2**21)
    metrics[2].write_text('{"step": 5, "wall_s": 1, "kind": "eval", "return_mean": 1e400, "</script>": 3}\n')
    code, said, content = run(root, 3, 1)
    assert code == 0 and [point["result"] for point in content["points"]] == [None, None, None]
    assert secret.read_text() == "x" * 100 and "NaN" not in (root / "sweep.json").read_text()


def test_threads_are_limited_unless_the_user_has_said_otherwise(root, monkeypatch):
    for name in session.places.THREADS:
        monkeypatch.delenv(name, raising=False)
    assert session.places.threads_env(3)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in session.places.threads_env(3)
    monkeypatch.setattr(session, "available_cores", lambda: 8)
    assert Where(cpus=2).at_a_time() == 4 and Where(cpus=2).threads() == 2
    assert Where(jobs=8, cpus=2).threads() == 1


def test_devices_are_used_in_turn(root, monkeypatch):
    """Mutation: the first device for all."""
    place = session.ThisMachine(4, ["cuda:0", "cuda:1"])
    commands = []
    monkeypatch.setattr(session.places, "launch", lambda command, *_: commands.append(command) or len(commands))
    job = session.places.Job("n", ("train",), root / "log.txt")
    for _ in range(4):
        place.start(job)
    assert [command[-1] for command in commands] == ["--device=cuda:0", "--device=cuda:1"] * 2


def test_slurm_jobs_through_submitit(root, monkeypatch):
    """With submitit's executor of processes on this machine. Mutation: an exit code that is not carried over."""
    pytest.importorskip("submitit")
    plan(root, x_1_seed_0=["exit1", "ok"], x_2_seed_0=["exit2"])
    monkeypatch.setattr(session.Slurm, "LOOK_EVERY", 0.1)
    where = Where(on="slurm", jobs=3, cpus=1, slurm={"cluster": "local", "timeout_min": "5"})
    code, said, content = run(root, 3, 1, where=where, retries=1)
    assert code == 1, said
    assert states(content) == {"x=0/seed_0": "finished", "x=1/seed_0": "finished", "x=2/seed_0": "failed"}
    assert starts(root) == {"x=0/seed_0": 1, "x=1/seed_0": 2, "x=2/seed_0": 1}
    assert os.getcwd() != str(root)
