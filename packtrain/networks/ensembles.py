"""Ensembles of small networks as one module: the weights of all K members are stacked, without a loop over members."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.config import configurable


class StackedLinear(nn.Module):
    """K linear layers with stacked weights: [K, N, inputs] → [K, N, outputs].

    Initialised like Keras: Glorot uniform, biases 0.
    """

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = math.sqrt(6 / (inputs + outputs))
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers as one batched product."""
        return torch.baddbmm(self.bias, x, self.weight)


@configurable
@dataclass(frozen=True)
class EnsembleMlp:
    """Sizes of an ensemble of fully connected networks."""

    members: int = 8  # K
    hidden_sizes: tuple[int, ...] = (250, 250, 250, 250)

    def __post_init__(self) -> None:
        check.at_least(self, 1, "members")
        check.each_at_least(self, 1, "hidden_sizes")

    def build(self, inputs: int, heads: dict[str, int]) -> EnsembleNetwork:
        """Return the module; weights are sampled from torch's global generator."""
        return EnsembleNetwork(self.members, self.hidden_sizes, inputs, heads)


class EnsembleNetwork(nn.Module):
    """Vectors [N, inputs], the same for all members, or [K, N, inputs] → {head: [K, N, outputs]}."""

    def __init__(self, members: int, hidden_sizes: tuple[int, ...], inputs: int, heads: dict[str, int]):
        super().__init__()
        self.members = members
        widths = [inputs, *hidden_sizes]
        self.layers = nn.ModuleList([StackedLinear(members, a, b) for a, b in itertools.pairwise(widths)])
        self.heads = nn.ModuleDict({name: StackedLinear(members, widths[-1], n) for name, n in heads.items()})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the outputs of all heads and members."""
        if x.ndim == 2:
            x = x.expand(self.members, *x.shape)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return {name: head(x) for name, head in self.heads.items()}
