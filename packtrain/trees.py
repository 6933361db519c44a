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
    """The leaves, depth first, dict keys sorted. `flatten(None) == [None]`; empty containers give nothing."""
    return optree.tree_leaves(tree, none_is_leaf=True)


def map(function: Callable, tree: Tree, *others: Tree) -> Tree:  # noqa: A001  (nest's own name)
    """The same structure with `function(leaf, *leaves of the others)`; ValueError where structures differ."""
    return optree.tree_map(function, tree, *others, none_is_leaf=True)


def zip(trees: Iterable[Tree]) -> Tree:  # noqa: A001
    """A sequence of equal structures as one structure with tuples of leaves; ValueError if they differ or are none."""
    trees = list(trees)
    if not trees:
        raise ValueError("zip needs at least one tree")
    return optree.tree_map(lambda *leaves: leaves, *trees, none_is_leaf=True)


def pack(tree: Tree, leaves: Iterable) -> Tree:
    """The structure of `tree` with other leaves, in `flatten` order; ValueError on too few or too many."""
    structure = optree.tree_structure(tree, none_is_leaf=True)
    leaves = list(leaves)
    if len(leaves) != structure.num_leaves:
        raise ValueError(f"the structure has {structure.num_leaves} leaves, got {len(leaves)}")
    return optree.tree_unflatten(structure, leaves)


def front(tree: Tree) -> Any:
    """The first leaf; ValueError on a tree that has none."""
    leaves = flatten(tree)
    if not leaves:
        raise ValueError("a tree without leaves has no front")
    return leaves[0]


def pick(tree: Tree, rows: Any) -> Tree:
    """Rows of every leaf: `leaf[rows]`."""
    return tree[rows] if isinstance(tree, np.ndarray) else map(lambda leaf: leaf[rows], tree)


def stack(trees: Iterable[Tree]) -> Tree:
    """Equal structures of arrays as one, with an axis in front; ValueError if they differ or are none."""
    first, *others = trees  # ValueError of Python where there are none
    return map(lambda *leaves: np.stack(leaves), first, *others)


def named_leaves(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """The leaves under readable, unique names: `{"a": (x, y)}` gives `{"a/0": x, "a/1": y}`."""
    paths, leaves, _ = optree.tree_flatten_with_path(tree, none_is_leaf=True)
    names = ["/".join([prefix] * bool(prefix) + [str(part) for part in path]) for path in paths]
    return {name: leaves[index] for index, name in enumerate(names)}
