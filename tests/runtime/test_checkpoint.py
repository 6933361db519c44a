"""Checkpoints are whole and verified, or ignored."""

import errno
import json
import os
import random
import shutil

import numpy as np
import pytest
import torch

from packtrain import errors, files
from packtrain.errors import CheckpointError
from packtrain.runtime import checkpoint
from packtrain.testing import chaos

STATE = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b": {"c": torch.tensor([True, False])}},
    "actor": {
        "rng": {"state": 2**100, "name": "PCG64"},
        "list": [np.arange(3), (1, None, "x")],
        "lone": np.array(3),
        "empty": (),
    },
    "run": {"step": 7, "score": 0.5},
}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


def test_round_trip_keeps_types_and_values(tmp_path):
    checkpoint.save(tmp_path, 7, STATE)
    assert equal(checkpoint.load(tmp_path / "7"), STATE)


def test_equal_states_give_equal_bytes(tmp_path):
    for name in ("a", "b"):
        checkpoint.save(tmp_path / name, 7, STATE)
    for file in (tmp_path / "a" / "7").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / "7" / file.name).read_bytes()


def test_s1_every_flipped_bit_is_noticed_and_the_older_one_is_taken(tmp_path, caplog):
    """S1, 50 flips. Mutation: a manifest check that compares sizes only."""
    checkpoint.save(tmp_path, 1, STATE)
    checkpoint.save(tmp_path, 2, STATE)
    shutil.copytree(tmp_path / "2", tmp_path / "whole")
    rng = random.Random(0)
    flips = 0
    for _ in range(50):
        shutil.rmtree(tmp_path / "2")
        shutil.copytree(tmp_path / "whole", tmp_path / "2")
        file = rng.choice(sorted((tmp_path / "2").iterdir()))
        before = json.loads((tmp_path / "2" / "manifest.json").read_bytes())
        chaos.flip_bit(file, rng)
        flips += 1
        caplog.clear()
        step, state = checkpoint.load_newest(tmp_path)
        if file.name == "manifest.json" and step == 2:  # white space, or a digit of the unused step: still whole
            after = json.loads(file.read_bytes())
            assert after["files"] == before["files"] and after["schema"] == before["schema"]
            continue
        assert step == 1 and equal(state, STATE)
        assert "damaged" in caplog.text and str(tmp_path / "2") in caplog.text
    assert flips == 50


def test_s2_truncations_deletions_and_nonsense_are_one_line(tmp_path):
    """S2: never a traceback of another kind, never a partial load, always the file's name."""
    checkpoint.save(tmp_path, 7, STATE)
    shutil.move(tmp_path / "7", tmp_path / "whole")
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    cases = []
    for name in files:
        size = (tmp_path / "whole" / name).stat().st_size
        cases += [(name, length) for length in sorted({0, 1, size // 3, size // 2, size - 1})]
        cases += [(name, "delete")]
    nonsense = ("", "[]", "{}", "null", '{"schema": 99}', '{"schema": 1, "files": 3}')
    cases += [("manifest.json", text) for text in nonsense]
    cases += [("manifest.json", '{"schema": 1, "files": {"../../x": {"bytes": 1}, "state.json": {}}}')]
    assert len(cases) > 25
    for name, damage in cases:
        shutil.rmtree(tmp_path / "7", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "7")
        file = tmp_path / "7" / name
        if damage == "delete":
            file.unlink()
        elif isinstance(damage, int):
            chaos.truncate(file, damage)
        else:
            file.write_text(damage)
        with pytest.raises(CheckpointError) as caught:
            checkpoint.load(tmp_path / "7")
        assert str(tmp_path / "7") in str(caught.value) and "\n" not in str(caught.value)


def test_a_matching_manifest_over_hostile_content_runs_nothing(tmp_path):
    """A pickle under a safetensors name, with the right hash, is refused as such."""
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    checkpoint.save(tmp_path, 7, STATE)
    data = pickle.dumps(Evil())
    (tmp_path / "7" / "weights.safetensors").write_bytes(data)
    manifest = json.loads((tmp_path / "7" / "manifest.json").read_bytes())
    manifest["files"]["weights.safetensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (tmp_path / "7" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / "7")
    assert not (tmp_path / "ran").exists()


def test_none_whole_is_an_error_and_none_at_all_is_not(tmp_path):
    assert checkpoint.load_newest(tmp_path) is None
    checkpoint.save(tmp_path, 1, STATE)
    (tmp_path / "1" / "state.json").unlink()
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        checkpoint.load_newest(tmp_path)


def test_kept_are_the_last_three_the_best_and_one_a_span(tmp_path):
    for step in range(10, 110, 10):
        checkpoint.save(tmp_path, step, STATE)
    checkpoint.mark_best(tmp_path, 20, 1.0)
    checkpoint.prune(tmp_path, keep_every=50)
    assert checkpoint.steps(tmp_path) == [10, 20, 50, 80, 90, 100]


def test_half_written_ones_are_not_seen_and_are_cleaned_up(tmp_path):
    checkpoint.save(tmp_path, 1, STATE)
    (tmp_path / ".writing-2-99999").mkdir()
    assert checkpoint.steps(tmp_path) == [1]
    checkpoint.prune(tmp_path, None)
    assert not (tmp_path / ".writing-2-99999").exists()


def test_keys_that_are_integers_come_back_as_integers(tmp_path):
    """The state of a torch optimiser is by number: with strings, `load_state_dict` loses Adam's moments in silence."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = torch.optim.Adam([weight], 0.1)
    weight.sum().backward()
    optimiser.step()
    checkpoint.save(tmp_path, 1, {"optimiser": optimiser.state_dict(), "mixed": {0: 1, "a": 2}})
    state = checkpoint.load(tmp_path / "1")
    assert list(state["optimiser"]["state"]) == [0] and state["mixed"] == {0: 1, "a": 2}
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], 0.1)
    other.load_state_dict(state["optimiser"])
    assert torch.equal(other.state_dict()["state"][0]["exp_avg"], optimiser.state_dict()["state"][0]["exp_avg"])
    for keys in ({1.5: 0}, {0: 1, "0": 2}, {True: 1}):
        with pytest.raises(TypeError, match="has keys"):
            checkpoint.save(tmp_path, 2, {"wrong": keys})


def test_saving_the_same_step_again_replaces_it(tmp_path):
    checkpoint.save(tmp_path, 1, STATE)
    checkpoint.save(tmp_path, 1, {**STATE, "run": {"step": 8}})
    assert checkpoint.load(tmp_path / "1")["run"] == {"step": 8}


def test_a_crash_while_a_step_is_saved_again_loses_nothing(tmp_path):
    """Mutation: damaged checkpoints that were moved aside are never deleted."""
    checkpoint.save(tmp_path, 1, STATE)
    (tmp_path / "1").rename(tmp_path / ".old-1-99999")
    assert checkpoint.load_newest(tmp_path)[0] == 1


def test_choose_by_name(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, {**STATE, "run": {"step": step}})
    assert checkpoint.choose(tmp_path, "latest")[0] == 3
    assert checkpoint.choose(tmp_path, "2")[1]["run"]["step"] == 2
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        checkpoint.choose(tmp_path, "best")
    checkpoint.mark_best(tmp_path, 1, 0.0)
    assert checkpoint.choose(tmp_path, "best")[0] == 1
    with pytest.raises(CheckpointError, match="there are 1, 2, 3"):
        checkpoint.choose(tmp_path, "9")


def test_what_cannot_be_saved_is_said(tmp_path):
    with pytest.raises(TypeError, match="run/x is a set"):
        checkpoint.save(tmp_path, 1, {"run": {"x": {1}}})


def damage(folder, step):
    chaos.flip_bit(folder / str(step) / "weights.safetensors", random.Random(step))


def save_steps(folder, *steps):
    for step in steps:
        checkpoint.save(folder, step, STATE)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch, written):
    """What is half written may be what fills the disk. Mutation: leaving it for the next process to clear."""
    save_steps(tmp_path, 1)
    write, count = checkpoint._write_synced, iter(range(10))

    def full(path, data):
        if next(count) == written:
            path.write_bytes(data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(checkpoint, "_write_synced", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_save_of_the_same_step_that_fails_keeps_the_one_before(tmp_path, monkeypatch):
    save_steps(tmp_path, 1)
    rename = os.rename

    def refuse(source, target):
        if ".writing-" in str(source):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(checkpoint.os, "rename", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoint.save(tmp_path, 1, {**STATE, "run": {"step": 8}})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert equal(checkpoint.load(tmp_path / "1"), STATE)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EROFS, errno.ENOTSUP, errno.EACCES])
def test_a_folder_that_cannot_be_synced_is_one_warning(tmp_path, monkeypatch, number, capsys):
    """As on some network mounts. Mutation: no checkpoint there, ever."""
    sync = os.fsync

    def refuse(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", refuse)
    monkeypatch.setattr(files, "_unsynced", errors.Seldom(float("inf")))
    save_steps(tmp_path, 1, 2)
    assert checkpoint.load_newest(tmp_path)[0] == 2
    assert capsys.readouterr().err.count("cannot be synced") == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_is_full_or_broken_when_it_is_synced_is_no_checkpoint(tmp_path, monkeypatch, number):
    def refuse(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(OSError):
        save_steps(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_damaged_checkpoints_do_not_count_and_are_moved_aside(tmp_path, capsys):
    """Three damaged ones with higher steps than a run goes on from. Mutation: the last three, whole or not."""
    save_steps(tmp_path, 10, 20, 30, 40, 50)
    for step in (30, 40, 50):
        damage(tmp_path, step)
    for step in (22, 24, 26, 28):
        save_steps(tmp_path, step)
        checkpoint.prune(tmp_path, None, written=step)
        assert step in checkpoint.steps(tmp_path)
    assert checkpoint.steps(tmp_path) == [24, 26, 28]
    assert sorted(path.name for path in tmp_path.glob("*.damaged")) == ["30.damaged", "40.damaged", "50.damaged"]
    said = capsys.readouterr().err
    assert all(f"the checkpoint is now {step}.damaged" in said for step in (30, 40, 50)) and said.count("\n") == 3


def test_only_the_last_few_damaged_checkpoints_are_kept(tmp_path):
    for step in range(1, 8):
        save_steps(tmp_path, step, step + 100)
        damage(tmp_path, step + 100)
        checkpoint.prune(tmp_path, None)
    assert checkpoint.steps(tmp_path) == [5, 6, 7]
    assert len(list(tmp_path.glob("*.damaged"))) == checkpoint.MOST_DAMAGED
    save_steps(tmp_path, 107)  # of the same step again
    damage(tmp_path, 107)
    checkpoint.prune(tmp_path, None)
    assert len(list(tmp_path.glob("*.damaged"))) == checkpoint.MOST_DAMAGED


def test_a_checkpoint_that_cannot_be_read_now_is_left_where_it_is(tmp_path, monkeypatch):
    """Of a later version, or on a disk that does not answer. Mutation: moving aside what may be whole."""
    save_steps(tmp_path, 1, 2, 3, 4, 5)
    path = tmp_path / "5/manifest.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    read = checkpoint._read_verified

    def broken(path, entry):
        if path.parent.name == "4":
            raise CheckpointError(f"{path} cannot be read: Input/output error")
        return read(path, entry)

    monkeypatch.setattr(checkpoint, "_read_verified", broken)
    checkpoint.prune(tmp_path, None)
    assert checkpoint.steps(tmp_path) == [1, 2, 3, 4, 5]


def test_the_checkpoint_written_last_stays_below_three_others(tmp_path):
    save_steps(tmp_path, 10, 20, 30, 5)
    checkpoint.prune(tmp_path, None, written=5)
    assert checkpoint.steps(tmp_path) == [5, 10, 20, 30]


def test_what_was_written_or_verified_is_not_read_again(tmp_path, monkeypatch):
    save_steps(tmp_path, 1, 2, 3, 4)
    whole = {4}
    read = []
    monkeypatch.setattr(checkpoint, "verify", lambda path: read.append(path.name))
    checkpoint.prune(tmp_path, None, whole)
    assert read == ["3", "2"] and whole == {2, 3, 4}
    checkpoint.prune(tmp_path, None, whole)
    assert read == ["3", "2"]
