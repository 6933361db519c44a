"""Parameters of policy families: each actor's ε, and each arm's novelty weight and discount.

Ape-X: Horgan et al. 2018 (arXiv:1803.00933). NGU: Badia et al. 2020 (arXiv:2002.06038). Agent57: Badia et al. 2020
(arXiv:2003.13350). Made once, in float64, and handed out as float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def actor_epsilons(actors: int, base: float = 0.4, alpha: float = 7.0) -> Tensor:
    """Return each actor's probability of a random action (Horgan et al. 2018, section 4.1).

        ε_i = base^(1 + α i / (N − 1))

    Args:
      actors: N, all actors of the run: their indices are global.
      base: ε of actor 0.
      alpha: ε of the last one is base^(1 + α).

    Returns:
      [N] float32; base alone for one actor.
    """
    assert actors >= 1, f"actors = {actors}"
    share = torch.arange(actors, dtype=torch.float64) / max(actors - 1, 1)
    return torch.full_like(share, base).pow(1 + alpha * share).float()


def novelty_weights(arms: int = 32, largest: float = 0.3) -> Tensor:
    """Return each arm's weight of the intrinsic reward (Badia et al. 2020, NGU); Agent57's are the same.

        β_0 = 0,   β_{N−1} = β,   β_j = β · σ(10 (2j − (N − 2)) / (N − 2)) between

    Args:
      arms: N, at least 2: one that only exploits and one that explores.
      largest: β.

    Returns:
      [N] float32, strictly increasing.
    """
    assert arms >= 2, f"arms = {arms}"
    j = torch.arange(arms, dtype=torch.float64)
    middle = max(arms - 2, 1)  # avoid division by zero with two arms
    weights = largest * torch.sigmoid(10 * (2 * j - middle) / middle)
    weights[0], weights[-1] = 0.0, largest
    return weights.float()


def ngu_discounts(arms: int = 32, largest: float = 0.997, smallest: float = 0.99) -> Tensor:
    """Return each arm's discount (Badia et al. 2020, NGU): 1 − γ evenly spaced in logarithms.

        γ_i = 1 − exp(((N − 1 − i) ln(1 − γ_max) + i ln(1 − γ_min)) / (N − 1))

    Args:
      arms: N, at least 2.
      largest: γ_max, of arm 0, which exploits.
      smallest: γ_min, of the last arm.

    Returns:
      [N] float32, decreasing.
    """
    assert arms >= 2, f"arms = {arms}"
    return _log_spaced(arms, largest, smallest).float()


def agent57_discounts(
    arms: int = 32, longest: float = 0.9999, middle: float = 0.997, smallest: float = 0.99, ordered: bool = False
) -> Tensor:
    """Return each arm's discount in Agent57 (Badia et al. 2020, arXiv:2003.13350).

        γ_0 = g0
        γ_j = g1 + (g0 − g1) σ(10 (2j − 6) / 6)                           1 ≤ j ≤ 6
        γ_7 = g1
        γ_j = 1 − exp(ln(1 − g1) + (j − 8) (ln(1 − g2) − ln(1 − g1)) / (N − 9))   8 ≤ j

    As printed it falls from g0 to nearly g1 at arm 1, rises to g0 again at arm 6 and only then falls to g2.

    Args:
      arms: N, at least 10.
      longest: g0.
      middle: g1.
      smallest: g2, of the last arm.
      ordered: sorted so that the discount falls as the weight of novelty rises.

    Returns:
      [N] float32.
    """
    assert arms >= 10, f"arms = {arms}"
    j = torch.arange(1, 7, dtype=torch.float64)
    rising = middle + (longest - middle) * torch.sigmoid(10 * (2 * j - 6) / 6)
    ends = torch.tensor([longest, middle], dtype=torch.float64)
    discounts = torch.cat([ends[:1], rising, ends[1:], _log_spaced(arms - 8, middle, smallest)])
    return (discounts.sort(descending=True).values if ordered else discounts).float()


def _log_spaced(number: int, largest: float, smallest: float) -> Tensor:
    """Return discounts from the largest to the smallest, with 1 − γ in a geometric series; [number] float64."""
    first, last = math.log1p(-largest), math.log1p(-smallest)
    return 1 - torch.linspace(first, last, number, dtype=torch.float64).exp()
