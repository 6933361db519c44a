"""A model that lies about one action: it says that nothing happens where the only way on begins, and is unsure of it.

A planner that trusts it never passes; one that verifies does, after 1 / (1 − rejection probability) visits on average.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.hanoi import Hanoi
from packtrain.errors import ConfigError
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.model import Asking, CoreModel, Stepped, digest
from packtrain.planning.planner import Agent, Roots
from packtrain.testing.path_hash import settle

LENGTH, LIE = 6, 3  # of the corridor; the cell that seems to have no way on


class LyingCorridor:
    """Cells 0 … 5, actions 0 back and 1 on, a reward at the end; of cell 3 it says that action 1 changes nothing."""

    action_space = gym.spaces.Discrete(2)
    deterministic = True
    gives_bonus = True

    def __init__(self, doubt: float = 1.0):
        self._doubt = np.float32(doubt)

    def really(self, cells: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.clip(cells + np.where(actions == 1, 1, -1), 0, LENGTH - 1)

    def step(self, states: Any, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        lie = (states[:, 0] == LIE) & (actions == 1)
        after = np.where(lie, states[:, 0], self.really(states[:, 0], actions))
        over = after == LENGTH - 1
        bonus = np.where(lie, self._doubt, 0.1).astype(np.float32)
        return Stepped(after[:, None], over.astype(np.float32), over, over, bonus)
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
        plan = settle(
            planner.plan(Roots(playing, states, model.observe(states))),
            lambda request: {"value": np.zeros((len(request.inputs), 1), np.float32)},
        )
        cells[playing] = model.really(cells[playing], plan.action)
        over = cells[playing] == LENGTH - 1
        planner.feedback(playing, cells[playing, None], over.astype(np.float32), over)
        passed[playing] |= cells[playing] > LIE
    return np.where(passed, visits, -1)


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


def test_verifying_needs_a_model_that_doubts() -> None:
    """A simulator is sure of everything: one line."""
    for agent in agents(bonus_quantile_threshold=0.9):
        with pytest.raises(ConfigError, match="bonus"):
            agent.build(CoreModel(Hanoi(2)), 1, 0)
