"""Build an experiment: environments, policy, memories, learners, and the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from packtrain import config
from packtrain.acting.control import ControlPolicy
from packtrain.acting.planned import PlannedPolicy
from packtrain.acting.policy import NetworkPolicy
from packtrain.acting.predictive import PredictivePolicy
from packtrain.acting.values import ValuePolicy
from packtrain.algorithms.dynamics import DynamicsLearning
from packtrain.algorithms.q_learning import QLearning
from packtrain.algorithms.value_expansion import ValueExpansion
from packtrain.config import Travelling
from packtrain.devices.precision import choose_precision, use_tf32
from packtrain.envs.environment import Environment
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError
from packtrain.interfaces import Learner, Memory
from packtrain.memory.replay import Replay
from packtrain.memory.sequences import Sequences
from packtrain.networks.action_values import ActionValues, ActionValuesNetwork
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.networks.control import Control
from packtrain.planning.traces import TraceWriter
from packtrain.runtime.acting import ActingSide
from packtrain.runtime.evaluation import Evaluator, Kind, Limits
from packtrain.runtime.experiment import Evaluation, Experiment, Planning, PredictiveControl
from packtrain.runtime.learning import LearningSide
from packtrain.runtime.seeds import seed_for
from packtrain.types import Spec

EVALUATION_COLUMNS = 16


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
) -> Any:
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


def build_sides(
    experiment: Experiment,
    spec: Spec,
    device: torch.device,
    travelling: Travelling | None = None,
    streams: list[Stream] | None = None,
    exact: bool = False,
    traces: Path | None = None,
    again: tuple[int, ...] = (),
) -> tuple[ActingSide, LearningSide]:
    """Build everything an experiment consists of; nothing starts.

    Args:
      experiment: what to build.
      spec: what its environment shows and takes.
      device: where networks and memories live.
      travelling: the configuration, for child processes.
      streams: environments that are open already; their sizes are those of the experiment's groups.
      exact: nothing may be chosen by how fast it is today, so that the same run gives the same numbers.
      traces: folder for searches that are written down; None: none are.
      again: the steps after which a run goes on with new episodes: its random numbers differ from those of its start.
    """
    seed = experiment.seed
    torch.manual_seed(seed_for(seed, "weights"))
    torch.backends.cudnn.benchmark = not exact  # batches keep their shape: let cuDNN try which kernels are fastest
    torch.backends.cudnn.deterministic = exact
    network, acting_network = (experiment.policy.build(spec).to(device) for _ in range(2))
    precision: torch.dtype | None = None
    if experiment.by_ratio:
        use_tf32(experiment.run.precision, device)
    if isinstance(network, (ActorCriticNetwork, ActionValuesNetwork)):
        wanted = experiment.run.precision or ("float32" if exact and device.type == "cpu" else None)
        precision = choose_precision(wanted, network, spec, device)
        network.precision = acting_network.precision = precision  # type: ignore[assignment]
    sizes = experiment.streams.group_sizes()
    streams = streams or open_streams(experiment, spec, travelling, again)
    columns, own_seed = experiment.streams.num_actors, seed_for(seed, "actions", *again)
    writer = None
    if isinstance(experiment.policy, Planning) and experiment.policy.traces is not None and traces is not None:
        name = experiment.streams.environment.id
        writer = TraceWriter(experiment.policy.traces, traces, name, seed_for(seed, "traces"))
    policy = make_policy(experiment.policy, acting_network, device, own_seed, False, columns, writer)
    for use in experiment.learners.values():
        filled = experiment.memories[use.memory]
        if isinstance(filled, Sequences) and filled.new_priority == "given":
            assert isinstance(use.learner, QLearning) and isinstance(policy, ValuePolicy)
            policy.error_numbers = use.learner.actor_errors(filled)
    memories: dict[str, Memory] = {
        name: memory.build(sizes, policy.context, device) for name, memory in experiment.memories.items()
    }
    for name, memory in memories.items():
        memory.reseed(seed_for(seed, "memory", name))
        if exact:
            memory.take_turns()
    total = experiment.total_steps
    learners: dict[str, Learner] = {
        name: use.learner.build(network, total) for name, use in experiment.learners.items()
    }
    for name, learner in learners.items():
        learner.reseed(seed_for(seed, "updates", name))

    def for_acting(network: Any) -> torch.nn.Module:
        return acting_part(experiment.policy, network)

    learning = LearningSide(experiment, spec, memories, learners, for_acting)
    learning.precision = precision
    writers = {name: memory.sinks for name, memory in memories.items()}
    weights = learning.weights if learners else None
    return ActingSide(streams, policy, writers, weights, device, for_acting), learning


def acting_part(description: Any, network: Any) -> torch.nn.Module:
    """Return the part of a network that actors need."""
    if isinstance(description, PredictiveControl):
        return network.model
    if isinstance(description, ActionValues):
        return network.acting
    return network.behaviour if isinstance(description, Control) else network


def evaluated_policy(policy: Planning, settings: Evaluation) -> Planning:
    """Return a planner's policy with the agent that acts in an evaluation."""
    if settings.agent is None:
        return policy
    with config.unrecorded():
        return replace(policy, agent=settings.agent)


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
