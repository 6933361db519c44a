"""V-trace: off-policy correction of value targets and policy-gradient advantages.

Espeholt et al. 2018, IMPALA (arXiv:1802.01561). The paper writes V(x_s), r_s, γ_s for row s; here the source of a row
is `_tm1` and its destination `_t`, so that row t holds V(x_t) in v_tm1[t], the answer to action t in r_t[t] and
discount_t[t], and V(x_{t+1}) in v_t[t].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from packtrain.equations.scan import reverse_linear_scan
from packtrain.equations.shapes import assert_equal_shapes

MAX_LOG_RHO = 20.0
"""Log-ratios are clamped here before exp: e^20 = 5e8 is beyond any useful clip and far from float32's overflow."""


class VTrace(NamedTuple):
    """V-trace targets and advantages, both detached."""

    targets: Tensor  # [T, B] v_s, target of the value of row s
    advantages: Tensor  # [T, B] factor of the gradient of log π(a_s|x_s); 0 on filler rows


@torch.no_grad()
def vtrace_targets(
    v_tm1: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    rho_tm1: Tensor,
    continue_t: Tensor,
    *,
    rho_bar: float | None = 1.0,
    c_bar: float = 1.0,
    trace_lambda: float = 1.0,
) -> Tensor:
    """Return V-trace value targets (Espeholt et al. 2018, arXiv:1802.01561, equation 1).

        v_s = V(x_s) + Σ_{t≥s} (Π_{i=s}^{t-1} γ_i c_i) ρ_t (r_t + γ_t V(x_{t+1}) − V(x_t))

    with ρ_t = min(rho_bar, rho) and c_t = trace_lambda · continue_t · min(c_bar, rho). The sum ends with the unroll
    and, where continue_t is 0, with the episode; its last term bootstraps from v_t, which discount_t silences where
    the task terminated. On-policy (rho = 1, trace_lambda = 1) v_s is the n-step return with bootstrap.

    Args:
      v_tm1: [T, B] V(x_t), learner's weights.
      v_t: [T, B] V(x_{t+1}); at a truncation the value of the final observation.
      r_t: [T, B] reward for action t.
      discount_t: [T, B] γ, 0 where terminated.
      rho_tm1: [T, B] target over behaviour probability of the action taken; 0 on filler rows, whose target is then V.
      continue_t: [T, B] 0 where an episode ended after row t, else 1.
      rho_bar: clips ρ and so decides which policy's value is the fixed point; None for no clipping.
      c_bar: clips c, the length of the traces; the fixed point does not depend on it.
      trace_lambda: λ, 0 gives one-step targets, 1 the paper's experiments.

    Returns:
      [T, B] targets, detached.
    """
    assert_equal_shapes(2, v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, rho_tm1=rho_tm1, continue_t=continue_t)
    delta_t = _clip(rho_tm1, rho_bar) * (r_t + discount_t * v_t - v_tm1)
    c_t = trace_lambda * continue_t * rho_tm1.clamp(max=c_bar)
    return v_tm1 + reverse_linear_scan(delta_t, discount_t * c_t)


@torch.no_grad()
def vtrace_advantages(
    v_tm1: Tensor,
    vs_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    rho_tm1: Tensor,
    *,
    pg_rho_bar: float | None = 1.0,
) -> Tensor:
    """Return V-trace policy-gradient advantages (Espeholt et al. 2018, arXiv:1802.01561, section 4.2).

        A_s = min(pg_rho_bar, rho_s) · (r_s + γ_s v_{s+1} − V(x_s))

    What v_{s+1} is, row by row: inside an episode the V-trace target of row s+1; in the last row of the unroll the
    bootstrap value V(x_T), since no target exists there; at a truncation the value of the final observation, v_t[s];
    at a termination anything, since γ_s is 0. In our stream the row after a truncation is a filler with rho 0, so its
    target equals its value, which is that of the final observation: both readings of the truncated case agree.

    Args:
      v_tm1: [T, B] V(x_t), learner's weights.
      vs_t: [T, B] v_{t+1} as above; `vtrace` builds it.
      r_t: [T, B] reward for action t.
      discount_t: [T, B] γ, 0 where terminated.
      rho_tm1: [T, B] target over behaviour probability of the action taken; 0 on filler rows.
      pg_rho_bar: clips rho; None for no clipping.

    Returns:
      [T, B] advantages, detached.
    """
    assert_equal_shapes(2, v_tm1=v_tm1, vs_t=vs_t, r_t=r_t, discount_t=discount_t, rho_tm1=rho_tm1)
    return _clip(rho_tm1, pg_rho_bar) * (r_t + discount_t * vs_t - v_tm1)


@torch.no_grad()
def vtrace(
    v_tm1: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    log_rho_tm1: Tensor,
    continue_t: Tensor,
    weight_t: Tensor,
    *,
    rho_bar: float | None = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float | None = 1.0,
    trace_lambda: float = 1.0,
) -> VTrace:
    """Return targets and advantages of one unroll, from log-ratios and the `boundaries` of each row.

    Log-ratios are clamped to MAX_LOG_RHO, so the results are finite even without clipping. Filler rows are silenced
    before anything is computed: whatever reward and log-ratio they hold (even NaN), their rho is 0, so their target is
    V, their advantage is 0, and no other row sees them.

    Args:
      v_tm1: [T, B] V(x_t), learner's weights.
      v_t: [T, B] V(x_{t+1}); at a truncation the value of the final observation.
      r_t: [T, B] reward for action t.
      discount_t: [T, B] γ, 0 where terminated.
      log_rho_tm1: [T, B] log π(a_t|x_t) − log μ(a_t|x_t), target minus behaviour.
      continue_t: [T, B] 0 where an episode ended after row t, else 1.
      weight_t: [T, B] 0 for filler rows, else 1.
      rho_bar: see `vtrace_targets`.
      c_bar: see `vtrace_targets`.
      pg_rho_bar: see `vtrace_advantages`.
      trace_lambda: see `vtrace_targets`.

    Returns:
      VTrace of [T, B], detached.
    """
    assert_equal_shapes(
        2,
        v_tm1=v_tm1,
        v_t=v_t,
        r_t=r_t,
        discount_t=discount_t,
        log_rho_tm1=log_rho_tm1,
        continue_t=continue_t,
        weight_t=weight_t,
    )
    filler = weight_t == 0
    r_t = r_t.masked_fill(filler, 0.0)
    rho_tm1 = log_rho_tm1.clamp(max=MAX_LOG_RHO).exp().masked_fill(filler, 0.0)
    targets = vtrace_targets(
        v_tm1, v_t, r_t, discount_t, rho_tm1, continue_t, rho_bar=rho_bar, c_bar=c_bar, trace_lambda=trace_lambda
    )
    next_targets = torch.cat([targets[1:], v_t[-1:]])
    vs_t = torch.where(continue_t > 0, next_targets, v_t)
    return VTrace(targets, vtrace_advantages(v_tm1, vs_t, r_t, discount_t, rho_tm1, pg_rho_bar=pg_rho_bar))


def _clip(rho: Tensor, bound: float | None) -> Tensor:
    return rho if bound is None else rho.clamp(max=bound)
