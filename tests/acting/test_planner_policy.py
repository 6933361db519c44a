"""Acting by planning: which environments plan when, what planners observe, and all planners of the package."""

import dataclasses
import importlib
import pkgutil

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import packtrain.planning
from packtrain import trees
from packtrain.acting.inference import Inference
from packtrain.acting.planner_policy import PlannerPolicy
from packtrain.envs.cartpole import CartPole
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.point_mass import PointMass
from packtrain.envs.stream import Stream
from packtrain.planning.bandit import BanditAgent
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.continuous_shooting import CEMAgent, ContinuousShootingAgent, MPPIAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.leaf_evaluators import QualityNetworkNewLeafRater, RolloutNewLeafRater, ValueNetworkNewLeafRater
from packtrain.planning.model import CoreModel
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.policy import EpsilonGreedyAgent, SoftmaxAgent
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.shooting import ShootingAgent
from packtrain.planning.stochastic_mcts import StochasticMCTSAgent
from packtrain.planning.tabular_search import FrontierAgent

CPU = torch.device("cpu")


class Countdown:
    """Episodes of 1 to 4 steps: a state is how many steps are left, and how many were made. Reward: made · 10 + action.

    A last step with action 1 solves.
    """

    observation_space: gym.Space = gym.spaces.Box(0, 100, (2,), np.float32)
    action_space: gym.Space = gym.spaces.Discrete(3)
    max_steps = None

    def initial(self, n, rng):
        return {"left": rng.integers(1, 5, size=n), "made": np.zeros(n, np.int64)}

    def step(self, states, actions, rng):
        going = states["left"] > 0
        left, made = states["left"] - going, states["made"] + going
        rewards = np.where(going, 10 * made + actions, 0).astype(np.float32)
        return {"left": left, "made": made}, rewards, left == 0, {"solved": (left == 0) & going & (actions == 1)}

    def observe(self, states):
        return np.stack([states["left"], states["made"]], axis=1).astype(np.float32)


class Script:
    """A planner that records its inputs; its action is (column + decision) modulo 3."""

    def __init__(self):
        self.decisions, self.rng = 0, np.random.default_rng(0)
        self.begun, self.planned, self.heard = [], [], []

    def heads(self, action_space):
        return {}

    def build(self, model, columns, seed, listener=None):
        return self

    def begin(self, columns, epoch):
        self.begun.append((columns.tolist(), epoch))

    def plan(self, roots):
        number, self.decisions = self.decisions, self.decisions + 1
        self.planned.append(copied((roots.columns, roots.states, roots.obs)))
        action = (roots.columns + number) % 3
        return Plan(action, {"value": (100.0 * roots.columns + number).astype(np.float32)})
        yield

    def feedback(self, columns, states, rewards, terminated):
        self.heard.append(copied((columns, states, rewards, terminated)))


class Watch:
    """Counts the reports of planners, and records real steps."""

    def __init__(self):
        self.begun, self.done = [], []
        self.passes_begun = self.passes_ended = self.steps = 0

    def pass_begin(self, columns):
        self.passes_begun += len(columns)

    def model_steps(self, steps):
        sizes = {len(leaf) for leaf in trees.flatten(steps)}
        assert sizes == {len(steps.columns)}, "one row for each step"
        self.steps += len(steps.columns)

    def pass_end(self, columns):
        self.passes_ended += len(columns)

    def episode_begin(self, columns, epoch, states):
        self.begun.append(copied((columns, epoch, states)))

    def real_steps(self, columns, states, actions, rewards, ended, extras):
        self.done.append(copied((columns, states, actions, rewards, ended, extras)))


def copied(tree):
    return trees.map(np.copy, tree)


def picked(tree, rows):
    return trees.map(lambda leaf: leaf[rows], tree)


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(trees.flatten(left), trees.flatten(right), strict=True))


def stream_of(core, size, together=True, limit=None, seed=3):
    return Stream(FunctionalVectorEnv(core, size, seed, "raise", "test", together, limit), size)


def play(stream, actor_state, rows):
    """Yields (row, states behind it, decision) for so many rows."""
    for index in range(rows):
        row = trees.map(np.copy, stream.recv() if index else stream.start())
        before = copied(stream.columns.states)
        decision = actor_state.act(row)
        assert same(before, stream.columns.states), "a planner leaves the environment as it found it"
        stream.send(decision.action)
        yield row, before, decision


# -- the actor_state


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("limit", [None, 2])
def test_a_column_plans_exactly_while_its_episode_is_under_way(together, limit):
    """Against a plain account of each column, kept from the rows.

    Mutations: plan for columns that wait; feedback with the states before the step, or with truncation as an end.
    """
    script, watch = Script(), Watch()
    stream = stream_of(Countdown(), 5, together, limit)
    policy = PlannerPolicy(script, nn.ModuleDict(), CPU, 0, watch)
    policy.epoch = policy.trace_epoch = 7
    actor_state = policy.actor_state(stream)
    playing, before, said = [False] * 5, [], []
    idle = waits = truncations = 0
    for row, states, decision in play(stream, actor_state, 60):
        begun = [c for c in range(5) if row.first[c]]
        ended = row.terminated | row.truncated
        if before:  # what came of the last decision
            columns, there, rewards, terminated = script.heard.pop()
            assert columns.tolist() == before and not row.first[before].any()
            assert same(there, picked(states, before))
            assert rewards.tolist() == row.last_reward["train"][before].tolist()
            assert terminated.tolist() == row.terminated[before].tolist()
            columns, there, actions, rewards, over, extras = watch.done.pop()
            assert columns.tolist() == before and same(there, picked(states, before))
            assert actions.tolist() == row.last_action[before].tolist() and over.tolist() == ended[before].tolist()
            assert extras["value"].tolist() == said
            truncations += int(row.truncated.sum())
        assert not script.heard and not watch.done
        playing = [(playing[c] or c in begun) and not ended[c] for c in range(5)]
        assert script.begun == ([(begun, 7)] if begun else []), "and in no other column, in no other epoch"
        if begun:
            columns, epoch, there = watch.begun.pop()
            assert columns.tolist() == begun and epoch == 7
            assert same(there, picked(states, begun))
        script.begun.clear()
        before = [c for c in range(5) if playing[c]]
        if before:
            columns, roots, obs = script.planned.pop()
            assert columns.tolist() == before
            assert same(roots, picked(states, before)) and same(obs, row.obs[before])
        assert not script.planned, "nobody plays, nobody plans"
        wanted = [(c + script.decisions - 1) % 3 if playing[c] else 0 for c in range(5)]
        assert decision.action.tolist() == wanted
        if before:
            said = [100.0 * c + script.decisions - 1 for c in before]
            assert decision.extras["value"][before].tolist() == said
            assert not decision.extras["value"][[c for c in range(5) if not playing[c]]].any()
        else:
            assert set(decision.extras) == {"solved"}
        idle += not before
        waits += 0 < len(before) < 5
    assert waits and bool(idle) == together and bool(truncations) == (limit is not None)


def test_solved_is_what_the_row_says():
    """Mutation: the flag of the row before."""
    stream = stream_of(Countdown(), 4)
    actor_state = PlannerPolicy(Script(), nn.ModuleDict(), CPU, 0).actor_state(stream)
    seen = 0
    for row, _, decision in play(stream, actor_state, 30):
        over = row.terminated & (row.last_action == 1)
        assert decision.extras["solved"].tolist() == over.tolist() and decision.extras["solved"].dtype == bool
        seen += over.sum()
    assert seen


def test_actor_states_have_seeds_of_their_own():
    """Mutation: one seed for all groups: columns 0 of two groups would draw the same."""
    policy = PlannerPolicy(RandomAgent(), nn.ModuleDict(), CPU, 0)
    streams = [stream_of(Hanoi(2), 8) for _ in range(2)]
    first, second = ([d.action.tolist() for *_, d in play(stream, policy.actor_state(stream), 5)] for stream in streams)
    assert first != second


def actions_of(stream, actor_state, rows):
    return [decision.action.tolist() for *_, decision in play(stream, actor_state, rows)]


def test_a_snapshot_goes_on_with_the_same_choices():
    """Mutation: restoring without the number of decisions."""
    stream = stream_of(CartPole(), 3, limit=4)
    actor_state = PlannerPolicy(RandomAgent(), nn.ModuleDict(), CPU, 0).actor_state(stream)
    rows = play(stream, actor_state, 9)  # four decisions, the end, four decisions
    for _ in range(5):
        next(rows)
    snapshot = actor_state.snapshot()
    straight = [decision.action.tolist() for *_, decision in rows]
    fresh = stream_of(CartPole(), 3, limit=4)
    again = PlannerPolicy(RandomAgent(), nn.ModuleDict(), CPU, 0).actor_state(fresh)
    again.restore(snapshot)
    assert actions_of(fresh, again, 4) == straight
    other = stream_of(CartPole(), 3, limit=4)
    assert actions_of(other, PlannerPolicy(RandomAgent(), nn.ModuleDict(), CPU, 0).actor_state(other), 4) != straight


def test_begin_draws_as_in_the_beginning():
    """Evaluations begin again and again: each depends on the weights, not on those before it.

    Mutation: `begin` leaves the number of decisions, or the generator, where they are.
    """
    agent = StochasticMCTSAgent(n_passes=3, new_leaf_rater=RolloutNewLeafRater(rollout_time_limit=4))
    for make in (lambda: (stream_of(Hanoi(2), 3, limit=5), agent), lambda: (stream_of(CartPole(), 3), RandomAgent())):
        stream, chosen = make()
        actor_state = PlannerPolicy(chosen, nn.ModuleDict(), CPU, 0).actor_state(stream)
        actor_state.planner.rng.random()  # a model that draws
        once = actions_of(stream, actor_state, 4)
        generator = np.random.default_rng(actor_state._policy.seed + 7919)
        stream.restart()
        actor_state.begin()
        assert actor_state.planner.rng.random() == generator.random()
        assert actions_of(stream, actor_state, 4) == once


# -- all planners of the package

DISCRETE = {
    "random": RandomAgent(),
    "random legal": RandomAgent(legal_only=True),
    "softmax": SoftmaxAgent(with_critic=True),
    "epsilon greedy": EpsilonGreedyAgent(epsilon=0.5),
    "shooting": ShootingAgent(n_rollouts=6, rollout_time_limit=4),
    "shooting by a network": ShootingAgent(
        n_rollouts=4, rollout_time_limit=3, rollout_agent=SoftmaxAgent(), estimate_fn="bootstrap_return_with_value"
    ),
    "bandit": BanditAgent(n_rollouts=7, rollout_time_limit=4),
    "stochastic rollout": StochasticMCTSAgent(
        n_passes=4, new_leaf_rater=RolloutNewLeafRater(rollout_time_limit=4), sampling_temperature=0.5
    ),
    "stochastic rollout by a network": StochasticMCTSAgent(
        n_passes=3, new_leaf_rater=RolloutNewLeafRater(rollout_time_limit=3, rollout_agent="logits")
    ),
    "stochastic value": StochasticMCTSAgent(n_passes=4, new_leaf_rater=ValueNetworkNewLeafRater(use_policy=True)),
    "stochastic quality": StochasticMCTSAgent(
        n_passes=4, n_leaves_to_expand=2, new_leaf_rater=QualityNetworkNewLeafRater(use_policy=True)
    ),
    "stochastic gumbel": StochasticMCTSAgent(
        n_passes=4, root_selection="gumbel", new_leaf_rater=ValueNetworkNewLeafRater(use_policy=True)
    ),
    "deterministic": DeterministicMCTSAgent(n_passes=4),
    "deterministic ensemble": DeterministicMCTSAgent(n_passes=3, ensemble_size=4, ensemble_mask_size=2),
    "best first": BestFirstSearchAgent(n_nodes_per_step=3, top_level_epsilon=0.3),
    "frontier": FrontierAgent(),
}
CONTINUOUS = {
    "random in a box": RandomAgent(),
    "continuous shooting": ContinuousShootingAgent(n_rollouts=5, horizon=3),
    "cem": CEMAgent(horizon=3, population=6, elites=3, iterations=2),
    "mppi": MPPIAgent(horizon=3, population=6),
}
WITHOUT_SEARCH = ("random", "random legal", "softmax", "epsilon greedy", "random in a box", "frontier")  # in a model
AGENTS = DISCRETE | CONTINUOUS
everyone = pytest.mark.parametrize("name", AGENTS)


def core_of(name):
    return PointMass(dimensions=2, max_steps=6) if name in CONTINUOUS else Hanoi(disks=2, max_steps=6)


class Waves(nn.Module):
    """Answers that depend on the row alone, to the last bit, in whatever company it is asked about."""

    def __init__(self, heads):
        super().__init__()
        self.sizes = heads

    def forward(self, obs):
        assert len(obs), "nobody asks about nothing"
        wide = obs.double()
        place = torch.arange(1, wide.shape[1] + 1)
        total = sum((wide * place).unbind(1))  # in a fixed order
        return {head: torch.sin(total[:, None] * (1 + torch.arange(size))) for head, size in self.sizes.items()}


def networks_of(agent, core):
    return nn.ModuleDict({n: Waves(heads) for n, heads in agent.heads(core.action_space).items()})


def test_every_agent_of_the_package_is_tested_here():
    found = set()
    for module in pkgutil.iter_modules(packtrain.planning.__path__, "packtrain.planning."):
        for value in vars(importlib.import_module(module.name)).values():
            plans = isinstance(value, type) and dataclasses.is_dataclass(value)
            if plans and hasattr(value, "heads") and hasattr(value, "build"):
                found.add(value.__name__)
    assert found == {type(agent).__name__ for agent in AGENTS.values()}


@everyone
@pytest.mark.parametrize("together", [True, False])
def test_a_planner_in_its_actor_state(name, together):
    """States are unchanged (`play` checks), actions fit the space, listeners get every report, twice the same.

    Mutations: step the environment's own arrays in place; a pass that is begun and not ended; an unseeded draw.
    """
    agent, runs = AGENTS[name], []
    for _ in range(2):
        core, watch = core_of(name), Watch()
        stream = stream_of(core, 3, together)
        policy = PlannerPolicy(agent, networks_of(agent, core), CPU, 5, watch)
        taken = []
        for *_, decision in play(stream, policy.actor_state(stream), 18):
            taken.append(decision.action)
            assert all(len(value) == 3 and value.dtype != object for value in decision.extras.values())
        assert len(watch.begun) > 1 and sum(len(one[0]) for one in watch.done) == stream.steps
        assert watch.passes_begun == watch.passes_ended
        if name in WITHOUT_SEARCH:
            assert watch.steps == watch.passes_begun == 0, "there is nothing to tell"
        else:
            assert watch.passes_begun >= stream.steps and watch.steps >= stream.steps
        space = core.action_space
        if isinstance(space, gym.spaces.Discrete):
            assert all(((0 <= a) & (a < space.n)).all() and a.dtype.kind == "i" for a in taken)
        else:
            assert all((np.abs(a) <= 1).all() and a.shape == (3, 2) and a.dtype == np.float32 for a in taken)
        runs.append(np.stack(taken))
    assert np.array_equal(*runs)


@pytest.mark.parametrize("name", sorted(set(AGENTS) - {"frontier"}))  # its columns share what they have seen
def test_a_batch_of_columns_acts_as_each_column_alone(name):
    """Three columns in one planner, and one planner for each. Mutation: a draw that depends on the rows planned with.

    The same with an episode that ends early: column 1 stops after two decisions.
    """
    agent, core = AGENTS[name], core_of(name)
    model, rng = CoreModel(core), np.random.default_rng(0)
    inference = Inference(dict(networks_of(agent, core).items()))
    planners = [agent.build(model, 3, 11) for _ in range(4)]  # the last one has them all
    groups = [np.array([0]), np.array([1]), np.array([2]), np.arange(3)]
    for planner, columns in zip(planners, groups, strict=True):
        planner.begin(columns, 0)
    states = core.initial(3, rng)
    for time in range(4):
        playing = np.array([0, 1, 2] if time < 2 else [0, 2])
        plans = []
        for planner, columns in zip(planners, groups, strict=True):
            columns = np.intersect1d(columns, playing)
            if len(columns):
                here = picked(states, columns)
                plans.append(inference.run(planner.plan(Roots(columns, here, core.observe(here)))))
        *alone, batch = plans
        assert len(alone) == len(playing)
        for row, plan in enumerate(alone):
            assert np.array_equal(plan.action[0], batch.action[row])
            assert plan.extras.keys() == batch.extras.keys()
            for key, value in plan.extras.items():
                np.testing.assert_allclose(value[0], batch.extras[key][row], rtol=1e-6, err_msg=key)
        actions = np.zeros((3, *batch.action.shape[1:]), batch.action.dtype)
        actions[playing] = batch.action
        states, rewards, terminated, _ = core.step(states, actions, rng)
        for planner, columns in zip(planners, groups, strict=True):
            columns = np.intersect1d(columns, playing)
            if len(columns):
                there = picked(states, columns)
                planner.feedback(columns, there, rewards[columns], terminated[columns])


def test_decisions_are_averaged_and_then_reset():
    stream = stream_of(Countdown(), 2, limit=1)
    policy = PlannerPolicy(Script(), nn.ModuleDict(), CPU, 0)
    rows = play(stream, policy.actor_state(stream), 2)
    next(rows)
    assert policy.decisions.drain() == {"value_mean": 50.0}, "columns 0 and 1 say 0 and 100"
    next(rows)
    assert policy.decisions.drain() == {}
