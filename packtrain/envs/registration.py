"""Registers the built-in environments with Gymnasium as "packtrain/NAME-v0" when it is imported."""

from __future__ import annotations

import gymnasium as gym

from packtrain.envs.functional import register

CORES = {
    "Catch": "packtrain.envs.catch:Catch",
    "CartPole": "packtrain.envs.cartpole:CartPole",
    "PointMass": "packtrain.envs.point_mass:PointMass",
    "Pendulum": "packtrain.envs.pendulum:Pendulum",
    "Hanoi": "packtrain.envs.hanoi:Hanoi",
    "BitFlipper": "packtrain.envs.bit_flipper:BitFlipper",
    "SlidingPuzzle": "packtrain.envs.sliding_puzzle:SlidingPuzzle",
    "DeepSea": "packtrain.envs.deep_sea:DeepSea",
    "KeyDoor": "packtrain.envs.key_door:KeyDoor",
    "Sokoban": "packtrain.envs.sokoban:Sokoban",
    "BoatRace": "packtrain.envs.boat_race:BoatRace",
    "SideEffects": "packtrain.envs.side_effects:SideEffects",
    "Counterfeit": "packtrain.envs.counterfeit:Counterfeit",
    "ToyMR": "packtrain.envs.toy_mr:ToyMR",
    "Octomaze": "packtrain.envs.octomaze:Octomaze",
    "BinPacking": "packtrain.envs.bin_packing:BinPacking",
    "Simulator": "packtrain.envs.simulator:Simulator",
    "AtariSimulator": "packtrain.envs.atari_simulator:AtariSimulator",
    "HalfCheetah": "packtrain.envs.half_cheetah:HalfCheetah",
}

ENVIRONMENTS = {  # ordinary Gymnasium environments, with the length of an episode
    "HumanoidRun": ("packtrain.envs.humanoid_run:HumanoidRun", 1000),
    "HumanoidFlagrun": ("packtrain.envs.humanoid_run:HumanoidFlagrun", 1000),
}

for _name, _core in CORES.items():
    register(f"packtrain/{_name}-v0", _core)

for _name, (_entry_point, _steps) in ENVIRONMENTS.items():
    if f"packtrain/{_name}-v0" not in gym.registry:
        gym.register(f"packtrain/{_name}-v0", entry_point=_entry_point, max_episode_steps=_steps)
