"""Steps 2 and 6 of the walk: row → policy → action, with rows handed to a sink and the newest weights picked up.

Environments come in groups. A turn serves one group: wait for its row, choose actions, store, send. While it steps,
the next turn serves the next group, so environments that run by themselves (native threads, processes) and the policy
work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from packtrain.acting.seat import Decision
from packtrain.envs.stream import Finished, Stream
from packtrain.interfaces import Writer
from packtrain.types import Row


class Actor:
    """Walks groups of environments with one policy."""

    def __init__(
        self,
        streams: list[Stream],
        policy: Any,
        sinks: Sequence[Writer],
        refresh: Callable[[], int],
    ):
        """Nothing starts before the first turn.

        Args:
          streams: one a group.
          policy: acts for all of them.
          sinks: one a group.
          refresh: brings the newest weights into the policy and returns their version; called before each decision,
            so weights never change inside one.
        """
        self._streams, self._policy, self._sinks, self._refresh = streams, policy, sinks, refresh
        self.seats = [policy.seat(stream) for stream in streams]
        self._rows: list[Row | None] = [None] * len(streams)  # None: sent, the answer is still to come
        self._early = [0] * len(streams)  # steps of a group whose row was waited for before its turn
        self._started = False
        self._next = 0

    def turn(self) -> None:
        """Serve one group."""
        row = self.receive()
        version = self.refresh()
        self.respond(self.seats[self._next].act(row), version)

    def receive(self) -> Row:
        """The row of the group that is served next: the first half of a turn."""
        if not self._started:
            self._rows = [stream.start() for stream in self._streams]
            self._started = True
        row = self._rows[self._next] or self._streams[self._next].recv()
        self._rows[self._next] = row
        self._early[self._next] = 0
        return row

    def refresh(self) -> int:
        """Bring the newest weights into the policy; their version."""
        return self._refresh()

    def respond(self, decision: Decision, version: int) -> None:
        """Store that group's row and send its actions: the second half of a turn."""
        group = self._next
        stream = self._streams[group]
        extras = {**decision.extras, "weights_version": np.full(stream.size, version)}
        if stream.columns.rows_last:  # environments need not wait until their last row is stored
            stream.send(decision.action)
            self._sinks[group].add(decision.row, decision.carry, extras)
        else:
            self._sinks[group].add(decision.row, decision.carry, extras)
            stream.send(decision.action)
        self._rows[group] = None
        self._next = (group + 1) % len(self._streams)

    @property
    def next_group(self) -> int:
        """Whom the next turn serves."""
        return self._next

    @property
    def steps(self) -> int:
        """Decisions that were answered by the latest turn of each group.

        What a checkpoint has waited for early does not count yet, or metrics would depend on when one is written.
        """
        return self.settled_steps - sum(self._early)

    @property
    def settled_steps(self) -> int:
        """Decisions that reached an environment and were answered."""
        return sum(stream.steps for stream in self._streams)

    def drain_finished(self) -> list[Finished]:
        """Episodes that finished since the last call, group by group."""
        return [finished for stream in self._streams for finished in stream.drain_finished()]

    @property
    def savable(self) -> bool:
        """Whether something has been played, in environments that can be saved."""
        return self._started and all(stream.columns.savable for stream in self._streams)

    def settle(self) -> None:
        """Wait for every group's answer, so that nothing is under way. What follows is the same as without."""
        if self._started:
            for group, stream in enumerate(self._streams):
                if self._rows[group] is None:
                    before = stream.steps
                    self._rows[group] = stream.recv()
                    self._early[group] = stream.steps - before

    def look(self) -> None:
        """Go on from where the streams stand: somebody else has stepped them since, and nothing is under way."""
        self._rows = [stream.start() for stream in self._streams]
        self._early = [int(stream.acted.sum()) for stream in self._streams]
        self._started = True

    def snapshot(self) -> dict[str, Any] | None:
        """Where every group stands, settled; None if some environment cannot be saved."""
        if not self.savable:
            return None
        self.settle()
        streams = [stream.snapshot() for stream in self._streams]
        if any(stream is None for stream in streams):
            return None
        return {
            "streams": streams,
            "seats": [seat.snapshot() for seat in self.seats],
            "generator": self._policy.generator.get_state(),
            "next": self._next,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        for stream, state in zip(self._streams, snapshot["streams"], strict=True):
            stream.restore(state)
        for seat, state in zip(self.seats, snapshot["seats"], strict=True):
            seat.restore(state)
        if len(snapshot["generator"]) == len(
            self._policy.generator.get_state()
        ):  # else it was another kind of device's
            self._policy.generator.set_state(snapshot["generator"])
        self._next = int(snapshot["next"])
        self.look()

    def close(self) -> None:
        """Close the environments."""
        for stream in self._streams:
            stream.columns.close()
