"""Checkpoints are written when they are due; a disk that refuses, weights that are not finite, and worse scores."""

import logging
import threading

import pytest
import torch

from packtrain.errors import DivergedError, SaveError
from packtrain.runtime import checkpoint, saving
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.saving import Saving


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
    now = saving.time.monotonic()
    monkeypatch.setattr(saving.time, "monotonic", lambda: now + 1001)
    assert one.due
    one.write(state_at(1))
    assert not one.due


def test_in_the_background_it_is_there_after_joining(made, monkeypatch):
    one, folder = made
    go, save = threading.Event(), checkpoint.save
    monkeypatch.setattr(saving.checkpoint, "save", lambda *given: (go.wait(10), save(*given)))
    one.write(state_at(7), background=True)
    assert checkpoint.steps(folder) == []
    go.set()
    one.join()
    assert checkpoint.steps(folder) == [7]


def test_a_disk_that_refuses_is_a_warning_and_an_error_where_it_matters(made, monkeypatch, caplog):
    one, folder = made
    one.write(state_at(1))
    monkeypatch.setattr(saving.checkpoint, "save", full)
    with caplog.at_level(logging.WARNING, "packtrain"):
        one.write(state_at(2))
        one.keep_if_best(state_at(3), 5.0, {})
    assert ["the one before it stands" in record.message for record in caplog.records] == [True, True]
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
