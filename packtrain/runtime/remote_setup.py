"""How environments are divided over workers, and what workers and the flow control of a run are built from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from packtrain.errors import ConfigError
from packtrain.interfaces import ActingPlace, Memory, MemorySettings
from packtrain.runtime import shard_calls
from packtrain.runtime.acting import ActingOptions
from packtrain.runtime.cluster.calls import Limits
from packtrain.runtime.evaluation_scheduler import OpenPlayer
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.learning import BuildMemory
from packtrain.runtime.messages import Order, Remote, WorkerSetup
from packtrain.runtime.preflight import row_bytes
from packtrain.runtime.process_engine import ProcessEngine
from packtrain.runtime.regrouping import Layout
from packtrain.runtime.remote_acting import LOOK_SECS, Division, RemoteActing
from packtrain.runtime.remote_evaluation import (
    ROLE,
    EvaluationWorker,
    EvaluatorSetup,
    RemoteEvaluator,
    evaluator_limits,
    player_opener,
)
from packtrain.runtime.replay_shard import ReplayShard, ShardSetup
from packtrain.runtime.sharded_memory import ShardedMemory
from packtrain.runtime.worker import Worker
from packtrain.types import Spec

ROUND_STEPS = 64  # actor steps per order when whole episodes are played
OVERLAP_STEPS = 16  # actor steps per order when learning runs at the same time
ROW_EXTRAS = 512  # first estimate of the bytes of a row besides observation, action and flags


def group_sizes(experiment: Experiment, workers: int, kept: Sequence[int] | None = None) -> list[int]:
    """Return the number of environments in each group: at least one group for each worker.

    Args:
      experiment: of the run.
      workers: acting sides.
      kept: sizes of the groups in the replay of a resumed run; they are kept if there are enough for the workers.
        Otherwise the replay is redistributed to other groups.
    """
    if kept is not None and workers <= len(kept):
        return list(kept)
    own = experiment.streams.group_sizes()
    if len(own) % workers == 0:
        return own
    groups = workers * max(1, round(len(own) / workers))
    return [len(block) for block in divide(experiment.streams.num_actors, groups)]


def divide(count: int, parts: int) -> list[tuple[int, ...]]:
    """Return 0 to `count` − 1 in consecutive parts whose sizes differ by one at most, the larger ones first."""
    size, more = divmod(count, parts)
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + size + (part < more))
    return [tuple(range(begin, end)) for begin, end in zip(ends, ends[1:], strict=False)]


def check_remote(remote: Remote, experiment: Experiment) -> None:
    """Raise an error of one sentence, within seconds, for workers that cannot be; nothing is started."""
    envs = experiment.streams.num_actors
    if remote.workers is not None and not 1 <= remote.workers <= envs:
        raise ConfigError(
            f"--workers {remote.workers}: {envs} environments can be divided over 1 to {envs} workers; "
            "change --workers or the number of environments"
        )
    if remote.replay_shards is not None:
        _refuse_shards(remote, experiment)
    if remote.kind == "cluster":
        from packtrain.runtime.cluster.launch import check  # needs the extra "cluster"

        check(remote)


def _refuse_shards(remote: Remote, experiment: Experiment) -> None:
    """Raise a ConfigError if the memories of an experiment cannot lie in shards."""
    flag = f"--replay_shards {remote.replay_shards}"
    if remote.kind != "cluster" or remote.inference != "worker":
        raise ConfigError(f"{flag} needs --runtime cluster, with --inference worker")
    assert remote.replay_shards is not None
    if remote.replay_shards < 1:
        raise ConfigError(f"{flag} must be at least 1")
    for name, memory in experiment.memories.items():
        if memory.shard(1, experiment.streams.num_actors) is None:
            kind = type(memory).__name__
            raise ConfigError(f"{flag}: the memory {name!r} ({kind}) has no shards; leave --replay_shards out")


def remote_acting(
    remote: Remote, experiment: Experiment, spec: Spec, options: ActingOptions, synchronous: bool
) -> RemoteActing:
    """Return an acting side of other processes, here or on a cluster; they start with `connect`.

    Args:
      remote: where they run, and how many.
      experiment: what acts.
      spec: of its environment.
      options: its `folder` is needed, its `block` is not used; `sizes` are those of groups that a replay is stored in.
      synchronous: acting and learning take turns, one actor step at a time.
    """
    envs = experiment.streams.num_actors
    network = experiment.policy.build_network(spec)
    context = experiment.policy.build_policy(network, ActingPlace(torch.device("cpu"), 0, envs)).context
    steps = ROUND_STEPS if experiment.by_epochs else 1 if synchronous else OVERLAP_STEPS
    weights_bytes = sum(leaf.nbytes for leaf in experiment.policy.acting_network(network).state_dict().values())
    chunk_bytes = envs * steps * (2 * row_bytes(spec) + ROW_EXTRAS)
    launched = None
    if remote.kind == "cluster":
        from packtrain.runtime.cluster.launch import launch  # needs the extra "cluster"

        # one version of all weights for an evaluation, and the one before
        whole_bytes = 2 * sum(leaf.nbytes for leaf in network.state_dict().values())
        batches = _batch_bytes(experiment, spec) if remote.replay_shards else 0
        launched = launch(remote, envs, chunk_bytes, weights_bytes, whole_bytes + batches)
    workers = (remote.workers or 1) if launched is None else launched.workers
    sizes = group_sizes(experiment, workers, options.sizes)
    blocks = divide(len(sizes), workers)
    order = Order(steps, each_group=not experiment.by_epochs and not synchronous)

    def setup(worker: int, life: int) -> WorkerSetup:
        lasting = acting.lasting_of(worker) if life else ()
        found = _worker_setup(experiment, options, order, blocks, sizes, Life(worker, life, lasting))
        return replace(found, carries=acting.carry_rows(found.chunk_rows))

    limits = replace(_limits(experiment, len(blocks[0]), 1 if synchronous else 2), newest_weights=synchronous)
    if launched is not None:
        chunk, store = launched.plan.chunk_bytes, launched.store_bytes or None
        limits = replace(limits, chunk_bytes=chunk, weights_bytes=weights_bytes, max_bytes=store)
    if not synchronous:
        limits = _limit_lag(limits, experiment, steps * experiment.streams.num_actors / workers)
    engine: Any = ProcessEngine(setup) if launched is None else _ray_engine(launched, setup)
    acting = RemoteActing(
        experiment, engine, limits, Division(blocks, sizes, options.lives), context, order, options.exact
    )
    if launched is not None:
        acting.open_player = _player_opener(launched, experiment, spec, options, synchronous)
        if remote.replay_shards:
            acting.build_memory = _memory_builder(launched, remote.replay_shards, acting, options)
    return acting


def _batch_bytes(experiment: Experiment, spec: Spec) -> int:
    """Return the bytes of the batches of replay shards on their way at a time, about."""
    rows = [getattr(memory, "batch_size", 0) * getattr(memory, "rows", 0) for memory in experiment.memories.values()]
    return 4 * sum(rows) * (row_bytes(spec) + ROW_EXTRAS)


def _memory_builder(launched: Any, shards: int, acting: RemoteActing, options: ActingOptions) -> BuildMemory:
    """Return what builds a memory in processes on the cluster."""

    def open_engine(count: int, setup: Callable[[int, int], ShardSetup]) -> Any:
        from packtrain.runtime.cluster.engine import Recipe

        def recipe(worker: int, role: str, life: int, seed: int) -> Recipe:
            values = replace(setup(worker, life), import_path=_import_path(), imports=options.imports)
            return Recipe(ReplayShard, (values,), values.import_path)

        return launched.more(shard_calls.ROLE, count, recipe)

    def build(settings: MemorySettings, groups: list[int], context: int, device: torch.device) -> Memory:
        memory = ShardedMemory(settings, groups, context, device, shards, open_engine)
        memory.stopping = lambda: acting.stopping()
        acting.closing.append(memory.close)
        return memory

    return build


def _player_opener(
    launched: Any, experiment: Experiment, spec: Spec, options: ActingOptions, synchronous: bool
) -> OpenPlayer:
    """Return a function that opens the players of evaluations, which run in a process on the cluster."""

    def open_evaluator(precision: torch.dtype | None) -> RemoteEvaluator:
        from packtrain.runtime.cluster.engine import Recipe

        own = (experiment, spec, precision, _import_path(), options.imports)
        setup = EvaluatorSetup(*own)

        def recipe(worker: int, role: str, life: int, seed: int) -> Recipe:
            return Recipe(EvaluationWorker, (setup,), setup.import_path)

        limits = evaluator_limits(_limits(experiment, 1, 1), experiment)
        return RemoteEvaluator(
            launched.more(ROLE, 1, recipe), limits, experiment.seed, LOOK_SECS if synchronous else 0.0
        )

    return player_opener(open_evaluator)


def _import_path() -> tuple[str, ...]:
    """Return the folders of modules, for other processes."""
    return tuple(os.path.abspath(path) for path in sys.path)


def _limits(experiment: Experiment, groups: int, calls: int) -> Limits:
    """Return the deadlines of workers with so many groups and calls in flight.

    A worker itself reports a call of an environment that exceeds its deadline. The deadlines here are for a process
    that does not answer at all.
    """
    environment = experiment.streams.environment
    return Limits(
        calls_per_worker=calls,
        max_lag=None,
        start_secs=environment.start_deadline_secs + 60,
        call_secs=environment.step_deadline_secs + 10,
        first_secs=max(environment.step_deadline_secs, groups * environment.start_deadline_secs) + 10,
    )


def _limit_lag(limits: Limits, experiment: Experiment, steps_per_chunk: float) -> Limits:
    """Return limits that hold orders back before their results are too old for the memories."""
    envs = experiment.streams.num_actors
    found = [lag for memory in experiment.memories.values() if (lag := memory.policy_lag(envs)) is not None]
    if not found:
        return limits
    updates = max(steps_per_chunk / lag.steps_per_version for lag in found)
    return replace(limits, max_lag=min(lag.limit for lag in found), updates_per_chunk=updates)


class Life(NamedTuple):
    """One life of a worker: workers are started again after a fault."""

    worker: int
    number: int
    lasting: tuple[Any, ...]  # state of its groups that outlives episodes, from the previous life, packed


def _worker_setup(
    experiment: Experiment,
    options: ActingOptions,
    order: Order,
    blocks: Sequence[tuple[int, ...]],
    sizes: Sequence[int],
    life: Life,
) -> WorkerSetup:
    """Return what one life of a worker is built from."""
    groups = blocks[life.worker]
    return WorkerSetup(
        experiment=experiment,
        groups=groups,
        group_sizes=tuple(sizes),
        first_env=sum(sizes[: groups[0]]),
        index=life.worker,
        life=life.number,
        chunk_rows=order.steps if order.each_group else -(-order.steps // len(groups)),
        exact=options.exact,
        again=options.other_seeds(Layout(len(blocks), tuple(sizes))),
        folder=None if options.folder is None else str(options.folder),
        subfolder=f"worker_{life.worker}" if len(blocks) > 1 else "",
        import_path=_import_path(),
        imports=options.imports,
        lasting=life.lasting,
    )


def _ray_engine(launched: Any, setup: Callable[[int, int], WorkerSetup]) -> Any:
    """Return an engine that starts workers as Ray actors, and leaves the cluster when it is closed."""
    from packtrain.runtime.cluster.engine import RayEngine, Recipe

    def recipe(worker: int, role: str, life: int, seed: int) -> Recipe:
        values = setup(worker, life)
        return Recipe(Worker, (values,), values.import_path)

    return RayEngine(launched.cluster, launched.plan, recipe)
