"""Groups of environments in every backend: each transition once (E5), faults named (E1, E2), nothing left behind."""

import functools
import multiprocessing
import os
import signal
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from packtrain import trees
from packtrain.envs import deadline
from packtrain.envs.functional import FunctionalEnv
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.gymnasium_guard import reward_channels
from packtrain.envs.gymnasium_vector_env import Factory, GymnasiumVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.process_pool import ProcessPool, _Wait
from packtrain.envs.stream import Stream
from packtrain.errors import EnvError, EnvSetupError
from packtrain.testing.abilities import Counting
from packtrain.testing.faulty import Faulty

COUNTING = "packtrain.testing.abilities:Counting"
LONGEST = 7


class Ragged(Counting):
    """Episodes of 1 to 7 steps by their id, so that columns end at different times; never stepped past an end."""

    def __init__(self, max_steps=None):
        super().__init__(length=LONGEST)
        self.max_steps = max_steps

    def step(self, states, actions, rng):
        assert (states["step"] < natural_length(states["episode"])).all(), "an ended state was stepped"
        states, rewards, _, extras = super().step(states, actions, rng)
        return states, rewards, states["step"] >= natural_length(states["episode"]), extras


def natural_length(episode):
    return 1 + episode % LONGEST


def gymnasium_columns(makes, processes=False, deadline=30.0, answer="raise"):
    seeds = [40 + i for i in range(len(makes))]
    factories = [
        Factory(make, f"environment {i} (Some-v0, seed {seed})", answer)
        for i, (make, seed) in enumerate(zip(makes, seeds, strict=True))
    ]
    return GymnasiumVectorEnv(
        factories, seeds, processes=processes, deadline_secs=deadline, answer=answer, name="Some-v0"
    )


def copied(outcome):
    """Outcomes are valid until the next send."""
    return trees.map(lambda leaf: None if leaf is None else np.array(leaf), outcome)


def live(columns, size, turns):
    """Outcomes of `turns` steps after those of the first reset."""
    outcomes = [copied(columns.reset())]
    rng = np.random.default_rng(0)
    for _ in range(turns):
        columns.send(rng.integers(2, size=size))
        outcomes.append(copied(columns.recv()))
    return outcomes


def check(outcomes, column, length_of, truncated_at=None, clock_says_too=False):
    """Follow one column row by row; returns its steps and the ids of its episodes. Any error is an assertion.

    An end that the clock and the task reach together is a termination; Gymnasium's clock sets its flag as well.
    """
    episode = step = None
    ended, steps, episodes = True, 0, []
    for outcome in outcomes:
        row = [int(x) for x in outcome.obs[column]]
        reward, first = float(outcome.rewards["train"][column]), bool(outcome.first[column])
        terminated, truncated = bool(outcome.terminated[column]), bool(outcome.truncated[column])
        assert first == ended, "first exactly after an end"
        if first:
            (episode, step), ended = row, False
            episodes.append(episode)
            assert step == 0 and reward == 0 and not terminated and not truncated
            continue
        steps += 1
        assert row == [episode, step + 1], "one step on, in the same episode: the final observation is shown too"
        step += 1
        assert reward == step
        over = step >= length_of(episode)
        assert terminated == over
        assert truncated == (truncated_at is not None and step >= truncated_at and (not over or clock_says_too))
        ended = terminated or truncated
    assert len(set(episodes)) == len(episodes)
    return steps, episodes


# -- E5


@pytest.mark.parametrize("max_steps", [None, 1, 4, 7], ids=["termination", "1 step", "both", "only just"])
@pytest.mark.parametrize("size, turns", [(1, 300), (10, 1000)])
def test_functional_columns_show_each_transition_once(max_steps, size, turns):
    """Mutations: a clock that is not reset, an ended state that is stepped, a mask that hits the wrong column."""
    outcomes = live(FunctionalVectorEnv(Ragged(max_steps), size, 3, "raise", "Ragged"), size, turns)
    found = [check(outcomes, column, natural_length, max_steps) for column in range(size)]
    assert sum(steps for steps, _ in found) + sum(len(episodes) - 1 for _, episodes in found) == turns * size
    assert len({id for _, episodes in found for id in episodes}) == sum(len(episodes) for _, episodes in found)


@pytest.mark.parametrize("max_steps", [None, 4], ids=["termination", "both"])
def test_gymnasium_columns_show_each_transition_once(max_steps):
    size, turns = 4, 2500
    makes = [functools.partial(FunctionalEnv, Ragged(max_steps)) for _ in range(size)]
    outcomes = live(gymnasium_columns(makes), size, turns)
    found = [check(outcomes, column, natural_length, max_steps) for column in range(size)]
    assert sum(steps for steps, _ in found) + sum(len(episodes) - 1 for _, episodes in found) == turns * size
    assert len({id for _, episodes in found for id in episodes}) == sum(len(episodes) for _, episodes in found)


def test_gymnasiums_own_clock_truncates():
    makes = [lambda: gym.wrappers.TimeLimit(FunctionalEnv(Ragged()), 3)] * 2
    outcomes = live(gymnasium_columns(makes), 2, 400)
    for column in range(2):
        steps, episodes = check(outcomes, column, natural_length, truncated_at=3, clock_says_too=True)
        assert steps + len(episodes) - 1 == 400


@pytest.mark.parametrize("ends_as", ["termination", "truncation"])
def test_processes_show_each_transition_once(ends_as):
    """Mutation: the buffer of one environment read into another's column."""
    lengths = (3, 5)
    makes = [functools.partial(FunctionalEnv, COUNTING, length=length, ends_as=ends_as) for length in lengths]
    columns = gymnasium_columns(makes, processes=True)
    try:
        outcomes = live(columns, 2, 300)
    finally:
        columns.close()
    for column, length in enumerate(lengths):
        if ends_as == "termination":
            steps, episodes = check(outcomes, column, lambda _, length=length: length)
        else:
            steps, episodes = check(outcomes, column, lambda _: 10**9, truncated_at=length)
        assert steps + len(episodes) - 1 == 300 and len(episodes) > 50


def test_the_backends_say_the_same_of_the_same_environment():
    """Dict observations, several actions, named rewards, solved: functional and Gymnasium, row for row."""

    class Channels(Counting):
        reward_channels = ("true",)

        def step(self, states, actions, rng):
            states, rewards, ended, _ = super().step(states, actions, rng)
            return states, rewards, ended, {"reward/true": -rewards, "solved": ended}

    core = Channels(length=3, tree=True)
    functional = FunctionalVectorEnv(core, 2, 0, "raise", "Channels")
    assert functional.reward_channels == ("train", "true") == reward_channels(FunctionalEnv(core))
    seeds = [1, 2]
    factories = [Factory(functools.partial(FunctionalEnv, core), "e", "raise") for _ in seeds]
    vector = GymnasiumVectorEnv(
        factories, seeds, processes=False, deadline_secs=9, answer="raise", name="C", reward_channels=("train", "true")
    )
    rows = []
    for columns in (functional, vector):
        rows.append([copied(columns.reset())])
        for turn in range(9):
            columns.send(np.array([[turn % 2, turn % 3], [1, 2]]))
            rows[-1].append(copied(columns.recv()))
    for one, other in zip(*rows, strict=True):
        for outcome in (one, other):
            outcome.obs["count"][:, 0] = 0  # ids are drawn from different generators
        assert all(outcome.over is None and outcome.life_over is None for outcome in (one, other))  # no lives here
        # Gymnasium returns `info` in arrays of other dtypes.
        one, other = (trees.named_leaves(outcome._replace(info={})._asdict()) for outcome in (one, other))
        for name in one.keys() & other.keys() - {"solved", "over", "life_over", "waiting", "dropped"}:
            assert one[name].dtype == other[name].dtype, name
            np.testing.assert_array_equal(one[name], other[name], name)
    assert rows[0][3].solved.all() and rows[1][3].solved.all()
    assert rows[0][3].rewards["true"].tolist() == [-3, -3]


def test_a_second_reset_begins_the_same_stream_again():
    for columns in (
        FunctionalVectorEnv(Ragged(), 3, 8, "raise", "Ragged"),
        gymnasium_columns([functools.partial(FunctionalEnv, Ragged())] * 3),
    ):
        one, two = live(columns, 3, 40), live(columns, 3, 40)
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a.obs, b.obs)
            np.testing.assert_array_equal(a.first, b.first)


def test_every_environment_has_its_own_seed():
    """Mutation: one seed for all makes every column live the same life."""
    columns = gymnasium_columns([functools.partial(FunctionalEnv, Ragged())] * 4)
    assert len({int(id) for id in columns.reset().obs[:, 0]}) == 4


def test_another_autoreset_mode_is_refused(monkeypatch):
    """Mutation: without the check, same-step resets put the wrong observation into every last row."""

    def same_step(factories, copy, autoreset_mode):
        return SyncVectorEnv(factories, copy=copy, autoreset_mode=AutoresetMode.SAME_STEP)

    monkeypatch.setattr("packtrain.envs.gymnasium_vector_env.SyncVectorEnv", same_step)
    with pytest.raises(EnvSetupError, match=r"Some-v0 does not reset on the next step.*NEXT_STEP"):
        gymnasium_columns([Faulty])


# -- E1, E2


def faulty(fault, at_step, size=2, **options):
    """Environments of which the second breaks."""
    makes = [functools.partial(Faulty, fault if i == 1 else None, at_step) for i in range(size)]
    return gymnasium_columns(makes, **options)


@pytest.mark.parametrize("at_step", [0, 1, 33])
def test_an_environment_that_raises_is_named(at_step):
    columns = faulty("raise", at_step, size=3)
    call = "reset" if at_step == 0 else "step"
    text = rf"environment 1 \(Some-v0, seed 41\) at its step {at_step} raised in {call}: RuntimeError: Faulty raised"
    with pytest.raises(EnvError, match=text):
        live(columns, 3, 50)


def test_the_environment_under_way_is_named_for_the_watchdog():
    """What a thread that watches sees while the second environment hangs."""
    seen = []

    class Slow(Faulty):
        def step(self, action):
            seen.append((columns.describe_busy(), columns.busy_since is not None))
            return super().step(action)

    columns = gymnasium_columns([Faulty, Slow])
    assert columns.busy_since is None
    live(columns, 2, 3)
    assert columns.busy_since is None
    assert seen == [(f"environment 1 (Some-v0, seed 41) at its step {step}", True) for step in (1, 2, 3)]


@pytest.mark.parametrize("where", ["reset", "step"])
def test_each_environment_in_this_process_is_timed_for_itself(where):
    """Mutation: one time for all of them, so that many slow environments look like one that hangs."""
    seen = []

    class Slow(Faulty):
        def reset(self, **kwargs):
            seen.append(("reset", columns.busy_since, columns.starting))
            return super().reset(**kwargs)

        def step(self, action):
            seen.append(("step", columns.busy_since, columns.starting))
            return super().step(action)

    columns = gymnasium_columns([Slow] * 3)
    live(columns, 3, 2)
    times = [since for call, since, starting in seen if call == where and starting == (where == "reset")]
    assert len(times) >= 3 and times == sorted(set(times))


def test_a_wait_for_processes_forgives_the_time_in_which_this_one_was_stopped(monkeypatch):
    """A clock that jumps by an hour is what a process sees that was stopped. Mutation: taking the jump for a hang."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(deadline, "time", clock)

    class Poll:
        def __init__(self, *passed):
            self.passed = list(passed)  # seconds of waits without an answer

        def poll(self, milliseconds):
            clock.now += self.passed.pop(0)
            return []

    pool = object.__new__(ProcessPool)
    pool.closed = True  # for its own end
    member = SimpleNamespace(index=0, early=None, made=True, resets=False)
    pool._members = [member]
    pool._poll, wait = Poll(1.0, 3600.0, 1.0), _Wait(1, 10.0)
    assert [pool._messages(wait) for _ in range(3)] == [[], [], []]
    pool._poll, wait = Poll(*[1.0] * 20), _Wait(1, 10.0)
    waits = [pool._messages(wait) for _ in range(20)]
    assert [bool(late) for late in waits] == [False] * 10 + [True] * 10, "a wait without jumps has an end"


def pids(columns):
    return [process.pid for process in columns._envs.processes]


def assert_gone(children):
    """Nothing runs, and nothing is left for the parent to reap."""
    assert not [pid for pid in children if psutil.pid_exists(pid)]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "fault, text",
    [
        ("raise", "raised in step: RuntimeError: Faulty raised at step 4"),
        ("hang", "did not answer within 2 s"),
        ("spin", "did not answer within 2 s"),
        ("exit", r"died \(its process ended with code 1\)"),
        ("segfault", r"died \(its process ended with code -11\)"),
    ],
)
def test_processes_that_break_are_named_in_time(fault, text):
    """Mutations: no deadline; checking which process is dead too early; a step counted only when it is answered."""
    columns = faulty(fault, at_step=4, processes=True, deadline=2.0)
    children = pids(columns)
    try:
        columns.reset()
        for _ in range(3):
            columns.send(np.zeros(2, np.int64))
            columns.recv()
        begin = time.monotonic()
        with pytest.raises(EnvError, match=rf"environment 1 \(Some-v0, seed 41\) at its step 4 {text}"):
            columns.send(np.zeros(2, np.int64))
            columns.recv()
        assert time.monotonic() - begin < 2.0 + 2.0
    finally:
        columns.close()
    assert_gone(children)


@pytest.mark.slow
def test_a_death_is_always_blamed_on_the_one_that_died():
    """The pipe breaks before the process has ended: repeated, as this is a race."""
    for _ in range(8):
        columns = faulty("segfault", at_step=1, processes=True, deadline=5.0)
        try:
            columns.reset()
            with pytest.raises(EnvError, match=r"environment 1 .* at its step 1 died .*-11"):
                columns.send(np.zeros(2, np.int64))
                columns.recv()
        finally:
            columns.close()


def test_the_first_of_several_failures_is_one_line():
    columns = gymnasium_columns([functools.partial(Faulty, "raise", 2)] * 2, processes=True)
    try:
        with pytest.raises(EnvError, match=r"environment 0 .* raised in step") as error:
            live(columns, 2, 5)
        assert "\n" not in str(error.value)
    finally:
        columns.close()


def test_children_ignore_ctrl_c_and_close_ends_all_of_them():
    """Mutation: without SIG_IGN a Ctrl-C at the terminal kills the environments before the parent can save."""
    columns = gymnasium_columns([Faulty, Faulty], processes=True)
    children = pids(columns)
    try:
        columns.reset()
        for pid in children:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        for step in range(1, 4):
            columns.send(np.zeros(2, np.int64))
            assert columns.recv().obs[:, 0].tolist() == [step, step]
        columns.send(np.zeros(2, np.int64))  # closed in the middle of a step
    finally:
        columns.close()
    assert_gone(children)
    columns.close()  # again is no error


def test_processes_overlap_and_cannot_be_saved():
    columns = gymnasium_columns([Faulty], processes=True)
    try:
        assert columns.overlaps and columns.snapshot() is None
    finally:
        columns.close()


# -- saving


def assert_same_outcomes(one, other):
    for a, b in zip(one, other, strict=True):
        a, b = trees.named_leaves(a._asdict()), trees.named_leaves(b._asdict())
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], name)


def onwards(columns, size, turns):
    outcomes = []
    for _ in range(turns):
        columns.send(np.zeros(size, np.int64))
        outcomes.append(copied(columns.recv()))
    return outcomes


BACKENDS = {
    "functional": lambda: FunctionalVectorEnv(Ragged(4), 3, 8, "raise", "Ragged"),
    "gymnasium": lambda: gymnasium_columns([functools.partial(FunctionalEnv, Ragged(4))] * 3),
    "wrapped": lambda: gymnasium_columns([wrapped] * 3),
}


def wrapped():
    """As gym.make does it: order is enforced, and a clock counts outside the environment."""
    return gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(FunctionalEnv(Ragged())), 3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turns", [0, 1, 25, 26, 27])
def test_restored_columns_go_on_as_if_nothing_had_happened(backend, turns):
    """Mutations: clocks, ended flags or the generator left out; a snapshot that changes with its columns."""
    columns = BACKENDS[backend]()
    live(columns, 3, turns)
    snapshot = columns.snapshot()
    want = onwards(columns, 3, 40)
    other = BACKENDS[backend]()  # a new process: nothing has been reset
    other.restore(snapshot)
    assert_same_outcomes(onwards(other, 3, 40), want)
    columns.restore(snapshot)  # the same columns, taken back
    assert_same_outcomes(onwards(columns, 3, 40), want)
    assert any(outcome.first.any() for outcome in want)


def test_after_a_restore_steps_are_still_counted_from_the_beginning():
    class Saved(Faulty):
        def snapshot(self):
            return {"step": self._step, "life": self._life}

        def restore(self, state):
            self._step, self._life = state["step"], state["life"]
            return self._answer(False)[0]

    make = functools.partial(Saved, "raise", 12)
    columns = gymnasium_columns([make])
    live(columns, 1, 10)
    other = gymnasium_columns([make])
    other.restore(columns.snapshot())
    with pytest.raises(EnvError, match="environment 0 .* at its step 12 raised"):
        onwards(other, 1, 5)


def test_environments_without_snapshots_say_so():
    assert gymnasium_columns([Faulty]).snapshot() is None


def test_together_columns_wait_for_each_other() -> None:
    """With `together` the first to end waits, unchanged and unpaid, and all begin the next episode in one row.

    Mutation: step waiting columns on; the walker that ended would go on to be counted and paid.
    """
    core = Hanoi(disks=1, max_steps=4)  # action 1 (peg 0 → peg 2) solves it
    columns = FunctionalVectorEnv(core, 2, 0, "raise", "Hanoi", together=True)
    stream = Stream(columns, 2)
    stream.start()
    actions = [[1, 0], [0, 3], [0, 2], [0, 3], [0, 0], [3, 3], [0, 0]]
    rows = []
    for action in actions:
        stream.send(np.array(action))
        row = stream.recv()
        rows.append(
            (row.first.tolist(), row.last_reward["train"].tolist(), row.terminated.tolist(), row.truncated.tolist())
        )
        rows[-1] += (columns.all_ended, stream.steps)
    no = [False, False]
    assert rows == [
        (no, [1.0, 0.0], [True, False], no, False, 2),
        (no, [0.0, 1.0], [False, True], no, True, 3),
        ([True, True], [0.0, 0.0], no, no, False, 3),
        (no, [0.0, 0.0], no, no, False, 5),
        (no, [0.0, 0.0], no, no, False, 7),
        (no, [1.0, 1.0], [True, True], no, True, 9),
        ([True, True], [0.0, 0.0], no, no, False, 9),
    ]
    assert [(e.length, e.returns["train"]) for e in stream.drain_episodes()] == [(1, 1.0), (2, 1.0), (3, 1.0), (3, 1.0)]
