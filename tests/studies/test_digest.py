"""Digests of short runs: they repeat, and notice each of weights, metrics and settings."""

import json

import pytest
import torch

from packtrain.studies import digest

SMALL = {"num_actors": 4, "batch_size": 2, "unroll_length": 5, "total_steps": 60, "eval_every": 0}


@pytest.fixture(scope="module")
def run_folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digest")
    seeds = {"a": 0, "b": 0, "c": 1}
    found = {
        name: digest.measure(digest.ShortRun("impala/catch", SMALL, seed), folder / name)
        for name, seed in seeds.items()
    }
    return folder, found


def test_a_digest_repeats_and_depends_on_the_seed(run_folders):
    folder, found = run_folders
    assert found["a"] == found["b"] and found["a"].state != found["c"].state
    assert digest.differences(folder / "a", folder / "b") == []
    assert digest.differences(folder / "a", folder / "c")


def test_names_of_state_can_be_mapped(run_folders):
    folder, _ = run_folders
    name = sorted(digest.state_of(folder / "a"))[0]
    lines = digest.differences(folder / "a", folder / "b", {name: "other"})
    assert set(lines) == {"only old: other", f"only new: {name}"}


def test_equality_is_to_the_bit():
    nan = float("nan")
    assert digest.equal(nan, nan) and not digest.equal(1, 1.0) and not digest.equal(0, False)
    assert digest.equal(torch.tensor([nan, 0.0]), torch.tensor([nan, 0.0]))
    assert not digest.equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not digest.equal(torch.zeros(2), torch.zeros(2, dtype=torch.float64))


def test_comparison_names_what_differs(run_folders):
    _, found = run_folders
    stored = json.loads(json.dumps(found["a"].as_json()))
    assert digest.compare(stored, found["a"], exact=True) == []
    assert digest.compare({**stored, "state": "x"}, found["a"], exact=True) == [
        "the weights and the state of the run differ"
    ]
    assert digest.compare({**stored, "state": "x"}, found["a"], exact=False) == []
    assert "the metrics differ" in digest.compare({**stored, "rows": "x"}, found["a"], exact=True)
    parts = {**stored["parts"], "Impala": "x"}
    changed = {**stored, "identity": "x", "parts": parts}
    assert digest.compare(changed, found["a"], exact=True) == ["the configuration differs in Impala"]


def test_fingerprint_names_versions_and_processor():
    found = digest.fingerprint()
    assert {"torch", "numpy", "gymnasium", "ale-py", "mujoco", "cpu", "capability", "threads"} <= set(found)
    assert all(isinstance(text, str) and text for text in found.values())
