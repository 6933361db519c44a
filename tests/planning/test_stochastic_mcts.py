"""Open-loop tree search: against its readable twin, by hand, and on problems solved by enumeration."""

import dataclasses
import itertools
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.hanoi import Hanoi
from packtrain.equations import puct
from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import dirichlet
from packtrain.planning.leaf_evaluators import QualityNetworkNewLeafRater, RolloutNewLeafRater, ValueNetworkNewLeafRater
from packtrain.planning.mcts_tree import best_with_ties, tie_words
from packtrain.planning.model import CoreModel, Stepped
from packtrain.planning.nodes import NO_NODE
from packtrain.planning.planner import Roots
from packtrain.planning.schedules import LinearAnnealing
from packtrain.planning.stochastic_mcts import StochasticMCTSAgent
from packtrain.testing.path_hash import PathHash, settle
from packtrain.testing.plain_stochastic_mcts import PlainStochasticMCTS

GOLDEN = Path(__file__).parents[1] / "golden" / "stochastic_mcts_tree.json"
QUALITY, VALUE = QualityNetworkNewLeafRater(), ValueNetworkNewLeafRater()


class Tree:
    """A model whose states are numbers: {state: [(next, reward), ...]}, no entry for states that have ended."""

    deterministic = True

    def __init__(self, edges, qualities=None, values=None):
        self.edges, self.qualities, self.values = edges, qualities or {}, values or {}
        self.actions = len(next(iter(edges.values())))
        self.action_space = gym.spaces.Discrete(self.actions)
        self.calls = []  # [(states, actions)]
        self.asked = []

    def step(self, states, actions, rng):
        self.calls.append((states.tolist(), actions.tolist()))
        assert all(state in self.edges for state in states.tolist()), "stepped past an end"
        where = [self.edges[state][action] for state, action in zip(states.tolist(), actions.tolist(), strict=True)]
        after, rewards = np.array([state for state, _ in where]), np.array([r for _, r in where], np.float32)
        ended = np.array([state not in self.edges for state in after.tolist()])
        return Stepped(after, rewards, ended, np.zeros(len(after), bool))
        yield

    def observe(self, states):
        return states

    def legal(self, states):
        return None

    def answer(self, request):
        asked = request.inputs.tolist()
        self.asked.append(asked)
        qualities = [self.qualities.get(state, [0.0] * self.actions) for state in asked]
        values = [[self.values.get(state, 0.0)] for state in asked]
        logits = np.zeros((len(asked), self.actions), np.float32)
        return {"quality": np.array(qualities, np.float32), "value": np.array(values, np.float32), "logits": logits}


def one(planner, model, state, answer=None):
    states = np.array([state])
    return settle(planner.plan(Roots(np.array([0]), states, None)), answer or model.answer)


def build(model, agent, columns=1, seed=3, listener=None):
    planner = agent.build(model, columns, seed, listener)
    planner.begin(np.arange(columns), 0)
    return planner


def pick(states, rows):
    return {name: leaf[rows] for name, leaf in states.items()}


TWINS = [
    (QUALITY, {}),
    (QualityNetworkNewLeafRater(True), {"n_leaves_to_expand": 3}),
    (VALUE, {"n_leaves_to_expand": 2, "depth_limit": 2}),
    (ValueNetworkNewLeafRater(True), {"bonus": "ucb", "depth_limit": 2, "action_selection_mode": "quality"}),
    (RolloutNewLeafRater(4), {"sampling_temperature": 1.0}),
    (RolloutNewLeafRater(3, "logits"), {"n_leaves_to_expand": 2}),
    (QualityNetworkNewLeafRater(True), {"rescale_qualities": True, "n_leaves_to_expand": 2}),
    (QualityNetworkNewLeafRater(True), {"rescale_qualities": True, "rescale_over": "tree", "n_leaves_to_expand": 2}),
    (ValueNetworkNewLeafRater(), {"rescale_qualities": True, "rescale_over": "tree", "bonus": "ucb"}),
    (QualityNetworkNewLeafRater(True), {"root_selection": "gumbel", "max_considered_actions": 2}),
    (QUALITY, {"root_selection": "gumbel", "n_leaves_to_expand": 2, "depth_limit": 3}),
    (
        QualityNetworkNewLeafRater(True),
        {
            "prior_noise_weight": 0.5,
            "prior_noise_parameter": 0.3,
            "leaf_quality_bias": 0.2,
            "leaf_quality_dampening": 2,
        },
    ),
]


@pytest.mark.parametrize(("legal_share", "case"), list(itertools.product([1.0, 0.6], range(len(TWINS)))))
def test_equals_its_twin(legal_share, case):
    """Choices, visits, qualities, values and depths, for random subsets of columns, over several decisions.

    Mutations: a wrong parent's visits, a backup without discount, noise that depends on the batch, a child's estimate
    from the wrong leaf.
    """
    rater, options = TWINS[case]
    model = PathHash(3, 0.15, legal_share=legal_share)
    agent = StochasticMCTSAgent(n_passes=9, new_leaf_rater=rater, exploration_weight=1.5, **options)
    rng = np.random.default_rng(case)
    columns = 4
    planner = build(model, agent, columns, seed=7)
    twins = [PlainStochasticMCTS(agent, model, column, 7, model.answer) for column in range(columns)]
    states = model.initial(100 * case + np.arange(columns))
    made = 0
    for decision in range(4):
        chosen = np.flatnonzero(~states["ended"] & (rng.random(columns) < 0.8))
        here = pick(states, chosen)
        plan = settle(planner.plan(Roots(chosen, here, model.observe(here))), model.answer)
        for row, column in enumerate(chosen):
            want = twins[column].plan(pick(here, [row]), decision)
            visits, qualities = np.array(want.visits), np.array(want.qualities)
            reported = (qualities - agent.leaf_quality_bias) / agent.leaf_quality_dampening
            assert plan.action[row] == want.action
            got = {name: array[row] for name, array in plan.extras.items()}
            np.testing.assert_allclose(got["qualities"], np.where(visits > 0, reported, 0), rtol=1e-6, atol=1e-7)
            np.testing.assert_array_equal(got["action_histogram_smooth"], (visits / visits.sum()).astype(np.float32))
            value = (want.value - agent.leaf_quality_bias) / agent.leaf_quality_dampening
            np.testing.assert_allclose(got["value"], value, rtol=1e-5, atol=1e-6)
            assert got["depth_max"] == max(want.depths)
            np.testing.assert_allclose(got["depth_mean"], np.mean(want.depths), rtol=1e-6)
            made += 1
        after = settle(model.step(here, plan.action, planner.rng), model.answer)
        for name in states:
            states[name][chosen] = after.states[name]
    assert made >= 6


@pytest.mark.parametrize(("rater", "options"), TWINS)
def test_batch_is_as_single(rater, options):
    """Every extra to the last bit. Mutation: a tie or noise drawn from a generator."""
    model, columns = PathHash(4), 7
    agent = StochasticMCTSAgent(n_passes=12, new_leaf_rater=rater, **options)
    states = model.initial(np.arange(columns))
    together = build(model, agent, columns, seed=1)
    plan = settle(together.plan(Roots(np.arange(columns), states, None)), model.answer)
    for column in range(columns):
        alone = build(model, agent, columns, seed=1)
        single = settle(alone.plan(Roots(np.array([column]), pick(states, [column]), None)), model.answer)
        assert single.action[0] == plan.action[column]
        for name, array in single.extras.items():
            np.testing.assert_array_equal(array[0], plan.extras[name][column], err_msg=name)


def grown(planner, node):
    """The tree below a node, as JSON values."""
    nodes, found = planner.tree.nodes, {}
    for action in range(nodes.children.shape[1]):
        visits = int(nodes.visits[node, action])
        found[str(action)] = {
            "visits": visits,
            "quality": nodes.quality_sums[node, action] / max(visits, 1),
            "prior": nodes.priors[node, action],
        }
        if nodes.children[node, action] != NO_NODE:
            found[str(action)]["below"] = grown(planner, nodes.children[node, action])
    return found


def close(got, want):
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(close(got[name], want[name]) for name in want)
    return abs(got - want) < 1e-9


def test_golden_tree():
    """The tree of 40 passes in the path-hash model is the one on file, and the twin's."""
    model = PathHash(3, 0.1)
    agent = StochasticMCTSAgent(n_passes=40, new_leaf_rater=QualityNetworkNewLeafRater(True), n_leaves_to_expand=2)
    planner = build(model, agent, 1, seed=11)
    states = model.initial(np.array([5]))
    twin = PlainStochasticMCTS(agent, model, 0, 11, model.answer).plan(states, 0)
    settle(planner.plan(Roots(np.array([0]), states, None)), model.answer)
    tree = grown(planner, 0)  # the root is made first
    assert close(tree, json.loads(GOLDEN.read_text()))
    assert close(tree, twin.tree)
    assert not close(tree, json.loads(GOLDEN.read_text().replace('"visits": 2', '"visits": 3', 1)))


# 0 -a0-> 1 -a0-> 2 -a0-> 3; action 1 leads to an end with reward 0 everywhere
CHAIN = {0: [(1, 1.0), (9, 0.0)], 1: [(2, 2.0), (9, 0.0)], 2: [(3, 4.0), (9, 0.0)], 3: [(4, 0.0), (9, 0.0)]}
CHAIN[4] = [(5, 0.0), (9, 0.0)]
RATED = {0: [0.5, 0.0], 1: [0.6, 0.0], 2: [0.7, 0.0], 3: [0.8, 0.0]}


def test_one_leaf_a_pass_by_hand():
    """k = 1: the first pass expands the root, the second steps once. Mutation: the root's pass backs something up."""
    model = Tree(CHAIN, RATED)
    agent = StochasticMCTSAgent(n_passes=3, discount=0.5, exploration_weight=0.0, new_leaf_rater=QUALITY)
    plan = one(build(model, agent), model, 0)
    assert model.asked == [[0], [1], [2]]
    assert model.calls == [([0], [0]), ([0], [0]), ([1], [0])]
    second = 1 + 0.5 * 0.6  # reward, and the quality of the best action of state 1
    third = 1 + 0.5 * (2 + 0.5 * 0.7)
    np.testing.assert_allclose(plan.extras["qualities"], [[(0.5 + second + third) / 3, 0]], rtol=1e-6)
    np.testing.assert_allclose(plan.extras["value"], [(0.5 + second + third + 0) / 4], rtol=1e-6)
    np.testing.assert_allclose(plan.extras["action_histogram"], [[1, 0]])
    np.testing.assert_allclose(plan.extras["action_histogram_smooth"], [[0.75, 0.25]])
    assert plan.extras["depth_mean"] == 1 and plan.extras["depth_max"] == 2
    assert plan.action == [0] and plan.extras["entropy"] == 0 and plan.extras["entropy_smooth"] > 0.5


def test_shoot_tree_search_by_hand():
    """k = 3: one pass expands three leaves in a row with two steps and backs up once, from the last.

    Mutations: one step more into an unexpanded child (the original's overshoot), a backup after each leaf.
    """
    model = Tree(CHAIN, RATED)
    agent = StochasticMCTSAgent(
        n_passes=1, discount=0.5, exploration_weight=0.0, new_leaf_rater=QUALITY, n_leaves_to_expand=3
    )
    planner = build(model, agent)
    plan = one(planner, model, 0)
    assert model.asked == [[0], [1], [2]]
    assert model.calls == [([0], [0]), ([1], [0])]
    below = 2 + 0.5 * 0.7
    np.testing.assert_allclose(plan.extras["qualities"], [[(0.5 + 1 + 0.5 * below) / 2, 0]], rtol=1e-6)
    root = planner.tree.roots[0]  # state 1 by now
    assert planner.tree.nodes.visits[root].tolist() == [2, 1]
    np.testing.assert_allclose(planner.tree.nodes.quality_sums[root], [0.6 + below, 0], rtol=1e-6)


def test_shoot_tree_search_backs_an_end_up_once():
    """An end met with leaves left counts its reward and 0 beyond. Mutation: the parent's estimate is backed up."""
    model = Tree({0: [(1, 1.0), (9, 0.0)], 1: [(9, 8.0), (9, 0.0)]}, {0: [5.0, 0.0], 1: [100.0, 0.0]})
    agent = StochasticMCTSAgent(
        n_passes=1, discount=0.5, exploration_weight=0.0, new_leaf_rater=QUALITY, n_leaves_to_expand=5
    )
    plan = one(build(model, agent), model, 0)
    np.testing.assert_allclose(plan.extras["qualities"], [[(5 + 1 + 0.5 * 8) / 2, 0]])
    assert model.calls == [([0], [0]), ([1], [0])]


def test_depth_limit_backs_up_the_value_of_the_node_there():
    """Mutation: 0 at the limit, as the original had it."""
    model = Tree(CHAIN, RATED)
    options = {"discount": 0.5, "exploration_weight": 0.0, "new_leaf_rater": QUALITY, "depth_limit": 1}
    plan = one(build(model, StochasticMCTSAgent(n_passes=3, **options)), model, 0)
    best, mean = 1 + 0.5 * 0.6, 1 + 0.5 * (0.6 + 0) / 2
    np.testing.assert_allclose(plan.extras["qualities"], [[(0.5 + best + mean) / 3, 0]], rtol=1e-6)
    assert plan.extras["depth_max"] == 1 and {state for states, _ in model.calls for state in states} == {0}
    model = Tree(CHAIN, RATED)
    plan = one(build(model, StochasticMCTSAgent(n_passes=1, n_leaves_to_expand=9, **options)), model, 0)
    np.testing.assert_allclose(plan.extras["qualities"], [[(0.5 + best) / 2, 0]], rtol=1e-6)


def test_value_evaluator_steps_every_action_and_sends_one_request():
    """Mutation: a value beyond an end."""
    model = Tree({0: [(1, 1.0), (9, 3.0)], 1: [(9, 0.0), (9, 0.0)]}, values={1: 10.0, 9: 1000.0})
    plan = one(build(model, StochasticMCTSAgent(n_passes=1, discount=0.5, new_leaf_rater=VALUE)), model, 0)
    np.testing.assert_allclose(plan.extras["qualities"], [[1 + 0.5 * 10, 3]])
    assert model.calls == [([0, 0], [0, 1])] and model.asked == [[1]]
    assert VALUE.heads(2) == {"value": 1} and ValueNetworkNewLeafRater(True).heads(2) == {"value": 1, "logits": 2}


def test_rollout_rater_by_hand():
    """Mutations: the first step counted against the limit, the discount a power off."""
    edges = {state: [(state + 1, 1.0), (state + 1, 1.0)] for state in range(20)}
    model = Tree(edges)
    agent = StochasticMCTSAgent(n_passes=1, discount=0.5, new_leaf_rater=RolloutNewLeafRater(3))
    plan = one(build(model, agent), model, 0)
    np.testing.assert_allclose(plan.extras["qualities"], [[1 + 0.5 * (1 + 0.5 + 0.25)] * 2])
    assert len(model.calls) == 4 and not model.asked
    assert agent.heads(model.action_space) == {} and RolloutNewLeafRater(3, "logits").heads(2) == {"logits": 2}


def test_rollouts_of_a_network_follow_its_logits():
    """Mutation: uniform actions whatever the logits say."""
    edges = {0: [(1, 0.0), (1, 0.0)], **{state: [(state + 1, 1.0), (state + 1, -1.0)] for state in range(1, 9)}}
    model = Tree(edges)

    def answer(request):
        return {"logits": np.tile(np.array([50.0, 0.0], np.float32), (len(request.inputs), 1))}

    agent = StochasticMCTSAgent(n_passes=1, discount=1.0, new_leaf_rater=RolloutNewLeafRater(4, "logits"))
    np.testing.assert_allclose(one(build(model, agent), model, 0, answer).extras["qualities"], [[4, 4]])


def best_returns(edges, discount, depth, state):
    """Q of each action by enumeration."""
    if depth == 0 or state not in edges:
        return [0.0] * 2
    return [r + discount * max(best_returns(edges, discount, depth - 1, after)) for after, r in edges[state]]


@pytest.mark.parametrize(
    "options",
    [{}, {"n_leaves_to_expand": 3}, {"root_selection": "gumbel"}, {"bonus": "ucb", "exploration_weight": 1.0}],
)
def test_finds_the_delayed_reward_of_a_chain(options):
    """Action 1 ends with 0.3 at once, action 0 pays 1 after five steps. Mutation: no discount, or no exploration."""
    edges = {state: [(state + 1, float(state == 4)), (99, 0.3)] for state in range(5)}
    for discount, want in ((0.9, 0), (0.6, 1)):
        wanted = best_returns(edges, discount, 6, 0)
        assert int(np.argmax(wanted)) == want
        for rater in (QUALITY, VALUE, RolloutNewLeafRater(10)):
            numbers = {"exploration_weight": 2.0, "gumbel_scale": 0.0, **options}
            agent = StochasticMCTSAgent(n_passes=200, discount=discount, new_leaf_rater=rater, **numbers)
            model = Tree(edges)
            assert one(build(model, agent), model, 0).action == [want]


@pytest.mark.parametrize("seed", range(6))
def test_finds_the_best_leaf_of_a_random_tree(seed):
    """A binary tree of depth 4 with random rewards, against enumeration."""
    rng = np.random.default_rng(seed)
    edges = {node: [(2 * node + 1 + a, float(rng.random())) for a in range(2)] for node in range(15)}
    want = best_returns(edges, 0.9, 4, 0)
    model = Tree(edges)
    agent = StochasticMCTSAgent(n_passes=600, discount=0.9, exploration_weight=3.0, new_leaf_rater=QUALITY)
    plan = one(build(model, agent), model, 0)
    assert int(plan.action[0]) == int(np.argmax(want))
    np.testing.assert_allclose(plan.extras["qualities"][0].max(), max(want), atol=0.3)


def test_solves_hanoi_from_every_state():
    """Two disks: each choice goes a step down in the distance to the goal, from all eight other states at once."""
    core = Hanoi(2)
    states = np.array(list(itertools.product(range(3), repeat=2)), np.uint8)
    distance = {(2, 2): 0}
    for _ in range(9):
        for state, action in itertools.product(states, range(6)):
            after = core.step(state[None], np.array([action]), None)[0][0]
            if tuple(after) in distance:
                known = distance.get(tuple(state), 99)
                distance[tuple(state)] = min(known, distance[tuple(after)] + 1)
    states = states[:-1]
    model = CoreModel(core)
    agent = StochasticMCTSAgent(n_passes=400, discount=0.8, exploration_weight=1.0, new_leaf_rater=VALUE)
    planner = build(model, agent, len(states))
    before = states.copy()

    def answer(request):
        return {"value": np.zeros((len(request.inputs), 1), np.float32)}

    plan = settle(planner.plan(Roots(np.arange(len(states)), states, None)), answer)
    np.testing.assert_array_equal(states, before)
    after = core.step(states, plan.action, None)[0]
    for state, there in zip(states, after, strict=True):
        assert distance[tuple(there)] == distance[tuple(state)] - 1


def test_illegal_actions_are_never_tried():
    """Mutation: priors or ratings alone leave them out of the score."""
    core = Hanoi(3)
    model = CoreModel(core)
    inside = model.step

    def step(states, actions, rng):
        assert core.legal(states)[np.arange(len(states)), actions].all()
        return inside(states, actions, rng)

    model.step = step
    for options in ({}, {"root_selection": "gumbel"}, {"sampling_temperature": 9.0}, {"n_leaves_to_expand": 4}):
        agent = StochasticMCTSAgent(n_passes=20, new_leaf_rater=RolloutNewLeafRater(5), **options)
        planner = build(model, agent, 8)
        states = core.initial(8, None)
        plan = settle(planner.plan(Roots(np.arange(8), states, None)), None)
        assert core.legal(states)[np.arange(8), plan.action].all()
        assert (plan.extras["action_histogram_smooth"][:, 2:] == 0).all()
        assert (plan.extras["priors"][:, :2] == 0.5).all()
        if options.get("root_selection"):
            np.testing.assert_allclose(plan.extras["search_policy"][:, :2].sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("by", ["value", "reward"])
def test_backs_out_of_a_branch_that_turns_out_bad(by):
    """Action 0 looks better at first. Mutation: the rating is never outweighed by what was found below."""
    bad = -1.0 if by == "reward" else 0.0
    edges = {0: [(1, 0.0), (2, 0.0)], 1: [(3, bad), (3, bad)], 2: [(4, 0.0), (4, 0.0)]}
    edges |= {state: [(state + 2, 0.0)] * 2 for state in range(3, 60)}
    values = {1: 1.0, 2: 0.5, **{state: 0.5 * (state % 2 == 0) for state in range(3, 99)}}
    if by == "reward":
        values |= {state: 0.5 for state in range(3, 99)}
    model = Tree(edges, values=values)
    first = one(build(model, StochasticMCTSAgent(n_passes=2, discount=1.0, new_leaf_rater=VALUE)), model, 0)
    later = one(build(model, StochasticMCTSAgent(n_passes=60, discount=1.0, new_leaf_rater=VALUE)), model, 0)
    assert first.action == [0] and later.action == [1]


def test_chosen_child_becomes_the_root_and_its_edge_is_left_alone():
    """Mutation: later passes are recorded in the edge that led to the root, which would spoil stored targets."""
    model = PathHash(3, 0.0)
    agent = StochasticMCTSAgent(n_passes=30, new_leaf_rater=QUALITY)
    planner = build(model, agent)
    states = model.initial(np.array([2]))
    plan = settle(planner.plan(Roots(np.array([0]), states, None)), model.answer)
    target = {name: array.copy() for name, array in plan.extras.items()}
    old = int(np.flatnonzero((planner.tree.nodes.children == planner.tree.roots[0]).any(axis=1))[0])
    edges, sums = planner.tree.nodes.visits[old].copy(), planner.tree.nodes.quality_sums[old].copy()
    root = int(planner.tree.roots[0])
    inherited = planner.tree.nodes.visits[root].sum()
    assert inherited > 3
    after = settle(model.step(states, plan.action, planner.rng), model.answer)
    settle(planner.plan(Roots(np.array([0]), after.states, None)), model.answer)
    np.testing.assert_array_equal(planner.tree.nodes.visits[old], edges)
    np.testing.assert_array_equal(planner.tree.nodes.quality_sums[old], sums)
    assert planner.tree.nodes.visits[root].sum() == inherited + 30  # an expanded root: every pass goes through an edge
    for name, array in target.items():
        np.testing.assert_array_equal(plan.extras[name], array)


def test_begin_forgets():
    """Mutation: a tree outlives its episode."""
    model = PathHash(3, 0.0)
    planner = build(model, StochasticMCTSAgent(n_passes=30, new_leaf_rater=QUALITY), 2)
    states = model.initial(np.arange(2))
    first = settle(planner.plan(Roots(np.arange(2), states, None)), model.answer)
    planner.begin(np.array([0]), 0)
    assert planner.tree.roots[0] == NO_NODE and planner.tree.roots[1] != NO_NODE and len(planner.tree.nodes.of(0)) == 0
    planner.begin(np.array([1]), 0)
    planner.decisions = 0
    again = settle(planner.plan(Roots(np.arange(2), states, None)), model.answer)
    np.testing.assert_array_equal(again.extras["qualities"], first.extras["qualities"])


def test_dead_nodes_are_given_back_and_nothing_changes():
    """A long episode stays within bounds. Mutation: `_collect` drops a node that is alive, or keeps all."""
    model = PathHash(3, 0.0)
    agent = StochasticMCTSAgent(n_passes=10, new_leaf_rater=QUALITY, exploration_weight=9.0)
    tidy, untidy = build(model, agent, 3), build(model, agent, 3)
    states = model.initial(np.arange(3))
    for _ in range(30):
        tidy.tree.collect_at, untidy.tree.collect_at = 0, 10**9
        plans = [settle(p.plan(Roots(np.arange(3), states, None)), model.answer) for p in (tidy, untidy)]
        for name, array in plans[0].extras.items():
            np.testing.assert_array_equal(array, plans[1].extras[name])
        states = settle(model.step(states, plans[0].action, None), None).states
    assert len(untidy.tree.nodes) > 700 and len(tidy.tree.nodes) < 200


class Tape:
    """A listener that records its calls."""

    def __init__(self):
        self.heard = []

    def pass_begin(self, columns):
        self.heard.append("begin")

    def model_steps(self, steps):
        self.heard.append(steps)

    def pass_end(self, columns):
        self.heard.append("end")


def test_listener_receives_every_step_in_order():
    """Mutations: steps of a rating told before those that led to the leaf; a pass without its end."""
    model, tape = Tree(CHAIN, values={1: 5.0}), Tape()
    agent = StochasticMCTSAgent(n_passes=2, exploration_weight=0.0, new_leaf_rater=VALUE)
    planner = build(model, agent, listener=tape)
    one(planner, model, 0)
    kinds = [item if isinstance(item, str) else item.actions.tolist() for item in tape.heard]
    assert kinds == ["begin", [0, 1], "end", "begin", [0], [0, 1], "end"]
    rating, step, below = (item for item in tape.heard if not isinstance(item, str))
    assert rating.source.tolist() == [step.source[0]] * 2 and rating.target.tolist() == [NO_NODE] * 2
    assert step.target[0] == planner.tree.roots[0] and below.source.tolist() == [step.target[0]] * 2
    assert step.states.tolist() == [1] and step.rewards.tolist() == [1] and not step.terminated.any()
    assert below.states.tolist() == [2, 9] and below.terminated.tolist() == [False, True]


def test_listener_receives_every_step_once():
    """Mutation: the steps to the first leaf are reported again with those to the second."""
    model, tape = PathHash(3), Tape()
    agent = StochasticMCTSAgent(n_passes=8, new_leaf_rater=QUALITY, n_leaves_to_expand=3)
    made, inside = [], model.step

    def step(states, actions, rng):
        made.append(actions.tolist())
        return inside(states, actions, rng)

    model.step = step
    planner = build(model, agent, 4, listener=tape)
    settle(planner.plan(Roots(np.arange(4), model.initial(np.arange(4)), None)), model.answer)
    steps = [item for item in tape.heard if not isinstance(item, str)]
    assert [item.actions.tolist() for item in steps] == made and tape.heard.count("end") == 8
    for item in steps:
        assert ((item.target == NO_NODE) == item.terminated).all() and (item.source != NO_NODE).all()


def test_one_request_a_pass_for_all_columns():
    """Leaves at different depths are asked about together. Mutation: a request for each level."""
    model, asked = PathHash(3, 0.0), []

    def answer(request):
        asked.append(len(request.inputs))
        return model.answer(request)

    planner = build(model, StochasticMCTSAgent(n_passes=25, new_leaf_rater=QUALITY), 16)
    settle(planner.plan(Roots(np.arange(16), model.initial(np.arange(16)), None)), answer)
    assert asked == [16] * 25


@pytest.mark.parametrize("rater", [QUALITY, VALUE, RolloutNewLeafRater(5)])
def test_never_steps_past_an_end_and_leaves_the_roots_alone(rater):
    """Mutation: ends are not taken out of a descent, a rating or a rollout."""
    model = PathHash(3, 0.5)
    inside = model.step

    def step(states, actions, rng):
        assert not states["ended"].any()
        return inside(states, actions, rng)

    model.step = step
    states = model.initial(np.arange(20))
    before = {name: leaf.copy() for name, leaf in states.items()}
    for leaves in (1, 4):
        agent = StochasticMCTSAgent(n_passes=20, new_leaf_rater=rater, n_leaves_to_expand=leaves)
        settle(build(model, agent, 20).plan(Roots(np.arange(20), states, None)), model.answer)
    for name, leaf in states.items():
        np.testing.assert_array_equal(leaf, before[name])


def test_ties_are_broken_by_chance():
    """Mutation: the first or the highest index wins; the same one in every pass or column."""
    model = PathHash(5, 0.0)
    agent = StochasticMCTSAgent(n_passes=1, new_leaf_rater=QUALITY)

    def answer(request):
        return {"quality": np.zeros((len(request.inputs), 5), np.float32)}

    planner = build(model, agent, 500)
    states = model.initial(np.arange(500))
    first = settle(planner.plan(Roots(np.arange(500), states, None)), answer).action
    counts = np.bincount(first, minlength=5)
    assert counts.min() > 60 and counts.max() < 140
    planner.begin(np.arange(500), 0)
    second = settle(planner.plan(Roots(np.arange(500), states, None)), answer).action
    assert 0.1 < (first == second).mean() < 0.3
    deep = build(model, dataclasses.replace(agent, n_passes=6), 500)
    plan = settle(deep.plan(Roots(np.arange(500), states, None)), answer)
    shares = plan.extras["action_histogram"].mean(axis=0)
    assert shares.min() > 0.15 and shares.max() < 0.25


def test_tie_words_differ_in_every_place():
    """Mutation: the same order of preference at every depth, in every pass or column."""
    tickets = np.array([5, 6], np.uint64)
    places = itertools.product(range(2), range(3), range(40))  # row, pass, depth
    words = [tie_words(tickets, np.array([row]), number, np.array([depth]), 4) for row, number, depth in places]
    assert len(np.unique(words)) == 2 * 3 * 40 * 4
    assert len(np.unique(np.argmax(np.concatenate(words), axis=1))) == 4


def test_best_is_always_allowed():
    """Mutation: where nothing allowed has a score, −inf equals −inf and anything may win."""
    scores, allowed = np.full((50, 4), -np.inf), np.tile([False, False, True, False], (50, 1))
    words = np.random.default_rng(0).integers(1, 99, (50, 4)).astype(np.uint64)
    assert (best_with_ties(scores, allowed, lambda: words) == 2).all()
    scores[:, 0], scores[:, 1] = 5.0, 7.0
    assert (best_with_ties(scores, None, lambda: words) == 1).all()
    scores[:, 3] = 7.0
    assert (best_with_ties(scores, None, lambda: words) == np.where(words[:, 1] >= words[:, 3], 1, 3)).all()


def test_histogram_after_the_expansion_alone_is_uniform():
    """Mutation: 0 / 0."""
    model = PathHash(4)
    plan = settle(
        build(model, StochasticMCTSAgent(n_passes=1, new_leaf_rater=QUALITY)).plan(
            Roots(np.array([0]), model.initial(np.array([0])), None)
        ),
        model.answer,
    )
    np.testing.assert_array_equal(plan.extras["action_histogram"], [[0.25] * 4])
    assert all(array.dtype == np.float32 and len(array) == 1 for array in plan.extras.values())


class Coin:
    """Action 0 pays 1 or −1.2 by chance and ends, action 1 pays 0.1 and ends."""

    deterministic = False
    action_space = gym.spaces.Discrete(2)

    def step(self, states, actions, rng):
        coin = np.where(rng.random(len(states)) < 0.5, 1.0, -1.2)
        rewards = np.where(actions == 0, coin, 0.1).astype(np.float32)
        return Stepped(states, rewards, np.ones(len(states), bool), np.zeros(len(states), bool))
        yield

    def observe(self, states):
        return states

    def legal(self, states):
        return None


def test_averages_over_what_a_stochastic_model_does():
    """Mutation: states or rewards kept in the tree after their first outcome."""
    planner = build(Coin(), StochasticMCTSAgent(n_passes=400, new_leaf_rater=QUALITY, exploration_weight=3.0), 20)

    def answer(request):
        return {"quality": np.full((len(request.inputs), 2), 0.5, np.float32)}

    plan = settle(planner.plan(Roots(np.arange(20), np.zeros(20), None)), answer)
    assert (plan.action == 1).all()
    assert abs(plan.extras["qualities"][:, 0].mean() + 0.1) < 0.1
    np.testing.assert_allclose(plan.extras["qualities"][:, 1], 0.1, atol=0.02)


def test_actions_may_end_an_episode_now_and_lead_on_later():
    """An edge with a node below it ends in some passes. Mutation: the descent goes on below the end."""
    model = PathHash(3, 0.3, outcomes=3, legal_share=0.6)
    inside = model.step

    def step(states, actions, rng):
        assert not states["ended"].any() and model.legal(states)[np.arange(len(actions)), actions].all()
        return inside(states, actions, rng)

    model.step = step
    agent = StochasticMCTSAgent(n_passes=30, new_leaf_rater=QUALITY, n_leaves_to_expand=2)
    planner, states = build(model, agent, 10), model.initial(np.arange(10))
    for _ in range(4):
        going = np.flatnonzero(~states["ended"])
        here = pick(states, going)
        plan = settle(planner.plan(Roots(going, here, None)), model.answer)
        assert model.legal(here)[np.arange(len(going)), plan.action].all()
        after = settle(model.step(here, plan.action, planner.rng), None).states
        for name in states:
            states[name][going] = after[name]


def test_gumbel_root_halves():
    """Eight actions, four considered, 16 simulations: visits are 6, 6, 2, 2. Mutation: all actions compete always."""
    model = PathHash(8, 0.0)
    agent = StochasticMCTSAgent(
        n_passes=17, new_leaf_rater=QUALITY, root_selection="gumbel", max_considered_actions=4, value_scale=1.0
    )
    planner = build(model, agent, 5)
    plan = settle(planner.plan(Roots(np.arange(5), model.initial(np.arange(5)), None)), model.answer)
    tried = np.rint(plan.extras["action_histogram"] * 16).astype(int)
    for row, action, policy in zip(tried, plan.action, plan.extras["search_policy"], strict=True):
        assert sorted(row.tolist()) == [0, 0, 0, 0, 2, 2, 6, 6] and row[action] == 6
        np.testing.assert_allclose(policy.sum(), 1, rtol=1e-5)
    best_quality = plan.extras["qualities"].argmax(axis=1)
    assert (plan.extras["search_policy"].argmax(axis=1) == best_quality).all()


def test_gumbel_samples_the_prior_when_qualities_say_nothing():
    """Gumbel-top-1 of one simulation is a draw from the prior. Mutation: no logits, or no noise."""
    model = PathHash(3, 0.0)
    logits = np.log(np.array([0.6, 0.3, 0.1], np.float32))

    def answer(request):
        count = len(request.inputs)
        return {"quality": np.zeros((count, 3), np.float32), "logits": np.tile(logits, (count, 1))}

    agent = StochasticMCTSAgent(
        n_passes=1, new_leaf_rater=QualityNetworkNewLeafRater(True), root_selection="gumbel", value_scale=0.0
    )
    count = 3000
    plan = settle(
        build(model, agent, count).plan(Roots(np.arange(count), model.initial(np.arange(count)), None)), answer
    )
    np.testing.assert_allclose(np.bincount(plan.action) / count, [0.6, 0.3, 0.1], atol=0.04)
    np.testing.assert_allclose(plan.extras["search_policy"][0], [0.6, 0.3, 0.1], rtol=1e-4)


@pytest.mark.parametrize("parameter", [0.1, 1.0, 5.0])
def test_dirichlet_noise_has_its_mean_and_variance(parameter):
    """Variance of a share: (1/n)(1 − 1/n) / (nα + 1). Mutation: Γ(α + 1) without the boost."""
    words = np.arange(20_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    allowed = np.tile([True, True, False, True], (len(words), 1))
    shares = dirichlet(words, parameter, allowed)
    assert (shares[:, 2] == 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_allclose(shares.mean(axis=0)[[0, 1, 3]], 1 / 3, atol=0.01)
    variance = (1 / 3) * (2 / 3) / (3 * parameter + 1)
    np.testing.assert_allclose(shares.var(axis=0)[[0, 1, 3]], variance, rtol=0.05)


def test_sampling_temperature_spreads_the_choice():
    """At temperature 1 actions are drawn by their counts. Mutation: counts without their logarithm."""
    edges = {0: [(9, 1.0), (9, 0.0)]}
    model = Tree(edges, {0: [1.0, 0.0]})
    agent = StochasticMCTSAgent(n_passes=5, new_leaf_rater=QUALITY, exploration_weight=0.0, sampling_temperature=1.0)
    count = 2000
    plan = settle(build(model, agent, count).plan(Roots(np.arange(count), np.zeros(count, int), None)), model.answer)
    np.testing.assert_allclose(plan.extras["action_histogram_smooth"][0], [5 / 6, 1 / 6], rtol=1e-6)
    assert abs((plan.action == 0).mean() - 5 / 6) < 0.03


def test_schedules_follow_the_epoch():
    """Mutation: the values of epoch 0 for ever."""
    model = PathHash(3, 0.0)
    agent = StochasticMCTSAgent(
        n_passes=9, new_leaf_rater=QUALITY, parameter_schedules={"n_passes": LinearAnnealing(9, 1, 8)}
    )
    planner = build(model, agent)
    for epoch, want in ((0, 9), (4, 5), (8, 1)):
        asked = []
        planner.begin(np.array([0]), epoch)
        roots = Roots(np.array([0]), model.initial(np.array([0])), None)
        settle(planner.plan(roots), lambda request, asked=asked: asked.append(1) or model.answer(request))
        assert len(asked) == want


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_passes", 0),
        ("n_leaves_to_expand", 0),
        ("depth_limit", 0),
        ("max_considered_actions", 0),
        ("discount", 1.1),
        ("exploration_weight", -1.0),
        ("sampling_temperature", float("nan")),
        ("prior_noise_weight", 2.0),
        ("prior_noise_parameter", 0.0),
        ("leaf_quality_dampening", 0.0),
        ("leaf_quality_bias", float("inf")),
        ("value_scale", -0.1),
        ("bonus", "uct"),
        ("root_selection", "random"),
    ],
)
def test_bad_values_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"StochasticMCTSAgent.{name} = "):
        StochasticMCTSAgent(**{name: value})


def test_options_without_effect_and_unfit_models_are_refused():
    for options in ({"prior_noise_weight": 0.2}, {"sampling_temperature": 1.0}, {"action_selection_mode": "quality"}):
        with pytest.raises(ConfigError, match="has no meaning"):
            StochasticMCTSAgent(root_selection="gumbel", **options)
    with pytest.raises(ConfigError, match="RolloutNewLeafRater.rollout_time_limit = 0 must be at least 1"):
        RolloutNewLeafRater(0)
    model = PathHash()
    model.action_space = gym.spaces.Box(-1, 1, (2,))
    with pytest.raises(ConfigError, match="StochasticMCTSAgent plans over Discrete actions"):
        StochasticMCTSAgent().build(model, 1, 0)
    with pytest.raises(ConfigError, match="StochasticMCTSAgent plans over Discrete actions"):
        StochasticMCTSAgent().heads(model.action_space)
    agent = StochasticMCTSAgent(new_leaf_rater=QualityNetworkNewLeafRater(True))
    assert agent.heads(gym.spaces.Discrete(4)) == {"agent": {"quality": 4, "logits": 4}}


@pytest.mark.parametrize("rescale, over", [(True, "node"), (True, "tree"), (False, "node")])
def test_rescaled_qualities_make_a_search_independent_of_the_scale_of_rewards(rescale, over):
    """Mutation: bounds over the whole batch, or of other nodes. Without rescaling the passes go elsewhere."""
    rng = np.random.default_rng(0)
    edges = {s: [(2 * s + 1, r1), (2 * s + 2, r2)] for s, (r1, r2) in enumerate(rng.random((31, 2)).tolist())}
    found = []
    for scale in (0.001, 1000.0):
        scaled = {state: [(after, scale * reward) for after, reward in pairs] for state, pairs in edges.items()}
        qualities = {state: [scale * reward for _, reward in pairs] for state, pairs in edges.items()}
        agent = StochasticMCTSAgent(n_passes=40, new_leaf_rater=QUALITY, exploration_weight=1.0)
        planner = build(
            Tree(scaled, qualities), dataclasses.replace(agent, rescale_qualities=rescale, rescale_over=over)
        )
        plan = one(planner, Tree(scaled, qualities), 0)
        found.append(plan.extras["action_histogram_smooth"].tolist())
    assert (found[0] == found[1]) == rescale


def test_qualities_in_the_range_of_a_tree():
    """Before there is a range qualities stay as they are."""
    got = puct.rescaled_in_range(
        np.array([[2.0, 4.0], [5.0, 5.0], [3.0, 1.0]]), np.array([0.0, 5.0, np.inf]), np.array([4.0, 5.0, -np.inf])
    )
    np.testing.assert_array_equal(got, [[0.5, 1.0], [5.0, 5.0], [3.0, 1.0]])
    with pytest.raises(ConfigError, match="rescale_over = 'tree' needs"):
        StochasticMCTSAgent(rescale_over="tree")


def test_rescaled_qualities_of_a_node_lie_between_0_and_1():
    allowed = np.array([[True, True, False], [True, True, True]])
    got = puct.rescaled_qualities(np.array([[2.0, 4.0, 9.0], [5.0, 5.0, 5.0]]), allowed)
    np.testing.assert_array_equal(np.where(allowed, got, 0.0), [[0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(puct.rescaled_qualities(np.array([[1.0, 3.0, 5.0]])), [[0, 0.5, 1]])
