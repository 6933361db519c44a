"""The run folder: who holds it, what it is called, and whether it is still there."""

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from packtrain import files
from packtrain.errors import FolderLostError, RunFolderError
from packtrain.runtime import folder as folders
from packtrain.runtime.folder import RunFolder, claim, point_latest


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    yield folder
    folder.close()


# -- names


def test_names_are_unique_when_requested_at_the_same_time(tmp_path):
    """Mutation: looking first, then making."""
    found, gate = [], threading.Barrier(8)

    def take():
        gate.wait()
        found.extend(claim(tmp_path / "deep" / "run").name for _ in range(5))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(["run", *(f"run-{n}" for n in range(2, 41))])


def test_a_fresh_folder_is_made_when_it_is_opened_and_not_before(tmp_path):
    (tmp_path / "run").mkdir()
    one, other = (RunFolder(tmp_path / "run", fresh=True) for _ in range(2))
    one.check_writable()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    one.open()
    other.open()
    assert (one.path.name, other.path.name) == ("run-2", "run-3") and other.shown.name == "run-3"
    one.close()
    other.close()


def test_a_relative_path_stays_where_it_was_when_the_current_folder_changes(tmp_path, monkeypatch):
    """Mutation: a path that is resolved when it is used."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(files.Path("run"))
    (tmp_path / "other").mkdir()
    os.chdir("other")
    folder.open()
    assert (tmp_path / "run/log.txt").is_file() and folder.checkpoints == tmp_path / "run/checkpoints"
    assert str(folder.shown) == "run"
    folder.check_place()
    folder.close()


# -- the lock


def test_a_lock_that_a_child_of_a_dead_run_holds_is_named_with_a_way_out(tmp_path):
    """A child that was not forked by Python, so that it keeps what it inherited. Mutation: the dead run's number."""
    script = (
        "import sys, subprocess, pathlib; from packtrain.runtime.folder import RunFolder\n"
        "f = RunFolder(pathlib.Path(sys.argv[1])); f.open()\n"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=[f._lock.fileno()])\n"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(RunFolderError, match=f"in use by process {parent.pid};"):
            RunFolder(tmp_path / "run").open()
        parent.kill()
        parent.wait()
        with pytest.raises(RunFolderError) as caught:
            RunFolder(tmp_path / "run").open()
        assert f"locked by process {child}, which process {parent.pid} left behind" in str(caught.value)
        assert f"`kill {child}` frees it" in str(caught.value)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdin.close()
        parent.stdout.close()
    for _ in range(100):  # what the line says is true
        try:
            folder = RunFolder(tmp_path / "run")
            folder.open()
            break
        except RunFolderError:
            time.sleep(0.05)
    assert folder._held == "lock"
    folder.close()


def test_a_process_that_python_forks_does_not_keep_the_lock(tmp_path, run):
    """As an environment that forks workers. Mutation: no look at forks."""
    run.open()
    (ready, says_ready), (go, says_go) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(says_ready, b"x")
        os.read(go, 1)
        os._exit(0)
    os.read(ready, 1)
    run.close()
    other = RunFolder(tmp_path / "run")
    other.open()
    other.close()
    os.write(says_go, b"x")
    os.waitpid(child, 0)
    for handle in (ready, says_ready, go, says_go):
        os.close(handle)


@pytest.fixture
def without_locks(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folders.fcntl, "flock", refuse)


def test_a_file_system_without_locks_is_a_warning(without_locks, run, capsys):
    """Mutation: "in use by another process", with no way out."""
    run.open()
    assert "a file system without locks (No locks available)" in capsys.readouterr().err
    run.close()
    run.open()  # nothing in the way


def test_without_locks_a_running_process_keeps_others_out_and_a_dead_one_does_not(without_locks, tmp_path, run):
    run.path.mkdir()
    name = folders.platform.node()
    for holder, free in ((f"{os.getppid()} {name}", False), (f"99999999 {name}", True), ("5 otherhost", False)):
        (run.path / ".lock").write_text(holder)
        if free:
            run.open()
            run.close()
            continue
        with pytest.raises(RunFolderError, match=r"without locks; if that process is not a run, delete .*run/\.lock"):
            run.open()
        (run.path / ".lock").unlink()
        run.open()  # the way out
        run.close()


def test_a_lock_of_another_machine_names_it(tmp_path, run):
    run.path.mkdir()
    with open(run.path / ".lock", "w") as held:
        held.write("17 otherhost")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match="in use by process 17 on otherhost; choose another --output_dir"):
            run.open()


def test_a_lock_whose_holder_cannot_be_seen_says_so(run, monkeypatch):
    run.path.mkdir()
    monkeypatch.setattr(folders, "_users_of", lambda path: [])
    with open(run.path / ".lock", "w") as held:
        held.write("99999999")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match="cannot be seen here; process 99999999 took the lock and has ended"):
            run.open()


# -- what is written there


def test_config_is_written_whole_or_not_at_all(run, monkeypatch):
    """Mutation: writing over it in place."""
    run.open()
    run.write_config("a = 1\n")
    before = run.config.stat().st_mtime_ns

    def crash(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "replace", crash)
    with pytest.raises(RunFolderError, match="config.gin cannot be written: No space left"):
        run.write_config("a = 2\n")
    assert run.config.read_text() == "a = 1\n" and not list(run.path.glob(".writing-*"))
    run.write_config("a = 1\n")  # nothing to write
    assert run.config.stat().st_mtime_ns == before


def test_a_log_on_a_full_disk_prints_no_traceback(run, capsys, monkeypatch):
    run.open()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        write = flush = close = full

    run._handler.stream.close()
    monkeypatch.setattr(run._handler, "stream", Full())
    logging.getLogger("packtrain").warning("lost")
    run.close()
    assert capsys.readouterr().err == ""


def test_what_a_killed_run_left_half_written_is_cleared_when_the_folder_is_opened(run):
    left = ["checkpoints/.writing-5-77", "replay/main/.writing-x.safetensors", ".writing-y.gin"]
    for name in left:
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
    (run.path / left[0]).mkdir()
    (run.path / left[0] / "weights.safetensors").write_bytes(b"x")
    for name in left[1:]:
        (run.path / name).write_bytes(b"x")
    (run.path / "replay/main/00000001.safetensors").write_bytes(b"x")
    run.open()
    assert not any((run.path / name).exists() for name in left)
    assert (run.path / "replay/main/00000001.safetensors").exists()


def test_a_link_that_cannot_be_made_is_a_warning(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(folders.Path, "symlink_to", refuse)
    point_latest(tmp_path, tmp_path / "run")
    assert "latest does not point to" in capsys.readouterr().err


# -- whether it is still there


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux says what an open folder is called now")
def test_a_renamed_folder_is_found_again(run, tmp_path):
    run.open()
    run.check_place()
    (tmp_path / "run").rename(tmp_path / "other name")
    with pytest.raises(FolderLostError):
        run.check_place()
    assert "was renamed to" in run.find_again() and run.path == tmp_path / "other name"
    run.check_place()
    with pytest.raises(RunFolderError, match="in use"):
        RunFolder(tmp_path / "other name").open()


@pytest.mark.parametrize("replaced, name", [(False, "run"), (True, "run-2")])
def test_a_lost_folder_is_created_again(run, tmp_path, replaced, name):
    run.open()
    for path in run.path.iterdir():
        path.unlink()
    run.path.rmdir()
    if replaced:
        run.path.mkdir()
    assert f"was {'replaced by another folder' if replaced else 'deleted'}" in run.find_again()
    assert run.path == tmp_path / name and (run.path / "log.txt").is_file()
    run.check_place()


def test_a_folder_that_was_never_opened_is_not_looked_for(run):
    run.check_place()
