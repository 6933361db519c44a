"""Precision of convolutions and fully connected layers: bfloat16 if the device supports it and it is faster."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Iterator
from typing import Literal

import torch

from packtrain import trees
from packtrain.envs.validation import space_leaves
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.networks.perception import is_picture
from packtrain.types import Spec

log = logging.getLogger("packtrain")
Precision = Literal["float32", "tf32", "bfloat16"]
ROWS = 64  # batch rows of the measurement on a CPU
WORTH = 1.1  # minimum speed-up for which bfloat16 is chosen


def choose_precision(
    wanted: Precision | None, network: ActorCriticNetwork | ActionValuesNetwork, spec: Spec, device: torch.device
) -> torch.dtype | None:
    """Return the dtype to compute in, None for float32, and a line for the log that gives the reason.

    Args:
      wanted: by the configuration; None: bfloat16 on a GPU that has it; on a CPU that has it, if a trial is faster.
      network: of the size that will be trained.
      spec: of its environment. Networks that see no pictures are small and stay float32.
      device: where it will be trained.
    """
    if wanted is not None:
        return torch.bfloat16 if wanted == "bfloat16" else None
    if not any(is_picture(leaf) and sorted(leaf.shape)[-2] >= 32 for leaf in trees.flatten(space_leaves(spec.obs))):
        return None
    if device.type == "cuda":
        has = torch.cuda.is_bf16_supported(including_emulation=False)
        log.info(
            "computing in %s: %s", *(("bfloat16", "the GPU has it") if has else ("float32", "the GPU has no other"))
        )
        return torch.bfloat16 if has else None
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        log.info("computing in float32: the processor has no bfloat16")
        return None
    network = copy.deepcopy(network)
    single, half = (min(_seconds(network, spec, dtype) for _ in range(3)) for dtype in (None, torch.bfloat16))
    choice = torch.bfloat16 if single > WORTH * half else None
    log.info("computing in %s: bfloat16 is %.2f times as fast here", "bfloat16" if choice else "float32", single / half)
    return choice


def use_tf32(wanted: Precision | None, device: torch.device) -> None:
    """Allow TF32 in large products on a GPU (factors rounded to 10 bits), unless the configuration demands float32.

    Sums of products are kept in float32 either way, those of float16 factors too (`StackedNetwork.pack`).
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    rounds = device.type == "cuda" and wanted in (None, "tf32")
    torch.set_float32_matmul_precision("high" if rounds else "highest")
    if device.type == "cuda":
        log.info("computing products in %s", "tf32" if rounds else "float32")


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Compute products and convolutions in full float32, whatever the run's precision is.

    The setting is the process's: work that another thread launches meanwhile is done in full float32 too.
    """
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def _seconds(network: ActorCriticNetwork | ActionValuesNetwork, spec: Spec, dtype: torch.dtype | None) -> float:
    """Return the seconds of one forward and backward pass over random rows."""
    network.precision = dtype
    asked = network if isinstance(network, ActorCriticNetwork) else network.acting.values
    rows = asked.context + ROWS
    obs = trees.map(lambda leaf: torch.as_tensor(leaf.sample()).expand(rows, 1, *leaf.shape), space_leaves(spec.obs))
    action = trees.map(
        lambda leaf: torch.zeros(ROWS, 1, *leaf.shape, dtype=torch.as_tensor(leaf.sample()).dtype),
        space_leaves(spec.action),
    )
    begin = time.perf_counter()
    blank, carry = torch.zeros(ROWS, 1), asked.initial_carry(1)
    inputs = [obs, torch.zeros(rows, 1, dtype=torch.bool), action, blank, carry]
    if isinstance(asked, ActorCriticNetwork):
        output = asked(*inputs)
        total = output.parameters.sum() + output.value.sum()
    else:
        total = asked(*inputs, blank, blank.long()).values.sum()
    total.backward()
    return time.perf_counter() - begin
