"""HumanoidRun and HumanoidFlagrun: what is seen, paid and saved, each by hand."""

import math
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from packtrain import trees
from packtrain.envs import registration  # noqa: F401  (registers)
from packtrain.envs.environment import Environment
from packtrain.envs.humanoid_run import (
    HumanoidFlagrun,
    HumanoidRun,
    heading_to,
    motor_costs,
    range_shares,
    roll_pitch_yaw,
)
from packtrain.envs.simulator import Simulator
from packtrain.errors import EnvSetupError, MissingExtraError

mujoco = pytest.importorskip("mujoco")

BOTH = pytest.mark.parametrize("make", [HumanoidRun, HumanoidFlagrun])
STEP_SECS = 0.015
QUIET = np.zeros(17, np.float32)


def moved(env, *, qpos=None, qvel=None):
    """The observation after some positions {index: value} and velocities of a restored state are changed."""
    snapshot = env.snapshot()
    for index, value in (qpos or {}).items():
        snapshot["physics"][1 + index] = value  # the time is in front
    for index, value in (qvel or {}).items():
        snapshot["physics"][1 + env.body.model.nq + index] = value
    return env.restore(snapshot)


def turned(env, yaw):
    return moved(env, qpos={3: math.cos(yaw / 2), 4: 0.0, 5: 0.0, 6: math.sin(yaw / 2)})


def middle(env):
    """Mean position of the parts, from the positions of the joints alone."""
    data = mujoco.MjData(env.body.model)
    data.qpos[:] = env.body.data.qpos
    mujoco.mj_forward(env.body.model, data)
    return data.xpos[1:, :2].mean(axis=0)


def quaternion(roll, pitch, yaw):
    """About x, then y, then z, as a product of three turns."""
    turn = np.array([1.0, 0, 0, 0])
    for axis, angle in (((0, 0, 1), yaw), ((0, 1, 0), pitch), ((1, 0, 0), roll)):
        part, product = np.empty(4), np.empty(4)
        mujoco.mju_axisAngle2Quat(part, np.array(axis, float), angle)
        mujoco.mju_mulQuat(product, turn, part)
        turn = product
    return turn


# -- equations


def test_roll_pitch_and_yaw_are_those_that_made_the_quaternion():
    """Mutation: another order of turns, or a sign."""
    rng = np.random.default_rng(0)
    for angles in rng.uniform(-1.5, 1.5, (20, 3)):
        np.testing.assert_allclose(roll_pitch_yaw(quaternion(*angles)), angles, atol=1e-12)
    np.testing.assert_allclose(roll_pitch_yaw(quaternion(0, math.pi / 2, 0))[1], math.pi / 2, atol=1e-7)


def test_heading_share_and_motor_costs_by_arithmetic():
    np.testing.assert_allclose(heading_to((1, 3), (1, 1), 0.0), (1, 0), atol=1e-12)  # to the left
    np.testing.assert_allclose(heading_to((1, 3), (1, 1), math.pi / 2), (0, 1), atol=1e-12)  # ahead
    shares = range_shares(np.array([-1.0, 1.0, 4.0]), np.array([-1.0, -1, -1]), np.array([3.0, 3, 3]))
    np.testing.assert_allclose(shares, [-1, 0, 1.5])
    action, speeds = np.array([1.0, -0.5]), np.array([-2.0, 0.5])
    want = 8 * (2 + 0.25) / 2 + 0.4 * (1 + 0.25) / 2  # power counts with both signs
    assert motor_costs(action, speeds, 8, 0.4) == pytest.approx(want)


# -- what is seen


@BOTH
def test_spaces_and_start(make):
    env = make()
    obs, _ = env.reset(seed=3)
    assert env.observation_space == gym.spaces.Box(-5, 5, (44,), np.float32)
    assert env.action_space == gym.spaces.Box(-1, 1, (17,), np.float32)
    assert obs.dtype == np.float32 and env.observation_space.contains(obs)
    assert env.body.step_secs == pytest.approx(STEP_SECS)
    np.testing.assert_array_equal(obs[[0, 3, 4, 5, 6, 7]], 0)  # at the start's height, at rest, upright
    np.testing.assert_array_equal(obs[9:42:2], 0)
    assert (np.abs(obs[8:42:2]) <= 1).all() and np.ptp(obs[8:42:2]) > 0.1
    np.testing.assert_array_equal(obs[42:], 0)  # dropped from a hand's breadth
    assert np.abs(env.body.data.qpos[7:]).max() <= 0.1


def test_the_heading_and_the_velocity_turn_with_the_body():
    """Mutation: turn the velocity by yaw instead of −yaw, or take the angle from the x axis."""
    env = HumanoidRun()
    env.reset(seed=0)
    moved(env, qvel={0: 2.0, 1: 1.0, 2: -0.5})
    obs = turned(env, math.pi / 2)  # now looks along y: the target is on the right, x to the right, y ahead
    np.testing.assert_allclose(obs[1:3], (-1, 0), atol=1e-3)
    np.testing.assert_allclose(obs[3:6], (0.3 * 1.0, 0.3 * -2.0, 0.3 * -0.5), rtol=1e-6)
    np.testing.assert_allclose(turned(env, -math.pi / 3)[1:3], (math.sin(math.pi / 3), 0.5), atol=1e-3)
    roll_and_pitch = moved(env, qpos=dict(enumerate(quaternion(0.2, -0.3, 1.1), start=3)))[6:8]
    np.testing.assert_allclose(roll_and_pitch, (0.2, -0.3), atol=1e-6)


def test_height_joints_and_clipping():
    env = HumanoidRun()
    env.reset(seed=0)
    # abdomen_z from −45° to 45°, abdomen_y from −75° to 30°
    obs = moved(env, qpos={2: 1.15, 7: np.deg2rad(22.5), 8: np.deg2rad(-75)}, qvel={6: 3.0, 7: 1000.0})
    np.testing.assert_allclose(obs[0], 1.15 - 1.4, rtol=1e-6)
    np.testing.assert_allclose(obs[8:12], (0.5, 0.3, -1, 5), rtol=1e-6)


def test_feet_feel_the_floor_at_the_very_step():
    """The feet's lowest points are at 0.107 m of a torso at 1.4 m. Mutation: contacts left over from mj_step."""
    env = HumanoidRun(start_noise=0)
    env.reset(seed=0)
    assert moved(env, qpos={2: 1.4 - 0.11})[42:].tolist() == [1, 1]
    assert moved(env, qpos={2: 1.4 - 0.10})[42:].tolist() == [0, 0]
    obs = moved(env, qpos={2: 1.28, 3: math.cos(0.1), 4: math.sin(0.1)})  # leans to its right
    assert obs[42:].tolist() == [1, 0]


def test_actions_drive_the_joints_in_the_order_they_are_seen():
    """Mutation: the order of the file's motors, where abdomen_y comes first."""
    for joint in range(17):
        env = HumanoidRun(start_noise=0)
        env.reset(seed=0)
        at = 7 + joint
        middle_of_range = env.body.model.jnt_range[1 + joint].mean()
        moved(env, qpos={2: 3.0, at: middle_of_range})  # in the air
        still, *_ = env.step(QUIET)
        moved(env, qpos={2: 3.0, at: middle_of_range}, qvel=dict.fromkeys(range(23), 0.0))
        pushed, *_ = env.step(np.eye(17, dtype=np.float32)[joint])
        speeds = pushed[9:42:2] - still[9:42:2]
        assert speeds[joint] > 0.05, joint


# -- what is paid


def test_progress_is_the_reduction_of_distance_per_second():
    """Mutation: the torso instead of the mean of all parts, or MuJoCo's positions that lag behind."""
    env = HumanoidRun()
    env.reset(seed=1)
    env.action_space.seed(1)
    moved(env, qvel={0: 2.0, 1: 3.0})
    for _ in range(20):
        before = math.dist(middle(env), (1000, 0))
        _, _, _, _, info = env.step(env.action_space.sample())
        want = (before - math.dist(middle(env), (1000, 0))) / STEP_SECS
        assert info["reward_progress"] == pytest.approx(want, abs=1e-7)
    assert want > 0.5, "it flies towards the target"


def test_a_reward_is_the_sum_of_its_parts_by_hand():
    env = HumanoidRun()
    env.reset(seed=2)
    env.action_space.seed(2)
    stuck = 0
    for _ in range(12):
        before, action = math.dist(middle(env), (1000, 0)), 1.5 * env.action_space.sample()
        obs, reward, terminated, truncated, info = env.step(action)
        action = np.clip(action, -1, 1)
        limits = int((np.abs(obs[8:42:2]) > 0.99).sum())
        stuck += limits
        want = (before - math.dist(middle(env), (1000, 0))) / STEP_SECS
        want += 2 - 8.5 * np.abs(action * obs[9:42:2]).mean() - 0.425 * np.square(action).mean() - 0.2 * limits
        assert info["reward_feet"] == 0 and not terminated and not truncated
        assert reward == pytest.approx(want, abs=1e-4)
    assert stuck > 0


def test_a_fall_terminates_and_costs():
    env = HumanoidRun()
    env.reset(seed=0)
    for _ in range(200):
        before, height = math.dist(middle(env), (1000, 0)), env.body.data.qpos[2]
        obs, reward, terminated, _, info = env.step(QUIET)
        if terminated:
            break
        assert info["reward_alive"] == 2
    assert terminated and height > 0.78 >= env.body.data.qpos[2]
    limits = (np.abs(obs[8:42:2]) > 0.99).sum()
    progress = (before - math.dist(middle(env), (1000, 0))) / STEP_SECS
    assert info["reward_feet"] == 0
    assert reward == pytest.approx(-1 + progress - 0.2 * limits, abs=1e-6)


def test_feet_that_touch_each_other_cost_but_the_floor_does_not():
    """Legs pressed together: hips turned in beyond what the limits allow, far above the floor."""
    env = HumanoidRun(start_noise=0)
    env.reset(seed=0)
    inwards = {7 + joint: np.deg2rad(12) for joint in (3, 7)}  # right_hip_x, left_hip_x
    moved(env, qpos={2: 3.0, **inwards})
    obs, _, _, _, info = env.step(QUIET)
    assert obs[42:].tolist() == [0, 0] and info["reward_feet"] == -2
    env.reset(seed=0)
    moved(env, qpos={2: 1.29})
    obs, _, _, _, info = env.step(QUIET)
    assert obs[42:].tolist() == [1, 1] and info["reward_feet"] == 0


def test_options_change_what_is_paid():
    env = HumanoidRun(
        alive_reward=7, fall_cost=3, electricity_cost=0, stall_torque_cost=2, limit_cost=0, fallen_height=1.2
    )
    env.reset(seed=0)
    _, reward, _, _, info = env.step(np.ones(17, np.float32))
    assert reward == pytest.approx(info["reward_progress"] + 7 - 2)
    moved(env, qpos={2: 1.1})
    _, reward, terminated, _, info = env.step(QUIET)
    assert terminated and reward == pytest.approx(info["reward_progress"] - 3)
    assert HumanoidFlagrun().body.electricity_cost == 4.25 == HumanoidRun().body.electricity_cost / 2


def test_a_blow_up_shows_instead_of_a_jump_to_the_start(monkeypatch, tmp_path):
    """Mutation: let MuJoCo reset itself."""
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its warning
    env = HumanoidRun()
    env.reset(seed=0)
    moved(env, qvel={8: 1e30})
    obs, reward, terminated, _, _ = env.step(QUIET)
    assert terminated and not math.isfinite(reward) and not np.isfinite(obs).all()
    assert np.isfinite(env.reset(seed=0)[0]).all()


# -- the flag


def test_the_flag_jumps_when_reached_and_the_last_stretch_is_paid():
    """Mutation: the reward of a jump, or a step that pays nothing for reaching."""
    env = HumanoidFlagrun()
    env.reset(seed=0)
    moved(env, qvel={0: 2.0})
    x, y = middle(env)
    env.flag = old = (x + 1.01, y)
    obs, reward, _, _, info = env.step(QUIET)
    assert info["flag_reached"] and env.flag != old and env.steps_left == 150
    want = (1.01 - math.dist(middle(env), old)) / STEP_SECS
    assert want > 1 and info["reward_progress"] == pytest.approx(want, abs=1e-7)
    yaw = roll_pitch_yaw(env.body.data.qpos[3:7])[2]
    np.testing.assert_allclose(obs[1:3], heading_to(env.flag, middle(env), yaw), atol=1e-6)
    before = math.dist(middle(env), env.flag)
    _, _, _, _, info = env.step(QUIET)
    want = (before - math.dist(middle(env), env.flag)) / STEP_SECS
    assert not info["flag_reached"] and info["reward_progress"] == pytest.approx(want, abs=1e-7)


def test_the_flag_jumps_when_its_time_is_up():
    env = HumanoidFlagrun(flag_steps=4, straight_share=1)
    env.reset(seed=0)
    flags = [env.flag]
    for _ in range(9):
        assert not env.step(QUIET)[4]["flag_reached"]
        flags.append(env.flag)
    jumps = [step for step in range(1, 10) if flags[step] != flags[step - 1]]
    assert jumps == [4, 8]


def test_flags_are_drawn_from_the_seed_within_the_field():
    env = HumanoidFlagrun(half_length=4, half_width=2, straight_share=0.3)
    firsts = []
    for seed in range(200):
        env.reset(seed=seed)
        firsts.append(env.flag)
    env.reset(seed=7)
    assert env.flag == firsts[7] and len(set(firsts)) == 200
    straight = np.array([flag for flag in firsts if flag[1] == 0])
    others = np.array([flag for flag in firsts if flag[1] != 0])
    assert 35 < len(straight) < 85
    assert straight[:, 0].min() >= 4 and 7 < straight[:, 0].max() <= 8
    assert (np.abs(others) <= (4, 2)).all() and (others.max(axis=0) > (3.5, 1.7)).all()
    assert (others.min(axis=0) < (-3.5, -1.7)).all()
    env.reset()
    assert env.flag not in firsts, "no seed: the generator goes on"


# -- saving


@BOTH
def test_a_restored_run_goes_on_exactly(make):
    """Also in another instance, in the middle of contacts. Mutation: save without warm start, timer or generator."""
    kwargs = {"flag_steps": 30} if make is HumanoidFlagrun else {}
    env, other = make(**kwargs), make(**kwargs)
    env.reset(seed=5)
    other.reset(seed=6)
    actions = 0.3 * np.random.default_rng(0).uniform(-1, 1, (70, 17)).astype(np.float32)

    def play(env, actions):
        rows = []
        for action in actions:
            obs, reward, terminated, _, _ = env.step(action)
            rows.append(np.append(obs.astype(np.float64), (reward, terminated)))
        return np.array([*rows, np.append(env.reset()[0], (0, 0))])  # the next start is drawn as well

    for action in actions[:25]:
        seen = env.step(action)[0]
    assert seen[42:].any()
    snapshot = env.snapshot()
    kept = trees.map(np.copy, snapshot)
    rows = play(env, actions[25:])
    np.testing.assert_array_equal(other.restore(snapshot), seen)
    np.testing.assert_array_equal(play(other, actions[25:]), rows)
    np.testing.assert_array_equal(env.restore(snapshot), seen)
    np.testing.assert_array_equal(play(env, actions[25:]), rows)
    trees.map(np.testing.assert_array_equal, snapshot, kept)


def test_a_restore_leaves_a_lent_generator_alone():
    env = HumanoidFlagrun()
    env.reset(seed=0)
    snapshot = env.snapshot()
    env.np_random = lent = np.random.default_rng(4)
    before = lent.bit_generator.state
    env.restore(snapshot)
    assert lent.bit_generator.state == before


@pytest.mark.parametrize("name", ["HumanoidRun", "HumanoidFlagrun"])
def test_planners_may_use_them(name):
    core, rng = Simulator(f"packtrain/{name}-v0"), np.random.default_rng(0)
    states = core.initial(2, rng)
    after, rewards, over, _ = core.step(states, np.zeros((2, 17), np.float32), rng)
    assert core.max_steps == 1000 and rewards.shape == (2,) and not over.any()
    np.testing.assert_array_equal(core.step(states, np.zeros((2, 17), np.float32), rng)[1], rewards)


# -- as environments


@pytest.mark.parametrize("name", ["HumanoidRun", "HumanoidFlagrun"])
def test_gymnasium_finds_nothing_wrong(name):
    check_env(gym.make(f"packtrain/{name}-v0").unwrapped, skip_render_check=True)
    assert gym.spec(f"packtrain/{name}-v0").max_episode_steps == 1000


@pytest.mark.parametrize("name", ["packtrain/HumanoidRun-v0", "HumanoidFlagrun"])
def test_columns_are_saved_and_restored_with_their_clock(name):
    environment = Environment(name, {"max_episode_steps": 12})
    spec = environment.probe()
    assert spec.obs.shape == (44,) and not environment.is_functional()
    columns = environment.open(2, 0, spec)
    assert columns.savable
    columns.reset()
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (20, 2, 17)).astype(np.float32)

    def play(actions):
        rows = []
        for batch in actions:
            columns.send(batch)
            rows.append(trees.map(np.copy, columns.recv()))
        return rows

    play(actions[:5])
    snapshot = columns.snapshot()
    rows = play(actions[5:])
    assert [bool(row.truncated.all()) for row in rows].index(True) == 6
    columns.restore(snapshot)
    for row, again in zip(rows, play(actions[5:]), strict=True):
        trees.map(np.testing.assert_array_equal, row, again)
    columns.close()


def test_processes_play_the_same():
    rows = []
    for processes in (False, True):
        environment = Environment("packtrain/HumanoidFlagrun-v0", processes=processes)
        columns = environment.open(1, 3, environment.probe())
        try:
            columns.reset()
            columns.send(np.full((1, 17), 0.5, np.float32))
            rows.append(trees.map(np.copy, columns.recv()))
        finally:
            columns.close()
    np.testing.assert_array_equal(rows[0].obs, rows[1].obs)
    np.testing.assert_array_equal(rows[0].rewards["train"], rows[1].rewards["train"])


BAD = [
    (HumanoidRun, {"frame_skip": 0}),
    (HumanoidRun, {"start_noise": -0.1}),
    (HumanoidRun, {"alive_reward": "much"}),
    (HumanoidRun, {"fallen_height": math.nan}),
    (HumanoidRun, {"render_mode": "human"}),
    (HumanoidFlagrun, {"half_length": 0}),
    (HumanoidFlagrun, {"half_width": -1}),
    (HumanoidFlagrun, {"straight_share": 1.5}),
    (HumanoidFlagrun, {"reach": 0}),
    (HumanoidFlagrun, {"flag_steps": 0}),
    (HumanoidFlagrun, {"electricity_cost": None}),
]


@pytest.mark.parametrize(("make", "bad"), BAD, ids=lambda value: getattr(value, "__name__", str(value)))
def test_bad_options_are_refused(make, bad):
    with pytest.raises(EnvSetupError, match=rf"^{make.__name__}\({next(iter(bad))}=.*must be"):
        make(**bad)


@BOTH
def test_a_missing_mujoco_names_its_extra(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=rf"{make.__name__} needs .*packtrain\[mujoco\]"):
        make()
    with pytest.raises(MissingExtraError, match=make.__name__):
        Environment(f"packtrain/{make.__name__}-v0").probe()


def test_loading_leaves_no_log_behind(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    HumanoidRun()
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")


def test_it_can_be_looked_at_without_being_changed():
    """Mutation: a physics step for the picture's sake; a camera that is not moved along."""
    env, unseen = HumanoidFlagrun(render_mode="rgb_array"), HumanoidFlagrun()
    try:
        env.reset(seed=0)
        env.flag = (1.5, 1.0)
        try:
            with_flag = env.render()
        except EnvSetupError as error:
            assert "MUJOCO_GL" in str(error)
            pytest.skip("no OpenGL here")
        assert with_flag.shape == (240, 320, 3) and with_flag.dtype == np.uint8
        env.flag = (1.5, -50.0)
        different = (env.render() != with_flag).any(axis=2).sum()
        assert 50 < different < 5000, "the ball alone"
        moved(env, qpos={0: 30.0})
        red, _, blue = env.render().astype(int).transpose(2, 0, 1)
        assert (red - blue > 40).sum() > 500, "the camera follows the brown body"
        assert red[200:].std() > 50, "over chequers that do not end"
        for both in (env, unseen):
            both.reset(seed=0)
            moved(both, qpos={2: 1.29})  # on the floor, where the solver has work
        for _ in range(5):
            before = env.snapshot()
            env.render()
            np.testing.assert_array_equal(env.snapshot()["physics"], before["physics"])
            np.testing.assert_array_equal(env.step(QUIET)[0], unseen.step(QUIET)[0])
    finally:
        env.close()
    assert unseen.render() is None
