"""Acting by planning: a policy whose decisions come from a search in a model of its environment.

It takes the place of a network policy in the walk: its seats see the rows of their columns, look at the states behind
them, and hand what the search found out to the memory as extras.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from packtrain import config, trees
from packtrain.acting.inference import Inference
from packtrain.acting.seat import Decision
from packtrain.envs.functional import Core
from packtrain.interfaces import Policy
from packtrain.metrics.model_quality import ModelQuality
from packtrain.metrics.planning import Decisions
from packtrain.networks.world_model import FactoredWorldModelNetwork
from packtrain.planning.events import Listener
from packtrain.planning.learned import NETWORK as MODEL
from packtrain.planning.learned import EnsembleModel, LearnedModel
from packtrain.planning.model import CoreModel, Model
from packtrain.planning.planner import Agent, Planner, Roots
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.verified import Edges, VerifiedEdges
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


class PlannedColumns(Protocol):
    """The states behind rows."""

    core: Core

    @property
    def states(self) -> Tree:
        """[B, ...]."""


class PlannedStream(Protocol):
    """What a seat needs of a stream: how many columns, their states, and whether the latest row solved a task."""

    size: int

    @property
    def solved(self) -> np.ndarray | None:
        """[B] bool; None: nobody says."""

    @property
    def columns(self) -> Any:
        """`PlannedColumns`."""


class PlannedPolicy(Policy):
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
        runs: Sequence[PlannedPolicy] = (),
    ):
        """Nothing is planned yet.

        Args:
          agent: the planner's numbers.
          network: the networks that are asked, by name.
          device: where they are.
          seed: of everything that is drawn.
          watcher: hears of searches and of what is really done.
          model: what is searched in; None: the environment itself.
          runs: the policies of several runs that this one plans for at once (`acting/joint.py`), whose books it keeps.
        """
        self.runs = runs or (self,)
        self.network, self.device = network, device
        self.epoch = 0  # what schedules of parameters look at
        self.trace_epoch = 0  # of all kinds: what traces are named by, and members of a model drawn for
        self.random = False  # act at random for now, without a search
        self.version = 0  # of the network's weights
        self.model = model
        self.inference = Inference(dict(network.items()), device)
        self.generator = torch.Generator().manual_seed(seed)  # what actors save; planners draw by place
        self.decisions = Decisions()  # what planners said of them since somebody looked
        self.quality = ModelQuality()  # how right a learned model was, likewise
        self.marks: dict[str, np.ndarray] = {}  # what is noted of the step before the latest row: {name: bool [B]}
        self.agent, self.seed, self._watcher = agent, seed, watcher
        self._seats = 0

    def begin_epoch(self, epoch: int, total: int, version: int | None = None) -> None:
        """Let schedules of parameters look at this epoch, and name traces by their number."""
        self.epoch, self.trace_epoch = epoch, total
        if version is not None:
            self.version = version

    def epoch_row(self) -> dict[str, dict[str, float]]:
        """Return what planners said of their decisions, and how right a learned model was."""
        return {"agent": self.decisions.drain(), "episode_model": self.quality.drain()}

    def epoch_state(self) -> dict[str, Any]:
        """Return what the epoch's row is made of so far."""
        return {"decisions": self.decisions.state_dict(), "quality": self.quality.state_dict()}

    def load_epoch_state(self, state: dict[str, Any]) -> None:
        """Go on with an epoch's row."""
        self.decisions.load_state_dict(state["decisions"])
        self.quality.load_state_dict(state["quality"])

    def seat(self, stream: PlannedStream) -> PlannedSeat:
        """The seat of one group."""
        self._seats += 1
        core, seed = stream.columns.core, self.seed + 7919 * self._seats
        true: Model = CoreModel(core)
        model = true
        if self.model is not None:
            classes = isinstance(self.runs[0].network[MODEL], FactoredWorldModelNetwork)
            model = self.model.build(core, seed, classes, len(self.runs), stream.size)
        planner = self.agent.build(model, stream.size, seed, self._watcher)
        with config.unrecorded():  # or a run would be told from the same one resumed by it
            at_random = RandomAgent(legal_only=False).build(true, stream.size, seed)
        return PlannedSeat(self, stream, model, planner, at_random, self._watcher)


class PlannedSeat:
    """Plans for one group, row after row."""

    def __init__(
        self,
        policy: PlannedPolicy,
        stream: PlannedStream,
        model: Model,
        planner: Planner,
        at_random: Planner,
        watcher: Watcher | None,
    ):
        self._policy, self._stream, self._model = policy, stream, model
        self.planner, self.at_random = planner, at_random  # who acts, and who only gathers data
        self._watcher = watcher
        self.learned = model if isinstance(model, EnsembleModel) else None
        self._fresh = planner.rng.bit_generator.state
        self.begin()

    def begin(self) -> None:
        """Forget everything, and draw as in the beginning: the next row is the first of all columns."""
        self.planner.decisions = self.at_random.decisions = 0
        self.planner.rng.bit_generator.state = self._fresh
        self._playing = np.zeros(self._stream.size, bool)
        self._chosen: list[tuple[Roots, Any, dict[str, Any]]] = []  # where, what, and what was known

    def act(self, row: Row, served: np.ndarray | None = None) -> Decision:
        """Decide for the columns whose episode is under way; the others get action 0, which nobody looks at.

        Args:
          row: of all columns.
          served: bool [B], the columns that have a new row; those of runs that wait are left as they are. None: all.
        """
        first, states = np.asarray(row.first), self._stream.columns.states
        planner = self.at_random if self._policy.random else self.planner
        if self.learned is not None:
            # Answers are kept for an epoch: a run that goes on has none from before, and asks in the same batches.
            self.learned.use(self._policy.version + self._policy.trace_epoch)
        for run in self._policy.runs:
            run.marks = {}
        self._look_back(planner, row, states, served)
        if first.any():
            begun = np.flatnonzero(first)
            self._playing[begun] = True
            for run, part in self._shares(begun):
                if self.learned is not None:
                    self.learned.begin(begun[part], run.trace_epoch)
                planner.begin(begun[part], run.epoch)
            if self._watcher is not None:
                self._watcher.episode_begin(begun, self._policy.trace_epoch, trees.pick(states, begun))
        columns = np.flatnonzero(self._playing if served is None else self._playing & served)
        pick = slice(None) if len(columns) == self._stream.size else columns
        if len(columns):
            there, obs = (trees.pick(tree, pick) for tree in (states, row.obs))
            roots = Roots(columns, self._seen(columns, there, obs), obs)
            plan = self._policy.inference.run(planner.plan(roots))
            action, extras = (trees.map(self._spread(columns), part) for part in (plan.action, plan.extras))
            self._chosen.append((roots, plan.action, plan.extras))
            for run, part in self._shares(columns):
                run.decisions.add({name: values[part] for name, values in plan.extras.items()})
        else:
            action, extras = trees.map(np.zeros_like, row.last_action), {}
        solved = self._stream.solved
        return Decision(action, {**extras, "solved": first & False if solved is None else solved}, row, ())

    def _seen(self, columns: np.ndarray, states: Tree, obs: Tree) -> Tree:
        """The states as the model sees them."""
        return states if self.learned is None or self._policy.random else self.learned.roots(columns, obs)

    def _look_back(self, planner: Planner, row: Row, states: Tree, served: np.ndarray | None) -> None:
        """What came of the last decision in each column that has a new row."""
        chosen, self._chosen = self._chosen, []
        kept = ~np.asarray(row.first)
        for decision in chosen:
            if served is not None and not served[decision[0].columns].all():
                self._chosen.append(_picked(decision, ~served))
                decision = _picked(decision, served)
            self._look_at(planner, row, states, decision if kept.all() else _picked(decision, kept))

    def _look_at(self, planner: Planner, row: Row, states: Tree, decision: tuple[Roots, Any, dict[str, Any]]) -> None:
        """What came of one decision."""
        roots, actions, extras = decision
        columns = roots.columns
        if not len(columns):
            return
        there = trees.pick(states, columns)
        rewards = np.asarray(row.last_reward["train"])[columns]
        terminated = np.asarray(row.terminated)[columns]
        ended = terminated | np.asarray(row.truncated)[columns]
        obs = trees.pick(row.obs, columns)
        planner.feedback(columns, self._seen(columns, there, obs), rewards, terminated)
        if self.learned is not None:
            before, after = (np.asarray(tree, np.float32) for tree in (roots.obs, obs))
            edges = Edges(self.learned.run_of(columns), before, actions, after, rewards, terminated)
            if not self._policy.random:
                self._rate_model(self.learned, roots, edges, extras)
            self._remember(self.learned, planner, edges)
        if self._watcher is not None:
            self._watcher.real_steps(columns, there, actions, rewards, ended, extras)
        self._playing[columns[ended]] = False

    def _rate_model(self, model: EnsembleModel, roots: Roots, edges: Edges, extras: dict[str, Any]) -> None:
        """Compare what the ensemble itself says with what happened."""
        guess = self._policy.inference.run(model.guess(roots.states, edges.action))
        nobody = np.zeros(len(edges.action), bool)
        right = (guess.states["obs"] == edges.after).all(axis=1)
        predicted_loop, loop = ((obs == edges.obs).all(axis=1) for obs in (guess.states["obs"], edges.after))
        noted = {
            "right": right,
            "predicted_loop": predicted_loop,
            "loop": loop,
            "predicted_reward": guess.rewards > 0,
            "reward": edges.reward > 0,
            "novelty": extras.get("verified", nobody),
            "random": extras.get("random_action", nobody),
        }
        marks = {"wrong": ~right, "false_loop": predicted_loop & ~loop, "verified": noted["novelty"]}
        each = self._stream.size // len(self._policy.runs)
        for run, part in self._shares(roots.columns):
            run.quality.add(**{name: values[part] for name, values in noted.items()})
            places = roots.columns[part] % each
            for name, values in marks.items():
                run.marks[name] = np.zeros(each, bool)
                run.marks[name][places] = values[part]

    def _remember(self, model: EnsembleModel, planner: Planner, edges: Edges) -> None:
        """Let the model and the graphs of all columns know what happened in one, if it is news."""
        if model.verified is None:
            return
        news = edges.pick(np.flatnonzero(model.verified.add(edges)))
        hear = getattr(planner, "hear", None)
        if hear is None or not len(news.action):
            return
        playing = np.flatnonzero(self._playing)
        listeners, which = np.nonzero(model.run_of(playing)[:, None] == news.run)  # of the same run
        columns, told = playing[listeners], news.pick(which)
        hear(
            columns,
            model.roots(columns, told.obs),
            told.action,
            model.roots(columns, told.after),
            told.reward,
            told.terminated,
        )

    def _shares(self, columns: np.ndarray) -> list[tuple[PlannedPolicy, Any]]:
        """Which of the columns [R], ascending, are whose."""
        runs = self._policy.runs
        if len(runs) == 1:
            return [(runs[0], slice(None))]
        each = self._stream.size // len(runs)
        ends = np.searchsorted(columns, each * np.arange(len(runs) + 1))
        return [(run, slice(a, b)) for run, a, b in zip(runs, ends[:-1], ends[1:], strict=True) if b > a]

    def _spread(self, columns: np.ndarray) -> Any:
        size = self._stream.size

        def spread(values: np.ndarray) -> np.ndarray:
            if len(columns) == size:
                return values
            full = np.zeros((size, *values.shape[1:]), values.dtype)
            full[columns] = values
            return full

        return spread

    def knowledge(self) -> dict[str, Any]:
        """Return everything an evaluation could use."""
        return self.snapshot()

    def lasting(self) -> dict[str, Any]:
        """Return nothing: episodes end before anything is saved."""
        return {}

    def know(self, snapshot: dict[str, Any]) -> None:
        """Know what a seat of another policy has found out about the world, by its snapshot, and nothing else."""
        if self.learned is not None and self.learned.verified is not None:
            self.learned.verified = VerifiedEdges()
        self._recall(snapshot)

    def snapshot(self, run: int = 0) -> dict[str, Any]:
        """What random choices depend on; trees are not saved, since episodes end before anything is."""
        verified = None if self.learned is None else self.learned.verified
        return {
            "decisions": self.planner.decisions,
            "random_decisions": self.at_random.decisions,
            "rng": self.planner.rng.bit_generator.state,
            **({} if verified is None else {"verified": verified.snapshot(run)}),
            **({"lasting": self.planner.lasting(run)} if hasattr(self.planner, "lasting") else {}),
        }

    def restore(self, snapshot: dict[str, Any], run: int = 0) -> None:
        """Go on from a snapshot, with the next episodes."""
        self.begin()
        self.planner.decisions = int(snapshot["decisions"])
        self.at_random.decisions = int(snapshot["random_decisions"])
        self.planner.rng.bit_generator.state = snapshot["rng"]
        self._recall(snapshot, run)

    def _recall(self, snapshot: dict[str, Any], run: int = 0) -> None:
        """Know what a snapshot knew of the world."""
        verified = None if self.learned is None else self.learned.verified
        if verified is not None and len(snapshot.get("verified", {}).get("edges", {}).get("action", ())):
            verified.restore(snapshot["verified"], run)
        if snapshot.get("lasting"):
            self.planner.restore(snapshot["lasting"], run)  # type: ignore[attr-defined]


def _picked(decision: tuple[Roots, Any, dict[str, Any]], which: np.ndarray) -> tuple[Roots, Any, dict[str, Any]]:
    """What was decided in some columns, bool [B]."""
    roots, actions, extras = decision
    rows = which[roots.columns]
    picked, actions, extras = trees.pick((tuple(roots), actions, extras), rows)
    return Roots(*picked), actions, extras
