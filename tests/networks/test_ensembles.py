"""Stacked members are the members one by one."""

import gymnasium as gym
import pytest
import torch

from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.ensembles import EnsembleMlp
from packtrain.networks.world_model import WorldModel


def test_members_compute_apart() -> None:
    """Each member is its own small network. Mutation: share a weight between members."""
    torch.manual_seed(0)
    network = EnsembleMlp(3, (5, 4)).build(2, {"a": 2, "b": 1})
    x = torch.randn(7, 2)
    together = network(x)
    assert together["a"].shape == (3, 7, 2) and together["b"].shape == (3, 7, 1)
    for member in range(3):
        h = x
        for layer in network.layers:
            h = torch.relu(h @ layer.weight[member] + layer.bias[member])
        for name, head in network.heads.items():
            torch.testing.assert_close(together[name][member], h @ head.weight[member] + head.bias[member])
    own = network(torch.stack([x, x + 1, x + 2]))
    torch.testing.assert_close(own["a"][1], network(x + 1)["a"][1])
    assert not torch.equal(together["a"][0], together["a"][1])


def test_initial_weights_are_glorot_uniform() -> None:
    """Within ±√(6 / (inputs + outputs)) of each member's own layer, and reaching it; biases 0."""
    torch.manual_seed(0)
    layer = EnsembleMlp(4, (100,)).build(50, {"a": 1}).layers[0]
    bound = (6 / 150) ** 0.5
    assert 0.98 * bound < layer.weight.abs().max() <= bound
    assert not layer.bias.any()


def test_a_world_model_sees_the_action_and_answers_rows_first() -> None:
    """What a planner's request gets: {delta: [N, K, D], reward: [N, K], terminated: [N, K]}."""
    torch.manual_seed(0)
    network = WorldModel(EnsembleMlp(3, (8,))).build(gym.spaces.Box(0, 1, (4,)), gym.spaces.Discrete(2))
    obs = torch.rand(1, 4).expand(2, 4)
    answer = network({"obs": obs, "action": torch.tensor([0, 1])})
    assert answer["delta"].shape == (2, 3, 4) and answer["reward"].shape == answer["terminated"].shape == (2, 3)
    assert not torch.equal(answer["delta"][0], answer["delta"][1])
    torch.testing.assert_close(answer["delta"][1, 2], network.guess(obs, torch.tensor([0, 1]))["delta"][2, 1])


def test_what_it_cannot_look_at_is_refused() -> None:
    """With one line."""
    with pytest.raises(ConfigError, match="members = 0"):
        EnsembleMlp(0)
    with pytest.raises(EnvSetupError, match="vectors"):
        WorldModel().build(gym.spaces.Box(0, 1, (4, 4)), gym.spaces.Discrete(2))
    with pytest.raises(EnvSetupError, match="discrete actions"):
        WorldModel().build(gym.spaces.Box(0, 1, (4,)), gym.spaces.Box(0, 1, (2,)))
