"""Random and policy agents, and the distributions they act by."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.cartpole import CartPole
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.point_mass import PointMass
from packtrain.errors import ConfigError
from packtrain.planning.model import CoreModel
from packtrain.planning.planner import Roots
from packtrain.planning.policy import (
    LOG_OF_ZERO,
    EpsilonGreedyAgent,
    SoftmaxAgent,
    categorical,
    dirichlet,
    epsilon_greedy,
    normals,
)
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.schedules import LinearAnnealing, RsqrtAnnealing

LOGITS = np.array([0.0, 2.0, -1.0, 1.0, 0.5, 0.0], np.float32)  # of Hanoi's six moves
DRAWS = 4000


class FreeHanoi:
    """Hanoi's actions with nothing said about what is legal."""

    action_space = gym.spaces.Discrete(6)
    deterministic = True

    def legal(self, states):
        return None

    def observe(self, states):
        return states


def roots_of(columns, obs=None):
    columns = np.asarray(columns)
    return Roots(columns, np.zeros((len(columns), 3), np.uint8), np.zeros(len(columns)) if obs is None else obs)


def answered(generator, **heads):
    """Drive a plan, answering each request with the same heads [A] for every row."""
    requests = []
    try:
        request = next(generator)
        while True:
            requests.append(request)
            rows = len(request.inputs)
            request = generator.send({head: np.tile(value, (rows, 1)) for head, value in heads.items()})
    except StopIteration as stop:
        return stop.value, requests


def draw(agent, decisions=20, columns=DRAWS // 20, **heads):
    planner = agent.build(FreeHanoi(), columns, seed=1)
    planner.begin(np.arange(columns), 0)
    plans = [answered(planner.plan(roots_of(range(columns))), **heads)[0] for _ in range(decisions)]
    return np.concatenate([plan.action for plan in plans]), plans[0].extras


def test_heads_with_and_without_a_critic():
    space = gym.spaces.Discrete(6)
    for agent in (SoftmaxAgent, EpsilonGreedyAgent):
        assert agent().heads(space) == {"agent": {"logits": 6}}
        assert agent(with_critic=True).heads(space) == {"agent": {"logits": 6, "value": 1}}
    assert RandomAgent().heads(space) == {}


@pytest.mark.parametrize(
    "agent",
    [SoftmaxAgent(), SoftmaxAgent(temperature=0.5), EpsilonGreedyAgent(epsilon=0.3), EpsilonGreedyAgent(epsilon=0.0)],
    ids=repr,
)
def test_what_is_reported_is_what_is_drawn(agent):
    """The most common action is the arg-max, and frequencies agree with prob, logp and entropy.

    Mutations: forget the temperature in the sample, add ε twice, noise shared by actions or decisions.
    """
    actions, extras = draw(agent, logits=LOGITS)
    share = np.bincount(actions, minlength=6) / len(actions)
    assert share.argmax() == LOGITS.argmax()
    prob, logp, entropy = (extras[name][0] for name in ("prob", "logp", "entropy"))
    np.testing.assert_allclose(share, prob, atol=0.03)  # four deviations of a share of 4000
    np.testing.assert_allclose(np.maximum(np.log(np.maximum(prob, 1e-45)), LOG_OF_ZERO), logp, rtol=1e-4)
    assert entropy == pytest.approx(-(prob * logp).sum(), abs=1e-5)
    for array in extras.values():
        assert array.dtype == np.float32 and np.isfinite(array).all()
        assert (array == array[:1]).all(), "the same logits give the same numbers in every column"


def test_softmax_by_arithmetic():
    now = categorical(np.array([[0.0, np.log(3.0) * 2]]), temperature=2.0)
    np.testing.assert_allclose(now.prob, [[0.25, 0.75]])
    np.testing.assert_allclose(now.entropy, [0.25 * np.log(4) + 0.75 * np.log(4 / 3)])


def test_extreme_logits_stay_finite():
    with np.errstate(all="raise", under="ignore"):
        for now in (categorical(np.array([[1e4, -1e4, 0.0]]), 1e-3), epsilon_greedy(np.array([[1e4, -1e4, 0.0]]), 0.0)):
            np.testing.assert_array_equal(now.prob, [[1.0, 0.0, 0.0]])
            assert now.entropy[0] == 0 and np.isfinite(now.logp).all()


def test_epsilon_greedy_by_arithmetic():
    now = epsilon_greedy(np.array([[1.0, 3.0, 3.0, 0.0]]), 0.2)
    np.testing.assert_allclose(now.prob, [[0.05, 0.85, 0.05, 0.05]])


def test_colder_is_greedier():
    shares = [(draw(SoftmaxAgent(temperature=t), logits=LOGITS)[0] == 1).mean() for t in (4.0, 1.0, 0.2)]
    assert shares[0] < shares[1] < shares[2]
    shares = [(draw(EpsilonGreedyAgent(epsilon=e), logits=LOGITS)[0] == 1).mean() for e in (0.9, 0.3, 0.0)]
    assert shares[0] < shares[1] < shares[2] == 1


def test_a_critic_is_asked_in_the_same_request():
    planner = SoftmaxAgent(with_critic=True).build(FreeHanoi(), 3, seed=0)
    plan, requests = answered(planner.plan(roots_of([0, 2])), logits=LOGITS, value=[7.0])
    assert [request.network for request in requests] == ["agent"]
    np.testing.assert_array_equal(plan.extras["value"], [7.0, 7.0])
    np.testing.assert_array_equal(plan.extras["logits"], [LOGITS, LOGITS])


@pytest.mark.parametrize(
    "agent, epoch, want",
    [
        (SoftmaxAgent(annealing=LinearAnnealing(2.0, 1.0, 10)), 5, SoftmaxAgent(temperature=1.5)),
        (EpsilonGreedyAgent(annealing=RsqrtAnnealing(0.8, 1.0)), 3, EpsilonGreedyAgent(epsilon=0.4)),
    ],
)
def test_annealing_follows_its_schedule(agent, epoch, want):
    planner = agent.build(FreeHanoi(), 1, seed=0)
    planner.begin(np.array([0]), epoch)
    plan, _ = answered(planner.plan(roots_of([0])), logits=LOGITS)
    np.testing.assert_allclose(plan.extras["prob"][0], want.distribution(LOGITS[None], None).prob[0], rtol=1e-6)


@pytest.mark.parametrize("agent", [SoftmaxAgent(), EpsilonGreedyAgent(epsilon=0.8), RandomAgent()], ids=repr)
def test_a_column_acts_alone_as_in_a_batch(agent):
    """Mutation: draw from a generator that all columns share."""
    batch = agent.build(FreeHanoi(), 8, seed=3)
    alone = agent.build(FreeHanoi(), 8, seed=3)
    for _ in range(20):
        together, _ = answered(batch.plan(roots_of(range(8))), logits=LOGITS)
        single, _ = answered(alone.plan(roots_of([5])), logits=LOGITS)
        assert together.action[5] == single.action[0]
    assert len(set(together.action)) > 1


def test_illegal_moves_have_no_probability():
    """From the first peg of Hanoi only moves 0 and 1 are legal. A state in which nothing is legal takes anything."""
    core = Hanoi(disks=3)
    model, states = CoreModel(core), core.initial(200, np.random.default_rng(0))
    roots = Roots(np.arange(200), states, core.observe(states))
    for agent in (SoftmaxAgent(temperature=9.0), EpsilonGreedyAgent(epsilon=1.0), RandomAgent(legal_only=True)):
        plan, _ = answered(agent.build(model, 200, seed=0).plan(roots), logits=LOGITS)
        assert set(plan.action) == {0, 1}
    plan, _ = answered(RandomAgent().build(model, 200, seed=0).plan(roots))
    assert set(plan.action) == set(range(6)), "the random agent shows models what illegal moves do"
    for now in (
        categorical(LOGITS[None], legal=np.zeros((1, 6), bool)),
        epsilon_greedy(LOGITS[None], 0.5, np.zeros((1, 6), bool)),
    ):
        assert now.prob.sum() == pytest.approx(1) and np.isfinite(now.logp).all()


def test_the_random_agent_is_uniform_in_both_kinds_of_space():
    actions, extras = draw(RandomAgent())
    np.testing.assert_allclose(np.bincount(actions, minlength=6) / DRAWS, 1 / 6, atol=0.03)
    assert actions.dtype == np.int64 and extras == {}
    planner = RandomAgent().build(CoreModel(PointMass(dimensions=3)), DRAWS, seed=0)
    plan, requests = answered(planner.plan(roots_of(range(DRAWS))))
    assert plan.action.shape == (DRAWS, 3) and plan.action.dtype == np.float32 and not requests
    share, _ = np.histogram(plan.action, 10, (-1, 1))
    np.testing.assert_allclose(share / plan.action.size, 0.1, atol=0.02)


@pytest.mark.parametrize("alpha", [0.03, 0.5, 1.0, 4.0])
def test_dirichlet_has_the_moments_it_should(alpha):
    """Mean 1/K, variance (1/K)(1 − 1/K) / (Kα + 1). Mutation: leave out U^(1/α), or redraw what was accepted."""
    samples = dirichlet(alpha, 4, 5, np.arange(5000), 7)
    assert samples.shape == (5000, 4) and (samples >= 0).all()
    np.testing.assert_allclose(samples.sum(axis=1), 1)
    np.testing.assert_allclose(samples.mean(axis=0), 0.25, atol=0.03)
    np.testing.assert_allclose(samples.var(axis=0), 0.1875 / (4 * alpha + 1), rtol=0.12)
    np.testing.assert_array_equal(dirichlet(alpha, 4, 5, np.arange(9, 10), 7), samples[9:10])


def test_normals_are_normal():
    numbers = normals(3, np.arange(100)[:, None], np.arange(200))
    assert abs(numbers.mean()) < 0.02 and abs(numbers.std() - 1) < 0.02
    assert abs((np.abs(numbers) < 1).mean() - 0.6827) < 0.01 and abs((numbers**4).mean() - 3) < 0.2


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SoftmaxAgent(temperature=0.0), "SoftmaxAgent.temperature = 0.0 must be above 0"),
        (lambda: EpsilonGreedyAgent(epsilon=1.5), "EpsilonGreedyAgent.epsilon = 1.5 must be from 0 to 1"),
        (lambda: SoftmaxAgent().build(CoreModel(PointMass()), 1, 0), "SoftmaxAgent plans over Discrete actions"),
        (lambda: RandomAgent(legal_only=True).build(CoreModel(PointMass()), 1, 0), "no meaning in a Box"),
        (lambda: EpsilonGreedyAgent().heads(gym.spaces.Discrete(3, start=1)), "count from 0"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_cartpole_can_be_played():
    """The agents run over a real core, and the roots are left alone."""
    core = CartPole()
    states = core.initial(4, np.random.default_rng(0))
    before, roots = states.copy(), Roots(np.arange(4), states, core.observe(states))
    answered(SoftmaxAgent().build(CoreModel(core), 4, 0).plan(roots), logits=[0.0, 1.0])
    np.testing.assert_array_equal(states, before)
