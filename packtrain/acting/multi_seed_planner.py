"""Planning for several runs at once: one search over the environments of all runs, each with its own networks.

The environments of a search are independent of each other, so runs that differ only in their seed can share one
search: array operations cost little more for ten times the rows. Each run keeps its own environments, memories,
networks and counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.acting.actor import Actor
from packtrain.acting.planner_policy import PlannerPolicy
from packtrain.envs.stream import Stream
from packtrain.interfaces import ActorState, Decision
from packtrain.trees import Tree
from packtrain.types import Row


class Routed(nn.Module):
    """Networks of the same kind, one per run; each row is evaluated by the network of its own run."""

    def __init__(self, networks: Sequence[nn.Module]):
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, routed: dict[str, Any]) -> dict[str, Tensor]:
        """Return outputs for {"inputs": [M, ...], "run": [M]}, in the order of the rows."""
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
    """The environments of several streams as one, with the attributes that an actor state reads."""

    def __init__(self, streams: Sequence[Stream]):
        self._streams = streams
        self.size = sum(stream.size for stream in streams)
        self.core = streams[0].columns.core  # type: ignore[attr-defined]

    @property
    def columns(self) -> _JoinedStream:
        """Return this object itself as the only group of environments: only its states are read."""
        return self

    @property
    def states(self) -> Tree:
        """Return the states of all environments; environments that have not started get those of another run."""
        own = [stream.columns.states for stream in self._streams]  # type: ignore[attr-defined]
        started = next(states for states in own if states is not None)
        own = [started if states is None else states for states in own]
        return trees.map(lambda *leaves: np.concatenate(leaves), *own)

    @property
    def solved(self) -> np.ndarray:
        """Return whether the latest rows solved their tasks."""
        none = (np.zeros(stream.size, bool) if stream.solved is None else stream.solved for stream in self._streams)
        return np.concatenate(list(none))


class _SharedState(ActorState):
    """One run's part of the joint actor state, as its actor saves it."""

    def __init__(self, joint: Joint, run: int):
        self._joint, self._run = joint, run

    def begin(self) -> None:
        """Raise a TypeError: the runs of a joint search begin together."""
        raise TypeError("the runs of a joint search must be started together, not one by one")

    def act(self, row: Row) -> Decision:
        """Choose the actions of one run."""
        return self._joint.decide([self._run], [row])[0]

    def evaluation_state(self) -> dict[str, Any]:
        """Return the state that evaluations copy."""
        return self.snapshot()

    def snapshot(self) -> dict[str, Any]:
        """Return the run's state that outlives episodes."""
        return self._joint.actor_state.snapshot(self._run)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot, at the next epoch."""
        self._joint.actor_state.restore(snapshot, self._run)


class Joint:
    """One actor state for the actors of several runs with equal numbers of environments. It replaces their own states.

    The random numbers of a run depend on the seed, on the index of the run, and on the actor steps of its epoch, but
    not on the other runs. So runs can be stopped, and continued together with others. Runs that are served together are
    in the same epoch.
    """

    def __init__(
        self,
        actors: Sequence[Actor | None],
        policies: Sequence[PlannerPolicy],
        streams: Sequence[Stream],
        seed: int | None = None,
    ):
        """Join the actors; nothing is stepped.

        Args:
          actors: one per run, with one group each; None: the slot is empty.
          policies: of the runs; an empty slot has the policy of any run.
          streams: likewise.
          seed: of all random numbers; None: that of the first policy.
        """
        first = policies[0]
        assert len({stream.size for stream in streams}) == 1, "runs of different sizes cannot be planned for together"
        networks = first.network  # a model shared by the runs could not distinguish their requests
        if len(policies) > 1:
            networks = nn.ModuleDict({name: Routed([p.network[name] for p in policies]) for name in first.network})
        seed = first.seed if seed is None else seed
        self._policy = PlannerPolicy(first.agent, networks, first.device, seed, None, first.model, policies)
        self._policies, self._actors, self._each = policies, actors, streams[0].size
        self.actor_state = self._policy.actor_state(_JoinedStream(streams))
        self._row: Row | None = None
        for run, actor in enumerate(actors):
            if actor is not None:
                saved = actor.actor_states[0].snapshot()
                actor.actor_states[0] = _SharedState(self, run)
                actor.actor_states[0].restore(saved)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch for the runs that are served next: their random numbers are counted from here."""
        self.actor_state.planner.decisions = self.actor_state.at_random.decisions = epoch << 32
        self._policy.trace_epoch = epoch

    def turn(self, runs: Sequence[int]) -> None:
        """Make an actor step for these runs, which either all plan or all act at random."""
        actors = [actor for actor in (self._actors[run] for run in runs) if actor is not None]
        rows = [actor.receive() for actor in actors]
        versions = [actor.refresh() for actor in actors]
        for actor, decision, version in zip(actors, self.decide(runs, rows), versions, strict=True):
            actor.respond(decision, version)

    def decide(self, runs: Sequence[int], rows: Sequence[Row]) -> list[Decision]:
        """Return the decisions of these runs for their rows; environments of other runs are not changed."""
        self._policy.version = sum(policy.version for policy in self._policies)
        self._policy.random = self._policies[runs[0]].random
        served = np.isin(np.arange(len(self._actors)).repeat(self._each), runs)
        decision = self.actor_state.act(self._side_by_side(runs, rows), served)
        decided = []
        for run, own in zip(runs, rows, strict=True):
            part = slice(run * self._each, (run + 1) * self._each)
            action, extras = trees.map(lambda leaf, part=part: leaf[part], (decision.action, decision.extras))
            decided.append(Decision(action, extras, own, ()))
        return decided

    def _side_by_side(self, runs: Sequence[int], rows: Sequence[Row]) -> Row:
        """Return all environments in one row; those of other runs repeat their last row, without `first`."""
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
