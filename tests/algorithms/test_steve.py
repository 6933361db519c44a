"""STEVE: depths weighted by how little their candidates differ."""

import itertools

import pytest
import torch

from packtrain.algorithms.candidate_returns import rollouts
from packtrain.algorithms.ddpg import DDPG
from packtrain.algorithms.steve import STEVE
from packtrain.equations.value_expansion import model_use
from packtrain.errors import ConfigError
from packtrain.testing.plain_value_expansion import (
    HORIZON,
    KAPPA,
    OBS,
    ROWS,
    RUNS,
    TARGETS,
    build,
    check_against_reference,
    inputs,
    learner_of,
    scene,
    settings,
    targets_of,
)


@pytest.mark.parametrize(
    "target, rows",
    [(name, "all") for name in ("steve_tdk", "cov")] + list(itertools.product(["steve"], ["all", "split", "random"])),
)
def test_steve_targets_and_loss_equal_the_reference(target, rows):
    """Mutations: the live model, critic or policy in place of its copy; reward member l only with member l; depths
    counted from 1; rows dealt to the wrong critic.
    """
    targets = check_against_reference(*scene(target, rows=rows))
    if target == "steve":  # no depth takes all: else its mixture would not be tested
        assert targets.weight[0, :, :, [0, 2, 3, 4, 5]].amax() < 0.999


@pytest.mark.parametrize("core", ["td3", "sac"])
@pytest.mark.parametrize("target", ["steve", "steve_tdk"])
def test_steve_on_td3_and_sac_equals_the_reference(core, target):
    """Mutations: entropy not discounted, or not divided by κ; td3's noise not clipped; the greater of a pair."""
    check_against_reference(*scene(target, core))


@pytest.mark.parametrize("core", ["ddpg", "sac"])
def test_steve_samples_a_probabilistic_model_of_elites(core):
    """Mutations: the same noise at every depth or for every member; raw units; as many members as the model has."""
    network, steve, batch = scene("steve_tdk", core, probabilistic=True, normalise=True, transitions=3, elites=2)
    assert batch["model_noise"].shape == (RUNS, HORIZON, 2, ROWS, OBS)
    check_against_reference(network, steve, batch)


@pytest.mark.parametrize("core", ["td3", "sac"])
def test_equal_members_have_no_variance_under_a_stochastic_policy(core):
    """Variance is what models and critics disagree on, not what the policy samples: weights of depths are uniform.

    Mutation: an action sample for each member.
    """
    network, steve, batch = scene("steve", core)
    with torch.no_grad():
        for part in (network.frozen, network.target):
            for leaf in part.parameters():
                members = leaf.unflatten(0, (RUNS, -1))
                members.copy_(members[:, :1].expand_as(members).clone())
    for action in rollouts(network, steve.actor_critic, HORIZON, batch).action:
        assert (action == action[:, :1]).all() and action.std(2).min() > 0
    targets = targets_of(steve, network, batch)
    torch.testing.assert_close(targets.weight, torch.full_like(targets.weight, 1 / (HORIZON + 1)), atol=1e-6, rtol=0)
    other = targets_of(steve, network, {**batch, "action_noise": -batch["action_noise"]})
    assert (other.target - targets.target).abs().max() > 1e-3, "actions are sampled"


@pytest.mark.parametrize("core", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("target", list(TARGETS))
def test_after_a_real_end_every_target_is_the_reward(target, core):
    """Mutation: the end left out of the rollout, or its entropy paid."""
    network, algorithm, batch = scene(target, core)
    targets = targets_of(algorithm, network, batch)
    torch.testing.assert_close(targets.target[0, :, 1], KAPPA * batch["reward"][:, 1])
    assert (targets.target[0, :, 0] - KAPPA * batch["reward"][:, 0]).abs().max() > 0.1
    if target == "steve":
        torch.testing.assert_close(targets.weight[0, :, :, 1], torch.full((3, RUNS), 1 / 3, dtype=torch.float64))
        assert (model_use(targets)[:, 1] > 0.66).all()


def test_weights_of_depths_are_reported():
    network, steve = build(), settings("steve")
    learner = learner_of(network, steve)
    batch = inputs(learner, 1)
    targets = targets_of(steve, network, batch)
    metrics = learner.update(batch)
    for depth in range(3):
        torch.testing.assert_close(metrics[f"weight/depth_{depth}"], targets.weight[0, depth].mean())
    torch.testing.assert_close(metrics["model_use"], 1 - metrics["weight/depth_0"])
    plain = learner_of(build(), settings())
    assert not {"model_use", "weight/depth_0"} & set(plain.update(inputs(plain, 1)))


@pytest.mark.parametrize(
    "values, line",
    [
        ({"horizon": 0}, "STEVE.horizon = 0 must be at least 1"),
        ({"epsilon": 0.0}, "STEVE.epsilon = 0.0 must be above 0"),
        ({"ridge": 0.0}, "STEVE.ridge = 0.0 must be above 0, or None"),
        ({"model_period": 0}, "STEVE.model_period = 0 must be at least 1, or None"),
    ],
)
def test_steve_refuses_numbers_out_of_range(values, line):
    with pytest.raises(ConfigError, match=line):
        STEVE(DDPG(), **values)


def test_steve_refuses_networks_without_a_model():
    with pytest.raises(ConfigError, match="STEVE needs a world model: set Control.dynamics"):
        settings("steve").build(build(model=False), 0)
    settings("steve", rows="split").build(build(), 0)
