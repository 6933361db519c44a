"""What planners report of their searches: the statistics of the root are those that the planner itself reports."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from packtrain.planning.frontier import FrontierAgent
from torch import nn

from packtrain.acting.planner_policy import PlannerPolicy
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.stream import Stream
from packtrain.planning.bandit import BanditAgent
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.continuous_shooting import CEMAgent, ContinuousShootingAgent, MPPIAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.events import SearchRecord
from packtrain.planning.leaf_evaluators import RolloutNewLeafRater
from packtrain.planning.search_records import Table, keep, most_visited, table_record
from packtrain.planning.shooting import ShootingAgent
from packtrain.planning.stochastic_mcts import StochasticMCTSAgent

MCTS = StochasticMCTSAgent(n_passes=30, new_leaf_rater=RolloutNewLeafRater(rollout_time_limit=3))
GRAPH = DeterministicMCTSAgent(n_passes=12, use_value_network=False)
AGENTS = [
    MCTS,
    GRAPH,
    BestFirstSearchAgent(n_nodes_per_step=8, use_value=False),
    ShootingAgent(n_rollouts=30, rollout_time_limit=4),
    BanditAgent(n_rollouts=30, rollout_time_limit=4),
    FrontierAgent(),
]


class Watch:
    """Keeps the records of column 1, and the actions and extras of its decisions."""

    def __init__(self, most=10_000):
        self.most, self.records, self.actions, self.extras = most, [], [], []

    def pass_begin(self, columns):
        pass

    model_steps = pass_end = pass_begin

    def searched(self, columns, describe):
        self.records.append(describe(columns.tolist().index(1), self.most))

    def episode_begin(self, columns, epoch, states):
        pass

    def real_steps(self, columns, states, actions, rewards, ended, extras):
        row = columns.tolist().index(1) if 1 in columns else None
        if row is not None:
            self.actions.append(np.asarray(actions[row]))
            self.extras.append({name: value[row] for name, value in extras.items()})


def watched(agent, core=None, decisions=6, most=10_000):
    core = core or Hanoi(3)
    stream = Stream(FunctionalVectorEnv(core, 2, 0, "raise", "Test", True), 2)
    watch = Watch(most)
    actor_state = PlannerPolicy(agent, nn.ModuleDict(), torch.device("cpu"), 1, watch).actor_state(stream)
    row = stream.start()
    for _ in range(decisions):
        stream.send(actor_state.act(row).action)
        row = stream.recv()
    actor_state.finish(row)
    assert len(watch.records) == decisions == len(watch.actions)
    return watch


def root_edges(record, name, actions=6):
    """A field of the root's edges by action; 0 where there is none."""
    found = np.zeros(actions)
    mine = record.edges["from"] == 0
    found[record.edges["action"][mine]] = record.edges[name][mine]
    return found


def check_shape(record, action):
    """A well-formed record: columns of equal length, every node but the root has an edge to it, a connected path."""
    assert isinstance(record, SearchRecord)
    (count,) = {len(values) for values in record.nodes.values()}
    (edges,) = {len(values) for values in record.edges.values()}
    assert set(range(1, count)) <= set(record.edges["to"].tolist())
    here = 0
    for edge in record.path:
        assert 0 <= edge < edges and record.edges["from"][edge] == here
        here = int(record.edges["to"][edge])
    if record.path:
        assert record.edges["action"][record.path[0]] == action


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: type(agent).__name__)
def test_records_are_well_formed(agent):
    watch = watched(agent)
    for record, action in zip(watch.records, watch.actions, strict=True):
        check_shape(record, action)
        assert record.left_out == 0 and (record.path or isinstance(agent, FrontierAgent))


def test_stochastic_mcts_reports_the_visits_of_its_root():
    """Mutations: the visits after the root has moved; the evaluation not counted; priors without noise."""
    watch = watched(MCTS)
    for record, extras in zip(watch.records, watch.extras, strict=True):
        visits = root_edges(record, "visits")
        assert visits / visits.sum() == pytest.approx(extras["action_histogram_smooth"], abs=1e-6)
        assert root_edges(record, "value") == pytest.approx(extras["qualities"], abs=1e-6)
        assert root_edges(record, "prior") == pytest.approx(extras["priors"], abs=1e-6)
    inner = watch.records[0]
    for edge in np.flatnonzero(inner.nodes["expanded"][inner.edges["to"]]):
        below = inner.edges["visits"][inner.edges["from"] == inner.edges["to"][edge]]
        assert below.sum() - len(below) <= inner.edges["visits"][edge], "passes below went along the edge"


def test_deterministic_mcts_reports_the_visits_of_its_root():
    watch = watched(GRAPH)
    for record, extras in zip(watch.records, watch.extras, strict=True):
        assert root_edges(record, "visits").tolist() == extras["visits"].tolist()
        assert root_edges(record, "value") == pytest.approx(extras["qualities"], abs=1e-6)
        assert root_edges(record, "index") == pytest.approx(extras["index"] + root_edges(record, "reward"), rel=0.02)


def test_the_bandit_reports_its_pulls():
    watch = watched(AGENTS[4])
    for record, extras in zip(watch.records, watch.extras, strict=True):
        assert root_edges(record, "visits").tolist() == extras["counts"].tolist()
        assert root_edges(record, "value") == pytest.approx(extras["qualities"], abs=1e-6)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_shooting_reports_rollouts_by_their_actions(how, monkeypatch):
    """The same in groups of rollouts. Mutations: rollouts of another environment; the offset of the second group."""
    agent = ShootingAgent(n_rollouts=40, rollout_time_limit=4, aggregate_fn=how)
    whole = watched(agent)
    for record, extras in zip(whole.records, whole.extras, strict=True):
        assert root_edges(record, "visits").sum() == 40
        assert root_edges(record, "value") == pytest.approx(extras["qualities"], abs=1e-6)
        assert (root_edges(record, "visits") > 0).tolist() == extras["tried"].tolist()
        depth = np.zeros(len(record.nodes["visits"]), np.int64)
        for source, to in zip(record.edges["from"], record.edges["to"], strict=True):
            depth[to] = depth[source] + 1
        assert depth.max() <= 4 and record.nodes["visits"][depth == 1].sum() == 40
    monkeypatch.setattr("packtrain.planning.shooting.CHUNK", 14)
    for one, other in zip(whole.records, watched(agent).records, strict=True):
        for name in ("from", "to", "action", "visits", "value"):
            assert other.edges[name] == pytest.approx(one.edges[name])


def test_best_first_search_reports_its_graph_and_plan():
    watch = watched(AGENTS[2])
    for record, extras in zip(watch.records, watch.extras, strict=True):
        assert len(record.nodes["value"]) == extras["reachable_nodes"]
        assert len(record.path) == extras["target_distance"]
        if record.path:
            assert record.nodes["target"].nonzero()[0].tolist() == [record.edges["to"][record.path[-1]]]


def test_frontier_search_reports_its_table_and_route():
    """Mutations: the route after its first action was taken; states of another decision."""
    watch = watched(FrontierAgent(), decisions=20)
    core = Hanoi(3)
    for record, extras in zip(watch.records, watch.extras, strict=True):
        assert len(record.path) == extras["target_distance"]
        rows = record.state_rows
        for source, to, action in zip(*(record.edges[name].tolist() for name in ("from", "to", "action")), strict=True):
            if rows[source] >= 0 and rows[to] >= 0:
                after, *_ = core.step(record.states[rows[source]][None], np.array([action]), None)
                assert (after[0] == record.states[rows[to]]).all()
    assert max(len(record.nodes["untried"]) for record in watch.records) > 4


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: type(agent).__name__)
def test_a_limit_of_nodes_leaves_a_connected_part(agent):
    """And says how many are missing. Mutations: a node without the nodes above it; the plan cut off."""
    whole, part = watched(agent), watched(agent, most=5)
    for one, other, action in zip(whole.records, part.records, part.actions, strict=True):
        check_shape(other, action)
        assert len(other.path) == len(one.path) or isinstance(agent, DeterministicMCTSAgent | StochasticMCTSAgent)
        count, total = (len(next(iter(record.nodes.values()))) for record in (other, one))
        assert count <= max(5, len(other.path) + 1)
        assert (other.left_out > 0) == (count < total) or isinstance(agent, FrontierAgent)


class Box(Hanoi):
    """A continuous task of one step."""

    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    max_steps = 30

    def __init__(self):
        pass

    def initial(self, n, rng):
        return np.zeros((n, 1))

    def step(self, states, actions, rng):
        after = states + actions[:, :1]
        return after, -np.abs(after[:, 0] - 1).astype(np.float32), np.zeros(len(states), bool), {}

    def observe(self, states):
        return states.astype(np.float32)


@pytest.mark.parametrize(
    "agent",
    [
        ContinuousShootingAgent(n_rollouts=60, horizon=3),
        CEMAgent(population=60, horizon=3, iterations=2),
        MPPIAgent(population=60, horizon=3, iterations=2),
    ],
    ids=lambda agent: type(agent).__name__,
)
def test_continuous_planners_report_candidates_and_the_plan(agent):
    """The plan begins with the action that is taken; the best candidates are among those that are kept."""
    watch = watched(agent, Box(), decisions=3)
    for record, action, extras in zip(watch.records, watch.actions, watch.extras, strict=True):
        found = record.sequences
        assert record.kind == "sequences" and np.asarray(found["plan"]).shape == (3, 2)
        assert found["plan"][0] == pytest.approx(action, abs=1e-6)
        assert len(found["actions"]) == len(found["return"]) <= 48 * len(found["tried"])
        last = [r for r, i in zip(found["return"], found["iteration"], strict=True) if i == len(found["tried"]) - 1]
        assert max(last) >= extras["simulation_value_mean"] and sum(found["tried"]) == record.nodes["visits"][0]


def test_the_most_visited_nodes_of_a_tree_are_kept():
    """With all nodes above them, even if numbers of visits do not fall with depth."""
    edges = {"from": np.array([0, 0, 1, 2]), "to": np.array([1, 2, 3, 4]), "visits": np.array([5, 1, 4, 9])}
    kept = most_visited(edges, 5, 3)
    assert kept.tolist() == [0, 1, 3]
    record = keep(SearchRecord("x", "tree", {"visits": np.arange(5)}, {**edges, "action": np.zeros(4, int)}), kept)
    assert record.edges["from"].tolist() == [0, 1] and record.edges["to"].tolist() == [1, 2]
    assert record.nodes["visits"].tolist() == [0, 1, 3] and record.left_out == 2
    assert most_visited(edges, 5, 2, [4, 2]).tolist() == [0, 2, 4]


def test_an_end_in_the_table_is_a_node_without_a_state():
    table = Table([[1, -2], [-1, 0]], [0, 1], {0: np.zeros((1, 1))}, ended=-2)
    record = table_record(table, 0, [(0, 0), (1, 0)], 10)
    assert record.nodes["terminal"].tolist() == [False, False, True, False]
    assert record.state_rows.tolist() == [0, -1, -1, -1] and [record.edges["to"][e] for e in record.path] == [1, 3]
