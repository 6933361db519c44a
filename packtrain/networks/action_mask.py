"""Masks of forbidden actions: the key "action_mask" of Dict observations, one number per action, above 0 if allowed."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor

from packtrain.errors import EnvSetupError
from packtrain.trees import Tree
from packtrain.types import Spec

MASK_KEY = "action_mask"
_FORBIDDEN = -1e9  # logit of a forbidden action: its probability is 0 in float32, and its logarithm finite


def has_action_mask(spec: Spec) -> bool:
    """Return whether observations mask actions; EnvSetupError if the mask has another size than the actions.

    Only Discrete actions can be masked; with others the key is an observation like any other.
    """
    if not isinstance(spec.obs, gym.spaces.Dict) or MASK_KEY not in spec.obs.spaces:
        return False
    if not isinstance(spec.action, gym.spaces.Discrete):
        return False
    shape = spec.obs.spaces[MASK_KEY].shape
    if shape != (int(spec.action.n),):
        raise EnvSetupError(
            f"the observation {MASK_KEY!r} has shape {shape}, and a mask of {spec.action} needs ({int(spec.action.n)},)"
        )
    return True


def allowed_actions(obs: Tree) -> Tensor:
    """Return which actions are allowed, bool [..., A]; all of them where the mask forbids all, as after an end.

    Args:
      obs: of the network, with the mask [..., A] under its key.
    """
    mask = obs[MASK_KEY] > 0
    return mask | ~mask.any(-1, keepdim=True)


def masked_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """Return logits [..., A] whose forbidden actions have probability 0."""
    return logits.masked_fill(~allowed, _FORBIDDEN)


def masked_values(values: Tensor, allowed: Tensor) -> Tensor:
    """Return action values [..., A] whose forbidden actions are 1 below the least allowed one, without gradients.

    So they are never greedy, and expectations over all actions stay bounded.
    """
    least = values.masked_fill(~allowed, torch.inf).amin(-1, keepdim=True).detach()
    return torch.where(allowed, values, least - 1)
