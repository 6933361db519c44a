"""Rollouts of a world model: numbers that are not finite, when the model is copied, comparison with real steps."""

import math

import numpy as np
import pytest
import torch

from packtrain.algorithms import candidate_returns
from packtrain.algorithms.dynamics import DynamicsLearning
from packtrain.memory.replay import Replay
from packtrain.testing.plain_value_expansion import (
    CRITICS,
    EXPANSIONS,
    FAR,
    HORIZON,
    JUDGES,
    OBS,
    ROWS,
    build,
    inputs,
    learner_of,
    settings,
    steps,
    targets_of,
)


def break_members(network, members, by):
    """Let transition members of the model that targets are computed with predict this."""
    with torch.no_grad():
        network.frozen.transition.biases[-1][members] = by


def is_finite(network):
    return all(leaf.isfinite().all() for leaf in network.parameters() if leaf.requires_grad)


def weights(network, *parts):
    return {name: [leaf.detach().clone() for leaf in getattr(network, name).parameters()] for name in parts}


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    "target, core, rows, by",
    [(target, "ddpg", "all", torch.nan) for target in EXPANSIONS]
    + [("mve_tdk", "td3", "split", torch.inf), ("steve_tdk", "sac", "random", torch.inf)]
    + [("steve", "sac", "split", 1e30), ("steve", "ddpg", "all", -1e38)],  # finite, but not their squares
)
def test_an_update_stays_finite_while_a_member_diverges(target, core, rows, by):
    """Recorded and not. What is not finite is counted, and the other members' candidates make the targets.

    Mutations: candidates that are not finite in the mean; imagined pairs that are not, in the critics' loss; a count
    that includes rows that ended the task, whose target is the reward.
    """
    network = build(core=core)
    learner = learner_of(network, settings(target, core, learning_rate=0.01, rows=rows, **FAR))
    break_members(network, [0], by)
    for seed in range(4):
        before = weights(network, "critic", "policy")
        metrics = {name: value.item() for name, value in learner.update(inputs(learner, 1, seed)).items()}
        assert all(map(math.isfinite, metrics.values())) and is_finite(network)
        for name, leaves in before.items():
            assert not all(map(torch.equal, leaves, getattr(network, name).parameters())), f"{name} did not move"
        if not math.isfinite(by):
            lost = HORIZON * JUDGES * CRITICS * (ROWS - 1)
            assert metrics["targets/nonfinite_candidates"] == pytest.approx(lost)
            assert metrics["targets/fallbacks"] == 0


def test_targets_are_those_of_the_members_that_have_not_diverged():
    """As if the broken one were not there. Mutation: weights of depths from variances of other candidates."""
    network, alone = build(), build(transitions=1)
    with torch.no_grad():
        for part in ("transition", "termination"):
            mine, theirs = (getattr(each.frozen, part).parameters() for each in (alone, network))
            for leaf, whole in zip(mine, theirs, strict=True):
                leaf.copy_(whole[1:2])
        for name in ("target", "policy"):
            getattr(alone, name).load_state_dict(getattr(network, name).state_dict())
        alone.frozen.reward.load_state_dict(network.frozen.reward.state_dict())
    break_members(network, [0], torch.nan)
    batch = steps(1)
    for target in EXPANSIONS:
        found = [targets_of(settings(target), each, batch) for each in (network, alone)]
        assert not found[0].fallback.any() and found[0].nonfinite.any() and not found[1].nonfinite.any()
        rows = slice(None)
        if target == "cov":  # a candidate that is not finite later does not count at depth 0 either
            rows = [0, *range(2, ROWS)]
        torch.testing.assert_close(found[0].target[:, :, rows], found[1].target[:, :, rows])


def test_targets_are_those_of_one_step_where_all_members_have_diverged():
    """MVE has no depth left; STEVE has depth 0. Mutation: a fallback that is not counted."""
    plain = None
    for target, fallbacks in (("mve", ROWS - 1), ("mve_tdk", None), ("steve", 0), ("mean", 0), ("cov", ROWS - 1)):
        network, algorithm = build(core="sac"), settings(target, "sac", **FAR)
        break_members(network, slice(None), torch.inf)
        learner = learner_of(network, algorithm)
        batch = inputs(learner, 1)
        targets = targets_of(algorithm, network, {name: leaf[:1] for name, leaf in batch.items()})
        going = [0, *range(2, ROWS)]  # without the row that ended its task
        assert (targets.weight[0, 0, 0, going] == 1).all() and targets.target.isfinite().all()
        plain = targets.target[0] if plain is None else plain
        torch.testing.assert_close(targets.target[0], plain)
        if fallbacks is not None:
            assert learner.update(batch)["targets/fallbacks"] == fallbacks
        assert is_finite(network)


def test_an_overflow_in_half_precision_is_left_out_and_counted():
    """As on a GPU, where networks that make targets are packed: a member's 1e5 is fine in float32, and not in float16.

    Mutation: targets of NaN, which one such candidate made.
    """
    network, steve = build(), settings("steve", learning_rate=0.01, **FAR)
    with torch.no_grad():
        network.frozen.transition.biases[-1][0] = 1e5
    learner = learner_of(network, steve)
    batch = {name: leaf[:1] for name, leaf in inputs(learner, 1).items()}
    assert not targets_of(steve, network, batch).nonfinite.any()
    network.frozen.pack()
    network.target.pack()
    lost = targets_of(steve, network, batch).nonfinite[0]
    assert lost[1] == 0 and (lost[[0, *range(2, ROWS)]] == HORIZON * JUDGES * CRITICS).all()
    metrics = learner.update(batch)
    assert metrics["targets/nonfinite_candidates"] == lost.sum()
    assert all(value.isfinite() for value in metrics.values()) and is_finite(network)


def test_the_first_update_uses_the_model_as_it_is_by_then():
    """Mutation: the model's first weights, though it has been trained before."""
    network = build()
    learner = learner_of(network, settings("steve"))
    memory = Replay(100, ROWS).build([1], 0, torch.device("cpu"))
    memory.add({name: leaf[0].numpy() for name, leaf in steps(1, size=20).items() if name != "row"})
    assert not equal(network.frozen, network.model)
    batch = learner.draw(memory, 2)
    assert equal(network.frozen, network.model)
    learner.update(batch)
    with torch.no_grad():
        network.model.transition.weights[0].add_(1)
    learner.draw(memory, 2)
    assert not equal(network.frozen, network.model)  # later there is a period for it


def test_calibration_is_reported_once_in_each_period():
    """Mutations: never; at every draw; before the first period is over; reported again as if it were new."""
    network = build()
    DynamicsLearning(ROWS, holdout=True).build(network, 0)
    learner = learner_of(network, settings("steve", calibration_period=4))
    memory = Replay(1000, ROWS).build([1], 0, torch.device("cpu"))
    line = np.arange(400.0)[:, None] + np.arange(network.frozen.obs_mean.shape[-1])
    taken = {name: leaf[0].numpy() for name, leaf in steps(1, size=400).items() if name != "row"}
    taken |= {"obs": line, "after": line + 1, "terminated": np.zeros(400, bool)}
    memory.add(taken)
    seen = [learner.update(learner.draw(memory, 2)) for _ in range(3)]
    with torch.no_grad():
        network.frozen.transition.weights[0].add_(0.1)
    seen += [learner.update(learner.draw(memory, 2)) for _ in range(2)]
    found = [{name: leaf.item() for name, leaf in one.items() if name.startswith("model/")} for one in seen]
    assert found[0] == found[1] == {}
    kinds = ("error", "target_error", "target_spread", "calibration")
    assert set(found[2]) == {f"model/{kind}_{depth}" for kind in kinds for depth in range(1, HORIZON + 1)}
    assert found[3] == {} and set(found[4]) == set(found[2]) and found[4] != found[2], "once each"


@pytest.mark.parametrize("first", ["model", "value"])
@pytest.mark.parametrize("count, holdout, measured", [(150, True, False), (400, True, True), (400, False, False)])
def test_calibration_uses_steps_that_the_model_never_trains_on(monkeypatch, first, count, holdout, measured):
    """There are no metrics until enough steps are held out, nor without holdout. Mutation: stretches of all steps."""
    seen = []
    monkeypatch.setattr(candidate_returns, "calibration", lambda network, stretches, *_: seen.append(stretches) or {})
    network = build()
    numbers = {"value": settings("steve", calibration_period=2), "model": DynamicsLearning(ROWS, holdout=holdout)}
    learners = {name: numbers[name].build(network, 0) for name in sorted(numbers, reverse=first == "value")}
    memory = Replay(1000, ROWS).build([1], 0, torch.device("cpu"))
    taken = {name: leaf[0].numpy() for name, leaf in steps(1, size=count).items() if name != "row"}
    line = np.arange(float(count))[:, None] + np.zeros(OBS)
    memory.add(taken | {"obs": line, "after": line + 1, "terminated": np.zeros(count, bool)})
    trained = set(learners["model"].draw(memory, 1000)["obs"][..., 0].flatten().tolist())
    for _ in range(3):
        learners["value"].update(learners["value"].draw(memory, 1))
    assert len(seen) == measured
    if measured:
        assert len(seen[0].reward) == HORIZON + 1 and seen[0].reward.shape[1] >= 16
        assert not trained & set(seen[0].obs[:-1, :, 0].flatten().tolist())
