"""The contracts between environments, actors, memories and learners. Runtimes know only these, never a family.

One transition travels: environments → actor → memory → learner → weights → actor. Every method that many kinds do not
need has a default: a minimal memory is `sinks`, `ready`, `sample` and its state, and a minimal learner is `update` and
its state. `packtrain/memory/episodes.py` and `packtrain/algorithms/gradient.py` are short examples.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from packtrain.trees import Tree
from packtrain.types import Row, Sample, Trajectory


class Writer(Protocol):
    """Takes the experience of one group of environments."""

    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """Store one row of B environments.

        Args:
          row: tensors or arrays [B, ...]; `last_action` is what the row before was answered with.
          carry: recurrent state before the row.
          extras: what the policy adds to the row, [B, ...] each.
        """


class Memory(abc.ABC):
    """Receives rows from actors through one writer per group of environments and gives samples to learners."""

    replays: ClassVar[bool] = False  # samples stay and can be drawn again
    outlives_episodes: ClassVar[bool] = False  # its content is of use without the episodes that were being played
    steps: int = 0  # environment steps received; the ratio loop schedules updates by it
    dropped: int = 0  # pieces of experience or priorities that were discarded
    lost: int = 0  # steps that a damaged file has cost
    sinks: Sequence[Any]  # a Writer per group of environments

    # -- the learner's side

    @abc.abstractmethod
    def ready(self) -> bool:
        """Return whether a batch can be sampled."""

    @abc.abstractmethod
    def sample(self, version: int) -> Sample | None:
        """Return a batch; None if there is too little.

        Args:
          version: of the learner's weights, to compute the policy lag.
        """

    def wait_for_batch(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until a batch can be sampled; return whether it can."""
        return self.ready()

    def update_priorities(self, keys: Tensor | None, priorities: Tensor) -> None:
        """Set the priorities of sampled items; ignored where sampling is uniform.

        Args:
          keys: [B] from the sample; None: of the latest sample.
          priorities: [B] at least 0.
        """

    def held_out(self, most: int) -> Any:
        """Return at most `most` steps that are never sampled, for validation; None if there are none."""
        return None

    def report(self) -> dict[str, float]:
        """Return metrics of the content."""
        return {}

    # -- the actor's side

    def wait_for_room(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until actors may add rows; return whether they may."""
        return True

    # -- life

    def take_turns(self) -> None:
        """Make everything added available to the next sample: acting and learning share one thread."""

    def reseed(self, seed: int) -> None:
        """Draw from another random stream from now on."""

    def clear(self) -> None:
        """Remove all experience."""

    def attach(self, folder: Path) -> None:
        """Use `folder` for large files that checkpoints refer to. Called once, before the first row."""

    def move(self, folder: Path) -> None:
        """Use another folder from now on: the one before is gone."""

    @abc.abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return the full state as a tree of tensors, arrays and JSON values."""

    @abc.abstractmethod
    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Load a state.

        Args:
          snapshot: from `snapshot`.
          same_episodes: False if the environments start new episodes; episodes in progress then end where they stood.
        """


class Policy:
    """Chooses actions for all groups of environments of one acting side; owns its random generator."""

    network: Any  # a torch.nn.Module, holding the weights that act
    context: int = 0  # rows needed in front of the one to act on
    random: bool = False  # act uniformly at random to gather data
    version: int = 0  # of the weights, in updates
    generator: Any  # a torch.Generator; everything random comes from it
    marks: Mapping[str, Any] = {}  # what is noted of the step before the latest row: {name: bool [B]}

    def seat(self, stream: Any) -> Any:
        """Return what acts for one group of environments: `act(row)`, `begin`, `snapshot` and `restore`."""
        raise TypeError(f"{type(self).__name__} does not say how it acts: define `seat`")

    def begin_epoch(self, epoch: int, total: int, version: int | None = None) -> None:
        """Begin an epoch.

        Args:
          epoch: epochs that count for schedules.
          total: epochs of all kinds.
          version: of the weights; None: as it is.
        """

    def row(self) -> dict[str, float]:
        """Return metrics of how it acts now, for training rows."""
        return {}

    def epoch_row(self) -> dict[str, dict[str, float]]:
        """Return metrics of the epoch's decisions in named groups, and begin a new epoch."""
        return {}

    def epoch_state(self) -> dict[str, Any]:
        """Return what `epoch_row` is made of so far, as a tree of arrays and JSON values."""
        return {}

    def load_epoch_state(self, state: dict[str, Any]) -> None:
        """Load what `epoch_state` returned."""


class UpdateResult(NamedTuple):
    """What one or several updates of a learner produced."""

    metrics: dict[str, Any]  # 0-d tensors or floats; tensors stay on their device
    updates: int = 1
    steps: int = 0  # environment steps learned from; 0 where they are counted while acting
    lag: Tensor | None = None  # [B] policy lag of the batch, in weight versions
    keys: Tensor | None = None  # [B] with `priorities`
    priorities: Tensor | None = None  # [B] for the memory


class Learner(abc.ABC):
    """Turns samples into better weights. Its counters and optimiser state are part of a checkpoint."""

    network: Any  # a torch.nn.Module
    updates: int = 0
    steps: int = 0  # environment steps learned from
    max_updates: int = 1  # updates that `draw` and `apply` make at once, at most
    saves_acting_weights: ClassVar[bool] = False  # actors may use older weights of this network than its newest

    @abc.abstractmethod
    def draw(self, memory: Any, count: int) -> Any:
        """Return the batches and random numbers of the next `count` updates; None if the memory has too little."""

    @abc.abstractmethod
    def apply(self, works: Sequence[Any]) -> list[UpdateResult]:
        """Make updates with what `draw` returned.

        Args:
          works: one per seed; more than one only where the learners of several seeds were joined.
        """

    @staticmethod
    def join(runs: Sequence[Sequence[Any]]) -> None:
        """Let the learners of several seeds make their updates in one launch from now on.

        Args:
          runs: one entry per seed: all learners of that seed, which share a network.
        """
        raise TypeError(f"{type(runs[0][0]).__name__} cannot be joined over seeds")

    @property
    def publish_due(self) -> bool:
        """Whether the latest updates changed the weights that actors should use."""
        return True

    def reseed(self, seed: int) -> None:
        """Draw from another random stream from now on."""

    def reset(self, fresh: dict[str, Tensor]) -> None:
        """Replace the trained parameters and clear the optimiser state.

        Args:
          fresh: a state dict of the same network.
        """
        raise TypeError(f"{type(self).__name__} cannot be reset: Repeat.renew needs a learner with `reset`")

    def validate(self, sample: Trajectory) -> dict[str, Tensor] | None:
        """Return metrics on held-out steps, without learning; None if the learner has none."""
        return None

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return weights under "network", optimiser state and counters, as a tree of tensors and JSON values."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""


class SampleLearner(Learner):
    """Adapter for a learner that makes one update from one sample: implement `update` and the two state methods."""

    def draw(self, memory: Memory, count: int) -> Sample | None:
        """Return one batch."""
        return memory.sample(self.updates)

    def apply(self, works: Sequence[Sample]) -> list[UpdateResult]:
        """Make one update."""
        (sample,) = works
        metrics = dict(self.update(sample))
        priorities = metrics.pop("priorities", None)
        return [UpdateResult(metrics, 1, sample.steps, sample.lag, sample.keys, priorities)]

    @abc.abstractmethod
    def update(self, sample: Sample) -> dict[str, Any]:
        """Make one update and return metrics, 0-d tensors or floats; "priorities" [B] go to the memory."""


def learn(learners: Sequence[Learner], memories: Sequence[Memory], count: int) -> list[UpdateResult] | None:
    """Make `count` updates of the joined learners of several seeds, or of one; None if a memory has too little.

    Args:
      learners: one per seed.
      memories: theirs.
      count: at most `max_updates`.
    """
    works = [learner.draw(memory, count) for learner, memory in zip(learners, memories, strict=True)]
    if any(work is None for work in works):
        return None
    results = learners[0].apply(works)
    for memory, result in zip(memories, results, strict=True):
        if result.priorities is not None:
            memory.update_priorities(result.keys, result.priorities)
    return results
