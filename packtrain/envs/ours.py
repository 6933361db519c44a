"""Our own environments under Gymnasium ids. Importing this module registers them."""

from __future__ import annotations

from packtrain.envs.functional import register

register("packtrain/Catch-v0", "packtrain.envs.catch:Catch")
register("packtrain/CartPole-v0", "packtrain.envs.cartpole:CartPole")
register("packtrain/PointMass-v0", "packtrain.envs.point_mass:PointMass")
register("packtrain/Hanoi-v0", "packtrain.envs.hanoi:Hanoi")
register("packtrain/BitFlipper-v0", "packtrain.envs.bit_flipper:BitFlipper")
register("packtrain/SlidingPuzzle-v0", "packtrain.envs.sliding_puzzle:SlidingPuzzle")
register("packtrain/DeepSea-v0", "packtrain.envs.deep_sea:DeepSea")
register("packtrain/Sokoban-v0", "packtrain.envs.sokoban:Sokoban")
register("packtrain/ToyMR-v0", "packtrain.envs.toy_mr:ToyMR")
