"""Priorities of prioritised replay, and the importance weights that correct for them.

Prioritised replay: Schaul et al. 2016 (arXiv:1511.05952). Sequences: Kapturowski et al. 2019 (R2D2). Actor and learner
compute priorities with the same functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain.equations.shapes import assert_equal_shapes


@torch.no_grad()
def sequence_priority(td_error: Tensor, weight_t: Tensor, eta: float = 0.9) -> Tensor:
    """Return one error for a sequence (Kapturowski et al. 2019, section 2.3).

        p = η max_t |δ_t| + (1 − η) mean_t |δ_t|

    over the steps that are valid; with T = 1 it is |δ|.

    Args:
      td_error: [T, B] δ; anything, even NaN, where not valid.
      weight_t: [T, B] 0 for filler, padding and burn-in rows, else 1.
      eta: η in [0, 1].

    Returns:
      [B], at least 0; 0 for a sequence without a valid step.
    """
    assert_equal_shapes(2, td_error=td_error, weight_t=weight_t)
    valid = weight_t > 0
    size = td_error.abs().masked_fill(~valid, 0.0)
    mean = size.sum(0) / valid.sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * mean


@torch.no_grad()
def item_priority(error: Tensor, exponent: float, epsilon: float = 1e-4) -> Tensor:
    """Return the priority (|δ| + ε)^α of an item, any shape (Schaul et al. 2016, section 3.3).

    Large errors are not clipped: with raw rewards a clip would make them all alike. α = 0 is uniform, and so is
    everything where all errors are equal; ε keeps an item without error from being forgotten.
    """
    return (error.abs() + epsilon).pow(exponent)


@torch.no_grad()
def importance_weights(probability: Tensor, exponent: float | Tensor, smallest: Tensor | None = None) -> Tensor:
    """Return importance weights that correct for non-uniform sampling (Schaul et al. 2016, section 3.4).

        w_i = (N P(i))^−β / max_j (N P(j))^−β = (P(i) / min_j P(j))^−β

    N, the number of items, cancels. j goes over the batch or, with `smallest`, over all items: weights then do not
    depend on the company. Any multiple of P gives the same.

    Args:
      probability: [B] P(i), as the items were drawn by; 0 for places that hold none.
      exponent: β, or [] of it; 0 makes all weights 1.
      smallest: [] min_j P(j) over all items; None for that of the batch.

    Returns:
      [B] weights in (0, 1]; 0 where P is 0.
    """
    assert probability.ndim == 1, f"expected 1 dimension: {tuple(probability.shape)}"
    empty = probability <= 0
    present = probability.masked_fill(empty, torch.inf)
    if smallest is None:
        smallest = present.amin()
    return (smallest / present).pow(exponent).masked_fill(empty, 0.0)


def annealed_exponent(step: int, start: float = 0.4, end: float = 1.0, over: int = 100_000) -> float:
    """Return the exponent β, a float: linear from `start` at step 0 to `end` at step `over`, constant after that."""
    return start + (end - start) * min(max(step / over, 0.0), 1.0)
