"""A slow copy that bootstraps, and learning rates that fall."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from packtrain.algorithms.expert_iteration import ExpertIteration
from packtrain.algorithms.polyak import SlowCopy
from packtrain.algorithms.world_model import WorldModelLearning
from packtrain.errors import ConfigError
from packtrain.networks.prediction import Mlp, Prediction
from packtrain.types import Sample, Trajectory

SPACE = gym.spaces.Box(-1, 1, (2,), np.float32)


def network():
    torch.manual_seed(0)
    return nn.ModuleDict({"agent": Prediction(Mlp(())).build(SPACE, {"value": 1})})


def sample(size=4):
    """Steps from (1, 0) to (0, 1) without a reward, whose n-step return bootstraps with the value of (0, 1)."""
    no, obs = torch.zeros(1, size, dtype=torch.bool), torch.tensor([[1.0, 0.0]]).repeat(size, 1)
    after = obs.flip(1)
    extras = {
        "n_step_return": torch.zeros(1, size),
        "bootstrap_discount": torch.ones(1, size),
        "bootstrap_obs": after[None],
    }
    trajectory = Trajectory(
        torch.stack([obs, after]),
        torch.zeros(2, size, dtype=torch.bool),
        torch.zeros(1, size, dtype=torch.int64),
        torch.zeros(1, size),
        no,
        no,
        torch.zeros(1, size),
        {"train": torch.zeros(1, size)},
        (),
        extras,
    )
    return Sample(trajectory, size)


def test_a_slow_copy_is_the_exponential_average_of_the_weights():
    """Mutation: decay and 1 − decay swapped."""
    layer = nn.Linear(1, 1)
    slow = SlowCopy(layer, 0.9)
    expected = float(layer.weight.detach())
    for value in (1.0, -2.0, 5.0):
        nn.init.constant_(layer.weight, value)
        slow.follow()
        expected = 0.9 * expected + 0.1 * value
        assert float(slow.module.weight) == pytest.approx(expected, rel=1e-5)


def test_n_step_targets_bootstrap_with_the_slow_copy():
    """With decay 1 the copy stays at its first weights, so the value converges to what those say of the next state.

    Mutation: the network itself bootstraps; then the value of the next state drifts along with the bias.
    """
    one = network()
    first = one["agent"](torch.tensor([[0.0, 1.0]]))["value"].item()
    learner = ExpertIteration(targets={"value": "n_step"}, target_decay=1.0, learning_rate=0.05).build(one, 0)
    for _ in range(300):
        learner.update(sample())
    assert float(one["agent"](torch.tensor([[1.0, 0.0]]))["value"]) == pytest.approx(first, abs=1e-3)
    assert float(one["agent"](torch.tensor([[0.0, 1.0]]))["value"]) != pytest.approx(first, abs=0.05)


def test_a_saved_learner_goes_on_with_its_slow_copy():
    """Mutation: the copy is not saved, and is initialised from the loaded weights."""
    settings = ExpertIteration(targets={"value": "n_step"}, target_decay=0.9, learning_rate=0.05)
    straight = settings.build(network(), 0)
    for _ in range(5):
        straight.update(sample())
    resumed = settings.build(network(), 0)
    resumed.load_state_dict(straight.state_dict())
    for _ in range(5):
        straight.update(sample())
        resumed.update(sample())
    for name, leaf in straight.network.state_dict().items():
        torch.testing.assert_close(resumed.network.state_dict()[name], leaf, rtol=0, atol=0)


def test_a_reset_initialises_the_slow_copy():
    learner = ExpertIteration(targets={"value": "n_step"}, target_decay=0.9, learning_rate=0.05).build(network(), 0)
    learner.update(sample())
    fresh = network().state_dict()
    learner.reset(fresh)
    state = learner.state_dict()
    for name, leaf in state["slow_copy"].items():
        torch.testing.assert_close(leaf, fresh[f"agent.{name}"], rtol=0, atol=0)


def test_the_learning_rate_falls_on_a_straight_line():
    learner = ExpertIteration(
        targets={"value": "n_step"}, learning_rate=0.1, final_learning_rate=0.02, decay_updates=4
    ).build(network(), 0)
    rates = [learner.update(sample())["learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.02])
    assert learner.optimiser.param_groups[0]["lr"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ExpertIteration(final_learning_rate=0.1), "final_learning_rate and .*decay_updates need each other"),
        (lambda: WorldModelLearning(decay_updates=10), "final_learning_rate and .*decay_updates need each other"),
        (lambda: WorldModelLearning(decay_updates=0, final_learning_rate=0.1), "decay_updates = 0 must be at least 1"),
        (lambda: ExpertIteration(target_decay=0.9), "target_decay is of n-step returns"),
        (
            lambda: ExpertIteration(targets={"value": "n_step"}, target_decay=1.5),
            "target_decay = 1.5 must lie between 0 and 1",
        ),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
