"""TD3: noise on target actions, twin critics, and a policy that moves more slowly than the critics."""

import numpy as np
import pytest
import torch

from packtrain.algorithms.td3 import TD3
from packtrain.errors import ConfigError
from packtrain.testing.plain_value_expansion import (
    GAMMA,
    KAPPA,
    RUNS,
    ask,
    build,
    check_against_reference,
    scene,
    settings,
)


def test_td3_targets_and_loss_equal_the_reference():
    """Mutations: noise not clipped; the fast policy; the greater of a pair; a pair with itself."""
    check_against_reference(*scene("one_step", "td3"))


def test_td3_clips_the_noise_of_target_actions():
    network, td3, batch = scene("one_step", "td3")
    batch["action_noise"] = torch.full_like(batch["action_noise"], 50.0)
    greedy = network.act(network.target_policy, batch["after"])
    got = td3.next_action(network, batch, batch["after"].unsqueeze(1), 0).action[:, 0]
    torch.testing.assert_close(got, (greedy + 0.5).clamp(max=1))
    assert (got < 1).any() and (got == 1).any()


def test_td3_with_two_critics_takes_the_lesser():
    """The mean over both pairs is the lesser of the two. Mutation: the mean of the critics."""
    for critics in (2, 1):
        network, td3, batch = scene("one_step", "td3", critics=critics)
        action = td3.next_action(network, batch, batch["after"].unsqueeze(1), 0).action[:, 0]
        least = network.value(network.target, batch["after"], action).amin(1)
        going = GAMMA * (1 - batch["terminated"].double())
        torch.testing.assert_close(td3.targets(network, batch).target[0], KAPPA * batch["reward"] + going * least)


def test_td3_policy_loss_by_hand():
    """−mean Q of all critics at π. Mutations: the target critic; one critic; DDPG's regulariser."""
    network, td3, batch = scene("one_step", "td3")
    loss = td3.policy_loss(network, batch)
    for run in range(RUNS):
        output = [ask(network.policy, run, 0, s) for s in batch["obs"][run].numpy()]
        pairs = list(zip(batch["obs"][run].numpy(), output, strict=True))
        value = [ask(network.critic, run, n, np.concatenate([s, np.tanh(a)])) for s, a in pairs for n in range(3)]
        np.testing.assert_allclose(loss[run].item(), -np.mean(value))


@pytest.mark.parametrize(
    "values, line",
    [
        ({"target_noise_clip": -0.5}, "TD3.target_noise_clip = -0.5 must not be negative"),
        ({"policy_delay": 0}, "TD3.policy_delay = 0 must be above 0"),
        ({"publish_period": 0}, "TD3.publish_period = 0 must be at least 1, or None"),
    ],
)
def test_td3_refuses_numbers_out_of_range(values, line):
    with pytest.raises(ConfigError, match=line):
        TD3(**values)


def test_td3_refuses_a_stochastic_policy():
    with pytest.raises(ConfigError, match="TD3 and Control.stochastic = True do not fit"):
        settings(core="td3").build(build(core="sac"), 0)
