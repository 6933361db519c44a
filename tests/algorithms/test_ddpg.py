"""DDPG: its target, and the loss of its policy, by hand."""

import numpy as np
import pytest
import torch

from packtrain.algorithms.ddpg import DDPG
from packtrain.equations.value_expansion import expanded_returns, steve_targets
from packtrain.errors import ConfigError
from packtrain.testing.plain_value_expansion import (
    GAMMA,
    KAPPA,
    ROWS,
    RUNS,
    ask,
    build,
    check_against_reference,
    scene,
    settings,
    targets_of,
)


@pytest.mark.parametrize("rows", ["all", "split", "random"])
def test_ddpg_targets_and_loss_equal_the_reference(rows):
    """Mutations: the live critic in place of its copy; γ once too often; rows dealt to the wrong critic."""
    check_against_reference(*scene("one_step", rows=rows))


def test_ddpg_target_is_the_reward_and_the_mean_of_the_target_critics():
    network, ddpg, batch = scene("one_step")
    value = network.value(network.target, batch["after"], network.act(network.policy, batch["after"])).mean(1)
    going = GAMMA * (1 - batch["terminated"].double())
    torch.testing.assert_close(ddpg.targets(network, batch).target, (KAPPA * batch["reward"] + going * value)[None])


def test_steve_without_depth_is_ddpg():
    network, ddpg, batch = scene("one_step")
    targets = ddpg.targets(network, batch)
    value = network.value(network.target, batch["after"], network.act(network.policy, batch["after"]))
    ends = batch["terminated"].double()[None, ..., None]
    none = value.new_zeros(0, RUNS, ROWS, 1, 1)
    found = expanded_returns(
        batch["reward"], ends, none, value.transpose(1, 2)[None, :, :, None], discount=GAMMA, reward_scale=KAPPA
    )
    torch.testing.assert_close(steve_targets(found).target, targets.target)


@pytest.mark.parametrize("core", ["ddpg", "td3", "sac"])
def test_transitions_of_several_steps_bootstrap_after_the_last(core):
    """Mutation: γ of one step for all of them."""
    network, algorithm, batch = scene("one_step", core)
    once = targets_of(algorithm, network, batch).target[0] - KAPPA * batch["reward"]
    steps = 1 + torch.arange(RUNS * ROWS).reshape(RUNS, ROWS) % 3
    rewards = torch.randn(RUNS, ROWS, 3, dtype=torch.float64)
    rewards[torch.arange(3) >= steps[..., None]] = 0
    found = targets_of(algorithm, network, {**batch, "reward": rewards, "steps": steps}).target[0]
    paid = sum(GAMMA**k * rewards[..., k] for k in range(3))
    torch.testing.assert_close(found, KAPPA * paid + once * GAMMA ** (steps - 1).double())


def test_ddpg_policy_loss_by_hand():
    """−mean Q of all critics at tanh u, and 0.001 mean u². Mutations: the target critic; one critic; tanh squared."""
    network, ddpg, batch = scene("one_step")
    loss, regulariser = ddpg.policy_loss(network, batch)
    for run in range(RUNS):
        output = [ask(network.policy, run, 0, s) for s in batch["obs"][run].numpy()]
        pairs = list(zip(batch["obs"][run].numpy(), output, strict=True))
        value = [ask(network.critic, run, n, np.concatenate([s, np.tanh(a)])) for s, a in pairs for n in range(3)]
        np.testing.assert_allclose(loss[run].item(), -np.mean(value))
        np.testing.assert_allclose(regulariser[run].item(), 0.001 * np.mean(np.square(output)))


@pytest.mark.parametrize(
    "values, line",
    [
        ({"batch_size": 0}, "DDPG.batch_size = 0 must be above 0"),
        ({"policy_delay": 0}, "DDPG.policy_delay = 0 must be above 0"),
        ({"target_period": 0}, "DDPG.target_period = 0 must be at least 1, or None"),
        ({"discount": 1.1}, "DDPG.discount = 1.1 must lie between 0 and 1"),
        ({"polyak": -0.1}, "DDPG.polyak = -0.1 must lie between 0 and 1"),
        ({"policy_regulariser": -0.1}, "DDPG.policy_regulariser = -0.1 must not be negative"),
    ],
)
def test_ddpg_refuses_numbers_out_of_range(values, line):
    with pytest.raises(ConfigError, match=line):
        DDPG(**values)


def test_ddpg_refuses_networks_that_do_not_fit():
    with pytest.raises(ConfigError, match="DDPG.batch_size = 7 cannot be split between Control.critics = 3"):
        settings(batch_size=7, rows="split").build(build(), 0)
    with pytest.raises(ConfigError, match="DDPG and Control.stochastic = True do not fit"):
        settings().build(build(core="sac"), 0)
    settings(batch_size=7, rows="all").build(build(model=False), 0)
