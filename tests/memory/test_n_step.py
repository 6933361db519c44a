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

FIELDS = ("obs", "action", "reward", "steps", "after", "terminated", "truncated")


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


def brute_force(played, n_step) -> list[tuple]:
    """(column, begin, rewards, m, after, terminated, truncated) of all that is whole, from lists of ends by column."""
    found = []
    for column, ends in enumerate(played):
        for begin in range(len(ends)):
            for m in range(1, n_step + 1):
                last = begin + m - 1
                if last == len(ends):
                    break  # still open
                if m == n_step or ends[last]:
                    rewards = [float((begin + k) ** 2) if k < m else 0.0 for k in range(n_step)]
                    found.append((column, begin, rewards, m, last + 1, ends[last] == 1, ends[last] == 2))
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
    """Environments rest now and then (None), and the joiner is another after a pause.

    Mutations: n steps where an episode ended before; a transition over an end; nothing of the last n − 1 steps.
    """
    joiner = Joiner(n_step)
    played: list[list[int]] = [[] for _ in range(columns)]
    found = []
    for turn, ends in enumerate(program):
        if turn == pause:
            saved, joiner = joiner.snapshot(), Joiner(n_step)
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
            rewards = whole["reward"][at].tolist()
            steps, terminated, truncated = (whole[name][at] for name in ("steps", "terminated", "truncated"))
            after = whole["after"]["place"][at, 0]
            found.append((whole["obs"]["column"][at], begin, rewards, steps, after, terminated, truncated))
    assert sorted(found) == brute_force(played, n_step)


def test_incomplete_transitions_of_restarted_episodes_are_dropped() -> None:
    """Mutation: rewards of the next episode for an action of the last."""
    joiner = Joiner(3)
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
    sizes = Replay(100, 4, n_step=3)
    memories = [sizes.build([2], 0, torch.device("cpu")) for _ in range(2)]
    for number, one in enumerate(rows):
        memories[0].writer(0).add(one, (), {})
        if number == 2:
            memories[1].restore(memories[0].snapshot())
        if number > 2:
            memories[1].writer(0).add(one, (), {})
    for memory in memories:
        trajectory = memory.view("all").trajectory
        kept = {name: trajectory.extras[name][0].numpy() for name in ("rewards", "steps")}
        kept |= {"reward": kept.pop("rewards"), "first_reward": trajectory.reward[0].numpy()}
        kept |= {"obs": trajectory.obs[0].numpy(), "after": trajectory.obs[1].numpy()}
        kept |= {"terminated": trajectory.terminated[0].numpy()}
        mine = kept["reward"][:, 0] > 0
        assert kept["obs"][mine][:, 0].tolist() == [0, 1, 2, 3]
        assert kept["reward"][mine].tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 0]]
        assert kept["first_reward"][mine].tolist() == [1, 2, 3, 4]
        assert kept["steps"][mine].tolist() == [3, 3, 2, 1]
        assert kept["after"][mine][:, 0].tolist() == [3, 4, 4, 4]
        assert kept["terminated"][mine].tolist() == [0, 1, 1, 1]
        assert kept["reward"].dtype == np.float32 and len(memory) == 8
        assert memory.steps == 12  # four, and two of the next episode, in two columns
    begun = sizes.build([2], 0, torch.device("cpu"))
    begun.restore(memories[0].snapshot(), same_episodes=False)
    assert begun.writer(0).snapshot() == {"open": {}}


def test_an_episode_that_was_dropped_pays_nothing_to_the_one_before() -> None:
    """It begins a new episode without an end. Mutation: open transitions continue."""
    memory = Replay(100, 4, n_step=3).build([2], 0, torch.device("cpu"))
    for one in (row(0, first=True), row(1), row(9, first=True), row(10), row(11), row(12)):
        memory.writer(0).add(one, (), {})
    assert memory.view("all").trajectory.extras["rewards"][0].tolist() == [[10, 11, 12], [-10, -11, -12]]


def test_single_steps_are_as_they_were() -> None:
    memory = Replay(100, 4).build([2], 0, torch.device("cpu"))
    for one in (row(0, first=True), row(1), row(2)):
        memory.writer(0).add(one, (), {})
    trajectory = memory.view("all").trajectory
    assert not trajectory.extras and trajectory.reward.shape == (1, 4) and memory.steps == 4


def test_less_than_one_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="Replay.n_step = 0 must be at least 1"):
        Replay(n_step=0)
