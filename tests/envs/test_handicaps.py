"""Noise on actions and observations: how much, in which spaces, and that a resumed run continues it."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.environment import Environment
from packtrain.envs.handicaps import Handicap, HandicappedVectorEnv
from packtrain.envs.vector_env import Outcome
from packtrain.errors import ConfigError, EnvSetupError


class Echo:
    """Environments that show what they were given."""

    def __init__(self, action_space, observation_space, size=4000):
        self.action_space, self.observation_space, self.size = action_space, observation_space, size
        self.got = None

    def reset(self):
        return self.recv()

    def send(self, actions):
        self.got = actions

    def recv(self):
        shape, dtype = self.observation_space.shape, self.observation_space.dtype
        obs = np.full((self.size, *shape), 100, dtype)
        no = np.zeros(self.size, bool)
        return Outcome(obs, no, {"train": np.zeros(self.size, np.float32)}, no, no, None)

    def snapshot(self):
        return {}

    def restore(self, snapshot):
        pass


PICTURE = gym.spaces.Box(0, 255, (2, 2), np.uint8)
NUMBERS = gym.spaces.Box(-200, 200, (3,), np.float32)


def test_choices_are_replaced_as_often_as_said():
    """Mutations: one draw for all columns; the chosen action never among those drawn; noise where there is none."""
    echo = Echo(gym.spaces.Discrete(4, start=2), NUMBERS)
    columns = HandicappedVectorEnv(echo, Handicap(action_noise=0.4), 0)
    columns.reset()
    columns.send(np.full(4000, 3))
    assert set(np.unique(echo.got)) == {2, 3, 4, 5} and echo.got.dtype == np.int64
    assert abs((echo.got != 3).mean() - 0.4 * 3 / 4) < 0.03
    several = Echo(gym.spaces.MultiDiscrete([2, 3]), NUMBERS)
    HandicappedVectorEnv(several, Handicap(action_noise=1.0), 0).send(np.zeros((4000, 2), np.int64))
    np.testing.assert_allclose(several.got.mean(0), [0.5, 1.0], atol=0.05)


def test_numbers_are_rounded_then_shaken_and_stay_in_their_bounds():
    """Mutations: levels counted without one of the bounds; noise beyond the bounds."""
    space = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
    echo = Echo(space, NUMBERS, 3)
    HandicappedVectorEnv(echo, Handicap(action_levels=3), 0).send(np.float32([[-1.9, 0.2], [0.9, 0.8], [9.0, 0.3]]))
    np.testing.assert_allclose(echo.got, [[-2, 0], [0, 1], [2, 0.5]])
    HandicappedVectorEnv(echo, Handicap(action_noise=0.1), 0).send(np.tile(np.float32([0, 1]), (4000, 1)))
    assert abs(echo.got[:, 0].std() - 0.1) < 0.01 and echo.got[:, 1].max() == 1 and echo.got.dtype == np.float32


def test_what_is_seen_is_blurred():
    """Mutations: bytes that wrap around; pictures blurred by a number of greys."""
    columns = HandicappedVectorEnv(Echo(gym.spaces.Discrete(2), NUMBERS), Handicap(observation_noise=3.0), 0)
    obs = columns.reset().obs
    assert abs(obs.std() - 3) < 0.1 and abs(obs.mean() - 100) < 0.2 and obs.dtype == np.float32
    pictures = (
        HandicappedVectorEnv(Echo(gym.spaces.Discrete(2), PICTURE), Handicap(observation_noise=0.1), 0).reset().obs
    )
    assert pictures.dtype == np.uint8 and abs(pictures.std() - 25.5) < 1 and abs(pictures.mean() - 100) < 1


def test_noise_begins_again_with_the_stream_and_goes_on_from_a_snapshot():
    """Mutations: a reset that leaves the generator; a snapshot without it; one noise for all seeds."""
    space = gym.spaces.Discrete(9)
    handicap = Handicap(action_noise=0.5, observation_noise=1.0)

    def show(columns, echo):
        columns.send(np.zeros(50, np.int64))
        return echo.got.tolist(), columns.recv().obs.tolist()

    echo, others = Echo(space, NUMBERS, 50), []
    columns = HandicappedVectorEnv(echo, handicap, 3)
    first = columns.reset().obs.tolist(), show(columns, echo)
    kept = columns.snapshot()
    after = show(columns, echo)
    columns.restore(kept)
    assert show(columns, echo) == after != first[1]
    assert (columns.reset().obs.tolist(), show(columns, echo)) == first
    for seed in (3, 4):
        other = Echo(space, NUMBERS, 50)
        again = HandicappedVectorEnv(other, handicap, seed)
        others.append((again.reset().obs.tolist(), show(again, other)))
    assert others[0] == first != others[1]


def test_an_environment_gives_its_handicap_to_those_who_act():
    """And none to planners. Mutation: the handicap left out of `open`."""
    environment = Environment("SideEffects", handicap=Handicap(action_noise=1.0))
    columns = environment.open(64, 0, environment.probe())
    columns.reset()
    columns.send(np.full(64, 1))
    places = columns.recv().obs[:, 1].reshape(64, -1).argmax(1)
    assert len(set(places.tolist())) > 1
    with pytest.raises(EnvSetupError, match="^Environment.handicap applies to agents without planning"):
        environment.core()
    assert Environment("SideEffects", handicap=Handicap()).core() is not None


@pytest.mark.parametrize(
    ("handicap", "line"),
    [
        (lambda: Handicap(action_noise=-1.0), "Handicap.action_noise = -1.0 must be finite and not negative"),
        (lambda: Handicap(observation_noise=float("inf")), "Handicap.observation_noise = inf must be finite"),
        (lambda: Handicap(action_levels=1), "Handicap.action_levels = 1 must be at least 2, or None"),
        (
            lambda: Environment("SideEffects", handicap=Handicap(action_noise=2.0)).probe(),
            "Handicap.action_noise = 2.0 must be at most 1",
        ),
        (
            lambda: Environment("SideEffects", handicap=Handicap(action_levels=3)).probe(),
            "Handicap.action_levels needs actions that are bounded numbers",
        ),
    ],
)
def test_handicaps_that_cannot_be(handicap, line):
    with pytest.raises(ConfigError, match=f"^{line}"):
        handicap()
