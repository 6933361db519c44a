"""A policy and a value over one shared body: perception, fully connected layers, optionally an LSTM, two heads."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.config import configurable
from packtrain.envs.boundary import space_leaves
from packtrain.errors import ConfigError
from packtrain.networks.distributions import distribution_for
from packtrain.networks.frames import stack_frames
from packtrain.networks.perception import Flatten, Perception, is_picture
from packtrain.networks.recurrent import ResettingLSTM
from packtrain.trees import Tree
from packtrain.types import Spec


class Output(NamedTuple):
    """What the network says of T rows."""

    parameters: Tensor  # [T, B, P] of the action distribution
    value: Tensor  # [T, B]
    carry: Tree  # after the last row; () without an LSTM
    intrinsic_value: Tensor | None = None  # [T, B] of intrinsic rewards, where there is a head for them


@configurable
@dataclass(frozen=True)
class ActorCritic:
    """Sizes of the network.

    Its first weights are PyTorch's `default`, as TorchBeast's are, or `orthogonal`: gain √2 before each ReLU, 1 for the
    value, 0.01 for the policy, biases 0. PyTorch's let a signal shrink by about 3 in each layer; a picture in which a
    few pixels matter, Pong's, takes millions of steps to get through three convolutions that way.
    """

    samples: ClassVar[bool] = True  # from the distribution it outputs, so that evaluations play greedily and sampled

    perception: Perception = Flatten()
    hidden_size: int = 256  # units of each fully connected layer
    num_layers: int = 1  # fully connected layers after perception
    use_lstm: bool = False
    lstm_size: int | None = 256  # None: as wide as what goes in
    lstm_layers: int = 1
    use_last_action: bool = True  # one-hot (or the action itself) beside the features
    use_last_reward: bool = True  # clipped to [−1, 1] beside the features
    intrinsic_value: bool = False  # a second value head, for rewards that an algorithm makes up itself
    initial_std: float = 0.6  # of a continuous policy
    initialisation: Literal["default", "orthogonal"] = "default"

    def __post_init__(self) -> None:
        for name in ("hidden_size", "lstm_size", "lstm_layers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"ActorCritic.{name} = {value} must be at least 1")
        if self.num_layers < 0:
            raise ConfigError(f"ActorCritic.num_layers = {self.num_layers} must not be negative")
        if self.initial_std <= 0:
            raise ConfigError(f"ActorCritic.initial_std = {self.initial_std} must be above 0")

    def build(self, spec: Spec) -> ActorCriticNetwork:
        """The module for an environment; weights are drawn from torch's global generator."""
        return ActorCriticNetwork(self, spec)


class ActorCriticNetwork(nn.Module):
    """obs, first, last action, last reward [T, B] and a carry → distribution parameters, values, carry.

    `context` rows stand in front of obs and first: what a stack of frames at row 0 reaches back to. With `precision`
    set, perception and the fully connected layers compute in it; core, heads and all that follows stay float32.
    """

    precision: torch.dtype | None = None

    def __init__(self, sizes: ActorCritic, spec: Spec):
        super().__init__()
        self.obs_space = spec.obs
        self.distribution = distribution_for(spec.action)
        self.context = sizes.perception.frames - 1
        self.perception = sizes.perception.build(spec.obs)
        self._pictures = trees.map(is_picture, space_leaves(spec.obs))
        widths: list[int] = [
            int(self.perception.width),  # type: ignore[arg-type]
            *[sizes.hidden_size] * sizes.num_layers,
        ]
        layers = [[nn.Linear(before, after), nn.ReLU()] for before, after in itertools.pairwise(widths)]
        self.body = nn.Sequential(*itertools.chain.from_iterable(layers))
        self._use_action, self._use_reward = sizes.use_last_action, sizes.use_last_reward
        width = widths[-1] + self.distribution.features * self._use_action + self._use_reward
        self.core = ResettingLSTM(width, sizes.lstm_size or width, sizes.lstm_layers) if sizes.use_lstm else None
        width = self.core.lstm.hidden_size if self.core is not None else width
        self.policy = nn.Linear(width, self.distribution.num_parameters)
        self.value = nn.Linear(width, 1)
        self.intrinsic_value = nn.Linear(width, 1) if sizes.intrinsic_value else None
        if sizes.initialisation == "orthogonal":
            self._initialise_orthogonally()
        if self.distribution.num_parameters == 2 * getattr(self.distribution, "size", 0):  # a Gaussian
            with torch.no_grad():
                self.policy.bias[self.distribution.num_parameters // 2 :] = torch.tensor(sizes.initial_std).log()

    @torch.no_grad()
    def _initialise_orthogonally(self) -> None:
        gains: dict[nn.Module | None, float] = {self.policy: 0.01, self.value: 1.0, self.intrinsic_value: 1.0}
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                plain = torch.empty(module.weight.shape)  # torch's function refuses weights stored channels last
                module.weight.copy_(nn.init.orthogonal_(plain, gains.get(module, 2**0.5)))
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def initial_carry(self, batch: int) -> Tree:
        """The carry before the first row of a run."""
        return self.core.initial_carry(batch, self.value.weight.device) if self.core is not None else ()

    def forward(self, obs: Tree, first: Tensor, last_action: Tensor, last_reward: Tensor, carry: Tree) -> Output:
        """T rows at once. `last_action` and `last_reward` are ignored where `first`.

        Args:
          obs: [C+T, B, ...], C context rows in front.
          first: [C+T, B] bool.
          last_action: [T, B, ...].
          last_reward: [T, B].
          carry: before row 0.
        """
        if self.context:
            obs = trees.map(lambda leaf, picture: self._rows(leaf, picture, first), obs, self._pictures)
            first = first[self.context :]
        steps, batch = first.shape
        with self._autocast(first.device.type):
            features = self.body(self.perception(trees.map(lambda leaf: leaf.flatten(0, 1), obs)))  # [T*B, F]
        features = features.float().unflatten(0, (steps, batch))
        inputs = [features]
        if self._use_reward:
            inputs.append((last_reward.clamp(-1, 1) * ~first).unsqueeze(-1))
        if self._use_action:
            inputs.append(self.distribution.encode(last_action) * ~first.unsqueeze(-1))
        features = torch.cat(inputs, -1) if len(inputs) > 1 else features
        if self.core is not None:
            features, carry = self.core(features, first, carry)
        intrinsic = self.intrinsic_value(features).squeeze(-1) if self.intrinsic_value is not None else None
        return Output(self.policy(features), self.value(features).squeeze(-1), carry, intrinsic)

    def _autocast(self, kind: str) -> contextlib.AbstractContextManager:
        if self.precision is None:
            return contextlib.nullcontext()
        return torch.autocast(kind, self.precision, cache_enabled=False)  # a cache would outlive a captured launch

    def _rows(self, leaf: Tensor, is_picture: bool, first: Tensor) -> Tensor:
        """A leaf of [C+T, B, ...] as its last T rows, pictures as stacks."""
        if not is_picture:
            return leaf[self.context :]
        return stack_frames(leaf, first, self.context + 1, self.precision or torch.float32)
