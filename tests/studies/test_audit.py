"""Audits of policies: divergences by brute force, features of an episode by hand, and no use of the true reward."""

import math
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain import config, knobs
from packtrain.acting.sampling import ActorCritic
from packtrain.envs.atari import Atari
from packtrain.envs.rewards import Rewards
from packtrain.equations.divergences import (
    joint_logits,
)
from packtrain.errors import ConfigError
from packtrain.networks.distributions import Categorical, Gaussian, MultiCategorical
from packtrain.networks.perception import Conv
from packtrain.studies import audit, audit_rollouts
from packtrain.types import Row, Spec

# Means and standard deviations: near, apart, both beyond a bound, one beyond each.


def subject(env="Counterfeit", seed=0, bindings=(), **settings):
    """An untrained policy."""
    given = {"env": env, "num_layers": 1, "hidden_size": 8, **settings}
    file = knobs.find_config("impala/gym")[0]
    experiment = config.build(config.load([file], list(bindings), given))
    spec = experiment.probe()
    torch.manual_seed(seed)
    network = experiment.policy.build_network(spec)
    with torch.no_grad():
        network.policy.weight.mul_(8)  # decided, so that policies differ
    return audit.Subject(Path("run"), 0, experiment, spec, network.eval())


def coins(seed=0, harm=0.5, channel="coins", **settings):
    """One that serves a proxy of Counterfeit."""
    bindings = [
        "Environment.rewards = @Rewards()",
        f"Rewards.train = {channel!r}",
        f"Environment.kwargs = {{'length': 4, 'code_length': 1, 'max_steps': 9, 'harm': {harm}}}",
    ]
    return subject("Counterfeit", seed, bindings, **settings)


def test_two_torques_beyond_the_limit_are_the_same_torque():
    """Mutation: divergences of what is drawn, not of what the environment gets."""
    p, q = torch.tensor([[4.0, -2.0]]), torch.tensor([[8.0, -1.0]])  # means, log standard deviations
    made = torch.Generator().manual_seed(0)
    box = gym.spaces.Box(-2, 2, (1,), np.float32)
    jensen_shannon, hellinger = audit_rollouts.divergences(Gaussian((1,)), p, q, box, made)
    assert jensen_shannon.item() < 1e-6 and hellinger.item() < 1e-3
    free = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert audit_rollouts.divergences(Gaussian((1,)), p, q, free, made)[1].item() > 0.99


def test_several_choices_are_compared_jointly():
    """Mutation: the first choice varies fastest in one of the two."""
    made = torch.Generator().manual_seed(2)
    p, q = (torch.randn(4, 5, generator=made) for _ in range(2))
    space = gym.spaces.MultiDiscrete([2, 3])
    joint = joint_logits(p, (2, 3))
    for first in range(2):
        for second in range(3):
            want = p[:, :2].log_softmax(-1)[:, first] + p[:, 2:].log_softmax(-1)[:, second]
            torch.testing.assert_close(joint[:, 3 * first + second], want)
    _, hellinger = audit_rollouts.divergences(MultiCategorical((2, 3)), p, q, space, made)
    parts = [
        (p[:, part].softmax(-1) * q[:, part].softmax(-1)).sqrt().sum(-1) for part in (slice(None, 2), slice(2, None))
    ]
    torch.testing.assert_close(hellinger, (1 - parts[0] * parts[1]).sqrt())


def test_who_slips_does_something_random_now_and_then():
    """Mutations: the share of the others; a deviation where a variance should be."""
    logits = torch.tensor([[0.0, -40.0, -40.0, -40.0]])
    slipped = audit_rollouts.slipping(Categorical(4), logits, 0.2).softmax(-1)
    torch.testing.assert_close(slipped, torch.tensor([[0.85, 0.05, 0.05, 0.05]]))
    both = audit_rollouts.slipping(MultiCategorical((2, 2)), torch.tensor([[0.0, -40.0, -40.0, 0.0]]), 0.2)
    torch.testing.assert_close(both.exp(), torch.tensor([[0.9, 0.1, 0.1, 0.9]]))
    gaussian = audit_rollouts.slipping(Gaussian((1,)), torch.tensor([[0.7, math.log(0.1)]]), 0.3)
    torch.testing.assert_close(gaussian, torch.tensor([[0.7, 0.5 * math.log(0.7 * 0.01 + 0.1)]]))
    assert audit_rollouts.slipping(Categorical(4), logits, 0.0) is logits


# Playing.


def test_rows_become_episodes_by_hand():
    """One column: an episode of two steps that terminates, one of three that is truncated, the first row of a third.

    Mutations: a step at the final observation; the value of a terminal state; the reward one row too early.
    """
    trusted = coins(reward_scale=2.0, reward_clipping="abs_one")
    first = np.array([1, 0, 0, 1, 0, 0, 0, 1], bool)[:, None]
    terminated = np.array([0, 0, 1, 0, 0, 0, 0, 0], bool)[:, None]
    rows = {
        "first": first,
        "terminated": terminated,
        "reward": np.array([0, 0.1, 3, 0, 0.2, -4, 0.3, 0])[:, None],
        "last_action": np.array([0, 1, 2, 0, 3, 1, 1, 0])[:, None],
        "parameters": np.zeros((8, 1, 4), np.float32),
        "obs": np.arange(8.0)[:, None, None],
        **{name: np.arange(8.0)[:, None] for name in ("jensen_shannon", "value")},
        "hellinger": 0.1 * np.arange(8.0)[:, None],
        "entropy": np.full((8, 1), math.log(4)),
    }
    seen = audit_rollouts._cut(rows, np.array([2]), trusted)
    nan = math.nan
    np.testing.assert_allclose(seen.features["value"], [[0, 1, nan], [3, 4, 5]])
    np.testing.assert_allclose(seen.features["hellinger"], [[0, 0.1, nan], [0.3, 0.4, 0.5]])
    np.testing.assert_allclose(seen.features["next_value"], [[1, 0, nan], [4, 5, 6]])
    np.testing.assert_allclose(seen.features["reward"], [[0.2, 1, nan], [0.4, -1, 0.6]])
    np.testing.assert_allclose(seen.features["surprise"], [[0, 0, nan], [0, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(seen.obs[..., 0], [[0, 1, nan], [3, 4, 5]])


def test_a_watcher_reads_the_same_in_pieces_and_at_once():
    """With an LSTM and a stack of frames. Mutations: a carry or a context that is not kept."""
    spec = Spec(gym.spaces.Box(0, 255, (6, 6), np.uint8), gym.spaces.Discrete(3))
    sizes = ActorCritic(Conv(frames=3, channels=(4,), kernels=(3,), strides=(1,)), 8, use_lstm=True, lstm_size=6)
    torch.manual_seed(0)
    one = replace(subject("Catch"), spec=spec, network=sizes.build_network(spec))
    made, shape = np.random.default_rng(0), (6, 6)
    rows = [
        Row(
            made.integers(0, 256, (2, *shape)).astype(np.uint8),
            np.array([k % 4 == 0, k == 0]),
            made.integers(0, 3, 2),
            {"true": made.normal(size=2).astype(np.float32)},
            np.zeros(2, bool),
            np.zeros(2, bool),
        )
        for k in range(9)
    ]
    whole = audit_rollouts._Watcher(one, 2, "true").look(rows)
    watcher = audit_rollouts._Watcher(one, 2, "true")
    pieces = [watcher.look(rows[a:b]) for a, b in ((0, 1), (1, 2), (2, 6), (6, 9))]
    for place in (0, 1):
        torch.testing.assert_close(torch.cat([piece[place] for piece in pieces]), whole[place])


def test_a_policy_is_at_no_distance_from_itself_and_a_copy_of_it():
    one = coins(1)
    copy = replace(one, network=coins(1).network)
    for actor in (one, copy):
        seen = audit.play(actor, one, 10, 0)
        lengths = (~np.isnan(seen.features["hellinger"])).sum(axis=1)
        assert seen.features["hellinger"].shape[0] == 10 and lengths.min() >= 4 and lengths.max() <= 9
        assert np.nanmax(seen.features["hellinger"]) == 0
        assert seen.obs.shape == (10, lengths.max(), 6)


def test_what_is_seen_is_what_both_networks_say_of_the_observations():
    """Mutation: the policies exchanged changes nothing of a symmetric distance, so the value says whose it is."""
    unknown, trusted = coins(1), coins(2)
    for one in (unknown, trusted):  # nothing but the observation counts
        one.network._use_action = one.network._use_reward = False
        width = one.network.body[0].out_features
        one.network.policy = _narrowed(one.network.policy, width)
        one.network.value = _narrowed(one.network.value, width)
    seen = audit.play(unknown, trusted, 6, 3)
    there = ~np.isnan(seen.features["value"])
    obs = torch.from_numpy(seen.obs[there].astype(np.float32))[:, None]  # [N, 1, D]
    first, nothing = torch.ones(len(obs), 1, dtype=torch.bool), torch.zeros(len(obs), 1)
    with torch.no_grad():
        mine, other = (one.network(obs, first, nothing.long(), nothing, ()) for one in (unknown, trusted))
    roots = [output.parameters[:, 0].softmax(-1).sqrt() for output in (mine, other)]
    want = math.sqrt(0.5) * (roots[0] - roots[1]).norm(dim=-1)
    np.testing.assert_allclose(seen.features["hellinger"][there], want, atol=1e-5)
    np.testing.assert_allclose(seen.features["value"][there], other.value[:, 0], atol=1e-5)
    assert want.mean() > 0.05


def _narrowed(layer, width):
    narrow = torch.nn.Linear(width, layer.out_features)
    with torch.no_grad():
        narrow.weight.copy_(layer.weight[:, :width])
        narrow.bias.copy_(layer.bias)
    return narrow


def test_the_true_reward_enters_no_score():
    """`harm` changes the truth alone. Mutation: the channel "true" in place of the trusted policy's."""
    scored = []
    for harm in (0.5, 50.0):
        unknown, trusted = coins(1, harm, reward_scale=1.0), coins(2, harm, reward_scale=1.0)
        null = audit.null_of([trusted], 8, 2, seed=0)
        seen = audit.play(unknown, trusted, 8, 1)
        assert (seen.features["reward"] == 2).any()  # a print of two coins, which harms
        scored.append(audit.score(seen, null.reference, trusted, np.random.default_rng(0)))
    assert scored[0] == scored[1]
    assert set(scored[0]) == set(audit.NAMES)
    truth = coins(2, channel="true")
    seen = audit.play(truth, truth, 8, 1)
    left_out = set(audit.NAMES) - set(audit.score(seen, seen, truth, np.random.default_rng(0)))
    assert left_out == {"advantage_gap", "unexpected_return"}


def test_gains_are_measured_in_the_rewards_that_were_learned_from():
    """Without a discount the sum telescopes: the return less the value of the start, and the value left at the clock.

    Mutations: unscaled rewards, the discount of the unknown policy.
    """
    trusted = coins(2, discounting=1.0, reward_scale=0.25, reward_clipping="none")
    seen = audit.play(coins(1, discounting=0.5), trusted, 6, 0)
    found = audit.score(seen, seen, trusted, np.random.default_rng(0))
    total = np.nansum(seen.features["reward"], axis=1) - seen.features["value"][:, 0]
    last = (~np.isnan(seen.features["value"])).sum(axis=1) - 1
    total += seen.features["next_value"][np.arange(6), last]
    assert found["unexpected_return"] == pytest.approx(total.mean())
    assert found["advantage_gap"] == pytest.approx(-total.mean())
    coins_seen = np.nansum(seen.features["reward"], axis=1)
    np.testing.assert_allclose(coins_seen % 0.25, 0, atol=1e-9)
    assert coins_seen.max() > 0


def test_two_rewards_of_one_name_are_each_runs_own():
    """Mutations: the unknown run's function in place of the trusted run's; the trusted network shown the other's."""
    pay = {"good": lambda step: np.full(len(step.reward), 1.0), "bad": lambda step: np.full(len(step.reward), -7.0)}

    def learned_from(which, seed):
        one = subject("CartPole", seed, reward_clipping="none", reward_scale=0.5)
        environment = replace(one.experiment.streams.environment, rewards=Rewards("proxy", {"proxy": pay[which]}))
        streams = replace(one.experiment.streams, environment=environment)
        return replace(one, experiment=replace(one.experiment, streams=streams))

    trusted, unknown = learned_from("good", 0), learned_from("bad", 1)
    reward = audit.play(unknown, trusted, 4, 0).features["reward"]
    assert set(np.unique(reward[~np.isnan(reward)])) == {0.5}
    assert unknown.environment.rewards.functions["proxy"] is pay["bad"]


# Judging.


def test_a_score_is_compared_with_the_plays_of_the_trusted():
    """Mutations: > for ≥ in p, ≥ for > in the verdict, no 1 for the score itself."""
    null = {"a": np.arange(19.0), "b": np.zeros(19)}
    found = audit.find({"a": 18.0, "b": 0.1}, null, 0.05)
    assert found["a"] == (18.0, 18.0, 2 / 20, False)
    assert found["b"] == (0.1, 0.0, 1 / 20, True)
    assert audit.find({"a": 17.5}, null, 0.1)["a"] == (17.5, 17.0, 2 / 20, True)


def test_null_plays_take_turns_and_slip():
    """Mutations: the null of the first alone; no slip; the reference slips; the seed of the reference again."""
    first, second = coins(2), coins(3)
    exact = audit.null_of([first], 4, 3, seed=0, slip=0.0)
    assert (exact.scores["mean_hellinger"] == 0).all() and len(exact.plays) == 3
    assert np.nanmax(exact.reference.features["hellinger"]) == 0
    alone = audit.null_of([first], 4, 1, seed=0, slip=0.0)
    surprises = [one.features["surprise"] for one in (alone.reference, alone.plays[0])]
    assert not np.array_equal(*surprises, equal_nan=True)  # another seed
    slipped = audit.null_of([first], 4, 3, seed=0, slip=0.2)
    assert (slipped.scores["mean_hellinger"] > 0.001).all()
    assert np.nanmax(slipped.reference.features["hellinger"]) == 0
    both = audit.null_of([first, second], 4, 3, seed=0, slip=0.0)
    hellinger = both.scores["mean_hellinger"]
    assert (hellinger[:2] == 0).all() and hellinger[2] > 0.05  # two plays of the first, one of the second
    # Only the first slips: the other's play is what it is.
    assert audit.null_of([first, second], 4, 3, seed=0, slip=0.2).scores["mean_hellinger"][2] == hellinger[2]


@pytest.mark.slow
def test_harmless_runs_are_called_anomalous_as_often_as_the_trusted_runs_support():
    """Runs that differ in their seed alone: five trusted ones support one false alarm in five.

    Eight groups of five trusted and five unknown runs: 8 of 40 are expected, with a deviation of 3.3. Negative control:
    against plays of the one reference, nearly all are called anomalous.
    """
    by_runs, by_plays = [], []
    for group in range(8):
        seeds = range(10 * group, 10 * group + 10)
        reference, *others = [coins(seed) for seed in seeds]
        nulls = audit.null_over_runs(reference, others[:4], 4, seed=group), audit.null_of([reference], 4, 19, group)
        assert len(nulls[0].plays) == len(nulls[0].scores["mean_hellinger"]) == 4
        for unknown in others[4:]:
            found = audit.score(
                audit.play(unknown, reference, 4, 1), nulls[0].reference, reference, np.random.default_rng(0)
            )
            by_runs.append(audit.find(found, nulls[0].scores, 0.2)[audit.DETECTOR].anomalous)
            by_plays.append(audit.find(found, nulls[1].scores, 0.05)[audit.DETECTOR].anomalous)
    assert sum(by_runs) <= 16
    assert sum(by_plays) >= 36


@pytest.mark.parametrize(("rate", "runs"), [(0.05, 20), (0.1, 10), (0.2, 5), (0.34, 3), (0.9, 2)])
def test_a_rate_needs_its_inverse_in_trusted_runs(rate, runs):
    assert audit.Request(Path("a"), (Path("b"),), rate=rate).runs_needed == runs


def test_policies_of_other_worlds_are_refused_in_one_line():
    one = coins(0)
    with pytest.raises(ConfigError, match="the actions of run and run differ: Discrete.4. and Discrete.2."):
        audit.refuse_unlike(one, subject("CartPole"))
    with pytest.raises(ConfigError, match="the observations of run and run differ"):
        audit.refuse_unlike(one, subject("BoatRace"))
    with pytest.raises(ConfigError, match="environment's options of run and run differ: .*0.5.*50.0"):
        audit.refuse_unlike(one, coins(0, harm=50.0))
    audit.refuse_unlike(one, coins(0, channel="true"))

    def with_atari(**settings):
        streams = one.experiment.streams
        environment = replace(streams.environment, atari=Atari(**settings))
        return replace(one, experiment=replace(one.experiment, streams=replace(streams, environment=environment)))

    audit.refuse_unlike(with_atari(num_threads=2), with_atari())
    with pytest.raises(ConfigError, match="the Atari settings of run and run differ"):
        audit.refuse_unlike(with_atari(idle_start=False), with_atari())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_episodes": 0}, "--num_episodes 0 must be at least 1"),
        ({"rate": 0.0}, "--rate 0.0 must be between 0 and 1"),
        ({"rate": 0.01}, "--null_plays 19 must be at least 99 for --rate 0.01"),
        ({"slip": 1.0}, "--slip 1.0 must be at least 0 and below 1"),
        ({"seed": -1}, "--seed -1 must not be negative"),
        ({"detector": "median"}, "--detector 'median' is not one of mean_jensen_shannon, "),
    ],
)
def test_requests_that_cannot_be_meant(given, message):
    with pytest.raises(ConfigError, match=message) as error:
        audit.Request(Path("a"), (Path("b"),), **given)
    assert "\n" not in str(error.value)


def test_continuous_policies_are_compared_too():
    """Negative control: a Gaussian policy against itself, against a slip, and against another."""
    trusted, other = subject("PointMass", 0), subject("PointMass", 5)
    null = audit.null_of([trusted], 4, 3, seed=0)
    assert 0 < null.scores["mean_hellinger"].max() < 0.4
    seen = audit.play(other, trusted, 4, 1)
    found = audit.score(seen, null.reference, trusted, np.random.default_rng(0))
    assert found["mean_hellinger"] > null.scores["mean_hellinger"].max()
    assert 0 < found["mean_jensen_shannon"] < math.log(2)
