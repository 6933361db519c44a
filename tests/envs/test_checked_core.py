"""What functional cores may answer, to columns and to planners that search in them (E3)."""

import logging
import re

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.errors import EnvError
from packtrain.planning.model import CoreModel
from packtrain.testing.sleepy import Sleepy

ACTIONS = np.zeros(3, np.int64)


def opened(answer="raise", **fault):
    return FunctionalVectorEnv(Sleepy(**fault), 3, 5, answer, "Sleepy")


def play(columns, turns=4):
    outcomes = [columns.reset()]
    for _ in range(turns):
        columns.send(ACTIONS)
        outcomes.append(columns.recv())
    return outcomes


def search(columns, turns=4):
    """What a planner sees of so many steps: states, rewards, ends, observations."""
    columns.reset()
    model, states, rng, seen = CoreModel(columns.core), columns.states, np.random.default_rng(0), []
    for _ in range(turns):
        asking = model.step(states, ACTIONS, rng)
        try:
            next(asking)
        except StopIteration as end:
            states = end.value.states
            seen.append((states, end.value.rewards, end.value.terminated, model.observe(states)))
    return seen


STRUCTURE = [
    ("reward_shape", "step", r"rewards of shape \(1,\), which must be \(3,\)"),
    ("end_dtype", "step", "terminated of dtype int64, which must be bool"),
    ("float64_obs", "observe", "an observation of dtype float64, space says float32"),
    ("obs_shape", "observe", r"an observation of shape \(3, 3\), space says \(3, 2\)"),
]


@pytest.mark.parametrize("fault, call, text", STRUCTURE)
def test_wrong_structure_is_refused_by_environment_seed_step_and_field(fault, call, text):
    where = r"environment 0 \(Sleepy, group seed 5\) at its step 2 returned "
    with pytest.raises(EnvError, match=where + text):
        play(opened(fault=fault, call=call, at=2 if call == "step" else 3))


@pytest.mark.parametrize("fault, call, text", STRUCTURE)
def test_wrong_structure_in_a_search_is_refused_and_called_one(fault, call, text):
    where = r"a planner's search \(environment group of Sleepy, group seed 5, at its step 0\) returned "
    with pytest.raises(EnvError, match=where + text):
        search(opened(fault=fault, call=call, at=2))


@pytest.mark.parametrize("call", ["initial", "step", "observe"])
def test_an_exception_in_any_call_is_a_fault_of_the_environment_with_its_own_traceback(call):
    columns = opened(fault="raise", call=call)
    with pytest.raises(EnvError, match=f"group seed 5.* raised in {call}: RuntimeError: Sleepy raised") as error:
        play(columns)
    assert isinstance(error.value.__cause__, RuntimeError)
    assert columns.busy_since is None


def test_an_exception_in_legal_is_a_fault_of_the_environment():
    columns = opened(fault="raise", call="legal")
    columns.reset()
    with pytest.raises(EnvError, match="a planner's search .* raised in legal: RuntimeError"):
        CoreModel(columns.core).legal(columns.states)


@pytest.mark.parametrize("answer", ["clip", "drop"])
def test_a_float64_observation_is_cast_with_one_warning(answer, caplog):
    class Double(Sleepy):
        def observe(self, states):
            return super().observe(states).astype(np.float64)

    columns = FunctionalVectorEnv(Double(), 3, 5, answer, "Double")
    with caplog.at_level(logging.WARNING, "packtrain"):
        outcomes = play(columns)
    assert {outcome.obs.dtype for outcome in outcomes} == {np.dtype(np.float32)}
    assert [outcome.obs[0, 0] for outcome in outcomes] == [0, 1, 2, 3, 4]
    (warning,) = caplog.messages
    assert re.search("dtype float64, space says float32: it is cast", warning)


@pytest.mark.parametrize("answer", ["clip", "drop"])
@pytest.mark.parametrize("fault, call, text", [case for case in STRUCTURE if case[0] != "float64_obs"])
def test_a_wrong_shape_is_refused_whatever_the_answer(answer, fault, call, text):
    with pytest.raises(EnvError, match=text):
        play(opened(answer, fault=fault, call=call))


def test_no_extras_are_no_fault():
    assert len(play(opened(fault="no_extras", at=2))) == 5


class Channels(Sleepy):
    reward_channels = ("true",)

    def __init__(self, extras):
        super().__init__()
        self._extras = extras

    def step(self, states, actions, rng):
        return *super().step(states, actions, rng)[:3], self._extras


@pytest.mark.parametrize(
    "extras, text",
    [
        ({}, r"no extras\['reward/true'\], which its reward_channels promise"),
        (None, r"no extras\['reward/true'\]"),
        ([], "extras of type list, which must be a dict"),
        ({"reward/true": np.ones(1)}, r"extras\['reward/true'\] of shape \(1,\), which must be \(3,\)"),
        ({"reward/true": np.ones(3), "solved": True}, r"extras\['solved'\] of shape \(\)"),
    ],
    ids=str,
)
def test_extras_are_checked(extras, text):
    with pytest.raises(EnvError, match=text):
        play(FunctionalVectorEnv(Channels(extras), 3, 5, "raise", "Channels"))


def test_states_of_another_number_are_refused():
    class Short(Sleepy):
        def step(self, states, actions, rng):
            after, *others = super().step(states, actions, rng)
            return {"count": after[:2]}, *others

    with pytest.raises(EnvError, match="returned states with 2 rows instead of 3"):
        play(FunctionalVectorEnv(Short(), 3, 5, "raise", "Short"))


# -- bad values in a search


def test_a_bad_reward_in_a_search_stops_by_default():
    with pytest.raises(EnvError, match="a planner's search .* returned a reward of nan; .*on_bad_value"):
        search(opened(fault="nan_reward", at=2))


def test_a_bad_reward_in_a_search_is_clipped():
    columns = opened("clip", fault="nan_reward", at=2)
    assert [rewards.tolist() for _, rewards, *_ in search(columns)] == [[1, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert columns.boundary.clipped == 1


def test_an_action_with_a_bad_reward_leads_nowhere_in_a_search_that_drops():
    """Mutations: the state goes on; it ends, so that a graph would take the state before for an end."""
    columns = opened("drop", fault="nan_reward", at=2, length=2)
    seen = search(columns, turns=2)
    assert [states.tolist() for states, *_ in seen] == [[1, 1, 1], [1, 2, 2]]
    assert seen[1][1].tolist() == [0, 1, 1] and seen[1][2].tolist() == [False, True, True]
    assert columns.boundary.unforeseen == 1 and columns.boundary.dropped == 0


def test_large_rewards_within_the_limit_pass_a_search():
    """Mutation: a limit on the sum of squares alone."""

    class Rich(Sleepy):
        def step(self, states, actions, rng):
            after, rewards, *others = super().step(states, actions, rng)
            return after, rewards * np.float32(9e17), *others

    assert search(FunctionalVectorEnv(Rich(), 3, 5, "raise", "Rich"))[0][1].tolist() == [np.float32(9e17)] * 3


@pytest.mark.parametrize("value", [1e30, -1e30, np.inf, -np.inf])
def test_rewards_beyond_the_limit_do_not_pass_a_search(value):
    """Also where two of them would cancel in a sum."""

    class Rich(Sleepy):
        def step(self, states, actions, rng):
            after, rewards, *others = super().step(states, actions, rng)
            return after, rewards * np.array([value, -value, 1], np.float32), *others

    with pytest.raises(EnvError, match="returned a reward of"):
        search(FunctionalVectorEnv(Rich(), 3, 5, "raise", "Rich"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -3.0])
@pytest.mark.parametrize("space", [Box(-1, 9, (2,)), Box(np.array([-1, 0], np.float32), 9.0)], ids=["even", "uneven"])
def test_bad_observations_in_a_search_are_refused_or_clipped(bad, space):
    class Odd(Sleepy):
        observation_space = space

        def observe(self, states):
            obs = super().observe(states)
            obs[1, 0] = bad if states[1] == 2 else obs[1, 0]
            return obs

    with pytest.raises(EnvError, match="a planner's search .* returned an observation with .* outside its space"):
        search(FunctionalVectorEnv(Odd(), 3, 5, "raise", "Odd"))
    columns = FunctionalVectorEnv(Odd(), 3, 5, "clip", "Odd")
    clipped = {np.inf: 9, -3.0: -1}.get(bad, 0)
    assert [obs[1, 0] for *_, obs in search(columns)] == [1, clipped, 3, 4]
    assert columns.boundary.clipped == 1


# -- what a watchdog sees


def test_calls_of_a_search_are_timed_and_named():
    """Mutation: a search that no watchdog sees."""
    seen = []

    class Watched(Sleepy):
        def step(self, states, actions, rng):
            seen.append((columns.busy_since, columns.describe_busy()))
            return super().step(states, actions, rng)

        def observe(self, states):
            seen.append((columns.busy_since, columns.describe_busy()))
            return super().observe(states)

    columns = FunctionalVectorEnv(Watched(), 3, 5, "raise", "Watched")
    search(columns, turns=1)
    (_, reset), (stepped, step), (observed, observe) = seen
    assert reset.startswith("environment 0 (Watched, group seed 5)")
    assert step == observe == "a planner's search (environment group of Watched, group seed 5, at its step 0)"
    assert stepped is not None and observed is not None and columns.busy_since is None
    play(columns, turns=1)
    assert seen[-1][1] == "environment 0 (Watched, group seed 5) at its step 1"


def test_a_core_that_plays_all_states_in_turn_is_timed_by_state():
    """Mutation: a batch of slow states taken for a hang."""

    class InTurn(Sleepy):
        busy_since = None

        def step(self, states, actions, rng):
            before = columns.busy_since
            self.busy_since = before + 7
            seen.append(columns.busy_since - before)
            return super().step(states, actions, rng)

    seen = []
    columns = FunctionalVectorEnv(InTurn(), 3, 5, "raise", "InTurn")
    play(columns, turns=1)
    assert seen == [7] and columns.busy_since is None


def test_a_first_reset_is_distinguished_from_a_step():
    seen = []

    class Watched(Sleepy):
        def initial(self, n, rng):
            seen.append(columns.starting)
            return super().initial(n, rng)

    columns = FunctionalVectorEnv(Watched(length=2), 3, 5, "raise", "Watched")
    play(columns, turns=3)
    assert seen == [True, False]


def test_what_else_a_core_has_is_still_there():
    class More(Sleepy):
        changing = ("count",)
        stochastic = True
        action_space = Discrete(2)

    core = FunctionalVectorEnv(More(), 3, 5, "raise", "More").core
    assert core.changing == ("count",) and core.stochastic and core.unwrapped.__class__ is More
    assert not hasattr(core, "landmarks")
