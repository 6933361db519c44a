"""What dies on a cluster, and what happens then: docs/cluster.md has the table. Every injected fault is counted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from packtrain.runtime import supervise

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]
ENDLESS = ["--total_steps", "1000000000", "--eval_every", "0", "--log_every", "2000"]
FAST = ["--config", "Environment.step_deadline_secs = 5.0"]


def rows_of(folder):
    try:
        text = (Path(folder) / "metrics.jsonl").read_text()
    except OSError:
        return []
    rows = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [row for row in rows if row["kind"] == "train"]


def wait_until(condition, secs=90.0, process=None):
    deadline = time.monotonic() + secs
    while not (found := condition()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
    return found


def workers_of(processes):
    """Return the processes of workers among the descendants of processes."""
    found = []
    for process in processes:
        for each in process.children(recursive=True):
            try:
                if " ".join(each.cmdline()).startswith("ray::Host") and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
            except psutil.Error:
                continue
    return found


class Chaos:
    """Kills and stops processes of a run, waits until the run goes on, and counts the faults and the gaps.

    A gap is the longest time without a new row while a fault lasts: the learner stands still. It is compared with the
    longest time without faults, which is long on a busy machine.
    """

    def __init__(self, run, folder):
        self.run, self.folder = run, folder
        self.faults, self.gaps, self.back, self.usual = 0, [], [], 0.0

    def observe(self, secs):
        """Measure the longest time between two rows without a fault."""
        self.usual = self._watch(lambda row, begin: time.monotonic() - begin > secs)[0]

    def _watch(self, done):
        """Return the longest time without a new row until `done`, and the latest row."""
        begin = last = time.monotonic()
        longest, step = 0.0, self.ready()["step"]
        while True:
            row = self.ready()
            now = time.monotonic()
            longest = max(longest, now - last)
            if row["step"] > step:
                step, last = row["step"], now
            if done(row, begin):
                return longest, row
            assert self.run.poll() is None, self.run.communicate()
            assert now - begin < 120, f"it did not go on: {row}"
            time.sleep(0.1)

    def ready(self):
        rows = rows_of(self.folder)
        return rows[-1] if rows else None

    def strike(self, process, number=signal.SIGKILL, loses_worker=True):
        """Send a signal to a process, and wait until the steps go on and all workers are back."""
        before = self.ready()
        process.send_signal(number)
        self.faults += 1
        begin = time.monotonic()

        def after(row, _):
            restarts = row["workers/worker_restarts"] > before["workers/worker_restarts"]
            all_ready = row["workers/workers_ready"] == before["workers/workers_ready"]
            return all_ready and row["step"] > before["step"] and (restarts or not loses_worker)

        gap, _ = self._watch(after)
        self.gaps.append(gap)
        self.back.append(time.monotonic() - begin)


def start(words, folder, **options):
    command = [sys.executable, "-m", "packtrain", "train", *words, "--output_dir", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_run_survives_five_faults(simulated, tmp_path):
    """Three kills and one stop of workers, and one kill of a node. A run without faults fails.

    The learner goes on with the workers that are left: it stands still for 10 s at most, 30 s if a node is lost.
    Mutations: a poll waits for the worker that is missing; a life is placed on the node that is gone.
    """
    extra = simulated.start_node()
    extra.wait_until("has joined")
    nodes = [psutil.Process(node.process.pid) for node in (*simulated.nodes, extra)]
    words = ["impala/catch", "--workers", "3", "--num_actors", "6", *ENDLESS, *FAST]
    words += ["--output_dir", str(tmp_path / "run")]
    run = subprocess.Popen(
        simulated.command(*words), env=simulated.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    chaos = Chaos(run, tmp_path / "run")
    try:
        wait_until(lambda: chaos.ready() and chaos.ready()["workers/workers_ready"] == 3, process=run)
        chaos.observe(5)
        for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
            workers = wait_until(lambda: len(found := workers_of(nodes)) == 3 and found, process=run)
            chaos.strike(workers[chaos.faults % 3], number)
        (raylet,) = extra.children("raylet")
        chaos.strike(raylet)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
        extra.close()
    assert chaos.faults == 5, "no fault was injected"
    assert run.returncode == 143 and "saved at step" in out, (out, err)
    last = rows_of(tmp_path / "run")[-1]
    assert last["workers/worker_restarts"] >= 5 and last["workers/workers_retired"] == 0
    steps = [row["step"] for row in rows_of(tmp_path / "run")]
    assert steps == sorted(set(steps))
    print(f"{chaos.faults} faults; without them rows came every {chaos.usual:.1f} s at least")
    print("the learner stood still for at most", [f"{gap:.1f} s" for gap in chaos.gaps])
    print("all workers were back after", [f"{secs:.1f} s" for secs in chaos.back])
    for gap, most in zip(chaos.gaps, (10, 10, 10, 10, 30), strict=True):
        assert gap < most + 3 * chaos.usual


def test_a_lost_head_saves_exits_with_3_and_the_command_goes_on(tmp_path):
    """Mutation: what the workers would answer is asked for while saving."""
    run = start(["impala/catch", "--runtime", "cluster", "--workers", "1", *ENDLESS], tmp_path / "run")
    try:
        wait_until(lambda: rows_of(tmp_path / "run"), process=run)
        (head,) = [each for each in psutil.Process(run.pid).children(recursive=True) if each.name() == "gcs_server"]
        head.kill()
        begin = time.monotonic()
        out, err = run.communicate(timeout=90)
    finally:
        run.kill()
    assert run.returncode == 3 and time.monotonic() - begin < 60
    assert err.count("\n") == 1 and "the head of the cluster" in err
    step = max(int(folder.name) for folder in (tmp_path / "run" / "checkpoints").iterdir())
    assert step >= rows_of(tmp_path / "run")[-1]["step"] > 0, "it was saved after the last row"
    words = ["impala/catch", "--total_steps", str(step + 2000), "--eval_every", "0", "--output_dir"]
    done = subprocess.run(
        [sys.executable, "-m", "packtrain", "train", *words, str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 0 and f"going on from step {step:,}" in done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_or_interrupted_driver_leaves_nothing(tmp_path, number):
    """Mutation: no guard watches the driver."""
    shared = set(os.listdir("/dev/shm"))
    run = start(["impala/catch", "--runtime", "cluster", "--workers", "2", *ENDLESS], tmp_path / "run", process_group=0)
    try:
        wait_until(lambda: rows_of(tmp_path / "run"), process=run)
        family = supervise.descendants([supervise.record(run.pid)])
        assert len(family) > 5
        if number == signal.SIGINT:
            os.killpg(run.pid, number)  # as a terminal does
            out, _ = run.communicate(timeout=60)
            assert run.returncode == 130 and "saved at step" in out
        else:
            run.send_signal(number)
            run.wait()
        wait_until(lambda: not any(map(supervise.is_running, family)), secs=10)
    finally:
        run.kill()
    assert not set(os.listdir("/dev/shm")) - shared
    assert not list(Path(supervise._short_folder() or "/tmp").glob(f"{supervise.PREFIX}*/{run.pid}"))


@pytest.mark.long
def test_workers_that_always_crash_end_the_run_with_their_first_error(tmp_path):
    """Mutation: the circuit breaker is never closed, or the run ends without saving."""
    (tmp_path / "mine.gin").write_text(
        "import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\n"
        "Environment.kwargs = {'fault': 'raise', 'at_step': 3}\n"
    )
    words = [str(tmp_path / "mine.gin"), "--runtime", "cluster", "--workers", "1", "--eval_every", "0"]
    run = start(words, tmp_path / "run")
    out, err = run.communicate(timeout=200)
    assert run.returncode == 3, (out, err)
    assert err.count("\n") == 1 and "1 of 1 workers were retired, the last one after 5 errors within 10 min" in err
    text = (tmp_path / "run" / "log.txt").read_text()
    assert text.count("the first error of a worker") == 1 and text.count("faulty.py") == 2, "the traceback, once"
    assert "\x1b" not in text
