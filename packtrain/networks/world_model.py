"""What comes next, guessed by an ensemble: the change of the observation, the reward, the end."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import torch
from torch import Tensor, nn

from packtrain.config import configurable
from packtrain.errors import EnvSetupError
from packtrain.networks.ensembles import EnsembleMlp


@configurable
@dataclass(frozen=True)
class WorldModel:
    """An ensemble over vectors of observations and one-hot actions."""

    ensemble: EnsembleMlp = EnsembleMlp()

    def build(self, observation_space: gym.Space, action_space: gym.Space) -> WorldModelNetwork:
        """The module; EnvSetupError unless observations are vectors and actions are a choice."""
        if not isinstance(observation_space, gym.spaces.Box) or len(observation_space.shape) != 1:
            raise EnvSetupError(f"WorldModel looks at vectors, and the observation is {observation_space}")
        if not isinstance(action_space, gym.spaces.Discrete):
            raise EnvSetupError(f"WorldModel needs a choice of actions, and the action space is {action_space}")
        return WorldModelNetwork(self.ensemble, observation_space.shape[0], int(action_space.n))


class WorldModelNetwork(nn.Module):
    """Observation and action → {"delta": [N, K, D], "reward": [N, K], "terminated": [N, K]}, the last two logits."""

    def __init__(self, sizes: EnsembleMlp, width: int, actions: int):
        super().__init__()
        self.actions = actions
        self.ensemble = sizes.build(width + actions, {"delta": width, "reward": 1, "terminated": 1})

    @property
    def members(self) -> int:
        """How many networks guess."""
        return self.ensemble.members

    def guess(self, obs: Tensor, action: Tensor) -> dict[str, Tensor]:
        """The guesses of all members, members first, for obs [N, D] and action [N], or own [K, N, D] and [K, N]."""
        one_hot = nn.functional.one_hot(action.long(), self.actions).to(obs.dtype)
        return self.ensemble(torch.cat([obs, one_hot], -1))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What a planner's request is answered with: members after rows."""
        guess = self.guess(inputs["obs"].float(), inputs["action"])
        return {
            "delta": guess["delta"].transpose(0, 1),
            "reward": guess["reward"][..., 0].T,
            "terminated": guess["terminated"][..., 0].T,
        }
