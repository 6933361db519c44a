"""The engine over Ray, with a Ray that only records what it is called with."""

import threading
import time
from types import SimpleNamespace

import pytest

from packtrain.errors import ClusterLostError
from packtrain.runtime.cluster import connection, engine
from packtrain.runtime.cluster.plan import Placed, Plan


class Ray:
    """Records how actors are created; its nodes answer until `lost` is set."""

    def __init__(self, nodes=()):
        self.listed, self.options, self.lost = list(nodes), [], threading.Event()
        self.ended = threading.Event()
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
        self.util = SimpleNamespace(scheduling_strategies=strategies)

    def nodes(self):
        if self.lost.is_set():
            self.ended.wait(60)
        return self.listed

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "none")

    def remote(self, **_):
        def options(**given):
            self.options.append(given)
            return SimpleNamespace(
                remote=lambda: SimpleNamespace(identify=SimpleNamespace(remote=lambda path: "later"))
            )

        return lambda kind: SimpleNamespace(options=options)

    def shutdown(self):
        self.ended.set()


def node(name, **resources):
    return {"NodeID": name, "NodeManagerAddress": name, "Alive": True, "Resources": {"CPU": 4.0, **resources}}


@pytest.mark.parametrize("stated", [True, False])
def test_a_worker_that_cannot_start_on_its_node_goes_to_one_of_the_same_role(stated):
    """Mutation: later lives need nothing of a node, so that Ray may place them on a head without workers."""
    pytest.importorskip("ray")
    role = {"packtrain_role_actor": 1.0} if stated else {}
    ray = Ray([node("a", **role), node("b", **role), node("head", packtrain_role_head=1.0)])
    cluster = connection.Cluster(ray, "127.0.0.1:1")
    cluster._known = ray.nodes()
    plan = Plan((Placed("actor", "a", 2.0, range(1)),), 1, {}, ())
    found = engine.RayEngine(cluster, plan, lambda *_: engine.Recipe(dict, ()))
    for life in range(2):
        found.spawn(0, "actor", life, 0)
    assert [given["num_cpus"] for given in ray.options] == [2.0, 0]
    assert [given["scheduling_strategy"] for given in ray.options] == [("a", True)] * 2
    expected = {"packtrain_role_actor": engine.ROLE_SHARE} if stated else None
    assert [given["resources"] for given in ray.options] == [expected] * 2


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(connection, "PROBE_EVERY", 0.1)
    monkeypatch.setattr(connection, "PROBE_SECS", 2.0)
    monkeypatch.setattr(connection, "STORE_EVERY", 0.1)
    ray = Ray()
    found = connection.Cluster(ray, "10.0.0.1:6379")
    yield found, ray
    found.close()


def test_a_slow_look_at_the_object_stores_is_no_lost_head(cluster, monkeypatch):
    """Mutation: the probe waits for both, and counts the time of both."""
    found, ray = cluster
    looking = threading.Event()
    monkeypatch.setattr(connection, "overflow", lambda ray: looking.set() or ray.ended.wait(60) and "")
    found._begin()
    assert looking.wait(30)
    for _ in range(40):
        time.sleep(0.1)
        found.check()


def test_a_head_that_does_not_answer_is_noticed_by_the_next_check(cluster, monkeypatch):
    """Nothing checks while an update lasts. Mutation: only the time of checks counts."""
    found, ray = cluster
    monkeypatch.setattr(connection, "overflow", lambda ray: "")
    found._begin()
    found.check()
    ray.lost.set()
    deadline = time.monotonic() + 60
    while found._blind <= 2.0 and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(ClusterLostError, match=r"the head of the cluster 10.0.0.1:6379 has not answered for 2 s"):
        found.check()


def test_a_full_object_store_ends_the_run(cluster, monkeypatch):
    found, _ = cluster
    monkeypatch.setattr(connection, "overflow", lambda ray: "an object store is full")
    found._begin()
    deadline = time.monotonic() + 30
    while not found._overflow and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ClusterLostError, match="an object store is full"):
        found.check()
