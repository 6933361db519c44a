"""Acting state of one group of environments for policies that act on rows: recurrent state and frame window.

The window holds the latest rows on the policy's device, for policies with a stack of frames. A policy can
keep further state of each group, its `own` tensors, which is saved with it. On a GPU a row is uploaded in one copy, the
whole decision is one CUDA graph, and actions are downloaded in one copy.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from packtrain import trees
from packtrain.accelerate.blocks import Download, Upload
from packtrain.accelerate.cuda_graph import Captured
from packtrain.interfaces import ActorState, Decision, Policy
from packtrain.trees import Tree
from packtrain.types import Row


class RowActor(Protocol):
    """Chooses actions for one group of environments from its rows."""

    device: torch.device
    context: int
    generator: torch.Generator
    own: dict[str, Tensor]  # state of the group that is changed in place; empty for most

    def initial_carry(self, batch: int) -> Tree:
        """Return the recurrent state before the first row."""

    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Return actions, the next recurrent state and extras."""

    def begin(self) -> None:
        """Clear `own`."""

    def adopt(self, own: Sequence[dict[str, Tensor]], sizes: Sequence[int], envs: Any) -> None:
        """Take over the state that outlives episodes from `own` of other groups; see `ActorState.adopt`."""

    def snapshot(self, episodes: bool = True) -> dict[str, Any]:
        """Return a copy of `own`; per-episode state is left out if `episodes` is False."""

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Load what `snapshot` returned."""


class RowPolicy(Policy):
    """Base of policies that act on rows: implement `act`, and `initial_carry` if there is recurrent state."""

    device: torch.device
    generator: torch.Generator
    own: dict[str, Tensor] = {}

    @abc.abstractmethod
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Choose actions for B environments.

        Args:
          rows: the context and the row to act on, [C+1, B, ...], on the policy's device.
          carry: recurrent state before the row to act on.

        Returns:
          Actions [B, ...], the next recurrent state, and extras [B, ...] for the memory.
        """

    def initial_carry(self, batch: int) -> Tree:
        """Return the recurrent state before the first row; () if there is none."""
        return ()

    def actor_state(self, stream: Any) -> ActorState:
        """Return the acting state of one group."""
        return RowActorState(self, stream.size)

    def begin(self) -> None:
        """Do nothing: this policy has no `own` state to clear."""

    def adopt(self, own: Sequence[dict[str, Tensor]], sizes: Sequence[int], envs: Any) -> None:
        """Do nothing: this policy has no `own` state to take over."""

    def snapshot(self, episodes: bool = True) -> dict[str, Any]:
        """Return an empty copy: this policy has no `own` state."""
        return {}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Load what `snapshot` returned."""


class RandomSwitch:
    """Mixin of policies that can act uniformly at random; the switch is a tensor that a captured decision reads."""

    def __init__(self, device: torch.device):
        self.device = device
        self._flag = torch.zeros((), dtype=torch.bool, device=device)
        self._is_random = False

    @property
    def random(self) -> bool:
        """Whether actions are uniformly random."""
        return self._is_random

    @random.setter
    def random(self, random: bool) -> None:
        if random != self._is_random:
            self._flag.fill_(random)
            self._is_random = random


class RowActorState(ActorState):
    """Recurrent state and frame window of one group of environments."""

    def __init__(self, policy: RowActor, size: int):
        self._policy = policy
        self._size = size
        self._carry: Tree = policy.initial_carry(size)
        self._window: Row | None = None  # [C+1, B, ...], the newest row last
        self._launch: _Launch | None = None

    def act(self, row: Row) -> Decision:
        """Choose actions for the next row, NumPy arrays [B, ...]. Results are valid until the next call."""
        if self._policy.device.type == "cuda":
            if self._launch is None:
                self._launch = _Launch(self._policy, self._size, row, self._carry, self._window)
            return self._launch.act(row)
        self._window = _push(self._window, trees.map(torch.from_numpy, row), self._policy.context)
        before = self._carry
        action, self._carry, extras = self._policy.act(self._window, before)
        to_array = torch.Tensor.numpy
        return Decision(trees.map(to_array, action), {n: to_array(x) for n, x in extras.items()}, row, before)

    def act_together(self, others: Sequence[ActorState], rows: Sequence[Row]) -> list[Decision]:
        """Choose actions for several groups in one batch; on a GPU, each group's decision is one CUDA graph."""
        states = [self, *(other for other in others if isinstance(other, RowActorState))]
        plain = type(self).act is RowActorState.act and not self._policy.own
        shared = plain and all(state._policy is self._policy for state in states)
        if not (others and shared and len(states) == len(rows)) or self._policy.device.type == "cuda":
            return super().act_together(others, rows)
        for state, row in zip(states, rows, strict=True):
            state._window = _push(state._window, trees.map(torch.from_numpy, row), self._policy.context)
        before = [state._carry for state in states]
        windows = trees.map(lambda *leaves: torch.cat(leaves, 1), *(state._window for state in states))
        carry = trees.map(lambda *leaves: torch.cat(leaves), *before)
        sizes = [state._size for state in states]
        together = self._policy.act(windows, carry)
        decisions = []
        for number, (state, row) in enumerate(zip(states, rows, strict=True)):
            own = trees.map(functools.partial(_part, sizes=sizes, number=number), together)
            action, state._carry, extras = own
            arrays = trees.map(torch.Tensor.numpy, (action, extras))
            decisions.append(Decision(arrays[0], arrays[1], row, before[number]))
        return decisions

    def begin(self) -> None:
        """Clear everything: the next row is the first of all environments."""
        self._policy.begin()
        self.restore({"carry": self._policy.initial_carry(self._size), "window": None})

    def lasting_state(self) -> dict[str, Any]:
        """Return the policy's own state that outlives the current episodes."""
        return self._policy.snapshot(episodes=False) if self._policy.own else {}

    def load_lasting_state(self, state: dict[str, Any]) -> None:
        """Load what `lasting_state` returned, and begin new episodes."""
        if self._policy.own:
            self._policy.restore(state)

    def lasting_part(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return the policy's own state in a snapshot; it includes that of the current episodes."""
        own: dict[str, Any] = snapshot.get("own", {})
        return own

    def adopt(self, lasting: Sequence[dict[str, Any]], sizes: Sequence[int], envs: Any) -> None:
        """Begin new episodes with the policy's own lasting state of other groups of environments."""
        self.begin()
        if self._policy.own and all(lasting):
            self._policy.adopt(lasting, sizes, envs)

    def snapshot(self) -> dict[str, Any]:
        """Return recurrent state, window and the policy's own state."""
        window, carry = (self._launch.window, self._launch.after) if self._launch else (self._window, self._carry)
        return {
            "carry": trees.map(lambda leaf: leaf.clone(), carry),
            "window": trees.map(lambda leaf: leaf.clone(), window._asdict())
            if window and self._policy.context
            else None,
            **({"own": self._policy.snapshot()} if self._policy.own else {}),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Load what `snapshot` returned."""
        device = self._policy.device
        self._carry = trees.map(lambda leaf: leaf.to(device, copy=True), snapshot["carry"])
        window = snapshot["window"]
        self._window = None if window is None else Row(**trees.map(lambda leaf: leaf.to(device, copy=True), window))
        if self._launch is not None:
            self._launch.set(self._carry, self._window)
        if "own" in snapshot and self._policy.own:
            self._policy.restore(snapshot["own"])


def _part(leaf: Tensor, sizes: list[int], number: int) -> Tensor:
    """Return one group's part of a tensor [sum of sizes, ...]."""
    return leaf.split(sizes)[number]


def _push(window: Row | None, row: Row, context: int) -> Row:
    """Return the window [C+1, B, ...] with a row added and the oldest removed; it starts with zeros."""
    latest = trees.map(lambda leaf: leaf.unsqueeze(0), row)
    if not context:
        return latest
    if window is None:
        window = trees.map(lambda leaf: leaf.new_zeros(context + 1, *leaf.shape[1:]), latest)
    return trees.map(lambda old, new: torch.cat([old[1:], new]), window, latest)


class _Launch:
    """The decision of one group on a GPU as a CUDA graph: its inputs and outputs have fixed addresses."""

    def __init__(
        self,
        policy: RowActor,
        size: int,
        row: Row,
        carry: Tree,
        window: Row | None,
    ):
        device = policy.device
        self._policy = policy
        self._upload = Upload(row, device)
        self._row: Row = self._upload(row)
        self.window: Row = trees.map(
            lambda leaf: leaf.new_zeros(policy.context + 1, *leaf.shape),
            self._row,
        )
        self._before: Tree = trees.map(torch.clone, carry)
        self.after: Tree = trees.map(torch.clone, carry)
        self.set(carry, window)
        state, own = policy.generator.get_state(), policy.own
        kept = {name: leaf.clone() for name, leaf in own.items()}
        action, _, extras = policy.act(self.window, carry)
        policy.generator.set_state(state)
        for name, leaf in kept.items():
            own[name].copy_(leaf)
        self._download = Download((action, extras), device)
        self._decide = Captured(self._run, device, f"acting for {size} environments", [policy.generator], urgent=True)

    def set(self, carry: Tree, window: Row | None) -> None:
        """Continue from this recurrent state and window."""
        trees.map(lambda mine, given: mine.copy_(given), self.after, carry)
        if window is None:
            trees.map(lambda leaf: leaf.zero_(), self.window)
        else:
            trees.map(lambda mine, given: mine.copy_(given), self.window, window)

    @torch.inference_mode()
    def _run(self) -> None:
        pushed = _push(self.window, self._row, self._policy.context)
        trees.map(lambda mine, new: mine.copy_(new), self.window, pushed)
        trees.map(lambda mine, new: mine.copy_(new), self._before, self.after)
        action, after, extras = self._policy.act(self.window, self._before)
        trees.map(lambda mine, new: mine.copy_(new), self.after, after)
        self._download.put((action, extras))

    def act(self, row: Row) -> Decision:
        self._upload(row)
        self._decide()
        action, extras = self._download.fetch()
        # A copy: the environments' next row shows this action, and the block holds the one after it by then.
        return Decision(trees.map(np.copy, action), extras, row._replace(obs=self._row.obs), self._before)
