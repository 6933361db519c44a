"""Planning policies: each decision is a search in a model of the environment.

A planner's actor states receive the rows of their environments, read the simulator states behind them, and pass the
search results to the memory as extras.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from packtrain import config, trees
from packtrain.acting.episode_pictures import EpisodePictures, PictureCallback
from packtrain.acting.inference import Inference
from packtrain.acting.planner_sides import PlannedStream, Watcher
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.interfaces import ActingPlace, ActorState, Decision, Policy, PolicySettings, SeedGroup
from packtrain.metrics.model_quality import ModelQuality
from packtrain.metrics.planning import Decisions
from packtrain.networks.planner_inputs import Inputs, input_space
from packtrain.networks.prediction import Prediction, PredictionSettings
from packtrain.networks.world_model import ModelNetworkSettings, WorldModel
from packtrain.planning.learned import NETWORK as MODEL
from packtrain.planning.learned.action_predictions import ActionPredictions, predict_actions
from packtrain.planning.learned.transition_table import Transitions, TransitionTable, equal_rows, stored_transitions
from packtrain.planning.model import CoreModel, FittedModel, FittedModelSettings, Model, Stepped
from packtrain.planning.planner import Agent, Planner, Roots
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.schedules import scheduled_values
from packtrain.planning.traces import Traces, TraceWriter, traces_of_flag
from packtrain.trees import Tree
from packtrain.types import Row, Spec

log = logging.getLogger("packtrain")


@configurable
@dataclass(frozen=True)
class Planning(PolicySettings):
    """A policy that searches, and the networks it uses."""

    env_access: ClassVar[Literal["rows", "states"]] = "states"
    records_searches: ClassVar[bool] = True

    agent: Agent
    network: PredictionSettings = Prediction()
    model: FittedModelSettings | None = None  # model to search in; None: the environment itself
    model_network: ModelNetworkSettings = WorldModel()  # network of that model
    traces: Traces | None = None  # episodes to record; None: none
    pictures: PictureCallback | None = None  # pictures of episodes and of the model's errors; None: none

    def build_network(self, spec: Spec) -> nn.ModuleDict:
        """Return the networks by their names, each with the heads that the planner requests."""
        heads = self.agent.heads(spec.action)
        inputs: Inputs = getattr(self.agent, "inputs", "observation")
        space = input_space(spec.obs, spec.action, inputs)
        networks = {name: self._checked(self.network.build(space, wanted), wanted) for name, wanted in heads.items()}
        if inputs == "observation_and_action":
            assert isinstance(spec.action, gym.spaces.Discrete)
            for network in networks.values():
                network.actions = int(spec.action.n)  # type: ignore[assignment]  # for learners, which append them
        if self.model is not None and self.model.members:
            networks[MODEL] = self.model_network.build(spec.obs, spec.action, spec.factors)
            if self.model.members > networks[MODEL].members:  # type: ignore[operator]
                raise ConfigError(
                    f"{type(self.model).__name__}.members = {self.model.members} exceeds the network's "
                    f"{networks[MODEL].members} members"
                )
        return nn.ModuleDict(networks)

    def _checked(self, network: nn.Module, heads: dict[str, int]) -> nn.Module:
        """Return a network; ConfigError if a user's network lacks what trainers use."""
        name = type(self.network).__name__
        missing = [part for part in ("heads", "on_batch", "members") if not hasattr(network, part)]
        if missing:
            raise ConfigError(
                f"{name}.build returned a module without {missing[0]!r}; planners' networks need heads, on_batch and "
                "members, see packtrain.networks.prediction.PredictionSettings"
            )
        absent = [head for head in heads if head not in network.heads]  # type: ignore[operator]
        if absent:
            raise ConfigError(f"{name}.build returned a module whose heads lack {absent[0]!r}, which the planner uses")
        return network

    def build_policy(self, network: nn.ModuleDict, place: ActingPlace) -> PlannerPolicy:
        """Return the policy that plans with a network; in evaluations it does not verify."""
        agent, writer = self.agent, None
        traces = None if place.greedy else self.traces
        if place.greedy:
            trusting = getattr(agent, "trusting", None)
            agent = agent if trusting is None else trusting()
        if place.trace_episodes:
            traces = traces_of_flag(place.trace_episodes)
        if traces is not None and place.trace_folder is not None:
            about = (place.env_name, place.trace_seed, place.first_env, place.trace_checkpoint)
            writer = TraceWriter(traces, place.trace_folder, *about)
        policy = PlannerPolicy(agent, network, place.device, place.seed, writer, self.model)
        if self.pictures is not None and place.trace_folder is not None and not (place.greedy or place.trace_episodes):
            policy.pictures = (self.pictures, place.trace_folder.parent / "pictures")
        return policy

    def for_evaluation(self, agent: Agent | None) -> Planning:
        """Return the policy with another agent, for evaluations; None: the training agent."""
        if agent is None:
            return self
        with config.unrecorded():
            return replace(self, agent=agent)

    @property
    def joins_seeds(self) -> bool:
        """Whether several seeds can share one search: those with a learned model, without traces and pictures."""
        return self.model is not None and self.traces is None and self.pictures is None

    def join_seeds(
        self, actors: Sequence[Any], policies: Sequence[Any], streams: Sequence[Any], seed: int
    ) -> SeedGroup:
        """Return one search for all seeds."""
        from packtrain.acting.multi_seed_planner import Joint

        return Joint(actors, policies, streams, seed)

    def warm_start_settings(self) -> dict[str, Any]:
        """Return the settings that random data and pre-training depend on."""
        return {"model": self.model_network}

    def complete_warm_start(self, state: dict[str, Any]) -> None:
        """Store the transitions in the run's memories as verified, if the run kept none itself."""
        if self.model is None or self.model.verified_edges != "run" or "actor" not in state:
            return
        sides = state["actor"].get("workers", [state["actor"]])  # one per process that acted
        for actor_state in (one for side in sides for one in side["seats"]):
            if "verified" in actor_state:
                continue
            verified, forgotten = stored_transitions(state["memories"])
            actor_state["verified"] = verified.snapshot()
            if forgotten:
                log.warning(
                    "--start_from: the run's memory has overwritten its oldest steps, so fewer transitions count as "
                    "verified than if this run had collected them itself; a larger replay_buffer_capacity keeps them"
                )


class PlannerPolicy(Policy):
    """A planner for every group of environments, and the networks that they share."""

    context = 0

    def __init__(
        self,
        agent: Agent,
        network: nn.ModuleDict,
        device: torch.device,
        seed: int,
        watcher: Watcher | None = None,
        model: FittedModelSettings | None = None,
        runs: Sequence[PlannerPolicy] = (),
    ):
        """Create the policy; nothing is planned yet.

        Args:
          agent: settings of the planner.
          network: networks that answer requests, by name.
          device: of the networks.
          seed: of all random numbers.
          watcher: receives the events of searches and real transitions.
          model: model to search in; None: the environment itself.
          runs: the policies of several runs that this one plans for at once (`acting/multi_seed_planner.py`).
        """
        self.runs = runs or (self,)
        self.network, self.device = network, device
        self.epoch = 0  # read by schedules of parameters
        self.trace_epoch = 0  # epoch over all stages, for the names of traces and the sampling of ensemble members
        self.random = False  # act at random at present, without a search
        self.version = 0  # version of the network's weights
        self.model = model
        self.inference = Inference(dict(network.items()), device)
        # Saved by actors; planners use counter-based random numbers.
        self.generator = torch.Generator().manual_seed(seed)
        self.decisions = Decisions()  # statistics of the planners' decisions since the last report
        self.quality = ModelQuality()  # accuracy of the learned model since the last report
        self.marks: dict[str, np.ndarray] = {}  # flags of the step before the latest row: {name: bool [B]}
        # the learned model's predictions for all actions before the latest row, in the first environment
        self.predicted: ActionPredictions | None = None
        self.pictures: tuple[PictureCallback, Path] | None = None  # of the first group, and their folder; None: none
        self.agent, self.seed, self._watcher = agent, seed, watcher
        self._actor_states = 0

    def begin_epoch(self, epoch: int, total: int, version: int | None = None) -> None:
        """Begin an epoch: set the epoch that parameter schedules and the names of traces use."""
        self.epoch, self.trace_epoch = epoch, total
        if version is not None:
            self.version = version

    def epoch_row(self) -> dict[str, dict[str, float]]:
        """Return statistics of decisions, scheduled parameters, and the accuracy of a learned model."""
        return {
            "agent": self.decisions.drain(),
            "agent_param": scheduled_values(self.agent, self.epoch),
            "episode_model": self.quality.drain(),
        }

    def epoch_state(self) -> dict[str, Any]:
        """Return the statistics of the unfinished epoch."""
        return {"decisions": self.decisions.state_dict(), "quality": self.quality.state_dict()}

    def load_epoch_state(self, state: dict[str, Any]) -> None:
        """Load the statistics of an unfinished epoch."""
        self.decisions.load_state_dict(state["decisions"])
        self.quality.load_state_dict(state["quality"])

    def actor_state(self, stream: PlannedStream) -> PlannerState:
        """Return the actor state of one group."""
        self._actor_states += 1
        core, seed = stream.columns.core, self.seed + 7919 * self._actor_states
        true: Model = CoreModel(core)
        model = true
        if self.model is not None:
            modelled = self.runs[0].network[MODEL] if self.model.members else None
            predicts = getattr(modelled, "predicts", "changes")
            model = self.model.build(core, seed, predicts, len(self.runs), stream.size)
        if isinstance(self._watcher, TraceWriter):
            self._watcher.look_at(core, model)
        planner = self.agent.build(model, stream.size, seed, self._watcher)
        with config.unrecorded():  # otherwise the recorded configuration would differ from that of a resumed run
            at_random = RandomAgent(legal_only=False).build(true, stream.size, seed)
        state = PlannerState(self, stream, model, planner, at_random, self._watcher)
        if self.pictures is not None and self._actor_states == 1:
            state.pictures = EpisodePictures(self.pictures[0], core, self.pictures[1])
        return state


class PlannerState(ActorState):
    """Plans for one group, row by row."""

    def __init__(
        self,
        policy: PlannerPolicy,
        stream: PlannedStream,
        model: Model,
        planner: Planner,
        at_random: Planner,
        watcher: Watcher | None,
    ):
        self._policy, self._stream, self._model = policy, stream, model
        self.planner, self.at_random = planner, at_random  # the planner, and the random agent that only collects data
        self._watcher = watcher
        self.learned = cast(FittedModel, model) if policy.model is not None else None
        self._fresh = planner.rng.bit_generator.state
        self.pictures: EpisodePictures | None = None
        self.begin()

    def begin(self) -> None:
        """Clear all state and restart random numbers: the next row is the first of all environments."""
        self.planner.decisions = self.at_random.decisions = 0
        self.planner.rng.bit_generator.state = self._fresh
        self._playing = np.zeros(self._stream.size, bool)
        self._chosen: list[tuple[Roots, Any, dict[str, Any]]] = []  # roots, decisions and extras

    def act(self, row: Row, served: np.ndarray | None = None) -> Decision:
        """Choose actions for environments whose episode is unfinished; the others get action 0, which is ignored.

        Args:
          row: of all environments.
          served: bool [B], environments that have a new row; those of waiting runs are not changed. None: all.
        """
        first, states = np.asarray(row.first), self._stream.columns.states
        planner = self.at_random if self._policy.random else self.planner
        if self.learned is not None:
            # Predictions are cached for an epoch. A resumed run has an empty cache, and makes its requests in the same
            # batches.
            self.learned.use(self._policy.version + self._policy.trace_epoch)
        for run in self._policy.runs:
            run.marks, run.predicted = {}, None
        acted = self._playing & ~first
        self._look_back(planner, row, states, served)
        if first.any():
            begun = np.flatnonzero(first)
            self._playing[begun] = True
            for run, part in self._shares(begun):
                if self.learned is not None:
                    self.learned.begin(begun[part], run.trace_epoch)
                planner.begin(begun[part], run.epoch)
            if isinstance(self._watcher, TraceWriter):
                self._watcher.planned = None if self._policy.random else self._policy.epoch
            if self._watcher is not None:
                own = () if self.learned is None else (self.learned.roots(begun, trees.pick(row.obs, begun)),)
                self._watcher.episode_begin(begun, self._policy.trace_epoch, trees.pick(states, begun), *own)
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
        if self.pictures is not None and not self._policy.random:
            self._picture(self.pictures, states, first, acted, np.asarray(action))
        solved = self._stream.solved
        return Decision(action, {**extras, "solved": first & False if solved is None else solved}, row, ())

    def _picture(
        self, pictures: EpisodePictures, states: Tree, first: np.ndarray, acted: np.ndarray, action: np.ndarray
    ) -> None:
        """Record a step for pictures, and write them when all episodes have ended."""
        if first.any() and not acted.any():
            pictures.begin_epoch(self._policy.trace_epoch)
        pictures.look(states, first, acted, action, self._policy.marks, self._policy.predicted)
        if not self._playing.any():
            pictures.write()

    def finish(self, row: Row) -> None:
        """Process the outcomes of the last decisions, and write what is recorded."""
        self._look_back(self.planner, row, self._stream.columns.states, None)
        if isinstance(self._watcher, TraceWriter):
            self._watcher.finish()

    def _seen(self, columns: np.ndarray, states: Tree, obs: Tree) -> Tree:
        """Return the states in the representation of the model."""
        return states if self.learned is None or self._policy.random else self.learned.roots(columns, obs)

    def _look_back(self, planner: Planner, row: Row, states: Tree, served: np.ndarray | None) -> None:
        """Process the outcome of the last decision in each environment that has a new row."""
        chosen, self._chosen = self._chosen, []
        kept = ~np.asarray(row.first)
        for decision in chosen:
            if served is not None and not served[decision[0].columns].all():
                self._chosen.append(_picked(decision, ~served))
                decision = _picked(decision, served)
            self._look_at(planner, row, states, decision if kept.all() else _picked(decision, kept))

    def _look_at(self, planner: Planner, row: Row, states: Tree, decision: tuple[Roots, Any, dict[str, Any]]) -> None:
        """Process the outcome of one decision."""
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
        learned: tuple[Any, ...] = ()  # what a learned model sees and predicted
        if self.learned is not None:
            before, after = (np.asarray(tree, np.float32) for tree in (roots.obs, obs))
            edges = Transitions(self.learned.run_of(columns), before, actions, after, rewards, terminated)
            guess = None if self._policy.random else self._rate_model(self.learned, roots, edges, extras)
            if self._watcher is not None:
                learned = (self.learned.roots(columns, obs), guess)
            self._remember(self.learned, planner, edges)
        if self._watcher is not None:
            self._watcher.real_steps(columns, there, actions, rewards, ended, extras, *learned)
        self._playing[columns[ended]] = False

    def _rate_model(self, model: FittedModel, roots: Roots, edges: Transitions, extras: dict[str, Any]) -> Stepped:
        """Compare the ensemble's own predictions with the outcomes, and return them."""
        guess = self._policy.inference.run(model.guess(roots.states, edges.action))
        nobody = np.zeros(len(edges.action), bool)
        right = equal_rows(guess.states["obs"], edges.after)
        predicted_loop, loop = (equal_rows(obs, edges.obs) for obs in (guess.states["obs"], edges.after))
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
        marks |= {"false_reward": noted["predicted_reward"] & ~noted["reward"], "random": noted["random"]}
        each = self._stream.size // len(self._policy.runs)
        for run, part in self._shares(roots.columns):
            run.quality.add(**{name: values[part] for name, values in noted.items()})
            places = roots.columns[part] % each
            for name, values in marks.items():
                run.marks[name] = np.zeros(each, bool)
                run.marks[name][places] = values[part]
            if self.pictures is not None and self.pictures.follows and places[0] == 0:
                first = trees.map(lambda leaf, part=part: leaf[part][:1], roots.states)
                count = int(self._stream.columns.core.action_space.n)
                run.predicted = self._policy.inference.run(predict_actions(model, first, count))
        return guess

    def _remember(self, model: FittedModel, planner: Planner, edges: Transitions) -> None:
        """Pass new transitions of one environment to the model and to the graphs of all environments."""
        if model.verified is None:
            return
        news = edges.pick(np.flatnonzero(model.verified.add(edges)))
        hear = getattr(planner, "hear", None)
        if hear is None or not len(news.action):
            return
        playing = np.flatnonzero(self._playing)
        listeners, which = np.nonzero(model.run_of(playing)[:, None] == news.run)  # environments of the same run
        columns, told = playing[listeners], news.pick(which)
        hear(
            columns,
            model.roots(columns, told.obs),
            told.action,
            model.roots(columns, told.after),
            told.reward,
            told.terminated,
        )

    def _shares(self, columns: np.ndarray) -> list[tuple[PlannerPolicy, Any]]:
        """Split environments [R], ascending, by run."""
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

    def evaluation_state(self) -> dict[str, Any]:
        """Return everything an evaluation could use."""
        return self.snapshot()

    def load_evaluation_state(self, state: dict[str, Any]) -> None:
        """Load the verified transitions that the policy in training has found, and nothing else."""
        if self.learned is not None and self.learned.verified is not None:
            self.learned.verified = TransitionTable()
        self._recall(state)

    def snapshot(self, run: int = 0) -> dict[str, Any]:
        """Return the state that random choices depend on; trees are not saved: checkpoints fall between episodes."""
        verified = None if self.learned is None else self.learned.verified
        return {
            "decisions": self.planner.decisions,
            "random_decisions": self.at_random.decisions,
            "rng": self.planner.rng.bit_generator.state,
            **({} if verified is None else {"verified": verified.snapshot(run)}),
            **({"lasting": self.planner.lasting(run)} if hasattr(self.planner, "lasting") else {}),
        }

    def restore(self, snapshot: dict[str, Any], run: int = 0) -> None:
        """Continue from a snapshot, at the next episodes."""
        self.begin()
        self.planner.decisions = int(snapshot["decisions"])
        self.at_random.decisions = int(snapshot["random_decisions"])
        self.planner.rng.bit_generator.state = snapshot["rng"]
        self._recall(snapshot, run)

    def lasting_part(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return a snapshot: nothing in it belongs to unfinished episodes."""
        return snapshot

    def adopt(self, lasting: Sequence[dict[str, Any]], sizes: Sequence[int], envs: Any) -> None:
        """Continue, with new episodes, from the state of other groups of environments; random choices differ."""
        group = int(np.searchsorted(np.cumsum(sizes), int(envs[0]), side="right"))
        self.begin()
        self.planner.decisions = int(lasting[group]["decisions"])
        self.at_random.decisions = int(lasting[group]["random_decisions"])
        self._recall(lasting[group])

    def _recall(self, snapshot: dict[str, Any], run: int = 0) -> None:
        """Restore the environment's transitions that a snapshot contains."""
        verified = None if self.learned is None else self.learned.verified
        if verified is not None and len(snapshot.get("verified", {}).get("edges", {}).get("action", ())):
            verified.restore(snapshot["verified"], run)
        if snapshot.get("lasting"):
            self.planner.restore(snapshot["lasting"], run)  # type: ignore[attr-defined]


def _picked(decision: tuple[Roots, Any, dict[str, Any]], which: np.ndarray) -> tuple[Roots, Any, dict[str, Any]]:
    """Return the decisions of the environments selected by the mask `which`, [B]."""
    roots, actions, extras = decision
    rows = which[roots.columns]
    picked, actions, extras = trees.pick((tuple(roots), actions, extras), rows)
    return Roots(*picked), actions, extras
