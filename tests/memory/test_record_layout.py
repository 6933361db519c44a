"""Packed rows: every field comes out as it went in, whatever lies beside it."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.memory.record_layout import RecordLayout

DTYPES = st.sampled_from([np.float32, np.float64, np.uint8, np.int64, np.int16])
FIELDS = st.lists(st.tuples(DTYPES, st.lists(st.integers(1, 4), max_size=3)), min_size=1, max_size=6)


def fields_of(kinds, count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"field {place}": rng.integers(0, 100, (count, *shape)).astype(dtype)
        for place, (dtype, shape) in enumerate(kinds)
    }


@settings(max_examples=50, deadline=None)
@given(kinds=FIELDS, count=st.integers(1, 5))
def test_what_is_packed_is_what_is_seen(kinds, count):
    fields = fields_of(kinds, count)
    layout = RecordLayout(fields)
    block = torch.from_numpy(layout.pack(fields))
    assert block.shape == (count, layout.words)
    for name, leaf in layout.views(block).items():
        assert leaf.dtype == torch.from_numpy(fields[name]).dtype
        np.testing.assert_array_equal(leaf.numpy(), fields[name])


@settings(max_examples=30, deadline=None)
@given(kinds=FIELDS)
def test_views_are_views_of_rows_in_any_order(kinds):
    fields = fields_of(kinds, 7)
    layout = RecordLayout(fields)
    block = torch.from_numpy(layout.pack(fields))
    places = torch.tensor([[6, 0], [3, 3]])
    for name, leaf in layout.views(block[places]).items():
        np.testing.assert_array_equal(leaf.numpy(), fields[name][places.numpy()])
    for leaf in layout.views(block).values():
        leaf.zero_()
    assert not block.any(), "a view was a copy, or a field has room that it does not fill"
