"""Which precision is chosen: what is asked for; else what the device has, if it pays."""

import logging

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from packtrain.accelerate import precision
from packtrain.accelerate.precision import WORTH, choose_precision, use_tf32
from packtrain.acting.sampling import ActorCritic
from packtrain.networks.perception import Conv, Flatten
from packtrain.types import Spec

CPU = torch.device("cpu")
PICTURES = Spec(Box(0, 255, (84, 84), np.uint8), Discrete(3))
VECTORS = Spec(Box(-1, 1, (100,)), Discrete(3))


def network_for(spec, perception=None, **sizes):
    torch.manual_seed(0)
    return ActorCritic(perception or Flatten(), hidden_size=4, **sizes).build_network(spec)


@pytest.fixture
def bfloat16(monkeypatch):
    """Says whether the processor has bfloat16."""

    def has(answer):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: answer)

    return has


@pytest.fixture
def trial(monkeypatch):
    """Says how long passes last, {dtype: seconds of each try}; what was tried is listed."""
    tried = []

    def lasts(**seconds):
        left = {name: iter(values) for name, values in seconds.items()}

        def _seconds(network, spec, dtype):
            name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
            tried.append(name)
            return next(left[name])

        monkeypatch.setattr(precision, "_seconds", _seconds)
        return tried

    return lasts


@pytest.mark.parametrize("spec", [PICTURES, VECTORS], ids=["pictures", "vectors"])
@pytest.mark.parametrize("wanted, dtype", [("bfloat16", torch.bfloat16), ("float32", None)])
@pytest.mark.parametrize("has", [True, False])
def test_what_is_wanted_is_obeyed(spec, wanted, dtype, has, bfloat16, trial):
    """Whatever the device has, and without a trial, which this one would fail."""
    bfloat16(has)
    assert trial() == []
    assert choose_precision(wanted, network_for(spec), spec, CPU) is dtype


@pytest.mark.parametrize(
    "space, pictures",
    [
        (Box(-1, 1, (100,)), False),
        (Discrete(50), False),
        (Box(0, 255, (1, 10, 5), np.uint8), False),
        (Box(0, 255, (31, 84), np.uint8), False),
        (Box(0, 255, (84, 84), np.uint8), True),
        (Box(0, 255, (4, 84, 84), np.uint8), True),
        (Box(0, 255, (210, 160, 3), np.uint8), True),
        (Dict(picture=Box(0, 255, (32, 32), np.uint8), speed=Box(-1, 1, (2,))), True),
    ],
    ids=["vector", "number", "Catch", "flat", "grey", "channels first", "channels last", "tree"],
)
def test_only_networks_that_see_pictures_are_tried(space, pictures, bfloat16, trial):
    """Mutation: the channels of a picture taken for its width."""
    bfloat16(True)
    spec = Spec(space, Discrete(3))
    tried = trial(float32=[2.0] * 3, bfloat16=[1.0] * 3)
    assert choose_precision(None, network_for(spec), spec, CPU) is (torch.bfloat16 if pictures else None)
    assert len(tried) == 6 * pictures


def test_a_processor_without_bfloat16_is_not_tried(bfloat16, trial, caplog):
    """Mutation: bfloat16 emulated, at a tenth of the speed."""
    caplog.set_level(logging.INFO, "packtrain")
    bfloat16(False)
    tried = trial(float32=[2.0] * 3, bfloat16=[1.0] * 3)
    assert choose_precision(None, network_for(PICTURES), PICTURES, CPU) is None
    assert tried == [] and "computing in float32: the processor has no bfloat16" in caplog.text


@pytest.mark.parametrize(
    "single, half, dtype",
    [
        ([3.0] * 3, [1.0] * 3, torch.bfloat16),
        ([1.0] * 3, [3.0] * 3, None),
        ([1.0] * 3, [1.0] * 3, None),
        ([WORTH] * 3, [1.0] * 3, None),  # not worth it yet
        ([WORTH + 0.01] * 3, [1.0] * 3, torch.bfloat16),
        ([9.0, 1.0, 9.0], [2.0, 2.0, 2.0], None),  # the best of three: the others were disturbed
        ([2.0, 2.0, 2.0], [9.0, 9.0, 1.0], torch.bfloat16),
    ],
    ids=["faster", "slower", "equal", "hardly faster", "just faster", "disturbed float32", "disturbed bfloat16"],
)
def test_a_processor_with_bfloat16_is_tried(single, half, dtype, bfloat16, trial, caplog):
    """Mutations: the two mixed up; the mean, the first or the worst try counted."""
    caplog.set_level(logging.INFO, "packtrain")
    bfloat16(True)
    tried = trial(float32=single, bfloat16=half)
    assert choose_precision(None, network_for(PICTURES), PICTURES, CPU) is dtype
    assert sorted(tried) == ["bfloat16"] * 3 + ["float32"] * 3
    name = "bfloat16" if dtype else "float32"
    assert f"computing in {name}: bfloat16 is {min(single) / min(half):.2f} times as fast here" in caplog.text


@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
def test_a_trial_leaves_no_trace(use_lstm, bfloat16):
    """A real one. Mutations: without the copy, the network keeps the trial's gradients and its last precision."""
    bfloat16(True)
    spec = Spec(Dict(picture=Box(0, 255, (32, 32), np.uint8), speed=Box(-1, 1, (2,))), Discrete(3))
    conv = Conv(frames=4, channels=(2,), kernels=(4,), strides=(4,))
    network = network_for(spec, conv, use_lstm=use_lstm, lstm_size=4)
    before = {name: leaf.clone() for name, leaf in network.state_dict().items()}
    noise = torch.get_rng_state()
    assert choose_precision(None, network, spec, CPU) in (None, torch.bfloat16)
    assert network.precision is None and all(p.grad is None for p in network.parameters())
    assert all(torch.equal(leaf, before[name]) for name, leaf in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), noise)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_pass_of_the_trial_is_made_in_its_precision(dtype):
    """Forward and backward, every parameter reached. Mutation: both passes timed in float32."""
    conv = Conv(frames=2, channels=(2,), kernels=(4,), strides=(4,))
    network = network_for(PICTURES, conv)
    seen = []
    network.perception.register_forward_hook(lambda module, given, out: seen.append((out.dtype, len(out))))
    assert precision._seconds(network, PICTURES, dtype) > 0
    assert seen == [(dtype or torch.float32, precision.ROWS)]
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("wanted", [None, "tf32", "float32"])
def test_sums_of_half_precision_products_are_kept_in_float32(wanted):
    """Torch's default lets a GPU round them to half precision in between."""
    matmul, before = torch.backends.cuda.matmul, torch.get_float32_matmul_precision()
    reduced = matmul.allow_fp16_reduced_precision_reduction
    matmul.allow_fp16_reduced_precision_reduction = True
    try:
        use_tf32(wanted, CPU)
        assert not matmul.allow_fp16_reduced_precision_reduction
    finally:
        matmul.allow_fp16_reduced_precision_reduction = reduced
        torch.set_float32_matmul_precision(before)
