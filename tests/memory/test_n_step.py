"""Transitions of several steps: as sums over lists say, over no end, none left out, and the same after a pause."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.errors import ConfigError
from packtrain.memory.n_step import Joiner
from packtrain.memory.replay import Replay
from packtrain.types import Row

FIELDS = ("obs", "action", "reward", "discount", "after", "terminated", "truncated")


def step(columns, numbers, ends) -> dict:
    """Step n of its column leads from n to n + 1 and pays its square; 1 terminates, 2 truncates."""
    numbers, ends = np.array(numbers, float), np.array(ends)
    return {
        "obs": {"place": numbers[:, None], "column": np.array(columns)},
        "action": -numbers,
        "reward": (numbers**2).astype(np.float32),
        "after": {"place": numbers[:, None] + 1, "column": np.array(columns)},
        "terminated": ends == 1,
        "truncated": ends == 2,
    }


def brute_force(played, n_step, discount) -> list[tuple]:
    """(column, begin, reward, γ^m, after, terminated, truncated) of all that is whole, from lists of ends by column."""
    found = []
    for column, ends in enumerate(played):
        for begin in range(len(ends)):
            for m in range(1, n_step + 1):
                last = begin + m - 1
                if last == len(ends):
                    break  # still open
                if m == n_step or ends[last]:
                    reward = sum(discount**k * (begin + k) ** 2 for k in range(m))
                    found.append((column, begin, reward, discount**m, last + 1, ends[last] == 1, ends[last] == 2))
                    break
    return sorted(found)


@settings(deadline=None, max_examples=80)
@given(
    n_step=st.integers(1, 5),
    columns=st.integers(1, 3),
    program=st.lists(st.lists(st.sampled_from([None, 0, 0, 0, 1, 2]), min_size=3, max_size=3), max_size=25),
    pause=st.integers(0, 25),
)
def test_it_is_what_lists_of_steps_say(n_step, columns, program, pause) -> None:
    """Columns rest now and then (None), and the joiner is another after a pause.

    Mutations: γ^n where an episode ended before n steps; a transition over an end; nothing of the last n − 1 steps.
    """
    joiner, discount = Joiner(n_step, 0.5), 0.5
    played: list[list[int]] = [[] for _ in range(columns)]
    found = []
    for turn, ends in enumerate(program):
        if turn == pause:
            saved, joiner = joiner.snapshot(), Joiner(n_step, 0.5)
            joiner.restore(saved)
        now = [column for column in range(columns) if ends[column] is not None]
        if not now:
            continue
        whole = joiner.add(
            np.array(now), step(now, [len(played[column]) for column in now], [ends[column] for column in now])
        )
        for column in now:
            played[column].append(ends[column])
        if whole is None:
            continue
        assert set(whole) == set(FIELDS)
        assert (whole["obs"]["column"] == whole["after"]["column"]).all()
        for at, begin in enumerate(whole["obs"]["place"][:, 0]):
            assert whole["action"][at] == -begin
            names = ("reward", "discount", "terminated", "truncated")
            reward, power, terminated, truncated = (whole[name][at] for name in names)
            after = whole["after"]["place"][at, 0]
            found.append((whole["obs"]["column"][at], begin, reward, power, after, terminated, truncated))
    assert sorted(found) == brute_force(played, n_step, discount)


def test_what_was_begun_anew_is_forgotten() -> None:
    """Mutation: rewards of the next episode for an action of the last."""
    joiner = Joiner(3, 0.9)
    assert joiner.add(np.array([0, 1]), step([0, 1], [0, 0], [0, 0])) is None
    joiner.forget(np.array([0]))
    assert joiner.add(np.array([0, 1]), step([0, 1], [5, 1], [0, 0])) is None
    whole = joiner.add(np.array([0, 1]), step([0, 1], [6, 2], [1, 0]))
    assert whole is not None
    assert whole["obs"]["place"][:, 0].tolist() == [5, 6, 0]


def row(number, first=False, terminated=False, truncated=False) -> Row:
    """Two columns in step; the reward is that of the step that led here."""
    two = lambda value, dtype: np.array([value, value], dtype)  # noqa: E731
    return Row(
        obs=np.array([[number], [-number]], np.float32),
        first=two(first, bool),
        last_action=np.array([[number], [-number]], np.float32),
        last_reward={"train": np.array([number, -number], np.float32)},
        terminated=two(terminated, bool),
        truncated=two(truncated, bool),
    )


def test_a_replay_keeps_them_and_comes_back_with_what_was_open() -> None:
    """Mutation: what is open is not saved."""
    rows = [row(0, first=True), row(1), row(2), row(3), row(4, terminated=True), row(9, first=True), row(10), row(11)]
    sizes = Replay(100, 4, n_step=3, discount=0.5)
    memories = [sizes.build([2], 0, torch.device("cpu")) for _ in range(2)]
    for number, one in enumerate(rows):
        memories[0].sinks[0].add(one, (), {})
        if number == 2:
            memories[1].restore(memories[0].snapshot())
        if number > 2:
            memories[1].sinks[0].add(one, (), {})
    for memory in memories:
        kept = {name: leaf.numpy() for name, leaf in memory.filled().items()}
        mine = kept["obs"][:, 0] >= 0
        mine &= kept["reward"] > 0
        # from 0: 1 + 2/2 + 3/4; from 1: 2 + 3/2 + 4/4; from 2 and 3 to the end
        assert kept["obs"][mine][:, 0].tolist() == [0, 1, 2, 3]
        assert kept["reward"][mine].tolist() == [2.75, 4.5, 5, 4]
        assert kept["discount"][mine].tolist() == [0.125, 0.125, 0.25, 0.5]
        assert kept["after"][mine][:, 0].tolist() == [3, 4, 4, 4]
        assert kept["terminated"][mine].tolist() == [0, 1, 1, 1]
        assert kept["discount"].dtype == np.float32 and len(memory) == 8
    begun = sizes.build([2], 0, torch.device("cpu"))
    begun.restore(memories[0].snapshot(), same_episodes=False)
    assert begun.sinks[0].snapshot() == {"open": {}}


def test_single_steps_have_no_discount_of_their_own() -> None:
    memory = Replay(100, 4).build([2], 0, torch.device("cpu"))
    for one in (row(0, first=True), row(1), row(2)):
        memory.sinks[0].add(one, (), {})
    assert "discount" not in memory.filled()


@pytest.mark.parametrize(
    ("values", "line"),
    [({"n_step": 0}, "Replay.n_step = 0 must be at least 1"), ({"discount": 1.5}, "Replay.discount = 1.5 must lie")],
)
def test_numbers_that_cannot_be_are_refused(values, line) -> None:
    with pytest.raises(ConfigError, match=line):
        Replay(**values)
