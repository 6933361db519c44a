"""The backward linear recursion of returns, in log2(T) steps."""

from __future__ import annotations

import torch
from torch import Tensor


def reverse_linear_scan(x: Tensor, decay: Tensor) -> Tensor:
    """Return the solution of a first-order linear recursion that runs backward in time.

        y_t = x_t + decay_t · y_{t+1},   y_T = 0 past the end

    which is y_t = Σ_{k≥t} (Π_{i=t}^{k-1} decay_i) x_k. A decay of 0 at row t cuts the sum after row t.

    Computed by doubling (Hillis and Steele 1986): when each y_t holds its first `span` terms and each product its
    `span` factors, one vectorised step joins row t with row t + span. No Python loop over T, and no division, so that
    decays of 0 and products that underflow are harmless. Differentiable in both arguments.

    Args:
      x: [T, ...] what each row adds.
      decay: [T, ...] how much of the next row's result survives; the last row's decay has nothing to act on.

    Returns:
      [T, ...] y.
    """
    assert x.shape == decay.shape and x.dim() >= 1, f"shapes differ: {tuple(x.shape)} and {tuple(decay.shape)}"
    length = x.shape[0]
    y, product = x, decay  # product[t] = Π decay[t : t + span], kept for the rows that still have a partner
    span = 1
    while span < length:
        partnered = length - span
        y = torch.cat([y[:partnered] + product[:partnered] * y[span:], y[partnered:]])
        still_partnered = max(partnered - span, 0)
        product = product[:still_partnered] * product[span : span + still_partnered]
        span *= 2
    return y
