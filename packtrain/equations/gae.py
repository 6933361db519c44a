"""Generalised advantage estimation: an exponentially weighted average of n-step advantages.

Schulman et al. 2016 (arXiv:1506.02438). The paper writes V(s_t), r_t, V(s_{t+1}); here these are v_tm1[t], r_t[t] and
v_t[t], as in `vtrace`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from packtrain.equations.scan import reverse_linear_scan
from packtrain.equations.shapes import assert_equal_shapes


class Advantages(NamedTuple):
    """Advantages and value targets of an unroll, both detached."""

    advantages: Tensor  # [T, B] 0 on filler rows
    targets: Tensor  # [T, B] targets of the value of row t: V + advantage


@torch.no_grad()
def gae(
    v_tm1: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    continue_t: Tensor,
    weight_t: Tensor,
    *,
    trace_lambda: float = 0.95,
) -> Advantages:
    """Return advantages and value targets of one unroll (Schulman et al. 2016, equation 16); ends as in `boundaries`.

        A_t = Σ_{k≥t} (Π_{i=t}^{k-1} γ_i λ continue_i) (r_k + γ_k V(x_{k+1}) − V(x_k))

    The sum ends with the unroll and, where continue_t is 0, with the episode; its last term bootstraps from v_t, which
    discount_t silences where the task terminated. Whatever filler rows hold (even NaN rewards), their advantage is 0
    and no other row sees them.

    Args:
      v_tm1: [T, B] V(x_t).
      v_t: [T, B] V(x_{t+1}); at a truncation the value of the final observation.
      r_t: [T, B] reward for action t.
      discount_t: [T, B] γ, 0 where terminated.
      continue_t: [T, B] 0 where an episode ended after row t, else 1.
      weight_t: [T, B] 0 for filler rows, else 1.
      trace_lambda: λ, 0 gives one-step advantages, 1 Monte Carlo's.

    Returns:
      Advantages of [T, B], detached.
    """
    assert_equal_shapes(
        2, v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, continue_t=continue_t, weight_t=weight_t
    )
    delta_t = (r_t + discount_t * v_t - v_tm1).masked_fill(weight_t == 0, 0.0)
    advantages = reverse_linear_scan(delta_t, trace_lambda * discount_t * continue_t)
    return Advantages(advantages, v_tm1 + advantages)


@torch.no_grad()
def endless_gae(
    v_tm1: Tensor, v_t: Tensor, r_t: Tensor, weight_t: Tensor, *, discount: float, trace_lambda: float = 0.95
) -> Advantages:
    """Return the same for a reward that does not end with episodes: the steps form one endless stream.

    Burda et al. 2018 (arXiv:1810.12894), section 2.3: what an explorer finds after a reset is worth something to the
    step that led to it. Filler rows are not there: the step before one is followed by the reset's observation, not by
    the final one, and its sum goes on in the next episode, neither discounted nor cut by the filler.

    Where the unroll ends between the two, with a final observation in row T, its value is what is bootstrapped from.

    Args:
      v_tm1: [T, B] V(x_t).
      v_t: [T, B] V(x_{t+1}).
      r_t: [T, B] reward for action t.
      weight_t: [T, B] 0 for filler rows, else 1.
      discount: γ.
      trace_lambda: λ.

    Returns:
      Advantages of [T, B], detached; 0 and V on filler rows.
    """
    assert_equal_shapes(2, v_tm1=v_tm1, v_t=v_t, r_t=r_t, weight_t=weight_t)
    filler = weight_t == 0
    skipped = torch.cat([filler[1:], torch.zeros_like(filler[:1])])  # [T, B] the next row is a filler
    # V of the next row that is no filler
    v_next = reverse_linear_scan(v_t.masked_fill(skipped, 0.0), skipped.to(v_t.dtype))
    delta_t = (r_t + discount * v_next - v_tm1).masked_fill(filler, 0.0)
    decay = torch.full_like(r_t, discount * trace_lambda).masked_fill(filler, 1.0)
    advantages = reverse_linear_scan(delta_t, decay).masked_fill(filler, 0.0)
    return Advantages(advantages, v_tm1 + advantages)
