"""The world model's loss by hand, and a model that learns a small world."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from packtrain.algorithms.world_model import WorldModelLearning, loss
from packtrain.envs.hanoi import Hanoi
from packtrain.errors import ConfigError
from packtrain.memory.episodes import Episodes
from packtrain.networks.ensembles import EnsembleMlp
from packtrain.networks.world_model import WorldModel
from packtrain.types import Trajectory


def batch(obs: list, after: list, action: list, reward: list, terminated: list, truncated: list) -> Trajectory:
    """B steps [1, B]."""
    rows = torch.tensor([obs, after], dtype=torch.float32)
    one = lambda values, dtype: torch.tensor([values], dtype=dtype)  # noqa: E731
    first = torch.zeros(2, len(reward), dtype=torch.bool)
    return Trajectory(
        rows,
        first,
        one(action, torch.int64),
        one(reward, torch.float32),
        one(terminated, torch.bool),
        one(truncated, torch.bool),
        one(action, torch.int64),
        {"train": one(reward, torch.float32)},
        (),
        {},
    )


def networks(members: int, width: int, actions: int, hidden: tuple[int, ...] = ()) -> nn.ModuleDict:
    space = gym.spaces.Box(-9, 9, (width,), np.float32)
    model = WorldModel(EnsembleMlp(members, hidden)).build(space, gym.spaces.Discrete(actions))
    return nn.ModuleDict({"model": model})


def test_loss_by_hand() -> None:
    """Two members with all weights 0: each sees every other step. Mutations: a time-out learned as an end; steps
    dealt out in blocks; weight decay on biases.
    """
    own = networks(2, 1, 2)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.zero_()
        own["model"].ensemble.heads["delta"].bias[:] = 0.5
    steps = batch([[0], [1], [2], [3]], [[1], [1], [2], [5]], [0, 1, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 1, 0, 0])
    total, parts = loss(own, steps, WorldModelLearning(weight_decay=0.1))
    changes = [(0.5 - 1) ** 2, (0.5 - 0) ** 2, (0.5 - 0) ** 2, (0.5 - 2) ** 2]  # of steps 0 … 3
    members = [(changes[0] + changes[2]) / 2, (changes[1] + changes[3]) / 2]
    entropy = float(torch.log(torch.tensor(2.0)))  # of a belief of one half, whatever happened
    assert parts["next_observation_loss"] == pytest.approx(sum(members) / 2)
    assert total.item() == pytest.approx(sum(members) + 2 * 2 * entropy, rel=1e-6)
    with torch.no_grad():
        own["model"].ensemble.heads["terminated"].bias[:] = 3.0  # says that all is over
    _, parts = loss(own, steps, WorldModelLearning())
    say = lambda over: float(nn.functional.softplus(torch.tensor(-3.0 if over else 3.0)))  # noqa: E731
    assert parts["terminated_loss"] == pytest.approx((3 * say(False) + say(True)) / 4, rel=1e-5)


def test_rewards_that_are_clipped_are_counted() -> None:
    """A belief is learned, so a reward counts as 0 to 1. Mutation: what is 0 or 1 counts as clipped."""
    own = networks(1, 1, 1)
    steps = batch(*[[[0]] * 5] * 2, [0] * 5, [-1, 0, 0.5, 1, 3], [0] * 5, [0] * 5)
    _, parts = loss(own, steps, WorldModelLearning())
    inside = batch(*[[[0]] * 5] * 2, [0] * 5, [0, 0, 0.5, 1, 1], [0] * 5, [0] * 5)
    _, clipped = loss(own, inside, WorldModelLearning())
    assert parts["reward_clipped"] == pytest.approx(0.4) and clipped["reward_clipped"] == 0
    assert parts["reward_loss"] == clipped["reward_loss"]


def test_weight_decay_is_on_weights_alone() -> None:
    """0.5 times the squares of weights, biases free."""
    own = networks(1, 1, 1)
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            parameter.fill_(0.0 if name.endswith("bias") else 2.0)
    steps = batch([[0]], [[0]], [0], [0], [0], [0])
    with_decay, _ = loss(own, steps, WorldModelLearning(weight_decay=0.5))
    without, _ = loss(own, steps, WorldModelLearning(weight_decay=0.0))
    assert (with_decay - without).item() == pytest.approx(0.5 * 4 * 6)  # 2 inputs × 3 outputs


def test_a_batch_that_cannot_be_dealt_out_is_refused() -> None:
    """With one line."""
    with pytest.raises(ConfigError, match="3 steps"):
        loss(networks(2, 1, 1), batch([[0]] * 3, [[0]] * 3, [0] * 3, [0] * 3, [0] * 3, [0] * 3), WorldModelLearning())


def test_it_learns_a_small_world() -> None:
    """Hanoi of 2 disks: from half of the transitions right (most are loops) to all. Before learning: below 0.6."""
    torch.manual_seed(0)
    core, rng = Hanoi(2), np.random.default_rng(0)
    memory = Episodes(batch_size=4 * 64).build([1], 0, torch.device("cpu"))
    for _ in range(60):
        states, rows, actions, rewards = core.initial(1, rng), [], [], []
        rows.append(core.observe(states)[0])
        terminated = np.zeros(1, bool)
        while not terminated and len(actions) < 30:
            actions.append(int(rng.integers(6)))
            states, reward, terminated, _ = core.step(states, np.array(actions[-1:]), rng)
            rows.append(core.observe(states)[0])
            rewards.append(reward[0])
        ends = np.arange(len(actions)) == len(actions) - 1
        memory.add_episode(
            {
                "obs": np.stack(rows),
                "action": np.array(actions),
                "reward": np.array(rewards, np.float32),
                "terminated": ends & bool(terminated[0]),
                "truncated": ends & ~bool(terminated[0]),
                "solved": bool(terminated[0]),
            }
        )
    own = networks(4, 6, 6, (64, 64))
    learner = WorldModelLearning(learning_rate=0.003, optimiser="adam").build(own, 10**9)
    first = learner.update(memory.sample())["perfect_next_observation"]
    for _ in range(250):
        last = learner.update(memory.sample())["perfect_next_observation"]
    assert first < 0.6 and last > 0.98
