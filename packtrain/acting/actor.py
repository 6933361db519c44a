"""The actor loop, steps 2 and 6 of the walk: row → policy → action; rows go to a writer, new weights are loaded.

Environments come in groups. An actor step serves one group: wait for its row, choose actions, store the row, send the
actions. While that group steps, the next actor step serves the next group, so environments that run in native threads
or processes overlap with the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from packtrain.envs.stream import Finished, Stream
from packtrain.interfaces import ActorState, Decision, Writer
from packtrain.types import Row


class Actor:
    """The actor: steps groups of environments with one policy."""

    def __init__(
        self,
        streams: list[Stream],
        policy: Any,
        writers: Sequence[Writer],
        refresh: Callable[[], int],
    ):
        """Store the arguments; nothing is stepped before the first actor step.

        Args:
          streams: one per group.
          policy: chooses actions for all groups.
          writers: one per group.
          refresh: loads the newest weights into the policy and returns their version. It is called before each
            decision, so
            weights do not change within a decision.
        """
        self._streams, self._policy, self._writers, self._refresh = streams, policy, writers, refresh
        self.actor_states: list[ActorState] = [policy.actor_state(stream) for stream in streams]
        self._rows: list[Row | None] = [None] * len(streams)  # None: actions were sent, and the row has not arrived
        self._early = [0] * len(streams)  # steps of a group whose row was received before its actor step
        self._started = False
        self._next = 0

    def turn(self) -> None:
        """Make one actor step, for the next group."""
        row = self.receive()
        version = self.refresh()
        self.respond(self.actor_states[self._next].act(row), version)

    def serve(self, groups: Sequence[int]) -> None:
        """Make an actor step for each of these groups, whose rows have arrived, in one batch where that is possible."""
        self._started = True
        rows = []
        for group in groups:
            stream = self._streams[group]
            rows.append(stream.recv() if stream.started else stream.start())
        version = self.refresh()
        first, *others = (self.actor_states[group] for group in groups)
        for group, decision in zip(groups, first.act_together(others, rows), strict=True):
            self._next = group
            self.respond(decision, version)

    def receive(self) -> Row:
        """Return the next row of the group that is due: the first half of an actor step."""
        if not self._started:
            self._rows = [stream.start() for stream in self._streams]
            self._started = True
        row = self._rows[self._next] or self._streams[self._next].recv()
        self._rows[self._next] = row
        self._early[self._next] = 0
        return row

    def refresh(self) -> int:
        """Load the newest weights into the policy, and return their version."""
        return self._refresh()

    def respond(self, decision: Decision, version: int) -> None:
        """Store the group's row and send its actions: the second half of an actor step."""
        group = self._next
        stream = self._streams[group]
        extras = {**decision.extras, "weights_version": np.full(stream.size, version)}
        if stream.columns.rows_last:  # environments need not wait until their last row is stored
            stream.send(decision.action)
            self._writers[group].add(decision.row, decision.carry, extras)
        else:
            self._writers[group].add(decision.row, decision.carry, extras)
            stream.send(decision.action)
        self._rows[group] = None
        self._next = (group + 1) % len(self._streams)

    @property
    def next_group(self) -> int:
        """Return the index of the group that the next actor step serves."""
        return self._next

    @property
    def steps(self) -> int:
        """Return the number of decisions that were completed in the latest actor step of each group.

        A row that was received early for a checkpoint is not counted yet; otherwise metrics would depend on when
        checkpoints are written.
        """
        return self.settled_steps - sum(self._early)

    @property
    def settled_steps(self) -> int:
        """Return the number of decisions whose resulting row has arrived."""
        return sum(stream.steps for stream in self._streams)

    def drain_finished(self) -> list[Finished]:
        """Return the episodes that finished since the last call, in order of groups."""
        return [finished for stream in self._streams for finished in stream.drain_finished()]

    @property
    def savable(self) -> bool:
        """Return whether anything has been played, and all environments can be saved."""
        return self._started and all(stream.columns.savable for stream in self._streams)

    def settle(self) -> None:
        """Wait for the rows of all groups, so that no actions are pending.

        Later results are the same as without this call.
        """
        if self._started:
            for group, stream in enumerate(self._streams):
                if self._rows[group] is None:
                    before = stream.steps
                    self._rows[group] = stream.recv()
                    self._early[group] = stream.steps - before

    def look(self) -> None:
        """Read the current rows of the streams again after other code has stepped them; no actions may be pending."""
        self._rows = [stream.start() for stream in self._streams]
        self._early = [int(stream.acted.sum()) for stream in self._streams]
        self._started = True

    def snapshot(self) -> dict[str, Any] | None:
        """Return the state of every group, with no actions pending; None if an environment cannot be saved."""
        if not self.savable:
            return None
        self.settle()
        streams = [stream.snapshot() for stream in self._streams]
        if any(stream is None for stream in streams):
            return None
        return {
            "streams": streams,
            "seats": [actor_state.snapshot() for actor_state in self.actor_states],
            "generator": self._policy.generator.get_state(),
            "next": self._next,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        for stream, state in zip(self._streams, snapshot["streams"], strict=True):
            stream.restore(state)
        for actor_state, state in zip(self.actor_states, snapshot["seats"], strict=True):
            actor_state.restore(state)
        if len(snapshot["generator"]) == len(
            self._policy.generator.get_state()
        ):  # otherwise the snapshot comes from another device kind
            self._policy.generator.set_state(snapshot["generator"])
        self._next = int(snapshot["next"])
        self.look()

    def close(self) -> None:
        """Close the environments."""
        for stream in self._streams:
            stream.columns.close()
