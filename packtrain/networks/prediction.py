"""Networks for planners: a torso over the observation and one linear layer for each requested head.

Weights are initialised as in Keras (Glorot uniform, biases 0), so that hyper-parameters of earlier studies apply.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

import gymnasium as gym
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from packtrain import check, trees
from packtrain.config import configurable
from packtrain.envs.validation import space_leaves
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.ensembles import EnsembleNetwork
from packtrain.networks.perception import Flatten
from packtrain.trees import Tree

Activation = Literal["relu", "tanh", "elu", "gelu"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU}


class Torso(Protocol):
    """Builds a module that maps observations [N, ...] to features [N, width]; the module has `.width`."""

    def build(self, space: gym.Space) -> nn.Module:
        """Return the module for an observation space."""


class PredictionSettings(Protocol):
    """Settings of a planner's whole network. A user's class with these two attributes is one.

    The module maps observations [N, ...] to {head: [N, outputs]}. It has three attributes that trainers use: `members`;
    `heads`, which contains the names of its heads; and `on_batch`, which returns {head: [B, outputs]} of a batch. With
    several members, step b of a batch belongs to member b mod `members`, and each head of `on_batch` has one output.
    """

    @property
    def members(self) -> int:
        """Return the number of separate networks, each of which has its own batches; usually 1."""

    def build(self, space: gym.Space, heads: dict[str, int]) -> nn.Module:
        """Return the module for an observation space and the outputs of each head that the planner requests."""


@configurable
@dataclass(frozen=True)
class Mlp:
    """Flattens all leaves of the observation, then applies fully connected layers."""

    hidden_sizes: tuple[int, ...] = (32,)
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        check.each_at_least(self, 1, "hidden_sizes")

    def build(self, space: gym.Space) -> nn.Module:
        """Return the module for an observation space."""
        flat = Flatten().build(space)
        widths = [int(flat.width), *self.hidden_sizes]  # type: ignore[arg-type]
        layers = [[nn.Linear(a, b), _ACTIVATIONS[self.activation]()] for a, b in itertools.pairwise(widths)]
        return _Body(nn.Sequential(flat, *itertools.chain.from_iterable(layers)), widths[-1])


@configurable
@dataclass(frozen=True)
class ConvNet:
    """Convolutions of 3 × 3 that keep the board's size, then one fully connected layer.

    Boards are planes, [height, width, planes], as in the built-in environments.
    """

    n_conv_layers: int = 5
    d_conv: int = 64  # channels of each layer
    d_ff: int = 128  # units of the fully connected layer; 0: no such layer
    activation: Activation = "relu"
    global_average_pooling: bool = False  # before the fully connected layer, instead of flattening the board
    stride: int = 1
    residual: bool = False  # add the input of each layer but the first to its output

    def __post_init__(self) -> None:
        check.at_least(self, 1, "n_conv_layers", "d_conv", "stride")
        check.not_negative(self, "d_ff")
        if self.residual and self.stride > 1:
            raise ConfigError(f"ConvNet.residual needs ConvNet.stride = 1, not {self.stride}")

    def build(self, space: gym.Space) -> nn.Module:
        """Return the module; EnvSetupError unless the observation is a single board."""
        leaves = trees.flatten(space_leaves(space))
        shape = leaves[0].shape
        if len(leaves) != 1 or not isinstance(leaves[0], gym.spaces.Box) or shape is None or len(shape) != 3:
            raise EnvSetupError(f"ConvNet needs a board [height, width, planes] as observation, not {space}; try Mlp")
        height, width, planes = shape
        layers: list[nn.Module] = [_PlanesFirst()]
        for index in range(self.n_conv_layers):
            conv = nn.Conv2d(self.d_conv if index else planes, self.d_conv, 3, self.stride, padding=1)
            layers.append(_Layer(conv, _ACTIVATIONS[self.activation](), self.residual and index > 0))
            height, width = (height - 1) // self.stride + 1, (width - 1) // self.stride + 1
        layers.append(nn.AdaptiveAvgPool2d(1) if self.global_average_pooling else nn.Identity())
        layers.append(nn.Flatten())
        out = self.d_conv * (1 if self.global_average_pooling else height * width)
        if self.d_ff:
            layers += [nn.Linear(out, self.d_ff), _ACTIVATIONS[self.activation]()]
            out = self.d_ff
        return _Body(nn.Sequential(*layers), out).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@configurable
@dataclass(frozen=True)
class Prediction:
    """A network with a torso and the heads that a planner requests."""

    torso: Torso = Mlp()
    zero_heads: bool = False  # initialise the heads with 0, so that all outputs are 0 before training
    weights: str | None = None  # .safetensors file to begin with, such as RUN/checkpoints/STEP/weights.safetensors

    @property
    def members(self) -> int:
        """Return 1: a single network, trained on one batch per update."""
        return 1

    def build(self, space: gym.Space, heads: dict[str, int]) -> PredictionNetwork:
        """Return the module; weights are sampled from torch's global generator, or read from a file.

        Without a trainer (`DummyTrainer`) weights from a file stay as they are: a frozen policy.
        """
        network = PredictionNetwork(self, space, heads)
        if self.weights is not None:
            load_weights(network, self.weights)
        return network


@configurable
@dataclass(frozen=True)
class EnsemblePrediction:
    """K separate fully connected networks, for planners that request one number of each of K members.

    All layers are stacked, so a forward pass of all members is one batched product per layer. Each member trains on its
    own batches.
    """

    members: int = 20  # K, the outputs of each head
    hidden_sizes: tuple[int, ...] = (50, 50)

    def __post_init__(self) -> None:
        check.at_least(self, 1, "members")
        check.each_at_least(self, 1, "hidden_sizes")

    def build(self, space: gym.Space, heads: dict[str, int]) -> EnsemblePredictionNetwork:
        """Return the module; its weights are sampled from torch's global generator."""
        for head, outputs in heads.items():
            if outputs != self.members:
                raise ConfigError(
                    f"EnsemblePrediction.members = {self.members}, but the planner requests {outputs} outputs of head "
                    f"{head!r}: set both to the same number"
                )
        return EnsemblePredictionNetwork(self, space, heads)


class PredictionNetwork(nn.Module):
    """Observations [N, ...] → {head: [N, outputs]}."""

    members = 1  # networks with separate batches

    def __init__(self, sizes: Prediction, space: gym.Space, heads: dict[str, int]):
        super().__init__()
        self.torso = sizes.torso.build(space)
        width = int(self.torso.width)  # type: ignore[arg-type]
        self.heads = nn.ModuleDict({name: nn.Linear(width, outputs) for name, outputs in heads.items()})
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    _glorot(module.weight)
                    assert module.bias is not None
                    module.bias.zero_()
            if sizes.zero_heads:
                for head in self.heads.values():
                    head.weight.zero_()  # type: ignore[operator]

    def forward(self, obs: Tree) -> dict[str, Tensor]:
        """Return the outputs of all heads."""
        features = self.torso(obs)
        return {name: head(features) for name, head in self.heads.items()}

    def on_batch(self, obs: Tree) -> dict[str, Tensor]:
        """Return the outputs to train on a batch of B steps, {head: [B, outputs]}."""
        return self(obs)


def load_weights(network: nn.Module, file: str, setting: str = "Prediction.weights") -> None:
    """Load a network's weights from a safetensors file, which may hold others too; ConfigError if they do not fit.

    Args:
      network: what is loaded.
      file: its path. Names in the file may have a prefix in front of the network's own, as in checkpoints.
      setting: that named the file, for errors.
    """
    try:
        found = load_file(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{setting} = {file!r} cannot be read: {error}") from error
    own = network.state_dict()
    first = next(iter(own))
    prefixes = [name.removesuffix(first) for name in found if name.endswith(first)]
    fitting = [prefix for prefix in prefixes if all(f"{prefix}{name}" in found for name in own)]
    if len(fitting) != 1:
        held = ", ".join(sorted(found)[:4]) or "nothing"
        raise ConfigError(
            f"{setting} = {file!r} has {len(fitting)} networks with the tensors {', '.join(own)}, and 1 is "
            f"needed; it holds {held}"
        )
    for name, leaf in own.items():
        given = found[f"{fitting[0]}{name}"]
        if given.shape != leaf.shape:
            raise ConfigError(
                f"{setting} = {file!r} has {name} of shape {tuple(given.shape)}, and the network needs "
                f"{tuple(leaf.shape)}"
            )
    network.load_state_dict({name: found[f"{fitting[0]}{name}"] for name in own})


class EnsemblePredictionNetwork(nn.Module):
    """Observations [N, ...] → {head: [N, K]}, one number per member."""

    def __init__(self, sizes: EnsemblePrediction, space: gym.Space, heads: dict[str, int]):
        super().__init__()
        self.flat = Flatten().build(space)
        width = int(self.flat.width)  # type: ignore[arg-type]
        self.ensemble = EnsembleNetwork(sizes.members, sizes.hidden_sizes, width, dict.fromkeys(heads, 1))

    @property
    def members(self) -> int:
        """Return the number of networks, each of which trains on its own batches."""
        return self.ensemble.members

    @property
    def heads(self) -> nn.ModuleDict:
        """Return the last layers by name."""
        return self.ensemble.heads

    def forward(self, obs: Tree) -> dict[str, Tensor]:
        """Return the outputs of all members for each observation."""
        answers = self.ensemble(self.flat(obs))  # [K, N, 1]
        return {name: answer[..., 0].T for name, answer in answers.items()}

    def on_batch(self, obs: Tree) -> dict[str, Tensor]:
        """Return the outputs to train on a batch of B steps, {head: [B, 1]}: step b belongs to member b mod K."""
        flat = self.flat(obs)
        if len(flat) % self.members:
            raise ConfigError(f"a batch of {len(flat)} steps cannot be divided evenly among {self.members} members")
        own = flat.unflatten(0, (-1, self.members)).transpose(0, 1)  # [B, D] → [K, B / K, D]
        return {name: answer.transpose(0, 1).flatten(0, 1) for name, answer in self.ensemble(own).items()}


def _glorot(weight: Tensor) -> None:
    """Initialise with U(−a, a), a = √(6 / (fan in + fan out)), in place for any memory format."""
    field = math.prod(weight.shape[2:])
    bound = math.sqrt(6 / (field * (weight.shape[0] + weight.shape[1])))
    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound))


class _Body(nn.Module):
    def __init__(self, layers: nn.Module, width: int):
        super().__init__()
        self.layers, self.width = layers, width

    def forward(self, obs: Tree) -> Tensor:
        return self.layers(obs)


class _PlanesFirst(nn.Module):
    """[N, H, W, C] → [N, C, H, W]; the planes stay last in memory, which is fastest for convolutions."""

    def forward(self, obs: Tree) -> Tensor:
        return trees.front(obs).float().permute(0, 3, 1, 2)


class _Layer(nn.Module):
    def __init__(self, conv: nn.Conv2d, activation: nn.Module, residual: bool):
        super().__init__()
        self.conv, self.activation, self._residual = conv, activation, residual

    def forward(self, x: Tensor) -> Tensor:
        after = self.activation(self.conv(x))
        return x + after if self._residual else after
