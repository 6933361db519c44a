"""Acting by planning: a policy whose decisions come from a search in a model of its environment.

It takes the place of a network policy in the walk: its seats see the rows of their columns, look at the states behind
them, and hand what the search found out to the memory as extras.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from packtrain import config, trees
from packtrain.acting.inference import Inference
from packtrain.acting.seat import Decision
from packtrain.envs.columns import FunctionalColumns
from packtrain.envs.stream import Stream
from packtrain.metrics.planning import Decisions
from packtrain.planning.events import Listener
from packtrain.planning.learned import EnsembleModel, LearnedModel
from packtrain.planning.model import CoreModel, Model
from packtrain.planning.planner import Agent, Planner, Roots
from packtrain.planning.random_agent import RandomAgent
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
        self,
        agent: Agent,
        network: nn.ModuleDict,
        device: torch.device,
        seed: int,
        watcher: Watcher | None = None,
        model: LearnedModel | None = None,
    ):
        """Nothing is planned yet.

        Args:
          agent: the planner's numbers.
          network: the networks that are asked, by name.
          device: where they are.
          seed: of everything that is drawn.
          watcher: hears of searches and of what is really done.
          model: what is searched in; None: the environment itself.
        """
        self.network, self.device = network, device
        self.epoch = 0  # what schedules of parameters look at
        self.trace_epoch = 0  # what traces are named by
        self.random = False  # act at random for now, without a search
        self._model = model
        self.inference = Inference(dict(network.items()), device)
        self.generator = torch.Generator().manual_seed(seed)  # what actors save; planners draw by place
        self.decisions = Decisions()  # what planners said of them since somebody looked
        self._agent, self._seed, self._watcher = agent, seed, watcher
        self._seats = 0

    def seat(self, stream: Stream) -> PlannedSeat:
        """The seat of one group."""
        assert isinstance(stream.columns, FunctionalColumns)
        self._seats += 1
        core, seed = stream.columns.core, self._seed + 7919 * self._seats
        true: Model = CoreModel(core)
        model: Model = (
            true if self._model is None else self._model.build(core.observation_space, core.action_space, seed)
        )
        planner = self._agent.build(model, stream.size, seed, self._watcher)
        with config.unrecorded():  # or a run would be told from the same one resumed by it
            at_random = RandomAgent(legal_only=False).build(true, stream.size, seed)
        return PlannedSeat(self, stream, model, planner, at_random, self._watcher)


class PlannedSeat:
    """Plans for one group, row after row."""

    def __init__(
        self,
        policy: PlannedPolicy,
        stream: Stream,
        model: Model,
        planner: Planner,
        at_random: Planner,
        watcher: Watcher | None,
    ):
        self._policy, self._stream, self._model = policy, stream, model
        self._planner, self._at_random = planner, at_random
        self._watcher = watcher
        self._columns: FunctionalColumns = stream.columns  # type: ignore[assignment]
        self._fresh = planner.rng.bit_generator.state
        self.begin()

    def begin(self) -> None:
        """Forget everything, and draw as in the beginning: the next row is the first of all columns."""
        self._planner.decisions = self._at_random.decisions = 0
        self._planner.rng.bit_generator.state = self._fresh
        self._playing = np.zeros(self._stream.size, bool)
        self._chosen: tuple[np.ndarray, Any, dict[str, Any]] | None = None  # columns, actions, extras

    def act(self, row: Row) -> Decision:
        """Decide for the columns whose episode is under way; the others get action 0, which nobody looks at."""
        first, states = np.asarray(row.first), self._columns.states
        planner = self._at_random if self._policy.random else self._planner
        if self._chosen is not None:
            self._look_back(planner, row, states)
        if first.any():
            begun = np.flatnonzero(first)
            self._playing[begun] = True
            if isinstance(self._model, EnsembleModel):
                self._model.begin(begun, self._policy.epoch)
            planner.begin(begun, self._policy.epoch)
            if self._watcher is not None:
                self._watcher.episode_begin(
                    begun, self._policy.trace_epoch, trees.map(lambda leaf: leaf[begun], states)
                )
        columns = np.flatnonzero(self._playing)
        pick = slice(None) if len(columns) == self._stream.size else columns
        if len(columns):
            there, obs = (trees.map(lambda leaf: leaf[pick], tree) for tree in (states, row.obs))
            roots = Roots(columns, self._seen(columns, there, obs), obs)
            plan = self._policy.inference.run(planner.plan(roots))
            action, extras = (trees.map(self._spread(columns), part) for part in (plan.action, plan.extras))
            self._chosen = (columns, plan.action, plan.extras)
            self._policy.decisions.add(plan.extras)
        else:
            action, extras = trees.map(np.zeros_like, row.last_action), {}
            self._chosen = None
        solved = self._stream.solved
        return Decision(action, {**extras, "solved": first & False if solved is None else solved}, row, ())

    def _seen(self, columns: np.ndarray, states: Tree, obs: Tree) -> Tree:
        """The states as the model sees them."""
        learned = isinstance(self._model, EnsembleModel) and not self._policy.random
        return self._model.roots(columns, obs) if learned else states  # type: ignore[attr-defined]

    def _look_back(self, planner: Planner, row: Row, states: Tree) -> None:
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
        obs = trees.map(lambda leaf: leaf[columns], row.obs)
        planner.feedback(columns, self._seen(columns, there, obs), rewards, terminated)
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
        return {
            "decisions": self._planner.decisions,
            "random_decisions": self._at_random.decisions,
            "rng": self._planner.rng.bit_generator.state,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot, with the next episodes."""
        self.begin()
        self._planner.decisions = int(snapshot["decisions"])
        self._at_random.decisions = int(snapshot["random_decisions"])
        self._planner.rng.bit_generator.state = snapshot["rng"]
