"""Targets of action values over sequences: n-step double Q-learning, Retrace(λ), Peng's Q(λ); optionally rescaled.

All three take the same rows. Row t of T holds action t in a_tm1[t] and its answer in r_t[t] and discount_t[t]; action
values have T+1 rows, of which row t+1 is where action t led, so that the last one is for bootstrapping. Ends are as in
`boundaries`: at a truncation row t+1 is the final observation and is bootstrapped from, at a termination discount_t is
0 and nothing is. Nothing is summed over a row where continue_t is 0: what comes nearer to an end, of an episode or of
the sequence, than the return is long gets a shorter return. Every step has a target.

Where `rescaling` is given, networks speak in values h(Q) (`rescale`), returns are summed in the units of rewards, and
the target is squashed again: h(… h⁻¹(Q) …). TD errors are then differences of squashed values.

Double Q-learning: van Hasselt et al. 2016 (arXiv:1509.06461). R2D2: Kapturowski et al. 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from packtrain.equations.rescale import rescale, unrescale
from packtrain.equations.scan import reverse_linear_scan
from packtrain.equations.shapes import assert_equal_shapes


def action_value(q: Tensor, action: Tensor) -> Tensor:
    """Return Q of the actions taken, [..., A] and [...] int64 → [...]; differentiable in q."""
    assert q.shape[:-1] == action.shape, f"{tuple(action.shape)} does not fit {tuple(q.shape)}"
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def greedy_value(q_target: Tensor, q_online: Tensor) -> Tensor:
    """Return the double Q-learning value q_target(argmax q_online), [..., A] twice → [...]."""
    assert q_target.shape == q_online.shape, f"shapes differ: {tuple(q_target.shape)} and {tuple(q_online.shape)}"
    return action_value(q_target, q_online.argmax(-1))


def epsilon_greedy_policy(q: Tensor, epsilon: float | Tensor = 0.0) -> Tensor:
    """Return ε-greedy probabilities, [..., A]: the first arg-max, or with probability ε any action, that one included.

    Args:
      q: [..., A].
      epsilon: ε, a number or [...] one for each row.

    Returns:
      [..., A] probabilities.
    """
    if isinstance(epsilon, Tensor):
        assert epsilon.shape == q.shape[:-1], f"{tuple(epsilon.shape)} does not fit {tuple(q.shape)}"
        epsilon = epsilon.unsqueeze(-1).to(q.dtype)
    greedy = torch.zeros_like(q).scatter(-1, q.argmax(-1, keepdim=True), 1.0)
    return (1 - epsilon) * greedy + epsilon / q.shape[-1]


def combined_q(
    q_extrinsic: Tensor, q_intrinsic: Tensor, beta: float | Tensor, rescaling: float | None = None
) -> Tensor:
    """Return the combined Q of extrinsic and intrinsic rewards (Agent57, arXiv:2003.13350, section 3.1).

        Q = Q_e + β Q_i,   rescaled  Q = h(h⁻¹(Q_e) + β h⁻¹(Q_i))

    Both heads' targets must be made with the greedy policy of this one: hand it to them as q_online.

    Args:
      q_extrinsic: [..., A].
      q_intrinsic: [..., A].
      beta: β, a number or [...] one for each row.
      rescaling: see `n_step_q_targets`.

    Returns:
      [..., A].
    """
    assert q_extrinsic.shape == q_intrinsic.shape, "shapes differ"
    if isinstance(beta, Tensor):
        assert beta.shape == q_extrinsic.shape[:-1], f"{tuple(beta.shape)} does not fit {tuple(q_extrinsic.shape)}"
        beta = beta.unsqueeze(-1)
    return _squash(_unsquash(q_extrinsic, rescaling) + beta * _unsquash(q_intrinsic, rescaling), rescaling)


@torch.no_grad()
def n_step_q_targets(
    q_online: Tensor,
    q_target: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    continue_t: Tensor,
    weight_t: Tensor,
    *,
    n: int,
    double: bool = True,
    rescaling: float | None = None,
) -> Tensor:
    """Return n-step Q-learning targets (Kapturowski et al. 2019, R2D2, section 2.3).

        y_t = h(Σ_{k=0}^{m−1} (Π_{i<k} γ_{t+i}) r_{t+k} + (Π_{i<m} γ_{t+i}) h⁻¹(Q'(x_{t+m}, a*)))

    with a* = argmax_a Q(x_{t+m}, a). m is n, or less where the sequence ends or continue_t is 0 before: always at least
    1. A termination within the m steps has γ = 0 and ends the sum, whatever Q' says there. A transition whose n rewards
    were summed when it was stored is the case T = 1, with the product of its discounts in discount_t and n = 1.

    Args:
      q_online: [T+1, B, A] what ranks the actions: the online network's values, or `combined_q`.
      q_target: [T+1, B, A] Q', what values them: the target network's.
      r_t: [T, B] reward for action t, raw where values are rescaled.
      discount_t: [T, B] γ, 0 where terminated.
      continue_t: [T, B] 0 where an episode or what is valid of the sequence ended after row t, else 1.
      weight_t: [T, B] 0 for filler and padding rows, else 1; those rows may hold anything, even NaN.
      n: steps, at least 1.
      double: a* by q_online; else by q_target, as in DQN.
      rescaling: ε of h; None for no rescaling.

    Returns:
      [T, B] targets, detached; 0 on filler rows.
    """
    assert n >= 1, f"n = {n}"
    v_t = _bootstrap_values(q_online, q_target, r_t, discount_t, continue_t, weight_t, double, rescaling)
    goes_on, worthless = continue_t > 0, discount_t == 0
    returns = v_t  # returns[t] is a return of up to k steps from row t+1 on
    for step in range(min(n, len(r_t))):
        after = v_t if step == 0 else torch.where(goes_on, torch.cat([returns[1:], v_t[-1:]]), v_t)
        returns = r_t + (discount_t * after).masked_fill(worthless, 0.0)
    return _squash(returns, rescaling).masked_fill(weight_t == 0, 0.0)


@torch.no_grad()
def peng_q_targets(
    q_online: Tensor,
    q_target: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    continue_t: Tensor,
    weight_t: Tensor,
    *,
    trace_lambda: float,
    double: bool = True,
    rescaling: float | None = None,
) -> Tensor:
    """Return Peng's Q(λ) targets (Peng and Williams 1996; Kozuno et al. 2021, arXiv:2103.00107).

        G_t = r_t + γ_t ((1 − λ) V(x_{t+1}) + λ G_{t+1}),   V(x) = h⁻¹(Q'(x, a*)),   y_t = h(G_t)

    and G_t = r_t + γ_t V(x_{t+1}) in the last row and where continue_t is 0. It is the mean of all n-step returns with
    weights (1 − λ) λ^{n−1}, the longest taking what is left; actions that were not greedy are not corrected for. λ = 0
    is one-step Q-learning, λ = 1 the longest n-step return.

    Args:
      q_online: see `n_step_q_targets`, as for all others that are not named here.
      q_target: [T+1, B, A].
      r_t: [T, B].
      discount_t: [T, B].
      continue_t: [T, B].
      weight_t: [T, B].
      trace_lambda: λ in [0, 1].
      double: a* by q_online.
      rescaling: ε of h.

    Returns:
      [T, B] targets, detached; 0 on filler rows.
    """
    v_t = _bootstrap_values(q_online, q_target, r_t, discount_t, continue_t, weight_t, double, rescaling)
    filler = weight_t == 0
    trace = trace_lambda * _trace_rows(continue_t)
    bootstrap = (discount_t * (1 - trace) * v_t).masked_fill(discount_t == 0, 0.0)
    returns = reverse_linear_scan((r_t + bootstrap).masked_fill(filler, 0.0), discount_t * trace)
    return _squash(returns, rescaling).masked_fill(filler, 0.0)


@torch.no_grad()
def retrace_q_targets(
    q_online: Tensor,
    q_target: Tensor,
    a_tm1: Tensor,
    behaviour_prob_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    continue_t: Tensor,
    weight_t: Tensor,
    *,
    trace_lambda: float = 0.95,
    target_epsilon: float = 0.0,
    double: bool = True,
    rescaling: float | None = None,
) -> Tensor:
    """Return Retrace(λ) targets (Munos et al. 2016, arXiv:1606.02647); rescaled as in NGU (arXiv:2002.06038).

        y_t = h(q(x_t, a_t) + Σ_{s≥t} (Π_{i=t+1}^{s} γ_{i−1} c_i) δ_s)
        δ_s = r_s + γ_s Σ_a π(a|x_{s+1}) q(x_{s+1}, a) − q(x_s, a_s)

    with q = h⁻¹(Q') and c_i = λ min(1, π(a_i|x_i) / μ(a_i|x_i)). π is ε-greedy, greedy by default: then a trace ends at
    the first action that was not. The sum ends with the sequence and where continue_t is 0.

    Args:
      q_online: see `n_step_q_targets`, as for all others that are not named here.
      q_target: [T+1, B, A].
      a_tm1: [T, B] int64 action t; any legal index on filler rows.
      behaviour_prob_tm1: [T, B] μ(a_t|x_t), what the actor's policy gave the action it took.
      r_t: [T, B].
      discount_t: [T, B].
      continue_t: [T, B].
      weight_t: [T, B].
      trace_lambda: λ in [0, 1].
      target_epsilon: ε of π.
      double: π by q_online; else by q_target.
      rescaling: ε of h.

    Returns:
      [T, B] targets, detached; 0 on filler rows.
    """
    _check(q_online, q_target, r_t, discount_t, continue_t, weight_t)
    assert_equal_shapes(2, a_tm1=a_tm1, behaviour_prob_tm1=behaviour_prob_tm1, r_t=r_t)
    filler = weight_t == 0
    policy = epsilon_greedy_policy(q_online if double else q_target, target_epsilon)  # [T+1, B, A]
    q = _unsquash(q_target, rescaling)
    expected = (policy * q).masked_fill(policy == 0, 0.0).sum(-1)  # 0 · inf is NaN
    q_tm1 = action_value(q[:-1], a_tm1)
    bootstrap = (discount_t * expected[1:]).masked_fill(discount_t == 0, 0.0)
    delta_t = (r_t + bootstrap - q_tm1).masked_fill(filler, 0.0)
    tiny = torch.finfo(behaviour_prob_tm1.dtype).tiny
    ratio = action_value(policy[:-1], a_tm1) / behaviour_prob_tm1.clamp(min=tiny)
    c_tm1 = trace_lambda * ratio.clamp(max=1.0).masked_fill(filler, 0.0)
    c_t = torch.cat([c_tm1[1:], torch.zeros_like(c_tm1[:1])])  # the trace over row t is that of the action after it
    returns = q_tm1 + reverse_linear_scan(delta_t, discount_t * _trace_rows(continue_t) * c_t)
    return _squash(returns, rescaling).masked_fill(filler, 0.0)


def td_errors(q: Tensor, a_tm1: Tensor, targets: Tensor, weight_t: Tensor) -> Tensor:
    """Return y_t − Q(x_t, a_t); on filler rows, value and gradient are 0.

    Args:
      q: [T, B, A] or [T+1, B, A], online network; a row for bootstrapping is not looked at.
      a_tm1: [T, B] int64 action t.
      targets: [T, B]; takes no gradient.
      weight_t: [T, B] 0 for filler and padding rows, else 1.

    Returns:
      [T, B], differentiable in q.
    """
    assert_equal_shapes(2, a_tm1=a_tm1, targets=targets, weight_t=weight_t)
    assert len(q) - len(targets) in (0, 1), f"{tuple(q.shape)} does not fit {tuple(targets.shape)}"
    return (targets.detach() - action_value(q[: len(targets)], a_tm1)).masked_fill(weight_t == 0, 0.0)


def sequence_losses(td_error: Tensor, weight_t: Tensor, huber: float | None = None, reduction: str = "mean") -> Tensor:
    """Return the loss of each sequence: sum or mean of ½ δ² over its valid steps, 0 if it has none.

    "sum" is that of SEED's and Acme's R2D2: the gradient grows with the length of a sequence, and Adam's ε and the norm
    at which gradients are clipped are tied to it.

    Args:
      td_error: [T, B] 0 on filler rows, as `td_errors` leaves them.
      weight_t: [T, B] 0 for filler and padding rows, else 1.
      huber: from which |δ| on the loss is linear; None: nowhere. 1 is DQN's clipped error.
      reduction: over the steps of a sequence, "sum" or "mean".

    Returns:
      [B], to be weighted by importance and averaged.
    """
    assert_equal_shapes(2, td_error=td_error, weight_t=weight_t)
    none = torch.zeros_like(td_error)
    loss = 0.5 * td_error.square() if huber is None else huber_loss(td_error, none, reduction="none", delta=huber)
    total = (loss.masked_fill(weight_t == 0, 0.0) * weight_t).sum(0)
    if reduction == "sum":
        return total
    if reduction == "mean":
        return total / weight_t.sum(0).clamp(min=1)
    raise ValueError(f"reduction is {reduction!r}, expected sum or mean")


def _check(
    q_online: Tensor, q_target: Tensor, r_t: Tensor, discount_t: Tensor, continue_t: Tensor, weight_t: Tensor
) -> None:
    assert_equal_shapes(2, r_t=r_t, discount_t=discount_t, continue_t=continue_t, weight_t=weight_t)
    assert_equal_shapes(3, q_online=q_online, q_target=q_target)
    assert q_target.shape[:2] == (len(r_t) + 1, r_t.shape[1]), (
        f"values of {tuple(q_target.shape)} do not have one row more than rewards of {tuple(r_t.shape)}"
    )


def _bootstrap_values(
    q_online: Tensor,
    q_target: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    continue_t: Tensor,
    weight_t: Tensor,
    double: bool,
    rescaling: float | None,
) -> Tensor:
    """Return V(x_{t+1}) of the greedy action in the units of rewards, [T, B]."""
    _check(q_online, q_target, r_t, discount_t, continue_t, weight_t)
    return _unsquash(greedy_value(q_target[1:], (q_online if double else q_target)[1:]), rescaling)


def _trace_rows(continue_t: Tensor) -> Tensor:
    """Return continue_t with 0 in the last row, which has no successor."""
    return torch.cat([continue_t[:-1], torch.zeros_like(continue_t[:1])])


def _squash(values: Tensor, rescaling: float | None) -> Tensor:
    return values if rescaling is None else rescale(values, rescaling)


def _unsquash(values: Tensor, rescaling: float | None) -> Tensor:
    return values if rescaling is None else unrescale(values, rescaling)
