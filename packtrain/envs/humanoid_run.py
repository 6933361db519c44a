"""Roboschool's humanoid, running straight ahead or from flag to flag, on the MuJoCo body that Gymnasium ships.

After RoboschoolHumanoid-v1 and RoboschoolHumanoidFlagrun-v1 (OpenAI 2017), whose simulator is no longer maintained.
Observation, reward and termination are theirs, with their coefficients. Deviations:

1. The body is Gymnasium's humanoid.xml, with its torques (action 1 is 40 N·m in most joints, 120 and 80 in hips and
   knees, 10 in arms) and its time steps: 5 physics steps of 0.003 s instead of 4 of 0.004125 s.
2. Height is relative to the start at 1.4 m, not to 0.8 m.
3. Foot contacts are those after the step, not before.
4. The step that reaches a flag is rewarded for its progress to it; in Roboschool it is not.
5. Joints start within their limits, including the knees, whose limits exclude the straight leg.
6. Actions are clipped to [−1, 1] in the cost too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.errors import EnvSetupError, MissingExtraError
from packtrain.trees import Tree

ROBOT = "envs/mujoco/assets/humanoid.xml"  # in Gymnasium's package
JOINTS = 17
ROOT_POSITIONS, ROOT_VELOCITIES = 7, 6  # position and quaternion, velocities: they precede those of the joints
FEET = ("right_foot", "left_foot")
SPEED_SCALE, JOINT_SPEED_SCALE = 0.3, 0.1  # scale usual speeds to about ±1
LARGEST = 5.0  # observations are clipped to ± this value
AT_LIMIT = 0.99  # fraction of its range beyond which a joint is at its limit
FAR = (1000.0, 0.0)  # metres

PICTURE = (240, 320)  # height, width in pixels
FLAG_RADIUS = 0.2  # of its image, metres
FLAG_COLOUR = (1.0, 0.3, 0.3, 1.0)


def roll_pitch_yaw(quaternion: Any) -> tuple[float, float, float]:
    """Return the angles in radians of a unit quaternion (w, x, y, z): roll about x, then pitch about y, yaw about z."""
    w, x, y, z = (float(part) for part in quaternion)
    roll = math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = math.asin(min(1.0, max(-1.0, 2 * (w * y - z * x))))
    yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return roll, pitch, yaw


def heading_to(target: Any, position: Any, yaw: float) -> tuple[float, float]:
    """Return sine and cosine of the angle from a body's heading to the target; positive to its left."""
    angle = math.atan2(target[1] - position[1], target[0] - position[0]) - yaw
    return math.sin(angle), math.cos(angle)


def range_shares(angles: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return where in its range each joint is: −1 at the low end, 1 at the high end, beyond that outside."""
    return (2 * angles - (low + high)) / (high - low)


def motor_costs(action: np.ndarray, speeds: np.ndarray, electricity: float, stall_torque: float) -> float:
    """Return the cost of the motors: electricity · mean |action · speed| + stall_torque · mean action²."""
    return float(electricity * np.abs(action * speeds).mean() + stall_torque * np.square(action).mean())


class Humanoid:
    """The body in its simulator. It computes positions and rewards of steps towards a target, without episodes.

        reward = (distance before − distance after) / step_secs + alive_reward, or − fall_cost when fallen
                 − electricity_cost · mean |action · 0.1 · joint speed| − stall_torque_cost · mean action²
                 − limit_cost · joints at a limit − foot_collision_cost · feet that touch more than the floor

    Distances are horizontal, from the mean position of the 13 parts of the body; speeds are those after the step. A
    joint is at a limit beyond ±0.99 of its range. The body has fallen when its torso is not above `fallen_height`.
    Observations and rewards depend on positions and velocities after the step only, so the physics state is complete.

    Args:
      owner: the environment's name, for errors.
      alive_reward: reward of a step without a fall.
      fall_cost: cost of the step in which it falls.
      electricity_cost: weight of the motors' power.
      stall_torque_cost: weight of the squared actions.
      limit_cost: cost of a joint at its limit.
      foot_collision_cost: cost of a foot that touches the rest of the body.
      fallen_height: height of the torso below which it has fallen, metres.
      start_noise: joints start uniformly in ± this value, radians, 0 or more.
      frame_skip: physics steps per step, 1 or more.
      render_mode: "rgb_array", or None for no images.
    """

    def __init__(
        self,
        owner: str,
        alive_reward: float = 2.0,
        fall_cost: float = 1.0,
        electricity_cost: float = 8.5,
        stall_torque_cost: float = 0.425,
        limit_cost: float = 0.2,
        foot_collision_cost: float = 1.0,
        fallen_height: float = 0.78,
        start_noise: float = 0.1,
        frame_skip: int = 5,
        render_mode: str | None = None,
    ):
        self._owner = owner
        self.alive_reward = options.number(owner, "alive_reward", alive_reward)
        self.fall_cost = options.number(owner, "fall_cost", fall_cost)
        self.electricity_cost = options.number(owner, "electricity_cost", electricity_cost)
        self.stall_torque_cost = options.number(owner, "stall_torque_cost", stall_torque_cost)
        self.limit_cost = options.number(owner, "limit_cost", limit_cost)
        self.foot_collision_cost = options.number(owner, "foot_collision_cost", foot_collision_cost)
        self.fallen_height = options.number(owner, "fallen_height", fallen_height)
        self.start_noise = _at_least_zero(owner, "start_noise", start_noise)
        self.frame_skip = options.whole_number(owner, "frame_skip", frame_skip, least=1)
        options.one_of(owner, "render_mode", render_mode, (None, "rgb_array"))
        try:
            import mujoco
        except ImportError as error:
            raise MissingExtraError(owner, "mujoco", "mujoco") from error
        # The package around it would import a renderer, which is not needed here.
        robot = Path(gym.__file__).parent / ROBOT
        if not robot.is_file():
            raise EnvSetupError(f"{owner}: this Gymnasium ({gym.__version__}) does not ship {ROBOT}")
        self._mujoco = mujoco
        self.model = mujoco.MjModel.from_xml_path(str(robot))
        # A diverged simulation must not look like a jump to the start.
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self.data = mujoco.MjData(self.model)
        self._renderer: Any = None
        self._saved = mujoco.mjtState.mjSTATE_INTEGRATION
        self._state_size = mujoco.mj_stateSize(self.model, self._saved)
        self.step_secs = self.model.opt.timestep * self.frame_skip
        self._start_height = float(self.model.qpos0[2])
        self._driven = self.model.actuator_trnid[:, 0] - 1  # the file has motors in another order than joints
        self._full_torque = self.model.actuator_ctrlrange[:, 1].copy()
        self._low, self._high = self.model.jnt_range[1:].T.copy()  # without the root
        self._feet = [int(self.model.geom(name).id) for name in FEET]
        self._floor = int(self.model.geom("floor").id)
        self.model.geom_size[self._floor, :2] = 0  # drawn infinitely large, as it is for contacts
        chequers = int(self.model.geom_matid[self._floor])
        self.model.mat_texuniform[chequers], self.model.mat_texrepeat[chequers] = 1, 1  # one pattern per metre
        self.observation_space: gym.Space = gym.spaces.Box(-LARGEST, LARGEST, (10 + 2 * JOINTS,), np.float32)
        self.action_space: gym.Space = gym.spaces.Box(-1, 1, (JOINTS,), np.float32)
        self._derive()

    @property
    def height(self) -> float:
        """Return the height of the torso in metres."""
        return float(self.data.qpos[2])

    def place(self, rng: np.random.Generator) -> None:
        """Place the body at rest at the origin, facing along x, with noisy joints."""
        self._mujoco.mj_resetData(self.model, self.data)
        joints = rng.uniform(-self.start_noise, self.start_noise, size=JOINTS)
        self.data.qpos[ROOT_POSITIONS:] = np.clip(joints, self._low, self._high)
        self._derive()

    def step(self, action: Any, target: Any) -> tuple[dict[str, float], bool]:
        """Make `frame_skip` physics steps; return the terms of the reward, and whether the body has fallen."""
        before = self.distance(target)
        action = np.clip(np.asarray(action, np.float64), -1, 1)
        self.data.ctrl[:] = self._full_torque * action[self._driven]
        self._mujoco.mj_step(self.model, self.data, self.frame_skip)
        self._derive()
        fallen = not self.height > self.fallen_height  # also if it is NaN
        stuck = int(np.count_nonzero(np.abs(self._shares) > AT_LIMIT))
        parts = {
            "reward_progress": (before - self.distance(target)) / self.step_secs,
            "reward_alive": -self.fall_cost if fallen else self.alive_reward,
            "reward_motors": -motor_costs(action, self._speeds, self.electricity_cost, self.stall_torque_cost),
            "reward_limits": -self.limit_cost * stuck,
            "reward_feet": -self.foot_collision_cost * sum(self._colliding),
        }
        return parts, fallen

    def distance(self, target: Any) -> float:
        """Return the horizontal distance to the target in metres."""
        return math.hypot(target[0] - self.position[0], target[1] - self.position[1])

    def observe(self, target: Any) -> np.ndarray:
        """Return the observation, float32 [44].

        Height over the start; sine and cosine of the direction to the target; 0.3 · velocity of the torso ahead, to the
        left and up; roll and pitch; for each joint its position in its range and 0.1 · its speed; right and left foot
        on the floor. All clipped to ±5.
        """
        roll, pitch, yaw = roll_pitch_yaw(self.data.qpos[3:ROOT_POSITIONS])
        east, north, up = self.data.qvel[:3].tolist()
        sine, cosine = math.sin(yaw), math.cos(yaw)
        ahead, left = cosine * east + sine * north, cosine * north - sine * east
        seen = np.empty(10 + 2 * JOINTS, np.float64)
        seen[0] = self.height - self._start_height
        seen[1:3] = heading_to(target, self.position, yaw)
        seen[3:6] = SPEED_SCALE * ahead, SPEED_SCALE * left, SPEED_SCALE * up
        seen[6:8] = roll, pitch
        seen[8:-2:2] = self._shares
        seen[9:-2:2] = self._speeds
        seen[-2:] = self._grounded
        return np.clip(seen, -LARGEST, LARGEST).astype(np.float32)

    def save(self) -> np.ndarray:
        """Return the complete state of the physics, including the solver's warm start."""
        state = np.empty(self._state_size)
        self._mujoco.mj_getState(self.model, self.data, state, self._saved)
        return state

    def load(self, state: np.ndarray) -> None:
        """Load what `save` returned."""
        self._mujoco.mj_setState(self.model, self.data, np.asarray(state, np.float64), self._saved)
        self._derive()

    def picture(self, flag: Any = None) -> np.ndarray:
        """Return the view from the side, with the flag as a ball, uint8 [height, width, 3]."""
        mujoco = self._mujoco
        if self._renderer is None:
            try:
                self._renderer = mujoco.Renderer(self.model, *PICTURE)
            except Exception as error:  # each OpenGL library has its own errors
                raise EnvSetupError(
                    f"{self._owner} cannot draw: {type(error).__name__}: {error}; try MUJOCO_GL=egl"
                ) from error
        mujoco.mj_comPos(self.model, self.data)  # what the camera follows
        mujoco.mj_camlight(self.model, self.data)
        self._renderer.update_scene(self.data, camera="track")
        scene = self._renderer.scene
        if flag is not None:
            ball, place = scene.geoms[scene.ngeom], np.array([*flag, FLAG_RADIUS])
            size, colour = np.array([FLAG_RADIUS, 0, 0]), np.array(FLAG_COLOUR, np.float32)
            mujoco.mjv_initGeom(ball, mujoco.mjtGeom.mjGEOM_SPHERE, size, place, np.eye(3).ravel(), colour)
            scene.ngeom += 1
        return self._renderer.render()

    def close(self) -> None:
        """Free the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _derive(self) -> None:
        """Compute quantities derived from the state. MuJoCo's own values are from an earlier physics stage."""
        self._mujoco.mj_kinematics(self.model, self.data)
        self._mujoco.mj_collision(self.model, self.data)
        self.position = self.data.xpos[1:, :2].mean(axis=0)  # without the world body
        self._shares = range_shares(self.data.qpos[ROOT_POSITIONS:], self._low, self._high)
        self._speeds = JOINT_SPEED_SCALE * self.data.qvel[ROOT_VELOCITIES:]
        touching: list[set[int]] = [set(), set()]  # bodies that each foot touches
        for pair in self.data.contact.geom.tolist():
            for foot, others in zip(self._feet, touching, strict=True):
                if foot in pair:
                    others.add(pair[0] + pair[1] - foot)
        self._grounded = [self._floor in others for others in touching]
        self._colliding = [bool(others - {self._floor}) for others in touching]


class HumanoidRun(gym.Env):
    """Run straight ahead, to a target a kilometre away. Terminates with a fall; its id limits episodes to 1000 steps.

    See `Humanoid` for the reward, the observation, and all options. Actions are fractions of the full torque of 17
    joints, in the order of the body's joints. Mean returns over 200 episodes: doing nothing 83 (46 steps), uniformly
    random actions −1 (32 steps).
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 67}

    def __init__(self, render_mode: str | None = None, **kwargs: Any):
        self.render_mode = render_mode
        self.body = Humanoid("HumanoidRun", render_mode=render_mode, **kwargs)
        self.observation_space, self.action_space = self.body.observation_space, self.body.action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Place the body at the origin, facing the target."""
        super().reset(seed=seed)
        self.body.place(self.np_random)
        return self.body.observe(FAR), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Make one step; `info` has the terms of the reward."""
        parts, fallen = self.body.step(action, FAR)
        return self.body.observe(FAR), sum(parts.values()), fallen, False, parts

    def snapshot(self) -> Tree:
        """Return the physics and the generator, as arrays and JSON values."""
        return {"physics": self.body.save(), "rng": self.np_random.bit_generator.state}

    def restore(self, snapshot: Tree) -> np.ndarray:
        """Restore a snapshot, and return the observation."""
        self.body.load(snapshot["physics"])
        self.np_random = _generator(snapshot["rng"])
        return self.body.observe(FAR)

    def render(self) -> Any:
        """Render the body from the side."""
        return None if self.render_mode is None else self.body.picture()

    def close(self) -> None:
        """Free the renderer."""
        self.body.close()


class HumanoidFlagrun(gym.Env):
    """Run to a flag that moves to a new place when it is reached, or when its time is up; this requires turning.

    As HumanoidRun, with the flag as target. `electricity_cost` is half of what it is there, as in Roboschool, for
    more athletic running. `info["flag_reached"]` reports each flag. A flag may stand anywhere in the field, also right
    at the runner's feet; it is then reached in the next step, for little reward. Mean returns over 200 episodes: doing
    nothing 82, uniformly random actions 23.

    Args:
      half_length: flags stand within ± this value along x, metres, above 0.
      half_width: flags stand within ± this value along y.
      straight_share: fraction of episodes whose first flag stands straight ahead, at 1 to 2 half_lengths.
      reach: distance at which a flag is reached, metres, above 0.
      flag_steps: steps until a flag moves by itself, 1 or more.
      electricity_cost: see `Humanoid`.
      render_mode: see `Humanoid`.
      **kwargs: the other options of `Humanoid`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 67}

    def __init__(
        self,
        half_length: float = 13.125,
        half_width: float = 6.25,
        straight_share: float = 0.5,
        reach: float = 1.0,
        flag_steps: int = 150,
        electricity_cost: float = 4.25,
        render_mode: str | None = None,
        **kwargs: Any,
    ):
        self.half_length = _above_zero("HumanoidFlagrun", "half_length", half_length)
        self.half_width = _above_zero("HumanoidFlagrun", "half_width", half_width)
        self.straight_share = options.fraction("HumanoidFlagrun", "straight_share", straight_share)
        self.reach = _above_zero("HumanoidFlagrun", "reach", reach)
        self.flag_steps = options.whole_number("HumanoidFlagrun", "flag_steps", flag_steps, least=1)
        self.render_mode = render_mode
        self.body = Humanoid("HumanoidFlagrun", electricity_cost=electricity_cost, render_mode=render_mode, **kwargs)
        self.observation_space, self.action_space = self.body.observation_space, self.body.action_space
        self.flag = FAR
        self.steps_left = self.flag_steps

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Place the body at the origin, facing along x, and place a first flag."""
        super().reset(seed=seed)
        self.body.place(self.np_random)
        self._plant()
        if self.np_random.random() < self.straight_share:
            self.flag = (float(self.np_random.uniform(self.half_length, 2 * self.half_length)), 0.0)
        return self.body.observe(self.flag), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Make one step; `info` has the terms of the reward. After a flag moves, the observation shows the next one."""
        parts, fallen = self.body.step(action, self.flag)
        reached = self.body.distance(self.flag) < self.reach
        self.steps_left -= 1
        if reached or self.steps_left == 0:
            self._plant()
        info = {**parts, "flag_reached": reached}
        return self.body.observe(self.flag), sum(parts.values()), fallen, False, info

    def snapshot(self) -> Tree:
        """Return the physics, the flag, its timer and the generator, as arrays and JSON values."""
        return {
            "physics": self.body.save(),
            "flag": np.array(self.flag),
            "steps_left": self.steps_left,
            "rng": self.np_random.bit_generator.state,
        }

    def restore(self, snapshot: Tree) -> np.ndarray:
        """Restore a snapshot, and return the observation."""
        self.body.load(snapshot["physics"])
        x, y = snapshot["flag"]
        self.flag, self.steps_left = (float(x), float(y)), int(snapshot["steps_left"])
        self.np_random = _generator(snapshot["rng"])
        return self.body.observe(self.flag)

    def render(self) -> Any:
        """Render the body from the side, and the flag if it is in view."""
        return None if self.render_mode is None else self.body.picture(self.flag)

    def close(self) -> None:
        """Free the renderer."""
        self.body.close()

    def _plant(self) -> None:
        x = self.np_random.uniform(-self.half_length, self.half_length)
        y = self.np_random.uniform(-self.half_width, self.half_width)
        self.flag, self.steps_left = (float(x), float(y)), self.flag_steps


def _generator(state: Any) -> np.random.Generator:
    """Return a new generator in this state: a planner may have replaced the environment's own."""
    generator = np.random.Generator(np.random.PCG64(0))
    generator.bit_generator.state = state
    return generator


def _above_zero(owner: str, name: str, value: Any) -> float:
    if options.number(owner, name, value) <= 0:
        raise EnvSetupError(f"{owner}({name}={value!r}): {name} must be above 0")
    return float(value)


def _at_least_zero(owner: str, name: str, value: Any) -> float:
    if options.number(owner, name, value) < 0:
        raise EnvSetupError(f"{owner}({name}={value!r}): {name} must be 0 or more")
    return float(value)
