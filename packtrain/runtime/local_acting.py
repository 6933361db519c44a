"""The acting side of a run in this process: environments, policy and actor, and how they are built."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from packtrain.accelerate.side_stream import settle_gpu
from packtrain.acting.actor import Actor
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.stream import Stream
from packtrain.interfaces import ActingPlace, Memory, Policy, Writer
from packtrain.runtime.acting import Acting, ActingOptions, whole_block
from packtrain.runtime.experiment import Collect, Experiment
from packtrain.runtime.explorer import Explorer
from packtrain.runtime.learning import LearningSide, build_learning, network_precision
from packtrain.runtime.messages import Report
from packtrain.runtime.regrouping import Layout, adopt
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.weights import Weights
from packtrain.types import Chunk, Spec


def open_streams(
    experiment: Experiment,
    spec: Spec,
    again: tuple[int, ...] = (),
    groups: Sequence[int] | None = None,
    sizes: list[int] | None = None,
) -> list[Stream]:
    """Open the experiment's environments, one stream per group.

    Args:
      experiment: names the environment and its number.
      spec: of the environment.
      again: makes seeds differ where a run goes on with new episodes.
      groups: numbers of the groups to open; None: all.
      sizes: number of environments in each group of the run; None: the experiment's.
    """
    sizes, environment = sizes or experiment.streams.group_sizes(), experiment.streams.environment
    streams = []
    for group in range(len(sizes)) if groups is None else groups:
        seed, size = seed_for(experiment.seed, "environments", group, *again), sizes[group]
        if experiment.policy.env_access == "states":
            together, limit = experiment.streams.together, experiment.streams.episode_time_limit
            streams.append(Stream(environment.open_core(size, seed, together, limit), size))
        else:
            streams.append(Stream(environment.open(size, seed, spec, len(sizes)), size))
    return streams


def build_acting(
    experiment: Experiment,
    spec: Spec,
    device: torch.device,
    options: ActingOptions = ActingOptions(),  # noqa: B008  (frozen)
    streams: list[Stream] | None = None,
    kind: Callable[..., ActingSide] | None = None,
) -> ActingSide:
    """Build the acting side of an experiment, or one of several; environments are not stepped yet.

    Args:
      experiment: what to build.
      spec: of its environment.
      device: of the policy.
      options: what differs from a plain run.
      streams: environments that are open already, in groups of the experiment's sizes; None: open them.
      kind: (experiment, streams, policy, device) → the acting side; None: `ActingSide`.
    """
    folder, seed = options.folder, experiment.seed
    sizes = list(options.sizes or experiment.streams.group_sizes())
    again = options.other_seeds(Layout(1, tuple(sizes)))
    block = options.block or whole_block(sizes)
    torch.manual_seed(seed_for(seed, "weights"))
    network = experiment.policy.build_network(spec).to(device)
    if not experiment.learners:  # planners without learning have always used the second network that the seed gives
        network = experiment.policy.build_network(spec).to(device)
    network_precision(experiment, network, spec, device, options.exact)
    streams = streams or open_streams(experiment, spec, again, block.groups, sizes)
    own = (block.index, block.life) if block.index or block.life else ()
    place = ActingPlace(
        device,
        seed_for(seed, "actions", *own, *again),
        sum(sizes),
        block.first_env,
        env_name=experiment.streams.environment.id,
        trace_folder=None if folder is None else folder / "traces",
        trace_seed=seed_for(seed, "traces"),
        trace_episodes=options.trace,
    )
    policy = experiment.policy.build_policy(network, place)
    for use in experiment.learners.values():
        use.prepare_policy(policy, experiment.memories[use.memory])
    side = (kind or ActingSide)(experiment, streams, policy, device)
    if experiment.exploration is not None and folder is not None:
        side.explorer = Explorer(experiment.exploration, streams, folder / "pictures")
    return side


def build_sides(
    experiment: Experiment,
    spec: Spec,
    device: torch.device,
    options: ActingOptions = ActingOptions(),  # noqa: B008  (frozen)
    streams: list[Stream] | None = None,
) -> tuple[ActingSide, LearningSide]:
    """Build both sides of an experiment in this process and connect them; environments are not stepped yet.

    Args:
      experiment: what to build.
      spec: of its environment.
      device: where policy, networks and memories live.
      options: what differs from a plain run.
      streams: environments that are open already; None: open them.
    """
    acting = build_acting(experiment, spec, device, options, streams)
    learning = build_learning(experiment, spec, device, acting.group_sizes, acting.context, options.exact)
    acting.connect(learning.memories, learning.weights if experiment.learners else None)
    return acting, learning


class _Spread(Writer):
    """Passes the rows of one group to all memories that are being filled: several or none for planners."""

    def __init__(self) -> None:
        self.writers: list[Writer] = []

    def add(self, row: Any, carry: Any, extras: dict[str, Any]) -> None:
        """Store a row."""
        for writer in self.writers:
            writer.add(row, carry, extras)


class ActingSide(Acting):
    """Serves groups of environments in this process with one policy that uses the newest weights."""

    def __init__(self, experiment: Experiment, streams: list[Stream], policy: Policy, device: torch.device):
        """Store the arguments; nothing starts before the first step.

        Args:
          experiment: of the run.
          streams: one per group of environments.
          policy: acts for all groups.
          device: of the policy.
        """
        self.streams, self.policy = streams, policy
        self.context, self.group_sizes = policy.context, [stream.size for stream in streams]
        self.columns = [stream.columns for stream in streams]
        self._network = experiment.policy.acting_network(policy.network)
        self._writers: dict[str, Sequence[Writer]] = {}
        self._weights: Weights | None = None
        self._version = -1
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._spread = [_Spread() for _ in streams]
        self._round_begun = False
        self._group = 0  # group served by the latest step
        self.explorer: Explorer | None = None
        self.actor = Actor(streams, policy, self._spread, self._refresh)

    def connect(self, memories: Mapping[str, Memory], weights: Weights | None) -> None:
        """Store rows in these memories, and act with these weights; None if nothing learns."""
        self.connect_writers(
            {name: [memory.writer(group) for group in range(len(self.streams))] for name, memory in memories.items()},
            weights,
        )

    def connect_writers(self, writers: dict[str, Sequence[Writer]], weights: Weights | None) -> None:
        """Store rows through these writers, one per group under each memory's name."""
        self._writers, self._weights = writers, weights
        self._collect_into(tuple(writers))

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for acting: on a GPU, a CUDA stream of its own with priority over learning."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def act(self, patience: float | None = None) -> Report:
        """Serve the next group of environments."""
        group = self.actor.next_group
        with self.on_device(), exits_are_faults(self.columns):
            self.actor.turn()
        return self.report(group)

    def report(self, group: int) -> Report:
        """Return what the latest step added, after the given group was served."""
        if self.explorer is not None:
            stream, steps = self.streams[group], self.actor.steps
            self.explorer.look(group, stream, steps, self.policy.random, self.policy.marks)
        return Report(self.actor.steps, self.actor.drain_finished(), self.policy.random)

    def begin_stage(self, stage: Collect) -> None:
        """Act by the policy that a stage names from now on."""
        self.policy.random = stage.policy == "random"
        settle_gpu()  # the actor's CUDA stream reads the result

    def begin_round(self, stage: Collect) -> None:
        """Let every environment begin an episode with the next step, and fill the stage's memories."""
        self._round_begun = False
        self._collect_into(stage.memories)
        self.policy.random = stage.policy == "random"

    def round_is_over(self) -> bool:
        """Return whether every environment has finished its episode."""
        if not self._round_begun:  # the actor step that resets the environments has not been made yet
            self._round_begun = True
            return False
        return all(stream.columns.all_ended for stream in self.streams)  # type: ignore[attr-defined]

    def begin_epoch(self, epoch: int, total: int) -> None:
        """Begin an epoch: its number for schedules, and its number among all epochs."""
        self.policy.begin_epoch(epoch, total)

    def _collect_into(self, names: tuple[str, ...]) -> None:
        """Fill these memories from now on."""
        for group, spread in enumerate(self._spread):
            spread.writers = [self._writers[name][group] for name in names]

    def _refresh(self) -> int:
        if self._weights is None:
            return 0
        self._version = self._weights.pull("policy", self._network, self._version)
        self.policy.version = self._version
        return self._version

    @property
    def settled_steps(self) -> int:
        """Number of decisions whose resulting rows have arrived, since the beginning of the run."""
        return self.actor.settled_steps

    @property
    def savable(self) -> bool:
        """Whether environments have been stepped and can be saved."""
        return all(columns.savable for columns in self.columns) and self.actor.steps > 0

    def settle(self) -> None:
        """Wait for pending steps, which the next checkpoint includes."""
        if self.actor.savable:
            self.actor.settle()

    def row(self) -> dict[str, Any]:
        """Return metrics of environments, exploration and policy since the last call."""
        row: dict[str, Any] = ({} if self.explorer is None else self.explorer.row()) | self.policy.row()
        boundaries = [columns.boundary for columns in self.columns]
        row["episodes_dropped"] = sum(boundary.dropped for boundary in boundaries)
        row["envs_replaced"] = sum(boundary.replaced for boundary in boundaries)
        row["search_steps_dropped"] = sum(boundary.unforeseen for boundary in boundaries)
        return row | {"values_clipped": sum(boundary.clipped for boundary in boundaries)}

    def epoch_row(self) -> dict[str, dict[str, float]]:
        """Return metrics of the epoch's decisions in named groups, and begin a new epoch."""
        return self.policy.epoch_row()

    def epoch_state(self) -> dict[str, Any]:
        """Return what `epoch_row` has accumulated so far."""
        return self.policy.epoch_state()

    def load_epoch_state(self, state: dict[str, Any]) -> None:
        """Load what `epoch_state` returned."""
        self.policy.load_epoch_state(state)

    def snapshot(self) -> dict[str, Any] | None:
        """Return the full state of environments and policy; None if some environment cannot be saved."""
        return self.actor.snapshot()

    def lasting_state(self) -> list[dict[str, Any]]:
        """Return the state that outlives the current episodes, per group; empty if there is none."""
        kept = [actor_state.lasting_state() for actor_state in self.actor.actor_states]
        return kept if any(kept) else []

    def evaluation_state(self) -> dict[str, Any] | None:
        """Return the state learned by the first group that an evaluation needs; None: nothing."""
        return self.actor.actor_states[0].evaluation_state()

    def exploration_state(self) -> dict[str, Any]:
        """Return the counts of visited states under "exploration"; empty if they are not counted."""
        return {} if self.explorer is None else {"exploration": self.explorer.snapshot()}

    def restore(self, state: dict[str, Any]) -> bool:
        """Load the acting part of a checkpoint; return False if environments begin new episodes."""
        if self.explorer is not None and "exploration" in state:
            self.explorer.restore(state["exploration"])
        if "actor" in state:
            self.actor.restore(state["actor"])
            for chunk in state["actor"].get("pending", ()):
                for writers in self._writers.values():
                    writers[int(chunk["group"])].add_many(Chunk.from_dict(chunk))
            return True
        if "left" in state:
            adopt(self.actor.actor_states, state["left"])
        for actor_state, lasting in zip(self.actor.actor_states, state.get("seats", ()), strict=False):
            if lasting:  # a worker that had ended has none
                actor_state.load_lasting_state(lasting)
        self.streams[0].steps = state["run"]["env_steps"]
        return False

    def close(self) -> None:
        """Close the environments, and draw the last picture."""
        if self.explorer is not None:
            self.explorer.draw()
        self.actor.close()


def local_side(acting: Acting) -> ActingSide:
    """Return the acting side itself, for code that accesses its environments and actor in this process."""
    assert isinstance(acting, ActingSide), "this acts in another process"
    return acting
