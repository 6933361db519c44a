"""The order of events of a local run, replayed by a serial one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from packtrain.cli import main
from packtrain.errors import StalledError
from packtrain.runtime import checkpoint
from packtrain.runtime.order_log import OrderLog, read_order
from packtrain.testing import tiny_runs

RECORD, LOCAL = ("--config", "Run.record_order = True"), ("--runtime", "local", "--eval_every", "0")


def leaves(tree, path=""):
    """Every value of nested dicts and lists, by its path; of tensors and arrays their bytes."""
    if isinstance(tree, dict | list | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {name: leaf for key, inner in items for name, leaf in leaves(inner, f"{path}/{key}").items()}
    return {path: np.asarray(tree).tobytes() if isinstance(tree, torch.Tensor | np.ndarray) else tree}


def trained(folder):
    """Everything that learning made: weights, optimisers, targets, counters; and the memories."""
    state = checkpoint.load_newest(Path(folder) / "checkpoints")[1]
    return leaves({name: state[name] for name in ("weights", "learners", "memories") if name in state})


def differences(left, right):
    assert len(left) > 20
    return [name for name in left.keys() | right.keys() if name not in left or left[name] != right.get(name)]


def events(folder):
    return [f"{kind} {' '.join(rest)}".strip() for kind, rest in read_order(str(Path(folder) / "order.txt"))]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["impala", "r2d2", "steve"])
def test_a_replayed_order_repeats_the_learner_of_a_threaded_run(tmp_path, monkeypatch, family):
    """D8. The serial run without the order is the control: it learns from other batches. Mutations: no lock around
    actor steps; `publish` is not recorded; the warm-up's end is not recorded."""
    monkeypatch.chdir(tmp_path)
    more = () if family == "impala" else ("--slack", "8")
    argv = tiny_runs.argv(family, *more, total=600)
    assert main([*argv, *LOCAL, *RECORD, "--output_dir", "run"]) == 0
    found = events("run")
    assert sum(line.startswith("draw") for line in found) >= 10 and found.count("update") == found.count("publish")
    if family != "impala":
        assert found[0] == "stage random" and "stage policy" in found
    again = ("--runtime", "serial", "--config", "Run.replay_order = 'run/order.txt'", "--output_dir", "again")
    assert main([*argv, "--eval_every", "0", *again]) == 0
    assert differences(trained("run"), trained("again")) == []
    assert main([*argv, "--eval_every", "0", "--runtime", "serial", "--output_dir", "other"]) == 0
    assert differences(trained("run"), trained("other")), "the recorded order is that of a serial run"


def test_only_one_event_happens_at_a_time(tmp_path):
    """Mutation: a thread waits for ever for another one's event."""
    order = OrderLog(tmp_path / "order.txt", patience=0.01)
    with (
        order.event("act"),
        pytest.raises(StalledError, match="'update' had to wait more than 0.01 s"),
        order.event("update"),
    ):
        pass
    for what in ("act", "draw values 2", "update", "publish", "act"):
        with order.event(what):
            pass
    order.close()
    assert events(tmp_path) == ["act 2", "draw values 2", "update", "publish", "act 1"]


def test_an_event_that_fails_is_not_recorded(tmp_path):
    order = OrderLog(tmp_path / "order.txt", patience=1.0)
    with pytest.raises(ZeroDivisionError), order.event("act"):
        raise ZeroDivisionError
    order.close()
    assert events(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("packtrain order of events 2\n", "does not begin with"),
        ("packtrain order of events 1\nexplode\n", "'explode' is no event"),
    ],
)
def test_a_file_that_is_no_order_is_refused_with_one_line(tmp_path, monkeypatch, capsys, content, said):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("order.txt").write_text(content)
    argv = tiny_runs.argv("impala", "--runtime", "serial", "--output_dir", "run")
    assert main([*argv, "--config", "Run.replay_order = 'order.txt'"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1 and said in lines[0]
