"""The hash map in arrays against a dict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.hashing import digest
from packtrain.planning.nodes import NO_NODE, HashTable, Nodes

pytestmark = pytest.mark.usefixtures("way")


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=30), min_size=1, max_size=8), st.booleans())
def test_table_is_a_dict(batches: list[list[int]], crowded: bool) -> None:
    """Keys that collide in their low bits, come twice in a call, and outgrow the table are found again.

    Caught mutations: no claim mark (~) for keys that come twice; a lookup that stops at the first foreign key.
    """
    table, twin = HashTable(4), {}
    for batch in batches:
        keys = np.array([k << 32 if crowded else k for k in batch], np.uint64)
        found, places = table.enter(keys)
        for index, key in enumerate(keys.tolist()):
            key = key or 1
            if key in twin:
                assert found[index] == twin[key]
            else:
                assert found[index] == ~[k or 1 for k in keys.tolist()].index(key)
        new = np.flatnonzero(found == ~np.arange(len(keys)))
        numbers = 100 * len(twin) + np.arange(len(new))
        table.give(places[new], numbers)
        twin |= {int(keys[i]) or 1: int(n) for i, n in zip(new, numbers, strict=True)}
        assert len(table) == len(twin)
        every = np.array([*twin, 2**63], np.uint64)
        np.testing.assert_array_equal(table.find(every), [*twin.values(), NO_NODE])


@pytest.mark.parametrize("seed", range(3))
def test_nodes_are_a_dict_per_column(seed: int) -> None:
    """Equal states are one node within a column and different nodes between columns; forgetting frees one column."""
    rng = np.random.default_rng(seed)
    nodes = Nodes({"visits": ((), np.int64, 7)}, capacity=2)
    twin: dict[tuple[int, int], int] = {}
    for _ in range(40):
        columns = np.sort(rng.integers(0, 3, 20))
        states = {"a": rng.integers(0, 50, (20, 2)), "b": np.zeros(20, bool)}
        states["a"][:, 1] = 0
        ids, fresh = nodes.intern(columns, digest(states), states)
        for column, value, node, new in zip(columns, states["a"][:, 0], ids, fresh, strict=True):
            known = twin.get((int(column), int(value)))
            assert (known is None) == bool(new)
            twin.setdefault((int(column), int(value)), int(node))
            assert twin[int(column), int(value)] == node and nodes.owner[node] == column
        np.testing.assert_array_equal(nodes.states["a"][ids], states["a"])
        assert len(set(twin.values())) == len(twin) == len(nodes)
        assert (nodes.visits[ids[fresh]] == 7).all()
        nodes.visits[ids] = 1
        if rng.random() < 0.2:
            gone = rng.permutation(3)[: rng.integers(1, 4)]
            nodes.forget(gone)
            twin = {k: v for k, v in twin.items() if k[0] not in gone}
            assert len(nodes) == len(twin)
    for (column, value), node in twin.items():
        state = {"a": np.array([[value, 0]]), "b": np.zeros(1, bool)}
        assert nodes.find(np.array([column]), digest(state)) == node
        assert node in nodes.of(column)


def test_digest_tells_states_apart() -> None:
    """Every leaf, every byte and its place count; the number of states in a call does not."""
    rng = np.random.default_rng(0)
    states = {"a": rng.integers(0, 2, (5000, 3, 3)).astype(np.uint8), "b": rng.integers(0, 3, 5000)}
    texts = {tuple(a.ravel()) + (int(b),) for a, b in zip(states["a"], states["b"], strict=True)}
    keys = digest(states)
    assert len(np.unique(keys)) == len(texts)
    assert digest({"a": states["a"][7:8], "b": states["b"][7:8]}) == keys[7]
    swapped = digest((np.array([[1, 2], [2, 1]]), np.zeros((2, 0))))
    assert swapped[0] != swapped[1]


def test_sizes_count_the_nodes_of_each_environment():
    """Mutations: nodes of environments that were forgotten; of all environments together."""
    nodes = Nodes({})
    nodes.add(np.array([0, 2, 2, 2, 5]))
    assert nodes.sizes(np.array([2, 0, 1, 5])).tolist() == [3, 1, 0, 1]
    nodes.forget(np.array([2]))
    nodes.add(np.array([5]))
    assert nodes.sizes(np.array([2, 5, 7])).tolist() == [0, 2, 0]
