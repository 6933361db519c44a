"""Memories whose source of rows is cut off: what was stored before a gap is never joined to what comes after it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packtrain.memory.sequences import Sequences

from packtrain.memory.episodes import EpisodeMemory, Episodes
from packtrain.memory.replay import Replay
from packtrain.memory.unroll import Unrolls
from packtrain.types import Row

CPU = torch.device("cpu")


class Source:
    """Groups of environments whose rows say where they stand; a gap skips rows, or begins new episodes."""

    def __init__(self, groups, seed, longest=9):
        self.groups, self.longest, self.rng = groups, longest, np.random.default_rng(seed)
        self.number = [np.full(size, -1) for size in groups]  # of the latest row; each row has a number of its own
        self.left = [np.zeros(size, np.int64) for size in groups]  # steps of the episode; −1: it ended

    def step(self, memory, group):
        size, left = self.groups[group], self.left[group]
        first = (self.number[group] < 0) | (left < 0)
        self.number[group] = self.number[group] + 1
        left[first] = self.rng.integers(1, self.longest, first.sum())
        left[~first] -= 1
        ended = ~first & (left == 0)
        left[ended] = -1
        number = self.number[group].astype(np.float32)
        row = Row(
            obs=np.stack([number, np.full(size, group, np.float32)], 1),
            first=first,
            last_action=number.copy(),
            last_reward={"train": number.copy()},
            terminated=ended,
            truncated=np.zeros(size, bool),
        )
        memory.writer(group).add(row, (), {"weights_version": np.zeros(size, np.int64), "solved": ended})

    def cut(self, memory, group, new_life):
        memory.release(group)
        self.number[group] += 1000  # rows that were lost
        if new_life:
            self.left[group][:] = -1


PROGRAM = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["step"] * 12 + ["gap", "life"])), max_size=300)


def play(memory, source, program, after=lambda: None):
    for which, what in program:
        group = which % len(source.groups)
        if what == "step":
            source.step(memory, group)
        else:
            source.cut(memory, group, what == "life")
        after()


def follows(number, first):
    """Return whether each row [T, B] follows the row before it, or begins an episode."""
    return (number[1:] == number[:-1] + 1) | first[1:]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 999),
    PROGRAM,
)
def test_no_unroll_joins_rows_across_a_gap(groups, length, context, staggered, seed, program):
    """Also the rows in front of it that a policy reads. A new life's first rows make a filler of the row before.

    Mutations: `release` does nothing; columns near the end of their unroll keep stale context; all columns of a group
    begin anew together, so that no slot is free.
    """
    sizes = Unrolls(unroll_length=length, batch_size=2, num_buffers=4, staggered=staggered)
    queue, source, seen = sizes.build(groups, context, CPU), Source(groups, seed), 0

    def take():
        nonlocal seen
        while (sample := queue.sample()) is not None:
            seen += 1
            number = sample.trajectory.obs[..., 0].numpy()
            first = sample.trajectory.first.numpy()
            whole = follows(number, first)
            # What lies in front of an episode's begin is not read.
            begun = np.maximum.accumulate(first[::-1], 0)[::-1][1:] if context else np.zeros_like(whole)
            ahead = np.arange(len(whole))[:, None] < context
            assert (whole | (ahead & begun)).all(), (number.T, first.T)

    play(queue, source, program, take)
    before = seen
    for _ in range(3 * length + 2 * context):  # the queue is not damaged
        for group in range(len(groups)):
            source.step(queue, group)
            take()
    assert seen > before or sum(groups) < 2


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 999), PROGRAM)
def test_no_transition_joins_rows_across_a_gap(groups, n_step, seed, program):
    """Mutation: `release` does nothing, or n-step returns go on over the gap."""
    memory, source = Replay(5000, 1, n_step=n_step).build(groups, 0, CPU), Source(groups, seed)
    play(memory, source, program)
    if (sample := memory.view("all")) is None:
        return
    trajectory = sample.trajectory
    steps = trajectory.extras["steps"][0] if n_step > 1 else 1
    assert torch.equal(trajectory.obs[1, :, 0], trajectory.obs[0, :, 0] + steps)


@pytest.mark.parametrize("groups, seed", [((1,), 0), ((2,), 1), ((3, 1), 2), ((2, 2), 3)])
def test_no_sequence_joins_rows_across_a_gap(groups, seed):
    """Mutation: `release` does nothing."""
    sizes = Sequences(capacity=4000, sequence_length=5, burn_in=3, stride=2, n_step=2, batch_size=32)
    memory, source = sizes.build(list(groups), 0, CPU), Source(groups, seed, longest=30)
    memory.reseed(1)
    rng = np.random.default_rng(seed)
    play(memory, source, [(int(rng.integers(8)), rng.choice(["step"] * 20 + ["gap", "life"])) for _ in range(600)])
    for _ in range(10):
        sample = memory.sample()
        number, first = sample.trajectory.obs[..., 0], sample.trajectory.first
        there = number > 0  # zeros are padding, and a run's very first rows
        assert (follows(number, first) | ~there[1:] | ~there[:-1]).all()


def rows_of_a_round(writer, lengths, begin=0.0, stop=None):
    """Play one episode per environment, of these lengths, and store its rows, the first `stop` of them."""
    for step in range(max(lengths) + 1)[: stop if stop is None else stop]:
        over = np.array([step == length for length in lengths])
        value = np.full(len(lengths), begin + step, np.float32)
        row = Row(
            obs=value[:, None],
            first=np.full(len(lengths), step == 0),
            last_action=value,
            last_reward={"train": value},
            terminated=over,
            truncated=np.zeros(len(lengths), bool),
        )
        writer.add(row, (), {"solved": over})


def test_a_round_that_a_worker_did_not_finish_is_played_again():
    """One of two episodes had ended when the worker died. Mutation: `EpisodeMemory.release` does nothing; then the new
    life's first rows overwrite the beginning of an episode that has an end, and storing it fails."""
    memory = Episodes(capacity=100, batch_size=4).build([2], 0, CPU)
    assert isinstance(memory, EpisodeMemory)
    rows_of_a_round(memory.writer(0), (2, 6), stop=5)
    memory.release(0)
    rows_of_a_round(memory.writer(0), (3, 4), begin=50.0)
    assert memory.episodes == 2 and len(memory) == 7
    sample = memory.sample(64)
    assert float(sample.trajectory.obs[0].min()) >= 50


def test_a_memory_names_the_carries_it_needs():
    """Mutation: recurrent states travel with every row of a memory that does not store them."""
    assert Replay(100, 4).build([2], 0, CPU).chunk_carries(4) == "none"
    assert Episodes(capacity=100, batch_size=4).build([2], 0, CPU).chunk_carries(4) == "none"
    sizes = Sequences(capacity=400, sequence_length=5, burn_in=3, stride=2, n_step=2, batch_size=8)
    assert sizes.build([2], 0, CPU).chunk_carries(4) == "every"


@pytest.mark.parametrize("cut", [False, True])
def test_a_cut_survives_a_checkpoint(cut):
    """Mutation: the snapshot of the unroll queue forgets it."""
    sizes = Unrolls(unroll_length=4, batch_size=1, num_buffers=4)
    queue, source = sizes.build([1], 0, CPU), Source([1], 0, longest=1000)
    for _ in range(6):
        source.step(queue, 0)
    assert queue.sample() is not None
    if cut:
        source.cut(queue, 0, new_life=False)
    again = sizes.build([1], 0, CPU)
    again.restore(queue.snapshot())
    for _ in range(8):
        source.step(again, 0)
    number = again.sample().trajectory.obs[:, 0, 0]
    assert torch.equal(number, number[0] + torch.arange(5)) and (number[0] > 1000) == cut
