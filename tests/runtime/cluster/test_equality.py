"""A run whose worker is a Ray actor stores the same rows and learns the same as one whose worker is a process."""

import importlib.util
from pathlib import Path

import pytest

from packtrain.runtime.cluster.flow import Flow

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]
BESIDE = Path(__file__).parents[1] / "test_process_acting.py"


def load(path):
    spec = importlib.util.spec_from_file_location("process_acting_tests", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


process_acting = load(BESIDE)


@pytest.mark.parametrize("name", ["r2d2/catch", pytest.param("impala/catch", marks=pytest.mark.long)])
def test_one_worker_on_a_cluster_acts_row_for_row_like_a_process(tmp_path, monkeypatch, name):
    """The serial runtime fixes the order in which rows arrive. Mutations: weights of the call before are kept; a
    chunk is stored twice; the seed depends on the kind of worker."""
    values, limits = process_acting.CASES[name], []
    poll = Flow.poll
    monkeypatch.setattr(Flow, "poll", lambda self, timeout: limits.append(self.limits) or poll(self, timeout))
    for kind in ("process", "cluster"):
        assert process_acting.train(name, tmp_path / kind, acting=kind, **values) == 0
    process_acting.assert_equal(
        process_acting.state_of(tmp_path / "process"), process_acting.state_of(tmp_path / "cluster")
    )
    assert limits[-1].max_bytes >= 80 * 2**20 and limits[-1].chunk_bytes > 0, "the object store limits no orders"
