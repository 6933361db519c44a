"""Accuracy and calibration of a world model, measured on sequences of real steps with the actions that were taken.

From the state after a real step, every member of the model predicts the states of the next steps, and with them the
target of a critic at each depth. The replay has the real states and rewards to compare with. For depths d = 1 … H:

    error_d     = √ mean ‖x̂_d − x_d‖² / mean ‖x_d − x_0‖²       1: no better than predicting no change
    target_d    = √ mean (mean T̂[d] − T[d])²                     error of the target of depth d
    spread_d    = √ mean var T̂[d]                                 standard deviation of the target over members
    calibration_d = rank correlation of (mean T̂ − T)² and var T̂   1: larger errors always have a larger variance

T[d] = κ Σ_{t<d} γ^t r_t + γ^d mean Q'(x_d, a_d) with real states and rewards, T̂[d] the same with predicted ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packtrain.networks.control import ControlNetwork
from packtrain.types import Trajectory


@torch.no_grad()
def calibration(
    network: ControlNetwork, stretches: Trajectory, discount: float, reward_scale: float = 1.0
) -> dict[str, Tensor]:
    """Return the four metrics of each depth, by name, as 0-d tensors.

    Args:
      network: of one run; its frozen model is asked, and its target critics.
      stretches: [H+1, N], N stretches of consecutive steps, none of which ended the task.
      discount: γ.
      reward_scale: κ, in whose units critics speak.
    """
    model = network.frozen
    assert model is not None
    obs, action = stretches.obs[:-1], stretches.action  # [H+1, N, ...] real observations x_0 … x_H and actions
    horizon, members = len(obs) - 1, model.transition.members
    own = action.unsqueeze(1).expand(-1, members, -1, -1).unsqueeze(0)  # [1, H+1, K, N, A]
    places = [obs[0].expand(1, members, -1, -1)]
    for t in range(horizon):
        places.append(model.move(places[t], own[:, t]))
    paid, _ = model.judge_rollout(torch.stack(places, 1), own[:, :horizon])  # [1, H, K, L, N]
    found: dict[str, Tensor] = {}
    guessed, real = paid.new_zeros(members, paid.shape[3], obs.shape[1]), obs.new_zeros(obs.shape[1])  # sums of rewards
    for depth in range(1, horizon + 1):
        weight = reward_scale * discount ** (depth - 1)
        guessed = guessed + weight * paid[0, depth - 1]
        real = real + weight * stretches.reward[depth - 1]
        place, truth = places[depth][0], obs[depth]  # [K, N, D], [N, D]
        moved = (truth - obs[0]).square().sum(-1).mean()
        found[f"model/error_{depth}"] = ((place - truth).square().sum(-1).mean() / moved.clamp(min=1e-12)).sqrt()
        last = discount**depth
        value = network.value(network.target, truth[None], action[None, depth])[0].mean(0)  # [N]
        asked = network.value(network.target, place.flatten(0, 1)[None], own[0, depth].flatten(0, 1)[None])
        there = asked[0].mean(0).unflatten(0, (members, -1))  # [K, N]
        candidates = (guessed + last * there.unsqueeze(1)).flatten(0, 1)  # [K*L, N]
        wrong = (candidates.mean(0) - (real + last * value)).square()
        spread = candidates.var(0, correction=0)
        found[f"model/target_error_{depth}"] = wrong.mean().sqrt()
        found[f"model/target_spread_{depth}"] = spread.mean().sqrt()
        found[f"model/calibration_{depth}"] = rank_correlation(wrong, spread)
    return found


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return Spearman's rank correlation of two vectors [N]; 0 if one of them is constant."""
    ranks = [leaf.argsort().argsort().double() for leaf in (a, b)]
    x, y = (rank - rank.mean() for rank in ranks)
    same = (a == a[0]).all() | (b == b[0]).all()
    return torch.where(same, 0.0, (x * y).sum() / (x.norm() * y.norm()).clamp(min=1e-12)).float()
