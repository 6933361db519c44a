"""Small networks of several runs and members as one: weights lie side by side, and one batched product serves all.

Every parameter and buffer here has an axis in front: R runs, each with its K members, R·K in all. A run by itself is
R = 1; `join` lays the modules of several runs into the memory of one, so that an update of all of them launches what an
update of one would, while each keeps a module of its own to act with and to be saved.

Letters beside those of `types`: R runs, N rows of a batch.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
Initialisation = Literal["glorot", "original"]
_ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # and without a copy
    "relu": (torch.relu, torch.relu_),
    "silu": (nn.functional.silu, partial(nn.functional.silu, inplace=True)),
    "elu": (nn.functional.elu, partial(nn.functional.elu, inplace=True)),
}


@dataclass(frozen=True)
class StackedMlp:
    """Sizes of an ensemble of fully connected networks.

    First weights are Glorot's, uniform, biases 0. `original` draws an ensemble's in ±√(6 / (K (inputs + outputs))), as
    the released STEVE does: TensorFlow took its members for a receptive field.
    """

    members: int = 1  # K
    hidden_sizes: tuple[int, ...] = (128, 128, 128)
    activation: Literal["relu", "silu", "elu"] = "relu"
    layer_norm: bool = False  # after each hidden layer, before its activation
    initialisation: Initialisation = "glorot"

    def build(self, inputs: int, outputs: int) -> StackedNetwork:
        """The module of one run; weights are drawn from torch's global generator."""
        return StackedNetwork(self, inputs, outputs)


class StackedNetwork(nn.Module):
    """Vectors [R, N, inputs], the same for all members, or [R, K, N, inputs] → [R, K, N, outputs]."""

    def __init__(self, sizes: StackedMlp, inputs: int, outputs: int):
        super().__init__()
        self.members = sizes.members
        self._activation, self._in_place = _ACTIVATIONS[sizes.activation]
        widths = [inputs, *sizes.hidden_sizes, outputs]
        scale = 1 / sizes.members if sizes.initialisation == "original" else 1.0
        bounds = [math.sqrt(6 * scale / (a + b)) for a, b in itertools.pairwise(widths)]
        shapes = [(sizes.members, a, b) for a, b in itertools.pairwise(widths)]
        self.weights = nn.ParameterList(
            torch.empty(shape).uniform_(-bound, bound) for shape, bound in zip(shapes, bounds, strict=True)
        )
        self.biases = nn.ParameterList(torch.zeros(k, 1, b) for k, _, b in shapes)
        hidden = [(k, 1, b) for k, _, b in shapes[:-1]] if sizes.layer_norm else []
        self.gains = nn.ParameterList(torch.ones(shape) for shape in hidden)
        self.shifts = nn.ParameterList(torch.zeros(shape) for shape in hidden)

    def forward(self, x: Tensor) -> Tensor:
        """All members."""
        runs, rows = len(x), x.shape[-2]
        if x.ndim == 3:
            x = x.unsqueeze(1).expand(-1, self.members, -1, -1)
        x = x.reshape(runs * self.members, rows, -1)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if layer < last:
                if len(self.gains):
                    x = nn.functional.layer_norm(x, x.shape[-1:]) * self.gains[layer] + self.shifts[layer]
                x = self._activation(x) if x.requires_grad else self._in_place(x)
        return x.unflatten(0, (runs, self.members))


def join(modules: Sequence[M]) -> M:
    """One module for all runs. The given ones stay what they are, but lie in its memory from now on: R·K in front."""
    if len(modules) == 1:
        return modules[0]
    joint = copy.deepcopy(modules[0])
    mine = _leaves(joint)
    for name, leaf in mine.items():
        leaf.data = torch.cat([_leaves(module)[name].data for module in modules])
        for module, part in zip(modules, leaf.data.chunk(len(modules)), strict=True):
            _leaves(module)[name].data = part
    return joint


def _leaves(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
