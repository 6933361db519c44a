"""Normalised rewards of replays: by hand, in both memories, and restored."""

import numpy as np
import pytest
import torch

from packtrain.acting.noise import Control
from packtrain.algorithms.ddpg import DDPG
from packtrain.algorithms.dynamics import DynamicsLearning
from packtrain.errors import ConfigError
from packtrain.memory.replay import Replay
from packtrain.memory.reward_scale import RewardScale
from packtrain.memory.sequence_settings import Sequences
from packtrain.networks.dynamics import Dynamics
from packtrain.types import Row

CPU, GAMMA = torch.device("cpu"), 0.9


def rows(count, seed=0, factor=1.0):
    """Rows of two environments; the first starts again every 6 rows, the second every 8."""
    rng = np.random.default_rng(seed)
    for t in range(count):
        first = np.array([t % 6 == 0, t % 8 == 0])
        reward = (factor * (3 + rng.normal(size=2)) * ~first).astype(np.float32)
        ends = np.array([t % 6 == 5, t % 8 == 7])
        obs = np.full((2, 1), t, np.float32)
        yield Row(obs, first, np.zeros((2, 1), np.float32), {"train": reward}, ends, np.zeros(2, bool))


def expected_deviation(given):
    running, seen = np.zeros(2), []
    for row in given:
        for b in range(2):
            running[b] = 0.0 if row.first[b] else GAMMA * running[b] + row.last_reward["train"][b]
            if not row.first[b]:
                seen.append(running[b])
    return np.std(seen)


def memories(**more):
    """Both replays; with the second, sequences of two steps."""
    sizes = {"capacity": 400, "batch_size": 64, "normalise_rewards": True, **more}
    for given in (
        Replay(**sizes),
        Replay(**sizes, n_step=3),
        Sequences(**sizes, sequence_length=2, burn_in=0, stride=1, n_step=1),
    ):
        memory = given.build([2], 0, CPU)
        DDPG(discount=GAMMA).prepare_memory(memory)
        yield memory


def fill(memory, given):
    for row in given:
        memory.writer(0).add(row, (), {})
    return memory


def test_the_unit_is_the_deviation_of_discounted_returns():
    """Mutations: returns that go on over the end of an episode; rows of resets that count."""
    scale, running = RewardScale(GAMMA), np.zeros(2)
    given = list(rows(50))
    for row in given:
        scale.add(running, row.last_reward["train"], row.first)
    reward = torch.tensor([1.0, -2.0, 1e6])
    want = (reward / expected_deviation(given)).clamp(-10, 10)
    torch.testing.assert_close(scale.scaled(reward), want.float())


@pytest.mark.parametrize("which", range(3), ids=["transitions", "n_step", "sequences"])
def test_sampled_rewards_do_not_depend_on_their_unit(which):
    """And are rewards over the deviation; old rows have the unit of the newest.

    Mutations: rewards divided when they are stored; the rewards of n steps as they were.
    """
    plain, large = (fill(list(memories())[which], rows(60, factor=factor)) for factor in (1, 512))
    one, other = plain.sample().trajectory, large.sample().trajectory
    torch.testing.assert_close(one.reward, other.reward)
    raw = fill(list(memories(normalise_rewards=False))[which], rows(60)).sample().trajectory
    unit = expected_deviation(rows(60))
    torch.testing.assert_close(one.reward, (raw.reward / unit).float())
    if which == 1:
        torch.testing.assert_close(one.extras["rewards"], (raw.extras["rewards"] / unit).float())


@pytest.mark.parametrize("which", range(3), ids=["transitions", "n_step", "sequences"])
def test_the_scale_goes_on_after_a_restart(which):
    """Mutations: the moments, or the running return of an episode, left out of the snapshot."""
    given = list(rows(60))
    whole = fill(list(memories())[which], given)
    first = fill(list(memories())[which], given[:33])
    again = list(memories())[which]
    again.restore(first.snapshot())
    fill(again, given[33:])
    assert again.reward_scale._unit == whole.reward_scale._unit
    torch.testing.assert_close(again.reward_scale.scaled(torch.ones(1)), whole.reward_scale.scaled(torch.ones(1)))


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="--new_priority largest"):
        Sequences(normalise_rewards=True, new_priority="given")
    with pytest.raises(ConfigError, match="--normalise_rewards false"):
        DynamicsLearning(batch_size=8).check(Replay(normalise_rewards=True), Control(dynamics=Dynamics()))
