"""An experiment alive in one process: its parts, its books, and how it is saved. Runtimes decide the order."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch

from packtrain import trees
from packtrain.acting.actor import Actor
from packtrain.acting.control import ActsAtRandom, ControlPolicy
from packtrain.acting.planned import PlannedPolicy
from packtrain.acting.policy import NetworkPolicy
from packtrain.acting.predictive import PredictivePolicy
from packtrain.algorithms.launches import ROOM, Batch, ReplayLearner
from packtrain.config import Configuration, Travelling
from packtrain.devices.allocator import keep_large_blocks
from packtrain.devices.precision import choose_precision, use_tf32
from packtrain.envs.columns import Columns
from packtrain.envs.environment import Environment
from packtrain.envs.stream import Stream
from packtrain.errors import CheckpointError, ConfigError, DivergedError, SaveError, StalledError
from packtrain.memory.episodes import EpisodeMemory
from packtrain.memory.replay import Replay, ReplayMemory
from packtrain.memory.segments import Segments
from packtrain.metrics.console import PlainConsole, RichConsole
from packtrain.metrics.planning import planning_row
from packtrain.metrics.recorder import Recorder, means
from packtrain.metrics.rolling import Rolling
from packtrain.metrics.writers import JsonlWriter, TensorBoardWriter
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.networks.control import Control
from packtrain.planning.traces import TraceWriter
from packtrain.runtime import checkpoint
from packtrain.runtime.evaluation import Evaluator
from packtrain.runtime.experiment import Collect, Experiment, Planning, PredictiveControl, Repeat, Update
from packtrain.runtime.explorer import Explorer
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.weights import Weights
from packtrain.types import Sink, Spec

log = logging.getLogger("packtrain")
EVALUATION_COLUMNS = 16
VALIDATION_STEPS = 8192  # at most, once an epoch


def open_streams(experiment: Experiment, spec: Spec, travelling: Travelling | None = None) -> list[Stream]:
    """The experiment's environments, a stream a group."""
    sizes, seed, environment = experiment.streams.group_sizes(), experiment.seed, experiment.streams.environment
    if isinstance(experiment.policy, Planning):
        together, limit = experiment.streams.together, experiment.streams.episode_time_limit
        seeds = [seed_for(seed, "environments", g) for g in range(len(sizes))]
        return [
            Stream(environment.open_core(size, own, together, limit), size)
            for size, own in zip(sizes, seeds, strict=True)
        ]
    return [
        Stream(environment.open(size, seed_for(seed, "environments", g), spec, travelling, len(sizes)), size)
        for g, size in enumerate(sizes)
    ]


def make_policy(
    description: Any, network: torch.nn.Module, device: torch.device, seed: int, greedy: bool, traces: Any = None
) -> NetworkPolicy | PlannedPolicy | ControlPolicy | PredictivePolicy:
    """Who acts with a network: itself, or a planner that asks it."""
    if isinstance(description, Control):
        return ControlPolicy(network, seed, greedy)  # type: ignore[arg-type]
    if isinstance(description, PredictiveControl):
        return PredictivePolicy(description.planner, network, seed)  # type: ignore[arg-type]
    if isinstance(description, Planning):
        agent = description.agent
        if greedy:
            trusting = getattr(agent, "trusting", None)  # whoever evaluates does not explore
            agent = description.evaluation_agent or (agent if trusting is None else trusting())
        return PlannedPolicy(agent, network, device, seed, traces, description.model)  # type: ignore[arg-type]
    return NetworkPolicy(network, seed, greedy)  # type: ignore[arg-type]


def try_out(experiment: Experiment, spec: Spec) -> None:
    """Build the networks, and all that may find that it does not fit: planners and what learns from them."""
    network = experiment.policy.build(spec)
    if isinstance(experiment.policy, Planning):
        stream = Stream(experiment.streams.environment.open_core(1, 0), 1)
        for greedy in (False, True):
            make_policy(experiment.policy, network, torch.device("cpu"), 0, greedy).seat(stream)
    if isinstance(experiment.policy, Planning) or experiment.by_ratio:
        for name, use in experiment.learners.items():
            learner = use.learner.build(network, experiment.total_steps)
            memory = experiment.memories[use.memory]
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
        """
        seed = experiment.seed
        self._experiment, self._spec = experiment, spec
        torch.manual_seed(seed_for(seed, "weights"))
        torch.backends.cudnn.benchmark = not exact  # batches keep their shape: let cuDNN try which kernels are fastest
        torch.backends.cudnn.deterministic = exact
        network, acting_network = (experiment.policy.build(spec).to(device) for _ in range(2))
        self.precision: torch.dtype | None = None
        if experiment.by_ratio:
            use_tf32(experiment.run.precision, device)
        if isinstance(network, ActorCriticNetwork) and isinstance(acting_network, ActorCriticNetwork):
            wanted = experiment.run.precision or ("float32" if exact and device.type == "cpu" else None)
            self.precision = choose_precision(wanted, network, spec, device)
            network.precision = acting_network.precision = self.precision
        sizes = experiment.streams.group_sizes()
        self.streams = streams or open_streams(experiment, spec, travelling)
        self.policy = make_policy(experiment.policy, acting_network, device, seed_for(seed, "actions"), False, traces)
        self.memories = {n: m.build(sizes, self.policy.context, device) for n, m in experiment.memories.items()}
        for name, memory in self.memories.items():
            if isinstance(memory, ReplayMemory):
                memory.reseed(seed_for(seed, "memory", name))
        total = experiment.total_steps
        self.learners = {name: use.learner.build(network, total) for name, use in experiment.learners.items()}
        for name, learner in self.learners.items():
            if isinstance(learner, ReplayLearner):
                learner.reseed(seed_for(seed, "updates", name))
        self.weights = Weights()
        self._published = [(self.learners[name], use.publishes) for name, use in experiment.learners.items()]
        self.publish(0)
        self._version = -1
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
        """Around a thread that acts: on a GPU, a stream of its own that goes before learning."""
        if self.policy.device.type != "cuda":
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.Stream(self.policy.device, priority=-1))

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
        return network.behaviour if isinstance(description, Control) else network

    def _refresh(self) -> int:
        if not self.learners:
            return 0
        self._version = self.weights.pull("policy", self._acting(self.policy.network), self._version)
        if isinstance(self.policy, PlannedPolicy):
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
        actor = (actor or self.actor.snapshot()) if with_actor else None
        if actor is not None:
            state["actor"] = actor
        kept = [n for n, memory in self.memories.items() if actor is not None or isinstance(memory, ReplayMemory)]
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
            learner.load_state_dict({**state["learners"][name], "network": weights})
        self.publish(self.updates)
        if not self.learners:
            self._version = 0
        if "actor" not in state:
            for name, memory in self.memories.items():
                if isinstance(memory, ReplayMemory) and name in state.get("memories", {}):
                    memory.restore(state["memories"][name], same_episodes=False)
            return False
        self.actor.restore(state["actor"])
        for name, memory in self.memories.items():
            if not branched or name in state["memories"]:
                memory.restore(state["memories"][name])
        return True

    def close(self) -> None:
        """Close the environments."""
        self.actor.close()


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
    greedy: bool = True,
) -> tuple[Evaluator, torch.nn.Module]:
    """An evaluator with environments and a network of its own, and that network."""
    network = experiment.policy.build(spec).to(device)
    size = min(num_episodes, EVALUATION_COLUMNS)
    environment: Environment = experiment.evaluation.environment or experiment.streams.environment
    own_seed = seed_for(seed, "evaluation")
    if isinstance(experiment.policy, Planning):
        limit = experiment.evaluation.episode_time_limit or experiment.streams.episode_time_limit
        stream = Stream(environment.open_core(size, own_seed, time_limit=limit), size)
    else:
        if isinstance(network, ActorCriticNetwork):
            network.precision = precision
        stream = Stream(environment.open(size, own_seed, spec, travelling), size)
    policy = make_policy(experiment.policy, network, device, seed_for(seed, "evaluation", "actions"), greedy)
    return Evaluator(stream, policy, num_episodes), network


def learning_epoch(experiment: Experiment, repeats: list[int]) -> int:
    """The epochs that count for schedules: those that learned, or all where nothing learns."""
    learning = [i for i, stage in enumerate(experiment.schedule) if isinstance(stage, Repeat) and stage.learns]
    return sum(repeats[i] for i in learning or range(len(repeats)))


def _settle_gpu() -> None:
    """Wait until a GPU has nothing left to do: one thread is about to touch what another's stream has worked on."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Gate:
    """Lets an actor thread pass turn by turn, and lets another thread hold it between two turns.

    The actor passes thousands of times for each time it is held, so passing takes no lock: it says that it is inside,
    then looks whether somebody holds the gate; a holder says so, then looks whether somebody is inside.
    """

    def __init__(self) -> None:
        self._holders = 0
        self._inside = False
        self.stuck = False  # set when the turn under way is known not to end

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Around each turn of the actor."""
        self._inside = True
        while self._holders:
            self._inside = False
            time.sleep(0.0005)
            self._inside = True
        try:
            yield
        finally:
            self._inside = False

    @contextlib.contextmanager
    def held(self, timeout: float) -> Iterator[None]:
        """No turn begins, and none is under way; StalledError if the current one does not end."""
        self._holders += 1
        try:
            end = time.monotonic() + timeout
            while self._inside:
                if self.stuck or time.monotonic() > end:
                    raise StalledError(f"the actor did not finish its turn within {timeout:g} s")
                time.sleep(0.0005)
            yield
        finally:
            self._holders -= 1


@dataclass
class Busy:
    """How much of its time a loop worked, since the last look."""

    waited: float = 0.0
    since: float = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - begin

    def share(self) -> float:
        """The working share, which starts a new span."""
        now = time.perf_counter()
        span, waited = now - self.since, self.waited
        self.since, self.waited = now, 0.0
        return min(1.0, max(0.0, 1 - waited / span)) if span > 0 else 0.0


class Training:
    """A run: parts, counters, rows, evaluation, checkpoints."""

    def __init__(
        self,
        experiment: Experiment,
        spec: Spec,
        folder: RunFolder,
        configuration: Configuration,
        device: torch.device,
        console: PlainConsole | RichConsole,
        saved: tuple[int, dict[str, Any]] | None,
        tensorboard: bool = False,
        streams: list[Stream] | None = None,
        exact: bool = False,
    ):
        self.experiment, self.folder, self._configuration, self._console = experiment, folder, configuration, console
        torch.set_num_threads(experiment.run.num_threads)
        keep_large_blocks()
        travelling = Travelling.pack(configuration.text())
        traces = None
        if isinstance(experiment.policy, Planning) and experiment.policy.traces is not None:
            where, seed = folder.path / "traces", seed_for(experiment.seed, "traces")
            traces = TraceWriter(experiment.policy.traces, where, experiment.streams.environment.id, seed)
        self.parts = Parts(experiment, spec, device, travelling, streams, exact, traces)
        for name, memory in self.parts.memories.items():
            if isinstance(memory, ReplayMemory):
                memory.attach(Segments(folder.path / "replay" / name))
        self.explorer: Explorer | None = None
        if experiment.exploration is not None:
            self.explorer = Explorer(experiment.exploration, self.parts.streams, folder.path / "pictures")
        self._rolling = Rolling()
        self.random_steps = 0  # of random play, for data
        self._counted = 0  # steps that the books know of
        self.solved_at: int | None = None  # env_steps when an episode was first solved, other than by random play
        self.repeats = [0] * len(experiment.schedule)  # how often each stage has been gone through: epochs
        self._learned: dict[str, list[dict[str, Any]]] = {}  # what updates of an epoch reported, by learner
        # Step, actor and books when the epoch under way began; None: there is none.
        self._epoch_begin: tuple[int, dict[str, Any] | None, dict[str, Any]] | None = None
        self.step = 0  # decisions learned from
        self._frames_per_step = spec.frames_per_step
        self.stop: BaseException | None = None  # why the run should end early
        self.gate = Gate()
        self._patience = experiment.streams.environment.step_deadline_secs + 30  # for a turn to end
        self.actor_busy, self.learner_busy = Busy(since=time.perf_counter()), Busy(since=time.perf_counter())
        self._recorder = Recorder(1 if experiment.by_epochs else experiment.run.log_every)
        self._episodes: collections.deque = collections.deque()  # from the actor's thread to the learner's
        self._results: collections.deque = collections.deque()  # evaluations, likewise
        self._wall_before, self._begin = 0.0, time.monotonic()
        self._row_step, self._row_time = 0, time.monotonic()
        self._next_eval, self._last_eval = 0, -1
        self._evaluated: tuple[int, dict[str, Any]] | None = None
        self._evaluator, self._evaluation_network = None, None
        if experiment.evaluation.every or experiment.evaluation.every_epochs:
            count = experiment.evaluation.num_episodes
            self._evaluator, self._evaluation_network = open_evaluator(
                experiment, spec, device, count, experiment.seed, travelling, self.parts.precision
            )
        keep = self._resume(*saved) if saved else 0
        self._writers: list[Any] = [JsonlWriter(folder.metrics, keep)]
        if tensorboard:
            self._writers.append(TensorBoardWriter(folder.path / "tensorboard"))
        self._last_save = time.monotonic()
        self.saves_itself = True  # False where runs that learn together are saved at the same update
        self._saving: threading.Thread | None = None
        self._process = psutil.Process()

    def columns(self) -> list[Columns]:
        """All groups of environments, those of evaluations included: what a watchdog watches."""
        evaluated = [self._evaluator.stream] if self._evaluator is not None else []
        return [stream.columns for stream in [*self.parts.streams, *evaluated]]

    # -- acting

    def act(self) -> None:
        """One turn of the actor."""
        actor = self.parts.actor
        group = actor.next_group
        actor.turn()
        self.count_turn(group)

    def count_turn(self, group: int) -> None:
        """Keep the books of a turn that served a group."""
        actor = self.parts.actor
        made, self._counted = actor.steps - self._counted, actor.steps  # saving may have waited for some of them
        finished = actor.drain_finished()
        self._episodes.extend(finished)
        policy = self.parts.policy
        random = not isinstance(policy, NetworkPolicy) and policy.random
        if random:
            self.random_steps += made
        elif self.solved_at is None and any((one.solved > 0).any() for one in finished):
            self.solved_at = actor.steps
        if self.explorer is not None:
            marks = policy.marks if isinstance(policy, PlannedPolicy) else {}
            self.explorer.look(group, self.parts.streams[group], actor.steps, random, marks)

    def tick_evaluation(self) -> None:
        """One step of an evaluation under way, if there is one."""
        if self._evaluator is not None and self._evaluator.active:
            result = self._evaluator.tick()
            if result is not None:
                self._results.append(result)

    # -- learning

    @property
    def finished(self) -> bool:
        """Whether all steps have been learned from, or all epochs are over."""
        epochs = self.experiment.epochs
        over = self.experiment.by_epochs and epochs is not None and self.epoch >= epochs
        over |= self.experiment.run.until_solved and self.solved_at is not None
        return over or self.step >= self.experiment.total_steps

    # -- epochs

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return sum(self.repeats)

    def repeats_left(self, index: int) -> bool:
        """Whether a stage is to be gone through once more."""
        stage = self.experiment.schedule[index]
        assert isinstance(stage, Repeat)
        return stage.times is None or self.repeats[index] < stage.times

    def begin_epoch(self) -> None:
        """Remember where the environments stand: until the epoch is over, this is what is saved."""
        if isinstance(self.parts.policy, PlannedPolicy):
            self.parts.policy.epoch = learning_epoch(self.experiment, self.repeats)
            self.parts.policy.trace_epoch = self.epoch
        self._epoch_begin = (self.step, self.parts.actor.snapshot() if self._savable() else None, self._books())

    def _savable(self) -> bool:
        return all(stream.columns.savable for stream in self.parts.streams) and self.parts.actor.steps > 0

    def begin_round(self, stage: Collect) -> None:
        """All columns begin an episode with the next turn."""
        self._round_begun = False
        self.parts.collect_into(stage.memories)
        assert isinstance(self.parts.policy, PlannedPolicy)
        self.parts.policy.random = stage.policy == "random"

    def round_is_over(self) -> bool:
        """Whether every column has finished its episode."""
        if not self._round_begun:  # the turn that resets them is still to come
            self._round_begun = True
            return False
        return all(stream.columns.all_ended for stream in self.parts.streams)  # type: ignore[attr-defined]

    def end_epoch(self, index: int) -> None:
        """Count the epoch, and write its rows."""
        self.repeats[index] += 1
        self.step = self.parts.actor.steps
        learned = self._drain_learned()
        stage = self.experiment.schedule[index]
        assert isinstance(stage, Repeat)
        if stage.forget and not self.repeats_left(index):
            for inner in stage.stages:
                if isinstance(inner, Update):
                    memory = self.parts.memories[self.experiment.learners[inner.learner].memory]
                    assert isinstance(memory, EpisodeMemory)
                    memory.clear()
        if not self.repeats_left(index):
            for name in stage.renew:
                self.parts.renew(name, self.epoch)
        self._epoch_begin = None
        assert isinstance(self.parts.policy, PlannedPolicy)
        decided = self.parts.policy.decisions.drain()
        played = self.step > self.random_steps  # by the planner
        row = planning_row(self.epoch, list(self._episodes), learned, decided, played)
        row |= {f"episode_model/{name}": value for name, value in self.parts.policy.quality.drain().items()}
        if "episode/solved_rate" in row and not self.parts.policy.random:
            rolling = self._rolling.add(self.epoch, row["episode/solved_rate"])
            row |= {f"episode_rolling/{name}": value for name, value in rolling.items()}
        while self._episodes:
            self._recorder.episodes(self._episodes.popleft())
        self._write_train_row(next(iter(learned.values()), {}))
        self._write("planning", row)

    def _drain_learned(self) -> dict[str, dict[str, float]]:
        """What the updates of an epoch reported on average, by learner, and how good what they made is."""
        learned = {name: means(updates) for name, updates in self._learned.items()}
        self._learned = {}
        for name, averages in learned.items():
            use = self.experiment.learners[name]
            memory = self.parts.memories[use.memory]
            assert isinstance(memory, EpisodeMemory)
            averages |= memory.bucket_sizes()
            held_out = memory.held_out(VALIDATION_STEPS) if hasattr(use.learner, "validate") else None
            if held_out is not None:
                found = use.learner.validate(self.parts.learners[name].network, held_out)  # type: ignore[attr-defined]
                averages |= {f"validation_{metric}": float(value) for metric, value in found.items()}
        return learned

    def update(self, name: str) -> bool:
        """One step of a learner if its memory has a batch, and the row that may be due; False if there was no batch."""
        use, learner = self.experiment.learners[name], self.parts.learners[name]
        sample = self.parts.memories[use.memory].sample(learner.updates)
        if sample is None:
            return False
        metrics = learner.update(sample)
        self.parts.publish(self.parts.updates)
        memory = self.parts.memories[use.memory]
        if (priorities := metrics.pop("priorities", None)) is not None:
            assert isinstance(memory, EpisodeMemory)
            memory.set_priorities(priorities.cpu().numpy())
        if memory.replays:  # steps are counted where they are made, and rows are written between epochs
            self._learned.setdefault(name, []).append(metrics)
            return True
        self._recorder.update(metrics, sample.lag)
        self.step += sample.steps
        while self._episodes:
            self._recorder.episodes(self._episodes.popleft())
        if self._recorder.due(self.step):
            self._write_train_row()
        return True

    # -- replaying

    def begin_stage(self, stage: Collect) -> None:
        """Let the policy that a stage names act from now on."""
        assert isinstance(self.parts.policy, ActsAtRandom)
        self.parts.policy.random = stage.policy == "random"

    @property
    def acted(self) -> int:
        """Steps that can be learned from. What environments have answered since the last turn is not among them."""
        return max(memory.count for memory in self.parts.memories.values() if isinstance(memory, ReplayMemory))

    def due(self, name: str) -> int:
        """How many updates a learner may make before more has been acted."""
        experiment, learner = self.experiment, self.parts.learners[name]
        ratio = experiment.learners[name].ratio
        if ratio is None:
            return ROOM
        # Counted in turns of all columns: seeds that learn together have not all acted as often when one of them meets
        # a reset, which is no step.
        columns = experiment.streams.num_actors
        acted = max(0, min(self.acted, experiment.total_steps) - experiment.warm_up) // columns * columns
        return int(ratio * acted) + experiment.pretraining(name) - learner.updates

    def draw(self, name: str, count: int) -> Batch:
        """What a learner needs for its next updates."""
        memory = self.parts.memories[self.experiment.learners[name].memory]
        assert isinstance(memory, ReplayMemory)
        return self.parts.learners[name].draw(memory, count)

    def learn(self, name: str, count: int) -> None:
        """So many updates of a learner, `ROOM` at most."""
        self.note_learned(name, self.parts.learners[name].update(self.draw(name, count)))

    def note_learned(self, name: str, metrics: dict[str, Any]) -> None:
        """Keep what updates reported, and let the actor have their weights."""
        self._recorder.update(metrics, None)
        if self.experiment.learners[name].publishes:
            self.parts.publish(self.parts.updates)

    def count_acted(self) -> None:
        """Bring the books up to what has been acted, and write the row that may be due."""
        self.step = self.acted
        while self._episodes:
            self._recorder.episodes(self._episodes.popleft())
        if self._recorder.due(self.step, without_updates=True):
            self._write_train_row()

    def _write_train_row(self, learned: dict[str, float] | None = None) -> None:
        row: dict[str, Any] = {"epoch": self.epoch} if self.experiment.by_epochs else {}
        row |= {**(learned or {}), **self._recorder.row(self.step)}
        now = time.monotonic()
        row["env_steps"] = self.parts.actor.steps
        row["env_steps_without_random"] = row["env_steps"] - self.random_steps
        if self.solved_at is not None:
            row["first_solved_step"] = self.solved_at - self.random_steps
        if self.explorer is not None:
            row |= self.explorer.row()
        if self._frames_per_step > 1:
            row["frames"] = self.step * self._frames_per_step
        dropped = sum(memory.dropped for memory in self.parts.memories.values())
        if not self.experiment.by_ratio:
            row["episodes_too_long" if self.experiment.by_epochs else "unrolls_dropped"] = dropped
        else:
            row |= {f"updates/{name}": learner.updates for name, learner in self.parts.learners.items()}
        row["episodes_dropped"] = sum(stream.columns.boundary.dropped for stream in self.parts.streams)
        row["values_clipped"] = sum(stream.columns.boundary.clipped for stream in self.parts.streams)
        row["steps_per_second"] = (self.step - self._row_step) / max(1e-9, now - self._row_time)
        if self._frames_per_step > 1:
            row["frames_per_second"] = row["steps_per_second"] * self._frames_per_step
        row["actor_busy"], row["learner_busy"] = self.actor_busy.share(), self.learner_busy.share()
        row["rss_mb"] = self._process.memory_info().rss / 2**20
        if torch.cuda.is_initialized():
            row["gpu_mb"] = torch.cuda.memory_reserved() / 2**20
        self._row_step, self._row_time = self.step, now
        self._write("train", row)
        for name in ("total_loss", "grad_norm", "critic_loss", "model/total_loss"):
            if name in row and not math.isfinite(row[name]):
                raise DivergedError(
                    f"{name} is {row[name]} at step {self.step}: learning has diverged; lower the learning rate"
                )

    def _write(self, kind: str, values: dict[str, Any], step: int | None = None) -> None:
        row = {"step": self.step if step is None else step, "wall_s": round(self.wall_s(), 3), "kind": kind, **values}
        for writer in self._writers:
            writer.write(row)
        self._console.show(row)

    def wall_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._wall_before + time.monotonic() - self._begin

    # -- evaluation

    def begin_evaluation_if_due(self) -> bool:
        """Start an evaluation with the current weights if the step count has come to it."""
        due = self._evaluator is not None and self._last_eval != self.step and (self._evaluation_due() or self.finished)
        if not due or self.evaluating:
            return False
        every = self.experiment.evaluation.every
        with self.gate.held(self._patience):
            for learner in self.parts.learners.values():
                self._evaluation_network.load_state_dict(learner.network.state_dict())  # type: ignore[union-attr]
            # Saved as it is before the evaluation: a run that resumes from it evaluates again and writes the row.
            self._evaluated = (self.step, self._state(with_actor=True))
            assert self._evaluator is not None
            known = None
            if isinstance(self._evaluator.policy, PlannedPolicy):
                self._evaluator.policy.epoch = learning_epoch(self.experiment, self.repeats)
                self._evaluator.policy.version = self.parts.updates
                self._evaluator.policy.trace_epoch = self.epoch
                known = self.parts.actor.seats[0].snapshot()
            self._evaluator.begin(known)
            _settle_gpu()  # the actor's stream plays on with what this one has prepared
        if every:
            self._next_eval = (self.step // every + 1) * every
        self._last_eval = self.step
        return True

    def _evaluation_due(self) -> bool:
        settings = self.experiment.evaluation
        if settings.every_epochs and self.epoch % settings.every_epochs == 0 and self.epoch > 0:
            return True
        return bool(settings.every) and self.step >= self._next_eval

    def collect_evaluation(self) -> None:
        """Write the row of a finished evaluation; a new best score keeps the state that was evaluated."""
        while self._results:
            result = self._results.popleft()
            assert self._evaluated is not None
            step, state = self._evaluated
            self._evaluated = None
            rewards = result.pop("rewards")
            result |= {f"reward/{name}": value for name, value in rewards.items() if name != "train"}
            self._write("eval", {"epoch": self.epoch, **result} if self.experiment.by_epochs else result, step)
            if result["return_mean"] > self._best_score():
                self._join_saving()
                self._guarded(partial(self._keep_best, step, state, result["return_mean"]))()

    def _best_score(self) -> float:
        try:
            best = checkpoint.best(self.folder.checkpoints)
        except CheckpointError as error:
            log.warning("%s; the next evaluation counts as the best", error)
            best = None
        return -math.inf if best is None else best["score"]

    def _keep_best(self, step: int, state: dict[str, Any], score: float) -> None:
        checkpoint.save(self.folder.checkpoints, step, state)
        checkpoint.mark_best(self.folder.checkpoints, step, score)

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation has been begun and its row is not written yet."""
        return self._evaluated is not None

    # -- saving

    @property
    def save_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self._last_save >= self.experiment.run.checkpoint_secs

    def save_if_due(self, background: bool) -> None:
        """Save when `checkpoint_secs` have passed, unless others decide when."""
        if self.saves_itself and self.save_due:
            self.save(background=background)

    def save(self, background: bool = False, with_actor: bool = True, required: bool = False) -> None:
        """Write a checkpoint of this moment; in the background, only the copying holds up training.

        A disk that refuses is a warning, since the checkpoint before stands; SaveError if this one is `required`.
        """
        with self.gate.held(self._patience) if with_actor else contextlib.nullcontext():
            state = self._state(with_actor)
        for name, weights in state["weights"].items():
            if not all(bool(torch.isfinite(leaf).all()) for leaf in trees.flatten(weights) if leaf.is_floating_point()):
                raise DivergedError(f"the weights of {name!r} are not finite at step {self.step}: not saved")
        self._join_saving()
        self._last_save = time.monotonic()
        step = state["run"]["step"]

        def write() -> None:
            checkpoint.save(self.folder.checkpoints, step, state)
            checkpoint.prune(self.folder.checkpoints, self.experiment.run.keep_every)

        if background:
            self._saving = threading.Thread(target=self._guarded(write), name="checkpoint")
            self._saving.start()
        elif required:
            try:
                write()
            except OSError as error:
                raise SaveError(f"the checkpoint at step {step:,} could not be written: {error}") from error
        else:
            self._guarded(write)()

    def _guarded(self, write: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                write()
            except OSError as error:
                log.warning("checkpoint at step %d not written: %s; the one before it stands", self.step, error)

        return run

    def _join_saving(self) -> None:
        if self._saving is not None:
            self._saving.join()
            self._saving = None

    def _state(self, with_actor: bool) -> dict[str, Any]:
        """Everything that must survive. The actor is held; what its stream has begun is waited for, and the copies."""
        _settle_gpu()
        step, actor, books = self._epoch_begin or (self.step, None, self._books())
        state = self.parts.state(with_actor and (actor is not None or self._epoch_begin is None), actor)
        _settle_gpu()
        state["run"] = {
            "step": step,
            "repeats": list(self.repeats),
            "wall_s": self.wall_s(),
            "metrics_bytes": self._writers[0].bytes,
            "next_eval": self._last_eval if self.evaluating else self._next_eval,  # one under way is begun again
            "last_eval": -1 if self.evaluating else self._last_eval,
            "env_steps": step if self._epoch_begin else self.parts.actor.steps,
            "random_steps": books["random_steps"],
            "counted": books["counted"],
            "solved_at": books["solved_at"],
            "rolling": books["rolling"],
            "identity": self._configuration.identity(),
            "values": dict(self._configuration.values),
        }
        state["recorder"] = self._recorder.state_dict()
        if "exploration" in books:
            state["exploration"] = books["exploration"]
        return state

    def _books(self) -> dict[str, Any]:
        """What is counted as environments are stepped."""
        explored = {} if self.explorer is None else {"exploration": self.explorer.snapshot()}
        counted = {"random_steps": self.random_steps, "counted": self._counted, "solved_at": self.solved_at}
        return {**counted, "rolling": self._rolling.snapshot(), **explored}

    def _resume(self, step: int, state: dict[str, Any]) -> int:
        """Go on from a checkpoint; returns how many bytes of metrics.jsonl belong to it."""
        exact = self.parts.load_state(state)
        run = state["run"]
        self.step, self._wall_before = run["step"], run["wall_s"]
        self.repeats = list(run.get("repeats", self.repeats))
        self._next_eval, self._last_eval = run["next_eval"], run["last_eval"]
        self.random_steps, self.solved_at = run.get("random_steps", 0), run.get("solved_at")
        self._counted = run.get("counted", run["env_steps"])
        self._rolling.restore(run.get("rolling") or Rolling().snapshot())
        if self.explorer is not None and "exploration" in state:
            self.explorer.restore(state["exploration"])
        self._row_step = self.step
        self._recorder.load_state_dict(state["recorder"], self.step)
        if not exact:
            self.parts.streams[0].steps = run["env_steps"]
        log.info("resumed at step %d%s", step, "" if exact else "; the environments begin new episodes")
        return run["metrics_bytes"]

    def close(self) -> None:
        """End everything that is held."""
        self._join_saving()
        if self.explorer is not None:
            with contextlib.suppress(OSError):  # a picture is worth no failed run
                self.explorer.draw()
        for writer in self._writers:
            writer.close()
        if self._evaluator is not None:
            self._evaluator.close()
        self.parts.close()
