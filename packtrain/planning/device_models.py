"""Models for `device_mcts.py`: any array core by way of the host, and enumerable cores as tables on the device."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from packtrain import trees
from packtrain.envs.functional import Core
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import EnvSetupError
from packtrain.planning.leaf_evaluators import possible
from packtrain.trees import Tree


class HostModel:
    """A deterministic core that is stepped on the host: states travel to it and back in every pass."""

    def __init__(self, core: Core, device: torch.device | str = "cpu"):
        if getattr(core, "stochastic", False):
            raise EnvSetupError(f"device MCTS needs a deterministic model, and {type(core).__name__} is stochastic")
        if not isinstance(core.action_space, gym.spaces.Discrete):
            raise EnvSetupError(f"device MCTS needs discrete actions, not {core.action_space}")
        self.core, self.device, self.actions = core, torch.device(device), int(core.action_space.n)
        self._rng = np.random.default_rng(0)  # not used by a deterministic core

    def to_device(self, states: Tree) -> Tree:
        """Return arrays as tensors on the device."""
        return trees.map(lambda leaf: torch.as_tensor(np.ascontiguousarray(leaf), device=self.device), states)

    def step(self, states: Tree, actions: Tensor) -> tuple[Tree, Tensor, Tensor]:
        """Make one step of the core."""
        arrays = trees.map(lambda leaf: leaf.cpu().numpy(), states)
        after, rewards, ended, _ = self.core.step(arrays, actions.cpu().numpy(), self._rng)
        return self.to_device(after), self.to_device(rewards), self.to_device(ended)

    def observe(self, states: Tree) -> Tree:
        """Return the core's observations."""
        return self.to_device(self.core.observe(trees.map(lambda leaf: leaf.cpu().numpy(), states)))

    def legal(self, states: Tree) -> Tensor | None:
        """Return the core's legal actions, if it has such a method."""
        found = _legal(self.core, trees.map(lambda leaf: leaf.cpu().numpy(), states))
        return None if found is None else self.to_device(found)


class TableModel:
    """A core with one start and few enough states to enumerate, as tables on the device; a state is a number [B].

    A step is one lookup, so a search never leaves the device. `graph` has the states that belong to the numbers.
    """

    def __init__(self, core: Core, device: torch.device | str = "cpu", most: int = 1_000_000):
        self.graph = StateGraph(core, most)
        space: Any = core.action_space
        self.actions = int(space.n)
        count, rng = len(self.graph), np.random.default_rng(0)
        sources = trees.map(lambda leaf: leaf.repeat(self.actions, axis=0), self.graph.states)
        _, rewards, _, _ = core.step(sources, np.tile(int(space.start) + np.arange(self.actions), count), rng)
        self._after = torch.as_tensor(self.graph.edges.astype(np.int64), device=device)
        self.rewards = torch.as_tensor(np.asarray(rewards).reshape(count, self.actions), device=device)
        legal = _legal(core, self.graph.states)
        self._legal = None if legal is None else torch.as_tensor(legal, device=device)
        self._ended = torch.as_tensor(self.graph.terminated, device=device)
        self.observations = trees.map(
            lambda leaf: torch.as_tensor(leaf, device=device), core.observe(self.graph.states)
        )

    def step(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look up the states after, rewards and ends."""
        after = self._after[states, actions]
        return after, self.rewards[states, actions], self._ended[after]

    def observe(self, states: Tensor) -> Tree:
        """Look up the observations."""
        return trees.map(lambda leaf: leaf[states], self.observations)

    def legal(self, states: Tensor) -> Tensor | None:
        """Look up the legal actions, if the core has any."""
        return None if self._legal is None else self._legal[states]


def _legal(core: Core, states: Tree) -> np.ndarray | None:
    legal = getattr(core, "legal", None)
    return None if legal is None else possible(np.asarray(legal(states)))
