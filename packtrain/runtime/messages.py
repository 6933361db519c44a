"""Messages between the learner's process and acting sides, as values that can be sent between processes. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:  # `packtrain train --help` imports this module, and must not import NumPy or Gymnasium
    from packtrain.envs.stream import Finished
    from packtrain.types import Chunk


class Report(NamedTuple):
    """The outcome of one or several actor steps."""

    env_steps: int  # decisions executed since the beginning of the run
    finished: list[Finished]  # episodes that ended
    random: bool  # whether actions are uniformly random, to collect data


@dataclass(frozen=True)
class Order:
    """An order to a worker: act, or answer a question between two actor steps."""

    steps: int = 1  # maximum number of actor steps; one serves one group of environments
    each_group: bool = False  # this number of steps for each group of the worker
    random: bool = False  # act uniformly at random to collect data
    round: int = 0  # number of the round of whole episodes; 0: no rounds
    epoch: int = 0  # used by schedules
    total_epochs: int = 0
    call: str | None = None  # method of `Worker` to call instead of acting
    arguments: tuple[Any, ...] = ()


class WorkerReport(NamedTuple):
    """A worker's report, sent with its rows."""

    report: Report
    round: int  # `Order.round`
    round_over: bool  # every environment has finished its episode
    savable: bool  # whether environments can be saved
    settled_steps: int  # see `Acting.settled_steps`
    row: dict[str, Any] = {}  # metrics of environments and policy so far
    answer: Any = None  # result of `Order.call`


@dataclass(frozen=True)
class WorkerSetup:
    """Settings of a worker, as plain values."""

    experiment: Any  # Experiment
    groups: tuple[int, ...]  # indices of the groups of environments that it serves
    group_sizes: tuple[int, ...]  # sizes of all groups of the run
    first_env: int  # index of its first environment
    index: int  # index among the workers
    life: int = 0  # number of restarts
    carries: str = "every"  # rows of a chunk that include their recurrent state
    chunk_rows: int = 1
    exact: bool = False  # choose nothing by measured speed
    lasting: tuple[Any, ...] = ()  # per group, see `Acting.lasting_state`; packed tensors
    again: tuple[int, ...] = ()  # steps at which the run resumed with new episodes
    folder: str | None = None  # of the run, for recorded searches and pictures; not used where it does not exist
    subfolder: str = ""  # of it, for those of this worker, where there are several
    import_path: tuple[str, ...] = field(default_factory=tuple)  # folders of the user's modules
    imports: tuple[str, ...] = ()  # modules that the configuration imports
    trace: int = 0  # episodes whose searches are recorded

    def build(self) -> Any:
        """Return the worker; called in its process, which imports torch here and already answers its pipe."""
        from packtrain.runtime.worker import Worker

        return Worker(self)


class GroupChunk(NamedTuple):
    """A chunk and the group of environments that it belongs to."""

    group: int
    chunk: Chunk


def measure(chunks: Sequence[GroupChunk]) -> tuple[int, int]:
    """Return the bytes of the chunks' arrays, and the number of environment steps in them."""
    size = sum(chunk.nbytes for _, chunk in chunks)
    return size, sum(int((~chunk.rows.first).sum()) for _, chunk in chunks)


def mean_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of the metrics of several workers."""
    names = dict.fromkeys(name for row in rows for name in row)
    merged = {}
    for name in names:
        values = [row[name] for row in rows if name in row]
        merged[name] = values[0] if len(values) == 1 else statistics.fmean(values)
    return merged


@dataclass(frozen=True)
class Remote:
    """Settings of acting outside the learner's process, from the command line. They may change on resume."""

    kind: Literal["process", "cluster"]
    workers: int | None = None  # None: one process; on a cluster, one per NUMA node of every machine that may act
    address: str | None = None  # address of the head of a cluster; None: start a private one on this machine
    min_nodes: int = 1  # minimum number of nodes before the run begins
    inference: Literal["worker", "learner"] = "worker"  # where policies run; learner: workers only step environments
    replay_shards: int | None = None  # processes that hold the replay; None: the learner's holds it
