"""Q networks: perception, optionally an LSTM, dueling streams; one network, or a second one for intrinsic rewards.

R2D2: Kapturowski et al. 2019. Dueling streams: Wang et al. 2016 (arXiv:1511.06581). Two separate networks and the arm
as an input: Agent57, Badia et al. 2020 (arXiv:2003.13350).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.config import configurable
from packtrain.errors import EnvSetupError
from packtrain.networks.action_mask import allowed_actions, has_action_mask, masked_values
from packtrain.networks.distributions import Categorical
from packtrain.networks.perception import Flatten, Perception
from packtrain.networks.recurrent import ResettingLSTM
from packtrain.networks.torso import Torso, initialise_orthogonally, perception_for
from packtrain.trees import Tree
from packtrain.types import Spec


class QOutput(NamedTuple):
    """Outputs of the network for T rows."""

    values: Tensor  # [T, B, A] of extrinsic rewards, or of the weighted sum
    carry: Tree  # after the last row; () without an LSTM
    intrinsic_values: Tensor | None = None  # [T, B, A] of intrinsic rewards, if they have their own network


@configurable
@dataclass(frozen=True)
class QNetwork:
    """Sizes of the network; defaults are R2D2's.

    marltas' are `lstm_size = 128`, `dueling_size = 128` without the last action and reward; for vectors
    `hidden_sizes = (32, 128)` and `dueling_size = 32`. Its feed-forward ones have `hidden_sizes = (512,)` for images
    and `(32, 64)` for vectors.
    """

    perception: Perception | None = None  # None: DQN's convolutions for an image, otherwise flattened
    # layers after perception; None: (), or (512,) for vectors or without an LSTM
    hidden_sizes: tuple[int, ...] | None = None
    recurrent: bool = True
    lstm_size: int = 512
    dueling_size: int | None = 512  # hidden units of each dueling stream; None: one linear layer, no dueling
    use_last_action: bool = True  # concatenate the last action, one-hot, to the features
    use_last_reward: bool = True  # concatenate the last reward, clipped to [−1, 1], to the features
    use_last_intrinsic: bool = False  # concatenate sign(r) log(1 + |r|) of the last intrinsic reward r
    arms: int = 0  # number of arms, concatenated one-hot to the features; 0: none
    separate_intrinsic: bool = False  # use a second network, with its own LSTM, for intrinsic rewards
    initialisation: Literal["default", "orthogonal"] = "default"  # PyTorch's; gain √2 before a ReLU, else 1, biases 0
    # normalise flattened observations by running mean and deviation; saved with the weights
    normalise_obs: bool = False

    def __post_init__(self) -> None:
        check.each_at_least(self, 1, "hidden_sizes")
        check.at_least(self, 1, "lstm_size")
        check.at_least(self, 1, "dueling_size", end=", or None")
        check.not_negative(self, "arms")

    def build(self, spec: Spec) -> QValueNetwork:
        """Return the module; EnvSetupError unless actions are discrete.

        Weights are sampled from torch's global generator.
        """
        return QValueNetwork(self, spec)


class QValueNetwork(nn.Module):
    """obs, first, last action, last reward [T, B] and a carry → values of all actions, carry.

    `context` rows precede row 0 of obs and first, for frame stacks. The carry is that of the LSTM; with separate
    networks, a dict of both carries. With `precision` set, perception and the fully connected layers compute in it; the
    LSTM and the heads stay float32.
    """

    precision: torch.dtype | None = None

    def __init__(self, sizes: QNetwork, spec: Spec):
        super().__init__()
        if not isinstance(spec.action, gym.spaces.Discrete):
            raise EnvSetupError(
                f"DQN, R2D2 and NGU need discrete actions, but the action space is {spec.action}; PPO, IMPALA and SAC "
                "play continuous ones: ppo/gym, impala/gym, sac/gym"
            )
        self.obs_space = spec.obs
        self.sizes = sizes
        self.actions = int(spec.action.n)
        self.masked = has_action_mask(spec)
        self.distribution = Categorical(self.actions)
        self._arms = Categorical(sizes.arms) if sizes.arms else None
        beside = self.actions * sizes.use_last_action + sizes.use_last_reward + sizes.use_last_intrinsic + sizes.arms
        self.extrinsic = _Values(sizes, spec.obs, beside, self.actions)
        self.intrinsic = _Values(sizes, spec.obs, beside, self.actions) if sizes.separate_intrinsic else None
        self.context = self.extrinsic.torso.context

    @property
    def device(self) -> torch.device:
        """Return the device of the network."""
        return next(self.parameters()).device

    def initial_carry(self, batch: int) -> Tree:
        """Return the carry before the first row of a run."""
        if self.extrinsic.core is None:
            return ()
        carry = self.extrinsic.core.initial_carry(batch, self.device)
        if self.intrinsic is None:
            return carry
        assert self.intrinsic.core is not None
        return {"extrinsic": carry, "intrinsic": self.intrinsic.core.initial_carry(batch, self.device)}

    def forward(
        self,
        obs: Tree,
        first: Tensor,
        last_action: Tensor,
        last_reward: Tensor,
        carry: Tree,
        last_intrinsic: Tensor | None = None,
        arm: Tensor | None = None,
        padded: bool = False,
    ) -> QOutput:
        """Compute T rows at once. The last action and rewards are ignored where `first`.

        Args:
          obs: [C+T, B, ...], C context rows in front.
          first: [C+T, B] bool.
          last_action: [T, B].
          last_reward: [T, B].
          carry: before row 0.
          last_intrinsic: [T, B], if `use_last_intrinsic`.
          arm: [T, B] int64, if `arms`.
          padded: all rows before a reset are padding, as in replayed sequences; then nothing synchronises with the
            device.
        """
        beside = self._beside(first[self.context :], last_action, last_reward, last_intrinsic, arm)
        allowed = self.allowed(obs)
        if self.intrinsic is None:
            values, carry = self.extrinsic(obs, first, beside, carry, self.precision, padded)
            return QOutput(values if allowed is None else masked_values(values, allowed), carry)
        one, other = (carry["extrinsic"], carry["intrinsic"]) if carry else ((), ())
        values, one = self.extrinsic(obs, first, beside, one, self.precision, padded)
        intrinsic, other = self.intrinsic(obs, first, beside, other, self.precision, padded)
        if allowed is not None:
            values, intrinsic = masked_values(values, allowed), masked_values(intrinsic, allowed)
        return QOutput(values, {"extrinsic": one, "intrinsic": other} if carry else (), intrinsic)

    @torch.no_grad()
    def observe(self, obs: Tree, weight: Tensor) -> None:
        """Update the running moments of observations [N, ...] of weight [N], if they are normalised."""
        for part in (self.extrinsic, self.intrinsic):
            if part is not None:
                part.torso.observe(obs, weight)

    def allowed(self, obs: Tree) -> Tensor | None:
        """Return which actions are allowed in rows [C+T, B, ...], [T, B, A] bool; None where all are."""
        return allowed_actions(obs)[self.context :] if self.masked else None

    def _beside(
        self, first: Tensor, action: Tensor, reward: Tensor, intrinsic: Tensor | None, arm: Tensor | None
    ) -> list[Tensor]:
        """Return the features concatenated with the inputs, each [T, B, ...].

        Rows at a reset are masked, as they may be NaN.
        """
        inputs = []
        if self.sizes.use_last_reward:
            inputs.append(reward.float().clamp(-1, 1).masked_fill(first, 0.0).unsqueeze(-1))
        if self.sizes.use_last_action:
            inputs.append(self.distribution.encode(action).masked_fill(first.unsqueeze(-1), 0.0))
        if self.sizes.use_last_intrinsic:
            assert intrinsic is not None, "QNetwork.use_last_intrinsic needs the last intrinsic reward"
            squashed = intrinsic.float().sign() * intrinsic.float().abs().log1p()
            inputs.append(squashed.masked_fill(first, 0.0).unsqueeze(-1))
        if self._arms is not None:
            assert arm is not None, "QNetwork.arms needs the arm"
            inputs.append(self._arms.encode(arm))
        return inputs


class _Values(nn.Module):
    """One network: torso, LSTM, heads."""

    def __init__(self, sizes: QNetwork, space: gym.Space, beside: int, actions: int):
        super().__init__()
        perception = sizes.perception or perception_for(space)
        layers = sizes.hidden_sizes
        if layers is None:
            layers = () if sizes.recurrent and not isinstance(perception, Flatten) else (512,)
        if sizes.normalise_obs and not isinstance(perception, Flatten):
            raise EnvSetupError(
                "QNetwork.normalise_obs = True needs QNetwork.perception = @Flatten(): images are not normalised"
            )
        self.torso = Torso(perception, layers, space, normalise=sizes.normalise_obs)
        width = self.torso.width + beside
        self.core = ResettingLSTM(width, sizes.lstm_size) if sizes.recurrent else None
        width = sizes.lstm_size if sizes.recurrent else width
        self.advantage = _stream(width, sizes.dueling_size, actions)
        self.value = _stream(width, sizes.dueling_size, 1) if sizes.dueling_size is not None else None
        if sizes.initialisation == "orthogonal":
            initialise_orthogonally(self, tuple(stream[-1] for stream in (self.advantage, self.value) if stream))

    def forward(
        self, obs: Tree, first: Tensor, beside: list[Tensor], carry: Tree, precision: torch.dtype | None, padded: bool
    ) -> tuple[Tensor, Tree]:
        features = self.torso(obs, first, precision)
        features = torch.cat([features, *beside], -1) if beside else features
        if self.core is not None:
            features, carry = self.core(features, first[self.torso.context :], carry, padded)
        advantage = self.advantage(features)  # [T, B, A]
        if self.value is None:
            return advantage, carry
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True), carry


def _stream(width: int, hidden: int | None, outputs: int) -> nn.Sequential:
    if hidden is None:
        return nn.Sequential(nn.Linear(width, outputs))
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
