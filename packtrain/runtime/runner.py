"""Planning experiments in the words of Alpacka: `Runner` and what it is made of, as configurations name them.

`Runner` takes classes by reference, `Runner.agent_class = @ShootingAgent`, builds one of each, and returns the same
`Experiment` as every family: epochs of one episode in each of `n_envs` environments, and updates between them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from packtrain import config
from packtrain.algorithms.expert_iteration import ExpertIteration
from packtrain.algorithms.world_model import WorldModelLearning
from packtrain.config import configurable
from packtrain.envs import ours
from packtrain.envs.environment import Environment
from packtrain.errors import ConfigError
from packtrain.memory.episodes import Episodes
from packtrain.networks.prediction import EnsemblePrediction, Prediction
from packtrain.networks.world_model import WorldModel
from packtrain.planning import (  # noqa: F401  (registers the planners)
    bandit,
    best_first,
    continuous_shooting,
    deterministic_mcts,
    frontier,
    policy,
    shooting,
    stochastic_mcts,
)
from packtrain.planning.learned import LearnedModel
from packtrain.planning.planner import Agent
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.traces import Traces
from packtrain.runtime.experiment import (
    Collect,
    Evaluation,
    Experiment,
    LearnerDescription,
    LearnerUse,
    Planning,
    Repeat,
    Run,
    Streams,
    Update,
)
from packtrain.runtime.explorer import ExplorationCallback

MEMORY, LEARNER, MODEL = "episodes", "agent", "model"


@dataclass(frozen=True)
class Trainer:
    """What learns between the episodes, from what, and how much."""

    learner: LearnerDescription
    memory: Episodes
    n_steps_per_epoch: int


@partial(configurable, module="packtrain.trainers")
def SupervisedTrainer(  # noqa: N802  (the name that configurations use)
    targets: dict[str, str] | None = None,
    batch_size: int = 64,
    n_steps_per_epoch: int = 1000,
    replay_buffer_capacity: int = 1_000_000,
    sampling_hierarchy: tuple[str, ...] = (),
    discount: float = 0.99,
    priority_exponent: float = 0.0,
) -> Trainer:
    """Learns what the search said, or how the episode went on.

    Args:
      targets: head → target, see `expert_iteration.target`; None: the value that the search found.
      batch_size: steps in a batch, of each member of an ensemble.
      n_steps_per_epoch: updates after each epoch.
      replay_buffer_capacity: steps kept in each bucket.
      sampling_hierarchy: buckets by these attributes of an episode.
      discount: of `discounted_return`.
      priority_exponent: above 0, steps that surprised are drawn more often.
    """
    owner = "SupervisedTrainer"
    _at_least(1, owner, batch_size=batch_size, replay_buffer_capacity=replay_buffer_capacity)
    _at_least(1, owner, n_steps_per_epoch=n_steps_per_epoch)
    _share(owner, discount=discount, priority_exponent=priority_exponent)
    targets = targets or {"value": "value"}
    if "n_step" in targets.values():
        raise ConfigError(f"SupervisedTrainer.targets = {targets}: n-step returns are TDTrainer's")
    memory = partial(Episodes, replay_buffer_capacity, batch_size, tuple(sampling_hierarchy))
    return _trainer(
        targets, memory, n_steps_per_epoch, discount=discount, n_step=None, priority_exponent=priority_exponent
    )


@partial(configurable, module="packtrain.trainers")
def TDTrainer(  # noqa: N802
    temporal_diff_n: int = 1,
    gamma: float = 1.0,
    head: str = "value",
    batch_size: int = 64,
    n_steps_per_epoch: int = 1000,
    replay_buffer_capacity: int = 1_000_000,
    sampling_hierarchy: tuple[str, ...] = (),
    priority_exponent: float = 0.0,
) -> Trainer:
    """Learns n-step returns that bootstrap with the network itself.

    Args:
      temporal_diff_n: steps before bootstrapping; a number beyond every episode's length gives its whole return.
      gamma: the discount.
      head: which learns.
      batch_size: steps in a batch, of each member of an ensemble.
      n_steps_per_epoch: updates after each epoch.
      replay_buffer_capacity: steps kept in each bucket.
      sampling_hierarchy: buckets by these attributes of an episode.
      priority_exponent: above 0, steps that surprised are drawn more often.
    """
    owner = "TDTrainer"
    if head != "value":
        raise ConfigError(f"TDTrainer.head = {head!r} must be 'value': what follows other actions is not known")
    _at_least(1, owner, temporal_diff_n=temporal_diff_n, batch_size=batch_size)
    _at_least(1, owner, replay_buffer_capacity=replay_buffer_capacity, n_steps_per_epoch=n_steps_per_epoch)
    _share(owner, gamma=gamma, priority_exponent=priority_exponent)
    memory = partial(Episodes, replay_buffer_capacity, batch_size, tuple(sampling_hierarchy))
    return _trainer(
        {head: "n_step"},
        memory,
        n_steps_per_epoch,
        discount=gamma,
        n_step=temporal_diff_n,
        priority_exponent=priority_exponent,
    )


def _trainer(targets: dict[str, str], memory: Callable[..., Episodes], steps: int, **more: Any) -> Trainer:
    learner: ExpertIteration = config.bind(ExpertIteration, targets=targets)
    with config.unrecorded():
        return Trainer(learner, memory(extras=learner.wanted(), **more), steps)


def _at_least(least: int, owner: str, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"{owner}.{name} = {value} must be at least {least}")


def _share(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{owner}.{name} = {value} must lie in [0, 1]")


@partial(configurable, module="packtrain.trainers")
def WorldModelTrainer(  # noqa: N802
    batch_size: int = 1024,
    members: int = 8,
    n_steps_per_epoch: int = 200,
    replay_buffer_capacity: int = 500_000,
    sampling_hierarchy: tuple[str, ...] = ("solved",),
    validation_share: float = 0.0,
) -> Trainer:
    """Learns what actions lead to.

    Args:
      batch_size: steps in a batch of one member.
      members: of the ensemble, each of which has batches of its own.
      n_steps_per_epoch: updates of all members.
      replay_buffer_capacity: steps kept in each bucket.
      sampling_hierarchy: buckets by these attributes of an episode.
      validation_share: of the episodes of each bucket that are not learned from, and tell how good the model is.
    """
    if not 0 <= validation_share <= 0.5:
        raise ConfigError(f"WorldModelTrainer.validation_share = {validation_share} must lie in [0, 0.5]")
    learner: WorldModelLearning = WorldModelLearning()
    with config.unrecorded():
        sizes = (replay_buffer_capacity, batch_size * members, tuple(sampling_hierarchy))
        memory = Episodes(*sizes, validation_share=validation_share)
        return Trainer(learner, memory, n_steps_per_epoch)


@partial(configurable, module="packtrain.trainers")
def DummyTrainer() -> None:  # noqa: N802
    """Nothing learns."""
    return None


@partial(configurable, module="packtrain.batch_steppers")
def LocalBatchStepper() -> str:  # noqa: N802
    """All environments in this process, planned for together."""
    return "local"


@partial(configurable, module="packtrain.batch_steppers")
def RayBatchStepper() -> str:  # noqa: N802
    """Environments spread over a cluster; not there yet."""
    raise ConfigError(
        "RayBatchStepper: planning on a cluster is not available yet; "
        "Runner.batch_stepper_class = @LocalBatchStepper runs on this machine"
    )


@dataclass(frozen=True)
class _Evaluations:
    name: str  # the scope under which the callback was configured
    evaluation: Evaluation
    agent_kwargs: dict[str, Any] = field(default_factory=dict)
    env_kwargs: dict[str, Any] = field(default_factory=dict)


@configurable
def EvaluationCallback(  # noqa: N802
    n_envs: int = 1,
    episode_time_limit: int | None = None,
    eval_period: int = 10,
    agent_kwargs: dict[str, Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    deadline_secs: float = 3600.0,
) -> _Evaluations:
    """Episodes between epochs that nothing learns from.

    List several under scopes, `(@greedy/EvaluationCallback, @EvaluationCallback)`. Each has its own parameters,
    `greedy/EvaluationCallback.n_envs = 4`, and its own metrics, of the kind `eval/greedy`.

    Args:
      n_envs: episodes each time.
      episode_time_limit: steps until truncation; None: that of training.
      eval_period: epochs between two evaluations, of those in which the planner plays.
      agent_kwargs: parameters of the agent that are different in evaluations: exploration, say, switched off.
      env_kwargs: options of the environment that are different: other boards, say.
      deadline_secs: of an evaluation, after which episodes under way are cut off and counted.
    """
    if deadline_secs <= 0:
        raise ConfigError(f"EvaluationCallback.deadline_secs = {deadline_secs} must be above 0")
    _at_least(1, "EvaluationCallback", n_envs=n_envs, episode_time_limit=episode_time_limit, eval_period=eval_period)
    with config.unrecorded():
        evaluation = Evaluation(
            every_epochs=eval_period,
            num_episodes=n_envs,
            episode_time_limit=episode_time_limit,
            deadline_secs=deadline_secs,
        )
        return _Evaluations(config.scope(), evaluation, agent_kwargs or {}, env_kwargs or {})


@configurable
def TraceCallback(sample_rate: float = 1.0, max_model_steps: int = 20_000, max_files: int = 1_000) -> Traces:  # noqa: N802
    """Searches written into the run folder, see `planning/traces.py`.

    Args:
      sample_rate: share of the episodes.
      max_model_steps: of one episode.
      max_files: of one run.
    """
    _at_least(1, "TraceCallback", max_model_steps=max_model_steps, max_files=max_files)
    _share("TraceCallback", sample_rate=sample_rate)
    with config.unrecorded():
        return Traces(sample_rate, max_model_steps, max_files)


@configurable
def Runner(  # noqa: N802
    env_class: Callable[..., Environment] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    agent_class: Callable[..., Agent] = RandomAgent,
    network_class: Callable[..., Prediction | EnsemblePrediction] = Prediction,
    n_envs: int = 16,
    episode_time_limit: int | None = None,
    batch_stepper_class: Callable[..., str] = LocalBatchStepper,
    trainer_class: Callable[..., Trainer | None] = DummyTrainer,
    n_epochs: int | None = None,
    n_precollect_epochs: int = 0,
    callback_classes: tuple[Callable[..., Any], ...] = (),
    total_steps: int | None = None,
    model_class: Callable[..., LearnedModel] | None = None,
    model_network_class: Callable[..., WorldModel] = WorldModel,
    model_trainer_class: Callable[..., Trainer] | None = None,
    n_model_precollect_episodes: int = 0,
    n_model_pretrain_epochs: int = 0,
    fine_tune_on_agent_data: bool = False,
    clear_model_replay_after_pretrain: bool = False,
    agent_reset_schedule: tuple[int, ...] = (),
) -> Experiment:
    """A planning experiment.

    Args:
      env_class: makes the environment's description; None: CartPole.
      env_kwargs: more options for the environments that are acted in; those that planners search in are the same.
      agent_class: makes the planner's description.
      network_class: makes the description of the networks that the planner asks.
      n_envs: environments, which is episodes an epoch.
      episode_time_limit: steps until truncation; None: the environment's own.
      batch_stepper_class: where environments run.
      trainer_class: makes what learns.
      n_epochs: epochs that learn; None: no end; 0: the run ends after what comes before them.
      n_precollect_epochs: epochs before them that only collect.
      callback_classes: EvaluationCallback, TraceCallback, ExplorationCallback.
      total_steps: decisions after which the run ends at the latest; None: no limit.
      model_class: makes the description of a learned model to search in; None: planners search in the environment.
      model_network_class: makes the description of its networks.
      model_trainer_class: makes what they learn with.
      n_model_precollect_episodes: random episodes, for the model, before all else; at least so many.
      n_model_pretrain_epochs: epochs in which only the model learns, from those.
      fine_tune_on_agent_data: the model goes on learning, from the planner's episodes too.
      clear_model_replay_after_pretrain: forget the random episodes before the planner plays.
      agent_reset_schedule: epochs that learn after which the planner's network begins anew, with an empty memory and
        `n_precollect_epochs` that only collect for it.
    """
    counts = (n_model_precollect_episodes, n_model_pretrain_epochs)
    _at_least(0, "Runner", n_model_precollect_episodes=counts[0], n_model_pretrain_epochs=counts[1])
    if (model_class is None) != (model_trainer_class is None):
        given, missing = "model_class", "model_trainer_class"
        if model_class is None:
            given, missing = missing, given
        raise ConfigError(f"Runner.{given} needs Runner.{missing}: a learned model has to learn")
    if model_class is None and (fine_tune_on_agent_data or any(counts)):
        raise ConfigError("Runner has numbers for learning a model, and no Runner.model_class")
    _at_least(1, "Runner", n_envs=n_envs, episode_time_limit=episode_time_limit)
    if agent_reset_schedule and trainer_class is DummyTrainer:
        raise ConfigError(
            "Runner.agent_reset_schedule needs a Runner.trainer_class: nothing learns that could begin anew"
        )
    _at_least(1, "Runner", total_steps=total_steps)
    _at_least(0, "Runner", n_epochs=n_epochs, n_precollect_epochs=n_precollect_epochs)
    batch_stepper_class()
    environment = env_class() if env_class is not None else ENVIRONMENTS["CartPole"]()
    if env_kwargs:
        with config.unrecorded():
            environment = replace(environment, kwargs={**environment.kwargs, **env_kwargs})
    agent, network, trainer = agent_class(), network_class(), trainer_class()
    traces, exploration, evaluations = None, None, dict[str, Evaluation]()
    for callback_class in callback_classes:
        callback = callback_class()
        if isinstance(callback, Traces):
            traces = callback
        elif isinstance(callback, ExplorationCallback):
            exploration = callback
        elif isinstance(callback, _Evaluations):
            if callback.name in evaluations:
                known = f"under the scope {callback.name!r}" if callback.name else "without a scope"
                raise ConfigError(
                    f"Runner.callback_classes has two EvaluationCallbacks {known}; give each a scope of its own, "
                    "such as @greedy/EvaluationCallback"
                )
            evaluations[callback.name] = _evaluation(callback, environment, agent)
        else:
            raise ConfigError(
                f"Runner.callback_classes: {callback_class.__name__} is none of EvaluationCallback, TraceCallback and "
                "ExplorationCallback"
            )
    model = None if model_class is None else model_class()
    with config.unrecorded():
        model_network = WorldModel()
    if model_class is not None:
        model_network = model_network_class()
    model_trainer = None if model_trainer_class is None else model_trainer_class()
    run = config.bind(Run, total_steps=total_steps)
    with config.unrecorded():
        parts: dict[str, Any] = {
            "streams": Streams(environment, n_envs, 1, True, episode_time_limit),
            "policy": Planning(agent, network, model, model_network, traces),
            "memories": {},
            "learners": {},
        }
        updates: list[Update] = []
        if trainer is not None:
            memory = trainer.memory  # every member of the network takes its own share of a batch
            parts["memories"][MEMORY] = replace(memory, batch_size=memory.batch_size * network.members)
            parts["learners"][LEARNER] = LearnerUse(trainer.learner, MEMORY)
            updates.append(Update(LEARNER, trainer.n_steps_per_epoch))
        filled, before = [MEMORY] if trainer is not None else [], []
        if model_trainer is not None:
            publishes = ("policy",) if trainer is None else ()  # one learner publishes all networks of the planner
            parts["memories"][MODEL] = model_trainer.memory
            parts["learners"][MODEL] = LearnerUse(model_trainer.learner, MODEL, publishes=publishes)
            learn = Update(MODEL, model_trainer.n_steps_per_epoch)
            rounds = -(-n_model_precollect_episodes // n_envs)
            if rounds:
                before.append(Repeat((Collect(MODEL, rounds=1, policy="random"),), rounds))
            if n_model_pretrain_epochs:
                before.append(Repeat((learn,), n_model_pretrain_epochs, forget=clear_model_replay_after_pretrain))
            if fine_tune_on_agent_data:
                filled.append(MODEL)
                updates.append(learn)
        collect = Collect(tuple(filled) or None, rounds=1)
        if n_precollect_epochs:
            before.append(Repeat((collect,), n_precollect_epochs))
        parts["schedule"] = (
            *before,
            *_with_resets(collect, updates, n_epochs, agent_reset_schedule, n_precollect_epochs),
        )
    if evaluations:
        parts["evaluation_name"], *others = evaluations
        parts["evaluation"] = evaluations[parts["evaluation_name"]]
        if others:
            parts["more_evaluations"] = {name: evaluations[name] for name in others}
    with config.unrecorded():
        parts.setdefault("evaluation", Evaluation())
    return config.bind(Experiment, **parts, run=run, exploration=exploration)


def _evaluation(callback: _Evaluations, environment: Environment, agent: Agent) -> Evaluation:
    """Return the settings of an evaluation, with what is different from training in it."""
    changed: dict[str, Any] = {}
    if callback.env_kwargs:
        with config.unrecorded():
            changed["environment"] = replace(environment, kwargs={**environment.kwargs, **callback.env_kwargs})
    if callback.agent_kwargs:
        changed["agent"] = _changed(agent, callback.agent_kwargs)
    with config.unrecorded():
        return replace(callback.evaluation, **changed)


def _with_resets(
    collect: Collect, updates: list[Update], n_epochs: int | None, resets: tuple[int, ...], pause: int
) -> list[Repeat]:
    """Epochs of collecting and learning, cut where the agent's learner begins anew; others learn on in the pauses."""
    stages, over = [], 0
    for reset in sorted(resets):
        if reset <= over or (n_epochs is not None and reset + pause >= n_epochs):
            raise ConfigError(
                f"Runner.agent_reset_schedule = {tuple(resets)}: epoch {reset} must come after {over} and, with "
                f"{pause} epochs that only collect, before n_epochs = {n_epochs}"
            )
        stages.append(Repeat((collect, *updates), reset - over, renew=(LEARNER,)))
        if pause:
            others = [update for update in updates if update.learner != LEARNER]
            stages.append(Repeat((collect, *others), pause))
        over = reset + pause
    return [*stages, Repeat((collect, *updates), None if n_epochs is None else n_epochs - over)]


def _changed(agent: Agent, values: dict[str, Any]) -> Agent:
    try:
        with config.unrecorded():
            return replace(agent, **values)  # type: ignore[type-var]
    except TypeError as error:
        reason = str(error).splitlines()[0]  # gin adds a line of its own
        raise ConfigError(
            f"EvaluationCallback.agent_kwargs = {values} does not fit {type(agent).__name__}: {reason}"
        ) from None


def _describe(name: str, core: Callable[..., Any]) -> Callable[..., Environment]:
    """A configurable function with the options of a core that describes an environment over it."""

    def describe(**kwargs: Any) -> Environment:
        with config.unrecorded():
            return Environment(name, kwargs)

    describe.__name__ = describe.__qualname__ = name
    describe.__doc__ = core.__doc__
    options = [p for p in inspect.signature(core).parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [p.replace(kind=p.KEYWORD_ONLY, annotation=p.empty) for p in options]
    describe.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return configurable(describe, module="packtrain.envs")


def _environments() -> dict[str, Callable[..., Environment]]:
    """Our environments as configurations name them: `Runner.env_class = @Hanoi`, `Hanoi.disks = 5`."""
    found = {}
    for name, path in ours.CORES.items():
        if "Simulator" not in name:  # those stand over other environments: Environment.id names them
            module, _, owner = path.partition(":")
            found[name] = _describe(name, getattr(importlib.import_module(module), owner))
    return found


ENVIRONMENTS = _environments()
