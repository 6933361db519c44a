"""IMPALA: the loss on hand-made trajectories, the learner's step, and actor and learner seeing the same."""

import math
from types import SimpleNamespace

import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from packtrain import trees
from packtrain.acting.sampling import ActorCritic
from packtrain.algorithms.impala import Impala, loss
from packtrain.algorithms.optimisers import OPTIMISERS
from packtrain.algorithms.trusted_policy import TrustedPolicy
from packtrain.envs.environment import Environment
from packtrain.errors import ConfigError
from packtrain.memory.unroll import Unrolls
from packtrain.runtime.experiment import Collect, Experiment, LearnerUse, Repeat, Run, Streams, Update
from packtrain.runtime.local_acting import build_sides
from packtrain.runtime.weights import Weights
from packtrain.testing import abilities  # noqa: F401  (registers Memory)
from packtrain.types import Sample, Spec, Trajectory

T, B = 6, 3
ACTIONS = {"Discrete": Discrete(4), "MultiDiscrete": MultiDiscrete([2, 3]), "Box": Box(-1, 1, (2,))}


def build(action="Discrete", use_lstm=False, seed=0):
    torch.manual_seed(seed)
    spec = Spec(Box(-9, 9, (3,)), ACTIONS[action])
    return ActorCritic(hidden_size=8, lstm_size=6, lstm_layers=2, use_lstm=use_lstm).build_network(spec)


def hand_made(network, seed=1):
    """Three columns: one episode throughout; a termination; a truncation, and later a lost life.

    Column 1: action 1 terminates, action 2 is dropped by the reset that makes row 3.
    Column 2: action 2 is truncated, action 3 is dropped by the reset that makes row 4, action 4 costs a life.
    """
    g = torch.Generator().manual_seed(seed)
    first, terminated, truncated = (torch.zeros(n, B, dtype=torch.bool) for n in (T + 1, T, T))
    terminated[1, 1] = first[3, 1] = True
    truncated[2, 2] = first[4, 2] = True
    terminated[4, 2] = True
    flat = torch.zeros(T + 1, B, network.distribution.num_parameters)
    action = network.distribution.sample(flat, g)
    reward = 2 * torch.randn(T + 1, B, generator=g)
    behaviour = network.distribution.log_prob(flat[1:], action[1:]) + 0.7 * torch.randn(T, B, generator=g)
    return Trajectory(
        obs=torch.randn(T + 1, B, 3, generator=g),
        first=first,
        action=action[1:],
        reward=reward[1:].masked_fill(first[1:], 0),
        terminated=terminated,
        truncated=truncated,
        last_action=action[:1],
        last_reward={"train": reward[:1]},
        carry=tuple(torch.randn(state.shape, generator=g) for state in network.initial_carry(B)),
        extras={"behaviour_log_prob": behaviour},
    )


def direct(network, trajectory, settings):
    """The loss from the paper's recursion, number by number; gradients flow through log π, V and the entropy only."""
    output = network(
        trajectory.obs,
        trajectory.first,
        torch.cat([trajectory.last_action, trajectory.action]),
        torch.cat([trajectory.last_reward["train"], trajectory.reward]),
        trajectory.carry,
    )
    log_prob = network.distribution.log_prob(output.parameters[:-1], trajectory.action)
    entropy = network.distribution.entropy(output.parameters[:-1])
    pg, baseline, bonus, count = 0.0, 0.0, 0.0, 0
    for b in range(B):
        value = [v.item() for v in output.value[:, b]]
        target, correction = list(value), 0.0  # targets of rows 0 … T; that of row T is its value
        for t in reversed(range(T)):
            if trajectory.first[t + 1, b]:
                correction = 0.0
                continue
            reward = settings.reward_scale * trajectory.reward[t, b].item()
            reward = max(-1.0, min(1.0, reward)) if settings.reward_clipping == "abs_one" else reward
            ratio = math.exp(log_prob[t, b].item() - trajectory.extras["behaviour_log_prob"][t, b].item())
            discount = 0.0 if trajectory.terminated[t, b] else settings.discounting
            goes_on = not (trajectory.terminated[t, b] or trajectory.truncated[t, b])
            correction = (
                min(settings.rho_bar, ratio) * (reward + discount * value[t + 1] - value[t])
                + discount * goes_on * settings.trace_lambda * min(settings.c_bar, ratio) * correction
            )
            target[t] = value[t] + correction
            following = target[t + 1] if goes_on else value[t + 1]
            advantage = min(settings.pg_rho_bar, ratio) * (reward + discount * following - value[t])
            pg = pg - log_prob[t, b] * advantage
            baseline = baseline + settings.baseline_cost * 0.5 * (target[t] - output.value[t, b]) ** 2
            bonus = bonus - settings.entropy_cost * entropy[t, b]
            count += 1
    scale = 1 / count if settings.reduction == "mean" else 1.0
    return scale * pg, scale * baseline, scale * bonus


SETTINGS = {
    "defaults": Impala(entropy_cost=0.01),
    "mean": Impala(entropy_cost=0.01, reduction="mean"),
    "other numbers": Impala(
        discounting=0.9,
        entropy_cost=0.1,
        baseline_cost=0.25,
        reward_clipping="none",
        reward_scale=0.3,
        rho_bar=2.0,
        c_bar=0.8,
        pg_rho_bar=1.5,
        trace_lambda=0.95,
    ),
}


def gradients(network, total):
    return torch.autograd.grad(total, list(network.parameters()))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_loss_is_the_direct_computation(settings, use_lstm, action):
    """Value, parts and gradients. Mutations: rows shifted by one, a missing detach, an option that is not passed on."""
    network = build(action, use_lstm)
    trajectory = hand_made(network)
    total, parts = loss(network, trajectory, settings)
    pg, baseline, bonus = direct(network, trajectory, settings)
    for name, want in (("pg_loss", pg), ("baseline_loss", baseline), ("entropy_loss", bonus)):
        torch.testing.assert_close(parts[name], want.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parts["total_loss"], total.detach())
    for got, want in zip(gradients(network, total), gradients(network, pg + baseline + bonus), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
def test_every_parameter_gets_a_gradient_and_the_behaviour_none(use_lstm):
    """Specs/impala.md 8.6. Mutation: ratios that are not detached give the actor's log-probabilities a gradient."""
    network = build(use_lstm=use_lstm)
    trajectory = hand_made(network)
    trajectory.extras["behaviour_log_prob"].requires_grad_()
    total, parts = loss(network, trajectory, Impala(entropy_cost=0.01))
    total.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    assert trajectory.extras["behaviour_log_prob"].grad is None
    assert all(not part.requires_grad and part.ndim == 0 and part != 0 for part in parts.values())


def test_the_value_is_no_target_of_itself():
    """Mutation: a bootstrap value that is not detached is pulled towards its own predictor."""
    network = build()
    trajectory = hand_made(network)
    settings = Impala(entropy_cost=0.0, baseline_cost=0.5)
    total, _ = loss(network, trajectory, settings)
    (got,) = torch.autograd.grad(total, network.value.bias)
    _, baseline, _ = direct(network, trajectory, settings)
    (want,) = torch.autograd.grad(baseline, network.value.bias)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def replace(trajectory, name, where, by):
    leaf = getattr(trajectory, name).clone()
    leaf[where] = by
    return trajectory._replace(**{name: leaf})


FILLERS = [(2, 1), (3, 2)]


@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_filler_rows_do_not_matter(use_lstm, reduction):
    """Whatever action, reward and probability stand in them. Mutation: a weight of 1, or a mean over all rows."""
    network = build(use_lstm=use_lstm)
    trajectory = hand_made(network)
    settings = Impala(reduction=reduction, entropy_cost=0.1)
    want, _ = loss(network, trajectory, settings)
    for where in FILLERS:
        assert trajectory.first[where[0] + 1, where[1]]
        other = replace(trajectory, "action", where, (trajectory.action[where] + 1) % 4)
        other = replace(other, "reward", where, 5.0)
        other.extras["behaviour_log_prob"] = trajectory.extras["behaviour_log_prob"].clone()
        other.extras["behaviour_log_prob"][where] = -9.0
        assert torch.equal(loss(network, other, settings)[0], want)
    trajectory = replace(trajectory, "reward", (0, 1), 0.123)  # the control: a row that is a step
    assert not torch.isclose(loss(network, trajectory, settings)[0], want)


def test_a_termination_has_no_future_and_a_truncation_has():
    """The observation after the end: not looked at after a termination, the bootstrap after a truncation."""
    network = build()
    trajectory = hand_made(network)
    settings = Impala(entropy_cost=0.1)
    want, _ = loss(network, trajectory, settings)
    changed = replace(trajectory, "obs", (2, 1), 5.0)  # shown after the termination of action 1
    assert torch.equal(loss(network, changed, settings)[0], want)
    changed = replace(trajectory, "obs", (3, 2), 5.0)  # shown after the truncation of action 2
    assert not torch.isclose(loss(network, changed, settings)[0], want)


def cut(trajectory, begin, end):
    """Rows `begin` to `end` as a trajectory of their own; without an LSTM."""
    last_action = torch.cat([trajectory.last_action, trajectory.action])
    last_reward = torch.cat([trajectory.last_reward["train"], trajectory.reward])
    return Trajectory(
        obs=trajectory.obs[begin : end + 1],
        first=trajectory.first[begin : end + 1],
        action=trajectory.action[begin:end],
        reward=trajectory.reward[begin:end],
        terminated=trajectory.terminated[begin:end],
        truncated=trajectory.truncated[begin:end],
        last_action=last_action[begin : begin + 1],
        last_reward={"train": last_reward[begin : begin + 1]},
        carry=(),
        extras={"behaviour_log_prob": trajectory.extras["behaviour_log_prob"][begin:end]},
    )


@pytest.mark.parametrize(
    "column, at, goes_on",
    [(1, 1, False), (2, 2, False), (2, 4, False), (0, 2, True)],
    ids=["end", "clock", "life", "no"],
)
def test_nothing_flows_back_over_a_boundary(column, at, goes_on):
    """Cutting a column after an end, a truncation or a lost life gives the two pieces; elsewhere it does not.

    Mutation: a filler row whose ratio is not 0 and a truncation that does not cut the trace, together.
    """
    network = build()
    whole = hand_made(network)
    one = Trajectory(*[trees.map(lambda leaf: leaf[:, column : column + 1], field) for field in whole])
    settings = Impala(entropy_cost=0.1)
    before, after = cut(one, 0, at + 1), cut(one, at + 1, T)
    pieces = loss(network, before, settings)[0] + loss(network, after, settings)[0]
    assert bool(torch.isclose(loss(network, one, settings)[0], pieces, rtol=1e-5)) == (not goes_on)


def test_terminated_and_truncated_differ_by_the_bootstrap():
    """All values 3, no rewards, on-policy: a step's error is 3 − 0.9 · 3, that of a termination 3."""
    network = build()
    with torch.no_grad():
        for layer, bias in ((network.value, 3.0), (network.policy, 0.0)):
            layer.weight.zero_()
            layer.bias.fill_(bias)
    settings = Impala(discounting=0.9, baseline_cost=1.0)
    row = cut(hand_made(network), 2, 3)  # column 0: a step; column 1: a filler; column 2: truncated
    row = row._replace(reward=torch.zeros(1, B), extras={"behaviour_log_prob": torch.full((1, B), -math.log(4))})
    assert row.truncated.tolist() == [[False, False, True]] and row.first[1].tolist() == [False, True, False]
    _, parts = loss(network, row, settings)
    assert parts["baseline_loss"].item() == pytest.approx(0.5 * (0.3**2 + 0.3**2), rel=1e-4)
    row = row._replace(truncated=torch.zeros_like(row.truncated), terminated=row.truncated)
    _, parts = loss(network, row, settings)
    assert parts["baseline_loss"].item() == pytest.approx(0.5 * (0.3**2 + 3**2), rel=1e-4)


def test_sum_is_mean_times_the_rows_that_count():
    network = build()
    trajectory = hand_made(network)
    total, _ = loss(network, trajectory, Impala(reduction="sum"))
    mean, _ = loss(network, trajectory, Impala(reduction="mean"))
    count = T * B - len(FILLERS)
    torch.testing.assert_close(total, mean * count)
    for one, other in zip(gradients(network, total), gradients(network, mean), strict=True):
        torch.testing.assert_close(one, other * count, rtol=1e-4, atol=1e-6)


def test_an_unroll_runs_from_the_carry_it_was_stored_with():
    """Mutation: a learner that starts every unroll from zero."""
    network = build(use_lstm=True)
    trajectory = hand_made(network)
    want, _ = loss(network, trajectory, Impala())
    other = trajectory._replace(carry=tuple(torch.zeros_like(state) for state in trajectory.carry))
    assert not torch.isclose(loss(network, other, Impala())[0], want)
    # where every row 0 is the first of an episode, the carry is forgotten
    start = replace(trajectory, "first", 0, True)
    other = start._replace(carry=other.carry)
    assert torch.equal(loss(network, start, Impala())[0], loss(network, other, Impala())[0])


def test_row_0_sees_its_last_action_and_reward():
    network = build()
    trajectory = hand_made(network)
    want, _ = loss(network, trajectory, Impala())
    other = trajectory._replace(last_action=(trajectory.last_action + 1) % 4)
    assert not torch.isclose(loss(network, other, Impala())[0], want)
    other = trajectory._replace(last_reward={"train": trajectory.last_reward["train"].clamp(-1, 1) * 0.5})
    assert not torch.isclose(loss(network, other, Impala())[0], want)


def test_rewards_are_scaled_and_then_clipped():
    network = build()
    trajectory = hand_made(network)._replace(reward=torch.full((T, B), 4.0))
    want, _ = loss(network, trajectory, Impala(reward_clipping="none"))
    clipped, _ = loss(network, trajectory, Impala(reward_clipping="abs_one"))
    quarter, _ = loss(network, trajectory, Impala(reward_clipping="abs_one", reward_scale=0.125))
    assert not torch.isclose(want, clipped) and not torch.isclose(clipped, quarter)
    half, _ = loss(network, trajectory, Impala(reward_clipping="none", reward_scale=0.125))
    assert torch.equal(quarter, half)  # 0.5 is inside the clip


# -- the learner


def sample(network, seed=1):
    return Sample(hand_made(network, seed), steps=T * B - len(FILLERS))


def weights_of(module):
    return {name: leaf.clone() for name, leaf in module.state_dict().items()}


def assert_same_weights(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_an_update_changes_the_weights_and_publishing_hands_them_over(optimiser):
    """Specs/impala.md 8.6. Mutation: zero_grad after backward, or a publisher that shares instead of copies."""
    network, acting = build(), build(seed=1)
    learner = Impala(optimiser=optimiser, learning_rate=0.01).build(network, 10_000)
    before, published = weights_of(network), Weights()
    metrics = learner.update(sample(network))
    after = weights_of(network)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    published.publish("policy", network, learner.updates)
    assert published.pull("policy", acting, -1) == 1
    assert_same_weights(weights_of(acting), after)
    learner.update(sample(network, seed=2))
    assert_same_weights(weights_of(acting), after)
    assert {"total_loss", "pg_loss", "baseline_loss", "entropy_loss", "grad_norm", "learning_rate"} <= metrics.keys()
    assert metrics["grad_norm"] > 0 and math.isfinite(metrics["total_loss"])
    assert all(parameter.grad is None for parameter in acting.parameters())


def test_gradients_do_not_add_up_over_updates():
    network, other = build(), build()
    settings = Impala(learning_rate=1e-12)
    learner = settings.build(network, 10_000)
    first = learner.update(sample(network))["grad_norm"]
    second = learner.update(sample(network))["grad_norm"]
    torch.testing.assert_close(first, second, rtol=1e-4, atol=0)
    total, _ = loss(other, hand_made(other), settings)
    want = torch.cat([g.flatten() for g in gradients(other, total)]).norm()
    torch.testing.assert_close(first, want, rtol=1e-4, atol=0)


def test_the_step_is_clipped_to_the_global_norm():
    """With a norm far below ε, RMSProp's first step is lr · g / (√(1−α) · |g| + ε) ≈ lr · g / ε."""
    network = build()
    settings = Impala(learning_rate=1.0, epsilon=1.0, grad_norm_clipping=1e-3)
    before = weights_of(network)
    norm = settings.build(network, 10_000).update(sample(network))["grad_norm"]
    assert norm > 0.1  # before clipping
    moved = torch.cat([(leaf - before[name]).flatten() for name, leaf in network.state_dict().items()]).norm()
    torch.testing.assert_close(moved, torch.tensor(1e-3), rtol=1e-3, atol=0)


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_the_learning_rate_follows_decisions_and_not_rows(schedule):
    network = build()
    learner = Impala(learning_rate=0.1, lr_schedule=schedule).build(network, total_steps=40)
    rates = [learner.update(sample(network))["learning_rate"] for _ in range(4)]
    assert learner.steps == 4 * 16 and learner.updates == 4
    want = [0.1, 0.1 * 24 / 40, 0.1 * 8 / 40, 0.0] if schedule == "linear" else [0.1] * 4
    assert rates == pytest.approx(want)
    if schedule == "linear":
        before = weights_of(network)
        learner.update(sample(network))
        assert_same_weights(weights_of(network), before)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("updates", [0, 1, 3])
def test_a_saved_learner_goes_on_bit_for_bit(optimiser, updates):
    """Mutations: counters, moments or Adam's step left out; a state that changes while a loaded learner goes on."""
    settings = Impala(optimiser=optimiser, learning_rate=0.01, momentum=0.5)
    learner = settings.build(build(), 500)
    for seed in range(updates):
        learner.update(sample(learner.network, seed))
    state = learner.state_dict()
    rates = [learner.update(sample(learner.network, seed))["learning_rate"] for seed in range(5)]
    for _ in range(2):  # the same state may be loaded twice
        other = settings.build(build(seed=9), 500)
        other.update(sample(other.network, 7))
        other.load_state_dict(state)
        assert (other.updates, other.steps) == (updates, updates * 16)
        assert [other.update(sample(other.network, seed))["learning_rate"] for seed in range(5)] == rates
        assert_same_weights(weights_of(other.network), weights_of(learner.network))


@pytest.mark.parametrize(
    "name, value",
    [
        ("learning_rate", 0.0),
        ("epsilon", -1.0),
        ("grad_norm_clipping", 0.0),
        ("c_bar", 0.0),
        ("reward_scale", 0.0),
        ("discounting", 1.5),
        ("trace_lambda", -0.1),
        ("alpha", 2.0),
        ("entropy_cost", -0.1),
        ("baseline_cost", -0.1),
        ("rho_bar", 0.0),
        ("pg_rho_bar", -1.0),
    ],
)
def test_impossible_numbers_are_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"Impala\.{name} = "):
        Impala(**{name: value})


# -- actor and learner together


def parts(use_lstm, num_actors=3, groups=1):
    experiment = Experiment(
        streams=Streams(Environment("Memory", {"delay": 2}), num_actors=num_actors, groups=groups),
        policy=ActorCritic(hidden_size=8, lstm_size=6, use_lstm=use_lstm),
        memories={"unrolls": Unrolls(unroll_length=5, batch_size=2)},
        learners={"impala": LearnerUse(Impala(learning_rate=0.01), "unrolls")},
        schedule=(Repeat((Collect("unrolls"), Update("impala"))),),
        run=Run(total_steps=10_000),
    )
    acting, learning = build_sides(experiment, experiment.streams.environment.probe(), torch.device("cpu"))
    return SimpleNamespace(actor=acting.actor, policy=acting.policy, **vars(learning), publish=learning.publish)


def next_sample(alive):
    memory, learner = alive.memories["unrolls"], alive.learners["impala"]
    while (found := memory.sample(version=learner.updates)) is None:
        alive.actor.turn()
    return found


def log_ratio(network, trajectory):
    """log π − log μ, as the learner sees it."""
    last_action = torch.cat([trajectory.last_action, trajectory.action])
    last_reward = torch.cat([trajectory.last_reward["train"], trajectory.reward])
    with torch.no_grad():
        output = network(trajectory.obs, trajectory.first, last_action, last_reward, trajectory.carry)
        log_prob = network.distribution.log_prob(output.parameters[:-1], trajectory.action)
    return (log_prob - trajectory.extras["behaviour_log_prob"])[~trajectory.first[1:]]


@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("groups", [1, 2])
def test_actor_and_learner_begin_with_the_same_weights_and_see_the_same(use_lstm, groups):
    """Specs/impala.md 2.9.3 and 8.7: before any update every ratio is 1, in each of ten batches, resets and all.

    Mutations: networks initialised apart; a carry of another row; a last action that is not zero after a reset.
    """
    alive = parts(use_lstm, groups=groups)
    alive.actor.turn()
    network = alive.learners["impala"].network
    assert network is not alive.policy.network
    assert_same_weights(weights_of(alive.policy.network), weights_of(network))
    for _ in range(10):
        trajectory = next_sample(alive).trajectory
        torch.testing.assert_close(
            log_ratio(network, trajectory), torch.zeros_like(log_ratio(network, trajectory)), atol=1e-5, rtol=0
        )
        assert (trajectory.extras["weights_version"] == 0).all()


def test_published_weights_reach_the_actor_with_the_next_decision():
    alive = parts(use_lstm=True)
    learner = alive.learners["impala"]
    found = next_sample(alive)
    learner.update(found)
    assert log_ratio(learner.network, found.trajectory).abs().max() > 1e-4  # off-policy now
    alive.actor.turn()
    assert not torch.equal(alive.policy.network.value.weight, learner.network.value.weight)
    alive.publish(learner.updates)
    alive.actor.turn()
    assert_same_weights(weights_of(alive.policy.network), weights_of(learner.network))
    for _ in range(6):
        trajectory = next_sample(alive).trajectory
    assert (trajectory.extras["weights_version"] == 1).all()
    assert log_ratio(learner.network, trajectory).abs().max() < 1e-5


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_trusted_policy_adds_its_mean_divergence_to_the_loss(reduction):
    """Over rows that count: column 1 and column 2 have a filler row each. Mutation: filler rows counted."""
    network, trusted = build(), build(seed=3)
    trajectory = hand_made(network)
    penalty = TrustedPolicy(weights="given", coefficient=0.3)
    plain, _ = loss(network, trajectory, Impala(reduction=reduction))
    total, parts = loss(network, trajectory, Impala(reduction=reduction, trusted=penalty), trusted)
    last_action, last_reward = trajectory.last_inputs()
    inputs = trajectory.obs, trajectory.first, last_action, last_reward, trajectory.carry
    p, q = (one(*inputs).parameters[:-1].log_softmax(-1) for one in (network, trusted))
    apart = (p.exp() * (p - q)).sum(-1)
    apart[2, 1] = apart[3, 2] = 0  # their actions were dropped
    count = T * B - 2
    scale = 1 if reduction == "mean" else count
    assert float(total - plain) == pytest.approx(0.3 * scale * float(apart.sum()) / count, rel=1e-4)
    assert float(parts["trusted_divergence"]) == pytest.approx(float(apart.sum()) / count, rel=1e-5)
