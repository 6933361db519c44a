"""What runs where, and what is refused before anything starts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain.errors import ClusterError
from packtrain.runtime.cluster import plan
from packtrain.runtime.cluster.plan import Needs, Node

MIB = 2**20


def node(name, cpus=8.0, gpus=0.0, store=1000 * MIB, roles=("actor", "env"), driver=False, sockets=1):
    return Node(name, f"10.0.0.{name}", cpus, gpus, store, frozenset(roles), driver, sockets)


def needs(**more):
    return Needs(**{"num_envs": 32, "chunk_bytes": 8 * MIB, "weights_bytes": 2 * MIB, **more})


@given(st.integers(1, 300), st.integers(1, 300))
def test_blocks_cover_all_environments_evenly(num_envs, workers):
    if workers > num_envs:
        with pytest.raises(ClusterError, match="cannot be divided"):
            plan.split(num_envs, workers)
        return
    blocks = plan.split(num_envs, workers)
    assert [index for block in blocks for index in block] == list(range(num_envs))
    sizes = [len(block) for block in blocks]
    assert len(blocks) == workers and max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_one_worker_for_each_numa_node_of_each_machine_is_the_default():
    found = plan.make_plan([node("1", driver=True), node("2", cpus=16, sockets=2)], needs())
    assert Counter(each.node for each in found.workers) == {"1": 1, "2": 2}
    assert {each.node: each.cpus for each in found.workers} == {"1": 7, "2": 8}
    assert found.notes == ("3 workers on 2 nodes",)


def test_a_node_with_the_role_head_gets_no_worker():
    nodes = [node("1", cpus=0, roles=(), driver=True), node("2"), node("3")]
    found = plan.make_plan(nodes, needs(workers=4))
    assert {each.node for each in found.workers} == {"2", "3"}
    assert [each.role for each in found.workers] == ["actor"] * 4
    with pytest.raises(ClusterError, match="no node of the cluster may act"):
        plan.make_plan(nodes[:1], needs())


def test_workers_that_only_step_environments_go_to_nodes_for_them():
    """Mutation: they are placed like workers that act."""
    nodes = [node("0", driver=True, roles=()), node("1", roles=("actor",)), node("2", roles=("env",))]
    placed = plan.make_plan(nodes, needs(workers=3, role="env"))
    assert [(each.role, each.node) for each in placed.workers] == [("env", "2")] * 3
    with pytest.raises(ClusterError, match="may run environments alone.*--role env"):
        plan.make_plan(nodes[:2], needs(workers=3, role="env"))


def test_more_workers_than_processors_share_them_and_a_note_says_so():
    found = plan.make_plan([node("1", cpus=2, driver=True)], needs(workers=3))
    assert [each.cpus for each in found.workers] == [0.66] * 3
    assert found.notes[1] == "more workers than processors on 10.0.0.1: they share them"


def test_the_object_store_must_hold_four_results_per_worker_and_three_versions():
    nodes = [node("1", store=37 * MIB, driver=True), node("2", store=37 * MIB)]
    with pytest.raises(ClusterError) as caught:
        plan.make_plan(nodes, needs(workers=2))
    assert str(caught.value) == (
        "the object store of 10.0.0.1 holds 37.0 MiB and this run needs 38.0 MiB there (4 results of 4.0 MiB for each "
        "worker and 3 versions of weights of 2.0 MiB); start the node with --store_gb 0.1, or lower unroll_length or "
        "num_actors"
    )
    found = plan.make_plan([node("1", store=38 * MIB, driver=True), node("2", store=22 * MIB)], needs(workers=2))
    assert found.store_bytes == {"1": 38 * MIB, "2": 22 * MIB} and found.chunk_bytes == 4 * MIB


def test_too_few_nodes_are_one_sentence():
    with pytest.raises(ClusterError, match="1 of the 3 nodes that --min_nodes requires"):
        plan.make_plan([node("1")], needs(min_nodes=3))


def test_a_lost_node_is_replaced_by_the_one_with_the_most_room():
    nodes = [node("1", cpus=4), node("2", cpus=16), node("3", cpus=16)]
    load = Counter({"2": 1})
    assert plan.choose_node(nodes, "actor", load, wish="1").id == "1"
    assert plan.choose_node(nodes[1:], "actor", load, wish="1").id == "3"
    assert plan.choose_node([], "actor", load) is None


def test_roles_come_from_resources():
    assert plan.roles_of({"CPU": 4.0}) == {"actor", "env"} and plan.roles_of({"memory": 1.0}) == set()
    assert plan.roles_of({"CPU": 4.0, "packtrain_role_env": 1.0}) == {"env"}
    assert plan.roles_of({"CPU": 4.0, "packtrain_role_head": 1.0}) == set()


def test_whole_runs_are_spread_over_nodes_as_far_as_they_fit():
    nodes = [node("1", cpus=2), node("2", cpus=4), node("3", cpus=8, roles=("env",))]
    assert Counter(plan.place_runs(nodes, 10, cpus=2)) == {"1": 1, "2": 2}
    assert len(plan.place_runs(nodes, 2, cpus=1)) == 2
    gpus = [node("1", gpus=1), node("2", gpus=2)]
    assert Counter(plan.place_runs(gpus, 9, gpus=1)) == {"1": 1, "2": 2}
    with pytest.raises(ClusterError, match="no node has 16 processors"):
        plan.place_runs(nodes, 1, cpus=16)


def test_numa_nodes_without_processors_do_not_count(tmp_path):
    for index, cpus in enumerate(["0-7", "8-15", ""]):
        (tmp_path / f"node{index}").mkdir()
        (tmp_path / f"node{index}" / "cpulist").write_text(cpus + "\n")
    assert plan.count_sockets(tmp_path) == 2 and plan.count_sockets(tmp_path / "none") == 1


def test_a_store_of_a_private_cluster_has_room_to_spare():
    assert plan.store_to_start(0) == plan.SMALLEST_STORE and plan.store_to_start(800 * MIB) == 1000 * MIB
