"""The acting side of a run: environments, policy and actor, and what is observed of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from packtrain.acting.actor import Actor
from packtrain.envs.columns import Columns
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.stream import Stream
from packtrain.interfaces import Writer
from packtrain.runtime.experiment import Collect
from packtrain.runtime.explorer import Explorer
from packtrain.runtime.messages import Report
from packtrain.runtime.weights import Weights


class _Spread:
    """Hands the rows of one group to the memories that are being filled: one for most, several or none for planners."""

    def __init__(self) -> None:
        self.writers: list[Writer] = []

    def add(self, row: Any, carry: Any, extras: dict[str, Any]) -> None:
        """Hand them on."""
        for writer in self.writers:
            writer.add(row, carry, extras)


class ActingSide:
    """Serves groups of environments with one policy that uses the newest weights."""

    def __init__(
        self,
        streams: list[Stream],
        policy: Any,
        writers: dict[str, Any],
        weights: Weights | None,
        device: torch.device,
        acting_network: Callable[[Any], torch.nn.Module],
    ):
        """Nothing starts before the first step.

        Args:
          streams: one per group of environments.
          policy: acts for all groups.
          writers: of each memory by its name, one per group.
          weights: where the newest weights are; None if nothing learns.
          device: of the policy.
          acting_network: picks the part of a network that actors need.
        """
        self.streams, self.policy, self._writers, self._weights = streams, policy, writers, weights
        self._network = acting_network(policy.network)
        self._version = -1
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._spread = [_Spread() for _ in streams]
        self._round_begun = False
        self.explorer: Explorer | None = None
        self.collect_into(tuple(writers))
        self.actor = Actor(streams, policy, self._spread, self._refresh)

    def on_device(self) -> contextlib.AbstractContextManager:
        """Around what acts: on a GPU, a CUDA stream of its own with priority over learning. It may be entered twice."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def act(self) -> Report:
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
        settle_gpu()  # the actor's stream reads it

    def begin_round(self, stage: Collect) -> None:
        """Let every environment begin an episode with the next step, and fill the stage's memories."""
        self._round_begun = False
        self.collect_into(stage.memories)
        self.policy.random = stage.policy == "random"

    def round_is_over(self) -> bool:
        """Whether every environment has finished its episode."""
        if not self._round_begun:  # the step that resets them is still to come
            self._round_begun = True
            return False
        return all(stream.columns.all_ended for stream in self.streams)  # type: ignore[attr-defined]

    def collect_into(self, names: tuple[str, ...]) -> None:
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
    def columns(self) -> list[Columns]:
        """All groups of environments, for a watchdog."""
        return [stream.columns for stream in self.streams]

    @property
    def savable(self) -> bool:
        """Whether environments have been stepped and can be saved."""
        return all(stream.columns.savable for stream in self.streams) and self.actor.steps > 0

    def settle(self) -> None:
        """Wait for the answers that the next checkpoint would wait for."""
        if self.actor.savable:
            self.actor.settle()

    def row(self) -> dict[str, Any]:
        """Return metrics of environments, exploration and policy since the last call."""
        row: dict[str, Any] = {} if self.explorer is None else self.explorer.row()
        row |= self.policy.row()
        row["episodes_dropped"] = sum(stream.columns.boundary.dropped for stream in self.streams)
        row["search_steps_dropped"] = sum(stream.columns.boundary.unforeseen for stream in self.streams)
        row["values_clipped"] = sum(stream.columns.boundary.clipped for stream in self.streams)
        return row

    def lasting(self) -> list[dict[str, Any]]:
        """Return what outlives the episodes in progress, per group; empty if the policy keeps nothing."""
        kept = [seat.lasting() for seat in self.actor.seats]
        return kept if any(kept) else []

    def restore(self, state: dict[str, Any]) -> bool:
        """Load the acting part of a saved run; return False if environments begin new episodes."""
        if "actor" in state:
            self.actor.restore(state["actor"])
            return True
        for seat, lasting in zip(self.actor.seats, state.get("seats", ()), strict=False):
            seat.remember(lasting)
        return False

    def close(self) -> None:
        """Close the environments."""
        self.actor.close()


def settle_gpu() -> None:
    """Wait until the GPU has finished: one thread is about to use what another's CUDA stream has worked on."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
