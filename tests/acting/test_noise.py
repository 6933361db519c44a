"""Who acts in control: at random, disturbed, drawn, or greedy, and the same again from the same generator."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.noise import Control, NoisePolicy
from packtrain.types import Row, Spec

SPEC = Spec(gym.spaces.Box(-9, 9, (3,), np.float64), gym.spaces.Box(-2, 5, (2,), np.float32))


def make(seed=5, greedy=False, **options):
    torch.manual_seed(0)
    network = Control(**{"hidden_size": 8, "num_layers": 1, "critics": 2, **options}).build_network(SPEC)
    with torch.no_grad():
        for leaf in network.policy.parameters():  # what learns is not what acts
            leaf.add_(1)
    return NoisePolicy(network, seed, greedy)


def row(columns=4000):
    """Rows [1, B] of one observation, float64 as environments give it."""
    obs = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64).expand(1, columns, 3)
    no = torch.zeros(1, columns, dtype=torch.bool)
    return Row(obs, no, torch.zeros(1, columns, 2), {"train": torch.zeros(1, columns)}, no, no)


def acted(policy, columns=4000):
    action, carry, extras = policy.act(row(columns), ())
    assert action.shape == (columns, 2) and action.dtype == torch.float32 and carry == () and extras == {}
    return action


def before(policy):
    """What the acting policy says, before the tanh."""
    return policy.network.behaviour(row(1).obs.float())[0, 0, 0]


@pytest.mark.parametrize("stochastic", [False, True])
def test_random_actions_are_uniform(stochastic):
    """Mutation: [0, 1]; one number for both dimensions; the flag read once."""
    policy = make(stochastic=stochastic)
    assert not policy.random
    plain = acted(policy)
    policy.random = True
    action = acted(policy)
    assert policy.random and action.min() >= -1 and action.max() <= 1
    counts = torch.stack([torch.histc(action[:, d], 10, -1, 1) for d in range(2)])
    assert counts.min() > 300 and counts.max() < 500  # 400 each; five standard deviations are 95
    assert abs(torch.corrcoef(action.T)[0, 1]) < 0.08
    policy.random = False
    again = acted(policy)
    assert (again.std(0) - plain.std(0)).abs().max() < 0.05  # as it was


def test_greedy_is_the_tanh_of_the_policy_that_acts():
    """Mutation: the policy that learns, which is another one here; noise."""
    for stochastic in (False, True):
        policy = make(greedy=True, stochastic=stochastic, explore_chance=1.0)
        torch.testing.assert_close(acted(policy, 3), torch.tanh(before(policy)[:2]).expand(3, 2))
        state = policy.generator.get_state()
        acted(policy)
        assert torch.equal(policy.generator.get_state(), state)  # an evaluation draws nothing


@pytest.mark.parametrize("where", ["pre_tanh", "action"])
def test_nothing_is_disturbed_by_chance_0(where):
    policy = make(explore_chance=0.0, explore_in=where)
    torch.testing.assert_close(acted(policy), torch.tanh(before(policy)).expand(4000, 2))


def test_everything_is_disturbed_by_chance_1_before_the_tanh():
    """Mutation: noise after the tanh; a deviation of 1 whatever is asked for."""
    policy = make(explore_chance=1.0, explore_std=0.3)
    noise = torch.atanh(acted(policy)) - before(policy)
    assert noise.abs().min() > 0 and (noise.std(0) - 0.3).abs().max() < 0.02 and noise.mean(0).abs().max() < 0.025
    assert abs(torch.corrcoef(noise.T)[0, 1]) < 0.08


def test_the_action_itself_is_disturbed_and_clipped():
    """Mutation: no clip; noise before the tanh, which would never reach the bounds."""
    policy = make(explore_chance=1.0, explore_std=0.3, explore_in="action")
    action = acted(policy)
    centre = torch.tanh(before(policy))
    inside = action.abs() < 1
    assert action.abs().max() == 1 and 0.5 < inside.float().mean() < 1
    noise = (action - centre)[:, centre.abs().argmin()]
    assert abs(noise.abs().median().item() - 0.6745 * 0.3) < 0.02  # of a normal one, quartiles are at 0.6745 σ


def test_each_dimension_is_disturbed_for_itself():
    """Mutation: one chance for the whole action."""
    policy = make(explore_chance=0.25)
    disturbed = (acted(policy) - torch.tanh(before(policy))).abs() > 1e-6
    assert (disturbed.float().mean(0) - 0.25).abs().max() < 0.04
    assert abs(disturbed.all(1).float().mean().item() - 0.25**2) < 0.025


def test_a_stochastic_policy_draws_from_its_gaussian():
    """Mutation: the mean alone; the chance of exploring applied to it."""
    policy = make(stochastic=True, explore_chance=0.0)
    with torch.no_grad():
        policy.network.behaviour.weights[-1].zero_()
        policy.network.behaviour.biases[-1].copy_(torch.tensor([0.2, -0.4, 0.0, 0.3]))
    drawn = torch.atanh(acted(policy))
    std = torch.exp(-5 + 3.5 * (torch.tanh(torch.tensor([0.0, 0.3])) + 1))  # 0.22, 0.62
    assert ((drawn.mean(0) - torch.tensor([0.2, -0.4])).abs() / std).max() < 0.08
    assert (drawn.std(0) / std - 1).abs().max() < 0.06


@pytest.mark.parametrize("options", [{}, {"stochastic": True}, {"explore_in": "action"}])
def test_the_same_generator_gives_the_same_actions(options):
    """Across a save too, random or not. Mutation: torch's global generator."""
    one, other = make(explore_chance=1.0, **options), make(explore_chance=1.0, **options)
    torch.manual_seed(1)
    first = acted(one, 6)
    torch.manual_seed(2)
    assert torch.equal(first, acted(other, 6))
    state = one.generator.get_state()
    for random in (False, True):
        one.random = other.random = random
        one.generator.set_state(state)
        other.generator.set_state(state)
        second = acted(one, 6)
        assert torch.equal(second, acted(other, 6)) and not torch.equal(first, second)
    assert not torch.equal(acted(make(seed=6, explore_chance=1.0, **options), 6), first)
