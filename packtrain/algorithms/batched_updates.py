"""Many small updates of one or several runs: their inputs are staged in advance and launched together on a GPU.

A `Rule` is one update as a pure step over tensors that stay in place: R runs in front, everything random among its
inputs. `Launches` takes the inputs of K updates, and steps through them; on a GPU groups of steps are captured and
launched as one; on a CPU a step is recorded and replayed. A `ReplayLearner` is the learner of one run. `join` lets the
learners of several runs update together: each keeps its own weights, optimiser state and counters, stored side by side.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from packtrain.accelerate.cpu_replay import MemoryPool, RecordedCall
from packtrain.accelerate.cuda_graph import Captured
from packtrain.algorithms.optimisers import Adam
from packtrain.errors import CheckpointError
from packtrain.interfaces import Learner, Memory, UpdateResult
from packtrain.networks.stacked import join as join_modules
from packtrain.types import Sample

UNIT = 4  # updates per launch on a GPU, if nothing must happen between them
ROOM = 32  # maximum number of updates whose inputs are staged at once
Batch = dict[str, Tensor]


def transitions(sample: Sample) -> Batch:
    """Return single transitions [..., 1, B] field by field, [..., B] each.

    Fields: "obs", "action", "reward", "after", "terminated" and "row", the place of each in the memory.
    Transitions of several steps have n rewards [..., B, n], and "steps".
    """
    trajectory, time = sample.trajectory, sample.trajectory.reward.ndim - 2
    fields = {
        "obs": trajectory.obs.select(time, 0),
        "action": trajectory.action.select(time, 0),
        "reward": trajectory.extras.get("rewards", trajectory.reward).select(time, 0),
        "after": trajectory.obs.select(time, 1),
        "terminated": trajectory.terminated.select(time, 0),
    }
    if "steps" in trajectory.extras:
        fields["steps"] = trajectory.extras["steps"].select(time, 0)
    if sample.keys is not None:
        fields["row"] = sample.keys
    return fields


class Rule(abc.ABC):
    """One update of R runs, as a function of tensors with fixed addresses. An algorithm must implement only `step`."""

    names: tuple[str, ...]  # names of the metrics that `step` returns
    optimisers: dict[str, Adam]
    batch_size: int
    holdout: bool = False  # its batches leave out every tenth block of steps
    compiles: bool = False  # torch compiles it on every device

    @abc.abstractmethod
    def step(self, batch: Batch, kind: Any) -> Tensor:
        """Make one update with inputs [R, ...]; return metrics [R, M]."""

    def draws(self, count: int, generator: torch.Generator) -> Batch:
        """Return the random inputs of one run's next updates, [count, ...] each."""
        return {}

    def kind(self, update: int) -> Any:
        """Return the kind of an update; updates of different kinds are recorded separately."""

    def observe(self, network: Any, inputs: Batch) -> None:
        """Update the statistics of one run's network with the inputs [count, ...] of its next updates."""

    def begin(self) -> None:
        """Prepare for the first update of a call: weights may have been changed from outside."""

    def stop(self, update: int) -> int:
        """Return how many updates may follow this many before `between` must be called again."""
        return 2**31

    def between(self, update: int) -> None:
        """Make the weight copies that are due after this number of updates."""

    def end(self) -> None:
        """Copy weights that are copied at the end of each call."""

    def publishes(self, before: int, after: int) -> bool:
        """Return whether the weights that act differ between these two numbers of updates."""
        return True

    def prepare(self, network: Any, memory: Memory, updates: int, prepared: dict[str, int]) -> dict[str, Tensor]:
        """Compute values that depend on all of a run's data, before the inputs of its updates are sampled.

        Args:
          network: that run's.
          memory: what it learns from.
          updates: how many have been made.
          prepared: numbers to keep between two calls; empty before the first.

        Returns:
          Metrics, reported once, with the updates that follow.
        """
        return {}


class Launches:
    """Runs recorded updates over the inputs of many updates."""

    def __init__(self, rule: Rule, runs: int, device: torch.device, capture: bool = True):
        self.rule, self.runs, self._device = rule, runs, device
        self.learners: Sequence[ReplayLearner] = ()  # one per run, in their order
        self._on_gpu = device.type == "cuda"
        self._records = capture and (self._on_gpu or not rule.compiles)  # compiled code cannot be recorded
        self._laid: Batch = {}  # [room, R, ...], where recorded updates read
        self._pool = MemoryPool()
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._sum = torch.zeros(runs, len(rule.names), device=device)
        self._recorded: dict[tuple[Any, ...], Callable[[], None]] = {}  # by the kinds of their updates

    def update(self, given: Sequence[Batch], done: int) -> Tensor:
        """Make updates on inputs [count, ...] of each run, after `done` earlier ones; return mean metrics [R, M]."""
        count = len(next(iter(given[0].values())))
        assert count <= ROOM, f"{count} updates at once"
        self._sum.zero_()
        self.rule.begin()
        self._lay(given, count)
        self._cursor.zero_()
        end = done + count
        while done < end:
            free = min(end - done, self.rule.stop(done))
            unit = UNIT if self._on_gpu and self._records and free >= UNIT else 1
            kinds = tuple(self.rule.kind(done + k) for k in range(unit))
            if kinds not in self._recorded:
                self._recorded[kinds] = self._record(kinds)
            self._recorded[kinds]()
            done += len(kinds)
            self.rule.between(done)
        self.rule.end()
        return self._sum / count

    def _record(self, kinds: tuple[Any, ...]) -> Callable[[], None]:
        """Return updates of these kinds as one call, which is recorded when it runs."""
        steps, runs = self._stepper(kinds), f"{self.runs} run{'s' * (self.runs > 1)}"
        if not self._records:
            return steps
        name = f"{len(kinds)} updates of {runs}" if len(kinds) > 1 else f"an update of {runs}"
        return Captured(steps, self._device, name) if self._on_gpu else RecordedCall(steps, name, self._pool)

    def _lay(self, given: Sequence[Batch], count: int) -> None:
        """Copy inputs to the tensors that recorded updates read; other shapes or dtypes need new recordings."""
        kinds = {name: (leaf.shape[1:], leaf.dtype) for name, leaf in given[0].items()}
        laid = {name: (leaf.shape[2:], leaf.dtype) for name, leaf in self._laid.items()}
        if kinds != laid or count > len(next(iter(self._laid.values()))):
            room = ROOM if self._on_gpu else count
            self._laid = {name: leaf.new_zeros(room, self.runs, *leaf.shape[1:]) for name, leaf in given[0].items()}
            self._recorded.clear()
        places = [place[:count, run] for place in self._laid.values() for run in range(self.runs)]
        torch._foreach_copy_(places, [one[name] for name in self._laid for one in given])

    def _stepper(self, kinds: tuple[Any, ...]) -> Callable[[], None]:
        def steps() -> None:
            for kind in kinds:
                batch = {name: leaf.index_select(0, self._cursor)[0] for name, leaf in self._laid.items()}
                self._sum.add_(self.rule.step(batch, kind))
                self._cursor.add_(1)

        return steps


class ReplayLearner(Learner):
    """One run's view of shared updates: its weights, optimiser state, random numbers and counters."""

    max_updates = ROOM

    def __init__(
        self,
        network: nn.Module,
        parts: tuple[str, ...],
        rule: Callable[[Any], Rule],
        seed: int = 0,
        capture: bool = True,
    ):
        """Build a learner at its first update.

        Args:
          network: has runs in front of every parameter, here one; learners of a run share it.
          parts: names in it that this learner writes, and saves.
          rule: makes the rule for such a network, of one run or of several.
          seed: of what is random in updates.
          capture: whether updates are captured on a GPU, and recorded on a CPU.
        """
        self.network, self._parts = network, parts
        self._make, self._capture = rule, capture
        self._device = next(network.parameters()).device
        self._launches = Launches(rule(network), 1, self._device, capture)
        self._launches.learners = (self,)
        self._run = 0
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self.updates = 0
        self._latest = 0  # updates of the last call
        self.steps = 0
        self._prepared: dict[str, int] = {}
        self._found: dict[str, Tensor] = {}  # metrics of a preparation, until they are reported

    @property
    def capture(self) -> bool:
        """Return whether updates are captured on a GPU, and recorded on a CPU."""
        return self._capture

    @capture.setter
    def capture(self, capture: bool) -> None:
        assert self._launches.runs == 1, "this is decided before runs are joined"
        self._capture = capture
        self._launches = Launches(self._launches.rule, 1, self._device, capture)
        self._launches.learners = (self,)

    def reseed(self, seed: int) -> None:
        """Draw from another random stream from now on."""
        self._generator.manual_seed(seed)

    @property
    def publish_due(self) -> bool:
        """Return whether the last call's updates changed the weights that actors should use."""
        return self._launches.rule.publishes(self.updates - self._latest, self.updates)

    @property
    def rule(self) -> Rule:
        """Return the run's update rule; for joined runs, the rule of all of them."""
        return self._launches.rule

    def draw(self, memory: Memory, count: int) -> Batch | None:
        """Return the inputs of the next updates, [count, B, ...] each; None if the memory holds too little."""
        rule = self._launches.rule
        if not memory.ready():
            return None
        self._found |= rule.prepare(self.network, memory, self.updates, self._prepared)
        sample = memory.sample(rule.batch_size, count, holdout=rule.holdout)
        return None if sample is None else {**transitions(sample), **rule.draws(count, self._generator)}

    def apply(self, works: Sequence[Batch]) -> list[UpdateResult]:
        """Make updates on inputs [count, ...] of every joined seed, in their order; return mean metrics."""
        learners, count = self._launches.learners, len(next(iter(works[0].values())))
        assert len(works) == len(learners), "joined runs update together"
        for learner, work in zip(learners, works, strict=True):
            self._launches.rule.observe(learner.network, work)
        means = self._launches.update(works, self.updates)
        names, results = self._launches.rule.names, []
        for learner, own in zip(learners, means.unbind(), strict=True):
            metrics = dict(zip(names, own.unbind(), strict=True)) | learner._found
            learner.updates += count
            learner._latest, learner._found = count, {}
            results.append(UpdateResult(metrics, count))
        return results

    def update(self, batch: Batch) -> dict[str, Any]:
        """Make updates on inputs [count, ...] of this run alone; return mean metrics as 0-d tensors."""
        return self.apply([batch])[0].metrics

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser state, random numbers and counters."""
        return {
            "network": {
                name: leaf.detach().clone()
                for name, leaf in self.network.state_dict().items()
                if name.partition(".")[0] in self._parts
            },
            "optimisers": self._moments(),
            "generator": self._generator.get_state(),
            "updates": self.updates,
            "steps": self.steps,
            "prepared": dict(self._prepared),
            "found": dict(self._found),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned. A step count of an optimiser that joined runs share never falls."""
        self.network.load_state_dict({**self.network.state_dict(), **state["network"]})
        self._load_moments(state["optimisers"], joined=self._launches.runs > 1)
        if len(state["generator"]) == len(self._generator.get_state()):  # else it was another kind of device's
            self._generator.set_state(state["generator"])
        self.updates, self.steps = int(state["updates"]), int(state["steps"])
        self._prepared = {name: int(value) for name, value in state["prepared"].items()}
        self._found = {name: value.to(self._device) for name, value in state["found"].items()}

    def _moments(self) -> dict[str, dict[str, Tensor]]:
        """Return this run's part of the optimisers' state."""
        optimisers = self._launches.rule.optimisers.items()
        return {name: {key: self._mine(leaf).clone() for key, leaf in one.state.items()} for name, one in optimisers}

    @torch.no_grad()
    def _load_moments(self, states: dict[str, dict[str, Tensor]], joined: bool = False) -> None:
        for name, optimiser in self._launches.rule.optimisers.items():
            for key, leaf in optimiser.state.items():
                saved = states[name][key].to(leaf.device)
                shared = joined and leaf.ndim == 0  # one run alone is restored: the others' count goes on
                self._mine(leaf).copy_(torch.maximum(leaf, saved) if shared else saved)

    def _mine(self, leaf: Tensor) -> Tensor:
        """Return a run's part of a tensor of all runs; an optimiser's step count is the same for all."""
        return leaf if leaf.ndim == 0 else leaf.chunk(self._launches.runs)[self._run]

    def _enter(self, launches: Launches, run: int) -> None:
        moments = self._moments()
        self._launches, self._run = launches, run
        self._load_moments(moments)

    @staticmethod
    def join(runs: Sequence[Sequence[ReplayLearner]]) -> None:
        """Let several runs update together from now on, each with its learners, which share the run's network.

        Raises:
          CheckpointError: some are ahead of others.
        """
        together = list(zip(*runs, strict=True))
        for same in together:
            if len({learner.updates for learner in same}) > 1:
                counts = ", ".join(f"{learner.updates:,}" for learner in same)
                raise CheckpointError(
                    f"runs can be trained together only from the same number of updates; they have made {counts}"
                )
        network = join_modules([learners[0].network for learners in runs])
        for same in together:
            first = same[0]
            launches = Launches(first._make(network), len(same), first._device, first._capture)
            launches.learners = same
            for run, learner in enumerate(same):
                learner._enter(launches, run)
