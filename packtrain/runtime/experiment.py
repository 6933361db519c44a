"""An experiment as a value: environments, policy, memories, learners and schedule, the same for every runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from packtrain.accelerate.precision import Precision
from packtrain.config import configurable
from packtrain.envs.environment import Environment
from packtrain.errors import ConfigError
from packtrain.interfaces import Learner, Memory, MemorySettings, Policy, PolicySettings
from packtrain.runtime.audit_alarm import AuditAlarm
from packtrain.runtime.divergence import OnDiverged
from packtrain.runtime.explorer import ExplorationCallback
from packtrain.types import Spec

NO_LIMIT = 2**62  # steps


@configurable
@dataclass(frozen=True)
class Streams:
    """The environments that are acted in."""

    environment: Environment
    num_actors: int = 4  # number of environments
    # number of groups served in turn; None: 2, or 4 from 256 environments on if these run outside Python
    groups: int | None = None
    together: bool = False  # environments whose episode is over wait for all others; for planners
    episode_time_limit: int | None = None  # steps; None: the environment's own limit; for planners

    def __post_init__(self) -> None:
        if self.episode_time_limit is not None and self.episode_time_limit < 1:
            raise ConfigError(f"Streams.episode_time_limit = {self.episode_time_limit} must be at least 1")
        if self.num_actors < 1:
            raise ConfigError(f"Streams.num_actors = {self.num_actors} must be at least 1")
        if self.groups is not None and not 1 <= self.groups <= self.num_actors:
            raise ConfigError(f"Streams.groups = {self.groups} must lie between 1 and num_actors = {self.num_actors}")

    def group_sizes(self) -> list[int]:
        """Number of environments in each group."""
        several = 4 if self.num_actors >= 256 else 2
        groups = self.groups or min(several if self.environment.overlaps() else 1, self.num_actors)
        return [(self.num_actors + groups - 1 - g) // groups for g in range(groups)]


class LearnerDescription(Protocol):
    """Hyper-parameters of an algorithm. `packtrain.interfaces.LearnerSettings` has the optional methods."""

    def build(self, network: Any, total_steps: int) -> Learner:
        """Return a learner for a network."""


@configurable
@dataclass(frozen=True)
class LearnerUse:
    """A learner and the memory it learns from."""

    learner: LearnerDescription
    memory: str  # name in Experiment.memories
    publishes: tuple[str, ...] = ("policy",)  # names of its weights; actors use "policy"
    ratio: float | None = None  # updates per environment step, for replay memories; None: as many as possible
    slack: int | None = None  # maximum number of due updates by which acting may run ahead; None: act and learn in turn

    def __post_init__(self) -> None:
        if self.slack is not None and self.slack < 1:
            raise ConfigError(f"LearnerUse.slack = {self.slack} must be at least 1, or None")
        if self.slack is not None and self.ratio is None:
            raise ConfigError(f"LearnerUse.slack = {self.slack} needs LearnerUse.ratio")
        if self.ratio is not None and self.ratio <= 0:
            raise ConfigError(f"LearnerUse.ratio = {self.ratio} must be above 0, or None")

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if the learner cannot learn from its memory or for a policy."""
        self._optional("check")(memory, policy)

    def check_new_run(self, policy: PolicySettings) -> None:
        """Raise a ConfigError if a setting of the learner would be ignored; for runs that do not resume."""
        self._optional("check_new_run")(policy)

    def prepare_policy(self, policy: Policy, memory: MemorySettings) -> None:
        """Let a training policy compute what the learner needs."""
        self._optional("prepare_policy")(policy, memory)

    def prepare_memory(self, memory: Memory) -> None:
        """Give a new memory the learner's numbers that it needs."""
        self._optional("prepare_memory")(memory)

    @property
    def joins_seeds(self) -> bool:
        """Whether learners of several seeds can make their updates in one launch."""
        return bool(getattr(self.learner, "joins_seeds", False))

    def _optional(self, name: str) -> Callable[..., Any]:
        """Return an optional method of the learner's settings; one that does nothing if they lack it."""
        return getattr(self.learner, name, lambda *_: None)


@configurable
@dataclass(frozen=True)
class Collect:
    """Collect steps: until the memory can supply a batch, for a number of episodes, or for a number of steps."""

    memory: str | tuple[str, ...] | None = None  # memory, or memories, that store the steps; None: store nothing
    rounds: int | None = None  # episodes per environment; None: until the memory can supply a batch
    policy: Literal["policy", "random"] = "policy"  # how actions are chosen; random: uniformly
    # for replay memories: total number of steps since the start of the run at which to stop; None: see rounds
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"Collect.rounds = {self.rounds} must be at least 1")
        if self.memory is None and self.rounds is None:
            raise ConfigError("Collect needs a memory to fill, or a number of rounds to play")
        if self.steps is not None and (self.steps < 0 or self.rounds is not None):
            raise ConfigError("set either Collect.steps (≥ 0) or Collect.rounds, not both")
        if self.policy == "random" and self.rounds is None and self.steps is None:
            raise ConfigError("Collect.policy = 'random' needs a length: set Collect.rounds or Collect.steps")

    @property
    def memories(self) -> tuple[str, ...]:
        """Names of all memories that are filled."""
        return (self.memory,) if isinstance(self.memory, str) else self.memory or ()


@configurable
@dataclass(frozen=True)
class Update:
    """Make `count` updates of a learner; before a replay's `Repeat`, `count` since the beginning of the run."""

    learner: str
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(f"Update.count = {self.count} must not be negative")


@configurable
@dataclass(frozen=True)
class Repeat:
    """Repeat these stages in order until `Run.total_steps`. Runtimes that can, run them concurrently.

    Where whole episodes are collected, once through is an epoch: nothing is learned while they are played. Where
    learners replay, each makes as many updates as its ratio to the steps allows, and acting and learning take turns; a
    learner without a ratio, or with slack, is updated while environments step.
    """

    stages: tuple[Collect | Update, ...]
    times: int | None = None  # number of epochs; None: unlimited
    forget: bool = False  # at the end of each epoch, clear the memories that its learners use
    renew: tuple[str, ...] = ()  # learners to reset at the end of each epoch: new weights, empty memory

    @property
    def by_epochs(self) -> bool:
        """Whether the stage collects whole episodes."""
        return any(isinstance(stage, Collect) and stage.rounds is not None for stage in self.stages)

    @property
    def learns(self) -> bool:
        """Whether the stage contains updates."""
        return any(isinstance(stage, Update) for stage in self.stages)

    @property
    def plans(self) -> bool:
        """Whether the planner plays episodes in this stage: not in random data collection or pretraining of a model."""
        return any(isinstance(stage, Collect) and stage.policy == "policy" for stage in self.stages)


@configurable
@dataclass(frozen=True)
class Run:
    """Run length, and the intervals of logs and checkpoints. All of it may change on resume."""

    total_steps: int | None = 100_000  # decisions learned from, or made if whole episodes are played; None: no limit
    log_every: int = 5_000  # steps between metric rows
    checkpoint_secs: float = 300.0
    keep_every: int | None = None  # steps; one checkpoint in each such span is kept for ever
    num_threads: int = 1  # the learner's intra-op threads
    precision: Precision | None = None  # of the large layers: float32, bfloat16; None: bfloat16 where it pays
    until_solved: bool = False  # end when an episode has been solved
    on_diverged: OnDiverged = "stop"  # at a loss or gradient that is not finite: stop, or skip (leave the update out)
    record_order: bool = False  # write the order of acting, sampling and learning to RUN/order.txt (local runtime)
    replay_order: str | None = None  # path of such a file: make the same events (serial runtime); None: do not
    alarm: AuditAlarm | None = None  # audits a policy that has a trusted one while it trains; None: no audits

    def __post_init__(self) -> None:
        for name in ("total_steps", "log_every", "keep_every", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"Run.{name} = {value} must be at least 1")
        if self.on_diverged not in ("stop", "skip"):
            raise ConfigError(f"Run.on_diverged = {self.on_diverged!r} is not one of 'stop', 'skip'")
        if self.checkpoint_secs <= 0:
            raise ConfigError(f"Run.checkpoint_secs = {self.checkpoint_secs} must be above 0")


@configurable
@dataclass(frozen=True)
class Evaluation:
    """Evaluation episodes in separate environments; they are neither stored nor counted as steps.

    A policy that outputs a distribution plays them twice: greedily, by the distribution's mode, and sampled, as it acts
    in training. Others play greedily only.
    """

    every: int = 0  # steps; 0: never
    every_epochs: int = 0  # epochs in which the planner plays, for runs in epochs; 0: never
    num_episodes: int = 16  # episodes of each kind
    best: Literal["greedy", "sampled"] = "greedy"  # kind of evaluation that sets `return_mean` and the best checkpoint
    environment: Environment | None = None  # None: the training environment; also used by `packtrain eval`
    episode_time_limit: int | None = None  # steps, for planners; None: as in training
    max_steps: int = 108_000  # maximum steps of an episode; it is then cut off and counted as truncated
    # maximum duration of an evaluation; episodes in progress are then cut off and counted
    deadline_secs: float = 3600.0
    agent: Any = None  # agent to evaluate, for planners; None: the training agent

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigError(f"Evaluation.max_steps = {self.max_steps} must be at least 1")
        if self.deadline_secs <= 0:
            raise ConfigError(f"Evaluation.deadline_secs = {self.deadline_secs} must be above 0")
        for name in ("every", "every_epochs"):
            if getattr(self, name) < 0:
                raise ConfigError(f"Evaluation.{name} = {getattr(self, name)} must not be negative")
        if self.num_episodes < 1:
            raise ConfigError(f"Evaluation.num_episodes = {self.num_episodes} must be at least 1")


@configurable
@dataclass(frozen=True)
class Experiment:
    """All settings that a runtime needs, as plain values."""

    streams: Streams
    policy: PolicySettings
    memories: dict[str, MemorySettings]
    learners: dict[str, LearnerUse]
    schedule: tuple[Collect | Update | Repeat, ...]
    run: Run = field(default_factory=Run)
    # first evaluation, whose score decides the best checkpoint
    evaluation: Evaluation = field(default_factory=Evaluation)
    seed: int = 0
    exploration: ExplorationCallback | None = None  # count states and distances; None: off
    evaluation_name: str = ""  # name of the first evaluation in metrics
    more_evaluations: dict[str, Evaluation] = field(default_factory=dict)  # further evaluations by name

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"Experiment.seed = {self.seed} must not be negative")
        if self.evaluation.best == "sampled" and not self.samples:
            raise ConfigError(
                f"Evaluation.best = 'sampled' needs a policy that outputs a distribution over actions; "
                f"{type(self.policy).__name__} does not"
            )
        for name, use in self.learners.items():
            if use.memory not in self.memories:
                raise ConfigError(
                    f"learner {name!r} reads unknown memory {use.memory!r}; defined: {sorted(self.memories)}"
                )
        policies = [name for name, use in self.learners.items() if "policy" in use.publishes]
        if len(policies) != 1 and self.learners:
            raise ConfigError(
                f"exactly one learner must publish 'policy', the weights that actors use, but {policies or 'none'} do"
            )
        stages = [inner for s in self.schedule for inner in (s.stages if isinstance(s, Repeat) else (s,))]
        for stage in stages:
            if isinstance(stage, Update) and stage.learner not in self.learners:
                raise ConfigError(f"Update: unknown learner {stage.learner!r}; defined: {sorted(self.learners)}")
            if isinstance(stage, Collect) and not set(stage.memories) <= set(self.memories):
                raise ConfigError(f"Collect: unknown memory {stage.memory!r}; defined: {sorted(self.memories)}")
        if self.learners and not any(isinstance(stage, Update) for stage in stages):
            raise ConfigError("Experiment.schedule has no Update: nothing would be learned")
        if not self.learners and not self.by_epochs:
            raise ConfigError("Experiment.learners is empty: only planners can act without learning")
        if len({memory.replays for memory in self.memories.values()}) > 1:
            raise ConfigError("Experiment.memories mixes replay memories with queues; use one of the two kinds")
        early = [name for name, use in self.learners.items() if use.ratio is None or self.pretraining(name)]
        if self.by_ratio and early and self.warm_up < 1:
            raise ConfigError(
                f"Collect.steps = {self.warm_up} leaves the memory of learner {early[0]!r} empty at its first update: "
                "warm_up must be at least 1"
            )
        plans = self.policy.env_access == "states"
        if not self.by_epochs == plans == self.streams.together:
            raise ConfigError(
                "planners collect whole episodes, and other policies do not: "
                "set Collect.rounds and Streams.together for planners only"
            )

    @property
    def samples(self) -> bool:
        """Whether the policy outputs a distribution, so that greedy and sampled returns differ."""
        return self.policy.samples

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All evaluations by name, the first one first."""
        return {self.evaluation_name: self.evaluation, **self.more_evaluations}

    @property
    def by_ratio(self) -> bool:
        """Whether memories replay: updates follow the number of steps by a ratio."""
        return any(memory.replays for memory in self.memories.values())

    @property
    def overlaps(self) -> bool:
        """Whether environments may step while a replay learner makes updates."""
        return self.by_ratio and any(use.ratio is None or use.slack is not None for use in self.learners.values())

    @property
    def can_overlap(self) -> bool:
        """Whether acting and learning can overlap, so that the local runtime uses two threads."""
        return not self.by_epochs and (not self.by_ratio or self.overlaps)

    @property
    def warm_up(self) -> int:
        """Number of steps before the first `Repeat`."""
        return max((s.steps or 0 for s in self.schedule if isinstance(s, Collect)), default=0)

    def pretraining(self, learner: str) -> int:
        """Number of updates that a learner makes before the first `Repeat`."""
        return max((s.count for s in self.schedule if isinstance(s, Update) and s.learner == learner), default=0)

    @property
    def by_epochs(self) -> bool:
        """Whether acting and learning alternate, one round of whole episodes at a time."""
        return any(isinstance(stage, Repeat) and stage.by_epochs for stage in self.schedule)

    @property
    def epochs(self) -> int | None:
        """Number of epochs of the schedule; None if it has no end."""
        times = [stage.times for stage in self.schedule if isinstance(stage, Repeat)]
        return None if None in times else sum(t for t in times if t is not None)

    @property
    def total_steps(self) -> int:
        """Maximum number of steps of a run."""
        return NO_LIMIT if self.run.total_steps is None else self.run.total_steps

    def probe(self) -> Spec:
        """Observation and action space of the environment, found by making one."""
        environment = self.streams.environment
        return environment.probe_core() if self.policy.env_access == "states" else environment.probe()
