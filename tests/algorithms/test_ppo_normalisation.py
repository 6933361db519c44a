"""PPO with minibatches of single steps, running normalisation and separate bodies: against slow code, and resumed."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from packtrain.acting.sampling import ActorCritic
from packtrain.algorithms.ppo import PPO, ReturnScale, loss, prepare, single_steps, step_loss
from packtrain.equations.boundaries import boundaries
from packtrain.errors import ConfigError
from packtrain.types import Sample, Spec, Trajectory

T, B = 7, 3


def build(action=None, seed=0, sizes=None, **values):
    torch.manual_seed(seed)
    policy = ActorCritic(hidden_size=8, num_layers=2, **(sizes or {}))
    network = policy.build_network(Spec(Box(-9, 9, (3,)), action or Discrete(4)))
    settings = PPO(**{"minibatches": 2, "minibatch_of": "steps", **values})
    return network, settings, settings.build(network, 1000)


def batch(network, seed=1, continuous=False):
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(T + 1, B, dtype=torch.bool)
    terminated, truncated = torch.zeros(2, T, B, dtype=torch.bool)
    terminated[1, 1] = first[3, 1] = truncated[2, 2] = first[4, 2] = True
    action = torch.randint(4, (T + 1, B), generator=generator)
    if continuous:
        action = torch.randn(T + 1, B, 2, generator=generator)
    reward = (5 + 3 * torch.randn(T + 1, B, generator=generator)).masked_fill(first, 0)
    return Trajectory(
        obs=10 + 4 * torch.randn(T + 1, B, 3, generator=generator),
        first=first,
        action=action[1:],
        reward=reward[1:],
        terminated=terminated,
        truncated=truncated,
        last_action=action[:1],
        last_reward={"train": reward[:1]},
        carry=(),
        extras={"behaviour_log_prob": -1.4 + 0.1 * torch.randn(T, B, generator=generator)},
    )


@pytest.mark.parametrize("continuous", [False, True])
def test_the_loss_of_all_single_steps_is_that_of_the_unrolls(continuous):
    """Mutations: the row after each decision in place of its own; filler rows that count; rewards shifted by one."""
    network, settings, _ = build(Box(-1, 1, (2,)) if continuous else None, sizes={"use_last_reward": True})
    trajectory, _ = prepare(network, batch(network, continuous=continuous), None, settings)
    whole, parts = loss(network, trajectory, settings)
    flat = single_steps(network, trajectory)
    assert flat.reward.shape == (1, T * B)
    each, same = step_loss(network, flat, settings)
    torch.testing.assert_close(each, whole)
    for name, value in parts.items():
        torch.testing.assert_close(same[name], value)


def test_rewards_are_divided_by_the_deviation_of_discounted_returns():
    """The running return of each column, by hand: it ends with an episode and skips fillers."""
    network, settings, _ = build()
    scale = ReturnScale(0.9, torch.device("cpu"))
    trajectory = batch(network)
    weight = boundaries(trajectory.first, trajectory.terminated, trajectory.truncated, 1.0).weight_t
    scaled = scale.scale(trajectory, weight, 0)
    running, seen = np.zeros(B), []
    for t in range(T):
        for b in range(B):
            running[b] = (0.0 if trajectory.first[t, b] else 0.9 * running[b]) + float(trajectory.reward[t, b])
            if weight[t, b]:
                seen.append(running[b])
            else:
                running[b] = 0.0
    torch.testing.assert_close(scaled.reward, (trajectory.reward / np.std(seen)).clamp(-10, 10))


def test_observations_are_normalised_by_all_that_came_before_the_batch():
    """The first batch sees the identity, the second the moments of the first.

    Mutation: adding a batch before it has been learned from.
    """
    network, _, learner = build(sizes={"normalise_obs": True})
    first, second = batch(network, 1), batch(network, 2)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(network.normaliser(x), x)
    ratios = learner.update(Sample(first, T * B))
    assert np.isfinite(float(ratios["approx_kl"]))
    seen = first.obs.flatten(0, 1)
    expected = (x - seen.mean(0)) / seen.std(0, correction=0)
    torch.testing.assert_close(network.normaliser(x), expected, rtol=1e-4, atol=1e-4)
    learner.update(Sample(second, T * B))
    seen = torch.cat([first.obs, second.obs]).flatten(0, 1)
    torch.testing.assert_close(
        network.normaliser(x), (x - seen.mean(0)) / seen.std(0, correction=0), rtol=1e-4, atol=1e-4
    )
    assert {"normaliser.mean", "normaliser.m2", "normaliser.number"} <= set(network.state_dict())


def test_normalised_observations_are_clipped():
    network, *_ = build(sizes={"normalise_obs": True})
    network.observe(torch.randn(50, 2, 3))
    assert network.normaliser(torch.full((1, 3), 1e6)).tolist() == [[10.0, 10.0, 10.0]]


def test_a_loaded_learner_goes_on_with_both_scales():
    """Mutations: the moments of rewards, or of observations, left out of the state."""
    values = {"normalise_rewards": True, "sizes": {"normalise_obs": True}}
    network, _, learner = build(**values)
    learner.update(Sample(batch(network, 1), T * B))
    other, _, copy = build(seed=5, **values)
    copy.load_state_dict(learner.state_dict())
    for one, last in ((learner, batch(network, 2)), (copy, batch(other, 2))):
        one.update(Sample(last, T * B))
    for name, leaf in network.state_dict().items():
        assert torch.equal(leaf, other.state_dict()[name]), name


def test_a_free_deviation_is_the_same_in_every_state_and_learns():
    network, _, learner = build(Box(-1, 1, (2,)), sizes={"free_std": True, "initial_std": 0.7})
    out = network(
        torch.randn(4, 2, 3), *(torch.zeros(4, 2, dtype=torch.bool), torch.zeros(4, 2, 2)), torch.zeros(4, 2), ()
    )
    assert torch.allclose(out.parameters[..., 2:].exp(), torch.tensor(0.7))
    before = network.log_std.detach().clone()
    learner.update(Sample(batch(network, continuous=True), T * B))
    assert not torch.equal(before, network.log_std)


def test_separate_bodies_share_no_gradient():
    network, *_ = build(sizes={"shared_body": False, "activation": "tanh"})
    out = network(
        torch.randn(4, 2, 3), torch.zeros(4, 2, dtype=torch.bool), torch.zeros(4, 2).long(), torch.zeros(4, 2), ()
    )
    out.value.sum().backward()
    assert all(p.grad is None for p in network.body.parameters())
    assert all(p.grad is not None for p in network.value_body.parameters())
    assert any(isinstance(layer, torch.nn.Tanh) for layer in network.body)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="minibatch_of = 'steps'.*LSTM"):
        build(sizes={"use_lstm": True})
    with pytest.raises(ConfigError, match="shared_body = False does not fit"):
        ActorCritic(use_lstm=True, shared_body=False)
    with pytest.raises(ConfigError, match="minibatches = 50 is more than the 21 steps of a batch"):
        network, _, learner = build(minibatches=50)
        learner.update(Sample(batch(network), T * B))
