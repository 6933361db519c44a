"""Rollouts by hand: a counter whose reward is its own number and that ends on demand."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.cartpole import CartPole
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.point_mass import PointMass
from packtrain.planning.model import CoreModel, Stepped
from packtrain.planning.policy import EpsilonGreedyAgent, SoftmaxAgent
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.rollouts import Places, Uniform, estimate, open_loop, roll_out, uniform_actions
from packtrain.types import Request


class Counter:
    """A state is (steps left until the end, steps made); a step pays its number, counted from 1."""

    action_space = gym.spaces.Discrete(3)
    deterministic = True

    def __init__(self):
        self.batches, self.actions = [], []

    def step(self, states, actions, rng):
        assert (states[:, 0] > 0).all(), "nobody steps past the end"
        self.batches.append(len(states))
        self.actions.append(np.array(actions))
        states = states + [-1, 1]
        return Stepped(states, states[:, 1].astype(np.float32), states[:, 0] == 0, np.zeros(len(states), bool))
        yield

    def observe(self, states):
        return states.astype(np.float32)

    def legal(self, states):
        return None


def drive(generator, answer=None):
    requests = []
    try:
        request = next(generator)
        while True:
            requests.append(request)
            request = generator.send(answer(request))
    except StopIteration as stop:
        return stop.value, requests


def places(count, column=0):
    return Places(np.full(count, column), np.zeros(count, np.int64), np.arange(count))


def starts(*left):
    return np.array([[count, 0] for count in left])


def rolled(model, states, agent=None, answer=None, **options):
    options = {"limit": 4, "discount": 0.5, "seed": 3, "rng": np.random.default_rng(0), **options}
    return drive(roll_out(model, agent or Uniform(), states, places(len(states)), **options), answer)


def test_returns_lengths_and_batches_by_arithmetic():
    """Rollouts end by themselves, or at the limit, and those that ended are not stepped again.

    Mutations: discount the first reward, count a truncation as an end, keep finished rollouts in the batch.
    """
    model, states = Counter(), starts(1, 3, 9, 4)
    before = states.copy()
    rollouts, requests = rolled(model, states)
    want = [1, 1 + 0.5 * 2 + 0.25 * 3, 1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 4, 1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 4]
    np.testing.assert_allclose(rollouts.returns, want)
    np.testing.assert_array_equal(rollouts.lengths, [1, 3, 4, 4])
    np.testing.assert_array_equal(rollouts.terminated, [True, True, False, True])
    np.testing.assert_array_equal(rollouts.truncated_states, [[5, 4]])
    assert model.batches == [4, 3, 3, 2] and not requests
    np.testing.assert_array_equal(states, before)


def test_rollouts_stop_when_all_are_over():
    model = Counter()
    rolled(model, starts(1, 2), limit=50)
    assert model.batches == [2, 1]


def test_only_truncated_rollouts_are_bootstrapped_with_discount_to_their_length():
    """One request, for the last states of the truncated ones. Mutation: forget γ^length, or bootstrap at an end."""
    model = Counter()
    rollouts, _ = rolled(model, starts(1, 8, 3, 9))
    value = {(4, 4): 16.0, (5, 4): 32.0}

    def answer(request):
        assert request.network == "agent"
        return {"value": np.array([[value[tuple(map(int, row))]] for row in request.inputs], np.float32)}

    returns, requests = drive(estimate(model, rollouts, 0.5, "bootstrap_return_with_value"), answer)
    np.testing.assert_allclose(returns - rollouts.returns, [0, 0.5**4 * 16, 0, 0.5**4 * 32])
    assert len(requests) == 1 and len(requests[0].inputs) == 2
    plain, requests = drive(estimate(model, rollouts, 0.5, "truncated_return"))
    assert plain is rollouts.returns and not requests


def test_nothing_is_asked_where_all_have_ended():
    rollouts, _ = rolled(Counter(), starts(1, 2))
    _, requests = drive(estimate(Counter(), rollouts, 1.0, "bootstrap_return_with_value"))
    assert requests == []


def test_first_actions_are_taken_and_then_the_agents():
    model = Counter()
    rolled(model, starts(*[40] * 300), first=np.full(300, 2), limit=40)
    np.testing.assert_array_equal(model.actions[0], 2)
    later = np.concatenate(model.actions[1:])
    np.testing.assert_allclose(np.bincount(later) / len(later), 1 / 3, atol=0.02)
    assert len({tuple(actions) for actions in np.stack(model.actions[1:]).T}) == 300, "every rollout is its own"
    assert len({tuple(actions) for actions in model.actions[1:]}) == 39, "and every step, across blocks"


def test_a_policy_agent_is_asked_once_a_step_for_all():
    """The logits of a greedy agent lead; a softmax agent's entropies are summed over its choices."""

    def answer(request: Request):
        logits = np.zeros((len(request.inputs), 3), np.float32)
        logits[np.arange(len(logits)), request.inputs[:, 1].astype(int) % 3] = 1.0  # by steps made
        return {"logits": logits}

    model = Counter()
    rollouts, requests = rolled(model, starts(2, 4), EpsilonGreedyAgent(epsilon=0.0), answer)
    assert [len(request.inputs) for request in requests] == [2, 2, 1, 1]
    assert [actions.tolist() for actions in model.actions] == [[0, 0], [1, 1], [2], [0]]
    np.testing.assert_allclose(rollouts.entropy, 0, atol=1e-9)
    flat = lambda request: {"logits": np.zeros((len(request.inputs), 3), np.float32)}  # noqa: E731
    rollouts, _ = rolled(Counter(), starts(2, 4), SoftmaxAgent(), flat)
    np.testing.assert_allclose(rollouts.entropy, np.log(3) * np.array([2, 4]), rtol=1e-6)


@pytest.mark.parametrize("agent", [Uniform(), SoftmaxAgent()], ids=["uniform", "softmax"])
def test_a_rollout_alone_is_the_same_as_among_others(agent):
    """Mutation: draw noise by place in the batch instead of by the rollout's own number."""
    core = CartPole()
    model, states = CoreModel(core), core.initial(30, np.random.default_rng(1))
    flat = lambda request: {"logits": np.zeros((len(request.inputs), 2), np.float32)}  # noqa: E731
    options = {"limit": 60, "discount": 0.99, "seed": 5, "rng": np.random.default_rng(0)}
    where = Places(np.arange(30) % 4, np.arange(30) // 4, np.arange(30))
    together, _ = drive(roll_out(model, agent, states, where, **options), flat)
    assert len(np.unique(together.lengths)) > 10
    for index in (0, 13, 29):
        own = Places(*(place[[index]] for place in where))
        alone, _ = drive(roll_out(model, agent, states[[index]], own, **options), flat)
        assert alone.returns[0] == together.returns[index] and alone.lengths[0] == together.lengths[index]


def test_uniform_actions_are_legal_and_even():
    noise = (np.arange(1200) + 0.5) / 1200
    np.testing.assert_array_equal(np.bincount(uniform_actions(noise, 3, None)), [400, 400, 400])
    legal = np.tile([True, False, True, False], (1200, 1))
    np.testing.assert_array_equal(np.bincount(uniform_actions(noise, 4, legal)), [600, 0, 600])
    np.testing.assert_array_equal(np.bincount(uniform_actions(noise, 4, legal & False)), [300] * 4)


@pytest.mark.parametrize("agent, legal", [(Uniform(), True), (RandomAgent(), False), (RandomAgent(True), True)])
def test_rollouts_take_legal_moves_only_where_they_should(agent, legal):
    core = Hanoi(disks=3)
    taken = []

    class Watched(CoreModel):
        def step(self, states, actions, rng):
            taken.append(core.legal(states)[np.arange(len(states)), actions])
            return (yield from super().step(states, actions, rng))

    rolled(Watched(core), core.initial(40, np.random.default_rng(0)), agent, limit=20)
    assert np.concatenate(taken).all() == legal


class Pusher:
    """States count pushes; a push of 1 or more ends. `rollout` tells the same story in one call."""

    action_space = gym.spaces.Box(-9.0, 9.0, (1,))
    max_steps = None

    def step(self, states, actions, rng):
        assert (states < 1).all(), "nobody steps past the end"
        return states + actions, actions[:, 0].astype(np.float32), actions[:, 0] >= 1, {}


class NativePusher(Pusher):
    def rollout(self, states, actions):
        after = states[:, None] + actions.cumsum(axis=1)
        return after, actions[:, :, 0].astype(np.float32), actions[:, :, 0] >= 1


class Ear:
    def __init__(self):
        self.steps = []

    def model_steps(self, steps):
        self.steps.append(steps)


@pytest.mark.parametrize("core", [Pusher(), NativePusher()], ids=["stepped", "native"])
def test_open_loop_adds_the_value_of_last_states_that_are_no_ends(core, monkeypatch):
    """Both ways; γ^3 times the value. Mutations: a value beyond an end; of the state before the last; γ^2."""
    actions = np.array([[0.5, -2.0, 0.25], [0.5, 1.0, 64.0], [3.0, 64.0, 64.0]])[:, :, None]
    monkeypatch.setattr(type(core), "observe", lambda self, states: states.astype(np.float32), raising=False)
    given = CoreModel(core), np.zeros((3, 1)), np.arange(3), actions
    (plain, _), _ = drive(open_loop(*given, discount=0.5, rng=np.random.default_rng(0)))
    rated = open_loop(*given, discount=0.5, rng=np.random.default_rng(0), value_network="critic")
    request = next(rated)
    last = np.asarray(request.inputs)
    assert request.network == "critic" and len(last) == 1, "of three sequences one does not end"
    with pytest.raises(StopIteration) as end:
        rated.send({"value": np.array([[8.0]], np.float32)})
    np.testing.assert_allclose(end.value.value[0] - plain, [0.5**3 * 8, 0, 0])
    np.testing.assert_allclose(last.ravel(), [-1.25])


@pytest.mark.parametrize("core", [Pusher(), NativePusher()], ids=["stepped", "native"])
def test_open_loop_counts_rewards_up_to_the_end(core):
    """Both ways. Mutation: count rewards after the end, or not the one that ends."""
    actions = np.array([[0.5, -2.0, 0.25], [0.5, 1.0, 64.0], [3.0, 64.0, 64.0]])[:, :, None]
    states, ear = np.zeros((3, 1)), Ear()
    (returns, steps), _ = drive(
        open_loop(
            CoreModel(core),
            states,
            np.array([4, 5, 6]),
            actions,
            discount=0.5,
            rng=np.random.default_rng(0),
            listener=ear,
        )
    )
    np.testing.assert_allclose(returns, [0.5 - 1.0 + 0.0625, 0.5 + 0.5, 3.0])
    np.testing.assert_array_equal(steps, [3, 2, 1])
    assert [told.columns.tolist() for told in ear.steps] == [[4, 5, 6], [4, 5], [4]]
    assert ear.steps[1].states.ravel().tolist() == [-1.5, 1.5] and ear.steps[1].terminated.tolist() == [False, True]


def test_open_loop_is_the_core_step_by_step():
    core, rng = PointMass(), np.random.default_rng(2)
    states, actions = core.initial(6, rng), rng.uniform(-1, 1, (6, 9, 2)).astype(np.float32)
    (returns, _), _ = drive(open_loop(CoreModel(core), states, np.arange(6), actions, discount=0.9, rng=rng))
    want = np.zeros(6)
    for time in range(9):
        states, rewards, _, _ = core.step(states, actions[:, time], rng)
        want += 0.9**time * rewards
    np.testing.assert_allclose(returns, want, rtol=1e-6)
