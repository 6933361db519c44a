"""What a planner's network receives: the observation, or the observation with the action as further channels."""

from __future__ import annotations

from typing import Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from packtrain.errors import EnvSetupError

Inputs = Literal["observation", "observation_and_action"]


def input_space(observation_space: gym.Space, action_space: gym.Space, inputs: Inputs) -> gym.Space:
    """Return the space of a network's inputs; EnvSetupError if the action cannot be appended."""
    if inputs == "observation":
        return observation_space
    if not isinstance(observation_space, gym.spaces.Box) or not observation_space.shape:
        raise EnvSetupError(f"inputs = 'observation_and_action' needs vectors or boards, not {observation_space}")
    if not isinstance(action_space, gym.spaces.Discrete):
        raise EnvSetupError(f"inputs = 'observation_and_action' needs discrete actions, not {action_space}")
    more = (*observation_space.shape[:-1], int(action_space.n))
    low, high = (
        np.concatenate([bound.astype(np.float32), np.full(more, value, np.float32)], axis=-1)
        for bound, value in ((observation_space.low, 0), (observation_space.high, 1))
    )
    return gym.spaces.Box(low, high, dtype=np.float32)


def append_action(obs: Tensor, action: Tensor, actions: int) -> Tensor:
    """Append the action to observations on their last axis: of A further channels, that of the action is 1 everywhere.

    Args:
      obs: [N, ..., C].
      action: [N], whole numbers below `actions`.
      actions: A.

    Returns:
      [N, ..., C + A] float32.
    """
    chosen = nn.functional.one_hot(action.long(), actions).to(torch.float32)  # [N, A]
    chosen = chosen.reshape(len(chosen), *[1] * (obs.ndim - 2), actions).expand(*obs.shape[:-1], actions)
    return torch.cat([obs.float(), chosen], -1)


def append_action_arrays(obs: np.ndarray, action: np.ndarray, actions: int) -> np.ndarray:
    """Return the same for arrays, as planners request it."""
    joined: np.ndarray = append_action(torch.from_numpy(obs), torch.from_numpy(np.asarray(action)), actions).numpy()
    return joined
