"""A point mass to be brought to the origin: the smallest continuous-control task."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.trees import Tree

STEP_SECS = 0.1
ACCELERATION = 4.0  # per unit of action
SPEED_LIMIT = 2.0  # per dimension
WALL = 2.0  # per dimension; hitting a wall sets the speed towards it to 0
CONTROL_COST = 0.01


class PointMass:
    """A mass at rest somewhere in [−1, 1]^d has to be pushed to the origin and held there.

        reward = − D / (1 + D) − 0.01 · mean(action²),   D = squared distance to the origin after the step

    so that a step costs between 0 and 1.01. Actions outside [−1, 1] are clipped, also in the cost. Observations are
    positions, then velocities, float32 [2d]. There is no termination; episodes are truncated.

    Mean returns of an episode with the default options, measured over 100 000 episodes: doing nothing −18.0, uniformly
    random actions −31.6, the PD controller −4 · position − 2 · velocity (clipped) −1.31.

    Args:
      dimensions: of the space the mass moves in, 1 or more.
      max_steps: steps until truncation, 1 or more.
    """

    def __init__(self, dimensions: int = 2, max_steps: int = 50):
        self.dimensions = options.whole_number("PointMass", "dimensions", dimensions, least=1)
        self.max_steps: int | None = options.whole_number("PointMass", "max_steps", max_steps, least=1)
        high = np.repeat(np.array([WALL, SPEED_LIMIT], np.float32), self.dimensions)
        self.observation_space: gym.Space = gym.spaces.Box(-high, high, dtype=np.float32)
        self.action_space: gym.Space = gym.spaces.Box(-1, 1, (self.dimensions,), np.float32)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return masses at rest, uniform in [−1, 1]^d."""
        position = rng.uniform(-1, 1, size=(n, self.dimensions)).astype(np.float32)
        return {"position": position, "velocity": np.zeros_like(position)}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Make one semi-implicit Euler step: the new velocity moves the mass."""
        push = np.clip(np.asarray(actions, np.float32), -1, 1)
        velocity = np.clip(states["velocity"] + (STEP_SECS * ACCELERATION) * push, -SPEED_LIMIT, SPEED_LIMIT)
        free = states["position"] + STEP_SECS * velocity
        position = np.clip(free, -WALL, WALL)
        velocity = np.where(position == free, velocity, np.float32(0))
        distance = np.square(position).sum(axis=1)  # [N, d] → [N]
        rewards = -distance / (1 + distance) - CONTROL_COST * np.square(push).mean(axis=1)
        return {"position": position, "velocity": velocity}, rewards, np.zeros(len(rewards), bool), {}

    def observe(self, states: Tree) -> Tree:
        """Return positions and velocities, float32 [N, 2d]."""
        return np.concatenate((states["position"], states["velocity"]), axis=1)

    def render(self, states: Tree, mode: str) -> Any:
        """Render state 0: its numbers as text, or the first two dimensions from above with the origin marked."""
        options.one_of("PointMass", "render_mode", mode, ("rgb_array", "ansi"))
        position, velocity = states["position"][0], states["velocity"][0]
        if mode == "ansi":
            numbers = (" ".join(f"{value:+.3f}" for value in values) for values in (position, velocity))
            return "position {}  velocity {}\n".format(*numbers)
        axis = np.linspace(-WALL, WALL, 128)
        across, up = axis[None, :], -axis[:, None]
        height = position[1] if self.dimensions > 1 else 0.0
        picture = np.full((128, 128, 3), 255, np.uint8)
        picture[np.square(across) + np.square(up) <= 0.05**2] = (200, 60, 60)
        picture[np.square(across - position[0]) + np.square(up - height) <= 0.1**2] = (90, 160, 250)
        return picture
