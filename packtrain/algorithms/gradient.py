"""The mechanics that every gradient learner shares: rate, loss, backward, clip, step, and what must be saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from packtrain.types import Sample, Trajectory

Loss = Callable[[Any, Trajectory], tuple[Tensor, dict[str, Tensor]]]


class GradientLearner:
    """One optimiser step on a loss for each sample. The algorithm is in the loss; this is the wheelwork."""

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        optimiser: torch.optim.Optimizer,
        learning_rate: Callable[[int], float],
        grad_norm_clipping: float,
    ):
        """A learner at its first step.

        Args:
          network: what is trained.
          loss: (network, trajectory) → the scalar to minimise, and metrics as detached 0-d tensors.
          optimiser: over the network's parameters.
          learning_rate: decisions learned from so far → rate of the next step.
          grad_norm_clipping: the global gradient norm is scaled down to this.
        """
        self.network = network
        self.optimiser = optimiser
        self._loss, self._rate, self._clip = loss, learning_rate, grad_norm_clipping
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self.steps = 0  # decisions learned from
        self.updates = 0

    def update(self, sample: Sample) -> dict[str, Any]:
        """One optimiser step on one sample; the loss's metrics, the gradient norm before clipping, and the rate."""
        rate = self._rate(self.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        total, metrics = self._loss(self.network, sample.trajectory)
        self.optimiser.zero_grad(set_to_none=False)
        total.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self.optimiser.step()
        self.steps += sample.steps
        self.updates += 1
        return {**metrics, "grad_norm": norm.detach(), "learning_rate": rate}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser state and counters."""
        return {
            "network": {name: leaf.detach().clone() for name, leaf in self.network.state_dict().items()},
            "optimiser": {
                str(index): {name: torch.as_tensor(leaf).clone() for name, leaf in state.items()}
                for index, state in self.optimiser.state_dict()["state"].items()
            },
            "steps": self.steps,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of state_dict."""
        self.network.load_state_dict(state["network"])
        # Copies: the optimiser would take the tensors themselves and write over the state it was given.
        moments = {int(i): {name: leaf.clone() for name, leaf in own.items()} for i, own in state["optimiser"].items()}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.steps, self.updates = int(state["steps"]), int(state["updates"])
