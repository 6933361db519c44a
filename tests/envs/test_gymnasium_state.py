"""Gymnasium environments that go on elsewhere as if nothing had happened, and those that say that they cannot."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.gymnasium_state import exact_saving
from packtrain.envs.gymnasium_vector_env import Factory, GymnasiumVectorEnv
from packtrain.errors import CheckpointError
from packtrain.runtime import checkpoint

MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5")
OTHERS = ("Pendulum-v1", "CartPole-v1", "MountainCar-v0", "Acrobot-v1", "FrozenLake-v1", "Taxi-v4")


def columns(name, seeds, answer="raise"):
    """Two environments whose episodes are cut after 25 steps."""
    factories = [Factory(lambda: gym.make(name, max_episode_steps=25), name, answer) for _ in seeds]
    return GymnasiumVectorEnv(factories, seeds, processes=False, deadline_secs=30, answer=answer, name=name)


def play(some, actions):
    """What it answers to actions, as one list of numbers a step."""
    answers = []
    for pair in actions:
        some.send(pair)
        out = some.recv()
        parts = (out.obs, out.first, out.rewards["train"], out.terminated, out.truncated)
        answers.append([np.array(part) for part in parts])
    return answers


@pytest.mark.parametrize("name", [*MUJOCO, *OTHERS])
@pytest.mark.parametrize("before", [0, 13, 25])
def test_it_goes_on_from_disk_as_if_nothing_had_happened(name, before, tmp_path):
    """In the midst of an episode, at its beginning and its end, over later resets.

    Mutations: random numbers left out; the clock; what MuJoCo has derived; NumPy's numbers that come back as Python's.
    """
    whole, other = columns(name, [3, 4]), columns(name, [8, 9])
    space = gym.vector.utils.batch_space(whole.action_space, 2)
    space.seed(0)
    actions = [space.sample() for _ in range(before + 60)]
    whole.reset()
    play(whole, actions[:before])
    assert whole.savable
    checkpoint.save(tmp_path, 1, {"env": whole.snapshot()})
    other.reset()
    play(other, actions[:5])
    other.restore(checkpoint.load_newest(tmp_path)[1]["env"])
    wanted, found = play(whole, actions[before:]), play(other, actions[before:])
    for step, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        for part, (one, two) in enumerate(zip(mine, theirs, strict=True)):
            assert one.dtype == two.dtype and np.array_equal(one, two), (step, part)
    assert any(first.any() for _, first, *_ in wanted), "no episode began"
    whole.close()
    other.close()


class Remembers(gym.Wrapper):
    """An environment with state that packtrain cannot save."""


class Slippery(type(gym.make("Pendulum-v1").unwrapped)):
    """Inherits how Pendulum is, and may add to it."""


def test_what_may_remember_more_is_not_saved():
    """Mutations: unknown wrappers passed over; what inherits from an environment taken for it."""
    pendulum = gym.make("Pendulum-v1")
    assert exact_saving(pendulum) is not None
    assert exact_saving(gym.wrappers.RescaleAction(pendulum, -1, 1)) is not None
    assert exact_saving(Remembers(pendulum)) is None
    assert exact_saving(gym.wrappers.FrameStackObservation(pendulum, 2)) is None
    assert exact_saving(gym.wrappers.NormalizeObservation(pendulum)) is None
    assert exact_saving(Slippery()) is None
    assert exact_saving(gym.make("BipedalWalker-v3")) is None
    harmless = Remembers(pendulum)
    harmless.forgetful = True
    assert exact_saving(harmless) is not None


def test_a_dropped_episode_shows_what_was_good_before_the_pause():
    """Mutation: the last good observation forgotten."""
    some, other = (columns("Pendulum-v1", [1, 2], answer="drop") for _ in range(2))
    some.reset()
    play(some, [np.zeros((2, 1), np.float32)] * 3)
    other.reset()
    other.restore(some.snapshot())
    for mine, theirs in zip(other._envs.envs, some._envs.envs, strict=True):
        assert np.array_equal(mine._good, theirs._good) and mine._steps == theirs._steps == 3
    with pytest.raises(CheckpointError, match="Pendulum-v1 was saved by an earlier version of packtrain"):
        other.restore({name: part for name, part in some.snapshot().items() if name != "guards"})


def test_every_clock_is_saved():
    """Mutation: the outermost alone."""
    make = lambda: gym.wrappers.TimeLimit(gym.make("Pendulum-v1", max_episode_steps=5), 12)  # noqa: E731
    some, other = (
        GymnasiumVectorEnv(
            [Factory(make, "p", "raise")], [1], processes=False, deadline_secs=30, answer="raise", name="p"
        )
        for _ in range(2)
    )
    still = [np.zeros((1, 1), np.float32)]
    some.reset()
    play(some, 3 * still)
    other.reset()
    other.restore(some.snapshot())
    ends = [[bool(truncated[0]) for *_, truncated in play(one, 12 * still)] for one in (some, other)]
    assert ends[0] == ends[1] and sum(ends[0]) == 2
