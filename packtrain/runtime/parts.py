"""The parts of an experiment, alive: streams, policy, actor, memories, learners, weights; and what must survive."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from packtrain import config
from packtrain.acting.actor import Actor, AnyPolicy
from packtrain.acting.control import ControlPolicy
from packtrain.acting.planned import PlannedPolicy
from packtrain.acting.policy import NetworkPolicy
from packtrain.acting.predictive import PredictivePolicy
from packtrain.acting.values import ValuePolicy
from packtrain.algorithms.dynamics import DynamicsLearning
from packtrain.algorithms.launches import ReplayLearner
from packtrain.algorithms.q_learning import QLearning
from packtrain.algorithms.value_expansion import ValueExpansion
from packtrain.config import Travelling
from packtrain.devices.precision import choose_precision, use_tf32
from packtrain.envs.environment import Environment
from packtrain.envs.stream import Stream
from packtrain.errors import CheckpointError, ConfigError
from packtrain.memory.episodes import EpisodeMemory
from packtrain.memory.replay import Replay, ReplayMemory
from packtrain.memory.sequences import SequenceMemory, Sequences
from packtrain.networks.action_values import ActionValues, ActionValuesNetwork
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.networks.control import Control
from packtrain.planning.traces import TraceWriter
from packtrain.runtime.evaluation import Evaluator, Kind, Limits
from packtrain.runtime.experiment import Evaluation, Experiment, Planning, PredictiveControl
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.weights import Weights
from packtrain.types import Sink, Spec

EVALUATION_COLUMNS = 16
REPLAYED = (ReplayMemory, SequenceMemory)  # memories whose steps outlive their episodes


def open_streams(
    experiment: Experiment, spec: Spec, travelling: Travelling | None = None, again: tuple[int, ...] = ()
) -> list[Stream]:
    """The experiment's environments, a stream a group; with other seeds where a run begins them `again`."""
    sizes, environment = experiment.streams.group_sizes(), experiment.streams.environment
    seeds = [seed_for(experiment.seed, "environments", g, *again) for g in range(len(sizes))]
    if isinstance(experiment.policy, Planning):
        together, limit = experiment.streams.together, experiment.streams.episode_time_limit
        return [
            Stream(environment.open_core(size, own, together, limit), size)
            for size, own in zip(sizes, seeds, strict=True)
        ]
    return [
        Stream(environment.open(size, own, spec, travelling, len(sizes)), size)
        for size, own in zip(sizes, seeds, strict=True)
    ]


def make_policy(
    description: Any,
    network: torch.nn.Module,
    device: torch.device,
    seed: int,
    greedy: bool,
    columns: int,
    traces: Any = None,
) -> AnyPolicy:
    """Who acts with a network in so many columns: itself, or a planner that asks it."""
    if isinstance(description, ActionValues):
        return ValuePolicy(description, network, seed, columns, greedy)  # type: ignore[arg-type]
    if isinstance(description, Control):
        return ControlPolicy(network, seed, greedy)  # type: ignore[arg-type]
    if isinstance(description, PredictiveControl):
        return PredictivePolicy(description.planner, network, seed)  # type: ignore[arg-type]
    if isinstance(description, Planning):
        agent = description.agent
        if greedy:
            trusting = getattr(agent, "trusting", None)  # whoever evaluates does not verify
            agent = agent if trusting is None else trusting()
        return PlannedPolicy(agent, network, device, seed, traces, description.model)  # type: ignore[arg-type]
    return NetworkPolicy(network, seed, greedy)  # type: ignore[arg-type]


def try_out(experiment: Experiment, spec: Spec) -> None:
    """Build the networks, and all that may find that it does not fit: planners and what learns from them."""
    network = experiment.policy.build(spec)
    if isinstance(experiment.policy, Planning):
        stream = Stream(experiment.streams.environment.open_core(1, 0), 1)
        policies = [(experiment.policy, False)]
        policies += [
            (evaluated_policy(experiment.policy, settings), True) for settings in experiment.evaluations.values()
        ]
        for policy, greedy in policies:
            make_policy(policy, network, torch.device("cpu"), 0, greedy, 1).seat(stream)
    if isinstance(experiment.policy, Planning) or experiment.by_ratio:
        for name, use in experiment.learners.items():
            learner = use.learner.build(network, experiment.total_steps)
            memory = experiment.memories[use.memory]
            if isinstance(memory, Sequences) and isinstance(network, ActionValuesNetwork):
                memory.refuse_unless_it_fits(experiment.streams.num_actors, network.context)
            if isinstance(memory, Sequences) and isinstance(use.learner, QLearning):
                assert isinstance(experiment.policy, ActionValues)
                use.learner.refuse_unless_it_fits(memory, experiment.policy.arms)
            if isinstance(memory, Replay) and isinstance(use.learner, (ValueExpansion, DynamicsLearning)):
                use.learner.refuse_unless_it_fits(memory)
            if isinstance(memory, Replay) and memory.capacity < learner.rule.batch_size:
                raise ConfigError(
                    f"Replay.capacity = {memory.capacity} is less than the batches of {learner.rule.batch_size} that "
                    f"learner {name!r} takes"
                )


class _Spread:
    """Takes the rows of one group to the memories that are being filled: one for most, several or none for planners."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    def add(self, row: Any, carry: Any, extras: dict[str, Any]) -> None:
        """Hand them on."""
        for sink in self.sinks:
            sink.add(row, carry, extras)


class Parts:
    """What an experiment consists of, alive: streams, actor, memories, learners, weights."""

    def __init__(
        self,
        experiment: Experiment,
        spec: Spec,
        device: torch.device,
        travelling: Travelling | None = None,
        streams: list[Stream] | None = None,
        exact: bool = False,
        traces: TraceWriter | None = None,
        again: tuple[int, ...] = (),
    ):
        """Everything is made, nothing starts.

        Args:
          experiment: what to make.
          spec: what its environment shows and takes.
          device: where networks and memories live.
          travelling: the configuration, for child processes.
          streams: environments that are open already; their sizes are those of the experiment's groups.
          exact: nothing may be chosen by how fast it is today, so that the same run gives the same numbers.
          traces: writes searches down.
          again: the steps after which a run goes on with environments that begin anew: what is random in them, and in
            actions, is not what it was at its beginning.
        """
        seed = experiment.seed
        self._experiment, self._spec, self.device = experiment, spec, device
        torch.manual_seed(seed_for(seed, "weights"))
        torch.backends.cudnn.benchmark = not exact  # batches keep their shape: let cuDNN try which kernels are fastest
        torch.backends.cudnn.deterministic = exact
        network, acting_network = (experiment.policy.build(spec).to(device) for _ in range(2))
        self.precision: torch.dtype | None = None
        if experiment.by_ratio:
            use_tf32(experiment.run.precision, device)
        if isinstance(network, (ActorCriticNetwork, ActionValuesNetwork)):
            wanted = experiment.run.precision or ("float32" if exact and device.type == "cpu" else None)
            self.precision = choose_precision(wanted, network, spec, device)
            network.precision = acting_network.precision = self.precision  # type: ignore[assignment]
        sizes = experiment.streams.group_sizes()
        self.streams = streams or open_streams(experiment, spec, travelling, again)
        columns, own_seed = experiment.streams.num_actors, seed_for(seed, "actions", *again)
        self.policy = make_policy(experiment.policy, acting_network, device, own_seed, False, columns, traces)
        for use in experiment.learners.values():
            filled = experiment.memories[use.memory]
            if isinstance(filled, Sequences) and filled.new_priority == "given":
                assert isinstance(use.learner, QLearning) and isinstance(self.policy, ValuePolicy)
                self.policy.error_numbers = use.learner.actor_errors(filled)
        self.memories = {n: m.build(sizes, self.policy.context, device) for n, m in experiment.memories.items()}
        for name, memory in self.memories.items():
            if isinstance(memory, (*REPLAYED, EpisodeMemory)):
                memory.reseed(seed_for(seed, "memory", name))
            if isinstance(memory, SequenceMemory) and exact:
                memory.margin = 0  # whatever has been acted can be drawn at once
        total = experiment.total_steps
        self.learners = {name: use.learner.build(network, total) for name, use in experiment.learners.items()}
        for name, learner in self.learners.items():
            if isinstance(learner, ReplayLearner):
                learner.reseed(seed_for(seed, "updates", name))
        self.weights = Weights()
        self._published = [(self.learners[name], use.publishes) for name, use in experiment.learners.items()]
        self.publish(0)
        self._version = -1
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._spread = [_Spread() for _ in sizes]
        self.collect_into(tuple(self.memories))
        single = next(iter(self.memories.values())).sinks if len(self.memories) == 1 else None
        sinks: Any = single if single is not None and not experiment.by_epochs else self._spread
        self.actor = Actor(self.streams, self.policy, sinks, self._refresh)

    def collect_into(self, names: tuple[str, ...]) -> None:
        """Fill these memories from now on."""
        for group, spread in enumerate(self._spread):
            spread.sinks = [self.memories[name].sinks[group] for name in names]

    def acting(self) -> contextlib.AbstractContextManager:
        """Around what acts: on a GPU, a stream of its own that goes before learning. It may be entered twice."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @property
    def updates(self) -> int:
        """Of all learners together: no two versions of weights share it."""
        return sum(learner.updates for learner in self.learners.values())

    def renew(self, name: str, epoch: int) -> None:
        """Let a learner begin anew, with other weights for every epoch at which it does, and empty its memory."""
        torch.manual_seed(seed_for(self._experiment.seed, "weights", epoch))
        learner = self.learners[name]
        learner.begin_anew(self._experiment.policy.build(self._spec).state_dict())
        memory = self.memories[self._experiment.learners[name].memory]
        assert isinstance(memory, EpisodeMemory)
        memory.clear()
        learner.updates += 1  # other weights are another version
        self.publish(self.updates)

    def publish(self, version: int) -> None:
        """Make the learners' weights the newest version."""
        for learner, names in self._published:
            for name in names:
                self.weights.publish(name, self._acting(learner.network), version)

    def moved(self) -> None:
        """The learners' weights lie elsewhere from now on."""
        for learner, _ in self._published:
            self.weights.forget(self._acting(learner.network))

    def _acting(self, network: Any) -> torch.nn.Module:
        """What of a network is needed to act."""
        description = self._experiment.policy
        if isinstance(description, PredictiveControl):
            return network.model
        if isinstance(description, ActionValues):
            return network.acting
        return network.behaviour if isinstance(description, Control) else network

    def _refresh(self) -> int:
        if not self.learners:
            return 0
        self._version = self.weights.pull("policy", self._acting(self.policy.network), self._version)
        if isinstance(self.policy, (PlannedPolicy, ValuePolicy)):
            self.policy.version = self._version
        return self._version

    def state(self, with_actor: bool, actor: dict[str, Any] | None = None) -> dict[str, Any]:
        """Everything that must survive, as a tree; without the actor's part if it is broken or cannot be saved.

        Args:
          with_actor: whether to save where the environments stand, and the memories.
          actor: where they stood when the epoch began, if one is under way.
        """
        learners = {name: learner.state_dict() for name, learner in self.learners.items()}
        state: dict[str, Any] = {
            "weights": {name: learner.pop("network") for name, learner in learners.items()},
            "learners": learners,
        }
        if isinstance(self.policy, ValuePolicy) and self.weights.version("policy") != self.updates:
            state["acting"] = self.weights.snapshot("policy")  # its weights are older than the learner's
        actor = (actor or self.actor.snapshot()) if with_actor else None
        if actor is not None:
            state["actor"] = actor
        elif isinstance(self.policy, ValuePolicy):
            state["seats"] = [seat.lasting() for seat in self.actor.seats]  # type: ignore[union-attr]
        kept = [n for n, memory in self.memories.items() if actor is not None or isinstance(memory, REPLAYED)]
        if kept:  # an unroll belongs to its episode; what is replayed does not
            state["memories"] = {name: self.memories[name].snapshot() for name in kept}
        return state

    def load_state(self, state: dict[str, Any]) -> bool:
        """Go on from a saved state; False if the environments could not be saved and begin new episodes.

        A state that another experiment has left may know nothing of some learners and networks: they begin.
        """
        branched = state["run"].get("branched", False)
        for name, learner in self.learners.items():
            if branched and name not in state["learners"]:
                continue
            weights = state["weights"][name]
            if branched:
                weights = {**learner.network.state_dict(), **{n: w for n, w in weights.items() if n in _names(learner)}}
            try:
                learner.load_state_dict({**state["learners"][name], "network": weights})
            except RuntimeError as error:  # torch lists every tensor that does not fit
                reason = " ".join(str(error).split()[:40])
                raise CheckpointError(
                    f"the checkpoint's weights of learner {name!r} do not fit the network of this version: {reason} …; "
                    "--fresh starts anew beside it"
                ) from error
        self.publish(self.updates)
        if "acting" in state:
            self.weights.restore("policy", state["acting"])
        if not self.learners:
            self._version = 0
        if "actor" not in state:
            for name, memory in self.memories.items():
                if isinstance(memory, REPLAYED) and name in state.get("memories", {}):
                    memory.restore(state["memories"][name], same_episodes=False)
            for seat, lasting in zip(self.actor.seats, state.get("seats", ()), strict=False):
                seat.remember(lasting)  # type: ignore[union-attr]
            return False
        self.actor.restore(state["actor"])
        for name, memory in self.memories.items():
            if not branched or name in state["memories"]:
                memory.restore(state["memories"][name])
        return True

    def close(self) -> None:
        """Close the environments."""
        self.actor.close()


def evaluated_policy(policy: Planning, settings: Evaluation) -> Planning:
    """Return a planner's policy with the agent that acts in an evaluation."""
    if settings.agent is None:
        return policy
    with config.unrecorded():
        return replace(policy, agent=settings.agent)


def _names(learner: Any) -> set[str]:
    return set(learner.network.state_dict())


def open_evaluator(
    experiment: Experiment,
    spec: Spec,
    device: torch.device,
    num_episodes: int,
    seed: int,
    travelling: Travelling | None = None,
    precision: torch.dtype | None = None,
    kinds: Sequence[Kind] = (),
    settings: Evaluation | None = None,
    deadline_secs: float | None = None,
) -> tuple[Evaluator, torch.nn.Module]:
    """Return an evaluator with environments and a network of its own, and that network.

    Args:
      experiment: what is evaluated.
      spec: of its environment.
      device: of the network.
      num_episodes: of each kind.
      seed: of environments and sampled actions.
      travelling: the configuration, for child processes.
      precision: of the large layers.
      kinds: of episodes, in the order in which they are played; none: all that the policy has, the one that
        `Evaluation.best` names first.
      settings: environment, agent and limits of this evaluation; None: those of the experiment's first.
      deadline_secs: of the whole evaluation; None: no deadline.
    """
    settings = settings or experiment.evaluation
    network = experiment.policy.build(spec).to(device)
    size = min(num_episodes, EVALUATION_COLUMNS)
    environment: Environment = settings.environment or experiment.streams.environment
    own_seed = seed_for(seed, "evaluation")
    if isinstance(experiment.policy, Planning):
        limit = settings.episode_time_limit or experiment.streams.episode_time_limit
        stream = Stream(environment.open_core(size, own_seed, time_limit=limit), size)
    else:
        if isinstance(network, (ActorCriticNetwork, ActionValuesNetwork)):
            network.precision = precision
        stream = Stream(environment.open(size, own_seed, spec, travelling), size)
    if not kinds:
        both: list[Kind] = ["greedy", "sampled"] if experiment.samples else ["greedy"]
        kinds = sorted(both, key=lambda kind: kind != settings.best)
    acting = experiment.policy
    if isinstance(acting, Planning) and "greedy" in kinds:
        acting = evaluated_policy(acting, settings)
    own_seed = seed_for(seed, "evaluation", "actions")
    policies = {kind: make_policy(acting, network, device, own_seed, kind == "greedy", size) for kind in kinds}
    return Evaluator(stream, policies, num_episodes, Limits(settings.max_steps, deadline_secs)), network
