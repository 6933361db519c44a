"""TensorFlow's RMSProp against a scalar loop; state that survives; the learning-rate schedule."""

import copy
import math

import pytest
import torch

from packtrain.algorithms.optimisers import OPTIMISERS, Adam, RMSPropTF, make_optimiser
from packtrain.errors import ConfigError


def scalar_rmsprop_tf(weight, gradients, lrs, alpha, eps, momentum):
    """TensorFlow's definition for one number, one line per line of its documentation."""
    mean_square, moving = 1.0, 0.0
    for gradient, lr in zip(gradients, lrs, strict=True):
        mean_square = alpha * mean_square + (1 - alpha) * gradient**2
        moving = momentum * moving + lr * gradient / math.sqrt(mean_square + eps)
        weight = weight - moving
    return weight


def parameters(dtype=torch.float64, seed=0):
    """Two parameters of different shapes."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (3, 2), (5,)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype, generator=generator)) for shape in shapes]


def gradients_for(weights, step):
    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(weight.shape, dtype=weight.dtype, generator=generator) for weight in weights]


def train(optimiser, weights, steps):
    for step in steps:
        for weight, gradient in zip(weights, gradients_for(weights, step), strict=True):
            weight.grad = gradient
        optimiser.step()


def make(name, weights, learning_rate=0.1):
    return make_optimiser(weights, name, learning_rate, alpha=0.9, momentum=0.5, epsilon=0.01, betas=(0.8, 0.95))


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_rmsprop_tf_equals_the_scalar_loop(momentum):
    """The rate changes on the way. Catches ε outside the root, a second moment from 0, and lr outside the momentum."""
    weights, lrs = parameters(), [0.1, 0.1, 0.03, 0.2, 0.05]
    start = [weight.detach().clone() for weight in weights]
    optimiser = RMSPropTF(weights, lr=0.0, alpha=0.9, eps=0.01, momentum=momentum)
    for step, lr in enumerate(lrs):
        optimiser.param_groups[0]["lr"] = lr
        train(optimiser, weights, [step])
    for index, weight in enumerate(weights):
        history = torch.stack([gradients_for(weights, step)[index].flatten() for step in range(len(lrs))])
        want = [
            scalar_rmsprop_tf(first.item(), history[:, element].tolist(), lrs, 0.9, 0.01, momentum)
            for element, first in enumerate(start[index].flatten())
        ]
        torch.testing.assert_close(weight.detach().flatten(), torch.tensor(want, dtype=torch.float64))


def test_first_step_of_the_two_rmsprops_by_arithmetic():
    """Same numbers, two optimisers: g = 2, α = 0.9, ε = 0.01, lr = 1."""
    got = {}
    for name in ("rmsprop", "rmsprop_tf"):
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        weight.grad = torch.full_like(weight, 2.0)
        make_optimiser([weight], name, 1.0, alpha=0.9, momentum=0.0, epsilon=0.01).step()
        got[name] = weight.item()
    assert got["rmsprop"] == pytest.approx(-2 / (math.sqrt(0.1 * 4) + 0.01))
    assert got["rmsprop_tf"] == pytest.approx(-2 / math.sqrt(0.9 * 1 + 0.1 * 4 + 0.01))


def test_rmsprop_tf_is_not_torchs():
    ours, theirs = parameters(), parameters()
    train(make("rmsprop_tf", ours), ours, range(5))
    train(make("rmsprop", theirs), theirs, range(5))
    assert all((a - b).abs().min() > 1e-3 for a, b in zip(ours, theirs, strict=True))


def test_parameters_without_gradient_are_left_alone():
    weights = parameters()
    before = weights[1].detach().clone()
    optimiser = RMSPropTF(weights, lr=0.1)
    weights[0].grad = torch.ones_like(weights[0])
    optimiser.step()
    assert torch.equal(weights[1], before) and weights[1] not in optimiser.state
    weights[1].grad = torch.ones_like(weights[1])
    optimiser.step()  # a late comer starts from a second moment of 1, beside one that has moved
    torch.testing.assert_close(weights[1].detach(), before - 0.1 / math.sqrt(0.99 + 0.01 + 1e-8))


def test_parameter_groups_keep_their_own_rates():
    weights = parameters()
    before = [weight.detach().clone() for weight in weights]
    optimiser = RMSPropTF([{"params": [weights[0]], "lr": 0.0}, {"params": [weights[1]]}], lr=0.1)
    train(optimiser, weights, [0])
    assert torch.equal(weights[0], before[0]) and not torch.equal(weights[1], before[1])


def test_rate_may_be_a_tensor():
    """Catches `value=-lr` forms, which take a number and freeze a captured schedule."""
    plain, captured = parameters(), parameters()
    train(RMSPropTF(plain, lr=0.1, momentum=0.5), plain, range(3))
    rate = torch.tensor(0.1, dtype=torch.float64)
    train(RMSPropTF(captured, lr=rate, momentum=0.5), captured, range(3))
    assert all(torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(plain, captured, strict=True))


def test_closure_is_called_with_gradients_on():
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = RMSPropTF([weight], lr=0.1)

    def closure():
        optimiser.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimiser.step(closure).item() == 2.0
    assert (weight < 1).all()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_saving_mid_run_changes_nothing(name):
    """Catches state that is not in state_dict: the run goes on in a new optimiser, through a save and a load."""
    straight, resumed = parameters(), parameters()
    train(make(name, straight), straight, range(8))

    optimiser = make(name, resumed)
    train(optimiser, resumed, range(4))
    state = copy.deepcopy(optimiser.state_dict())
    resumed = [torch.nn.Parameter(weight.detach().clone()) for weight in resumed]
    optimiser = make(name, resumed, learning_rate=99.0)  # the saved rate must win
    optimiser.load_state_dict(state)
    train(optimiser, resumed, range(4, 8))
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_fresh_optimiser_would_differ(name):
    """Negative control of the test above: without the state the run comes out otherwise."""
    straight, forgetful = parameters(), parameters()
    train(make(name, straight), straight, range(8))
    train(make(name, forgetful), forgetful, range(4))
    train(make(name, forgetful), forgetful, range(4, 8))
    assert not any(torch.equal(a, b) for a, b in zip(straight, forgetful, strict=True))


@pytest.mark.parametrize(
    ("name", "kind", "want"),
    [
        ("rmsprop", torch.optim.RMSprop, {"lr": 0.1, "alpha": 0.9, "eps": 0.01, "momentum": 0.5, "foreach": True}),
        ("rmsprop_tf", RMSPropTF, {"lr": 0.1, "alpha": 0.9, "eps": 0.01, "momentum": 0.5}),
        ("adam", torch.optim.Adam, {"lr": 0.1, "betas": (0.8, 0.95), "eps": 0.01, "foreach": True}),
    ],
)
def test_settings_reach_the_optimiser(name, kind, want):
    """Catches an option accepted and dropped."""
    optimiser = make(name, parameters())
    assert type(optimiser) is kind
    group = optimiser.param_groups[0]
    assert {key: group[key] for key in want} == want


def test_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="'sgd', expected one of rmsprop, rmsprop_tf, adam"):
        make_optimiser(parameters(), "sgd", 0.1)


@pytest.mark.parametrize(
    ("setting", "value"), [("lr", -1.0), ("alpha", 1.5), ("alpha", -0.1), ("eps", -1e-8), ("momentum", math.nan)]
)
def test_settings_out_of_range_are_refused(setting, value):
    with pytest.raises(ValueError, match=setting):
        RMSPropTF(parameters(), **{setting: value})


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam_is_torchs(decay):
    """Its state is there from the beginning. Mutations: a step counted twice; decay of the decoupled kind."""
    torch.manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(torch.ones(size)) for size in ((3, 2), (4,))] for _ in range(2))
    mine, plain = Adam(ours, 0.1, decay), torch.optim.Adam(theirs, lr=0.1, weight_decay=decay)
    assert set(mine.state) == {"0/exp_avg", "0/exp_avg_sq", "1/exp_avg", "1/exp_avg_sq", "step"}
    for _ in range(5):
        targets = [torch.randn(leaf.shape) for leaf in ours]
        mine.descend(sum((leaf - target).square().sum() for leaf, target in zip(ours, targets, strict=True)))
        plain.zero_grad()
        sum((leaf - target).square().sum() for leaf, target in zip(theirs, targets, strict=True)).backward()
        plain.step()
    for leaf, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(leaf, other)
        torch.testing.assert_close(mine.state["0/exp_avg"], plain.state[theirs[0]]["exp_avg"])
    assert mine.state["step"] == 5


def test_descending_leaves_other_gradients_alone():
    """Mutation: backward, which would leave gradients in whatever a loss has touched."""
    ours, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    Adam([ours], 0.1).descend((ours * other).sum())
    assert other.grad is None and torch.equal(other, torch.ones(2)) and not torch.equal(ours, torch.ones(2))


@pytest.mark.parametrize("norm", [0.1, 1e6, None])
def test_adam_scales_gradients_down_to_a_norm_and_has_its_own_epsilon(norm):
    """Mutations: scaling up; the norm of each parameter by itself; the default epsilon."""
    torch.manual_seed(0)
    mine, theirs = ([torch.nn.Parameter(torch.linspace(-1, 1, n)) for n in (3, 5)] for _ in range(2))
    optimiser = Adam(mine, 0.01, epsilon=0.1, norm=norm)
    reference = torch.optim.Adam(theirs, 0.01, eps=0.1)
    for turn in range(5):
        found = optimiser.descend(sum((turn + 1) * leaf.pow(3).sum() for leaf in mine))
        reference.zero_grad()
        sum((turn + 1) * leaf.pow(3).sum() for leaf in theirs).backward()
        wanted = torch.nn.utils.clip_grad_norm_(theirs, norm if norm is not None else float("inf"))
        reference.step()
        assert (found is None) == (norm is None) and (found is None or float(found) == pytest.approx(float(wanted)))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_in_another_order_than_their_weights_are_put_in_order():
    """As convolutions give them. Mutation: handing them to the fused step as they lie, which pairs wrong numbers."""

    class Product(torch.autograd.Function):
        """Σ weight · factor, with a gradient that lies channels last."""

        @staticmethod
        def forward(context, weight, factor):
            context.save_for_backward(factor)
            return (weight * factor).sum()

        @staticmethod
        def backward(context, given):
            (factor,) = context.saved_tensors
            return given * factor.contiguous(memory_format=torch.channels_last), None

    torch.manual_seed(0)
    factor = torch.randn(4, 3, 5, 5)
    ours, theirs = (torch.nn.Parameter(torch.ones(4, 3, 5, 5)) for _ in range(2))
    Adam([ours], 0.1).descend(Product.apply(ours, factor))
    (theirs * factor).sum().backward()
    torch.optim.Adam([theirs], lr=0.1).step()
    torch.testing.assert_close(ours, theirs)
