"""Optimisers of action sequences by arithmetic, and planners over continuous actions on a point mass."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.hanoi import Hanoi
from packtrain.envs.point_mass import PointMass
from packtrain.envs.stream import ActionScale
from packtrain.errors import ConfigError
from packtrain.planning import continuous_shooting
from packtrain.planning import trajectory_optimisers as optimise
from packtrain.planning.continuous_shooting import CEMAgent, ContinuousShootingAgent, MPPIAgent
from packtrain.planning.model import CoreModel
from packtrain.planning.planner import Roots
from packtrain.planning.rollouts import follow_policy
from packtrain.planning.schedules import LinearAnnealing

AGENTS = [
    ContinuousShootingAgent(n_rollouts=40, horizon=8),
    CEMAgent(horizon=8, population=20, elites=4, iterations=2, keep_elites=2),
    CEMAgent(horizon=8, population=20, elites=4, iterations=2, keep_elites=0, execute="mean", noise_correlation=0.0),
    MPPIAgent(horizon=8, population=30, iterations=2, temperature=0.1),
]
NAMES = ["uniform", "cem", "cem-mean", "mppi"]


class Target:
    """Pays −(action − target)² in every dimension and step; bounds differ by dimension."""

    action_space = gym.spaces.Box(np.array([[-1.0, 0.0]]), np.array([[3.0, 10.0]]), dtype=np.float64)
    observation_space = gym.spaces.Box(-1, 1, (1,))
    max_steps = None
    target = np.array([[2.0, 8.0]])

    def __init__(self):
        self.seen = []

    def step(self, states, actions, rng):
        assert actions.shape[1:] == (1, 2)
        self.seen.append(actions)
        rewards = -np.square(actions - self.target).sum(axis=(1, 2))
        return states + 1, rewards.astype(np.float32), np.zeros(len(states), bool), {}

    def observe(self, states):
        return states[:, None].astype(np.float32)


def drive(generator):
    try:
        next(generator)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("these planners ask nothing")


def roots_of(core, states, columns=None):
    count = len(core.observe(states))
    return Roots(np.arange(count) if columns is None else np.asarray(columns), states, core.observe(states))


def test_elites_are_the_best_of_each_problem():
    sequences = np.arange(2 * 4 * 1 * 1).reshape(2, 4, 1, 1)
    scores = optimise.proper_scores(np.array([[3.0, np.nan, 5.0, 4.0], [0.0, -1.0, -np.inf, 2.0]]))
    best, top = optimise.elites(sequences, scores, 2)
    np.testing.assert_array_equal(best[..., 0, 0], [[2, 3], [7, 4]])
    np.testing.assert_array_equal(top, [[5.0, 4.0], [2.0, 0.0]])


def test_cross_entropy_by_arithmetic():
    mean, std = np.full((1, 1, 1), 10.0), np.full((1, 1, 1), 4.0)
    best = np.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    mean, std = optimise.cross_entropy(mean, std, best, momentum=0.25, min_std=0.0)
    assert mean.item() == 0.25 * 10 + 0.75 * 2 and std.item() == 0.25 * 4 + 0.75 * 1
    assert optimise.cross_entropy(mean, std, best, 0.0, min_std=1.5)[1].item() == 1.5


def test_path_integral_by_arithmetic():
    """Weights 1 : 1/e : 0. Mutation: multiply by the temperature."""
    sequences, scores = np.array([1.0, 2.0, 9.0]).reshape(1, 3, 1, 1), np.array([[6.0, 4.0, -np.inf]])
    mean, weights = optimise.path_integral(sequences, scores, temperature=2.0)
    share = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(weights, [[share, 1 - share, 0]])
    assert mean.item() == pytest.approx(share * 1 + (1 - share) * 2)
    mean, weights = optimise.path_integral(sequences, np.full((1, 3), -np.inf), 1.0)
    np.testing.assert_allclose(weights, 1 / 3)


def test_noise_correlates_and_keeps_its_variance():
    """Mutation: (1 − ρ) instead of √(1 − ρ²), which halves the variance."""
    white = np.random.default_rng(0).standard_normal((2, 4000, 6, 2))
    noise = optimise.correlated(white, 0.7)
    np.testing.assert_allclose(noise.std(axis=1), 1, atol=0.05)
    for time in range(5):
        correlation = (noise[:, :, time] * noise[:, :, time + 1]).mean()
        assert correlation == pytest.approx(0.7, abs=0.04)
    assert optimise.correlated(white, 0.0) is white


def test_candidates_stay_in_bounds_and_plans_move_on():
    mean, std = np.array([[[0.9], [-0.9]]]), np.full((1, 2, 1), 2.0)
    drawn = optimise.candidates_around(mean, std, np.array([[[[1.0], [-0.1]]]]))
    np.testing.assert_allclose(drawn.ravel(), [1.0, -1.0])
    np.testing.assert_array_equal(optimise.shifted(np.arange(6.0).reshape(1, 3, 2)), [[[2, 3], [4, 5], [4, 5]]])


@pytest.mark.parametrize(
    "agent, tolerance",
    [
        (ContinuousShootingAgent(n_rollouts=600, horizon=1), 0.1),
        (CEMAgent(horizon=2, population=60, elites=8, iterations=8), 0.06),
        (CEMAgent(horizon=2, population=60, elites=8, iterations=8, execute="mean", warm_start=False), 0.03),
        (MPPIAgent(horizon=2, population=100, iterations=10, temperature=0.3, noise_std=0.3), 0.06),
    ],
    ids=NAMES,
)
def test_the_target_is_found_in_the_policys_units(agent, tolerance):
    """(2, 8) in [−1, 3] × [0, 10] is (0.5, 0.6) in [−1, 1]². Mutation: give the action in the core's units."""
    core = Target()
    planner = agent.build(CoreModel(core), 3, 0)
    planner.begin(np.arange(3), 0)
    plan = drive(planner.plan(roots_of(core, np.zeros(3))))
    assert plan.action.shape == (3, 1, 2) and plan.action.dtype == np.float32
    np.testing.assert_allclose(plan.action[:, 0], [[0.5, 0.6]] * 3, atol=tolerance)
    np.testing.assert_allclose(ActionScale(core.action_space).to_env(plan.action)[:, 0, 1], 8.0, atol=6 * tolerance)
    seen = np.concatenate(core.seen)
    assert (seen >= core.action_space.low).all() and (seen <= core.action_space.high).all()


@pytest.mark.parametrize("agent", AGENTS, ids=NAMES)
def test_a_column_alone_plans_as_in_a_batch_and_leaves_states_alone(agent):
    """Three decisions, so that warm starts are compared too. Mutation: one mean for all columns."""
    core = PointMass()
    model, states = CoreModel(core), core.initial(4, np.random.default_rng(0))
    own = {name: leaf[[2]] for name, leaf in states.items()}
    before = {name: leaf.copy() for name, leaf in states.items()}
    batch, alone = agent.build(model, 4, 5), agent.build(model, 4, 5)
    batch.begin(np.arange(4), 0)
    alone.begin(np.array([2]), 0)
    for _ in range(3):
        together = drive(batch.plan(roots_of(core, states)))
        single = drive(alone.plan(roots_of(core, own, [2])))
        np.testing.assert_array_equal(together.action[2], single.action[0])
        for name, array in single.extras.items():
            np.testing.assert_allclose(array[0], together.extras[name][2], rtol=1e-6, err_msg=name)
    assert len(np.unique(together.action[:, 0])) == 4
    for name, leaf in states.items():
        np.testing.assert_array_equal(leaf, before[name])


@pytest.mark.parametrize("agent", AGENTS, ids=NAMES)
def test_chunks_change_nothing_and_steps_are_reported(agent, monkeypatch):
    class Ear:
        begun = ended = steps = 0

        def pass_begin(self, columns):
            self.begun += 1

        def model_steps(self, steps):
            self.steps += len(steps.columns)

        def pass_end(self, columns):
            self.ended += 1

    core, ear = PointMass(), Ear()
    model, states = CoreModel(core), core.initial(3, np.random.default_rng(0))
    whole = drive(agent.build(model, 3, 1).plan(roots_of(core, states)))
    monkeypatch.setattr(continuous_shooting, "CHUNK", 21)
    parts = drive(agent.build(model, 3, 1, ear).plan(roots_of(core, states)))
    np.testing.assert_array_equal(whole.action, parts.action)
    assert ear.begun == ear.ended == getattr(agent, "iterations", 1)
    assert ear.steps == parts.extras["simulation_steps"].sum()


@pytest.mark.parametrize("warm_start", [True, False])
def test_a_warm_start_remembers_until_an_episode_begins(warm_start):
    """Without noise to speak of, what remains is the plan: kept with a warm start, forgotten at `begin`."""
    core = Target()
    for agent in (
        CEMAgent(horizon=3, population=30, elites=5, iterations=4, warm_start=warm_start),
        MPPIAgent(horizon=3, population=60, iterations=4, temperature=1.0, warm_start=warm_start),
    ):
        planner = agent.build(CoreModel(core), 2, 0)
        planner.begin(np.arange(2), 0)
        for _ in range(3):
            drive(planner.plan(roots_of(core, np.zeros(2))))
        planner.begin(np.array([1]), 0)
        core.seen.clear()
        drive(planner.plan(roots_of(core, np.zeros(2))))
        start = core.seen[0].reshape(2, -1, 2).mean(axis=1)  # of the first iteration's candidates
        far = np.abs(start - core.target[0]).max(axis=1) > 1.5
        assert far.tolist() == [not warm_start, True]


def test_kept_elites_never_let_the_best_get_lost():
    """In one decision, over iterations, the best score only rises. Mutation: forget the elites' scores."""
    core = PointMass()
    model, states = CoreModel(core), core.initial(32, np.random.default_rng(1))
    values = []
    for iterations in (1, 2, 4, 8):
        agent = CEMAgent(
            horizon=10, population=4, elites=2, iterations=iterations, keep_elites=1, min_std=0.5, initial_std=0.5
        )
        values.append(drive(agent.build(model, 32, 0).plan(roots_of(core, states))).extras["value"])
    assert (np.diff(values, axis=0) >= 0).all() and (values[-1] > values[0]).any()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_sequence_is_never_followed(broken):
    """Returns that are not finite rank last and are counted. Mutations: let argsort put NaN first; let +inf win."""

    class Cliff(Target):
        def step(self, states, actions, rng):
            states, rewards, ended, extras = super().step(states, actions, rng)
            return states, np.where(actions[:, 0, 1] > 6, broken, rewards).astype(np.float32), ended, extras

    for agent in (  # of random sequences of two actions, a third stays clear of the cliff
        ContinuousShootingAgent(n_rollouts=60, horizon=2),
        CEMAgent(horizon=2, population=60),
        MPPIAgent(horizon=2, population=60, iterations=6, noise_std=0.3),
    ):
        plan = drive(agent.build(CoreModel(Cliff()), 2, 0).plan(roots_of(Cliff(), np.zeros(2))))
        assert (plan.extras["simulation_nan"] > 0).all()
        assert (plan.action[:, 0, 1] <= 0.2 + 1e-6).all() and np.isfinite(plan.action).all()


def test_the_point_mass_is_brought_home():
    """Mean returns of an episode: nothing −18.0, a good controller −1.31 (see PointMass); CEM comes close to it."""
    core = PointMass()
    model, states, rng = CoreModel(core), core.initial(16, np.random.default_rng(0)), np.random.default_rng(0)
    planner = CEMAgent(horizon=10, population=24, elites=5, iterations=2, keep_elites=2).build(model, 16, 0)
    planner.begin(np.arange(16), 0)
    returns = np.zeros(16)
    for _ in range(50):
        plan = drive(planner.plan(roots_of(core, states)))
        states, rewards, _, _ = core.step(states, ActionScale(core.action_space).to_env(plan.action), rng)
        returns += rewards
    assert returns.mean() > -2.5


def test_a_schedule_may_change_the_horizon():
    core = PointMass()
    model, states = CoreModel(core), core.initial(1, np.random.default_rng(0))
    for kind in (CEMAgent, MPPIAgent):
        agent = kind(parameter_schedules={"horizon": LinearAnnealing(8.0, 4.0, 2)}, population=10, iterations=1)
        planner = agent.build(model, 1, 0)
        for epoch, horizon in ((0, 8), (0, 8), (2, 4)):
            planner.begin(np.array([0]), epoch)
            plan = drive(planner.plan(roots_of(core, states)))
            plan = drive(planner.plan(roots_of(core, states)))
            assert plan.extras["simulation_steps"][0] == 10 * horizon


def test_the_cheetah_is_planned_for_natively():
    """The core's `rollout` is used: no single steps are made. Twenty decisions give it a start."""
    pytest.importorskip("mujoco")
    from packtrain.envs.half_cheetah import HalfCheetah

    core, rng = HalfCheetah(), np.random.default_rng(0)
    model, states = CoreModel(core), core.initial(1, rng)
    model.step = None
    planner = CEMAgent(horizon=12, population=16, elites=4, iterations=1, keep_elites=2).build(model, 1, 0)
    planner.begin(np.array([0]), 0)
    total = 0.0
    for _ in range(30):
        plan = drive(planner.plan(roots_of(core, states)))
        states, rewards, _, _ = core.step(states, plan.action, rng)
        total += rewards[0]
    assert total > 10  # random actions: about −12


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: CEMAgent(population=1), "CEMAgent.population = 1 must be at least 2"),
        (lambda: CEMAgent(elites=49), "CEMAgent.elites = 49 must be at most population = 48"),
        (lambda: CEMAgent(keep_elites=9), "CEMAgent.keep_elites = 9 must be at most elites = 8"),
        (lambda: CEMAgent(initial_std=0.0), "CEMAgent.initial_std = 0.0 must be above 0"),
        (lambda: CEMAgent(min_std=0.6), "CEMAgent.min_std = 0.6 must be from 0 to initial_std = 0.5"),
        (lambda: CEMAgent(momentum=1.1), "CEMAgent.momentum = 1.1 must be from 0 to 1"),
        (lambda: CEMAgent(prior_candidates=46), "CEMAgent.prior_candidates = 46 must be from 0 to"),
        (lambda: MPPIAgent(prior_candidates=-1), "MPPIAgent.prior_candidates = -1 must be from 0 to"),
        (lambda: MPPIAgent(prior_std=-0.1), "MPPIAgent.prior_std = -0.1 must be at least 0"),
        (lambda: MPPIAgent(temperature=0.0), "MPPIAgent.temperature = 0.0 must be above 0"),
        (lambda: MPPIAgent(horizon=0), "MPPIAgent.horizon = 0 must be at least 1"),
        (lambda: ContinuousShootingAgent(n_rollouts=0), "ContinuousShootingAgent.n_rollouts = 0 must be at least 1"),
        (lambda: CEMAgent().build(CoreModel(Hanoi()), 1, 0), "CEMAgent plans over a Box of actions"),
    ],
)
def test_bad_budgets_and_spaces_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_unbounded_actions_are_refused():
    class Unbounded(Target):
        action_space = gym.spaces.Box(-np.inf, np.inf, (2,))

    with pytest.raises(ConfigError, match="MPPIAgent plans between finite bounds"):
        MPPIAgent().build(CoreModel(Unbounded()), 1, 0)


@pytest.mark.parametrize("kind", [CEMAgent, MPPIAgent])
def test_the_value_of_the_last_state_decides_where_rewards_do_not(kind):
    """One step, no rewards but the network's wish for large states. Without it actions have no mean."""

    class Line:
        action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
        max_steps = None

        def step(self, states, actions, rng):
            return states + actions, np.zeros(len(states), np.float32), np.zeros(len(states), bool), {}

        def observe(self, states):
            return states.astype(np.float32)

    core, chosen = Line(), {}
    for wanted in (True, False):
        agent = kind(horizon=1, population=40, iterations=3, terminal_value=wanted)
        assert agent.heads(core.action_space) == ({"agent": {"value": 1}} if wanted else {})
        planner = agent.build(CoreModel(core), 16, 0)
        planner.begin(np.arange(16), 0)
        asking = planner.plan(roots_of(core, np.zeros((16, 1))))
        try:
            request = next(asking)
            while True:
                request = asking.send({"value": 50 * np.asarray(request.inputs)})
        except StopIteration as stop:
            chosen[wanted] = stop.value.action
    assert chosen[True].mean() > 0.7 and abs(chosen[False].mean()) < 0.4


def answered(asking, said, follow=False):
    """The result of a generator and its number of requests; each is answered with one action (times its input)."""
    requests = 0
    try:
        request = next(asking)
        while True:
            requests += 1
            request = asking.send(
                {"action": np.tile(said, (len(request.inputs), 1)) * (request.inputs if follow else 1)}
            )
    except StopIteration as stop:
        return stop.value, requests


@pytest.mark.parametrize(
    "agent",
    [
        CEMAgent(horizon=3, population=4, elites=1, iterations=1, keep_elites=1, prior_candidates=2),
        MPPIAgent(horizon=3, population=4, temperature=1e-3, prior_candidates=2),
    ],
    ids=["cem", "mppi"],
)
def test_candidates_of_a_policy_network_are_tried_and_followed(agent):
    """A network that outputs the target is followed, unlike four samples. Mutations: not tried; noise on the first."""
    core = Target()
    assert agent.heads(core.action_space) == {"agent": {"action": 2}}
    wanted = np.array([0.5, 0.6])  # the target in [−1, 1]
    states, found = np.zeros(6), {}
    for name, said in (("right", wanted), ("wrong", np.array([-9.0, np.nan]))):
        planner = agent.build(CoreModel(core), 6, 0)
        planner.begin(np.arange(6), 0)
        plan, requests = answered(planner.plan(roots_of(core, states)), said)
        assert requests == 3 and (plan.extras["simulation_steps"] == 3 * 4 + 2 * 2).all()
        np.testing.assert_array_equal(plan.extras["planned_action"], plan.action.reshape(6, 2))
        found[name] = plan.action.reshape(6, 2)
    np.testing.assert_allclose(found["right"], np.tile(wanted, (6, 1)), atol=1e-3)
    assert np.isfinite(found["wrong"]).all() and (np.abs(found["wrong"] - wanted).max(axis=1) > 0.1).all()


def test_the_policy_of_the_candidates_sees_the_states_that_it_leads_to():
    """Actions follow the counter in the observation: 0.1, 0.2, 0.3. Mutation: the root's observation at every step."""
    core = Target()
    asking = follow_policy(
        CoreModel(core),
        np.ones(2),
        np.arange(2),
        np.zeros((2, 3, 2)),
        network="agent",
        to_env=lambda actions: actions.reshape(-1, 1, 2),
        rng=np.random.default_rng(0),
    )
    sequences, requests = answered(asking, np.array([0.1, 0.1]), follow=True)
    np.testing.assert_allclose(sequences, np.tile([[0.1], [0.2], [0.3]], (2, 1, 2)), atol=1e-6)
    assert requests == 3 and len(core.seen) == 2


def test_a_recorded_search_has_the_steps_of_the_policys_candidates():
    """Without a listener the plan is the same. Mutation: they are not reported."""
    core, told = Target(), []

    class Hears:
        def pass_begin(self, columns):
            told.append("begin")

        def pass_end(self, columns):
            told.append("end")

        def model_steps(self, steps):
            told.append(len(steps.columns))

    agent = CEMAgent(horizon=3, population=4, elites=1, iterations=1, keep_elites=1, prior_candidates=1)
    plans = []
    for listener in (Hears(), None):
        planner = agent.build(CoreModel(core), 2, 0, listener)
        planner.begin(np.arange(2), 0)
        plans.append(answered(planner.plan(roots_of(core, np.zeros(2))), np.zeros(2))[0].action)
    assert told == ["begin", 2, 2, "end", "begin", 8, 8, 8, "end"]
    np.testing.assert_array_equal(*plans)
