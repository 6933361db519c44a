"""A seat at the policy: what one group of columns needs to be acted for, beside the policy that all groups share.

It keeps the group's carry and the window of its latest rows, on the policy's device, so that a policy that looks back
(a stack of frames) finds what it looks at. What a policy keeps of a group by itself, its `own`, is saved with the seat.
On a GPU a row goes up in one copy, the whole decision is one captured launch, and actions come back in one copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from packtrain import trees
from packtrain.devices.blocks import Download, Upload
from packtrain.devices.captured import Captured
from packtrain.trees import Tree
from packtrain.types import Row

if TYPE_CHECKING:
    from packtrain.acting.control import ControlPolicy
    from packtrain.acting.policy import NetworkPolicy
    from packtrain.acting.predictive import PredictivePolicy
    from packtrain.acting.values import GroupPolicy


class Decision(NamedTuple):
    """What was decided for a row, and the row as a memory stores it."""

    action: Tree  # [B, ...] NumPy arrays
    extras: dict[str, Any]  # [B, ...] NumPy arrays
    row: Row  # observations on the policy's device, the rest as NumPy arrays
    carry: Tree  # before the row


@runtime_checkable
class Keeps(Protocol):
    """A policy of one group that keeps what its columns have seen, changing it in place."""

    own: dict[str, torch.Tensor]

    def begin(self) -> None:
        """Forget it."""

    def snapshot(self, episodes: bool = True) -> dict[str, Any]:
        """It all; without what belongs to the episodes under way, if they do not go on."""

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""


class Seat:
    """Acts for one group, row after row."""

    def __init__(self, policy: NetworkPolicy | ControlPolicy | PredictivePolicy | GroupPolicy, size: int):
        self._policy = policy
        self._size = size
        self._carry: Tree = policy.initial_carry(size)
        self._window: Row | None = None  # [C+1, B, ...], the newest row last
        self._launch: _Launch | None = None

    def act(self, row: Row) -> Decision:
        """Decide for the next row, NumPy arrays [B, ...]. Arrays and tensors are valid until the next call."""
        if self._policy.device.type == "cuda":
            if self._launch is None:
                self._launch = _Launch(self._policy, self._size, row, self._carry, self._window)
            return self._launch.act(row)
        self._window = _push(self._window, trees.map(torch.from_numpy, row), self._policy.context)
        before = self._carry
        action, self._carry, extras = self._policy.act(self._window, before)
        to_array = torch.Tensor.numpy
        return Decision(trees.map(to_array, action), {n: to_array(x) for n, x in extras.items()}, row, before)

    def begin(self) -> None:
        """Forget everything: the next row is the first of all columns."""
        if isinstance(self._policy, Keeps):
            self._policy.begin()
        self.restore({"carry": self._policy.initial_carry(self._size), "window": None})

    def knowledge(self) -> dict[str, Any] | None:
        """Return what an evaluation should know of what was found out while training; most policies keep nothing."""
        return None

    def know(self, snapshot: dict[str, Any]) -> None:
        """Know what a seat of a policy of this kind has found out, by its snapshot; most have nothing to say."""

    def lasting(self) -> dict[str, Any]:
        """What outlives the episodes under way, where they cannot be saved."""
        return self._policy.snapshot(episodes=False) if isinstance(self._policy, Keeps) else {}

    def remember(self, lasting: dict[str, Any]) -> None:
        """Begin new episodes with what has outlived others."""
        if isinstance(self._policy, Keeps):
            self._policy.restore(lasting)

    def snapshot(self) -> dict[str, Any]:
        """Carry and window."""
        window, carry = (self._launch.window, self._launch.after) if self._launch else (self._window, self._carry)
        return {
            "carry": trees.map(lambda leaf: leaf.clone(), carry),
            "window": trees.map(lambda leaf: leaf.clone(), window._asdict())
            if window and self._policy.context
            else None,
            **({"own": self._policy.snapshot()} if isinstance(self._policy, Keeps) else {}),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        device = self._policy.device
        self._carry = trees.map(lambda leaf: leaf.to(device, copy=True), snapshot["carry"])
        window = snapshot["window"]
        self._window = None if window is None else Row(**trees.map(lambda leaf: leaf.to(device, copy=True), window))
        if self._launch is not None:
            self._launch.set(self._carry, self._window)
        if "own" in snapshot and isinstance(self._policy, Keeps):
            self._policy.restore(snapshot["own"])


def _push(window: Row | None, row: Row, context: int) -> Row:
    """The window [C+1, B, ...] with a row added and the oldest gone; before the first row there are zeros."""
    latest = trees.map(lambda leaf: leaf.unsqueeze(0), row)
    if not context:
        return latest
    if window is None:
        window = trees.map(lambda leaf: leaf.new_zeros(context + 1, *leaf.shape[1:]), latest)
    return trees.map(lambda old, new: torch.cat([old[1:], new]), window, latest)


class _Launch:
    """The decision of one group on a GPU: everything it reads and writes stays in place, so that it can be captured."""

    def __init__(
        self,
        policy: NetworkPolicy | ControlPolicy | PredictivePolicy | GroupPolicy,
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
        state, own = policy.generator.get_state(), policy.own if isinstance(policy, Keeps) else {}
        kept = {name: leaf.clone() for name, leaf in own.items()}
        action, _, extras = policy.act(self.window, carry)
        policy.generator.set_state(state)
        for name, leaf in kept.items():
            own[name].copy_(leaf)
        self._download = Download((action, extras), device)
        self._decide = Captured(self._run, device, f"acting for {size} columns", [policy.generator], urgent=True)

    def set(self, carry: Tree, window: Row | None) -> None:
        """Go on from elsewhere."""
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
