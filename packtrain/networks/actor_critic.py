"""A policy and a value over one shared body: perception, fully connected layers, optionally an LSTM, two heads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.networks.distributions import distribution_for
from packtrain.networks.perception import Flatten, Perception
from packtrain.networks.recurrent import ResettingLSTM
from packtrain.trees import Tree
from packtrain.types import Spec


class Output(NamedTuple):
    """What the network says of T rows."""

    parameters: Tensor  # [T, B, P] of the action distribution
    value: Tensor  # [T, B]
    carry: Tree  # after the last row; () without an LSTM


@configurable
@dataclass(frozen=True)
class ActorCritic:
    """Sizes of the network. Layers keep PyTorch's default initialisation, as TorchBeast's do."""

    perception: Perception = Flatten()
    hidden_size: int = 256  # units of each fully connected layer
    num_layers: int = 1  # fully connected layers after perception
    use_lstm: bool = False
    lstm_size: int = 256
    lstm_layers: int = 1
    use_last_action: bool = True  # one-hot (or the action itself) beside the features
    use_last_reward: bool = True  # clipped to [−1, 1] beside the features
    initial_std: float = 0.6  # of a continuous policy

    def __post_init__(self) -> None:
        for name in ("hidden_size", "lstm_size", "lstm_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ActorCritic.{name} = {getattr(self, name)} must be at least 1")
        if self.num_layers < 0:
            raise ConfigError(f"ActorCritic.num_layers = {self.num_layers} must not be negative")
        if self.initial_std <= 0:
            raise ConfigError(f"ActorCritic.initial_std = {self.initial_std} must be above 0")

    def build(self, spec: Spec) -> ActorCriticNetwork:
        """The module for an environment; weights are drawn from torch's global generator."""
        return ActorCriticNetwork(self, spec)


class ActorCriticNetwork(nn.Module):
    """obs, first, last action, last reward [T, B] and a carry → distribution parameters, values, carry."""

    def __init__(self, sizes: ActorCritic, spec: Spec):
        super().__init__()
        self.distribution = distribution_for(spec.action)
        self.perception = sizes.perception.build(spec.obs)
        widths: list[int] = [
            int(self.perception.width),  # type: ignore[arg-type]
            *[sizes.hidden_size] * sizes.num_layers,
        ]
        layers = [[nn.Linear(before, after), nn.ReLU()] for before, after in itertools.pairwise(widths)]
        self.body = nn.Sequential(*itertools.chain.from_iterable(layers))
        self._use_action, self._use_reward = sizes.use_last_action, sizes.use_last_reward
        width = widths[-1] + self.distribution.features * self._use_action + self._use_reward
        self.core = ResettingLSTM(width, sizes.lstm_size, sizes.lstm_layers) if sizes.use_lstm else None
        width = sizes.lstm_size if sizes.use_lstm else width
        self.policy = nn.Linear(width, self.distribution.num_parameters)
        self.value = nn.Linear(width, 1)
        if self.distribution.num_parameters == 2 * getattr(self.distribution, "size", 0):  # a Gaussian
            with torch.no_grad():
                self.policy.bias[self.distribution.num_parameters // 2 :] = torch.tensor(sizes.initial_std).log()

    def initial_carry(self, batch: int) -> Tree:
        """The carry before the first row of a run."""
        return self.core.initial_carry(batch, self.value.weight.device) if self.core is not None else ()

    def forward(self, obs: Tree, first: Tensor, last_action: Tensor, last_reward: Tensor, carry: Tree) -> Output:
        """T rows at once. `last_action` and `last_reward` are ignored where `first`."""
        steps, batch = first.shape
        features = self.body(self.perception(trees.map(lambda leaf: leaf.flatten(0, 1), obs)))  # [T*B, F]
        features = features.unflatten(0, (steps, batch))
        inputs = [features]
        if self._use_reward:
            inputs.append((last_reward.clamp(-1, 1) * ~first).unsqueeze(-1))
        if self._use_action:
            inputs.append(self.distribution.encode(last_action) * ~first.unsqueeze(-1))
        features = torch.cat(inputs, -1) if len(inputs) > 1 else features
        if self.core is not None:
            features, carry = self.core(features, first, carry)
        return Output(self.policy(features), self.value(features).squeeze(-1), carry)
