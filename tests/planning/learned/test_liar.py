"""A model that lies about one action: it says that nothing happens where the only way on begins, and is unsure of it.

A planner that trusts it never passes; one that verifies does, after 1 / (1 − rejection probability) visits on average.
With a memory of what was verified once is enough, for all columns and episodes; and who plans to verify goes there.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from packtrain.acting.planner_policy import PlannerPolicy
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError
from packtrain.hashing import digest
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTS, DeterministicMCTSAgent
from packtrain.planning.learned import LearnedModel
from packtrain.planning.model import Asking, CoreModel, Stepped
from packtrain.planning.planner import Agent, Plan, Planner, Roots
from packtrain.testing.path_hash import settle
from packtrain.types import Request

LENGTH, LIE = 6, 3  # of the corridor; the cell that seems to have no way on


class LyingCorridor:
    """Cells 0 … 5, actions 0 back and 1 on, a reward at the end; of cell 3 it says that action 1 changes nothing."""

    action_space = gym.spaces.Discrete(2)
    deterministic = True
    gives_bonus = True

    def __init__(self, doubt: float = 1.0, clears: bool = False, ends: tuple[int, ...] = ()):
        """Unsure of the lie by `doubt`; of `ends` it says that the episode ends there, unpaid."""
        self._doubt, self.clears_bonus, self._ends = np.float32(doubt), clears, ends

    def really(self, cells: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.clip(cells + np.where(actions == 1, 1, -1), 0, LENGTH - 1)

    def step(self, states: Any, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        lie = (states[:, 0] == LIE) & (actions == 1)
        after = np.where(lie, states[:, 0], self.really(states[:, 0], actions))
        over = after == LENGTH - 1
        bonus = np.where(lie, self._doubt, 0.1).astype(np.float32)
        return Stepped(after[:, None], over.astype(np.float32), over | np.isin(after, self._ends), over, bonus)
        yield

    def observe(self, states: Any) -> Any:
        return states.astype(np.float32)

    def keys(self, states: Any) -> np.ndarray:
        return digest(states)

    def legal(self, states: Any) -> None:
        return None


def visits_until_passed(agent: Agent, columns: int, steps: int = 60, doubt: float = 1.0) -> np.ndarray:
    """How often each column stood at the lie until it passed it; −1 if it never did."""
    model = LyingCorridor(doubt)
    planner = agent.build(model, columns, 5)
    every = np.arange(columns)
    planner.begin(every, 0)
    cells = np.zeros(columns, np.int64)
    visits, passed = np.zeros(columns, np.int64), np.zeros(columns, bool)
    for _ in range(steps):
        playing = np.flatnonzero(~passed)
        if not len(playing):
            break
        visits[playing] += cells[playing] == LIE
        states = cells[playing, None]
        plan = settle(planner.plan(Roots(playing, states, model.observe(states))), zeros)
        cells[playing] = model.really(cells[playing], plan.action)
        over = cells[playing] == LENGTH - 1
        planner.feedback(playing, cells[playing, None], over.astype(np.float32), over)
        passed[playing] |= cells[playing] > LIE
    return np.where(passed, visits, -1)


def zeros(request: Request) -> dict[str, np.ndarray]:
    return {"value": np.zeros((len(request.inputs), 1), np.float32)}


def agents(**rule: Any) -> list[Agent]:
    bonus = {"expand_heuristic": "bonus", "top_level_heuristic": "solved_then_auxiliary_then_bonus"}
    return [
        BestFirstSearchAgent(n_nodes_per_step=4, avoid_history_coeff=-0.2, **bonus, **rule),
        DeterministicMCTSAgent(n_passes=6, avoid_history_coeff=-0.2, avoid_top_level_loops=False, **rule),
    ]


@pytest.mark.parametrize(
    "agent",
    [agents()[0], DeterministicMCTSAgent(n_passes=6, avoid_history_coeff=-0.2)],
    ids=lambda agent: type(agent).__name__,
)
def test_a_planner_that_trusts_never_passes(agent: Agent) -> None:
    """The negative control. It does come to the lie: best-first search travels to what the model is unsure of."""
    assert (visits_until_passed(agent, 20) == -1).all()


@pytest.mark.parametrize("rejection", [0.0, 0.5, 0.75])
@pytest.mark.parametrize("which", [0, 1], ids=["BestFirstSearch", "MCTS"])
def test_a_planner_that_verifies_passes_after_some_visits(which: int, rejection: float) -> None:
    """1 / (1 − p) on average. Mutation: leave out the rejection, or the strict comparison with the quantile."""
    agent = agents(bonus_quantile_threshold=0.7, rejection_probability=rejection)[which]
    visits = visits_until_passed(agent, 200, steps=400)
    if which == 0:
        assert (visits > 0).all()
        assert visits.mean() == pytest.approx(1 / (1 - rejection), rel=0.2)
    else:  # it may pass by the plan, too
        assert (visits > 0).all() and visits.mean() <= 1.2 / (1 - rejection)


def test_a_model_that_is_equally_unsure_of_everything_is_never_checked() -> None:
    """The threshold is a quantile of what was met, and must be exceeded."""
    agent = agents(bonus_quantile_threshold=0.9, rejection_probability=0.0)[0]
    assert (visits_until_passed(agent, 10, doubt=0.1) == -1).all()


def test_verifying_needs_a_model_with_disagreement() -> None:
    """A simulator is sure of everything: one line."""
    for agent in agents(bonus_quantile_threshold=0.9):
        with pytest.raises(ConfigError, match="bonus"):
            agent.build(CoreModel(Hanoi(2)), 1, 0)


def test_without_a_quantile_nothing_is_verified() -> None:
    """Off is off: no rule is kept, and a level of noise for it is refused."""
    for agent in agents():
        planner = agent.build(LyingCorridor(), 1, 0)
        planner.begin(np.zeros(1, np.int64), 0)
        assert "verified" not in plan_at(planner, {0: LIE}).extras
        assert planner.lasting() == {}  # type: ignore[attr-defined]
    for kind in (BestFirstSearchAgent, DeterministicMCTSAgent):
        with pytest.raises(ConfigError, match=f"{kind.__name__}.noise_quantile = 0.9 needs .*: nothing is verified"):
            kind(noise_quantile=0.9)
        with pytest.raises(ConfigError, match=f"{kind.__name__}.noise_quantile = 2 must be"):
            kind(noise_quantile=2, bonus_quantile_threshold=0.9)


# -- what was really seen


def plan_at(planner: Planner, cells: dict[int, int], answer: Any = zeros) -> Plan:
    """Plan for columns that are in these cells: {column: cell}."""
    states = np.array(list(cells.values()))[:, None]
    return settle(planner.plan(Roots(np.array(list(cells)), states, states.astype(np.float32))), answer)


def tell(planner: Any, column: int, cell: int, action: int, after: int, terminated: bool = False) -> None:
    """Report one step to an environment's search."""
    told = (np.array([[cell]]), np.array([action]), np.array([[after]]), np.zeros(1, np.float32))
    planner.hear(np.array([column]), *told, np.array([terminated]))


def doubt_of(planner: Any, column: int, cell: int) -> float:
    """The largest bonus that a planner keeps of a cell."""
    key = digest(np.array([[cell]]))
    if isinstance(planner, DeterministicMCTS):
        node = planner.graph.nodes.find(planner.labels[[column]], key)
        return float(planner.graph.edges.bonus[planner.graph.nodes.edge_row[node]].max())
    return float(planner.graph.nodes.bonus[planner.graph.nodes.find(np.array([column]), key)].max())


TRUSTING = [agents()[0], DeterministicMCTSAgent(n_passes=6, avoid_history_coeff=-0.2)]


@pytest.mark.parametrize("clears", [False, True], ids=["graph", "cleared"])
@pytest.mark.parametrize("agent", TRUSTING, ids=lambda agent: type(agent).__name__)
def test_a_reported_path_is_taken_at_once(agent: Agent, clears: bool) -> None:
    """Searches that lack the cell, or have not expanded it, are left as they are.

    Mutations: correct the column of another number; the edge left where it was; a bonus cleared that is to stay.
    """
    planner: Any = agent.build(LyingCorridor(clears=clears), 4, 0)
    planner.begin(np.arange(4), 0)
    assert plan_at(planner, {0: LIE, 1: LIE}).action.tolist() == [0, 0]
    nodes = len(planner.graph.nodes)
    tell(planner, 2, LIE, 1, LIE + 1)
    tell(planner, 1, LIE + 1, 1, LIE + 2, True)  # a cell that it does not know
    assert len(planner.graph.nodes) == nodes
    tell(planner, 1, LIE, 1, LIE + 1)
    assert plan_at(planner, {0: LIE, 1: LIE}).action.tolist() == [0, 1]
    assert doubt_of(planner, 0, LIE) == 1 and doubt_of(planner, 1, LIE) == (np.float32(0.1) if clears else 1)


def test_who_has_not_expanded_a_cell_learns_nothing_of_its_ways() -> None:
    """They come with the expansion. Mutation: correct whatever is known, and nodes are made that nothing leads to."""
    for agent in (BestFirstSearchAgent(n_nodes_per_step=1, use_value=False), DeterministicMCTSAgent(n_passes=1)):
        planner: Any = agent.build(LyingCorridor(), 1, 0)
        planner.begin(np.zeros(1, np.int64), 0)
        plan_at(planner, {0: 1})
        tell(planner, 0, 2, 1, 4)
        assert len(planner.graph.nodes) == 3


@pytest.mark.parametrize("which", [0, 1], ids=["BestFirstSearch", "MCTS"])
@pytest.mark.parametrize("clears", [False, True], ids=["graph", "cleared"])
def test_a_step_clears_its_disagreement(which: int, clears: bool) -> None:
    """If the model says so; otherwise the same action is proposed again and again. Mutation: clear all of the node."""
    agent = agents(bonus_quantile_threshold=0.7, rejection_probability=0.0)[which]
    planner: Any = agent.build(LyingCorridor(clears=clears), 1, 0)
    planner.begin(np.zeros(1, np.int64), 0)
    looked = []
    for _ in range(4):
        plan = plan_at(planner, {0: LIE})
        looked.append(bool(plan.extras["verified"][0]))
        after = LIE + 1 if plan.action[0] == 1 else LIE - 1
        planner.feedback(np.zeros(1, np.int64), np.array([[after]]), np.zeros(1, np.float32), np.zeros(1, bool))
        if len(looked) == 1:
            assert doubt_of(planner, 0, LIE) == (np.float32(0.1) if clears else 1)
    assert looked == ([True, False, False, False] if clears else [True] * 4)


@pytest.mark.parametrize("which", [0, 1], ids=["BestFirstSearch", "MCTS"])
@pytest.mark.parametrize("clears", [False, True], ids=["graph", "cleared"])
def test_noise_is_what_came_as_predicted_each_step_once(which: int, clears: bool) -> None:
    """The lie is no such thing, also when the corrected edge is taken again. It is saved and goes on.

    Mutations: confirm what a correction says; confirm a step each time it is made; confirm all steps.
    """
    rule = {"bonus_quantile_threshold": 0.7, "rejection_probability": 0.3, "noise_quantile": 1.0}
    agent = agents(**rule)[which]
    planner: Any = agent.build(LyingCorridor(clears=clears), 1, 0)
    planner.begin(np.zeros(1, np.int64), 0)
    steps, cells = [], [LIE, LIE, LIE - 1, LIE - 2] * 8
    for cell in cells:
        action = int(plan_at(planner, {0: cell}).action[0])
        steps.append((cell, action))
        after = np.clip(cell + (1 if action else -1), 0, LENGTH - 1)
        planner.feedback(np.zeros(1, np.int64), np.array([[after]]), np.zeros(1, np.float32), np.zeros(1, bool))
    assert steps.count((LIE, 1)) > 1, "the lie was tried, and the edge taken again"
    honest = set(steps) - {(LIE, 1)}
    assert planner.lasting()["confirmed"].tolist() == [np.float32(0.1)] * len(honest)
    later: Any = agent.build(LyingCorridor(), 1, 0)
    later.restore(planner.lasting())
    assert later.lasting()["confirmations"] == len(honest)
    level = {"confirmed": np.full(256, 1.0, np.float32), "confirmations": 256}
    for lasting, looks in ((level, False), (level | {"confirmations": 255}, True)):
        one: Any = agents(**rule | {"rejection_probability": 0.0})[which].build(LyingCorridor(), 1, 0)
        one.restore(lasting)
        one.begin(np.zeros(1, np.int64), 0)
        assert plan_at(one, {0: LIE}).extras["verified"].tolist() == [looks]


class Asked:
    """A network that writes down the cells it is asked about; cell 0 is worth 0.1, cell 1 0.2, and so on."""

    def __init__(self) -> None:
        self.cells: list[int] = []

    def __call__(self, request: Request) -> dict[str, np.ndarray]:
        self.cells += request.inputs[:, 0].astype(int).tolist()
        return {"value": (request.inputs + 1) / 10}


def kept(planner: DeterministicMCTS, cell: int) -> dict[str, Any]:
    """What the graph of environment 0 contains of a cell."""
    nodes = planner.graph.nodes
    node = nodes.find(planner.labels[[0]], digest(np.array([[cell]])))[0]
    expanded, terminal = bool(nodes.edge_row[node] >= 0), bool(nodes.terminal[node])
    return {"total": nodes.total[node], "count": nodes.count[node], "terminal": terminal, "expanded": expanded}


@pytest.mark.parametrize("by", ["hearing", "going"])
def test_an_end_that_is_none(by: str) -> None:
    """Cell 2 is thought to be an end; it gets the network's value, once, and ways on.

    Mutations: leave its value 0 without a request; request only values of roots.
    """
    planner = DeterministicMCTSAgent(n_passes=1, avoid_termination=True).build(LyingCorridor(ends=(2,)), 1, 0)
    planner.begin(np.zeros(1, np.int64), 0)
    asked = Asked()
    plan_at(planner, {0: 1}, asked)
    assert kept(planner, 2) == {"total": 0, "count": 1, "terminal": True, "expanded": False} and 2 not in asked.cells
    if by == "hearing":
        tell(planner, 0, 1, 1, 2)
        plan = plan_at(planner, {0: 1}, asked)
        assert plan.action.tolist() == [1] and kept(planner, 2)["expanded"]
    else:
        planner._last_action[:] = 1
        planner.feedback(np.zeros(1, np.int64), np.array([[2]]), np.zeros(1, np.float32), np.zeros(1, bool))
        plan = plan_at(planner, {0: 2}, asked)
        assert plan.extras["initial_value"] == pytest.approx([0.3])
    two = kept(planner, 2)
    assert not two["terminal"] and (two["total"], two["count"]) == (pytest.approx(0.3), 1)
    assert asked.cells.count(2) == 1


@pytest.mark.parametrize("avoids", [False, True])
def test_an_unpredicted_end(avoids: bool) -> None:
    """Cell 2, of which much was thought, ends the episode: worth 0, without ways on, and not gone to.

    Mutations: keep its value; keep its index; keep its edges, and passes go on behind it.
    """
    agent = DeterministicMCTSAgent(n_passes=3, avoid_termination=avoids, dead_end_value=0.1)
    planner = agent.build(LyingCorridor(), 1, 0)
    planner.begin(np.zeros(1, np.int64), 0)
    asked = Asked()
    assert plan_at(planner, {0: 1}, asked).action.tolist() == [1] and kept(planner, 2)["total"] > 0.3
    tell(planner, 0, 1, 1, 2, True)
    assert kept(planner, 2) == {"total": 0, "count": 1, "terminal": True, "expanded": False}
    plan = plan_at(planner, {0: 1}, asked)
    assert plan.action.tolist() == [0] and plan.extras["qualities"][0, 1] == 0
    assert kept(planner, 2) == {"total": 0, "count": 1, "terminal": True, "expanded": False}


def test_values_of_reported_cells_are_requested() -> None:
    """New ones, by the next plan of the environment that got the report, once, and not after a new episode.

    Mutations: no request; a request in every plan; requests for nodes that belong to another environment by now.
    """
    searches = [
        BestFirstSearchAgent(n_nodes_per_step=1, expand_heuristic="value", top_level_heuristic="value"),
        DeterministicMCTSAgent(n_passes=1),
    ]
    for agent in searches:
        planner: Any = agent.build(LyingCorridor(), 3, 0)
        planner.begin(np.arange(3), 0)
        asked = Asked()
        plan_at(planner, {0: LIE, 1: LIE, 2: LIE}, asked)
        for column in range(3):
            tell(planner, column, LIE, 1, LIE + 1)
            tell(planner, column, LIE, 1, LIE + 1)
        planner.begin(np.array([2]), 0)
        asked.cells.clear()
        plan_at(planner, {0: LIE}, asked)
        assert asked.cells.count(LIE + 1) == 1
        plan_at(planner, {0: LIE}, asked)
        assert asked.cells.count(LIE + 1) == 1
        plan_at(planner, {1: LIE - 1, 2: LIE - 1}, asked)
        assert asked.cells.count(LIE + 1) == 2 and not planner._unrated.size


class Corridor:
    """The world of which the model lies; episodes begin in cells 0 to 2."""

    observation_space: gym.Space = gym.spaces.Box(0, LENGTH - 1, (1,), np.float32)
    action_space: gym.Space = gym.spaces.Discrete(2)
    max_steps = None

    def initial(self, n: int, rng: np.random.Generator) -> Any:
        return np.arange(n) % 3

    def step(self, states: Any, actions: Any, rng: np.random.Generator) -> Any:
        after = np.clip(states + np.where(actions == 1, 1, -1), 0, LENGTH - 1)
        over = after == LENGTH - 1
        return after, over.astype(np.float32), over, {"solved": over}

    def observe(self, states: Any) -> Any:
        return states[:, None].astype(np.float32)


class LyingNetwork(nn.Module):
    """An ensemble of two that tell the same lie, disagree about it, and about nothing else."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        cells, actions = inputs["obs"][:, 0], inputs["action"]
        lie = (cells == LIE) & (actions == 1)
        after = torch.where(lie, cells, (cells + 2 * actions - 1).clamp(0, LENGTH - 1))
        apart = torch.where(lie, 0.4, 0.0)
        delta = torch.stack([after - cells - apart, after - cells + apart], 1)[..., None]
        over = torch.where(after == LENGTH - 1, 9.0, -9.0)[:, None].expand(-1, 2)
        return {"delta": delta, "reward": over, "terminated": over}


def lie_is_tried(which: int, verified: str, columns: int = 3, rows: int = 60) -> list[tuple[int, int, int, bool, bool]]:
    """What columns did where the lie is: (row, column, episode, went on, verified)."""
    bonus = {"expand_heuristic": "bonus", "top_level_heuristic": "solved_then_auxiliary_then_bonus"}
    rule: dict[str, Any] = {"bonus_quantile_threshold": 0.7, "rejection_probability": 0.0, "avoid_history_coeff": -0.2}
    agent = [
        BestFirstSearchAgent(n_nodes_per_step=4, **bonus, **rule),
        DeterministicMCTSAgent(n_passes=6, use_value_network=False, **rule),
    ][which]
    stream = Stream(FunctionalVectorEnv(Corridor(), columns, 0, "raise", "test", True, None), columns)
    network = nn.ModuleDict({"model": LyingNetwork()})
    model = LearnedModel(2, None, verified_edges=verified)  # type: ignore[arg-type]
    actor_state = PlannerPolicy(agent, network, torch.device("cpu"), 0, model=model).actor_state(stream)
    episode, seen = np.full(columns, -1), []
    for index in range(rows):
        row = stream.recv() if index else stream.start()
        episode += np.asarray(row.first)
        here = (row.obs[:, 0] == LIE) & ~row.terminated
        decision = actor_state.act(row)
        for column in np.flatnonzero(here):
            went, looked = decision.action[column] == 1, decision.extras["verified"][column]
            seen.append((index, int(column), int(episode[column]), bool(went), bool(looked)))
        stream.send(decision.action)
    return seen


@pytest.mark.parametrize("which", [0, 1], ids=["BestFirstSearch", "MCTS"])
def test_a_step_verified_in_one_environment_counts_for_all(which: int) -> None:
    """Without rejection the wrong prediction is verified at the first visit of the first environment, and never again.

    With separate graphs, every environment verifies it in every episode. Mutations: no reports to the others; the model
    does not store the step.
    """
    seen = lie_is_tried(which, "run")
    assert {column for _, column, *_ in seen} == {0, 1, 2} and max(episode for _, _, episode, *_ in seen) >= 3
    assert all(went for *_, went, _ in seen), "everybody passes at once"
    first = seen[0][0]
    assert [looked for *_, looked in seen] == [row == first for row, *_ in seen]
    alone = lie_is_tried(which, "graph")
    visits: dict[tuple[int, int], list[bool]] = {}
    for _, column, episode, _, looked in alone:
        visits.setdefault((column, episode), []).append(looked)
    assert len(visits) > 4 and all(looks[0] for looks in visits.values())


# -- going there on purpose


class Doubtful:
    """A correct corridor of 8 cells with disagreements {(cell, action): bonus}; cell 7 ends it, rewarded if `pays`."""

    action_space = gym.spaces.Discrete(2)
    deterministic = gives_bonus = clears_bonus = True

    def __init__(self, doubts: dict[tuple[int, int], float], pays: bool = False):
        self._bonus = np.zeros((8, 2), np.float32)
        for place, doubt in doubts.items():
            self._bonus[place] = doubt
        self.pays = pays

    def step(self, states: Any, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        after = np.clip(states[:, 0] + np.where(actions == 1, 1, -1), 0, 7)
        over = (after == 7) & self.pays
        return Stepped(after[:, None], over.astype(np.float32), over, over, self._bonus[states[:, 0], actions])
        yield

    def observe(self, states: Any) -> Any:
        return states.astype(np.float32)

    def keys(self, states: Any) -> np.ndarray:
        return digest(states)

    def legal(self, states: Any) -> None:
        return None


def tour(model: Doubtful, steps: int = 40, lasting: Any = None, **settings: Any) -> tuple[list[int], list[Any]]:
    """The cells that a planner comes by, from 0, and (step, cell, action) of what it verified."""
    agent = BestFirstSearchAgent(
        n_nodes_per_step=20, plan_to_verify=True, rejection_probability=0.0, avoid_history_coeff=-0.2, **settings
    )
    planner = agent.build(model, 1, 0)
    column, cell, cells, looked = np.zeros(1, np.int64), 0, [0], []
    if lasting:
        planner.restore(lasting)
    planner.begin(column, 0)
    for step in range(steps):
        plan = plan_at(planner, {0: cell})
        if plan.extras["verified"][0]:
            looked.append((step, cell, int(plan.action[0])))
        stepped = settle(model.step(np.array([[cell]]), plan.action, np.random.default_rng(0)), zeros)
        planner.feedback(column, stepped.states, stepped.rewards, stepped.terminated)
        cell = int(stepped.states[0, 0])
        cells.append(cell)
        if stepped.terminated[0]:
            break
    return cells, looked


@pytest.mark.parametrize("heuristic", ["solved_then_auxiliary_then_bonus", "neg_distance", "solved_then_index"])
def test_plans_to_verify_go_where_the_disagreement_is_largest(heuristic: Any) -> None:
    """Straight there, the largest first, and never twice.

    Mutations: the nearest first; verify on the way; do not rank a node again when its disagreement is cleared.
    """
    cells, looked = tour(Doubtful({(2, 0): 1.0, (5, 0): 5.0, (6, 1): 0.3}), top_level_heuristic=heuristic)
    assert cells[:16] == [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 2, 3, 4, 5, 6, 7]
    assert looked == [(5, 5, 0), (8, 2, 0), (14, 6, 1)]


def test_disagreements_within_the_octaves_count_as_equal() -> None:
    """Then the nearest is verified first. Mutation: octaves without effect."""
    doubts = {(2, 0): 1.0, (5, 0): 5.0, (6, 1): 0.3}
    for octaves, order in ((0, [2, 5, 6]), (1, [5, 2, 6]), (100, [2, 5, 6]), (1000, [2, 5, 6])):
        _, looked = tour(Doubtful(doubts), doubt_octaves=octaves)
        assert [place[1] for place in looked] == order, octaves
    with pytest.raises(ConfigError, match="BestFirstSearchAgent.doubt_octaves = -1 must not be negative"):
        BestFirstSearchAgent(doubt_octaves=-1)


def test_a_path_to_a_solution_goes_before_all_disagreements() -> None:
    """It is not left in order to verify. Mutation: solved below disagreement in a node's rank."""
    cells, looked = tour(Doubtful({(2, 0): 0.3, (0, 0): 5.0}, pays=True), use_value=False)
    assert cells == list(range(8)) and looked == []


def test_plans_to_verify_leave_noise_alone() -> None:
    """A disagreement at the noise level is no target. Mutation: noise in the rule, but not in a node's rank."""
    lasting = {"confirmed": np.full(256, 1.0, np.float32), "confirmations": 256}
    doubts = Doubtful({(2, 0): 1.0, (5, 0): 5.0})
    cells, looked = tour(doubts, lasting=lasting, noise_quantile=0.9)
    assert [place[1:] for place in looked] == [(5, 0)] and 7 in cells
    _, looked = tour(doubts, noise_quantile=0.9)
    assert [place[1:] for place in looked] == [(5, 0), (2, 0)]


def test_planning_to_verify_needs_disagreements_that_can_be_cleared() -> None:
    """Otherwise the same place would be verified forever."""
    with pytest.raises(ConfigError, match="plan_to_verify needs LearnedModel.verified_edges = 'episode' or 'run'"):
        BestFirstSearchAgent(plan_to_verify=True).build(LyingCorridor(), 1, 0)
    with pytest.raises(ConfigError, match="'plan_to_verify', which needs a model that gives bonuses"):
        BestFirstSearchAgent(plan_to_verify=True).build(CoreModel(Hanoi(2)), 1, 0)


# -- what a lie is decoded to


class HesitantNetwork(nn.Module):
    """Predicts the tower of Hanoi with 2 disks, but that the large one half leaves its peg and arrives at no other."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        core, obs, actions = Hanoi(2), inputs["obs"].numpy(), inputs["action"].numpy()
        pegs = obs.reshape(len(obs), 2, 3)
        possible = (pegs.sum(axis=2) == 1).all(axis=1)
        after, _, over, _ = core.step(pegs.argmax(axis=2).astype(np.uint8), actions, np.random.default_rng(0))
        delta = np.where(possible[:, None], core.observe(after) - obs, 0)  # nothing follows an impossible state
        delta[:, 3:] *= np.where(delta[:, 3:] < 0, 0.6, 0.3)  # to 0.4 and 0.3
        ends = np.where(over & possible, 9.0, -9.0)[:, None].repeat(2, axis=1)
        answer = {"delta": delta[:, None].repeat(2, axis=1), "reward": ends, "terminated": ends}
        return {name: torch.from_numpy(each.astype(np.float32)) for name, each in answer.items()}


@pytest.mark.parametrize("factored", [True, False], ids=["one peg", "rounded"])
def test_a_planner_that_trusts_passes_a_lie_only_if_it_is_rounded_to_an_impossible_state(factored: bool) -> None:
    """Decoded to one peg, a half-hearted move is a false loop; rounded, it leads to a new state, and so is tried.

    This is what the published controls explore by. Mutation: decode factors together whatever `factored` is.
    """
    stream = Stream(FunctionalVectorEnv(Hanoi(2), 2, 0, "raise", "test", True, 30), 2)
    model = LearnedModel(2, None, factored=factored)
    network = nn.ModuleDict({"model": HesitantNetwork()})
    actor_state = PlannerPolicy(agents()[0], network, torch.device("cpu"), 0, model=model).actor_state(stream)
    moved, small = np.zeros(2, bool), set()
    for index in range(60):
        row = stream.recv() if index else stream.start()
        moved |= row.obs[:, 3] == 0  # the large disk is not on the first peg
        small |= set(row.obs[:, :3].argmax(axis=1).tolist())
        stream.send(actor_state.act(row).action)
    assert small == {0, 1, 2}, "it goes wherever it knows a way"
    assert (moved == (not factored)).all()
