"""The contracts between environments, actors, memories and learners. Runtimes know only these, never a family.

One transition travels: environments → actor → memory → learner → weights → actor. Every method that many kinds do not
need has a default: a minimal memory is `writer`, `ready`, `sample` and its state, and a minimal learner is `update` and
its state. `packtrain/memory/episodes.py` and `packtrain/algorithms/gradient.py` are short examples.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from packtrain.errors import ConfigError
from packtrain.trees import Tree
from packtrain.types import CarryRows, Chunk, Row, Sample, Spec

if TYPE_CHECKING:
    from torch import Tensor

View = Literal["all", "held_out", "stretches"]
"""What `Memory.view` reads: every step; steps that `holdout` leaves out of samples; runs of consecutive steps."""


class Writer(abc.ABC):
    """Takes the experience of one group of environments."""

    @abc.abstractmethod
    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """Store one row of B environments.

        Args:
          row: tensors or arrays [B, ...]; `last_action` is what the row before was answered with.
          carry: recurrent state before the row.
          extras: what the policy adds to the row, [B, ...] each.
        """

    def add_many(self, chunk: Chunk) -> None:
        """Store K consecutive rows. The memory's content is the same as after K calls of `add`."""
        for k in range(chunk.length):
            self.add(chunk.row(k), chunk.carry(k), {name: leaf[k] for name, leaf in chunk.extras.items()})


class Memory(abc.ABC):
    """Receives rows from actors through one writer per group of environments and gives samples to learners."""

    replays: ClassVar[bool] = False  # sampled steps stay in the memory and can be sampled again
    outlives_episodes: ClassVar[bool] = False  # its content is usable without the unfinished episodes
    steps: int = 0  # environment steps received; the ratio loop schedules updates by it
    dropped: int = 0  # pieces of experience or priorities that were discarded
    lost: int = 0  # steps that a damaged file has cost

    # -- the learner's side

    @abc.abstractmethod
    def ready(self) -> bool:
        """Return whether a batch can be sampled."""

    @abc.abstractmethod
    def sample(
        self,
        batch_size: int | None = None,
        count: int | None = None,
        *,
        holdout: bool = False,
        version: int | None = None,
    ) -> Sample | None:
        """Return a batch, or several; None if there is too little.

        A memory that cannot serve a size, a count or a holdout calls `refuse` for it.

        Args:
          batch_size: B, items of a batch; None: the memory's own number.
          count: batches to sample at once, as a leading axis of every tensor; None: one, without that axis.
          holdout: leave out the steps that `view("held_out")` returns.
          version: of the learner's weights, to compute the policy lag; None: it is not computed.
        """

    def view(self, which: View, *, most: int | None = None, steps: int = 1, holdout: bool = False) -> Sample | None:
        """Return stored steps without sampling, in a fixed order; None if there are none of this kind.

        Args:
          which: "all" steps or the "held_out" ones, as a trajectory [1, N]; "stretches" of consecutive steps in none
            of which the task ended, as a trajectory [steps, N].
          most: N is at most this; None: all that there are.
          steps: T of a stretch.
          holdout: stretches consist of held-out steps alone.
        """
        return None

    def refuse(self, **given: Any) -> None:
        """Raise a ConfigError for the first argument of `sample` that is given: this memory has no such samples."""
        for name, value in given.items():
            if value is not None and value is not False:
                raise ConfigError(f"{type(self).__name__} cannot sample with {name} = {value!r}")

    def wait_for_batch(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until a batch can be sampled; return whether it can."""
        return self.ready()

    def update_priorities(self, keys: Tensor | None, priorities: Tensor) -> None:
        """Set the priorities of sampled items; ignored where sampling is uniform.

        Args:
          keys: [B] from the sample; None: of the latest sample.
          priorities: [B] at least 0.
        """

    def report(self) -> dict[str, float]:
        """Return metrics of the content."""
        return {}

    # -- the actor's side

    @abc.abstractmethod
    def writer(self, group: int) -> Writer:
        """Return the writer of one group of environments.

        Args:
          group: its index, in the order of the sizes that the memory was built with.
        """

    def wait_for_room(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until actors may add rows; return whether they may."""
        return True

    def room(self, group: int) -> int:
        """Return how many rows of a group may be added now.

        Args:
          group: its index, as in `writer`.
        """
        return 1 << 30 if self.wait_for_room(0.0) else 0

    def release(self, group: int) -> None:
        """End the group's unfinished episodes because its environments were closed; its next row starts a new episode.

        Args:
          group: its index, as in `writer`.
        """

    def chunk_carries(self, rows: int) -> CarryRows:
        """Return which rows of a chunk must come with the recurrent state before them.

        Args:
          rows: of every chunk.
        """
        return "every"

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
        """Use another folder from now on, because the previous one was lost."""

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


class Decision(NamedTuple):
    """The actions chosen for a row, and the row as a memory stores it."""

    action: Tree  # [B, ...] NumPy arrays
    extras: dict[str, Any]  # [B, ...] NumPy arrays
    row: Row  # observations on the policy's device, the rest as NumPy arrays
    carry: Tree  # recurrent state before the row


class ActorState(abc.ABC):
    """Acting state of one group of environments: recurrent state, frame window, search tree."""

    @abc.abstractmethod
    def act(self, row: Row) -> Decision:
        """Choose actions for the next row, NumPy arrays [B, ...]. The result is valid until the next call."""

    def act_together(self, others: Sequence[ActorState], rows: Sequence[Row]) -> list[Decision]:
        """Choose actions for this group and others of the same policy, in one batch where that is possible.

        Args:
          others: states of the other groups.
          rows: the next row of this group, then of the others.
        """
        return [state.act(row) for state, row in zip((self, *others), rows, strict=True)]

    def finish(self, row: Row) -> None:
        """Process the last row, NumPy arrays [B, ...], for which no actions are chosen; most do nothing."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Clear everything: the next row is the first of all environments."""

    def evaluation_state(self) -> dict[str, Any] | None:
        """Return the part of the acting state that evaluations need; None: nothing."""
        return None

    def load_evaluation_state(self, state: dict[str, Any]) -> None:
        """Load what `evaluation_state` of a policy in training returned; empty: there is nothing to load."""

    def lasting_state(self) -> dict[str, Any]:
        """Return the state that outlives the current episodes; empty if there is none."""
        return {}

    def load_lasting_state(self, state: dict[str, Any]) -> None:
        """Load what `lasting_state` returned, and begin new episodes."""

    def lasting_part(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a snapshot that outlives the current episodes; empty if there is none."""
        return {}

    def adopt(self, lasting: Sequence[dict[str, Any]], sizes: Sequence[int], envs: Any) -> None:
        """Restore state that outlives episodes from a checkpoint with other groups of environments.

        Args:
          lasting: from `lasting_state` or `lasting_part`, one per group of the checkpoint.
          sizes: number of environments in each of these groups.
          envs: [B] index of the environment of the checkpoint that each environment of this group follows.
        """

    @abc.abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return the full state as a tree of tensors, arrays and JSON values."""

    @abc.abstractmethod
    def restore(self, snapshot: dict[str, Any]) -> None:
        """Load what `snapshot` returned."""


class Policy(abc.ABC):
    """Chooses actions for all groups of environments of one acting side; owns its random generator."""

    network: Any  # a torch.nn.Module, holding the weights that act
    device: Any  # a torch.device
    context: int = 0  # number of rows needed before the one to act on
    random: bool = False  # act uniformly at random to gather data
    version: int = 0  # version of the weights, in updates
    generator: Any  # a torch.Generator; everything random comes from it
    marks: Mapping[str, Any] = {}  # flags of the step before the latest row: {name: bool [B]}

    @abc.abstractmethod
    def actor_state(self, stream: Any) -> ActorState:
        """Return a new acting state for the next group of environments, those of `stream`."""

    def begin_epoch(self, epoch: int, total: int, version: int | None = None) -> None:
        """Begin an epoch.

        Args:
          epoch: epochs that count for schedules.
          total: epochs of all kinds.
          version: of the weights; None: unchanged.
        """

    def row(self) -> dict[str, float]:
        """Return metrics of how it acts now, for training rows."""
        return {}

    def epoch_row(self) -> dict[str, dict[str, float]]:
        """Return metrics of the epoch's decisions in named groups, and begin a new epoch."""
        return {}

    def epoch_state(self) -> dict[str, Any]:
        """Return what `epoch_row` has accumulated so far, as a tree of arrays and JSON values."""
        return {}

    def load_epoch_state(self, state: dict[str, Any]) -> None:
        """Load what `epoch_state` returned."""


class ActingPlace(NamedTuple):
    """Where a policy acts, and for which environments."""

    device: Any  # a torch.device
    seed: int  # seed of all random numbers
    num_envs: int  # environments of all acting sides; exploration rates follow an environment's index among them
    first_env: int = 0  # index of the first environment of this acting side
    greedy: bool = False  # act as in evaluations
    env_name: str = ""  # used in the names of traces
    trace_folder: Path | None = None  # for recorded searches; None: none are recorded
    trace_seed: int = 0
    trace_episodes: int = 0  # episodes to record, from `--trace`; 0: what the policy's own settings say
    trace_checkpoint: int | None = None  # step of the checkpoint that an evaluation plays


class PolicySettings(abc.ABC):
    """The policy of an experiment: its networks and how they choose actions. Implemented by frozen dataclasses."""

    env_access: ClassVar[Literal["rows", "states"]] = "rows"  # "states": it searches in copies of the simulator
    records_searches: ClassVar[bool] = False  # it searches, and can write traces
    samples: ClassVar[bool] = False  # it has a distribution over actions: greedy and sampled evaluations differ
    mixed_precision: ClassVar[bool] = False  # its networks compute large layers in their attribute `precision`

    @abc.abstractmethod
    def build_network(self, spec: Spec) -> Any:
        """Return a torch.nn.Module with everything that learns; weights come from torch's global generator."""

    def acting_network(self, network: Any) -> Any:
        """Return the part of a network that actors need."""
        return network

    @abc.abstractmethod
    def build_policy(self, network: Any, place: ActingPlace) -> Policy:
        """Return the policy that acts with a network."""

    def for_evaluation(self, agent: Any) -> PolicySettings:
        """Return the policy of an evaluation.

        Args:
          agent: `Evaluation.agent`, which replaces the planner's; None: the same acts as in training.
        """
        return self

    @property
    def joins_seeds(self) -> bool:
        """Whether several seeds can plan together, in one search."""
        return False

    def join_seeds(
        self, actors: Sequence[Any], policies: Sequence[Any], streams: Sequence[Any], seed: int
    ) -> SeedGroup:
        """Return what acts for several seeds at once; called only where `joins_seeds`.

        Args:
          actors: one per seed; None: the seed has ended.
          policies: one per seed.
          streams: one group of environments per seed.
          seed: of everything random.
        """
        raise TypeError(f"{type(self).__name__} cannot act for several seeds at once")

    def warm_start_settings(self) -> dict[str, Any] | None:
        """Return the settings that random data and pre-training depend on; None: no run begins from another's data."""
        return None

    def complete_warm_start(self, state: dict[str, Any]) -> None:
        """Add to another run's checkpoint, in place, what this policy would have stored if it had made that run."""


class SeedGroup(Protocol):
    """The actors of several seeds, which are served together."""

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: random numbers from now on depend on its number."""

    def turn(self, runs: Sequence[int]) -> None:
        """Make one actor step of each of these seeds."""


class MemoryBytes(NamedTuple):
    """Estimated size of a memory at the end of the run."""

    device: float  # bytes where learning happens
    host: float = 0.0  # further bytes in host memory
    copied: float = 0.0  # bytes that a checkpoint copies while it is written
    name: str = "the memory"  # name in messages
    advice: str = "lower its capacity"  # what to do if it does not fit
    limited: bool = True  # refuse to start if it does not fit; False: the size is only an estimate


class PolicyLag(NamedTuple):
    """How old the weights behind a sample may be."""

    limit: int  # versions of the weights; older samples are dropped
    steps_per_version: int  # steps that a learner uses for one version


@runtime_checkable
class Preloads(Protocol):
    """A memory that takes demonstrations before a run begins."""

    def preload(self, rows: Iterable[Row]) -> int:
        """Store the rows of one environment; return the number of steps in them."""


class MemorySettings(abc.ABC):
    """Sizes of a memory. Implemented by frozen dataclasses."""

    preloads: ClassVar[bool] = False  # memories are `Preloads`
    replays: ClassVar[bool] = False  # updates follow steps by a ratio; False: each sample is used once, or by epochs

    @abc.abstractmethod
    def build(self, groups: list[int], context: int, device: Any) -> Memory:
        """Return an empty memory.

        Args:
          groups: number of environments in each group.
          context: rows that the policy needs in front of the one it acts on.
          device: a torch.device, where learning happens.
        """

    def check(self, num_envs: int, context: int, warm_up: int) -> None:
        """Raise a ConfigError if the memory cannot serve an experiment.

        Args:
          num_envs: environments of all groups.
          context: as in `build`.
          warm_up: steps that are collected before the first update.
        """

    def plan_bytes(self, num_envs: int, row_bytes: int, total_steps: int) -> MemoryBytes:
        """Estimate the memory's size; 0 where it is unknown.

        Args:
          num_envs: environments of all groups.
          row_bytes: bytes of one row of one environment.
          total_steps: of the run.
        """
        return MemoryBytes(0)

    @property
    def batch_steps(self) -> int:
        """Steps of a batch of a queue; 0 where a batch has no fixed number."""
        return 0

    def policy_lag(self, num_envs: int) -> PolicyLag | None:
        """Return the limit of policy lag; None: samples of any age are used.

        Args:
          num_envs: environments of all groups.
        """
        return None


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
