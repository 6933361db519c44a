"""The convolutional model of boards: members, loss by arithmetic, and dynamics learned on other boards."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.envs.sokoban import Sokoban
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.board_model import BoardModel

BOARD = gym.spaces.Box(0, 1, (4, 5, 3), np.float32)
ACTIONS = gym.spaces.Discrete(2)


def boards(count: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.eye(3, dtype=np.float32)[rng.integers(3, size=(count, 4, 5))])


def network(members: int = 2, seed: int = 0):
    torch.manual_seed(seed)
    return BoardModel(members, channels=6, layers=2).build(BOARD, ACTIONS)


def test_shapes_and_the_axis_of_members_in_answers():
    """Planners receive rows first, learners members first."""
    net, obs, action = network(), boards(7), torch.tensor([0, 1, 0, 1, 0, 1, 0])
    guess = net.guess(obs, action)
    assert guess["classes"].shape == (2, 7, 4, 5, 3) and guess["reward"].shape == (2, 7, 1)
    answer = net({"obs": obs, "action": action})
    torch.testing.assert_close(answer["classes"], guess["classes"].transpose(0, 1))
    torch.testing.assert_close(answer["terminated"], guess["terminated"][..., 0].T)


def test_members_are_separate_networks_and_each_sees_its_own_batch():
    """Mutations: convolutions without groups; one batch for all members; members and channels exchanged."""
    net, obs = network(), boards(3)
    own = torch.stack([obs, boards(3, seed=1)])
    action = torch.tensor([[0, 1, 1], [1, 0, 0]])
    both = net.guess(own, action)
    for member in range(2):
        shared = net.guess(own[member], action[member])
        for head in both:
            torch.testing.assert_close(both[head][member], shared[head][member])
    net.guess(obs, action[0])["classes"][1].sum().backward()
    for layer in (*net.layers, net.cells):
        first, second = layer.weight.grad.chunk(2)
        assert not first.any() and second.any()


def test_a_cell_is_predicted_from_its_neighbourhood_and_the_action():
    """Two layers of 3 x 3 see two cells far. Mutation: a layer of 1 x 1; the action left out."""
    net, obs = network(1), boards(1)
    other = obs.clone()
    other[0, 0, 0] = other[0, 0, 0].roll(1)
    changed = (net.guess(obs, torch.zeros(1))["classes"] != net.guess(other, torch.zeros(1))["classes"]).any(-1)[0, 0]
    assert changed[:3, :3].all() and not changed[3:].any() and not changed[:, 3:].any()
    assert (net.guess(obs, torch.zeros(1))["classes"] != net.guess(obs, torch.ones(1))["classes"]).any()


def test_errors_by_arithmetic():
    """The cross-entropy summed over cells, and whole boards that are right."""
    net, after = network(2), boards(2)
    logits = torch.zeros(2, 2, 4, 5, 3)
    logits[0] = 50 * after
    logits[0, 1, 0, 0] = 50 * after[1, 0, 0].roll(1)  # one cell of one board is wrong
    loss, right = net.errors({"classes": logits}, boards(2, seed=1), after)
    assert loss.tolist() == pytest.approx([(0 + 50) / 2, 20 * np.log(3)], rel=1e-5)
    assert right[0].tolist() == [True, False]


def test_what_is_refused():
    with pytest.raises(ConfigError, match="kernel_size = 4 must be odd"):
        BoardModel(kernel_size=4)
    with pytest.raises(EnvSetupError, match="BoardModel needs boards"):
        BoardModel().build(gym.spaces.Box(0, 1, (3,)), ACTIONS)
    with pytest.raises(EnvSetupError, match="discrete actions"):
        BoardModel().build(BOARD, gym.spaces.Box(0, 1, (3,)))


def transitions(board_seed: int, count: int):
    """Random steps on random boards: observation, action, next observation, solved."""
    core, rng = (
        Sokoban(5, 5, 1, boards=60, board_seed=board_seed, box_reward=0, step_reward=0),
        np.random.default_rng(0),
    )
    rows, states = [], core.initial(200, rng)
    while len(rows) * 200 < count:
        actions = rng.integers(4, size=200)
        after, _, ended, _ = core.step(states, actions, rng)
        rows.append((core.observe(states), actions, core.observe(after), ended))
        begun = core.initial(200, rng)
        anew = ended | (rng.random(200) < 0.05)
        states = {n: np.where(anew.reshape(-1, *[1] * (a.ndim - 1)), begun[n], a) for n, a in after.items()}
    return [torch.from_numpy(np.concatenate(parts)) for parts in zip(*rows, strict=True)]


def test_what_is_learned_on_some_boards_holds_on_others():
    """Pushes of Sokoban, from pictures of other boards; the untrained model is right about next to nothing.

    Mutations: layers that do not see the cell behind the box (kernel_size=1); no action planes.
    """
    obs, action, after, _ = transitions(0, 6000)
    unseen = transitions(1, 2000)
    torch.manual_seed(0)
    net = BoardModel(1, channels=24, layers=2).build(
        gym.spaces.Box(0, 1, (5, 5, 7), np.float32), gym.spaces.Discrete(4)
    )
    optimiser = torch.optim.Adam(net.parameters(), 0.005)
    rng = np.random.default_rng(0)

    def moved_right() -> float:
        """The share of right predictions among steps that change the board."""
        before, actions, truth, _ = unseen
        moved = (before != truth).flatten(1).any(1)
        with torch.no_grad():
            return float(net.errors(net.guess(before, actions), before, truth)[1][0][moved].float().mean())

    untrained = moved_right()
    for _ in range(350):
        rows = rng.integers(len(obs), size=64)
        loss, _ = net.errors(net.guess(obs[rows], action[rows]), obs[rows], after[rows])
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()
    assert untrained < 0.05 and moved_right() > 0.8
