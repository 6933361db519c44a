"""Step 5 of the walk: a learner's weights under a name, in numbered versions that are never seen half-written."""

from __future__ import annotations

import threading
import weakref

import torch
from torch import nn


class Weights:
    """The newest version of each named set of weights.

    A reader copies them into its own module between two decisions, under the same lock that a writer holds: no
    decision is ever made with a mixture of two versions. On a GPU the copies are only launched under the lock, each in
    its thread's own stream; an event after each makes the next one wait for it there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: dict[str, list[torch.Tensor]] = {}
        self._versions: dict[str, int] = {}
        self._copied: dict[str, torch.cuda.Event] = {}  # the last copy to or from each store on a GPU
        self._modules: weakref.WeakKeyDictionary[nn.Module, list[torch.Tensor]] = weakref.WeakKeyDictionary()

    def publish(self, name: str, module: nn.Module, version: int) -> None:
        """Make a module's parameters and buffers the newest version."""
        source = self._leaves(module)
        with self._lock, torch.no_grad():
            if name not in self._store:
                self._store[name] = [leaf.clone() for leaf in source]
            else:
                self._wait(name)
                torch._foreach_copy_(self._store[name], source)
            self._mark(name)
            self._versions[name] = version

    def _leaves(self, module: nn.Module) -> list[torch.Tensor]:
        """A module's parameters and buffers, looked up once: they are always written in place."""
        if module not in self._modules:
            self._modules[module] = [leaf.detach() for leaf in module.state_dict().values()]
        return self._modules[module]

    def forget(self, module: nn.Module) -> None:
        """Look its leaves up again: they have moved in memory."""
        self._modules.pop(module, None)

    def version(self, name: str) -> int:
        """The number of the newest version."""
        return self._versions[name]

    def pull(self, name: str, module: nn.Module, have: int) -> int:
        """Copy the newest version into a module, in place, unless it has it already; returns its number."""
        if self._versions[name] == have:
            return have
        target = self._leaves(module)
        with self._lock, torch.no_grad():
            self._wait(name)
            torch._foreach_copy_(target, self._store[name])
            self._mark(name)
            return self._versions[name]

    def _wait(self, name: str) -> None:
        """Let the current stream wait for the last copy of these weights."""
        if name in self._copied:
            self._copied[name].wait()

    def _mark(self, name: str) -> None:
        """Note the copy just launched."""
        if self._store[name] and self._store[name][0].is_cuda:
            self._copied[name] = torch.cuda.Event()
            self._copied[name].record()
