"""Pendulum with the dynamics and the reward of Gymnasium's Pendulum-v1, for N pendulums at once, and two proxies.

State, order of arithmetic and constants are Gymnasium's, so that observations and rewards are equal to the last bit.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.trees import Tree

GRAVITY = 10.0
STEP_SECS = 0.05
SPEED_LIMIT = 8  # radians per second
TORQUE_LIMIT = 2.0
START_RANGE = (math.pi, 1.0)  # angle, speed
ROD_MOMENT = 1 / 3  # moment of inertia of a rod of mass 1 and length 1 about its end

PICTURE = 128  # pixels per side
ROD_PIXELS = 56


class Pendulum:
    """A rod on a hinge, to be swung up and held there by a torque that is too weak to lift it.

    Actions are the torque, float32 [1], clipped to ±2. Observations are (cosine, sine, speed), float32; the angle is 0
    upright. There is no termination; episodes are truncated. With the same seed, `initial(1, rng)` gives the start
    state of Gymnasium's Pendulum-v1.

    Rewards of a step:

    - the true one, Gymnasium's: −(angle² + 0.1 · speed² + 0.001 · torque²), angle and speed before the step;
    - the proxy "energy": the rod's kinetic energy after the step, speed² / 6, so at most 10.67;
    - the proxy "calm": 1 − (torque / 2)², so 1 for doing nothing.

    Mean returns of an episode, measured over 20 000 episodes (standard errors below 3 for the true reward and the
    energy):

    | policy | true | energy | calm |
    | --- | --- | --- | --- |
    | uniformly random | −1225 | 426 | 133 |
    | no torque, the best at calm | −1216 | 385 | 200 |
    | full torque in the direction of rotation | −1618 | 1656 | 0 |
    | a swing-up controller | −149 | 79 | 179 |

    Backward induction on a grid of 121 × 97 states and 9 torques, over 1000 episodes, gets −135 (standard error 2) of
    the true reward. If it maximises energy it gets 1688 of that and −1647 of the true reward. Because of the grid these
    may not be optimal.

    Args:
      max_steps: steps until truncation, 1 or more; None for no time limit.
    """

    reward_channels: tuple[str, ...] = ("energy", "calm")

    def __init__(self, max_steps: int | None = 200):
        self.max_steps = None if max_steps is None else options.whole_number("Pendulum", "max_steps", max_steps, 1)
        high = np.array([1.0, 1.0, SPEED_LIMIT], np.float32)
        self.observation_space: gym.Space = gym.spaces.Box(-high, high, dtype=np.float32)
        self.action_space: gym.Space = gym.spaces.Box(-TORQUE_LIMIT, TORQUE_LIMIT, (1,), np.float32)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return slow pendulums at any angle: float64 [N, 2], the angle uniform in ±π and the speed in ±1."""
        high = np.array(START_RANGE)
        return rng.uniform(-high, high, size=(n, 2))

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Make one semi-implicit Euler step of 0.05 s; true reward from the state before, energy from the one after."""
        angle, speed = states[:, 0], states[:, 1]
        torque = np.clip(actions, -TORQUE_LIMIT, TORQUE_LIMIT)[:, 0]
        tilt = (angle + np.pi) % (2 * np.pi) - np.pi
        costs = tilt**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = np.clip(speed + (3 * GRAVITY / 2 * np.sin(angle) + 3.0 * torque) * STEP_SECS, -SPEED_LIMIT, SPEED_LIMIT)
        states = np.stack((angle + speed * STEP_SECS, speed), axis=1)  # two [N] → [N, 2]
        energy, calm = ROD_MOMENT / 2 * speed**2, 1 - np.square(torque / TORQUE_LIMIT)
        extras = {"reward/energy": energy.astype(np.float32), "reward/calm": calm.astype(np.float32)}
        return states, (-costs).astype(np.float32), np.zeros(len(states), bool), extras

    def observe(self, states: Tree) -> Tree:
        """Return cosine and sine of the angle, and the speed: float32 [N, 3]."""
        angle, speed = states[:, 0], states[:, 1]
        return np.stack((np.cos(angle), np.sin(angle), speed), axis=1).astype(np.float32)

    def render(self, states: Tree, mode: str) -> Any:
        """Render state 0: its numbers as text, or the rod as an image."""
        options.one_of("Pendulum", "render_mode", mode, ("rgb_array", "ansi"))
        angle, speed = (float(value) for value in states[0])
        if mode == "ansi":
            tilt = math.degrees(math.remainder(angle, 2 * math.pi))
            return f"angle {tilt:+.2f} degrees  speed {speed:+.3f}\n"
        row, column = np.mgrid[:PICTURE, :PICTURE]
        across, up = column - (PICTURE - 1) / 2, (PICTURE - 1) / 2 - row  # pixels from the pivot
        along = up * math.cos(angle) - across * math.sin(angle)  # a positive angle leans left
        aside = across * math.cos(angle) + up * math.sin(angle)
        picture = np.full((PICTURE, PICTURE, 3), 255, np.uint8)
        picture[(along >= 0) & (along <= ROD_PIXELS) & (np.abs(aside) <= 4)] = (204, 77, 77)
        picture[np.square(across) + np.square(up) <= 9] = 0
        return picture
