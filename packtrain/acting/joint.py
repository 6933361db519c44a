"""Planning for several runs at once: one search over the columns of all of them, each with its own networks.

The columns of a search do not know of each other, so runs that differ in their seed alone can share one: operations on
arrays cost little more for ten times the rows. Each run keeps its own environments, memories, networks and books.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.acting.actor import Actor
from packtrain.acting.planned import PlannedPolicy
from packtrain.acting.seat import Decision
from packtrain.envs.stream import Stream
from packtrain.trees import Tree
from packtrain.types import Row


class Routed(nn.Module):
    """Networks of the same kind, one a run: every row is answered by its own run's."""

    def __init__(self, networks: Sequence[nn.Module]):
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, routed: dict[str, Any]) -> dict[str, Tensor]:
        """Answers to {"inputs": [M, ...], "run": [M]}, in the order of the rows."""
        run = routed["run"]
        order = torch.argsort(run, stable=True)
        counts = torch.bincount(run, minlength=len(self.networks)).tolist()
        answers, begin = [], 0
        for network, count in zip(self.networks, counts, strict=True):
            if count:
                rows = order[begin : begin + count]
                answers.append(network(trees.map(lambda leaf, rows=rows: leaf[rows], routed["inputs"])))
                begin += count
        back = torch.argsort(order)
        return {head: torch.cat([answer[head] for answer in answers])[back] for head in answers[0]}


class _JoinedStream:
    """The columns of several streams side by side, as far as a seat looks at them."""

    def __init__(self, streams: Sequence[Stream]):
        self._streams = streams
        self.size = sum(stream.size for stream in streams)
        self.core = streams[0].columns.core  # type: ignore[attr-defined]

    @property
    def columns(self) -> _JoinedStream:
        """Itself: states are all that is asked for."""
        return self

    @property
    def states(self) -> Tree:
        """The states of all columns; of those that have not started, anybody's."""
        own = [stream.columns.states for stream in self._streams]  # type: ignore[attr-defined]
        started = next(states for states in own if states is not None)
        own = [started if states is None else states for states in own]
        return trees.map(lambda *leaves: np.concatenate(leaves), *own)

    @property
    def solved(self) -> np.ndarray:
        """Whether the latest rows solved their tasks."""
        none = (np.zeros(stream.size, bool) if stream.solved is None else stream.solved for stream in self._streams)
        return np.concatenate(list(none))


class _SharedSeat:
    """A run's share of the joint seat, as its actor saves it."""

    def __init__(self, joint: Joint, run: int):
        self._joint, self._run = joint, run

    def act(self, row: Row) -> Decision:
        """Decide for one run alone."""
        return self._joint.decide([self._run], [row])[0]

    def knowledge(self) -> dict[str, Any]:
        """Return everything an evaluation could use."""
        return self.snapshot()

    def lasting(self) -> dict[str, Any]:
        """Return nothing: episodes end before anything is saved."""
        return {}

    def snapshot(self) -> dict[str, Any]:
        """The run's part of what outlives episodes."""
        return self._joint.seat.snapshot(self._run)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot, with the next epoch."""
        self._joint.seat.restore(snapshot, self._run)


class Joint:
    """One seat for the actors of several runs, with as many columns each. It takes the place of their own.

    What is drawn for a run depends on the seed, on the place of the run, and on the turns of its epoch, whoever else
    there is: so runs can be stopped, and go on, in any company. Those that are served together are in the same epoch.
    """

    def __init__(
        self,
        actors: Sequence[Actor | None],
        policies: Sequence[PlannedPolicy],
        streams: Sequence[Stream],
        seed: int | None = None,
    ):
        """Nothing starts.

        Args:
          actors: one a run, with one group each; None: nobody is in this place.
          policies: theirs, or anybody's in a place where nobody is.
          streams: likewise.
          seed: of everything that is drawn; None: that of the first policy.
        """
        first = policies[0]
        assert len({stream.size for stream in streams}) == 1, "runs of different sizes cannot be planned for together"
        networks = first.network  # a model of one run does not say whose a question is
        if len(policies) > 1:
            networks = nn.ModuleDict({name: Routed([p.network[name] for p in policies]) for name in first.network})
        seed = first.seed if seed is None else seed
        self._policy = PlannedPolicy(first.agent, networks, first.device, seed, None, first.model, policies)
        self._policies, self._actors, self._each = policies, actors, streams[0].size
        self.seat = self._policy.seat(_JoinedStream(streams))
        self._row: Row | None = None
        for run, actor in enumerate(actors):
            if actor is not None:
                saved = actor.seats[0].snapshot()
                actor.seats[0] = _SharedSeat(self, run)
                actor.seats[0].restore(saved)

    def begin_epoch(self, epoch: int) -> None:
        """Those served from now on are in this epoch: what they draw is counted from its beginning."""
        self.seat.planner.decisions = self.seat.at_random.decisions = epoch << 32
        self._policy.trace_epoch = epoch

    def turn(self, runs: Sequence[int]) -> None:
        """A turn of the actors of these runs, all of which plan or all of which play at random."""
        actors = [actor for actor in (self._actors[run] for run in runs) if actor is not None]
        rows = [actor.receive() for actor in actors]
        versions = [actor.refresh() for actor in actors]
        for actor, decision, version in zip(actors, self.decide(runs, rows), versions, strict=True):
            actor.respond(decision, version)

    def decide(self, runs: Sequence[int], rows: Sequence[Row]) -> list[Decision]:
        """What these runs do, given their rows; the others' columns are left alone."""
        self._policy.version = sum(policy.version for policy in self._policies)
        self._policy.random = self._policies[runs[0]].random
        served = np.isin(np.arange(len(self._actors)).repeat(self._each), runs)
        decision = self.seat.act(self._side_by_side(runs, rows), served)
        decided = []
        for run, own in zip(runs, rows, strict=True):
            part = slice(run * self._each, (run + 1) * self._each)
            action, extras = trees.map(lambda leaf, part=part: leaf[part], (decision.action, decision.extras))
            decided.append(Decision(action, extras, own, ()))
        return decided

    def _side_by_side(self, runs: Sequence[int], rows: Sequence[Row]) -> Row:
        """All columns in one row; those of other runs show what they showed last, and begin nothing."""
        if self._row is None:
            blank = lambda leaf: np.concatenate([np.zeros_like(leaf)] * len(self._actors))  # noqa: E731
            self._row = Row(*(trees.map(blank, part) for part in rows[0]))
        whole = Row(*(trees.map(np.copy, part) for part in self._row))
        np.asarray(whole.first)[:] = False
        for run, row in zip(runs, rows, strict=True):
            part = slice(run * self._each, (run + 1) * self._each)

            def put(mine: np.ndarray, given: np.ndarray, part: slice = part) -> None:
                mine[part] = given

            for mine, given in zip(whole, row, strict=True):
                trees.map(put, mine, given)
        self._row = whole
        return whole
