"""CartPole with the dynamics of Gymnasium's CartPole-v1, for N carts at once.

Barto, Sutton and Anderson 1983, "Neuronlike adaptive elements that can solve difficult learning control problems".
State, order of arithmetic and constants are Gymnasium's, so that observations are equal to the last bit.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.trees import Tree

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
TOTAL_MASS = POLE_MASS + CART_MASS
HALF_POLE = 0.5  # half the pole's length
POLE_MOMENT = POLE_MASS * HALF_POLE
FORCE = 10.0
STEP_SECS = 0.02
POSITION_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360  # radians
START_RANGE = 0.05

PICTURE = (160, 240)  # height, width in pixels; the width covers the track between its limits
CART_SIZE = (14, 28)
POLE_PIXELS = 80
TRACK_ROW = 125
TEXT_WIDTH = 49


class CartPole:
    """A pole on a cart: push left (0) or right (1) so that it does not fall and the cart stays on its track.

    Observations are (position, velocity, angle, angular velocity), float32. The reward is 1 for every step, the last
    one included. The episode terminates when |position| > 2.4 or |angle| > 12°; the best policy reaches `max_steps`.
    With the same seed, `initial(1, rng)` gives the start state of Gymnasium's CartPole-v1.

    There are two proxy rewards, both of the state after the step: "upright", max(0, 1 − |angle| / 12°), which ignores
    the cart's position, and "speed", |velocity| of the cart. Mean returns of an episode, measured over 3000 episodes or
    more; the optimal returns of the proxies are unknown:

    | policy | true | upright | speed |
    | --- | --- | --- | --- |
    | uniformly random | 22.4 | 13.9 | 10.0 |
    | always right | 9.4 | 5.4 | 9.5 |
    | a controller that balances in the middle | 500 | 490 | 59 |
    | a controller that lets the cart drift | 500 | 492 | 67 |
    | a controller that sways fast, the best of 250 random ones | 499 | 223 | 542 |

    Args:
      max_steps: steps until truncation, 1 or more; None for no time limit.
      solved_at: steps from which an episode counts as solved; then states have a fifth number, the steps made. None:
        whether an episode is solved is not reported.
      reward_scale: reward of a step.
    """

    pictures_per_second = 1 / STEP_SECS
    reward_channels: tuple[str, ...] = ("upright", "speed")

    def __init__(self, max_steps: int | None = 500, solved_at: int | None = None, reward_scale: float = 1.0):
        self.max_steps = None if max_steps is None else options.whole_number("CartPole", "max_steps", max_steps, 1)
        self.solved_at = None if solved_at is None else options.whole_number("CartPole", "solved_at", solved_at, 1)
        self.reward_scale = options.number("CartPole", "reward_scale", reward_scale)
        # Twice the limits, so that the observation that ends an episode lies inside the space.
        high = np.array([POSITION_LIMIT * 2, np.inf, ANGLE_LIMIT * 2, np.inf], np.float32)
        self.observation_space: gym.Space = gym.spaces.Box(-high, high, dtype=np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(2)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return poles nearly upright and at rest: float64 [N, 4], uniform in ±0.05; [N, 5] with `solved_at`."""
        states = rng.uniform(-START_RANGE, START_RANGE, size=(n, 4))
        return states if self.solved_at is None else np.concatenate((states, np.zeros((n, 1))), axis=1)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Make one Euler step of 0.02 s."""
        made, states = states[:, 4:] + 1, states[:, :4]  # [N, 0] without `solved_at`
        velocity, angle, spin = states[:, 1], states[:, 2], states[:, 3]
        force = np.where(actions == 1, FORCE, -FORCE)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + POLE_MOMENT * np.square(spin) * sine) / TOTAL_MASS
        inertia = HALF_POLE * (4.0 / 3.0 - POLE_MASS * np.square(cosine) / TOTAL_MASS)
        spin_rate = (GRAVITY * sine - cosine * push) / inertia
        acceleration = push - POLE_MOMENT * spin_rate * cosine / TOTAL_MASS
        rates = np.stack((velocity, acceleration, spin, spin_rate), axis=1)  # four [N] → [N, 4]
        states = states + STEP_SECS * rates
        terminated = (np.abs(states[:, 0]) > POSITION_LIMIT) | (np.abs(states[:, 2]) > ANGLE_LIMIT)
        extras = {
            "reward/upright": np.maximum(1 - np.abs(states[:, 2]) / ANGLE_LIMIT, 0).astype(np.float32),
            "reward/speed": np.abs(states[:, 1]).astype(np.float32),
        }
        if self.solved_at is not None:
            extras["solved"] = made[:, 0] >= self.solved_at
            states = np.concatenate((states, made), axis=1)
        return states, np.full(len(states), self.reward_scale, np.float32), terminated, extras

    def observe(self, states: Tree) -> Tree:
        """Return the physical states as float32 [N, 4]."""
        return states[:, :4].astype(np.float32)

    def render(self, states: Tree, mode: str) -> Any:
        """Render state 0 as one line of text with the cart on its track and the angle, or as an image."""
        options.one_of("CartPole", "render_mode", mode, ("rgb_array", "ansi"))
        position, _, angle, _ = (float(value) for value in states[0, :4])
        share = min(max((position / POSITION_LIMIT + 1) / 2, 0.0), 1.0)  # fraction of the track
        if mode == "ansi":
            track = ["-"] * TEXT_WIDTH
            track[round(share * (TEXT_WIDTH - 1))] = "#"
            return f"|{''.join(track)}| x {position:+.3f}  angle {math.degrees(angle):+.2f} degrees\n"
        return _picture(share, angle)


def _picture(share: float, angle: float) -> np.ndarray:
    """Draw track, cart and pole on white, uint8 [height, width, 3]."""
    height, width = PICTURE
    row, column = np.mgrid[:height, :width]
    across, up = column - share * (width - 1), TRACK_ROW - row  # pixels from the axle
    picture = np.full((height, width, 3), 255, np.uint8)
    picture[TRACK_ROW] = 0
    picture[(np.abs(across) <= CART_SIZE[1] / 2) & (np.abs(up) <= CART_SIZE[0] / 2)] = (50, 50, 50)
    along = across * math.sin(angle) + up * math.cos(angle)
    aside = across * math.cos(angle) - up * math.sin(angle)
    picture[(along >= 0) & (along <= POLE_PIXELS) & (np.abs(aside) <= 3)] = (202, 152, 101)
    return picture
