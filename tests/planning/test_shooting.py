"""Random shooting on hand-made bandits, on CartPole, and alone as in a batch."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.cartpole import CartPole
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.point_mass import PointMass
from packtrain.errors import ConfigError
from packtrain.planning import shooting
from packtrain.planning.model import CoreModel, Stepped
from packtrain.planning.planner import Roots
from packtrain.planning.policy import EpsilonGreedyAgent, SoftmaxAgent
from packtrain.planning.schedules import LinearAnnealing
from packtrain.planning.shooting import ShootingAgent, aggregate


class Ladder:
    """Action 0 pays 1 a step; action 1 pays 0 once, then 3 for a second 1 and −4 for a 0, and ends."""

    action_space = gym.spaces.Discrete(2)
    deterministic = True

    def step(self, states, actions, rng):
        risky = np.where(actions == 1, 3.0, -4.0)
        rewards = np.where(states == 1, risky, np.where(actions == 0, 1.0, 0.0)).astype(np.float32)
        ended = states == 1
        after = np.where(ended, 2, np.where((states == 0) & (actions == 1), 1, 3))
        return Stepped(after, rewards, ended | (states == 3), np.zeros(len(states), bool))
        yield

    def observe(self, states):
        return states[:, None].astype(np.float32)

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


def plan_of(agent, model, states, columns=None, answer=None, seed=0, listener=None):
    columns = np.arange(len(states)) if columns is None else np.asarray(columns)
    planner = agent.build(model, 64, seed, listener)
    planner.begin(columns, 0)
    return drive(planner.plan(Roots(columns, states, model.observe(states))), answer)


def cartpole(columns, seed=0):
    core = CartPole()
    return core, CoreModel(core), core.initial(columns, np.random.default_rng(seed))


def test_mean_and_maximum_choose_differently():
    """From state 0: action 0 gives 1 or 2; action 1 gives 3 or −4. Mutation: swap the two."""
    options = {"n_rollouts": 64, "rollout_time_limit": 2}
    careful, _ = plan_of(ShootingAgent(**options), Ladder(), np.zeros(5, np.int64))
    daring, _ = plan_of(ShootingAgent(**options, aggregate_fn="max"), Ladder(), np.zeros(5, np.int64))
    np.testing.assert_array_equal(careful.action, 0)
    np.testing.assert_array_equal(daring.action, 1)
    np.testing.assert_array_equal(daring.extras["qualities"], [[2.0, 3.0]] * 5)
    np.testing.assert_array_equal(careful.extras["action_histogram"], [[1.0, 0.0]] * 5)
    assert (careful.extras["qualities"][:, 1] < 1).all()


def test_aggregate_by_arithmetic():
    first, returns = np.array([[0, 2, 0], [1, 1, 1]]), np.array([[1.0, -5.0, 4.0], [7.0, 8.0, 12.0]])
    mean, tried = aggregate(first, returns, 3, "mean")
    np.testing.assert_array_equal(tried, [[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(mean, [[2.5, -np.inf, -5.0], [-np.inf, 9.0, -np.inf]])
    np.testing.assert_array_equal(aggregate(first, returns, 3, "max")[0][0], [4.0, -np.inf, -5.0])


def test_what_is_reported():
    core, model, states = cartpole(3)
    before = states.copy()
    plan, requests = plan_of(ShootingAgent(n_rollouts=40, rollout_time_limit=15), model, states)
    extras = plan.extras
    assert not requests and plan.action.shape == (3,) and plan.action.dtype == np.int64
    np.testing.assert_array_equal(extras["action_histogram"], np.eye(2, dtype=np.float32)[plan.action])
    np.testing.assert_array_equal(extras["qualities"].argmax(axis=1), plan.action)
    assert (extras["simulation_value_max"] <= 15).all() and (extras["simulation_value_min"] >= 1).all()
    np.testing.assert_allclose(extras["value"], extras["simulation_length_mean"])  # a reward of 1 a step
    np.testing.assert_allclose(extras["simulation_steps"], 40 * extras["simulation_length_mean"], rtol=1e-6)
    assert ((extras["simulation_terminated"] >= 0) & (extras["simulation_terminated"] < 1)).all()
    assert {array.dtype for array in extras.values()} <= {np.dtype(np.float32), np.dtype(np.int64), np.dtype(bool)}
    np.testing.assert_array_equal(states, before)


def test_untried_actions_are_never_chosen():
    """One rollout tries one action; the others have quality 0, which is more than the −4 it got."""
    plan, _ = plan_of(ShootingAgent(n_rollouts=1, rollout_time_limit=1), Ladder(), np.ones(40, np.int64))
    tried, rows = plan.extras["tried"], np.arange(40)
    np.testing.assert_array_equal(tried.sum(axis=1), 1)
    assert tried[rows, plan.action].all() and set(plan.action) == {0, 1}
    assert (plan.extras["qualities"][~tried] == 0).all()


def test_stratified_first_actions_are_even():
    """Counts differ by one at most, and the surplus is not always action 0's. Negative control: without, they vary."""
    seen = []

    class Watched(CoreModel):
        def step(self, states, actions, rng):
            seen.append(actions)
            return (yield from super().step(states, actions, rng))

    core = Hanoi(disks=3)
    core.legal = lambda states: np.tile([True, True, False, True, True, False], (len(states), 1))
    states = core.initial(12, np.random.default_rng(0))
    for stratified in (True, False):
        seen.clear()
        plan_of(ShootingAgent(n_rollouts=10, rollout_time_limit=1, stratified=stratified), Watched(core), states)
        counts = np.array([np.bincount(row, minlength=6) for row in seen[0].reshape(12, 10)])
        assert (counts[:, [2, 5]] == 0).all()
        spread = np.ptp(counts[:, [0, 1, 3, 4]], axis=1)
        assert (spread.max() <= 1) == stratified
    assert len(np.unique(counts, axis=0)) > 1


@pytest.mark.parametrize(
    "agent",
    [
        ShootingAgent(n_rollouts=30, rollout_time_limit=25),
        ShootingAgent(n_rollouts=30, rollout_time_limit=25, stratified=True, aggregate_fn="max"),
        ShootingAgent(n_rollouts=10, rollout_time_limit=8, rollout_agent=SoftmaxAgent(temperature=0.5)),
    ],
    ids=["plain", "stratified", "softmax"],
)
def test_a_column_alone_plans_as_in_a_batch(agent):
    """Two decisions in a row. Mutation: draw by place in the batch."""
    core, model, states = cartpole(6)

    def answer(request):
        return {"logits": np.stack([request.inputs[:, 2], -request.inputs[:, 3]], axis=1)}

    batch, alone = agent.build(model, 6, 7), agent.build(model, 6, 7)
    for column in (2, 3):  # a decision of column 2 alone comes before one of all
        drive(batch.plan(Roots(np.array([2]), states[[2]], model.observe(states[[2]]))), answer)
        drive(alone.plan(Roots(np.array([2]), states[[2]], model.observe(states[[2]]))), answer)
        together, _ = drive(batch.plan(Roots(np.arange(6), states, model.observe(states))), answer)
        single, _ = drive(alone.plan(Roots(np.array([2]), states[[2]], model.observe(states[[2]]))), answer)
        for name, array in single.extras.items():
            np.testing.assert_array_equal(array[0], together.extras[name][2], err_msg=f"{name} {column}")
        assert single.action[0] == together.action[2]


class Ear:
    def __init__(self):
        self.told, self.steps = [], 0

    def pass_begin(self, columns):
        self.told.append("begin")

    def model_steps(self, steps):
        self.told.append("steps")
        self.steps += len(steps.columns)
        assert len(steps.actions) == len(steps.states) == len(steps.rewards) == len(steps.columns)

    def pass_end(self, columns):
        self.told.append("end")


def test_batches_of_rollouts_change_nothing_and_are_reported(monkeypatch):
    """ceil(10 / 3) batches, and the same plan as in one. Mutation: number rollouts within a batch."""
    core, model, states = cartpole(3)
    agent = ShootingAgent(n_rollouts=10, rollout_time_limit=30, stratified=True)
    whole, _ = plan_of(agent, model, states)
    monkeypatch.setattr(shooting, "CHUNK", 9)  # three rollouts for each of three columns
    ear = Ear()
    parts, _ = plan_of(agent, model, states, listener=ear)
    for name, array in whole.extras.items():
        np.testing.assert_array_equal(array, parts.extras[name])
    assert ear.told.count("begin") == ear.told.count("end") == 4
    assert ear.steps == parts.extras["simulation_steps"].sum()


def test_bootstrapping_sees_what_lies_beyond_the_limit():
    """After one step CartPole has paid 1 whatever was done; a value that likes the left makes the difference."""
    core, model, states = cartpole(5)

    def answer(request):
        return {"value": -100 * request.inputs[:, 1:2]}  # cart velocity

    agent = ShootingAgent(
        n_rollouts=8, rollout_time_limit=1, stratified=True, estimate_fn="bootstrap_return_with_value", discount=0.5
    )
    assert agent.heads(core.action_space) == {"agent": {"value": 1}}
    plan, requests = plan_of(agent, model, states, answer=answer)
    np.testing.assert_array_equal(plan.action, 0)
    assert len(requests) == 1 and len(requests[0].inputs) == 40
    after, _, _, _ = core.step(states, np.zeros(5, int), np.random.default_rng(0))
    want = 1 + 0.5 * answer(type(requests[0])("agent", core.observe(after)))["value"][:, 0]
    np.testing.assert_allclose(plan.extras["qualities"][:, 0], want, rtol=1e-5)


def test_a_policy_sends_one_request_for_the_roots_and_reports_its_prior():
    core, model, states = cartpole(4)

    def answer(request):
        rows = len(request.inputs)
        return {"logits": np.tile(np.float32([0.0, 50.0]), (rows, 1)), "value": np.full((rows, 1), 3.0, np.float32)}

    agent = ShootingAgent(n_rollouts=6, rollout_time_limit=3, rollout_agent=SoftmaxAgent(with_critic=True))
    assert agent.heads(core.action_space) == {"agent": {"logits": 2, "value": 1}}
    plan, requests = plan_of(agent, model, states, answer=answer)
    assert [len(request.inputs) for request in requests] == [4, 24, 24]
    np.testing.assert_array_equal(plan.action, 1)  # nothing else was tried
    np.testing.assert_array_equal(plan.extras["network_value"], 3.0)
    np.testing.assert_array_equal(plan.extras["network_logits"], [[0.0, 50.0]] * 4)
    np.testing.assert_allclose(plan.extras["simulation_entropy"], 0, atol=1e-6)
    flat = lambda request: {"logits": np.zeros((len(request.inputs), 2), np.float32)}  # noqa: E731
    even = ShootingAgent(n_rollouts=6, rollout_time_limit=3, rollout_agent=EpsilonGreedyAgent(epsilon=1.0))
    plan, _ = plan_of(even, model, states, answer=flat)
    np.testing.assert_allclose(plan.extras["simulation_entropy"], np.log(2), rtol=1e-6)


def test_schedules_reach_the_budget_and_the_rollout_agent():
    core, model, states = cartpole(1)
    line = LinearAnnealing(8.0, 2.0, 3)
    agent = ShootingAgent(rollout_time_limit=1, parameter_schedules={"n_rollouts": line})
    planner = agent.build(model, 1, 0)
    for epoch, rollouts in ((0, 8), (1, 6), (3, 2), (9, 2)):
        planner.begin(np.array([0]), epoch)
        plan, _ = drive(planner.plan(Roots(np.array([0]), states, model.observe(states))))
        assert plan.extras["simulation_steps"][0] == rollouts


def test_shooting_balances_the_pole():
    """50 rollouts of 15 steps keep 4 poles up for 250 steps; random actions do for about 22."""
    core, model, states = cartpole(4, seed=1)
    planner = ShootingAgent(n_rollouts=50, rollout_time_limit=15, stratified=True).build(model, 4, 1)
    planner.begin(np.arange(4), 0)
    fallen = np.zeros(4, bool)
    for _ in range(250):
        plan, _ = drive(planner.plan(Roots(np.arange(4), states, model.observe(states))))
        states, _, terminated, _ = core.step(states, plan.action, np.random.default_rng(0))
        fallen |= terminated
    assert not fallen.any()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ShootingAgent(n_rollouts=0), "ShootingAgent.n_rollouts = 0 must be at least 1"),
        (lambda: ShootingAgent(rollout_time_limit=0), "ShootingAgent.rollout_time_limit = 0 must be at least 1"),
        (lambda: ShootingAgent(discount=1.5), "ShootingAgent.discount = 1.5 must be from 0 to 1"),
        (lambda: ShootingAgent(estimate_fn="guess"), "ShootingAgent.estimate_fn = 'guess' is not one of"),
        (lambda: ShootingAgent(rollout_agent="random"), "ShootingAgent.rollout_agent = 'random' is not"),
        (lambda: ShootingAgent(parameter_schedules={"rollouts": LinearAnnealing(2, 1, 1)}), "no parameter 'rollouts'"),
        (lambda: ShootingAgent().build(CoreModel(PointMass()), 1, 0), "ShootingAgent plans over Discrete actions"),
    ],
)
def test_bad_budgets_and_spaces_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
