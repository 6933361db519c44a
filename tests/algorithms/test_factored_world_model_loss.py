"""The loss of a model of classes by hand, what it leaves alone, what validation counts, and a small world learned."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from packtrain.algorithms.world_model import WorldModelLearning, loss, validation
from packtrain.envs.categorical_factors import Factor
from packtrain.envs.hanoi import Hanoi
from packtrain.networks.ensembles import EnsembleMlp
from packtrain.networks.world_model import FactoredWorldModel, WorldModel
from packtrain.types import Sample, Trajectory


def batch(obs, after, action, reward, terminated, first=None) -> Trajectory:
    """B steps [1, B]."""
    rows = torch.stack([torch.as_tensor(obs, dtype=torch.float32), torch.as_tensor(after, dtype=torch.float32)])
    one = lambda values, dtype: torch.as_tensor(values, dtype=dtype)[None]  # noqa: E731
    begins = torch.zeros(2, len(reward), dtype=torch.bool)
    if first is not None:
        begins[1] = torch.tensor(first)
    action, paid = one(action, torch.int64), one(reward, torch.float32)
    ends = one(terminated, torch.bool)
    return Trajectory(rows, begins, action, paid, ends, torch.zeros_like(ends), action, {"train": paid}, (), {})


def factored(members: int, prior_scale: float = 0.0, hidden: tuple[int, ...] = ()) -> nn.ModuleDict:
    """Over one number 0 … 3 and one-hot 2, and two actions."""
    factors = (Factor.whole_number(0, 0, 3), Factor.one_hot(1, 2))
    space = gym.spaces.Box(np.zeros(3, np.float32), np.array([3, 1, 1], np.float32))
    model = FactoredWorldModel(EnsembleMlp(members, hidden), prior_scale).build(space, gym.spaces.Discrete(2), factors)
    return nn.ModuleDict({"model": model})


def still(own: nn.ModuleDict) -> nn.ModuleDict:
    """The same with all weights that learn at 0."""
    with torch.no_grad():
        for parameter in own["model"].ensemble.parameters():
            parameter.zero_()
    return own


STEPS = batch(
    [[0, 1, 0], [1, 1, 0], [2, 0, 1], [3, 0, 1]],
    [[1, 1, 0], [1, 1, 0], [0, 1, 0], [3, 0, 1]],
    [0, 1, 0, 1],
    [0, 0, 0, 1],
    [0, 0, 0, 1],
)


def test_loss_by_hand() -> None:
    """Beliefs (1/2, 1/6, 1/6, 1/6) and (1/2, 1/2). Mutations: no division by the factors; steps dealt out in blocks."""
    own = still(factored(2))
    with torch.no_grad():
        own["model"].ensemble.heads["classes"].bias[:, 0, 0] = math.log(3)
    total, parts = loss(own, STEPS, WorldModelLearning(weight_decay=0.1))
    likely, rest, coin = -math.log(1 / 2), -math.log(1 / 6), math.log(2)
    each = [(rest + coin) / 2, (rest + coin) / 2, (likely + coin) / 2, (rest + coin) / 2]  # by number: 1, 1, 0, 3
    members = [(each[0] + each[2]) / 2, (each[1] + each[3]) / 2]
    assert parts["next_observation_loss"].item() == pytest.approx(sum(members) / 2, rel=1e-5)
    assert total.item() == pytest.approx(sum(members) + 2 * 2 * coin, rel=1e-5)
    assert parts["total_loss"].item() == pytest.approx(total.item() / 2, rel=1e-5)
    assert parts["perfect_next_observation"].item() == 0.25  # step 2 alone leads to number 0, and to the first of two
    plain = nn.ModuleDict(
        {"model": WorldModel(EnsembleMlp(2, ())).build(gym.spaces.Box(0, 3, (3,)), gym.spaces.Discrete(2))}
    )
    assert set(parts) == set(loss(plain, STEPS, WorldModelLearning())[1])


def test_weight_decay_leaves_priors_alone() -> None:
    """Mutation: the squares of all weights."""
    torch.manual_seed(0)
    own = factored(2, prior_scale=3.0)
    with_decay, _ = loss(own, STEPS, WorldModelLearning(weight_decay=0.5))
    without, _ = loss(own, STEPS, WorldModelLearning(weight_decay=0.0))
    heads = own["model"].ensemble.heads.values()
    want = 0.5 * sum(head.weight.square().sum().item() for head in heads)
    assert (with_decay - without).item() == pytest.approx(want, rel=1e-4)


def test_learning_moves_what_learns_and_not_the_prior() -> None:
    """Also after saving and loading. Mutation: give all parameters a gradient."""
    torch.manual_seed(0)
    own = factored(2, prior_scale=3.0, hidden=(8,))
    before = {name: leaf.clone() for name, leaf in own.state_dict().items()}
    learner = WorldModelLearning().build(own, 10**9)
    learner.update(Sample(STEPS, 4))
    for name, leaf in own.state_dict().items():
        assert torch.equal(leaf, before[name]) == ("prior" in name), name
    saved = learner.state_dict()
    torch.manual_seed(9)
    twin = factored(2, prior_scale=3.0, hidden=(8,))
    other = WorldModelLearning().build(twin, 10**9)
    other.load_state_dict(saved)
    learner.update(Sample(STEPS, 4))
    other.update(Sample(STEPS, 4))
    for name, leaf in own.state_dict().items():
        assert torch.equal(leaf, twin.state_dict()[name]), name


def test_validation_counts_all_members_on_all_steps() -> None:
    """Member 0 says that all pays, member 1 that nothing does. Mutations: member 0 alone; gradients kept."""
    own = still(factored(2))["model"]
    with torch.no_grad():
        own.ensemble.heads["reward"].bias[0] = 5.0
        own.ensemble.heads["reward"].bias[1] = -5.0
        own.ensemble.heads["terminated"].bias[:] = -5.0
    guess, tracked = own.guess, []
    own.guess = lambda *args: (tracked.append(torch.is_grad_enabled()), guess(*args))[1]
    found = validation(own, STEPS)
    assert tracked == [False]
    assert {name: value.item() for name, value in found.items()} == pytest.approx(
        {
            "perfect_next_observation": 0.25,
            "reward_accuracy": (1 + 3) / 8,
            "reward_recall": 1 / 2,  # one of two members found the one reward
            "reward_precision": 1 / 4,  # of four claims
            "terminated_accuracy": 6 / 8,
            "terminated_recall": 0.0,
        }  # no end was predicted: no precision
    )


def test_validation_leaves_out_what_was_not_there_to_find() -> None:
    """No reward, no recall; and rows that resets made are not steps. Mutation: filler rows counted."""
    own = still(factored(2))["model"]
    with torch.no_grad():
        own.ensemble.heads["reward"].bias[:] = 5.0
    steps = batch(STEPS.obs[0], STEPS.obs[1], [0, 1, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], first=[0, 0, 0, 1])
    found = validation(own, steps)
    assert found["reward_precision"] == 0 and found["terminated_accuracy"] == 1
    assert set(found) == {"perfect_next_observation", "reward_accuracy", "reward_precision", "terminated_accuracy"}
    assert found["perfect_next_observation"].item() == pytest.approx(1 / 3)


def test_validation_of_the_paper_s_model() -> None:
    """The same numbers from changes: members that never move are right about the steps that do not."""
    space = gym.spaces.Box(0, 3, (3,))
    model = WorldModel(EnsembleMlp(2, ())).build(space, gym.spaces.Discrete(2))
    still(nn.ModuleDict({"model": model}))
    found = validation(model, STEPS)
    assert found["perfect_next_observation"] == 0.5 and found["reward_recall"] == 0


def test_it_learns_a_small_world() -> None:
    """Hanoi of 2 disks, all pairs of state and action: from near chance, below 0.3, to all right, prior and all."""
    torch.manual_seed(0)
    core, rng = Hanoi(2), np.random.default_rng(0)
    states = np.repeat([[a, b] for a in range(3) for b in range(3) if (a, b) != (2, 2)], 6, axis=0)
    actions = np.tile(np.arange(6), 8)
    after, reward, terminated, _ = core.step(states, actions, rng)
    pick = np.repeat(np.arange(48), 4)  # every member has every pair
    rows = (core.observe(states)[pick], core.observe(after)[pick], actions[pick], reward[pick], terminated[pick])
    model = FactoredWorldModel(EnsembleMlp(4, (64, 64)), 1.0)
    own = nn.ModuleDict({"model": model.build(core.observation_space, core.action_space, core.factors)})
    learner = WorldModelLearning(learning_rate=0.003, optimiser="adam").build(own, 10**9)
    first = learner.update(Sample(batch(*rows), 192))["perfect_next_observation"]
    for _ in range(150):
        last = learner.update(Sample(batch(*rows), 192))
    found = validation(own["model"], batch(*rows))
    assert first < 0.3 and last["perfect_next_observation"] == 1
    assert found["reward_recall"] == found["terminated_precision"] == found["perfect_next_observation"] == 1
