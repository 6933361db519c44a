"""Speed of MCTS with trees on the device, and of mctx in the same call where JAX and mctx can be imported.

Both search the Tower of Hanoi by the same tables, with the same fully connected network of the same sizes, from as many
roots and with as many simulations. The first call of each is not counted: it allocates, and compiles in JAX.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from packtrain.bench.measure import machine
from packtrain.envs.hanoi import Hanoi
from packtrain.planning.device_mcts import DeviceMCTS, search
from packtrain.planning.device_models import TableModel

ROOTS = (32, 256, 1024)
SIMULATIONS = 64
HIDDEN = (256, 256)
ROUNDS = 5


class Network(nn.Module):
    """Observations [B, D] → qualities and logits, each [B, A]."""

    def __init__(self, inputs: int, actions: int):
        super().__init__()
        widths = [inputs, *HIDDEN]
        layers = [part for a, b in zip(widths, widths[1:], strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(widths[-1], 2 * actions)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return qualities and logits."""
        qualities, logits = self.head(self.body(obs)).chunk(2, -1)
        return qualities, logits


def compare(secs: float, device: str, many: tuple[int, ...] = ROOTS, simulations: int = SIMULATIONS) -> dict[str, Any]:
    """Return simulations per second for each number of roots, and mctx's."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    core = Hanoi(5, max_steps=None)
    model = TableModel(core, device)
    network = Network(core.observation_space.shape[0], model.actions).to(device).eval()  # type: ignore[index]
    cases = []
    for count in many:
        roots = np.random.default_rng(0).choice(np.flatnonzero(~model.graph.terminated), count)
        ours = _rate(_packtrain(model, network, roots, device, simulations), count * simulations, secs / ROUNDS)
        theirs, missing = None, _missing()
        if missing is None:
            theirs = _rate(_mctx(model, network, roots, simulations), count * simulations, secs / ROUNDS)
        cases.append({"roots": count, "rate": ours, "mctx": theirs, "ratio": ours / theirs if theirs else None})
    return {
        "bench": "search",
        "device": device,
        "simulations": simulations,
        "cases": cases,
        "mctx_missing": _missing(),
        "mctx_device": _jax_device(),
        "machine": machine(),
        "lines": _lines(cases, device, simulations),
    }


def _packtrain(
    model: TableModel, network: Network, roots: np.ndarray, device: str, simulations: int
) -> Callable[[], None]:
    states = torch.as_tensor(roots, device=device)
    settings = DeviceMCTS(simulations + 1, rescale_qualities="node")  # the first pass expands the root

    def decide() -> None:
        search(settings, model, network, states).action.cpu()

    return decide


def _missing() -> str | None:
    """Return the name of the first module that mctx's measurement lacks; None if all are there."""
    return next((name for name in ("jax", "mctx") if importlib.util.find_spec(name) is None), None)


def _jax_device() -> str | None:
    """Return the kind of device that mctx runs on, such as "cpu"; None if it is not measured."""
    if _missing() is not None:
        return None
    import jax

    return str(jax.default_backend())


def _mctx(model: TableModel, network: Network, roots: np.ndarray, simulations: int) -> Callable[[], None]:
    """Return one decision of `mctx.muzero_policy` on JAX's default device, by the same tables and weights."""
    # one thread on the CPU, as for PyTorch here; read when JAX is first imported
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    import jax
    import mctx

    numpy = jax.numpy
    graph = model.graph
    after = numpy.asarray(graph.edges)
    rewards = numpy.asarray(model.rewards.cpu().numpy())
    ended = numpy.asarray(graph.terminated)
    observations = numpy.asarray(model.observations.cpu().numpy())
    layers = [layer for layer in [*network.body, network.head] if isinstance(layer, nn.Linear)]
    weights = [tuple(numpy.asarray(p.detach().cpu().numpy()) for p in (one.weight, one.bias)) for one in layers]

    def evaluate(states: Any) -> tuple[Any, Any]:
        x = observations[states]
        for weight, bias in weights[:-1]:
            x = jax.nn.relu(x @ weight.T + bias)
        qualities, logits = numpy.split(x @ weights[-1][0].T + weights[-1][1], 2, axis=-1)
        return logits, qualities.max(-1)  # mctx needs the value of the state

    def recurrent(_: Any, key: Any, action: Any, states: Any) -> tuple[Any, Any]:
        following = after[states, action]
        logits, value = evaluate(following)
        over = ended[following]
        step = mctx.RecurrentFnOutput(
            reward=rewards[states, action],
            discount=numpy.where(over, 0.0, 0.99).astype(numpy.float32),
            prior_logits=logits,
            value=numpy.where(over, 0.0, value),
        )
        return step, following

    @jax.jit
    def policy(key: Any, states: Any) -> Any:
        logits, value = evaluate(states)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=states)
        found = mctx.muzero_policy((), key, root, recurrent, simulations, dirichlet_fraction=0.0)
        return found.action

    states, key = numpy.asarray(roots), jax.random.PRNGKey(0)

    def decide() -> None:
        policy(key, states).block_until_ready()

    return decide


def _rate(decide: Callable[[], None], each: int, secs: float) -> float:
    """Return the median rate of simulations per second over rounds of wall time."""
    decide()
    rates = []
    for _ in range(ROUNDS):
        begin, decisions = time.perf_counter(), 0
        while decisions == 0 or time.perf_counter() - begin < secs:
            decide()
            decisions += 1
        rates.append(decisions * each / (time.perf_counter() - begin))
    return statistics.median(rates)


def _lines(cases: list[dict[str, Any]], device: str, simulations: int) -> list[str]:
    missing = _missing()
    lines = [f"MCTS on {device}, Tower of Hanoi with 5 disks, {simulations} simulations, network of 2 × {HIDDEN[0]}"]
    lines.append(f"{'roots':>6}{'simulations/s':>16}{'mctx':>16}{'ratio':>8}")
    for case in cases:
        theirs = "–" if case["mctx"] is None else f"{case['mctx']:,.0f}"
        ratio = "–" if case["ratio"] is None else f"{case['ratio']:.2f}"
        lines.append(f"{case['roots']:>6}{case['rate']:>16,.0f}{theirs:>16}{ratio:>8}")
    if missing is not None:
        return [*lines, f"mctx is not measured: {missing} is not installed"]
    other = _jax_device() != ("gpu" if torch.device(device).type == "cuda" else "cpu")
    return [*lines, f"JAX has no such device: mctx ran on {_jax_device()}"] if other else lines
