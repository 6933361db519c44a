"""Perception: what becomes of each kind of observation, by hand and through the layers of a convolution."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch.nn import functional

from packtrain import config, knobs
from packtrain.acting.sampling import ActorCritic
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.perception import Conv, Flatten, ResNet
from packtrain.types import Spec

GREY = Box(0, 255, (84, 84), np.uint8)
ATARI_NET = Conv(frames=4, channels=(32, 64, 64), kernels=(8, 4, 3), strides=(4, 2, 1))


def features(description, space, obs):
    module = description.build(space)
    out = module(obs)
    assert out.dtype == torch.float32 and out.ndim == 2 and out.shape[1] == module.width
    return out


def pixels(*shape):
    return torch.arange(int(np.prod(shape)), dtype=torch.int64).remainder(256).to(torch.uint8).reshape(shape)


def test_vectors_pass_as_they_are():
    obs = torch.tensor([[1.5, -2.0], [0.0, 300.0]])
    assert torch.equal(features(Flatten(), Box(-1e3, 1e3, (2,)), obs), obs)
    wide = features(Flatten(), Box(-1e3, 1e3, (2,), np.float64), obs.double())
    assert torch.equal(wide, obs)


def test_scalars_become_one_feature():
    out = features(Flatten(), Box(-1, 1, ()), torch.tensor([0.25, 0.5]))
    assert out.tolist() == [[0.25], [0.5]]


def test_bytes_are_scaled_to_one_and_other_integers_are_not():
    """Mutation: without the scaling 255 stays 255."""
    out = features(Flatten(), Box(0, 255, (2,), np.uint8), torch.tensor([[0, 255]], dtype=torch.uint8))
    assert out.tolist() == [[0.0, 1.0]]
    out = features(Flatten(), Box(0, 255, (2,), np.int64), torch.tensor([[0, 255]]))
    assert out.tolist() == [[0.0, 255.0]]


def test_numbers_become_one_hot_from_their_start():
    """Mutation: without `start` the number 11 of Discrete(3, start=10) is out of range."""
    out = features(Flatten(), Discrete(3), torch.tensor([2, 0]))
    assert out.tolist() == [[0, 0, 1], [1, 0, 0]]
    out = features(Flatten(), Discrete(3, start=10), torch.tensor([11]))
    assert out.tolist() == [[0, 1, 0]]
    out = features(Flatten(), MultiDiscrete([2, 3], start=[5, -1]), torch.tensor([[6, -1]]))
    assert out.tolist() == [[0, 1, 1, 0, 0]]
    out = features(Flatten(), MultiDiscrete([[2, 3], [2, 2]]), torch.tensor([[[1, 2], [0, 1]]]))
    assert out.tolist() == [[0, 1, 0, 0, 1, 1, 0, 0, 1]]
    out = features(Flatten(), MultiBinary(3), torch.tensor([[1, 0, 1]], dtype=torch.int8))
    assert out.tolist() == [[1, 0, 1]]


def test_trees_are_laid_side_by_side_in_sorted_order():
    """Mutation: the order of insertion would put b first."""
    space = Dict(b=Discrete(2), a=Tuple([Box(-9, 9, (2, 2)), Box(0, 255, (1,), np.uint8)]))
    obs = {
        "b": torch.tensor([1]),
        "a": (torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[51]], dtype=torch.uint8)),
    }
    out = features(Flatten(), space, obs)
    torch.testing.assert_close(out, torch.tensor([[1, 2, 3, 4, 0.2, 0, 1]]))


def naive_convolution(picture, layers):
    """Convolution and ReLU with loops; picture [C, H, W] float."""
    for layer in layers:
        weight, stride = layer.weight.detach(), layer.stride[0]
        kernel = weight.shape[-1]
        height, width = ((side - kernel) // stride + 1 for side in picture.shape[1:])
        out = torch.empty(len(weight), height, width)
        for y in range(height):
            for x in range(width):
                patch = picture[:, y * stride : y * stride + kernel, x * stride : x * stride + kernel]
                out[:, y, x] = (weight * patch).sum((1, 2, 3)) + layer.bias.detach()
        picture = out.relu()
    return picture.flatten()


@pytest.mark.parametrize(
    "shape, to_channels_first",
    [
        ((7, 6), lambda p: p[None]),
        ((7, 6, 3), lambda p: p.permute(2, 0, 1)),
        ((4, 7, 6), lambda p: p),
        ((3, 7, 3), lambda p: p),  # both ends could be channels: the first is taken, as PyTorch has it
    ],
    ids=["HW", "HWC", "CHW", "3H3"],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pictures_of_every_layout(shape, to_channels_first, dtype):
    """Mutation: a permute of the wrong axes, or bytes that are not divided by 255, change the result."""
    torch.manual_seed(0)
    high = 255 if dtype == np.uint8 else 1
    module = Conv(channels=(3, 2), kernels=(2, 2), strides=(1, 2)).build(Box(0, high, shape, dtype))
    obs = pixels(5, *shape)
    scaled = obs.float() / 255
    out = module(obs if dtype == np.uint8 else scaled)
    assert out.shape == (5, module.width)
    layers = [layer for layer in module.convolutions if isinstance(layer, torch.nn.Conv2d)]
    for n in range(5):
        want = naive_convolution(to_channels_first(scaled[n]), layers)
        torch.testing.assert_close(out[n].detach(), want, atol=1e-5, rtol=1e-4)


def test_what_is_not_a_picture_stands_beside_the_convolution():
    torch.manual_seed(0)
    description = Conv(channels=(2,), kernels=(3,), strides=(1,))
    space = Dict(a=Discrete(3), picture=Box(0, 1, (5, 5)), z=Box(-9, 9, (2,)))
    module = description.build(space)
    picture = torch.rand(4, 5, 5)
    out = module({"a": torch.tensor([0, 1, 2, 0]), "picture": picture, "z": torch.full((4, 2), 7.0)})
    assert module.width == 2 * 3 * 3 + 3 + 2
    assert torch.equal(out[:, :18], module.convolutions(picture[:, None]))
    assert out[1, 18:].tolist() == [0, 1, 0, 7, 7]


def test_gradients_reach_the_convolutions():
    torch.manual_seed(0)
    module = Conv().build(Box(0, 255, (8, 8, 3), np.uint8))
    module(pixels(2, 8, 8, 3)).sum().backward()
    assert all((p.grad != 0).any() for p in module.parameters())


@pytest.mark.parametrize(
    "space, count",
    [
        (Box(-1, 1, (4,)), 0),
        (Discrete(3), 0),
        (Dict(a=Box(0, 1, (4, 4)), b=Box(0, 1, (4, 4))), 2),
        (Box(0, 255, (2, 3, 4, 5), np.uint8), 0),
    ],
    ids=["vector", "number", "two pictures", "four axes"],
)
def test_conv_requires_exactly_one_image(space, count):
    with pytest.raises(EnvSetupError, match=f"Conv .* has {count}; try ActorCritic.perception = @Flatten"):
        Conv().build(space)
    with pytest.raises(EnvSetupError, match=f"ResNet .* has {count}; try ActorCritic.perception = @Flatten"):
        ResNet().build(space)


def test_flatten_takes_any_number_of_axes():
    assert features(Flatten(), Box(0, 255, (2, 3, 4, 5), np.uint8), pixels(2, 2, 3, 4, 5)).shape == (2, 120)


@pytest.mark.parametrize("space", [gym.spaces.Text(4), gym.spaces.Graph(Box(0, 1, (1,)), None)], ids=["text", "graph"])
@pytest.mark.parametrize("description", [Flatten(), Conv(), ResNet()], ids=["flatten", "conv", "resnet"])
def test_spaces_that_are_not_arrays_are_refused(description, space):
    with pytest.raises(EnvSetupError, match="cannot be stored as arrays"):
        description.build(space)


def test_a_convolution_that_leaves_nothing_is_refused():
    with pytest.raises(ConfigError, match="are too large for an image of shape"):
        Conv(channels=(4, 4), kernels=(3, 3), strides=(2, 1)).build(Box(0, 1, (5, 4)))


@pytest.mark.parametrize(
    "numbers",
    [
        {"channels": (16,)},
        {"channels": (), "kernels": (), "strides": ()},
        {"channels": (16, 0)},
        {"strides": (1, 0)},
        {"kernels": (-3, 3)},
    ],
    ids=str,
)
def test_impossible_sizes_are_refused(numbers):
    with pytest.raises(ConfigError, match=r"Conv\.(channels|kernels|strides)"):
        Conv(**numbers)


# -- stacks of frames, and the deep network


def plain(layer, picture):
    """A convolution computed from weights and pictures in the ordinary memory format."""
    weight, bias = layer.weight.detach().contiguous(), layer.bias.detach()
    return functional.conv2d(picture.contiguous(), weight, bias, layer.stride, layer.padding)


def convolutions(module):
    return [layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d)]


def test_a_stack_of_grey_frames():
    """Each frame is a channel. Mutations: features in the order of memory; frames that are mixed up or not scaled."""
    torch.manual_seed(0)
    module = ATARI_NET.build(GREY)
    stacks = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        out = module(stacks)
    picture = stacks.float() / 255
    for layer in convolutions(module):
        picture = plain(layer, picture).relu()
    assert [layer.in_channels for layer in convolutions(module)] == [4, 32, 64]
    assert module.width == 64 * 7 * 7 and out.shape == (3, module.width)
    torch.testing.assert_close(out, picture.flatten(1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("frames, shape", [(4, (84, 84)), (2, (11, 7)), (1, (9, 16, 3)), (1, (3, 10, 12))], ids=str)
def test_the_deep_network(frames, shape):
    """By hand: convolution, pool, two residual blocks, three times; then ReLU. Odd sides are rounded up.

    Mutations: the first ReLU of a block in place (it would change what is added); a pool without padding; no last ReLU.
    """
    torch.manual_seed(0)
    module = ResNet(frames=frames).build(Box(0, 255, shape, np.uint8))
    obs = torch.randint(256, (2, *([frames] if frames > 1 else []), *shape), dtype=torch.uint8)
    with torch.no_grad():
        out = module(obs)
    picture = (obs.permute(0, 3, 1, 2) if shape[-1] == 3 else obs).float() / 255
    layers = iter(convolutions(module))
    for _ in range(3):
        picture = functional.max_pool2d(plain(next(layers), picture), 3, 2, padding=1)
        for _ in range(2):
            inner = plain(next(layers), picture.relu())
            picture = picture + plain(next(layers), inner.relu())
    assert next(layers, None) is None
    assert out.shape == (2, module.width)
    torch.testing.assert_close(out, picture.relu().flatten(1), atol=1e-5, rtol=1e-4)


def test_gradients_reach_the_deep_network():
    torch.manual_seed(0)
    module = ResNet(channels=(4, 4), blocks=1).build(Box(0, 255, (8, 8, 3), np.uint8))
    module(pixels(2, 8, 8, 3)).sum().backward()
    assert all((p.grad != 0).any() for p in module.parameters())


@pytest.mark.parametrize("description", [ATARI_NET, ResNet()], ids=["conv", "resnet"])
def test_weights_lie_channels_last(description):
    """What is fast with tensor cores and on a CPU; that the numbers are the same is tested above."""
    wide = [layer.weight for layer in convolutions(description.build(GREY)) if layer.in_channels > 1]
    assert len(wide) >= 3
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in wide)


SHALLOW = {"perception": ATARI_NET, "hidden_size": 512}
SHALLOW_LSTM = {**SHALLOW, "use_lstm": True, "lstm_size": None, "lstm_layers": 2}
PAPER_SHALLOW = {"perception": Conv(4, (16, 32), (8, 4), (4, 2)), "hidden_size": 256}
DEEP = {"perception": ResNet(frames=4), "hidden_size": 256, "use_last_action": False}
DEEP_LSTM = {**DEEP, "use_lstm": True, "lstm_size": 256}


@pytest.mark.parametrize(
    "sizes, actions, parameters",
    [
        pytest.param(SHALLOW, 6, 1_687_768, id="shallow, 6 actions"),
        pytest.param(SHALLOW, 18, 1_694_236, id="shallow, 18 actions"),
        pytest.param(SHALLOW_LSTM, 6, 6_005_848, id="shallow with LSTM, 6 actions"),
        pytest.param(SHALLOW_LSTM, 18, 6_214_108, id="shallow with LSTM, 18 actions"),
        pytest.param(PAPER_SHALLOW, 6, 677_992, id="the paper's shallow, 6 actions"),
        pytest.param(DEEP, 6, 1_091_038, id="deep, 6 actions"),
        pytest.param(DEEP, 18, 1_094_134, id="deep, 18 actions"),
        pytest.param(DEEP_LSTM, 6, 1_618_391, id="deep with LSTM, 6 actions"),
        pytest.param(DEEP_LSTM, 18, 1_621_475, id="deep with LSTM, 18 actions"),
    ],
)
def test_the_networks_of_the_papers_have_the_papers_sizes(sizes, actions, parameters):
    """TorchBeast's AtariNet and ResNet, counted there. Mutations: a bias, a layer or an input more or less."""
    network = ActorCritic(**sizes).build_network(Spec(GREY, Discrete(actions)))
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network.context == 3


@pytest.mark.parametrize(
    ("name", "sizes", "numbers"),
    [
        ("impala/atari_paper", PAPER_SHALLOW, ("rmsprop_tf", 6e-4, 0.01, 0.01, 32, 20)),
        ("impala/atari_paper_deep", DEEP, ("rmsprop_tf", 6e-4, 0.01, 0.01, 32, 20)),
        ("impala/torchbeast", SHALLOW, ("rmsprop", 4.8e-4, 0.01, 6e-4, 8, 80)),
        ("impala/beefy", SHALLOW, ("rmsprop", 4e-4, 0.01, 0.01, 4, 80)),
    ],
)
def test_configurations_named_after_a_paper_have_its_network_and_its_optimiser(name, sizes, numbers):
    """Mutation: TorchBeast's 32, 64 and 64 filters under the name of the paper."""
    experiment = config.build(config.load([knobs.find_config(name)[0]], [], {}))
    counts = [
        sum(p.numel() for p in policy.build_network(Spec(GREY, Discrete(6))).parameters())
        for policy in (experiment.policy, ActorCritic(**sizes))
    ]
    assert counts[0] == counts[1]
    impala, unrolls = experiment.learners["impala"].learner, experiment.memories["unrolls"]
    optimiser = impala.optimiser, impala.learning_rate, impala.epsilon, impala.entropy_cost
    assert (*optimiser, unrolls.batch_size, unrolls.unroll_length) == numbers
    same = (impala.alpha, impala.momentum, impala.grad_norm_clipping, impala.baseline_cost, impala.discounting)
    assert same == (0.99, 0.0, 40.0, 0.5, 0.99)
    assert (impala.reduction, impala.reward_clipping, impala.lr_schedule) == ("sum", "abs_one", "linear")
    assert experiment.policy.initialisation == "default"


@pytest.mark.parametrize("description", [Conv(frames=4), ResNet(frames=2)], ids=["conv", "resnet"])
@pytest.mark.parametrize("shape", [(84, 84, 3), (4, 84, 84)], ids=str)
def test_only_grey_pictures_are_stacked(description, shape):
    with pytest.raises(EnvSetupError) as error:
        description.build(Box(0, 255, shape, np.uint8))
    given = f"{type(description).__name__}.frames = {description.frames}"
    assert str(error.value) == f"{given} stacks grey images [H, W], and this one has shape {shape}"


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: Conv(frames=0), "Conv.frames = 0 must be at least 1"),
        (lambda: ResNet(frames=-1), "ResNet.frames = -1 must be at least 1"),
        (lambda: ResNet(blocks=0), "ResNet.blocks = 0 must be at least 1"),
        (lambda: ResNet(channels=()), r"ResNet.channels = \(\)"),
        (lambda: ResNet(channels=(16, 0)), r"ResNet.channels = \(16, 0\)"),
    ],
    ids=["frames", "deep frames", "blocks", "no section", "no channels"],
)
def test_impossible_stacks_and_sections_are_refused(make, named):
    with pytest.raises(ConfigError, match=named):
        make()
