"""The actor–critic network: shapes, what it reads and what it ignores."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from packtrain import trees
from packtrain.acting.sampling import ActorCritic
from packtrain.errors import ConfigError, EnvSetupError
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
    return spec, ActorCritic(**{"hidden_size": 16, "lstm_size": 8, **sizes}).build_network(spec)


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
    network = ActorCritic(perception=Conv(), hidden_size=8).build_network(Spec(space, Discrete(2)))
    obs = {
        "a": torch.randint(3, (T, B)),
        "picture": torch.randint(256, (T, B, 6, 6, 3), dtype=torch.uint8),
    }
    no = torch.zeros(T, B, dtype=torch.bool)
    output = network(obs, no, torch.zeros(T, B, dtype=torch.int64), torch.zeros(T, B), ())
    assert output.parameters.shape == (T, B, 2) and output.value.shape == (T, B)


STACKED = gym.spaces.Dict(speed=Box(-9, 9, (2,)), picture=Box(0, 255, (6, 6), np.uint8))


def stacked(use_lstm=False, **sizes):
    """A network that looks at three frames, and C = 2 context rows in front of T others."""
    torch.manual_seed(0)
    conv = Conv(frames=3, channels=(4,), kernels=(3,), strides=(1,))
    spec = Spec(STACKED, Discrete(3))
    network = ActorCritic(conv, 16, use_lstm=use_lstm, lstm_size=None, lstm_layers=2, **sizes).build_network(spec)
    picture = torch.randint(256, (2 + T, B, 6, 6), dtype=torch.uint8)
    first = torch.zeros(2 + T, B, dtype=torch.bool)
    carry = tuple(torch.randn(state.shape) for state in network.initial_carry(B))
    rest = torch.randint(3, (T, B)), torch.randn(T, B), carry
    return network, {"speed": torch.randn(2 + T, B, 2), "picture": picture}, first, rest


def test_only_pictures_are_stacked():
    """Value by value, over changed rows. Mutations: what is no picture taken from the context; a stack too long."""
    network, obs, first, rest = stacked()
    assert network.context == 2
    first[4, 1] = True
    before = network(obs, first, *rest).value
    assert before.shape == (T, B)

    def changed(leaf, row, column):
        other = {name: value.clone() for name, value in obs.items()}
        other[leaf][row, column] = other[leaf][row, column].flip(-1)
        return (network(other, first, *rest).value != before).nonzero().tolist()

    assert changed("speed", 1, 0) == [] and changed("speed", 2, 0) == [[0, 0]]  # row 2 is row 0 after the context
    assert changed("picture", 0, 0) == [[0, 0]]
    assert changed("picture", 3, 0) == [[1, 0], [2, 0], [3, 0]]
    assert changed("picture", 3, 1) == [[1, 1]]  # the reset of row 4 cuts it off
    assert changed("picture", 4, 1) == [[2, 1], [3, 1], [4, 1]]


def test_an_lstm_may_be_as_wide_as_what_goes_in():
    network, obs, first, rest = stacked(use_lstm=True)
    width = 16 + 3 + 1  # features, last action, last reward
    assert network.core.lstm.input_size == network.core.lstm.hidden_size == width == network.policy.in_features
    assert [state.shape for state in network.initial_carry(B)] == [(B, 2, width)] * 2
    assert [state.shape for state in network(obs, first, *rest).carry] == [(B, 2, width)] * 2


@pytest.mark.parametrize("beside", [False, True], ids=["features alone", "last action and reward"])
@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
def test_in_bfloat16_only_perception_and_layers_compute(use_lstm, beside):
    """Heads, carry and weights stay float32. Mutations: the precision ignored, or put around everything."""
    network, obs, first, rest = stacked(use_lstm, use_last_action=beside, use_last_reward=beside)
    exact = network(obs, first, *rest)
    modules = {"convolutions": network.perception.convolutions, "body": network.body}
    modules |= {"core": network.core.lstm} if use_lstm else {}
    modules |= {"policy": network.policy, "value": network.value}
    seen = {}
    for name, module in modules.items():
        module.register_forward_hook(lambda module, given, out, name=name: seen.update({name: trees.front(out).dtype}))
    network.precision = torch.bfloat16
    rough = network(obs, first, *rest)
    low = {name for name, dtype in seen.items() if dtype == torch.bfloat16}
    assert low == {"convolutions", "body"} and set(seen) == set(modules)
    for one, other in zip((exact.value, *exact.carry), (rough.value, *rough.carry), strict=True):
        assert other.dtype == torch.float32
        torch.testing.assert_close(other, one, atol=0.05, rtol=0.05)
    assert not torch.equal(exact.value, rough.value)
    (rough.parameters.square().sum() + rough.value.square().sum()).backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.any() for p in network.parameters())


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
