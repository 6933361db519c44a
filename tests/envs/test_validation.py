"""The border of the environments (E3): what passes, what is refused, dropped or clipped, and what is said about it."""

import functools
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from packtrain import trees
from packtrain.acting.actor import Actor
from packtrain.envs.environment import Environment
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.gymnasium_guard import RESET_TRIES
from packtrain.envs.gymnasium_vector_env import Factory, GymnasiumVectorEnv
from packtrain.envs.stream import Stream
from packtrain.envs.validation import REWARD_LIMIT, Boundary, batch_of_one, check_structure, space_leaves
from packtrain.errors import EnvError, EnvSetupError
from packtrain.memory.unroll import Unrolls
from packtrain.testing.faulty import OBSERVATION_FAULTS, REWARD_FAULTS
from packtrain.testing.scripted import ScriptedPolicy

ID = "packtrain.testing.faulty:packtrain/Faulty-v0"
NO = np.zeros(2, bool)
NAN, INF = float("nan"), float("inf")


def boundary(space, answer="raise"):
    return Boundary(space, answer, lambda column: f"environment {column} (Some-v0, seed 5) at its step 9")


def rewards(*values):
    return {"train": np.array(values, np.float32)}


def cross(space, obs, reward=(0, 0), answer="raise"):
    return boundary(space, answer).cross(obs, rewards(*reward), NO, NO)


# -- one batch of values


BAD_OBSERVATIONS = [
    pytest.param(Box(-1, 1, (1,)), NAN, 0.0, id="NaN"),
    pytest.param(Box(-1, 1, (1,)), INF, 1.0, id="infinity"),
    pytest.param(Box(-INF, INF, (1,)), INF, np.finfo(np.float32).max, id="infinity in an infinite space"),
    pytest.param(Box(-INF, INF, (1,)), -INF, np.finfo(np.float32).min, id="minus infinity"),
    pytest.param(Box(2, 3, (1,)), NAN, 2.0, id="NaN where 0 is outside"),
    pytest.param(Box(-1, 1, (1,)), 1.5, 1.0, id="outside"),
    pytest.param(Box(-INF, INF, (1,), np.float64), 1e200, np.finfo(np.float32).max, id="too large for float32"),
    pytest.param(Box(0, 10, (1,), np.int64), 11, 10, id="integer outside"),
    pytest.param(Box(0, 10, (1,), np.uint8), 200, 10, id="byte outside"),
    pytest.param(Discrete(3), 3, 2, id="number too large"),
    pytest.param(Discrete(3, start=5), 4, 5, id="number below its start"),
    pytest.param(MultiDiscrete([2, 3]), 2, (1, 2), id="one of two numbers"),
    pytest.param(MultiBinary(1), 2, 1, id="binary"),
]


def batch(space, bad):
    """Two columns, the second with the bad value in every entry."""
    good = np.asarray(space.low if isinstance(space, Box) and np.isfinite(space.low).all() else 0)
    good = space.start if isinstance(space, (Discrete, MultiDiscrete)) else good
    return np.stack([np.broadcast_to(good, space.shape), np.broadcast_to(bad, space.shape)]).astype(space.dtype)


@pytest.mark.parametrize("space, bad, clipped", BAD_OBSERVATIONS)
def test_bad_observations_are_refused_by_environment_step_and_field(space, bad, clipped):
    with pytest.raises(EnvError, match=r"environment 1 \(Some-v0, seed 5\) at its step 9 returned an observation with"):
        cross(space, batch(space, bad))


@pytest.mark.parametrize("space, bad, clipped", BAD_OBSERVATIONS)
def test_bad_observations_are_clipped_into_their_space(space, bad, clipped):
    one = boundary(space, "clip")
    obs = batch(space, bad)
    got, *_, terminated, truncated = one.cross(obs, rewards(1, 2), NO, NO)
    assert got.dtype == obs.dtype and np.array_equal(got[0], obs[0])
    assert np.array_equal(got[1], np.broadcast_to(np.asarray(clipped, space.dtype), space.shape))
    assert (one.clipped, one.dropped) == (1, 0) and not terminated.any() and not truncated.any()


@pytest.mark.parametrize("space, bad, clipped", BAD_OBSERVATIONS)
def test_bad_observations_end_the_episode_one_step_earlier(space, bad, clipped):
    """Mutation: an end that is a termination, a reward that stays, or another column that is touched."""
    one = boundary(space, "drop")
    good = batch(space, bad)
    good[1] = good[0]
    one.cross(good, rewards(1, 1), NO, NO)
    got, reward, terminated, truncated = one.cross(batch(space, bad), rewards(5, 6), NO, np.array([False, False]))
    assert np.array_equal(got, good)
    assert reward["train"].tolist() == [5, 0] and reward["train"].dtype == np.float32
    assert not terminated.any() and truncated.tolist() == [False, True]
    assert (one.clipped, one.dropped) == (0, 1)


def test_a_dropped_termination_becomes_a_truncation():
    """Its value is unknown: it must not count as 0."""
    one = boundary(Box(-1, 1, (1,)), "drop")
    _, _, terminated, truncated = one.cross(
        np.array([[0.0], [NAN]], np.float32), rewards(0, 0), np.array([True, True]), NO
    )
    assert terminated.tolist() == [True, False] and truncated.tolist() == [False, True]


@pytest.mark.parametrize(
    "value, clipped", [(NAN, 0.0), (INF, REWARD_LIMIT), (-INF, -REWARD_LIMIT), (1e30, REWARD_LIMIT)], ids=str
)
def test_bad_rewards(value, clipped):
    space, obs = Box(-1, 1, (1,)), np.zeros((2, 1), np.float32)
    with pytest.raises(EnvError, match=r"environment 1 \(Some-v0, seed 5\) at its step 9 returned a reward of"):
        cross(space, obs, (1, value))
    _, reward, *_ = cross(space, obs, (1, value), "clip")
    np.testing.assert_array_equal(reward["train"], np.array([1, clipped], np.float32))
    assert np.isfinite(reward["train"] ** 2).all()  # a squared error must not overflow
    _, reward, terminated, truncated = cross(space, obs, (1, value), "drop")
    assert reward["train"].tolist() == [1, 0]
    assert truncated.tolist() == [False, True] and not terminated.any()


def test_faults_of_different_columns_in_one_step_are_all_answered():
    """Mutation: only the last field that was looked at."""
    space = Dict(a=Box(-1, 1, (1,)), b=Box(-1, 1, (1,)))
    obs = {name: np.zeros((4, 1), np.float32) for name in "ab"}
    obs["a"][0], obs["b"][1] = NAN, 5
    no = np.zeros(4, bool)
    one = boundary(space, "drop")
    *_, truncated = one.cross(obs, rewards(0, 0, INF, 0), no, no)
    assert truncated.tolist() == [True, True, True, False] and one.dropped == 3
    one = boundary(space, "clip")
    clipped, reward, *_ = one.cross(obs, rewards(0, 0, INF, 0), no, no)
    assert clipped["a"].tolist() == [[0]] * 4 and clipped["b"].tolist() == [[0], [1], [0], [0]]
    assert one.clipped == 3 and np.isfinite(reward["train"]).all()


def test_a_bad_reward_of_a_named_channel_is_named():
    one = boundary(Box(-1, 1, (1,)))
    with pytest.raises(EnvError, match="a reward of nan in channel 'true'"):
        one.cross(np.zeros((2, 1), np.float32), {**rewards(0, 0), "true": np.array([NAN, 0])}, NO, NO)


def test_good_values_pass_untouched():
    for answer in ("raise", "drop", "clip"):
        one = boundary(Box(-1, 1, (2,)), answer)
        obs, reward = np.array([[-1, 1], [0, 0.5]], np.float32), rewards(REWARD_LIMIT * 0.99, -3)
        got = one.cross(obs, reward, np.array([True, False]), NO)
        assert got[0] is obs and got[1] is reward
        assert got[2].tolist() == [True, False]
        assert one.dropped == one.clipped == 0


def test_leaves_of_a_tree_meet_their_own_bounds():
    """Mutation: leaves in the order of insertion meet each other's bounds."""
    space = Dict(b=Box(5, 6, (1,)), a=Tuple([Box(0, 1, (1,)), Discrete(3)]))
    good = {"b": np.full((2, 1), 5.5, np.float32), "a": (np.full((2, 1), 0.5, np.float32), np.array([0, 2]))}
    assert cross(space, good)[0] is good
    for answer in ("drop", "clip"):
        bad = trees.map(np.copy, good)
        bad["a"][1][1] = 7
        one = boundary(space, answer)
        one.cross(good, rewards(0, 0), NO, NO)
        obs, *_, truncated = one.cross(bad, rewards(0, 0), NO, NO)
        assert obs["a"][1].tolist() == [0, 2] and obs["b"].tolist() == [[5.5], [5.5]]
        assert truncated.tolist() == [False, answer == "drop"]


# -- structure


@pytest.mark.parametrize(
    "space, obs, text",
    [
        (Box(-1, 1, (2,)), np.zeros(2), "dtype float64, space says float32"),
        (Box(-1, 1, (2,)), np.zeros(3, np.float32), "shape (3,), space says (2,)"),
        (Box(-1, 1, (2,)), [0.0, 0.0], "dtype list, space says float32"),
        (Discrete(2), 0.5, "dtype float, space says int"),
        (Discrete(2), None, "dtype NoneType, space says int"),
        (Dict(a=Discrete(2)), {"b": 0}, "keys ['b'], space says ['a']"),
        (Dict(a=Discrete(2)), 0, "keys int, space says ['a']"),
        (Dict(a=Box(-1, 1, (2,))), {"a": np.zeros(2)}, "a: dtype float64, space says float32"),
        (Tuple([Discrete(2)]), [0], "list, space says a tuple of 1"),
        (Tuple([Discrete(2), Discrete(2)]), (0, 0.5), "1: dtype float, space says int"),
    ],
    ids=str,
)
def test_structure_is_checked_and_described(space, obs, text):
    assert check_structure(obs, space) == text


@pytest.mark.parametrize(
    "space, obs",
    [
        (Box(-1, 1, (2,)), np.zeros(2, np.float32)),
        (Discrete(2), 1),
        (Discrete(2), np.int32(1)),
        (MultiBinary(2), np.zeros(2, np.int8)),
        (Dict(b=Discrete(2), a=Discrete(2)), OrderedDict(b=0, a=1)),
        (Tuple([Discrete(2)]), (1,)),
    ],
    ids=str,
)
def test_sound_structures_pass(space, obs):
    assert check_structure(obs, space) is None


def test_a_batch_of_one_has_the_structure_of_its_space():
    """Mutation: an OrderedDict keeps its own order when flattened, and its leaves meet each other's bounds."""
    space = Dict(a=Box(0, 1, (1,)), b=Tuple([Box(5, 6, ())]))
    obs = OrderedDict(b=(np.float32(5.5),), a=np.array([0.5], np.float32))
    one = batch_of_one(obs, space)
    assert type(one) is dict and trees.flatten(one)[0].tolist() == [[0.5]] and trees.flatten(one)[1].tolist() == [5.5]


@pytest.mark.parametrize(
    "space, text",
    [
        (gym.spaces.Text(5), "a Text space cannot be stored"),
        (Dict(a=gym.spaces.Sequence(Discrete(2))), "a Sequence space cannot be stored"),
        (Tuple([gym.spaces.Graph(Discrete(2), None)]), "a Graph space cannot be stored"),
        (Box(0, 1, (0,)), r"shape \(0,\) has no elements"),
    ],
    ids=str,
)
def test_spaces_that_cannot_be_stored_are_refused(space, text):
    with pytest.raises(EnvSetupError, match=text):
        space_leaves(space)


# -- E3 through the whole of an environment


AT, LENGTH = 7, 5  # the fault is in the second episode, at its second step


def open_faulty(fault, answer, size=2, at=AT):
    environment = Environment(ID, {"fault": fault, "at_step": at, "length": LENGTH}, on_bad_value=answer, restarts=0)
    return environment.open(size, 3, environment.probe())


def live(columns, size=2, turns=18):
    """Every outcome as lists; each observation is looked at as it comes, as buffers are used again."""
    outcomes = [columns.reset()]
    rows = []
    for turn in range(turns + 1):
        outcome = outcomes[-1]
        rows.append(
            [outcome.obs.copy(), outcome.first, *outcome.rewards.values(), outcome.terminated, outcome.truncated]
        )
        assert np.isfinite(outcome.obs).all() and (outcome.obs >= 0).all()
        assert all(np.isfinite(reward).all() and (np.abs(reward) <= REWARD_LIMIT).all() for reward in rows[-1][2:-2])
        if turn < turns:
            columns.send(np.zeros(size, np.int64))
            outcomes.append(columns.recv())
    columns.close()
    return rows


VALUE_FAULTS = ("nan_obs", "inf_obs", "out_of_space", *REWARD_FAULTS)
ALL_FAULTS = (*OBSERVATION_FAULTS, *REWARD_FAULTS)


@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_raise_stops_with_one_line_that_names_everything(fault):
    columns = open_faulty(fault, "raise")
    with pytest.raises(EnvError) as error:
        live(columns)
    text = str(error.value)
    assert "\n" not in text
    assert f"environment 0 ({ID}, seed " in text and f"at its step {AT}" in text
    assert ("a reward of" if fault in REWARD_FAULTS else "an observation") in text
    detail = {"nan_obs": "NaN", "inf_obs": "infinity", "wrong_dtype": "int64", "wrong_shape": "(4,)"}
    assert detail.get(fault, "") in text


@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_drop_ends_the_episode_one_step_earlier_and_goes_on(fault):
    """Mutation: an environment that is not reset after its episode was dropped answers a filler with a step."""
    columns = open_faulty(fault, "drop")
    rows = live(columns)
    # rows 0–5: the first episode; 6: its reset; 7: a step; 8: the fault; 9: the next reset
    assert [int(obs[0, 0]) for obs, *_ in rows] == [0, 1, 2, 3, 4, 5, 0, 1, 1, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert [turn for turn, row in enumerate(rows) if row[1][0]] == [0, 6, 9, 15]
    assert [turn for turn, row in enumerate(rows) if row[3][0]] == [5, 14]
    assert [turn for turn, row in enumerate(rows) if row[4][0]] == [8]
    assert [float(row[2][0]) for row in rows] == [0, 1, 2, 3, 4, 5, 0, 1, 0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert columns.boundary.dropped == 2  # one in each environment
    assert columns.boundary.clipped == 0


@pytest.mark.parametrize("fault", [*VALUE_FAULTS, "wrong_dtype"])
def test_clip_goes_on_with_a_value_inside(fault):
    columns = open_faulty(fault, "clip")
    rows = live(columns)
    assert [turn for turn, row in enumerate(rows) if row[1][0]] == [0, 6, 12, 18]
    assert not any(row[4].any() for row in rows)
    want = {"nan_obs": 0, "inf_obs": 1e9, "out_of_space": 0}.get(fault, 2)
    assert rows[8][0][0, 0] == np.float32(want)
    reward = {"nan_reward": 0, "inf_reward": REWARD_LIMIT, "huge_reward": REWARD_LIMIT}.get(fault, 2)
    assert rows[8][2][0] == np.float32(reward)
    assert columns.boundary.clipped == (0 if fault == "wrong_dtype" else 2)
    assert columns.boundary.dropped == 0


def test_a_wrong_shape_cannot_be_clipped():
    with pytest.raises(EnvError, match=rf"at its step {AT} returned an observation of shape \(4,\), space says \(3,\)"):
        live(open_faulty("wrong_shape", "clip"))


@pytest.mark.parametrize("answer", ["raise", "drop", "clip"])
def test_no_info_is_no_fault(answer):
    columns = open_faulty("none_info", answer)
    assert [turn for turn, row in enumerate(live(columns)) if row[1][0]] == [0, 6, 12, 18]
    assert columns.boundary.dropped == columns.boundary.clipped == 0


@pytest.mark.parametrize("answer", ["drop", "clip"])
@pytest.mark.parametrize("fault", VALUE_FAULTS)
def test_no_bad_value_reaches_the_memory(fault, answer):
    """0 NaN pass: stream, actor, queue."""
    columns = open_faulty(fault, answer)
    stream = Stream(columns, 2)
    queue = Unrolls(unroll_length=4, batch_size=2).build([2], 0, torch.device("cpu"))
    actor = Actor([stream], ScriptedPolicy(columns.action_space), queue.writers, lambda: 0)
    samples = []
    while len(samples) < 6:
        actor.turn()
        if (sample := queue.sample(version=0)) is not None:
            samples.append(sample.trajectory)
    assert columns.boundary.dropped + columns.boundary.clipped == 2  # the fault did happen
    for trajectory in samples:
        assert torch.isfinite(trajectory.obs).all() and (trajectory.obs >= 0).all()
        assert (trajectory.reward.abs() <= REWARD_LIMIT).all()


class Rotten(gym.Env):
    """Counts to three; bad values on demand, in one buffer that it overwrites."""

    observation_space = Box(-9, 9, (1,))
    action_space = Discrete(2)
    reward_channels = ("true",)

    def __init__(self, resets=(), steps=(), channel=(), result=None):
        self._bad_resets, self._bad_steps, self._bad_channel = resets, steps, channel
        self._result = result
        self._buffer = np.zeros(1, np.float32)
        self._resets = self._step = self._life = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._resets, self._step = self._resets + 1, 0
        self._buffer[:] = NAN if self._resets in self._bad_resets else 0
        return self._buffer, {}

    def step(self, action):
        self._step, self._life = self._step + 1, self._life + 1
        self._buffer[:] = NAN if self._life in self._bad_steps else self._step
        if self._result is not None:
            return self._result
        true = NAN if self._life in self._bad_channel else 10 * self._step
        return self._buffer, float(self._step), self._step >= 3, False, {"reward/true": true}


def rotten(answer, size=1, **bad):
    factories = [Factory(functools.partial(Rotten, **bad), f"environment {i} (Rotten)", answer) for i in range(size)]
    return GymnasiumVectorEnv(
        factories,
        list(range(size)),
        processes=False,
        deadline_secs=9,
        answer=answer,
        name="Rotten",
        reward_channels=("train", "true"),
    )


def column_of(columns, turns):
    """(observation, first, reward, true reward, terminated, truncated) of the first column, row by row."""
    rows, outcome = [], columns.reset()
    for _ in range(turns):
        flags = outcome.terminated[0], outcome.truncated[0]
        values = outcome.rewards["train"][0], outcome.rewards["true"][0]
        rows.append(tuple(float(x) for x in (outcome.obs[0, 0], outcome.first[0], *values, *flags)))
        columns.send(np.zeros(1, np.int64))
        outcome = columns.recv()
    return rows


FIRST, LAST = (0, 1, 0, 0, 0, 0), (3, 0, 3, 30, 1, 0)
SOUND = [FIRST, (1, 0, 1, 10, 0, 0), (2, 0, 2, 20, 0, 0), LAST]


def test_an_episode_that_begins_badly_is_given_up_for_the_next():
    """Mutation: marking the reset row as an end makes the environment's first step look like a reset."""
    columns = rotten("drop", resets=(2, 3))
    assert column_of(columns, 12) == [*SOUND, *SOUND, *SOUND]
    assert columns.boundary.dropped == 2


def test_a_first_episode_that_begins_badly_is_counted_too():
    columns = rotten("drop", resets=(1,))
    assert column_of(columns, 4) == SOUND
    assert columns.boundary.dropped == 1


def test_an_episode_is_not_begun_again_with_the_seed_that_began_it_badly():
    """Mutation: the same seed gives the same observation, until the tries are spent."""

    class BadSeed(Rotten):
        def reset(self, *, seed=None, options=None):
            obs, info = super().reset(seed=seed)
            self._buffer[:] = 0 if seed is None else NAN
            return obs, info

    columns = GymnasiumVectorEnv(
        [Factory(BadSeed, "e", "drop")], [5], processes=False, deadline_secs=9, answer="drop", name="e"
    )
    assert columns.reset().obs.tolist() == [[0]] and columns.boundary.dropped == 1


def test_an_environment_that_only_begins_badly_is_refused():
    with pytest.raises(
        EnvError, match=f"environment 0 .* returned a bad observation from {RESET_TRIES} resets in a row"
    ):
        rotten("drop", resets=range(100)).reset()


def test_a_bad_reward_of_another_channel_drops_the_episode_in_the_environment_too():
    """Mutation: a guard that looks at the training channel only goes on while its columns wait for a reset."""
    columns = rotten("drop", channel=(2,))
    assert column_of(columns, 7) == [*SOUND[:2], (1, 0, 0, 0, 0, 1), *SOUND]
    assert columns.boundary.dropped == 1


def test_the_last_good_observation_survives_an_environment_that_writes_over_it():
    """Mutation: keeping the array itself gives the NaN back, which is then dropped and counted a second time."""
    columns = rotten("drop", steps=(3,))
    assert column_of(columns, 8) == [*SOUND[:3], (2, 0, 0, 0, 0, 1), *SOUND]
    assert columns.boundary.dropped == 1


@pytest.mark.parametrize(
    "result, text",
    [
        ((np.zeros(1, np.float32), None, False, False, {}), "TypeError"),
        ((np.zeros(1, np.float32), 0.0, False, {}), "ValueError: not enough values"),
        ((np.zeros(2), 0.0, False, False, {}), r"an observation of shape \(2,\)"),
    ],
    ids=["reward None", "four values", "dtype and shape"],
)
@pytest.mark.parametrize("answer", ["raise", "clip"])
def test_other_nonsense_is_named_as_well(result, text, answer):
    with pytest.raises(EnvError, match=rf"environment 0 \(Rotten\) at its step 1 .*{text}"):
        column_of(rotten(answer, result=result), 2)


# -- a functional core


class RottenCore:
    """Counts to three in every state; bad values at one count of the whole group."""

    max_steps = None
    observation_space = Box(-9, 9, (1,))
    action_space = Discrete(2)

    def __init__(self, fault, at):
        self._fault, self._at, self._calls = fault, at, 0

    def initial(self, n, rng):
        return np.zeros(n, np.float32)

    def step(self, states, actions, rng):
        self._calls += 1
        reward = (states + 1).astype(np.float32)
        if self._calls == self._at and self._fault == "reward":
            reward[1] = NAN
        return states + 1, reward, states + 1 >= 3, {}

    def observe(self, states):
        obs = states[:, None].astype(np.float32)
        if self._calls == self._at and self._fault == "obs":
            obs[1] = NAN
        return obs


@pytest.mark.parametrize("fault", ["obs", "reward"])
def test_a_functional_core_meets_the_same_border(fault):
    with pytest.raises(
        EnvError, match=r"environment 1 \(Rotten, group seed 4\) at its step 2 returned an? .*(NaN|nan)"
    ):
        live(FunctionalVectorEnv(RottenCore(fault, at=2), 2, 4, "raise", "Rotten"))
    with pytest.raises(EnvError, match="environment 1 .* at its step 5 returned"):  # the reset between was no step
        live(FunctionalVectorEnv(RottenCore(fault, at=6), 2, 4, "raise", "Rotten"))
    columns = FunctionalVectorEnv(RottenCore(fault, at=2), 2, 4, "clip", "Rotten")
    rows = live(columns, turns=5)
    assert [row[0][1, 0] for row in rows] == [0, 1, 0 if fault == "obs" else 2, 3, 0, 1]
    assert [row[2][1] for row in rows] == [0, 1, 0 if fault == "reward" else 2, 3, 0, 1]
    assert columns.boundary.clipped == 1
    columns = FunctionalVectorEnv(RottenCore(fault, at=2), 2, 4, "drop", "Rotten")
    rows = live(columns, turns=5)
    assert [row[0][1, 0] for row in rows] == [0, 1, 1, 0, 1, 2]
    assert [row[0][0, 0] for row in rows] == [0, 1, 2, 3, 0, 1]
    assert [turn for turn, row in enumerate(rows) if row[4][1]] == [2]
    assert [turn for turn, row in enumerate(rows) if row[1][1]] == [0, 3]
    assert columns.boundary.dropped == 1
