"""The contracts of policies: settings build a network and a policy, which keeps an acting state for each group."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from packtrain.trees import Tree
from packtrain.types import Row, Spec


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

    @property
    def takes_demonstrations(self) -> bool:
        """Whether rows that another policy has played can stand in its memory."""
        return True

    def demonstrated_state(self, network: Any, size: int) -> tuple[Tree, dict[str, Any]]:
        """Return the recurrent state and the extras of demonstrated rows of `size` environments, [size, ...] each."""
        return (), {}

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
