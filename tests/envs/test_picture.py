"""Pictures of environments: what draws them, and the error if nothing can."""

import os

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs import picture
from packtrain.envs.environment import Environment
from packtrain.envs.registration import CORES
from packtrain.errors import EnvSetupError

OURS = [name for name in CORES if name not in ("Simulator", "AtariSimulator", "HalfCheetah")]


class Drawn(gym.Env):
    """Its picture's only colour tells which seed began the episode, and its first pixel the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 40}
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode=None, modes=("rgb_array",)):
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_modes": list(modes)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.colour, self.steps = int(self.np_random.integers(256)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 0.0, self.steps == 3, False, {}

    def render(self):
        if self.render_mode is None:
            return None
        shown = np.full((2, 2, 3), self.colour, np.uint8)
        shown[0, 0] = self.steps
        return shown


@pytest.fixture(autouse=True)
def registered():
    gym.register("Drawn-v0", entry_point=Drawn, disable_env_checker=True)
    yield
    gym.registry.pop("Drawn-v0")


@pytest.mark.parametrize("name", OURS)
def test_our_own_environments_draw_each_column(name):
    """Mutation: the picture of column 0 for all."""
    environment = Environment(name).for_pictures()
    columns = environment.open(8, 0, environment.probe())
    columns.reset()
    for _ in range(3):
        space = columns.action_space
        space.seed(0)
        columns.send(np.stack([space.sample() for _ in range(8)]))
        columns.recv()
    pictures = [columns.picture(column) for column in range(8)]
    assert all(one.dtype == np.uint8 and one.ndim == 3 and one.shape[2] == 3 for one in pictures)
    assert columns.pictures_per_second() == (50 if name == "CartPole" else 10)
    if name in ("CartPole", "PointMass", "Hanoi", "Catch", "Sokoban", "SlidingPuzzle"):
        assert len({one.tobytes() for one in pictures}) > 1


def test_a_gymnasium_environment_is_made_to_be_drawn_in_this_process():
    """Mutation: the environments stay in separate processes, which cannot draw."""
    environment = Environment("Drawn-v0", processes=True).for_pictures()
    assert not environment.processes and environment.kwargs == {"render_mode": "rgb_array"}
    columns = environment.open(3, 5, environment.probe())
    columns.reset()
    columns.send(np.zeros(3, np.int64))
    columns.recv()
    pictures = [columns.picture(column) for column in range(3)]
    assert [one[0, 0, 0] for one in pictures] == [1, 1, 1] and len({one[1, 1, 0] for one in pictures}) == 3
    assert columns.pictures_per_second() == 40
    columns.close()


def test_an_environment_without_such_a_mode_is_refused():
    with pytest.raises(EnvSetupError, match=r"'Drawn-v0' cannot be drawn: its render modes are \['human'\]"):
        Environment("Drawn-v0", kwargs={"modes": ("human",)}).for_pictures()


def test_a_core_without_pictures_is_refused():
    from packtrain.testing import abilities  # noqa: F401  (registers it)

    environment = Environment("Bandit").for_pictures()
    columns = environment.open(1, 0, environment.probe())
    columns.reset()
    with pytest.raises(EnvSetupError, match="'Bandit' cannot be drawn: its core has no method render"):
        columns.picture(0)


@pytest.mark.parametrize(
    "answer, parts",
    [
        (
            gym.error.DependencyNotInstalled("pygame is not installed, run `pip install x`"),
            ["pygame", "packtrain[video]"],
        ),
        (gym.error.DependencyNotInstalled("some other thing\nsecond line"), ["some other thing"]),
        (RuntimeError("Cannot initialize a EGL device display"), ["MUJOCO_GL=egl", "libOSMesa", "MUJOCO_GL unset"]),
        (AttributeError("'NoneType' object has no attribute 'glGetError'"), ["MUJOCO_GL=osmesa", "libEGL"]),
        (ValueError("seven"), ["ValueError: seven"]),
        (None, ["NoneType instead of an image"]),
        (np.zeros((3, 3, 3)), ["float64 [3, 3, 3]"]),
        (np.zeros((3, 3, 2), np.uint8), ["(3, 3, 2)"]),
    ],
)
def test_what_is_missing_is_said_in_one_line(monkeypatch, answer, parts):
    monkeypatch.delenv("MUJOCO_GL", raising=False)

    def draw():
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(EnvSetupError) as caught:
        picture.drawn("It-v0", draw)
    text = str(caught.value)
    assert text.startswith("'It-v0' cannot be drawn: ") and "\n" not in text
    assert all(part in text for part in parts), text


def test_an_alpha_channel_is_left_out():
    assert picture.drawn("It-v0", lambda: np.zeros((4, 5, 4), np.uint8)).shape == (4, 5, 3)


@pytest.mark.parametrize(
    "there, given, want",
    [
        (["EGL", "OSMesa"], {}, "egl"),
        (["OSMesa"], {}, "osmesa"),
        ([], {}, None),
        (["EGL"], {"MUJOCO_GL": "osmesa"}, "osmesa"),
        (["EGL"], {"DISPLAY": ":0"}, None),
    ],
)
def test_without_a_screen_mujoco_draws_with_what_is_there(monkeypatch, there, given, want):
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")  # so that what the call sets is taken back too
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(picture.sys, "platform", "linux")
    monkeypatch.setattr(picture.ctypes.util, "find_library", lambda name: name if name in there else None)
    picture.draw_without_screen()
    assert os.environ.get("MUJOCO_GL") == want
    assert ("SDL_VIDEODRIVER" in os.environ) == ("DISPLAY" not in given)


def test_a_robot_is_followed_by_its_camera():
    pytest.importorskip("mujoco")
    assert Environment("Hopper-v5").for_pictures().kwargs["camera_name"] == "track"
    chosen = Environment("Hopper-v5", kwargs={"camera_id": 0}).for_pictures().kwargs
    assert chosen == {"camera_id": 0, "render_mode": "rgb_array"}
    assert "camera_name" not in Environment("InvertedPendulum-v5").for_pictures().kwargs
