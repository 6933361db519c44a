"""Flat PUCB on arms whose values are known."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.cartpole import CartPole
from packtrain.envs.point_mass import PointMass
from packtrain.errors import ConfigError
from packtrain.planning.bandit import BanditAgent
from packtrain.planning.model import CoreModel, Stepped
from packtrain.planning.planner import Roots
from packtrain.planning.policy import SoftmaxAgent

ARMS = np.array([0.2, 1.0, 0.5, 0.9], np.float32)


class Arms:
    """An arm pays and ends; with `tail`, it leads to a state that pays `tail` once more and ends."""

    action_space = gym.spaces.Discrete(4)
    deterministic = True

    def __init__(self, pays=ARMS, tail=None, legal=None):
        self.pays, self.tail, self._legal, self.pulled = pays, tail, legal, []

    def step(self, states, actions, rng):
        first = states == 0
        if first.all():
            self.pulled.append(np.array(actions))
        rewards = np.where(first, self.pays[actions], self.tail or 0.0).astype(np.float32)
        ended = ~first | (self.tail is None)
        return Stepped(states + 1, rewards, ended, np.zeros(len(states), bool))
        yield

    def observe(self, states):
        return states[:, None].astype(np.float32)

    def legal(self, states):
        return None if self._legal is None else np.tile(self._legal, (len(states), 1))


def drive(generator, answer=None):
    try:
        request = next(generator)
        while True:
            request = generator.send(answer(request))
    except StopIteration as stop:
        return stop.value


def plan_of(agent, model, rows=1, answer=None, seed=0, listener=None, columns=None):
    columns = np.arange(rows) if columns is None else np.asarray(columns)
    states = np.zeros(len(columns), np.int64)
    planner = agent.build(model, 512, seed, listener)
    planner.begin(columns, 0)
    return drive(planner.plan(Roots(columns, states, model.observe(states))), answer)


def logits_of(*values):
    return lambda request: {"logits": np.tile(np.float32(values), (len(request.inputs), 1))}


@pytest.mark.parametrize("bonus_fn", ["pucb_bonus", "ucb_bonus"])
def test_counts_follow_the_formula(bonus_fn):
    """Against a twin written from the formula, arm by arm, from the first tie on.

    Mutations: √(1 + ΣN), N instead of 1 + N, a prior in ucb, a weight that is not applied.
    """
    agent = BanditAgent(n_rollouts=60, exploration_weight=0.7, bonus_fn=bonus_fn, rollout_agent=SoftmaxAgent())
    model, logits = Arms(), np.log([0.1, 0.2, 0.4, 0.3])
    plan = plan_of(agent, model, answer=logits_of(*logits))
    prior = np.exp(logits) if bonus_fn == "pucb_bonus" else np.ones(4)
    counts, quality = np.zeros(4), np.zeros(4)
    for pull in range(60):
        known = np.where(counts > 0, quality, quality[counts > 0].max() if pull else 0.0)
        scores = known + 0.7 * prior * np.sqrt(pull) / (1 + counts) if pull else np.exp(logits)
        arm = model.pulled[pull][0]
        assert scores[arm] == pytest.approx(scores.max()), "an arm with the largest score is pulled"
        counts[arm] += 1
        quality[arm] = ARMS[arm]
    np.testing.assert_array_equal(plan.extras["counts"][0], counts)
    np.testing.assert_allclose(plan.extras["qualities"][0], quality)
    np.testing.assert_allclose(plan.extras["value"][0], (counts * quality).sum() / 60, rtol=1e-6)
    np.testing.assert_allclose(plan.extras["action_histogram"][0], counts / 60)
    assert plan.action[0] == counts.argmax() == 1


def test_the_first_pull_is_the_priors_and_ties_are_chances():
    """Mutation: let the first pull go to action 0, since every bonus is 0."""
    model = Arms()
    plan_of(BanditAgent(n_rollouts=1, rollout_agent=SoftmaxAgent()), model, 5, logits_of(0.0, 0.0, 1.0, 0.0))
    np.testing.assert_array_equal(model.pulled[0], 2)
    model = Arms()
    plan_of(BanditAgent(n_rollouts=1), model, 200)
    assert (np.bincount(model.pulled[0]) > 25).all()


def test_every_arm_is_tried_whatever_the_scale_of_rewards():
    """Mutation: an initial quality of 0, under which the first arm that pays 100 is never left."""
    plan = plan_of(BanditAgent(n_rollouts=12, exploration_weight=0.06, bonus_fn="ucb_bonus"), Arms(100 * ARMS), 6)
    assert plan.extras["tried"].all()
    np.testing.assert_array_equal(plan.action, 1)
    greedy = BanditAgent(n_rollouts=12, exploration_weight=0.06, bonus_fn="ucb_bonus", initial_quality=0.0)
    stuck = plan_of(greedy, Arms(100 * ARMS), 6)
    np.testing.assert_array_equal(stuck.extras["tried"].sum(axis=1), 1)


def test_a_pull_is_its_reward_and_the_discounted_rest():
    """r + γ · mean of rollouts; 0 at an end. Mutation: leave out γ, or roll out beyond the end."""
    plan = plan_of(
        BanditAgent(n_rollouts=8, rollouts_per_pull=3, discount=0.5, exploration_weight=50.0), Arms(tail=4.0)
    )
    np.testing.assert_allclose(plan.extras["qualities"][0], ARMS + 0.5 * 4.0)
    np.testing.assert_array_equal(plan.extras["simulation_steps"], 8 * (1 + 3))


def test_bootstrapping_adds_the_value_of_truncated_rollouts():
    class Endless(Arms):
        def step(self, states, actions, rng):
            return (yield from super().step(states, actions, rng))._replace(terminated=np.zeros(len(states), bool))

    agent = BanditAgent(n_rollouts=4, rollout_time_limit=2, discount=0.5, estimate_fn="bootstrap_return_with_value")
    assert agent.heads(gym.spaces.Discrete(4)) == {"agent": {"value": 1}}
    plan = plan_of(agent, Endless(tail=1.0), answer=lambda request: {"value": np.full((len(request.inputs), 1), 8.0)})
    rest = 1 + 0.5 * 1 + 0.25 * 8
    tried = plan.extras["tried"][0]
    np.testing.assert_allclose(plan.extras["qualities"][0][tried], (ARMS + 0.5 * rest)[tried])


def test_noise_needs_no_policy_and_changes_the_prior():
    """A random rollout agent has a prior like any other, and the noise varies with the column."""
    agent = BanditAgent(n_rollouts=1, prior_noise=0.1, noise_weight=0.5)
    model = Arms()
    plan = plan_of(agent, model, 40)
    assert len(set(model.pulled[0])) == 4
    np.testing.assert_allclose(plan.extras["prior_entropy"], np.log(4), rtol=1e-6)
    assert (plan.extras["noisy_prior_entropy"] < np.log(4) - 0.05).all()
    assert len(np.unique(plan.extras["noisy_prior_entropy"])) == 40


def test_illegal_arms_are_never_pulled():
    model = Arms(legal=np.array([True, False, True, False]))
    for noise in (None, 0.03):
        model.pulled.clear()
        plan = plan_of(BanditAgent(n_rollouts=20, prior_noise=noise, exploration_weight=9.0), model, 30)
        assert set(np.concatenate(model.pulled)) == {0, 2}
        assert set(plan.action) <= {0, 2}


def test_temperature_draws_by_counts():
    """N^(1/T) with T = 1: the share of each action is its histogram; T = 0 takes the most pulled."""
    agent = BanditAgent(n_rollouts=20, temperature=1.0, bonus_fn="ucb_bonus")
    plan = plan_of(agent, Arms(), 500)
    share = np.bincount(plan.action, minlength=4) / 500
    np.testing.assert_allclose(share, plan.extras["action_histogram"].mean(axis=0), atol=0.06)
    assert np.isfinite(plan.extras["histogram_entropy"]).all() and share.min() > 0.05


def test_equal_counts_are_decided_by_quality():
    plan = plan_of(BanditAgent(n_rollouts=4, exploration_weight=1e6, bonus_fn="ucb_bonus"), Arms(), 20)
    np.testing.assert_array_equal(plan.extras["counts"], 1)
    np.testing.assert_array_equal(plan.action, 1)


def test_a_column_alone_plans_as_in_a_batch_and_leaves_states_alone():
    core = CartPole()
    model, states = CoreModel(core), core.initial(5, np.random.default_rng(3))
    before = states.copy()
    agent = BanditAgent(n_rollouts=12, rollout_time_limit=20, rollouts_per_pull=2, prior_noise=0.3, temperature=0.5)
    batch, alone = agent.build(model, 5, 1), agent.build(model, 5, 1)
    for _ in range(2):
        together = drive(batch.plan(Roots(np.arange(5), states, core.observe(states))))
        single = drive(alone.plan(Roots(np.array([3]), states[[3]], core.observe(states[[3]]))))
        for name, array in single.extras.items():
            np.testing.assert_array_equal(array[0], together.extras[name][3], err_msg=name)
        assert single.action[0] == together.action[3]
    np.testing.assert_array_equal(states, before)


def test_every_pull_is_a_pass():
    class Ear:
        begun = ended = steps = 0

        def pass_begin(self, columns):
            self.begun += 1

        def model_steps(self, steps):
            self.steps += len(steps.columns)

        def pass_end(self, columns):
            self.ended += 1

    ear = Ear()
    plan = plan_of(BanditAgent(n_rollouts=7), Arms(tail=1.0), 3, listener=ear)
    assert (ear.begun, ear.ended) == (7, 7)
    assert ear.steps == plan.extras["simulation_steps"].sum() == 3 * 7 * 2


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: BanditAgent(n_rollouts=0), "BanditAgent.n_rollouts = 0 must be at least 1"),
        (lambda: BanditAgent(rollouts_per_pull=0), "BanditAgent.rollouts_per_pull = 0 must be at least 1"),
        (lambda: BanditAgent(prior_noise=0.0), "BanditAgent.prior_noise = 0.0 must be above 0"),
        (lambda: BanditAgent(noise_weight=2.0), "BanditAgent.noise_weight = 2.0 must be from 0 to 1"),
        (lambda: BanditAgent(temperature=-1.0), "BanditAgent.temperature = -1.0 must be at least 0"),
        (lambda: BanditAgent().build(CoreModel(PointMass()), 1, 0), "BanditAgent plans over Discrete actions"),
    ],
)
def test_bad_budgets_and_spaces_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
