"""Checkpoints are written when they are due; a disk that refuses, weights that are not finite, and worse scores."""

import logging
import threading

import pytest
import torch

from packtrain import errors
from packtrain.errors import DivergedError, FolderLostError, SaveError
from packtrain.runtime import checkpoint, checkpoint_writer
from packtrain.runtime.checkpoint_writer import Saving
from packtrain.runtime.folder import RunFolder


def state_at(step, weight=1.0):
    return {"run": {"step": step}, "weights": {"value": {"w": torch.full((3,), weight)}}}


@pytest.fixture
def made(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open()
    yield Saving(folder, secs=1000.0, keep_every=None, in_use=dict), folder.checkpoints
    folder.close()


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_checkpoint_is_due_when_its_seconds_have_passed(made, monkeypatch):
    one, _ = made
    assert not one.due
    now = checkpoint_writer.time.monotonic()
    monkeypatch.setattr(checkpoint_writer.time, "monotonic", lambda: now + 1001)
    assert one.due
    one.write(state_at(1))
    assert not one.due


def test_in_the_background_it_is_there_after_joining(made, monkeypatch):
    one, folder = made
    go, save = threading.Event(), checkpoint.save
    monkeypatch.setattr(checkpoint_writer.checkpoint, "save", lambda *given: (go.wait(10), save(*given)))
    one.write(state_at(7), background=True)
    assert checkpoint.steps(folder) == []
    go.set()
    one.join()
    assert checkpoint.steps(folder) == [7]


def test_a_disk_that_refuses_is_a_warning_and_an_error_where_it_matters(made, monkeypatch, caplog):
    one, folder = made
    one.write(state_at(1))
    monkeypatch.setattr(checkpoint_writer.checkpoint, "save", full)
    now = errors.time.monotonic()
    with caplog.at_level(logging.WARNING, "packtrain"):
        for secs, step in ((0, 2), (59, 2), (61, 3)):  # a warning a minute
            monkeypatch.setattr(errors.time, "monotonic", lambda secs=secs: now + secs)
            one.write(state_at(step))
            one.keep_if_best(state_at(step), 5.0, {})
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"checkpoint at step {step} not written" for step in (2, 3)
    ]
    assert all("the one before it stands" in record.message for record in caplog.records)
    with pytest.raises(SaveError, match="the checkpoint at step 4 could not be written: .*No space left"):
        one.write(state_at(4), required=True)
    assert checkpoint.steps(folder) == [1]


def test_weights_that_are_not_finite_are_not_saved(made):
    one, folder = made
    with pytest.raises(DivergedError, match="the weights of 'value' are not finite at step 5"):
        one.write(state_at(5, float("nan")))
    assert checkpoint.steps(folder) == []


def test_the_best_is_what_none_was_better_than(made):
    """Mutation: keeping equal scores, or the last."""
    one, folder = made
    for step, score in ((1, 2.0), (2, 1.0), (3, 2.0), (4, 3.0), (5, 2.5)):
        one.keep_if_best(state_at(step), score, {"other": -score})
        best = checkpoint.best(folder)
        assert (best["step"], best["score"]) == ((4, 3.0) if step >= 4 else (1, 2.0))


def test_a_best_checkpoint_that_is_gone_is_beaten_by_any(made):
    """It was damaged and moved aside. Mutation: its score alone."""
    one, folder = made
    one.keep_if_best(state_at(1), 9.0, {})
    (folder / "1").rename(folder / "1.damaged")
    one.keep_if_best(state_at(2), 3.0, {})
    assert checkpoint.best(folder)["step"] == 2


def test_what_fails_in_the_background_is_raised_with_the_next_checkpoint(made, monkeypatch):
    """Mutation: a thread that ends with a traceback, and a run that goes on unsaved."""
    one, folder = made

    def fail(*_):
        raise TypeError("a set cannot be saved")

    monkeypatch.setattr(checkpoint_writer.checkpoint, "save", fail)
    one.write(state_at(1), background=True)
    one.join()
    monkeypatch.undo()
    with pytest.raises(TypeError, match="a set cannot be saved"):
        one.write(state_at(2))
    one.write(state_at(3))
    assert checkpoint.steps(folder) == [3]


def test_old_checkpoints_that_cannot_be_cleared_do_not_unwrite_the_new_one(made, monkeypatch, capsys):
    one, folder = made
    monkeypatch.setattr(checkpoint_writer.checkpoint, "prune", full)
    one.write(state_at(1), required=True)
    assert checkpoint.steps(folder) == [1] and "cannot be cleared away" in capsys.readouterr().err


def test_metric_rows_are_on_the_disk_before_the_checkpoint_that_counts_them(made, monkeypatch):
    """Mutation: no sync, or one after the checkpoint."""
    one, folder = made
    (folder.parent / "metrics.jsonl").write_text("{}\n")
    order, save = [], checkpoint.save
    monkeypatch.setattr(checkpoint_writer, "sync", lambda _, path: order.append(path.name))
    monkeypatch.setattr(checkpoint_writer.checkpoint, "save", lambda *given: (order.append("checkpoint"), save(*given)))
    one.write(state_at(1))
    assert order == ["metrics.jsonl", "checkpoint"]


def test_nothing_is_saved_into_a_folder_that_was_replaced(made):
    one, folder = made
    one.write(state_at(1))
    folder.parent.rename(folder.parent.with_name("elsewhere"))
    for _ in range(2):
        with pytest.raises(FolderLostError, match="deleted, renamed or replaced"):
            one.write(state_at(2))
        assert not folder.exists()
        folder.parent.mkdir(exist_ok=True)  # another of the same name
