"""Weights of depths in the targets of filmed episodes."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.noise import Control
from packtrain.algorithms.depth_weights import depth_weights, weight_histogram
from packtrain.algorithms.value_expansion import MveTdLambda, Steve, ValueExpansion
from packtrain.interfaces import ObservedStep
from packtrain.networks.dynamics import Dynamics
from packtrain.types import Spec


def build(core="ddpg", **options):
    torch.manual_seed(0)
    dynamics = Dynamics(transitions=2, rewards=3, hidden_size=5, num_layers=1, aux_hidden_size=4, aux_num_layers=1)
    sizes = Control(hidden_size=6, num_layers=1, critics=2, dynamics=dynamics, stochastic=core == "sac", **options)
    spec = Spec(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (2,)))
    return sizes.build_network(spec)


def steps(count):
    rng = np.random.default_rng(0)
    return [ObservedStep(rng.normal(size=3), float(rng.normal()), t == count - 1) for t in range(count)]


def test_weights_are_those_of_the_real_steps_one_at_a_time():
    """Mutations: rewards or ends of the step before; depths and steps exchanged."""
    network, settings = build(), ValueExpansion(target=Steve(2), batch_size=8).algorithm
    got = depth_weights(network, settings, steps(5))
    assert got.shape == (5, 3)
    for step, weights in zip(steps(5), got, strict=True):
        batch = {
            "after": torch.tensor(step.after)[None, None].float(),
            "reward": torch.tensor([[step.reward]]),
            "terminated": torch.tensor([[float(step.terminated)]]),
        }
        targets = settings.targets(network, batch)[1]
        np.testing.assert_allclose(weights, targets.weight[0, :, 0, 0], atol=1e-6)
    np.testing.assert_allclose(got[-1], 1 / 3, atol=1e-6)  # nothing differs after the end
    assert np.ptp(got[:-1, 0]) > 0.01, "else nothing was tested"


@pytest.mark.parametrize("core", ["td3", "sac"])
def test_cores_that_draw_actions_have_weights_too(core):
    settings = ValueExpansion(target=MveTdLambda(2, 0.5), core=core).algorithm
    got = depth_weights(build(core), settings, steps(4))
    np.testing.assert_allclose(got, [[0.5, 0.25, 0.25]] * 4, atol=1e-6)


def test_a_histogram_by_arithmetic():
    """Highest weights in the first row; what lies outside counts at the edge. Mutation: 0.3 in the bucket below."""
    weights = np.array([[1.0, 0.0], [0.95, 0.05], [0.3, 0.7], [-0.2, 1.2]])
    want = np.zeros((10, 2))
    want[0] = [2 / 4, 1 / 4]  # 0.9 to 1
    want[2, 1] = 1 / 4  # 0.7
    want[6, 0] = 1 / 4  # 0.3
    want[9] = [1 / 4, 2 / 4]  # 0 to 0.1
    np.testing.assert_array_equal(weight_histogram(weights), want)


def test_only_critics_that_look_into_a_model_analyse_episodes():
    assert not ValueExpansion().analyses_episodes
    assert replace(ValueExpansion(), target=Steve(2)).analyses_episodes
