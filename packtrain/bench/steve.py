"""Speed of value expansion, compared with the lower bound given by its matrix products.

On a GPU: STEVE at the paper's sizes, an update of the model and one of critic and policy, for 1 and 8 seeds at once,
kernel by kernel, compiled, captured, and both. On a CPU: plain DDPG with 2 × 256 units and batches of 256, recorded and
not, on all cores and on one, compared with Stable-Baselines3 if it is installed, in alternating rounds.

The bound is the time of the products alone: their operations are counted in one update, and products of the size
that most of them have are timed on the same device, in the same precision and with the same threads. On a CPU small
products are slower than that, so every product of an update is also recorded with its shape and timed separately.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from packtrain.accelerate.allocator import keep_large_blocks
from packtrain.acting.noise import Control
from packtrain.algorithms.batched_updates import Batch, ReplayLearner
from packtrain.algorithms.dynamics import DynamicsLearning
from packtrain.algorithms.value_expansion import Steve, ValueExpansion
from packtrain.bench.measure import machine
from packtrain.config import unrecorded
from packtrain.cpu_count import available_cores
from packtrain.errors import ConfigError
from packtrain.networks.dynamics import Dynamics
from packtrain.types import Spec

OBS, ACTIONS = 17, 6  # HalfCheetah's
RUNS = (1, 8)
WAYS = {  # whether updates are compiled, and whether they are captured
    "eager": (False, False),
    "compiled": (True, False),
    "captured": (False, True),
    "both": (True, True),
}
COUNT = 32  # updates per call
ROUNDS = 5
TARGET = 360_000  # updates in 100,000 frames
SPEC = Spec(gym.spaces.Box(-1, 1, (OBS,)), gym.spaces.Box(-1, 1, (ACTIONS,)))


def run(secs: float, device: str = "cpu") -> dict[str, Any]:
    """Run the benchmark of a device."""
    with unrecorded():
        return _on_gpu(secs, torch.device(device)) if device.startswith("cuda") else _on_cpu(secs)


# -- STEVE on a GPU


def _on_gpu(secs: float, device: torch.device) -> dict[str, Any]:
    torch.set_float32_matmul_precision("high")
    control = Control(dynamics=Dynamics())
    flops = _operations_of_a_pair(control, device)
    cases = []
    for runs in RUNS:
        for way in WAYS:
            try:
                cases.append(_gpu_case(control, runs, way, flops, secs, device))
            except ConfigError as error:  # missing or broken compiler
                cases.append({"runs": runs, "way": way, "why": str(error)})
    best = max((case for case in cases if "rate" in case), key=lambda case: case["rate"] * case["runs"])
    lines = [
        "STEVE at the paper's sizes: pairs of an update of the model and one of critic and policy",
        "",
        f"{'seeds':>5}  {'way':<10}{'pairs/s':>10}{'x seeds':>10}{'floor/s':>10}{'ratio':>8}{'100 K frames':>16}",
    ]
    for case in cases:
        if "rate" not in case:
            lines.append(f"{case['runs']:>5}  {case['way']:<10}{case['why']}")
            continue
        minutes = TARGET / case["rate"] / 60
        lines.append(
            f"{case['runs']:>5}  {case['way']:<10}{case['rate']:>10,.0f}{case['rate'] * case['runs']:>10,.0f}"
            f"{case['bound']:>10,.0f}{case['ratio']:>8.2f}{f'{minutes:.1f} min':>16}"
        )
    lines += ["", f"{best['gflop']:.1f} GFLOP a pair and seed; products in tf32, {best['tflops']:.0f} TFLOP/s alone"]
    return {
        "bench": "steve",
        **{key: best[key] for key in ("rate", "bound", "ratio")},
        "parts": cases,
        "lines": lines,
        "machine": machine(True),
    }


def _gpu_case(control: Control, runs: int, way: str, flops: float, secs: float, device: torch.device) -> dict[str, Any]:
    compiles, captures = WAYS[way]
    each = [_learners(control, _both(compiles), device, seed, captures) for seed in range(runs)]
    if runs > 1:
        ReplayLearner.join(each)
    kinds = [list(same) for same in zip(*each, strict=True)]  # the model's learners, then the critics'
    batches = [[_batch(learner, device) for learner in same] for same in kinds]

    def pairs() -> int:
        for same, own in zip(kinds, batches, strict=True):
            same[0].apply(own)
        return COUNT

    rate = _rate(pairs, secs, device)
    tflops = _products(device, 4 * runs, 512, secs / 4)
    bound = tflops * 1e12 / (runs * flops)
    return {
        **{"runs": runs, "way": way, "rate": rate, "bound": bound, "ratio": rate / bound},
        **{"gflop": flops / 1e9, "tflops": tflops},
    }


def _both(compiles: bool) -> tuple[Any, ...]:
    """Return the learners of model and critic."""
    return DynamicsLearning(compile=compiles), ValueExpansion(target=Steve(), compile=compiles)


def _operations_of_a_pair(control: Control, device: torch.device) -> float:
    """Return the floating-point operations of the products in an update of the model and one of critic and policy."""
    learners = _learners(control, _both(False), device, 0, False)
    return sum(_operations(partial(one.update, _batch(one, device))) for one in learners) / COUNT


def _learners(
    control: Control, descriptions: tuple[Any, ...], device: torch.device, seed: int, capture: bool
) -> list[ReplayLearner]:
    torch.manual_seed(seed)
    network = control.build_network(SPEC).to(device)
    learners = [description.build(network, 1) for description in descriptions]
    for learner in learners:
        learner.capture = capture
    return learners


def _batch(learner: ReplayLearner, device: torch.device) -> Batch:
    """Return inputs of COUNT updates: noise in the shapes of HalfCheetah."""
    rows = learner.rule.batch_size
    given = {
        "obs": torch.randn(COUNT, rows, OBS, device=device),
        "after": torch.randn(COUNT, rows, OBS, device=device),
        "action": torch.rand(COUNT, rows, ACTIONS, device=device) * 2 - 1,
        "reward": torch.randn(COUNT, rows, device=device),
        "terminated": torch.zeros(COUNT, rows, dtype=torch.uint8, device=device),
    }
    return {**given, **learner.rule.draws(COUNT, torch.Generator(device).manual_seed(0))}


# -- DDPG on a CPU


def _on_cpu(secs: float) -> dict[str, Any]:
    keep_large_blocks()  # as in every run
    cores = available_cores()
    with _threads(cores):
        return _ddpg(secs, cores)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ddpg(secs: float, cores: int) -> dict[str, Any]:
    cpu = torch.device("cpu")
    control = Control(256, 2, 1, explore_chance=1.0)
    description = ValueExpansion(batch_size=256, rows="all", target_period=None, publish_period=None)
    ours, unrecorded, on_one = (_updates(control, description, capture) for capture in (True, False, True))
    flops = _operations(unrecorded) / COUNT
    products = _recorded_products(unrecorded)
    theirs = _stable_baselines()
    rates, plain, floors, alone, others = [], [], [], [], []
    ones: list[tuple[float, float]] = []  # rate and floor of one core
    for _ in range(ROUNDS):  # alternately, because a shared machine's speed varies
        rates.append(_rate(ours, secs / ROUNDS, cpu))
        plain.append(_rate(unrecorded, secs / ROUNDS / 2, cpu))
        floors.append(_floor(flops, secs / ROUNDS / 4))
        alone.append(_rate(products, secs / ROUNDS / 2, cpu))
        with _threads(1):
            ones.append((_rate(on_one, secs / ROUNDS / 2, cpu), _floor(flops, secs / ROUNDS / 4)))
        if theirs is not None:
            others.append(_rate(theirs, secs / ROUNDS, cpu))
    ratios = [rate / floor for rate, floor in zip(rates, floors, strict=True)]
    rate, floor = statistics.median(rates), statistics.median(floors)
    one, one_ratio = (statistics.median(each) for each in zip(*((r, r / f) for r, f in ones), strict=True))
    lines = [
        "DDPG, 2 x 256 units, batches of 256, HalfCheetah's shapes",
        "",
        f"rate   {rate:>8,.0f} updates/s on {cores} cores",
        f"floor  {floor:>8,.0f} updates/s: {flops / 1e9:.3f} GFLOP of products an update",
        f"ratio  {statistics.median(ratios):>8.2f}   the median of {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
        f"alone  {statistics.median(alone):>8,.0f} updates/s: the same products one after another, and nothing else",
        f"core   {one:>8,.0f} updates/s on one core, {one_ratio:.2f} of its floor",
        f"plain  {statistics.median(plain):>8,.0f} updates/s: the same updates without recording",
    ]
    more: dict[str, Any] = {}
    if others:
        times = [mine / other for mine, other in zip(rates, others, strict=True)]
        more = {"baseline": "Stable-Baselines3", "baseline_rates": others, "times_baseline": statistics.median(times)}
        rounds = ", ".join(f"{other:,.0f}" for other in others)
        lines.append(f"times  {more['times_baseline']:>8.2f}   the rate of Stable-Baselines3 ({rounds} updates/s)")
    else:
        lines.append("Stable-Baselines3 is not installed here: pip install stable-baselines3, to compare")
    return {
        **{"bench": "steve", "rate": rate, "bound": floor, "ratio": statistics.median(ratios), "ratios": ratios},
        **more,
        "parts": [
            {"name": "products", "gflop": flops / 1e9, "updates_per_second": statistics.median(alone)},
            {"name": "one core", "updates_per_second": one, "ratio": one_ratio},
            {"name": "untaped", "updates_per_second": statistics.median(plain)},
        ],
        "lines": lines,
        "machine": machine(),
    }


def _floor(flops: float, secs: float) -> float:
    """Return the updates per second if there were only products, all as fast as those of 256 × 256 × 256."""
    return 1e12 * _products(torch.device("cpu"), 1, 256, secs) / flops


def _updates(control: Control, description: ValueExpansion, capture: bool) -> Callable[[], int]:
    """Return a call that makes COUNT updates."""
    cpu = torch.device("cpu")
    (learner,) = _learners(control, (description,), cpu, 0, capture)
    batch = _batch(learner, cpu)

    def updates() -> int:
        learner.update(batch)
        return COUNT

    return updates


def _stable_baselines() -> Callable[[], int] | None:
    """Return a call that makes updates of Stable-Baselines3 on random steps; None if it is not installed."""
    try:
        from stable_baselines3 import DDPG
    except ImportError:
        return None
    model = DDPG("MlpPolicy", _Noise(), policy_kwargs={"net_arch": [256, 256]}, batch_size=256, learning_starts=300)
    with contextlib.suppress(AttributeError):
        model.learn(301)

    def updates() -> int:
        model.train(8, 256)
        return 8

    return updates


class _Noise(gym.Env):
    """An environment of random numbers with given shapes."""

    observation_space = gym.spaces.Box(-10, 10, (OBS,))
    action_space = gym.spaces.Box(-1, 1, (ACTIONS,))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 1.0, False, False, {}


# -- measuring


def _rate(call: Callable[[], int], secs: float, device: torch.device) -> float:
    """Return the units per second of a call that returns its number of units."""
    for _ in range(2):
        call()
    _settle(device)
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < secs:
        count += call()
        _settle(device)
    return count / (time.perf_counter() - begin)


def _operations(call: Callable[[], Any]) -> float:
    """Return the floating-point operations of the products in a call."""
    with FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())


def _recorded_products(call: Callable[[], Any]) -> Callable[[], int]:
    """Return a call that computes only the products of another call, and the number of its updates."""
    found: list[tuple[Any, tuple[Tensor, ...]]] = []

    class Note(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default, torch.ops.aten.mm.default):
                found.append((function, args))
            return function(*args, **(kwargs or {}))

    with Note():
        call()

    def products() -> int:
        for function, args in found:
            function(*args)
        return COUNT

    return products


def _products(device: torch.device, batch: int, size: int, secs: float) -> float:
    """Return the TFLOP per second of square products alone."""
    a, b = (torch.randn(batch, size, size, device=device) for _ in range(2))
    into: Tensor = torch.empty_like(a)

    def products() -> int:
        for _ in range(20):
            torch.bmm(a, b, out=into)
        return 20

    return _rate(products, secs, device) * batch * 2 * size**3 / 1e12


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
