"""The acting side of a run in other processes: workers act as ordered, and their rows go to the memories here."""

from __future__ import annotations

import collections
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from packtrain.errors import ConfigError, Error, WorkersLostError
from packtrain.interfaces import ActingPlace, Memory
from packtrain.runtime.acting import Acting, ActingOptions
from packtrain.runtime.cluster.flow import Delivery, Engine, Flow, Limits
from packtrain.runtime.experiment import Collect, Experiment
from packtrain.runtime.messages import GroupChunk, Order, Remote, Report, WorkerReport, WorkerSetup
from packtrain.runtime.preflight import row_bytes
from packtrain.runtime.process_engine import ProcessEngine
from packtrain.runtime.regrouping import Layout
from packtrain.runtime.weights import Weights
from packtrain.runtime.worker import Worker, pack_tensors, unpack_tensors
from packtrain.types import Chunk, Spec

log = logging.getLogger("packtrain")
LOOK_SECS = 0.2  # duration of a poll
READY_SECS = 180.0  # limit for workers to start
ROUND_STEPS = 64  # actor steps per order when whole episodes are played
OVERLAP_STEPS = 16  # actor steps per order when learning goes on at the same time
ROW_EXTRAS = 512  # first estimate of the bytes of a row besides observation, action and flags
COUNTS = ("episodes_dropped", "search_steps_dropped", "values_clipped")  # metrics that are summed over workers


def group_sizes(experiment: Experiment, workers: int, kept: Sequence[int] | None = None) -> list[int]:
    """Return the number of environments in each group: at least one group for each worker.

    Args:
      experiment: of the run.
      workers: acting sides.
      kept: the groups of a replay that the run goes on with; they stay as they are if there are enough for the
        workers. Otherwise the replay is dealt out to other groups.
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
    """Raise a one-line error if acting workers are impossible; starts nothing, takes seconds."""
    envs = experiment.streams.num_actors
    if remote.workers is not None and not 1 <= remote.workers <= envs:
        raise ConfigError(
            f"--workers {remote.workers}: {envs} environments can be divided over 1 to {envs} workers; "
            "change --workers or the number of environments"
        )
    if remote.kind == "cluster":
        from packtrain.runtime.cluster.launch import check  # needs the extra "cluster"

        check(remote)


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

        launched = launch(remote, envs, chunk_bytes, weights_bytes)
    workers = (remote.workers or 1) if launched is None else launched.workers
    sizes = group_sizes(experiment, workers, options.sizes)
    blocks = divide(len(sizes), workers)
    order = Order(steps, each_group=not experiment.by_epochs and not synchronous)

    def setup(worker: int, life: int) -> WorkerSetup:
        lasting = acting.lasting_of(worker) if life else ()
        return _worker_setup(experiment, options, order, blocks, sizes, Life(worker, life, lasting))

    environment = experiment.streams.environment
    limits = Limits(
        calls_per_worker=1 if synchronous else 2,
        max_lag=None,
        start_secs=environment.start_deadline_secs + 60,
        call_secs=environment.step_deadline_secs + 10,
    )
    engine: Any = ProcessEngine(setup) if launched is None else _ray_engine(launched, setup)
    acting = RemoteActing(experiment, engine, limits, blocks, sizes, context, order, options.exact)
    return acting


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
        folder=str(options.folder),
        import_path=tuple(os.path.abspath(path) for path in sys.path),
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


class RemoteActing(Acting):
    """Orders rows from workers and stores them; used by one thread at a time."""

    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        limits: Limits,
        blocks: Sequence[tuple[int, ...]],
        sizes: list[int],
        context: int,
        order: Order,
        exact: bool = False,
    ):
        """Store the arguments; workers start at `connect`.

        Args:
          experiment: of the run.
          engine: starts and calls the workers.
          limits: of the flow control.
          blocks: the groups of environments of each worker.
          sizes: number of environments in each group.
          context: rows that the policy needs in front of the one it acts on.
          order: what workers do in the first stage.
          exact: leave metrics of the workers out of rows, which would differ between equal runs.
        """
        self._exact = exact
        self.context, self.group_sizes, self.num_workers = context, sizes, len(blocks)
        self._experiment, self._engine, self._blocks, self._stage = experiment, engine, blocks, order
        self.row_needs_hold = experiment.exploration is not None  # the workers must be asked for it
        self._error_logged = False
        self._lost = False  # whether all workers are unreachable
        self._flow = Flow(engine, ["actor"] * len(blocks), limits, experiment.seed)
        self._memories: Mapping[str, Memory] = {}
        self._filled: tuple[str, ...] = ()
        self._weights: Weights | None = None
        self._version = -1
        self._pending: collections.deque[GroupChunk] = collections.deque()  # rows that wait for room in a memory
        self._finished: list[Any] = []
        self._steps = 0  # decisions since the beginning of the run whose results have arrived
        self._seen = [0] * len(blocks)  # steps of each worker's current life, from its latest report
        self._life = [0] * len(blocks)
        self._reports: list[WorkerReport | None] = [None] * len(blocks)
        # state of each worker's groups that outlives episodes, packed
        self._lasting: list[tuple[Any, ...]] = [()] * len(blocks)
        self._started = [False] * len(blocks)  # whether the memories have rows of the current life
        self._over = [False] * len(blocks)  # whether each worker has finished the round
        self._answers: dict[int, WorkerReport] = {}

    # -- start and acting

    def connect(self, memories: Mapping[str, Memory], weights: Weights | None) -> None:
        """Store rows in these memories, and act with these weights; start the workers."""
        self._memories, self._filled, self._weights = memories, tuple(memories), weights
        self._publish()
        self._flow.hold(True)
        self._flow.stage(self._stage)
        self._poll(0.0)

    def act(self, patience: float | None = None) -> Report:
        """Store the rows of the next result, and return what it added.

        Args:
          patience: seconds to wait for a result; None: until there is one.
        """
        self._flow.hold(False)
        waited = False
        while not self._store_pending() and not (waited and patience is not None):
            self._publish()
            self._receive_all(self._poll(LOOK_SECS if patience is None else patience))
            waited = True
        return self._report()

    def _poll(self, timeout: float) -> list[Delivery]:
        """Poll the flow control; after an error that ends the run, workers are not asked any more."""
        try:
            return self._flow.poll(timeout)
        except Error:
            self._lost = True
            raise

    def _publish(self) -> None:
        if self._weights is None:
            if self._version < 0:
                self._version = 0
                self._flow.publish(0, lambda: None)
        elif (version := self._weights.version("policy")) != self._version:
            self._version = version
            weights = self._weights
            self._flow.publish(version, lambda: weights.export("policy")[1])

    def _receive_all(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._receive(delivery)
        for notice in self._flow.notices:
            log.warning("%s", notice)
        if self._flow.first_error and not self._error_logged:
            self._error_logged = True
            log.info("the first error of a worker:\n%s", self._flow.first_error)
        self._flow.notices.clear()

    def _receive(self, delivery: Delivery) -> None:
        worker, report = delivery.worker, delivery.report
        if delivery.life != self._life[worker]:
            self._life[worker], self._seen[worker] = delivery.life, 0
        if delivery.errand is not None:
            self._answers[delivery.errand] = report
            return
        self._reports[worker] = report
        self._steps += report.report.env_steps - self._seen[worker]
        self._seen[worker] = report.report.env_steps
        self._finished += report.report.finished
        if report.round == self._stage.round:
            self._over[worker] = report.round_over
        if delivery.chunk is None:
            return
        if not delivery.continues and self._started[worker]:
            self._release(worker)
        self._started[worker] = True
        self._pending.extend(delivery.chunk)

    def _release(self, worker: int) -> None:
        """End the episodes in progress of a worker's environments: its next rows do not follow its last ones."""
        groups = set(self._blocks[worker])
        self._pending = collections.deque(each for each in self._pending if each.group not in groups)
        for memory in self._memories.values():
            for group in groups:
                memory.release(group)

    def _store_pending(self) -> bool:
        """Store waiting rows as far as there is room; return whether there were any, or a round is over."""
        stored = False
        while self._pending:
            group, chunk = self._pending[0]
            memories = [self._memories[name] for name in self._filled]
            room = min((memory.room(group) for memory in memories), default=chunk.length)
            if room <= 0:
                break
            part = chunk.part(0, min(room, chunk.length))
            for memory in memories:
                memory.writer(group).add_many(part)
            self._pending.popleft()
            if part.length < chunk.length:
                self._pending.appendleft(GroupChunk(group, chunk.part(part.length, chunk.length)))
            stored = True
        return stored or self.round_is_over() or bool(self._finished)

    def _report(self) -> Report:
        finished, self._finished = self._finished, []
        return Report(self._steps, finished, self._stage.random)

    # -- stages, rounds and epochs

    def begin_stage(self, stage: Collect) -> None:
        """Act by the policy that a stage names from now on."""
        self._set_stage(random=stage.policy == "random")

    def begin_round(self, stage: Collect) -> None:
        """Let every environment begin an episode with the next step, and fill the stage's memories."""
        self._filled = stage.memories
        self._over = [False] * len(self._blocks)
        self._set_stage(random=stage.policy == "random", round=self._stage.round + 1)

    def round_is_over(self) -> bool:
        """Return whether every environment has finished its episode and all rows are stored."""
        return bool(self._stage.round) and all(self._over) and not self._pending

    def begin_epoch(self, epoch: int, total: int) -> None:
        """Begin an epoch: its number for schedules, and its number among all epochs."""
        self._set_stage(epoch=epoch, total_epochs=total)

    def _set_stage(self, **changes: Any) -> None:
        self._stage = replace(self._stage, **changes)
        self._flow.stage(self._stage, self._stage.round)

    # -- requests to workers, between two orders

    def _ask(self, call: str, *arguments: Any, workers: Sequence[int] | None = None) -> list[WorkerReport | None]:
        """Call a method of workers and return their answers; None for a worker that has died."""
        asked = range(len(self._blocks)) if workers is None else workers
        if self._lost:
            return [None for _ in asked]
        self._wait_until_ready(asked)
        ids = [self._flow.request(Order(call=call, arguments=arguments), worker) for worker in asked]
        missing = set(ids)
        while missing:
            self._receive_all(self._poll(LOOK_SECS))
            missing -= set(self._answers) | set(self._flow.drain_failed_errands())
        return [self._answers.pop(each, None) for each in ids]

    def _wait_until_ready(self, workers: Sequence[int]) -> None:
        begin = self._engine.now()
        while not all(self._flow.is_ready(worker) for worker in workers):
            self._receive_all(self._poll(LOOK_SECS))
            if self._engine.now() - begin > READY_SECS:
                self._lost = True
                raise WorkersLostError(f"workers did not start within {READY_SECS:g} s: {self._flow.waiting_for()}")

    def _quiesce(self) -> None:
        """Wait until all orders are finished."""
        self._flow.hold(True)
        while self._flow.in_flight and not self._lost:
            self._receive_all(self._poll(LOOK_SECS))

    def settle(self) -> None:
        """Wait for the results of all orders."""
        self._quiesce()

    @property
    def settled_steps(self) -> int:
        """Number of decisions that reached an environment and were answered, since the beginning of the run."""
        reports = [report for report in self._reports if report is not None]
        return self._steps + sum(report.settled_steps - report.report.env_steps for report in reports)

    @property
    def savable(self) -> bool:
        """Whether environments have been stepped and can be saved."""
        return self._steps > 0 and all(report is not None and report.savable for report in self._reports)

    def row(self) -> dict[str, Any]:
        """Return metrics of environments, exploration and policy since the last call."""
        if self._experiment.exploration is not None:
            rows = [report.answer for report in self._ask("row") if report is not None]
        else:
            rows = [report.row for report in self._reports if report is not None]
        flow = {} if self._exact else {f"workers/{name}": value for name, value in self._flow.row().items()}
        return _merge(rows) | flow

    def epoch_row(self) -> dict[str, dict[str, float]]:
        """Return metrics of the epoch's decisions in named groups, and begin a new epoch."""
        rows = [report.answer for report in self._ask("epoch_row") if report is not None]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _merge([row.get(name, {}) for row in rows]) for name in names}

    def epoch_state(self) -> dict[str, Any]:
        """Return what `epoch_row` has accumulated so far."""
        (report,) = self._ask("epoch_state", workers=[0])
        return {} if report is None else unpack_tensors(report.answer)

    def load_epoch_state(self, state: dict[str, Any]) -> None:
        """Load what `epoch_state` returned."""
        self._ask("load_epoch_state", pack_tensors(state), workers=[0])

    # -- saving

    def snapshot(self) -> dict[str, Any] | None:
        """Return the full state of environments and policies; None if some environment cannot be saved."""
        self._quiesce()
        if not self.savable:
            return None
        reports = self._ask("snapshot")
        states = [None if report is None else unpack_tensors(report.answer) for report in reports]
        for worker, report in enumerate(reports):
            if report is not None:
                self._reports[worker] = report
        if any(state is None for state in states):
            return None
        if len(states) == 1:
            state: dict[str, Any] = states[0]  # type: ignore[assignment]
        else:
            state = {"workers": states, "lasting": self.lasting_state()}
        if self._pending:
            state["pending"] = [{"group": group, **chunk.as_dict()} for group, chunk in self._pending]
        return state

    def lasting_state(self) -> list[dict[str, Any]]:
        """Return the state that outlives the current episodes, per group; empty if there is none."""
        self._quiesce()
        for worker, report in enumerate(self._ask("lasting_state")):
            if report is not None:
                self._lasting[worker] = tuple(report.answer)
        kept = [unpack_tensors(state) for lasting in self._lasting for state in lasting]
        return kept if any(kept) else []

    def lasting_of(self, worker: int) -> tuple[Any, ...]:
        """Return the lasting state that the next life of a worker begins with."""
        return self._lasting[worker]

    def evaluation_state(self) -> dict[str, Any] | None:
        """Return the part of the first worker's acting state that evaluations need; None: nothing."""
        (report,) = self._ask("evaluation_state", workers=[0])
        return None if report is None else unpack_tensors(report.answer)

    def exploration_state(self) -> dict[str, Any]:
        """Return the counts of visited states under "exploration"; empty if they are not counted."""
        if self._experiment.exploration is None:
            return {}
        (report,) = self._ask("exploration_state", workers=[0])
        return {} if report is None else report.answer

    def restore(self, state: dict[str, Any]) -> bool:
        """Load the acting part of a checkpoint; return False if environments begin new episodes."""
        each = self._states_of_workers(state)
        kept = {"run": {"env_steps": 0}} | {name: state[name] for name in ("exploration",) if name in state}
        for worker, own in enumerate(each):
            (report,) = self._ask("restore", pack_tensors(kept | own), workers=[worker])
            if report is None:
                raise WorkersLostError(f"worker {worker} ended while it was restored: {self._flow.first_error}")
            self._seen[worker], self._reports[worker] = report.report.env_steps, report
        exact = "actor" in state
        self._steps = sum(self._seen) if exact else state["run"]["env_steps"]
        if exact:
            self._started = [True] * len(self._blocks)
            waiting = state["actor"].get("pending", ())
            self._pending.extend(GroupChunk(int(each["group"]), Chunk.from_dict(each)) for each in waiting)
        return exact

    def _states_of_workers(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        if "actor" in state:
            actors = state["actor"].get("workers", [state["actor"]])
            return [{"actor": {k: v for k, v in actor.items() if k != "pending"}} for actor in actors]
        if "left" in state:
            left = state["left"]
            return [{"left": {**left, "groups": [left["groups"][g] for g in block]}} for block in self._blocks]
        lasting = state.get("seats", ())
        return [{"seats": [lasting[group] for group in block if group < len(lasting)]} for block in self._blocks]

    def close(self) -> None:
        """End the workers; they close their environments."""
        self._engine.close()  # type: ignore[attr-defined]
        self._flow.close()


def _merge(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of several workers as one: sums of counts, means of the rest."""
    names = dict.fromkeys(name for row in rows for name in row)
    merged = {}
    for name in names:
        values = [row[name] for row in rows if name in row]
        merged[name] = values[0] if len(values) == 1 else sum(values) if name in COUNTS else float(np.mean(values))
    return merged
