"""Learning from search: each loss, mask and target by arithmetic on a linear network, and what is refused."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from packtrain.algorithms.expert_iteration import (
    TRANSITION,
    ExpertIteration,
    head_loss,
    loss,
    mask,
    target,
    validation,
)
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.memory.episodes import Episodes
from packtrain.networks.planner_inputs import append_action_arrays, input_space
from packtrain.networks.prediction import EnsemblePrediction, Mlp, Prediction
from packtrain.types import Row, Sample, Trajectory

SPACE = gym.spaces.Box(-1, 1, (2,), np.float32)
CPU = torch.device("cpu")


def networks(**heads):
    """One network "agent" without hidden layers: head = obs · W + b, W given as {head: [[outputs] of each input]}."""
    network = nn.ModuleDict({"agent": Prediction(Mlp(())).build(SPACE, {h: len(w[0]) for h, w in heads.items()})})
    with torch.no_grad():
        for head, weight in heads.items():
            network["agent"].heads[head].weight.copy_(torch.tensor(weight).T)
    return network


def batch(obs, action=(0, 0), **extras):
    """A trajectory [1, B] of single steps; extras are [B, ...]."""
    obs = torch.tensor(obs)
    size = len(obs)
    no = torch.zeros(1, size, dtype=torch.bool)
    return Trajectory(
        obs=torch.stack([obs, obs + 100]),  # what follows must not be looked at
        first=torch.zeros(2, size, dtype=torch.bool),
        action=torch.tensor(action[:size])[None],
        reward=torch.zeros(1, size),
        terminated=no,
        truncated=no,
        last_action=torch.zeros(1, size),
        last_reward={"train": torch.zeros(1, size)},
        carry=(),
        extras={name: torch.tensor(value)[None] for name, value in extras.items()},
    )


def softmax(*logits):
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


# -- losses


def test_squared_errors_are_averaged_over_outputs():
    got = head_loss(
        "squared_error", torch.tensor([[1.0, 4.0], [0.0, 0.0]]), torch.tensor([[0.0, 2.0], [3.0, 1.0]]), None
    )
    assert got.tolist() == [(1 + 4) / 2, (9 + 1) / 2]


def test_cross_entropy_is_of_a_distribution():
    """−Σ p ln softmax(logits). Mutation: an average over the actions."""
    got = head_loss("cross_entropy", torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.5, 0.5]]), None)
    assert got.tolist() == [pytest.approx(-0.5 * math.log(1 / 4) - 0.5 * math.log(3 / 4))]


def test_binary_cross_entropy_is_of_a_chance():
    got = head_loss("binary_cross_entropy", torch.tensor([[math.log(3)], [0.0]]), torch.tensor([[1.0], [0.0]]), None)
    assert got.tolist() == [pytest.approx(-math.log(3 / 4)), pytest.approx(-math.log(1 / 2))]


def test_masked_outputs_neither_learn_nor_count():
    """Mutations: dividing by all outputs; a row without any dividing by 0."""
    output, wanted = torch.tensor([[1.0, 5.0, 2.0], [7.0, 7.0, 7.0]]), torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    allowed = mask("nonzero", wanted, torch.zeros(2))
    assert allowed.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert head_loss("squared_error", output, wanted, allowed).tolist() == [9.0, 0.0]
    taken = mask("action", wanted, torch.tensor([2, 0]))
    assert taken.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert head_loss("squared_error", output, wanted, taken).tolist() == [4.0, 49.0]
    assert mask("one", wanted, torch.zeros(2)) is None
    logits = torch.zeros(1, 2)
    masked = head_loss("cross_entropy", logits, torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    assert masked.tolist() == [pytest.approx(0.5 * math.log(2))]


# -- targets


def test_targets_are_what_was_said_at_that_step():
    """Mutation: [B] against [B, 1], which broadcasts to [B, B]."""
    trajectory = batch(
        [[0.0, 0.0], [1.0, 1.0]], value=[3.0, 4.0], qualities=[[1.0, 2.0], [3.0, 4.0]], solved=[True, False]
    )
    module = networks(value=[[1.0], [1.0]])["agent"]
    assert target("value", trajectory, module, "value").tolist() == [[3], [4]]
    assert target("qualities", trajectory, module, "value").tolist() == [[1, 2], [3, 4]]
    assert target("solved", trajectory, module, "value").tolist() == [[1], [0]]


def test_an_n_step_target_bootstraps_with_the_head():
    """G + γ^n V(bootstrap), and no gradient through it. Mutation: bootstrapping at the next observation."""
    network = networks(value=[[1.0], [10.0]])
    trajectory = batch(
        [[0.0, 0.0], [0.0, 0.0]],
        n_step_return=[5.0, 6.0],
        bootstrap_discount=[0.25, 0.0],
        bootstrap_obs=[[2.0, 1.0], [9.0, 9.0]],
    )
    wanted = target("n_step", trajectory, network["agent"], "value")
    assert wanted.tolist() == [[5 + 0.25 * (2 + 10)], [6.0]] and not wanted.requires_grad


# -- the whole


def test_heads_are_weighed_and_biases_do_not_decay():
    """Everything by hand. Mutations: decay of biases or of another network; a mean of squares; weights of rows lost."""
    network = networks(value=[[1.0], [0.0]], logits=[[1.0, 0.0], [0.0, 2.0]])
    network["other"] = nn.Linear(3, 3)
    with torch.no_grad():
        network["agent"].heads["value"].bias.fill_(0.5)
    settings = ExpertIteration(
        targets={"value": "value", "logits": "action_histogram"},
        loss_weights={"logits": 0.1},
        weight_decay=0.01,
    )
    trajectory = batch([[1.0, 1.0], [3.0, 0.0]], value=[0.0, 3.0], action_histogram=[[1.0, 0.0], [0.5, 0.5]])
    total, parts = loss(network, trajectory, settings)
    value = (1.5**2 + 0.5**2) / 2  # the network says 1.5 and 3.5
    (a, _), (c, d) = softmax(1, 2), softmax(3, 0)
    logits = (-math.log(a) - 0.5 * math.log(c) - 0.5 * math.log(d)) / 2
    decay = 0.01 * (1 + 1 + 4)
    assert {name: float(part) for name, part in parts.items()} == {
        "value_loss": pytest.approx(value),
        "logits_loss": pytest.approx(logits),
        "weight_loss": pytest.approx(decay),
        "total_loss": pytest.approx(value + 0.1 * logits + decay),
    }
    assert total.detach() == parts["total_loss"] and total.requires_grad
    assert not any(part.requires_grad for part in parts.values())
    assert "weight_loss" not in loss(network, trajectory, ExpertIteration())[1]


def test_steps_drawn_too_often_count_less_and_say_how_far_off_they_are():
    """Mutations: priorities squared; priorities of the last head; weights forgotten."""
    network = networks(value=[[1.0], [0.0]], logits=[[0.0, 0.0], [0.0, 0.0]])
    settings = ExpertIteration(targets={"value": "value", "logits": "histogram"})
    extras = {"value": [1.0, 0.0], "histogram": [[1.0, 0.0], [1.0, 0.0]], "importance_weight": [1.0, 0.5]}
    _, parts = loss(network, batch([[3.0, 0.0], [4.0, 0.0]], **extras), settings)
    assert float(parts["value_loss"]) == (1.0 * 4 + 0.5 * 16) / 2
    assert float(parts["logits_loss"]) == pytest.approx(0.75 * math.log(2))
    assert parts["priorities"].tolist() == [2.0, 4.0]
    del extras["importance_weight"]
    assert "priorities" not in loss(network, batch([[3.0, 0.0], [4.0, 0.0]], **extras), settings)[1]
    extras["importance_weight"] = [1.0, 1.0]
    settings = ExpertIteration(targets={"logits": "histogram"})
    _, parts = loss(network, batch([[3.0, 0.0], [4.0, 0.0]], **extras), settings)
    assert parts["priorities"].tolist() == pytest.approx([math.log(2)] * 2)


def test_one_number_is_wanted_of_every_member_of_an_ensemble():
    """Mutation: refusing it, or teaching the first member alone."""
    network = networks(value=[[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    total, _ = loss(network, batch([[1.0, 0.0]], value=[0.0]), ExpertIteration())
    assert float(total.detach()) == pytest.approx((1 + 4 + 9) / 3)


def test_members_of_an_ensemble_learn_as_if_each_were_alone_on_its_own_batch():
    """Member k learns from the steps b with b mod K = k.

    Mutations: a mean over members; one batch for all; decay of biases.
    """
    torch.manual_seed(0)
    members, each = 3, 4
    network = nn.ModuleDict({"agent": EnsemblePrediction(members, (5,)).build(SPACE, {"value": members})})
    obs, wanted = torch.randn(members * each, 2), torch.randn(members * each)
    settings = ExpertIteration(weight_decay=0.01)
    total, parts = loss(network, batch(obs.tolist(), [0] * len(obs), value=wanted.tolist()), settings)
    total.backward()
    squares = []
    for k in range(members):
        own = {name: leaf[k].detach().clone().requires_grad_() for name, leaf in network.named_parameters()}
        weights = list(own.values())  # hidden layer, then head
        hidden = torch.relu(obs[k::members] @ weights[0] + weights[1])
        error = (hidden @ weights[2] + weights[3])[:, 0] - wanted[k::members]
        squares.append(error.square().mean())
        (squares[-1] + 0.01 * sum(w.square().sum() for w in (weights[0], weights[2]))).backward()
        for name, leaf in network.named_parameters():
            torch.testing.assert_close(leaf.grad[k], own[name].grad)
    assert float(parts["value_loss"]) == pytest.approx(float(torch.stack(squares).mean().detach()))


def test_a_quality_head_learns_from_the_action_taken():
    """A return is one number, of the action that was taken. Mutation: gradients for the others."""
    network = networks(quality=[[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    settings = ExpertIteration(targets={"quality": "return"}, masks={"quality": "action"})
    trajectory = batch([[1.0, 0.0], [1.0, 0.0]], action=(2, 0), **{"return": [5.0, 0.0]})
    total, _ = loss(network, trajectory, settings)
    assert float(total.detach()) == ((3 - 5) ** 2 + 1) / 2
    total.backward()
    assert network["agent"].heads["quality"].weight.grad[:, 0].tolist() == [1.0, 0.0, -2.0]


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop", "rmsprop_tf"])
def test_updates_move_the_prediction_towards_the_target(optimiser):
    """And only the network that learns. Mutation: an optimiser over no parameters."""
    torch.manual_seed(0)
    network = nn.ModuleDict(
        {name: Prediction(Mlp((16,))).build(SPACE, {"value": 1, "logits": 3}) for name in ("agent", "model")}
    )
    before = {name: weight.clone() for name, weight in network["model"].state_dict().items()}
    histogram = [[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]]
    trajectory = batch([[1.0, 0.0], [0.0, 1.0]], value=[0.8, -0.4], histogram=histogram)
    settings = ExpertIteration(
        targets={"value": "value", "logits": "histogram"},
        optimiser=optimiser,
        learning_rate=0.02,
        grad_norm_clipping=5.0,
    )
    learner = settings.build(network, 1000)
    losses = [float(learner.update(Sample(trajectory, 2))["total_loss"]) for _ in range(150)]
    answer = network["agent"](trajectory.obs[0])
    torch.testing.assert_close(answer["value"].ravel(), torch.tensor([0.8, -0.4]), atol=0.1, rtol=0)
    torch.testing.assert_close(answer["logits"].softmax(-1), torch.tensor(histogram), atol=0.1, rtol=0)
    assert losses[-1] < losses[0] and learner.updates == 150 and learner.steps == 300
    assert all(torch.equal(before[name], weight) for name, weight in network["model"].state_dict().items())


def test_gradients_are_clipped_only_if_asked():
    def first_step(**more):
        network = networks(value=[[1.0], [1.0]])
        learner = ExpertIteration(optimiser="rmsprop", epsilon=1.0, alpha=0.0, **more).build(network, 10)
        norm = float(learner.update(Sample(batch([[100.0, 0.0]], value=[0.0]), 1))["grad_norm"])
        return norm, 1 - float(network["agent"].heads["value"].weight[0, 0].detach())

    norm, step = first_step(learning_rate=1.0)
    assert norm == pytest.approx(2 * 100 * math.hypot(100, 1)) and step > 0.9
    norm, step = first_step(learning_rate=1.0, grad_norm_clipping=0.001)
    assert norm == pytest.approx(2 * 100 * math.hypot(100, 1)) and 0 < step < 0.002


def episode(values, solved=False):
    """Its observations are (t, t)."""
    length = len(values)
    return {
        "obs": np.arange(length + 1, dtype=np.float32)[:, None].repeat(2, axis=1),
        "value": np.array(values, np.float32),
        "action": np.zeros(length, np.int64),
        "reward": np.zeros(length, np.float32),
        "terminated": np.arange(length) == length - 1,
        "truncated": np.zeros(length, bool),
        "solved": solved,
    }


def test_importance_weights_leave_buckets_even():
    """A solved step among a hundred others is half of every batch, and counts in full.

    Mutation: weights by the chance over all buckets, which take back what buckets are for.
    """
    sizes = Episodes(batch_size=200, sampling_hierarchy=("solved",), priority_exponent=0.6)
    memory = sizes.build([1], 0, CPU)
    memory.add_episode(episode([0] * 100))
    memory.add_episode(episode([0], solved=True))
    extras = memory.sample().trajectory.extras
    assert torch.equal(extras["importance_weight"], torch.ones(1, 200)) and 0.4 < extras["solved"].mean() < 0.6


def test_priorities_go_back_to_the_steps_they_are_of():
    """What surprised is drawn more often. Mutation: priorities of another sample, or in another order."""
    memory = Episodes(batch_size=400, extras=("value",), priority_exponent=1.0).build([1], 0, CPU)
    memory.add_episode(episode([0, 0, 0, 6]))
    network = networks(value=[[0.0], [1.0]])  # says 0, 1, 2, 3: off by 0, 1, 2, 3
    settings = ExpertIteration()
    sample = memory.sample()
    assert torch.equal(sample.trajectory.extras["importance_weight"], torch.ones(1, 400)), "all alike at first"
    memory.update_priorities(None, loss(network, sample.trajectory, settings)[1]["priorities"])
    trajectory = memory.sample().trajectory
    counts = np.bincount(trajectory.obs[0, :, 0].long().numpy(), minlength=4) / 400
    np.testing.assert_allclose(counts, np.array([0, 1, 2, 3]) / 6, atol=0.08)
    obs, importance = trajectory.obs[0, :, 0].tolist(), trajectory.extras["importance_weight"][0].tolist()
    weights = dict(zip(obs, importance, strict=True))
    assert weights[1] / weights[3] == pytest.approx(3) and max(weights.values()) <= 1


# -- what is refused


def test_what_a_memory_must_keep():
    targets = {"a": "value", "b": "return", "c": "n_step", "d": "qualities", "e": "value", "f": "solved"}
    assert ExpertIteration(targets=targets).wanted() == ("value", "qualities")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"learning_rate": 0.0}, "ExpertIteration.learning_rate = 0.0 must be above 0"),
        ({"epsilon": -1.0}, "ExpertIteration.epsilon = -1.0 must be above 0"),
        ({"grad_norm_clipping": 0.0}, "ExpertIteration.grad_norm_clipping = 0.0 must be above 0"),
        ({"weight_decay": -0.1}, "ExpertIteration.weight_decay = -0.1 must not be negative"),
        ({"targets": {}}, "ExpertIteration.targets = {} is empty"),
        ({"losses": {"logits": "cross_entropy"}}, "ExpertIteration.losses names 'logits', which has no target"),
        ({"masks": {"x": "one"}}, "ExpertIteration.masks names 'x', which has no target"),
        ({"loss_weights": {"x": 1.0}}, "ExpertIteration.loss_weights names 'x', which has no target"),
        ({"losses": {"value": "huber"}}, "ExpertIteration.losses = {'value': 'huber'} is not"),
        ({"masks": {"value": "taken"}}, "ExpertIteration.masks = {'value': 'taken'} is not"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values, message):
    with pytest.raises(ConfigError) as caught:
        ExpertIteration(**values)
    assert str(caught.value).startswith(message)


def test_networks_and_heads_without_requests_are_refused():
    network = networks(value=[[1.0], [1.0]], logits=[[0.0, 0.0], [0.0, 0.0]])
    for settings, message in (
        (
            ExpertIteration(network="model"),
            r"ExpertIteration.network = 'model' is not one of the planner's networks \['agent'\]",
        ),
        (
            ExpertIteration(targets={"quality": "qualities"}),
            "ExpertIteration.targets names head 'quality', which the planner does not use; it uses logits, value",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            settings.build(network, 10)


def test_a_target_that_does_not_fit_its_head_is_refused():
    """Mutation: broadcasting it."""
    network = networks(value=[[1.0], [1.0]], logits=[[0.0, 0.0], [0.0, 0.0]])
    trajectory = batch([[0.0, 0.0]], value=[1.0], qualities=[[1.0, 2.0]])
    with pytest.raises(ConfigError, match="head 'value' has 1 outputs .* its target 'qualities' has 2"):
        loss(network, trajectory, ExpertIteration(targets={"value": "qualities"}))
    with pytest.raises(ConfigError, match="head 'logits' has 2 outputs and learns by cross_entropy, .* 'value' has 1"):
        loss(network, trajectory, ExpertIteration(targets={"logits": "value"}))


def test_a_target_that_the_planner_does_not_say_is_refused_at_the_first_row():
    """Mutation: a KeyError when the first round is over."""
    memory = Episodes(extras=("value", "valeu")).build([2], 0, CPU)
    no = np.zeros(2, bool)
    row = Row(np.zeros((2, 2)), ~no, np.zeros(2, np.int64), {"train": np.zeros(2)}, no, no)
    extras = {"value": np.zeros(2), "depth_mean": np.zeros(2), "solved": no, "weights_version": np.zeros(2)}
    with pytest.raises(
        ConfigError, match="'valeu' is a training target, .* does not report it; it reports depth_mean, value$"
    ):
        memory.writer(0).add(row, (), extras)


# -- what a step itself led to; actions as inputs; held-out steps; the schedule in two steps


def test_transition_targets_are_those_of_the_step():
    """Mutations: the observation that the step began with; its change the wrong way round."""
    given = batch([[1.0, 2.0], [0.0, 1.0]])._replace(
        reward=torch.tensor([[3.0, 0.0]]), terminated=torch.tensor([[False, True]])
    )
    module = networks(value=[[0.0], [0.0]])["agent"]
    wanted = {name: target(name, given, module, "value").tolist() for name in TRANSITION}
    assert wanted == {
        "next_observation": [[101.0, 102.0], [100.0, 101.0]],
        "observation_change": [[100.0, 100.0], [100.0, 100.0]],
        "reward": [[3.0], [0.0]],
        "terminated": [[0.0], [1.0]],
    }
    learns = ExpertIteration(targets={"after": "next_observation", "paid": "reward", "value": "value"})
    assert learns.wanted() == ("value",), "the memory has the others anyway"


def test_the_action_taken_is_an_input():
    """The head is w · (obs, one-hot action): its output is the weight of the action.

    Mutations: no action; the action of another step; channels in front of those of the observation.
    """
    space = input_space(SPACE, gym.spaces.Discrete(3), "observation_and_action")
    network = nn.ModuleDict({"agent": Prediction(Mlp(())).build(space, {"quality": 1})})
    network["agent"].actions = 3
    with torch.no_grad():
        network["agent"].heads["quality"].weight.copy_(torch.tensor([[0.0, 0.0, 5.0, 7.0, 9.0]]))
    settings = ExpertIteration(inputs="observation_and_action", targets={"quality": "return"})
    total, _ = loss(network, batch([[1.0, 2.0], [3.0, 4.0]], (2, 0), **{"return": [9.0, 4.0]}), settings)
    assert float(total.detach()) == pytest.approx((0 + (5 - 4) ** 2) / 2)
    boards = append_action_arrays(np.zeros((2, 4, 5, 3), np.float32), np.array([1, 0]), 2)
    assert boards.shape == (2, 4, 5, 5) and boards[0, ..., 4].all() and not boards[0, ..., :4].any()
    assert input_space(gym.spaces.Box(0, 1, (4, 5, 3)), gym.spaces.Discrete(2), "observation_and_action").shape == (
        4,
        5,
        5,
    )
    with pytest.raises(EnvSetupError, match="needs discrete actions"):
        input_space(SPACE, SPACE, "observation_and_action")
    with pytest.raises(ConfigError, match="n-step returns bootstrap from observations"):
        ExpertIteration(inputs="observation_and_action", targets={"value": "n_step"})


def test_held_out_losses_leave_weights_alone():
    """Of three members the largest multiple of three steps; fewer than three steps give nothing."""
    settings = ExpertIteration(targets={"value": "return"}, weight_decay=1.0)
    network = networks(value=[[1.0], [0.0]])
    held_out = batch([[1.0, 0.0], [4.0, 0.0]], **{"return": [0.0, 0.0]})
    found = validation(network, held_out, settings)
    assert set(found) == {"value_loss"} and float(found["value_loss"]) == pytest.approx((1 + 16) / 2)
    assert not found["value_loss"].requires_grad
    ensemble = nn.ModuleDict({"agent": EnsemblePrediction(3, (4,)).build(SPACE, {"value": 3})})
    four = batch([[1.0, 0.0]] * 3 + [[9.0, 9.0]], (0, 0, 0, 0), **{"return": [0.0] * 4})
    three = batch([[1.0, 0.0]] * 3, (0, 0, 0), **{"return": [0.0] * 3})
    assert validation(ensemble, four, settings) == validation(ensemble, three, settings)
    assert validation(ensemble, held_out, settings) == {}


def test_a_step_schedule_needs_a_final_rate():
    with pytest.raises(ConfigError, match="decay = 'step' needs"):
        ExpertIteration(decay="step")
