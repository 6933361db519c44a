"""Stacks of frames: by arithmetic, and against a walk backwards through every column."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.networks.frames import stack_frames


def walked(frames, first, count):
    """The same stacks, one column and one frame at a time: step back unless the frame came from a reset."""
    rows, columns = first.shape
    stacks = torch.empty(rows - count + 1, columns, count, *frames.shape[2:], dtype=frames.dtype)
    for row in range(count - 1, rows):
        for column in range(columns):
            at = row
            for place in reversed(range(count)):
                stacks[row - count + 1, column, place] = frames[at, column]
                if not first[at, column]:
                    at -= 1
    return stacks


def numbered(rows, columns, *shape):
    """Frames that no two rows, columns or pixels share."""
    return torch.arange(rows * columns * max(1, torch.Size(shape).numel())).reshape(rows, columns, *shape)


def resets(*rows):
    return torch.tensor(rows, dtype=torch.bool).T  # one line a column → [C+T, B]


def test_three_frames_of_one_column():
    """C = 2 context rows, then T = 4. Mutations: newest first; a stack that reaches over the reset at row 4."""
    frames = torch.tensor([10, 11, 12, 13, 20, 21]).view(-1, 1)
    got = stack_frames(frames, resets([1, 0, 0, 0, 1, 0]), 3)
    assert got.shape == (4, 1, 3)
    assert got[:, 0].tolist() == [
        [10, 11, 12],  # the context rows in front of it
        [11, 12, 13],
        [20, 20, 20],  # a reset: its frame stands in for those before it
        [20, 20, 21],
    ]


def test_a_reset_among_the_context_rows_counts_too():
    """Mutation: resets looked for from row C on only."""
    frames = torch.tensor([7, 10, 11]).view(-1, 1)
    assert stack_frames(frames, resets([0, 1, 0]), 3).tolist() == [[[10, 10, 11]]]
    assert stack_frames(frames, resets([0, 0, 0]), 3).tolist() == [[[7, 10, 11]]]


def test_two_resets_in_a_row():
    """An episode may be given up at its reset. Mutation: the earlier of two resets taken for the beginning."""
    frames = torch.tensor([1, 2, 3, 4, 5]).view(-1, 1)
    got = stack_frames(frames, resets([1, 0, 1, 1, 0]), 3)
    assert got[:, 0].tolist() == [[3, 3, 3], [4, 4, 4], [4, 4, 5]]


def test_columns_have_resets_of_their_own():
    """Mutation: a frame fetched from the neighbour."""
    frames = torch.tensor([[1, 101, 201], [2, 102, 202], [3, 103, 203]])
    got = stack_frames(frames, resets([1, 0, 0], [1, 1, 0], [1, 0, 1]), 2)
    assert got.tolist() == [[[1, 2], [102, 102], [201, 202]], [[2, 3], [102, 103], [203, 203]]]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_pattern_of_resets(data):
    count = data.draw(st.integers(1, 5), "count")
    rows = data.draw(st.integers(count, count + 6), "rows")
    columns = data.draw(st.integers(1, 4), "columns")
    first = data.draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns), "first")
    first = torch.tensor(first).view(rows, columns)
    shape = data.draw(st.sampled_from([(), (2,), (2, 3)]), "shape")
    frames = numbered(rows, columns, *shape)
    got = stack_frames(frames, first, count)
    assert got.shape == (rows - count + 1, columns, count, *shape)
    assert torch.equal(got, walked(frames, first, count))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_one_frame_is_itself(share):
    frames = numbered(6, 3, 2, 2)
    first = torch.rand(6, 3, generator=torch.Generator().manual_seed(0)) < share
    assert torch.equal(stack_frames(frames, first, 1), frames.unsqueeze(2))


def test_cutting_a_stream_changes_no_stack():
    """What unrolls need: the last C rows of one piece are the context of the next."""
    generator = torch.Generator().manual_seed(0)
    frames, first = numbered(13, 4, 2), torch.rand(13, 4, generator=generator) < 0.2
    whole = stack_frames(frames, first, 4)
    pieces = [stack_frames(frames[begin : begin + 8], first[begin : begin + 8], 4) for begin in (0, 5)]
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bool])
def test_frames_keep_their_dtype(dtype):
    frames = (numbered(5, 2, 3) % 2).to(dtype)
    assert stack_frames(frames, torch.zeros(5, 2, dtype=torch.bool), 4).dtype == dtype
