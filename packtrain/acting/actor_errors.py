"""TD errors that actors compute from their own Q values: the initial priorities of new sequences.

Ape-X (Horgan et al. 2018, arXiv:1803.00933) and R2D2 (Kapturowski et al. 2019) compute initial priorities in the
actors, which have already computed all values. The error of step t can be computed at row t + n:

    δ_t = h(Σ_{k<n} γᵏ r_{t+k} + γⁿ h⁻¹(max_a Q(x_{t+n}, a))) − Q(x_t, a_t)

Nothing after a termination is summed or bootstrapped.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from packtrain.equations.q_learning import action_value
from packtrain.equations.rescale import rescale, unrescale
from packtrain.equations.rewards import clip_reward
from packtrain.networks.q_network import QOutput

PREFIX = "td_"


class ErrorNumbers(NamedTuple):
    """Parameters of the errors; they must equal those of the learner."""

    discount: float | None  # discount per step; None: each arm has its own
    n_step: int  # n of the n-step return
    reward_clipping: str = "none"


class ActorErrors:
    """The TD errors of one group of environments, computed from its last n rows, which are kept in fixed tensors."""

    def __init__(self, numbers: ErrorNumbers, size: int, device: torch.device, rescaling: float | None, separate: bool):
        """Allocate the tensors, without rows.

        Args:
          numbers: parameters of the errors.
          size: B, environments of the group.
          device: of all tensors.
          rescaling: ε of h; None: values are in units of rewards.
          separate: whether intrinsic rewards have values of their own.
        """
        self._numbers, self._rescaling, self._separate = numbers, rescaling, separate
        channels = 2 if separate else 1
        n = numbers.n_step
        self._exponents = torch.arange(n + 1, device=device).unsqueeze(1)
        # The newest row is last. Values belong to the actions chosen in rows s − n … s − 1, rewards to rows s − n + 1 …
        # s.
        self._values = torch.zeros(channels, n, size, device=device)
        self._rewards = torch.zeros(channels, n, size, device=device)
        self._goes_on = torch.zeros(n, size, device=device)  # 0 at a termination, else 1
        self._rows = torch.zeros(size, dtype=torch.int64, device=device)  # number of earlier rows in the episode

    @property
    def state(self) -> dict[str, Tensor]:
        """Return all tensors by name; they are updated in place."""
        names = ("values", "rewards", "goes_on", "rows")
        return {f"{PREFIX}{name}": getattr(self, f"_{name}") for name in names}

    def begin(self) -> None:
        """Clear all rows."""
        for leaf in self.state.values():
            leaf.zero_()

    def step(
        self,
        first: Tensor,
        terminated: Tensor,
        reward: Tensor,
        intrinsic: Tensor | None,
        output: QOutput,
        greedy: Tensor,
        chosen: Tensor,
        weight: Tensor,
        discount: Tensor | None,
    ) -> Tensor:
        """Add a row, and compute the error of the step n rows ago.

        Args:
          first: [B] bool.
          terminated: [B] bool.
          reward: [B] extrinsic reward for arriving in this row.
          intrinsic: [B] intrinsic reward; None: there is none.
          output: output of the network for this row, [1, B, A].
          greedy: [B] int64, the best action.
          chosen: [B] int64, the action that is taken.
          weight: [B] β, weight of the intrinsic reward.
          discount: [B] γ, if arms have their own.

        Returns:
          [B] |δ|, or |δ_e| + β |δ_i| with separate values; 0 where the episode has had fewer than n steps.
        """
        n = self._numbers.n_step
        clipped = clip_reward(reward, self._numbers.reward_clipping)
        if intrinsic is None:
            rewards = clipped.unsqueeze(0)
        elif self._separate:
            rewards = torch.stack([clipped, intrinsic])
        else:
            rewards = (clipped + weight * intrinsic).unsqueeze(0)
        self._rows.copy_(torch.where(first, 0, self._rows + 1))
        self._push(self._rewards, rewards.unsqueeze(1))
        self._goes_on.copy_(torch.cat([self._goes_on[1:], (~terminated).float().unsqueeze(0)]))
        each = [output.values[0]]
        if self._separate:
            assert output.intrinsic_values is not None
            each.append(output.intrinsic_values[0])
        if discount is None:
            assert self._numbers.discount is not None
            powers = torch.pow(self._numbers.discount, self._exponents)  # [n+1, 1]
        else:
            powers = discount.unsqueeze(0).pow(self._exponents)  # [n+1, B]
        alive = torch.cat([torch.ones_like(self._goes_on[:1]), self._goes_on.cumprod(0)])  # [n+1, B]
        sums = (powers[:n] * alive[:n] * self._rewards).sum(1)  # [channels, B]
        best = torch.stack([action_value(values, greedy) for values in each])
        if self._rescaling is not None:
            best = unrescale(best, self._rescaling)
        targets = sums + powers[n] * alive[n] * best
        if self._rescaling is not None:
            targets = rescale(targets, self._rescaling)
        errors = (targets - self._values[:, 0]).abs()
        error = errors[0] + weight * errors[1] if self._separate else errors[0]
        self._push(self._values, torch.stack([action_value(values, chosen) for values in each]).unsqueeze(1))
        return error.masked_fill(self._rows < n, 0.0)

    @staticmethod
    def _push(rows: Tensor, newest: Tensor) -> None:
        """Append [channels, 1, B] to [channels, n, B] and drop the oldest row."""
        rows.copy_(torch.cat([rows[:, 1:], newest], 1))
