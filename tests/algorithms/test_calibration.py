"""Model errors on real segments: a perfect model, one that predicts no change, one that estimates its own error."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.noise import Control
from packtrain.algorithms.calibration import calibration, rank_correlation
from packtrain.memory.replay import Replay
from packtrain.networks.dynamics import Dynamics
from packtrain.types import Row, Spec, Trajectory

SPEC = Spec(gym.spaces.Box(-9, 9, (3,), np.float64), gym.spaces.Box(-1, 1, (2,), np.float32))


class World:
    """x' = x + (a, 0) and r = x·1, exactly; each of two members may be shifted where the first number is positive."""

    def __init__(self, shift=0.0, still=False):
        self.shift, self.still = torch.tensor([shift, -0.5 * shift]), still
        self.transition = torch.nn.Module()
        self.transition.members = 2

    def move(self, obs, action, noise=None):
        step = torch.zeros_like(obs) if self.still else torch.nn.functional.pad(action, (0, 1))
        off = self.shift[:, None, None] * (obs[..., :1] > 0)
        return obs + step + off

    def judge_rollout(self, obs, action):
        return obs[:, 1:].sum(-1).unsqueeze(3), torch.zeros(obs.shape[0], *action.shape[1:4])


def stretches(count=200, steps=4):
    generator = torch.Generator().manual_seed(0)
    action = torch.rand(count, steps, 2, generator=generator) - 0.5
    obs = torch.randn(count, 1, 3, generator=generator).repeat(1, steps, 1)
    obs[:, 1:, :2] += action[:, :-1].cumsum(1)
    after = obs + torch.nn.functional.pad(action, (0, 1))
    rows, reward = torch.cat([obs, after[:, -1:]], 1).transpose(0, 1), after.sum(-1).T
    flags, first = torch.zeros(steps, count, dtype=torch.bool), torch.zeros(steps + 1, count, dtype=torch.bool)
    action = action.transpose(0, 1)
    before = {"train": torch.zeros(1, count)}
    return Trajectory(rows, first, action, reward, flags, flags, torch.zeros_like(action[:1]), before, (), {})


def look(world, scale=1.0):
    """With critics that speak in units of `scale` rewards."""
    torch.manual_seed(0)
    network = Control(8, 1, 2, dynamics=Dynamics(2, 1, 4, 1, 4, 1)).build_network(SPEC)
    network.frozen = None
    object.__setattr__(network, "frozen", world)
    with torch.no_grad():
        for leaf in (network.target.weights[-1], network.target.biases[-1]):
            leaf.mul_(scale)
    return {name: float(value) for name, value in calibration(network, stretches(), 0.9, scale).items()}


def test_a_perfect_model_has_no_error_and_one_that_stands_still_has_all():
    """Mutations: places of one depth against truth of another; rewards one step late."""
    perfect, still = look(World()), look(World(still=True))
    for depth in (1, 2, 3):
        assert perfect[f"model/error_{depth}"] < 1e-5 and perfect[f"model/target_error_{depth}"] < 1e-5
        assert abs(still[f"model/error_{depth}"] - 1) < 1e-5
        assert still[f"model/target_error_{depth}"] > 0.1
        assert still[f"model/target_spread_{depth}"] == 0  # all agree, and all are wrong
        assert still[f"model/calibration_{depth}"] == 0


def test_a_model_that_is_unsure_where_it_is_wrong_is_calibrated():
    """Members part where the first number is positive, and only there are they wrong."""
    found = look(World(shift=0.4))
    assert found["model/calibration_1"] > 0.7 and found["model/target_spread_1"] > 0.1
    assert found["model/target_error_1"] < found["model/target_error_3"]


def test_targets_are_in_the_units_of_critics():
    """Mutation: rewards added as they are to values of scaled ones."""
    scale = 2.0**-7  # a power of two rounds nothing: values that tie without the scale tie with it
    whole, scaled = look(World(shift=0.4)), look(World(shift=0.4), scale)
    for name, value in whole.items():
        expected = value * (scale if "target" in name else 1)
        assert scaled[name] == pytest.approx(expected, rel=1e-5), name


def test_ranks_correlate():
    a = torch.tensor([3.0, 1.0, 2.0, 10.0])
    assert rank_correlation(a, a.square()) == 1 and rank_correlation(a, -a) == -1
    assert rank_correlation(a, torch.ones(4)) == 0


def test_stretches_follow_each_other():
    """Two columns, resets among them: every step begins where the one before led. Mutation: a stride of 1."""
    memory = Replay(capacity=1000, batch_size=4).build([2], 0, torch.device("cpu"))
    sink = memory.writer(0)
    place, rng = np.zeros((2, 1)), np.random.default_rng(0)
    first = np.ones(2, bool)
    for _ in range(120):
        ended = (rng.random(2) < 0.1) & ~first
        obs = np.where(first[:, None], rng.normal(size=(2, 1)), place + 1)
        flags = {"first": first, "terminated": ended, "truncated": np.zeros(2, bool)}
        sink.add(Row(obs, flags["first"], np.zeros((2, 1)), {"train": obs[:, 0]}, ended, flags["truncated"]), (), {})
        place, first = obs, ended
    found = memory.view("stretches", most=50, steps=3).trajectory
    assert 10 <= found.reward.shape[1] <= 50 and found.obs.shape == (4, found.reward.shape[1], 1)
    np.testing.assert_allclose(found.obs[1:3, :, 0], found.reward[:2])  # the reward is the observation it led to
    np.testing.assert_allclose(found.obs[2], found.obs[0] + 2, rtol=1e-6)
    assert not found.terminated.any() and not found.first.any()
    assert memory.view("stretches", most=10, steps=500) is None
