"""Acting by planning: a policy whose decisions come from a search in a model of its environment.

It takes the place of a network policy in the walk: its seats see the rows of their columns, look at the states behind
them, and hand what the search found out to the memory as extras.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from packtrain import trees
from packtrain.acting.inference import Inference
from packtrain.acting.seat import Decision
from packtrain.envs.columns import FunctionalColumns
from packtrain.envs.stream import Stream
from packtrain.metrics.planning import Decisions
from packtrain.planning.events import Listener
from packtrain.planning.model import CoreModel, Model
from packtrain.planning.planner import Agent, Planner, Roots
from packtrain.trees import Tree
from packtrain.types import Row


class Watcher(Listener, Protocol):
    """Hears of searches, and of what is really done."""

    def episode_begin(self, columns: np.ndarray, epoch: int, states: Tree) -> None:
        """An episode begins in these columns."""

    def real_steps(
        self, columns: np.ndarray, states: Tree, actions: Any, rewards: Any, ended: Any, extras: dict[str, Any]
    ) -> None:
        """The environments have been stepped: where that led, and what the planner knew when it chose."""


class PlannedPolicy:
    """A planner for every group of columns, and the networks they all ask."""

    context = 0

    def __init__(
        self, agent: Agent, network: nn.ModuleDict, device: torch.device, seed: int, watcher: Watcher | None = None
    ):
        self.network, self.device, self.epoch = network, device, 0
        self.inference = Inference(dict(network.items()), device)
        self.generator = torch.Generator().manual_seed(seed)  # what actors save; planners draw by place
        self.decisions = Decisions()  # what planners said of them since somebody looked
        self._agent, self._seed, self._watcher = agent, seed, watcher
        self._seats = 0

    def seat(self, stream: Stream) -> PlannedSeat:
        """The seat of one group."""
        assert isinstance(stream.columns, FunctionalColumns)
        self._seats += 1
        model = CoreModel(stream.columns.core)
        planner = self._agent.build(model, stream.size, self._seed + 7919 * self._seats, self._watcher)
        return PlannedSeat(self, stream, model, planner, self._watcher)


class PlannedSeat:
    """Plans for one group, row after row."""

    def __init__(self, policy: PlannedPolicy, stream: Stream, model: Model, planner: Planner, watcher: Watcher | None):
        self._policy, self._stream, self._model, self._planner = policy, stream, model, planner
        self._watcher = watcher
        self._columns: FunctionalColumns = stream.columns  # type: ignore[assignment]
        self._fresh = planner.rng.bit_generator.state
        self.begin()

    def begin(self) -> None:
        """Forget everything, and draw as in the beginning: the next row is the first of all columns."""
        self._planner.decisions = 0
        self._planner.rng.bit_generator.state = self._fresh
        self._playing = np.zeros(self._stream.size, bool)
        self._chosen: tuple[np.ndarray, Any, dict[str, Any]] | None = None  # columns, actions, extras

    def act(self, row: Row) -> Decision:
        """Decide for the columns whose episode is under way; the others get action 0, which nobody looks at."""
        first, states = np.asarray(row.first), self._columns.states
        if self._chosen is not None:
            self._look_back(row, states)
        if first.any():
            begun = np.flatnonzero(first)
            self._playing[begun] = True
            self._planner.begin(begun, self._policy.epoch)
            if self._watcher is not None:
                self._watcher.episode_begin(begun, self._policy.epoch, trees.map(lambda leaf: leaf[begun], states))
        columns = np.flatnonzero(self._playing)
        pick = slice(None) if len(columns) == self._stream.size else columns
        roots = Roots(columns, *(trees.map(lambda leaf: leaf[pick], tree) for tree in (states, row.obs)))
        if len(columns):
            plan = self._policy.inference.run(self._planner.plan(roots))
            action, extras = (trees.map(self._spread(columns), part) for part in (plan.action, plan.extras))
            self._chosen = (columns, plan.action, plan.extras)
            self._policy.decisions.add(plan.extras)
        else:
            action, extras = trees.map(np.zeros_like, row.last_action), {}
            self._chosen = None
        solved = self._stream.solved
        return Decision(action, {**extras, "solved": first & False if solved is None else solved}, row, ())

    def _look_back(self, row: Row, states: Tree) -> None:
        """What came of the last decision."""
        assert self._chosen is not None
        columns, actions, extras = self._chosen
        self._chosen = None
        kept = ~np.asarray(row.first)[columns]
        columns = columns[kept]
        there = trees.map(lambda leaf: leaf[columns], states)
        rewards = np.asarray(row.last_reward["train"])[columns]
        terminated = np.asarray(row.terminated)[columns]
        ended = terminated | np.asarray(row.truncated)[columns]
        self._planner.feedback(columns, there, rewards, terminated)
        if self._watcher is not None:
            told = {name: value[kept] for name, value in extras.items()}
            self._watcher.real_steps(columns, there, actions[kept], rewards, ended, told)
        self._playing[columns[ended]] = False

    def _spread(self, columns: np.ndarray) -> Any:
        size = self._stream.size

        def spread(values: np.ndarray) -> np.ndarray:
            if len(columns) == size:
                return values
            full = np.zeros((size, *values.shape[1:]), values.dtype)
            full[columns] = values
            return full

        return spread

    def snapshot(self) -> dict[str, Any]:
        """What random choices depend on; trees are not saved, since episodes end before anything is."""
        return {"decisions": self._planner.decisions, "rng": self._planner.rng.bit_generator.state}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot, with the next episodes."""
        self.begin()
        self._planner.decisions = int(snapshot["decisions"])
        self._planner.rng.bit_generator.state = snapshot["rng"]
