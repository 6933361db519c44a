"""A learned model's predictions for all actions in one state, for pictures of episodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packtrain import trees
from packtrain.planning.learned.transition_table import equal_rows
from packtrain.planning.model import Asking, FittedModel
from packtrain.trees import Tree


class ActionPredictions(NamedTuple):
    """Predictions for A actions in one state."""

    loop: np.ndarray  # [A] bool, whether the state stays as it is
    reward: np.ndarray  # [A] float32
    terminated: np.ndarray  # [A] bool
    bonus: np.ndarray | None  # [A] float32, disagreement of the members; None: not given


def predict_actions(model: FittedModel, state: Tree, actions: int) -> Asking[ActionPredictions]:
    """Return the predictions for all actions in a state [1, ...] of the model."""
    states = trees.map(lambda leaf: leaf.repeat(actions, axis=0), state)
    guess = yield from model.guess(states, np.arange(actions))
    loop = equal_rows(guess.states["obs"], states["obs"])
    return ActionPredictions(loop, guess.rewards, guess.terminated, guess.bonus)
