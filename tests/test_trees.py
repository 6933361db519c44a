"""Trees: nest's contract (specs/impala.md section 6), with the types of containers kept."""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain import trees


class Pair(NamedTuple):
    left: object
    right: object


leaves = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.booleans())
any_tree = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
    ),
    max_leaves=12,
)


def naive_flatten(tree):
    """The contract, written as a recursion."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in naive_flatten(tree[key])]
    if isinstance(tree, (tuple, list)):
        return [leaf for inner in tree for leaf in naive_flatten(inner)]
    return [tree]


def same(one, other):
    """Equal, and of equal types all the way down: (1,) == Pair(1) must not pass."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


@given(any_tree)
@settings(max_examples=200, deadline=None)
def test_flatten_is_the_recursion_and_pack_is_its_reverse(tree):
    flat = trees.flatten(tree)
    assert isinstance(flat, list)
    assert flat == naive_flatten(tree)
    assert same(trees.pack(tree, flat), tree)


@given(any_tree)
@settings(max_examples=100, deadline=None)
def test_map_keeps_the_structure_and_visits_leaves_in_order(tree):
    seen = []
    mapped = trees.map(lambda leaf: (seen.append(leaf), "new")[1], tree)
    assert seen == naive_flatten(tree)
    assert same(mapped, trees.pack(tree, ["new"] * len(seen)))


@given(any_tree)
@settings(max_examples=100, deadline=None)
def test_zip_puts_the_leaves_of_equal_trees_together(tree):
    numbered = trees.pack(tree, range(len(trees.flatten(tree))))
    zipped = trees.zip([numbered, trees.map(lambda n: n * 10, numbered)])
    want = [(n, n * 10) for n in range(len(trees.flatten(tree)))]
    assert same(zipped, trees.pack(tree, want))


def test_keys_are_sorted_whatever_the_order_of_insertion():
    """Mutation: insertion order gives [2, 1]."""
    tree = {"b": 2, "a": 1}
    assert trees.flatten(tree) == [1, 2]
    assert trees.pack(tree, ["first", "second"]) == {"a": "first", "b": "second"}
    assert trees.flatten({"b": {"d": 3, "c": 2}, "a": [1]}) == [1, 2, 3]


def test_none_is_a_leaf():
    """Mutation: optree's default takes None for an empty container."""
    assert trees.flatten(None) == [None]
    assert trees.flatten({"a": None, "b": (None, 1)}) == [None, None, 1]
    assert trees.map(lambda leaf: leaf is None, (None, 1)) == (True, False)
    assert trees.pack((0, None), [None, 5]) == (None, 5)
    assert trees.front(None) is None


@pytest.mark.parametrize("empty", [(), [], {}])
def test_empty_containers_stay_and_give_nothing(empty):
    assert trees.flatten(empty) == []
    tree = {"a": empty, "b": (1, empty)}
    assert trees.flatten(tree) == [1]
    assert same(trees.map(lambda leaf: leaf + 1, tree), {"a": empty, "b": (2, empty)})
    assert same(trees.pack(tree, [7]), {"a": empty, "b": (7, empty)})


def test_containers_keep_their_types():
    """Mutation: nest gave tuples back for lists and NamedTuples."""
    tree = {"pair": Pair([1, 2], (3,)), "ordered": OrderedDict(x=4)}
    mapped = trees.map(lambda leaf: -leaf, tree)
    assert same(mapped, {"pair": Pair([-1, -2], (-3,)), "ordered": OrderedDict(x=-4)})
    assert mapped["pair"].left == [-1, -2]


def test_arrays_tensors_and_strings_are_leaves():
    array, tensor = np.zeros((2, 3)), torch.zeros(4)
    flat = trees.flatten([array, {"t": tensor}, "text"])
    assert flat[0] is array and flat[1] is tensor and flat[2] == "text"
    assert [leaf.shape for leaf in trees.flatten(trees.map(torch.as_tensor, (array, tensor)))] == [(2, 3), (4,)]


def test_map_works_on_a_bare_leaf_and_takes_any_callable():
    assert trees.map(str, 3) == "3"
    assert torch.equal(trees.map(torch.ones(2).add, torch.ones(2)), torch.full((2,), 2.0))
    assert trees.map(lambda a, b, c: a + b + c, {"x": 1}, {"x": 2}, {"x": 3}) == {"x": 6}


@pytest.mark.parametrize(
    "one, other",
    [((1, 2), (1,)), ({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 1, "b": 2}), ((1,), {"a": 1}), ((1, 2), [1, 2])],
    ids=["length", "key", "more keys", "kind", "tuple or list"],
)
def test_structures_that_differ_are_refused(one, other):
    with pytest.raises(ValueError):
        trees.map(lambda a, b: a, one, other)
    with pytest.raises(ValueError):
        trees.zip([one, other])


def test_zip_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        trees.zip([])
    assert trees.zip([{"a": 1}]) == {"a": (1,)}
    assert trees.zip(tree for tree in [(1,), (2,)]) == ((1, 2),)  # any iterable


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5])
def test_pack_counts_its_leaves(count):
    tree = {"a": (None, 0), "b": [()], "c": 1}
    with pytest.raises(ValueError, match=f"has 3 leaves, but {count}"):
        trees.pack(tree, range(count))
    assert trees.pack(tree, iter("xyz")) == {"a": ("x", "y"), "b": [()], "c": "z"}


def test_front_is_the_first_leaf():
    assert trees.front({"b": 1, "a": ((), [2, 3])}) == 2
    assert trees.front("leaf") == "leaf"
    for tree in ((), {}, [(), {}]):
        with pytest.raises(ValueError, match="no first leaf"):
            trees.front(tree)


def test_stack_puts_an_axis_in_front():
    """Mutation: leaves behind each other."""
    one, other = {"a": np.zeros(2), "b": (np.array(1),)}, {"a": np.ones(2), "b": (np.array(5),)}
    found = trees.stack(tree for tree in [one, other])  # any iterable
    assert found["a"].tolist() == [[0, 0], [1, 1]] and found["b"][0].tolist() == [1, 5]
    for wrong in ([], [one, {"a": np.zeros(2)}]):
        with pytest.raises(ValueError):
            trees.stack(wrong)


def test_named_leaves_have_readable_unique_names():
    tree = {"a": (10, 20), "b": Pair({"x": 30}, None)}
    named = trees.named_leaves(tree)
    assert list(named.values()) == trees.flatten(tree)
    assert {name: value for name, value in named.items() if name.startswith("a")} == {"a/0": 10, "a/1": 20}
    assert len(named) == 4
    assert trees.named_leaves(5, "weights") == {"weights": 5}
    assert trees.named_leaves({"w": 5}, "net") == {"net/w": 5}
