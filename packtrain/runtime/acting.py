"""The acting side of a run as runtimes see it. `local_acting.py` and `remote_acting.py` implement it."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packtrain.envs.vector_env import VectorEnv
from packtrain.interfaces import Memory
from packtrain.runtime.evaluation_scheduler import OpenPlayer
from packtrain.runtime.experiment import Collect
from packtrain.runtime.learning import BuildMemory
from packtrain.runtime.messages import Report
from packtrain.runtime.regrouping import Layout
from packtrain.runtime.weights import Weights


class Acting(abc.ABC):
    """Steps the environments of a run. Loops and runtimes use this interface alone."""

    context: int  # number of rows that the policy needs before the one it acts on
    group_sizes: list[int]  # number of environments in each group
    columns: Sequence[VectorEnv] = ()  # environments of this process, observed by its watchdog
    num_workers: int = 1  # number of acting sides, each with its own environments and policy
    row_needs_hold: bool = False  # whether `row` may only be called while acting is paused
    stopping: Callable[[], bool] = staticmethod(lambda: False)  # whether the run has been asked to stop
    open_player: OpenPlayer | None = None  # opens what plays an evaluation elsewhere; None: this process plays it
    build_memory: BuildMemory | None = None  # builds a memory elsewhere; None: in this process

    @abc.abstractmethod
    def connect(self, memories: Mapping[str, Memory], weights: Weights | None) -> None:
        """Store rows in these memories, and act with these weights; None if nothing learns. Called once."""

    @abc.abstractmethod
    def act(self, patience: float | None = None) -> Report:
        """Make actor steps, and return what they added.

        Args:
          patience: seconds to wait for a result of other processes, if there is none yet; None: until there is one.
        """

    def check(self) -> None:  # noqa: B027
        """Raise an error if the processes that act are lost; never waits."""

    @property
    def lives(self) -> Sequence[int]:
        """Number of each worker's current life, which its random numbers depend on."""
        return ()

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the thread that calls `act`: on a GPU, its CUDA stream."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def begin_stage(self, stage: Collect) -> None:
        """Act by the policy that a stage names from now on."""

    @abc.abstractmethod
    def begin_round(self, stage: Collect) -> None:
        """Let every environment begin an episode with the next step, and fill the stage's memories."""

    @abc.abstractmethod
    def round_is_over(self) -> bool:
        """Return whether every environment has finished its episode."""

    @abc.abstractmethod
    def begin_epoch(self, epoch: int, total: int) -> None:
        """Begin an epoch: its number for schedules, and its number among all epochs."""

    def settle(self) -> None:  # noqa: B027
        """Wait for pending steps, which the next checkpoint includes."""

    @property
    @abc.abstractmethod
    def settled_steps(self) -> int:
        """Number of decisions whose resulting rows have arrived, since the beginning of the run."""

    @property
    @abc.abstractmethod
    def savable(self) -> bool:
        """Whether environments have been stepped and can be saved."""

    @abc.abstractmethod
    def row(self) -> dict[str, Any]:
        """Return metrics of environments, exploration and policy since the last call."""

    @abc.abstractmethod
    def epoch_row(self) -> dict[str, dict[str, float]]:
        """Return metrics of the epoch's decisions in named groups, and begin a new epoch."""

    @abc.abstractmethod
    def epoch_state(self) -> dict[str, Any]:
        """Return what `epoch_row` has accumulated so far."""

    @abc.abstractmethod
    def load_epoch_state(self, state: dict[str, Any]) -> None:
        """Load what `epoch_state` returned."""

    @abc.abstractmethod
    def snapshot(self) -> dict[str, Any] | None:
        """Return the full state of environments and policy; None if some environment cannot be saved."""

    @abc.abstractmethod
    def lasting_state(self) -> list[dict[str, Any]]:
        """Return the state that outlives the current episodes, per group; empty if there is none."""

    @abc.abstractmethod
    def evaluation_state(self) -> dict[str, Any] | None:
        """Return the state learned while acting that an evaluation needs; None: nothing."""

    @abc.abstractmethod
    def exploration_state(self) -> dict[str, Any]:
        """Return the counts of visited states under "exploration"; empty if they are not counted."""

    @property
    def layout(self) -> Layout:
        """The division of the environments into groups."""
        return Layout(self.num_workers, tuple(self.group_sizes))

    @abc.abstractmethod
    def restore(self, state: dict[str, Any]) -> bool:
        """Load the acting part of a checkpoint; return False if environments begin new episodes."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the environments, and draw the last picture."""


@dataclass(frozen=True)
class Block:
    """The groups of environments of one acting side, and their place among all groups of a run."""

    groups: tuple[int, ...]  # indices of its groups
    first_env: int = 0  # index of its first environment
    index: int = 0  # index among the acting sides
    life: int = 0  # number of restarts after faults


def whole_block(group_sizes: Sequence[int]) -> Block:
    """Return the block of a single acting side, which serves all groups."""
    return Block(tuple(range(len(group_sizes))))


@dataclass(frozen=True)
class ActingOptions:
    """Settings of an acting side that differ from those of a plain run."""

    exact: bool = False  # choose nothing by measured speed, so that the same run gives the same numbers
    folder: Path | None = None  # of the run, for recorded searches and pictures; None: there are none
    again: tuple[int, ...] = ()  # steps at which the run resumed with new episodes; they change random numbers
    saved: Layout | None = None  # of environments that continue their episodes if this run divides them in the same way
    block: Block | None = None  # the groups that it serves; None: all
    sizes: tuple[int, ...] | None = None  # environments in each group of the run; None: the experiment's
    imports: tuple[str, ...] = ()  # modules that the configuration imports, for other processes
    lives: tuple[int, ...] = ()  # `Acting.lives` of the checkpoint
    trace: int = 0  # episodes whose searches are recorded

    def other_seeds(self, layout: Layout) -> tuple[int, ...]:
        """Return `again`, or () if the checkpoint's environments continue their episodes in a run of this layout."""
        return () if layout == self.saved else self.again
