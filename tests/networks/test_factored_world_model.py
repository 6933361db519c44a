"""A model that guesses classes: its answers, its errors against softmax by softmax, its random priors."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from packtrain import config, knobs
from packtrain.envs.categorical_factors import Factor, encode
from packtrain.envs.hanoi import Hanoi
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.ensembles import EnsembleMlp
from packtrain.networks.world_model import FactoredWorldModel, WorldModel

FACTORS = (Factor.one_hot(0, 3), Factor.whole_number(3, -1, 3), Factor.one_hot(4, 2))  # D = 6, C = 10
SIZES = (3, 5, 2)
SPACE = gym.spaces.Box(np.array([0, 0, 0, -1, 0, 0], np.float32), np.array([1, 1, 1, 3, 1, 1], np.float32))
OBS = torch.tensor([[0, 1, 0, -1, 1, 0], [0, 0, 1, 2, 0, 1], [1, 0, 0, 3, 1, 0]], dtype=torch.float32)


def small(prior_scale: float = 0.0, seed: int = 0):
    torch.manual_seed(seed)
    return FactoredWorldModel(EnsembleMlp(4, (8, 7, 6)), prior_scale).build(SPACE, gym.spaces.Discrete(2), FACTORS)


def test_it_answers_rows_first_and_sees_the_action() -> None:
    """What a planner's request gets: {classes: [N, K, C], reward: [N, K], terminated: [N, K]}."""
    network = small()
    assert network.members == 4
    obs, action = OBS[:1].expand(2, 6), torch.tensor([0, 1])
    answer = network({"obs": obs, "action": action})
    assert answer["classes"].shape == (2, 4, 10) and answer["reward"].shape == answer["terminated"].shape == (2, 4)
    assert not torch.equal(answer["classes"][0], answer["classes"][1])
    guess = network.guess(obs, action)
    for name, mine in (("classes", answer["classes"][1, 2]), ("reward", answer["reward"][1, 2, None])):
        torch.testing.assert_close(mine, guess[name][2, 1])
    own = network.guess(OBS.expand(4, 3, 6), torch.zeros(4, 3))
    torch.testing.assert_close(own["classes"], network.guess(OBS, torch.zeros(3))["classes"])


def test_inputs_are_one_for_each_factor() -> None:
    """One-hot factors are shown as they are, numbers as their classes. Mutation: numbers shown as numbers."""
    shown = small().one_hot(OBS)
    assert shown.tolist() == [
        [0, 1, 0, 1, 0, 0, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 0, 1, 0, 0, 1],
        [1, 0, 0, 0, 0, 0, 0, 1, 1, 0],
    ]
    core = Hanoi(2)
    network = FactoredWorldModel(EnsembleMlp(1, ())).build(core.observation_space, core.action_space, core.factors)
    tower = torch.tensor(core.observe(np.array([[2, 1], [0, 0]])))
    torch.testing.assert_close(network.one_hot(tower), tower)


def test_errors_are_those_of_a_softmax_for_each_factor() -> None:
    """Against torch's cross-entropy, factor by factor, gradients too; far-off logits do not overflow.

    Mutations: one softmax over all classes; the sum over factors not divided; the gradient through `largest`.
    """
    network, targets = small(), torch.tensor(encode(OBS.numpy(), FACTORS))  # [N, F]
    torch.manual_seed(1)
    for scale in (1.0, 100.0):
        logits = (scale * torch.randn(4, 3, 10)).requires_grad_()
        got, right = network.errors({"classes": logits}, OBS, OBS.expand(4, 3, 6))
        pieces = logits.split(SIZES, -1)
        each = [nn.functional.cross_entropy(p.movedim(-1, 1), targets[:, f].expand(4, 3), reduction="none")
                for f, p in enumerate(pieces)]  # fmt: skip
        want = sum(each).mean(1) / 3
        assert got.shape == (4,) and right.shape == (4, 3)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        chosen = torch.stack([p.argmax(-1) for p in pieces], -1)
        assert torch.equal(right, (chosen == targets).all(-1))
        torch.testing.assert_close(
            *(torch.autograd.grad(x.sum(), logits)[0] for x in (got, want)), rtol=1e-4, atol=1e-6
        )


def test_right_means_every_factor() -> None:
    """Mutation: any for all."""
    network = small()
    logits = 9 * network.one_hot(OBS).expand(4, 3, 10).clone()
    logits[1, 2, 3:8] = torch.tensor([0.0, 9, 0, 0, 0])  # member 1 errs about one number of row 2
    _, right = network.errors({"classes": logits}, OBS, OBS)
    want = torch.ones(4, 3, dtype=torch.bool)
    want[1, 2] = False
    assert torch.equal(right, want)


def test_priors_are_added_frozen_and_saved() -> None:
    """Mutations: the prior learns; it is sampled again when loading; it is missing in a head."""
    plain, network = small(), small(prior_scale=2.0)
    action = torch.tensor([0, 1, 0])
    for ours, theirs in zip(plain.parameters(), network.ensemble.parameters(), strict=True):
        assert torch.equal(ours, theirs)  # what learns is drawn as without
    without, guess = plain.guess(OBS, action), network.guess(OBS, action)
    inputs = torch.cat([network.one_hot(OBS), nn.functional.one_hot(action, 2)], -1)
    prior = network.prior(inputs)
    for name in ("classes", "reward", "terminated"):
        torch.testing.assert_close(guess[name], without[name] + 2 * prior[name])
        assert prior[name].std(0).min() > 0  # members' priors differ
    trained = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    assert trained and all(name.startswith("ensemble.") for name in trained)
    other = small(prior_scale=2.0, seed=5)
    assert not torch.equal(other.guess(OBS, action)["classes"], guess["classes"])
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.guess(OBS, action)["classes"], guess["classes"])
    assert plain.prior is None and not any("prior" in name for name in plain.state_dict())


def test_the_size_of_priors_is_not_noted_as_a_setting() -> None:
    """Mutation: build the prior's sizes where they are recorded."""
    configuration = config.load([knobs.CONFIGS / "impala" / "catch.gin"], [], {})
    config.build(configuration)
    network = small(prior_scale=1.0)
    assert len(network.prior.layers) == 2
    assert configuration.values["EnsembleMlp.hidden_sizes"] == "(8, 7, 6)"


def test_the_paper_s_model_rounds_halves_up() -> None:
    """2 + 0.5 is 3. Mutation: torch.round, which says 2."""
    network = WorldModel(EnsembleMlp(1, ())).build(gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2))
    obs = torch.tensor([[2.0], [1.0]])
    squares, right = network.errors({"delta": torch.full((1, 2, 1), 0.5)}, obs, torch.tensor([[3.0], [1.0]]))
    assert right.tolist() == [[True, False]] and squares.tolist() == [0.25]


def test_what_it_cannot_be_built_for_is_refused() -> None:
    """With one line."""
    choice = gym.spaces.Discrete(2)
    for scale in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match=f"prior_scale = {scale}"):
            FactoredWorldModel(prior_scale=scale)
    with pytest.raises(EnvSetupError, match="cover 6 coordinates, but the observation has 7"):
        FactoredWorldModel().build(gym.spaces.Box(0, 1, (7,)), choice, FACTORS)
    with pytest.raises(EnvSetupError, match="FactoredWorldModel needs vectors"):
        FactoredWorldModel().build(gym.spaces.Box(0, 1, (6, 6)), choice, FACTORS)
    with pytest.raises(EnvSetupError, match="discrete actions"):
        FactoredWorldModel().build(SPACE, SPACE, FACTORS)
