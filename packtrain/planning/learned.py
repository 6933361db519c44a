"""A learned ensemble behind the planners' face: it guesses where actions lead, and says how much its members disagree.

A state is an observation, and the members that this column listens to in this episode, which travel with it: so columns
explore by different opinions, and no opinion is shared by accident.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.config import configurable
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.planning.chance import chance
from packtrain.planning.model import Asking, Stepped, digest
from packtrain.trees import Tree
from packtrain.types import Request

NETWORK = "model"


@configurable
@dataclass(frozen=True)
class LearnedModel:
    """How an ensemble's guesses become states."""

    members: int = 8
    mask_size: int | None = 4  # members that a column listens to in an episode; None: all

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ConfigError(f"LearnedModel.members = {self.members} must be at least 1")
        if self.mask_size is not None and not 1 <= self.mask_size <= self.members:
            raise ConfigError(f"LearnedModel.mask_size = {self.mask_size} must lie between 1 and {self.members}")

    def build(self, observation_space: gym.Space, action_space: gym.Space, seed: int) -> EnsembleModel:
        """The model; EnvSetupError unless observations are bounded vectors and actions are a choice."""
        return EnsembleModel(self, observation_space, action_space, seed)


class EnsembleModel:
    """Guesses by the mean of some members: the change of the observation, a reward of 0 or 1, the end.

    s' = round(clip(s + mean Δ, low, high)), halves up; rewards and ends are those that more than half of the belief
    goes to. The disagreement about an action is the standard deviation over members of the raw changes, averaged over
    the observation.
    """

    deterministic = True  # as long as nobody trains it: within an episode it says the same twice
    gives_bonus = True

    def __init__(self, settings: LearnedModel, observation_space: gym.Space, action_space: gym.Space, seed: int):
        bounded = isinstance(observation_space, gym.spaces.Box) and len(observation_space.shape) == 1
        if not bounded or not isinstance(action_space, gym.spaces.Discrete):
            raise EnvSetupError(
                f"a learned model needs a vector to look at and a choice of actions, not {observation_space} and "
                f"{action_space}"
            )
        assert isinstance(observation_space, gym.spaces.Box)
        self.action_space: gym.Space = action_space
        self._low, self._high = observation_space.low, observation_space.high
        self._members = settings.members
        self._size = settings.members if settings.mask_size is None else settings.mask_size
        self._seed = seed
        self._masks = np.zeros((0, self._size), np.int8)

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """New episodes listen to new members: `mask_size` of them, without replacement."""
        if len(columns) and columns.max() >= len(self._masks):
            more = np.zeros((int(columns.max()) + 1 - len(self._masks), self._size), np.int8)
            self._masks = np.concatenate([self._masks, more])
        drawn = chance(self._seed, epoch, columns[:, None], np.arange(self._members))
        self._masks[columns] = np.sort(drawn.argsort(axis=1)[:, : self._size], axis=1)

    def roots(self, columns: np.ndarray, obs: np.ndarray) -> Tree:
        """The states in which columns are, as the model sees them."""
        return {"obs": np.asarray(obs, np.float32), "mask": self._masks[columns]}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """One guess for each state and action."""
        obs, masks = states["obs"], states["mask"]
        answer = yield Request(NETWORK, {"obs": obs, "action": np.asarray(actions)})
        rows = np.arange(len(obs))[:, None]
        delta = answer["delta"][rows, masks]  # [N, M, D]
        after = np.floor(np.clip(obs + delta.mean(axis=1), self._low, self._high) + 0.5).astype(np.float32)
        reward = (_probability(answer["reward"][rows, masks]).mean(axis=1) > 0.5).astype(np.float32)
        terminated = _probability(answer["terminated"][rows, masks]).mean(axis=1) > 0.5
        bonus = delta.std(axis=1).mean(axis=-1).astype(np.float32)
        return Stepped({"obs": after, "mask": masks}, reward, terminated, terminated & (reward > 0), bonus)

    def observe(self, states: Tree) -> Tree:
        """States are observations."""
        return states["obs"]

    def keys(self, states: Tree) -> np.ndarray:
        """A digest of the observation: within a column and an episode the members are the same."""
        return digest(states["obs"] + np.float32(0))  # −0 is 0

    def legal(self, states: Tree) -> np.ndarray | None:
        """Nobody knows."""
        return None


def _probability(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logits, -60, 60)))
