"""Small networks of several runs and members as one: weights are stacked, and one batched product computes all.

Every parameter and buffer here has a leading axis: R runs with K members each, R·K in total. A single run is R = 1.
`join` moves the modules of several runs into the memory of one, so that an update of all runs launches as many kernels
as an update of one. Each run keeps its own module for acting and checkpoints.

Letters in addition to those of `types`: R runs, N rows of a batch.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
Initialisation = Literal["glorot", "original"]
Activation = Literal["relu", "silu", "elu"]
# Activation, and the same in place.
_ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (torch.relu, torch.relu_),
    "silu": (nn.functional.silu, partial(nn.functional.silu, inplace=True)),
    "elu": (nn.functional.elu, partial(nn.functional.elu, inplace=True)),
}
_LANE = 128  # minimum number of rows per lane
_NARROW = 16  # outputs: CPU products with fewer columns are slow; products with few rows are not


@dataclass(frozen=True)
class StackedMlp:
    """Sizes of an ensemble of fully connected networks.

    Weights are initialised with Glorot's uniform distribution, biases with 0. `original` uses ±√(6 / (K (inputs +
    outputs))) for an ensemble, as the released STEVE does, since TensorFlow treats the member axis as a receptive
    field.
    """

    members: int = 1  # K
    hidden_sizes: tuple[int, ...] = (128, 128, 128)
    activation: Activation = "relu"
    layer_norm: bool = False  # after each hidden layer, before its activation
    initialisation: Initialisation = "glorot"

    def build(self, inputs: int, outputs: int) -> StackedNetwork:
        """Return the module of one run; weights are sampled from torch's global generator."""
        return StackedNetwork(self, inputs, outputs)


class StackedNetwork(nn.Module):
    """Vectors [R, N, inputs], the same for all members, or [R, K, N, inputs] → [R, K, N, outputs]."""

    def __init__(self, sizes: StackedMlp, inputs: int, outputs: int):
        super().__init__()
        self.members = sizes.members
        self._activation, self._in_place = _ACTIVATIONS[sizes.activation]
        self._simple = sizes.activation == "relu" and not sizes.layer_norm
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
        self._packed: tuple[list[Tensor], list[Tensor]] | None = None
        self._packed_versions: list[int] | None = None
        self._look_up()

    @torch.no_grad()
    def pack(self) -> None:
        """Copy the current weights into packed form: passes without a gradient use these copies until the next call.

        Copies of hidden layers are float16, which rounds to 10 bits as TF32 does, but overflows beyond 65,504; such an
        output is not finite. The last layer and its output are float32: in float16, values near 600 would be multiples
        of 0.5. Biases are folded into the next layer, max(x + b, 0) = max(x, −b) + b, so that a hidden layer is a
        product and a maximum. Nothing is copied if the weights have not changed.
        """
        count = len(self.weights)
        weights, biases = self._leaves[:count], self._leaves[count : 2 * count]
        # Addresses of the parameters themselves, which may share their storage.
        versions = [leaf._version for leaf in (*weights, *biases)]
        if not self._simple or versions == self._packed_versions:
            return
        self._packed_versions = versions
        added = [biases[0]]
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            added.append(torch.baddbmm(bias, added[-1], weight))
        folded = [-bias for bias in added[:-1]] + [added[-1]]
        if self._packed is None:
            halves = [[*(leaf.half() for leaf in kind[:-1]), kind[-1].clone()] for kind in (weights, folded)]
            self._packed = (halves[0], halves[1])
        else:  # in place: captured updates read the copies at fixed addresses
            for mine, new in zip((*self._packed[0], *self._packed[1]), (*weights, *folded), strict=True):
                mine.copy_(new)

    def _look_up(self) -> None:
        """Cache the list of parameters: accessing a ParameterList takes as long as a small product."""
        self._leaves: list[Tensor] = [*self.weights, *self.biases, *self.gains, *self.shifts]

    def _apply(self, fn: Any, recurse: bool = True) -> StackedNetwork:
        """Refresh the cached parameters after a change of device or dtype."""
        super()._apply(fn, recurse)
        self._packed = self._packed_versions = None
        self._look_up()
        return self

    def forward(self, x: Tensor, learns: bool = True, given: int = 0) -> Tensor:
        """Return the outputs of all members.

        Args:
          x: inputs.
          learns: False: no gradient for the weights, only for the inputs.
          given: number of leading inputs whose gradient is not needed; it may be 0 there.
        """
        runs, rows = len(x), x.shape[-2]
        if x.ndim == 3:
            x = x.unsqueeze(1).expand(-1, self.members, -1, -1)
        x = x.reshape(runs * self.members, rows, x.shape[-1])
        leaves = self._leaves
        if not learns:
            leaves = [leaf.detach() for leaf in leaves]
        learning = torch.is_grad_enabled()
        if self._packed is not None and not learning:
            x = self._packed_on_cuda(x, *self._packed)
        elif torch.compiler.is_compiling():
            x = self._fusable_on_cuda(x, leaves)
        elif self._simple and learning:
            x = _Layers.apply(_in_lanes(x), given, *leaves)
        else:
            x = self._layers(_in_lanes(x), leaves, self._activation if learning else self._in_place)
        return x.reshape(runs, self.members, rows, x.shape[-1])

    def _fusable_on_cuda(self, x: Tensor, leaves: list[Tensor]) -> Tensor:
        """Compute the same from operations that a compiler can fuse into one kernel between two products.

        Updates are compiled by default on a GPU only.
        """
        count = len(self.weights)
        for layer in range(count):
            weight, bias = leaves[layer], leaves[count + layer]
            if weight.shape[-1] == 1:  # a sum of products, which is fused into the kernel before it
                x = (x * weight.mT).sum(-1, keepdim=True) + bias
            else:
                x = torch.bmm(x, weight) + bias
            if layer < count - 1:
                if self.gains:
                    gain, shift = leaves[2 * count + layer], leaves[3 * count - 1 + layer]
                    x = nn.functional.layer_norm(x, x.shape[-1:]) * gain + shift
                x = self._activation(x)
        return x

    def _packed_on_cuda(self, x: Tensor, weights: list[Tensor], folded: list[Tensor]) -> Tensor:
        """Compute the outputs with the copies that `pack` made; it is called on a GPU only."""
        for weight, bias in zip(weights[:-1], folded[:-1], strict=True):
            x = torch.maximum(torch.bmm(x.half(), weight), bias)
        x = x.float()
        if weights[-1].shape[-1] == 1:  # no product that a GPU could compute in TF32: float32 throughout
            return (x * weights[-1].mT).sum(-1, keepdim=True) + folded[-1]
        return torch.baddbmm(folded[-1], x, weights[-1])

    def _layers(self, x: Tensor, leaves: list[Tensor], activation: Callable[[Tensor], Tensor]) -> Tensor:
        last = len(self.weights) - 1
        for layer in range(last):
            x = torch.baddbmm(leaves[last + 1 + layer], x, _for_lanes(leaves[layer], x))
            if self.gains:
                gain, shift = leaves[2 * last + 2 + layer], leaves[3 * last + 2 + layer]
                x = torch.addcmul(shift, nn.functional.layer_norm(x, x.shape[-1:]), gain)
            x = activation(x)
        weight, bias = leaves[last], leaves[2 * last + 1]
        return _Layers.apply(x, 0, weight, bias) if torch.is_grad_enabled() else _layer(x, weight, bias)


def _in_lanes(x: Tensor) -> Tensor:
    """Divide the rows [1, N, inputs] of a single network among the threads of a CPU: [lanes, N / lanes, inputs].

    Products and elementwise operations are then divided alike, and a thread continues with the rows that it has
    computed. Otherwise products may be divided by columns, and every layer waits for rows from the caches of other
    cores.
    """
    lanes = torch.get_num_threads()
    if lanes == 1 or len(x) > 1 or x.is_cuda or x.shape[1] % lanes or x.shape[1] < lanes * _LANE:
        return x
    return x.unflatten(1, (lanes, -1)).squeeze(0)


class _Layers(torch.autograd.Function):
    """Linear layers with ReLUs as one autograd function: on a CPU, autograd's overhead would be half of the time.

    Where updates are recorded (accelerate/cpu_replay.py), little of that is left: whole runs take 1.04 times the CPU
    time without this function in steve/steve_pendulum (1.01 and 1.08 in two rounds) and in sac/pendulum (one round;
    benchmarks/cpu_paths.py, 2026-11-20, one thread, torch 2.13.0).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: int, *leaves: Tensor) -> Tensor:
        """Compute all layers and save their inputs."""
        count = len(leaves) // 2
        inputs = [x]
        for layer in range(count):
            x = _layer(x, leaves[layer], leaves[count + layer])
            if layer < count - 1:
                x.relu_()
                inputs.append(x)
        ctx.save_for_backward(*inputs, *leaves[:count])
        ctx.given = given
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Backpropagate from the last layer; weights that need no gradient cost nothing."""
        count = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        found: list[Tensor | None] = [None] * (2 * count)
        for layer in reversed(range(count)):
            if ctx.needs_input_grad[2 + layer]:
                found[layer] = _of_all_lanes(_weight_gradient(inputs[layer], gradient), weights[layer])
            if ctx.needs_input_grad[2 + count + layer]:
                found[count + layer] = gradient.reshape(len(weights[layer]), -1, gradient.shape[-1]).sum(1, True)
            if layer:
                gradient = _input_gradient(gradient, weights[layer])
                # in place: no other code has a reference to it
                torch.ops.aten.threshold_backward.grad_input(gradient, inputs[layer], 0, grad_input=gradient)
        if not ctx.needs_input_grad[0]:
            return (None, None, *found)
        wanted = _input_gradient(gradient, weights[0][:, ctx.given :])
        if ctx.given:
            wanted = torch.cat([wanted.new_zeros(*wanted.shape[:-1], ctx.given), wanted], -1)
        return (wanted, None, *found)


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x · weight + bias of one layer of all members, [R·K, N, outputs]."""
    weight = _for_lanes(weight, x)
    if _is_wide(weight):
        return torch.baddbmm(bias, x, weight)
    return torch.baddbmm(bias.mT, weight.mT.contiguous(), x.mT).mT.contiguous()


def _weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of `_layer` with respect to its weight."""
    return torch.bmm(x.mT, gradient) if _is_wide(gradient) else torch.bmm(gradient.mT, x).mT


def _input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of `_layer` with respect to its input."""
    weight = _for_lanes(weight, gradient)
    if weight.shape[-1] == 1 and not weight.is_cuda:
        return gradient * weight.mT
    return torch.bmm(gradient, weight.mT) if _is_wide(weight.mT) else torch.bmm(weight, gradient.mT).mT


def _for_lanes(weight: Tensor, rows: Tensor) -> Tensor:
    """Return the weights repeated for each lane, [lanes, inputs, outputs]; unchanged without lanes."""
    return weight.expand(len(rows), -1, -1)


def _of_all_lanes(gradients: Tensor, weight: Tensor) -> Tensor:
    """Return the sum of the lanes' gradients; unchanged without lanes."""
    return gradients if gradients.shape == weight.shape else sum(gradients.split(1)[1:], gradients[:1])


def _is_wide(columns: Tensor) -> bool:
    return columns.is_cuda or columns.shape[-1] >= _NARROW


def join(modules: Sequence[M]) -> M:
    """Return one module for all runs. The given modules remain usable; their parameters become views of it."""
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
