"""Polyak averaging: a copy of a network that follows it as an exponential moving average."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class SlowCopy:
    """A copy of a module whose parameters are c · own + (1 − c) · the module's after each update."""

    def __init__(self, module: nn.Module, decay: float):
        """Create a copy equal to the module.

        Args:
          module: what is followed.
          decay: c, from 0 (always equal) to below 1.
        """
        self.module = copy.deepcopy(module).requires_grad_(False)
        self._source, self._decay = module, decay

    @torch.no_grad()
    def follow(self) -> None:
        """Make one step towards the module; buffers are copied."""
        for mine, other in zip(self.module.parameters(), self._source.parameters(), strict=True):
            mine.lerp_(other, 1 - self._decay)
        for kept, seen in zip(self.module.buffers(), self._source.buffers(), strict=True):
            kept.copy_(seen)

    def reset(self) -> None:
        """Set the copy equal to the module."""
        self.load_state_dict(self._source.state_dict())

    def state_dict(self) -> dict[str, Tensor]:
        """Return its parameters and buffers."""
        return {name: leaf.detach().clone() for name, leaf in self.module.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load what `state_dict` returned."""
        self.module.load_state_dict(state)
