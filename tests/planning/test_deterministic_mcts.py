"""Deterministic MCTS: against its plain twin, by hand, and against exhaustive search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from packtrain import trees
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.sokoban import Sokoban
from packtrain.errors import ConfigError, DivergedError
from packtrain.hashing import digest
from packtrain.planning import deterministic_mcts
from packtrain.planning.deterministic_mcts import DeterministicMCTS, DeterministicMCTSAgent, pass_words
from packtrain.planning.events import ModelSteps
from packtrain.planning.mcts_graph import tie_words
from packtrain.planning.model import Asking, CoreModel, Stepped
from packtrain.planning.node_values import EnsembleValue, ScalarValue
from packtrain.planning.planner import Plan, Roots
from packtrain.testing.path_hash import PathHash, settle
from packtrain.testing.plain_deterministic_mcts import PlainDeterministicMCTS
from packtrain.types import Request

COLUMN = np.zeros(1, np.int64)


class Drawn:
    """A model given by tables: state s goes to after[s, a] and pays rewards[s, a]; observations are the states."""

    deterministic = True

    def __init__(self, after: list[list[int]], rewards: list[list[float]], terminal: tuple[int, ...] = ()):
        self.after, self.rewards = np.array(after), np.array(rewards, np.float32)
        self.terminal = np.isin(np.arange(len(after)), terminal)
        self.action_space: gym.Space = gym.spaces.Discrete(self.after.shape[1])
        self.stepped: list[int] = []  # states that were stepped from

    def step(self, states: Any, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        self.stepped += states.tolist()
        after = self.after[states, actions]
        ended = self.terminal[after]
        return Stepped(after, self.rewards[states, actions], ended, ended)
        yield

    def observe(self, states: Any) -> Any:
        return states

    def keys(self, states: Any) -> np.ndarray:
        return digest(states)

    def legal(self, states: Any) -> None:
        return None


def table(values: list[float]) -> Callable[[Request], dict[str, np.ndarray]]:
    """A network that outputs the true value of each state."""
    return lambda request: {"value": np.array(values, np.float32)[request.inputs][:, None]}


def zeros(request: Request) -> dict[str, np.ndarray]:
    return {"value": np.zeros((len(trees.front(request.inputs)), 1), np.float32)}


def plan_from(planner: DeterministicMCTS, state: int, answer: Callable = zeros) -> Plan:
    return settle(planner.plan(Roots(COLUMN, np.array([state]), np.array([state]))), answer)


def known(planner: DeterministicMCTS, state: int, column: int = 0) -> dict[str, Any]:
    """What is known of a state."""
    node = planner.graph.nodes.find(planner.labels[[column]], digest(np.array([state])))[0]
    assert node >= 0
    row = planner.graph.nodes.edge_row[node]
    total, count = planner.graph.nodes.total[node], planner.graph.nodes.count[node]
    return {"total": total, "count": count, "visits": planner.graph.edges.visits[row].tolist() if row >= 0 else None}


# -- by hand


DIAMOND = Drawn(  # two ways from 0 to 3, loops at 1 and 2, the end behind 3
    after=[[1, 2], [3, 0], [3, 2], [4, 1], [4, 4]],
    rewards=[[0, 1], [0, 0], [2, 0], [4, 0], [9, 9]],
    terminal=(4,),
)


def test_golden_transposition() -> None:
    """Five passes by hand, gamma 1/2, network values 0 4 1 2.

    1 expands 0. 2 goes 0 → 1 (.5·4 against 1 + .5·1) and backs up V(1) = 4: 2 for state 0. 3 goes 0 → 1 → 3, as 0 is a
    loop: V(3) = 2 gives 1 for state 1, .5 for 0. 4 goes to 2 (1.5 against .5 · (4 + 1)/2) and finds 3 known: V(2) = 1
    gives 1.5 for 0. 5 goes 0 → 2 → 3, through the node made from 1, → 4, the end: 4 for 3, 2 + .5·4 = 4 for 2, 3 for 0.
    Mutations: back up the best child instead of the leaf's own value, add to the leaf too, ask again for state 3.
    """
    planner = DeterministicMCTSAgent(gamma=0.5, n_passes=5).build(DIAMOND, 1, 0)
    asked: list[int] = []

    def answer(request: Request) -> dict[str, np.ndarray]:
        asked.extend(request.inputs.tolist())
        return table([0, 4, 1, 2, 99])(request)

    plan = plan_from(planner, 0, answer)
    assert asked == [0, 1, 2, 3]
    assert known(planner, 0) == {"total": 0 + 2 + 0.5 + 1.5 + 3, "count": 5, "visits": [2, 2]}
    assert known(planner, 1) == {"total": 4 + 1, "count": 2, "visits": [1, 0]}
    assert known(planner, 2) == {"total": 1 + 4, "count": 2, "visits": [1, 0]}
    assert known(planner, 3) == {"total": 2 + 4, "count": 2, "visits": [1, 0]}
    assert known(planner, 4) == {"total": 0, "count": 1, "visits": None}
    assert plan.action.tolist() == [1]
    want = {
        "graph_size": [5],
        "value": [1.4],
        "initial_value": [0],
        "qualities": [[0.5 * 2.5, 1 + 0.5 * 2.5]],
        "index": [[2.5, 2.5]],
        "visits": [[2, 2]],
        "action_histogram": [[0.5, 0.5]],
        "random_action": [False],
        "depth_mean": [(0 + 1 + 2 + 1 + 3) / 5],
        "depth_max": [3],
    }
    assert plan.extras.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(plan.extras[name], value, err_msg=name)
        assert plan.extras[name].dtype in (np.float32, np.int64, bool)


def test_golden_loop_and_dead_end() -> None:
    """A pass avoids its own states, however well they pay; where all actions lead back it backs up the dead end.

    1 expands 0, 2 goes 0 → 1 and expands it, 3 ends in 1: −2 for 1, −1 for 0. Mutation: leave the mark of the path out,
    and pass 2 stays at 0, which pays 5.
    """
    model = Drawn(after=[[1, 0], [0, 1]], rewards=[[0, 5], [7, 7]])
    planner = DeterministicMCTSAgent(gamma=0.5, n_passes=3).build(model, 1, 0)
    plan = plan_from(planner, 0)
    assert known(planner, 1) == {"total": -2, "count": 2, "visits": [0, 0]}
    assert known(planner, 0) == {"total": 0 - 1, "count": 3, "visits": [2, 0]}
    assert plan.action.tolist() == [0], "an action that changes nothing is not played"
    trusting = DeterministicMCTSAgent(gamma=0.5, n_passes=3, avoid_top_level_loops=False).build(model, 1, 0)
    assert plan_from(trusting, 0).action.tolist() == [1]


def test_loops_end_a_pass_where_they_are_allowed() -> None:
    """Without loop avoidance a pass back at 0 takes the value of 0 from there, and comes to an end."""
    model = Drawn(after=[[1, 0], [0, 1]], rewards=[[0, 5], [7, 7]])
    planner = DeterministicMCTSAgent(gamma=0.5, n_passes=3, avoid_loops=False).build(model, 1, 0)
    plan_from(planner, 0)
    first = 5 + 0.5 * 0
    assert known(planner, 0) == {"total": first + (5 + 0.5 * first / 2), "count": 3, "visits": [0, 2]}


def test_where_nothing_changes_all_actions_are_possible() -> None:
    """A root all of whose actions lead back to it, or to an end that is avoided: then it stays.

    Mutation: drop the fall-back, and the loops are refused together with the end.
    """
    planner = DeterministicMCTSAgent(n_passes=2).build(Drawn([[0, 0, 0]], [[0, 0, 0]]), 1, 0)
    assert {int(plan_from(planner, 0).action[0]) for _ in range(30)} == {0, 1, 2}
    model = Drawn([[1, 0], [1, 1]], [[0, -1], [0, 0]], terminal=(1,))
    planner = DeterministicMCTSAgent(n_passes=2, avoid_termination=True).build(model, 1, 0)
    assert {int(plan_from(planner, 0).action[0]) for _ in range(10)} == {1}


def test_termination_is_avoided_where_it_can_be() -> None:
    """An end that pays nothing is left out, in passes and at the top, unless all actions lead there."""
    model = Drawn([[2, 1], [2, 2], [2, 2]], [[0, -1], [0, 0], [0, 0]], terminal=(2,))
    brave = DeterministicMCTSAgent(n_passes=4).build(model, 1, 0)
    assert plan_from(brave, 0).action.tolist() == [0]
    careful = DeterministicMCTSAgent(n_passes=4, avoid_termination=True, gamma=0.5).build(model, 1, 0)
    assert plan_from(careful, 0).action.tolist() == [1]
    assert known(careful, 1)["total"] == -4, "passes 3 and 4 find a dead end at 1"
    careful.begin(COLUMN, 0)
    assert {int(plan_from(careful, 1).action[0]) for _ in range(20)} == {0, 1}


LINE = Drawn([[1, 0], [2, 0], [3, 0], [4, 0], [4, 4]], [[1, 0], [2, 0], [4, 0], [8, 0], [9, 9]], terminal=(4,))


@pytest.mark.parametrize("leaves", [1, 2, 3])
def test_golden_shooting(leaves: int) -> None:
    """Passes along a line 0 1 2 3 4 that pay 1 2 4 8, gamma 1/2, V(s) = s: k leaves a pass.

    With k = 1 three passes back up V(1) and V(2). With k = 2 the first of two goes 0, 1 and backs up V(1), the second
    2, 3 and backs up V(3) with three rewards. With k = 3 the second expands 3, goes to the end and backs up 0, once.
    Mutations: step once more beyond the last leaf; keep V(3) when the end comes; back up the end once for each leaf.
    """
    agent = DeterministicMCTSAgent(gamma=0.5, n_passes=2 if leaves > 1 else 3, n_leaves_to_expand=leaves)
    planner = agent.build(LINE, 1, 0)
    plan_from(planner, 0, table([0, 1, 2, 3, 99]))
    want = {
        1: [(0 + (1 + 0.5) + (1 + 1 + 0.5), 3), (1 + (2 + 1), 2), (2, 1), None],
        2: [(0 + (1 + 0.5) + (1 + 1 + 1 + 0.375), 3), (1 + (2 + 2 + 0.75), 2), (2 + (4 + 1.5), 2), (3, 1)],
        3: [(0 + (1 + 1 + 0.5) + (1 + 1 + 1 + 1), 3), (1 + (2 + 1) + (2 + 2 + 2), 3), (2 + (4 + 4), 2), (3 + 8, 2)],
    }[leaves]
    for state, expected in enumerate(want):
        if expected is not None:
            assert (known(planner, state)["total"], known(planner, state)["count"]) == expected, state


def test_golden_shooting_with_intermediate_backups() -> None:
    """One pass with 3 leaves: V(1) and V(2) are backed up on the way, the root is counted for both."""
    agent = DeterministicMCTSAgent(
        gamma=0.5, n_passes=1, n_leaves_to_expand=3, backpropagate_intermediate_expansion=True
    )
    planner = agent.build(LINE, 1, 0)
    plan = plan_from(planner, 0, table([0, 1, 2, 3, 99]))
    assert known(planner, 0) == {"total": 0 + (1 + 0.5) + (1 + 1 + 0.5), "count": 3, "visits": [2, 0]}
    assert known(planner, 1) == {"total": 1 + (2 + 1), "count": 2, "visits": [1, 0]}
    assert plan.extras["depth_max"].tolist() == [2]


def test_history_is_avoided_and_random_actions_do_not_count() -> None:
    """The root's index falls by the coefficient each time it is planned from, its target does not."""
    model = Drawn([[1, 1], [0, 0]], [[0, 0], [0, 0]])
    agent = DeterministicMCTSAgent(n_passes=1, avoid_history_coeff=-0.25, gamma=1.0, dead_end_value=0.0)
    planner = agent.build(model, 1, 0)
    for times in (1, 2, 3):
        plan_from(planner, 0)
        plan = plan_from(planner, 1)
        np.testing.assert_allclose(plan.extras["index"], [[-0.25 * times] * 2])
        assert plan.extras["value"].tolist() == [0]
    at_random = DeterministicMCTSAgent(
        n_passes=1, avoid_history_coeff=-0.25, top_level_epsilon=1.0, dead_end_value=0.0
    ).build(model, 1, 0)
    actions = {int(plan_from(at_random, 0).action[0]) for _ in range(20)}
    plan = plan_from(at_random, 1)
    assert actions == {0, 1} and plan.extras["random_action"].all()
    np.testing.assert_allclose(plan.extras["index"], 0, atol=1e-12)


def test_feedback_corrects_the_edge_taken() -> None:
    """Reality leads to 2 and pays 3 where the model said 1 and 0; and 2 is no end."""
    model = Drawn([[1, 1], [1, 1], [0, 0]], [[0, 0], [0, 0], [0, 0]], terminal=(2,))
    planner = DeterministicMCTSAgent(n_passes=2, gamma=0.5).build(model, 1, 0)
    planner.feedback(COLUMN, np.array([2]), np.array([9.0]), np.array([False]))  # before any plan: nothing to correct
    action = plan_from(planner, 0, table([0, 1, 8])).action
    planner.feedback(COLUMN, np.array([2]), np.array([3.0]), np.array([False]))
    plan_from(planner, 2, table([0, 1, 8]))
    assert known(planner, 2)["total"] == 8 + 0.5 * (0.5 * -2), "2 → 0, from there 2 is a loop, → 1, a dead end"
    plan = plan_from(planner, 0, table([0, 1, 8]))
    assert plan.action == action
    two = known(planner, 2)
    np.testing.assert_allclose(plan.extras["qualities"][0, action[0]], 3 + 0.5 * two["total"] / two["count"])
    planner.feedback(COLUMN, np.array([2]), np.array([3.0]), np.array([True]))
    before = known(planner, 2)
    plan_from(planner, 0, table([0, 1, 8]))
    assert known(planner, 2) == before | {"visits": None}, "passes end there now"


def test_reality_is_believed_rather_than_the_model() -> None:
    """A state from which a plan is wanted, or that was no end, stays so, whatever the model says of ways there."""
    model = Drawn([[1, 2], [2, 2], [0, 0]], [[0, 5], [0, 0], [0, 0]], terminal=(2,))
    planner = DeterministicMCTSAgent(n_passes=1).build(model, 1, 0)
    assert plan_from(planner, 0).action.tolist() == [1]
    plan_from(planner, 2)
    assert model.stepped == [0, 0, 2, 2]
    planner.begin(COLUMN, 0)
    plan_from(planner, 0)
    planner.feedback(COLUMN, np.array([2]), np.array([5.0]), np.array([False]))
    plan_from(planner, 1)
    assert not planner.graph.nodes.terminal[planner.graph.nodes.find(planner.labels, digest(np.array([2])))]


# -- values


def test_scalar_value() -> None:
    """Index = alpha · mean + beta · bonus + aux; nothing added is worth 0."""
    values = ScalarValue(alpha=2.0, beta=0.5)
    got = values.get(np.array([6.0, 0.0]), np.array([3, 0]))
    np.testing.assert_allclose(got, [4, 0])
    np.testing.assert_allclose(values.index(got, np.array([1.0, 2.0]), np.array([0.0, -1.0])), [4.5, 0])
    np.testing.assert_allclose(values.target(got), [4, 0])


def test_ensemble_value_by_hand() -> None:
    """Index = mean + kappa · population std over the mask. Mutation: use all members, or the sample std."""
    values = EnsembleValue(size=4, mask_size=2, columns=1, seed=0, kappa=3.0, beta=0.5)
    values.members[0] = [1, 3]
    first = values.initial(np.zeros(1, np.int64), np.array([[9.0, 2.0, 9.0, 6.0]]))
    got = values.get(first + 2.0, np.array([2]))
    np.testing.assert_allclose(got, [[2, 4]])
    np.testing.assert_allclose(values.target(got), [3])
    np.testing.assert_allclose(values.index(got, np.array([4.0]), np.array([-1.0])), [3 + 3 * 1 + 0.5 * 4 - 1])


def test_masks_are_drawn_by_column_and_episode() -> None:
    """Without replacement, evenly, other ones in each column and episode, the same ones for the same place."""
    values = EnsembleValue(size=8, mask_size=4, columns=500, seed=5, kappa=3.0)
    before = values.members.copy()
    assert all(len(set(row)) == 4 for row in before.tolist())
    assert abs(np.bincount(before.ravel(), minlength=8) / 500 - 0.5).max() < 0.1
    assert len({tuple(row) for row in before.tolist()}) > 60
    values.begin(np.array([3, 7]), 11)
    assert (values.members != before).any(axis=1).nonzero()[0].tolist() == [3, 7]
    alone = EnsembleValue(size=8, mask_size=4, columns=8, seed=5, kappa=3.0)
    np.testing.assert_array_equal(alone.members, before[:8])


def test_ties_are_broken_evenly() -> None:
    """Every action wins a tie as often as any other, at every level and for every subset of actions."""
    words = pass_words(3, np.arange(6000), 4, 2)
    noise = words[1][:, None, None] * tie_words(5, 4)  # [6000, 5, 4]
    assert words.shape == (2, 6000) and len(np.unique(words)) == 12000
    for actions in ([0, 1, 2, 3], [1, 3], [0, 2, 3]):
        winners = noise[:, :, actions].argmax(axis=2)
        for level in range(5):
            share = np.bincount(winners[:, level], minlength=len(actions)) / 6000
            assert abs(share - 1 / len(actions)).max() < 0.03
        assert abs((winners[:, 0] == winners[:, 1]).mean() - 1 / len(actions)) < 0.03


# -- the twin


class Even(PathHash):
    """Rewards of few kinds, so that ties are many."""

    def step(self, states: Any, actions: Any, rng: np.random.Generator) -> Asking[Any]:
        stepped = yield from super().step(states, actions, rng)
        return stepped._replace(rewards=np.round(stepped.rewards * 0.6))


class Doubted(PathHash):
    """A model that reports a disagreement for each step."""

    gives_bonus = True

    def step(self, states: Any, actions: Any, rng: np.random.Generator) -> Asking[Any]:
        stepped = yield from super().step(states, actions, rng)
        return stepped._replace(bonus=np.abs(stepped.rewards * 7 % 1).astype(np.float32))


def members(request: Request) -> dict[str, np.ndarray]:
    """Six values for each state."""
    angles = (request.inputs % np.uint64(1009)).astype(np.float64)[:, None] * np.arange(1, 7)
    return {"value": np.cos(angles).astype(np.float32)}


def rough(request: Request) -> dict[str, np.ndarray]:
    """Values of few kinds, so that ties are many."""
    return {"value": (request.inputs % np.uint64(3)).astype(np.float32)[:, None] / 2}


CASES = {
    "plain": ({}, rough, PathHash(3, 0.05, states=60)),
    "tree": ({}, rough, Even(3, 0.05)),
    "small": ({"dead_end_value": -0.5}, rough, Even(2, 0.1, states=9)),
    "loops": ({"avoid_loops": False}, rough, Even(3, 0.05, states=20)),
    "no ends": ({"avoid_termination": True}, rough, PathHash(3, 0.4, states=30)),
    "shooting": ({"n_leaves_to_expand": 4, "n_passes": 4}, rough, Even(3, 0.1, states=50)),
    "all leaves": (
        {"n_leaves_to_expand": 3, "n_passes": 5, "backpropagate_intermediate_expansion": True},
        rough,
        PathHash(3, 0.1, states=50),
    ),
    "all leaves, loops": (
        {"n_leaves_to_expand": 3, "backpropagate_intermediate_expansion": True, "avoid_loops": False},
        rough,
        PathHash(3, 0.1, states=50),
    ),
    "history": ({"avoid_history_coeff": -0.2, "top_level_epsilon": 0.3}, rough, Even(3, 0.05, states=40)),
    "top loops": ({"avoid_top_level_loops": False, "gamma": 1.0}, rough, Even(3, 0.05, states=6)),
    "no network": ({"use_value_network": False}, None, Even(3, 0.05, states=60)),
    "ensemble": ({"ensemble_size": 6, "ensemble_mask_size": 3, "kappa": 2.0}, members, PathHash(3, 0.1, states=60)),
    "bonus": ({"alpha": 0.5, "beta": 0.7, "n_leaves_to_expand": 2}, rough, Doubted(3, 0.1, states=60)),
}


@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_twin(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions, and sums, counts and visits of every node, over decisions of changing columns and new episodes.

    Three of five columns at a time are planned for: columns do not disturb each other, and one alone searches as in a
    batch. Past episodes are given back often. Mutations: tie-breaking by position in the batch; a level's arrays not
    cut when a column ends; nodes kept when an episode begins, or another column's given back.
    """
    monkeypatch.setattr(deterministic_mcts, "SWEEP", 64)
    settings, answer, model = CASES[case]
    agent = DeterministicMCTSAgent(**{"n_passes": 8, "gamma": 0.9} | settings)
    planner = agent.build(model, 5, seed=4)
    twins = [PlainDeterministicMCTS(agent, model, column, seed=4) for column in range(5)]
    states = model.initial(np.array([0, 1, 2, 3, 0]))
    rng = np.random.default_rng(1)
    for decision in range(7):
        columns = np.sort(rng.permutation(5)[:3])
        roots = trees.map(lambda leaf: leaf[columns], states)  # noqa: B023
        plan = settle(planner.plan(Roots(columns, roots, model.observe(roots))), answer)
        for row, column in enumerate(columns):
            twin = twins[column]
            twin.decisions = decision
            action, root = settle(twin.plan(trees.map(lambda leaf: leaf[row : row + 1], roots)), answer)  # noqa: B023
            assert plan.action[row] == action
            np.testing.assert_allclose(plan.extras["value"][row], twin.get(root).mean(), rtol=1e-6)
            children = [twin.get(child).mean() for child in root.children]
            qualities = np.array(root.rewards) + agent.gamma * np.array(children)
            np.testing.assert_allclose(plan.extras["qualities"][row], qualities, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(plan.extras["visits"][row], root.visits)
            nodes, fans = planner.graph.nodes, planner.graph.edges
            keys = np.array(list(twin.nodes), np.uint64)
            ids = nodes.find(np.full(len(keys), planner.labels[column]), keys)
            assert len(set(ids.tolist())) == len(nodes.of(planner.labels[column])) == len(keys)
            for node, plain in zip(ids, twin.nodes.values(), strict=True):
                assert nodes.count[node] == len(plain.added) and nodes.terminal[node] == plain.terminal
                np.testing.assert_allclose(nodes.total[node], np.squeeze(sum(plain.added)), atol=1e-9)
                assert (nodes.edge_row[node] >= 0) == bool(plain.children)
                if plain.children:
                    assert fans.visits[nodes.edge_row[node]].tolist() == plain.visits
                    np.testing.assert_array_equal(fans.rewards[nodes.edge_row[node]], plain.rewards)
        stepped = settle(model.step(roots, plan.action, rng), zeros)
        planner.feedback(columns, stepped.states, stepped.rewards, stepped.terminated)
        states = {name: leaf.copy() for name, leaf in states.items()}
        for name, leaf in states.items():
            leaf[columns] = stepped.states[name]
        over = columns[stepped.terminated | (rng.random(3) < 0.2)]
        fresh = model.initial(over + 10 * decision)
        for name, leaf in states.items():
            leaf[over] = fresh[name]
        planner.begin(over, 0)
        for column in over:
            twins[column].decisions = planner.decisions
            twins[column].begin()


def test_alone_as_in_a_batch() -> None:
    """Column 2 of a planner gives the same plan with and without company."""
    model = Even(3, 0.05, states=80)
    agent = DeterministicMCTSAgent(n_passes=12, n_leaves_to_expand=2)
    states = model.initial(np.arange(4))
    together = settle(agent.build(model, 4, 7).plan(Roots(np.arange(4), states, states["path"])), rough)
    mine = trees.map(lambda leaf: leaf[2:3], states)
    alone = settle(agent.build(model, 4, 7).plan(Roots(np.array([2]), mine, mine["path"])), rough)
    assert together.action[2:3] == alone.action
    for name, value in alone.extras.items():
        np.testing.assert_array_equal(together.extras[name][2:3], value, err_msg=name)


# -- against exhaustive search


def optimum(model: Any, start: Any, gamma: float, limit: int = 20000) -> dict[int, np.ndarray]:
    """Q*[key] [A] of all states that can be reached, by enumeration and value iteration."""
    n, rng = model.action_space.n, np.random.default_rng(0)
    rows, front = {int(model.keys(start)[0]): start}, [start]
    after: dict[int, tuple[list[int], np.ndarray, np.ndarray]] = {}
    while front:
        state = front.pop()
        many = trees.map(lambda leaf: np.repeat(leaf, n, axis=0), state)
        stepped = settle(model.step(many, np.arange(n), rng), zeros)
        keys = model.keys(stepped.states).tolist()
        after[int(model.keys(state)[0])] = (keys, stepped.rewards.astype(np.float64), stepped.terminated)
        for action, key in enumerate(keys):
            if key not in rows and not stepped.terminated[action]:
                rows[key] = trees.map(lambda leaf: leaf[action : action + 1], stepped.states)  # noqa: B023
                front.append(rows[key])
        assert len(rows) < limit
    number = {key: place for place, key in enumerate(after)}
    following = np.array([[number.get(key, -1) for key in keys] for keys, _, _ in after.values()])
    rewards = np.array([pay for _, pay, _ in after.values()])
    going_on = gamma * ~np.array([ended for _, _, ended in after.values()])
    values = np.zeros(len(number) + 1)
    for _ in range(2000):
        qualities = rewards + going_on * values[following]
        if np.abs(qualities.max(axis=1) - values[:-1]).max() < 1e-12:
            break
        values[:-1] = qualities.max(axis=1)
    return {key: qualities[place] for key, place in number.items()}


def follow(
    model: Any, start: Any, agent: DeterministicMCTSAgent, answer: Callable, steps: int, seed: int
) -> list[bool]:
    """Whether each action of an episode is an optimal one; the episode must end in `steps` steps."""
    best = optimum(model, start, agent.gamma)
    planner, state = agent.build(model, 1, seed), start
    right: list[bool] = []
    for _ in range(steps):
        plan = settle(planner.plan(Roots(COLUMN, state, model.observe(state))), answer)
        qualities = best[int(model.keys(state)[0])]
        right.append(bool(qualities[plan.action[0]] > qualities.max() - 1e-9))
        stepped = settle(model.step(state, plan.action, np.random.default_rng(0)), zeros)
        planner.feedback(COLUMN, stepped.states, stepped.rewards, stepped.terminated)
        state = stepped.states
        if stepped.terminated[0]:
            return right
    raise AssertionError(f"not over after {steps} steps")


def same(value: float) -> Callable[[Request], dict[str, np.ndarray]]:
    """A network to which all states are worth the same."""
    return lambda request: {"value": zeros(request)["value"] + np.float32(value)}


CHAIN = Drawn([[max(s - 1, 0), min(s + 1, 8)] for s in range(9)], [[0, 0]] * 7 + [[0, 1], [0, 0]], terminal=(8,))
BOARDS = """
#####
#@$.#
#   #
# $.#
#####

######
#    #
# $@ #
#  . #
######
"""


def test_chain_is_walked_straight() -> None:
    """Eight steps to the reward, every one of them right, with an untrained network."""
    for seed in range(3):
        assert follow(CHAIN, np.array([0]), DeterministicMCTSAgent(n_passes=20), zeros, 8, seed) == [True] * 8


def test_hanoi_is_solved_without_a_network_and_optimally_with_optimism() -> None:
    """Without exploration the first way that is found stays; a network that promises everything makes it the best."""
    model = CoreModel(Hanoi(disks=3))
    start = model.core.initial(1, np.random.default_rng(0))
    silent = DeterministicMCTSAgent(n_passes=30, use_value_network=False)
    for seed in range(3):
        assert follow(model, start, silent, zeros, 20, seed)[-1]
        assert follow(model, start, DeterministicMCTSAgent(n_passes=100), same(1.0), 7, seed) == [True] * 7


@pytest.mark.parametrize(("board", "moves"), [(0, 5), (1, 6)])
def test_sokoban_is_solved_optimally(board: int, moves: int) -> None:
    """Every action is one of the best by enumeration of all states, with an untrained network."""
    model = CoreModel(Sokoban(levels=BOARDS))
    start = model.core.states([model.core.level(board)])
    for seed in range(2):
        assert follow(model, start, DeterministicMCTSAgent(n_passes=150), zeros, moves, seed) == [True] * moves


# -- the rest of the contract


class Counting:
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.ended: list[list[int]] = []
        self.steps: list[ModelSteps] = []

    def pass_begin(self, columns: np.ndarray) -> None:
        assert len(self.begun) == len(self.ended)
        self.begun.append(columns.tolist())

    def model_steps(self, steps: ModelSteps) -> None:
        assert len(self.begun) == len(self.ended) + 1
        self.steps.append(steps)

    def pass_end(self, columns: np.ndarray) -> None:
        self.ended.append(columns.tolist())


def test_listener_receives_every_pass_and_step() -> None:
    """Seven passes of two leaves: at most 14 calls, each of all actions of a leaf, none from one leaf twice."""
    model, listener = PathHash(3, 0.2, states=200), Counting()
    planner = DeterministicMCTSAgent(n_passes=7, n_leaves_to_expand=2).build(model, 5, 0, listener)
    columns = np.array([1, 4])
    states = model.initial(columns)
    settle(planner.plan(Roots(columns, states, states["path"])), rough)
    assert listener.begun == listener.ended == [[1, 4]] * 7
    sources = np.concatenate([steps.source for steps in listener.steps])
    assert np.unique(sources, return_counts=True)[1].tolist() == [3] * len(planner.graph.edges)
    assert 7 < len(listener.steps) <= 14
    for steps in listener.steps:
        assert len(steps.columns) == len(steps.actions) == len(steps.rewards) == len(steps.terminated)
        np.testing.assert_array_equal(planner.graph.nodes.owner[steps.source], planner.labels[steps.columns])
        np.testing.assert_array_equal(planner.graph.nodes.states["path"][steps.target], steps.states["path"])
        np.testing.assert_array_equal(steps.actions.reshape(-1, 3), [[0, 1, 2]] * (len(steps.actions) // 3))


def test_ends_are_neither_stepped_from_nor_asked_about() -> None:
    """The end has value 0 whatever the network outputs, and the model never steps from it."""
    model = Drawn(DIAMOND.after.tolist(), DIAMOND.rewards.tolist(), (4,))
    planner = DeterministicMCTSAgent(n_passes=40).build(model, 1, 0)
    plan_from(planner, 0, table([0, 0, 0, 0, 99]))
    assert sorted(model.stepped) == [0, 0, 2, 2, 3, 3]
    assert known(planner, 4) == {"total": 0, "count": 1, "visits": None}


def test_roots_are_left_as_they_are() -> None:
    """States and observations given to `plan` are the same bytes afterwards, and so are those the model gave."""
    model = CoreModel(Sokoban(height=8, width=8, num_boxes=2, boards=4))
    states = model.core.initial(3, np.random.default_rng(0))
    before = trees.map(np.copy, states)
    planner = DeterministicMCTSAgent(n_passes=20).build(model, 3, 0)
    plan = settle(planner.plan(Roots(np.arange(3), states, model.observe(states))), zeros)
    trees.map(np.testing.assert_array_equal, states, before)
    planner.feedback(np.arange(3), *settle(model.step(states, plan.action, planner.rng), zeros)[:3])
    trees.map(np.testing.assert_array_equal, states, before)


def test_a_plan_that_is_given_up_leaves_no_marks() -> None:
    """A plan that was closed half-way may be made again. Mutation: no clean-up; then the path stays forbidden."""
    agent, network = DeterministicMCTSAgent(n_passes=4, gamma=0.5), table([0, 1, 2, 3, 9])
    planner, fresh = agent.build(LINE, 1, 0), agent.build(LINE, 1, 0)
    plan = planner.plan(Roots(COLUMN, np.array([0]), np.array([0])))
    request = next(plan)
    for _ in range(3):
        request = plan.send(network(request))
    plan.close()
    again = plan_from(planner, 0, network)
    fresh.decisions = 1
    for name, value in plan_from(fresh, 0, network).extras.items():
        np.testing.assert_array_equal(again.extras[name], value, err_msg=name)


def test_first_pass_alone_gives_a_sane_histogram() -> None:
    """One pass only expands the root: no visits, and an even histogram instead of 0 / 0."""
    plan = plan_from(DeterministicMCTSAgent(n_passes=1).build(DIAMOND, 1, 0), 0)
    assert plan.extras["action_histogram"].tolist() == [[0.5, 0.5]] and plan.action.tolist() == [1]


def test_ensemble_is_asked_and_told() -> None:
    """The head has a value for each member; the target is the mean over the column's mask."""
    agent = DeterministicMCTSAgent(n_passes=1, ensemble_size=6, ensemble_mask_size=2)
    assert agent.heads(gym.spaces.Discrete(3)) == {"agent": {"value": 6}}
    model = PathHash(3, states=50)
    planner = agent.build(model, 2, 3)
    states = model.initial(np.arange(2))
    plan = settle(planner.plan(Roots(np.arange(2), states, states["path"])), members)
    answer = members(Request("agent", states["path"]))["value"]
    picked = np.take_along_axis(answer, planner.values.members, axis=1)  # type: ignore[attr-defined]
    np.testing.assert_allclose(plan.extras["value"], picked.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(plan.extras["value_std"], picked.std(axis=1), rtol=1e-5)


def test_many_episodes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of past episodes are given back when twice as many are there as after the last time."""
    monkeypatch.setattr(deterministic_mcts, "SWEEP", 100)
    model = PathHash(3, 0.0)
    planner = DeterministicMCTSAgent(n_passes=10, use_value_network=False).build(model, 2, 0)
    for episode in range(40):
        states = model.initial(np.array([episode, episode + 50]))
        settle(planner.plan(Roots(np.arange(2), states, states["path"])), zeros)
        planner.begin(np.array([episode % 2]), 0)
        assert len(planner.graph.nodes) <= 400 and len(planner.graph.edges) <= len(planner.graph.nodes) // 3


def test_a_network_that_has_diverged_stops_the_search() -> None:
    """NaN is not a value to plan by."""
    planner = DeterministicMCTSAgent().build(DIAMOND, 1, 0)
    with pytest.raises(DivergedError, match="NaN"):
        plan_from(planner, 0, same(np.nan))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_passes": 0}, "DeterministicMCTSAgent.n_passes = 0 must be at least 1"),
        ({"n_leaves_to_expand": 0}, "n_leaves_to_expand = 0 must be at least 1"),
        ({"gamma": 1.5}, "gamma = 1.5 must be between 0 and 1"),
        ({"gamma": float("nan")}, "gamma = nan must be between 0 and 1"),
        ({"top_level_epsilon": -0.1}, "top_level_epsilon = -0.1 must be between 0 and 1"),
        ({"dead_end_value": float("-inf")}, "dead_end_value = -inf must be a finite number"),
        ({"ensemble_size": 0}, "ensemble_size = 0 must be at least 1"),
        ({"ensemble_mask_size": 3}, "ensemble_mask_size = 3 must be at most"),
        ({"ensemble_size": 2, "ensemble_mask_size": 3}, "ensemble_mask_size = 3 must be at most"),
        ({"ensemble_size": 2, "use_value_network": False}, "needs DeterministicMCTSAgent.use_value_network"),
    ],
)
def test_bad_numbers_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeterministicMCTSAgent(**settings)


def test_models_that_cannot_be_searched_are_refused() -> None:
    """Stochastic ones, continuous actions, and a weight for a bonus that does not exist."""
    with pytest.raises(ConfigError, match="stochastic"):
        DeterministicMCTSAgent().build(PathHash(outcomes=2), 1, 0)
    with pytest.raises(ConfigError, match="bonus that this model does not give"):
        DeterministicMCTSAgent(beta=1.0).build(PathHash(), 1, 0)
    continuous = PathHash()
    continuous.action_space = gym.spaces.Box(-1, 1, (2,))
    with pytest.raises(ConfigError, match="discrete actions"):
        DeterministicMCTSAgent().build(continuous, 1, 0)
    assert DeterministicMCTSAgent(use_value_network=False).heads(gym.spaces.Discrete(2)) == {}
