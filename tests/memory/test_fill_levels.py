"""L2: sampling takes as long from a full replay as from one that is nearly empty."""

import time

import numpy as np
import pytest
import torch

from packtrain.memory.replay import Replay
from packtrain.memory.sequence_settings import Sequences
from packtrain.types import Row

CPU, COLUMNS = torch.device("cpu"), 200
ROWS = 200  # of a full memory
SAMPLES = 20


def row(number):
    return Row(
        obs=np.full((COLUMNS, 4), number, np.float32),
        first=np.full(COLUMNS, number % 25 == 0),
        last_action=np.zeros(COLUMNS, np.int64),
        last_reward={"train": np.zeros(COLUMNS, np.float32)},
        terminated=np.zeros(COLUMNS, bool),
        truncated=np.full(COLUMNS, number % 25 == 24),
    )


def sequences():
    sizes = dict(sequence_length=5, burn_in=0, stride=5, n_step=1, batch_size=32, extras=(), new_priority="largest")
    return Sequences(capacity=ROWS * COLUMNS, **sizes).build([COLUMNS], 0, CPU)


def transitions():
    return Replay(ROWS * COLUMNS, 64, 1).build([COLUMNS], 0, CPU)


def cost(memory):
    """CPU seconds of some samples with their priorities, the least of several measurements."""
    found = []
    for _ in range(7):
        begin = time.thread_time()
        for _ in range(SAMPLES):
            sample = memory.sample()
            if memory.report():
                memory.update_priorities(sample.keys, torch.rand(len(sample.keys)))
        found.append(time.thread_time() - begin)
    return min(found)


@pytest.mark.parametrize("build", [sequences, transitions])
def test_l2_sampling_costs_the_same_at_every_fill_level(build):
    """At 4 %, 50 % and 100 %, in CPU time of this thread. Mutation: a list of all items is built in each sample."""
    memory, costs = build(), {}
    writer, level = memory.writer(0), iter((0.04, 0.5, 1.0))
    wanted = next(level)
    for number in range(ROWS + 1):
        writer.add(row(number), (), {})
        if number >= wanted * ROWS:
            costs[wanted] = cost(memory)
            wanted = next(level, 2.0)
    assert len(costs) == 3 and max(costs.values()) <= 1.5 * min(costs.values()), costs
