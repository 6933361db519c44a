"""Best-first search against its readable twin, and on worlds whose shortest solutions are known."""

import heapq
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from packtrain import trees
from packtrain.envs.cartpole import CartPole
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.toy_mr import ToyMR
from packtrain.errors import ConfigError
from packtrain.hashing import digest
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.best_first.frontier_index import HeapEntry, ordered
from packtrain.planning.model import CoreModel, Stepped
from packtrain.planning.planner import Roots
from packtrain.testing.plain_best_first import PlainBestFirst, distances

pytestmark = pytest.mark.usefixtures("way")


class SteppedWithBonus(NamedTuple):
    """What an ensemble answers."""

    states: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    solved: np.ndarray
    bonus: np.ndarray


class GraphModel:
    """A world that is a table: states are numbers [N, 1]. Believes `edges`; `really` steps in what is true."""

    deterministic = True
    gives_bonus = True

    def __init__(self, rng: np.random.Generator, worlds: int, size: int, actions: int, wrong: float = 0.0):
        self.action_space = gym.spaces.Discrete(actions)
        states, self.size = worlds * size, size
        first = np.repeat(np.arange(worlds) * size, size)[:, None]
        self.true = first + rng.integers(0, size, (states, actions))
        near = np.arange(states)[:, None] - first + rng.integers(-1, 2, self.true.shape)
        self.true = np.where(rng.random(self.true.shape) < 0.7, first + near % size, self.true)  # mostly to neighbours
        mistake = np.where(rng.random(self.true.shape) < 0.5, np.arange(states)[:, None], self.true[::, ::-1])
        self.edges = np.where(rng.random(self.true.shape) < wrong, mistake, self.true)  # false loops, and false ways
        kind = rng.random(states)
        kind[::size] = 1.0  # the starts
        self.solved, self.terminal = kind < 0.04, kind < 0.12
        self.believed_terminal = np.where(rng.random(states) < wrong, ~self.terminal, self.terminal)
        self.bonus = rng.integers(0, 4, self.true.shape).astype(np.float32)
        self.values = rng.integers(-3, 4, states).astype(np.float32) / 2

    def step(self, states, actions, rng):
        led = self.edges[states[:, 0], actions]
        ended = self.believed_terminal[states[:, 0]]
        led = np.where(ended, states[:, 0], led)
        solved = self.solved[led] & self.believed_terminal[led] & ~ended
        bonus = self.bonus[states[:, 0], actions]
        return SteppedWithBonus(led[:, None], solved.astype(np.float32), self.believed_terminal[led], solved, bonus)
        yield

    def really(self, states, actions):
        led = self.true[states[:, 0], actions]
        return led[:, None], self.solved[led].astype(np.float32), self.terminal[led]

    def observe(self, states):
        return states

    def keys(self, states):
        return digest(states)

    def legal(self, states):
        return None

    def answer(self, request):
        assert request.network == "agent"
        return {"value": self.values[request.inputs]}


class Tape:
    """Writes down what a search tells."""

    def __init__(self) -> None:
        self.begun: list[np.ndarray] = []
        self.ended: list[np.ndarray] = []
        self.steps: list = []

    def pass_begin(self, columns):
        self.begun.append(columns)

    def model_steps(self, steps):
        self.steps.append(steps)

    def pass_end(self, columns):
        self.ended.append(columns)

    def expansions(self, column: int, actions: int) -> list[int]:
        return [int(s) for steps in self.steps for s in steps.source[steps.columns == column][::actions]]


def drive(asking, answer=None):
    try:
        request = next(asking)
        while True:
            request = asking.send(answer(request))
    except StopIteration as stop:
        return stop.value


ORDERS = [
    {"expand_heuristic": "neg_distance"},
    {"expand_heuristic": "index", "top_level_heuristic": "index"},
    {"expand_heuristic": "value", "top_level_heuristic": "value"},
    {"expand_heuristic": "bonus", "top_level_heuristic": "solved_then_auxiliary_then_bonus"},
    {"expand_heuristic": "value_plus_bonus", "top_level_heuristic": "value_plus_bonus"},
    {"expand_heuristic": "neg_distance", "top_level_heuristic": "neg_distance"},
    {"expand_heuristic": "neg_distance", "top_level_heuristic": "bonus", "use_value": False},
    {"fringe": "fifo"},
    {"fringe": "lifo"},
    {"fringe": "random"},
    {"fringe": "artefact", "top_level_heuristic": "solved_then_auxiliary_then_bonus"},
]


@pytest.mark.parametrize("wrong", [0.0, 0.3], ids=["true", "mistaken"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(map(str, order.values())))
def test_same_choices_as_the_twin(order: dict, wrong: float) -> None:
    """1,100 graphs, 50 at a time: actions, values, expansions in order, distances and what is reachable, every step.

    With a model that is mistaken, reality re-points edges and ends or revives nodes. Caught mutations: no `link` in
    `feedback`; a plan followed although its target lost its rank, or although something nearer was found; the
    current node among the targets; `reachable` kept after a correction; a fringe that keeps terminal nodes; ties by
    place instead of by walk; the visit not taken back after a random action.
    """
    rng = np.random.default_rng(len(str(order)))
    worlds = 50
    model = GraphModel(rng, worlds, size=int(rng.integers(8, 30)), actions=3, wrong=wrong)
    agent = BestFirstSearchAgent(
        n_nodes_per_step=3, top_level_epsilon=0.1, epsilon_avoid_traps=True, avoid_history_coeff=-0.2, **order
    )
    tape = Tape()
    planner = agent.build(model, worlds, 7, tape)
    every = np.arange(worlds)
    twins = [PlainBestFirst(agent, model, column, 7, model.answer) for column in every]
    states = (every * model.size)[:, None]
    planner.begin(every, 0)
    for step in range(6):
        tape.__init__()
        columns = every if step % 3 else np.sort(rng.choice(every, 40, replace=False))  # not all every time
        roots = states[columns]
        plan = drive(planner.plan(Roots(columns, roots, roots)), model.answer)
        for row, column in enumerate(columns):
            twins[column].decisions = step
            action, extras = twins[column].plan(states[column : column + 1])
            assert plan.action[row] == action
            for name, value in extras.items():
                assert plan.extras[name][row] == pytest.approx(value, rel=1e-6), name
            assert tape.expansions(column, 3) == twins[column].expansions
        check_reachable(planner, twins, columns)
        after, rewards, terminated = model.really(roots, plan.action)
        planner.feedback(columns, after, rewards, terminated)
        states[columns] = after
        for row, column in enumerate(columns):
            twins[column].feedback(after[row : row + 1], float(rewards[row]), bool(terminated[row]))
        over = columns[terminated]
        if len(over):
            planner.begin(over, 0)
            states[over] = (over * model.size)[:, None]
            for column in over:
                twins[column].begin()


def check_reachable(planner, twins, columns) -> None:
    """What is marked as reachable, and the distances of a walk, are those of a breadth-first search."""
    nodes = planner.graph.nodes
    walk = planner.graph.edges.walk(planner.current[columns])
    while len(walk.ids):
        walk.advance()
    ids = walk.everything()
    marked = np.flatnonzero(nodes.reachable & np.isin(nodes.owner, columns))
    assert sorted(ids.tolist()) == marked.tolist()
    found: dict[int, dict[int, int]] = {column: {} for column in columns.tolist()}
    depth = dict.fromkeys(planner.current[columns].tolist(), -1)
    for node, before in zip(ids.tolist(), walk.predecessors(ids).tolist(), strict=True):
        depth[node] = found[int(nodes.owner[node])][int(nodes.slot[node])] = depth[before] + 1
    for column in columns.tolist():
        met = distances(twins[column].current)
        assert found[column] == {node.slot: distance for node, (distance, _, _) in met.items()}


def solve(core, agent: BestFirstSearchAgent, limit: int, seed: int = 0, columns: int = 1):
    """Steps until all columns have ended, and their last rewards; the planners' notes of every step."""
    rng = np.random.default_rng(seed)
    planner = agent.build(CoreModel(core), columns, seed)
    every = np.arange(columns)
    planner.begin(every, 0)
    states, notes = core.initial(columns, rng), []
    for step in range(limit):
        kept = trees.map(np.copy, states)
        plan = drive(planner.plan(Roots(every, states, core.observe(states))))
        trees.map(np.testing.assert_array_equal, kept, states)
        notes.append(plan.extras)
        states, rewards, terminated, _ = core.step(states, plan.action, rng)
        planner.feedback(every, states, rewards, terminated)
        if terminated.all():
            return step + 1, rewards, notes
    return limit, np.zeros(columns), notes


@pytest.mark.parametrize("disks", [3, 4])
def test_hanoi_in_the_shortest_number_of_moves(disks: int) -> None:
    """All states are known after the first decision: 2^disks − 1 moves, and the value counts them.

    Caught mutations: a path that is not shortest; γ^d instead of γ^(d−1); root states changed in place.
    """
    agent = BestFirstSearchAgent(n_nodes_per_step=3**disks, use_value=False)
    steps, rewards, notes = solve(Hanoi(disks), agent, 100)
    assert steps == 2**disks - 1 and rewards == 1
    distance = np.arange(steps, 0, -1)
    np.testing.assert_allclose([n["value"][0] for n in notes], 0.99 ** (distance - 1), rtol=1e-6)
    assert [n["target_distance"][0] for n in notes] == distance.tolist()
    assert notes[0]["graph_size"] == notes[0]["reachable_nodes"] == 3**disks and notes[0]["fringe_size"] == 0


def test_hanoi_with_a_small_budget() -> None:
    """Ten nodes a step see nothing of the goal at first; the search walks to its frontier, and beyond."""
    steps, rewards, notes = solve(Hanoi(5), BestFirstSearchAgent(use_value=False), 200)
    assert rewards == 1 and 31 <= steps < 100
    assert notes[0]["value"] == 0 and notes[-1]["value"] == 1
    assert all(n["graph_size"][0] <= 3**5 for n in notes)


def test_toy_mr_one_room() -> None:
    """Keys and doors cannot be undone: what was left behind is no longer a target, and the room is solved."""
    core = ToyMR("one_room")
    steps, rewards, notes = solve(core, BestFirstSearchAgent(use_value=False, avoid_history_coeff=-0.2), 300)
    assert rewards[0] > 0 and steps < 300
    assert any(n["reachable_nodes"][0] < n["graph_size"][0] for n in notes)


def test_a_column_alone_plans_as_among_others() -> None:
    """Caught mutation: random numbers drawn in the order of the batch, or by row instead of by column."""
    model = GraphModel(np.random.default_rng(3), 4, 20, 3)
    agent = BestFirstSearchAgent(n_nodes_per_step=2, top_level_epsilon=0.5, fringe="random")
    together, alone = agent.build(model, 4, 5), agent.build(model, 4, 5)
    every, two = np.arange(4), np.array([2])
    together.begin(every, 0)
    alone.begin(every, 0)
    states = (every * 20)[:, None]
    for _ in range(6):
        one = drive(alone.plan(Roots(two, states[two], states[two])), model.answer)
        many = drive(together.plan(Roots(every, states, states)), model.answer)
        assert one.action[0] == many.action[2]
        assert all(one.extras[name][0].tolist() == many.extras[name][2].tolist() for name in one.extras)
        assert many.extras["random_action"].dtype == bool and many.extras["value"].dtype == np.float32
        after, rewards, terminated = model.really(states, many.action)
        together.feedback(every, after, rewards, terminated & False)
        alone.feedback(two, after[two], rewards[two], terminated[two] & False)
        states = after


class CorridorModel(GraphModel):
    """States 0 … 9 in a row; 0 is a trap, 9 the goal. Actions: back, stay, on."""

    gives_bonus = False

    def __init__(self, edges: dict[tuple[int, int], int] | None = None):
        self.action_space = gym.spaces.Discrete(3)
        self.true = np.clip(np.arange(10)[:, None] + [-1, 0, 1], 0, 9)
        self.edges = self.true.copy()
        for (state, action), led in (edges or {}).items():
            self.edges[state, action] = led
        self.solved, self.terminal = np.arange(10) == 9, np.isin(np.arange(10), [0, 9])
        self.believed_terminal = self.terminal

    def step(self, states, actions, rng):
        stepped = yield from super().step(states, actions, rng)
        return Stepped(*stepped[:4])

    @property
    def bonus(self):
        return np.zeros((10, 3), np.float32)


def plan_one(planner, model, state: int):
    states = np.array([[state]])
    return drive(planner.plan(Roots(np.zeros(1, np.int64), states, states)))


def test_random_actions_keep_out_of_traps() -> None:
    """Beside the trap, "back" ends the episode unrewarded. Caught mutations: rewards, or ends, not looked at."""
    model = CorridorModel()
    taken = {avoid: set() for avoid in (True, False)}
    rewarded = set()
    for avoid in taken:
        agent = BestFirstSearchAgent(top_level_epsilon=1.0, epsilon_avoid_traps=avoid, use_value=False)
        planner = agent.build(model, 1, 3)
        planner.begin(np.zeros(1, np.int64), 0)
        for _ in range(60):
            plan = plan_one(planner, model, 1)
            assert plan.extras["random_action"][0]
            taken[avoid].add(int(plan.action[0]))
            rewarded.add(int(plan_one(planner, model, 8).action[0]))
    assert taken == {True: {1, 2}, False: {0, 1, 2}}
    assert 2 in rewarded  # an end with a reward is no trap


def test_a_plan_is_followed_only_on_its_path() -> None:
    """Carried off to where the plan does not lead, without any feedback. Caught mutation: a plan followed blindly."""
    model = CorridorModel()
    planner = BestFirstSearchAgent(n_nodes_per_step=30, use_value=False).build(model, 1, 1)
    planner.begin(np.zeros(1, np.int64), 0)
    assert [plan_one(planner, model, state).extras["target_distance"][0] for state in (4, 5, 2, 3, 7)] == [
        5,
        4,
        7,
        6,
        2,
    ]


def test_epsilon_is_the_share_of_random_actions() -> None:
    """The plan is "on" every time: other actions are random ones, two thirds of 30 %."""
    model = CorridorModel()
    planner = BestFirstSearchAgent(top_level_epsilon=0.3, use_value=False).build(model, 1, 1)
    planner.begin(np.zeros(1, np.int64), 0)
    plans = [plan_one(planner, model, 5) for _ in range(600)]
    random_share = np.mean([plan.extras["random_action"][0] for plan in plans])
    other_share = np.mean([plan.action[0] != 2 for plan in plans])
    assert abs(random_share - 0.3) < 0.06 and abs(other_share - 0.2) < 0.06


def test_a_false_loop_is_walked_around_once_corrected() -> None:
    """The model believes that "on" in 4 leads to 9: the search tries it once, learns better and goes on.

    Caught mutations: feedback that keeps the believed edge; one that forgets the reward it had promised.
    """
    model = CorridorModel({(4, 2): 9})
    planner = BestFirstSearchAgent(n_nodes_per_step=30, use_value=False).build(model, 1, 1)
    one = np.zeros(1, np.int64)
    planner.begin(one, 0)
    state, tried, values = 4, [], []
    for _ in range(6):
        plan = plan_one(planner, model, state)
        tried.append((state, int(plan.action[0])))
        values.append(float(plan.extras["value"][0]))
        after, rewards, terminated = model.really(np.array([[state]]), plan.action)
        planner.feedback(one, after, rewards, terminated)
        state = int(after[0, 0])
        if terminated[0]:
            break
    assert tried == [(4, 2), (5, 2), (6, 2), (7, 2), (8, 2)]
    np.testing.assert_allclose(values, [1, 0.99**3, 0.99**2, 0.99, 1], rtol=1e-6)
    four = planner.graph.nodes.find(one, model.keys(np.array([[4]])))
    assert planner.graph.nodes.rewards[four, 2] == 0
    assert planner.graph.nodes.states[planner.graph.nodes.edges[four, 2]][0, 0] == 5


def test_a_life_lost_bars_the_way() -> None:
    """The way on leads through 5, where a life turns out to be lost: afterwards no plan goes that way.

    Caught mutation: a node that reality has ended keeps its ways, although it was expanded before.
    """
    model = CorridorModel()
    planner = BestFirstSearchAgent(n_nodes_per_step=30, use_value=False).build(model, 1, 1)
    one = np.zeros(1, np.int64)
    planner.begin(one, 0)
    assert plan_one(planner, model, 4).extras["target_distance"] == 5
    planner.feedback(one, np.array([[5]]), np.zeros(1, np.float32), np.ones(1, bool))
    plan = plan_one(planner, model, 3)
    assert plan.extras["value"] == 0 and plan.extras["reachable_nodes"] == 6  # 0 to 5


def test_terminal_nodes_spend_no_budget() -> None:
    """From 1 with one node a step: 0 is terminal and never expanded. Caught mutation: it re-enters the fringe."""
    model, tape = CorridorModel(), Tape()
    planner = BestFirstSearchAgent(n_nodes_per_step=1, use_value=False).build(model, 1, 1, tape)
    planner.begin(np.zeros(1, np.int64), 0)
    for _ in range(8):
        plan_one(planner, model, 1)
    expanded = planner.graph.nodes.states[planner.graph.index.members[0, tape.expansions(0, 3)], 0]
    assert expanded.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert plan_one(planner, model, 1).extras["fringe_size"] == 0 and len(tape.steps) == 8


def test_listener_receives_every_expansion() -> None:
    """n_nodes_per_step passes of |A| steps each in every column, begun and ended together."""
    tape, core = Tape(), Hanoi(4)
    planner = BestFirstSearchAgent(n_nodes_per_step=10, use_value=False).build(CoreModel(core), 3, 0, tape)
    every = np.arange(3)
    planner.begin(every, 0)
    states = core.initial(3, np.random.default_rng(0))
    for _ in range(2):
        drive(planner.plan(Roots(every, states, core.observe(states))))
    assert np.bincount(np.concatenate(tape.begun)).tolist() == [20, 20, 20]
    assert np.concatenate(tape.begun).tolist() == np.concatenate(tape.ended).tolist()
    for steps in tape.steps:
        assert len(steps.columns) == len(steps.target) == len(steps.states) == 6 * len(np.unique(steps.columns))
    columns = np.concatenate([steps.columns for steps in tape.steps])
    assert np.bincount(columns).tolist() == [120, 120, 120]


def test_the_network_is_asked_once_of_each_state_and_only_if_needed() -> None:
    """Caught mutation: known or terminal nodes asked about again."""
    model = GraphModel(np.random.default_rng(0), 1, 30, 3)
    asked: list[int] = []

    def answer(request):
        asked.extend(request.inputs[:, 0].tolist())
        return model.answer(request)

    agent = BestFirstSearchAgent(n_nodes_per_step=4)
    assert agent.heads(model.action_space) == {"agent": {"value": 1}}
    planner = agent.build(model, 1, 0)
    one, states = np.zeros(1, np.int64), np.array([[0]])
    planner.begin(one, 0)
    for _ in range(5):
        plan = drive(planner.plan(Roots(one, states, states)), answer)
    nodes = planner.graph.nodes
    mine = nodes.of(0)
    assert sorted(asked) == sorted(nodes.states[mine[~nodes.terminal[mine]], 0].tolist())
    assert plan.extras["graph_size"] == len(mine) > len(asked) > 10
    for silent in ({"use_value": False}, {"top_level_heuristic": "solved_then_auxiliary_then_bonus"}):
        quiet = BestFirstSearchAgent(**silent)
        assert quiet.heads(model.action_space) == {}
        drive(quiet.build(model, 1, 0).plan(Roots(one, states, states)))


def test_a_heap_of_equal_keys_pops_positions_0_2_6_14() -> None:
    """What `fringe = 'artefact'` stands for. Caught mutation: nodes that compare by number."""
    heap: list = []
    for position in range(40):
        heapq.heappush(heap, HeapEntry(position))
    assert [heapq.heappop(heap).node for _ in range(4)] == [0, 2, 6, 14]


def test_ranks_compare_as_scores() -> None:
    """Caught mutation: no correction for the sign, under which −1 ranks above 1."""
    scores = np.array([-np.inf, -3.5, -1e-30, -0.0, 0.0, 1e-30, 0.25, 2.0, np.inf], np.float32)
    ranks = ordered(scores)
    assert (np.diff(ranks) >= 0).all() and ranks[3] == ranks[4] and len(set(ranks.tolist())) == 8
    assert ranks.min() >= 0 and ranks.max() < 2**32


def test_values_that_are_nan_are_the_worst() -> None:
    """Caught mutation: NaN taken as it is, which ranks above everything."""
    model = CorridorModel()
    planner = BestFirstSearchAgent(n_nodes_per_step=4).build(model, 1, 0)
    one, states = np.zeros(1, np.int64), np.array([[5]])
    planner.begin(one, 0)

    def answer(request):
        return {"value": np.where(request.inputs == 3, 0.5, np.nan).astype(np.float32)}

    with pytest.warns(UserWarning, match="NaN"):
        plan = drive(planner.plan(Roots(one, states, states)), answer)
    assert plan.action[0] == 0 and plan.extras["target_distance"][0] == 2


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"n_nodes_per_step": 0}, "BestFirstSearchAgent.n_nodes_per_step = 0 must be at least 1"),
        ({"gamma": 1.5}, "gamma = 1.5 must be from 0 to 1"),
        ({"top_level_epsilon": -0.1}, "top_level_epsilon = -0.1 must be from 0 to 1"),
        ({"expand_heuristic": "solved_then_index"}, "expand_heuristic = 'solved_then_index'"),
        ({"fringe": "heap"}, "fringe = 'heap'"),
        ({"fringe": "fifo", "expand_heuristic": "value"}, "has an effect only with"),
        ({"avoid_history_coeff": float("nan")}, "must be a finite number"),
    ],
)
def test_bad_numbers_are_refused(numbers: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BestFirstSearchAgent(**numbers)


def test_models_it_cannot_search_are_refused() -> None:
    agent = BestFirstSearchAgent(use_value=False)
    random_model = CoreModel(Hanoi(3))
    random_model.deterministic = False
    with pytest.raises(ConfigError, match="deterministic"):
        agent.build(random_model, 1, 0)
    continuous = CoreModel(CartPole())
    continuous.action_space = gym.spaces.Box(-1, 1, (1,))
    with pytest.raises(ConfigError, match="Discrete"):
        agent.build(continuous, 1, 0)
    with pytest.raises(ConfigError, match="bonuses"):
        BestFirstSearchAgent(expand_heuristic="bonus").build(CoreModel(Hanoi(3)), 1, 0)
