"""Policy and value network with a shared torso: perception, fully connected layers, optionally an LSTM, two heads."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from packtrain import check, trees
from packtrain.envs.validation import space_leaves
from packtrain.errors import ConfigError
from packtrain.networks.action_mask import allowed_actions, has_action_mask, masked_logits
from packtrain.networks.distributions import distribution_for
from packtrain.networks.frames import stack_frames
from packtrain.networks.normaliser import RunningNormaliser
from packtrain.networks.perception import Flatten, Perception, is_picture
from packtrain.networks.recurrent import ResettingLSTM
from packtrain.trees import Tree
from packtrain.types import Spec


class Output(NamedTuple):
    """Outputs of the network for T rows."""

    parameters: Tensor  # [T, B, P] parameters of the action distribution
    value: Tensor  # [T, B]
    carry: Tree  # after the last row; () without an LSTM
    intrinsic_value: Tensor | None = None  # [T, B] value of intrinsic rewards, if there is a head for it


@dataclass(frozen=True)
class ActorCriticSizes:
    """Sizes of the network.

    Weights are initialised by PyTorch's `default`, as in TorchBeast, or `orthogonal`: gain √2 before each ReLU, 1 for
    the value, 0.01 for the policy, biases 0. With PyTorch's default a signal shrinks by a factor of about 3 in each
    layer; if only a few pixels of an image matter, as in Pong, learning then takes millions of steps through three
    convolutions.
    """

    perception: Perception = Flatten()
    hidden_size: int = 256  # units of each fully connected layer
    num_layers: int = 1  # fully connected layers after perception
    use_lstm: bool = False
    lstm_size: int | None = 256  # None: as many units as inputs
    lstm_layers: int = 1
    use_last_action: bool = True  # concatenate the last action, one-hot if discrete, to the features
    use_last_reward: bool = True  # concatenate the last reward, clipped to [−1, 1], to the features
    intrinsic_value: bool = False  # add a second value head, for intrinsic rewards
    initial_std: float = 0.6  # initial standard deviation of a continuous policy
    initialisation: Literal["default", "orthogonal"] = "default"
    activation: Literal["relu", "tanh"] = "relu"  # activation of the fully connected layers
    shared_body: bool = True  # policy and value share the fully connected layers; False: each has its own
    free_std: bool = False  # the standard deviation of a continuous policy is a parameter, the same in every state
    # normalise by the running mean and deviation of each coordinate; saved with the weights
    normalise_obs: bool = False

    def __post_init__(self) -> None:
        check.at_least(self, 1, "hidden_size", "lstm_size", "lstm_layers")
        check.not_negative(self, "num_layers")
        check.positive(self, "initial_std")
        if self.use_lstm and not self.shared_body:
            raise ConfigError(
                "ActorCritic.shared_body = False does not fit ActorCritic.use_lstm = True: share the body"
            )
        if self.normalise_obs and not isinstance(self.perception, Flatten):
            raise ConfigError("ActorCritic.normalise_obs = True needs ActorCritic.perception = @Flatten()")

    def build_network(self, spec: Spec) -> ActorCriticNetwork:
        """Return the module for an environment; weights are sampled from torch's global generator."""
        return ActorCriticNetwork(self, spec)


def _layers(widths: list[int], activation: str) -> nn.Sequential:
    """Fully connected layers, each with its activation."""
    kind = nn.Tanh if activation == "tanh" else nn.ReLU
    pairs = [[nn.Linear(before, after), kind()] for before, after in itertools.pairwise(widths)]
    return nn.Sequential(*itertools.chain.from_iterable(pairs))


class ActorCriticNetwork(nn.Module):
    """obs, first, last action, last reward [T, B] and a carry → distribution parameters, values, carry.

    `context` rows precede row 0 of obs and first, for frame stacks. With `precision` set, perception and the fully
    connected layers compute in it; the LSTM and the heads stay float32.
    """

    precision: torch.dtype | None = None

    def __init__(self, sizes: ActorCriticSizes, spec: Spec):
        super().__init__()
        self.obs_space = spec.obs
        self.distribution = distribution_for(spec.action)
        self.masked = has_action_mask(spec)
        self.context = sizes.perception.frames - 1
        self.perception = sizes.perception.build(spec.obs)
        self._pictures = trees.map(is_picture, space_leaves(spec.obs))
        widths: list[int] = [
            int(self.perception.width),  # type: ignore[arg-type]
            *[sizes.hidden_size] * sizes.num_layers,
        ]
        self.normaliser = RunningNormaliser(widths[0]) if sizes.normalise_obs else None
        self.body = _layers(widths, sizes.activation)
        self._use_action, self._use_reward = sizes.use_last_action, sizes.use_last_reward
        width = widths[-1] + self.distribution.features * self._use_action + self._use_reward
        self.core = ResettingLSTM(width, sizes.lstm_size or width, sizes.lstm_layers) if sizes.use_lstm else None
        width = self.core.lstm.hidden_size if self.core is not None else width
        self.log_std: nn.Parameter | None = None
        num_outputs = self.distribution.num_parameters
        is_gaussian = num_outputs == 2 * getattr(self.distribution, "size", 0)
        if is_gaussian and sizes.free_std:
            num_outputs //= 2
            self.log_std = nn.Parameter(torch.tensor(sizes.initial_std).log().repeat(num_outputs))
        self.policy = nn.Linear(width, num_outputs)
        self.value_body = None if sizes.shared_body else _layers(widths, sizes.activation)
        self.value = nn.Linear(width, 1)
        self.intrinsic_value = nn.Linear(width, 1) if sizes.intrinsic_value else None
        if sizes.initialisation == "orthogonal":
            self._initialise_orthogonally()
        if is_gaussian and self.log_std is None:
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
        """Return the carry before the first row of a run."""
        return self.core.initial_carry(batch, self.value.weight.device) if self.core is not None else ()

    def forward(self, obs: Tree, first: Tensor, last_action: Tensor, last_reward: Tensor, carry: Tree) -> Output:
        """Compute T rows at once. `last_action` and `last_reward` are ignored where `first`.

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
            seen = self.perception(trees.map(lambda leaf: leaf.flatten(0, 1), obs))  # [T*B, F]
            if self.normaliser is not None:
                seen = self.normaliser(seen)
            bodies = [self.body] if self.value_body is None else [self.body, self.value_body]
            outputs = [body(seen) for body in bodies]
        beside = []
        if self._use_reward:
            beside.append((last_reward.clamp(-1, 1) * ~first).unsqueeze(-1))
        if self._use_action:
            beside.append(self.distribution.encode(last_action) * ~first.unsqueeze(-1))
        rows = [output.float().unflatten(0, (steps, batch)) for output in outputs]
        features, *others = [torch.cat([row, *beside], -1) for row in rows] if beside else rows
        if self.core is not None:
            features, carry = self.core(features, first, carry)
        of_value = others[0] if others else features
        intrinsic = self.intrinsic_value(of_value).squeeze(-1) if self.intrinsic_value is not None else None
        parameters = self.policy(features)
        if self.log_std is not None:
            parameters = torch.cat([parameters, self.log_std.expand_as(parameters)], -1)
        if self.masked:
            parameters = masked_logits(parameters, allowed_actions(obs))
        return Output(parameters, self.value(of_value).squeeze(-1), carry, intrinsic)

    @torch.no_grad()
    def observe(self, obs: Tree) -> None:
        """Update running mean and deviation with observations [C+T, B, ...]; without a normaliser, do nothing."""
        if self.normaliser is not None:
            self.normaliser.add(self.perception(trees.map(lambda leaf: leaf[self.context :].flatten(0, 1), obs)))

    def _autocast(self, kind: str) -> contextlib.AbstractContextManager:
        if self.precision is None:
            return contextlib.nullcontext()
        return torch.autocast(kind, self.precision, cache_enabled=False)  # a cache would outlive a captured launch

    def _rows(self, leaf: Tensor, is_picture: bool, first: Tensor) -> Tensor:
        """Return the last T rows of a leaf [C+T, B, ...], images as frame stacks."""
        if not is_picture:
            return leaf[self.context :]
        return stack_frames(leaf, first, self.context + 1, self.precision or torch.float32)
