"""Stacked networks: one batched product is what a loop over runs and members computes, and joined runs share memory."""

import math

import pytest
import torch
from torch import nn

from packtrain.networks import stacked
from packtrain.networks.stacked import StackedMlp, join

RUNS, MEMBERS, ROWS, INPUTS, OUTPUTS = 2, 3, 5, 4, 2


def build(seed=0, **options):
    """One run's module; whatever begins as a constant is disturbed, so that it counts."""
    torch.manual_seed(seed)
    network = StackedMlp(**{"members": MEMBERS, "hidden_sizes": (6, 7), **options}).build(INPUTS, OUTPUTS)
    with torch.no_grad():
        for parameter in [*network.biases, *network.gains, *network.shifts]:
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def joined(**options):
    modules = [build(seed, **options) for seed in range(RUNS)]
    return join(modules), modules


def one_member(network, k, x, activation):
    """The k-th of all members on rows [N, inputs], layer by layer."""
    last = len(network.weights) - 1
    for layer in range(last + 1):
        x = x @ network.weights[layer][k] + network.biases[layer][k, 0]
        if layer < last:
            if len(network.gains):
                centred = x - x.mean(-1, keepdim=True)
                x = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
                x = x * network.gains[layer][k, 0] + network.shifts[layer][k, 0]
            x = activation(x)
    return x


ACTIVATIONS = {"relu": lambda x: x.clamp(min=0), "silu": lambda x: x / (1 + torch.exp(-x)), "elu": nn.ELU()}


@pytest.mark.parametrize("own", [False, True], ids=["same-rows", "own-rows"])
@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "layer-norm"])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_it_is_a_loop_over_runs_and_members(activation, layer_norm, own):
    """Mutations: members before runs; a last layer that is rectified; a norm after the activation; one gain for all."""
    network, _ = joined(activation=activation, layer_norm=layer_norm)
    x = torch.randn(RUNS, MEMBERS, ROWS, INPUTS) if own else torch.randn(RUNS, ROWS, INPUTS)
    got = network(x)
    assert got.shape == (RUNS, MEMBERS, ROWS, OUTPUTS)
    for run in range(RUNS):
        for member in range(MEMBERS):
            rows = x[run, member] if own else x[run]
            want = one_member(network, run * MEMBERS + member, rows, ACTIVATIONS[activation])
            torch.testing.assert_close(got[run, member], want, atol=1e-5, rtol=1e-5)
    given = x.clone()
    with torch.no_grad():  # where activations need no copy
        torch.testing.assert_close(network(x), got.detach())
    assert torch.equal(x, given)


def test_without_hidden_layers_it_is_linear():
    network = build(hidden_sizes=(), layer_norm=True)
    x = torch.randn(1, ROWS, INPUTS)
    torch.testing.assert_close(network(x)[0, 1], x[0] @ network.weights[0][1] + network.biases[0][1])


def test_joined_runs_say_what_they_said_alone():
    modules = [build(seed, layer_norm=True) for seed in range(3)]
    x = torch.randn(3, ROWS, INPUTS)
    alone = [module(x[run : run + 1]) for run, module in enumerate(modules)]
    network = join(modules)
    torch.testing.assert_close(network(x), torch.cat(alone))
    for run, module in enumerate(modules):  # still modules of one run each
        torch.testing.assert_close(module(x[run : run + 1]), alone[run])


def test_what_is_written_through_one_is_seen_through_the_other():
    """Buffers too. Mutations: copies instead of views; buffers forgotten; a chunk of another run."""

    class Part(nn.Module):
        def __init__(self, run):
            super().__init__()
            self.inner = build(run)
            self.inner.requires_grad_(False)
            self.scale = nn.Buffer(torch.full((1, 1), float(run)))
            self.places = nn.Buffer(torch.arange(2)[None] + run)

    modules = [Part(run) for run in range(3)]
    network = join(modules)
    assert network.scale.shape == (3, 1) and network.places.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert network.inner.weights[0].shape == (3 * MEMBERS, INPUTS, 6)
    with torch.no_grad():
        for leaf in [*network.parameters(), *network.buffers()]:
            leaf.add_(1 if leaf.dtype == torch.int64 else 0.5)
    assert [module.scale.item() for module in modules] == [0.5, 1.5, 2.5]
    assert modules[2].places.tolist() == [[3, 4]]
    with torch.no_grad():
        modules[1].scale.fill_(9)
        modules[1].inner.weights[1][2].zero_()
        modules[2].load_state_dict(modules[0].state_dict())
    assert network.scale.flatten().tolist() == [0.5, 9, 0.5]
    assert not network.inner.weights[1][MEMBERS + 2].any() and network.inner.weights[1][MEMBERS + 1].any()
    assert torch.equal(network.inner.biases[0][2 * MEMBERS :], network.inner.biases[0][:MEMBERS])
    assert not any(leaf.requires_grad for leaf in network.parameters())  # what was frozen stays so


def test_one_run_joined_is_itself():
    network = build()
    assert join([network]) is network


@pytest.mark.parametrize("initialisation, divisor", [("glorot", 1), ("original", 4)])
def test_first_weights_fill_their_bounds(initialisation, divisor):
    """±√(6 / (in + out)); the released STEVE divides by the members too. Biases are 0. Mutation: a normal draw."""
    torch.manual_seed(0)
    network = StackedMlp(4, (60, 40), initialisation=initialisation).build(30, 20)
    for weight, (a, b) in zip(network.weights, [(30, 60), (60, 40), (40, 20)], strict=True):
        bound = math.sqrt(6 / (divisor * (a + b)))
        assert 0.995 * bound < weight.abs().max() <= bound
        assert abs(weight.std().item() / bound - 1 / math.sqrt(3)) < 0.02  # a uniform one's
        assert len(torch.unique(weight[:, 0, 0])) == 4  # members begin apart
    assert not any(bias.any() for bias in network.biases)


def test_an_original_network_of_one_member_is_glorots():
    """Mutation: dividing by the runs, or always by four."""
    torch.manual_seed(0)
    one = StackedMlp(1, (50,), initialisation="original").build(30, 20)
    torch.manual_seed(0)
    two = StackedMlp(1, (50,)).build(30, 20)
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))


@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "layer-norm"])
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("outputs", [1, 2, 15, 16])  # few columns are computed as rows
def test_gradients_are_those_of_plain_layers(outputs, learns, layer_norm):
    """Few steps of autograd against many. Mutations: a ReLU's mask of the wrong layer; a bias's sum over members."""
    torch.manual_seed(0)
    sizes = StackedMlp(3, (20, 4), layer_norm=layer_norm)
    joint = join([sizes.build(6, outputs).double() for _ in range(2)])
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        for bias in joint.biases:
            bias.normal_()
    said = joint(x, learns)
    assert said.is_contiguous()
    loss = (said * torch.arange(said.numel()).reshape(said.shape)).sum()
    leaves = [x, *joint.parameters()] if learns else [x]
    got = torch.autograd.grad(loss, leaves)
    y = x.flatten(0, 1)
    for layer, (weight, bias) in enumerate(zip(joint.weights, joint.biases, strict=True)):
        y = torch.bmm(y, weight) + bias
        if layer < 2:
            y = (
                nn.functional.layer_norm(y, y.shape[-1:]) * joint.gains[layer] + joint.shifts[layer]
                if layer_norm
                else y
            )
            y = torch.relu(y)
    torch.testing.assert_close(said.flatten(0, 1), y)
    want = torch.autograd.grad((y.unflatten(0, (2, 3)) * torch.arange(said.numel()).reshape(said.shape)).sum(), leaves)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        torch.testing.assert_close(joint(x), said)
    if not learns:
        with pytest.raises(RuntimeError, match="not have been used"):
            torch.autograd.grad(joint(x, learns).sum(), joint.weights[0])


@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "layer-norm"])
@pytest.mark.parametrize("outputs", [1, 2, 16])
def test_rows_of_a_lone_network_are_dealt_out_to_threads(outputs, layer_norm, monkeypatch):
    """With the same results. Mutations: lanes of one network given another's rows; the gradient of one lane alone."""
    monkeypatch.setattr(stacked, "_LANE", 4)
    torch.manual_seed(0)
    network = StackedMlp(1, (20, 4), layer_norm=layer_norm).build(6, outputs).double()
    with torch.no_grad():
        for bias in network.biases:
            bias.normal_()
    x = torch.randn(1, 12, 6, dtype=torch.float64, requires_grad=True)
    factors = torch.arange(12 * outputs).reshape(1, 1, 12, outputs)
    leaves = [x, *network.parameters()]
    found = {}
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            assert stacked._in_lanes(x).shape == (threads, 12 // threads, 6)
            said = network(x)
            assert said.shape == (1, 1, 12, outputs)
            with torch.no_grad():
                torch.testing.assert_close(network(x), said)
            found[threads] = [said, *torch.autograd.grad((said * factors).sum(), leaves)]
        finally:
            torch.set_num_threads(before)
    for threads in (2, 3):
        for mine, alone in zip(found[threads], found[1], strict=True):
            torch.testing.assert_close(mine, alone)


@pytest.mark.parametrize("outputs", [1, 2, 16])
@pytest.mark.parametrize("given", [0, 2, 5])
def test_gradients_that_are_not_needed_are_not_computed(given, outputs):
    """Mutation: the gradient of the first numbers for that of the last."""
    torch.manual_seed(0)
    joint = join([StackedMlp(3, (20, 4)).build(6, outputs).double() for _ in range(2)])
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    leaves = [x, *joint.parameters()]
    factors = torch.arange(42 * outputs).reshape(2, 3, 7, outputs)
    wanted = torch.autograd.grad((joint(x) * factors).sum(), leaves)
    found = torch.autograd.grad((joint(x, given=given) * factors).sum(), leaves)
    assert wanted[0][..., :given].any() == (given > 0) and (found[0][..., :given] == 0).all()
    torch.testing.assert_close(found[0][..., given:], wanted[0][..., given:])
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        assert torch.equal(mine, theirs)


def test_no_rows_are_no_answers():
    assert StackedMlp(2, (8,)).build(3, 1)(torch.zeros(1, 0, 3)).shape == (1, 2, 0, 1)


def test_lanes_are_for_many_rows_of_one_network(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    rows = stacked._LANE
    for shape in ((1, 2 * rows - 2, 3), (1, 2 * rows + 1, 3), (2, 2 * rows, 3)):
        x = torch.zeros(shape)
        assert stacked._in_lanes(x) is x
    assert stacked._in_lanes(torch.zeros(1, 2 * rows, 3)).shape == (2, rows, 3)


@pytest.mark.parametrize("layers", [0, 1, 4])
def test_packed_weights_say_the_same_within_their_rounding(layers):
    """Hidden layers in half the bytes, biases folded, the last layer in float32.

    Mutations: a bias not folded into the next layer; weights that went stale.
    """
    torch.manual_seed(0)
    network = StackedMlp(3, (32,) * layers).build(5, 2)
    with torch.no_grad():
        for bias in network.biases:
            bias.normal_()
    x = torch.randn(1, 3, 64, 5)
    with torch.no_grad():
        wanted = network(x)
        network.pack()
        found = network(x)
        assert found.dtype == torch.float32 and torch.allclose(found, wanted, atol=1e-6) == (layers == 0)
        assert [leaf.dtype for leaf in network._packed[0]] == [torch.float16] * layers + [torch.float32]
        scale = wanted.abs().amax()
        assert (found - wanted).abs().max() < 4e-3 * scale
        places = [leaf.data_ptr() for leaf in network._packed[0]]
        network.weights[-1].mul_(2)
        network.biases[-1].mul_(2)
        network.pack()
        assert (network(x) - 2 * wanted).abs().max() < 8e-3 * scale
        assert places == [leaf.data_ptr() for leaf in network._packed[0]]  # captured updates read them there
        network._packed[0][0].zero_()
        network.pack()
        assert not network._packed[0][0].any()  # nothing has changed, nothing is done
        network.load_state_dict(network.state_dict())
        network.pack()
        assert network._packed[0][0].any()
    assert torch.equal(network(x).detach(), network._layers(x[0], network._leaves, torch.relu)[None])  # with a gradient


@pytest.mark.parametrize("outputs", [1, 3])
@torch.no_grad()
def test_packed_members_that_differ_near_600_still_differ(outputs):
    """The CPU's float16 rounds as a GPU's. Mutation: outputs in float16, where all of these are 600 or 600.5."""
    torch.manual_seed(0)
    network = StackedMlp(4, (32, 32)).build(5, outputs)
    for weight in network.weights:
        weight.copy_(weight[:1].expand_as(weight).clone())
    network.biases[-1].copy_(600 + 0.01 * torch.arange(4.0)[:, None, None].expand_as(network.biases[-1]))
    x = torch.randn(1, 64, 5)
    wanted = network(x)
    network.pack()
    found = network(x)
    torch.testing.assert_close(found, wanted, atol=0.01, rtol=0)
    torch.testing.assert_close(found.diff(dim=1), torch.full_like(found[:, 1:], 0.01), atol=2e-4, rtol=0)


@torch.no_grad()
def test_packed_outputs_are_not_finite_where_half_precision_overflows():
    """They can be noticed then. Mutation: numbers that are cut off at the largest of half precision."""
    torch.manual_seed(0)
    network = StackedMlp(2, (16,)).build(3, 1)
    network.pack()
    x = torch.randn(1, 8, 3)
    x[:, 0] = 1e5
    assert torch.isfinite(network(x)).all(-1).squeeze(0).tolist() == [[False] + [True] * 7] * 2


def test_networks_with_other_layers_are_not_packed():
    network = StackedMlp(2, (8,), activation="silu").build(3, 1)
    network.pack()
    assert network._packed is None
