"""Action distributions: against log-softmax and torch.distributions, and the noise of many columns."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.errors import EnvSetupError
from packtrain.networks.distributions import Categorical, Gaussian, MultiCategorical, distribution_for

DISTRIBUTIONS = [Categorical(5), MultiCategorical((2, 3, 4)), Gaussian((2,)), Gaussian((2, 3))]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parameters(distribution, *leading, seed=0, scale=0.5):  # log-deviations stay within their limits
    return scale * torch.randn(*leading, distribution.num_parameters, generator=generator(seed))


def twin(distribution, flat):
    """The same distribution from torch, and how our action looks there."""
    if isinstance(distribution, Gaussian):
        mean, log_std = flat.chunk(2, -1)
        return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    return torch.distributions.Categorical(logits=flat)


def test_categorical_log_prob_is_log_softmax_at_the_action():
    logits = parameters(Categorical(6), 3, 4, scale=3.0)
    action = torch.randint(6, (3, 4), generator=generator(1))
    got = Categorical(6).log_prob(logits, action)
    assert got.shape == (3, 4)
    for t in range(3):
        for b in range(4):
            want = logits[t, b, action[t, b]] - logits[t, b].logsumexp(0)
            torch.testing.assert_close(got[t, b], want)


def test_log_prob_survives_extreme_logits():
    """Mutation: log(softmax) gives −inf where log-softmax gives −1000."""
    logits = torch.tensor([[0.0, 1000.0]])
    assert Categorical(2).log_prob(logits, torch.tensor([0])).item() == -1000.0
    assert Categorical(2).entropy(logits).item() == 0.0


@pytest.mark.parametrize("distribution", [Categorical(5), Gaussian((3,))], ids=str)
def test_log_prob_and_entropy_agree_with_torch(distribution):
    flat = parameters(distribution, 7, 2)
    action = distribution.sample(flat, generator(1))
    want = twin(distribution, flat)
    torch.testing.assert_close(distribution.log_prob(flat, action), want.log_prob(action))
    torch.testing.assert_close(distribution.entropy(flat), want.entropy())


def test_a_gaussian_of_many_axes_is_one_of_many_dimensions():
    """Mutation: flattening [B, 2, 3] actions from the wrong axis mixes columns."""
    flat = parameters(Gaussian((2, 3)), 5, 4)
    action = Gaussian((2, 3)).sample(flat, generator(1))
    assert action.shape == (5, 4, 2, 3)
    want = twin(Gaussian((6,)), flat)
    torch.testing.assert_close(Gaussian((2, 3)).log_prob(flat, action), want.log_prob(action.reshape(5, 4, 6)))
    assert Gaussian((2, 3)).encode(action).shape == (5, 4, 6)
    assert torch.equal(Gaussian((2, 3)).mode(flat), flat[..., :6].reshape(5, 4, 2, 3))


def test_gaussian_spread_is_kept_within_its_limits():
    one = Gaussian((1,))
    wild = torch.tensor([[0.0, 50.0], [0.0, -50.0]])
    torch.testing.assert_close(one.entropy(wild), torch.tensor([2.0, -5.0]) + 0.5 * math.log(2 * math.pi * math.e))
    draws = one.sample(wild.expand(4000, 2, 2), generator())
    torch.testing.assert_close(draws[..., 0].std(0), torch.tensor([2.0, -5.0]).exp(), rtol=0.05, atol=0)


def test_multi_categorical_is_a_sum_over_its_choices():
    distribution, sizes = MultiCategorical((2, 3, 4)), (2, 3, 4)
    logits = parameters(distribution, 6, 2)
    action = distribution.sample(logits, generator(1))
    assert action.shape == (6, 2, 3) and action.dtype == torch.int64
    parts = logits.split(sizes, -1)
    log_probs = [twin(None, part).log_prob(action[..., i]) for i, part in enumerate(parts)]
    torch.testing.assert_close(distribution.log_prob(logits, action), sum(log_probs))
    torch.testing.assert_close(distribution.entropy(logits), sum(twin(None, part).entropy() for part in parts))
    assert torch.equal(distribution.mode(logits), torch.stack([part.argmax(-1) for part in parts], -1))


@pytest.mark.parametrize("seed", [0, 1])
def test_categorical_frequencies_are_the_probabilities(seed):
    """Mutation: adding instead of subtracting the log of the noise fails by far."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    count = 40_000
    draws = Categorical(4).sample(logits.expand(count, 4), generator(seed))
    observed = torch.bincount(draws, minlength=4).double()
    expected = logits.double().softmax(0) * count
    chi_square = ((observed - expected) ** 2 / expected).sum().item()
    assert chi_square < 16.27  # 3 degrees of freedom, p = 0.001


def test_multi_categorical_choices_are_independent():
    """Mutation: one draw of noise used for two equal choices makes them always agree."""
    draws = MultiCategorical((2, 2)).sample(torch.zeros(20_000, 4), generator())
    joint = torch.bincount(2 * draws[:, 0] + draws[:, 1], minlength=4) / 20_000
    torch.testing.assert_close(joint, torch.full((4,), 0.25), atol=0.015, rtol=0)


def test_gaussian_draws_have_the_mean_and_spread():
    flat = torch.tensor([1.0, -2.0, math.log(0.5), math.log(2.0)])
    draws = Gaussian((2,)).sample(flat.expand(40_000, 4), generator())
    torch.testing.assert_close(draws.mean(0), torch.tensor([1.0, -2.0]), atol=0.04, rtol=0)
    torch.testing.assert_close(draws.std(0), torch.tensor([0.5, 2.0]), rtol=0.02, atol=0)
    assert abs(torch.corrcoef(draws.T)[0, 1].item()) < 0.02


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_columns_of_one_batch_never_share_noise(distribution):
    """Specs/impala.md 2.9.1. Mutation: noise of shape [1, P] broadcast over the columns makes all columns equal."""
    flat = torch.zeros(64, 32, distribution.num_parameters)  # 64 decisions of 32 columns that see the same
    source = generator()
    draws = torch.stack([distribution.sample(row, source).reshape(32, -1).double() for row in flat])  # [64, 32, D]
    for a in range(0, 32, 5):
        for b in range(a + 1, 32, 7):
            assert not torch.equal(draws[:, a], draws[:, b]), f"columns {a} and {b} act alike for 64 decisions"
    columns = draws[:, :, 0].T  # [32, 64]
    correlations = torch.corrcoef(columns) - torch.eye(32)
    assert correlations.abs().max() < 0.6 and correlations.mean().abs() < 0.02


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_sampling_follows_the_generator_and_nothing_else(distribution):
    flat = parameters(distribution, 9)
    torch.manual_seed(1)
    one = distribution.sample(flat, generator(5))
    torch.manual_seed(2)
    assert torch.equal(one, distribution.sample(flat, generator(5)))
    assert not torch.equal(one, distribution.sample(flat, generator(6)))


def test_a_forbidden_action_is_never_drawn():
    logits = torch.tensor([0.0, -math.inf, 0.0]).expand(5000, 3)
    assert 1 not in Categorical(3).sample(logits, generator())


def test_modes_are_the_likeliest():
    logits = torch.tensor([[0.1, 3.0, -1.0], [2.0, 0.0, 1.0]])
    assert Categorical(3).mode(logits).tolist() == [1, 0]
    for distribution in DISTRIBUTIONS:
        flat = parameters(distribution, 4)
        best = distribution.log_prob(flat, distribution.mode(flat))
        for seed in range(20):
            assert (distribution.log_prob(flat, distribution.sample(flat, generator(seed))) <= best + 1e-6).all()


def test_encodings():
    assert Categorical(3).encode(torch.tensor([[2], [0]])).tolist() == [[[0, 0, 1]], [[1, 0, 0]]]
    assert MultiCategorical((2, 3)).encode(torch.tensor([[1, 0]])).tolist() == [[0, 1, 1, 0, 0]]
    assert Gaussian((2,)).encode(torch.tensor([[5.0, -0.5]])).tolist() == [[1.0, -0.5]]
    for distribution in DISTRIBUTIONS:
        encoded = distribution.encode(distribution.sample(parameters(distribution, 2, 3), generator()))
        assert encoded.shape == (2, 3, distribution.features) and encoded.dtype == torch.float32


def test_gradients_reach_all_parameters():
    for distribution in DISTRIBUTIONS:
        flat = parameters(distribution, 5).requires_grad_()
        action = distribution.sample(flat.detach(), generator(3))
        (distribution.log_prob(flat, action).sum() + distribution.entropy(flat).sum()).backward()
        assert (flat.grad != 0).any(0).all()


@pytest.mark.parametrize(
    "space, want",
    [
        (gym.spaces.Discrete(4), Categorical(4)),
        (gym.spaces.Discrete(4, start=-2), Categorical(4)),
        (gym.spaces.MultiDiscrete([2, 5]), MultiCategorical((2, 5))),
        (gym.spaces.Box(-1, 1, (3,), np.float32), Gaussian((3,))),
        (gym.spaces.Box(-np.inf, np.inf, (2, 2), np.float64), Gaussian((2, 2))),
    ],
    ids=str,
)
def test_every_space_gets_its_distribution(space, want):
    assert distribution_for(space) == want


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.MultiBinary(3),
        gym.spaces.MultiDiscrete([[2, 3], [4, 5]]),
        gym.spaces.Box(0, 255, (3,), np.uint8),
        gym.spaces.Box(-1, 1, (), np.float32),
        gym.spaces.Text(5),
        gym.spaces.Dict(a=gym.spaces.Discrete(2)),
        gym.spaces.Tuple([gym.spaces.Discrete(2)]),
    ],
    ids=str,
)
def test_other_spaces_are_refused_by_name(space):
    with pytest.raises(EnvSetupError, match="no policy supports the action space") as error:
        distribution_for(space)
    assert str(space) in str(error.value)
