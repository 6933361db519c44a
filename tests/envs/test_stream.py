"""The stream: rows of arrays, the books of the episodes, and actions on their way to the environment."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from packtrain import trees
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.gymnasium_vector_env import Factory, GymnasiumVectorEnv
from packtrain.envs.stream import ActionScale, Stream
from packtrain.envs.vector_env import Outcome
from packtrain.testing.abilities import Counting
from packtrain.types import Row


class Told:
    """A core with reward channels whose episodes end on demand: action 1 ends, 2 solves and ends."""

    max_steps = 5
    reward_channels = ("true", "cost")
    observation_space = Box(0, 100, (1,), np.int64)
    action_space = Discrete(3)

    def initial(self, n, rng):
        return np.zeros(n, np.int64)

    def step(self, states, actions, rng):
        states = states + 1
        extras = {"reward/true": states * 10.0, "reward/cost": np.full(len(states), 0.5), "solved": actions == 2}
        return states, states.astype(np.float32), actions > 0, extras

    def observe(self, states):
        return states[:, None]


def told(size):
    return Stream(FunctionalVectorEnv(Told(), size, 0, "raise", "Told"), size)


def play(stream, actions):
    """Rows after each of a list of actions [B]; the stream is started first."""
    rows = [trees.map(np.copy, stream.start())]
    for action in actions:
        stream.send(np.array(action))
        rows.append(trees.map(np.copy, stream.recv()))
    return rows


def test_the_first_row():
    row = told(3).start()
    assert isinstance(row, Row) and all(isinstance(leaf, np.ndarray) for leaf in trees.flatten(row))
    assert row.obs.tolist() == [[0], [0], [0]]
    assert row.first.tolist() == [True] * 3 and row.first.dtype == bool
    assert row.last_action.tolist() == [0] * 3 and row.last_action.dtype == np.int64
    assert list(row.last_reward) == ["train", "true", "cost"]
    assert all(reward.tolist() == [0.0] * 3 and reward.dtype == np.float32 for reward in row.last_reward.values())
    assert not row.terminated.any() and not row.truncated.any()


def test_start_is_not_a_second_reset():
    stream = told(1)
    row = play(stream, [[0]])[-1]
    assert np.array_equal(stream.start().obs, row.obs)


def test_rows_say_what_led_to_them_and_nothing_after_a_reset():
    """Mutation: a last action that is not zeroed where `first` shows the action that the reset dropped."""
    rows = play(told(2), [[0, 0], [1, 0], [2, 0], [0, 2], [0, 1]])
    assert [row.obs[:, 0].tolist() for row in rows] == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 4], [2, 0]]
    assert [row.first.tolist() for row in rows] == [
        [True, True],
        [False, False],
        [False, False],
        [True, False],
        [False, False],
        [False, True],
    ]
    assert [row.last_action.tolist() for row in rows] == [[0, 0], [0, 0], [1, 0], [0, 0], [0, 2], [0, 0]]
    assert [row.last_reward["train"].tolist() for row in rows] == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 4], [2, 0]]
    assert [row.terminated.tolist() for row in rows[1:]] == [
        [False, False],
        [True, False],
        [False, False],
        [False, True],
        [False, False],
    ]


def test_episodes_have_their_return_in_every_channel_and_their_length():
    """Mutations: sums that go on into the next episode; filler rows that count as steps."""
    stream = told(2)
    play(stream, [[0, 0], [0, 2], [1, 0], [0, 1]])
    one, two, three = stream.drain_episodes()
    assert (one.column, one.length, one.solved) == (1, 2, 1.0)
    assert one.returns == {"train": 3.0, "true": 30.0, "cost": 1.0}
    assert (two.column, two.length, two.solved) == (0, 3, 0.0)
    assert two.returns == {"train": 6.0, "true": 60.0, "cost": 1.5}
    assert (three.column, three.length) == (1, 1)  # right after its reset
    assert three.returns == {"train": 1.0, "true": 10.0, "cost": 0.5}
    assert stream.drain_episodes() == []


def test_truncated_episodes_are_finished_too():
    stream = told(1)
    rows = play(stream, [[0]] * 6)
    assert rows[5].truncated.tolist() == [True] and rows[6].first.tolist() == [True]
    (episode,) = stream.drain_episodes()
    assert episode.length == 5 and episode.returns["train"] == 15.0


def test_solved_is_nan_if_it_is_not_reported():
    stream = Stream(FunctionalVectorEnv(Counting(length=2), 1, 0, "raise", "Counting"), 1)
    play(stream, [[0], [0]])
    (episode,) = stream.drain_episodes()
    assert np.isnan(episode.solved) and episode.returns == {"train": 3.0}


def test_filler_rows_are_not_steps():
    stream = told(2)
    assert stream.steps == 0
    play(stream, [[0, 0], [1, 0], [0, 1], [0, 0]])  # column 0 is reset in the third, column 1 in the fourth
    assert stream.steps == 4 * 2 - 2


def test_an_episode_that_was_dropped_at_its_reset_has_not_been_one():
    """Mutation: a reset row that is dropped would count as an episode of length 0."""

    class BadStart(Told):
        calls = 0

        def observe(self, states):
            self.calls += 1
            return states[:, None] - 1000 * (self.calls == 3)  # the row of the reset: outside the space

    stream = Stream(FunctionalVectorEnv(BadStart(), 1, 0, "drop", "BadStart"), 1)
    rows = play(stream, [[1], [0], [0], [0]])
    assert [row.first.tolist() for row in rows] == [[True], [False], [True], [True], [False]]
    assert [episode.length for episode in stream.drain_episodes()] == [1]
    assert stream.columns.boundary.dropped == 1


def test_a_restart_begins_the_same_episodes_again():
    stream = Stream(FunctionalVectorEnv(Counting(length=4), 2, 7, "raise", "Counting"), 2)
    before = play(stream, [[0, 0]] * 3)
    stream.restart()
    after = play(stream, [[0, 0]] * 5)
    for one, other in zip(before, after, strict=False):
        assert np.array_equal(one.obs, other.obs) and np.array_equal(one.first, other.first)
    episodes = stream.drain_episodes()
    assert [episode.length for episode in episodes] == [4, 4] and episodes[0].returns["train"] == 10.0


def test_trees_of_observations_and_actions():
    stream = Stream(FunctionalVectorEnv(Counting(length=3, tree=True), 2, 0, "raise", "Counting"), 2)
    row = stream.start()
    assert row.last_action.shape == (2, 2)
    rows = play(stream, [[[1, 2], [0, 1]], [[1, 0], [1, 1]]])
    assert rows[1].obs["last_action"].tolist() == [[1, 2], [0, 1]]
    assert np.array_equal(rows[2].obs["last_action"], rows[2].last_action)
    assert rows[2].obs["parts"][1].dtype == np.uint8 and rows[2].obs["parts"][1].shape == (2, 1, 2, 2)


# -- lives


class Lives:
    """Environments that play a table: in each row what each column earned, and what ended with it.

    "." nothing, "life" a life that was not the last, "game" the last life, "clock" a game that is truncated; "first" is
    the row of a reset.
    """

    observation_space = Box(0, 100, (1,), np.int64)
    action_space = Discrete(2)
    reward_channels = ("train",)
    savable = True

    def __init__(self, table, life_loss=True):
        self._table, self._life_loss = table, life_loss
        self._row = 0

    def reset(self):
        self._row = 0
        return self._outcome([(0, "first")] * len(self._table[0]))

    def send(self, actions):
        self._row += 1

    def recv(self):
        return self._outcome(self._table[self._row - 1])

    def _outcome(self, cells):
        def happened(*events):
            return np.array([event in events for _, event in cells])

        return Outcome(
            obs=np.full((len(cells), 1), self._row),
            first=happened("first"),
            rewards={"train": np.array([reward for reward, _ in cells], np.float32)},
            terminated=happened("life", "game") if self._life_loss else happened("game"),
            truncated=happened("clock"),
            solved=None,
            over=happened("game", "clock"),
            life_over=happened("life", "game", "clock"),
        )

    def snapshot(self):
        return {"row": self._row}

    def restore(self, snapshot):
        self._row = snapshot["row"]


GAMES = [
    [(1, "."), (10, ".")],
    [(2, "life"), (20, ".")],
    [(4, "."), (30, "life")],
    [(8, "game"), (40, "life")],
    [(0, "first"), (50, "clock")],
    [(16, "."), (0, "first")],
    [(32, "life"), (60, "life")],
]


def told_of(finished):
    return [
        (one.returns["train"].tolist(), one.length.tolist(), one.column.tolist(), one.life_returns.tolist())
        for one in finished
    ]


LIFE_BOOKS = [
    ([], [], [], [1 + 2]),  # a life, but no game
    ([], [], [], [10 + 20 + 30]),
    ([1 + 2 + 4 + 8], [4], [0], [4 + 8, 40]),  # the last life closes both; the other column loses one in the same step
    ([10 + 20 + 30 + 40 + 50], [5], [1], [50]),  # the clock does too
    ([], [], [], [16 + 32, 60]),
]


@pytest.mark.parametrize("life_loss", [True, False], ids=["terminates", "goes on"])
def test_a_game_goes_on_after_a_lost_life(life_loss):
    """And both have their books. Mutations: an episode at every termination; a life's return that is never closed, or
    closed in all columns; a `first` made from `terminated`.
    """
    stream = Stream(Lives(GAMES, life_loss), 2)
    rows = play(stream, [[1, 1]] * 7)
    assert [row.terminated.tolist() for row in rows[1:5]] == [
        [False, False],
        [life_loss, False],
        [False, life_loss],
        [True, life_loss],
    ]
    assert [row.first.tolist() for row in rows[1:]] == [
        *[[False, False]] * 4,
        [True, False],
        [False, True],
        [False, False],
    ]
    assert [row.last_action.tolist() for row in rows[3:7]] == [[1, 1], [1, 1], [0, 1], [1, 0]]
    assert stream.steps == 2 * 7 - 2
    assert told_of(stream.drain_finished()) == LIFE_BOOKS
    assert stream.drain_finished() == []


def test_lives_are_not_episodes():
    stream = Stream(Lives(GAMES), 2)
    play(stream, [[0, 0]] * 7)
    assert [(e.column, e.length, e.returns["train"]) for e in stream.drain_episodes()] == [(0, 4, 15.0), (1, 5, 150.0)]


def test_environments_without_lives_report_none():
    stream = told(1)
    play(stream, [[0], [1]])
    (finished,) = stream.drain_finished()
    assert finished.length.tolist() == [2] and finished.life_returns.tolist() == []


@pytest.mark.parametrize("turns", [0, 1, 3, 5])
def test_a_restored_stream_goes_on_with_the_books_of_its_lives(turns):
    """Mutation: the returns of lives under way left out of the snapshot, or shared with it."""
    stream = Stream(Lives(GAMES), 2)
    play(stream, [[0, 0]] * turns)
    snapshot = stream.snapshot()
    play(stream, [[0, 0]] * (7 - turns))
    other = Stream(Lives(GAMES), 2)
    other.restore(snapshot)
    play(other, [[0, 0]] * (7 - turns))
    assert told_of(other.drain_finished()) == told_of(stream.drain_finished()) == LIFE_BOOKS


def test_a_restart_forgets_the_lives_under_way():
    stream = Stream(Lives(GAMES), 2)
    play(stream, [[0, 0]] * 3)
    stream.restart()
    play(stream, [[0, 0]] * 7)
    assert told_of(stream.drain_finished()) == LIFE_BOOKS


# -- saving


@pytest.mark.parametrize("turns", [0, 3, 4, 7])
def test_a_restored_stream_goes_on_with_its_books(turns):
    """Mutations: returns, lengths, steps or finished episodes left out of the snapshot."""
    actions = [[0, 0], [0, 2], [1, 0], [0, 1], [0, 0], [2, 0], [0, 0], [0, 1], [1, 1], [0, 0], [0, 0]]
    stream = told(2)
    play(stream, actions[:turns])
    snapshot = stream.snapshot()
    want = play(stream, actions[turns:])
    other = told(2)
    other.restore(snapshot)
    got = play(other, actions[turns:])
    for one, two in zip(got, want, strict=True):
        for name, leaf in trees.named_leaves(two._asdict()).items():
            assert np.array_equal(trees.named_leaves(one._asdict())[name], leaf), name
    assert other.steps == stream.steps
    assert other.drain_episodes() == stream.drain_episodes()


def test_a_stream_that_has_not_started_has_nothing_to_save():
    assert told(1).snapshot() is None


# -- actions


def test_continuous_actions_are_stretched_to_their_bounds():
    """Mutation: without the clip 5.0 leaves the space; without the middle [0, 10] is centred on 0."""
    space = Box(np.array([-2, 0, -np.inf, -np.inf], np.float32), np.array([2, 10, np.inf, 5], np.float32))
    got = ActionScale(space).to_env(
        np.array([[-1.0, -1, -1, -1], [0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [5, 5, 5, 5]], np.float32)
    )
    assert got.dtype == np.float32
    assert got.tolist() == [[-2, 0, -1, -1], [0, 5, 0, 0], [1, 7.5, 0.5, 0.5], [2, 10, 5, 5]]


def test_bounds_of_many_axes():
    space = Box(np.array([[0, -np.inf], [-4, -1]], np.float32), np.array([[10, np.inf], [4, 3]], np.float32))
    got = ActionScale(space).to_env(np.full((2, 2, 2), 0.5, np.float32))
    assert got.tolist() == [[[7.5, 0.5], [2, 2]]] * 2


def test_very_wide_bounds_do_not_overflow():
    largest = float(np.finfo(np.float32).max)
    got = ActionScale(Box(-largest, largest, (1,))).to_env(np.array([[1.0], [-1.0], [0.0]], np.float32))
    assert np.isfinite(got).all() and got[2] == 0


@pytest.mark.parametrize(
    "space, action, want",
    [
        (Discrete(3), [0, 2], [0, 2]),
        (Discrete(3, start=5), [0, 2], [5, 7]),
        (Discrete(3, start=-1), [0, 2], [-1, 1]),
        (MultiDiscrete([2, 3]), [[0, 2]], [[0, 2]]),
        (MultiDiscrete([2, 3], start=[10, -3]), [[0, 2]], [[10, -1]]),
    ],
    ids=str,
)
def test_discrete_actions_are_shifted_to_their_start(space, action, want):
    assert ActionScale(space).to_env(np.array(action)).tolist() == want


class Echo(gym.Env):
    """Shows the action it was given."""

    def __init__(self, space):
        self.action_space = space
        self.observation_space = Box(-100, 100, space.shape or (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.asarray(action, np.float32).reshape(self.observation_space.shape), 0.0, False, False, {}


@pytest.mark.parametrize(
    "space, action, shown",
    [
        (Box(0, 10, (2,)), [[0.0, 9.0]], [[5, 10]]),
        (Box(0, 10, (2,), np.float64), [[0.0, 9.0]], [[5, 10]]),
        (Discrete(3, start=5), [1], [[6]]),
        (MultiDiscrete([2, 3]), [[1, 2]], [[1, 2]]),
    ],
    ids=str,
)
def test_environments_get_actions_of_their_own_space(space, action, shown):
    """And the row keeps the action as the policy chose it."""
    columns = GymnasiumVectorEnv(
        [Factory(lambda: Echo(space), "e", "raise")],
        [0],
        processes=False,
        deadline_secs=9,
        answer="raise",
        name="e",
    )
    for kind in (torch.tensor, np.array):  # as a policy gives it, or a caller without one
        stream = Stream(columns, 1)
        stream.start()
        stream.send(kind(action))
        row = stream.recv()
        assert row.obs.tolist() == shown
        assert row.last_action.tolist() == action and isinstance(row.last_action, np.ndarray)
