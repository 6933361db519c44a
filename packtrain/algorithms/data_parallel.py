"""Data-parallel updates: the gradient of a batch is the sum of the gradients of its parts, one part for each rank.

A batch is divided by environments (unrolls, sequences), the second axis of a trajectory. A loss that is a sum over the
batch is the sum of the losses of the parts. A loss that is an average is

    L = Σ_k share_k L_k,   share_k = amount_k / Σ_j amount_j

with the amount of whatever it is an average over: steps that count, sequences, steps that novelty is learned from. So
the result does not depend on the number of ranks, except for rounding. What else depends on the whole batch, such as
PPO's advantages and running moments of observations, rank 0 computes before the batch is divided.

The optimisers, and all other state, are rank 0's alone: the other ranks receive weights with each part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.equations.boundaries import boundaries
from packtrain.errors import ConfigError
from packtrain.types import Trajectory

LOSS = "loss itself"  # key of the loss among the metrics of a part
SUM = "sum"  # in place of the name of an amount: a sum over the batch, not an average
Gradients = dict[str, list[Tensor]]
"""One gradient for each parameter of each optimiser."""


class Work(NamedTuple):
    """A part of a batch that is sent to a rank."""

    inputs: tuple[Any, ...]  # arguments of the loss: a trajectory, then tensors [B] or nothing
    shares: dict[str, Tensor]  # 0-d, by amount


class Part(NamedTuple):
    """The results of a rank for its part of a batch."""

    gradients: Gradients  # gradients of the loss times its share
    metrics: dict[str, Tensor]  # 0-d, of this part alone
    items: dict[str, Tensor]  # [B] one value for each unroll or sequence of the shard


class Ranks(Protocol):
    """Processes that compute parts of a batch at the same time; rank 0 is this one."""

    @property
    def size(self) -> int:
        """Number of ranks K."""

    def compute(self, works: Sequence[Work], own: Callable[[], Part]) -> tuple[Gradients, list[Part]]:
        """Return the sum of the gradients of all parts; and the parts, of which only rank 0's has gradients.

        Args:
          works: one for each rank.
          own: computes the first of them.
        """


def count_steps(trajectory: Trajectory, *_: Any) -> dict[str, Tensor]:
    """Return the number of steps of a batch without filler rows."""
    rows = trajectory.first[-len(trajectory.reward) - 1 :]
    return {"steps": boundaries(rows, trajectory.terminated, trajectory.truncated, 1.0).weight_t.sum()}


def count_weights(trajectory: Trajectory, *_: Any) -> dict[str, Tensor]:
    """Return the number of steps of nonzero weight in a batch whose extras contain the weights."""
    return {"steps": trajectory.extras["weight"].sum()}


@dataclass(frozen=True)
class Averages:
    """The denominators of the averages in a batch's losses and metrics."""

    amounts: Callable[..., dict[str, Tensor]] = count_steps  # denominators of a part, from the inputs of its loss
    # amount for each optimiser's gradient; default: `main`
    gradients: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)  # amount for each metric; default: `main`
    main: str = "steps"  # default amount, or SUM

    def share_of(self, optimiser: str, shares: Mapping[str, Tensor]) -> Tensor:
        """Return the weight of a part's loss in the loss of the whole batch."""
        return shares[self.gradients.get(optimiser, self.main)]


class SplitBatch:
    """Computes the gradients of a batch in parts, one for each rank."""

    def __init__(self, ranks: Ranks, averages: Averages, part: Callable[[Work], Part]):
        """Store the arguments; nothing is computed yet.

        Args:
          ranks: what computes the parts.
          averages: how the parts' losses make up the batch's.
          part: computes rank 0's.
        """
        self._ranks, self._averages, self._part = ranks, averages, part

    def __call__(self, *inputs: Any) -> Part:
        """Return gradients and metrics of the batch, and one value for each of its items.

        Args:
          inputs: of the loss: a trajectory, then tensors [B].
        """
        works = divide(inputs, self._ranks.size, self._averages.amounts)
        gradients, parts = self._ranks.compute(works, lambda: self._part(works[0]))
        of_metric, main = self._averages.metrics, self._averages.main
        metrics = {
            name: sum_of(
                part.metrics[name] * work.shares[of_metric.get(name, main)]
                for part, work in zip(parts, works, strict=True)
            )
            for name in parts[0].metrics
        }
        return Part(
            gradients, metrics, {name: torch.cat([part.items[name] for part in parts]) for name in parts[0].items}
        )


def divide(inputs: tuple[Any, ...], ranks: int, amounts: Callable[..., dict[str, Tensor]]) -> list[Work]:
    """Divide a batch over ranks, as evenly as possible.

    Args:
      inputs: of the loss: a trajectory, then tensors [B].
      ranks: number of parts.
      amounts: of a part, from its inputs.
    """
    trajectory, *others = inputs
    size = trajectory.reward.shape[1]
    if size < ranks:
        raise ConfigError(f"--learners {ranks} cannot share {size} unrolls or sequences: each learner needs one")
    ends = [size * rank // ranks for rank in range(ranks + 1)]
    parts = [
        (items_of(trajectory, slice(*span)), *(one[slice(*span)] for one in others))
        for span in zip(ends[:-1], ends[1:], strict=True)
    ]
    found = [amounts(*part) for part in parts]
    totals = {name: sum_of(each[name] for each in found) for name in found[0]}
    works = []
    for part, own in zip(parts, found, strict=True):
        shares = {name: own[name] / totals[name].clamp(min=1) for name in own}
        works.append(Work(part, {**shares, SUM: torch.ones_like(trajectory.reward[0, 0])}))
    return works


def items_of(trajectory: Trajectory, items: slice) -> Trajectory:
    """Return some unrolls or sequences of a batch."""
    some = trees.map(lambda leaf: leaf[:, items], trajectory._replace(carry=()))
    found: Trajectory = some._replace(carry=trees.map(lambda leaf: leaf[items], trajectory.carry))
    return found


def sum_of(values: Any) -> Tensor:
    """Return the sum of 0-d tensors."""
    return torch.stack(list(values)).sum()


class _Deposit(torch.autograd.Function):
    """A scalar whose gradients have been computed already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        return (None, None, *(one * scale for one in ctx.gradients))


def loss_with_gradients(value: Tensor, gradients: list[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Return a loss whose `backward` adds given gradients to those of the parameters.

    Args:
      value: of the loss, 0-d.
      gradients: one for each parameter.
      parameters: leaves that need a gradient.
    """
    loss: Tensor = _Deposit.apply(value, gradients, *parameters)  # type: ignore[no-untyped-call]
    return loss


def split_loss(
    ranks: Ranks, averages: Averages, parameters: Sequence[Tensor], part: Callable[[Work], Part]
) -> Callable[[nn.Module, Trajectory], tuple[Tensor, dict[str, Tensor]]]:
    """Return a loss, (network, trajectory) → value and metrics, whose gradients the ranks compute in parts.

    Args:
      ranks: compute the parts.
      averages: what the loss and its metrics are averages over.
      parameters: leaves that need a gradient.
      part: computes rank 0's part, as `loss_part` does.
    """
    batch = SplitBatch(ranks, averages, part)

    def loss(network: nn.Module, trajectory: Trajectory) -> tuple[Tensor, dict[str, Tensor]]:
        found = batch(trajectory)
        total = found.metrics.pop(LOSS)
        return loss_with_gradients(total, found.gradients[""], parameters), found.metrics

    return loss


def loss_part(
    loss: Callable[[Any, Trajectory], tuple[Tensor, dict[str, Tensor]]],
    network: nn.Module,
    parameters: Sequence[Tensor],
    averages: Averages,
    work: Work,
) -> Part:
    """Return gradients and metrics of a loss on a part of a batch; its value is among the metrics.

    Args:
      loss: (network, trajectory) → value and metrics.
      network: the first argument of the loss.
      parameters: leaves that need a gradient.
      averages: what the loss is an average over.
      work: the part.
    """
    value, metrics = loss(network, *work.inputs)
    scaled = value * averages.share_of("", work.shares)
    gradients = torch.autograd.grad(scaled, parameters, allow_unused=True, materialize_grads=True)
    return Part({"": list(gradients)}, {**metrics, LOSS: value.detach()}, {})


class GradientRecorder:
    """Replaces the optimiser on a rank that computes its part of a batch: stores the gradient and makes no step."""

    def __init__(self, parameters: Sequence[Tensor], share: Tensor):
        """Create a recorder without gradients.

        Args:
          parameters: of the optimiser.
          share: 0-d factor of the loss.
        """
        self._parameters, self._share = parameters, share
        self.found: list[Tensor] = []

    def descend(self, loss: Tensor) -> None:
        """Record the gradients of a loss."""
        self.found = list(torch.autograd.grad(loss * self._share, self._parameters))
