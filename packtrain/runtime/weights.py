"""Step 5 of the walk: named weights in numbered versions that are never read half-written."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import nn


class Weights:
    """The newest version of each named set of weights.

    A reader copies them into its own module between two decisions, under the same lock that a writer holds: no
    decision is ever made with a mixture of two versions.

    On a GPU the copies are only launched under the lock, each in its thread's own stream, and the writer's comes after
    the update that it launched before. A reader that `waits` waits there for the newest version. One that does not
    takes the newest that is there, so that those who act never wait for an update; then every version has two places,
    one to read and one for the next, and while the next is on its way a newer one is passed over.
    """

    def __init__(self) -> None:
        self.waits = True
        self._lock = threading.Lock()
        self._newest: dict[str, _Version] = {}  # versions to read
        self._coming: dict[str, _Version] = {}  # versions being copied
        self._spare: dict[str, _Version] = {}
        self._modules: weakref.WeakKeyDictionary[nn.Module, list[torch.Tensor]] = weakref.WeakKeyDictionary()

    def publish(self, name: str, module: nn.Module, version: int) -> None:
        """Make a module's parameters and buffers the newest version, or its next."""
        source = self._leaves(module)
        with self._lock, torch.no_grad():
            if name not in self._newest:
                self._newest[name] = _Version(source)
            if self.waits or not self._newest[name].on_gpu:
                if name in self._coming:
                    self._spare[name] = self._coming.pop(name)
                place = self._newest[name]
            else:
                self._look(name)
                if name in self._coming:
                    return
                place = self._coming[name] = self._spare.pop(name) if name in self._spare else _Version(source)
            place.copy(place.leaves, source)
            place.number = version

    def _leaves(self, module: nn.Module) -> list[torch.Tensor]:
        """Return a module's parameters and buffers, looked up once: they are always written in place."""
        if module not in self._modules:
            self._modules[module] = [leaf.detach() for leaf in module.state_dict().values()]
        return self._modules[module]

    def forget(self, module: nn.Module) -> None:
        """Discard the cached leaves, because they have moved in memory."""
        self._modules.pop(module, None)

    def version(self, name: str) -> int:
        """Return the number of the newest readable version."""
        with self._lock:
            self._look(name)
            return self._newest[name].number

    def pull(self, name: str, module: nn.Module, have: int) -> int:
        """Copy the newest version into a module, in place, unless the module has it already; return its number."""
        if self._newest[name].number == have and name not in self._coming:
            return have
        target = self._leaves(module)
        with self._lock, torch.no_grad():
            self._look(name)
            newest = self._newest[name]
            if newest.number != have:
                newest.copy(target, newest.leaves)
            return newest.number

    def snapshot(self, name: str) -> dict[str, Any]:
        """Return the newest readable version and its number."""
        with self._lock, torch.no_grad():
            self._look(name)
            newest = self._newest[name]
            leaves = [torch.empty_like(leaf) for leaf in newest.leaves]
            newest.copy(leaves, newest.leaves)
            return {"number": newest.number, "leaves": leaves}

    def export(self, name: str) -> tuple[int, list[Any]]:
        """Return the number of the newest readable version, and its leaves as arrays."""
        found = self.snapshot(name)
        return found["number"], [leaf.cpu().numpy() for leaf in found["leaves"]]

    def restore(self, name: str, snapshot: dict[str, Any]) -> None:
        """Restore the newest version of published weights from a snapshot."""
        with self._lock, torch.no_grad():
            self._look(name)
            newest = self._newest[name]
            newest.copy(newest.leaves, [leaf.to(newest.leaves[0].device) for leaf in snapshot["leaves"]])
            newest.number = int(snapshot["number"])

    def _look(self, name: str) -> None:
        """Make a pending version the newest if its copy is complete."""
        coming = self._coming.get(name)
        if coming is not None and (self.waits or coming.there):
            self._spare[name], self._newest[name] = self._newest[name], coming
            del self._coming[name]


class _Version:
    """Storage of one version of weights, and its latest copy in either direction."""

    def __init__(self, like: list[torch.Tensor]):
        self.leaves = [leaf.clone() for leaf in like]
        self.number = -1
        self.on_gpu = any(leaf.is_cuda for leaf in like)
        self._copied: torch.cuda.Event | None = None

    @property
    def there(self) -> bool:
        """Return whether the last copy is done; does not wait."""
        return self._copied is None or self._copied.query()

    def copy(self, to: list[torch.Tensor], source: list[torch.Tensor]) -> None:
        """Launch a copy to or from it, after the last one."""
        if self._copied is not None:
            self._copied.wait()
        torch._foreach_copy_(to, source)
        if self.on_gpu:
            self._copied = torch.cuda.Event()
            self._copied.record()
