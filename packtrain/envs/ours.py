"""Our own environments under Gymnasium ids. Importing this module registers them."""

from __future__ import annotations

from packtrain.envs.functional import register

register("packtrain/Catch-v0", "packtrain.envs.catch:Catch")
register("packtrain/CartPole-v0", "packtrain.envs.cartpole:CartPole")
register("packtrain/PointMass-v0", "packtrain.envs.point_mass:PointMass")
