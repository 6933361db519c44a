"""The mechanics that every gradient learner shares: rate, loss, backward, clip, step, and what must be saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.devices.captured import Captured
from packtrain.errors import DivergedError
from packtrain.interfaces import SampleLearner
from packtrain.types import Sample, Trajectory

Loss = Callable[[Any, Trajectory], tuple[Tensor, dict[str, Tensor]]]


class GradientLearner(SampleLearner):
    """One optimiser step on a loss for each sample. The algorithm is in the loss; this is the wheelwork."""

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        optimiser: torch.optim.Optimizer,
        learning_rate: Callable[[int], float],
        grad_norm_clipping: float,
        capture: bool = False,
        validation: Callable[[Any, Trajectory], dict[str, Tensor]] | None = None,
    ):
        """A learner at its first step.

        Args:
          network: what is trained.
          loss: (network, trajectory) → the scalar to minimise, and metrics as detached 0-d tensors.
          optimiser: over the network's parameters.
          learning_rate: decisions learned from so far → rate of the next step.
          grad_norm_clipping: the global gradient norm is scaled down to this.
          capture: on a GPU, launch the whole update as one; the loss must not look at values on the host.
          validation: (network, held-out steps) → metrics.
        """
        self.network = network
        self.optimiser = optimiser
        self._loss, self._rate, self._clip = loss, learning_rate, grad_norm_clipping
        self._parameters = [p for group in optimiser.param_groups for p in group["params"]]  # others may learn the rest
        self._device = self._parameters[0].device
        self._validation = validation
        self._capture = capture and self._device.type == "cuda"
        self._launch: Captured | None = None
        self._trajectory: Trajectory | None = None  # what the captured update reads
        self._metrics: Tensor | None = None  # and what it leaves
        self._names: list[str] = []
        self.steps = 0  # decisions learned from
        self.updates = 0

    def update(self, sample: Sample) -> dict[str, Any]:
        """One optimiser step on one sample; the loss's metrics, the gradient norm before clipping, and the rate."""
        rate = self._rate(self.steps)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # where a captured update reads it
            else:
                group["lr"] = rate
        metrics = self._replay(sample.trajectory) if self._capture else self._step(sample.trajectory)
        self.steps += sample.steps
        self.updates += 1
        return {**metrics, "learning_rate": rate}

    def _step(self, trajectory: Trajectory) -> dict[str, Tensor]:
        total, metrics = self._loss(self.network, trajectory)
        self.optimiser.zero_grad(set_to_none=False)
        total.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._clip)
        try:
            self.optimiser.step()
        except RuntimeError as error:
            if "overflow" not in str(error):
                raise
            raise DivergedError("the step of an update is no number; lower the learning rate") from error
        return {**metrics, "grad_norm": norm.detach()}

    def _replay(self, trajectory: Trajectory) -> dict[str, Tensor]:
        """The same on tensors that stay in place."""
        if self._launch is None:
            self._trajectory = trees.map(torch.clone, trajectory)
            self._launch = Captured(self._step_in_place, self._device, "the update")
        trees.map(lambda mine, given: mine.copy_(given), self._trajectory, trajectory)
        self._launch()
        assert self._metrics is not None
        return dict(zip(self._names, self._metrics.clone().unbind(), strict=True))

    def _step_in_place(self) -> None:
        assert self._trajectory is not None
        metrics = self._step(self._trajectory)
        self._names = list(metrics)
        packed = torch.stack([metric.float() for metric in metrics.values()])
        if self._metrics is None:
            self._metrics = packed
        self._metrics.copy_(packed)

    def validate(self, sample: Trajectory) -> dict[str, Tensor] | None:
        """Return metrics on held-out steps."""
        return None if self._validation is None else self._validation(self.network, sample)

    @torch.no_grad()
    def reset(self, fresh: dict[str, Tensor]) -> None:
        """Replace the trained parameters by those of another state dict and clear the optimiser state."""
        mine = {id(parameter) for parameter in self._parameters}
        for name, parameter in self.network.named_parameters():
            if id(parameter) in mine:
                parameter.copy_(fresh[name])
        for moments in self.optimiser.state.values():
            for leaf in moments.values():
                if isinstance(leaf, Tensor):
                    leaf.zero_()

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
