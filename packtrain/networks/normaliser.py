"""Normalisation of observations by running mean and deviation, whose statistics are saved with the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from packtrain.equations.novelty import Moments, add_to_moments, no_moments

EPSILON = 1e-8  # added to variances
CLIP = 10.0  # clip value of normalised observations, in standard deviations


class RunningNormaliser(nn.Module):
    """(x − mean) / deviation of all vectors seen so far, clipped to ±10; the identity before the first.

    The statistics are buffers: they are saved, published and loaded with the weights, so that evaluations and exported
    policies use what training saw.
    """

    number: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, width: int):
        super().__init__()
        for name, moment in no_moments(width)._asdict().items():
            self.register_buffer(name, moment)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width] → [N, width] float32."""
        return _standardised(x, self.number, self.mean, self.m2)

    @torch.no_grad()
    def add(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Update the moments with vectors [N, width]; those of weight [N] 0 do not count."""
        weight = torch.ones_like(x[:, 0]) if weight is None else weight
        moments = add_to_moments(Moments(self.number, self.mean, self.m2), x, weight)
        for name, moment in moments._asdict().items():
            getattr(self, name).copy_(moment)


class StackedNormaliser(nn.Module):
    """A `RunningNormaliser` for networks with the axis of runs in front: every run has its own statistics."""

    number: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, width: int):
        super().__init__()
        for name, moment in no_moments(width)._asdict().items():
            self.register_buffer(name, moment.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        """[R, ..., width] → [R, ..., width] float32."""
        ones = [1] * (x.ndim - 2)
        number = self.number.view(-1, *ones, 1)
        mean, m2 = (moment.view(len(moment), *ones, -1) for moment in (self.mean, self.m2))
        return _standardised(x, number, mean, m2)

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """Update the moments of each run with its vectors [R, N, width]."""
        for run, rows in enumerate(x):
            moments = Moments(self.number[run], self.mean[run], self.m2[run])
            for name, moment in add_to_moments(moments, rows, torch.ones_like(rows[:, 0]))._asdict().items():
                getattr(self, name)[run].copy_(moment)


def _standardised(x: Tensor, number: Tensor, mean: Tensor, m2: Tensor) -> Tensor:
    variance = torch.where(number > 0, m2 / number.clamp(min=1), 1.0)
    return ((x - mean) * (variance + EPSILON).rsqrt()).clamp(-CLIP, CLIP).float()
