"""Planning experiments with Alpacka's names: `Runner` and its parts, as configurations use them.

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
from packtrain.acting.episode_pictures import PictureCallback
from packtrain.acting.planner_policy import Planning
from packtrain.algorithms.expert_iteration import ExpertIteration
from packtrain.alpacka_trainers import LEARNER, MODEL, DummyTrainer, Trainer, at_least, share
from packtrain.config import configurable
from packtrain.envs import registration
from packtrain.envs.environment import Environment
from packtrain.errors import ConfigError
from packtrain.networks import board_model  # noqa: F401  (registers BoardModel)
from packtrain.networks.prediction import Prediction, PredictionSettings
from packtrain.networks.world_model import ModelNetworkSettings, WorldModel
from packtrain.planning import (  # noqa: F401  (registers the planners)
    bandit,
    best_first,
    continuous_shooting,
    deterministic_mcts,
    learned,
    policy,
    shooting,
    stochastic_mcts,
    tabular_search,
)
from packtrain.planning.model import FittedModelSettings
from packtrain.planning.planner import Agent
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.traces import Traces
from packtrain.runtime.experiment import (
    Collect,
    Evaluation,
    Experiment,
    LearnerUse,
    Repeat,
    Run,
    Streams,
    Update,
)
from packtrain.runtime.explorer import ExplorationCallback

MEMORY = "episodes"


@partial(configurable, module="packtrain.batch_steppers")
def LocalBatchStepper() -> str:  # noqa: N802
    """Run all environments in this process, with one planner for all."""
    return "local"


@partial(configurable, module="packtrain.batch_steppers")
def RayBatchStepper() -> str:  # noqa: N802
    """Run environments and planners in workers on a Ray cluster; `packtrain train` then uses `--runtime cluster`."""
    return "cluster"


@dataclass(frozen=True)
class _Evaluations:
    name: str  # gin scope of the callback
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
    """Return an evaluation between epochs, whose episodes are not trained on.

    List several under scopes, `(@greedy/EvaluationCallback, @EvaluationCallback)`. Each has its own parameters,
    `greedy/EvaluationCallback.n_envs = 4`, and its own metrics, of the kind `eval/greedy`.

    Args:
      n_envs: episodes per evaluation.
      episode_time_limit: steps until truncation; None: that of training.
      eval_period: epochs between two evaluations, among those in which the planner plays.
      agent_kwargs: parameters of the agent that differ in evaluations, for example without exploration.
      env_kwargs: options of the environment that differ, for example other boards.
      deadline_secs: time limit of an evaluation, after which unfinished episodes are cut off and counted.
    """
    if deadline_secs <= 0:
        raise ConfigError(f"EvaluationCallback.deadline_secs = {deadline_secs} must be above 0")
    at_least(1, "EvaluationCallback", n_envs=n_envs, episode_time_limit=episode_time_limit, eval_period=eval_period)
    with config.unrecorded():
        evaluation = Evaluation(
            every_epochs=eval_period,
            num_episodes=n_envs,
            episode_time_limit=episode_time_limit,
            deadline_secs=deadline_secs,
        )
        return _Evaluations(config.scope(), evaluation, agent_kwargs or {}, env_kwargs or {})


@configurable
def TraceCallback(  # noqa: N802
    sample_rate: float = 1.0,
    max_model_steps: int = 20_000,
    max_files: int = 1_000,
    texts: bool = False,
    pictures: bool = False,
    passes: bool = True,
    max_nodes: int = 2_000,
    max_bytes: int = 1 << 24,
) -> Traces:
    """Record searches in the run folder, see `planning/traces.py`; `packtrain explore` shows them.

    Args:
      sample_rate: fraction of the episodes.
      max_model_steps: maximum per episode.
      max_files: maximum per run.
      texts: write states as the environment renders them as text, too.
      pictures: write small pictures of states, too.
      passes: write the model steps in their order, beside the search data at the end.
      max_nodes: maximum per search; others are left out.
      max_bytes: maximum per file; what does not fit is left out.
    """
    counts = {"max_nodes": max_nodes, "max_bytes": max_bytes}
    at_least(1, "TraceCallback", max_model_steps=max_model_steps, max_files=max_files, **counts)
    share("TraceCallback", sample_rate=sample_rate)
    with config.unrecorded():
        return Traces(sample_rate, max_model_steps, max_files, texts, pictures, passes, max_nodes, max_bytes)


@configurable
def Runner(  # noqa: N802
    env_class: Callable[..., Environment] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    agent_class: Callable[..., Agent] = RandomAgent,
    network_class: Callable[..., PredictionSettings] = Prediction,
    n_envs: int = 16,
    episode_time_limit: int | None = None,
    batch_stepper_class: Callable[..., str] = LocalBatchStepper,
    trainer_class: Callable[..., Trainer | None] = DummyTrainer,
    n_epochs: int | None = None,
    n_precollect_epochs: int = 0,
    callback_classes: tuple[Callable[..., Any], ...] = (),
    total_steps: int | None = None,
    model_class: Callable[..., FittedModelSettings] | None = None,
    model_network_class: Callable[..., ModelNetworkSettings] = WorldModel,
    model_trainer_class: Callable[..., Trainer] | None = None,
    n_model_precollect_episodes: int = 0,
    n_model_pretrain_epochs: int = 0,
    fine_tune_on_agent_data: bool = False,
    clear_model_replay_after_pretrain: bool = False,
    agent_reset_schedule: tuple[int, ...] = (),
) -> Experiment:
    """Return a planning experiment.

    Args:
      env_class: returns the environment's settings; None: CartPole.
      env_kwargs: further options of the environments that are acted in; those that planners search in are the same.
      agent_class: returns the planner's settings.
      network_class: returns the settings of the planner's networks.
      n_envs: number of environments, and of episodes per epoch.
      episode_time_limit: steps until truncation; None: the environment's own.
      batch_stepper_class: where environments run.
      trainer_class: returns memory and learner.
      n_epochs: epochs with learning; None: no limit; 0: the run ends after the stages before them.
      n_precollect_epochs: epochs before them that only collect.
      callback_classes: EvaluationCallback, TraceCallback, ExplorationCallback, PictureCallback.
      total_steps: environment steps after which the run ends at the latest; None: no limit.
      model_class: returns the settings of a learned model to search in, `LearnedModel` or `TabularModel`; None:
        planners search in the environment.
      model_network_class: returns the settings of its networks.
      model_trainer_class: returns its memory and learner.
      n_model_precollect_episodes: minimum number of random episodes for the model, collected first.
      n_model_pretrain_epochs: epochs of training the model on these episodes.
      fine_tune_on_agent_data: continue to train the model, on the planner's episodes too.
      clear_model_replay_after_pretrain: remove the random episodes before the planner plays.
      agent_reset_schedule: epochs with learning after which the planner's network is reinitialised, with an empty
        memory
        and `n_precollect_epochs` that only collect for it.
    """
    counts = (n_model_precollect_episodes, n_model_pretrain_epochs)
    at_least(0, "Runner", n_model_precollect_episodes=counts[0], n_model_pretrain_epochs=counts[1])
    model = None if model_class is None else model_class()
    networks = 0 if model is None else model.members
    if not networks and model_trainer_class is not None:
        raise ConfigError("Runner.model_trainer_class needs a Runner.model_class with networks, such as @LearnedModel")
    if networks and model_trainer_class is None:
        raise ConfigError("Runner.model_class needs Runner.model_trainer_class: a learned model needs a trainer")
    if not networks and (fine_tune_on_agent_data or any(counts)):
        raise ConfigError("Runner has settings for training a model, but no Runner.model_class with networks")
    at_least(1, "Runner", n_envs=n_envs, episode_time_limit=episode_time_limit)
    if agent_reset_schedule and trainer_class is DummyTrainer:
        raise ConfigError(
            "Runner.agent_reset_schedule needs a Runner.trainer_class: without it there is no learner to reset"
        )
    at_least(1, "Runner", total_steps=total_steps)
    at_least(0, "Runner", n_epochs=n_epochs, n_precollect_epochs=n_precollect_epochs)
    batch_stepper_class()
    environment = env_class() if env_class is not None else ENVIRONMENTS["CartPole"]()
    if env_kwargs:
        with config.unrecorded():
            environment = replace(environment, kwargs={**environment.kwargs, **env_kwargs})
    agent, network, trainer = agent_class(), network_class(), trainer_class()
    _check_inputs(agent, trainer)
    traces, pictures, exploration, evaluations = None, None, None, dict[str, Evaluation]()
    for callback_class in callback_classes:
        callback = callback_class()
        if isinstance(callback, Traces):
            traces = callback
        elif isinstance(callback, ExplorationCallback):
            exploration = callback
        elif isinstance(callback, PictureCallback):
            pictures = callback
        elif isinstance(callback, _Evaluations):
            if callback.name in evaluations:
                known = f"under the scope {callback.name!r}" if callback.name else "without a scope"
                raise ConfigError(
                    f"Runner.callback_classes has two EvaluationCallbacks {known}; give each its own scope, such as "
                    "@greedy/EvaluationCallback"
                )
            evaluations[callback.name] = _evaluation(callback, environment, agent)
        else:
            raise ConfigError(
                f"Runner.callback_classes: {callback_class.__name__} is not EvaluationCallback, TraceCallback, "
                "ExplorationCallback or PictureCallback"
            )
    with config.unrecorded():
        model_network: ModelNetworkSettings = WorldModel()
    if networks:
        model_network = model_network_class()
    model_trainer = None if model_trainer_class is None else model_trainer_class()
    run = config.bind(Run, total_steps=total_steps)
    with config.unrecorded():
        parts: dict[str, Any] = {
            "streams": Streams(environment, n_envs, 1, True, episode_time_limit),
            "policy": Planning(agent, network, model, model_network, traces, pictures),
            "memories": {},
            "learners": {},
        }
        updates: list[Update] = []
        if trainer is not None:
            memory = trainer.memory  # every member of the network gets a separate part of a batch
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


def _check_inputs(agent: Agent, trainer: Trainer | None) -> None:
    """Raise a ConfigError if the network would be trained on other inputs than the planner sends."""
    if trainer is None or not isinstance(trainer.learner, ExpertIteration):
        return
    sent = getattr(agent, "inputs", "observation")
    if trainer.learner.inputs != sent:
        raise ConfigError(
            f"SupervisedTrainer.inputs = {trainer.learner.inputs!r}, but {type(agent).__name__} sends its network "
            f"{sent!r}: set both to the same"
        )


def _evaluation(callback: _Evaluations, environment: Environment, agent: Agent) -> Evaluation:
    """Return the settings of an evaluation, with the parameters that differ from training."""
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
    """Return stages of collecting and learning, split where the agent's learner is reset; other learners continue."""
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
        reason = str(error).splitlines()[0]  # gin adds a line to the message
        raise ConfigError(
            f"EvaluationCallback.agent_kwargs = {values} does not fit {type(agent).__name__}: {reason}"
        ) from None


def _describe(name: str, core: Callable[..., Any]) -> Callable[..., Environment]:
    """Return a configurable function with a core's options that returns settings of an environment over it."""

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
    """Return the built-in environments as configurables: `Runner.env_class = @Hanoi`, `Hanoi.disks = 5`."""
    found = {}
    for name, path in registration.CORES.items():
        if "Simulator" not in name:  # simulators wrap other environments, which Environment.id names
            module, _, owner = path.partition(":")
            found[name] = _describe(name, getattr(importlib.import_module(module), owner))
    return found


ENVIRONMENTS = _environments()
