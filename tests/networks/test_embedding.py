"""Embeddings of what can be controlled, and the random networks beside them."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.embedding import ControllableEmbedding
from packtrain.networks.novelty import RandomDistillation
from packtrain.networks.perception import Conv
from packtrain.types import Spec

T, B, A = 5, 3, 4
VECTOR = Spec(Box(-9, 9, (6,)), Discrete(A))
PIXELS = Spec(Box(0, 255, (84, 84), np.uint8), Discrete(6))
FOUR = Conv(frames=4, channels=(32, 64, 64), kernels=(8, 4, 3), strides=(4, 2, 1))


def test_shapes_for_vectors_and_pictures():
    for spec, frames in ((VECTOR, 1), (PIXELS, 1), (PIXELS, 4)):
        torch.manual_seed(0)
        network = ControllableEmbedding(perception=FOUR if frames == 4 else None).build(spec)
        assert network.context == frames - 1
        rows = T + 1 + network.context
        obs = torch.rand(rows, B, *spec.obs.shape).mul(255).to(torch.uint8 if spec is PIXELS else torch.float32)
        logits, embeddings = network(obs, torch.zeros(rows, B, dtype=torch.bool))
        assert logits.shape == (T, B, int(spec.action.n)) and embeddings.shape == (T + 1, B, network.size)
        assert (embeddings < 0).any() and (embeddings > 0).any()
        logits.square().sum().backward()
        assert all(parameter.grad.any() for parameter in network.parameters())


def test_logits_are_of_two_rows_in_a_row():
    """Row by row. Mutations: pairs two steps apart; the later one first; the same row twice."""
    torch.manual_seed(0)
    network = ControllableEmbedding(hidden_sizes=(16,), size=8).build(VECTOR)
    obs, first = torch.randn(T + 1, B, 6), torch.zeros(T + 1, B, dtype=torch.bool)
    logits, embeddings = network(obs, first)
    for t in range(T):
        for b in range(B):
            before, after = (network.embed(obs[i : i + 1, b : b + 1], first[:1, :1])[0, 0] for i in (t, t + 1))
            torch.testing.assert_close(embeddings[t, b], before)
            torch.testing.assert_close(logits[t, b], network.inverse(torch.cat([before, after])))


def test_it_learns_which_action_moved_a_point_and_leaves_out_the_noise():
    """The first two numbers answer the action, the others are noise: 25 % is chance. Some pairs are resets."""
    torch.manual_seed(0)
    network = ControllableEmbedding().build(VECTOR)
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    moves = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])

    def batch():
        action, first = torch.randint(A, (8, 32)), torch.rand(9, 32) < 0.1
        place = torch.cat([torch.zeros(1, 32, 2), moves[action].cumsum(0) / 2])
        place = place + torch.randn(9, 32, 2).masked_fill(~first.unsqueeze(-1), 0.0).cumsum(0)
        return torch.cat([place, torch.randn(9, 32, 4)], -1), first, action, ~first[1:]

    for _ in range(300):
        obs, first, action, real = batch()
        logits, _ = network(obs, first)
        loss = torch.nn.functional.cross_entropy(logits[real], action[real])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    obs, first, action, real = batch()
    assert (network(obs, first)[0].argmax(-1) == action)[real].float().mean() > 0.8
    by_place, by_noise = obs.clone(), obs.clone()
    by_place[..., :2] += 0.5
    by_noise[..., 2:] += 0.5
    moved, noise = (
        (network.embed(o, first) - network.embed(obs, first)).norm(dim=-1).mean() for o in (by_place, by_noise)
    )
    assert moved > 2 * noise


def test_sizes_are_those_of_the_original():
    """Published with it: 178,368 and 9,094 for stacks of four frames and six actions."""
    network = ControllableEmbedding(perception=FOUR).build(PIXELS)
    count = lambda module: sum(parameter.numel() for parameter in module.parameters())  # noqa: E731
    assert count(network.torso) == 178_368 and count(network.inverse) == 9_094
    vector = ControllableEmbedding().build(VECTOR)
    assert [layer.out_features for layer in vector.torso.body[::2]] == [32, 64, 32]


@pytest.mark.parametrize("seed", range(3))
def test_no_unit_is_dead_at_initialisation(seed):
    """A small bright square walks over an unchanging picture, as in a game: every unit must tell some frames apart.

    Mutation: a ReLU behind the embedding, which makes many units 0 for all frames.
    """
    torch.manual_seed(seed)
    network = ControllableEmbedding().build(PIXELS)
    background = torch.randint(0, 120, (84, 84), dtype=torch.uint8)
    obs = background.repeat(64, 1, 1, 1)
    for i in range(64):
        obs[i, 0, 8 * (i // 8) + 4 : 8 * (i // 8) + 12, 8 * (i % 8) + 4 : 8 * (i % 8) + 12] = 255
    embeddings = network.embed(obs, torch.zeros(64, 1, dtype=torch.bool))[:, 0]
    assert (embeddings.std(0) > 1e-4).all()


def test_stacks_stop_at_a_reset():
    torch.manual_seed(0)
    conv = Conv(frames=3, channels=(4,), kernels=(3,), strides=(1,))
    network = ControllableEmbedding(perception=conv).build(Spec(Box(0, 255, (6, 6), np.uint8), Discrete(A)))
    obs, first = torch.randint(256, (5, 1, 6, 6), dtype=torch.uint8), torch.zeros(5, 1, dtype=torch.bool)
    first[3] = True
    before = network.embed(obs, first)
    other = obs.clone()
    other[2] = 255 - other[2]
    assert (network.embed(other, first) != before).any(-1).flatten().tolist() == [True, False, False]


def test_inverse_dynamics_need_discrete_actions():
    with pytest.raises(EnvSetupError, match="ControllableEmbedding predicts discrete actions"):
        ControllableEmbedding().build(Spec(VECTOR.obs, Box(-1, 1, (2,))))


@pytest.mark.parametrize("sizes", [{"hidden_sizes": (0,)}, {"size": 0}, {"inverse_size": 0}])
def test_impossible_sizes_are_refused_by_name(sizes):
    with pytest.raises(ConfigError, match=rf"ControllableEmbedding\.{next(iter(sizes))} = "):
        ControllableEmbedding(**sizes)


def test_random_distillation_of_pictures():
    """NGU's sizes. The target has no gradient, and stays byte for byte while the predictor learns what it says.

    Mutation: one module for both, or a norm that learns behind the target.
    """
    torch.manual_seed(0)
    network = RandomDistillation((), (), 128).build_for_pictures((84, 84))
    convolutions = 32 * 64 + 32 + 64 * 32 * 16 + 64 + 64 * 64 * 9 + 64
    count = convolutions + 3136 * 128 + 128
    assert [sum(p.numel() for p in net.parameters()) for net in (network.target, network.predictor)] == [count] * 2
    assert not any(parameter.requires_grad for parameter in network.target.parameters())
    frozen = {name: value.clone() for name, value in network.target.state_dict().items()}
    pictures, unseen = torch.randn(2, 8, 84, 84).clamp(-5, 5)
    optimiser = torch.optim.Adam(network.predictor.parameters(), 5e-4)

    def error(x):
        prediction, target = network(x)
        assert prediction.shape == target.shape == (8, 128)
        return (prediction - target).square().mean()

    before = error(pictures).item(), error(unseen).item()
    assert before[0] > 0.1  # of about unit scale: orthogonal weights
    for _ in range(30):
        optimiser.zero_grad()
        error(pictures).backward()
        optimiser.step()
    assert error(pictures).item() < 0.3 * before[0] and error(unseen).item() > 2 * error(pictures).item()
    assert all(torch.equal(value, frozen[name]) for name, value in network.target.state_dict().items())


def test_random_distillation_reads_signed_floats():
    """Pictures come normalised. Mutation: divided by 255 once more."""
    torch.manual_seed(0)
    network = RandomDistillation().build_for_pictures((84, 84))
    x = torch.randn(2, 84, 84)
    assert not torch.allclose(network(x)[1], network(-x)[1], atol=0.1)


def test_random_distillation_refuses_what_is_no_picture():
    with pytest.raises(EnvSetupError, match="needs single images"):
        RandomDistillation().build_for_pictures((84,))
    with pytest.raises(EnvSetupError, match="needs single images"):
        RandomDistillation(perception=FOUR).build_for_pictures((84, 84))
