"""Chunks: rows of a group packed for another process come out of it as they went in."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain import trees
from packtrain.interfaces import Writer
from packtrain.memory.chunk import ChunkWriter
from packtrain.types import Chunk, Row


class Rows(Writer):
    """Keeps copies of what it is given, as arrays."""

    def __init__(self):
        self.rows = []

    def add(self, row, carry, extras):
        copy = lambda tree: trees.map(lambda leaf: np.copy(torch.as_tensor(leaf).numpy()), tree)  # noqa: E731
        self.rows.append((copy(row), copy(carry), copy(extras)))


def numbered(number, batch=3, policy_extras=True):
    """A row whose every leaf says which row it is."""
    fill = lambda dtype, *shape: np.full((batch, *shape), number % 2 if dtype is bool else number, dtype)  # noqa: E731
    row = Row(
        obs={"frame": fill(np.uint8, 2, 2), "pair": (fill(np.float64), fill(np.float32, 1))},
        first=fill(bool),
        last_action=fill(np.int64),
        last_reward={"train": fill(np.float32)},
        terminated=fill(bool),
        truncated=fill(bool),
    )
    carry = (torch.full((batch, 2), float(number)), [torch.full((batch,), float(number))])
    return row, carry, {"known": torch.full((batch,), float(number))} if policy_extras else {}


def equal(a, b):
    return all(trees.flatten(trees.map(lambda x, y: x.dtype == y.dtype and np.array_equal(x, y), a, b)))


@given(length=st.integers(1, 5), count=st.integers(0, 12), bare=st.sets(st.integers(0, 11)))
@settings(max_examples=60, deadline=None)
def test_chunks_hold_the_rows_that_were_added(length, count, bare):
    """Also if the caller's buffers change afterwards, and rows have other extras. Mutation: rows are not copied."""
    seen, chunks = Rows(), []
    writer = ChunkWriter(length, chunks.append)
    for number in range(count):
        row, carry, extras = numbered(number, policy_extras=number not in bare)
        seen.add(row, carry, extras)
        writer.add(row, carry, extras)
        for leaf in trees.flatten((row, carry, extras)):
            leaf[:] = 1
    writer.flush()
    unpacked = Rows()
    for chunk in chunks:
        arrays, outline = chunk.to_arrays()
        assert all(isinstance(array, np.ndarray) for array in arrays) and chunk.length <= length
        unpacked.add_many(Chunk.from_arrays(arrays, json.loads(json.dumps(outline))))
    assert equal(unpacked.rows, seen.rows)
    changes = sum((number in bare) != (number - 1 in bare) for number in range(1, count))
    assert len(chunks) == -(-count // length) if not changes else len(chunks) <= -(-count // length) + changes


def test_a_chunk_can_leave_carries_out():
    """Mutation: every carry is sent. Asking for one that was not sent is refused."""
    chunks = {}
    for carries in ("every", "first", "none"):
        writer = ChunkWriter(3, lambda chunk, carries=carries: chunks.update({carries: chunk}), carries)
        for number in range(3):
            writer.add(*numbered(number))
    every, first, none = (chunks[name] for name in ("every", "first", "none"))
    assert every.nbytes - first.nbytes == 2 * 3 * 3 * 4 and first.nbytes - none.nbytes == 3 * 3 * 4
    assert none.carries == () == none.carry(2)
    assert every.carry(2)[0].tolist() == [[2, 2]] * 3 and first.carry(0)[0].tolist() == [[0, 0]] * 3
    with pytest.raises(ValueError, match="row 1 is needed"):
        first.carry(1)
    with pytest.raises(ValueError, match="row 1 is needed"):
        first.part(1, 3)
    assert first.part(0, 2).carry(0)[0].tolist() == [[0, 0]] * 3
    assert every.part(1, 3).carry(0)[0].tolist() == [[1, 1]] * 3 and every.part(1, 3).length == 2


def test_rows_not_handed_out_can_be_discarded():
    """Mutation: `discard` does nothing."""
    chunks = []
    writer = ChunkWriter(2, chunks.append)
    for number in range(4):
        writer.add(*numbered(number))
        if number == 2:
            writer.discard()
    writer.flush()
    assert [chunk.extras["known"][:, 0].tolist() for chunk in chunks] == [[0, 1], [3]]


def test_arrays_that_do_not_fit_the_outline_are_refused():
    chunks = []
    ChunkWriter(1, chunks.append).add(*numbered(0))
    arrays, outline = chunks[0].to_arrays()
    for bad in (arrays[:-1], [*arrays, arrays[0]]):
        with pytest.raises(ValueError, match="leaves"):
            Chunk.from_arrays(bad, outline)
    with pytest.raises(TypeError, match="Row has no outline"):
        trees.outline({"row": chunks[0].rows})


def test_a_process_that_sends_chunks_needs_no_torch():
    """Mutation: `types` or `interfaces` import torch at module level."""
    code = "import sys, packtrain.memory.chunk, packtrain.runtime.messages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
