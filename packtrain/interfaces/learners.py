"""The contracts of learners: they draw batches from a memory and update weights."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from packtrain.errors import ConfigError
from packtrain.interfaces.memories import Memory, MemorySettings
from packtrain.interfaces.policies import Policy, PolicySettings
from packtrain.types import Sample

if TYPE_CHECKING:
    from torch import Tensor


class ObservedStep(NamedTuple):
    """What one action of a filmed episode led to."""

    after: Any  # the next observation; None where observations are not kept
    reward: float
    terminated: bool


class EpisodeAnalysis(NamedTuple):
    """Analysis of filmed episodes by a learner's settings."""

    summary: dict[str, Any]  # JSON values, about all episodes
    episodes: list[dict[str, Any]]  # JSON values, one per episode
    lines: list[str]  # the summary as lines of text


class LearnerSettings(abc.ABC):
    """Hyper-parameters of an algorithm. Implemented by frozen dataclasses; only `build` is required of users' own."""

    joins_seeds: ClassVar[bool] = False  # learners of several seeds can make their updates in one launch
    splits_batches: ClassVar[bool] = False  # its learner has `split` and `part`, for --learners

    @abc.abstractmethod
    def build(self, network: Any, total_steps: int) -> Learner:
        """Return a learner for a network that `PolicySettings.build_network` made."""

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if it cannot learn from this memory or for this policy."""

    def check_new_run(self, policy: PolicySettings) -> None:
        """Raise a ConfigError if a setting would be ignored; not called for runs that resume."""

    def prepare_policy(self, policy: Policy, memory: MemorySettings) -> None:
        """Let a policy that acts in training compute what this learner needs, such as initial priorities."""

    def prepare_memory(self, memory: Memory) -> None:
        """Give a memory the numbers of this learner that it needs: the discount factor of normalised rewards."""
        discount = getattr(self, "discount", None)
        if discount is not None:
            memory.set_discount(discount)

    @property
    def analyses_episodes(self) -> bool:
        """Whether `analyse_episodes` returns results; if so, observations of filmed episodes are kept."""
        return False

    def analyse_episodes(self, network: Any, episodes: Mapping[int, Sequence[ObservedStep]]) -> EpisodeAnalysis:
        """Return what a network trained with these settings makes of filmed steps, by episode number."""
        raise TypeError(f"{type(self).__name__} does not analyse episodes")


class UpdateResult(NamedTuple):
    """What one or several updates of a learner produced."""

    metrics: dict[str, Any]  # 0-d tensors or floats; tensors stay on their device
    updates: int = 1
    steps: int = 0  # environment steps learned from; 0 where they are counted while acting
    lag: Tensor | None = None  # [B] policy lag of the batch, in weight versions
    keys: Tensor | None = None  # [B] with `priorities`
    priorities: Tensor | None = None  # [B] for the memory


class Learner(abc.ABC):
    """Updates weights from samples. Its counters and optimiser state are part of a checkpoint."""

    network: Any  # a torch.nn.Module
    updates: int = 0
    steps: int = 0  # environment steps learned from
    max_updates: int = 1  # updates that `draw` and `apply` make at once, at most
    saves_acting_weights: ClassVar[bool] = False  # actors may use older weights of this network than its newest

    @abc.abstractmethod
    def draw(self, memory: Memory, count: int) -> Any:
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

    def split(self, ranks: Any) -> None:
        """Divide each batch over several ranks from now on: `algorithms/data_parallel.py` has what that takes."""
        raise ConfigError(f"--learners: {type(self).__name__} cannot divide its batches; leave --learners out")

    def part(self, work: Any) -> Any:
        """Return gradients and metrics of a part of a batch, without an update."""
        raise TypeError(f"{type(self).__name__} cannot compute a part of a batch")

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

    def validate(self, sample: Sample) -> dict[str, Tensor] | None:
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
        return memory.sample(version=self.updates)

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
