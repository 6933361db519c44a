"""The agent that acts uniformly at random."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import Listener
from packtrain.planning.model import Asking, Model
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.policy import Distribution, categorical, discrete_actions
from packtrain.trees import Tree


@configurable
@dataclass(frozen=True)
class RandomAgent:
    """Uniform over the action space: over all numbers of a Discrete one, over [−1, 1] in each dimension of a Box.

    Streams stretch [−1, 1] to the bounds of a Box; in a dimension without bounds it stays what it is.
    """

    legal_only: bool = False  # exclude actions that the model calls illegal; learned models are better trained on all

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """Return no heads: no network is used."""
        return {}

    def distribution(self, logits: np.ndarray, legal: np.ndarray | None) -> Distribution:
        """Return equal probabilities, whatever the logits [M, A]."""
        return categorical(np.zeros_like(logits), legal=legal if self.legal_only else None)

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> RandomPlanner:
        """Return a planner that does not search."""
        return RandomPlanner(self, model, columns, seed)


class RandomPlanner:
    """Samples actions uniformly, without network requests and model steps."""

    def __init__(self, agent: RandomAgent, model: Model, columns: int, seed: int):
        self._agent, self._model, self._seed = agent, model, seed
        self.decisions = 0
        self.rng = np.random.default_rng(seed)
        self._shape: tuple[int, ...] | None = None  # shape of a Box action
        if isinstance(model.action_space, gym.spaces.Box):
            if agent.legal_only:
                raise ConfigError("RandomAgent.legal_only = True has no meaning in a Box action space")
            self._shape = model.action_space.shape
        else:
            self._actions = discrete_actions("RandomAgent", model.action_space)

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Do nothing: there is no state."""

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Sample actions."""
        count, self.decisions = self.decisions, self.decisions + 1
        size = self._actions if self._shape is None else int(np.prod(self._shape))
        noise = chance(self._seed, roots.columns[:, None], count, np.arange(size))
        if self._shape is not None:
            return Plan((2 * noise - 1).astype(np.float32).reshape(len(noise), *self._shape), {})
        if self._agent.legal_only:
            legal = self._model.legal(roots.states)
            return Plan(self._agent.distribution(noise, legal).sample(noise), {})
        return Plan(noise.argmax(axis=1), {})
        yield  # makes this a generator, although it sends no requests

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Do nothing: outcomes are not used."""
