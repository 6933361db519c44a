"""What does not fit is one line that says what to lower, before anything runs or when the device is full."""

import pytest
import torch

from packtrain import knobs
from packtrain.errors import ConfigError
from packtrain.runtime import local, open_run, preflight, preparation, train_command

CPU = torch.device("cpu")


def prepare(name="impala/catch", **values):
    path, _ = knobs.find_config(name)
    return preparation.prepare([path], [], {"eval_every": 0, "total_steps": 400, **values}, 0, True)


def test_a_queue_that_does_not_fit_is_refused_with_its_size():
    _, experiment, spec = prepare(num_actors=1_000_000, unroll_length=100_000)
    with pytest.raises(ConfigError, match=r"unroll queue would take [\d,.]+ GiB .* lower num_actors"):
        preflight.refuse_too_large(experiment, spec, CPU)
    preflight.refuse_too_large(*prepare()[1:], CPU)


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("steve/ddpg_pendulum", {"replay_size": 10**12, "total_steps": 10**12}, "lower replay_size"),
        ("r2d2/catch", {"replay_size": 10**12}, "lower replay_size, or set storage"),
        ("r2d2/catch", {"replay_size": 10**12, "storage": "host"}, "lower replay_size, or set storage"),
    ],
)
def test_a_replay_that_does_not_fit_is_refused_with_its_size(name, values, line):
    """Mutation: counting queues alone."""
    with pytest.raises(ConfigError, match=rf"the replay would take [\d,.]+ GiB and .* are free; {line}"):
        preflight.refuse_too_large(*prepare(name, **values)[1:], CPU)
    preflight.refuse_too_large(*prepare(name)[1:], CPU)


def test_on_a_gpu_its_own_memory_counts(monkeypatch):
    """Mutation: the machine's memory looked at, of which there is enough."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    with pytest.raises(ConfigError, match="GiB are free on cuda:0; lower"):
        preflight.refuse_too_large(*prepare()[1:], torch.device("cuda", 0))


def test_a_device_that_is_full_is_one_line(monkeypatch, tmp_path):
    """Mutation: torch's error let through, a page of text with exit code 1."""

    def full(training):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nand much more text")

    monkeypatch.setitem(train_command.RUNTIMES, "local", full)
    path, _ = knobs.find_config("impala/catch")
    request = open_run.TrainRequest([path], [], {"eval_every": 0, "total_steps": 400}, tmp_path / "run")
    with pytest.raises(ConfigError) as caught:
        train_command.train(request)
    text = str(caught.value)
    assert "\n" not in text and "20.00 GiB" in text and "batch_size" in text and caught.value.exit_code == 2
    monkeypatch.setitem(train_command.RUNTIMES, "local", local.run)
    assert train_command.train(request) == 0  # the folder is as good as before
