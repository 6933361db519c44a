"""SAC: soft targets, the loss of its policy, and the temperature."""

import math

import pytest
import torch

from packtrain.algorithms.sac import SAC
from packtrain.errors import ConfigError
from packtrain.testing.plain_value_expansion import (
    build,
    check_against_reference,
    inputs,
    learner_of,
    scene,
    settings,
)


def test_sac_targets_and_loss_equal_the_reference():
    """Mutations: entropy not discounted, or with the wrong sign; the greater of a pair; a pair with itself."""
    check_against_reference(*scene("one_step", "sac"))


def test_sac_policy_loss_by_hand():
    """Mutations: the temperature not a factor; entropy with the wrong sign."""
    network, sac, batch = scene("one_step", "sac")
    loss, log_prob = sac.policy_loss(network, batch)
    action, want = network.draw(network.policy, batch["obs"], batch["policy_noise"])
    torch.testing.assert_close(log_prob, want)
    value = network.value(network.critic, batch["obs"], action).mean(1)
    temperature = network.log_temperature.exp()[:, None]
    torch.testing.assert_close(loss, (temperature * want - value).mean(-1))
    assert not (temperature == 1).any()
    fixed = settings(core="sac", temperature=0.3)
    torch.testing.assert_close(fixed.policy_loss(network, batch)[0], (0.3 * want - value).mean(-1))


def test_temperature_rises_while_entropy_is_short_and_falls_while_there_is_plenty():
    """Adam's first step is the learning rate, whatever the gradient. Mutations: the sign; the target of one dimension
    for the whole action, which the last two tell apart.
    """
    for wanted in (3.0, -3.0, +0.1, -0.1):
        network = build(core="sac")
        learner = learner_of(network, settings(core="sac", learning_rate=0.01))
        batch = inputs(learner, 1)
        entropy = -network.draw(network.policy, batch["obs"][:1], batch["policy_noise"])[1].mean().item()
        wanted = wanted if abs(wanted) > 1 else (entropy + wanted) / 2  # of two dimensions, together just off
        learner = learner_of(network, settings(core="sac", target_entropy=wanted, learning_rate=0.01))
        before = network.log_temperature.item()
        metrics = learner.update(batch)
        want = before + (0.01 if entropy < 2 * wanted else -0.01)
        assert abs(network.log_temperature.item() - want) < 1e-5
        assert abs(metrics["temperature"].item() - math.exp(want)) < 1e-4


def test_a_fixed_temperature_does_not_move():
    fixed = learner_of(build(core="sac"), settings(core="sac", temperature=0.2))
    before = fixed.network.log_temperature.clone()
    metrics = fixed.update(inputs(fixed, 2))
    assert torch.equal(fixed.network.log_temperature, before) and abs(metrics["temperature"].item() - 0.2) < 1e-6


def test_sac_refuses_bad_numbers_and_a_deterministic_policy():
    with pytest.raises(ConfigError, match="SAC.temperature = -1.0 must not be negative"):
        SAC(temperature=-1.0)
    with pytest.raises(ConfigError, match="SAC and Control.stochastic = False do not fit"):
        settings(core="sac").build(build(), 0)
