"""Environments that fail are made again with a new seed, and their episodes are dropped."""

import functools
import logging

import gymnasium as gym
import numpy as np
import pytest

from packtrain import trees
from packtrain.envs import failures as failures_module
from packtrain.envs.environment import Environment
from packtrain.envs.failures import GOOD_STEPS, Failures
from packtrain.envs.gymnasium_vector_env import Factory, GymnasiumVectorEnv
from packtrain.envs.simulator import Simulator
from packtrain.envs.stream import Stream
from packtrain.errors import EnvError, EnvSetupError
from packtrain.testing.faulty import Faulty, Flaky

SEEDS = [40, 41, 42]


@pytest.fixture(autouse=True)
def no_delay(monkeypatch):
    monkeypatch.setattr(failures_module, "FIRST_DELAY", 0.0)


def opened(makes, processes=False, restarts=5, deadline=2.0, answer="raise"):
    factories = [Factory(make, f"environment {i} (Some-v0)", answer) for i, make in enumerate(makes)]
    return GymnasiumVectorEnv(
        factories,
        SEEDS[: len(makes)],
        processes=processes,
        deadline_secs=deadline,
        answer=answer,
        name="Some-v0",
        restarts=restarts,
    )


def steps(columns, turns):
    """Copies of the outcomes, with plain lists."""
    found = []
    for _ in range(turns):
        columns.send(np.zeros(len(columns._seeds), np.int64))
        one = columns.recv()
        flags = one.first, one.terminated, one.truncated, one.dropped
        found.append(
            (
                one.obs[:, 0].tolist(),
                one.rewards["train"].tolist(),
                *[None if flag is None else flag.tolist() for flag in flags],
            )
        )
    return found


@pytest.mark.parametrize(
    "fault, processes",
    [("raise", False), ("sys_exit", False), ("wrong_shape", False)]
    + [(fault, True) for fault in ("raise", "sys_exit", "interrupt", "hang", "exit", "segfault")],
)
def test_a_failing_environment_is_replaced_and_the_others_go_on(fault, processes, caplog):
    """E1, E2. The row of the failure ends the episode as a truncation; the next one is the first of the new
    environment. Mutations: the whole group is reset; the reset takes place in the row of the failure; the row has the
    failed environment's reward."""
    caplog.set_level(logging.INFO)
    deadline = 2.0 if fault == "hang" else 30.0
    columns = opened([Faulty, functools.partial(Faulty, fault, 4)], processes, deadline=deadline)
    try:
        columns.reset()
        rows = steps(columns, 7)
        no = [False, False]
        for turn in range(3):
            assert rows[turn] == ([turn + 1] * 2, [turn + 1] * 2, no, no, no, None)
        assert rows[3] == ([4, 3], [4, 0], no, no, [False, True], [False, True])
        assert rows[4] == ([5, 0], [5, 0], [False, True], no, no, None)
        assert rows[5] == ([6, 1], [6, 1], no, no, no, None)
        assert columns.boundary.replaced == columns.boundary.dropped == 1
        assert columns._failures[1].seed != SEEDS[1] and columns._failures[0].total == 0
        steps(columns, 5)  # the replacement counts from 0 and fails at its 4th step, too
        assert columns.boundary.replaced == 2
        assert "replacement 1 with seed" in caplog.text and "environment 1" in caplog.text
        if fault == "raise":
            assert "faulty.py" in caplog.text, "the log has the environment's own traceback"
    finally:
        columns.close()


@pytest.mark.parametrize("processes", [False, True])
def test_the_run_stops_with_the_first_cause_when_failures_follow_closely(processes):
    """Mutation: the last cause is reported; failures are counted for ever."""
    columns = opened([functools.partial(Faulty, "raise", 4)], processes, restarts=2)
    try:
        columns.reset()
        with pytest.raises(EnvError, match=r"environment 0 \(Some-v0\) at its step 4 raised.*first of 3 failures.*= 2"):
            steps(columns, 30)
    finally:
        columns.close()


def test_failures_that_are_far_apart_are_never_too_many():
    failures = Failures(7, 2)
    for _ in range(5):
        failures.note("it failed", "", GOOD_STEPS)
    assert failures.in_row == 1 and failures.total == 5
    failures.note("it failed again", "", GOOD_STEPS - 1)
    with pytest.raises(EnvError, match=r"^it failed; it was the first of 3 failures"):
        failures.note("and again", "", 0)


def test_seeds_of_replacements_differ_and_are_the_same_every_time():
    def seeds(origin):
        failures = Failures(origin, 9)
        for _ in range(4):
            failures.note("it failed", "", 0)
            yield failures.seed

    assert list(seeds(1)) == list(seeds(1)) and len({*seeds(1), *seeds(2), 1, 2}) == 10


@pytest.mark.parametrize("processes", [False, True])
def test_a_failure_in_a_reset_is_followed_by_another_reset(processes):
    columns = opened([Faulty, functools.partial(Sour, 1)], processes)
    try:
        columns.reset()
        assert columns.boundary.dropped == 0 and columns.boundary.replaced == 1
        assert steps(columns, 1)[0][0] == [1, 1]
    finally:
        columns.close()


class Sour(Faulty):
    """Raises in the first resets of all its instances in a process."""

    left = None

    def __init__(self, times):
        super().__init__()
        if Sour.left is None:
            Sour.left = times

    def reset(self, **kwargs):
        if Sour.left:
            Sour.left -= 1
            raise RuntimeError("not yet")
        return super().reset(**kwargs)


@pytest.fixture(autouse=True)
def fresh():
    Sour.left = None


def test_a_constructor_that_fails_again_is_a_failure():
    made = []

    def make():
        made.append(len(made))
        if len(made) == 2:
            raise EnvSetupError("no licence")
        return Faulty("raise", 2)

    columns = opened([make])
    columns.reset()
    steps(columns, 3)
    assert len(made) == 3 and columns.boundary.replaced == 2


def test_dropped_episodes_are_not_counted_as_finished():
    """Their return is not that of an episode. Mutation: `dropped` is ignored."""
    stream = Stream(opened([Faulty, functools.partial(Faulty, "raise", 7)]), 2)
    stream.start()
    for _ in range(45):
        stream.send(np.zeros(2, np.int64))
        stream.recv()
    episodes = stream.drain_episodes()
    assert [(one.column, one.length, one.returns["train"]) for one in episodes] == [(0, 20, 210)] * 2
    assert stream.columns.boundary.dropped == 5


def environment(probability=0.05, **more):
    kwargs = {"probability": probability, **more.pop("kwargs", {})}
    return Environment("packtrain.testing.faulty:packtrain/FlakyCartPole-v0", kwargs, restarts=50, **more)


def played(columns, turns):
    """All rows of a group, as it plays the same actions."""
    rows = []
    for turn in range(turns):
        columns.send(np.full(3, turn % 2))
        rows.append(trees.map(lambda leaf: None if leaf is None else np.array(leaf), columns.recv()._replace(info={})))
    return rows


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        a, b = trees.named_leaves(a._asdict()), trees.named_leaves(b._asdict())
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], name)


def test_failures_are_repeated_exactly_and_survive_a_save():
    """Mutations: a seed from the clock; `broken` or the count is left out of the snapshot."""
    columns, again = (environment().open(3, 5, environment().probe()) for _ in range(2))
    columns.reset(), again.reset()
    assert_same(played(columns, 200), played(again, 200))
    assert columns.boundary.replaced > 5, "no failure was injected"
    saved_broken = False
    for _ in range(40):  # saves with and without a broken environment
        snapshot = columns.snapshot()
        saved_broken |= any(guard["broken"] for guard in snapshot["guards"])
        third = environment().open(3, 5, environment().probe())
        third.restore(snapshot)
        assert third.boundary.replaced == columns.boundary.replaced
        assert_same(played(columns, 7), played(third, 7))
    assert saved_broken


def test_a_simulator_repeats_the_step_in_a_new_environment():
    """A planner restores states, so nothing is lost. Mutation: the state is not restored after the replacement."""
    flaky = Simulator("packtrain/FlakyCartPole-v0", restarts=5, probability=0.2, sound_steps=60, saves_generator=False)
    sound = Simulator("CartPole-v1")
    rngs = [np.random.default_rng(1), np.random.default_rng(1)]
    states = [core.initial(4, rng) for core, rng in zip((flaky, sound), rngs, strict=True)]
    for turn in range(60):
        actions = np.array([0, 1, turn % 2, 1 - turn % 2])
        results = [core.step(each, actions, rng) for core, each, rng in zip((flaky, sound), states, rngs, strict=True)]
        for name in ("obs", "over"):
            np.testing.assert_array_equal(results[0][0][name], results[1][0][name])
        states = [result[0] for result in results]
    assert flaky.replaced > 0, "no failure was injected"


def test_a_simulator_that_always_fails_stops_with_the_first_cause():
    core = Simulator("packtrain/FlakyCartPole-v0", restarts=2, probability=1.0, sound_steps=31, saves_generator=False)
    core._env.unwrapped._life = core._env.unwrapped.sound_steps = 10**6
    states = core.initial(1, np.random.default_rng(0))
    core._env.unwrapped.sound_steps = 0
    core._source = ("packtrain/FlakyCartPole-v0", {"probability": 1.0})
    with pytest.raises(EnvError, match="Flaky failed at step 1000001 .*the first of 3 failures"):
        core.step(states, np.array([0]), np.random.default_rng(0))


@pytest.mark.parametrize("fault", ["nothing_back", "wrong_shape", "raise"])
def test_whatever_a_step_returns_instead_of_a_row_is_a_failure(fault):
    columns = environment(kwargs={"fault": fault}).open(3, 5, environment().probe())
    columns.reset()
    played(columns, 60)
    assert columns.boundary.replaced > 0, "no failure was injected"


def test_flaky_is_its_environment_where_it_does_not_fail():
    flaky, sound = Flaky(probability=0.0), gym.make("CartPole-v1").unwrapped
    np.testing.assert_array_equal(flaky.reset(seed=3)[0], sound.reset(seed=3)[0])
    for turn in range(20):
        np.testing.assert_array_equal(flaky.step(turn % 2)[0], sound.step(turn % 2)[0])
