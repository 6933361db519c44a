"""Left-over processes and restarts, with processes that do nothing but sleep."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packtrain.runtime import supervise
from packtrain.runtime.supervise import Record

# A driver that starts a child, a grandchild that has left the session, and waits.
DRIVER = """
import subprocess, sys, time
from packtrain.runtime.supervise import Session
session = Session()
inner = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], "
inner += "start_new_session=True); print(p.pid, flush=True); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), session._guard.pid, session.folder, flush=True)
if "close" in sys.argv:
    session.close()
    print("closed", flush=True)
time.sleep(300)
"""


def wait_until(condition, secs=30.0):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def driver():
    started = []

    def start(*arguments):
        process = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], stdout=subprocess.PIPE, text=True)
        *pids, folder = process.stdout.readline().split()
        records = [supervise.record(int(pid)) for pid in pids]
        started.append((process, records))
        return process, records, Path(folder)

    yield start
    for process, records in started:
        process.kill()
        process.wait()
        supervise.end(record for record in records if record is not None)


def recorded(folder, pids):
    path = folder / supervise.RECORDS
    return path.exists() and pids <= {pid for pid, _ in json.loads(path.read_text())["processes"]}


def test_everything_a_killed_driver_started_is_ended_and_its_folder_deleted(driver):
    process, (child, grandchild, guard), folder = driver()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    wait_until(lambda: recorded(folder, {child.pid, grandchild.pid}))
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(supervise.is_running, (child, grandchild, guard))), secs=10)
    assert not folder.exists()


def test_closing_a_session_ends_its_processes_and_not_the_driver(driver):
    process, (child, grandchild, guard), folder = driver("close")
    assert process.stdout.readline() == "closed\n"
    assert process.poll() is None and not folder.exists()
    assert not any(map(supervise.is_running, (child, grandchild, guard)))


def test_children_from_before_a_session_are_not_ended_with_it():
    """Mutation: the guard ends every descendant of the driver."""
    early = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    late = None
    try:
        time.sleep(0.1)
        with supervise.Session() as session:
            late = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
            wait_until(lambda: recorded(session.folder, {late.pid}))
        assert early.poll() is None and late.wait(30) == -signal.SIGTERM
    finally:
        for process in (early, late):
            if process is not None:
                process.kill()
                process.wait()


def test_what_a_killed_guard_left_is_ended_by_the_next_session(driver):
    process, (child, grandchild, guard), folder = driver()
    wait_until(lambda: recorded(folder, {child.pid, grandchild.pid}))
    assert supervise.reap_left_over() == 0 and supervise.is_running(child), "a session that is alive was ended"
    os.kill(guard.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    assert supervise.is_running(grandchild)
    assert supervise.reap_left_over() == 2
    assert not supervise.is_running(grandchild) and not folder.exists()


def test_a_process_with_a_recorded_id_but_another_creation_time_is_left_alone(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        real = supervise.record(process.pid)
        other = Record(real.pid, real.created - 5)
        assert not supervise.is_running(other) and supervise.end([other]) == 0 and supervise.is_running(real)
        assert supervise.end([real], grace_secs=5) == 1 and process.wait(5) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("wrong", ["open", "text", "missing", "link"])
def test_a_folder_that_is_not_our_own_closed_session_is_not_trusted(tmp_path, wrong):
    folder = tmp_path / f"{supervise.PREFIX}x"
    folder.mkdir(mode=0o700)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        dead = Record(2**22 + 1, 1.0)
        supervise._write(folder, dead, {supervise.record(process.pid)})
        if wrong == "open":
            folder.chmod(0o755)
        elif wrong == "text":
            (folder / supervise.RECORDS).write_text('{"driver": "me"}')
        elif wrong == "missing":
            (folder / supervise.RECORDS).unlink()
        else:
            folder.rename(tmp_path / "elsewhere")
            folder.symlink_to(tmp_path / "elsewhere")
        assert supervise.reap_left_over(tmp_path) == 0 and process.poll() is None and folder.exists()
    finally:
        process.kill()
        process.wait()


def test_a_stubborn_process_is_killed():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    assert supervise.end([supervise.record(process.pid)], grace_secs=0.3) == 1
    assert process.wait(5) == -signal.SIGKILL


# -- restarts


def counting(tmp_path, *ends):
    """A command that ends in these ways, one after the other; a positive number is an exit code, else a signal."""
    path = tmp_path / "count"
    code = (
        "import os, sys, pathlib; path = pathlib.Path(sys.argv[1]); n = int(path.read_text()) if path.exists() else 0\n"
        f"path.write_text(str(n + 1)); end = {ends}[n]\n"
        "os.kill(os.getpid(), -end) if end < 0 else sys.exit(end)"
    )
    return [sys.executable, "-c", code, str(path)], lambda: int(path.read_text())


@pytest.mark.parametrize(
    "ends, restarts, code, runs",
    [
        ((0,), 3, 0, 1),
        ((2, 0), 3, 2, 1),
        ((130, 0), 3, 130, 1),  # a Ctrl-C that it handled
        ((3, -9, -11, 0), 3, 0, 4),
        ((3, 3, 3, 0), 2, 3, 3),
        ((-9, -9, 0), 1, 137, 2),
        ((-9,), 0, 137, 1),
    ],
)
def test_a_run_is_started_again_after_a_signal_or_a_fault_within_its_budget(tmp_path, ends, restarts, code, runs):
    command, count = counting(tmp_path, *ends)
    lines = []
    assert supervise.supervise(command, restarts, say=lines.append, first_delay=0.01) == code
    assert count() == runs and len(lines) == runs - 1


def test_a_crash_loop_ends_with_the_first_cause(tmp_path, monkeypatch):
    """F9. Mutations: no breaker; failures of long ago count."""
    command, count = counting(tmp_path, *[-9, 3, 3, 3, 3, 3, 0])
    lines = []
    assert supervise.supervise(command, 99, say=lines.append, first_delay=0.001, last_delay=0.001) == 3
    assert count() == 5 and lines[-1] == "it failed 5 times within 10 minutes; the first: ended by SIGKILL"
    (tmp_path / "count").unlink()
    monkeypatch.setattr(supervise, "BREAKER_SECS", 0.0)
    assert supervise.supervise(command, 99, say=lines.append, first_delay=0.001, last_delay=0.001) == 0


def test_each_restart_says_why_and_waits_twice_as_long(tmp_path):
    command, _ = counting(tmp_path, -9, 3, 3, 0)
    lines = []
    supervise.supervise(command, 9, say=lines.append, first_delay=0.01, last_delay=0.03)
    assert lines == [
        "ended by SIGKILL; restart 1 of 9 in 0.01 s",
        "ended with exit code 3; restart 2 of 9 in 0.02 s",
        "ended with exit code 3; restart 3 of 9 in 0.03 s",
    ]


SUPERVISED = """
import sys
from packtrain.runtime.supervise import supervise
code = "import signal, sys, time; signal.signal(signal.SIGINT, lambda *_: (print('asked', flush=True), sys.exit(130)));"
code += "print('ready', flush=True); time.sleep(300)"
sys.exit(supervise([sys.executable, "-c", code], 5, say=print))
"""


def test_a_signal_is_passed_on_once_and_ends_the_supervision():
    process = subprocess.Popen([sys.executable, "-c", SUPERVISED], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130 and process.stdout.read() == "asked\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG, which only Linux has")
def test_a_run_is_asked_to_leave_when_its_supervisor_is_killed():
    code = SUPERVISED.replace("SIGINT", "SIGTERM").replace("'ready'", "'ready', __import__('os').getpid()")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline().split()[1])
    child = supervise.record(pid)
    process.kill()
    process.wait()
    wait_until(lambda: not supervise.is_running(child), secs=10)
    assert process.stdout.read() == "asked\n"
