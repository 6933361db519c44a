"""The actor–critic network: shapes, what it reads and what it ignores."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.actor_critic import ActorCritic
from packtrain.networks.perception import Conv
from packtrain.types import Spec

T, B = 5, 3
VECTOR = Box(-9, 9, (4,))


def rows(spec, network, steps=T, batch=B, seed=0, resets=0.0):
    """Arguments of forward: observations in [−1, 1], sampled actions, rewards of all sizes."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.rand(steps, batch, *spec.obs.shape, generator=generator) * 2 - 1
    first = torch.rand(steps, batch, generator=generator) < resets
    flat = torch.zeros(steps, batch, network.distribution.num_parameters)
    action = network.distribution.sample(flat, generator)
    reward = 3 * torch.randn(steps, batch, generator=generator)
    carry = tuple(torch.randn(state.shape, generator=generator) for state in network.initial_carry(batch))
    return obs, first, action, reward, carry


def build(seed=0, action=None, obs=VECTOR, **sizes):
    torch.manual_seed(seed)
    spec = Spec(obs, action or Discrete(6))
    return spec, ActorCritic(**{"hidden_size": 16, "lstm_size": 8, **sizes}).build(spec)


@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize(
    "action, parameters",
    [(Discrete(6), 6), (MultiDiscrete([2, 3]), 5), (Box(-2, 2, (3,)), 6), (Box(-2, 2, (2, 2)), 8)],
    ids=["Discrete", "MultiDiscrete", "Box", "Box 2x2"],
)
def test_shapes(use_lstm, action, parameters):
    spec, network = build(action=action, use_lstm=use_lstm, lstm_layers=2)
    for steps in (1, T):
        output = network(*rows(spec, network, steps))
        assert output.parameters.shape == (steps, B, parameters)
        assert output.value.shape == (steps, B)
        assert [state.shape for state in output.carry] == [(B, 2, 8)] * 2 * use_lstm
    output.value.sum().backward()


def test_the_carry_is_empty_without_an_lstm_and_zero_with_one():
    _, network = build()
    assert network.initial_carry(4) == ()
    _, network = build(use_lstm=True, lstm_layers=2)
    h, c = network.initial_carry(4)
    assert h.shape == c.shape == (4, 2, 8)
    assert not h.any() and not c.any()


@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
def test_what_came_before_a_reset_is_ignored(use_lstm):
    """Mutation: without the mask, the network sees the last action and reward of the episode before."""
    spec, network = build(use_lstm=use_lstm)
    obs, first, action, reward, carry = rows(spec, network)
    first[2, 1] = True
    output = network(obs, first, action, reward, carry)
    other_action, other_reward = action.clone(), reward.clone()
    other_action[2, 1], other_reward[2, 1] = (action[2, 1] + 1) % 6, -reward[2, 1]
    other = network(obs, first, other_action, other_reward, carry)
    assert torch.equal(output.parameters, other.parameters) and torch.equal(output.value, other.value)


@pytest.mark.parametrize(
    "field, used", [("action", True), ("reward", True), ("action", False), ("reward", False)], ids=str
)
def test_last_action_and_reward_are_read_inside_an_episode_if_asked_for(field, used):
    """The negative control of the test above, and the options."""
    spec, network = build(**{f"use_last_{field}": used})
    obs, first, action, reward, carry = rows(spec, network)
    reward[2, 1] = 0.3
    before = network(obs, first, action, reward, carry).value
    if field == "action":
        action[2, 1] = (action[2, 1] + 1) % 6
    else:
        reward[2, 1] = 0.6
    changed = network(obs, first, action, reward, carry).value != before
    assert changed.nonzero().tolist() == ([[2, 1]] if used else [])


def test_the_reward_is_clipped_before_it_is_read():
    spec, network = build()
    obs, first, action, reward, carry = rows(spec, network)
    one = network(obs, first, action, torch.full_like(reward, 1.0), carry).value
    assert torch.equal(network(obs, first, action, torch.full_like(reward, 50.0), carry).value, one)
    assert not torch.equal(network(obs, first, action, torch.full_like(reward, -50.0), carry).value, one)


def test_rows_are_independent_without_an_lstm():
    """Mutation: merging [T, B] and splitting as [B, T] puts outputs into the wrong rows."""
    spec, network = build()
    arguments = rows(spec, network)
    together = network(*arguments)
    for t in range(T):
        for b in range(B):
            alone = network(*[leaf[t : t + 1, b : b + 1] for leaf in arguments[:4]], ())
            torch.testing.assert_close(alone.parameters[0, 0], together.parameters[t, b])
            torch.testing.assert_close(alone.value[0, 0], together.value[t, b])


def test_with_an_lstm_one_row_at_a_time_is_all_at_once():
    spec, network = build(use_lstm=True, lstm_layers=2)
    obs, first, action, reward, carry = rows(spec, network, steps=9, resets=0.3)
    together = network(obs, first, action, reward, carry)
    for t in range(9):
        one = slice(t, t + 1)
        output = network(obs[one], first[one], action[one], reward[one], carry)
        carry = output.carry
        torch.testing.assert_close(output.parameters[0], together.parameters[t])
        torch.testing.assert_close(output.value[0], together.value[t])
    torch.testing.assert_close(carry[0], together.carry[0])


@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("action", [Discrete(6), MultiDiscrete([2, 3]), Box(-1, 1, (2,))], ids=str)
def test_every_parameter_gets_a_gradient(use_lstm, action):
    spec, network = build(action=action, use_lstm=use_lstm, num_layers=2)
    output = network(*rows(spec, network))
    (output.parameters.square().sum() + output.value.square().sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_a_continuous_policy_starts_with_the_spread_asked_for():
    """Mutation: the bias of the means set instead of that of the deviations."""
    spec, network = build(action=Box(-1, 1, (2,)), initial_std=0.25)
    assert torch.allclose(network.policy.bias[2:].exp(), torch.tensor(0.25))
    _, plain = build(action=Discrete(4), initial_std=0.25)
    assert not torch.isclose(plain.policy.bias.exp(), torch.tensor(0.25)).any()


def test_trees_of_observations_and_pictures():
    space = gym.spaces.Dict(a=Discrete(3), picture=Box(0, 255, (6, 6, 3), np.uint8))
    torch.manual_seed(0)
    network = ActorCritic(perception=Conv(), hidden_size=8).build(Spec(space, Discrete(2)))
    obs = {
        "a": torch.randint(3, (T, B)),
        "picture": torch.randint(256, (T, B, 6, 6, 3), dtype=torch.uint8),
    }
    no = torch.zeros(T, B, dtype=torch.bool)
    output = network(obs, no, torch.zeros(T, B, dtype=torch.int64), torch.zeros(T, B), ())
    assert output.parameters.shape == (T, B, 2) and output.value.shape == (T, B)


def test_no_fully_connected_layer_is_allowed():
    spec, network = build(num_layers=0, use_last_action=False, use_last_reward=False)
    assert network.policy.in_features == 4
    assert network(*rows(spec, network)).value.shape == (T, B)


@pytest.mark.parametrize(
    "sizes",
    [{"hidden_size": 0}, {"lstm_size": 0}, {"lstm_layers": -1}, {"num_layers": -1}, {"initial_std": 0.0}],
    ids=str,
)
def test_impossible_sizes_are_refused_by_name(sizes):
    with pytest.raises(ConfigError, match=rf"ActorCritic\.{next(iter(sizes))} = "):
        ActorCritic(**sizes)


def test_an_action_space_without_a_policy_is_refused():
    with pytest.raises(EnvSetupError, match="no policy"):
        build(action=gym.spaces.MultiBinary(3))
