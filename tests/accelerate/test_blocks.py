"""Trees in one block of bytes: what goes in comes out, wherever each leaf lies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain import trees
from packtrain.accelerate.blocks import ALIGNMENT, Block, Download, Upload

CPU = torch.device("cpu")
DTYPES = [np.bool_, np.uint8, np.int64, np.float32]


def noise(dtype, shape, rng):
    if dtype == np.float32:
        return np.asarray(rng.normal(size=shape), np.float32)
    high = {np.bool_: 2, np.uint8: 256, np.int64: 2**62}[dtype]
    return np.asarray(rng.integers(high, size=shape), dtype)


def row(seed):
    """Like a row of experience, with sizes that fill no cache line."""
    rng = np.random.default_rng(seed)
    return {
        "first": noise(np.bool_, (3,), rng),
        "obs": (noise(np.uint8, (3, 7, 5), rng), noise(np.float32, (3, 2), rng)),
        "action": noise(np.int64, (3,), rng),
        "scale": noise(np.float32, (), rng),
    }


def assert_same(got, want, kind):
    got, want = trees.named_leaves(got), trees.named_leaves(want)
    assert got.keys() == want.keys()
    for name in want:
        assert isinstance(got[name], kind) and got[name].shape == want[name].shape, name
        assert np.asarray(got[name]).dtype == want[name].dtype, name
        assert np.array_equal(np.asarray(got[name]), want[name]), name


def test_up_and_down_again():
    """Mutations: a leaf one byte off, or over its neighbour; a leaf read in another dtype."""
    up, down = Upload(row(0), CPU), Download(row(0), CPU)
    for seed in range(3):
        there = up(row(seed))
        assert_same(there, row(seed), torch.Tensor)
        down.put(there)
        assert_same(down.fetch(), row(seed), np.ndarray)


SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=6), st.integers(0, 99))
def test_leaves_of_every_size(leaves, seed):
    """Empty ones and scalars too, in any order."""
    rng = np.random.default_rng(seed)
    example, given = ([noise(dtype, shape, rng) for dtype, shape in leaves] for _ in range(2))
    up, down = Upload(example, CPU), Download(example, CPU)
    there = up(given)
    assert_same(there, given, torch.Tensor)
    down.put(there)
    assert_same(down.fetch(), given, np.ndarray)


def test_leaves_begin_on_cache_lines_of_one_block():
    """Mutations: leaves packed without gaps; a leaf in memory of its own, which would be a second copy."""
    block = Block(row(0), CPU)
    begins = [view.data_ptr() - block.bytes.data_ptr() for view in trees.flatten(block.views)]
    assert begins == [0, 64, 128, 256, 320]  # in sorted order: action 24 bytes, first 3, obs 105 and 24, scale 4
    assert len(block.bytes) == 384 and ALIGNMENT == 64
    assert not any(view.any() for view in trees.flatten(block.views))
    block.bytes.fill_(1)
    assert all(view.view(-1).view(torch.uint8).eq(1).all() for view in trees.flatten(block.views))
    up = Upload(row(0), CPU)
    assert len({leaf.untyped_storage().data_ptr() for leaf in trees.flatten(up(row(0)))}) == 1


def test_examples_may_be_tensors():
    block = Block({"a": torch.zeros(2, 3, dtype=torch.int64)}, CPU)
    assert block.views["a"].shape == (2, 3) and block.views["a"].dtype == torch.int64


def test_an_upload_is_overwritten_by_the_next():
    """Which is what captured work needs: the same memory every time. Mutation: fresh memory each call."""
    up = Upload(row(0), CPU)
    one = up(row(1))
    places = [leaf.data_ptr() for leaf in trees.flatten(one)]
    two = up(row(2))
    assert_same(one, row(2), torch.Tensor)
    assert [leaf.data_ptr() for leaf in trees.flatten(two)] == places


def test_an_upload_is_a_copy_of_what_it_was_given():
    """Mutation: a view of the environment's memory, which changes while the device reads it."""
    up, mine = Upload(row(0), CPU), row(1)
    there = up(mine)
    trees.map(lambda leaf: leaf.fill(0), mine)
    assert_same(there, row(1), torch.Tensor)


def test_a_download_stays_until_the_next_is_fetched():
    """Mutations: arrays that change as soon as something is put; arrays that are new every time."""
    down = Download(row(0), CPU)
    down.put(trees.map(torch.as_tensor, row(1)))
    one = down.fetch()
    down.put(trees.map(torch.as_tensor, row(2)))
    assert_same(one, row(1), np.ndarray)
    two = down.fetch()
    assert_same(two, row(2), np.ndarray)
    assert_same(one, row(2), np.ndarray)


@pytest.mark.parametrize(
    "change",
    [lambda row: {**row, "zoom": np.zeros(1)}, lambda row: {name: row[name] for name in ("action", "first", "obs")}],
    ids=["a leaf more", "a leaf less"],
)
def test_other_trees_are_refused(change):
    """Mutation: leaves beyond the last place dropped, or places left as they were, in silence."""
    up, down = Upload(row(0), CPU), Download(row(0), CPU)
    with pytest.raises(ValueError):
        up(change(row(1)))
    with pytest.raises(ValueError):
        down.put(trees.map(torch.as_tensor, change(row(1))))
