"""Shooting in a learned ensemble: what a sequence pays, how candidates are refined, and that plans reach the goal."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.mpc import MpcPolicy, PredictiveControl
from packtrain.acting.noise import Control
from packtrain.errors import ConfigError
from packtrain.networks.dynamics import Dynamics
from packtrain.planning import trajectory_optimisers
from packtrain.planning.trajectory_search import Predictive, cross_entropy, path_integral, policy_sequences, returns
from packtrain.types import Row, Spec

SPEC = Spec(gym.spaces.Box(-9, 9, (3,), np.float64), gym.spaces.Box(-1, 1, (2,), np.float32))
SIZES = Dynamics(transitions=3, rewards=2, hidden_size=8, num_layers=1, aux_hidden_size=8, aux_num_layers=1)


def network(**options):
    torch.manual_seed(1)
    return Control(hidden_size=4, num_layers=1, dynamics=dataclasses.replace(SIZES, **options)).build_network(SPEC)


@torch.no_grad()
def test_a_sequence_pays_what_its_steps_pay_on_the_way_of_each_member():
    """Step by step, member by member. Mutations: not ending; one member's place for all; discounting from 1."""
    model = network().model
    obs, actions = torch.randn(2, 3), torch.rand(2, 4, 5, 2) * 2 - 1
    got = returns(model, obs, actions, 0.9)
    assert got.shape == (2, 4)
    for b in range(2):
        for p in range(4):
            total = 0.0
            for member in range(3):
                place, goes_on = obs[b], 1.0
                for t in range(5):
                    action = actions[b, p, t]
                    guess = model.guess(place[None, None], action[None, None])
                    after = place + guess.mean[0, member, 0]
                    judged = (part[None, None] for part in (place, action, after))
                    paid = model.judge(model.reward, *judged)[0, :, 0].mean()
                    over = model.judge(model.termination, *(part[None, None] for part in (place, action, after)))
                    total += 0.9**t * goes_on * float(paid) / 3
                    goes_on *= 1 - float(over.sigmoid()[0, member, 0])
                    place = after
            assert float(got[b, p]) == pytest.approx(total, rel=1e-4, abs=1e-5)


def test_candidates_are_refined_like_those_of_the_other_planners():
    """The NumPy optimisers, one problem of each size. Mutation: the unbiased deviation."""
    rng = np.random.default_rng(3)
    tried, scores = rng.uniform(-1, 1, (2, 7, 4, 3)), rng.normal(size=(2, 7))
    mean, std = rng.normal(size=(2, 4, 3)), rng.uniform(0.1, 1, (2, 4, 3))
    settings = Predictive(candidates=7, elites=3, momentum=0.2, least_std=0.3)
    best, _ = trajectory_optimisers.elites(tried, scores, 3)
    wanted = trajectory_optimisers.cross_entropy(mean, std, best, 0.2, 0.3)
    got = cross_entropy(*map(torch.from_numpy, (mean, std, tried, scores)), settings)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-12)
    wanted, _ = trajectory_optimisers.path_integral(tried, scores, 0.5)
    got = path_integral(torch.from_numpy(tried), torch.from_numpy(scores), 0.5)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12)


class Attracted(torch.nn.Module):
    """A world in which an action moves the first two numbers, and being near the origin pays."""

    def __init__(self, probabilistic=False):
        super().__init__()
        self.sizes = Dynamics(transitions=2, rewards=1, probabilistic=probabilistic, normalise=probabilistic)
        self.transition = torch.nn.Module()
        self.transition.members = 2
        self.obs_mean = torch.zeros(1, 1, 3)

    def move(self, obs, action, noise=None):
        return obs + torch.nn.functional.pad(0.2 * action, (0, 1)) + (0 if noise is None else 0.01 * noise)

    def judge_rollout(self, obs, action):
        paid = -obs[:, 1:, ..., :2].square().sum(-1)
        return paid.unsqueeze(3), torch.zeros_like(paid)


def row(obs, first):
    flags = torch.zeros(1, len(obs), dtype=torch.bool)
    none = torch.zeros(1, len(obs), 2)
    return Row(obs[None].double(), first[None], none, {"train": none[..., 0]}, flags, flags)


@pytest.mark.parametrize("optimiser", ["cem", "mppi"])
@pytest.mark.parametrize("probabilistic", [False, True])
def test_plans_go_where_it_pays(optimiser, probabilistic):
    """From 1 away to within 0.15 in 12 steps; random actions stay away. Mutation: the worst candidates as elites."""
    control = network()
    control.model = Attracted(probabilistic)
    settings = Predictive(optimiser, 6, 120, 3, 12, temperature=0.1)
    for random, near in ((False, True), (True, False)):
        policy = MpcPolicy(settings, control, seed=4)
        policy.random = random
        obs = torch.tensor([[1.0, -1.0, 0.0], [-0.5, 1.0, 0.0]])
        carry = policy.initial_carry(2)
        for t in range(12):
            action, carry, _ = policy.act(row(obs, torch.full((2,), t == 0)), carry)
            assert action.abs().max() <= 1 and action.shape == (2, 2)
            obs = obs + torch.nn.functional.pad(0.2 * action.clone(), (0, 1))
        assert bool(obs[:, :2].abs().max() < 0.15) == near


class Cliff(Attracted):
    """The same, but the return is not finite where the first action is above 0.5."""

    def __init__(self, broken):
        super().__init__()
        self.broken = broken

    def judge_rollout(self, obs, action):
        paid, over = super().judge_rollout(obs, action)
        beyond = obs[:, 1:2, ..., :1].amax(-1) > 0.1  # after the first step from the origin
        return torch.where(beyond.unsqueeze(3), self.broken, paid), over


@pytest.mark.parametrize("optimiser", ["cem", "mppi"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_sequence_with_a_return_that_is_not_finite_ranks_last(optimiser, broken):
    """Mutation: nan_to_num, which makes the largest number of +inf, so that the broken sequences win."""
    control = network()
    control.model = Cliff(broken)
    policy = MpcPolicy(Predictive(optimiser, 3, 200, 3, 10, temperature=0.1), control, seed=0)
    policy.random = False
    action, _, _ = policy.act(row(torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)), policy.initial_carry(2))
    assert torch.isfinite(action).all() and (action[:, 0] <= 0.5).all()


@pytest.mark.parametrize("optimiser", ["cem", "mppi"])
def test_a_plan_stays_finite_where_no_sequence_has_a_finite_return(optimiser):
    """Mutation: a softmax over −inf alone."""
    control = network()
    control.model = Attracted()
    policy = MpcPolicy(Predictive(optimiser, 3, 20, 2, 5), control, seed=0)
    policy.random = False
    obs = torch.full((2, 3), torch.inf)
    action, left, _ = policy.act(row(obs, torch.ones(2, dtype=torch.bool)), policy.initial_carry(2))
    assert torch.isfinite(action).all() and torch.isfinite(left).all()


def test_a_plan_is_carried_on_and_forgotten_at_a_reset():
    """Mutation: keeping the plan of the episode before."""
    policy = MpcPolicy(Predictive("cem", 3, 8, 1, 2, momentum=1.0), network(), seed=0)
    carry = torch.arange(12.0).reshape(2, 3, 2) / 20
    first = torch.tensor([False, True])
    action, left, _ = policy.act(row(torch.zeros(2, 3), first), carry)
    torch.testing.assert_close(action, torch.stack([carry[0, 0], torch.zeros(2)]))  # momentum 1 keeps the mean
    torch.testing.assert_close(left[0], carry[0][[1, 2, 2]])
    assert not left[1].any()


@torch.no_grad()
def test_particles_are_rollouts_of_the_same_sequence_with_noise_of_their_own():
    """The mean over particles of what each alone would pay. Mutations: particles of neighbouring sequences mixed up."""
    model = network(probabilistic=True, normalise=True).model
    obs, actions = torch.randn(2, 3), torch.rand(2, 4, 5, 2) * 2 - 1
    noise = torch.randn(5, 3, 2 * 4 * 6, 3)
    got = returns(model, obs, actions, 0.9, noise, particles=6)
    by_particle = noise.unflatten(2, (2, 4, 6))
    each = [returns(model, obs, actions, 0.9, by_particle[..., i, :].flatten(2, 3)) for i in range(6)]
    torch.testing.assert_close(got, torch.stack(each).mean(0))
    assert torch.stack(each).std(0).min() > 0
    sure = Control(hidden_size=4, num_layers=1, dynamics=SIZES)
    with pytest.raises(ConfigError, match="particles above 1 need Dynamics.probabilistic"):
        PredictiveControl(sure, Predictive(particles=2))


def test_numbers_that_make_no_sense_are_refused():
    for wrong in (
        {"horizon": 0},
        {"particles": 0},
        {"elites": 9, "candidates": 8},
        {"temperature": 0.0},
        {"momentum": 1.5},
    ):
        with pytest.raises(ConfigError, match=f"Predictive.{next(iter(wrong))}"):
            Predictive(**wrong)


@torch.no_grad()
def test_the_value_of_the_last_state_counts_as_far_as_it_is_reached():
    """Mutations: the value of the state before; γ^(H−1); a value beyond an end."""
    model = network().model
    obs, actions, members = torch.randn(2, 3), torch.rand(2, 4, 5, 2) * 2 - 1, 3
    value = lambda places: places.sum(-1)[0]  # noqa: E731
    got = returns(model, obs, actions, 0.9, value=value) - returns(model, obs, actions, 0.9)
    place, reached = obs.repeat_interleave(4, 0).expand(1, members, -1, -1), torch.ones(1, members, 8)
    for t in range(5):
        played = actions.flatten(0, 1)[:, t].expand(1, members, -1, -1)
        after = model.move(place, played)
        reached = reached * (1 - model.judge(model.termination, place, played, after).sigmoid())
        place = after
    expected = (0.9**5 * reached * place.sum(-1)).mean((0, 1)).unflatten(0, (2, 4))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_proposed_sequences_are_the_policys_own_rollouts():
    """Mutations: the noise of another step; one member for all; noise on the first sequence."""
    model, horizon, count = network().model, 4, 5
    obs, noise = torch.randn(2, 3), 0.3 * torch.randn(horizon, 2, count, 2)
    policy = lambda places: torch.tanh(places[..., :2])  # noqa: E731
    got = policy_sequences(model, obs, policy, count, horizon, noise)
    for b in range(2):
        for p in range(count):
            place = obs[b]
            for t in range(horizon):
                action = (torch.tanh(place[:2]) + (noise[t, b, p] if p else 0)).clamp(-1, 1)
                torch.testing.assert_close(got[b, p, t], action, rtol=1e-4, atol=1e-5)
                place = place + model.guess(place[None, None], action[None, None]).mean[0, p % 3, 0]


def test_a_plan_follows_the_policy_where_all_candidates_are_its_own():
    """Mutation: proposals are evaluated and not entered."""
    control = network()
    settings = Predictive("cem", 3, 6, 1, 6, momentum=0.0, least_std=1e-6, prior_candidates=6)
    policy = MpcPolicy(settings, control, seed=0)
    obs = torch.randn(2, 3)
    action, _, _ = policy.act(row(obs, torch.ones(2, dtype=torch.bool)), policy.initial_carry(2))
    with torch.no_grad():
        torch.testing.assert_close(action, control.act(control.policy, obs[None])[0], rtol=1e-3, atol=1e-3)


def test_a_value_behind_the_horizon_decides_where_rewards_do_not():
    """In a world whose rewards are 0, the first action is the one whose next state the critics prefer.

    Mutation: `terminal_value` ignored.
    """
    control = network()
    with torch.no_grad():
        for leaf in control.model.reward.parameters():
            leaf.zero_()
    obs = torch.randn(1, 3)

    def q_after(terminal):
        policy = MpcPolicy(Predictive("cem", 1, 400, 4, 20, terminal_value=terminal), control, seed=0)
        action, _, _ = policy.act(row(obs, torch.ones(1, dtype=torch.bool)), policy.initial_carry(1))
        with torch.no_grad():
            return returns(control.model, obs, action[None, None], 1.0, value=policy._value).item()

    rng = torch.Generator().manual_seed(0)
    anywhere = torch.rand(1, 500, 1, 2, generator=rng) * 2 - 1
    value = MpcPolicy(Predictive(terminal_value=True), control, seed=0)._value
    with torch.no_grad():
        best = returns(control.model, obs, anywhere, 1.0, value=value).max()
    assert q_after(True) >= float(best) - 0.02 and q_after(False) < q_after(True)


def test_actors_get_policy_and_critics_only_if_the_planner_uses_them():
    control = Control(hidden_size=4, num_layers=1, dynamics=SIZES)
    one = network()
    assert PredictiveControl(control).acting_network(one) is one.model
    assert PredictiveControl(control, Predictive(terminal_value=True)).acting_network(one) is one
    with pytest.raises(ConfigError, match="prior_candidates = 9 must lie between 0 and candidates = 5"):
        Predictive(candidates=5, elites=5, prior_candidates=9)
