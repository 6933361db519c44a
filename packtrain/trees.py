"""Trees of arrays: dicts (in sorted key order), tuples and lists with anything else, `None` included, at the leaves.

The first five functions do what TorchBeast's `nest` did. They keep the type of a container, so a NamedTuple comes back
as itself, and they raise on structures that do not match instead of guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import optree

Tree = Any
"""A leaf, or a dict, tuple or list of trees."""


def flatten(tree: Tree) -> list:
    """Return the leaves, depth first, dict keys sorted. `flatten(None) == [None]`; empty containers give nothing."""
    return optree.tree_leaves(tree, none_is_leaf=True)


def map(function: Callable, tree: Tree, *others: Tree) -> Tree:  # noqa: A001  (nest's own name)
    """Return the same structure with `function(leaf, *leaves of the others)`; ValueError if structures differ."""
    return optree.tree_map(function, tree, *others, none_is_leaf=True)


def zip(trees: Iterable[Tree]) -> Tree:  # noqa: A001
    """Return a sequence of equal structures as one structure with tuples of leaves; ValueError if they differ."""
    trees = list(trees)
    if not trees:
        raise ValueError("zip needs at least one tree")
    return optree.tree_map(lambda *leaves: leaves, *trees, none_is_leaf=True)


def pack(tree: Tree, leaves: Iterable) -> Tree:
    """Return the structure of `tree` with other leaves, in `flatten` order; ValueError on too few or too many."""
    structure = optree.tree_structure(tree, none_is_leaf=True)
    leaves = list(leaves)
    if len(leaves) != structure.num_leaves:
        raise ValueError(f"the structure has {structure.num_leaves} leaves, but {len(leaves)} were given")
    return optree.tree_unflatten(structure, leaves)


def front(tree: Tree) -> Any:
    """Return the first leaf; ValueError on a tree without leaves."""
    leaves = flatten(tree)
    if not leaves:
        raise ValueError("a tree without leaves has no first leaf")
    return leaves[0]


def pick(tree: Tree, rows: Any) -> Tree:
    """Return rows of every leaf: `leaf[rows]`."""
    return tree[rows] if isinstance(tree, np.ndarray) else map(lambda leaf: leaf[rows], tree)


def stack(trees: Iterable[Tree]) -> Tree:
    """Stack equal structures of arrays along a new first axis; ValueError if they differ or there are none."""
    first, *others = trees  # Python's ValueError if there are none
    return map(lambda *leaves: np.stack(leaves), first, *others)


def named_leaves(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Return the leaves under readable, unique names: `{"a": (x, y)}` gives `{"a/0": x, "a/1": y}`."""
    paths, leaves, _ = optree.tree_flatten_with_path(tree, none_is_leaf=True)
    names = ["/".join([prefix] * bool(prefix) + [str(part) for part in path]) for path in paths]
    return {name: leaves[index] for index, name in enumerate(names)}


def outline(tree: Tree) -> Any:
    """Return the structure as a JSON value: `from_outline` builds the tree again from its leaves in `flatten` order.

    Raises:
      TypeError: a container is neither a dict with string keys, nor a plain tuple or list.
    """
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise TypeError(f"a dict with the keys {list(tree)} has no outline: keys must be strings")
        return {"dict": {key: outline(tree[key]) for key in sorted(tree)}}
    if isinstance(tree, (tuple, list)):
        if type(tree) not in (tuple, list):
            raise TypeError(f"a {type(tree).__name__} has no outline: only dicts, tuples and lists have")
        return {type(tree).__name__: [outline(item) for item in tree]}
    return "leaf"


def from_outline(outline: Any, leaves: Iterable) -> Tree:
    """Return the tree with this structure and these leaves; ValueError if they do not fit.

    Args:
      outline: from `outline`.
      leaves: in `flatten` order.
    """
    rest = iter(leaves)

    def build(part: Any) -> Tree:
        if part == "leaf":
            return next(rest)
        ((kind, inner),) = part.items()
        if kind == "dict":
            return {key: build(item) for key, item in inner.items()}
        return {"tuple": tuple, "list": list}[kind](build(item) for item in inner)

    missing = object()
    try:
        tree = build(outline)
    except (StopIteration, RuntimeError, AttributeError, KeyError, TypeError, ValueError):
        raise ValueError("leaves and outline do not match") from None
    if next(rest, missing) is not missing:
        raise ValueError("there are more leaves than the structure has")
    return tree
