"""Rewards of replayed steps in units of the running deviation of discounted returns, as PPO has them.

Rows are stored with the rewards of the environment, and divided when they are sampled: all steps of a batch have the
same unit, however old they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from packtrain.equations.novelty import TINY, Moments, add_to_moments, deviation, no_moments
from packtrain.types import Trajectory

REWARD_CLIP = 10.0  # clip value of divided rewards


class RewardScale:
    """Running deviation of f_t = γ f_{t−1} + r_t, which begins at 0 with every episode of every environment."""

    def __init__(self, discount: float = 0.99):
        self.discount = discount  # γ per step; the learner's
        self._moments = no_moments()
        self._unit = 1.0

    def add(self, running: np.ndarray, reward: Any, first: Any) -> None:
        """Add the rewards of one row.

        Args:
          running: [B] f of each environment after the row before; changed in place.
          reward: [B] rewards of the actions that led to the row.
          first: [B] whether an episode begins in the row, which answers no action then.
        """
        begins = np.asarray(first)
        running[:] = np.where(begins, 0.0, self.discount * running + np.asarray(reward, np.float64))
        self._moments = add_to_moments(self._moments, torch.from_numpy(running), torch.from_numpy(~begins))
        self._unit = self._found_unit()

    def _found_unit(self) -> float:
        found = float(deviation(self._moments))
        return found if found > TINY else 1.0

    def scaled(self, reward: Tensor) -> Tensor:
        """Return rewards of any shape, divided by the deviation and clipped to ±10."""
        return (reward / self._unit).clamp(-REWARD_CLIP, REWARD_CLIP)

    def scaled_steps(self, trajectory: Trajectory) -> Trajectory:
        """Return steps with scaled rewards; those of n steps have all their rewards in extras["rewards"]."""
        extras = trajectory.extras
        if "rewards" in extras:
            extras = {**extras, "rewards": self.scaled(extras["rewards"])}
        return trajectory._replace(reward=self.scaled(trajectory.reward), extras=extras)

    def snapshot(self) -> dict[str, Any]:
        """Return the running moments; each environment's f is its writer's."""
        return self._moments._asdict()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Load what `snapshot` returned."""
        self._moments = Moments(**{name: leaf.clone() for name, leaf in snapshot.items()})
        self._unit = self._found_unit()
