"""What DDPG, TD3, SAC, MVE and STEVE share: which loss moves which network, and when weights are copied."""

import math

import pytest
import torch

from packtrain.testing.plain_value_expansion import (
    ACTIONS,
    CRITICS,
    FAR,
    HORIZON,
    ROWS,
    build,
    inputs,
    learner_of,
    settings,
)


def parts_of(network):
    names = ("policy", "critic", "target", "target_policy", "behaviour", "model", "frozen")
    parts = {name: getattr(network, name) for name in names if getattr(network, name) is not None}
    weights = {name: [leaf.detach().clone() for leaf in part.parameters()] for name, part in parts.items()}
    return {**weights, "log_temperature": [network.log_temperature.detach().clone()]}


def moved(before, after):
    """Names of parts in which anything is different."""
    pairs = {name: zip(before[name], after[name], strict=True) for name in before}
    return {name for name, leaves in pairs.items() if not all(torch.equal(a, b) for a, b in leaves)}


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("core", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("target", ["one_step", "mve_tdk", "steve"])
def test_each_loss_moves_its_own_network(core, target):
    """Mutation: an optimiser of all parameters, or gradients of one loss left for the other's step."""
    delayed, both = (build(core=core) for _ in range(2))
    before = parts_of(delayed)
    options = {"target": target, "core": core, "learning_rate": 0.01, **FAR}
    first = learner_of(delayed, settings(policy_delay=2, **options))
    first.update(inputs(first, 1))
    assert moved(before, parts_of(delayed)) == {"critic"}
    second = learner_of(both, settings(**options))
    second.update(inputs(second, 1))
    after = parts_of(both)
    assert moved(before, after) == {"critic", "policy"} | ({"log_temperature"} if core == "sac" else set())
    assert moved({"critic": parts_of(delayed)["critic"]}, after) == set()  # the policy's step left the critic alone
    first.update(inputs(first, 1))
    assert "policy" in moved(before, parts_of(delayed))


@pytest.mark.parametrize("at_once", [1, 5])
def test_copies_are_made_exactly_when_their_periods_are_over(at_once):
    """Mutations: before the update; at every call; one period for all; the target policy forgotten."""
    network = build()
    learner = learner_of(
        network, settings("steve", target_period=3, model_period=2, publish_period=5, learning_rate=0.01)
    )
    rule, step, between = learner.rule, learner.rule.step, learner.rule.between
    pairs = [("target", "critic"), ("target_policy", "policy"), ("frozen", "model"), ("behaviour", "policy")]
    look = lambda: tuple(equal(getattr(network, a), getattr(network, b)) for a, b in pairs)  # noqa: E731
    seen = []

    def watched_step(batch, kind):
        metrics = step(batch, kind)
        for leaf in network.model.parameters():  # it learns meanwhile
            leaf.data.add_(0.01)
        assert not any(look())  # nothing is copied within an update
        return metrics

    def watched_between(update):
        between(update)
        seen.append((update, *look()))

    rule.step, rule.between = watched_step, watched_between
    for _ in range(0, 15, at_once):
        learner.update(inputs(learner, at_once))
    want = [(n, n % 3 == 0, n % 3 == 0, n % 2 == 0, n % 5 == 0) for n in range(1, 16)]
    assert seen == want and learner.updates == 15
    assert [n + rule.stop(n) for n in range(9)] == [2, 2, 3, 4, 5, 6, 8, 8, 9]


@pytest.mark.parametrize("period", [1, 5, None])
def test_a_version_is_published_when_the_policy_that_acts_has_changed(period):
    """Mutations: at every call; only where a call ends with the period."""
    network = build()
    learner = learner_of(network, settings("steve", publish_period=period, learning_rate=0.01))
    published = []
    for count in (2, 2, 2, 4, 1, 4, 3):
        before = [leaf.clone() for leaf in network.behaviour.parameters()]
        learner.update(inputs(learner, count))
        changed = not all(map(torch.equal, before, network.behaviour.parameters()))
        assert learner.publish_due == changed
        published.append(changed)
    assert published == ([False, False, True, True, False, True, False] if period == 5 else [True] * 7)


def test_copies_without_a_period_are_made_at_the_end_of_a_call():
    """Mutation: after every update."""
    network = build()
    learner = learner_of(network, settings("steve", model_period=None, publish_period=None, target_period=7))
    seen, step = [], learner.rule.step

    def watch(batch, kind):
        seen.append((equal(network.frozen, network.model), equal(network.behaviour, network.policy)))
        return step(batch, kind)

    learner.rule.step = watch
    learner.update(inputs(learner, 3))
    assert seen == [(False, False)] * 3
    assert equal(network.frozen, network.model) and equal(network.behaviour, network.policy)
    assert not equal(network.target, network.critic) and learner.rule.stop(3) == 4
    learner.update(inputs(learner, 2))
    assert seen[3:] == [(True, True), (True, False)]


def test_without_any_period_nothing_stops_a_launch():
    options = {"target_period": None, "model_period": None, "publish_period": None}
    assert learner_of(build(), settings("steve", **options)).rule.stop(5) > 1_000_000


def test_polyak_averaging_moves_the_targets_after_the_critics():
    """new = old + polyak (critic − old), after the critic's step; td3's policy with it, when the policy moves.

    Mutations: before the step; the way round; td3's policy at every update.
    """
    network = build(core="td3")
    learner = learner_of(
        network, settings(core="td3", target_period=None, polyak=0.1, policy_delay=2, learning_rate=0.01)
    )
    for update in range(4):
        before = parts_of(network)
        learner.update(inputs(learner, 1, update))
        after = parts_of(network)
        for old, new, source in zip(before["target"], after["target"], after["critic"], strict=True):
            torch.testing.assert_close(new, old + 0.1 * (source - old))
        policy_moves = update % 2 == 1
        assert ("policy" in moved(before, after)) == policy_moves
        for old, new, source in zip(before["target_policy"], after["target_policy"], after["policy"], strict=True):
            torch.testing.assert_close(new, old + 0.1 * (source - old) if policy_moves else old)


def test_random_inputs_are_those_that_are_needed():
    """One noise of actions for each depth and row. Mutations: one for each member; torch's global generator."""
    count = 4
    shapes = lambda core, target, **o: {  # noqa: E731
        name: tuple(leaf.shape)
        for name, leaf in learner_of(build(core=core), settings(target, core, **o))
        .rule.draws(count, torch.Generator().manual_seed(0))
        .items()
    }
    assert shapes("ddpg", "steve") == {} and shapes("ddpg", "steve", rows="random") == {"member": (count, ROWS)}
    noise = (count, HORIZON + 1, ROWS, ACTIONS)
    assert shapes("td3", "steve") == {"action_noise": noise, "critics": (count, CRITICS)}
    assert shapes("sac", "one_step") == {
        "action_noise": (count, 1, ROWS, ACTIONS),
        "critics": (count, CRITICS),
        "policy_noise": (count, ROWS, ACTIONS),
    }
    rule = learner_of(build(core="sac"), settings("steve", "sac", rows="random")).rule
    one, other = (rule.draws(200, torch.Generator().manual_seed(1)) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (one["critics"].sort(-1).values == torch.arange(CRITICS)).all()  # orders, and all of them
    assert len(torch.unique(one["critics"], dim=0)) == math.factorial(CRITICS)
    assert torch.bincount(one["member"].flatten(), minlength=CRITICS).min() > 300  # 400 each
    assert abs(one["action_noise"].std() - 1) < 0.03
