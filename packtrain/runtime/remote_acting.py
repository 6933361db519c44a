"""The acting side of a run in other processes: workers act as ordered, and their rows go to the memories here."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from packtrain.errors import Error, WorkersLostError
from packtrain.interfaces import Memory
from packtrain.runtime.acting import Acting
from packtrain.runtime.cluster.calls import Delivery, Engine, Limits
from packtrain.runtime.cluster.flow import Flow
from packtrain.runtime.experiment import Collect, Experiment
from packtrain.runtime.messages import Order, Report, WorkerReport, mean_rows
from packtrain.runtime.pending_rows import PendingRows
from packtrain.runtime.regrouping import states_of_workers
from packtrain.runtime.starvation import StarvationLog
from packtrain.runtime.weights import Weights
from packtrain.runtime.worker import pack_tensors, unpack_tensors
from packtrain.types import CarryRows

log = logging.getLogger("packtrain")
LOOK_SECS = 0.2  # duration of a poll
READY_SECS = 180.0  # limit for workers to start
COUNTS = (
    "episodes_dropped",
    "envs_replaced",
    "search_steps_dropped",
    "values_clipped",
)  # metrics that are summed over workers


class Division(NamedTuple):
    """The environments of a run, divided over its workers."""

    blocks: Sequence[tuple[int, ...]]  # groups of environments of each worker
    sizes: list[int]  # number of environments in each group
    lives: Sequence[int] = ()  # numbers of the workers' lives when the run was saved


class RemoteActing(Acting):
    """Orders rows from workers and stores them; used by one thread at a time."""

    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        limits: Limits,
        division: Division,
        context: int,
        order: Order,
        exact: bool = False,
    ):
        """Store the arguments; workers start at `connect`.

        Args:
          experiment: of the run.
          engine: starts and calls the workers.
          limits: of the flow control.
          division: of the environments over the workers.
          context: rows that the policy needs in front of the one it acts on.
          order: what workers do in the first stage.
          exact: leave metrics of the workers out of rows, which would differ between equal runs, and wait for workers
            that make no progress until their deadline.
        """
        self._exact = exact
        blocks, sizes, lives = division
        self.context, self.group_sizes, self.num_workers = context, sizes, len(blocks)
        self._experiment, self._engine, self._blocks, self._stage = experiment, engine, blocks, order
        self.row_needs_hold = experiment.exploration is not None  # the workers must be asked for it
        self.closing: list[Callable[[], None]] = []  # called before the workers end
        self._error_logged = False
        self._lost = False  # whether all workers are unreachable
        self._flow = Flow(engine, ["actor"] * len(blocks), limits, experiment.seed, lives)
        self._memories: Mapping[str, Memory] = {}
        self._filled: tuple[str, ...] = ()
        self._weights: Weights | None = None
        self._version = -1
        self._pending = PendingRows()
        self._finished: list[Any] = []
        self._steps = 0  # decisions since the beginning of the run whose results have arrived
        self._seen = [0] * len(blocks)  # steps of each worker's current life, from its latest report
        self._life = [0] * len(blocks)
        self._reports: list[WorkerReport | None] = [None] * len(blocks)
        self._lasting: list[tuple[Any, ...]] = [()] * len(blocks)  # of the groups of each worker, packed
        self._started = [False] * len(blocks)  # the memories have rows of this life
        self._restored: dict[int, int] = {}  # lives of workers whose next rows follow those of the checkpoint
        self._over = [False] * len(blocks)  # the round, as each worker says
        self._answers: dict[int, WorkerReport] = {}
        self._abandoned: set[int] = set()  # questions that are not waited for any more
        self._counts: list[dict[str, int]] = [{} for _ in blocks]  # of `COUNTS`, by the current life of each worker
        self._counts_before: collections.Counter[str] = collections.Counter()  # the same of all lives that ended
        self._known: dict[str, WorkerReport] = {}  # the latest answers of `_ask_any`
        self._starvation = StarvationLog("the run", lambda: f"workers: {self._flow.waiting_for()}", engine.now)

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
        while not (stored := self._store_pending()) and not (waited and (patience is not None or self.stopping())):
            self._publish()
            self._receive_all(self._poll(LOOK_SECS if patience is None else patience))
            waited = True
            self._starvation.check()
        if stored:
            self._starvation.reset()
        return self._report()

    def _poll(self, timeout: float) -> list[Delivery]:
        """Poll the flow control; after an error that ends the run, workers are not asked any more."""
        try:
            return self._flow.poll(timeout)
        except Error:
            self._lost = True
            raise

    def check(self) -> None:
        """Raise an error if the cluster is lost; never waits."""
        if not self._lost:
            try:
                getattr(self._engine, "check", lambda: None)()
            except Error:
                self._lost = True
                raise

    def carry_rows(self, rows: int) -> CarryRows:
        """Return which rows of a chunk must come with recurrent states for the memories to store them."""
        asked = {memory.chunk_carries(rows) for memory in self._memories.values()} or {"every"}
        return asked.pop() if len(asked) == 1 else "every"

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
            self._counts_before.update(self._counts[worker])
            self._counts[worker] = {}
        if delivery.errand is not None:
            if delivery.errand in self._abandoned:
                self._abandoned.remove(delivery.errand)
            else:
                self._answers[delivery.errand] = report
            return
        self._reports[worker] = report
        self._count(worker, report.row)
        self._steps += report.report.env_steps - self._seen[worker]
        self._seen[worker] = report.report.env_steps
        if report.round and report.round == self._stage.round:
            if self._over[worker]:
                return  # a new life plays a round that the one before had finished
            self._over[worker] = report.round_over
        self._finished += report.report.finished
        continues = delivery.continues or self._restored.pop(worker, None) == delivery.life
        if delivery.chunk is None:
            return
        if not continues and self._started[worker]:
            self._release(worker)
        self._started[worker] = True
        self._pending.extend(delivery.chunk)

    def _count(self, worker: int, row: Mapping[str, Any]) -> None:
        """Note the counts of a worker's current life."""
        self._counts[worker] |= {name: int(row[name]) for name in COUNTS if name in row}

    def _release(self, worker: int) -> None:
        """End the episodes in progress of a worker's environments: its next rows do not follow its last ones."""
        self._pending.drop(self._blocks[worker])
        for memory in self._memories.values():
            for group in self._blocks[worker]:
                memory.release(group)

    def _store_pending(self) -> bool:
        """Store waiting rows as far as there is room; return whether there were any, or a round is over."""
        stored = self._pending.store([self._memories[name] for name in self._filled])
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
        missing = [worker for worker, over in enumerate(self._over) if not over and not self._flow.is_retired(worker)]
        return bool(self._stage.round) and not missing and not self._pending

    def begin_epoch(self, epoch: int, total: int) -> None:
        """Begin an epoch: its number for schedules, and its number among all epochs."""
        self._set_stage(epoch=epoch, total_epochs=total)

    def _set_stage(self, **changes: Any) -> None:
        self._stage = replace(self._stage, **changes)
        self._flow.stage(self._stage, self._stage.round)

    # -- requests to workers, between two orders

    def _ask(self, call: str, *arguments: Any, workers: Sequence[int] | None = None) -> list[WorkerReport | None]:
        """Send a request to the workers, and return their answers; None for a worker that cannot answer now.

        A worker that starts, has ended or makes no progress is not waited for, so that a checkpoint or an evaluation
        stops neither the learner nor the other workers.
        """
        asked = range(len(self._blocks)) if workers is None else workers
        answers: list[WorkerReport | None] = [None] * len(asked)
        missing = {}  # place in `asked` by errand
        for place, worker in enumerate(asked):
            if not self._lost and self._can_answer(worker):
                missing[self._flow.request(Order(call=call, arguments=arguments), worker)] = place
        while missing:
            self._receive_all(self._poll(LOOK_SECS))
            for errand in self._flow.drain_failed_errands():
                missing.pop(errand, None)
            for errand, place in list(missing.items()):
                if errand in self._answers:
                    answers[missing.pop(errand)] = self._answers.pop(errand)
                elif not self._can_answer(asked[place]):
                    del missing[errand]
                    self._abandoned.add(errand)
        return answers

    def _can_answer(self, worker: int) -> bool:
        stalled = self._flow.is_stalled(worker) and (not self._exact or self.stopping())
        return self._flow.is_ready(worker) and not stalled

    def _ask_any(self, call: str) -> WorkerReport | None:
        """Ask the first worker that can answer; if none can, return the answer of the last time.

        At the beginning of a run, wait until a worker has started.
        """
        if call not in self._known:
            self._wait_until_ready(range(len(self._blocks)), one=True)
        for worker in range(len(self._blocks)):
            (report,) = self._ask(call, workers=[worker])
            if report is not None:
                self._known[call] = report
                break
        return self._known.get(call)

    def _wait_until_ready(self, workers: Sequence[int], one: bool = False) -> None:
        """Wait until workers have started, those that are retired left out; `one`: until one of them has."""
        begin, enough = self._engine.now(), any if one else all
        while not self._lost and not self.stopping():
            left = [worker for worker in workers if not self._flow.is_retired(worker)]
            if enough(self._flow.is_ready(worker) for worker in left) or not left:
                return
            self._receive_all(self._poll(LOOK_SECS))
            if self._engine.now() - begin > READY_SECS:
                self._lost = True
                raise WorkersLostError(f"workers did not start within {READY_SECS:g} s: {self._flow.waiting_for()}")

    def _quiesce(self) -> bool:
        """Wait until no order is under way; return False if workers that make no progress still have some."""
        self._flow.hold(True)
        while self._flow.in_flight and not self._lost:
            if not self._flow.busy() and (not self._exact or self.stopping()):
                return False
            self._receive_all(self._poll(LOOK_SECS))
        return True

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
            answers = self._ask("row")
            for worker, report in enumerate(answers):
                self._count(worker, {} if report is None else report.answer)
            rows = [report.answer for report in answers if report is not None]
        else:
            rows = [report.row for report in self._reports if report is not None]
        rows = [{name: value for name, value in row.items() if name not in COUNTS} for row in rows]
        now = [self._counts_before, *self._counts]
        counts = {name: sum(each.get(name, 0) for each in now) for name in COUNTS}
        flow = {} if self._exact else {f"workers/{name}": value for name, value in self._flow.row().items()}
        return mean_rows(rows) | counts | flow

    def epoch_row(self) -> dict[str, dict[str, float]]:
        """Return metrics of the epoch's decisions in named groups, and begin a new epoch."""
        rows = [report.answer for report in self._ask("epoch_row") if report is not None]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: mean_rows([row.get(name, {}) for row in rows]) for name in names}

    def epoch_state(self) -> dict[str, Any]:
        """Return what `epoch_row` has accumulated so far."""
        report = self._ask_any("epoch_state")
        return {} if report is None else unpack_tensors(report.answer)

    def load_epoch_state(self, state: dict[str, Any]) -> None:
        """Load what `epoch_state` returned."""
        self._wait_until_ready([0])
        self._ask("load_epoch_state", pack_tensors(state), workers=[0])

    # -- saving

    def snapshot(self) -> dict[str, Any] | None:
        """Return the full state of environments and policies; None if it cannot be saved.

        It cannot while a worker starts or makes no progress, or if some environment is not savable.
        """
        if not self._quiesce() or not self.savable:
            return None
        reports = self._ask("snapshot")
        states = []
        for worker, report in enumerate(reports):
            if report is not None:
                state, lasting = report.answer
                self._reports[worker], self._lasting[worker] = report, tuple(lasting)
                states.append(unpack_tensors(state))
        if len(states) < len(reports) or any(state is None for state in states):
            return None
        whole: dict[str, Any]
        whole = states[0] if len(states) == 1 else {"workers": states, "lasting": self._kept_lasting()}
        if self._pending:
            whole["pending"] = self._pending.as_list()
        return whole

    def lasting_state(self) -> list[dict[str, Any]]:
        """Return the state that outlives the current episodes, per group; empty if there is none.

        For a worker that cannot answer, it is that of the latest checkpoint.
        """
        self._quiesce()
        for worker, report in enumerate(self._ask("lasting_state")):
            if report is not None:
                self._lasting[worker] = tuple(report.answer)
        return self._kept_lasting()

    def _kept_lasting(self) -> list[dict[str, Any]]:
        kept: list[dict[str, Any]] = []
        for block, lasting in zip(self._blocks, self._lasting, strict=True):
            kept += unpack_tensors(list(lasting)) if lasting else [{} for _ in block]
        return kept if any(kept) else []

    def lasting_of(self, worker: int) -> tuple[Any, ...]:
        """Return the lasting state that the next life of a worker begins with."""
        return self._lasting[worker] if any(self._lasting[worker]) else ()

    @property
    def lives(self) -> list[int]:
        """Number of each worker's current life, which its random numbers depend on."""
        return self._flow.lives()

    def evaluation_state(self) -> dict[str, Any] | None:
        """Return what an evaluation needs of what a worker learned while acting; None: nothing."""
        report = self._ask_any("evaluation_state")
        return None if report is None else unpack_tensors(report.answer)

    def exploration_state(self) -> dict[str, Any]:
        """Return the counts of visited states under "exploration"; empty if they are not counted."""
        if self._experiment.exploration is None:
            return {}
        report = self._ask_any("exploration_state")
        return {} if report is None else report.answer

    def restore(self, state: dict[str, Any]) -> bool:
        """Load the acting part of a checkpoint; return False if environments begin new episodes."""
        kept = {"run": {"env_steps": 0}} | {name: state[name] for name in ("exploration",) if name in state}
        for worker, own in enumerate(states_of_workers(state, self._blocks)):
            report = self._restore_worker(worker, pack_tensors(kept | own))
            if report is not None:
                self._seen[worker], self._reports[worker] = report.report.env_steps, report
                self._restored[worker] = self._life[worker]
        exact = "actor" in state
        self._steps = sum(self._seen) if exact else state["run"]["env_steps"]
        if exact:
            self._started = [True] * len(self._blocks)
            self._pending.restore(state["actor"].get("pending", ()))
        self.lasting_state()  # for later lives of the workers
        return exact

    def _restore_worker(self, worker: int, packed: dict[str, Any]) -> WorkerReport | None:
        """Restore a worker, or its next life if it ends meanwhile; return None if it is retired."""
        while not self._flow.is_retired(worker) and not self.stopping():
            self._wait_until_ready([worker])
            (report,) = self._ask("restore", packed, workers=[worker])
            if report is not None:
                return report
            self._receive_all(self._poll(LOOK_SECS))
        return None

    def close(self) -> None:
        """End the workers; they close their environments."""
        for close in self.closing:
            close()
        self._engine.close()  # type: ignore[attr-defined]
        self._flow.close()
