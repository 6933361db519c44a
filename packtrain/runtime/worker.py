"""An acting side in a separate process: it answers orders with chunks of rows and a report.

Any engine can serve it: a spawned process (`process_engine.py`) or a Ray actor (`cluster/engine.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from packtrain.config import import_again
from packtrain.envs.environment import Environment
from packtrain.envs.vector_env import VectorEnv
from packtrain.errors import EnvError
from packtrain.memory.chunk import ChunkWriter
from packtrain.runtime.acting import ActingOptions, Block
from packtrain.runtime.experiment import Collect
from packtrain.runtime.local_acting import build_acting
from packtrain.runtime.messages import GroupChunk, Order, Report, WorkerReport, WorkerSetup
from packtrain.types import Chunk

PAUSE_SECS = 0.005
LONGEST_GAP = 10.0  # seconds between two readings that count at most
ROWS = "rows"  # name under which all rows are collected


class ReceivedWeights:
    """The newest weights received with an order; has the reading methods of `Weights`."""

    def __init__(self) -> None:
        self._version, self._leaves = -1, list[np.ndarray]()

    def receive(self, version: int, leaves: list[np.ndarray]) -> None:
        """Make these the newest weights.

        Args:
          version: their number.
          leaves: of the acting network's state dict, in its order.
        """
        self._version, self._leaves = version, leaves

    def pull(self, name: str, module: nn.Module, have: int) -> int:
        """Copy the newest version into a module, in place, unless it has it already; return its number."""
        if self._version != have:
            with torch.no_grad():
                for leaf, array in zip(module.state_dict().values(), self._leaves, strict=True):
                    leaf.copy_(torch.from_numpy(np.array(array)))
        return self._version


class Worker:
    """Owns the environments of one block and acts in them as ordered."""

    def __init__(self, setup: WorkerSetup):
        """Build environments and policy; nothing is stepped.

        Args:
          setup: what to build.
        """
        torch.set_num_threads(1)
        import_again(setup.imports)
        self._setup, experiment = setup, setup.experiment
        spec = experiment.probe()
        block = Block(setup.groups, setup.first_env, setup.index, setup.life)
        options = ActingOptions(
            exact=setup.exact,
            folder=_own_folder(setup),
            again=setup.again + ((setup.life,) if setup.life else ()),
            block=block,
            sizes=tuple(setup.group_sizes),
            trace=setup.trace,
        )
        self.side = build_acting(experiment, spec, torch.device("cpu"), options)
        self._weights, self._chunks = ReceivedWeights(), list[GroupChunk]()
        self._writers = [ChunkWriter(setup.chunk_rows, self._collector(group), setup.carries) for group in setup.groups]  # type: ignore[arg-type]
        self.side.connect_writers({ROWS: self._writers}, self._weights if experiment.learners else None)  # type: ignore[arg-type]
        if setup.lasting:
            lasting = {"seats": unpack_tensors(list(setup.lasting)), "run": {"env_steps": 0}}
            self.side.restore(lasting)
        self._round = self._epochs = 0
        self._watch = EnvWatch(experiment.streams.environment, self.side.columns)

    @property
    def progress(self) -> int:
        """A number that changes with every reading; EnvError if a call of an environment exceeds its deadline.

        A decision of a planner may take any time, as in a run without workers.
        """
        return self._watch.look()

    def _collector(self, group: int) -> Any:
        def collect(chunk: Chunk) -> None:
            self._chunks.append(GroupChunk(group, chunk))

        return collect

    def act(self, order: Order, version: int, leaves: list[np.ndarray] | None) -> tuple[list[GroupChunk], WorkerReport]:
        """Carry out an order; return the rows that were collected, and a report.

        Args:
          order: what to do.
          version: of the weights.
          leaves: the weights, if they are newer than those of the order before.
        """
        if leaves is not None:
            self._weights.receive(version, leaves)
        if order.call is not None:
            return [], self._report([], answer=getattr(self, f"answer_{order.call}")(*order.arguments))
        self._prepare(order)
        finished: list[Any] = []
        for _ in range(order.steps * (len(self._writers) if order.each_group else 1)):
            if order.round and self.side.round_is_over():
                time.sleep(PAUSE_SECS)  # other workers have not finished their episodes
                break
            finished += self.side.act().finished
        for writer in self._writers:
            writer.flush()
        chunks, self._chunks = self._chunks, []
        return chunks, self._report(finished, round_over=bool(order.round) and self._all_ended())

    def _prepare(self, order: Order) -> None:
        """Begin the epoch and the round of an order, if they are new."""
        policy = "random" if order.random else "policy"
        if order.total_epochs != self._epochs:
            self._epochs = order.total_epochs
            self.side.begin_epoch(order.epoch, order.total_epochs)
        if order.round != self._round:
            self._round = order.round
            self.side.begin_round(Collect(ROWS, rounds=1, policy=policy))  # type: ignore[arg-type]
        elif order.random != self.side.policy.random:
            self.side.begin_stage(Collect(ROWS, steps=1, policy=policy))  # type: ignore[arg-type]

    def _all_ended(self) -> bool:
        return all(columns.all_ended for columns in self.side.columns)  # type: ignore[attr-defined]

    def _report(self, finished: list[Any], round_over: bool = False, answer: Any = None) -> WorkerReport:
        side = self.side
        row = side.row() if side.explorer is None else {}
        report = Report(side.actor.steps, finished, side.policy.random)
        return WorkerReport(report, self._round, round_over, side.savable, side.settled_steps, row, answer)

    # -- requests between two actor steps

    def answer_snapshot(self) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """Return the full state of environments and policy, None if some environment cannot be saved; lasting state."""
        packed: dict[str, Any] | None = pack_tensors(self.side.snapshot())
        return packed, self.answer_lasting_state()

    def answer_lasting_state(self) -> list[dict[str, Any]]:
        """Return the state that outlives the current episodes, per group."""
        packed: list[dict[str, Any]] = pack_tensors(self.side.lasting_state())
        return packed

    def answer_evaluation_state(self) -> dict[str, Any] | None:
        """Return the part of the acting state that evaluations need."""
        packed: dict[str, Any] | None = pack_tensors(self.side.evaluation_state())
        return packed

    def answer_exploration_state(self) -> dict[str, Any]:
        """Return the counts of visited states."""
        return self.side.exploration_state()

    def answer_row(self) -> dict[str, Any]:
        """Return metrics since the last row."""
        return self.side.row()

    def answer_epoch_row(self) -> dict[str, dict[str, float]]:
        """Return metrics of the epoch's decisions, and begin a new epoch."""
        return self.side.epoch_row()

    def answer_epoch_state(self) -> dict[str, Any]:
        """Return what `epoch_row` has accumulated so far."""
        packed: dict[str, Any] = pack_tensors(self.side.epoch_state())
        return packed

    def answer_load_epoch_state(self, state: dict[str, Any]) -> None:
        """Load what `epoch_state` returned."""
        self.side.load_epoch_state(unpack_tensors(state))

    def answer_restore(self, state: dict[str, Any]) -> bool:
        """Load the acting part of a checkpoint; return False if environments begin new episodes."""
        return self.side.restore(unpack_tensors(state))

    def answer_settle(self) -> None:
        """Wait for the answers of all environments."""
        self.side.settle()

    def close(self) -> None:
        """Close the environments."""
        self.side.close()


def _own_folder(setup: WorkerSetup) -> Path | None:
    """Return where a worker writes; None on a machine that does not have the run's folder."""
    if setup.folder is None or not Path(setup.folder).is_dir():
        return None
    return Path(setup.folder) / setup.subfolder


class EnvWatch:
    """Measures how long the current call of each group of environments takes. Read from a thread of its own."""

    def __init__(self, environment: Environment, groups: Sequence[VectorEnv]):
        """Store what is watched; nothing has been read.

        Args:
          environment: has the deadlines.
          groups: of environments.
        """
        self._environment, self._groups = environment, groups
        self._spent = [0.0] * len(groups)  # seconds of the current call
        self._calls: list[float | None] = [None] * len(groups)  # when it began
        self._looked, self._reads = time.monotonic(), 0

    def look(self) -> int:
        """Return the number of readings; EnvError if a call exceeds its deadline.

        Between two readings at most `LONGEST_GAP` seconds count: this process may have been stopped.
        """
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LONGEST_GAP), now
        for index, columns in enumerate(self._groups):
            since = columns.busy_since
            same = since is not None and since == self._calls[index]
            self._calls[index] = since
            self._spent[index] = self._spent[index] + passed if same else 0.0
            deadline = self._environment.step_deadline_secs
            if columns.starting:
                deadline = max(deadline, self._environment.start_deadline_secs)
            if self._spent[index] > deadline and not columns.times_itself:
                raise EnvError(f"{columns.describe_busy()} did not answer within {deadline:g} s")
        self._reads += 1
        return self._reads


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as an array, for sending: torch itself would share its memory with the receiver."""

    array: np.ndarray
    dtype: str  # torch's name of the dtype


def pack_tensors(tree: Any) -> Any:
    """Return a tree of dicts, lists and tuples with its tensors packed."""
    if isinstance(tree, torch.Tensor):
        leaf = tree.detach().cpu()
        name = str(leaf.dtype).removeprefix("torch.")
        return PackedTensor((leaf.view(torch.int16) if leaf.dtype == torch.bfloat16 else leaf).numpy().copy(), name)
    return _walk(tree, pack_tensors)


def unpack_tensors(tree: Any) -> Any:
    """Return a tree as it was before `pack_tensors`."""
    if isinstance(tree, PackedTensor):
        leaf = torch.from_numpy(np.array(tree.array))
        return leaf.view(torch.bfloat16) if tree.dtype == "bfloat16" else leaf
    return _walk(tree, unpack_tensors)


def _walk(tree: Any, change: Any) -> Any:
    if isinstance(tree, dict):
        return {name: change(leaf) for name, leaf in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(change(leaf) for leaf in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(change(leaf) for leaf in tree)
    return tree
