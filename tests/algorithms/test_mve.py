"""MVE: the return of H imagined steps, the TD-k trick, and mixtures of depths."""

import itertools

import pytest
import torch

from packtrain.algorithms.ddpg import DDPG
from packtrain.algorithms.mve import MVE
from packtrain.errors import ConfigError
from packtrain.testing.plain_value_expansion import (
    ACTIONS,
    FAR,
    GAMMA,
    KAPPA,
    OBS,
    build,
    check_against_reference,
    critic_loss_of,
    inputs,
    learner_of,
    scene,
    settings,
    targets_of,
)


@pytest.mark.parametrize(
    "target, rows",
    [(name, "all") for name in ("mve", "mean", "mean_tdk", "lambda", "lambda_tdk")]
    + list(itertools.product(["mve_tdk"], ["all", "split", "random"])),
)
def test_mve_targets_and_loss_equal_the_reference(target, rows):
    """Mutations: the live model, critic or policy in place of its copy; reward member l only with member l; depths
    counted from 1; a loss without reach; imagined pairs of one member; rows dealt to the wrong critic.
    """
    check_against_reference(*scene(target, rows=rows))


@pytest.mark.parametrize("core", ["td3", "sac"])
def test_mve_on_td3_and_sac_equals_the_reference(core):
    """Mutations: entropy not discounted, or not divided by κ; the entropy of an imagined pair's own action counted."""
    check_against_reference(*scene("mve_tdk", core))


def test_with_a_perfect_model_of_one_member_mve_is_the_return_and_a_bootstrap():
    """Rewards of H + 1 true steps and the critic after them. The negative control errs by 1 %."""
    torch.manual_seed(0)
    drift = 0.1 * torch.randn(OBS + ACTIONS, OBS, dtype=torch.float64)
    pays = torch.randn(2 * OBS + ACTIONS, 1, dtype=torch.float64)
    sizes = {"transitions": 1, "rewards": 1, "num_layers": 0, "aux_num_layers": 0, "critics": 1}
    network, ddpg, batch = scene("one_step", **sizes)
    mve = MVE(ddpg, 4, tdk_trick=False)
    with torch.no_grad():
        for part, weight, bias in (
            (network.frozen.transition, drift, 0.0),
            (network.frozen.reward, pays, 0.0),
            (network.frozen.termination, torch.zeros_like(pays), -40.0),
        ):
            part.weights[0].copy_(weight.expand_as(part.weights[0]))
            part.biases[0].fill_(bias)
    s, total, discount = batch["after"], KAPPA * batch["reward"], GAMMA * (1 - batch["terminated"].double())
    for _ in range(4):  # the true system
        a = network.act(network.policy, s)
        after = s + torch.cat([s, a], -1) @ drift
        total = total + discount * KAPPA * (torch.cat([after, s, a], -1) @ pays)[..., 0]
        s, discount = after, discount * GAMMA
    bootstrap = network.value(network.target, s, network.act(network.policy, s))[:, 0]
    want = total + discount * bootstrap
    torch.testing.assert_close(targets_of(mve, network, batch).target[0], want)
    network.frozen.transition.weights[0].mul_(1.01)
    assert (targets_of(mve, network, batch).target[0] - want).abs().max() > 1e-3


def test_an_update_is_adam_on_the_critics_and_then_on_the_policy():
    """Mutations: the policy first; one step for both; the mean over runs. Losses are those of before each step."""
    network, twin = build(), build()
    mve = settings("mve_tdk", learning_rate=0.01, rows="split", **FAR)
    learner = learner_of(network, mve)
    batch = inputs(learner, 1)
    metrics = learner.update(batch)
    targets = targets_of(mve, twin, batch)
    critic_loss, value_mean = critic_loss_of(mve, twin, batch)
    plain = {n: torch.optim.Adam(getattr(twin, n).parameters(), 0.01) for n in ("critic", "policy")}
    plain["critic"].zero_grad()
    critic_loss.sum().backward()
    plain["critic"].step()
    policy_loss, regulariser = mve.actor_critic.policy_loss(twin, batch)
    plain["policy"].zero_grad()
    (policy_loss + regulariser).sum().backward()
    plain["policy"].step()
    for name in ("critic", "policy"):
        for mine, want in zip(getattr(network, name).parameters(), getattr(twin, name).parameters(), strict=True):
            torch.testing.assert_close(mine, want)
    torch.testing.assert_close(metrics["critic_loss"], critic_loss[0].detach())
    torch.testing.assert_close(metrics["policy_loss"], policy_loss[0].detach())
    torch.testing.assert_close(metrics["policy_regulariser"], regulariser[0].detach())
    torch.testing.assert_close(metrics["value_mean"], value_mean[0])
    torch.testing.assert_close(metrics["target_mean"], targets.target[0].mean())
    assert metrics["model_use"] == 1 and metrics["weight/depth_2"] == 1 and metrics["weight/depth_0"] == 0


def test_mve_refuses_numbers_out_of_range_and_networks_without_a_model():
    with pytest.raises(ConfigError, match="MVE.horizon = 0 must be at least 1"):
        MVE(DDPG(), 0)
    with pytest.raises(ConfigError, match="MVE.trace_lambda = 1.5 must lie between 0 and 1"):
        MVE(DDPG(), trace_lambda=1.5)
    with pytest.raises(ConfigError, match="MVE needs a world model: set Control.dynamics"):
        settings("mve").build(build(model=False), 0)
