"""One optimiser step per sample on a loss function: shared by IMPALA, PPO, expert iteration and world models.

The algorithm is the loss. On a GPU the whole step can be captured as a CUDA graph (`accelerate/cuda_graph.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from packtrain.accelerate.cuda_graph import CapturedFunction
from packtrain.algorithms.data_parallel import Averages, Part, Ranks, Work, loss_part, split_loss
from packtrain.algorithms.polyak import SlowCopy
from packtrain.errors import DivergedError
from packtrain.interfaces import SampleLearner
from packtrain.types import Sample, Trajectory

Loss = Callable[[Any, Trajectory], tuple[Tensor, dict[str, Tensor]]]


class GradientLearner(SampleLearner):
    """Stochastic gradient descent on a loss, with a learning-rate schedule and gradient clipping."""

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        optimiser: torch.optim.Optimizer,
        learning_rate: Callable[[int], float],
        grad_norm_clipping: float,
        capture: bool = False,
        validation: Callable[[Any, Trajectory], dict[str, Tensor]] | None = None,
        averages: Averages | None = None,
    ):
        """Build a learner at its first step.

        Args:
          network: what is trained.
          loss: (network, trajectory) → the scalar to minimise, and metrics as detached 0-d tensors.
          optimiser: over the network's parameters.
          learning_rate: decisions learned from so far → rate of the next step.
          grad_norm_clipping: the global gradient norm is scaled down to this.
          capture: on a GPU, launch the whole update as one; the loss must not look at values on the host.
          validation: (network, held-out steps) → metrics.
          averages: what the loss and its metrics are averages over; None: a batch cannot be divided over ranks.
        """
        self.network = network
        self.optimiser = optimiser
        self._loss, self._rate, self._clip = loss, learning_rate, grad_norm_clipping
        self._batch_loss, self._averages = loss, averages
        # the network may have other parameters
        self._parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self._validation = validation
        self.slow_copy: SlowCopy | None = None  # follows the network after each update; the loss may bootstrap from it
        device = self._parameters[0].device
        on_gpu = capture and device.type == "cuda"
        self._descend = CapturedFunction(self._step, device, "the update") if on_gpu else self._step
        # Function (obs) → None of a network that normalises observations: called after every update.
        self.observe: Callable[[Any], None] | None = None
        if getattr(network, "normaliser", None) is not None:
            self.observe = network.observe  # type: ignore[assignment]
        self.steps = 0  # decisions learned from
        self.updates = 0

    def update(self, sample: Sample) -> dict[str, Any]:
        """Make one step on one sample; return the loss's metrics, the gradient norm before clipping, and the rate."""
        rate = self._set_rate()
        metrics = self._descend(sample.trajectory)
        if self.observe is not None:
            self.observe(sample.trajectory.obs)
        if self.slow_copy is not None:
            self.slow_copy.follow()
        self.steps += sample.steps
        self.updates += 1
        return {**metrics, "learning_rate": rate}

    def _step(self, trajectory: Trajectory) -> dict[str, Tensor]:
        loss, metrics = self._batch_loss(self.network, trajectory)
        self.optimiser.zero_grad(set_to_none=False)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._clip)
        with _overflow_is_divergence():
            self.optimiser.step()
        return {**metrics, "grad_norm": norm.detach()}

    def split(self, ranks: Ranks) -> None:
        """Divide each batch over several ranks from now on; updates are no longer captured."""
        if self._averages is None:
            super().split(ranks)
            return
        self._batch_loss, self._descend = split_loss(ranks, self._averages, self._parameters, self.part), self._step

    def part(self, work: Work) -> Part:
        """Return gradients and metrics of a part of a batch."""
        assert self._averages is not None
        return loss_part(self._loss, self.network, self._parameters, self._averages, work)

    def _set_rate(self) -> float:
        rate = self._rate(self.steps)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # captured updates read the rate here
            else:
                group["lr"] = rate
        return rate

    def validate(self, sample: Sample) -> dict[str, Tensor] | None:
        """Return metrics on held-out steps."""
        return None if self._validation is None else self._validation(self.network, sample.trajectory)

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
        if self.slow_copy is not None:
            self.slow_copy.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser state and counters."""
        return {
            "network": {name: leaf.detach().clone() for name, leaf in self.network.state_dict().items()},
            "optimiser": {
                str(index): {name: torch.as_tensor(leaf).clone() for name, leaf in state.items()}
                for index, state in self.optimiser.state_dict()["state"].items()
            },
            "steps": self.steps,
            "updates": self.updates,
            **({} if self.slow_copy is None else {"slow_copy": self.slow_copy.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        # Copies: otherwise the optimiser would use and overwrite the tensors of the given state.
        moments = {int(i): {name: leaf.clone() for name, leaf in own.items()} for i, own in state["optimiser"].items()}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        if self.slow_copy is not None:
            self.slow_copy.load_state_dict(state["slow_copy"])
        self.steps, self.updates = int(state["steps"]), int(state["updates"])


@contextlib.contextmanager
def _overflow_is_divergence() -> Iterator[None]:
    """Raise a DivergedError where an optimiser's step overflows."""
    try:
        yield
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise DivergedError("the step of an update is not finite; lower the learning rate") from error
