"""HalfCheetah with the task of Gymnasium's HalfCheetah-v5, for N cheetahs at once, stepped natively by MuJoCo.

Wawrzyński 2009, "A cat-like robot real-time learning to run". Robot, reward, observation and start state are those of
Gymnasium.

Deviation from Gymnasium: MuJoCo's contact solver starts each step from zero instead of from the forces of the step
before (warm start). Those forces are not part of the state; without them the state alone determines the next one, and H
single steps equal one rollout of H steps to the last bit. Solutions agree within the solver's tolerance of 1e-8.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.envs.mujoco_warnings import remarks_logged
from packtrain.errors import EnvSetupError, MissingExtraError
from packtrain.trees import Tree

ROBOT = "envs/mujoco/assets/half_cheetah.xml"  # in Gymnasium's package
START_RANGE = 0.1  # positions are uniform in ± this value, velocities normal with this deviation
CHUNK_BYTES = 8 << 20  # maximum size of the physics states that one native call may write

PICTURE = (120, 240)  # height, width in pixels
METRES = 4.0  # width of the image in metres


class HalfCheetah:
    """A two-legged runner in a plane; the reward is its speed to the right.

        reward = forward_reward_weight · (x after − x before) / 0.05 s − ctrl_cost_weight · Σ action²

    A step lasts `frame_skip` = 5 physics steps of 0.01 s. Actions are torques of six joints, which the robot clips to
    [−1, 1]; the cost uses them unclipped. There is no termination. States are positions, then velocities
    of nine joints, float64 [N, 18]; observations are the same without the position along the track, float64 [N, 17].
    With the same seed, `initial(1, rng)` gives Gymnasium's start.

    Args:
      forward_reward_weight: weight of the speed.
      ctrl_cost_weight: weight of the squared torques.
      frame_skip: physics steps per step, 1 or more.
      max_steps: steps until truncation, 1 or more; None for no time limit.
      threads: native threads that share the N cheetahs, 1 or more; 1 runs in the calling thread.
    """

    def __init__(
        self,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.1,
        frame_skip: int = 5,
        max_steps: int | None = 1000,
        threads: int = 1,
    ):
        self.forward_reward_weight = options.number("HalfCheetah", "forward_reward_weight", forward_reward_weight)
        self.ctrl_cost_weight = options.number("HalfCheetah", "ctrl_cost_weight", ctrl_cost_weight)
        self.frame_skip = options.whole_number("HalfCheetah", "frame_skip", frame_skip, least=1)
        self.max_steps = (
            None if max_steps is None else options.whole_number("HalfCheetah", "max_steps", max_steps, least=1)
        )
        threads = options.whole_number("HalfCheetah", "threads", threads, least=1)
        try:
            import mujoco
            import mujoco.rollout
        except ImportError as error:
            raise MissingExtraError("HalfCheetah", "mujoco", "mujoco") from error
        # The package around it would import a renderer, which is not needed here.
        robot = Path(gym.__file__).parent / ROBOT
        if not robot.is_file():
            raise EnvSetupError(f"HalfCheetah: this Gymnasium ({gym.__version__}) does not ship {ROBOT}")
        self._mujoco = mujoco
        self._model = _load(mujoco, robot)
        self._model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_WARMSTART
        self._data = [mujoco.MjData(self._model) for _ in range(threads)]
        self._rollout = mujoco.rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._mine = threading.Lock()  # the native code runs without Python's lock and writes to shared buffers
        self._positions, self._size = self._model.nq, self._model.nq + self._model.nv
        self._start = np.concatenate([self._data[0].qpos, self._data[0].qvel])
        self.step_secs = self._model.opt.timestep * self.frame_skip
        self.pictures_per_second = 1 / self.step_secs
        low, high = self._model.actuator_ctrlrange.astype(np.float32).T
        self.action_space: gym.Space = gym.spaces.Box(low, high, dtype=np.float32)
        self.observation_space: gym.Space = gym.spaces.Box(-np.inf, np.inf, (self._size - 1,), np.float64)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return standing robots near the rest position: float64 [N, 18]."""
        positions = rng.uniform(-START_RANGE, START_RANGE, size=(n, self._positions))
        velocities = START_RANGE * rng.standard_normal((n, self._size - self._positions))
        return self._start + np.concatenate([positions, velocities], axis=1)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Make one step of `frame_skip` physics steps."""
        after, rewards, terminated = self.rollout(states, np.asarray(actions)[:, None])
        return after[:, 0], rewards[:, 0], terminated[:, 0], {}

    def rollout(self, states: Tree, actions: Any) -> tuple[Tree, np.ndarray, np.ndarray]:
        """Make H steps in one native call; results equal those of `step`.

        Args:
          states: [N, 18].
          actions: [N, H, 6].

        Returns:
          states after each action [N, H, 18], rewards [N, H] float32, terminated [N, H] bool.
        """
        actions = np.asarray(actions)
        count, horizon, frames = len(states), actions.shape[1], actions.shape[1] * self.frame_skip
        after = np.empty((count, horizon, self._size))
        rows = max(1, CHUNK_BYTES // (8 * (self._size + 1) * frames))
        for low in range(0, count, rows):
            part = slice(low, low + rows)
            before = np.zeros((len(states[part]), self._size + 1))  # physics states begin with a time, here always 0
            before[:, 1:] = states[part]
            controls = actions[part].astype(np.float64).repeat(self.frame_skip, axis=1)  # [n, H, 6] → [n, frames, 6]
            with self._mine:
                physics, _ = self._rollout.rollout([self._model], self._data, before, controls)
            after[part] = physics[:, self.frame_skip - 1 :: self.frame_skip, 1:]
        tracks = np.concatenate([states[:, None, 0], after[:, :, 0]], axis=1)  # [N, H+1]
        speeds = np.diff(tracks, axis=1) / self.step_secs
        costs = self.ctrl_cost_weight * np.square(actions).sum(axis=2)
        rewards = (self.forward_reward_weight * speeds - costs).astype(np.float32)
        return after, rewards, np.zeros((count, horizon), bool)

    def observe(self, states: Tree) -> Tree:
        """Return positions and velocities without the position along the track, float64 [N, 17]."""
        return states[:, 1:].copy()

    def render(self, states: Tree, mode: str) -> Any:
        """Render state 0: its position and speed as text, or its limbs from the side as an image."""
        options.one_of("HalfCheetah", "render_mode", mode, ("rgb_array", "ansi"))
        position, speed = float(states[0, 0]), float(states[0, self._positions])
        if mode == "ansi":
            return f"x {position:+.3f} m  speed {speed:+.3f} m/s\n"
        return self._picture(states[0], position)

    def _picture(self, state: np.ndarray, middle: float) -> np.ndarray:
        """Draw ground and capsules on white, uint8 [height, width, 3]."""
        data = self._mujoco.MjData(self._model)
        data.qpos[:] = state[: self._positions]
        self._mujoco.mj_kinematics(self._model, data)
        height, width = PICTURE
        row, column = np.mgrid[:height, :width]
        across, up = middle + (column / width - 0.5) * METRES, (height - 15 - row) * METRES / width
        picture = np.full((height, width, 3), 255, np.uint8)
        picture[up <= 0] = (200, 200, 200)
        capsules = np.flatnonzero(self._model.geom_type == self._mujoco.mjtGeom.mjGEOM_CAPSULE)
        for limb in capsules:
            centre = data.geom_xpos[limb][[0, 2]]
            along = data.geom_xmat[limb].reshape(3, 3)[[0, 2], 2]  # the capsule's axis in the image plane
            radius, half = self._model.geom_size[limb, :2]
            place = (across - centre[0]) * along[0] + (up - centre[1]) * along[1]
            place = np.clip(place, -half, half)
            gap = np.hypot(across - centre[0] - place * along[0], up - centre[1] - place * along[1])
            picture[gap <= radius] = (90, 160, 250)
        return picture


def _load(mujoco: Any, robot: Path) -> Any:
    """Return the compiled robot."""
    with remarks_logged():
        return mujoco.MjModel.from_xml_path(str(robot))
