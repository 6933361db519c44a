"""Networks that planners ask: shapes, first weights, and a convolution against a plain loop."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.prediction import ConvNet, EnsemblePrediction, Mlp, Prediction

VECTOR = gym.spaces.Box(-1, 1, (5,), np.float32)
BOARD = gym.spaces.Box(0, 1, (4, 6, 3), np.float32)
MIXED = gym.spaces.Dict({"peg": gym.spaces.Discrete(4), "where": gym.spaces.Box(-1, 1, (2, 3), np.float32)})


def boards(count, space=BOARD, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.uniform(size=(count, *space.shape)).astype(space.dtype))


@pytest.mark.parametrize("torso", [Mlp(), Mlp((7, 9), "tanh"), Mlp(()), ConvNet(2, 8, 16), ConvNet(1, 4, 0)])
def test_every_head_has_its_size(torso):
    network = Prediction(torso).build(BOARD, {"value": 1, "logits": 6})
    for count in (3, 1):
        answer = network(boards(count))
        assert {head: tuple(rows.shape) for head, rows in answer.items()} == {"value": (count, 1), "logits": (count, 6)}


def test_observations_may_be_trees():
    network = Prediction(Mlp((8,))).build(MIXED, {"value": 2})
    obs = {"peg": torch.tensor([1, 3]), "where": torch.zeros(2, 2, 3)}
    assert network(obs)["value"].shape == (2, 2)
    assert not torch.equal(*network(obs)["value"]), "the peg is seen, one-hot"
    single = gym.spaces.Dict({"board": BOARD})
    assert Prediction(ConvNet(1, 4, 8)).build(single, {"value": 1})({"board": boards(2)})["value"].shape == (2, 1)


def test_an_mlp_is_what_it_says():
    """relu(x W0 + b0) W1 + b1, by hand. Mutations: no activation; another one; one behind the head."""
    network = Prediction(Mlp((3,))).build(VECTOR, {"value": 2})
    (hidden,) = [module for module in network.torso.modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        hidden.bias.copy_(torch.tensor([0.3, -0.2, 0.1]))
        network.heads["value"].bias.copy_(torch.tensor([1.0, -1.0]))
    x = torch.linspace(-1, 1, 20).view(4, 5)
    inner = torch.relu(x @ hidden.weight.T + hidden.bias)
    want = inner @ network.heads["value"].weight.T + network.heads["value"].bias
    assert (inner == 0).any() and (want < 0).any()
    torch.testing.assert_close(network(x)["value"], want)


def plain_conv(board, weight, bias, stride):
    """A convolution of 3 × 3 with a border of zeros, [H, W, C] → [H', W', D], one number at a time."""
    height, width, planes = board.shape
    out = np.zeros((-(-height // stride), -(-width // stride), len(weight)))
    for i, j, d in np.ndindex(out.shape):
        total = bias[d]
        for di, dj, c in np.ndindex(3, 3, planes):
            row, column = i * stride + di - 1, j * stride + dj - 1
            if 0 <= row < height and 0 <= column < width:
                total += board[row, column, c] * weight[d, c, di, dj]
        out[i, j, d] = total
    return out


@pytest.mark.parametrize(
    "torso",
    [
        ConvNet(2, 4, 5),
        ConvNet(2, 4, 0),
        ConvNet(2, 4, 5, stride=2),
        ConvNet(2, 4, 5, global_average_pooling=True),
        ConvNet(3, 4, 5, residual=True, activation="tanh"),
    ],
    ids=["plain", "no dense layer", "stride", "pooled", "residual"],
)
def test_a_convnet_is_a_plain_loop(torso):
    """Mutations: rows and columns of the board exchanged; no border; a residual around the first layer too."""
    torch.manual_seed(3)
    network = Prediction(torso).build(BOARD, {"value": 2})
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.bias.uniform_(-0.5, 0.5)
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    dense = [m for m in network.torso.modules() if isinstance(m, nn.Linear)]
    assert len(convs) == torso.n_conv_layers and len(dense) == bool(torso.d_ff)
    activate = np.tanh if torso.activation == "tanh" else lambda x: np.maximum(x, 0)
    head = network.heads["value"]
    given = boards(2)
    got = network(given)["value"].detach().numpy()
    for board, answer in zip(given.numpy().astype(np.float64), got, strict=True):
        x = board
        for index, conv in enumerate(convs):
            weight, bias = conv.weight.detach().double().numpy(), conv.bias.detach().double().numpy()
            after = activate(plain_conv(x, weight, bias, torso.stride))
            x = x + after if torso.residual and index else after
        x = x.mean((0, 1)) if torso.global_average_pooling else x.transpose(2, 0, 1).ravel()  # planes first
        for layer in dense:
            x = activate(layer.weight.detach().double().numpy() @ x + layer.bias.detach().double().numpy())
        want = head.weight.detach().double().numpy() @ x + head.bias.detach().double().numpy()
        np.testing.assert_allclose(answer, want, rtol=1e-4, atol=1e-5)


def test_boards_of_whole_numbers_are_taken_as_they_are():
    space = gym.spaces.Box(0, 255, (4, 4, 2), np.uint8)
    network = Prediction(ConvNet(1, 4, 8)).build(space, {"value": 1})
    board = torch.full((1, 4, 4, 2), 200, dtype=torch.uint8)
    torch.testing.assert_close(network(board)["value"], network(board.float())["value"])


@pytest.mark.parametrize("torso, space", [(Mlp((200, 100)), VECTOR), (ConvNet(2, 32, 64), BOARD)])
def test_weights_begin_as_keras_draws_them(torso, space):
    """Uniform within ±√(6 / (fan in + fan out)), biases 0. Mutations: torch's own; a fan without the kernel's field."""
    torch.manual_seed(0)
    network = Prediction(torso).build(space, {"value": 1, "logits": 50})
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) == 2 + 2 + isinstance(torso, ConvNet)
    for layer in layers:
        weight = layer.weight.detach()
        field = math.prod(weight.shape[2:])
        bound = math.sqrt(6 / (field * weight.shape[1] + field * weight.shape[0]))
        assert not layer.bias.any() and weight.abs().max() <= bound
        if weight.numel() > 1000:
            assert weight.abs().max() > 0.99 * bound
            assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
            assert weight.mean().abs() < 0.1 * bound


def test_heads_may_begin_at_zero():
    """All answers are 0, and the torso is not: it must have something to learn with."""
    torch.manual_seed(0)
    network = Prediction(Mlp((8,)), zero_heads=True).build(VECTOR, {"value": 1, "logits": 4})
    answer = network(torch.ones(2, 5))
    assert not answer["value"].any() and not answer["logits"].any()
    assert all(module.weight.any() for module in network.torso.modules() if isinstance(module, nn.Linear))
    answer["logits"].sum().backward()
    assert network.heads["logits"].weight.grad.any()


def test_weights_come_from_torchs_generator():
    def first(seed):
        torch.manual_seed(seed)
        return Prediction(ConvNet(1, 4, 4)).build(BOARD, {"value": 1}).state_dict()

    one, same, other = first(1), first(1), first(2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Mlp((8, 0)), r"Mlp.hidden_sizes = \(8, 0\) must be at least 1 each"),
        (lambda: Mlp(activation="swish"), "Mlp.activation = 'swish' is not one of"),
        (lambda: ConvNet(0), "ConvNet.n_conv_layers = 0 must be at least 1"),
        (lambda: ConvNet(d_conv=0), "ConvNet.d_conv = 0 must be at least 1"),
        (lambda: ConvNet(d_ff=-1), "ConvNet.d_ff = -1 must not be negative"),
        (lambda: ConvNet(stride=0), "ConvNet.stride = 0 must be at least 1"),
        (lambda: ConvNet(stride=2, residual=True), "ConvNet.residual needs boards that keep their size"),
        (lambda: Prediction(torso="Mlp"), "Prediction.torso = 'Mlp' is not"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "space",
    [
        VECTOR,
        gym.spaces.Box(0, 1, (4, 4), np.float32),
        gym.spaces.Discrete(3),
        gym.spaces.Dict({"a": BOARD, "b": BOARD}),
    ],
    ids=["vector", "picture without planes", "number", "two boards"],
)
def test_a_convnet_requires_one_board(space):
    with pytest.raises(EnvSetupError, match="ConvNet needs a board .* try Mlp"):
        Prediction(ConvNet()).build(space, {"value": 1})


def test_members_of_a_prediction_ensemble_share_nothing():
    """Mutations: heads on a common torso; columns of another member; steps dealt out in runs."""
    torch.manual_seed(0)
    space = gym.spaces.Box(-1, 1, (2, 2), np.float32)
    network = EnsemblePrediction(3, (5, 4)).build(space, {"value": 3})
    obs = torch.randn(6, 2, 2)
    together = network(obs)["value"]
    assert together.shape == (6, 3)
    flat = obs.flatten(1)
    for member in range(3):
        h = flat
        for layer in network.ensemble.layers:
            h = torch.relu(h @ layer.weight[member] + layer.bias[member])
        head = network.heads["value"]
        torch.testing.assert_close(together[:, member], (h @ head.weight[member] + head.bias[member])[:, 0])
    own = network.on_batch(obs)["value"]
    assert own.shape == (6, 1)
    torch.testing.assert_close(own[:, 0], together[torch.arange(6), torch.arange(6) % 3])
    (gradient,) = torch.autograd.grad(network(obs)["value"][:, 0].sum(), [network.ensemble.layers[0].weight])
    assert gradient[0].any() and not gradient[1:].any()


def test_a_prediction_ensemble_of_another_size_than_is_asked_for_is_refused():
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    with pytest.raises(ConfigError, match="EnsemblePrediction.members = 3, but the planner requests 4 outputs"):
        EnsemblePrediction(3).build(space, {"value": 4})
    with pytest.raises(ConfigError, match="7 steps cannot be divided evenly among 3 members"):
        EnsemblePrediction(3).build(space, {"value": 3}).on_batch(torch.zeros(7, 2))


def test_a_network_begins_with_the_weights_of_a_file(tmp_path):
    """By their names behind any prefix, other networks beside them. Mutation: the file is read and not used."""
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    torch.manual_seed(0)
    source = Prediction(Mlp((4,))).build(space, {"value": 1, "logits": 2})
    held = {f"/agent/agent.{name}": leaf.clone() for name, leaf in source.state_dict().items()}
    path = tmp_path / "weights.safetensors"
    save_file({**held, "/model/other": torch.zeros(2)}, path)
    torch.manual_seed(1)
    loaded = Prediction(Mlp((4,)), weights=str(path)).build(space, {"value": 1, "logits": 2})
    obs = torch.randn(5, 3)
    for head, answer in source(obs).items():
        torch.testing.assert_close(loaded(obs)[head], answer, rtol=0, atol=0)
    fewer = Prediction(Mlp((4,)), weights=str(path)).build(space, {"value": 1})  # unused heads are left out
    torch.testing.assert_close(fewer(obs)["value"], source(obs)["value"], rtol=0, atol=0)


@pytest.mark.parametrize(
    "torso, heads, message",
    [
        (Mlp((4,)), {"quality": 2}, "has 0 networks with the tensors"),
        (Mlp((5,)), {"value": 1}, "of shape .*, and the network needs"),
        (Mlp((4, 4)), {"value": 1}, "has 0 networks with the tensors"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, torso, heads, message):
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    path = tmp_path / "weights.safetensors"
    save_file(Prediction(Mlp((4,))).build(space, {"value": 1}).state_dict(), path)
    with pytest.raises(ConfigError, match=message):
        Prediction(torso, weights=str(path)).build(space, heads)


def test_files_that_hold_no_tensors_are_refused(tmp_path):
    """Mutation: a pickle is loaded."""
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    torch.save({"torso": torch.zeros(1)}, tmp_path / "pickle.safetensors")
    for name in ("absent.safetensors", "pickle.safetensors"):
        with pytest.raises(ConfigError, match="cannot be read"):
            Prediction(weights=str(tmp_path / name)).build(space, {"value": 1})
