"""Real transitions replace predictions: the table of transitions, and the learned model that uses it."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from packtrain.errors import ConfigError
from packtrain.hashing import observation_keys, state_action_keys
from packtrain.planning.learned import EnsembleModel, LearnedModel
from packtrain.planning.learned.transition_table import Transitions, TransitionTable
from packtrain.planning.model import Stepped
from packtrain.planning.nodes import NO_NODE
from packtrain.testing.path_hash import settle
from packtrain.types import Request


def edges(*rows: tuple[int, float, int, float, float, bool]) -> Transitions:
    """Of (run, what is seen, action, what is seen then, reward, the end)."""
    run, obs, action, after, reward, terminated = zip(*rows, strict=True)
    seen = (np.array([[x, 1] for x in side], np.float32) for side in (obs, after))
    before, then = seen
    reward = np.array(reward, np.float32)
    return Transitions(np.array(run), before, np.array(action), then, reward, np.array(terminated))


def known(memory: TransitionTable, run: int, obs: float, action: int) -> tuple[float, float, bool] | None:
    """What is known of one question."""
    key = state_action_keys(observation_keys(np.array([[obs, 1]], np.float32)), np.array([action]), np.array([run]))
    number = memory.find(key)
    if number[0] == NO_NODE:
        return None
    edge = memory.take(number)
    assert (edge.run[0], edge.obs[0, 0], edge.action[0]) == (run, obs, action)
    return float(edge.after[0, 0]), float(edge.reward[0]), bool(edge.terminated[0])


def test_every_transition_is_news_once() -> None:
    """Equal ones in one call too; −0 is 0; an action or a run more is another question.

    Mutations: all of a call are news; the action, or the run, left out of the key.
    """
    memory = TransitionTable()
    assert known(memory, 0, 1, 0) is None and len(memory) == 0
    first = edges((0, 1, 0, 2, 0, False), (0, 1, 1, 1, 0, False), (0, 1, 0, 2, 0, False), (0, 0.0, 0, 1, 1, True))
    assert memory.add(first).tolist() == [True, True, False, True]
    assert memory.add(first).tolist() == [False] * 4 and len(memory) == 3
    assert memory.add(edges((0, -0.0, 0, 1, 1, True), (1, 1, 0, 2, 0, False))).tolist() == [False, True]
    assert (known(memory, 0, 1, 0), known(memory, 0, 1, 1), known(memory, 0, 0, 0)) == (
        (2, 0, False),
        (1, 0, False),
        (1, 1, True),
    )
    assert known(memory, 0, 1, 2) is None and known(memory, 2, 1, 0) is None and memory.contradicted == {}


def test_the_latest_word_counts() -> None:
    """A transition that comes out differently is news and counted, wherever it differs, and also within one call.

    Mutations: compare only where it led; let the first of a call stand.
    """
    memory = TransitionTable()
    memory.add(edges((0, 1, 0, 2, 0, False)))
    for times, after in enumerate(((3, 0, False), (3, 1, False), (3, 1, True)), start=1):
        assert memory.add(edges((0, 1, 0, *after), (0, 9, 0, 9, 0, False))).tolist() == [True, times == 1]
        assert known(memory, 0, 1, 0) == after and memory.contradicted == {0: times}
    assert memory.add(edges((1, 5, 0, 6, 0, False), (1, 5, 0, 7, 0, False))).tolist() == [True, True]
    assert known(memory, 1, 5, 0) == (7, 0, False) and memory.contradicted == {0: 3, 1: 1} and len(memory) == 3


def test_many_fit() -> None:
    """More than there is room for at first. Mutation: rows lost when the arrays grow."""
    memory = TransitionTable()
    for start in range(0, 5000, 700):
        memory.add(edges(*((0, x, x % 3, x + 1, x % 2, False) for x in range(start, start + 700))))
    for x in (0, 699, 700, 1023, 1024, 4000, 4899):
        assert known(memory, 0, x, x % 3) == (x + 1, x % 2, False)


def test_a_run_is_saved_and_restored_by_itself() -> None:
    """What it knew then and nothing since; other runs keep theirs.

    Mutations: save all runs; restore on top of what is known; count contradictions of all runs together.
    """
    memory = TransitionTable()
    memory.add(edges((0, 1, 0, 2, 0, False), (1, 1, 0, 5, 0, False), (1, 2, 0, 6, 1, True)))
    memory.add(edges((1, 1, 0, 7, 0, False)))
    saved = memory.snapshot(1)
    assert saved["edges"]["after"][:, 0].tolist() == [7, 6] and "run" not in saved["edges"]
    memory.add(edges((1, 1, 0, 8, 0, False), (1, 3, 0, 4, 0, False), (0, 3, 0, 4, 0, False), (0, 1, 0, 9, 0, False)))
    for target in (memory, TransitionTable()):
        target.restore(saved, 1)
        assert known(target, 1, 1, 0) == (7, 0, False) and known(target, 1, 2, 0) == (6, 1, True)
        assert known(target, 1, 3, 0) is None and target.contradicted[1] == 1
    assert known(memory, 0, 3, 0) == (4, 0, False) and known(memory, 0, 1, 0) == (9, 0, False) and len(memory) == 4
    assert memory.contradicted == {0: 1, 1: 1}
    fresh = TransitionTable()
    fresh.restore(TransitionTable().snapshot())
    assert len(fresh) == 0


# -- in front of an ensemble


class World:
    """Two coordinates, two actions."""

    observation_space: gym.Space = gym.spaces.Box(0, 9, (2,), np.float32)
    action_space: gym.Space = gym.spaces.Discrete(2)


def ensemble(verified: str, runs: int = 1) -> EnsembleModel:
    """For two columns, of one run or of two."""
    model = LearnedModel(3, 2, verified_edges=verified).build(World(), 0, runs=runs, columns=2)  # type: ignore
    model.begin(np.arange(2), 0)
    return model


def step(model: EnsembleModel, obs: list[float], actions: list[int], columns: list[int], known: bool = True) -> Any:
    """What the model says, and what the network was asked: it says that all becomes 0, or 9 by action 1, unsurely."""
    asked: list[float] = []

    def answer(request: Request) -> dict[str, np.ndarray]:
        inputs = request.inputs["inputs"] if model.runs > 1 else request.inputs
        asked.extend(inputs["obs"][:, 0].tolist())
        delta = np.zeros((len(inputs["obs"]), 3, 2), np.float32)
        delta[:, :, 0] = 9 * inputs["action"][:, None] - inputs["obs"][:, :1] + np.array([-0.3, 0, 0.3])
        return {"delta": delta, "reward": np.full((len(delta), 3), -9.0), "terminated": np.full((len(delta), 3), -9.0)}

    states = model.roots(np.array(columns), np.array([[x, 1] for x in obs], np.float32))
    asking = model.step(states, np.array(actions), np.random.default_rng(0)) if known else None
    stepped: Stepped = settle(asking or model.guess(states, np.array(actions)), answer)
    return stepped, asked


def test_real_transitions_replace_predictions_and_have_no_disagreement() -> None:
    """Only untried transitions are predicted, and `guess` still returns the ensemble's prediction.

    Mutations: the bonus of the guess kept; rewards or ends of the guess kept; answers in another order.
    """
    model = ensemble("run")
    assert model.verified is not None and model.clears_bonus
    model.verified.add(edges((0, 3, 0, 4, 1, True), (0, 5, 1, 5, 0, False)))
    stepped, asked = step(model, [3, 3, 5, 7], [0, 1, 1, 0], [0, 1, 1, 0])
    assert asked == [3, 7]
    assert stepped.states["obs"][:, 0].tolist() == [4, 9, 5, 0]
    assert (stepped.bonus > 0).tolist() == [False, True, False, True]
    assert stepped.rewards.tolist() == [1, 0, 0, 0] and stepped.solved.tolist() == [True, False, False, False]
    assert stepped.terminated.tolist() == [True, False, False, False]
    np.testing.assert_array_equal(model.keys(stepped.states), observation_keys(stepped.states["obs"]))
    again, asked = step(model, [3, 5], [0, 1], [0, 1])
    assert asked == [] and again.states["obs"][:, 0].tolist() == [4, 5]
    guessed, asked = step(model, [3], [0], [0], known=False)
    assert asked == [3] and guessed.states["obs"][0, 0] == 0 and guessed.bonus[0] > 0


@pytest.mark.parametrize("verified", ["graph", "episode"])
def test_without_a_memory_the_ensemble_is_asked(verified: str) -> None:
    """The negative control: nothing outlives an episode. Only 'graph' leaves disagreements unchanged."""
    model = ensemble(verified)
    assert model.verified is None and model.clears_bonus == (verified == "episode")


def test_two_runs_know_nothing_of_each_other() -> None:
    """Column 0 is of run 0, column 1 of run 1. Mutation: the run left out of the key."""
    model = ensemble("run", runs=2)
    assert model.verified is not None
    model.verified.add(edges((1, 3, 0, 4, 1, True)))
    stepped, asked = step(model, [3, 3], [0, 0], [0, 1])
    assert asked == [3] and stepped.states["obs"][:, 0].tolist() == [0, 4] and stepped.bonus[0] > stepped.bonus[1] == 0


def test_unknown_ways_to_remember_are_refused() -> None:
    """One line."""
    with pytest.raises(ConfigError, match="LearnedModel.verified_edges = 'world' is not one of 'graph', 'episode'"):
        LearnedModel(verified_edges="world")  # type: ignore
