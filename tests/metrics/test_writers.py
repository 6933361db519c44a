"""Metric rows on disks that refuse, and in files that were cut."""

import errno
import json

import pytest

from packtrain.metrics import writers
from packtrain.metrics.writers import JsonlWriter


class Limited:
    """A file on a disk with so many free bytes."""

    def __init__(self, file, free):
        self._file, self.free = file, free

    def write(self, data):
        if not self.free:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(data[: self.free])
        self.free -= written
        return written

    def __getattr__(self, name):
        return getattr(self._file, name)


def row(step):
    return {"step": step, "kind": "train", "x": 0.5}


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_a_full_disk_keeps_rows_until_space_returns(path, capsys):
    """Mutations: an error; half a row in the file; rows out of order, doubled or left out."""
    writer = JsonlWriter(path, 0, patient=True)
    writer.write(row(1))
    size = writer.bytes
    disk = writer._file = Limited(writer._file, 10)
    for step in (2, 3):
        writer.write(row(step))
        assert steps(path) == [1] and path.stat().st_size == writer.bytes == size
    assert capsys.readouterr().err.count("No space left on device; the run goes on") == 1, "once a minute"
    disk.free = 10_000
    writer.write(row(4))
    writer.close()
    assert steps(path) == [1, 2, 3, 4] and path.stat().st_size == writer.bytes
    assert capsys.readouterr().err == ""


def test_the_warning_of_a_full_disk_returns_after_a_minute(path, capsys, monkeypatch):
    writer = JsonlWriter(path, 0, patient=True)
    writer._file, now = Limited(writer._file, 0), [0.0]
    monkeypatch.setattr("packtrain.errors.time.monotonic", lambda: now[0])
    for second, warns in ((0, True), (30, False), (59, False), (61, True), (90, False), (122, True)):
        now[0] = float(second)
        writer.write(row(second))
        assert ("No space left" in capsys.readouterr().err) == warns, second


def test_rows_that_wait_are_bounded_and_lost_ones_are_counted(path, capsys, monkeypatch):
    monkeypatch.setattr(writers, "MOST_PENDING", 100)
    writer = JsonlWriter(path, 0, patient=True)
    disk = writer._file = Limited(writer._file, 0)
    for step in range(10):
        writer.write(row(step))
    disk.free = 10_000
    writer.write(row(10))
    assert steps(path) == [8, 9, 10] or steps(path) == [7, 8, 9, 10]
    assert writer._lost == 10 - len(steps(path)) + 1


def test_a_disk_that_refuses_to_cut_a_half_row_is_cut_with_the_next(path):
    writer = JsonlWriter(path, 0, patient=True)
    disk = writer._file = Limited(writer._file, 10)

    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    disk.truncate = refuse
    writer.write(row(1))
    assert path.stat().st_size == 10
    del disk.truncate
    disk.free = 10_000
    writer.write(row(2))
    assert steps(path) == [1, 2]


def test_who_is_not_patient_gets_the_error_and_no_half_row(path):
    writer = JsonlWriter(path, 0)
    writer.write(row(1))
    writer._file = Limited(writer._file, 10)
    with pytest.raises(OSError, match="No space left"):
        writer.write(row(2))
    assert steps(path) == [1]


@pytest.mark.parametrize("cut", [1, 20, 45, 80])
def test_a_file_shorter_than_its_checkpoint_says_is_repaired(path, cut, capsys):
    """Mutation: the next row glued to half a one."""
    writer = JsonlWriter(path, 0)
    for step in range(5):
        writer.write(row(step))
    writer.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = JsonlWriter(path, len(whole))
    assert "metrics.jsonl was damaged" in capsys.readouterr().err
    again.write(row(9))
    again.close()
    left = whole[:-cut].count(b"\n")
    assert steps(path) == [*range(left), 9] and again.bytes == path.stat().st_size


def test_rows_past_the_checkpoint_are_cut_without_a_word(path, capsys):
    writer = JsonlWriter(path, 0)
    writer.write(row(1))
    size = writer.bytes
    writer.write(row(2))
    writer.close()
    again = JsonlWriter(path, size)
    again.write(row(3))
    assert steps(path) == [1, 3] and capsys.readouterr().err == ""


def test_a_row_longer_than_what_is_read_at_once_is_found_again(path):
    writer = JsonlWriter(path, 0)
    writer.write({**row(1), "long": "x" * 200_000})
    size = writer.bytes
    writer.write({**row(2), "long": "x" * 200_000})
    writer.close()
    again = JsonlWriter(path, size + 150_000)
    assert again.bytes == size


def test_it_moves_with_its_rows(path, tmp_path):
    writer = JsonlWriter(path, 0, patient=True)
    writer.write(row(1))
    path.unlink()
    writer.move(tmp_path / "other.jsonl")
    writer.write(row(2))
    (tmp_path / "other.jsonl").rename(tmp_path / "third.jsonl")
    writer.move(tmp_path / "third.jsonl")
    writer.write(row(3))
    assert steps(tmp_path / "third.jsonl") == [1, 2, 3] and not path.exists()
