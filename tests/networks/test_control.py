"""The networks of control: the density of squashed Gaussians, what critics see, and spaces that cannot be served."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from packtrain.acting.noise import Control
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.dynamics import Dynamics
from packtrain.networks.stacked import join
from packtrain.types import Spec

BOX = gym.spaces.Box
SPEC = Spec(BOX(-np.inf, np.inf, (3,), np.float32), BOX(-2, 2, (2,), np.float32))
SMALL = {"hidden_size": 8, "num_layers": 1, "critics": 3}


def build(seed=0, spec=SPEC, **options):
    torch.manual_seed(seed)
    return Control(**{**SMALL, **options}).build_network(spec)


def gaussian(network, obs):
    """Mean and deviation before the tanh, from the definition: log σ in [−5, 2]."""
    mean, spread = network.policy(obs)[:, 0].chunk(2, -1)
    return mean, torch.exp(-5 + 3.5 * (torch.tanh(spread) + 1))


def test_a_draw_has_the_probability_torch_gives_it():
    """Mutations: the tanh's slope left out or added; a mean over dimensions; noise not scaled by σ."""
    networks = [build(seed, stochastic=True).double() for seed in range(2)]
    network = join(networks)
    obs, noise = (torch.randn(2, 50, n, dtype=torch.float64) for n in (3, 2))
    action, log_prob = network.draw(network.policy, obs, noise)
    assert action.shape == (2, 50, 2) and log_prob.shape == (2, 50)
    mean, std = gaussian(network, obs)
    torch.testing.assert_close(action, torch.tanh(mean + std * noise))
    want = TransformedDistribution(Normal(mean, std), [TanhTransform(cache_size=0)]).log_prob(action).sum(-1)
    torch.testing.assert_close(log_prob, want, atol=1e-6, rtol=1e-6)
    assert std.max() / std.min() > 1.5  # else a wrong scale would not show


def test_far_out_the_density_stays_finite():
    """Where tanh is 1 in float32. Mutation: log(1 − tanh² + 1e-6), which is −13.8 at most."""
    network = build(stochastic=True)
    with torch.no_grad():
        network.policy.biases[-1][..., 0] = 30.0
    _, log_prob = network.draw(network.policy, torch.zeros(1, 1, 3), torch.zeros(1, 1, 2))
    mean, std = gaussian(network, torch.zeros(1, 1, 3))
    slope = 2 * (math.log(2) - mean[0, 0, 0])  # log(1 − tanh²) far out
    other = torch.log1p(-torch.tanh(mean[0, 0, 1].double()).square())
    want = -std.log().sum() - math.log(2 * math.pi) - slope - other.float()
    torch.testing.assert_close(log_prob[0, 0], want, atol=1e-4, rtol=1e-5)


def test_probabilities_of_one_dimension_add_up_to_one():
    """By a sum over actions, whose noise is found by inverting the draw; the negative control forgets the tanh."""
    network = build(spec=Spec(SPEC.obs, BOX(-1, 1, (1,), np.float32)), stochastic=True).double()
    with torch.no_grad():
        network.policy.biases[-1].copy_(torch.tensor([0.4, 0.6]))
    obs = torch.full((1, 1, 3), 0.7, dtype=torch.float64)
    mean, std = gaussian(network, obs)
    assert 0.3 < std < 1
    action = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    noise = (torch.atanh(action) - mean[0, 0]) / std[0, 0]
    obs = obs.expand(1, len(noise), 3)
    drawn, log_prob = network.draw(network.policy, obs, noise[None, :, None])
    torch.testing.assert_close(drawn[0, :, 0], action)
    width = 2 / 200_000
    assert abs(log_prob.exp().sum().item() * width - 1) < 1e-3
    assert abs(Normal(0.0, 1.0).log_prob(noise).exp().sum().item() * width - 1) > 0.1


def test_the_greedy_action_is_the_tanh_of_what_the_policy_says():
    for stochastic in (False, True):  # of a stochastic one, its mean
        network = build(stochastic=stochastic)
        obs = torch.randn(1, 4, 3)
        torch.testing.assert_close(network.act(network.policy, obs), torch.tanh(network.policy(obs)[:, 0, :, :2]))


def test_critics_see_observation_and_action():
    """Mutation: action before observation is caught by the input's place in the first layer."""
    network = build()
    with torch.no_grad():
        network.critic.weights[0][:, 3:] = 0  # deaf to actions
    obs, action = torch.randn(1, 4, 3), torch.randn(1, 4, 2)
    said = network.value(network.critic, obs, action)
    assert said.shape == (1, 3, 4)
    assert torch.equal(said, network.value(network.critic, obs, action + 1))
    assert not torch.equal(said, network.value(network.critic, obs + 1, action))
    own = network.value(network.critic, obs.unsqueeze(1).expand(1, 3, 4, 3), action.unsqueeze(1).expand(1, 3, 4, 2))
    torch.testing.assert_close(own, said)


def test_gradients_of_observations_are_available():
    """Mutation: that of actions alone, always."""
    network = Control(8, 1, 2).build_network(SPEC)
    obs = torch.randn(1, 4, network.policy.weights[0].shape[1], requires_grad=True)
    action = torch.rand(1, 4, network.action_size, requires_grad=True)
    said = network.value(network.critic, obs, action).sum()
    assert all(leaf.any() for leaf in torch.autograd.grad(said, [obs, action]))


def test_copies_begin_equal_and_learn_nothing_by_themselves():
    dynamics = Dynamics(transitions=3, rewards=2, hidden_size=4, num_layers=1, elites=2, normalise=True)
    network = build(dynamics=dynamics)
    pairs = [("critic", "target"), ("policy", "target_policy"), ("policy", "behaviour")]
    for source, copied in pairs:
        mine, theirs = (getattr(network, name).state_dict() for name in (copied, source))
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        assert mine["weights.0"].data_ptr() != theirs["weights.0"].data_ptr()
        assert not any(leaf.requires_grad for leaf in getattr(network, copied).parameters())
    assert not any(leaf.requires_grad for leaf in network.frozen.parameters())
    assert network.frozen.transition.members == 2 and network.model.transition.members == 3
    assert torch.equal(network.frozen.transition.weights[0], network.model.transition.weights[0][:2])
    assert build().model is None and build().frozen is None and network.runs == 1


def test_the_defaults_are_steves():
    """Parameter counts of HalfCheetah in the paper's code: 17 observations, 6 actions."""
    network = Control().build_network(Spec(BOX(-np.inf, np.inf, (17,)), BOX(-1, 1, (6,))))
    assert sum(leaf.numel() for leaf in network.policy.parameters()) == 36_102
    assert sum(leaf.numel() for leaf in network.critic.parameters()) == 4 * 36_225


UNEVEN = BOX(np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(9) + np.arange(6).reshape(2, 3).astype("f"))


@pytest.mark.parametrize(
    "obs, action, line",
    [
        (
            SPEC.obs,
            gym.spaces.Discrete(3),
            "SAC, TD3, DDPG and STEVE need a bounded vector of continuous actions, not Discrete(3)",
        ),
        (
            SPEC.obs,
            gym.spaces.MultiDiscrete([3, 3]),
            "SAC, TD3, DDPG and STEVE need a bounded vector of continuous actions",
        ),
        (SPEC.obs, UNEVEN, "SAC, TD3, DDPG and STEVE need a bounded vector of continuous actions"),
        (SPEC.obs, BOX(-np.inf, np.inf, (2,)), "SAC, TD3, DDPG and STEVE need finite action bounds, not -inf to inf"),
        (
            SPEC.obs,
            BOX(np.array([-1, -1], "f"), np.array([1, np.inf], "f")),
            "SAC, TD3, DDPG and STEVE need finite action bounds",
        ),
        (
            gym.spaces.Dict({"a": SPEC.obs}),
            SPEC.action,
            "SAC, TD3, DDPG and STEVE need vectors as observations, not Dict(",
        ),
        (UNEVEN, SPEC.action, "SAC, TD3, DDPG and STEVE need vectors as observations"),
        (gym.spaces.Discrete(5), SPEC.action, "SAC, TD3, DDPG and STEVE need vectors as observations, not Discrete(5)"),
    ],
)
def test_spaces_it_cannot_serve_are_refused_in_one_line(obs, action, line):
    with pytest.raises(EnvSetupError) as refused:
        build(spec=Spec(obs, action))
    assert line in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "values, line",
    [
        ({"critics": 0}, "Control.critics = 0 must be at least 1"),
        ({"hidden_size": 0}, "Control.hidden_size = 0 must be at least 1"),
        ({"num_layers": -1}, "Control.num_layers = -1 must not be negative"),
        ({"explore_chance": 1.5}, "Control.explore_chance = 1.5 must lie between 0 and 1"),
        ({"explore_std": -1.0}, "Control.explore_std = -1.0 must not be negative"),
    ],
)
def test_sizes_that_cannot_be_are_refused(values, line):
    with pytest.raises(ConfigError, match=line):
        Control(**values)
