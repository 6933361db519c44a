"""Human-normalised Atari scores, and the Atari-5 and Atari-10 estimates of the median over 57 games.

    HNS = (score − random) / (human − random)

The random and human scores are those of Wang et al. 2016 (arXiv:1511.06581, no-op starts), extended to 57 games by
Badia et al. 2020 (arXiv:2003.13350); the table was compared with DQN Zoo's `atari_data.py`.

The estimates are those of Aitchison et al. 2023 (arXiv:2210.02019), from five or ten games:

    median57 ≈ 10^(Σ cᵢ · log₁₀(1 + max(0, 100 · HNSᵢ))) − 1    in percent
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

# Game: scores of a random player and of a human one.
SCORES: dict[str, tuple[float, float]] = {
    "Alien": (227.8, 7127.7),
    "Amidar": (5.8, 1719.5),
    "Assault": (222.4, 742.0),
    "Asterix": (210.0, 8503.3),
    "Asteroids": (719.1, 47388.7),
    "Atlantis": (12850.0, 29028.1),
    "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5),
    "BeamRider": (363.9, 16926.5),
    "Berzerk": (123.7, 2630.4),
    "Bowling": (23.1, 160.7),
    "Boxing": (0.1, 12.1),
    "Breakout": (1.7, 30.5),
    "Centipede": (2090.9, 12017.0),
    "ChopperCommand": (811.0, 7387.8),
    "CrazyClimber": (10780.5, 35829.4),
    "Defender": (2874.5, 18688.9),
    "DemonAttack": (152.1, 1971.0),
    "DoubleDunk": (-18.6, -16.4),
    "Enduro": (0.0, 860.5),
    "FishingDerby": (-91.7, -38.7),
    "Freeway": (0.0, 29.6),
    "Frostbite": (65.2, 4334.7),
    "Gopher": (257.6, 2412.5),
    "Gravitar": (173.0, 3351.4),
    "Hero": (1027.0, 30826.4),
    "IceHockey": (-11.2, 0.9),
    "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0),
    "Krull": (1598.0, 2665.5),
    "KungFuMaster": (258.5, 22736.3),
    "MontezumaRevenge": (0.0, 4753.3),
    "MsPacman": (307.3, 6951.6),
    "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6),
    "Pitfall": (-229.4, 6463.7),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0),
    "Riverraid": (1338.5, 17118.0),
    "RoadRunner": (11.5, 7845.0),
    "Robotank": (2.2, 11.9),
    "Seaquest": (68.4, 42054.7),
    "Skiing": (-17098.1, -4336.9),
    "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148.0, 1668.7),
    "StarGunner": (664.0, 10250.0),
    "Surround": (-10.0, 6.5),
    "Tennis": (-23.8, -8.3),
    "TimePilot": (3568.0, 5229.2),
    "Tutankham": (11.4, 167.6),
    "UpNDown": (533.4, 11693.2),
    "Venture": (0.0, 1187.5),
    "VideoPinball": (16256.9, 17667.9),
    "WizardOfWor": (563.5, 4756.5),
    "YarsRevenge": (3092.9, 54576.9),
    "Zaxxon": (32.5, 9173.3),
}

# Weights of the games in each estimate.
SUBSETS: dict[str, dict[str, float]] = {
    "Atari-5": {"BattleZone": 0.3820, "DoubleDunk": 0.0679, "NameThisGame": 0.3108, "Phoenix": 0.1241, "Qbert": 0.0805},
    "Atari-10": {
        "Amidar": 0.0825,
        "Bowling": 0.0559,
        "Frostbite": 0.0691,
        "KungFuMaster": 0.0986,
        "Riverraid": 0.0486,
        "BattleZone": 0.1888,
        "DoubleDunk": 0.0852,
        "NameThisGame": 0.1287,
        "Phoenix": 0.1643,
        "Qbert": 0.0592,
    },
}

_ID = re.compile(r"(?:ALE/)?([A-Za-z]+?)(?:Deterministic|NoFrameskip)?-v(\d+)")


def game_of(env_id: str) -> str | None:
    """Return the game of an Atari environment id, such as "ALE/Pong-v5" or "PongNoFrameskip-v4"; None for others."""
    match = _ID.fullmatch(env_id)
    return match[1] if match and match[1] in SCORES else None


def human_normalised(game: str, score: float) -> float:
    """Return 0 for a random player's score and 1 for a human's, linear between and beyond."""
    random, human = SCORES[game]
    return (score - random) / (human - random)


def estimate_median(subset: str, normalised: Mapping[str, float]) -> float | None:
    """Estimate the median human-normalised score over 57 games; None if a game of the subset is missing.

    Args:
      subset: "Atari-5" or "Atari-10".
      normalised: {game: human-normalised score}, 1 for a human.
    """
    weights = SUBSETS[subset]
    if not weights.keys() <= normalised.keys():
        return None
    logs = [weight * math.log10(1 + max(0.0, 100 * normalised[game])) for game, weight in weights.items()]
    return (10 ** math.fsum(logs) - 1) / 100
